//! What asks for a drain: annotations of a ServiceExport, for one name, and ClusterProperties, for all names of a cluster.

use model::{Excerpt, MinReady, NoMinReady};

/// What asks for a drain cannot be read. The message says what to write.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidDrain {
    /// Neither `true` nor `false`.
    #[error("{name} is {}: write \"true\", or remove it", Excerpt(.value))]
    Switch {
        /// Name of the annotation or ClusterProperty.
        name: &'static str,
        /// Its value.
        value: String,
    },
    /// No share.
    #[error("{name}: {error}")]
    MinReady {
        /// Name of the annotation or ClusterProperty.
        name: &'static str,
        /// What is wrong about it.
        error: NoMinReady,
    },
}

/// Reads the two values that ask for a drain, which have these names. Returns which share of the endpoints elsewhere must be
/// ready; `None` if no drain is asked for.
///
/// # Errors
/// One is invalid.
pub fn read(
    [drain, min_ready]: [Option<&str>; 2],
    [drain_name, min_ready_name]: [&'static str; 2],
) -> Result<Option<MinReady>, InvalidDrain> {
    let drains = match drain.map(str::trim) {
        None | Some("false") => false,
        Some("true") => true,
        Some(other) => return Err(InvalidDrain::Switch { name: drain_name, value: other.to_owned() }),
    };
    let min_ready = min_ready.map_or(Ok(MinReady::MOST), |text| text.trim().parse());
    let min_ready = min_ready.map_err(|error| InvalidDrain::MinReady { name: min_ready_name, error })?;
    Ok(drains.then_some(min_ready))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_drain_is_asked_for_by_true_and_what_is_unclear_is_named_with_the_remedy() {
        let read = |drain, min_ready| read([drain, min_ready], ["drain", "min"]).map_err(|error| error.to_string());
        assert_eq!(read(None, None), Ok(None));
        assert_eq!(read(Some("false"), Some("50%")), Ok(None));
        assert_eq!(read(Some("true"), None), Ok(Some(MinReady::MOST)));
        assert_eq!(read(Some(" true"), Some("any")), Ok(Some(MinReady::ANY)));
        assert_eq!(read(Some("yes"), None).unwrap_err(), "drain is \"yes\": write \"true\", or remove it");
        for text in ["101%", "70", "0%"] {
            let error = read(None, Some(text)).unwrap_err();
            assert!(error.starts_with("min: ") && error.contains("\"1%\" to \"100%\""), "{error}");
        }
    }
}
