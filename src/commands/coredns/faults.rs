//! Pure: what keeps CoreDNS from loading a Corefile. It then goes on with the one before, and with its next start it stops.

use super::{
    corefile::{Corefile, is_reverse, is_variable, name},
    edit::Edited,
    syntax::{Directive, Refusal, Server, Word},
};

/// Something that CoreDNS refuses, or takes for something else than it looks like.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Fault {
    /// With its line.
    pub(super) what: String,
    pub(super) remedy: String,
}

/// The plugins that may be in a server block only once.
const ONCE: &[&str] = &[
    "cache",
    "dnssec",
    "errors",
    "grpc",
    "hosts",
    "kubernetes",
    "loop",
    "nsid",
    "pprof",
    "prometheus",
    "ready",
    "shed",
    "tsig",
    "view",
];

/// The plugins of stock CoreDNS 1.14 (plugin.cfg), and what its parser knows itself.
const STOCK: &[&str] = &[
    "acl",
    "any",
    "auto",
    "autopath",
    "azure",
    "bind",
    "bufsize",
    "cache",
    "cancel",
    "chaos",
    "clouddns",
    "debug",
    "dns64",
    "dnssec",
    "dnstap",
    "erratic",
    "errors",
    "etcd",
    "file",
    "forward",
    "geoip",
    "grpc",
    "grpc_server",
    "header",
    "health",
    "hosts",
    "https",
    "https3",
    "import",
    "k8s_external",
    "kubernetes",
    "loadbalance",
    "local",
    "log",
    "loop",
    "metadata",
    "minimal",
    "multisocket",
    "nomad",
    "nsid",
    "on",
    "pprof",
    "prometheus",
    "proxyproto",
    "quic",
    "ready",
    "reload",
    "rewrite",
    "root",
    "route53",
    "secondary",
    "shed",
    "sign",
    "template",
    "timeouts",
    "tls",
    "trace",
    "transfer",
    "tsig",
    "view",
    "whoami",
];

/// Everything that CoreDNS refuses, in the order of the lines.
pub(super) fn faults(corefile: &Corefile) -> Vec<Fault> {
    let mut found = corefile.import_faults().to_vec();
    for server in corefile.servers() {
        for word in words(server) {
            found.extend(variable(word));
        }
        for word in server.addresses.iter().chain(server.block.directives.iter().map(|plugin| &plugin.words[0])) {
            found.extend(invisible(word));
        }
        found.extend(server.addresses.iter().filter_map(no_port));
        found.extend(ONCE.iter().filter_map(|plugin| twice(server, plugin)));
        found.extend(server.plugins("kubernetes").flat_map(|it| kubernetes(server, it)));
    }
    found.extend(addresses(corefile));
    found.dedup();
    found
}

/// Refuses a change of a Corefile that CoreDNS does not load, or would not load with it.
pub(super) fn sound(before: &Corefile, edited: &Edited) -> Result<(), Refusal> {
    if edited.changes.is_empty() {
        return Ok(());
    }
    let old = faults(before);
    if let Some(Fault { what, remedy }) = old.first() {
        return Err(Refusal(format!(
            "CoreDNS does not load the Corefile as it is: {what}: {remedy}, and run this again"
        )));
    }
    match faults(&Corefile::parse(&edited.text)?).first() {
        Some(Fault { what, remedy }) => {
            Err(Refusal(format!("CoreDNS would not load the Corefile with the change: {what}: {remedy}")))
        }
        None => Ok(()),
    }
}

/// The plugins that stock CoreDNS does not have, each with its line.
pub(super) fn unknown<'c>(corefile: &'c Corefile<'_>) -> Vec<(usize, &'c str)> {
    let plugins = corefile.servers().iter().flat_map(|server| &server.block.directives);
    let mut found: Vec<_> = plugins.map(|plugin| (plugin.line(), plugin.name())).collect();
    found.retain(|(_, name)| !STOCK.contains(name) && !is_variable(name));
    found.sort_unstable();
    found.dedup();
    found
}

fn words(server: &Server) -> Vec<&Word> {
    fn collect<'d>(directives: &'d [Directive], all: &mut Vec<&'d Word>) {
        for directive in directives {
            all.extend(&directive.words);
            collect(directive.all_options(), all);
        }
    }
    let mut all: Vec<_> = server.addresses.iter().collect();
    collect(&server.block.directives, &mut all);
    all
}

/// Shells and Compose files have default values, CoreDNS has not.
fn variable(word: &Word) -> Option<Fault> {
    let (open, close) = [("{$", "}"), ("{%", "%}")].into_iter().find(|(open, _)| word.text.contains(open))?;
    let (before, rest) = word.text.split_once(open)?;
    let (inside, after) = rest.split_once(close)?;
    let (name, default) = inside.split_once(':')?;
    let default = default.trim_start_matches(['-', '=']);
    Some(Fault {
        what: format!(
            "line {}: `{open}{inside}{close}` is empty: CoreDNS knows no default values, and takes {inside:?} for the name of an \
             environment variable",
            word.line
        ),
        remedy: format!(
            "write `{before}{default}{after}`, or `{before}{open}{name}{close}{after}` and set {name} in the pods of CoreDNS"
        ),
    })
}

