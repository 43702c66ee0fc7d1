//! The identity of this cluster: from its ClusterProperties (KEP-2149), else from flags, else from the UID of
//! kube-system.

use std::{sync::Arc, time::Duration};

use k8s_openapi::api::{
    core::v1::{Namespace, Service},
    networking::v1::ServiceCIDR,
};
use kube::{
    Api, Client,
    api::{ListParams, PostParams},
};
use serde_json::json;
use tokio::{
    sync::watch,
    time::{sleep, timeout},
};
use tracing::{error, info, warn};

use super::{
    cache::{Cache, Narrow as _},
    objects::ClusterProperty,
};
use crate::{
    api::{self, names},
    model::{ClusterId, ClusterSetId, InvalidClusterId, IpFamily, addresses::Range},
};

/// The namespace whose UID identifies a cluster for its whole life.
const KUBE_SYSTEM: &str = "kube-system";

const CALL_TIMEOUT: Duration = Duration::from_secs(10);

/// How often ServiceCIDRs are read: people add them when a range is full.
const RANGES_AGAIN: Duration = Duration::from_mins(1);

/// Who this cluster is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    /// Id of this cluster.
    pub cluster: ClusterId,
    /// Id of its ClusterSet; `None` for a standalone cluster, which registers annotated Services but neither exports
    /// nor imports.
    pub clusterset: Option<ClusterSetId>,
    /// UID of kube-system. It distinguishes two clusters that claim the same id.
    pub uid: Arc<str>,
}

/// The identity according to the flags.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Flags {
    /// `--cluster-id`.
    pub cluster: Option<ClusterId>,
    /// `--clusterset-id`.
    pub clusterset: Option<ClusterSetId>,
}

/// The identity of the cluster is not known. Nothing is written to the registry then.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum IdentityError {
    /// The value of a ClusterProperty is not a valid id.
    #[error("the ClusterProperty {property} cannot be used: {reason}")]
    InvalidProperty {
        /// Name of the property.
        property: &'static str,
        /// The rule that its value breaks.
        reason: InvalidClusterId,
    },
    /// A ClusterProperty and a flag contradict each other.
    #[error(
        "the ClusterProperty {property} is {value:?}, but the flag {flag} is {given:?}: remove the flag, or give it \
         the value of the property"
    )]
    Disagreement {
        /// Name of the property.
        property: &'static str,
        /// Its value.
        value: String,
        /// Name of the flag.
        flag: &'static str,
        /// Its value.
        given: String,
    },
    /// There is no property and no flag, and the UID of kube-system is not a valid id.
    #[error("the UID of {KUBE_SYSTEM} cannot be the cluster id: {0}; set --cluster-id")]
    InvalidUid(InvalidClusterId),
}

impl IdentityError {
    /// A fixed word for metrics and reasons.
    pub const fn category(&self) -> &'static str {
        match self {
            Self::InvalidProperty { .. } => "invalid_property",
            Self::Disagreement { .. } => "disagreement",
            Self::InvalidUid(_) => "invalid_uid",
        }
    }
}

impl Identity {
    /// A warning for administrators about an identity that is valid but has disadvantages.
    pub fn warning(&self) -> Option<String> {
        self.cluster.is_dotted().then(|| {
            format!(
                "The cluster id {} has dots. Stock CoreDNS answers names of single pods of headless Services, \
                 <hostname>.<cluster id>.<service>.<namespace>.svc.clusterset.local, only for ids of a single label. Everything \
                 else works. Choose an id without dots if you need such names.",
                self.cluster
            )
        })
    }
}

/// Determines the identity. A property takes precedence over its flag. A flag that contradicts it is an error, so that
/// a cluster never silently runs under another name than its administrator reads. Properties with other names are
/// ignored.
pub fn resolve<'a>(
    properties: impl IntoIterator<Item = &'a ClusterProperty>,
    flags: &Flags,
    kube_system_uid: &str,
) -> Result<Identity, IdentityError> {
    let (mut cluster, mut clusterset) = (None, None);
    for property in properties {
        match &*property.name {
            names::PROPERTY_CLUSTER_ID => cluster = Some(&*property.value),
            names::PROPERTY_CLUSTERSET_ID => clusterset = Some(&*property.value),
            _ => {}
        }
    }
    let cluster = one_of(names::PROPERTY_CLUSTER_ID, cluster, "--cluster-id", flags.cluster.as_ref())?;
    let clusterset = one_of(names::PROPERTY_CLUSTERSET_ID, clusterset, "--clusterset-id", flags.clusterset.as_ref())?;
    Ok(Identity {
        cluster: match cluster {
            Some(cluster) => cluster,
            None => kube_system_uid.parse().map_err(IdentityError::InvalidUid)?,
        },
        clusterset,
        uid: kube_system_uid.into(),
    })
}

