//! Parses the annotations of an object, without Cloud Map and without endpoints.

use std::{collections::BTreeSet, net::IpAddr, sync::Arc, time::Duration};

use k8s_openapi::jiff::SignedDuration;

use api::names::{
    ANNOTATION_ADOPT, ANNOTATION_PYTHON_HOSTNAME, ANNOTATION_PYTHON_NAMESPACE, ANNOTATION_PYTHON_TTL, ANNOTATION_SHARE,
    EXTERNAL_DNS_CONTROLLER, EXTERNAL_DNS_ENDPOINTS_TYPE, EXTERNAL_DNS_HOSTNAME, EXTERNAL_DNS_INTERNAL_HOSTNAME,
    EXTERNAL_DNS_SOURCE, EXTERNAL_DNS_TARGET, EXTERNAL_DNS_TTL,
};
use instances::{Adopt, Traffic, records::MAX_TTL};
use model::{
    Excerpt, Pairs, Target,
    hosts::{self, NoHost},
};

/// Prefixes of external-dns. The first one takes precedence; it is the default since v0.22.
const EXTERNAL_DNS: [&str; 2] = ["external-dns.kubernetes.io/", "external-dns.alpha.kubernetes.io/"];
/// The value of external-dns' annotation `controller` that refers to external-dns. With any other value, it ignores the
/// object.
const DNS_CONTROLLER: &str = "dns-controller";

/// TTL of the Python controller's records, in seconds.
pub const PYTHON_TTL: u32 = 60;
/// TTL of external-dns' records without an annotation, in seconds.
pub const EXTERNAL_DNS_DEFAULT_TTL: u32 = 300;
/// What an object requests.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Request {
    /// `cloudmap.controller/namespace` and `cloudmap.controller/hostname`, verbatim.
    pub named: Option<Named>,
    /// The request of external-dns' annotations.
    pub hosts: Option<Hosts>,
    /// The controller to take over from.
    pub adopt: Option<Adopt>,
    /// Whether the annotations about sharing or taking over a service are invalid.
    pub unclear: bool,
    /// Messages about invalid annotations, with the remedy. The rest of the request is valid.
    pub complaints: Vec<String>,
}

/// A request with the Python controller's annotations. Both names are used verbatim; the namespace may be API-only.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Named {
    /// The named Cloud Map service.
    pub target: Target,
    /// TTL in seconds.
    pub ttl: u32,
    /// Whether an annotation sets the TTL.
    pub ttl_asked: bool,
}

/// A request with external-dns' annotations.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Hosts {
    /// Names for the external addresses of the object.
    pub names: BTreeSet<Arc<str>>,
    /// Names for the internal addresses of the object: `internal-hostname`.
    pub internal: BTreeSet<Arc<str>>,
    /// The annotation `target`: addresses that replace those of the object. Without it `None`; without a valid address
    /// in it nothing is left.
    pub targets: Option<Vec<HostTarget>>,
    /// TTL in seconds.
    pub ttl: u32,
    /// Whether an annotation sets the TTL.
    pub ttl_asked: bool,
}

/// An address, or the name of another host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HostTarget {
    /// An IP address.
    Ip(IpAddr),
    /// A host name in lower case, without the final dot.
    Name(Arc<str>),
}

impl HostTarget {
    /// Parses an address or a host name.
    ///
    /// # Errors
    /// It is neither.
    pub fn parse(text: &str) -> Result<Self, NoHost> {
        hosts::check(text)?;
        let text = text.trim().trim_end_matches('.');
        Ok(text.parse().map_or_else(|_| Self::Name(text.to_ascii_lowercase().into()), Self::Ip))
    }
}

impl Request {
    /// Parses the annotations of a Service; `None` if they request nothing.
    pub fn read(annotations: &Pairs) -> Option<Self> {
        let mut complaints = Vec::new();
        let named = python(annotations, &mut complaints);
        let hosts = external_dns(annotations, None, &mut complaints);
        Self::complete(annotations, named, hosts, complaints)
    }

    /// Parses the annotations of an Ingress, which also has hosts in its rules (`defined`). `None` if it has none of
    /// external-dns' annotations.
    pub fn read_ingress(annotations: &Pairs, defined: &BTreeSet<Box<str>>) -> Option<Self> {
        let mut complaints = Vec::new();
        let hosts = external_dns(annotations, Some(defined), &mut complaints);
        Self::complete(annotations, None, hosts, complaints)
    }

