//! What the API server reveals about the addresses of Services in this cluster: IP families and ranges.

use std::{sync::Arc, time::Duration};

use k8s_openapi::api::{core::v1::Service, networking::v1::ServiceCIDR};
use kube::{
    Api, Client,
    api::{ListParams, PostParams},
};
use serde_json::{Value, json};
use tokio::{
    sync::watch,
    time::{Instant, sleep},
};
use tracing::{info, warn};

use super::identity::{AskError, ask, code};
use api::names;
use model::{IpFamily, addresses::Range};

/// How often ServiceCIDRs are read: people add them when a range is full.
const RANGES_AGAIN: Duration = Duration::from_mins(1);

const BOTH: [IpFamily; 2] = [IpFamily::V4, IpFamily::V6];

/// How long the API server is asked for the IP families while it is busy, or while a webhook for Services is away, and
/// the pause between two attempts. The families are asked for once, so a wrong answer stays for the life of the process.
const PATIENCE: Duration = Duration::from_mins(1);
const PAUSE: Duration = Duration::from_secs(5);

/// The IP families that Services of this cluster can have: those of a dual-stack Service that is created in a dry run.
/// Nothing is stored; `namespace` only has to exist. If the API server refuses the dry run, or fails for a minute, the
/// families of the ServiceCIDRs are returned, or both if they are not known: the API server then refuses what it does not
/// support for each derived Service.
///
/// # Errors
/// No answer came.
pub async fn ip_families(client: &Client, namespace: &str) -> Result<Vec<IpFamily>, AskError> {
    let begun = Instant::now();
    loop {
        let spec = json!({"ipFamilyPolicy": "PreferDualStack", "ports": [{"name": "any", "port": 80}]});
        match try_out(client, namespace, "try out a dual-stack Service", "families-", spec).await {
            Ok(service) => {
                let families: Vec<_> = service.spec.and_then(|spec| spec.ip_families).unwrap_or_default();
                let families: Vec<_> = families.iter().filter_map(|name| IpFamily::parse(name)).collect();
                info!(?families, "IP families of this cluster");
                return Ok(if families.is_empty() { BOTH.to_vec() } else { families });
            }
            Err(AskError::Api { source, .. }) if is_failure(&source) && begun.elapsed() < PATIENCE => {
                warn!(error = %source, "cannot find out the IP families of this cluster yet: the dry run of a Service fails; trying again");
                sleep(PAUSE).await;
            }
            Err(AskError::Api { source, .. }) if matches!(*source, kube::Error::Api(_)) => {
                let families = families_of(&listed_ranges(client).await.ok().flatten().unwrap_or_default());
                warn!(error = %source, ?families, "cannot find out the IP families of this cluster: the dry run of a Service fails; these are assumed");
                return Ok(families);
            }
            Err(error) => return Err(error),
        }
    }
}

/// The families of these ranges; both if there are none.
fn families_of(ranges: &[Range]) -> Vec<IpFamily> {
    let has = |family: &IpFamily| ranges.iter().any(|range| range.base().is_ipv4() == (*family == IpFamily::V4));
    BOTH.into_iter().filter(|family| ranges.is_empty() || has(family)).collect()
}

/// The ranges of cluster IPs: from the ServiceCIDRs (Kubernetes 1.33 and later), else from the API server's refusal of an
/// address outside of them. If the API server reveals neither, there are none, and only allocated addresses of Services
/// are known.
///
/// # Errors
/// No answer came.
pub async fn service_ranges(client: &Client, namespace: &str) -> Result<Arc<[Range]>, AskError> {
    let ranges = match listed_ranges(client).await? {
        Some(ranges) => ranges,
        None => tried_ranges(client, namespace).await?,
    };
    if ranges.is_empty() {
        warn!("the ranges of Services are not known: only addresses that Services have count as cluster IPs");
    } else {
        info!(?ranges, "ranges of Services of this cluster");
    }
    Ok(ranges.into())
}

