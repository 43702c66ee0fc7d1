//! Who may speak for a cluster: signed heads, and whose keys count (R9).
//!
//! A head has two more attributes: `k` is the public key of its cluster, `s` the signature over ClusterSet, Cloud Map
//! namespace, cluster id, cluster UID and stored bytes. Pages follow by their digests. The state machines see only which
//! key signed a head; signatures are made and verified where heads become instances and back.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    sync::Arc,
};

use base64::{Engine as _, engine::general_purpose::STANDARD_NO_PAD};

use super::{codec, head::Head, joining::Join, writer::Heads};
use cloudmap::{Attributes, Instance};
use model::{ClusterId, PublicKey, SigningKey};

/// Name of the Secret, in the controller's own namespace.
pub const SECRET: &str = "cloudmap-mcs-key";

/// Name of the ConfigMap, in the controller's own namespace: a cluster id, and its public keys.
pub const TRUSTED: &str = "cloudmap-mcs-trust";

/// The instance in `exports-0.<cluster id>` with the public key of the cluster. No page has this id, and no flush.
pub const KEY_INSTANCE: &str = "key";

/// The instance beside it with a copy of the cluster's head.
pub const COPY_INSTANCE: &str = "head";

const KEY: &str = "k";
const SIGNATURE: &str = "s";
/// Beside a key, the id of the service in which it is announced, so that others need not list services to find who created
/// it (R2). It is looked at before it counts.
pub(super) const SERVICE: &str = "i";

/// A cluster away for more rotations than this must be told its neighbour's key by a person.
const MAX_FORMER: usize = 12;

/// What the Secret contains.
#[derive(Clone, PartialEq, Eq)]
pub struct StoredKey {
    /// 32 random bytes, from which the key follows. They are never printed.
    pub seed: Vec<u8>,
    /// Former keys with their signatures, the newest first, as [`Rotation`] writes them.
    pub former: Vec<String>,
}

impl fmt::Debug for StoredKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "StoredKey(former: {})", self.former.len())
    }
}

/// Whom a cluster believes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, clap::ValueEnum)]
pub enum Mode {
    /// All who may write to the ledger. Nothing is signed.
    #[default]
    Open,
    /// The key with which a cluster was first accepted.
    Tofu,
    /// Only the keys in the ConfigMap `cloudmap-mcs-trust`.
    Pinned,
}

/// Whom this cluster believes, and its own keys.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Trust {
    /// The rule.
    pub mode: Mode,
    /// Whether a new cluster needs the word of an administrator. Only where heads are signed.
    pub join: Join,
    /// The current key of this cluster and the one before, which may have signed the last own head.
    pub own: Vec<PublicKey>,
    /// With [`Mode::Pinned`]: keys by cluster id.
    pub pinned: BTreeMap<Arc<str>, BTreeSet<PublicKey>>,
}

impl Trust {
    /// Whether a key still counts that the record has for this cluster: it was accepted before, perhaps in another mode.
    pub(super) fn still_counts(&self, cluster: &str, key: &PublicKey) -> bool {
        match self.mode {
            Mode::Open => false,
            Mode::Tofu => true,
            Mode::Pinned => self.pinned.get(cluster).is_some_and(|keys| keys.contains(key)),
        }
    }

    /// Whether new clusters need the word of an administrator.
    pub(super) fn demands_approval(&self) -> bool {
        self.mode != Mode::Open && self.join == Join::Approve
    }

    /// The heads without those with the UID of this cluster that it did not sign: neither writer nor reader may follow
    /// them. `None` if there are none. `unsigned` ones count while this cluster begins to sign.
    pub(super) fn without_forged(&self, heads: &Heads, uid: &str, unsigned: bool) -> Option<Heads> {
        if self.mode == Mode::Open {
            return None;
        }
        let foreign = |head: &&Arc<Head>| {
            *head.uid == *uid && head.signer.map_or(!unsigned, |signer| !self.own.contains(&signer))
        };
        let foreign: Vec<_> = heads
            .iter()
            .filter_map(|(id, head)| Some((id.clone(), head.as_ref().ok().filter(foreign)?.clone())))
            .collect();
        if foreign.is_empty() {
            return None;
        }
        let mut heads = heads.clone();
        heads.extend(foreign.into_iter().map(|(id, head)| (id, Err(codec::Error::Foreign(head)))));
        Some(heads)
    }
}

