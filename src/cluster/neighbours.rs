//! Other installations of this controller in the same cluster.
//!
//! Each installation has its Lease and its record in its own namespace, so two of them do not see each other, and both
//! write the same objects and instances, with the same marks: each withdraws what the other registers. The second one
//! therefore leads only when the first one is gone.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use k8s_openapi::{api::coordination::v1::Lease, jiff::Timestamp};
use kube::{Api, Client, ResourceExt as _, api::ListParams};
use tokio::{
    sync::watch,
    time::{Instant, sleep, timeout},
};
use tracing::{debug, warn};

use super::lease::LEASE;

/// The time between two looks.
const LOOK_EVERY: Duration = Duration::from_secs(10);
/// Deadline of one look.
const LOOK_TIMEOUT: Duration = Duration::from_secs(5);
/// An installation counts as gone when its Lease has not changed for so long.
const GONE_AFTER: Duration = Duration::from_mins(1);

/// The Lease of an installation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Installation {
    /// Its namespace.
    pub namespace: Arc<str>,
    /// When the Lease was created, in seconds since 1970.
    pub created: i64,
    /// Whether a replica holds it.
    pub is_held: bool,
    /// Changes with each renewal.
    pub version: String,
}

impl From<Lease> for Installation {
    fn from(lease: Lease) -> Self {
        let holder = lease.spec.as_ref().and_then(|spec| spec.holder_identity.as_deref());
        Self {
            namespace: lease.namespace().unwrap_or_default().into(),
            created: lease.creation_timestamp().map_or(Timestamp::UNIX_EPOCH, |time| time.0).as_second(),
            is_held: holder.is_some_and(|holder| !holder.is_empty()),
            version: lease.resource_version().unwrap_or_default(),
        }
    }
}

/// Asks the API server for the Leases of all installations.
///
/// # Errors
/// Why they are not known.
pub async fn look(client: &Client) -> kube::Result<Vec<Installation>> {
    let only = ListParams::default().fields(&format!("metadata.name={LEASE}"));
    let leases = Api::<Lease>::all(client.clone()).list(&only).await?;
    Ok(leases.items.into_iter().map(Installation::from).collect())
}

/// The Leases that were seen, and since when each is as it is, by namespace.
#[derive(Debug, Default)]
struct Watched(BTreeMap<Arc<str>, (String, Instant)>);

impl Watched {
    /// The namespace of the installation that leads instead of the one in `own`, if there is one. An installation whose
    /// Lease is held leaves the cluster only to an older one; without a Lease, to every one.
    fn leads_instead(&mut self, own: &str, all: &[Installation], now: Instant) -> Option<Arc<str>> {
        self.0.retain(|namespace, _| all.iter().any(|one| one.namespace == *namespace));
        let mut live = Vec::new();
        for one in all.iter().filter(|one| one.is_held) {
            let (version, since) = self.0.entry(one.namespace.clone()).or_insert_with(|| (one.version.clone(), now));
            if *version != one.version {
                (*version, *since) = (one.version.clone(), now);
            }
            if now.duration_since(*since) < GONE_AFTER {
                live.push(one);
            }
        }
        let age = |one: &Installation| (one.created, one.namespace.clone());
        let ours = live.iter().find(|one| &*one.namespace == own).map(|one| age(one));
        let others = live.into_iter().filter(|one| &*one.namespace != own);
        let before = others.filter(|one| ours.as_ref().is_none_or(|ours| age(one) < *ours));
        before.min_by_key(|one| age(one)).map(|one| one.namespace.clone())
    }
}

/// Keeps looking, and says why the installation in the namespace `own` must not lead, if so. Without permission, or while
/// the API server does not answer, what was seen last counts.
pub async fn follow(client: Client, own: String, obstacle: watch::Sender<Option<String>>, looked: watch::Sender<bool>) {
    let mut watched = Watched::default();
    loop {
        match timeout(LOOK_TIMEOUT, look(&client)).await {
            Ok(Ok(all)) => {
                let instead = watched.leads_instead(&own, &all, Instant::now());
                let text = instead.map(|namespace| words(&namespace, &own));
                let changed = obstacle.send_if_modified(|said| {
                    let changed = *said != text;
                    said.clone_from(&text);
                    changed
                });
                if let Some(text) = text.filter(|_| changed) {
                    warn!("{text}");
                }
            }
            Ok(Err(error)) => {
                debug!(error = &error as &dyn std::error::Error, "cannot look for other installations");
            }
            Err(_) => debug!("cannot look for other installations in time"),
        }
        looked.send_replace(true);
        sleep(LOOK_EVERY).await;
    }
}