/// Reads the ServiceCIDRs every minute, forever. If they are no longer served, the known ranges stay.
pub async fn follow_ranges(client: Client, known: watch::Sender<Arc<[Range]>>) {
    loop {
        sleep(RANGES_AGAIN).await;
        match listed_ranges(&client).await {
            Ok(Some(ranges)) => {
                known.send_if_modified(|known| {
                    let news = **known != *ranges;
                    if news {
                        info!(?ranges, "the ranges of Services of this cluster changed");
                        *known = ranges.into();
                    }
                    news
                });
            }
            Ok(None) => {}
            Err(error) => warn!(
                error = &error as &dyn std::error::Error,
                "cannot read the ServiceCIDRs again; the known ranges stay"
            ),
        }
    }
}

/// The ranges of the ServiceCIDRs. `None`: the API server does not have them, or does not let us read them.
async fn listed_ranges(client: &Client) -> Result<Option<Vec<Range>>, AskError> {
    let api: Api<ServiceCIDR> = Api::all(client.clone());
    match ask("list the ServiceCIDRs", api.list(&ListParams::default())).await {
        Ok(found) => {
            let cidrs = found.items.into_iter().filter_map(|found| found.spec?.cidrs).flatten();
            Ok(Some(cidrs.filter_map(|cidr| Range::parse(&cidr)).collect()))
        }
        Err(AskError::Api { source, .. }) if is_refusal(&source) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Tries out Services with addresses outside of all ranges. The refusal names the range.
async fn tried_ranges(client: &Client, namespace: &str) -> Result<Vec<Range>, AskError> {
    let mut ranges = Vec::new();
    for (family, address) in DOCUMENTATION {
        let spec = json!({"clusterIP": address, "ipFamilies": [family], "ports": [{"name": "any", "port": 80}]});
        match try_out(client, namespace, "try out a Service", "ranges-", spec).await {
            Ok(_) => {}
            Err(AskError::Api { what, source }) => match *source {
                kube::Error::Api(status) if status.code < 500 && status.code != 429 => {
                    ranges.extend(named_range(&status.message));
                }
                source => return Err(AskError::Api { what, source: Box::new(source) }),
            },
            Err(error) => return Err(error),
        }
    }
    Ok(ranges)
}

/// Creates a Service in a dry run: nothing is stored, and `namespace` only has to exist.
async fn try_out(
    client: &Client,
    namespace: &str,
    what: &'static str,
    name: &str,
    spec: Value,
) -> Result<Service, AskError> {
    // With the mark of derived Services, so that policies that hold this token to its own objects admit it.
    let labels = json!({names::LABEL_MANAGED_BY: names::MANAGED_BY});
    let object = json!({"metadata": {"generateName": name, "labels": labels}, "spec": spec});
    let object: Service = serde_json::from_value(object).unwrap_or_default();
    let api: Api<Service> = Api::namespaced(client.clone(), namespace);
    ask(what, api.create(&PostParams { dry_run: true, ..PostParams::default() }, &object)).await
}

/// Addresses that are reserved for documentation (RFC 5737, RFC 3849).
const DOCUMENTATION: [(&str, &str); 2] = [("IPv4", "192.0.2.1"), ("IPv6", "2001:db8::1")];

/// The range in a refusal: `... is not in the valid range. The range of valid IPs is 10.96.0.0/12`.
fn named_range(message: &str) -> Option<Range> {
    let rest = message.split_once("The range of valid IPs is ")?.1;
    Range::parse(rest.split(|c: char| c.is_whitespace() || c == ',' || c == '"').next()?)
}

/// Whether the request is not supported or not allowed. Any other error may be temporary.
fn is_refusal(error: &kube::Error) -> bool {
    matches!(code(error), Some(403 | 404))
}

/// Whether the API server was busy, or failed, or could not call a webhook. This says nothing about what was asked.
fn is_failure(error: &kube::Error) -> bool {
    code(error).is_some_and(|code| code == 429 || code >= 500)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        fake_api::FakeApi,
        identity::{CALL_TIMEOUT, properties},
    };

    #[tokio::test]
    async fn the_families_come_from_a_service_that_is_never_created() {
        let api = FakeApi::default();
        let families = [IpFamily::V6, IpFamily::V4];
        let service = |names: &[&str]| json!({"metadata": {"name": "families-x"}, "spec": {"ipFamilies": names}});
        api.prepare(201, service(&["IPv6", "IPv4"]));
        assert_eq!(ip_families(&api.client(), "own").await.unwrap(), families);
        api.prepare(201, service(&["IPv4"]));
        assert_eq!(ip_families(&api.client(), "own").await.unwrap(), [IpFamily::V4]);
        for request in api.requests() {
            assert_eq!((request.path.as_str(), request.method.as_str()), ("/api/v1/namespaces/own/services", "POST"));
            assert!(request.query.contains("dryRun=All"), "{}", request.query);
            assert_eq!(request.body["metadata"]["labels"][names::LABEL_MANAGED_BY], names::MANAGED_BY);
        }
        api.refuse(403, "Forbidden", "denied by a policy");
        assert_eq!(ip_families(&api.client(), "own").await.unwrap(), BOTH);
        api.refuse(404, "NotFound", "no such namespace");
        assert_eq!(ip_families(&api.client(), "own").await.unwrap(), BOTH);
    }

    /// Policies that demand labels of every Service refuse the dry run.
    #[tokio::test]
    async fn where_a_policy_refuses_the_dry_run_the_families_are_those_of_the_service_cidrs() {
        let api = FakeApi::default();
        for (cidrs, families) in [
            (json!(["10.96.0.0/12"]), vec![IpFamily::V4]),
            (json!(["fd00:96::/108"]), vec![IpFamily::V6]),
            (json!(["fd00:96::/108", "10.96.0.0/12"]), BOTH.to_vec()),
        ] {
            api.refuse(403, "Forbidden", "denied by a policy");
            api.prepare(
                200,
                json!({"kind": "ServiceCIDRList", "apiVersion": "networking.k8s.io/v1", "metadata": {},
                       "items": [{"metadata": {"name": "kubernetes"}, "spec": {"cidrs": cidrs}}]}),
            );
            assert_eq!(ip_families(&api.client(), "own").await.unwrap(), families);
        }
    }

    /// At the start of a cluster the API server is busy, and webhooks for Services are not there yet.
    #[tokio::test(start_paused = true)]
    async fn a_failure_of_the_api_server_is_no_answer_about_the_families() {
        let api = FakeApi::default();
        for (code, reason) in [(429, "TooManyRequests"), (503, "ServiceUnavailable"), (500, "InternalError")] {
            api.refuse(code, reason, "later");
        }
        api.prepare(201, json!({"metadata": {"name": "families-x"}, "spec": {"ipFamilies": ["IPv4"]}}));
        assert_eq!(ip_families(&api.client(), "own").await.unwrap(), [IpFamily::V4]);
        for _ in 0..100 {
            api.refuse(500, "InternalError", "failed calling webhook");
        }
        let begun = Instant::now();
        assert_eq!(ip_families(&api.client(), "own").await.unwrap(), BOTH, "a replica starts all the same");
        assert!(begun.elapsed() >= PATIENCE && begun.elapsed() <= PATIENCE + PAUSE, "{:?}", begun.elapsed());
    }

    #[tokio::test]
    async fn the_ranges_of_services_come_from_the_service_cidrs_if_there_are_any() {
        let api = FakeApi::default();
        let cidr = |name: &str, cidrs: &[&str]| json!({"metadata": {"name": name}, "spec": {"cidrs": cidrs}});
        let items = [cidr("kubernetes", &["10.96.0.0/12", "fd00:96::/108"]), cidr("more", &["10.200.0.0/16", "?"])];
        api.prepare(
            200,
            json!({"kind": "ServiceCIDRList", "apiVersion": "networking.k8s.io/v1", "metadata": {}, "items": items}),
        );
        let ranges = service_ranges(&api.client(), "own").await.unwrap();
        assert_eq!(ranges.len(), 3);
        for (address, inside) in [("10.100.0.9", true), ("fd00:96::9", true), ("10.200.1.1", true), ("10.0.0.1", false)]
        {
            assert_eq!(ranges.iter().any(|range| range.contains(address.parse().unwrap())), inside, "{address}");
        }
        api.refuse(503, "ServiceUnavailable", "later");
        service_ranges(&api.client(), "own").await.unwrap_err();
    }

    /// Kubernetes before 1.33.
    #[tokio::test]
    async fn where_there_are_no_service_cidrs_the_refusal_of_an_address_names_the_range() {
        let invalid = |address: &str, range: &str| {
            format!(
                "Service \"ranges-x\" is invalid: spec.clusterIPs: Invalid value: [\"{address}\"]: failed to allocate IP {address}: \
                 the provided IP ({address}) is not in the valid range. The range of valid IPs is {range}"
            )
        };
        let api = FakeApi::default();
        for (code, reason) in [(404, "NotFound"), (403, "Forbidden")] {
            api.refuse(code, reason, "not here");
            api.refuse(422, "Invalid", &invalid("192.0.2.1", "10.96.0.0/12"));
            api.refuse(422, "Invalid", &invalid("2001:db8::1", "fd00:96::/108"));
            let ranges = service_ranges(&api.client(), "own").await.unwrap();
            assert_eq!(*ranges, ["10.96.0.0/12", "fd00:96::/108"].map(|range| Range::parse(range).unwrap()));
        }
        for request in api.requests().iter().filter(|request| request.method == "POST") {
            assert_eq!(request.path, "/api/v1/namespaces/own/services");
            assert!(request.query.contains("dryRun=All"), "{}", request.query);
        }
        // One family, and a server that says something else.
        for message in ["Unsupported value: \"IPv6\"", "The range of valid IPs is secret"] {
            api.refuse(404, "NotFound", "not here");
            api.refuse(422, "Invalid", &invalid("192.0.2.1", "10.96.0.0/12"));
            api.refuse(422, "Invalid", message);
            assert_eq!(service_ranges(&api.client(), "own").await.unwrap().len(), 1);
        }
        api.refuse(404, "NotFound", "not here");
        api.refuse(429, "TooManyRequests", "later");
        service_ranges(&api.client(), "own").await.unwrap_err();
    }

    #[tokio::test(start_paused = true)]
    async fn a_range_that_is_added_is_known_within_a_minute_and_none_is_forgotten_by_an_error() {
        let range = |range: &str| Range::parse(range).unwrap();
        let (known, mut ranges) = watch::channel([range("10.96.0.0/12")].into());
        let api = FakeApi::default();
        let listed = |cidrs: &[&str]| {
            json!({"kind": "ServiceCIDRList", "apiVersion": "networking.k8s.io/v1", "metadata": {},
                   "items": [{"metadata": {"name": "a"}, "spec": {"cidrs": cidrs}}]})
        };
        api.prepare(200, listed(&["10.96.0.0/12"]));
        api.refuse(503, "ServiceUnavailable", "later");
        api.refuse(404, "NotFound", "not here");
        api.prepare(200, listed(&["10.96.0.0/12", "10.200.0.0/16"]));
        let following = tokio::spawn(follow_ranges(api.client(), known));
        tokio::time::sleep(RANGES_AGAIN * 3 + CALL_TIMEOUT).await;
        assert!(!ranges.has_changed().unwrap());
        tokio::time::sleep(RANGES_AGAIN).await;
        assert_eq!(**ranges.borrow_and_update(), [range("10.96.0.0/12"), range("10.200.0.0/16")]);
        following.abort();
    }

    #[tokio::test]
    async fn a_resource_that_the_api_server_does_not_serve_has_no_objects() {
        // API servers answer this in plain text, not with a Status.
        let not_served = || json!("404 page not found");
        let api = FakeApi::default();
        api.prepare(404, not_served());
        assert_eq!(*service_ranges(&api.client(), "own").await.unwrap(), []);
        api.prepare(404, not_served());
        assert_eq!(properties(&api.client()).await.unwrap(), []);
    }
}
