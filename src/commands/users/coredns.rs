//! The lines of CoreDNS' plugin `log`, in its formats `common` and `combined`:
//!
//! ```text
//! [INFO] 192.0.2.7:50759 - 29008 "A IN orders.internal. udp 33 false 512" NOERROR qr,rd,ra 64 0.001s
//! ```
//!
//! CoreDNS writes no time. What stands before the client's address is ignored except for a time: `kubectl logs` puts one
//! there with `--timestamps`, and the pod's name with `--prefix`; container runtimes and collectors put others. Lines of
//! other formats, which are any text, are read as far as they say who asks for what.

use k8s_openapi::jiff::Timestamp;

use super::{
    custom,
    fields::address,
    record::{How, Kind, Meaning, Read, Sighting},
    subject::Subject,
    times,
};

/// How messages of CoreDNS begin, after what others put before them. Queries are always of the first level.
const INFO: &str = "[INFO]";
const LEVELS: [&str; 4] = ["[WARNING]", "[ERROR]", "[DEBUG]", "[FATAL]"];
/// How messages of the level `[INFO]` begin that are no queries: of CoreDNS and of NodeLocal DNSCache.
const MESSAGES: [&str; 21] = [
    "plugin/",
    "Reloading",
    "Successfully",
    "Corefile",
    "SIG",
    "Listening",
    "shutting",
    "Shutting",
    "Starting",
    "Using",
    "Updated",
    "Added",
    "Removed",
    "Sync",
    "Tearing",
    "Exiting",
    "Skipping",
    "Loading",
    "CoreDNS",
    "linux/",
    "Received",
];
const BANNERS: [&str; 4] = ["CoreDNS-", "linux/", "maxprocs:", "Listening on"];

/// Reads a line; `None` if it is none of CoreDNS.
///
/// # Errors
/// Why it is broken.
pub(super) fn read(line: &str, at: Option<Timestamp>, subject: &Subject) -> Result<Option<Read>, String> {
    if let Some(read) = formatted(line, at, subject)? {
        return Ok(Some(read));
    }
    let at = times::in_words(line).or(at);
    let after = line.split_once(INFO).map(|(_, after)| after.trim_start());
    if is_message(line, after) {
        return Ok(Some(Read { kind: Kind::CoreDns, at: None, said: Meaning::Nothing }));
    }
    Ok(custom::text(after.unwrap_or(line), after.is_some(), at, subject))
}

/// Where the address, the dash and the id of a query are: so many bytes before its quote.
const BEFORE: usize = 256;

/// A query in the format `common` or `combined`, wherever in the line it begins.
fn formatted(line: &str, at: Option<Timestamp>, subject: &Subject) -> Result<Option<Read>, String> {
    for (quote, _) in line.match_indices('"') {
        let (before, question) = (line.get(..quote).unwrap_or_default(), line.get(quote + 1..).unwrap_or_default());
        // In a line without spaces, each quote would look through all that is before it.
        let near = before.get(before.floor_char_boundary(before.len().saturating_sub(BEFORE))..).unwrap_or_default();
        let mut words = near.split_whitespace().rev();
        let (id, dash, remote) = (words.next(), words.next(), words.next());
        if dash != Some("-") || !id.is_some_and(|id| id.bytes().all(|byte| byte.is_ascii_digit())) {
            continue;
        }
        let Some((question, after)) = question.split_once('"') else {
            return Err("it ends in the middle of the query".to_owned());
        };
        let fields: Vec<_> = question.split_whitespace().collect();
        // Other formats have fewer fields, and others before them.
        let ([_, _, name, _, _, _, _], Some(client)) = (fields.as_slice(), remote.and_then(client)) else { continue };
        let Some(rcode) = after.split_whitespace().next() else {
            return Err("it ends before the answer".to_owned());
        };
        let at = times::in_words(before).or(at);
        let by = Sighting { address: Some(client), ..Sighting::new(How::CoreDnsQuery, at) };
        return Ok(Some(Read { kind: Kind::CoreDns, at, said: subject.asked(name, Some(rcode), Some(by)) }));
    }
    Ok(None)
}

/// `192.0.2.7:50759`, `[2001:db8::7]:50759`, with what a collector may put before it: `msg="192.0.2.7:50759`.
fn client(remote: &str) -> Option<std::net::IpAddr> {
    address(remote.rsplit(['"', '=', '\'', ',', '>']).next().unwrap_or(remote))
}

/// Whether CoreDNS says something else. `after` is what follows the level of queries.
fn is_message(line: &str, after: Option<&str>) -> bool {
    if let Some(after) = after {
        return MESSAGES.iter().any(|begin| after.starts_with(begin));
    }
    if LEVELS.iter().any(|level| line.contains(level)) || line.starts_with("plugin/") {
        return true;
    }
    // Of Kubernetes' client: `I1123 08:00:05.123456       1 trace.go:236] ...`.
    let mut words = line.split_whitespace().take(8);
    let is_klog = |word: &str| {
        word.len() == 5 && word.starts_with(['I', 'W', 'E', 'F']) && word.bytes().skip(1).all(|b| b.is_ascii_digit())
    };
    if words.any(is_klog) && words.next().is_some_and(|time| time.contains(':') && time.contains('.')) {
        return true;
    }
    // The zones and ports that it serves, at its start: `.:53`.
    let last = line.split_whitespace().next_back().unwrap_or_default();
    let zone = last.rsplit_once(':').is_some_and(|(zone, port)| zone.ends_with('.') && port.parse::<u16>().is_ok());
    zone || BANNERS.iter().any(|banner| line.split_whitespace().any(|word| word.starts_with(banner)))
}