fn words(there: &str, own: &str) -> String {
    format!(
        "another installation of this controller leads in the namespace {there}, and a cluster has one: the one in {own} \
         writes nothing. Uninstall one of them; if the other one stays in {there}, its settings are those that count"
    )
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::fake_api::FakeApi;

    fn one(namespace: &str, created: i64, is_held: bool, version: u32) -> Installation {
        Installation { namespace: namespace.into(), created, is_held, version: version.to_string() }
    }

    #[tokio::test(start_paused = true)]
    async fn the_second_installation_leads_only_when_the_first_is_gone() {
        let (mut watched, begun) = (Watched::default(), Instant::now());
        let at = |seconds| begun + Duration::from_secs(seconds);
        let mut instead = |all: &[Installation], seconds| {
            watched.leads_instead("b", all, at(seconds)).map(|namespace| namespace.to_string())
        };
        let there = Some("a".to_owned());
        assert_eq!(instead(&[one("a", 1, true, 1)], 0), there, "it has no Lease yet");
        assert_eq!(instead(&[one("a", 1, true, 2)], 50), there);
        assert_eq!(instead(&[one("a", 1, true, 2), one("b", 2, false, 1)], 100), there, "it released its own");
        assert_eq!(instead(&[one("a", 1, true, 2), one("b", 2, false, 1)], 111), None, "nobody renews the first one");
        assert_eq!(instead(&[one("a", 1, true, 2), one("b", 2, true, 2)], 112), None);
        assert_eq!(instead(&[one("a", 1, false, 3), one("b", 2, true, 3)], 113), None, "it was released");
    }

    #[tokio::test(start_paused = true)]
    async fn of_two_that_lead_at_once_the_older_one_goes_on() {
        let now = Instant::now();
        let both = [one("a", 5, true, 1), one("b", 5, true, 1)];
        let instead = |own: &str| Watched::default().leads_instead(own, &both, now).map(|it| it.to_string());
        assert_eq!((instead("a"), instead("b")), (None, Some("a".to_owned())), "of the same second, the first by name");
        let younger = [one("a", 9, true, 1), one("b", 5, true, 1)];
        let instead = |own: &str| Watched::default().leads_instead(own, &younger, now).map(|it| it.to_string());
        assert_eq!((instead("a"), instead("b")), (Some("b".to_owned()), None));
        assert_eq!(Watched::default().leads_instead("b", &[one("b", 5, true, 1)], now), None, "there is no other");
    }

    #[tokio::test(start_paused = true)]
    async fn it_is_said_why_it_must_not_lead_and_a_refusal_is_no_obstacle() {
        let api = FakeApi::default();
        let lease = json!({"metadata": {"namespace": "a", "name": LEASE, "resourceVersion": "7",
            "creationTimestamp": "2026-11-23T06:00:00Z"}, "spec": {"holderIdentity": "pod-1"}});
        api.prepare(200, json!({"metadata": {}, "items": [lease]}));
        api.refuse(403, "Forbidden", "leases is forbidden");
        let (obstacle, mut said) = watch::channel(None);
        let (looked, mut first) = watch::channel(false);
        let task = tokio::spawn(follow(api.client(), "b".to_owned(), obstacle, looked));
        first.wait_for(|looked| *looked).await.unwrap();
        let text = said.borrow_and_update().clone().unwrap();
        assert!(text.contains("in the namespace a") && text.contains("the one in b writes nothing"), "{text}");
        tokio::time::sleep(LOOK_EVERY * 2).await;
        assert_eq!(*said.borrow(), Some(text), "what was seen last counts");
        task.abort();
        assert!(api.requests()[0].query.contains("metadata.name%3Dcloudmap-mcs"), "{:?}", api.requests());
    }
}
