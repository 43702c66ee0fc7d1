//! S10: whether leaders are connected, and have said all that the ledger has.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use super::{Contact, Stream};

impl Stream {
    /// S10: whether each live cluster that is not silent is heard, and the ledger has the claims that it says. `false`
    /// if there is no such cluster, or if somebody came a moment ago whom the ledger may show soon.
    pub(crate) fn is_at_rest(&self, now: Duration, contacts: &BTreeMap<Arc<str>, Contact>) -> bool {
        let heard = contacts.iter().filter(|(_, contact)| contact.live && !contact.silent);
        let mut follows = heard.map(|(cluster, contact)| self.follows(now, cluster, contact)).peekable();
        !self.strangers.come(now) && follows.peek().is_some() && follows.all(|follows| follows)
    }

    fn follows(&self, now: Duration, cluster: &str, contact: &Contact) -> bool {
        let Some((id, following)) = self.following.get(cluster) else { return false };
        let Some(session) = self.sessions.get(id).filter(|session| session.is_alive(now)) else { return false };
        // A new leader's head was read as well.
        let known = session.peer.as_ref().is_some_and(|peer| peer.epoch == contact.position.epoch);
        let (Some((said, _)), Some(head), Some(applied)) = (following.latest(), contact.head, contact.summary) else {
            return false;
        };
        let claims = said.hashes.claims;
        known && !said.version.is_before(head.version) && [head, applied].iter().all(|it| it.hashes.claims == claims)
    }
}
