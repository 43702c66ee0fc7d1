//! Names as this process resolves them.

use std::{collections::BTreeSet, net::IpAddr, time::Duration};

use tokio::{net::lookup_host, time::timeout};

/// The addresses of a DNS name. With a dot at its end, no search domain is tried.
///
/// # Errors
/// There is none, or no answer within `patience`. The text is for the user.
pub async fn resolve(name: &str, patience: Duration) -> Result<BTreeSet<IpAddr>, String> {
    match timeout(patience, lookup_host((name, 0))).await {
        Err(_) => Err(format!("no answer within {} s", patience.as_secs())),
        Ok(Err(error)) => Err(error.to_string()),
        Ok(Ok(answers)) => Ok(answers.map(|address| address.ip()).collect()),
    }
}
