//! Values that the tests of several modules start from.

use std::{sync::Arc, time::Duration};

use crate::{
    hash::Summary,
    head::{FORMAT, Head, Presence, Root},
    record::Position,
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
