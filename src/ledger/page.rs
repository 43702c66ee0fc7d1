//! Pages: immutable instances with the pairs of one bit prefix, with changes, or with an index of such pages.

use std::{fmt, str::FromStr, sync::Arc};

use prost::Message as _;

use super::{
    Value,
    codec::{self, Digest, Error},
    head::{Change, RootPage},
    wire,
};
use cloudmap::{Attributes, Instance};

/// Maximum length of a flush id: an instance id has at most 64 characters, and `.<n>` is appended.
const MAX_FLUSH: usize = 56;

/// `<flush>.<n>`: the instance id of a page. A flush id is `<epoch>-<counter>-<random>` and is never used twice.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PageId {
    /// The flush that wrote the page.
    pub flush: Arc<str>,
    /// Its number in the flush.
    pub number: u32,
}

impl fmt::Display for PageId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.flush, self.number)
    }
}

impl FromStr for PageId {
    type Err = Error;

    fn from_str(id: &str) -> Result<Self, Error> {
        let (flush, number) = id.rsplit_once('.').ok_or(Error::Malformed("a page id must be <flush>.<n>"))?;
        let number = number.parse().map_err(|_| Error::Malformed("a page id must end with a number"))?;
        Ok(Self { flush: read_flush(flush)?.into(), number })
    }
}

fn read_flush(flush: &str) -> Result<&str, Error> {
    let legal = |c: u8| c.is_ascii_alphanumeric() || c == b'-';
    if flush.is_empty() || flush.len() > MAX_FLUSH || !flush.bytes().all(legal) {
        return Err(Error::Malformed("a flush id must be <epoch>-<counter>-<random>"));
    }
    Ok(flush)
}

/// The first bits of `sha256(key)`, which all keys of a page share.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Prefix {
    /// Left-aligned, zero after `depth`.
    bits: u64,
    depth: u8,
}

impl Prefix {
    /// The empty prefix, which all keys have.
    pub const ALL: Self = Self { bits: 0, depth: 0 };
    pub(super) const MAX_DEPTH: u8 = 60;

    fn mask(depth: u8) -> u64 {
        if depth == 0 { 0 } else { u64::MAX << (64 - u32::from(depth)) }
    }

    /// Number of bits.
    pub const fn depth(self) -> u8 {
        self.depth
    }

    /// The two prefixes that are one bit longer.
    pub(super) fn split(self) -> (Self, Self) {
        let depth = self.depth + 1;
        (Self { bits: self.bits, depth }, Self { bits: self.bits | 1 << (64 - u32::from(depth)), depth })
    }

    /// The first and last hash with this prefix.
    pub(super) fn range(self) -> (u64, u64) {
        (self.bits, self.bits | !Self::mask(self.depth))
    }

    /// The shard of the page with this prefix: its first bits, the first bit lowest. When the number of shards (a power
    /// of two) doubles, half of the pages stay where they are.
    pub fn shard(self, shards: u32) -> u32 {
        self.bits.reverse_bits() as u32 & (shards - 1)
    }

    fn read(depth: u32, bits: u64) -> Result<Self, Error> {
        let depth = u8::try_from(depth).ok().filter(|depth| *depth <= Self::MAX_DEPTH);
        let depth = depth.ok_or(Error::Malformed("a prefix is too long"))?;
        let aligned = if depth == 0 { 0 } else { bits << (64 - u32::from(depth)) };
        Ok(Self { bits: aligned & Self::mask(depth), depth })
    }

    fn right_aligned(self) -> u64 {
        if self.depth == 0 { 0 } else { self.bits >> (64 - u32::from(self.depth)) }
    }
}

impl fmt::Debug for Prefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (0..u32::from(self.depth)).try_for_each(|bit| write!(f, "{}", self.bits >> (63 - bit) & 1))?;
        f.write_str("*")
    }
}

/// A page in the registry: its id, its bytes and their digest. Its meaning depends on what refers to it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredPage {
    /// Its id.
    pub id: PageId,
    /// Its bytes.
    pub bytes: Arc<[u8]>,
    /// Digest of these bytes.
    pub digest: Digest,
}

impl StoredPage {
    pub(super) fn new(id: PageId, bytes: Vec<u8>) -> Self {
        Self { digest: Digest::of(&bytes), id, bytes: bytes.into() }
    }

    /// The instance that contains this page.
    pub fn to_instance(&self) -> Instance {
        let mut attributes = Attributes::from([("f".to_owned(), self.id.flush.to_string())]);
        codec::write_data(&mut attributes, &self.bytes);
        Instance { id: self.id.to_string().into(), attributes }
    }

    /// Reads an instance that is named like a page. Broken data is a page without bytes, which matches no digest.
    ///
    /// # Errors
    /// The id or the flush attribute is not that of a page, so the instance is foreign.
    pub fn from_instance(instance: &Instance) -> Result<Self, Error> {
        let id: PageId = instance.id.parse()?;
        if instance.attributes.get("f").map(String::as_str) != Some(&*id.flush) {
            return Err(Error::Malformed("attribute f must be the flush of the page id"));
        }
        Ok(Self::new(id, codec::read_data(&instance.attributes).unwrap_or_default()))
    }
}

/// The pairs of a data page, sorted by key.
pub type Pairs = Arc<[(Arc<str>, Value)]>;

/// A data page. `level` is as in [`codec::pack`].
pub fn encode_pairs<'a>(pairs: impl Iterator<Item = (&'a Arc<str>, &'a Value)>, level: u32) -> Vec<u8> {
    let pairs = pairs.map(|(key, value)| wire::Pair { key: key.to_string(), value: Some(value.to_vec()) }).collect();
    codec::pack(&wire::DataPage { pairs }.encode_to_vec(), level)
}

