//! Protobuf messages as they are stored. Field numbers never change. Unknown fields are ignored on reading and never
//! copied.

/// A Cloud Map service.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Target {
    /// Its Cloud Map namespace.
    #[prost(string, tag = "1")]
    pub namespace: String,
    /// Its name.
    #[prost(string, tag = "2")]
    pub service: String,
}

/// Who registers in a target, or waits for it.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Claim {
    /// Where.
    #[prost(message, optional, tag = "1")]
    pub target: Option<Target>,
    /// Kind of the Kubernetes object.
    #[prost(string, tag = "2")]
    pub owner_kind: String,
    /// Its namespace.
    #[prost(string, tag = "3")]
    pub owner_namespace: String,
    /// Its name.
    #[prost(string, tag = "4")]
    pub owner_name: String,
    /// When the claim was first wanted, in seconds since 1970.
    #[prost(sint64, tag = "5")]
    pub claimed: i64,
    /// No claim: it retires, or its owner is unable.
    #[prost(bool, tag = "6")]
    pub retiring: bool,
    /// Of a claim: there is nothing to register.
    #[prost(bool, tag = "7")]
    pub empty: bool,
    /// The owner is unable. Then `retiring` is set, too, so that who does not know this field counts no claim.
    #[prost(bool, tag = "8")]
    pub unable: bool,
}

/// A data page: pairs sorted by key.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct DataPage {
    #[prost(message, repeated, tag = "1")]
    pub pairs: Vec<Pair>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct Pair {
    #[prost(string, tag = "1")]
    pub key: String,
    /// Absent in a delta if the key is removed.
    #[prost(bytes = "vec", optional, tag = "2")]
    pub value: Option<Vec<u8>>,
}

/// An index page: columns of equal length, which compress better than rows.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct IndexPage {
    #[prost(string, repeated, tag = "1")]
    pub flushes: Vec<String>,
    #[prost(uint32, repeated, tag = "2")]
    pub depths: Vec<u32>,
    /// The bits of the prefix, right-aligned.
    #[prost(uint64, repeated, tag = "3")]
    pub prefixes: Vec<u64>,
    /// Indexes into `flushes`.
    #[prost(uint32, repeated, tag = "4")]
    pub flush: Vec<u32>,
    #[prost(uint32, repeated, tag = "5")]
    pub number: Vec<u32>,
    /// 16 bytes each.
    #[prost(bytes = "vec", tag = "6")]
    pub digests: Vec<u8>,
}

/// An index of run pages, in columns of equal length.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct RunIndex {
    #[prost(string, repeated, tag = "1")]
    pub flushes: Vec<String>,
    /// Indexes into `flushes`.
    #[prost(uint32, repeated, tag = "2")]
    pub flush: Vec<u32>,
    #[prost(uint32, repeated, tag = "3")]
    pub number: Vec<u32>,
    #[prost(uint32, repeated, tag = "4")]
    pub shards: Vec<u32>,
    /// 16 bytes each.
    #[prost(bytes = "vec", tag = "5")]
    pub digests: Vec<u8>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct Head {
    /// The highest format that the writer reads.
    #[prost(uint32, tag = "1")]
    pub reads: u32,
    #[prost(string, tag = "2")]
    pub uid: String,
    #[prost(uint64, tag = "3")]
    pub epoch: u64,
    #[prost(uint64, tag = "4")]
    pub seq: u64,
    #[prost(bool, tag = "5")]
    pub left: bool,
    #[prost(string, optional, tag = "6")]
    pub successor: Option<String>,
    #[prost(uint32, tag = "7")]
    pub shards: u32,
    #[prost(message, repeated, tag = "8")]
    pub roots: Vec<RootPage>,
    /// A packed [`DataPage`] whose pairs may lack a value.
    #[prost(bytes = "vec", tag = "9")]
    pub delta: Vec<u8>,
    /// In seconds.
    #[prost(uint32, tag = "10")]
    pub lease: u32,
    /// Milliseconds since 1970, only for people.
    #[prost(uint64, tag = "11")]
    pub written: u64,
    /// The cluster to which the head belongs. A head that was copied to another id does not count.
    #[prost(string, tag = "12")]
    pub cluster: String,
    /// Oldest first.
    #[prost(message, repeated, tag = "13")]
    pub runs: Vec<RootPage>,
    #[prost(message, optional, tag = "14")]
    pub summary: Option<Summary>,
    #[prost(message, repeated, tag = "15")]
    pub addresses: Vec<Address>,
}

