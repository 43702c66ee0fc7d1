//! Where calls go.

use aws_config::SdkConfig;
use aws_sdk_servicediscovery::{
    config::{ConfigBag, Intercept, RuntimeComponents, interceptors::BeforeTransmitInterceptorContextRef},
    error::BoxError,
};
use aws_smithy_runtime_api::client::endpoint::EndpointPrefix;

use super::AwsSettings;

/// The variable by which the SDK gets another address for Cloud Map only.
const VARIABLE: &str = "AWS_ENDPOINT_URL_SERVICEDISCOVERY";

/// Where calls go: to AWS's own address of the region unless something here says otherwise.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Endpoint {
    /// Another address, from `--cloudmap-endpoint`, the environment or the profile. Of a profile's addresses only the one
    /// for all services is known here.
    pub url: Option<String>,
    /// AWS's addresses with FIPS cryptography are asked for.
    pub fips: bool,
    /// AWS's addresses with IPv4 and IPv6 are asked for.
    pub dual_stack: bool,
}

impl Endpoint {
    pub(super) fn of(sdk: &SdkConfig, settings: &AwsSettings) -> Self {
        let variable = || std::env::var(VARIABLE).ok().filter(|url| !url.is_empty());
        let of_sdk = || variable().or_else(|| sdk.endpoint_url().map(str::to_owned));
        Self {
            url: settings.endpoint.clone().or_else(of_sdk),
            fips: sdk.use_fips().unwrap_or_default(),
            dual_stack: sdk.use_dual_stack().unwrap_or_default(),
        }
    }
}

pub(super) fn is_url(endpoint: &str) -> bool {
    let host = endpoint.strip_prefix("http://").or_else(|| endpoint.strip_prefix("https://"));
    host.is_some_and(|host| !host.is_empty() && !host.starts_with(['/', ':']) && !host.contains(char::is_whitespace))
}

/// Removes the host prefix `data-` from discovery calls. The SDK puts it before any host, as in `data-127.0.0.1`, and
/// has no option against it. The SDK refuses an empty prefix, but it can be removed.
#[derive(Debug)]
pub(super) struct NoHostPrefix;

impl Intercept for NoHostPrefix {
    fn name(&self) -> &'static str {
        "NoHostPrefix"
    }

    fn read_before_attempt(
        &self,
        _context: &BeforeTransmitInterceptorContextRef<'_>,
        _components: &RuntimeComponents,
        config: &mut ConfigBag,
    ) -> Result<(), BoxError> {
        config.interceptor_state().unset::<EndpointPrefix>();
        Ok(())
    }
}
