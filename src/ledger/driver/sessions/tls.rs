//! TLS 1.3 with raw public keys (RFC 7250): the keys that sign heads prove who is there. There are no certificates, no
//! tickets and no early data, so that each connection proves both keys anew.

use std::{
    collections::BTreeSet,
    io,
    sync::{Arc, Mutex, PoisonError},
};

use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, DistinguishedName, Error, OtherError, PeerIncompatible,
    ServerConfig, SignatureAlgorithm, SignatureScheme,
    client::{
        AlwaysResolvesClientRawPublicKeys, Resumption,
        danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
    },
    crypto::{CryptoProvider, aws_lc_rs},
    pki_types::{CertificateDer, ServerName, SubjectPublicKeyInfoDer, UnixTime},
    server::{
        AlwaysResolvesServerRawPublicKeys, NoServerSessionStorage,
        danger::{ClientCertVerified, ClientCertVerifier},
    },
    sign::{CertifiedKey, Signer, SigningKey as TlsKey},
    version::TLS13,
};
use tokio_rustls::{TlsAcceptor, TlsConnector, TlsStream};

use super::network::Wire;
use model::{PublicKey, SigningKey};

/// Another protocol on this port is refused.
const PROTOCOL: &[u8] = b"cloudmap-mcs-stream/1";
/// What is before an Ed25519 key in a SubjectPublicKeyInfo (RFC 8410).
const PREFIX: [u8; 12] = [0x30, 0x2a, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x03, 0x21, 0x00];

/// The keys that may connect.
pub(super) type Known = Arc<Mutex<BTreeSet<PublicKey>>>;

/// A connection whose keys are verified.
pub(super) type Secured = TlsStream<Box<dyn Wire>>;

/// Both sides of TLS, with the key of this cluster.
pub(super) struct Tls {
    provider: Arc<CryptoProvider>,
    own: Arc<CertifiedKey>,
    acceptor: TlsAcceptor,
}

impl Tls {
    /// Accepts the keys in `known`.
    pub(super) fn new(key: &SigningKey, known: Known) -> Result<Self, Error> {
        let provider = Arc::new(aws_lc_rs::default_provider());
        let public = CertificateDer::from(encode(&key.public()));
        let own = Arc::new(CertifiedKey::new(vec![public], Arc::new(Own(key.clone()))));
        let mut server = ServerConfig::builder_with_provider(Arc::clone(&provider))
            .with_protocol_versions(&[&TLS13])?
            .with_client_cert_verifier(Arc::new(Among(known)))
            .with_cert_resolver(Arc::new(AlwaysResolvesServerRawPublicKeys::new(Arc::clone(&own))));
        server.alpn_protocols = vec![PROTOCOL.to_vec()];
        // A resumed session would skip the verification.
        server.send_tls13_tickets = 0;
        server.session_storage = Arc::new(NoServerSessionStorage {});
        server.max_early_data_size = 0;
        Ok(Self { provider, own, acceptor: TlsAcceptor::from(Arc::new(server)) })
    }

    /// Accepts a connection of a cluster whose key is known.
    pub(super) async fn accept(&self, wire: Box<dyn Wire>) -> io::Result<(Secured, PublicKey)> {
        let stream = self.acceptor.accept(wire).await?;
        let connection = stream.get_ref().1;
        let key = connection.peer_certificates().and_then(|chain| decode(chain.first()?));
        // A client that names no protocol at all is not refused by TLS.
        let key = key.filter(|_| connection.alpn_protocol() == Some(PROTOCOL));
        let key = key.ok_or_else(|| io::Error::other("it speaks another protocol"))?;
        Ok((stream.into(), key))
    }

    /// Connects with whoever has `key`, and nobody else.
    pub(super) async fn connect(&self, wire: Box<dyn Wire>, key: PublicKey) -> io::Result<Secured> {
        let mut client = ClientConfig::builder_with_provider(Arc::clone(&self.provider))
            .with_protocol_versions(&[&TLS13])
            .map_err(io::Error::other)?
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(Exactly(key)))
            .with_client_cert_resolver(Arc::new(AlwaysResolvesClientRawPublicKeys::new(Arc::clone(&self.own))));
        client.alpn_protocols = vec![PROTOCOL.to_vec()];
        client.resumption = Resumption::disabled();
        client.enable_sni = false;
        let name = ServerName::try_from("cloudmap-mcs").map_err(io::Error::other)?;
        let stream = TlsConnector::from(Arc::new(client)).connect(name, wire).await?;
        Ok(stream.into())
    }
}