/// Reads the keys that this cluster was told: cluster ids, and one or more keys each, separated by white space.
///
/// # Errors
/// What is wrong, and in which entry: nothing counts then.
pub fn read_pinned(told: &BTreeMap<String, String>) -> Result<BTreeMap<Arc<str>, BTreeSet<PublicKey>>, String> {
    let entry = |(id, keys): (&String, &String)| {
        let wrong = |why: String| format!("the ConfigMap {TRUSTED} has a wrong entry {id:?}: {why}");
        id.parse::<ClusterId>().map_err(|error| wrong(error.to_string()))?;
        let keys = keys.split_whitespace().map(str::parse::<PublicKey>).collect::<Result<BTreeSet<_>, _>>();
        let keys = keys.map_err(|error| wrong(error.to_string()))?;
        if keys.is_empty() { Err(wrong("it has no key".to_owned())) } else { Ok((id.as_str().into(), keys)) }
    };
    told.iter().map(entry).collect()
}

/// The place in which a signature is valid. One from another ledger proves nothing here.
#[derive(Debug, Clone, Copy)]
pub struct Scope<'a> {
    /// ClusterSet id.
    pub clusterset: &'a str,
    /// Id of the ledger's Cloud Map namespace. Two accounts never have the same.
    pub namespace: &'a str,
}

/// What is signed: parts with their lengths, so that no two lists of parts are the same message.
fn message(context: &str, parts: &[&[u8]]) -> Vec<u8> {
    let mut message = Vec::new();
    for part in [context.as_bytes()].iter().chain(parts) {
        message.extend_from_slice(&(part.len() as u64).to_be_bytes());
        message.extend_from_slice(part);
    }
    message
}

fn head_message(scope: Scope<'_>, cluster: &str, uid: &str, bytes: &[u8]) -> Vec<u8> {
    let Scope { clusterset, namespace } = scope;
    let place = [clusterset, namespace, cluster, uid].map(str::as_bytes);
    message("cloudmap-mcs head", &[place.as_slice(), &[bytes]].concat())
}

fn rotation_message(uid: &str, successor: &PublicKey) -> Vec<u8> {
    message("cloudmap-mcs key rotation", &[uid.as_bytes(), successor.as_ref()])
}

/// The instance that contains `head`, signed.
pub fn sign(head: &Head, key: &SigningKey, scope: Scope<'_>) -> Instance {
    let mut instance = head.to_instance();
    // What was just written is read.
    let bytes = codec::read_data(&instance.attributes).unwrap_or_default();
    let signature = key.sign(&head_message(scope, &head.cluster, &head.uid, &bytes));
    instance.attributes.insert(KEY.to_owned(), key.public().to_string());
    instance.attributes.insert(SIGNATURE.to_owned(), STANDARD_NO_PAD.encode(signature));
    instance
}

/// The instance with a copy of a head that is signed, as [`sign`] made it.
pub fn copy(signed: Instance) -> Instance {
    let mut attributes = signed.attributes;
    attributes.insert("f".to_owned(), KEY_INSTANCE.to_owned());
    Instance { id: COPY_INSTANCE.into(), attributes }
}

/// The head of `cluster` in such a copy, and the key that signed it.
pub fn read_copy(instance: &Instance, cluster: &str, scope: Scope<'_>) -> Option<Head> {
    let head = Head::from_instance(&Instance { id: cluster.into(), ..instance.clone() }).ok()?;
    let signer = signer(&instance.attributes, &head, scope)?;
    Some(Head { signer: Some(signer), ..head })
}

/// The key that signed the head in `attributes`; `None` without a valid signature, which is like none at all. Whether
/// the key is the cluster's is another question.
pub fn signer(attributes: &Attributes, head: &Head, scope: Scope<'_>) -> Option<PublicKey> {
    let key: PublicKey = attributes.get(KEY)?.parse().ok()?;
    let signature = STANDARD_NO_PAD.decode(attributes.get(SIGNATURE)?).ok()?;
    let bytes = codec::read_data(attributes).ok()?;
    key.verifies(&head_message(scope, &head.cluster, &head.uid, &bytes), &signature).then_some(key)
}

/// The keys of this cluster, to sign with.
#[derive(Debug, Clone)]
pub struct Keys {
    /// The current one.
    pub current: SigningKey,
    /// Former keys, the newest first, each with its signature of the next key.
    pub former: Vec<Rotation>,
}

/// A former key, and its signature of its successor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rotation {
    /// The former key.
    pub key: PublicKey,
    /// Its signature.
    pub signature: [u8; 64],
}

impl Rotation {
    /// `former` says that it is replaced by `successor`, for the cluster with this UID.
    pub fn sign(former: &SigningKey, uid: &str, successor: &PublicKey) -> Self {
        Self { key: former.public(), signature: former.sign(&rotation_message(uid, successor)) }
    }

