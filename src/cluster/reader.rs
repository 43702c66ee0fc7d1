//! Reads for commands: each has a deadline, and each failure says whether somebody has to allow something, so that one
//! that fails ends no other.

use tokio::time::timeout;

use super::{
    apply::words,
    identity::{AskError, CALL_TIMEOUT, code},
};

/// The API server did not show something.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Unread {
    /// The user may not read it.
    #[error("{0}")]
    Forbidden(String),
    /// The cluster has no such kind of objects.
    #[error("this cluster has no such kind of objects (is the CRD installed?)")]
    NoSuchKind,
    /// Any other reason.
    #[error("{0}")]
    Failed(String),
}

impl From<kube::Error> for Unread {
    fn from(error: kube::Error) -> Self {
        match code(&error) {
            Some(401 | 403) => Self::Forbidden(words(&error)),
            Some(404) => Self::NoSuchKind,
            _ => Self::Failed(words(&error)),
        }
    }
}

impl From<AskError> for Unread {
    fn from(error: AskError) -> Self {
        match error {
            AskError::Api { source, .. } => (*source).into(),
            error => Self::Failed(error.to_string()),
        }
    }
}

/// Makes one read, with a deadline.
///
/// # Errors
/// Why there is no answer.
pub async fn read<T>(call: impl Future<Output = kube::Result<T>>) -> Result<T, Unread> {
    let late = |_| Unread::Failed(format!("no answer within {} s", CALL_TIMEOUT.as_secs()));
    Ok(timeout(CALL_TIMEOUT, call).await.map_err(late)??)
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::Service;
    use kube::Api;

    use super::*;
    use crate::cluster::fake_api::FakeApi;

    #[tokio::test(start_paused = true)]
    async fn a_read_that_fails_says_whether_somebody_has_to_allow_it() {
        let api = FakeApi::default();
        let services: Api<Service> = Api::namespaced(api.client(), "shop");
        let look = async || read(services.list(&kube::api::ListParams::default())).await.map(|list| list.items.len());
        assert_eq!(look().await, Ok(0));
        api.refuse(403, "Forbidden", "you may not list services");
        assert_eq!(look().await, Err(Unread::Forbidden("you may not list services".to_owned())));
        api.refuse(404, "NotFound", "the server could not find the requested resource");
        assert_eq!(look().await, Err(Unread::NoSuchKind));
        api.hang();
        assert_eq!(look().await, Err(Unread::Failed("no answer within 10 s".to_owned())));
    }
}
