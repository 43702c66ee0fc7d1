//! R9: which heads count because of the keys that signed them.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use super::{CallId, Mode, Now, Outbox, Peer, Reader};
use crate::{
    call::{Call, Outcome},
    head::Head,
    joining::{Ballot, Voter},
    record::{Accepted, Gone, Position},
    trust::Announced,
};
use model::PublicKey;

/// Where keys are pinned with `--trust=pinned`.
const IN_CONFIG_MAP: &str = " in the ConfigMap cloudmap-mcs-trust";

/// The key that a cluster announces.
#[derive(Debug, Default)]
pub(super) struct Announcement {
    pub(super) announced: Option<Announced>,
    /// Whether there was an answer.
    answered: bool,
    call: Option<CallId>,
    /// When to ask again at the earliest, and how long after the last time that is.
    next: Duration,
    pause: Duration,
}

/// What the signature of a head says (R9).
enum Verdict {
    /// Nobody else can have signed it.
    Proved,
    /// The creator of the exports service decides (R2).
    Open,
    /// The key is being asked for.
    Waits,
    /// Why it does not count.
    Refused(String),
}

/// What signed a head, in words.
fn signed(head: &Head) -> String {
    head.signer.map_or_else(|| "no valid signature".to_owned(), |key| format!("a signature of the key {key}"))
}

impl Peer {
    /// The UID and the key that are pinned for the cluster, unless people said that it is gone for good.
    pub(super) fn pin(&self) -> Option<(String, PublicKey)> {
        let accepted = self.accepted.as_ref().filter(|accepted| !accepted.gone.is_some_and(Gone::is_said))?;
        Some((accepted.uid.clone(), accepted.key?))
    }

    /// Whether a person said that the cluster is no member, whatever it says.
    pub(super) fn is_rejected(&self) -> bool {
        self.accepted.as_ref().is_some_and(|accepted| accepted.gone == Some(Gone::Rejected))
    }
}

impl Reader {
    /// R2 and R9: whether the head is from the cluster in whose name it is.
    pub(super) fn may_speak(&mut self, now: Now, head: &Head, out: &mut Outbox) -> bool {
        match self.judge_key(now, head, out) {
            Verdict::Proved => self.is_dated(now, head, out),
            Verdict::Open => self.is_creator(now, head, out),
            Verdict::Waits => false,
            Verdict::Refused(why) => {
                self.ignored.insert(head.cluster.clone(), why);
                false
            }
        }
    }

    /// R10: whether it is known since when the cluster of a head that its key proves is there. Of one that was read before, it is
    /// asked beside: an earlier version did not know it.
    fn is_dated(&mut self, now: Now, head: &Head, out: &mut Outbox) -> bool {
        let accepted = self.peers.get(&head.cluster).and_then(|peer| peer.accepted.as_ref());
        let accepted = accepted.filter(|accepted| *accepted.uid == *head.uid);
        let (dated, read) = accepted
            .map_or((false, false), |accepted| (accepted.created != 0, accepted.position != Position::default()));
        if dated || self.is_creator(now, head, out) {
            return true;
        }
        if read {
            self.ignored.remove(&head.cluster);
        }
        read
    }

    /// R9: what the key that signed the head proves.
    fn judge_key(&mut self, now: Now, head: &Head, out: &mut Outbox) -> Verdict {
        let id = &head.cluster;
        if self.trust.mode != Mode::Open && self.peers.get(id).is_some_and(Peer::is_rejected) {
            return Verdict::Refused(format!(
                "somebody rejected this cluster here; its head has {}. If it is a member after all: cloudmap-mcs trust accept {id}",
                signed(head)
            ));
        }
        match self.trust.mode {
            Mode::Open => Verdict::Open,
            Mode::Pinned => match (self.trust.pinned.get(id), head.signer) {
                (Some(keys), Some(signer)) if keys.contains(&signer) => Verdict::Proved,
                (Some(_), _) => {
                    Verdict::Refused(format!("its head has {}, but another one is pinned{IN_CONFIG_MAP}", signed(head)))
                }
                (None, _) => {
                    Verdict::Refused(format!("no key is pinned for it{IN_CONFIG_MAP}; its head has {}", signed(head)))
                }
            },
            Mode::Tofu => self.judge_pin(now, head, out),
        }
    }