fn encode(key: &PublicKey) -> Vec<u8> {
    [PREFIX.as_slice(), key.as_ref()].concat()
}

fn decode(key: &CertificateDer<'_>) -> Option<PublicKey> {
    let bytes = key.strip_prefix(PREFIX.as_slice())?;
    Some(PublicKey::from_bytes(bytes.try_into().ok()?))
}

/// The key of this cluster, as TLS uses it.
#[derive(Debug, Clone)]
struct Own(SigningKey);

impl TlsKey for Own {
    fn choose_scheme(&self, offered: &[SignatureScheme]) -> Option<Box<dyn Signer>> {
        offered.contains(&SignatureScheme::ED25519).then(|| Box::new(self.clone()) as _)
    }

    fn public_key(&self) -> Option<SubjectPublicKeyInfoDer<'_>> {
        Some(encode(&self.0.public()).into())
    }

    fn algorithm(&self) -> SignatureAlgorithm {
        SignatureAlgorithm::ED25519
    }
}

impl Signer for Own {
    fn sign(&self, message: &[u8]) -> Result<Vec<u8>, Error> {
        Ok(self.0.sign(message).to_vec())
    }

    fn scheme(&self) -> SignatureScheme {
        SignatureScheme::ED25519
    }
}

/// Whether the other side has the private half of its key.
fn has_key(
    message: &[u8],
    key: &CertificateDer<'_>,
    signed: &DigitallySignedStruct,
) -> Result<HandshakeSignatureValid, Error> {
    let valid = signed.scheme == SignatureScheme::ED25519
        && decode(key).is_some_and(|key| key.verifies(message, signed.signature()));
    if valid {
        Ok(HandshakeSignatureValid::assertion())
    } else {
        Err(Error::InvalidCertificate(CertificateError::BadSignature))
    }
}

const fn old_version() -> Error {
    Error::PeerIncompatible(PeerIncompatible::Tls12NotOfferedOrEnabled)
}

const fn unknown() -> Error {
    Error::InvalidCertificate(CertificateError::ApplicationVerificationFailure)
}

/// Whether a connection failed because another key answers than the one that was dialled.
pub(super) fn is_unknown(error: &io::Error) -> bool {
    error.get_ref().and_then(|error| error.downcast_ref::<Error>()) == Some(&unknown())
}

/// The key of a client that may not connect. That it owns the key is not proved.
#[derive(Debug, thiserror::Error)]
#[error("the key {0} is of no live cluster")]
struct Refused(PublicKey);

/// The key with which somebody wanted to connect, if the connection failed because of it.
pub(super) fn refused_key(error: &io::Error) -> Option<PublicKey> {
    match error.get_ref()?.downcast_ref()? {
        Error::InvalidCertificate(CertificateError::Other(OtherError(why))) => {
            why.downcast_ref().map(|Refused(key)| *key)
        }
        _ => None,
    }
}

/// The key of the cluster that is dialled: another member may have its pod's address by now.
#[derive(Debug)]
struct Exactly(PublicKey);

impl ServerCertVerifier for Exactly {
    fn verify_server_cert(
        &self,
        key: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _name: &ServerName<'_>,
        _ocsp: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        if decode(key) == Some(self.0) { Ok(ServerCertVerified::assertion()) } else { Err(unknown()) }
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _key: &CertificateDer<'_>,
        _signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Err(old_version())
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        key: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        has_key(message, key, signed)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        vec![SignatureScheme::ED25519]
    }

    fn requires_raw_public_keys(&self) -> bool {
        true
    }
}

/// The keys of live clusters.
#[derive(Debug)]
struct Among(Known);

impl ClientCertVerifier for Among {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        key: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        let known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match decode(key) {
            Some(key) if known.contains(&key) => Ok(ClientCertVerified::assertion()),
            Some(key) => Err(CertificateError::Other(OtherError(Arc::new(Refused(key)))).into()),
            None => Err(CertificateError::BadEncoding.into()),
        }
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _key: &CertificateDer<'_>,
        _signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Err(old_version())
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        key: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        has_key(message, key, signed)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        vec![SignatureScheme::ED25519]
    }

    fn requires_raw_public_keys(&self) -> bool {
        true
    }
}
