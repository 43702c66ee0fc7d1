//! What the user of a target should know even if everything is registered.

use crate::{attributes::ServiceTraits, share::Reached};
use api::events::EventReason;

/// Maximum number of instances in a DNS answer (`MULTIVALUE`).
const DNS_ANSWERS: usize = 8;
/// Number of instances that `DiscoverInstances` returns by default.
const DISCOVERED: usize = 100;
/// Maximum number of instances in a service (a quota that AWS does not raise), and the number from which on to warn.
const QUOTA: usize = 1000;
const NEARLY_FULL: usize = 900;

/// A remark that prevents no registration.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Notice {
    /// Reason of the Event.
    pub reason: EventReason,
    /// A sentence without its full stop, and without a number that changes with every pod.
    pub message: String,
}

/// What became of a share of the traffic.
pub(super) fn of_share(reached: Reached) -> Notice {
    let reason = if reached.is_limited() { EventReason::ShareLimited } else { EventReason::ShareReached };
    Notice { reason, message: reached.text() }
}

/// The limits that the instances of a service have passed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Crowded {
    dns: bool,
    discovery: bool,
    nearly_full: bool,
}

impl Crowded {
    /// Compares again. A limit counts as passed until the number is well below it, so scaling up and down around it is
    /// reported only once.
    #[must_use]
    pub(super) fn with(self, service: ServiceTraits, instances: usize, healthy: usize) -> Self {
        let passed =
            |before: bool, number: usize, limit: usize| number > if before { limit - limit / 4 } else { limit };
        Self {
            dns: service.answers_eight() && passed(self.dns, healthy, DNS_ANSWERS),
            discovery: passed(self.discovery, instances, DISCOVERED),
            nearly_full: passed(self.nearly_full, instances, NEARLY_FULL),
        }
    }

    pub(super) fn notices(self) -> impl Iterator<Item = Notice> {
        let notice = |passed: bool, reason, message: String| passed.then_some(Notice { reason, message });
        let dns = format!(
            "More than {DNS_ANSWERS} instances are healthy: each DNS answer has {DNS_ANSWERS} of them, chosen at random"
        );
        let discovery = format!(
            "More than {DISCOVERED} instances: DiscoverInstances returns {DISCOVERED} unless its caller sets MaxResults"
        );
        let nearly_full = format!(
            "More than {NEARLY_FULL} instances: a Cloud Map service takes {QUOTA}; spread them over several services"
        );
        [
            notice(self.dns, EventReason::DnsAnswersLimited, dns),
            notice(self.discovery && !self.nearly_full, EventReason::DiscoveryLimited, discovery),
            notice(self.nearly_full, EventReason::NearlyFull, nearly_full),
        ]
        .into_iter()
        .flatten()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cloudmap::{DnsConfig, DnsRecord, RecordType, Service, fake::mk_service};

    fn traits(weighted: Option<bool>) -> ServiceTraits {
        let records = vec![DnsRecord { record_type: RecordType::A, ttl: 60 }];
        let dns = weighted.map(|weighted| DnsConfig { weighted, records });
        ServiceTraits::from(&Service { dns, ..mk_service() })
    }

    fn reasons(crowded: Crowded) -> Vec<&'static str> {
        crowded.notices().map(|notice| notice.reason.as_str()).collect()
    }

    #[test]
    fn each_limit_is_reported_where_it_applies() {
        let (multivalue, weighted, api) = (traits(Some(false)), traits(Some(true)), traits(None));
        for (service, instances, healthy, expected) in [
            (multivalue, 8, 8, &[][..]),
            (multivalue, 9, 9, &["DnsAnswersLimited"]),
            (multivalue, 9, 8, &[]),
            (weighted, 9, 9, &[]),
            (api, 100, 100, &[]),
            (api, 101, 101, &["DiscoveryLimited"]),
            (multivalue, 901, 901, &["DnsAnswersLimited", "NearlyFull"]),
        ] {
            let crowded = Crowded::default().with(service, instances, healthy);
            assert_eq!(reasons(crowded), expected, "{instances} instances, {healthy} healthy");
        }
    }

    #[test]
    fn scaling_up_and_down_around_a_limit_is_reported_once() {
        let service = traits(Some(false));
        let mut crowded = Crowded::default();
        let mut said = Vec::new();
        for healthy in [8, 9, 8, 7, 9, 6, 8] {
            crowded = crowded.with(service, healthy, healthy);
            said.push(!reasons(crowded).is_empty());
        }
        assert_eq!(said, [false, true, true, true, true, false, false]);
    }
}