    /// R9: the same where the key counts with which a cluster was first accepted.
    fn judge_pin(&mut self, now: Now, head: &Head, out: &mut Outbox) -> Verdict {
        let id = &head.cluster;
        let pin = self.peers.get(id).and_then(Peer::pin);
        if let Some((uid, key)) = &pin {
            if **uid != *head.uid {
                return Verdict::Refused(format!(
                    "its head is from UID {} and has {}, but the cluster with this id has the UID {uid} and the key {key}. \
                     If it was rebuilt: cloudmap-mcs trust accept {id}",
                    head.uid,
                    signed(head)
                ));
            }
            if head.signer == Some(*key) {
                self.announced.remove(id);
                return Verdict::Proved;
            }
        }
        if let (Some((_, key)), None) = (&pin, head.signer) {
            return Verdict::Refused(format!(
                "its head has no valid signature, but its key {key} is known: somebody else wrote it, or it was started with \
                 --trust=open, or in another ledger"
            ));
        }
        if self.trust.demands_approval() && !self.is_known(head) {
            // What a stranger says last is of no interest. A key that it left must not be one that counts.
            return if head.is_live() { Verdict::Refused(Self::stranger(head)) } else { Verdict::Waits };
        }
        let asked = self.announced.entry(id.clone()).or_default();
        match (&pin, head.signer, &asked.announced) {
            (None, Some(signer), Some(announced)) if announced.key == signer => return Verdict::Open,
            (Some((_, key)), Some(signer), Some(announced)) if announced.key == signer && announced.follows(key) => {
                return Verdict::Proved;
            }
            _ => {}
        }
        if asked.call.is_none() && now.mono >= asked.next {
            // A key may not be visible yet. Of many that never will be, none may cost much.
            let pause = if head.signer.is_some() { asked.pause * 2 } else { self.timing.creator_retry };
            asked.pause = pause.clamp(self.timing.backoff_max, self.timing.creator_retry);
            asked.next = now.mono + asked.pause;
            let (cluster, uid) = (id.clone(), head.uid.clone());
            asked.call = Some(out.call(Call::Announced { cluster, uid }));
        }
        match (pin, head.signer, &asked.announced) {
            // It has never signed.
            (None, None, None) if asked.answered => Verdict::Open,
            _ if asked.call.is_some() || !asked.answered => Verdict::Waits,
            (Some((_, key)), _, _) => Verdict::Refused(format!(
                "its head has {}, but its key is {key}, which did not hand over. If the cluster was rebuilt: cloudmap-mcs \
                 trust accept {id}",
                signed(head)
            )),
            (None, _, _) => {
                Verdict::Refused(format!("its head has {}, which exports-0.{id} does not announce", signed(head)))
            }
        }
    }

    /// J1: whether the head is from a cluster that was accepted before, also under another id, and not taken back.
    fn is_known(&self, head: &Head) -> bool {
        let of_uid = |peer: &Peer| {
            peer.accepted.as_ref().is_some_and(|accepted| {
                *accepted.uid == *head.uid && !accepted.gone.is_some_and(Gone::is_said) && accepted.key.is_none()
            })
        };
        let signer = head.signer.map(|key| (head.uid.to_string(), key));
        let has_key = |peer: &Peer| peer.pin().is_some() && peer.pin() == signer;
        // One whose heads were never signed has no key. One that has is pinned, and judged by that.
        self.peers.get(&head.cluster).is_some_and(|peer| of_uid(peer) || peer.pin().is_some())
            || self.peers.values().any(has_key)
    }

