//! Pure: names of the zone that something else answers than the `kubernetes` plugin, or nothing.

use super::{
    corefile::{Corefile, caches_for, covers, is, is_variable, may_be, name, within},
    edit, node_local, rewrite,
    syntax::{Directive, Refusal, Server, Word},
};

/// Something that leads names astray.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Astray {
    /// With its line.
    pub(super) what: String,
    pub(super) remedy: String,
    /// It is about all names, and not only about some, or about how fast they change.
    pub(super) all: bool,
}

impl Astray {
    fn some(line: usize, what: impl std::fmt::Display, remedy: impl Into<String>) -> Self {
        Self { what: format!("line {line}: {what}"), remedy: remedy.into(), all: false }
    }

    fn every(line: usize, what: impl std::fmt::Display, remedy: impl Into<String>) -> Self {
        Self { all: true, ..Self::some(line, what, remedy) }
    }
}

/// A name of a Service in the zone, as queries have it, but for the dot at its end.
pub(super) fn example(zone: &str) -> String {
    format!("my-service.my-namespace.svc.{zone}")
}

/// What leads names astray in CoreDNS itself, once it has the zone.
pub(super) fn in_coredns(text: &str, zone: &str) -> Result<Vec<Astray>, Refusal> {
    let corefile = Corefile::parse(text)?;
    let mut found = Vec::new();
    for server in edit::answering(&corefile, zone)? {
        found.extend(below(&corefile, server, zone, |_| false));
        found.extend(rewrite::rewrites(server, zone));
        let Some(kubernetes) = server.plugin("kubernetes") else { continue };
        found.extend(before(server, zone));
        found.extend(options(kubernetes, zone));
        found.extend(after(server, kubernetes, zone));
    }
    found.dedup();
    Ok(found)
}

/// What leads names astray in NodeLocal DNSCache, once it has the zone.
pub(super) fn in_node_local(text: &str, domains: &[String], zone: &str) -> Result<Vec<Astray>, Refusal> {
    let corefile = Corefile::parse(text)?;
    let Some((domain, model)) = node_local::model(&corefile, domains) else { return Ok(Vec::new()) };
    let mut found = Vec::new();
    for server in node_local::serving(&corefile, model, domain, zone) {
        found.extend(below(&corefile, server, zone, |other| node_local::goes_alike(other, model)));
        found.extend(rewrite::rewrites(server, zone));
        if server.is_of(zone) && !node_local::goes_alike(server, model) {
            let line = server.line();
            let there = node_local::target(model).unwrap_or_default().join(" ");
            found.push(Astray::every(
                line,
                format_args!("{zone} does not go where {domain} goes, to the cluster's DNS"),
                format!("write `forward . {there}` in this server block, or remove it, and run this again"),
            ));
        }
        if server.is_of(zone) || node_local::goes_alike(server, model) {
            found.extend(keeps(server, zone));
        }
    }
    found.dedup();
    Ok(found)
}

/// Server blocks of a part of the zone: CoreDNS takes the one with the longest address.
fn below(corefile: &Corefile, answering: &Server, zone: &str, right: impl Fn(&Server) -> bool) -> Vec<Astray> {
    let sockets: Vec<_> = answering.zones().map(|(_, socket)| socket).collect();
    let mut found = Vec::new();
    let other = |server: &&Server| !std::ptr::eq(*server, answering) && !answers(server, zone) && !right(server);
    for server in corefile.servers().iter().filter(other) {
        for (part, _) in server
            .zones()
            .filter(|(part, socket)| part != zone && within(part, zone) && sockets.iter().any(|it| may_be(it, socket)))
        {
            let line = server.line();
            let whither = match node_local::target(server) {
                Some(target) if !target.is_empty() => format!("they go to {}", target.join(" ")),
                _ => "and not `kubernetes`".to_owned(),
            };
            let remedy = "remove this server block, or its address";
            let svc = format!("svc.{zone}");
            found.push(if part == svc {
                let what = format!("the server block of {part} answers for all names of Services in {zone}: {whither}");
                Astray::every(line, what, remedy)
            } else {
                let labels: Vec<_> = part.strip_suffix(&svc).unwrap_or_default().split('.').rev().skip(1).collect();
                let whose = match *labels {
                    [namespace] => format!("of the namespace {namespace}"),
                    [namespace, service, ..] => format!("of the Service {namespace}/{service}"),
                    [] => format!("below {part}"),
                };
                Astray::some(
                    line,
                    format_args!("another server block answers for the names {whose}: {whither}"),
                    remedy,
                )
            });
        }
    }
    found
}

/// Whether a server block answers for the zone by a `kubernetes` of its own.
fn answers(server: &Server, zone: &str) -> bool {
    server.plugins("kubernetes").any(|kubernetes| {
        kubernetes.options("multicluster").last().is_some_and(|option| option.args().iter().any(|word| is(word, zone)))
    })
}

fn falls_through(plugin: &Directive, zone: &str) -> bool {
    plugin.options("fallthrough").any(|option| option.args().is_empty() || covers(option.args(), zone))
}

