//! What leaders say to each other, and its bytes.

use std::{collections::BTreeSet, sync::Arc};

use prost::Message as _;

use crate::{
    codec::Error,
    hash::{BUCKETS, StateHash, Summary},
    head::Change,
    wire,
};

/// Maximum size of an encoded message in bytes.
pub const MAX_FRAME: usize = 64 * 1024;
/// Keys and values of a message in bytes, so that it stays below [`MAX_FRAME`] with one more of the largest pairs.
pub(super) const FULL_ENOUGH: usize = 48 * 1024;

/// Who speaks in a session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hello {
    /// ClusterSet id.
    pub clusterset: Arc<str>,
    /// Cluster id.
    pub cluster: Arc<str>,
    /// UID of the namespace kube-system.
    pub uid: Arc<str>,
    /// The epoch of the leader.
    pub epoch: u64,
    /// Its random number.
    pub nonce: u64,
}

/// A message between two leaders.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Message {
    /// The first message of both sides.
    Hello(Hello),
    /// The receiver should say its states from now on.
    Subscribe {
        /// What the sender has of them already.
        buckets: Vec<(u16, StateHash)>,
    },
    /// All pairs of these buckets go. The ones that there are now follow as changes.
    Replace {
        /// The buckets.
        buckets: Vec<u16>,
    },
    /// Changes to the last state. They are whole with the last of these messages.
    Changes {
        /// The changes.
        changes: Vec<Change>,
        /// The state that all of them lead to, in the last message.
        end: Option<Summary>,
    },
    /// The sender is there.
    Alive,
}

impl Message {
    /// The bytes of the message.
    pub fn encode(&self) -> Vec<u8> {
        let mut frame = wire::Frame::default();
        match self {
            Self::Hello(Hello { clusterset, cluster, uid, epoch, nonce }) => {
                let [clusterset, cluster, uid] = [clusterset, cluster, uid].map(ToString::to_string);
                frame.hello = Some(wire::Hello { clusterset, cluster, uid, epoch: *epoch, nonce: *nonce });
            }
            Self::Subscribe { buckets } => {
                let hashes = buckets.iter().flat_map(|(_, hash)| hash.0).collect();
                let buckets = buckets.iter().map(|(number, _)| u32::from(*number)).collect();
                frame.subscribe = Some(wire::Subscribe { buckets, hashes });
            }
            Self::Replace { buckets } => {
                frame.replace = Some(wire::Replace { buckets: buckets.iter().copied().map(u32::from).collect() });
            }
            Self::Changes { changes, end } => {
                let pair = |(key, value): &Change| wire::Pair {
                    key: key.to_string(),
                    value: value.as_ref().map(|value| value.to_vec()),
                };
                let pairs = changes.iter().map(pair).collect();
                frame.changes = Some(wire::Changes { pairs, end: end.map(Summary::to_wire) });
            }
            Self::Alive => {}
        }
        frame.encode_to_vec()
    }

    /// Reads what [`Self::encode`] wrote.
    ///
    /// # Errors
    /// More than [`MAX_FRAME`] bytes, or anything that no leader says.
    pub fn decode(bytes: &[u8]) -> Result<Self, Error> {
        if bytes.len() > MAX_FRAME {
            return Err(Error::TooLarge);
        }
        let wire::Frame { hello, subscribe, replace, changes } = wire::Frame::decode(bytes)?;
        match (hello, subscribe, replace, changes) {
            (Some(wire::Hello { clusterset, cluster, uid, epoch, nonce }), None, None, None) => {
                let [clusterset, cluster, uid] = [clusterset, cluster, uid].map(Into::into);
                Ok(Self::Hello(Hello { clusterset, cluster, uid, epoch, nonce }))
            }
            (None, Some(wire::Subscribe { buckets, hashes }), None, None) => {
                let numbers = read_buckets(&buckets)?;
                if hashes.len() != numbers.len() * 32 {
                    return Err(Error::Malformed("a bucket without a hash"));
                }
                let hashes = hashes.chunks(32).map(StateHash::read).collect::<Result<Vec<_>, _>>()?;
                Ok(Self::Subscribe { buckets: numbers.into_iter().zip(hashes).collect() })
            }
            (None, None, Some(wire::Replace { buckets }), None) => {
                Ok(Self::Replace { buckets: read_buckets(&buckets)? })
            }
            (None, None, None, Some(wire::Changes { pairs, end })) => {
                let changes = pairs.into_iter().map(|pair| (pair.key.into(), pair.value.map(Into::into))).collect();
                Ok(Self::Changes { changes, end: end.map(Summary::read).transpose()? })
            }
            (None, None, None, None) => Ok(Self::Alive),
            _ => Err(Error::Malformed("more than one message in a frame")),
        }
    }
}

