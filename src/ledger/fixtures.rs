//! Values that the tests of several modules start from.

use std::{sync::Arc, time::Duration};

use crate::{
    hash::Summary,
    head::{FORMAT, Head, Presence, Root},
    record::{Position, StoredRegistration},
};

/// The first head of the cluster `blue`, not signed.
pub fn head() -> Head {
    Head {
        cluster: "blue".into(),
        reads: FORMAT,
        uid: "uid-blue".into(),
        position: Position { epoch: 1, seq: 1 },
        presence: Presence::Live,
        root: Root::empty(1),
        delta: Arc::default(),
        summary: Summary::default(),
        addresses: Arc::default(),
        lease: Duration::from_mins(5),
        written: 0,
        signer: None,
    }
}

/// A claim to a service of the Cloud Map namespace `ns`.
pub fn claim(service: &str) -> StoredRegistration {
    StoredRegistration {
        namespace: "ns".into(),
        service: service.into(),
        owner: ["ServiceExport", "ns", service].map(Into::into),
        claimed: 1_700_000_000,
        retiring: false,
        unable: false,
        waiting: false,
    }
}
