//! The lines of CoreDNS' plugin `log`, in its formats `common` and `combined`:
//!
//! ```text
//! [INFO] 192.0.2.7:50759 - 29008 "A IN orders.internal. udp 33 false 512" NOERROR qr,rd,ra 64 0.001s
//! ```
//!
//! CoreDNS writes no time. What stands before the client's address is ignored except for a time: `kubectl logs` puts one
//! there with `--timestamps`, and the pod's name with `--prefix`; container runtimes and collectors put others.

use std::net::IpAddr;

use k8s_openapi::jiff::Timestamp;

use super::{
    record::{How, Kind, Read, Said, Sighting},
    subject::{Relation, Subject, normal},
};

/// How messages of CoreDNS that are no queries begin, after what others put before them.
const LEVELS: [&str; 5] = ["[INFO]", "[WARNING]", "[ERROR]", "[DEBUG]", "[FATAL]"];
const BANNERS: [&str; 4] = ["CoreDNS-", "linux/", "maxprocs:", "Listening on"];

/// Reads a line; `None` if it is none of CoreDNS.
///
/// # Errors
/// Why it is broken.
pub(super) fn read(line: &str, at: Option<Timestamp>, subject: &Subject) -> Result<Option<Read>, String> {
    let mut parts = line.split('"');
    let (Some(before), Some(question)) = (parts.next(), parts.next()) else { return Ok(message(line)) };
    let mut words = before.split_whitespace().rev();
    let (id, dash, remote) = (words.next(), words.next(), words.next());
    let is_query = dash == Some("-") && id.is_some_and(|id| id.bytes().all(|byte| byte.is_ascii_digit()));
    if !is_query {
        return match message(line) {
            Some(read) => Ok(Some(read)),
            None => Ok(None),
        };
    }
    let address = remote.and_then(client).ok_or("it has no address before the query's number")?;
    let fields: Vec<_> = question.split_whitespace().collect();
    let [_, _, name, _, _, _, _] = *fields else {
        return Err("its query does not have the fields of CoreDNS' formats common and combined".to_owned());
    };
    if parts.next().is_none_or(|after| after.trim().is_empty()) {
        return Err("it ends before the answer".to_owned());
    }
    let at = words.find_map(|word| word.parse::<Timestamp>().ok()).or(at);
    let said = match subject.relation(name) {
        Relation::Same => {
            Said::Use(Box::new(Sighting { address: Some(address), ..Sighting::new(How::CoreDnsQuery, at) }))
        }
        Relation::Suffixed => Said::Suffixed(normal(name)),
        Relation::Below => Said::Below(normal(name)),
        Relation::Other => Said::Other,
    };
    Ok(Some(Read { kind: Kind::CoreDns, at, said }))
}

/// `192.0.2.7:50759` or `[2001:db8::7]:50759`.
fn client(remote: &str) -> Option<IpAddr> {
    let (address, port) = remote.rsplit_once(':')?;
    port.parse::<u16>().ok()?;
    let address = address.trim_start_matches('[').trim_end_matches(']');
    let address = address.split_once('%').map_or(address, |(address, _)| address);
    address.parse::<IpAddr>().ok().map(|address| address.to_canonical())
}

/// What CoreDNS says otherwise.
fn message(line: &str) -> Option<Read> {
    let levelled = line.split_whitespace().take(6).any(|word| LEVELS.contains(&word));
    // The zones and ports that it serves, at its start: `.:53`.
    let mut words = line.split_whitespace().rev();
    let last = words.next().unwrap_or_default();
    let zone = last.rsplit_once(':').is_some_and(|(zone, port)| zone.ends_with('.') && port.parse::<u16>().is_ok());
    let banner = BANNERS.iter().any(|banner| line.split_whitespace().any(|word| word.starts_with(banner)));
    (levelled || zone || banner).then_some(Read { kind: Kind::CoreDns, at: None, said: Said::Nothing })
}
