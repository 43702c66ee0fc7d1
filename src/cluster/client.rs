//! The connection to the API server.

use std::{error::Error as _, io, path::PathBuf, time::Duration};

use axum::{
    BoxError,
    body::{Body, Bytes, HttpBody},
    http::{Response, header},
};
use kube::{
    Client, Config,
    client::{ClientBuilder, DynBody},
    config::{KubeConfigOptions, Kubeconfig, KubeconfigError},
};
use serde_json::json;
use tower::util::MapResponseLayer;

/// Which cluster to connect to. The default is the one of the environment's kubeconfig, else the one in which this pod
/// runs.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Options {
    /// Kubeconfig file.
    pub kubeconfig: Option<PathBuf>,
    /// Context of the kubeconfig.
    pub context: Option<String>,
}

/// There is no connection. The texts have the cause, once, and the remedy: the errors of kube repeat their sources.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The kubeconfig cannot be used.
    #[error("{0}")]
    Kubeconfig(String),
    /// There is neither a kubeconfig nor a service account.
    #[error("{0}")]
    Nowhere(String),
    /// The client cannot be created.
    #[error("failed to set up the client")]
    Client(#[source] Box<kube::Error>),
}

/// A client and its default namespace.
#[derive(Clone)]
pub struct Connection {
    /// The client.
    pub client: Client,
    /// The namespace of this pod, or of the kubeconfig's context.
    pub namespace: String,
}

impl std::fmt::Debug for Connection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Connection").field("namespace", &self.namespace).finish_non_exhaustive()
    }
}

/// Prepares a client. Does not connect to the API server yet.
pub async fn connect(options: &Options) -> Result<Connection, Error> {
    let mut config = configuration(options).await?;
    config.connect_timeout = Some(Duration::from_secs(5));
    config.write_timeout = Some(Duration::from_secs(10));
    // Watches are silent for minutes. They notice dead connections themselves, and every other call has a deadline.
    config.read_timeout = None;
    // By default kube would silently repeat a request that is answered with 429, 503 or 504, up to 15 times and for
    // minutes. Here every caller has a deadline and its own back-off or queue.
    config.default_retry = false;
    let namespace = config.default_namespace.clone();
    let client = ClientBuilder::try_from(config).map_err(|error| Error::Client(Box::new(error)))?;
    let client = client.with_layer(&MapResponseLayer::new(with_retry_after::<Box<DynBody>>)).build();
    Ok(Connection { client, namespace })
}

/// Copies the seconds in the header `Retry-After` into a `Status`: an overloaded API server sends plain text, and kube
/// drops the headers.
fn with_retry_after<B>(response: Response<B>) -> Response<Body>
where
    B: HttpBody<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    let headers = response.headers();
    let after = headers.get(header::RETRY_AFTER).and_then(|value| value.to_str().ok()?.parse::<u32>().ok());
    let is_json =
        headers.get(header::CONTENT_TYPE).is_some_and(|kind| kind.as_bytes().starts_with(b"application/json"));
    let code = response.status();
    match after {
        Some(after) if !is_json && (code.is_client_error() || code.is_server_error()) => response.map(|_| {
            let message = format!("{code}: the API server asks to wait for {after} s");
            let status = json!({
                "kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code.as_u16(), "message": message,
                "reason": code.canonical_reason().unwrap_or_default(), "details": {"retryAfterSeconds": after},
            });
            status.to_string().into()
        }),
        _ => response.map(Body::new),
    }
}

async fn configuration(options: &Options) -> Result<Config, Error> {
    let Options { kubeconfig, context } = options;
    if kubeconfig.is_none() && context.is_none() {
        return Config::infer().await.map_err(|error| {
            let cause = error.source().and_then(|cause| cause.downcast_ref::<KubeconfigError>());
            let cause = cause.map_or_else(|| error.to_string(), |cause| no_kubeconfig(cause, &[]));
            // In a pod, users expect the service account of the pod.
            let in_pod = std::env::var_os("KUBERNETES_SERVICE_HOST").and_then(|_| Config::incluster().err());
            Error::Nowhere(match in_pod {
                Some(why) => format!(
                    "the service account of this pod cannot be used: {why}. Let the pod mount its token \
                     (automountServiceAccountToken), or name a kubeconfig by --kubeconfig"
                ),
                None => cause,
            })
        });
    }
    let read = match kubeconfig {
        Some(path) => Kubeconfig::read_from(path),
        None => Kubeconfig::read(),
    };
    let read = read.map_err(|error| Error::Kubeconfig(no_kubeconfig(&error, &[])))?;
    let contexts: Vec<_> = read.contexts.iter().map(|context| context.name.clone()).collect();
    let selection = KubeConfigOptions { context: context.clone(), ..KubeConfigOptions::default() };
    let config = Config::from_custom_kubeconfig(read, &selection).await;
    config.map_err(|error| Error::Kubeconfig(no_kubeconfig(&error, &contexts)))
}

