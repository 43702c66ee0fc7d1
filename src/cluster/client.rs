//! The connection to the API server.

use std::{path::PathBuf, time::Duration};

use kube::{
    Client, Config,
    config::{KubeConfigOptions, Kubeconfig},
};

/// Which cluster to talk to. By default: the one of the environment's kubeconfig, else the one that this pod runs in.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Options {
    pub kubeconfig: Option<PathBuf>,
    pub context: Option<String>,
}

/// Why there is no connection.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("failed to read the kubeconfig")]
    Kubeconfig(#[source] Box<kube::config::KubeconfigError>),
    #[error("failed to find a cluster: neither a kubeconfig nor the service account of a pod can be used")]
    Infer(#[source] Box<kube::config::InferConfigError>),
    #[error("failed to set up the client")]
    Client(#[source] Box<kube::Error>),
}

/// A client, and the namespace that this process runs in (in a pod), or that the kubeconfig names.
#[derive(Clone)]
pub struct Connection {
    pub client: Client,
    pub namespace: String,
}

impl std::fmt::Debug for Connection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Connection").field("namespace", &self.namespace).finish_non_exhaustive()
    }
}

/// Prepares a client; does not talk to the API server yet.
pub async fn connect(options: &Options) -> Result<Connection, Error> {
    let mut config = configuration(options).await?;
    config.connect_timeout = Some(Duration::from_secs(5));
    config.write_timeout = Some(Duration::from_secs(10));
    // Watches are quiet for minutes. They notice dead connections by themselves, and every other call has a deadline.
    config.read_timeout = None;
    // kube would repeat what is answered by 429, 503 or 504 up to 15 times, for minutes, and say nothing of it. Whoever
    // calls has a deadline, and a back-off or a queue of its own.
    config.default_retry = false;
    let namespace = config.default_namespace.clone();
    let client = Client::try_from(config).map_err(|error| Error::Client(Box::new(error)))?;
    Ok(Connection { client, namespace })
}

async fn configuration(options: &Options) -> Result<Config, Error> {
    let Options { kubeconfig, context } = options;
    if kubeconfig.is_none() && context.is_none() {
        return Config::infer().await.map_err(|error| Error::Infer(Box::new(error)));
    }
    let read = match kubeconfig {
        Some(path) => Kubeconfig::read_from(path),
        None => Kubeconfig::read(),
    };
    let failed = |error| Error::Kubeconfig(Box::new(error));
    let selection = KubeConfigOptions { context: context.clone(), ..KubeConfigOptions::default() };
    Config::from_custom_kubeconfig(read.map_err(failed)?, &selection).await.map_err(failed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_missing_kubeconfig_is_named() {
        let options = Options { kubeconfig: Some("/nonexistent/kubeconfig".into()), context: None };
        let error = connect(&options).await.unwrap_err();
        assert!(std::error::Error::source(&error).unwrap().to_string().contains("/nonexistent/kubeconfig"));
    }
}
