//! Annotations, which users and other tools wrote.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    str::FromStr,
    sync::Arc,
};

use annotations::{Request, request::HostTarget};
use api::{drain, names, selection::ClusterSelection, weights::Weights};
use cloudmap::attributes::check_name;
use cluster::objects::Namespace;
use discovery::ImportFrom;
use export::Quota;
use instances::{Adopt, RegistrationPolicy, Rights, Share, Traffic, custom, records::Wishes, target};
use model::{ClusterId, Drain, MinReady, Pairs, Target as CloudMapService};

use super::{Target, Verdict, fields, holds, same};

pub(super) const TARGETS: &[Target] = &[
    Target { name: "annotations", corpus, words: WORDS, longest: 16_000, quick: 3_000, check },
    Target { name: "selection", corpus: selections, words: WORDS, longest: 32_000, quick: 1_000, check: selection },
    Target { name: "value", corpus: values, words: WORDS, longest: 4_000, quick: 3_000, check: value },
    Target {
        name: "pattern",
        corpus: patterns,
        words: &["*", "*a", "a*", "internal", "web", "/", ","],
        longest: 4_000,
        quick: 3_000,
        check: pattern,
    },
];

const WORDS: &[&str] = &[
    names::ANNOTATION_ADOPT,
    names::ANNOTATION_PYTHON_NAMESPACE,
    names::ANNOTATION_PYTHON_HOSTNAME,
    names::ANNOTATION_PYTHON_TTL,
    names::ANNOTATION_SHARE_OF_TRAFFIC,
    names::ANNOTATION_ATTRIBUTES,
    names::ANNOTATION_RECORDS,
    names::ANNOTATION_TTL,
    "external-dns.kubernetes.io/hostname",
    "external-dns.alpha.kubernetes.io/hostname",
    "external-dns.kubernetes.io/target",
    "external-dns.kubernetes.io/ttl",
    "external-dns.kubernetes.io/controller",
    "external-dns.kubernetes.io/ingress-hostname-source",
    "a.example.com",
    "https://user@a.example.com:80/x?y#z",
    "[2001:db8::1]:80",
    "192.0.2.0/24",
    "*.example.com",
    "1m30s",
    "PT1M",
    "1h",
    "-1s",
    "100%",
    "0%",
    "any",
    "true",
    "false",
    "local-first",
    "local-only",
    "spread",
    "blue",
    "green",
    "=",
    ",",
    "%",
    "null",
    "~",
    "&a",
    "*a",
    "- ",
    "[",
    "]",
    "{",
    "}",
    "!!binary ",
    "propertySelector",
    "matchLabels",
    "matchExpressions",
    "operator: In",
    "values: [a]",
    "key: tier",
    "<same as importer>",
    "names=2000",
    "bytes=1",
    "{namespace}",
    "arn:aws:servicediscovery:",
    ":namespace/ns-",
];

/// All annotations of an object, as one input of keys and values.
fn corpus() -> Vec<Vec<u8>> {
    let dns = "external-dns.kubernetes.io/";
    let alpha = "external-dns.alpha.kubernetes.io/";
    let python = vec![
        (names::ANNOTATION_PYTHON_NAMESPACE.to_owned(), "internal"),
        (names::ANNOTATION_PYTHON_HOSTNAME.to_owned(), "web"),
        (names::ANNOTATION_PYTHON_TTL.to_owned(), "60"),
        (names::ANNOTATION_ADOPT.to_owned(), "cloudmap-controller"),
        (names::ANNOTATION_SHARE.to_owned(), "true"),
        (names::ANNOTATION_SHARE_OF_TRAFFIC.to_owned(), "12.5 %"),
        (names::ANNOTATION_ATTRIBUTES.to_owned(), "version=1, team=shop"),
        (names::ANNOTATION_RECORDS.to_owned(), "A, AAAA"),
        (names::ANNOTATION_HEALTH_CHECK.to_owned(), "custom"),
    ];
    let hosts = vec![
        (format!("{dns}hostname"), "a.example.com, B.example.com."),
        (format!("{dns}internal-hostname"), "i.example.com"),
        (format!("{dns}target"), "192.0.2.7,lb.example.com"),
        (format!("{dns}ttl"), "1m30s"),
        (names::ANNOTATION_ADOPT.to_owned(), "external-dns/one"),
        (names::ANNOTATION_ATTRIBUTES.to_owned(), "{\"version\": \"1\"}"),
    ];
    let ingress = vec![
        (format!("{alpha}hostname"), "a.example.com"),
        (format!("{alpha}ingress-hostname-source"), "annotation-only"),
        (format!("{alpha}controller"), "dns-controller"),
        (format!("{alpha}target"), "https://a.example.com/, 192.0.2.0/24"),
    ];
    let input = |pairs: &Vec<(String, &str)>| {
        fields::join(pairs.iter().flat_map(|(key, value)| [key.as_bytes(), value.as_bytes()]))
    };
    [python, hosts, ingress].iter().map(input).collect()
}

