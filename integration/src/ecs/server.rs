//! A server that is one address of this process: hundreds of them are cheap.

use std::io;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use anyhow::{Context as _, Result};
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Handle;
use tokio::task::{AbortHandle, JoinSet};

/// Addresses that this machine has, one after the other: none is given twice. A whole range is there after
/// `ip route add local 10.200.128.0/17 dev lo`.
#[derive(Clone, Debug)]
pub struct Addresses(Arc<AtomicU32>);

impl Addresses {
    /// This one, and those after it.
    pub fn beginning_at(first: Ipv4Addr) -> Self {
        Self(Arc::new(AtomicU32::new(first.to_bits())))
    }

    pub fn take(&self) -> Ipv4Addr {
        Ipv4Addr::from_bits(self.0.fetch_add(1, Ordering::Relaxed))
    }
}

/// A server that answers each line with the same line. When it is dropped, its port is closed, and its connections end.
#[derive(Debug)]
pub struct Server(AbortHandle);

impl Server {
    /// Starts it on a runtime. `answer` has no line break.
    pub async fn start(runtime: &Handle, address: SocketAddrV4, answer: &'static str) -> Result<Self> {
        // Sockets belong to the runtime in which they are made.
        let bound = runtime.spawn(TcpListener::bind(address)).await?;
        let listener =
            bound.with_context(|| format!("failed to listen on {address}: has this machine the address?"))?;
        Ok(Self(runtime.spawn(serve(listener, answer)).abort_handle()))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.0.abort();
    }
}

async fn serve(listener: TcpListener, answer: &'static str) {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => {
                    connections.spawn(talk(stream, answer));
                }
                // Such as too many open files.
                Err(_) => tokio::time::sleep(Duration::from_millis(10)).await,
            },
            Some(_) = connections.join_next() => {}
        }
    }
}

async fn talk(mut stream: TcpStream, answer: &'static str) -> io::Result<()> {
    let (reader, mut writer) = stream.split();
    let mut lines = BufReader::new(reader).lines();
    while lines.next_line().await?.is_some() {
        writer.write_all(format!("{answer}\n").as_bytes()).await?;
    }
    Ok(())
}
