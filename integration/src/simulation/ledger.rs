//! What the clusters' ledgers say, read whole from the control plane as no reader of the product can.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use cloudmap::Instance;
use ledger::{
    CLUSTERS,
    head::Head,
    page::StoredPage,
    record::Position,
    trust::{self, Scope},
    verify,
};
use model::{ClaimState, Registration};

use super::{claims::is_at_home, expect::Name};
use emulator::CloudMap;

/// The ledgers of all ClusterSets, by namespace and cluster id.
#[derive(Debug, Default)]
pub(crate) struct Ledgers(BTreeMap<(String, String), Ledger>);

/// What one head says.
#[derive(Debug)]
pub(crate) struct Ledger {
    /// What it was read from: another head is another one.
    attributes: Arc<BTreeMap<String, String>>,
    position: Position,
    pub(crate) uid: String,
    pub(crate) left: bool,
    /// By namespace and service in Cloud Map.
    pub(crate) records: BTreeMap<Name, Record>,
}

/// A registration record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Record {
    /// The Kubernetes name.
    pub(crate) owner: Name,
    /// It is a ServiceExport, not an annotated Service.
    pub(crate) exported: bool,
    /// Since when, in seconds since 1970.
    pub(crate) claimed: i64,
    pub(crate) state: ClaimState,
}

impl Ledgers {
    /// Reads the heads that are new. One that lands late, behind a newer one, does not count: the next heartbeat mends it.
    ///
    /// # Errors
    /// A head whose state cannot be read: its cluster, and why.
    pub(crate) fn read(&mut self, cloudmap: &CloudMap) -> Result<(), String> {
        let mut there = BTreeSet::new();
        for service in cloudmap.services().filter(|service| service.name == CLUSTERS) {
            let Some(namespace) = cloudmap.namespace(&service.namespace_id) else { continue };
            if !ledger::is_ledger(&namespace.name) {
                continue;
            }
            for (id, instance) in &service.instances {
                let key = (namespace.name.clone(), id.clone());
                let known = self.0.get(&key);
                let is_new = known.is_none_or(|known| !Arc::ptr_eq(&known.attributes, &instance.attributes));
                if is_new && is_genuine(&service.namespace_id, set_of(&namespace.name), id, &instance.attributes) {
                    let ledger = read(cloudmap, &service.namespace_id, id, &instance.attributes);
                    let ledger = ledger.map_err(|why| format!("{id} in {}: {why}", namespace.name))?;
                    if known.is_none_or(|known| known.uid != ledger.uid || known.position < ledger.position) {
                        self.0.insert(key.clone(), ledger);
                    }
                }
                there.insert(key);
            }
        }
        self.0.retain(|key, _| there.contains(key));
        Ok(())
    }

    /// The ledgers of a cluster, by its UID, each with its namespace: several while its id or its ClusterSet changes.
    pub(crate) fn of<'a>(&'a self, uid: &'a str) -> impl Iterator<Item = (&'a str, &'a Ledger)> {
        self.0
            .iter()
            .filter(move |(_, ledger)| ledger.uid == uid)
            .map(|((namespace, _), ledger)| (&**namespace, ledger))
    }

    /// The clusters that are the only ones in their ClusterSets, by the ledger's namespace and UID.
    pub(crate) fn sole(&self) -> impl Iterator<Item = (&str, &str)> {
        let live = |(_, ledger): &(&(String, String), &Ledger)| !ledger.left;
        let alone =
            move |namespace: &str| self.0.iter().filter(live).filter(|((ns, _), _)| ns == namespace).count() == 1;
        let all = self.0.iter().filter(live).filter(move |((namespace, _), _)| alone(namespace));
        all.map(|((namespace, _), ledger)| (&**namespace, &*ledger.uid))
    }

    /// The Kubernetes name that has each target by the claims of all clusters of its ClusterSet, by the ledger's namespace, and
    /// what the claim says of it.
    pub(crate) fn firsts(&self) -> BTreeMap<(String, Name), (Name, ClaimState)> {
        let mut firsts = BTreeMap::new();
        for ((namespace, id), ledger) in self.0.iter().filter(|(_, ledger)| !ledger.left) {
            for (target, record) in ledger.records.iter().filter(|(_, record)| record.state != ClaimState::Retiring) {
                let Record { owner, exported, claimed, state } = record;
                let unable = *state == ClaimState::Unable;
                let claim = (unable, !is_at_home(owner, target), *claimed, id, !*exported, owner, *state);
                let first = firsts.entry((namespace.clone(), target.clone())).or_insert(claim);
                *first = (*first).min(claim);
            }
        }
        firsts.into_iter().map(|(key, (.., owner, state))| (key, (owner.clone(), state))).collect()
    }
}

