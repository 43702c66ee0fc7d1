//! What is imported: exports of other clusters, and discovered instances.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    sync::Arc,
};

use super::{
    Membership, Mode,
    core::{Command, Core, Now},
    dirty::Fact,
    membership::LEAVING,
    orphans::Orphans,
    peers::Peers,
    policies::ImportPolicies,
    reachability::Reachability,
    spills::Spills,
    subscriptions::{Consequences, Subscriptions, rejection},
};
use api::{
    events::EventReason,
    names::{ANNOTATION_ACCEPT_CLUSTERS, ANNOTATION_QUOTA, CLUSTER_SELECTION},
    selection::ClusterSelection,
};
use cluster::{
    Change,
    events::{self, EventRecord},
    objects::{Namespace, OwnSlice, Service},
};
use discovery::Discovered;
use export::Quota;
use import::{Serving, policy};
use model::{ServiceKey, addresses::Range};

/// The Event about an annotation of a Namespace.
fn invalid_annotation(namespace: &Namespace, action: &'static str, text: String) -> EventRecord {
    let regarding = events::namespace(&namespace.name, &namespace.uid);
    EventRecord { regarding, reason: EventReason::InvalidAnnotation, action, text }
}

/// What is wrong about the limits that a Namespace has. The default ones count then.
fn wrong_quota(namespace: &Namespace) -> Option<EventRecord> {
    let error = Quota::default().with(namespace.quota.as_deref()?).err()?;
    let text = format!("The limits of --namespace-quota count instead of {ANNOTATION_QUOTA}: {error}.");
    Some(invalid_annotation(namespace, "Register", text))
}

/// What is wrong about the clusters that a Namespace accepts. The others that it lists count.
fn wrong_clusters(namespace: &Namespace) -> Option<EventRecord> {
    let wrong = policy::unacceptable(namespace.accept_clusters.as_deref()?)?;
    let text = format!(
        "{ANNOTATION_ACCEPT_CLUSTERS} has {wrong:?}, which is no id of a cluster and counts for none: write ids separated by commas, in \
         small letters, such as \"blue,partner-*\"."
    );
    Some(invalid_annotation(namespace, "Import", text))
}

/// What imports depend on beside objects and the ledger.
#[derive(Clone)]
pub(super) struct Importing {
    pub(super) policies: ImportPolicies,
    pub(super) subscriptions: Subscriptions,
    pub(super) peers: Peers,
    pub(super) orphans: Orphans,
    /// The Cloud Map namespaces that are read.
    subscribed: Arc<BTreeSet<Arc<str>>>,
    /// Whether the Cloud Map namespaces are listed.
    pub(super) listing: bool,
    /// The cluster selections of Kubernetes namespaces; `None` if it is invalid.
    pub(super) selections: BTreeMap<Arc<str>, Option<Arc<ClusterSelection>>>,
    pub(super) spills: Spills,
    pub(super) reachability: Reachability,
    /// How near the clusters are that serve, by name, where a cluster selection is in force.
    pub(super) serving: BTreeMap<ServiceKey, Serving>,
}

impl Importing {
    pub(super) fn new(
        policies: ImportPolicies,
        subscriptions: Subscriptions,
        peers: Peers,
        reachability: Reachability,
    ) -> Self {
        Self {
            policies,
            subscriptions,
            peers,
            orphans: Orphans::default(),
            subscribed: Arc::default(),
            listing: false,
            selections: BTreeMap::new(),
            spills: Spills::default(),
            reachability,
            serving: BTreeMap::new(),
        }
    }
}

impl Core {
    pub(super) fn imported_changed(&mut self, changes: &[Change<OwnSlice>]) {
        for Change { key, old, new } in changes {
            for name in self.world.imported.update(old.as_ref(), new.as_ref()) {
                self.changed(Fact::Import(&name));
            }
            if old.is_none() && new.is_none() {
                // It came and went, and nothing shows to which import it belonged.
                self.changed(Fact::ImportIn(&key.namespace));
            }
        }
    }

    /// `rights`: those whose grants changed.
    pub(super) fn namespaces_changed(&mut self, changes: &[Change<Namespace>], rights: &BTreeSet<Arc<str>>) {
        // The subscribed Cloud Map namespaces may change.
        for Change { key, new, .. } in changes {
            self.importing.peers.namespace_changed(key, new.as_deref());
            let consequences = self.importing.subscriptions.namespace_changed(key, new.as_deref());
            self.follow(consequences);
            self.out.extend(new.as_deref().and_then(wrong_quota).map(Command::Emit));
            self.select(key, new.as_deref());
            self.out.extend(new.as_deref().and_then(wrong_clusters).map(Command::Emit));
        }
        if !changes.is_empty() {
            self.admit_all();
        }
        self.subscribe();
        for Change { key, old, new } in changes {
            self.changed(Fact::Namespace(key));
            let accepted = |namespace: &Option<Arc<Namespace>>| namespace.as_ref().map(|it| it.accept_clusters.clone());
            if accepted(old) != accepted(new) {
                // Also what a cluster exported that cannot be read.
                self.changed(Fact::ImportIn(key));
            }
        }
        if !rights.is_empty() {
            self.changed(Fact::Rights(rights));
        }
    }

