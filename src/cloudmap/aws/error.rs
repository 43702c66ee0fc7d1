//! Errors of AWS, sorted by what the caller can do.

use std::error::Error as StdError;

use aws_sdk_servicediscovery::{
    config::http::HttpResponse,
    error::{ProvideErrorMetadata, SdkError},
};

use crate::{Error, ErrorKind, Operation};

/// What the SDK says if none came in time.
const LATE: &str = "credentials provider timed out";

/// What the SDK says if whoever gives credentials fails or throttles: the codes of STS, and the statuses of the EKS Pod Identity
/// Agent.
const FAILING: [&str; 6] = [
    "(Throttling",
    "(InternalFailure",
    "(ServiceUnavailable",
    "IDPCommunicationError",
    "credential provider: StatusCode(429",
    "credential provider: StatusCode(5",
];

/// Sorts a failed call. `detail` reads what only a typed error contains (who owns a name, which operation runs).
pub(super) fn sort<E>(
    operation: Operation,
    error: &SdkError<E, HttpResponse>,
    detail: impl FnOnce(&E) -> Option<ErrorKind>,
) -> Error
where
    E: ProvideErrorMetadata + StdError + Send + Sync + 'static,
{
    if let Some(refused) = refused(error) {
        return refused.clone();
    }
    let (kind, message) = match error {
        SdkError::ServiceError(context) => {
            let (error, status) = (context.err(), context.raw().status().as_u16());
            let (kind, message) = answered(operation, error.code(), error.message(), status);
            (detail(context.err()).unwrap_or(kind), message)
        }
        // Nothing was sent: the request could not be built or signed.
        SdkError::ConstructionFailure(_) => (ErrorKind::InvalidInput, chain(error)),
        SdkError::DispatchFailure(failure) => not_answered(&chain(error), failure.is_timeout() || failure.is_io()),
        SdkError::TimeoutError(_) => not_answered(&chain(error), true),
        SdkError::ResponseError(context) => answer_unread(context.raw().status().as_u16(), &chain(error)),
        _ => (ErrorKind::Unknown, chain(error)),
    };
    Error { operation: operation.name(), kind, message }
}

/// The error of this adapter that the SDK passes on, if it is one: the permit had ended.
fn refused<'a>(error: &'a (dyn StdError + 'static)) -> Option<&'a Error> {
    let mut causes = std::iter::successors(Some(error), |&error| error.source());
    causes.find_map(|cause| cause.downcast_ref())
}

/// The kind and text of an error that AWS returned, by its code and HTTP status.
pub fn answered(operation: Operation, code: Option<&str>, message: Option<&str>, status: u16) -> (ErrorKind, String) {
    let code = code.unwrap_or_default();
    let words = words(code, message, status);
    if let Some(why) = of_credentials(code, message) {
        return (ErrorKind::AccessDenied, format!("{why} (AWS says: {words})"));
    }
    let kind = match code {
        _ if is_denied(code) => {
            let message = format!(
                "access denied: the controller's IAM role needs the action servicediscovery:{operation} (AWS says: {words})"
            );
            return (ErrorKind::AccessDenied, message);
        }
        "ServiceNotFound"
        | "NamespaceNotFound"
        | "InstanceNotFound"
        | "OperationNotFound"
        | "ResourceNotFoundException" => ErrorKind::NotFound,
        "NamespaceAlreadyExists" | "ServiceAlreadyExists" => ErrorKind::AlreadyExists { id: None },
        "DuplicateRequest" => ErrorKind::Duplicate { operation: None },
        "ResourceInUse" => ErrorKind::InUse,
        "ResourceLimitExceeded" | "TooManyTagsException" | "ServiceAttributesLimitExceededException" => {
            ErrorKind::LimitExceeded
        }
        "RequestLimitExceeded"
        | "ThrottlingException"
        | "Throttling"
        | "ThrottledException"
        | "RequestThrottled"
        | "RequestThrottledException"
        | "TooManyRequestsException"
        | "SlowDown"
        | "BandwidthLimitExceeded" => ErrorKind::Throttled,
        "InvalidInput"
        | "CustomHealthNotFound"
        | "ValidationException"
        | "SerializationException"
        | "UnknownOperationException"
        | "InvalidAction" => ErrorKind::InvalidInput,
        _ => match status {
            429 => ErrorKind::Throttled,
            401 | 403 => ErrorKind::AccessDenied,
            // A server that fails may fail after the work is done.
            500.. => ErrorKind::Unknown,
            _ => ErrorKind::Other,
        },
    };
    (kind, words)
}

/// What AWS said, in its own words.
pub fn words(code: &str, message: Option<&str>, status: u16) -> String {
    match (code, message) {
        ("", None) => format!("HTTP status {status}"),
        (code, None) => code.to_owned(),
        (code, Some(message)) => format!("{code}: {message}"),
    }
}

/// What is wrong if AWS takes a request for one of another time.
const SKEWED: &str = "the clock of this machine is wrong: AWS refuses requests that are more than some minutes off";

/// Whether the code says that the role lacks a permission.
pub fn is_denied(code: &str) -> bool {
    matches!(code, "AccessDeniedException" | "AccessDenied" | "UnauthorizedOperation" | "NotAuthorized")
}

/// What is wrong with the credentials, or with the time in the signature, if the answer is about these.
pub fn of_credentials(code: &str, message: Option<&str>) -> Option<&'static str> {
    let of_another_time =
        |message: &str| ["Signature expired", "Signature not yet current"].iter().any(|words| message.contains(words));
    match code {
        "RequestExpired" | "RequestTimeTooSkewed" => Some(SKEWED),
        "InvalidSignatureException" | "SignatureDoesNotMatch" if message.is_some_and(of_another_time) => Some(SKEWED),
        "ExpiredTokenException" | "ExpiredToken" => Some("the AWS credentials have expired"),
        "UnrecognizedClientException"
        | "InvalidClientTokenId"
        | "InvalidSignatureException"
        | "SignatureDoesNotMatch"
        | "IncompleteSignature"
        | "MissingAuthenticationToken"
        | "MissingAuthenticationTokenException"
        | "OptInRequired" => Some("the AWS credentials are not accepted"),
        _ => None,
    }
}

