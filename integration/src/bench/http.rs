//! A client of plain HTTP, for the emulator's control interface and for metrics pages.

use anyhow::Context as _;
use hyper::{Request, Uri};
use kube::{Client, Config};

/// A client for an address such as `http://127.0.0.1:8080`. Kubernetes' client serves: it wants nothing but HTTP.
pub(super) fn client(address: &str) -> anyhow::Result<Client> {
    let uri: Uri = address.parse().with_context(|| format!("{address:?} is not a URL"))?;
    Client::try_from(Config::new(uri)).with_context(|| format!("failed to make a client for {address}"))
}

/// A page in text.
pub(super) async fn text(client: &Client, path: &str) -> anyhow::Result<String> {
    let request = Request::get(path).body(Vec::new())?;
    client.request_text(request).await.with_context(|| format!("failed to read {path}"))
}
