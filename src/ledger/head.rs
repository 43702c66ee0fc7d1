//! The head: one instance per cluster in the service `clusters`. It is the only commit point and the heartbeat.
//!
//! Attributes: `v` is the format version, `c` the checksum of the bytes in `d0`, `d1`, ...; `k` and `s` are the key and
//! the signature of [`super::trust`]. All others are ignored.

use std::{
    net::{IpAddr, SocketAddr},
    sync::{Arc, OnceLock},
    time::Duration,
};

use prost::Message as _;

use super::{
    Map, Value,
    codec::{self, Digest, Error},
    hash::{Hashes, StateHash, Summary},
    limits::Limits,
    page::{self, PageId},
    wire,
    writer::WriterIdentity,
};
use crate::record::{Position, Version};
use cloudmap::{Attributes, Instance};
use model::PublicKey;

/// The format that this version writes, and the highest that it reads. A version writes format N - 1 until all heads
/// say that their writers read N.
pub const FORMAT: u32 = 1;

/// Epochs beyond this are malformed, so that a forged one leaves room for the next.
const MAX_EPOCH: u64 = 1 << 62;
/// Addresses of a leader that are looked at: two of each family.
pub const MAX_ADDRESSES: usize = 4;
/// More shards than this are malformed. A tree has at most 200 pages in each of them.
pub const MAX_SHARDS: u32 = 64;

/// The pages of a state: a tree, and the runs of changes that were appended to it. Equal roots are equal states.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Root {
    /// Number of shards, a power of two.
    pub shards: u32,
    /// The index pages of the tree.
    pub pages: Arc<[RootPage]>,
    /// The runs, oldest first.
    pub runs: Arc<[RootRun]>,
}

impl Root {
    /// The root of the empty map.
    pub fn empty(shards: u32) -> Self {
        Self { shards, pages: Arc::default(), runs: Arc::default() }
    }
}

/// What a root says about runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RootRun {
    /// A page of changes.
    Page(RootPage),
    /// An index of such pages.
    Index(RootPage),
}

impl RootRun {
    /// The page that the root names.
    pub const fn page(&self) -> &RootPage {
        match self {
            Self::Page(page) | Self::Index(page) => page,
        }
    }
}

/// A page that something refers to: an index page in a root, or a page of changes.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct RootPage {
    /// The shard of the page.
    pub shard: u32,
    /// Its id.
    pub id: PageId,
    /// Digest of its bytes.
    pub digest: Digest,
}

/// A key and its new value; without a value the key is removed.
pub type Change = (Arc<str>, Option<Value>);

/// Changes relative to the pages, sorted by key. A delta that was read is unpacked only when its changes are requested,
/// because the writer of the head must be known before (R2).
#[derive(Debug, Clone, Default)]
pub struct Delta {
    changes: OnceLock<Result<Vec<Change>, Error>>,
    /// The bytes in a head. Empty without changes, and for a delta that no reader would unpack.
    packed: Vec<u8>,
}

impl PartialEq for Delta {
    fn eq(&self, other: &Self) -> bool {
        self.packed == other.packed && (!self.packed.is_empty() || self.changes() == other.changes())
    }
}

impl Eq for Delta {}

impl Delta {
    /// The changes from `base` to `desired`.
    pub fn between(base: &Map, desired: &Map, level: u32) -> Self {
        let changed = base.difference(desired);
        let changes: Vec<Change> = changed.map(|(key, _, value)| (key.clone(), value.cloned())).collect();
        if changes.is_empty() {
            return Self::default();
        }
        let packed = page::encode_changes(&changes, level).unwrap_or_default();
        Self { changes: OnceLock::from(Ok(changes)), packed }
    }

    fn unpacked(&self) -> &Result<Vec<Change>, Error> {
        self.changes
            .get_or_init(|| if self.packed.is_empty() { Ok(Vec::new()) } else { page::decode_changes(&self.packed) })
    }

    /// Checks whether it can be unpacked.
    ///
    /// # Errors
    /// It cannot, so nothing of the head counts.
    pub fn check(&self) -> Result<(), Error> {
        self.unpacked().as_ref().map(drop).map_err(Clone::clone)
    }

    /// The changes; empty if it cannot be unpacked.
    pub fn changes(&self) -> &[Change] {
        self.unpacked().as_deref().unwrap_or_default()
    }

    /// Whether there are no changes.
    pub fn is_empty(&self) -> bool {
        self.packed.is_empty() && self.changes().is_empty()
    }

    /// Number of bytes in a head. If readers would not unpack it, this is more than any head can hold.
    pub fn size(&self) -> usize {
        if self.packed.is_empty() && !self.is_empty() { codec::MAX_UNPACKED } else { self.packed.len() }
    }

    /// The state that results from applying the changes to `base`.
    pub fn apply(&self, base: &Map) -> Map {
        let mut map = base.clone();
        for (key, value) in self.changes() {
            match value {
                Some(value) => map.insert(key.clone(), value.clone()),
                None => map.remove(key),
            };
        }
        map
    }