fn check(input: &[u8]) -> Verdict {
    let parts = fields::split(input);
    let pairs: Pairs = fields::pairs(&parts).collect();
    let defined: BTreeSet<Box<str>> = ["i.example.com", "*.example.com"].map(Into::into).into();
    let requests = [Request::read(&pairs), Request::read_ingress(&pairs, &defined)];
    let mut said: Vec<String> = Vec::new();
    for request in requests.iter().flatten() {
        let ttls = request.named.iter().map(|named| named.ttl).chain(request.hosts.iter().map(|hosts| hosts.ttl));
        holds(ttls.into_iter().all(|ttl| ttl > 0 && ttl < 1 << 31), || format!("the TTL of {request:?}"))?;
        for host in request.hosts.iter().flat_map(|hosts| hosts.names.iter().chain(&hosts.internal)) {
            holds(!host.is_empty() && !host.contains(','), || format!("the host {host:?}"))?;
        }
        said.extend(request.complaints.iter().cloned());
    }
    let (attributes, wrong) = custom::read(&pairs);
    holds(attributes.keys().all(|name| check_name(name).is_ok()), || format!("the attributes {attributes:?}"))?;
    said.extend(wrong);
    said.extend(Traffic::read(&pairs).1);
    said.extend(Wishes::read(&pairs).err());
    // Conditions and Events cut texts, but each is made first.
    let length: usize = said.iter().map(String::len).sum();
    holds(length <= 4_000 + 400 * input.len(), || format!("{length} bytes are said of {}", input.len()))?;
    Ok(requests.iter().any(Option::is_some))
}

fn selections() -> Vec<Vec<u8>> {
    let selectors = "- propertySelector:\n    matchLabels:\n      region.topology.k8s.io: eu-central-1\n    matchExpressions:\n    - \
                     {key: tier, operator: NotIn, values: [gold, silver]}\n";
    let json = r#"[{"propertySelector": {"matchLabels": {"tier": "gold"}}}, {"propertySelector": {"matchExpressions": [{"key": "tier", "operator": "Exists"}]}}]"#;
    let of = |texts: [&str; 4]| fields::join(texts);
    let mut all = vec![
        of(["local-first", "AllClusters", "50%", "blue=90%,green=10%"]),
        of(["local-only", "None", "any", ""]),
        of([selectors, "None", "10%", "blue=100%"]),
        of([json, "AllClusters", "100%", ""]),
        of(["", "", "", "blue=1%"]),
    ];
    let published = |input: &Vec<u8>| Some(read(&fields::split(input)).ok()??.published().as_bytes().to_vec());
    let published: Vec<Vec<u8>> = all.iter().filter_map(published).collect();
    all.extend(published);
    all
}

/// The selection in four annotations, of which empty ones are absent.
fn read(parts: &[&[u8]]) -> Result<Option<ClusterSelection>, String> {
    let texts: Vec<String> = parts.iter().map(|part| fields::text(part)).collect();
    let text = |n: usize| texts.get(n).map(String::as_str).filter(|text| !text.is_empty());
    ClusterSelection::read([text(0), text(1), text(2), text(3)], names::CLUSTER_SELECTION)
        .map_err(|error| error.to_string())
}