/// Why a kubeconfig cannot be used, with the remedy. `contexts` are those that it has.
fn no_kubeconfig(error: &KubeconfigError, contexts: &[String]) -> String {
    const NAME_ONE: &str = "name a kubeconfig by --kubeconfig or $KUBECONFIG, or make one, as with \
                            `aws eks update-kubeconfig --name CLUSTER`";
    let listed = match contexts {
        [] => "`kubectl config get-contexts` lists those that exist".to_owned(),
        all => format!("those that exist are {}", all.join(", ")),
    };
    match error {
        KubeconfigError::ReadConfig(why, path) if why.kind() == io::ErrorKind::NotFound => {
            format!("there is no kubeconfig {}: {NAME_ONE}", path.display())
        }
        KubeconfigError::ReadConfig(why, path) => {
            format!("the kubeconfig {} cannot be read: {why}. Repair that, or {NAME_ONE}", path.display())
        }
        KubeconfigError::FindPath => format!("there is no kubeconfig, because there is no home directory: {NAME_ONE}"),
        KubeconfigError::CurrentContextNotSet => {
            format!("the kubeconfig has no current context: name one by --context; {listed}")
        }
        KubeconfigError::LoadContext(name) => format!("the kubeconfig has no context {name:?}; {listed}"),
        // Its text has its sources.
        other => format!("the kubeconfig cannot be used: {other}. Repair it, or {NAME_ONE}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How the client interprets the response of an overloaded server.
    async fn understood(code: u16, kind: &str, after: Option<&str>, body: &'static str) -> (u32, String) {
        let headers = after.map(|after| (header::RETRY_AFTER, after));
        let response = headers
            .into_iter()
            .chain([(header::CONTENT_TYPE, kind)])
            .fold(Response::builder().status(code), |response, (name, value)| response.header(name, value));
        let shown = with_retry_after(response.body(Body::from(body)).unwrap());
        let bytes = axum::body::to_bytes(shown.into_body(), usize::MAX).await.unwrap();
        let text = String::from_utf8(bytes.to_vec()).unwrap();
        let status = serde_json::from_str::<kube::core::Status>(&text).unwrap_or_default();
        (status.details.map_or(0, |details| details.retry_after_seconds), text)
    }

    #[tokio::test]
    async fn the_response_of_an_overloaded_server_is_understood() {
        let (after, text) = understood(429, "text/plain; charset=utf-8", Some("7"), "Too many requests").await;
        assert!(after == 7 && text.contains("asks to wait for 7 s"), "{text}");
        for (code, kind, header) in
            [(429, "text/plain", None), (200, "text/plain", Some("7")), (503, "application/json", Some("7"))]
        {
            assert_eq!(understood(code, kind, header, "{}").await.1, "{}", "left as it is");
        }
    }

    #[tokio::test]
    async fn the_error_names_a_missing_kubeconfig() {
        let options = Options { kubeconfig: Some("/nonexistent/kubeconfig".into()), context: None };
        let error = format!("{:#}", anyhow::Error::from(connect(&options).await.unwrap_err()));
        assert!(error.contains("there is no kubeconfig /nonexistent/kubeconfig"), "{error}");
        assert!(error.contains("--kubeconfig") && error.matches("/nonexistent").count() == 1, "{error}");
    }

    #[tokio::test]
    async fn an_unknown_context_lists_those_that_exist() {
        let file = std::env::temp_dir().join(format!("cloudmap-mcs-kubeconfig-{}", std::process::id()));
        let kubeconfig = r#"{"apiVersion": "v1", "kind": "Config", "clusters": [], "users": [], "contexts": [
            {"name": "blue", "context": {"cluster": "c", "user": "u"}},
            {"name": "green", "context": {"cluster": "c", "user": "u"}}]}"#;
        std::fs::write(&file, kubeconfig).unwrap();
        let connected = async |context: Option<&str>| {
            let options = Options { kubeconfig: Some(file.clone()), context: context.map(str::to_owned) };
            format!("{:#}", anyhow::Error::from(connect(&options).await.unwrap_err()))
        };
        let (unknown, none) = (connected(Some("geen")).await, connected(None).await);
        std::fs::remove_file(&file).unwrap();
        assert_eq!(unknown, "the kubeconfig has no context \"geen\"; those that exist are blue, green");
        assert!(none.contains("no current context: name one by --context; those that exist are blue, green"), "{none}");
    }
}
