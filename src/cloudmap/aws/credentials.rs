//! The credentials with which calls are signed: renewed early, kept while nobody gives new ones, and given up as soon as AWS says
//! that they have expired, whatever the clock here says.

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, SystemTime},
};

use aws_credential_types::provider::{error::CredentialsError, future};
use aws_sdk_servicediscovery::{
    config::{
        ConfigBag, Credentials, Intercept, ProvideCredentials, RuntimeComponents, SharedCredentialsProvider,
        interceptors::{BeforeTransmitInterceptorContextRef, FinalizerInterceptorContextRef},
    },
    error::BoxError,
};
use aws_smithy_types::config_bag::{Storable, StoreReplace};

/// Credentials are renewed this long before they expire, so that whoever gives them may be away for as long. Sessions last 15
/// minutes at the least.
const EARLY: Duration = Duration::from_mins(5);

/// They are used no later than this before they expire, as the SDK has it: a call takes time.
const LATEST: Duration = Duration::from_secs(10);

/// After a failure to renew credentials that are still good, the next attempt follows this much later.
const PAUSE: Duration = Duration::from_secs(20);

/// Credentials without an end are asked for again after this time, as the SDK has it: somebody may have replaced them.
const WITHOUT_END: Duration = Duration::from_mins(15);

/// What AWS answers to credentials that it does not take, or takes no more.
const REFUSALS: [&str; 3] = ["ExpiredToken", "UnrecognizedClient", "InvalidClientTokenId"];

/// The credentials that a provider gave. Clones share them.
#[derive(Debug, Clone)]
pub(super) struct Held {
    provider: SharedCredentialsProvider,
    /// The credentials with which this provider itself calls AWS, if it does.
    below: Option<Arc<Self>>,
    /// Deadline for credentials.
    within: Duration,
    state: Arc<Mutex<State>>,
    /// Held by whoever asks for others.
    asking: Arc<tokio::sync::Mutex<()>>,
}

#[derive(Debug, Default)]
struct State {
    /// The credentials, and when they came.
    credentials: Option<(Credentials, SystemTime)>,
    /// When the next attempt to renew good credentials may begin.
    pauses: Option<SystemTime>,
}

/// How good the credentials are that are held.
enum Standing {
    /// Nobody has to ask for others.
    Good(Credentials),
    /// Others should be asked for.
    Ageing(Credentials),
    Useless,
}

impl Held {
    pub(super) fn new(provider: SharedCredentialsProvider, within: Duration) -> Self {
        Self { provider, below: None, within, state: Arc::default(), asking: Arc::default() }
    }

    /// The same of a provider that calls AWS with the credentials of another one.
    pub(super) fn above(self, below: Self) -> Self {
        Self { below: Some(Arc::new(below)), ..self }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Gives up what is held.
    fn forget(&self) {
        *self.state() = State::default();
    }

    fn standing(&self, now: SystemTime) -> Standing {
        let state = self.state();
        let Some((held, came)) = &state.credentials else { return Standing::Useless };
        let rest = |end: SystemTime| end.duration_since(now).unwrap_or_default();
        if held.expiry().is_some_and(|end| rest(end) <= LATEST) {
            return Standing::Useless;
        }
        let lasts = rest(held.expiry().unwrap_or(*came + WITHOUT_END)) > EARLY;
        let pauses = state.pauses.is_some_and(|until| now < until);
        if lasts || pauses { Standing::Good(held.clone()) } else { Standing::Ageing(held.clone()) }
    }

    async fn credentials(&self, now: SystemTime) -> Result<Credentials, CredentialsError> {
        let usable = match self.standing(now) {
            Standing::Good(held) => return Ok(held),
            // No call waits while another one asks for what it does not need yet.
            Standing::Ageing(held) if self.asking.try_lock().is_err() => return Ok(held),
            Standing::Ageing(held) => Some(held),
            Standing::Useless => None,
        };
        // The time in which others ask counts, so that each call says what is late.
        let renewed = tokio::time::timeout(self.within, async {
            let _asking = self.asking.lock().await;
            match self.standing(now) {
                Standing::Good(held) => Ok(held),
                Standing::Ageing(_) | Standing::Useless => self.renew(now).await,
            }
        });
        let renewed = renewed.await.unwrap_or_else(|_| Err(CredentialsError::provider_timed_out(self.within)));
        renewed.or_else(|error| {
            self.state().pauses = Some(now + PAUSE);
            usable.ok_or(error)
        })
    }

    async fn renew(&self, now: SystemTime) -> Result<Credentials, CredentialsError> {
        match self.provider.provide_credentials().await {
            Ok(renewed) => {
                // Those that never last longer are not asked for before each call.
                *self.state() = State { credentials: Some((renewed.clone(), now)), pauses: Some(now + PAUSE) };
                Ok(renewed)
            }
            Err(error) => {
                let words = super::chain(&error);
                if let Some(below) = self.below.as_ref().filter(|_| REFUSALS.iter().any(|code| words.contains(code))) {
                    below.forget();
                }
                Err(error)
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

/// The signature of the request of an attempt: it names the key.
#[derive(Debug)]
struct Signature(String);

impl Storable for Signature {
    type Storer = StoreReplace<Self>;
}

/// Gives credentials up when AWS takes them no more. This clock may be behind, or somebody revoked the sessions of the role.
#[derive(Debug)]
pub(super) struct Expiry(pub(super) Held);

impl Intercept for Expiry {
    fn name(&self) -> &'static str {
        "Expiry"
    }

    fn read_before_transmit(
        &self,
        context: &BeforeTransmitInterceptorContextRef<'_>,
        _components: &RuntimeComponents,
        config: &mut ConfigBag,
    ) -> Result<(), BoxError> {
        let signature = context.request().headers().get("authorization").unwrap_or_default();
        config.interceptor_state().store_put(Signature(signature.to_owned()));
        Ok(())
    }

    fn read_after_attempt(
        &self,
        context: &FinalizerInterceptorContextRef<'_>,
        _components: &RuntimeComponents,
        config: &mut ConfigBag,
    ) -> Result<(), BoxError> {
        let Some(answer) = context.response().filter(|answer| !answer.status().is_success()) else { return Ok(()) };
        let body = answer.body().bytes().map(String::from_utf8_lossy).unwrap_or_default();
        if REFUSALS.iter().any(|code| body.contains(code)) {
            // Others may have come since the request was signed.
            let signature = config.load::<Signature>().map(|Signature(text)| text.as_str()).unwrap_or_default();
            let mut state = self.0.state();
            if state.credentials.as_ref().is_some_and(|(held, _)| signature.contains(held.access_key_id())) {
                *state = State::default();
            }
        }
        Ok(())
    }
}

#[cfg(test)]
#[path = "tests/credentials.rs"]
mod tests;
