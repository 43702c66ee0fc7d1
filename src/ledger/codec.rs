//! Bytes to attributes and back: compression, printable form, digests, and the limits on both sides.
//!
//! Packed data begins with one byte for the method (0 plain, 1 raw deflate).

use std::{
    collections::BTreeMap,
    fmt,
    io::{Read, Write},
    sync::Arc,
};

use base64::{Engine, engine::general_purpose::STANDARD_NO_PAD};
use flate2::{Compression, read::DeflateDecoder, write::DeflateEncoder};
use sha2::{Digest as _, Sha256};

use super::head::Head;

/// Maximum length of an attribute's value in Cloud Map, in characters.
const MAX_VALUE: usize = 1_024;
/// More than one instance can hold (30 attributes): the limit of the loop over `d0`, `d1`, ...
const MAX_PARTS: usize = 8;
/// Maximum size of unpacked data, in bytes. Pages come from a registry that others can write.
pub const MAX_UNPACKED: usize = 64 * 1024;

const STORED: u8 = 0;
const DEFLATED: u8 = 1;

/// The first 128 bits of the SHA-256 of stored bytes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Digest(pub [u8; 16]);

impl Digest {
    /// The digest of these bytes.
    pub fn of(bytes: &[u8]) -> Self {
        let full = Sha256::digest(bytes);
        let mut short = [0; 16];
        short.copy_from_slice(&full[..16]);
        Self(short)
    }

    pub(super) fn read(bytes: &[u8]) -> Result<Self, Error> {
        bytes.try_into().map(Self).map_err(|_| Error::Malformed("a digest must have 16 bytes"))
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// Stored bytes could not be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// They have another form than expected.
    #[error("failed to read attributes: {0}")]
    Malformed(&'static str),
    /// They differ from their checksum.
    #[error("failed to verify the checksum")]
    Checksum,
    /// They have a format that this version does not read.
    #[error("failed to read format {0}: this version reads format 1")]
    Format(u32),
    /// They are a head in the name of this cluster, which did not sign it.
    #[error("failed to verify the signature: this head is in the name of this cluster, but somebody else wrote it")]
    Foreign(Arc<Head>),
    /// They are too large when unpacked.
    #[error("failed to unpack: more than {MAX_UNPACKED} bytes")]
    TooLarge,
}

impl Error {
    /// A fixed word for metrics and reasons.
    pub const fn category(&self) -> &'static str {
        match self {
            Self::Malformed(_) => "malformed",
            Self::Checksum => "checksum",
            Self::Format(_) => "format",
            Self::Foreign(_) => "foreign",
            Self::TooLarge => "too_large",
        }
    }
}

impl From<prost::DecodeError> for Error {
    fn from(_: prost::DecodeError) -> Self {
        Self::Malformed("not the expected message")
    }
}

/// Packs `raw`, compressed at `level` (0 stores it) if that makes it smaller.
pub fn pack(raw: &[u8], level: u32) -> Vec<u8> {
    if level > 0 {
        let mut encoder = DeflateEncoder::new(vec![DEFLATED], Compression::new(level));
        // Writing to a Vec cannot fail. If it did, the stored form below would be correct, too.
        if encoder.write_all(raw).is_ok()
            && let Ok(packed) = encoder.finish()
            && packed.len() <= raw.len()
        {
            return packed;
        }
    }
    let mut packed = Vec::with_capacity(raw.len() + 1);
    packed.push(STORED);
    packed.extend_from_slice(raw);
    packed
}

/// Reverses [`pack`].
///
/// # Errors
/// Unknown method, broken compression, or more than [`MAX_UNPACKED`] bytes.
pub fn unpack(packed: &[u8]) -> Result<Vec<u8>, Error> {
    match packed.split_first() {
        Some((&STORED, rest)) if rest.len() <= MAX_UNPACKED => Ok(rest.to_vec()),
        Some((&STORED, _)) => Err(Error::TooLarge),
        Some((&DEFLATED, rest)) => {
            let mut raw = Vec::new();
            DeflateDecoder::new(rest)
                .take(MAX_UNPACKED as u64 + 1)
                .read_to_end(&mut raw)
                .map_err(|_| Error::Malformed("broken compression"))?;
            if raw.len() > MAX_UNPACKED { Err(Error::TooLarge) } else { Ok(raw) }
        }
        _ => Err(Error::Malformed("unknown packing")),
    }
}

/// Adds `bytes` to `attributes` as `d0`, `d1`, ... in base64.
pub fn write_data(attributes: &mut BTreeMap<String, String>, bytes: &[u8]) {
    let text = STANDARD_NO_PAD.encode(bytes);
    for (part, from) in (0..text.len()).step_by(MAX_VALUE).enumerate() {
        let to = (from + MAX_VALUE).min(text.len());
        attributes.insert(format!("d{part}"), text[from..to].to_owned());
    }
}

/// Reverses [`write_data`].
///
/// # Errors
/// No data, or something else than base64.
pub fn read_data(attributes: &BTreeMap<String, String>) -> Result<Vec<u8>, Error> {
    let text: String =
        (0..MAX_PARTS).map_while(|part| attributes.get(&format!("d{part}"))).map(String::as_str).collect();
    if text.is_empty() {
        return Err(Error::Malformed("no data"));
    }
    STANDARD_NO_PAD.decode(text).map_err(|_| Error::Malformed("data is not base64"))
}

/// Short printable form of a digest, for an attribute.
pub fn print_digest(digest: Digest) -> String {
    STANDARD_NO_PAD.encode(digest.0)
}
