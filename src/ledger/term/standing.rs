//! Whether this cluster may register (J3 to J5), since when it is in the ledger (R10), and whose its id is.

use super::Term;
use crate::{
    call::Call,
    joining::{self, Ballot, Facts, Standing},
    readers::Owner,
    trust::Mode,
    writer::{Inherited, Now},
};

impl Term {
    /// R10: asks since when this cluster is in the ledger, once it owns its id.
    pub(super) fn date(&mut self, now: Now) {
        if self.dated.at.is_some() || self.dated.call.is_some() || self.writer.epoch() == 0 {
            return;
        }
        if now.mono < self.dated.retry_at {
            return self.out.wake_at(self.dated.retry_at);
        }
        self.dated.call = Some(self.out.call(Call::Creator { cluster: self.writer.identity().cluster.clone() }));
    }

    /// J3 to J5: whether this cluster may register. It is judged again when something changed that the others say.
    pub(super) fn judge(&mut self, now: Now) {
        let Some(Inherited { map, .. }) = self.writer.inherited() else { return };
        let record = self.record().filter(|record| record.is_of(&self.settings.member.clusterset));
        let recorded = record.and_then(|record| record.joined);
        let of = (self.readers.revision(), recorded);
        if self.standing.of == Some(of) {
            return;
        }
        let me = self.writer.identity().clone();
        let begins = self.standing.value.is_none();
        let own = if begins { Ballot::read(&map, &me.cluster) } else { Ballot::default() };
        let had_joined = own.joined || self.standing.value.as_ref().is_some_and(Standing::is_joined);
        self.standing.of = Some(of);
        if self.settings.trust.demands_approval() {
            for (cluster, (uid, key)) in &own.approved {
                self.readers.believe(cluster, uid, *key);
            }
        }
        let standing = if self.settings.trust.mode == Mode::Open {
            Standing::Joined
        } else {
            joining::judge(&Facts {
                me: (&me.cluster, &me.uid),
                keys: &self.settings.trust.own,
                created: self.own_created(),
                join: self.settings.trust.join,
                joined: recorded.unwrap_or(had_joined),
                // What a cluster says of which AWS has not answered yet whose it is may be that it is a member.
                heads_read: self.readers.all_read(),
                accepted: &self.readers.voters(),
                unaccepted: &self.readers.unaccepted(),
            })
        };
        if self.standing.value.as_ref() != Some(&standing) {
            self.standing.value = Some(standing);
            self.publish(now);
        }
    }

    /// Why this cluster may not register, with the remedy.
    pub fn barred(&self) -> Option<String> {
        self.standing.value.as_ref()?.text(&self.settings.member.cluster, self.settings.trust.own.first())
    }

    /// The cluster in another registry to which the id of this one belongs.
    pub fn owner(&self) -> Option<Owner> {
        self.readers.owner(self.own_created())
    }

    /// Whether this cluster may register, once that is known.
    pub fn standing(&self) -> Option<&Standing> {
        self.standing.value.as_ref()
    }

    /// Since when this cluster is in the ledger, also under a former id; 0 if that is not known.
    pub(super) fn own_created(&self) -> i64 {
        let record = self.record().filter(|record| record.is_of(&self.settings.member.clusterset));
        let recorded = record.and_then(|record| record.created.values().min().copied());
        recorded.into_iter().chain(self.dated.at).min().unwrap_or_default()
    }
}