    /// As a text.
    pub fn encode(&self) -> String {
        STANDARD_NO_PAD.encode([self.key.as_ref(), self.signature.as_slice()].concat())
    }

    /// Reverses [`encode`](Self::encode).
    pub fn decode(text: &str) -> Option<Self> {
        let bytes = STANDARD_NO_PAD.decode(text).ok()?;
        let (key, signature) = bytes.split_first_chunk()?;
        Some(Self { key: PublicKey::from_bytes(*key), signature: signature.try_into().ok()? })
    }
}

impl Keys {
    /// The keys that are stored.
    ///
    /// # Errors
    /// What is wrong with them. The text contains no key.
    pub fn read(stored: &StoredKey) -> Result<Self, String> {
        let current = SigningKey::from_seed(&stored.seed).ok_or_else(|| {
            format!("the Secret {SECRET} must have 32 bytes in `seed`, and has {}", stored.seed.len())
        })?;
        let former = stored.former.iter().map(|text| Rotation::decode(text)).collect::<Option<_>>();
        let former =
            former.ok_or_else(|| format!("the Secret {SECRET} has something else than rotations in `former`"))?;
        Ok(Self { current, former })
    }

    /// What to store so that the key that follows from `seed` replaces the current one, which hands over to it.
    pub fn rotated(&self, uid: &str, seed: [u8; 32]) -> Option<StoredKey> {
        let next = SigningKey::from_seed(&seed)?;
        let handed = Rotation::sign(&self.current, uid, &next.public());
        let former = [&handed].into_iter().chain(&self.former).take(MAX_FORMER).map(Rotation::encode).collect();
        Some(StoredKey { seed: seed.to_vec(), former })
    }

    /// The keys whose heads are this cluster's. The one before the current one may have signed the last own head.
    pub fn own(&self) -> Vec<PublicKey> {
        [self.current.public()].into_iter().chain(self.former.first().map(|rotation| rotation.key)).collect()
    }

    /// The instance that announces the key.
    pub fn to_instance(&self) -> Instance {
        let mut attributes = Attributes::from([
            // Discovery asks for the instances of a flush; this is as if they were one.
            ("f".to_owned(), KEY_INSTANCE.to_owned()),
            (KEY.to_owned(), self.current.public().to_string()),
        ]);
        let former = self.former.iter().take(MAX_FORMER).enumerate();
        attributes.extend(former.map(|(n, rotation)| (format!("r{n}"), rotation.encode())));
        Instance { id: KEY_INSTANCE.into(), attributes }
    }
}

/// The key that a cluster announces in its own service, which only that cluster should be allowed to write.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Announced {
    /// The current key.
    pub key: PublicKey,
    /// Former keys that provably handed over to it, one after the other.
    pub former: Vec<PublicKey>,
}

impl Announced {
    /// Reads and verifies what the cluster with this UID announces.
    pub fn from_instance(instance: &Instance, uid: &str) -> Option<Self> {
        let key: PublicKey = instance.attributes.get(KEY)?.parse().ok()?;
        let (mut former, mut successor) = (Vec::new(), key);
        for n in 0..MAX_FORMER {
            let Some(rotation) = instance.attributes.get(&format!("r{n}")).and_then(|text| Rotation::decode(text))
            else {
                break;
            };
            if !rotation.key.verifies(&rotation_message(uid, &successor), &rotation.signature) {
                break;
            }
            former.push(rotation.key);
            successor = rotation.key;
        }
        Some(Self { key, former })
    }

