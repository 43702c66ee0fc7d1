//! Answers of AWS, or of whoever is between: bodies, codes and statuses.

use std::{sync::Arc, time::Duration};

use aws_config::SdkConfig;
use aws_sdk_servicediscovery::config::{Credentials, SharedCredentialsProvider};
use aws_smithy_runtime_api::{
    client::{
        http::{HttpConnector, HttpConnectorFuture, SharedHttpConnector, http_client_fn},
        orchestrator::{HttpRequest, HttpResponse},
    },
    http::StatusCode,
};
use cloudmap::{
    AwsCloudMap, AwsSettings, Error, ErrorKind, Lane, Limits, Operation, OperationId, Rates, Read, answered, load,
};
use tokio::sync::OnceCell;

use super::{Target, Verdict, fields, holds};

pub(super) const TARGETS: &[Target] = &[
    Target { name: "aws-answer", corpus, words: WORDS, longest: 16_000, quick: 300, check },
    Target { name: "aws-error", corpus: errors, words: WORDS, longest: 8_000, quick: 3_000, check: error },
];

const WORDS: &[&str] = &[
    "__type",
    "message",
    "Message",
    "com.amazonaws.servicediscovery#",
    "AccessDeniedException",
    "ThrottlingException",
    "NamespaceNotFound",
    "DuplicateRequest",
    "DuplicateOperationId",
    "NamespaceAlreadyExists",
    "NamespaceId",
    "ExpiredTokenException",
    "Namespaces",
    "NextToken",
    "Operation",
    "Status",
    "SUCCESS",
    "FAIL",
    "Targets",
    "CreateDate",
    "1.7e9",
    "-1e300",
    "NaN",
    "<Error>",
    "</Error>",
    "<Code>",
    "</Code>",
    "<ErrorResponse>",
    "<![CDATA[",
    "<!--",
    "<!DOCTYPE a [<!ENTITY b \"c\">]>",
    "&b;",
    "&#x0;",
    "&#xD800;",
    "<?xml version=\"1.0\"?>",
    "application/x-amz-json-1.1",
    "text/xml",
    "<html><body><h1>502 Bad Gateway</h1></body></html>",
    "200",
    "400",
    "403",
    "429",
    "500",
    "503",
    "{",
    "}",
    "[",
    "]",
    "null",
    "\\ud800",
    "\\u0000",
];

/// What is called: fields are the number of the call, the status, the type of the content, the header with the error, the body.
fn corpus() -> Vec<Vec<u8>> {
    let json = "application/x-amz-json-1.1";
    let namespaces = r#"{"Namespaces": [{"Id": "ns-1", "Arn": "arn:aws:x", "Name": "internal", "Type": "DNS_PRIVATE", "CreateDate": 1.7e9, "Properties": {"DnsProperties": {"HostedZoneId": "Z1", "SOA": {"TTL": 15}}, "HttpProperties": {"HttpName": "internal"}}}]}"#;
    let services = r#"{"Services": [{"Id": "srv-1", "Name": "web", "InstanceCount": 3, "DnsConfig": {"DnsRecords": [{"Type": "A", "TTL": 60}], "RoutingPolicy": "MULTIVALUE"}, "HealthCheckCustomConfig": {"FailureThreshold": 1}}]}"#;
    let operation = r#"{"Operation": {"Id": "op-1", "Status": "FAIL", "ErrorCode": "ACCESS_DENIED", "ErrorMessage": "no", "Targets": {"NAMESPACE": "ns-1"}}}"#;
    let instances = r#"{"Instances": [{"Id": "i-1", "Attributes": {"AWS_INSTANCE_IPV4": "192.0.2.7"}}]}"#;
    let duplicate = r#"{"__type": "com.amazonaws.servicediscovery#DuplicateRequest", "Message": "x", "DuplicateOperationId": "op-1"}"#;
    let exists =
        r#"{"__type": "NamespaceAlreadyExists", "Message": "x", "NamespaceId": "ns-1", "CreatorRequestId": "a"}"#;
    let denied =
        r#"{"__type": "AccessDeniedException", "Message": "User: arn:aws:sts::1:assumed-role/x is not authorized"}"#;
    let sts = "<ErrorResponse xmlns=\"https://sts.amazonaws.com/doc/2011-06-15/\"><Error><Type>Sender</Type><Code>AccessDenied</Code><Message>no</Message></Error><RequestId>1</RequestId></ErrorResponse>";
    let role = "<AssumeRoleResponse xmlns=\"https://sts.amazonaws.com/doc/2011-06-15/\"><AssumeRoleResult><AssumedRoleUser><AssumedRoleId>A:x</AssumedRoleId><Arn>arn:aws:sts::1:assumed-role/x/x</Arn></AssumedRoleUser><Credentials><AccessKeyId>AKIA</AccessKeyId><SecretAccessKey>s</SecretAccessKey><SessionToken>t</SessionToken><Expiration>2999-01-01T00:00:00Z</Expiration></Credentials></AssumeRoleResult></AssumeRoleResponse>";
    [
        ["0", "200", json, "", namespaces],
        ["1", "200", json, "", services],
        ["2", "200", json, "", operation],
        ["3", "200", json, "", instances],
        ["0", "400", json, "", duplicate],
        ["1", "400", json, "NamespaceNotFound:http://internal.amazon.com/", "{}"],
        ["2", "400", json, "", exists],
        ["3", "403", json, "", denied],
        ["4", "403", "text/xml", "", sts],
        ["4", "200", "text/xml", "", role],
    ]
    .map(fields::join)
    .into()
}

