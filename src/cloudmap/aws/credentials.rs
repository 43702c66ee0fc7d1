//! The credentials with which calls are signed: renewed early, kept while nobody gives new ones, and given up as soon as AWS says
//! that they have expired, whatever the clock here says.

use std::{
    sync::Arc,
    time::{Duration, SystemTime},
};

use aws_credential_types::provider::{error::CredentialsError, future};
use aws_sdk_servicediscovery::{
    config::{
        ConfigBag, Credentials, Intercept, ProvideCredentials, RuntimeComponents, SharedCredentialsProvider,
        interceptors::FinalizerInterceptorContextRef,
    },
    error::BoxError,
};
use tokio::sync::Mutex;

/// Credentials are renewed this long before they expire, so that whoever gives them may be away for as long. Sessions last 15
/// minutes at the least.
const EARLY: Duration = Duration::from_mins(5);

/// They are used no later than this before they expire, as the SDK has it: a call takes time.
const LATEST: Duration = Duration::from_secs(10);

/// After a failure to renew credentials that are still good, the next attempt follows this much later.
const PAUSE: Duration = Duration::from_secs(20);

/// The credentials that a provider gave. Clones share them.
#[derive(Debug, Clone)]
pub(super) struct Held {
    provider: SharedCredentialsProvider,
    /// The credentials with which this provider itself calls AWS, if it does.
    below: Option<Arc<Self>>,
    /// Deadline of one attempt to get credentials.
    within: Duration,
    state: Arc<Mutex<State>>,
}

#[derive(Debug, Default)]
struct State {
    credentials: Option<Credentials>,
    /// When the next attempt to renew good credentials may begin.
    pauses: Option<SystemTime>,
}

impl Held {
    pub(super) fn new(provider: SharedCredentialsProvider, within: Duration) -> Self {
        Self { provider, below: None, within, state: Arc::default() }
    }

    /// The same of a provider that calls AWS with the credentials of another one.
    pub(super) fn above(self, below: Self) -> Self {
        Self { below: Some(Arc::new(below)), ..self }
    }

    /// Gives up what is held.
    async fn forget(&self) {
        *self.state.lock().await = State::default();
    }

    async fn credentials(&self, now: SystemTime) -> Result<Credentials, CredentialsError> {
        let mut state = self.state.lock().await;
        let lasts = |credentials: &Credentials, longer: Duration| {
            credentials.expiry().is_none_or(|end| end.duration_since(now).is_ok_and(|rest| rest > longer))
        };
        let usable = state.credentials.clone().filter(|held| lasts(held, LATEST));
        if let Some(held) = &usable
            && (lasts(held, EARLY) || state.pauses.is_some_and(|until| now < until))
        {
            return Ok(held.clone());
        }
        let renewed = match tokio::time::timeout(self.within, self.provider.provide_credentials()).await {
            Ok(renewed) => renewed,
            Err(_) => Err(CredentialsError::provider_timed_out(self.within)),
        };
        match renewed {
            Ok(renewed) => {
                // One that never lasts longer is not asked before each call.
                let pauses = (!lasts(&renewed, EARLY)).then(|| now + PAUSE);
                *state = State { credentials: Some(renewed.clone()), pauses };
                Ok(renewed)
            }
            Err(error) => {
                // Those below may be what AWS did not take.
                if let Some(below) = &self.below {
                    Box::pin(below.forget()).await;
                }
                state.pauses = Some(now + PAUSE);
                usable.ok_or(error)
            }
        }
    }
}

impl ProvideCredentials for Held {
    fn provide_credentials<'a>(&'a self) -> future::ProvideCredentials<'a>
    where
        Self: 'a,
    {
        future::ProvideCredentials::new(self.credentials(SystemTime::now()))
    }
}

/// Gives credentials up when AWS says that they have expired. This clock may be behind, or somebody revoked the sessions of the role.
#[derive(Debug)]
pub(super) struct Expiry(pub(super) Held);

impl Intercept for Expiry {
    fn name(&self) -> &'static str {
        "Expiry"
    }

    fn read_after_attempt(
        &self,
        context: &FinalizerInterceptorContextRef<'_>,
        _components: &RuntimeComponents,
        _config: &mut ConfigBag,
    ) -> Result<(), BoxError> {
        let Some(answer) = context.response().filter(|answer| !answer.status().is_success()) else { return Ok(()) };
        let says = |text: &[u8], code: &str| text.windows(code.len()).any(|there| there == code.as_bytes());
        // AWS has both codes.
        if answer.body().bytes().is_some_and(|body| says(body, "ExpiredToken"))
            && let Ok(mut state) = self.0.state.try_lock()
        {
            *state = State::default();
        }
        Ok(())
    }
}

#[cfg(test)]
#[path = "tests/credentials.rs"]
mod tests;