/// Reads what [`encode_pairs`] wrote.
///
/// # Errors
/// It cannot be unpacked, or is no data page.
pub fn decode_pairs(packed: &[u8]) -> Result<Pairs, Error> {
    let page = wire::DataPage::decode(&*codec::unpack(packed)?)?;
    page.pairs
        .into_iter()
        .map(|pair| {
            let value = pair.value.ok_or(Error::Malformed("a pair of a page has no value"))?;
            Ok((pair.key.into(), value.into()))
        })
        .collect()
}

/// Changes as a page or a head contains them; `None` if they are more than any reader unpacks.
pub fn encode_changes(changes: &[Change], level: u32) -> Option<Vec<u8>> {
    let length = |(key, value): &Change| key.len() + value.as_ref().map_or(0, |value| value.len());
    // While thousands of changes arrive, each makes a new delta. Those that cannot fit must cost almost nothing.
    if changes.iter().map(length).sum::<usize>() > codec::MAX_UNPACKED {
        return None;
    }
    let value = |value: &Option<Value>| value.as_ref().map(|value| value.to_vec());
    let pairs = changes.iter().map(|(key, new)| wire::Pair { key: key.to_string(), value: value(new) }).collect();
    let raw = wire::DataPage { pairs }.encode_to_vec();
    (raw.len() <= codec::MAX_UNPACKED).then(|| codec::pack(&raw, level))
}

/// Reads what [`encode_changes`] wrote.
///
/// # Errors
/// It cannot be unpacked, or is no page of changes.
pub fn decode_changes(packed: &[u8]) -> Result<Vec<Change>, Error> {
    let page = wire::DataPage::decode(&*codec::unpack(packed)?)?;
    Ok(page.pairs.into_iter().map(|pair| (pair.key.into(), pair.value.map(Into::into))).collect())
}

/// A line of an index page.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// The prefix of the page's keys.
    pub prefix: Prefix,
    /// Id of the page.
    pub page: PageId,
    /// Digest of its bytes.
    pub digest: Digest,
}

/// The place of a flush in a list of flushes, to which it is added.
fn numbered(flushes: &mut Vec<String>, flush: &str) -> u32 {
    let known = flushes.iter().position(|known| known == flush);
    known.unwrap_or_else(|| {
        flushes.push(flush.to_owned());
        flushes.len() - 1
    }) as u32
}

/// The page ids of an index page, from its columns.
fn page_ids(flushes: &[String], flush: &[u32], number: &[u32]) -> Result<Vec<PageId>, Error> {
    let flushes: Vec<Arc<str>> =
        flushes.iter().map(|flush| read_flush(flush).map(Arc::from)).collect::<Result<_, _>>()?;
    let id = |(flush, number): (&u32, &u32)| {
        let flush = flushes.get(*flush as usize).ok_or(Error::Malformed("an index entry names no flush"))?;
        Ok(PageId { flush: flush.clone(), number: *number })
    };
    flush.iter().zip(number).map(id).collect()
}

/// An index of run pages.
pub fn encode_runs<'a>(runs: impl Iterator<Item = &'a RootPage>, level: u32) -> Vec<u8> {
    let mut index = wire::RunIndex::default();
    for run in runs {
        index.flush.push(numbered(&mut index.flushes, &run.id.flush));
        index.number.push(run.id.number);
        index.shards.push(run.shard);
        index.digests.extend_from_slice(&run.digest.0);
    }
    codec::pack(&index.encode_to_vec(), level)
}

/// Reads what [`encode_runs`] wrote.
///
/// # Errors
/// It cannot be unpacked, or is no index of run pages.
pub fn decode_runs(packed: &[u8]) -> Result<Arc<[RootPage]>, Error> {
    let index = wire::RunIndex::decode(&*codec::unpack(packed)?)?;
    let length = index.shards.len();
    if index.flush.len() != length || index.number.len() != length || index.digests.len() != length * 16 {
        return Err(Error::Malformed("an index page's columns differ in length"));
    }
    let ids = page_ids(&index.flushes, &index.flush, &index.number)?;
    let rows = ids.into_iter().zip(index.shards).zip(index.digests.chunks_exact(16));
    rows.map(|((id, shard), digest)| Ok(RootPage { shard, id, digest: Digest::read(digest)? })).collect()
}

/// An index page of the tree.
pub fn encode_index(entries: &[Entry], level: u32) -> Vec<u8> {
    let mut index = wire::IndexPage::default();
    for entry in entries {
        index.depths.push(entry.prefix.depth.into());
        index.prefixes.push(entry.prefix.right_aligned());
        index.flush.push(numbered(&mut index.flushes, &entry.page.flush));
        index.number.push(entry.page.number);
        index.digests.extend_from_slice(&entry.digest.0);
    }
    codec::pack(&index.encode_to_vec(), level)
}

/// Reads what [`encode_index`] wrote.
///
/// # Errors
/// It cannot be unpacked, or is no index page.
pub fn decode_index(packed: &[u8]) -> Result<Arc<[Entry]>, Error> {
    let index = wire::IndexPage::decode(&*codec::unpack(packed)?)?;
    let length = index.depths.len();
    let columns = [index.prefixes.len(), index.flush.len(), index.number.len()];
    if columns.iter().any(|column| *column != length) || index.digests.len() != length * 16 {
        return Err(Error::Malformed("an index page's columns differ in length"));
    }
    let ids = page_ids(&index.flushes, &index.flush, &index.number)?;
    ids.into_iter()
        .enumerate()
        .map(|(row, page)| {
            let prefix = Prefix::read(index.depths[row], index.prefixes[row])?;
            Ok(Entry { prefix, page, digest: Digest::read(&index.digests[row * 16..row * 16 + 16])? })
        })
        .collect()
}