    fn complete(
        annotations: &Pairs,
        named: Option<Named>,
        hosts: Option<Hosts>,
        mut complaints: Vec<String>,
    ) -> Option<Self> {
        if named.is_none() && hosts.is_none() && complaints.is_empty() {
            return None;
        }
        let adopt = annotations.get(ANNOTATION_ADOPT).map(|text| {
            let complain = |error| complaints.push(format!("{ANNOTATION_ADOPT} is {}: {error}", Excerpt(text)));
            text.trim().parse::<Adopt>().map_err(complain)
        });
        let share = wrong_share(annotations);
        let unclear = matches!(adopt, Some(Err(()))) || share.is_some();
        complaints.extend(share);
        complaints.extend(Traffic::read(annotations).1);
        Some(Self { named, hosts, adopt: adopt.and_then(Result::ok), unclear, complaints })
    }
}

/// The message about an invalid [`ANNOTATION_SHARE`], with the remedy; `None` if it is valid or absent.
pub fn wrong_share(annotations: &Pairs) -> Option<String> {
    let share = annotations.get(ANNOTATION_SHARE).filter(|value| !["true", "false"].contains(&value.trim()))?;
    Some(format!(
        "{ANNOTATION_SHARE} is {share:?}: write \"true\" or \"false\". Until then, existing instances stay as they are"
    ))
}

fn python(annotations: &Pairs, complaints: &mut Vec<String>) -> Option<Named> {
    const NAMESPACE: &str = ANNOTATION_PYTHON_NAMESPACE;
    const HOSTNAME: &str = ANNOTATION_PYTHON_HOSTNAME;
    let read = |key: &str| annotations.get(key).map(str::trim).filter(|value| !value.is_empty());
    let (namespace, service) = match (read(NAMESPACE), read(HOSTNAME)) {
        (None, None) => return None,
        (Some(namespace), Some(service)) => (namespace, service),
        (namespace, _) => {
            let (there, missing) = if namespace.is_some() { (NAMESPACE, HOSTNAME) } else { (HOSTNAME, NAMESPACE) };
            complaints.push(format!("{there} also needs {missing}: set both annotations, or none"));
            return None;
        }
    };
    let (ttl, ttl_asked) = read_ttl(
        read(ANNOTATION_PYTHON_TTL).map(|value| (ANNOTATION_PYTHON_TTL.to_owned(), value)),
        PYTHON_TTL,
        complaints,
    );
    Some(Named { target: Target { namespace: namespace.into(), service: service.into() }, ttl, ttl_asked })
}

fn external_dns(
    annotations: &Pairs,
    defined: Option<&BTreeSet<Box<str>>>,
    complaints: &mut Vec<String>,
) -> Option<Hosts> {
    let read = |name: &str| {
        EXTERNAL_DNS.iter().find_map(|prefix| {
            let key = format!("{prefix}{name}");
            let value = annotations.get(&key)?.trim();
            Some((key, value)).filter(|_| !value.is_empty())
        })
    };
    // The object is for another instance of external-dns.
    if read(EXTERNAL_DNS_CONTROLLER).is_some_and(|(_, controller)| controller != DNS_CONTROLLER) {
        return None;
    }
    let listed = |list: &str| -> BTreeSet<Arc<str>> {
        let hosts = list.split(',').map(|host| host.trim().trim_end_matches('.')).filter(|host| !host.is_empty());
        hosts.map(|host| host.to_ascii_lowercase().into()).collect()
    };
    let mut names = read(EXTERNAL_DNS_HOSTNAME).map(|(_, list)| listed(list)).unwrap_or_default();
    let mut internal = BTreeSet::new();
    match defined {
        None => {
            internal = read(EXTERNAL_DNS_INTERNAL_HOSTNAME).map(|(_, list)| listed(list)).unwrap_or_default();
        }
        Some(defined) => {
            let asks = [
                EXTERNAL_DNS_HOSTNAME,
                EXTERNAL_DNS_TARGET,
                EXTERNAL_DNS_TTL,
                EXTERNAL_DNS_CONTROLLER,
                EXTERNAL_DNS_SOURCE,
            ];
            let asks = asks.iter().any(|name| read(name).is_some());
            let source = read(EXTERNAL_DNS_SOURCE);
            let (annotated, own) = match source.as_ref().map(|(_, source)| source.to_ascii_lowercase()).as_deref() {
                None => (true, asks),
                Some("annotation-only") => (true, false),
                Some("defined-hosts-only") => (false, true),
                Some(_) => (false, false),
            };
            if !annotated {
                names.clear();
            }
            if own {
                let defined = defined.iter().map(|host| &**host).collect::<Vec<_>>().join(",");
                names.extend(listed(&defined));
            }
            if let Some((key, text)) = source.filter(|_| !annotated && !own) {
                complaints.push(format!(
                    "{key} is {}, which means no hosts: write \"annotation-only\" or \"defined-hosts-only\", or remove it",
                    Excerpt(text)
                ));
            }
        }
    }
    if names.is_empty() && internal.is_empty() {
        return None;
    }
    let targets = read(EXTERNAL_DNS_TARGET).and_then(|(key, list)| read_targets(&key, list, complaints));
    if let Some((key, kind)) = read(EXTERNAL_DNS_ENDPOINTS_TYPE) {
        complaints.push(format!(
            "{key}: {} is not supported, because pod addresses are registered; remove the annotation",
            Excerpt(kind)
        ));
    }
    let (ttl, ttl_asked) = read_ttl(read(EXTERNAL_DNS_TTL), EXTERNAL_DNS_DEFAULT_TTL, complaints);
    Some(Hosts { names, internal, targets, ttl, ttl_asked })
}