    fn read(packed: Vec<u8>) -> Self {
        Self { changes: OnceLock::new(), packed }
    }
}

/// Whether the cluster is a member.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Presence {
    /// It is a member.
    Live,
    /// It left, or continues under another id.
    Left {
        /// The other id, if there is one.
        successor: Option<Arc<str>>,
    },
}

/// What a cluster says of itself: which state it has, and where that can be read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Head {
    /// Id of the cluster.
    pub cluster: Arc<str>,
    /// The highest format that the writer reads.
    pub reads: u32,
    /// UID of the cluster's namespace kube-system.
    pub uid: Arc<str>,
    /// Its position.
    pub position: Position,
    /// Whether the cluster is a member.
    pub presence: Presence,
    /// The pages of the state.
    pub root: Root,
    /// The changes since these pages.
    pub delta: Arc<Delta>,
    /// Which state this is.
    pub summary: Summary,
    /// Where its leader listens for other leaders.
    pub addresses: Arc<[SocketAddr]>,
    /// How long the cluster may be silent before it counts as stale.
    pub lease: Duration,
    /// Time of writing in milliseconds since 1970, by the writer's clock: for people, and for R3 of signed heads.
    pub written: u64,
    /// The key that signed it, as its reader verified; `None` without a valid signature, and for a head to be written.
    pub signer: Option<PublicKey>,
}

impl Head {
    /// Whose state it means.
    pub fn owner(&self, clusterset: &Arc<str>) -> WriterIdentity {
        WriterIdentity { clusterset: clusterset.clone(), cluster: self.cluster.clone(), uid: self.uid.clone() }
    }

    /// Whether this is the state that it means, as a head of that ClusterSet.
    pub fn means(&self, clusterset: &Arc<str>, map: &Arc<Map>) -> bool {
        Hashes::of(&self.owner(clusterset), map) == self.summary.hashes
    }

    /// Whether the cluster is a member.
    pub fn is_live(&self) -> bool {
        self.presence == Presence::Live
    }

    fn to_bytes(&self) -> Vec<u8> {
        let (left, successor) = match &self.presence {
            Presence::Live => (false, None),
            Presence::Left { successor } => (true, successor.as_ref().map(ToString::to_string)),
        };
        let page = |page: &RootPage, index| wire::RootPage {
            shard: page.shard,
            id: page.id.to_string(),
            digest: page.digest.0.to_vec(),
            index,
        };
        let roots = self.root.pages.iter().map(|root| page(root, false)).collect();
        let runs = self.root.runs.iter().map(|run| page(run.page(), matches!(run, RootRun::Index(_)))).collect();
        let head = wire::Head {
            reads: self.reads,
            uid: self.uid.to_string(),
            epoch: self.position.epoch,
            seq: self.position.seq,
            left,
            successor,
            shards: self.root.shards,
            roots,
            delta: self.delta.packed.clone(),
            lease: self.lease.as_secs() as u32,
            written: self.written,
            cluster: self.cluster.to_string(),
            runs,
            summary: Some(self.summary.to_wire()),
            addresses: self.addresses.iter().map(write_address).collect(),
        };
        head.encode_to_vec()
    }

    /// Whether the head fits into one instance. A delta that does not fit is never cut.
    pub fn fits(&self, limits: &Limits) -> bool {
        self.delta.size() <= limits.delta_bytes && self.to_bytes().len() <= limits.head_bytes
    }

    /// The instance that contains this head.
    pub fn to_instance(&self) -> Instance {
        let bytes = self.to_bytes();
        let mut attributes = Attributes::from([
            ("v".to_owned(), FORMAT.to_string()),
            ("c".to_owned(), codec::print_digest(Digest::of(&bytes))),
        ]);
        codec::write_data(&mut attributes, &bytes);
        Instance { id: self.cluster.clone(), attributes }
    }

