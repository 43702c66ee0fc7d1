//! The identity of this cluster: from its ClusterProperties (KEP-2149), else from flags, else from the UID of
//! kube-system.

use std::{sync::Arc, time::Duration};

use k8s_openapi::api::core::v1::Namespace;
use kube::{Api, Client, api::ListParams};
use tokio::{sync::watch, time::timeout};
use tracing::{error, info, warn};

use super::{
    apply,
    cache::{Cache, Narrow as _},
    objects::ClusterProperty,
};
use api::names;
use model::{ClusterId, ClusterSetId, InvalidClusterId};

/// The namespace whose UID identifies a cluster for its whole life.
const KUBE_SYSTEM: &str = "kube-system";

pub(super) const CALL_TIMEOUT: Duration = Duration::from_secs(10);

/// The identity of this cluster.
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

impl Identity {
    /// Whether neither an id nor a ClusterSet is set, as where annotated Services alone are wanted. A cluster with one of the
    /// two is on its way into a ClusterSet.
    pub fn is_unset(&self) -> bool {
        self.clusterset.is_none() && *self.cluster.as_str() == *self.uid
    }

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

impl AskError {
    /// What failed, with the words of the API server, and a remedy if a permission is missing.
    pub fn words(&self) -> String {
        match self {
            Self::Api { what, source } => format!("failed to {what}: {}", apply::with_remedy(&apply::words(source))),
            Self::Timeout { .. } | Self::NoUid => self.to_string(),
        }
    }
}

/// Makes one call, with a deadline.
pub(super) async fn ask<T>(what: &'static str, call: impl Future<Output = kube::Result<T>>) -> Result<T, AskError> {
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

/// The HTTP status of an answer. `Status::is_not_found` of kube 5.0 does not recognise that of an unknown resource,
/// whose body is plain text without a reason: its fallback to the code asks whether `NotFound` itself is a known reason, and
/// so never applies.
pub(super) fn code(error: &kube::Error) -> Option<u16> {
    if let kube::Error::Api(status) = error { Some(status.code) } else { None }
}

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
    use crate::fake_api::FakeApi;

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
            Err(IdentityError::Disagreement { .. }) => "disagreement".to_owned(),
            Err(IdentityError::InvalidProperty { .. }) => "invalid property".to_owned(),
            Err(error) => error.to_string(),
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
            (vec![cluster_id("Not_An_Id")], none.clone(), "invalid property".to_owned()),
            (vec![clusterset_id("")], none, "invalid property".to_owned()),
        ];
        for (properties, flags, expected) in table {
            assert_eq!(words(resolve(&properties, &flags, UID)), expected, "{properties:?} {flags:?}");
        }
    }

    #[test]
    fn a_cluster_with_an_id_or_a_clusterset_is_not_unset() {
        let none = Flags::default();
        for (properties, flags, unset) in [
            (vec![], none.clone(), true),
            (vec![cluster_id("c1")], none.clone(), false),
            (vec![clusterset_id("prod")], none, false),
            (vec![], flags("c1", ""), false),
            (vec![], flags("", "prod"), false),
        ] {
            assert_eq!(resolve(&properties, &flags, UID).unwrap().is_unset(), unset, "{properties:?} {flags:?}");
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
    async fn what_the_api_server_does_not_allow_is_said_with_the_remedy() {
        let api = FakeApi::default();
        let refusal = "namespaces \"kube-system\" is forbidden: User \"x\" cannot get resource \"namespaces\"";
        api.refuse(403, "Forbidden", refusal);
        let said = kube_system_uid(&api.client()).await.unwrap_err().words();
        let expected = format!("failed to read the namespace kube-system: {refusal}; check that the service account");
        assert!(said.starts_with(&expected), "{said}");
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
