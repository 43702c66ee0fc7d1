//! What the annotations of an object say, in words of their own: no Cloud Map, no endpoints.

use std::{collections::BTreeSet, net::IpAddr, sync::Arc, time::Duration};

use k8s_openapi::jiff::SignedDuration;

use crate::{
    api::names::{ANNOTATION_ADOPT, ANNOTATION_SHARE},
    instances::{Adopt, records::MAX_TTL},
    model::{Excerpt, Pairs, Target},
};

/// The Python CloudMap Kubernetes Controller's.
const PYTHON: &str = "cloudmap.controller/";
/// external-dns': the first is read where both say something; v0.22 made it the default.
const EXTERNAL_DNS: [&str; 2] = ["external-dns.kubernetes.io/", "external-dns.alpha.kubernetes.io/"];
/// On an Ingress: whether the annotation or the rules name the hosts, in any case of letters; without it both do.
const SOURCE: &str = "ingress-hostname-source";
/// The only value of external-dns' annotation `controller` that means it.
const DNS_CONTROLLER: &str = "dns-controller";

/// TTL of the Python controller's records, seconds.
pub const PYTHON_TTL: u32 = 60;
/// TTL that external-dns gives to records where none is asked for, seconds.
pub const EXTERNAL_DNS_TTL: u32 = 300;
/// What an object asks for.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Request {
    /// `cloudmap.controller/namespace` and `cloudmap.controller/hostname`, verbatim.
    pub named: Option<Named>,
    pub hosts: Option<Hosts>,
    /// Take over from this controller.
    pub adopt: Option<Adopt>,
    /// Whether to share a service, or from whom to take it over, cannot be understood.
    pub unclear: bool,
    /// Annotations that cannot be understood, with the remedy. What remains is asked for nevertheless.
    pub complaints: Vec<String>,
}

/// The Python controller's request: both names are opaque, API-only namespaces included.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Named {
    pub target: Target,
    /// Seconds.
    pub ttl: u32,
    /// An annotation says so.
    pub ttl_asked: bool,
}

/// external-dns' request.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Hosts {
    /// Names of what the outside reaches.
    pub names: BTreeSet<Arc<str>>,
    /// Names of what only the cluster reaches: `internal-hostname`.
    pub internal: BTreeSet<Arc<str>>,
    /// What the names lead to, in place of what the object itself has.
    pub targets: Vec<HostTarget>,
    /// Seconds.
    pub ttl: u32,
    /// An annotation says so.
    pub ttl_asked: bool,
}

/// An address, or the name of another host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HostTarget {
    Ip(IpAddr),
    Name(Arc<str>),
}

impl HostTarget {
    /// Reads an address or a host name; names are in lower case, without the dot at the end.
    pub fn parse(text: &str) -> Self {
        let text = text.trim().trim_end_matches('.');
        text.parse().map_or_else(|_| Self::Name(text.to_ascii_lowercase().into()), Self::Ip)
    }
}

impl Request {
    /// Reads annotations. `None`: they ask for nothing.
    pub fn read(annotations: &Pairs) -> Option<Self> {
        let mut complaints = Vec::new();
        let named = python(annotations, &mut complaints);
        let hosts = external_dns(annotations, None, &mut complaints);
        Self::complete(annotations, named, hosts, complaints)
    }

    /// Reads the annotations of an Ingress, which names hosts itself. An Ingress without any of external-dns' annotations asks
    /// for nothing.
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
        Some(Self { named, hosts, adopt: adopt.and_then(Result::ok), unclear, complaints })
    }
}

/// What is wrong with the annotation that asks to share a service, with the remedy; `None`: nothing.
pub fn wrong_share(annotations: &Pairs) -> Option<String> {
    let share = annotations.get(ANNOTATION_SHARE).filter(|value| !["true", "false"].contains(&value.trim()))?;
    Some(format!(
        "{ANNOTATION_SHARE} is {share:?}: write \"true\" or \"false\". Until then what is registered stays as it is"
    ))
}