    /// Reads the head of the cluster that the instance is named after.
    ///
    /// # Errors
    /// Unknown format, wrong checksum, or anything that this version would not write. The head is ignored and reported
    /// (R2).
    pub fn from_instance(instance: &Instance) -> Result<Self, Error> {
        let format = instance.attributes.get("v").and_then(|format| format.parse().ok());
        match format {
            Some(FORMAT) => {}
            Some(other) => return Err(Error::Format(other)),
            None => return Err(Error::Malformed("no format version")),
        }
        let bytes = codec::read_data(&instance.attributes)?;
        if instance.attributes.get("c") != Some(&codec::print_digest(Digest::of(&bytes))) {
            return Err(Error::Checksum);
        }
        let head = wire::Head::decode(&*bytes)?;
        if *head.cluster != *instance.id {
            return Err(Error::Malformed("the head belongs to another cluster"));
        }
        if head.epoch > MAX_EPOCH || head.seq > MAX_EPOCH {
            return Err(Error::Malformed("epoch or seq out of range"));
        }
        if !head.shards.is_power_of_two() || head.shards > MAX_SHARDS {
            return Err(Error::Malformed("the number of shards must be a power of two up to 64"));
        }
        let summary = Summary::read(head.summary.unwrap_or_default())?;
        if summary.version.epoch > head.epoch {
            return Err(Error::Malformed("the version of the state is of a later epoch"));
        }
        let page = |page: &wire::RootPage| {
            if page.shard >= head.shards {
                return Err(Error::Malformed("a root page is in no shard"));
            }
            Ok(RootPage { shard: page.shard, id: page.id.parse()?, digest: Digest::read(&page.digest)? })
        };
        let pages = head.roots.iter().map(page).collect::<Result<_, _>>()?;
        let run =
            |run: &wire::RootPage| Ok(if run.index { RootRun::Index(page(run)?) } else { RootRun::Page(page(run)?) });
        let runs = head.runs.iter().map(run).collect::<Result<_, Error>>()?;
        Ok(Self {
            cluster: instance.id.clone(),
            reads: head.reads,
            uid: head.uid.into(),
            position: Position { epoch: head.epoch, seq: head.seq },
            presence: if head.left {
                Presence::Left { successor: head.successor.map(Into::into) }
            } else {
                Presence::Live
            },
            root: Root { shards: head.shards, pages, runs },
            delta: Arc::new(Delta::read(head.delta)),
            summary,
            addresses: head.addresses.iter().take(MAX_ADDRESSES).filter_map(read_address).collect(),
            lease: Duration::from_secs(head.lease.into()),
            written: head.written,
            signer: None,
        })
    }
}

fn write_address(address: &SocketAddr) -> wire::Address {
    let ip = match address.ip() {
        IpAddr::V4(ip) => ip.octets().to_vec(),
        IpAddr::V6(ip) => ip.octets().to_vec(),
    };
    wire::Address { ip, port: address.port().into() }
}

/// Addresses of a kind that this version does not know are left out.
fn read_address(address: &wire::Address) -> Option<SocketAddr> {
    let port = u16::try_from(address.port).ok().filter(|port| *port > 0)?;
    let v4 = || <[u8; 4]>::try_from(&*address.ip).map(IpAddr::from);
    let ip = v4().or_else(|_| <[u8; 16]>::try_from(&*address.ip).map(IpAddr::from)).ok()?;
    Some(SocketAddr::new(ip, port))
}

impl Summary {
    pub(super) fn to_wire(self) -> wire::Summary {
        let Version { epoch, nonce, n } = self.version;
        let Hashes { state, claims } = self.hashes;
        let version = Some(wire::Version { epoch, nonce, n });
        wire::Summary { version, state: state.0.to_vec(), claims: claims.0.to_vec() }
    }

    pub(super) fn read(wire: wire::Summary) -> Result<Self, Error> {
        let wire::Version { epoch, nonce, n } = wire.version.unwrap_or_default();
        if epoch > MAX_EPOCH || n > MAX_EPOCH {
            return Err(Error::Malformed("version out of range"));
        }
        let hashes = Hashes { state: StateHash::read(&wire.state)?, claims: StateHash::read(&wire.claims)? };
        Ok(Self { version: Version { epoch, nonce, n }, hashes })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mk_head(delta: Delta) -> Head {
        Head {
            cluster: "a".into(),
            reads: FORMAT,
            uid: "uid".into(),
            position: Position { epoch: 1, seq: 1 },
            presence: Presence::Live,
            root: Root::empty(1),
            delta: Arc::new(delta),
            summary: Summary::default(),
            addresses: Arc::default(),
            lease: Duration::from_mins(5),
            written: 0,
            signer: None,
        }
    }

    #[test]
    fn a_delta_is_unpacked_when_it_is_asked_for_and_not_when_the_head_is_read() {
        let head = mk_head(Delta::read(vec![9, 9, 9]));
        let read = Head::from_instance(&head.to_instance()).unwrap();
        assert!(read.delta.changes.get().is_none() && read == head);
        assert!(read.delta.check().is_err() && read.delta.changes().is_empty());
    }

    #[test]
    fn a_delta_that_readers_would_not_unpack_fits_no_head() {
        // Equal bytes pack to almost nothing, so only the unpacked size is the limit.
        let map = |records: usize| -> Map {
            (0..records).map(|n| (format!("ns/{n}").into(), vec![7; 1_000].into())).collect()
        };
        let fits = |records| {
            let head = mk_head(Delta::between(&Map::new(), &map(records), 6));
            let read = Head::from_instance(&head.to_instance());
            (head.fits(&Limits::default()), read.is_ok_and(|read| read.delta == head.delta))
        };
        assert_eq!(fits(0), (true, true));
        assert_eq!(fits(60), (true, true));
        // 65 x 1,000 bytes are within the limit, but not with their keys and framing.
        assert!(!fits(65).0);
        assert!(!fits(1_000).0);
    }
}