/// Editors and chats put such characters where nobody sees them.
fn invisible(word: &Word) -> Option<Fault> {
    let hidden =
        |c: &char| matches!(c, '\u{ad}' | '\u{200b}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2060}' | '\u{feff}');
    let c = word.text.chars().find(hidden)?;
    let seen: String = word.text.chars().filter(|c| !hidden(c)).collect();
    Some(Fault {
        what: format!("line {}: there is an invisible character (U+{:04X}) in `{seen}`", word.line, u32::from(c)),
        remedy: format!("delete `{seen}` and type it again"),
    })
}

fn no_port(word: &Word) -> Option<Fault> {
    let address = word.text.strip_suffix(',').unwrap_or(&word.text);
    address.ends_with(':').then(|| Fault {
        what: format!("line {}: the address `{address}` ends in a colon", word.line),
        remedy: "write the port, or no colon".to_owned(),
    })
}

fn twice(server: &Server, plugin: &str) -> Option<Fault> {
    let mut all = server.plugins(plugin);
    let (first, second) = (all.next()?, all.next()?);
    Some(Fault {
        what: format!("line {}: `{plugin}` is in this server block already, by line {}", second.line(), first.line()),
        remedy: "remove one of the two".to_owned(),
    })
}

fn kubernetes(server: &Server, kubernetes: &Directive) -> Vec<Fault> {
    let line = kubernetes.line();
    let mut found = Vec::new();
    let has = |option: &str| kubernetes.options(option).next().is_some();
    if has("namespaces") && has("namespace_labels") {
        found.push(Fault {
            what: format!("line {line}: `kubernetes` has `namespaces` and `namespace_labels`"),
            remedy: "remove one of the two".to_owned(),
        });
    }
    let args = kubernetes.args();
    let zones: Vec<_> = if args.is_empty() {
        server.zones().map(|(zone, _)| zone).collect()
    } else {
        args.iter().map(|word| name(&word.text)).collect()
    };
    if !zones.is_empty() && zones.iter().all(|zone| is_reverse(zone)) {
        found.push(Fault {
            what: format!("line {line}: `kubernetes` has reverse zones only"),
            remedy: "write the domain of the cluster before them, such as cluster.local".to_owned(),
        });
    }
    let Some(multicluster) = kubernetes.options("multicluster").last() else { return found };
    let variable = zones.iter().any(|zone| is_variable(zone));
    for word in multicluster.args().iter().filter(|word| !variable && !is_variable(&word.text)) {
        if !zones.contains(&name(&word.text)) {
            found.push(Fault {
                what: format!("line {}: `multicluster` has {}, which `kubernetes` does not have", word.line, word.text),
                remedy: format!("write {} among the zones of line {line}", word.text),
            });
        }
    }
    found
}

/// One zone on one socket is in one server block, once, with capitals or without. Those with other addresses of `bind` are
/// different, unless one of them listens on all; those with `view` may be alike.
fn addresses(corefile: &Corefile) -> Vec<Fault> {
    let mut found = Vec::new();
    let mut seen: Vec<(String, String, Vec<&str>, usize)> = Vec::new();
    for server in corefile.servers() {
        if server.plugin("view").is_some() {
            continue;
        }
        let binds: Vec<_> = server.plugins("bind").flat_map(Directive::args).map(|word| &*word.text).collect();
        for (word, address) in server.addresses.iter().filter(|word| !word.text.is_empty()).zip(server.addresses()) {
            let (zone, socket) = (octets(&address.zone()), address.socket());
            let same = |(other, at, bound, _): &&(String, String, Vec<&str>, usize)| {
                let meets = bound.is_empty() || binds.is_empty() || bound.iter().any(|host| binds.contains(host));
                (other, at) == (&zone, &socket) && meets
            };
            if let Some((.., line)) = seen.iter().find(same) {
                let text = word.text.strip_suffix(',').unwrap_or(&word.text);
                found.push(Fault {
                    what: format!("line {}: `{text}` is an address already, on line {line}", word.line),
                    remedy: "remove one of the two".to_owned(),
                });
            }
            seen.push((zone, socket, binds.clone(), word.line));
        }
    }
    found
}

/// The reverse zone of a range of whole octets, such as `10.0.0.0/8`; every other zone is what it is.
fn octets(zone: &str) -> String {
    let reverse = || {
        let (address, length) = zone.split_once('/')?;
        let address: std::net::Ipv4Addr = address.parse().ok()?;
        let octets = length.parse::<usize>().ok().filter(|length| length % 8 == 0 && (8..=32).contains(length))? / 8;
        let labels: Vec<_> = address.octets()[..octets].iter().rev().map(u8::to_string).collect();
        Some(format!("{}.in-addr.arpa", labels.join(".")))
    };
    reverse().unwrap_or_else(|| zone.to_owned())
}
