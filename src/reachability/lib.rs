//! Whether the network still leads to the endpoints of another cluster, as this cluster sees it.
//!
//! A cluster whose controller or registry is away keeps serving. One whose network is gone must not: the stream of its leader is
//! lost, *and* TCP connections to several of its endpoints on several nodes fail from here. The controller asks ([`Questions`]), a
//! task connects ([`probe`]) by the rules of [`agenda`], and its [`Verdict`]s say what came of it. `docs/unreachable.md` says what
//! users see.

#![warn(missing_docs)]

mod agenda;
mod judge;
pub mod probe;

use std::{collections::BTreeMap, net::SocketAddr, sync::Arc};

pub use agenda::Agenda;
pub use probe::{Connect, Prober, Tcp};

use model::ClusterId;

/// Whether endpoints of other clusters are tried.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Probing {
    /// Of clusters whose leaders are connected with this one.
    Auto,
    /// Never.
    Off,
}

/// Whose endpoints these are.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Party {
    /// Of this cluster: if one on another node does not answer, this cluster is the one that is cut off.
    Here,
    /// Of another cluster.
    There(ClusterId),
}

/// What is known of a party.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Candidates {
    /// Whether its leader is connected with this one; always, of this cluster.
    pub connected: bool,
    /// Whether it counts as unreachable, so that it is looked for whether it is back.
    pub unreachable: bool,
    /// Ready endpoints that imports of this cluster may have, with the node of each. No other address is ever connected to.
    pub endpoints: BTreeMap<SocketAddr, Arc<str>>,
}

/// Whom to look for. Nothing: nobody is looked for.
pub type Questions = BTreeMap<Party, Candidates>;

/// What came of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// It answers.
    Reachable,
    /// Its stream is lost, and it does not answer, while others do.
    Unreachable(Evidence),
}

/// By what a cluster was judged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Evidence {
    /// So many different endpoints did not answer.
    pub endpoints: usize,
    /// They were on so many nodes.
    pub nodes: usize,
}

/// The last verdict about each cluster. Nothing is said of a cluster of which nothing can be said.
pub type Verdicts = BTreeMap<ClusterId, Verdict>;
