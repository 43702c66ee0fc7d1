//! Clients of the real SDK for a running emulator, and for whatever else speaks Cloud Map at an address.

use aws_sdk_servicediscovery::config::interceptors::BeforeTransmitInterceptorContextRef;
use aws_sdk_servicediscovery::config::retry::RetryConfig;
use aws_sdk_servicediscovery::config::{BehaviorVersion, ConfigBag, Credentials, Intercept, Region, RuntimeComponents};
use aws_sdk_servicediscovery::error::BoxError;
use aws_sdk_servicediscovery::{Client, Config};
use aws_smithy_runtime_api::client::endpoint::EndpointPrefix;
use aws_smithy_runtime_api::client::interceptors::dyn_dispatch_hint;

use super::Emulator;

/// How often a call that is throttled is made at most. The pauses of the SDK between them add up to two minutes or less.
const ATTEMPTS: u32 = 10;

impl Emulator {
    /// A client that is known to the emulator as `caller` and does not retry.
    pub fn client(&self, caller: &str) -> Client {
        Client::from_conf(self.sdk_config(caller))
    }

    /// Its configuration, to be changed with `to_builder()`.
    pub fn sdk_config(&self, caller: &str) -> Config {
        sdk_config(&self.endpoint(), caller)
    }
}

/// A configuration for an endpoint such as `http://127.0.0.1:5000`: dummy credentials with this access key id, no
/// retries, and no `data-` before the host name.
pub fn sdk_config(endpoint: &str, access_key_id: &str) -> Config {
    Config::builder()
        .behavior_version(BehaviorVersion::latest())
        .region(Region::new("us-east-1"))
        .credentials_provider(Credentials::new(access_key_id, "dummy", None, None, "emulator"))
        .endpoint_url(endpoint)
        .retry_config(RetryConfig::disabled())
        .interceptor(PlainHost)
        .build()
}

/// [`sdk_config`], with pauses and retries where calls are throttled: who else calls, and how often, is left to chance.
pub fn patient_sdk_config(endpoint: &str, access_key_id: &str) -> Config {
    let retries = RetryConfig::standard().with_max_attempts(ATTEMPTS);
    sdk_config(endpoint, access_key_id).to_builder().retry_config(retries).build()
}

/// The SDK prefixes the host of the discovery calls with `data-`, and has no switch for it.
#[derive(Debug)]
pub struct PlainHost;

#[dyn_dispatch_hint]
impl Intercept for PlainHost {
    fn name(&self) -> &'static str {
        "PlainHost"
    }

    fn read_before_attempt(
        &self,
        _: &BeforeTransmitInterceptorContextRef<'_>,
        _: &RuntimeComponents,
        config: &mut ConfigBag,
    ) -> Result<(), BoxError> {
        config.interceptor_state().unset::<EndpointPrefix>();
        Ok(())
    }
}