/// How many calls there are.
const CALLS: u8 = 5;
/// The one that takes a role before.
const ROLE: u8 = b'4' % CALLS;

/// Gives one answer to all; or, if a role is taken, to STS alone.
#[derive(Debug, Clone)]
struct Answering(Arc<[Vec<u8>; 4]>, bool);

impl HttpConnector for Answering {
    fn call(&self, request: HttpRequest) -> HttpConnectorFuture {
        if self.1 && !request.uri().contains("//sts.") {
            return HttpConnectorFuture::ready(Ok(HttpResponse::new(aws_status(200), r#"{"Namespaces": []}"#.into())));
        }
        let [status, kind, error, body] = &*self.0;
        let status =
            fields::text(status).parse::<u16>().ok().filter(|status| (200..600).contains(status)).unwrap_or(400);
        let mut response = HttpResponse::new(aws_status(status), body.clone().into());
        for (name, value) in [("content-type", kind), ("x-amzn-errortype", error)] {
            // What is no value of a header does not come through HTTP.
            if let Ok(value) = String::from_utf8(value.clone())
                && !value.is_empty()
            {
                let _ = response.headers_mut().try_insert(name, value);
            }
        }
        HttpConnectorFuture::ready(Ok(response))
    }
}

fn aws_status(status: u16) -> StatusCode {
    StatusCode::try_from(status).unwrap_or_else(|_| unreachable!("a status has three digits"))
}

fn check(input: &[u8]) -> Verdict {
    let parts = fields::split(input);
    let [call, rest @ ..] = &parts[..] else { return Ok(false) };
    let Ok(rest) = <[&[u8]; 4]>::try_from(rest) else { return Ok(false) };
    let call = fields::text(call).bytes().next().unwrap_or_default() % CALLS;
    let answering = Answering(Arc::new(rest.map(<[u8]>::to_vec)), call == ROLE);
    // Time is virtual, so that whoever tries again takes none.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build();
    let runtime = runtime.map_err(|error| error.to_string())?;
    match runtime.block_on(ask(call, answering)) {
        Ok(()) => Ok(true),
        Err(Error { kind, message, .. }) => {
            holds(message.len() <= 4_000 + 20 * input.len(), || format!("an error of {} bytes", message.len()))?;
            Ok(!matches!(kind, ErrorKind::Unknown | ErrorKind::Other))
        }
    }
}

/// What is loaded once: it reads files.
static SDK: OnceCell<SdkConfig> = OnceCell::const_new();

async fn ask(call: u8, answering: Answering) -> Result<(), Error> {
    let credentials = SharedCredentialsProvider::new(Credentials::new("AKIA", "secret", None, None, "fuzz"));
    let client = http_client_fn(move |_, _| SharedHttpConnector::new(answering.clone()));
    let settings = AwsSettings { region: Some("eu-central-1".to_owned()), ..AwsSettings::default() };
    let sdk = SDK.get_or_init(|| load(&settings)).await;
    let sdk = sdk.to_builder().credentials_provider(credentials).http_client(client).build();
    let takes_role = call == ROLE;
    let role = takes_role.then(|| "arn:aws:iam::111122223333:role/x".to_owned());
    let settings = AwsSettings { assume_role_arn: role, deadline: Duration::from_secs(5), ..settings };
    let limits = Limits::new(&Rates::default(), None);
    let Ok(cloudmap) = Box::pin(AwsCloudMap::configured(&sdk, &settings, limits)).await else { return Ok(()) };
    match call {
        _ if takes_role || call == b'0' % CALLS => cloudmap.list_namespaces(Lane::Instances).await.map(drop),
        _ if call == b'1' % CALLS => cloudmap.list_services("ns-1", Lane::Instances).await.map(drop),
        _ if call == b'2' % CALLS => cloudmap.operation(&OperationId("op-1".into()), Lane::Instances).await.map(drop),
        _ => cloudmap.list_instances("srv-1").await.map(drop),
    }
}

fn errors() -> Vec<Vec<u8>> {
    [
        "ThrottlingException",
        "NamespaceNotFound",
        "AccessDeniedException",
        "ExpiredTokenException",
        "InvalidSignatureException",
    ]
    .map(|code| fields::join([code, "Signature expired: 20261123 is now earlier", "400"]))
    .into()
}

fn error(input: &[u8]) -> Verdict {
    let parts: Vec<String> = fields::split(input).iter().map(|part| fields::text(part)).collect();
    let text = |n: usize| parts.get(n).map(String::as_str);
    let status = text(2).and_then(|status| status.parse().ok()).unwrap_or(400);
    let (kind, words) = answered(Operation::ListNamespaces, text(0), text(1), status);
    holds(!words.is_empty() && words.len() <= 1_000 + 8 * input.len(), || format!("{} bytes are said", words.len()))?;
    // What is not there is withdrawn, so that only AWS's own words may say so.
    let is_said = text(0).is_some_and(|code| code.ends_with("NotFound") || code.ends_with("NotFoundException"));
    holds(kind != ErrorKind::NotFound || is_said, || format!("{kind:?}"))?;
    Ok(!matches!(kind, ErrorKind::Unknown | ErrorKind::Other))
}
