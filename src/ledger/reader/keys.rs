//! R9: which heads count because of the keys that signed them.

use std::time::Duration;

use super::{CallId, Mode, Now, Outbox, Peer, Reader};
use crate::{
    cluster::record::Gone,
    ledger::{
        call::{Call, Outcome},
        head::Head,
        trust::Announced,
    },
    model::PublicKey,
};

/// Where keys are pinned with `--trust=pinned`.
const IN_CONFIG_MAP: &str = " in the ConfigMap cloudmap-mcs-trust";

/// The key that a cluster announces.
#[derive(Debug, Default)]
pub(super) struct Announcement {
    announced: Option<Announced>,
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

impl Peer {
    /// The UID and the key that are pinned for the cluster, unless people said that it is gone for good.
    pub(super) fn pin(&self) -> Option<(String, PublicKey)> {
        let accepted = self.accepted.as_ref().filter(|accepted| accepted.gone != Some(Gone::Forgotten))?;
        Some((accepted.uid.clone(), accepted.key?))
    }
}

impl Reader {
    /// R2 and R9: whether the head is from the cluster in whose name it is.
    pub(super) fn may_speak(&mut self, now: Now, head: &Head, out: &mut Outbox) -> bool {
        match self.judge_key(now, head, out) {
            Verdict::Proved => true,
            Verdict::Open => self.is_creator(now, head, out),
            Verdict::Waits => false,
            Verdict::Refused(why) => {
                self.ignored.insert(head.cluster.clone(), why);
                false
            }
        }
    }

    /// R9: what the key that signed the head proves.
    fn judge_key(&mut self, now: Now, head: &Head, out: &mut Outbox) -> Verdict {
        let id = &head.cluster;
        let signed = || {
            head.signer.map_or_else(|| "no valid signature".to_owned(), |key| format!("a signature of the key {key}"))
        };
        match self.trust.mode {
            Mode::Open => return Verdict::Open,
            Mode::Pinned => {
                return match (self.trust.pinned.get(id), head.signer) {
                    (Some(keys), Some(signer)) if keys.contains(&signer) => Verdict::Proved,
                    (Some(_), _) => {
                        Verdict::Refused(format!("its head has {}, but another one is pinned{IN_CONFIG_MAP}", signed()))
                    }
                    (None, _) => {
                        Verdict::Refused(format!("no key is pinned for it{IN_CONFIG_MAP}; its head has {}", signed()))
                    }
                };
            }
            Mode::Tofu => {}
        }
        let pin = self.peers.get(id).and_then(Peer::pin);
        if let Some((uid, key)) = &pin {
            if **uid != *head.uid {
                return Verdict::Refused(format!(
                    "its head is from UID {} and has {}, but the cluster with this id has the UID {uid} and the key {key}. \
                     If it was rebuilt: cloudmap-mcs trust accept {id}",
                    head.uid,
                    signed()
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
                signed()
            )),
            (None, _, _) => {
                Verdict::Refused(format!("its head has {}, which exports-0.{id} does not announce", signed()))
            }
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
            let hidden = self.read_clock.saturating_sub(peer.at_or_above) > patience;
            let gone = peer.accepted.as_ref().is_none_or(|accepted| accepted.gone.is_some_and(Gone::is_left));
            if hidden && !gone && peer.pin().is_some() && peer.copy.is_none() && now.mono >= peer.copy_next {
                peer.copy_next =
                    now.mono + if peer.stale.is_some() { self.timing.creator_retry } else { self.timing.backoff_max };
                peer.copy = Some(out.call(Call::Copy { cluster: id.clone() }));
            }
        }
    }

    /// The outcome of reading a copy; `false` if it is nobody's here.
    pub(super) fn read_copy(&mut self, now: Now, id: CallId, outcome: &Outcome, out: &mut Outbox) -> bool {
        let Some(peer) = self.peers.values_mut().find(|peer| peer.copy == Some(id)) else { return false };
        peer.copy = None;
        if let Outcome::Copy(Some(head)) = outcome
            && matches!(self.judge_key(now, head, out), Verdict::Proved)
            && head.delta.check().is_ok()
        {
            self.accept(head);
        }
        true
    }

    /// The outcome of asking what a cluster announces; `false` if it is nobody's here.
    pub(super) fn heard_key(&mut self, id: CallId, outcome: &Outcome) -> bool {
        let Some(asked) = self.announced.values_mut().find(|asked| asked.call == Some(id)) else { return false };
        asked.call = None;
        if let Outcome::Announced(announced) = outcome {
            asked.announced.clone_from(announced);
            asked.answered = true;
        }
        true
    }
}
