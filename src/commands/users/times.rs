//! The times in logs and in their wrappers.

use k8s_openapi::jiff::{Timestamp, civil, tz::TimeZone};
use serde_json::Value;

/// A time as text: with an offset, or without one, which AWS and CoreDNS mean as UTC; or a number since 1970.
pub(super) fn of_text(text: &str) -> Option<Timestamp> {
    let text = text.trim();
    if let Ok(time) = text.parse::<Timestamp>() {
        return Some(time);
    }
    if text.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.') {
        return since_epoch(text);
    }
    civil_time(text)
}

/// In JSON: as text or as a number.
pub(super) fn of_value(value: &Value) -> Option<Timestamp> {
    match value {
        Value::String(text) => of_text(text),
        Value::Number(number) => since_epoch(&number.to_string()),
        _ => None,
    }
}

/// The first time among words: what stands before the line of a log has other words, too.
pub(super) fn in_words(text: &str) -> Option<Timestamp> {
    let mut words = text.split_whitespace().peekable();
    while let Some(word) = words.next() {
        let word = word.rsplit('=').next().unwrap_or(word);
        // Fluent Bit prints the seconds since 1970 in brackets: `[1795420805.123,`.
        let bare = word.trim_matches(['[', ']', '(', ')', '"', '\'', ',', '|']);
        let seconds = bare.len() > 10 && bare.find('.') == Some(10) && word.starts_with('[');
        // As text, the AWS CLI prints the milliseconds of an event.
        let is_millis = bare.len() == 13 && bare.starts_with('1') && bare.bytes().all(|byte| byte.is_ascii_digit());
        if bare.contains([':', '-', '/']) || seconds || is_millis {
            let pair = words.peek().map(|next| format!("{bare} {}", next.trim_matches([']', ')', '"', '\'', ','])));
            let found = of_text(bare).or_else(|| pair.filter(|_| bare.len() == 10).and_then(|pair| of_text(&pair)));
            if found.is_some() {
                return found;
            }
        }
    }
    None
}

/// `2026-11-23T08:00:05`, `2026-11-23 08:00:05.000`, `2026-11-23 08:00:05.000 UTC`, Go's `2026/11/23 08:00:05`, and
/// Kibana's `Nov 23, 2026 @ 08:00:05.000`.
fn civil_time(text: &str) -> Option<Timestamp> {
    if let Ok(time) = civil::DateTime::strptime("%b %d, %Y @ %H:%M:%S%.f", text) {
        return time.to_zoned(TimeZone::UTC).ok().map(|time| time.timestamp());
    }
    let text = text.strip_suffix("UTC").unwrap_or(text).trim();
    let day = text.get(..10)?;
    let digits =
        |from: usize, to: usize| text.get(from..to).is_some_and(|part| part.bytes().all(|b| b.is_ascii_digit()));
    if text.len() < 16 || !digits(0, 4) || !digits(5, 7) || !digits(8, 10) || text.contains('[') {
        return None;
    }
    let text = format!("{}{}", day.replace('/', "-"), text.get(10..)?);
    text.parse::<civil::DateTime>().ok()?.to_zoned(TimeZone::UTC).ok().map(|time| time.timestamp())
}

/// Seconds with a fraction, or milli-, micro- or nanoseconds: the number of digits decides which.
fn since_epoch(text: &str) -> Option<Timestamp> {
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    let number = whole.parse::<i128>().ok()?;
    let unit: i128 = match whole.trim_start_matches('-').len() {
        0..=11 => 1_000_000_000,
        12..=14 => 1_000_000,
        15..=17 => 1_000,
        _ => 1,
    };
    let nanos: i128 = format!("{fraction:0<9}").get(..9)?.parse().ok()?;
    Timestamp::from_nanosecond(number.checked_mul(unit)? + nanos * unit / 1_000_000_000).ok()
}
