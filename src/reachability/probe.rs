//! The task that connects to endpoints, one round after the other.

use std::{collections::BTreeSet, io, net::SocketAddr, sync::Arc, time::Duration};

use async_trait::async_trait;
use futures::future::join_all;
use tokio::{net::TcpStream, time::timeout};

use super::agenda::{Agenda, Round};
use base::inquiry::Inquiry;

/// How long an answer may take.
const PATIENCE: Duration = Duration::from_secs(2);

/// The task.
pub type Prober = Inquiry<Agenda>;

/// Where connections are made.
#[async_trait]
pub trait Connect: Send + Sync {
    /// Whether a machine answers at an address: it takes a TCP connection, or refuses it. Nothing is sent over the connection.
    /// It says no after 2 s at the latest.
    async fn answers(&self, at: SocketAddr) -> bool;
}

/// The network of this process.
#[derive(Debug)]
pub struct Tcp;

#[async_trait]
impl Connect for Tcp {
    async fn answers(&self, at: SocketAddr) -> bool {
        match timeout(PATIENCE, TcpStream::connect(at)).await {
            Ok(Ok(_)) => true,
            // Who refuses is there.
            Ok(Err(error)) => error.kind() == io::ErrorKind::ConnectionRefused,
            Err(_) => false,
        }
    }
}

/// Starts the task.
pub fn spawn(network: Arc<dyn Connect>) -> Prober {
    Inquiry::start(move |(): (), round: Arc<Round>| {
        let network = Arc::clone(&network);
        async move {
            let tries = round.addresses().map(async |at| network.answers(at).await.then_some(at));
            let answered: BTreeSet<SocketAddr> = join_all(tries).await.into_iter().flatten().collect();
            ((), round, answered)
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn who_refuses_is_there_and_who_cannot_be_reached_is_not() {
        let listener = tokio::net::TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        assert!(Tcp.answers(listener.local_addr().unwrap()).await);
        // Kept, or another test may get the port and listen.
        let kept = tokio::net::TcpSocket::new_v4().unwrap();
        kept.bind(SocketAddr::from(([127, 0, 0, 1], 0))).unwrap();
        assert!(Tcp.answers(kept.local_addr().unwrap()).await);
        assert!(!Tcp.answers(SocketAddr::from(([255, 255, 255, 255], 80))).await);
    }
}
