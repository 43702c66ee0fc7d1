//! What the flags of several commands take.

use std::{str::FromStr, time::Duration};

use k8s_openapi::jiff::SignedDuration;

pub(super) fn parsed<T: FromStr>(text: &str) -> Result<T, String>
where
    T::Err: std::fmt::Display,
{
    text.parse().map_err(|error: T::Err| error.to_string())
}

pub(super) fn duration(text: &str) -> Result<Duration, String> {
    text.parse::<SignedDuration>()
        .ok()
        .and_then(|duration| Duration::try_from(duration).ok())
        .filter(|duration| !duration.is_zero())
        .ok_or_else(|| format!("{text:?} is not a positive duration such as 500ms, 20s, 5m or 1h"))
}

pub(super) fn http_url(text: &str) -> Result<String, String> {
    if text.starts_with("http://") || text.starts_with("https://") {
        Ok(text.trim_end_matches('/').to_owned())
    } else {
        Err("it must start with http:// or https://".to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_parsed_with_their_units() {
        assert_eq!(duration("500ms"), Ok(Duration::from_millis(500)));
        assert_eq!(duration("5m"), Ok(Duration::from_mins(5)));
        assert!(duration("-1s").is_err());
    }
}