    /// Whether `pinned` handed over to the current key.
    pub fn follows(&self, pinned: &PublicKey) -> bool {
        self.former.contains(pinned)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{fixtures::head, record::Position};

    const SCOPE: Scope<'_> = Scope { clusterset: "prod", namespace: "ns-1" };

    fn key(n: u8) -> SigningKey {
        SigningKey::from_seed(&[n; 32]).unwrap()
    }

    #[test]
    fn a_signature_holds_for_its_bytes_in_its_place_alone() {
        let instance = sign(&head(), &key(1), SCOPE);
        let read = Head::from_instance(&instance).unwrap();
        let by = |read: &Head, scope| signer(&instance.attributes, read, scope);
        assert_eq!(by(&read, SCOPE), Some(key(1).public()));
        assert_eq!(by(&read, Scope { clusterset: "test", ..SCOPE }), None);
        assert_eq!(by(&read, Scope { namespace: "ns-2", ..SCOPE }), None);
        // A boundary between two parts that moves is another message.
        assert_eq!(by(&read, Scope { clusterset: "prodn", namespace: "s-1" }), None);
        assert_eq!(by(&Head { cluster: "red".into(), ..read.clone() }, SCOPE), None);
        assert_eq!(by(&Head { uid: "uid-red".into(), ..read.clone() }, SCOPE), None);
        let other = Head { position: Position { epoch: 1, seq: 2 }, ..head() };
        let mut swapped = other.to_instance().attributes;
        for part in [KEY, SIGNATURE] {
            swapped.insert(part.to_owned(), instance.attributes[part].clone());
        }
        assert_eq!(signer(&swapped, &other, SCOPE), None);
        let mut claimed = instance.attributes.clone();
        claimed.insert(KEY.to_owned(), key(2).public().to_string());
        assert_eq!(signer(&claimed, &read, SCOPE), None);
        assert_eq!(signer(&head().to_instance().attributes, &read, SCOPE), None);
    }

    #[test]
    fn a_copy_says_what_the_head_says_and_fits_beside_the_key() {
        let instance = copy(sign(&head(), &key(1), SCOPE));
        assert!((&*instance.id, instance.attributes["f"].as_str()) == (COPY_INSTANCE, KEY_INSTANCE));
        assert!(crate::page::StoredPage::from_instance(&instance).is_err());
        let read = read_copy(&instance, "blue", SCOPE).unwrap();
        assert_eq!(read, Head { signer: Some(key(1).public()), ..head() });
        assert!(read_copy(&instance, "red", SCOPE).is_none());
        assert!(read_copy(&instance, "blue", Scope { namespace: "ns-2", ..SCOPE }).is_none());
    }

    #[test]
    fn a_new_key_is_followed_from_every_former_one_that_handed_over() {
        let handed = |from: u8, to: u8| Rotation::sign(&key(from), "uid-blue", &key(to).public());
        let keys = Keys { current: key(3), former: vec![handed(2, 3), handed(1, 2)] };
        let announced = Announced::from_instance(&keys.to_instance(), "uid-blue").unwrap();
        assert_eq!(announced.former, [key(2).public(), key(1).public()]);
        assert!(announced.follows(&key(1).public()) && !announced.follows(&key(9).public()));
        // Another cluster's rotation, and a link that somebody else signed, hand over nothing.
        assert!(Announced::from_instance(&keys.to_instance(), "uid-red").unwrap().former.is_empty());
        let forged = Rotation { key: key(2).public(), ..Rotation::sign(&key(9), "uid-blue", &key(9).public()) };
        let keys = Keys { current: key(9), former: vec![forged, handed(1, 2)] };
        assert!(Announced::from_instance(&keys.to_instance(), "uid-blue").unwrap().former.is_empty());
    }

    #[test]
    fn keys_that_are_told_are_read_whole_or_not_at_all() {
        let told = |text: &str| read_pinned(&BTreeMap::from([("blue".to_owned(), text.to_owned())]));
        let both = format!("{}\n{}\n", key(1).public(), key(2).public());
        assert_eq!(told(&both).unwrap()["blue"], [key(1).public(), key(2).public()].into());
        for wrong in ["", "abc", &format!("{} abc", key(1).public())] {
            assert!(told(wrong).unwrap_err().contains("blue"), "{wrong}");
        }
        assert!(read_pinned(&BTreeMap::from([("Blue_".to_owned(), both)])).unwrap_err().contains("Blue_"));
    }

    #[test]
    fn a_rotated_key_is_announced_with_the_one_that_handed_over() {
        let mut stored = StoredKey { seed: vec![0; 32], former: Vec::new() };
        for n in 1..40 {
            stored = Keys::read(&stored).unwrap().rotated("uid-blue", [n; 32]).unwrap();
        }
        let keys = Keys::read(&stored).unwrap();
        let announced = Announced::from_instance(&keys.to_instance(), "uid-blue").unwrap();
        assert_eq!((announced.key, announced.former.len()), (key(39).public(), MAX_FORMER));
        assert_eq!(keys.own(), [key(39).public(), key(38).public()]);
        assert!(Keys::read(&StoredKey { seed: vec![0; 31], former: Vec::new() }).is_err());
    }

    #[test]
    fn the_longest_announcement_fits_into_an_instance_and_is_no_page() {
        let handed = Rotation::sign(&key(1), "uid-blue", &key(1).public());
        let keys = Keys { current: key(1), former: vec![handed; 40] };
        let instance = keys.to_instance();
        let total: usize = instance.attributes.iter().map(|(key, value)| key.len() + value.len()).sum();
        assert!(instance.attributes.len() <= 30 && total <= 5_000, "{total}");
        assert!(crate::page::StoredPage::from_instance(&instance).is_err());
    }
}