fn selection(input: &[u8]) -> Verdict {
    // What an annotation says, or what another cluster published.
    let published = ClusterSelection::from_published(&String::from_utf8_lossy(input)).ok();
    let annotated = read(&fields::split(input)).ok().flatten();
    for selection in published.iter().chain(&annotated) {
        let again = ClusterSelection::from_published(&selection.published()).map_err(|error| error.to_string());
        // What others published in more words than fit here is not published again.
        if selection.published().len() <= input.len() || annotated.is_some() {
            same("the selection", &Ok(selection.clone()), &again)?;
        }
        let _ = selection.for_importer(&BTreeMap::default());
        holds(selection.weights().rest() <= 100, || "weights".to_owned())?;
    }
    Ok(published.is_some() || annotated.is_some())
}

fn values() -> Vec<Vec<u8>> {
    let texts = [
        "blue=90%,green=10%",
        "100-50",
        "50%",
        "any",
        "12.5 %",
        "external-dns/one",
        "cloudmap-controller",
        "blue",
        "names=2000, bytes=1",
        "internal,{namespace}.internal",
        "us/internal,arn:aws:servicediscovery:eu-central-1:111122223333:namespace/ns-abcdefghij123456",
        "192.0.2.7",
        "lb.example.com.",
        "true",
        "eu-central-1",
    ];
    texts.map(|text| text.as_bytes().to_vec()).into()
}

/// Whether the text is such a value; then the value has a text that means it.
fn comes_back<T: FromStr + fmt::Display + PartialEq + fmt::Debug>(text: &str) -> Verdict {
    let Ok(value) = text.parse::<T>() else { return Ok(false) };
    same("the value", &Some(&value), &value.to_string().parse().ok().as_ref())?;
    Ok(true)
}

fn value(input: &[u8]) -> Verdict {
    let text = String::from_utf8_lossy(input);
    let all = [
        comes_back::<Weights>(&text)?,
        comes_back::<Drain>(&text)?,
        comes_back::<MinReady>(&text)?,
        comes_back::<Share>(&text)?,
        comes_back::<Adopt>(&text)?,
        comes_back::<ClusterId>(&text)?,
        comes_back::<Quota>(&text)?,
        drain::read([Some(&text), Some(&text)], names::DRAIN).is_ok(),
        text.parse::<ImportFrom>().map(|it| it.in_namespace("shop")).is_ok_and(|names| !names.is_empty()),
        HostTarget::parse(&text).is_ok(),
    ];
    let refused = HostTarget::parse(&text).err().map_or(0, |why| why.to_string().len() + why.hint().len());
    holds(refused <= 2_000 + 20 * text.len(), || format!("{refused} bytes are said of {}", text.len()))?;
    if let Some((namespace, service)) = text.split_once('/') {
        let _ = target::validate(&CloudMapService { namespace: namespace.into(), service: service.into() });
    }
    Ok(all.contains(&true))
}

fn patterns() -> Vec<Vec<u8>> {
    let of = |grants: &str, namespace: &str, service: &str| fields::join([grants, namespace, service]);
    vec![
        of("internal/web", "internal", "web"),
        of("internal/*, *.example/api-*-v*", "x.example", "api-1-v2"),
        of("*/*", "internal", "web"),
        of("*a*a*a*a*a*a*a*/*b*b*b*b*b*b", &"a".repeat(200), &"b".repeat(200)),
    ]
}

/// Grants, and a target for which they are looked through.
fn pattern(input: &[u8]) -> Verdict {
    let parts: Vec<String> = fields::split(input).iter().map(|part| fields::text(part)).collect();
    let [grants, namespace, service] = &parts[..] else { return Ok(false) };
    let target = CloudMapService { namespace: namespace.as_str().into(), service: service.as_str().into() };
    let shop: Arc<str> = "shop".into();
    let mut rights = Rights::new(RegistrationPolicy::Granted);
    let text = || Some(Arc::from(grants.as_str()));
    rights.namespace_changed(
        &shop,
        Some(&Namespace {
            name: shop.clone(),
            uid: "uid".into(),
            terminating: false,
            labels: [].into(),
            import_from: None,
            accept_clusters: None,
            may_register: text(),
            may_create: text(),
            allow_adopt: text(),
            quota: None,
            cluster_selection: [const { None }; 4],
        }),
    );
    rights.register(&shop, &target);
    rights.creates(&shop, namespace);
    let is_granted = rights.is_granted(&shop, &target);
    let grants_all = grants.split(',').any(|grant| grant.trim() == "*/*");
    holds(is_granted || !grants_all, || "`*/*` does not grant it".to_owned())?;
    Ok(is_granted)
}