/// Where a leader listens.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct Address {
    /// 4 or 16 bytes.
    #[prost(bytes = "vec", tag = "1")]
    pub ip: Vec<u8>,
    #[prost(uint32, tag = "2")]
    pub port: u32,
}

/// What a head says of the state that it means.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct Summary {
    #[prost(message, optional, tag = "1")]
    pub version: Option<Version>,
    /// 32 bytes each.
    #[prost(bytes = "vec", tag = "2")]
    pub state: Vec<u8>,
    #[prost(bytes = "vec", tag = "3")]
    pub claims: Vec<u8>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct Version {
    #[prost(uint64, tag = "1")]
    pub epoch: u64,
    #[prost(fixed64, tag = "2")]
    pub nonce: u64,
    #[prost(uint64, tag = "3")]
    pub n: u64,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct RootPage {
    #[prost(uint32, tag = "1")]
    pub shard: u32,
    #[prost(string, tag = "2")]
    pub id: String,
    #[prost(bytes = "vec", tag = "3")]
    pub digest: Vec<u8>,
    /// Of a run: whether the page is a [`RunIndex`].
    #[prost(bool, tag = "4")]
    pub index: bool,
}

/// A cluster that is gone for good, as another one says.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct Forgotten {
    #[prost(string, tag = "1")]
    pub uid: String,
    #[prost(uint64, tag = "2")]
    pub epoch: u64,
    #[prost(uint64, tag = "3")]
    pub seq: u64,
}

/// What a cluster says of one that is or wants to be a member, or of itself.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct Vote {
    #[prost(string, tag = "1")]
    pub uid: String,
    #[prost(bytes = "vec", tag = "2")]
    pub key: Vec<u8>,
    #[prost(bool, tag = "3")]
    pub rejected: bool,
    #[prost(bool, tag = "4")]
    pub demands: bool,
    #[prost(bool, tag = "5")]
    pub waits: bool,
}

/// One message between two leaders; none is a sign of life.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct Frame {
    #[prost(message, optional, tag = "1")]
    pub hello: Option<Hello>,
    #[prost(message, optional, tag = "2")]
    pub subscribe: Option<Subscribe>,
    #[prost(message, optional, tag = "3")]
    pub replace: Option<Replace>,
    #[prost(message, optional, tag = "4")]
    pub changes: Option<Changes>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct Hello {
    #[prost(string, tag = "1")]
    pub clusterset: String,
    #[prost(string, tag = "2")]
    pub cluster: String,
    #[prost(string, tag = "3")]
    pub uid: String,
    #[prost(uint64, tag = "4")]
    pub epoch: u64,
    #[prost(fixed64, tag = "5")]
    pub nonce: u64,
}

/// What the subscriber has.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct Subscribe {
    #[prost(uint32, repeated, tag = "1")]
    pub buckets: Vec<u32>,
    /// 32 bytes each.
    #[prost(bytes = "vec", tag = "2")]
    pub hashes: Vec<u8>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct Replace {
    #[prost(uint32, repeated, tag = "1")]
    pub buckets: Vec<u32>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct Changes {
    #[prost(message, repeated, tag = "1")]
    pub pairs: Vec<Pair>,
    #[prost(message, optional, tag = "2")]
    pub end: Option<Summary>,
}