fn one_of<T>(
    property: &'static str,
    value: Option<&str>,
    flag: &'static str,
    given: Option<&T>,
) -> Result<Option<T>, IdentityError>
where
    T: std::str::FromStr<Err = InvalidClusterId> + Clone + PartialEq + ToString,
{
    let Some(value) = value else { return Ok(given.cloned()) };
    let parsed: T = value.parse().map_err(|reason| IdentityError::InvalidProperty { property, reason })?;
    match given {
        Some(given) if *given != parsed => {
            Err(IdentityError::Disagreement { property, value: value.to_owned(), flag, given: given.to_string() })
        }
        _ => Ok(Some(parsed)),
    }
}

/// The API server did not provide a part of the identity.
#[derive(Debug, thiserror::Error)]
pub enum AskError {
    /// No answer came in time.
    #[error("failed to {what}: no answer within {} s", CALL_TIMEOUT.as_secs())]
    Timeout {
        /// What the call should do.
        what: &'static str,
    },
    /// The API server refused the call, or cannot be reached.
    #[error("failed to {what}")]
    Api {
        /// What the call should do.
        what: &'static str,
        /// The error.
        source: Box<kube::Error>,
    },
    /// The namespace kube-system has no UID.
    #[error("the namespace {KUBE_SYSTEM} has no UID")]
    NoUid,
}

/// Makes one call, with a deadline.
async fn ask<T>(what: &'static str, call: impl Future<Output = kube::Result<T>>) -> Result<T, AskError> {
    timeout(CALL_TIMEOUT, call)
        .await
        .map_err(|_| AskError::Timeout { what })?
        .map_err(|source| AskError::Api { what, source: Box::new(source) })
}

/// Reads the UID of kube-system.
pub async fn kube_system_uid(client: &Client) -> Result<Arc<str>, AskError> {
    let api: Api<Namespace> = Api::all(client.clone());
    let namespace = ask("read the namespace kube-system", api.get_metadata(KUBE_SYSTEM)).await?;
    namespace.metadata.uid.map(Arc::from).ok_or(AskError::NoUid)
}

/// Reads the ClusterProperties of the identity. Without their CRD there are none, and the flags count.
pub async fn properties(client: &Client) -> Result<Vec<ClusterProperty>, AskError> {
    let api: Api<api::ClusterProperty> = Api::all(client.clone());
    let objects = match ask("list ClusterProperties", api.list(&ListParams::default())).await {
        Ok(list) => list.items,
        Err(AskError::Api { source, .. }) if code(&source) == Some(404) => Vec::new(),
        Err(error) => return Err(error),
    };
    Ok(objects.into_iter().filter_map(ClusterProperty::narrow).collect())
}

/// The IP families that Services of this cluster can have: those of a dual-stack Service that is created in a dry run.
/// Nothing is stored; `namespace` only has to exist. If the API server refuses the dry run, both families are returned:
/// the API server then refuses what it does not support for each derived Service.
///
/// # Errors
/// No answer came.
pub async fn ip_families(client: &Client, namespace: &str) -> Result<Vec<IpFamily>, AskError> {
    let object: Service = serde_json::from_value(json!({
        "metadata": {"generateName": "families-"},
        "spec": {"ipFamilyPolicy": "PreferDualStack", "ports": [{"name": "any", "port": 80}]},
    }))
    .unwrap_or_default();
    let api: Api<Service> = Api::namespaced(client.clone(), namespace);
    let params = PostParams { dry_run: true, ..PostParams::default() };
    match ask("try out a dual-stack Service", api.create(&params, &object)).await {
        Ok(service) => {
            let families: Vec<_> = service.spec.and_then(|spec| spec.ip_families).unwrap_or_default();
            let families: Vec<_> = families.iter().filter_map(|name| IpFamily::parse(name)).collect();
            info!(?families, "IP families of this cluster");
            Ok(if families.is_empty() { BOTH.to_vec() } else { families })
        }
        Err(AskError::Api { source, .. }) if matches!(*source, kube::Error::Api(_)) => {
            warn!(error = %source, "the API server does not reveal its IP families; trying both");
            Ok(BOTH.to_vec())
        }
        Err(error) => Err(error),
    }
}

