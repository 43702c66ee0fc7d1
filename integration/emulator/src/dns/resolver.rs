//! The resolver of a VPC: it answers from its cache, then from the zones, then from another resolver, if it has one.

use std::net::SocketAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};

use hickory_proto::op::ResponseCode;
use hickory_proto::rr::{Name, RData, RecordType};

use super::cache::Cache;
use super::{Asked, RESOLVER_QUERY, Reply, response_code};
use crate::control::Control;
use crate::dns_client as dns;

/// A longer chain of CNAME records is a loop.
const MOST_ALIASES: usize = 8;

#[derive(Debug)]
pub(crate) struct Resolver {
    control: Control,
    upstream: Option<SocketAddr>,
    cache: Mutex<Cache>,
    /// The generation of [`Control::forget_resolved`] that the cache belongs to.
    generation: Mutex<u64>,
}

impl Resolver {
    pub(crate) fn new(control: Control, upstream: Option<SocketAddr>) -> Self {
        let generation = Mutex::new(control.resolver_generation());
        Self { control, upstream, cache: Mutex::default(), generation }
    }

    /// The reply to a client; none where a fault rule drops the query.
    pub(crate) async fn resolve(&self, asked: &Asked<'_>) -> Option<Reply> {
        let shaping = self.control.lock().shape_query(self.control.now(), RESOLVER_QUERY, asked);
        if !shaping.latency.is_zero() {
            tokio::time::sleep(shaping.latency).await;
        }
        let (reply, cached) = if shaping.drop_request || shaping.drop_response {
            (None, false)
        } else if let Some(error) = &shaping.error {
            (Some(Reply::failure(response_code(&error.code).unwrap_or(ResponseCode::ServFail))), false)
        } else {
            let (reply, cached) = self.follow(asked).await;
            (Some(reply), cached)
        };
        let result = reply.as_ref().map_or("dropped", Reply::result);
        self.control.lock().count_query(RESOLVER_QUERY, asked, result, cached);
        reply
    }

    /// Follows CNAME records. The response code is that of the last name (RFC 6604, section 3).
    async fn follow(&self, asked: &Asked<'_>) -> (Reply, bool) {
        let mut name = asked.name.clone();
        let mut aliases = Vec::new();
        let mut cached = true;
        for _ in 0..MOST_ALIASES {
            let (mut reply, known) = self.step(&Asked { name: &name, ..*asked }).await;
            cached &= known;
            let next = next_name(&reply, &name, asked.kind);
            aliases.append(&mut reply.answers);
            let Some(next) = next else {
                return (Reply { answers: aliases, authoritative: false, ..reply }, cached);
            };
            name = next;
        }
        (Reply::failure(ResponseCode::ServFail), false)
    }

    /// One name, and whether it was in the cache.
    async fn step(&self, asked: &Asked<'_>) -> (Reply, bool) {
        let Asked { name, kind, .. } = *asked;
        let cached = self.cache().get(self.control.now(), name, kind);
        if let Some(reply) = cached {
            return (reply, true);
        }
        let shaping = self.control.lock().shape_query(self.control.now(), super::DNS_QUERY, asked);
        if !shaping.latency.is_zero() {
            tokio::time::sleep(shaping.latency).await;
        }
        let answered = self.control.lock().answer_query(self.control.now(), asked, &shaping);
        // A resolver that gets no answer says that it failed.
        let mut reply = answered.unwrap_or_else(|| Reply::failure(ResponseCode::ServFail));
        if reply.code == ResponseCode::Refused
            && !reply.authoritative
            && let Some(upstream) = self.upstream
        {
            reply = ask_upstream(upstream, name, kind).await;
        }
        self.cache().put(self.control.now(), name, kind, &reply);
        (reply, false)
    }

    /// The cache, emptied if that was asked for since.
    fn cache(&self) -> MutexGuard<'_, Cache> {
        let mut cache = self.cache.lock().unwrap_or_else(PoisonError::into_inner);
        let mut generation = self.generation.lock().unwrap_or_else(PoisonError::into_inner);
        let wanted = self.control.resolver_generation();
        if *generation != wanted {
            *generation = wanted;
            cache.clear();
        }
        cache
    }
}

/// Where a reply only leads to another name, that name.
fn next_name(reply: &Reply, name: &Name, kind: RecordType) -> Option<Name> {
    if kind == RecordType::CNAME || !reply.authorities.is_empty() || reply.code != ResponseCode::NoError {
        return None;
    }
    match &reply.answers[..] {
        [record] if record.name == *name => match &record.data {
            RData::CNAME(target) => Some(target.0.clone()),
            _ => None,
        },
        _ => None,
    }
}

async fn ask_upstream(upstream: SocketAddr, name: &Name, kind: RecordType) -> Reply {
    match dns::Client::new(upstream).ask_name(name.clone(), kind).await {
        Ok(message) => Reply {
            code: message.metadata.response_code,
            answers: message.answers,
            authorities: message.authorities,
            authoritative: false,
        },
        Err(error) => {
            tracing::debug!(%error, %name, "the resolver beyond this one did not answer");
            Reply::failure(ResponseCode::ServFail)
        }
    }
}
