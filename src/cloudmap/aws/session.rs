//! Region, credentials, deadlines and repetitions: the same for every service of AWS that is called.

use std::time::Duration;

use aws_config::{
    BehaviorVersion, Region, SdkConfig, identity::IdentityCache, retry::RetryConfig, sts::AssumeRoleProvider,
    timeout::TimeoutConfig,
};
use aws_sdk_servicediscovery::config::{AppName, SharedCredentialsProvider, SharedHttpClient};
use aws_smithy_http_client::{
    Builder,
    tls::{Provider, rustls_provider::CryptoMode},
};

use super::{AwsSettings, ConnectError, credentials::Held};

/// Deadline of one request, unless the settings have another one.
pub(super) const DEADLINE: Duration = Duration::from_secs(5);
/// Maximum pause between two attempts of a command. If others use up a rate, a frequent caller gets its share.
const LONGEST_PAUSE: Duration = Duration::from_secs(3);

/// A connection that nobody used for so long is closed. A burst of calls opens a hundred, and each holds 35 kB.
const IDLE_CONNECTION: Duration = Duration::from_secs(15);

/// Reads the settings and the environment. Makes no call to the services that are configured with it.
pub async fn load(settings: &AwsSettings) -> SdkConfig {
    let mut loader = aws_config::defaults(BehaviorVersion::latest()).http_client(http_client());
    if let Ok(name) = AppName::new(base::release::NAME) {
        loader = loader.app_name(name);
    }
    if let Some(region) = &settings.region {
        loader = loader.region(Region::new(region.clone()));
    }
    loader.load().await
}

/// The SDK's own HTTP client, but for how long it keeps connections.
fn http_client() -> SharedHttpClient {
    let tls = Provider::Rustls(CryptoMode::AwsLc);
    Builder::new().tls_provider(tls).pool_idle_timeout(IDLE_CONNECTION).build_https()
}

/// The same with deadlines and, if the settings name one, with the credentials of a role.
///
/// # Errors
/// The settings cannot be used.
pub async fn identified(sdk: &SdkConfig, settings: &AwsSettings) -> Result<SdkConfig, ConnectError> {
    Ok(Box::pin(signed(sdk, settings)).await?.0)
}

/// The same, with the credentials that are held; `None` if nobody gives any.
pub(super) async fn signed(sdk: &SdkConfig, settings: &AwsSettings) -> Result<(SdkConfig, Option<Held>), ConnectError> {
    if sdk.region().is_none() {
        return Err(ConnectError::NoRegion);
    }
    // It is shorter than that of the request, which would not say what is late.
    let within = settings.deadline * 9 / 10;
    let base = sdk.credentials_provider().map(|provider| Held::new(provider, within));
    let sdk = sdk.to_builder().timeout_config(deadlines(settings.deadline)).build();
    let sdk = with(&sdk, base.as_ref());
    match (&settings.assume_role_arn, &settings.external_id) {
        (Some(role), id) => {
            let held = Held::new(of_role(&sdk, role, id.as_deref()).await, within);
            let held = base.into_iter().fold(held, Held::above);
            Ok((with(&sdk, Some(&held)), Some(held)))
        }
        (None, Some(_)) => Err(ConnectError::ExternalIdWithoutRole),
        (None, None) => Ok((sdk, base)),
    }
}

/// The same, signed with what is held, and with no cache beside it.
fn with(sdk: &SdkConfig, held: Option<&Held>) -> SdkConfig {
    let Some(held) = held else { return sdk.clone() };
    let provider = SharedCredentialsProvider::new(held.clone());
    sdk.to_builder().identity_cache(IdentityCache::no_cache()).credentials_provider(provider).build()
}

/// How often the SDK repeats a call that was throttled or got no answer.
pub fn retries(repeat: u32) -> RetryConfig {
    match repeat {
        0 => RetryConfig::disabled(),
        _ => RetryConfig::standard().with_max_attempts(1 + repeat).with_max_backoff(LONGEST_PAUSE),
    }
}

fn deadlines(deadline: Duration) -> TimeoutConfig {
    // This holds for each attempt. While a command repeats calls, its waiting does not mean that the registry is
    // silent.
    TimeoutConfig::builder().connect_timeout(deadline * 2 / 5).operation_attempt_timeout(deadline).build()
}

/// Credentials of a role, through the same HTTP stack. STS is called at its own endpoint.
async fn of_role(sdk: &SdkConfig, role: &str, external_id: Option<&str>) -> SharedCredentialsProvider {
    let mut builder = AssumeRoleProvider::builder(role).session_name(base::release::NAME).configure(sdk);
    if let Some(id) = external_id {
        builder = builder.external_id(id);
    }
    SharedCredentialsProvider::new(builder.build().await)
}