    /// Why the head of a new cluster does not count.
    fn stranger(head: &Head) -> String {
        let (id, uid, signed) = (&head.cluster, &head.uid, signed(head));
        let key = head.signer.map_or_else(|| "KEY".to_owned(), |key| key.to_string());
        format!(
            "it is a new cluster (UID {uid}), which an administrator must accept; its head has {signed}. Compare the key with \
             what `cloudmap-mcs trust list` prints in that cluster, then run: cloudmap-mcs trust accept {id} --key {key}. If \
             nobody added it: cloudmap-mcs trust reject {id}"
        )
    }

    /// Those that this cluster has accepted, and that are not gone.
    pub(crate) fn voters(&self) -> BTreeMap<Arc<str>, Voter> {
        let voter = |(id, peer): (&Arc<str>, &Peer)| {
            let accepted = peer.accepted.as_ref().filter(|accepted| !accepted.gone.is_some_and(Gone::is_left))?;
            let applied = peer.applied.as_ref().filter(|applied| applied.accepted.uid == accepted.uid);
            let state = applied.and_then(|applied| applied.state.as_ref());
            let voter = Voter {
                uid: accepted.uid.clone(),
                key: accepted.key,
                created: accepted.created,
                ballot: state.map(|state| Ballot::read(state, id)),
                silent: peer.stale.is_some(),
            };
            Some((id.clone(), voter))
        };
        self.counting().filter_map(voter).collect()
    }

    /// Ids with live heads of clusters that this one has neither accepted nor rejected.
    pub(crate) fn unaccepted(&self) -> &BTreeSet<Arc<str>> {
        &self.unaccepted
    }

    /// Takes it that this cluster had accepted another one before, of which its record says nothing any more.
    pub(crate) fn believe(&mut self, cluster: &Arc<str>, uid: &str, key: PublicKey) {
        let peer = self.peers.entry(cluster.clone()).or_default();
        if peer.accepted.is_none() {
            peer.accepted = Some(Accepted::unread(uid.to_owned(), Some(key)));
            self.revision += 1;
        }
    }

    /// R9: reads the copies of heads that somebody may hide. This is suspected if the key of a cluster is known, and no
    /// head at or above its position has been seen for a while. The copy is in the own service of that cluster.
    pub(super) fn look_for_copies(&mut self, now: Now, out: &mut Outbox) {
        if self.trust.mode == Mode::Open {
            return;
        }
        let patience = 2 * self.timing.backoff_max;
        for (id, peer) in &mut self.peers {
            let hidden = self.clocks.read.saturating_sub(peer.times.at_or_above) > patience;
            let gone = peer.accepted.as_ref().is_none_or(|accepted| accepted.gone.is_some_and(Gone::is_left));
            if hidden
                && !gone
                && peer.yields_to.is_none()
                && peer.pin().is_some()
                && peer.copy.call.is_none()
                && now.mono >= peer.copy.next
            {
                peer.copy.next =
                    now.mono + if peer.stale.is_some() { self.timing.creator_retry } else { self.timing.backoff_max };
                peer.copy.call = Some(out.call(Call::Copy { cluster: id.clone() }));
            }
        }
    }

    /// The outcome of reading a copy; `false` if it is nobody's here.
    pub(super) fn read_copy(&mut self, now: Now, id: CallId, outcome: &Outcome, out: &mut Outbox) -> bool {
        let Some(peer) = self.peers.values_mut().find(|peer| peer.copy.call == Some(id)) else { return false };
        peer.copy.call = None;
        if let Outcome::Copy(Some(head)) = outcome
            && matches!(self.judge_key(now, head, out), Verdict::Proved)
            && head.delta.check().is_ok()
        {
            self.accept(now, head);
        }
        true
    }

    /// The outcome of asking what a cluster announces; `false` if it is nobody's here.
    pub(super) fn announcement_read(&mut self, id: CallId, outcome: &Outcome) -> bool {
        let Some(asked) = self.announced.values_mut().find(|asked| asked.call == Some(id)) else { return false };
        asked.call = None;
        if let Outcome::Announced(announced) = outcome {
            asked.announced.clone_from(announced);
            asked.answered = true;
        }
        true
    }
}
