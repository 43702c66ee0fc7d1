//! Connections without encryption: TCP, or what a simulation has in its place.

use std::{
    fmt::Debug,
    io,
    net::{IpAddr, Ipv6Addr, SocketAddr},
    sync::Arc,
};

use async_trait::async_trait;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpListener, TcpStream},
};

/// Bytes in both directions.
pub trait Wire: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Wire for T {}

/// How leaders reach each other.
#[async_trait]
pub trait Network: Debug + Send + Sync + 'static {
    /// Where others reach this leader.
    fn addresses(&self) -> Arc<[SocketAddr]>;

    /// Begins to listen there.
    async fn listen(&self) -> io::Result<Box<dyn Listener>>;

    /// Connects to another leader.
    async fn connect(&self, to: SocketAddr) -> io::Result<Box<dyn Wire>>;
}

/// Where others connect. Dropping it stops listening.
#[async_trait]
pub trait Listener: Send {
    /// The next connection, and the address from which it comes.
    async fn accept(&mut self) -> io::Result<(Box<dyn Wire>, IpAddr)>;
}

/// Plain TCP; the sessions bring TLS.
#[derive(Debug)]
pub struct Tcp {
    addresses: Arc<[SocketAddr]>,
    port: u16,
}

impl Tcp {
    /// Listens on this port of all addresses of the pod, of which others know these.
    pub fn new(addresses: &[IpAddr], port: u16) -> Self {
        Self { addresses: addresses.iter().map(|address| SocketAddr::new(*address, port)).collect(), port }
    }
}

#[async_trait]
impl Network for Tcp {
    fn addresses(&self) -> Arc<[SocketAddr]> {
        self.addresses.clone()
    }

    async fn listen(&self) -> io::Result<Box<dyn Listener>> {
        // Where there is no IPv6, `::` cannot be bound.
        let both = TcpListener::bind((Ipv6Addr::UNSPECIFIED, self.port)).await;
        let listener = match both {
            Ok(listener) => listener,
            Err(_) => TcpListener::bind((std::net::Ipv4Addr::UNSPECIFIED, self.port)).await?,
        };
        Ok(Box::new(listener))
    }

    async fn connect(&self, to: SocketAddr) -> io::Result<Box<dyn Wire>> {
        let stream = TcpStream::connect(to).await?;
        // A message is whole when it is flushed.
        stream.set_nodelay(true)?;
        Ok(Box::new(stream))
    }
}

#[async_trait]
impl Listener for TcpListener {
    async fn accept(&mut self) -> io::Result<(Box<dyn Wire>, IpAddr)> {
        let (stream, from) = Self::accept(self).await?;
        stream.set_nodelay(true)?;
        Ok((Box::new(stream), from.ip()))
    }
}
