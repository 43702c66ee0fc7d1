//! Queries a pod of CoreDNS: over TCP through the API server, because the pod cannot be reached from outside the cluster.

use std::time::Duration;

use async_trait::async_trait;
use k8s_openapi::api::core::v1::Pod;
use kube::{Api, Client};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    time::timeout,
};

/// How long a pod may take to answer, with the connection to it.
const PATIENCE: Duration = Duration::from_secs(5);

/// The type of a query.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u16)]
pub enum Kind {
    /// An IPv4 address.
    A = 1,
    /// A text.
    Txt = 16,
}

/// What DNS answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Answer {
    /// The response code: 0 is NOERROR, 2 SERVFAIL, 3 NXDOMAIN, 5 REFUSED.
    pub code: u8,
    /// How many records are in the answer.
    pub records: u16,
}

impl Answer {
    /// Whether it has a record of the queried type.
    pub fn is_good(self) -> bool {
        self.code == 0 && self.records > 0
    }
}

/// Queries pods for names.
#[async_trait]
pub trait Ask: Send + Sync {
    /// Asks the pod on a port.
    ///
    /// # Errors
    /// It cannot be asked, or does not answer. The text is for the user.
    async fn ask(&self, pod: &str, port: u16, name: &str, kind: Kind) -> Result<Answer, String>;
}

/// Asks through the API server. For this, the user needs `create` of `pods/portforward`.
#[derive(Debug)]
pub struct Forwarded {
    pods: Api<Pod>,
}

impl Forwarded {
    /// Asks pods of a namespace.
    pub fn new(client: &Client, namespace: &str) -> Self {
        Self { pods: Api::namespaced(client.clone(), namespace) }
    }
}

#[async_trait]
impl Ask for Forwarded {
    async fn ask(&self, pod: &str, port: u16, name: &str, kind: Kind) -> Result<Answer, String> {
        let exchange = async {
            let mut forwarder = self.pods.portforward(pod, &[port]).await.map_err(|error| error.to_string())?;
            let mut stream = forwarder.take_stream(port).ok_or("no connection")?;
            let query = query(name, kind);
            let length = u16::try_from(query.len()).unwrap_or(u16::MAX).to_be_bytes();
            stream.write_all(&[&length, &*query].concat()).await.map_err(|error| error.to_string())?;
            let mut header = [0; 14];
            stream.read_exact(&mut header).await.map_err(|_| "the connection ended without an answer".to_owned())?;
            Ok(answer(header))
        };
        timeout(PATIENCE, exchange).await.map_err(|_| format!("no answer within {} s", PATIENCE.as_secs()))?
    }
}

/// A message with one question, of the class IN (RFC 1035).
fn query(name: &str, kind: Kind) -> Vec<u8> {
    // Its number, the wish for recursion, one question and nothing else.
    let mut message = vec![0x6d, 0x63, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0];
    for label in name.trim_end_matches('.').split('.') {
        message.push(u8::try_from(label.len()).unwrap_or(u8::MAX));
        message.extend(label.as_bytes());
    }
    message.push(0);
    message.extend((kind as u16).to_be_bytes());
    message.extend(1_u16.to_be_bytes());
    message
}

/// The length of a message, and its header.
fn answer(header: [u8; 14]) -> Answer {
    Answer { code: header[5] & 0x0f, records: u16::from_be_bytes([header[8], header[9]]) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_question_and_its_answer_are_those_of_dns() {
        let expected = b"\x6d\x63\x01\x00\x00\x01\x00\x00\x00\x00\x00\x00\x0bdns-version\x01a\x00\x00\x10\x00\x01";
        assert_eq!(query("dns-version.a.", Kind::Txt), expected);
        let header = *b"\x00\x30\x6d\x63\x85\x80\x00\x01\x00\x02\x00\x00\x00\x00";
        assert_eq!(answer(header), Answer { code: 0, records: 2 });
        assert!(!answer(*b"\x00\x30\x6d\x63\x85\x83\x00\x01\x00\x00\x00\x01\x00\x00").is_good());
    }
}
