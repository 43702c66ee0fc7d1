//! What the quotas of Kubernetes namespaces, and the room that the cluster has, admit of what is wanted.

use std::{borrow::Cow, collections::BTreeSet, sync::Arc};

use super::{Asks, Knowledge, Wants};
use crate::Mode;
use cluster::objects::Namespace;
use export::{Encoded, Exceeded, Exports, Need, Usage, Used, need_of_target};
use ledger::limits::{MAX_PAIRS, MAX_STATE_BYTES};
use model::{ClaimOwner, Exported, ServiceKey, Target, some_of};

/// The same for the record of a cluster in no ClusterSet. Kubernetes takes 1 MiB in a ConfigMap, in which a claim takes up to
/// three times the bytes that it takes here.
const MAX_KEPT_BYTES: usize = 256 << 10;

impl Knowledge {
    /// Sets the limits that a Namespace has. Returns whether they are new. A text that is wrong sets none.
    pub(super) fn limit(&mut self, name: &Arc<str>, namespace: Option<&Namespace>) -> bool {
        let text = namespace.and_then(|namespace| namespace.quota.as_deref());
        let quota = text.and_then(|text| self.rules.quota.with(text).ok());
        self.accounts.set_quota(name, quota)
    }

    /// How large the map may be.
    pub(super) fn capacity(&self) -> Usage {
        let bytes = if self.rules.mode == Mode::Standalone { MAX_KEPT_BYTES } else { MAX_STATE_BYTES };
        Usage { records: MAX_PAIRS, bytes, ..Usage::UNLIMITED }
    }

    fn room(&self) -> Usage {
        self.exports.as_ref().map_or(self.capacity(), Exports::room)
    }

    /// The targets that an annotated object gets, of those that it wants. `None` if nothing may be concluded yet. What is not
    /// admitted is not kept: the object has it.
    pub(super) fn admit(&mut self, owner: &ClaimOwner, wants: &Wants) -> Option<BTreeSet<Target>> {
        let need =
            |(target, instances): (&Target, &usize)| (Some(target.clone()), need_of_target(owner, target, *instances));
        let needs = wants.targets.iter().map(need).collect();
        let room = self.room();
        let answer = self.accounts.ask(owner, wants.created, needs, room);
        let admitted: BTreeSet<_> = answer.admitted.into_iter().flatten().collect();
        if answer.refused.is_some()
            && let Some(asks) = self.annotated.get_mut(owner)
        {
            if self.exports.is_none() {
                // Before it is known what is on record, nobody knows who was first.
                *asks = Asks::Unknown;
                return None;
            }
            if let Asks::For(wants) = asks {
                wants.targets.retain(|target, _| admitted.contains(target));
            }
        }
        Some(admitted)
    }

    /// The records of an export and its targets, with as many endpoints as there is room for; `None` if it is not admitted.
    pub(super) fn admit_export(
        &mut self,
        key: &ServiceKey,
        local: Option<Arc<Exported>>,
    ) -> Option<(Encoded, BTreeSet<Target>)> {
        let (owner, room) = (ClaimOwner::export(key), self.room());
        let Some((local, exports)) = local.zip(self.exports.as_ref()) else {
            self.accounts.ask(&owner, 0, Vec::new(), room);
            return None;
        };
        let (targets, encoded) = (self.targets_for(key, &local), exports.encode(key, &local));
        let need = encoded.need(key, local.endpoints.len(), &targets);
        let answer = self.accounts.ask(&owner, local.export.created, vec![(None, need)], room);
        if answer.refused.is_some() {
            return None;
        }
        Some(match self.registers(key, &local) {
            Cow::Borrowed(_) => (encoded, targets),
            Cow::Owned(cut) => (exports.encode(key, &cut), targets),
        })
    }

    /// What a planned export registers, with as many endpoints as there is room for.
    pub fn registers<'a>(&self, key: &ServiceKey, local: &'a Exported) -> Cow<'a, Exported> {
        let Some(most) = self.most_endpoints(&key.namespace).filter(|most| *most < local.endpoints.len()) else {
            return Cow::Borrowed(local);
        };
        let endpoints = some_of(&local.endpoints, most, |endpoint| endpoint.conditions.ready);
        Cow::Owned(Exported { export: local.export.clone(), endpoints })
    }

    /// The most endpoints that each name of a Kubernetes namespace may have; `None` if there is room for all.
    pub fn most_endpoints(&self, namespace: &str) -> Option<usize> {
        self.accounts.level(namespace)
    }

    /// Passes on which names are being withdrawn.
    pub(super) fn note_retiring(&mut self) {
        let Some(exports) = &mut self.exports else { return };
        for (namespace, begins) in exports.take_retired() {
            self.accounts.retire(&namespace, begins);
        }
    }

    /// Cuts what exceeds a limit, and finds who may get more. Returns the owners that must be planned again, in this order.
    pub fn settle_quotas(&mut self) -> Vec<ClaimOwner> {
        self.note_retiring();
        let Some(exports) = &self.exports else { return Vec::new() };
        let room = exports.room();
        let mut again = self.accounts.rebalance(room);
        if room.records > 0 && room.bytes > 0 {
            again.extend(exports.shortened().map(ClaimOwner::export));
        }
        again
    }

    /// Why an export or an annotated object, or a part of it, is left out, and the text for the user.
    pub fn exceeded(&self, owner: &ClaimOwner) -> Option<(Exceeded, String)> {
        // Before it is known what is on record, nobody is refused.
        self.exports.as_ref()?;
        let exceeded = self.accounts.exceeded(owner)?;
        Some((exceeded, exceeded.text(&owner.namespace, self.accounts.quota(&owner.namespace))))
    }

    /// What an annotated object gets of what it wants; `None` if it wants nothing.
    pub fn asks(&self, owner: &ClaimOwner) -> Option<&Asks> {
        self.annotated.get(owner)
    }

    /// When the object of an owner was created, as far as is known.
    pub(super) fn created(&self, owner: &ClaimOwner) -> i64 {
        match self.annotated.get(owner) {
            Some(Asks::For(wants)) => wants.created,
            Some(Asks::Unknown) => i64::MAX,
            None => {
                let planned = self.plans.planned.get(&owner.key()).and_then(|plan| plan.as_ref().ok());
                planned.map_or(i64::MAX, |local| local.export.created)
            }
        }
    }

    /// The namespaces that are nearest to a limit, at most so many, and the number of objects of which something is left out.
    pub fn quotas(&self, most: usize) -> (Vec<Used>, usize) {
        (self.accounts.nearest(most), self.accounts.refused())
    }
}

/// Who is on record, as the previous leader left it. All of them are going to ask with what they need now.
pub(super) fn recorded(exports: &Exports) -> Vec<(ClaimOwner, Option<Target>, Need)> {
    let of_export = |key: ServiceKey| {
        let endpoints = exports.said(&key)?.endpoints.len();
        let fixed = Usage { names: 1, records: 1, ..Usage::default() };
        let of_endpoints = Usage { records: endpoints.div_ceil(16), instances: endpoints, ..Usage::default() };
        Some((ClaimOwner::export(&key), None, Need { fixed, endpoints, of_endpoints }))
    };
    let claims = exports.claims().filter(|(owner, _)| owner.is_annotated());
    let of_claim = |(owner, target): (&ClaimOwner, &Target)| {
        (owner.clone(), Some(target.clone()), need_of_target(owner, target, 0))
    };
    exports.names().into_iter().filter_map(of_export).chain(claims.map(of_claim)).collect()
}