/// Whether a cluster says that it has left a ClusterSet.
pub(crate) fn has_left(cloudmap: &CloudMap, set: &str, uid: &str) -> bool {
    let name = ledger::namespace_name(set);
    let Some(namespace) = cloudmap.namespaces().find(|namespace| namespace.name == name) else { return true };
    let heads = cloudmap.services().filter(|service| service.namespace_id == namespace.id && service.name == CLUSTERS);
    let genuine = |(id, head): &(&String, &emulator::Instance)| is_genuine(&namespace.id, set, id, &head.attributes);
    let heads = heads.flat_map(|service| &service.instances).filter(genuine).map(instance);
    let heads: Vec<_> =
        heads.filter_map(|head| Head::from_instance(&head).ok()).filter(|head| *head.uid == *uid).collect();
    heads.iter().all(|head| !head.is_live())
}

/// The ClusterSet whose ledger is in this namespace.
fn set_of(namespace: &str) -> &str {
    namespace.strip_prefix("clusterset-").unwrap_or_default()
}

/// Whether a head has a valid signature. Whoever forges one here has no place in which theirs would be valid.
fn is_genuine(namespace: &str, clusterset: &str, id: &str, attributes: &BTreeMap<String, String>) -> bool {
    let head = Head::from_instance(&Instance { id: id.into(), attributes: attributes.clone() });
    head.is_ok_and(|head| trust::signer(attributes, &head, Scope { clusterset, namespace }).is_some())
}

fn instance((id, instance): (&String, &emulator::Instance)) -> Instance {
    Instance { id: id.as_str().into(), attributes: (*instance.attributes).clone() }
}

fn read(
    cloudmap: &CloudMap,
    namespace: &str,
    id: &str,
    attributes: &Arc<BTreeMap<String, String>>,
) -> Result<Ledger, String> {
    let head = Head::from_instance(&Instance { id: id.into(), attributes: (**attributes).clone() });
    let head = head.map_err(|error| error.to_string())?;
    let mut ledger = Ledger {
        attributes: Arc::clone(attributes),
        position: head.position,
        uid: head.uid.to_string(),
        left: !head.is_live(),
        records: BTreeMap::new(),
    };
    if ledger.left {
        return Ok(ledger);
    }
    let shards: BTreeSet<String> = (0..head.root.shards).map(|shard| ledger::service_name(id, shard)).collect();
    let of_cluster = |service: &&emulator::Service| service.namespace_id == namespace && shards.contains(&service.name);
    let pages = cloudmap.services().filter(of_cluster).flat_map(|service| &service.instances).map(instance);
    let pages =
        pages.filter_map(|page| StoredPage::from_instance(&page).ok()).map(|page| (page.id.clone(), Arc::new(page)));
    let verified = verify::verify(&head.root, &verify::Cache::default(), &pages.collect());
    let verified = verified.map_err(|missing| format!("{missing:?}"))?;
    let registrations = records::registrations(&head.delta.apply(&verified.map));
    ledger.records = registrations.into_values().map(record).collect();
    Ok(ledger)
}

fn record(registration: Registration) -> (Name, Record) {
    let Registration { target, owner, claimed, state } = registration;
    let exported = !owner.is_annotated();
    let owner = (owner.namespace.to_string(), owner.name.to_string());
    ((target.namespace.to_string(), target.service.to_string()), Record { owner, exported, claimed, state })
}