/// Plugins that come before `kubernetes`, whatever their order in the file.
fn before(server: &Server, zone: &str) -> Vec<Astray> {
    let mut found = Vec::new();
    let own: Vec<_> = server.zones().map(|(served, _)| served).collect();
    let covered = |zones: &[Word]| {
        if zones.is_empty() { own.iter().any(|served| within(zone, served)) } else { covers(zones, zone) }
    };
    for hosts in server.plugins("hosts").filter(|it| covered(it.args().get(1..).unwrap_or_default())) {
        if !falls_through(hosts, zone) {
            let remedy = match hosts.options("fallthrough").last() {
                Some(option) => format!("add {zone} to `fallthrough` in line {}", option.line()),
                None => "add `fallthrough` to its block".to_owned(),
            };
            let what = format_args!("`hosts` answers for {zone} before `kubernetes`, and knows none of its names");
            found.push(Astray::every(hosts.line(), what, remedy));
        }
    }
    for external in server.plugins("k8s_external").filter(|it| covers(it.args(), zone)) {
        let what = format_args!("`k8s_external` answers for {zone} before `kubernetes`");
        found.push(Astray::every(external.line(), what, format!("take {zone} from its zones")));
    }
    for template in server.plugins("template") {
        let kind = template.args().get(1).map(|word| word.text.to_ascii_uppercase()).unwrap_or_default();
        if !["A", "ANY"].contains(&&*kind) || !covered(template.args().get(2..).unwrap_or_default()) {
            continue;
        }
        let name = format!("{}.", example(zone));
        let mut patterns = template.options("match").flat_map(Directive::args).peekable();
        let matches =
            patterns.peek().is_none() || patterns.any(|word| rewrite::matches(&word.text, &name).unwrap_or(true));
        if !falls_through(template, zone) || (matches && template.options("answer").next().is_some()) {
            let what = format_args!("`template` answers for {zone} before `kubernetes`");
            let remedy = format!("take {zone} from its zones, or add `fallthrough` to its block");
            found.push(Astray::every(template.line(), what, remedy));
        }
    }
    found
}

/// Options of `kubernetes` that leave names out.
fn options(kubernetes: &Directive, zone: &str) -> Vec<Astray> {
    let own = format!("or give {zone} a server block of its own, with a `kubernetes` that has not this option");
    let found = kubernetes.all_options().iter().filter_map(|option| {
        let (line, args) = (option.line(), option.args().iter().map(|word| &*word.text).collect::<Vec<_>>().join(" "));
        match option.name() {
            "namespaces" => Some(Astray::some(
                line,
                format_args!("`namespaces {args}`: names of all other namespaces do not exist (NXDOMAIN)"),
                format!("add the namespaces that import, {own}"),
            )),
            // CoreDNS looks for these labels on ServiceImports, too, and the imports of this controller have them not.
            "namespace_labels" => Some(Astray::every(
                line,
                format_args!("`namespace_labels {args}`: CoreDNS takes only ServiceImports that have these labels themselves"),
                format!("remove the option, {own}"),
            )),
            "labels" => Some(Astray::some(
                line,
                format_args!("`labels {args}`: names of headless Services and of single pods exist only with these labels on \
                              EndpointSlices"),
                format!("remove the option, {own}"),
            )),
            "noendpoints" => Some(Astray::some(
                line,
                "`noendpoints`: CoreDNS promises no names of headless Services and of single pods (NXDOMAIN)",
                format!("remove the option, {own}"),
            )),
            "endpoint_pod_names" => Some(Astray::some(
                line,
                "`endpoint_pod_names`: pods of other clusters without a hostname have names of their addresses, such as \
                 10-0-0-1, and not their own",
                "use names of pods only where pods have a hostname, as those of StatefulSets have",
            )),
            "endpoint" | "kubeconfig" => Some(Astray::some(
                line,
                format_args!("`{}`: CoreDNS reads by these credentials, and not as a service account of its pods", option.name()),
                "allow their user to list and watch serviceimports.multicluster.x-k8s.io (coredns/rbac.yaml)",
            )),
            _ => None,
        }
    });
    found.collect()
}

/// Plugins behind `kubernetes` that answered for the zone: it answers now, also that a name does not exist.
fn after(server: &Server, kubernetes: &Directive, zone: &str) -> Vec<Astray> {
    if falls_through(kubernetes, zone) {
        return Vec::new();
    }
    let behind = [
        ("forward", 0, 1),
        ("grpc", 0, 1),
        ("file", 1, usize::MAX),
        ("secondary", 0, usize::MAX),
        ("etcd", 0, usize::MAX),
    ];
    let mut found = Vec::new();
    for (plugin, first, last) in behind {
        for directive in server.plugins(plugin) {
            let args = directive.args();
            let zones = &args[first.min(args.len())..last.min(args.len())];
            if let Some(own) = zones.iter().find(|word| !is_variable(&word.text) && within(&name(&word.text), zone)) {
                found.push(Astray::some(
                    directive.line(),
                    format_args!(
                        "`{plugin}` has {}, but `kubernetes` answers first, and says that its names do not exist",
                        own.text
                    ),
                    format!(
                        "remove it, or add `fallthrough {}` to `kubernetes` in line {}",
                        own.text,
                        kubernetes.line()
                    ),
                ));
            }
        }
    }
    found
}

/// How long a cache before CoreDNS keeps answers.
fn keeps(server: &Server, zone: &str) -> Option<Astray> {
    let cache = server.plugin("cache").filter(|cache| edit::caches(cache, zone))?;
    let longest = caches_for(cache, zone).filter(|seconds| *seconds > node_local::KEEPS)?;
    Some(Astray::some(
        cache.line(),
        format_args!(
            "`cache` keeps answers of {zone} for up to {longest} s: new names and addresses come that much later"
        ),
        format!(
            "give {zone} a server block of its own, with `success 9984 {0}` and `denial 9984 {0}`",
            node_local::KEEPS
        ),
    ))
}