    /// Takes in the cluster selection of a Kubernetes namespace.
    fn select(&mut self, name: &Arc<str>, namespace: Option<&Namespace>) {
        let annotations = namespace.map(|namespace| namespace.cluster_selection.each_ref().map(Option::as_deref));
        match ClusterSelection::read(annotations.unwrap_or_default(), CLUSTER_SELECTION) {
            Ok(Some(selection)) => {
                self.importing.selections.insert(name.clone(), Some(Arc::new(selection)));
            }
            Ok(None) => drop(self.importing.selections.remove(name)),
            Err(why) => {
                self.importing.selections.insert(name.clone(), None);
                let text = format!("The cluster selection that each import in it has stays in force: {why}.");
                let note = namespace.map(|namespace| invalid_annotation(namespace, "Import", text));
                self.out.extend(note.map(Command::Emit));
            }
        }
    }

    /// Takes in what Namespaces allow. Returns those whose grants changed.
    pub(super) fn rights_changed(&mut self, changes: &[Change<Namespace>]) -> BTreeSet<Arc<str>> {
        let knowledge = &mut self.knowledge;
        let changed = changes.iter().filter(|change| knowledge.namespace_changed(&change.key, change.new.as_deref()));
        changed.map(|change| change.key.clone()).collect()
    }

    /// The membership of this cluster may have changed. A cluster that is no member imports nothing, and reads nothing,
    /// because that costs money.
    pub(super) fn check_membership(&mut self) {
        let why = obstacle(self.knowledge.membership(), self.settings.mode);
        let consequences = self.importing.subscriptions.bar(why);
        self.follow(consequences);
        self.subscribe();
    }

    fn subscribe(&mut self) {
        let mut subscribed = self.importing.subscriptions.subscribed();
        subscribed.extend(self.importing.peers.subscribed().cloned());
        if *self.importing.subscribed != subscribed {
            self.importing.subscribed = Arc::new(subscribed);
            self.out.push(Command::Subscribe(Arc::clone(&self.importing.subscribed)));
        }
    }

    /// Discovered instances changed.
    pub(super) fn found_changed(&mut self, found: &Arc<Discovered>, now: Now) {
        let of_peers = self.importing.peers.adopt(Arc::clone(found));
        self.note_orphans(of_peers.names.iter(), now);
        let of_others = self.importing.subscriptions.adopt(Arc::clone(found));
        self.follow(of_peers);
        self.follow(of_others);
    }

    /// Applies the consequences of a change of discovered instances or subscriptions.
    fn follow(&mut self, consequences: Consequences) {
        let Consequences { names, namespaces, mut notes, rejected } = consequences;
        for (key, rejected) in rejected {
            // On the ServiceImport, if there is one.
            let import = self.world.imports.get(&key).filter(|import| import.managed);
            let namespace = self.world.namespaces.get(&key.namespace);
            let regarding = import
                .map(|import| events::import(&key, &import.uid))
                .or_else(|| Some(events::namespace(&key.namespace, &namespace?.uid)));
            notes.extend(regarding.and_then(|regarding| rejection(&key, &rejected, regarding)));
        }
        self.out.extend(notes.into_iter().map(Command::Emit));
        self.changed_each(&names, Fact::Import);
        self.changed_each(&namespaces, Fact::ImportIn);
    }

    pub(super) fn count_cluster_ips(&mut self, old: Option<&Service>, new: Option<&Service>) {
        let mut moved = BTreeSet::new();
        for ip in old.into_iter().flat_map(|service| &service.cluster_ips) {
            if let Some(count) = self.world.cluster_ips.get_mut(ip) {
                *count -= 1;
                if *count == 0 {
                    self.world.cluster_ips.remove(ip);
                    moved.insert(*ip);
                }
            }
        }
        for ip in new.into_iter().flat_map(|service| &service.cluster_ips) {
            let count = self.world.cluster_ips.entry(*ip).or_default();
            *count += 1;
            if *count == 1 {
                moved.insert(*ip);
            }
        }
        if !moved.is_empty() {
            self.changed(Fact::ClusterIps(&moved));
        }
    }

    /// Whether an address is a cluster IP of this cluster, or in the range of its cluster IPs.
    pub(super) fn is_cluster_ip(&self, address: IpAddr) -> bool {
        self.world.cluster_ips.contains_key(&address) || self.world.ranges.iter().any(|range| range.contains(address))
    }

    /// An imported endpoint must not have an address that is a cluster IP of this cluster. All endpoints in namespaces
    /// of this cluster are searched for such addresses, so this is done for many Services at once, and only for
    /// addresses outside the known ranges, which are refused anyway.
    pub(super) fn cluster_ips_moved(&mut self) {
        let mut moved = self.take_cluster_ips();
        moved.retain(|address| !self.world.ranges.iter().any(|range| range.contains(*address)));
        if !moved.is_empty() {
            let is_here = |namespace: &Arc<str>| self.world.namespaces.contains(namespace);
            let mut names = self.knowledge.names_with(&moved, is_here);
            names.extend(self.importing.subscriptions.names_with(&moved));
            names.extend(self.importing.peers.names_with(&moved));
            self.changed_each(&names, Fact::Import);
        }
    }

    /// An imported endpoint must not have an address in a range of cluster IPs of this cluster either.
    pub(super) fn ranges_changed(&mut self, ranges: Arc<[Range]>) {
        if std::mem::replace(&mut self.world.ranges, ranges) != self.world.ranges {
            self.changed(Fact::Ranges);
        }
    }
}

/// Why nothing can be imported, if so, with the remedy.
fn obstacle(membership: &Membership, mode: Mode) -> Option<String> {
    match membership {
        Membership::Leaving => Some(LEAVING.to_owned()),
        Membership::Refused(why) => Some(why.clone()),
        Membership::Joining(why) | Membership::Failing(why) => (mode != Mode::Member).then(|| why.clone()),
        Membership::Member { .. } => None,
    }
}