/// What is wrong if there are no credentials. Signing happens before sending.
pub fn unsigned(words: &str) -> Option<String> {
    let about_credentials = words.contains("credential");
    about_credentials.then(|| format!("cannot get AWS credentials: {words}"))
}

/// No answer came. With `unknown`, the request may have been sent.
fn not_answered(words: &str, unknown: bool) -> (ErrorKind, String) {
    // The connector has no types for these cases. Tests hold it to its texts.
    let unconnected = ["(Connect)", "connect timeout", "dns error"].iter().any(|text| words.contains(text));
    if let Some(why) = unsigned(words) {
        // Whoever gives them said no, or says nothing for now.
        let silent = unconnected || words.contains(LATE) || FAILING.iter().any(|text| words.contains(text));
        return (if silent { ErrorKind::NoCredentials } else { ErrorKind::AccessDenied }, why);
    }
    if unconnected {
        return (ErrorKind::Other, format!("cannot connect to the endpoint, nothing was sent: {words}"));
    }
    if unknown {
        return (ErrorKind::Unknown, format!("no answer in time or connection lost: {words}"));
    }
    (ErrorKind::Unknown, words.to_owned())
}

/// The answer is not one of AWS's, but for example a proxy's.
fn answer_unread(status: u16, words: &str) -> (ErrorKind, String) {
    let kind = match status {
        429 => ErrorKind::Throttled,
        401 | 403 => ErrorKind::AccessDenied,
        _ => ErrorKind::Unknown,
    };
    (kind, format!("unreadable answer with HTTP status {status}: {words}"))
}

/// The error and its causes, without repetitions.
pub fn chain(error: &(dyn StdError + 'static)) -> String {
    let mut words = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let text = error.to_string();
        if !words.ends_with(&text) {
            words.push_str(": ");
            words.push_str(&text);
        }
        cause = error.source();
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_agent_that_fails_to_give_credentials_denies_nothing() {
        for (status, kind) in [
            (500, ErrorKind::NoCredentials),
            (503, ErrorKind::NoCredentials),
            (429, ErrorKind::NoCredentials),
            (400, ErrorKind::AccessDenied),
            (404, ErrorKind::AccessDenied),
        ] {
            let words = format!(
                "dispatch failure: other: an error occurred while loading credentials: Non-success status from HTTP credential \
                 provider: StatusCode({status})"
            );
            assert_eq!(not_answered(&words, false).0, kind, "{status}");
        }
    }
}
