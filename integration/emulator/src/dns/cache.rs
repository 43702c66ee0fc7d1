//! The cache of a resolver, under a clock that is passed in.

use std::collections::HashMap;
use std::time::Duration;

use hickory_proto::op::ResponseCode;
use hickory_proto::rr::{Name, RData, RecordType};

use super::Reply;

/// More names than this are forgotten, all at once.
const MOST_ENTRIES: usize = 100_000;

#[derive(Debug)]
struct Entry {
    reply: Reply,
    stored: Duration,
    lifetime: Duration,
}

/// Answers and their absence, by name and type; a name that does not exist has no type (RFC 2308, section 5).
#[derive(Debug, Default)]
pub(crate) struct Cache {
    entries: HashMap<(Name, Option<RecordType>), Entry>,
}

impl Cache {
    /// What is cached, with what is left of its TTLs.
    pub(crate) fn get(&self, now: Duration, name: &Name, kind: RecordType) -> Option<Reply> {
        [None, Some(kind)].into_iter().find_map(|kind| {
            let entry = self.entries.get(&(name.clone(), kind))?;
            let age = now.saturating_sub(entry.stored);
            if age >= entry.lifetime {
                return None;
            }
            let mut reply = entry.reply.clone();
            let seconds = age.as_secs() as u32;
            for record in reply.answers.iter_mut().chain(&mut reply.authorities) {
                record.decrement_ttl(seconds);
            }
            Some(reply)
        })
    }

    /// Keeps a reply for as long as it may be kept: an answer for the smallest TTL in it, its absence for the TTL of the SOA
    /// record or its minimum, whichever is less (RFC 2308, section 5). Failures are not kept.
    pub(crate) fn put(&mut self, now: Duration, name: &Name, kind: RecordType, reply: &Reply) {
        let kind = match reply.code {
            ResponseCode::NoError => Some(kind),
            ResponseCode::NXDomain if reply.answers.is_empty() => None,
            _ => return,
        };
        let seconds = if reply.answers.is_empty() {
            reply.authorities.iter().find_map(|record| match &record.data {
                RData::SOA(soa) => Some(record.ttl.min(soa.minimum)),
                _ => None,
            })
        } else {
            reply.answers.iter().map(|record| record.ttl).min()
        };
        let lifetime = Duration::from_secs(seconds.unwrap_or_default().into());
        if lifetime.is_zero() {
            return;
        }
        if self.entries.len() >= MOST_ENTRIES {
            self.entries.clear();
        }
        self.entries.insert((name.clone(), kind), Entry { reply: reply.clone(), stored: now, lifetime });
    }

    pub(crate) fn clear(&mut self) {
        self.entries.clear();
    }
}
