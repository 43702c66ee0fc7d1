//! Reads for commands: each has a deadline, and each failure says whether somebody has to allow something, so that one
//! that fails ends no other.

use std::{fmt::Debug, time::Duration};

use axum::http::{Request, header};
use k8s_openapi::{
    apimachinery::pkg::version::Info,
    jiff::{Timestamp, fmt::rfc2822::DateTimeParser},
};
use kube::{Api, Client, api::ListParams, client::Body};
use serde::de::DeserializeOwned;
use tokio::time::timeout;

use super::{
    apply::words,
    identity::{AskError, CALL_TIMEOUT, code},
};

/// How many objects come in one answer.
const PAGE: u32 = 500;

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

impl Unread {
    /// Whether the next read may have an answer without anybody doing something.
    #[must_use]
    pub fn may_pass(&self) -> bool {
        matches!(self, Self::Failed(_))
    }
}

impl From<kube::Error> for Unread {
    fn from(error: kube::Error) -> Self {
        match code(&error) {
            Some(403) => Self::Forbidden(words(&error)),
            Some(404) if !is_about_an_object(&error) => Self::NoSuchKind,
            _ => Self::Failed(words(&error)),
        }
    }
}

/// Whether the answer names an object, as one that was deleted meanwhile.
fn is_about_an_object(error: &kube::Error) -> bool {
    let kube::Error::Api(status) = error else { return false };
    status.details.as_ref().is_some_and(|details| !details.name.is_empty())
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
pub fn read<T>(call: impl Future<Output = kube::Result<T>>) -> impl Future<Output = Result<T, Unread>> {
    read_within(CALL_TIMEOUT, call)
}

/// Makes one read whose answer may be so large that it needs a deadline of its own.
///
/// # Errors
/// Why there is no answer.
pub async fn read_within<T>(patience: Duration, call: impl Future<Output = kube::Result<T>>) -> Result<T, Unread> {
    let late = |_| Unread::Failed(format!("no answer within {} s", patience.as_secs()));
    Ok(timeout(patience, call).await.map_err(late)??)
}

/// Reads all objects page by page, with a deadline for each page. `keep` takes what is needed of an object, so that never
/// more than a page of whole objects is in memory.
///
/// # Errors
/// Why a page was not read. `keep` has seen those before it.
pub async fn each<K>(api: &Api<K>, params: ListParams, mut keep: impl FnMut(K)) -> Result<(), Unread>
where
    K: Clone + DeserializeOwned + Debug,
{
    let mut params = params.limit(PAGE);
    loop {
        let page = read(api.list(&params)).await?;
        page.items.into_iter().for_each(&mut keep);
        match page.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => params = params.continue_token(&token),
            None => return Ok(()),
        }
    }
}

/// The version of the API server, such as `v1.34.4`, and the time of its clock when it answered, in whole seconds; `None` if
/// the answer does not say it.
///
/// # Errors
/// Why there is no answer.
pub async fn version(client: &Client) -> Result<(String, Option<Timestamp>), Unread> {
    let request = Request::get("/version").body(Body::empty()).map_err(|error| Unread::Failed(error.to_string()))?;
    let answer = read(client.send(request)).await?;
    let date = answer.headers().get(header::DATE).and_then(|date| date.to_str().ok());
    let time = date.and_then(|date| DateTimeParser::new().parse_timestamp(date).ok());
    if !answer.status().is_success() {
        return Err(Unread::Failed(format!("the API server answers {}", answer.status())));
    }
    let bytes = answer.into_body().collect_bytes().await.map_err(|error| Unread::Failed(error.to_string()))?;
    let info = serde_json::from_slice::<Info>(&bytes).map_err(|error| Unread::Failed(error.to_string()))?;
    Ok((info.git_version, time))
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::Service;
    use serde_json::json;

    use super::*;
    use crate::fake_api::FakeApi;

    #[tokio::test(start_paused = true)]
    async fn a_read_that_fails_says_whether_somebody_has_to_allow_it() {
        let api = FakeApi::default();
        let services: Api<Service> = Api::namespaced(api.client(), "shop");
        let look = async || read(services.list(&kube::api::ListParams::default())).await.map(|list| list.items.len());
        assert_eq!(look().await, Ok(0));
        api.refuse(403, "Forbidden", "you may not list services");
        assert_eq!(look().await, Err(Unread::Forbidden("you may not list services".to_owned())));
        api.refuse(401, "Unauthorized", "Unauthorized");
        assert_eq!(look().await, Err(Unread::Failed("Unauthorized".to_owned())), "no role helps whoever is not known");
        api.refuse(404, "NotFound", "the server could not find the requested resource");
        assert_eq!(look().await, Err(Unread::NoSuchKind));
        let (details, message) = (json!({"kind": "pods", "name": "web-1"}), "pods \"web-1\" not found");
        let reason = "NotFound";
        api.prepare(
            404,
            json!({"status": "Failure", "code": 404, "reason": reason, "message": message, "details": details}),
        );
        assert_eq!(look().await, Err(Unread::Failed(message.to_owned())), "the kind is there");
        api.hang();
        assert_eq!(look().await, Err(Unread::Failed("no answer within 10 s".to_owned())));
    }

    #[tokio::test]
    async fn the_answer_about_the_version_says_what_time_it_is_there() {
        let api = FakeApi::default();
        let look = async || {
            api.prepare(200, json!({"major": "1", "minor": "34", "gitVersion": "v1.34.4"}));
            version(&api.client()).await.unwrap()
        };
        assert_eq!(look().await, ("v1.34.4".to_owned(), None));
        api.answers_with_date("Tue, 24 Nov 2026 10:02:00 GMT");
        assert_eq!(look().await.1, "2026-11-24T10:02:00Z".parse().ok());
        api.refuse(503, "ServiceUnavailable", "away");
        let why = version(&api.client()).await.unwrap_err().to_string();
        assert!(why.contains("503"), "{why}");
    }
}