fn python(annotations: &Pairs, complaints: &mut Vec<String>) -> Option<Named> {
    let read = |name: &str| {
        annotations.get(format!("{PYTHON}{name}").as_str()).map(|value| value.trim()).filter(|value| !value.is_empty())
    };
    let (namespace, service) = match (read("namespace"), read("hostname")) {
        (None, None) => return None,
        (Some(namespace), Some(service)) => (namespace, service),
        (namespace, _) => {
            let (there, missing) =
                if namespace.is_some() { ("namespace", "hostname") } else { ("hostname", "namespace") };
            complaints.push(format!("{PYTHON}{there} needs {PYTHON}{missing} beside it: annotate both, or none"));
            return None;
        }
    };
    let (ttl, ttl_asked) = read_ttl(read("ttl").map(|value| (format!("{PYTHON}ttl"), value)), PYTHON_TTL, complaints);
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
            let value = annotations.get(key.as_str())?.trim();
            Some((key, value)).filter(|_| !value.is_empty())
        })
    };
    // Meant for another instance of external-dns, which is to be left alone.
    if read("controller").is_some_and(|(_, controller)| controller != DNS_CONTROLLER) {
        return None;
    }
    let mut listed = |key: &str, list: &str| {
        let mut names = BTreeSet::new();
        for host in list.split(',').map(|host| host.trim().trim_end_matches('.')).filter(|host| !host.is_empty()) {
            if host.contains('*') {
                complaints.push(format!("{key} has {host:?}: Cloud Map has no wildcards; list the names one by one"));
            } else {
                names.insert(host.to_ascii_lowercase().into());
            }
        }
        names
    };
    let mut names = read("hostname").map(|(key, list)| listed(&key, list)).unwrap_or_default();
    let mut internal = BTreeSet::new();
    match defined {
        None => internal = read("internal-hostname").map(|(key, list)| listed(&key, list)).unwrap_or_default(),
        Some(defined) => {
            let asks = ["hostname", "target", "ttl", "controller", SOURCE].iter().any(|name| read(name).is_some());
            let source = read(SOURCE);
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
                names.extend(listed("spec.rules", &defined));
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
    let list = read("target").map_or("", |(_, list)| list);
    let targets = list.split(',').filter(|target| !target.trim().is_empty()).map(HostTarget::parse).collect();
    if let Some((key, kind)) = read("endpoints-type") {
        complaints.push(format!(
            "{key}: {} is not supported, pod addresses are registered; remove the annotation",
            Excerpt(kind)
        ));
    }
    let (ttl, ttl_asked) = read_ttl(read("ttl"), EXTERNAL_DNS_TTL, complaints);
    Some(Hosts { names, internal, targets, ttl, ttl_asked })
}

/// Seconds, or a duration as Go writes it; and whether that was asked for. Zero means the default, as in external-dns.
fn read_ttl(annotation: Option<(String, &str)>, default: u32, complaints: &mut Vec<String>) -> (u32, bool) {
    let Some((key, text)) = annotation else { return (default, false) };
    let seconds = text.parse::<u64>().ok().or_else(|| {
        let duration = text.parse::<SignedDuration>().ok()?;
        Duration::try_from(duration).ok().map(|duration| duration.as_secs())
    });
    match seconds {
        Some(0) => (default, false),
        Some(seconds) if seconds <= MAX_TTL.into() => (u32::try_from(seconds).unwrap_or(default), true),
        _ => {
            complaints.push(format!(
                "{key} is {}: write seconds (\"60\") or a duration (\"1m30s\") of at most {MAX_TTL} seconds; {default} s \
                 are used",
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
        Request::read(&annotations.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect())
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
    fn annotations_that_ask_for_nothing_are_nothing() {
        assert_eq!(read(&[]), None);
        assert_eq!(read(&[("cloudmap-mcs/share", "true"), ("external-dns.alpha.kubernetes.io/ttl", "60")]), None);
        assert_eq!(read(&[(ALPHA, " "), ("cloudmap.controller/ttl", "30")]), None);
    }

    /// `example/nginx-service.yaml` of the Python controller.
    #[test]
    fn the_python_controllers_names_are_taken_verbatim_and_its_ttl_is_read() {
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
    fn half_a_request_of_the_python_controller_is_refused_with_the_other_half() {
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
        let targets = ["10.0.0.1", "lb.example.org", "fd00::1"].map(HostTarget::parse);
        assert_eq!((found.targets.as_slice(), found.ttl), (&targets[..], 90));
    }

    #[test]
    fn what_is_meant_for_another_controller_is_left_to_it() {
        let controller = "external-dns.alpha.kubernetes.io/controller";
        assert_eq!(read(&[(ALPHA, "a.example.org"), (controller, "other")]), None);
        assert!(read(&[(ALPHA, "a.example.org"), (controller, "dns-controller")]).is_some());
    }

    #[test]
    fn an_ingress_names_hosts_itself_once_any_annotation_says_that_it_is_meant() {
        let rules = ["web.example.org".into(), "*.example.org".into()].into();
        let read = |annotations: &[(&str, &str)]| {
            let annotations = annotations.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect();
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

    /// external-dns says nothing of it.
    #[test]
    fn a_source_of_hosts_that_is_none_means_no_hosts_and_is_complained_about() {
        let source = "external-dns.alpha.kubernetes.io/ingress-hostname-source";
        let annotations = [(ALPHA, "a.example.org"), (source, "rules-only")];
        let annotations = annotations.into_iter().map(|(name, value)| (name.into(), value.into())).collect();
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
            ("0", 300),
            ("2147483647", 2_147_483_647),
        ] {
            let found = hosts(&[(ALPHA, "a.example.org"), ("external-dns.alpha.kubernetes.io/ttl", text)]);
            assert_eq!(found.ttl, ttl, "{text}");
        }
        for text in ["soon", "-1", "2147483648", "-5m", "1d?"] {
            let request = read(&[(ALPHA, "a.example.org"), ("external-dns.alpha.kubernetes.io/ttl", text)]).unwrap();
            assert_eq!(request.hosts.unwrap().ttl, 300);
            assert!(request.complaints[0].contains("io/ttl is") && request.complaints[0].contains("1m30s"), "{text}");
        }
    }

    #[test]
    fn whether_to_share_is_said_by_true_or_false_alone() {
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
    fn wildcards_and_unknown_owners_are_complained_about_and_the_rest_is_done() {
        let request = read(&[(ALPHA, "*.example.org,a.example.org"), ("cloudmap-mcs/adopt", "eks")]).unwrap();
        assert_eq!(request.hosts.unwrap().names, set(&["a.example.org"]));
        assert!(request.adopt.is_none() && request.unclear);
        assert!(
            request.complaints[0].contains("wildcards") && request.complaints[1].contains("external-dns/<owner id>")
        );
        let request = read(&[(ALPHA, "a.example.org"), ("cloudmap-mcs/adopt", "external-dns/eks")]).unwrap();
        assert_eq!(request.adopt, Some(Adopt::ExternalDns("eks".into())));
    }
}