/// Each bucket once: for each that is named, the receiver looks through all of its keys.
fn read_buckets(buckets: &[u32]) -> Result<Vec<u16>, Error> {
    let read = |number: &u32| u16::try_from(*number).ok().filter(|number| *number < BUCKETS);
    let numbers: Vec<u16> =
        buckets.iter().map(read).collect::<Option<_>>().ok_or(Error::Malformed("there is no such bucket"))?;
    if numbers.iter().collect::<BTreeSet<_>>().len() < numbers.len() {
        return Err(Error::Malformed("a bucket is named twice"));
    }
    Ok(numbers)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{hash::Hashes, limits::Limits, record::Version};

    #[test]
    fn messages_survive_their_bytes_and_nothing_else_is_one() {
        let hashes = Hashes { state: StateHash([1; 32]), claims: StateHash([2; 32]) };
        let end = Some(Summary { version: Version { epoch: 1, nonce: 2, n: 3 }, hashes });
        let names = ["prod", "blue", "uid"].map(Arc::<str>::from);
        let [clusterset, cluster, uid] = names;
        let changes = vec![("ns/web".into(), Some([7; 3].into())), ("ns/api".into(), None)];
        for message in [
            Message::Hello(Hello { clusterset, cluster, uid, epoch: 1, nonce: u64::MAX }),
            Message::Subscribe { buckets: (0..BUCKETS).map(|number| (number, StateHash([7; 32]))).collect() },
            Message::Replace { buckets: (0..BUCKETS).collect() },
            Message::Changes { changes, end },
            Message::Changes { changes: Vec::new(), end: None },
            Message::Alive,
        ] {
            let bytes = message.encode();
            assert!(bytes.len() <= MAX_FRAME);
            assert_eq!(Message::decode(&bytes), Ok(message));
        }
        assert!(Message::decode(&vec![0; MAX_FRAME + 1]).is_err());
        assert!(Message::decode(&[255; 7]).is_err());
        let beyond = wire::Frame { replace: Some(wire::Replace { buckets: vec![1_024] }), ..wire::Frame::default() };
        assert!(Message::decode(&beyond.encode_to_vec()).is_err());
    }

    /// A frame has room for 65,536 of them, and a state may have as many keys in one bucket.
    #[test]
    fn a_message_that_names_a_bucket_twice_is_refused() {
        let replace = Message::Replace { buckets: vec![7, 8, 7] };
        let subscribe = Message::Subscribe { buckets: [7, 7].map(|number| (number, StateHash([1; 32]))).into() };
        for message in [replace, subscribe] {
            assert_eq!(Message::decode(&message.encode()), Err(Error::Malformed("a bucket is named twice")));
        }
    }

    #[test]
    fn a_message_of_changes_is_never_too_large() {
        let limits = Limits::default();
        let pair = |n: usize| (format!("{n:0>400}").into(), Some(vec![7; limits.value_bytes].into()));
        let count = FULL_ENOUGH.div_ceil(limits.value_bytes + 400) + 1;
        let message = Message::Changes { changes: (0..count).map(pair).collect(), end: Some(Summary::default()) };
        assert!(message.encode().len() <= MAX_FRAME);
    }
}