/// Parses the list of addresses and host names in an annotation; `None` if it is empty. What is neither is reported.
fn read_targets(key: &str, list: &str, complaints: &mut Vec<String>) -> Option<Vec<HostTarget>> {
    let listed: Vec<_> = list.split(',').map(str::trim).filter(|text| !text.is_empty()).collect();
    let (mut targets, mut wrong) = (Vec::new(), Vec::new());
    for text in &listed {
        match HostTarget::parse(text) {
            Ok(target) => targets.push(target),
            Err(no_host) => wrong.push(format!("{key} has {}, which {no_host}", Excerpt(text))),
        }
    }
    let meanwhile = if targets.is_empty() {
        "existing instances stay as they are, and nothing is registered"
    } else {
        "only the rest of the list is registered"
    };
    complaints.extend(wrong.into_iter().map(|wrong| format!("{wrong}. Until then, {meanwhile}")));
    (!listed.is_empty()).then_some(targets)
}

/// Parses seconds, or a duration in Go's syntax, and returns whether the annotation sets it. Zero means the default, as
/// in external-dns. Parts of a second do not count; a duration that consists of nothing else is not zero, but invalid.
fn read_ttl(annotation: Option<(String, &str)>, default: u32, complaints: &mut Vec<String>) -> (u32, bool) {
    let Some((key, text)) = annotation else { return (default, false) };
    let seconds = text.parse::<u64>().ok().or_else(|| {
        let duration = Duration::try_from(text.parse::<SignedDuration>().ok()?).ok()?;
        Some(duration.as_secs()).filter(|seconds| *seconds > 0 || duration.is_zero())
    });
    match seconds {
        Some(0) => (default, false),
        Some(seconds) if seconds <= MAX_TTL.into() => (u32::try_from(seconds).unwrap_or(default), true),
        _ => {
            complaints.push(format!(
                "{key} is {}: write seconds (\"60\") or a duration (\"1m30s\") from 1 to {MAX_TTL} seconds; {default} s are \
                 used",
                Excerpt(text)
            ));
            (default, false)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(annotations: &[(&str, &str)]) -> Option<Request> {
        Request::read(&annotations.iter().copied().collect())
    }

    fn hosts(annotations: &[(&str, &str)]) -> Hosts {
        let request = read(annotations).unwrap();
        assert_eq!(request.complaints, [""; 0]);
        request.hosts.unwrap()
    }

    fn set(names: &[&str]) -> BTreeSet<Arc<str>> {
        names.iter().map(|&name| name.into()).collect()
    }

    const ALPHA: &str = "external-dns.alpha.kubernetes.io/hostname";

    #[test]
    fn unrelated_annotations_request_nothing() {
        assert_eq!(read(&[]), None);
        assert_eq!(read(&[("cloudmap-mcs/share", "true"), ("external-dns.alpha.kubernetes.io/ttl", "60")]), None);
        assert_eq!(read(&[(ALPHA, " "), ("cloudmap.controller/ttl", "30")]), None);
    }

    /// `example/nginx-service.yaml` of the Python controller.
    #[test]
    fn the_python_controllers_names_are_used_verbatim_and_its_ttl_is_read() {
        let request = read(&[
            ("cloudmap.controller/namespace", "test-namespace"),
            ("cloudmap.controller/hostname", "nginx-service"),
            ("cloudmap.controller/ttl", "30"),
        ]);
        let target = Target { namespace: "test-namespace".into(), service: "nginx-service".into() };
        assert_eq!(request.unwrap().named, Some(Named { target, ttl: 30, ttl_asked: true }));
        let request = read(&[("cloudmap.controller/namespace", "N"), ("cloudmap.controller/hostname", "S.x")]).unwrap();
        let target = Target { namespace: "N".into(), service: "S.x".into() };
        assert_eq!(request.named, Some(Named { target, ttl: 60, ttl_asked: false }));
    }

    #[test]
    fn half_a_request_of_the_python_controller_is_refused_and_the_message_names_the_other_half() {
        let request = read(&[("cloudmap.controller/namespace", "n")]).unwrap();
        assert_eq!(request.named, None);
        assert!(request.complaints[0].contains("cloudmap.controller/hostname"), "{:?}", request.complaints);
    }

    #[test]
    fn both_prefixes_of_external_dns_are_read_name_by_name() {
        assert_eq!(hosts(&[(ALPHA, "nginx.external-dns-test.my-org.com")]).ttl, 300);
        let found = hosts(&[
            (ALPHA, "old.example.org"),
            ("external-dns.kubernetes.io/hostname", "a.example.org, B.example.org.,"),
            ("external-dns.alpha.kubernetes.io/internal-hostname", "in.example.org"),
            ("external-dns.alpha.kubernetes.io/target", "10.0.0.1, Lb.Example.org. ,fd00::1"),
            ("external-dns.kubernetes.io/ttl", "1m30s"),
        ]);
        assert_eq!(found.names, set(&["a.example.org", "b.example.org"]));
        assert_eq!(found.internal, set(&["in.example.org"]));
        let targets = ["10.0.0.1", "lb.example.org", "fd00::1"].map(|text| HostTarget::parse(text).unwrap());
        assert_eq!((found.targets, found.ttl), (Some(targets.into()), 90));
    }

    #[test]
    fn a_target_that_is_no_host_is_reported_with_what_to_write_and_left_out() {
        let target = "external-dns.alpha.kubernetes.io/target";
        let read = |list: &str| {
            let Request { hosts, complaints, .. } = read(&[(ALPHA, "a.example.org"), (target, list)]).unwrap();
            (hosts.unwrap().targets, complaints)
        };
        for (list, write) in [
            ("10.9.0.6:443", "write only \"10.9.0.6\""),
            ("https://lb.example.org/", "write only \"lb.example.org\""),
            ("10.0.0.1 10.0.0.2", "\"10.0.0.1,10.0.0.2\""),
        ] {
            let (targets, complaints) = read(list);
            let [complaint] = complaints.as_slice() else { panic!("{complaints:?}") };
            assert_eq!(targets, Some(Vec::new()), "{list}: the annotation is there");
            assert!(complaint.starts_with(target) && complaint.contains(write), "{complaint}");
            assert!(complaint.contains("existing instances stay"), "{complaint}");
        }
        let (targets, complaints) = read("10.0.0.1:80,10.0.0.2");
        assert_eq!(targets, Some(vec![HostTarget::Ip([10, 0, 0, 2].into())]));
        assert!(complaints[0].contains("the rest of the list"), "{complaints:?}");
        assert_eq!(read(" , "), (None, vec![]));
    }

    #[test]
    fn objects_for_another_controller_are_ignored() {
        let controller = "external-dns.alpha.kubernetes.io/controller";
        assert_eq!(read(&[(ALPHA, "a.example.org"), (controller, "other")]), None);
        assert!(read(&[(ALPHA, "a.example.org"), (controller, "dns-controller")]).is_some());
    }

    #[test]
    fn the_rules_of_an_ingress_count_once_it_has_any_annotation() {
        let rules = ["web.example.org".into()].into();
        let read = |annotations: &[(&str, &str)]| {
            let annotations = annotations.iter().copied().collect();
            Request::read_ingress(&annotations, &rules).and_then(|request| request.hosts).map(|hosts| hosts.names)
        };
        let source = "external-dns.alpha.kubernetes.io/ingress-hostname-source";
        let ttl = ("external-dns.alpha.kubernetes.io/ttl", "60");
        assert_eq!(read(&[]), None);
        assert_eq!(read(&[ttl]), Some(set(&["web.example.org"])));
        let both = Some(set(&["a.example.org", "web.example.org"]));
        assert_eq!(read(&[(ALPHA, "a.example.org")]), both);
        assert_eq!(read(&[(ALPHA, "a.example.org"), (source, "annotation-only")]), Some(set(&["a.example.org"])));
        assert_eq!(read(&[(ALPHA, "a.example.org"), (source, "defined-hosts-only")]), Some(set(&["web.example.org"])));
        assert_eq!(read(&[(ALPHA, "a.example.org"), (source, "Annotation-Only")]), Some(set(&["a.example.org"])));
        assert_eq!(read(&[(ALPHA, "a.example.org"), (source, "Defined-Hosts-Only")]), Some(set(&["web.example.org"])));
        let inner = ("external-dns.alpha.kubernetes.io/internal-hostname", "in.example.org");
        assert_eq!(read(&[(ALPHA, "a.example.org"), inner]), both, "Ingresses have no inner addresses");
    }

    /// external-dns reports nothing in this case.
    #[test]
    fn an_invalid_source_of_hosts_means_no_hosts_and_is_reported() {
        let source = "external-dns.alpha.kubernetes.io/ingress-hostname-source";
        let annotations = [(ALPHA, "a.example.org"), (source, "rules-only")];
        let annotations = annotations.into_iter().collect();
        let request = Request::read_ingress(&annotations, &["web.example.org".into()].into()).unwrap();
        assert_eq!(request.hosts, None);
        let [complaint] = request.complaints.as_slice() else { panic!("{:?}", request.complaints) };
        assert!(complaint.contains("\"rules-only\"") && complaint.contains("annotation-only"), "{complaint}");
    }

    #[test]
    fn ttls_are_seconds_or_go_durations() {
        for (text, ttl) in [
            ("60", 60),
            ("1m", 60),
            ("1h30m", 5400),
            ("90s", 90),
            ("1.5h", 5400),
            ("1s", 1),
            ("1500ms", 1),
            ("2.9s", 2),
            ("0", 300),
            ("0s", 300),
            ("2147483647", 2_147_483_647),
        ] {
            let found = hosts(&[(ALPHA, "a.example.org"), ("external-dns.alpha.kubernetes.io/ttl", text)]);
            assert_eq!(found.ttl, ttl, "{text}");
        }
        for text in ["soon", "-1", "2147483648", "-5m", "1d?", "500ms", "0.9s", "1ns", "0.5"] {
            let request = read(&[(ALPHA, "a.example.org"), ("external-dns.alpha.kubernetes.io/ttl", text)]).unwrap();
            assert_eq!(request.hosts.unwrap().ttl, 300);
            assert!(request.complaints[0].contains("io/ttl is") && request.complaints[0].contains("1m30s"), "{text}");
        }
    }

    #[test]
    fn only_true_and_false_are_valid_for_sharing() {
        for (value, wrong) in [("true", false), (" false ", false), ("yes", true), ("True", true), ("", true)] {
            let request = read(&[(ALPHA, "a.example.org"), ("cloudmap-mcs/share", value)]).unwrap();
            assert_eq!(request.unclear, wrong, "{value:?}");
            assert_eq!(
                request.complaints.iter().any(|text| text.contains("cloudmap-mcs/share is")),
                wrong,
                "{value:?}"
            );
            assert!(request.hosts.is_some(), "the names are asked for all the same");
        }
    }

    #[test]
    fn unknown_owners_are_reported_and_the_rest_is_planned() {
        let request = read(&[(ALPHA, "a.example.org"), ("cloudmap-mcs/adopt", "eks")]).unwrap();
        assert_eq!(request.hosts.unwrap().names, set(&["a.example.org"]));
        assert!(request.adopt.is_none() && request.unclear);
        assert!(request.complaints[0].contains("external-dns/<owner id>"), "{:?}", request.complaints);
        let request = read(&[(ALPHA, "a.example.org"), ("cloudmap-mcs/adopt", "external-dns/eks")]).unwrap();
        assert_eq!(request.adopt, Some(Adopt::ExternalDns("eks".into())));
    }
}