/// The ranges that this cluster takes addresses of Services from: as its ServiceCIDRs say them (Kubernetes 1.33 and later), else as
/// the API server says that an address is in none of them. None where it tells neither: then only the addresses of Services that
/// are there are known.
///
/// # Errors
/// No answer.
pub async fn service_ranges(client: &Client, namespace: &str) -> Result<Arc<[Range]>, AskError> {
    let ranges = match listed_ranges(client).await? {
        Some(ranges) => ranges,
        None => tried_ranges(client, namespace).await?,
    };
    if ranges.is_empty() {
        warn!("the API server does not tell its ranges of Services: only allocated addresses are known");
    } else {
        info!(?ranges, "ranges of Services of this cluster");
    }
    Ok(ranges.into())
}

/// Reads the ServiceCIDRs again every minute, for ever. What is known stays when they are not served any more.
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
            Err(error) => warn!(error = &error as &dyn std::error::Error, "the ServiceCIDRs cannot be read again"),
        }
    }
}

/// `None`: they are not served, or not for us.
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

/// Asks for Services whose addresses are in no range (a dry run; nothing is stored). The refusal names the range.
async fn tried_ranges(client: &Client, namespace: &str) -> Result<Vec<Range>, AskError> {
    let api: Api<Service> = Api::namespaced(client.clone(), namespace);
    let params = PostParams { dry_run: true, ..PostParams::default() };
    let mut ranges = Vec::new();
    for (family, address) in NOBODYS {
        let object: Service = serde_json::from_value(json!({
            "metadata": {"generateName": "ranges-"},
            "spec": {"clusterIP": address, "ipFamilies": [family], "ports": [{"name": "any", "port": 80}]},
        }))
        .unwrap_or_default();
        match ask("try out a Service", api.create(&params, &object)).await {
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

/// Addresses for documentation.
const NOBODYS: [(&str, &str); 2] = [("IPv4", "192.0.2.1"), ("IPv6", "2001:db8::1")];

/// `... is not in the valid range. The range of valid IPs is 10.96.0.0/12`
fn named_range(message: &str) -> Option<Range> {
    let rest = message.split_once("The range of valid IPs is ")?.1;
    Range::parse(rest.split(|c: char| c.is_whitespace() || c == ',' || c == '"').next()?)
}

/// What is asked for is not served, or not for us; anything else may pass.
fn is_refusal(error: &kube::Error) -> bool {
    matches!(code(error), Some(403 | 404))
}

/// The HTTP status of an answer. `Status::is_not_found` of kube 5.0 does not recognise that of an unknown resource,
/// whose body is plain text without a reason.
fn code(error: &kube::Error) -> Option<u16> {
    if let kube::Error::Api(status) = error { Some(status.code) } else { None }
}

const BOTH: [IpFamily; 2] = [IpFamily::V4, IpFamily::V6];

/// The identity, as far as it is known: `None` until the properties have been read.
pub type Known = Option<Result<Identity, IdentityError>>;

/// Follows the ClusterProperties forever, and publishes the identity whenever it changes.
pub async fn follow(
    cache: Cache<ClusterProperty>,
    flags: Flags,
    kube_system_uid: Arc<str>,
    known: watch::Sender<Known>,
) {
    let mut changes = cache.subscribe();
    cache.synced().await;
    loop {
        let properties = cache.snapshot();
        let identity = resolve(properties.iter().map(AsRef::as_ref), &flags, &kube_system_uid);
        known.send_if_modified(|previous| {
            if previous.as_ref() == Some(&identity) {
                return false;
            }
            match &identity {
                Ok(identity @ Identity { cluster, clusterset, .. }) => {
                    if let Some(warning) = identity.warning() {
                        warn!("{warning}");
                    }
                    let clusterset = clusterset.as_ref().map(ToString::to_string);
                    info!(%cluster, clusterset = clusterset.as_deref().unwrap_or("none"), "identity of this cluster");
                }
                Err(error) => error!(%error, "the identity of this cluster is not known: nothing is exported"),
            }
            *previous = Some(identity);
            true
        });
        changes.next().await;
    }
}

#[cfg(test)]
mod tests {
    use kube::runtime::watcher::Event;

    use super::*;
    use crate::cluster::fake_api::FakeApi;

    const UID: &str = "8f5d2c1e-0000-4000-8000-000000000001";

    fn property(name: &str, value: &str) -> ClusterProperty {
        ClusterProperty { name: name.into(), value: value.into() }
    }

    fn cluster_id(value: &str) -> ClusterProperty {
        property("cluster.clusterset.k8s.io", value)
    }

    fn clusterset_id(value: &str) -> ClusterProperty {
        property("clusterset.k8s.io", value)
    }

    fn flags(cluster: &str, clusterset: &str) -> Flags {
        Flags { cluster: cluster.parse().ok(), clusterset: clusterset.parse().ok() }
    }

    fn words(identity: Result<Identity, IdentityError>) -> String {
        match identity {
            Ok(Identity { cluster, clusterset, uid }) => {
                assert_eq!(&*uid, UID);
                format!("{cluster} in {}", clusterset.map_or_else(|| "none".to_owned(), |id| id.to_string()))
            }
            Err(error) => error.category().to_owned(),
        }
    }

    #[test]
    fn properties_take_precedence_over_flags_and_flags_over_the_uid() {
        let none = Flags::default();
        let table = [
            (vec![cluster_id("c1"), clusterset_id("prod")], none.clone(), "c1 in prod".to_owned()),
            (vec![cluster_id("c1")], none.clone(), "c1 in none".to_owned()),
            (vec![cluster_id("c1")], flags("", "prod"), "c1 in prod".to_owned()),
            (vec![], flags("c1", "prod"), "c1 in prod".to_owned()),
            (vec![clusterset_id("prod")], none.clone(), format!("{UID} in prod")),
            (vec![], none.clone(), format!("{UID} in none")),
            (vec![property("region.example.com", "x")], none.clone(), format!("{UID} in none")),
            (vec![cluster_id("c1"), clusterset_id("prod")], flags("c1", "prod"), "c1 in prod".to_owned()),
            (vec![cluster_id("c1")], flags("c2", ""), "disagreement".to_owned()),
            (vec![clusterset_id("prod")], flags("c1", "test"), "disagreement".to_owned()),
            (vec![cluster_id("Not_An_Id")], none.clone(), "invalid_property".to_owned()),
            (vec![clusterset_id("")], none, "invalid_property".to_owned()),
        ];
        for (properties, flags, expected) in table {
            assert_eq!(words(resolve(&properties, &flags, UID)), expected, "{properties:?} {flags:?}");
        }
    }

    #[test]
    fn an_id_with_dots_is_accepted_with_a_warning() {
        let warning = |id: &str| resolve(&[cluster_id(id)], &Flags::default(), UID).unwrap().warning();
        assert_eq!(warning("eu-1"), None);
        assert!(warning("eu.c1").is_some_and(|warning| warning.contains("eu.c1") && warning.contains("CoreDNS")));
    }

    #[test]
    fn a_contradiction_is_reported_with_both_values_and_the_remedy() {
        let error = resolve(&[cluster_id("c1")], &flags("c2", ""), UID).unwrap_err().to_string();
        for part in ["cluster.clusterset.k8s.io", "\"c1\"", "--cluster-id", "\"c2\"", "remove the flag"] {
            assert!(error.contains(part), "{error}");
        }
    }

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
        }
        api.refuse(403, "Forbidden", "denied by a policy");
        assert_eq!(ip_families(&api.client(), "own").await.unwrap(), BOTH);
        api.refuse(404, "NotFound", "no such namespace");
        assert_eq!(ip_families(&api.client(), "own").await.unwrap(), BOTH);
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

    #[tokio::test]
    async fn a_change_of_a_property_is_followed() {
        let (cache, mut writer) = Cache::new();
        let (known, mut identity) = watch::channel(None);
        let following = tokio::spawn(follow(cache, Flags::default(), UID.into(), known));
        let object = |value: &str| {
            Ok(api::ClusterProperty::new(
                "cluster.clusterset.k8s.io",
                api::ClusterPropertySpec { value: value.to_owned() },
            ))
        };
        writer.apply(Event::Init);
        writer.apply(Event::InitApply(object("c1")));
        tokio::task::yield_now().await;
        assert!(identity.borrow().is_none(), "an incomplete list says nothing");
        writer.apply(Event::InitDone);
        for expected in ["c1 in none", "c2 in none"] {
            identity.changed().await.unwrap();
            assert_eq!(words(identity.borrow_and_update().clone().unwrap()), expected);
            writer.apply(Event::Apply(object("c2")));
        }
        following.abort();
    }
}
