//! Pure: what a Corefile lacks so that CoreDNS answers for the zone of the ClusterSet, and the text that has it; and the
//! inverse.

use std::{collections::BTreeSet, ops::Range};

use super::corefile::{Block, Corefile, Directive, Refusal, Server, Word, name, within};

/// A Corefile with changes.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Edited {
    /// The whole text.
    pub(super) text: String,
    /// What was changed, for people: what was missing, or what is removed. Empty: the text is as it was.
    pub(super) changes: Vec<String>,
}

/// Replacements in a text.
pub(super) struct Edits<'c, 't> {
    corefile: &'c Corefile<'t>,
    replacements: Vec<(Range<usize>, String)>,
    changes: Vec<String>,
    /// Where the directives are that were already looked at: several server blocks may import one snippet.
    seen: BTreeSet<usize>,
}

/// Adds the zone to the `kubernetes` plugin of the server blocks that answer for it, and to the zones that their `cache`
/// plugin leaves alone. What is there is left as it is, so that a second time nothing changes.
///
/// CoreDNS would otherwise answer from its cache for up to 30 s: for a name that was queried before its first export, and
/// for an endpoint that is gone.
pub(super) fn add(text: &str, zone: &str) -> Result<Edited, Refusal> {
    let corefile = Corefile::parse(text)?;
    let mut edits = Edits::new(&corefile);
    for server in answering(&corefile, zone)? {
        edits.drop_foreign_plugin(server, zone);
        if let Some(kubernetes) = corefile.plugin(server, "kubernetes").filter(|it| edits.is_new(it)) {
            edits.add_to_kubernetes(server, kubernetes, zone)?;
        }
        let caches = |cache: &&Directive| {
            let zones: Vec<_> = cache.args().iter().filter(|arg| arg.text.parse::<u64>().is_err()).collect();
            zones.is_empty() || covers(zones, zone)
        };
        if let Some(cache) = corefile.plugin(server, "cache").filter(caches).filter(|it| edits.is_new(it)) {
            edits.add_to_cache(cache, zone)?;
        }
    }
    Ok(edits.apply())
}

/// Removes what [`add`] adds. A block that has nothing else goes, too.
///
/// It does so also where the server block no longer answers for the zone: somebody may have taken the address away first.
pub(super) fn remove(text: &str, zone: &str) -> Result<Edited, Refusal> {
    let corefile = Corefile::parse(text)?;
    let mut edits = Edits::new(&corefile);
    let mut servers: Vec<_> = corefile.having("kubernetes").collect();
    if servers.is_empty() {
        servers = answering(&corefile, zone)?;
    }
    for server in servers {
        if let Some(kubernetes) = corefile.plugin(server, "kubernetes").filter(|it| edits.is_new(it)) {
            edits.remove_from_kubernetes(kubernetes, zone)?;
        }
        if let Some(cache) = corefile.plugin(server, "cache").filter(|it| edits.is_new(it)) {
            let options = cache.options("disable").filter(|option| option.args().len() > 1);
            edits.remove_from_options(cache, options, zone, 1)?;
        }
    }
    Ok(edits.apply())
}

/// Whether CoreDNS reads a changed Corefile by itself.
pub(super) fn reloads(text: &str) -> bool {
    Corefile::parse(text).is_ok_and(|corefile| corefile.having("reload").next().is_some())
}

/// Whether CoreDNS reads ServiceImports with this Corefile.
pub(super) fn is_multicluster(text: &str) -> bool {
    Corefile::parse(text).is_ok_and(|corefile| {
        let plugins = corefile.having("kubernetes").filter_map(|server| corefile.plugin(server, "kubernetes"));
        plugins.flat_map(|kubernetes| kubernetes.options("multicluster")).next().is_some()
    })
}

/// The domains of the cluster itself, usually `cluster.local` alone: the zones of the `kubernetes` plugin.
pub(super) fn cluster_domains(text: &str, zone: &str) -> Result<Vec<String>, Refusal> {
    let corefile = Corefile::parse(text)?;
    let domains = corefile.having("kubernetes").flat_map(|server| {
        let plugin = corefile.plugin(server, "kubernetes");
        let own = plugin.into_iter().flat_map(Directive::args).map(|word| name(&word.text));
        own.chain(server.zones().map(|(zone, _)| zone)).collect::<Vec<_>>()
    });
    let mut found = Vec::new();
    for domain in domains.filter(|domain| !domain.is_empty() && domain != zone && !is_reverse(domain)) {
        if !found.contains(&domain) {
            found.push(domain);
        }
    }
    if found.is_empty() {
        return Err(Refusal("no plugin `kubernetes` of the Corefile names the domain of the cluster".into()));
    }
    Ok(found)
}

/// The server blocks that answer for the zone and have the `kubernetes` plugin.
fn answering<'c>(corefile: &'c Corefile, zone: &str) -> Result<Vec<&'c Server>, Refusal> {
    let serving = corefile.serving(zone);
    let with: Vec<_> =
        serving.iter().copied().filter(|server| corefile.plugin(server, "kubernetes").is_some()).collect();
    if !with.is_empty() {
        return Ok(with);
    }
    let own = serving.iter().find(|server| server.zones().any(|(served, _)| served == zone));
    let answers = match own.or(serving.first()) {
        Some(server) => {
            format!("the server block of line {} answers for {zone}, and has no plugin `kubernetes`", server.line())
        }
        None => format!("no server block answers for {zone}"),
    };
    // No other server block can have the same address.
    if let Some(own) = own {
        let what = if own.addresses.len() == 1 { "it" } else { "this address from it" };
        return Err(Refusal(format!(
            "{answers}: remove {what} (Submariner writes such a server block), and run this again"
        )));
    }
    let remedy = match (corefile.having("kubernetes").next(), corefile.files().as_slice()) {
        (Some(other), _) => {
            let port = other.zones().find_map(|(_, socket)| socket.strip_prefix("dns:").map(str::to_owned));
            let port = port.filter(|port| port != "53").map(|port| format!(":{port}")).unwrap_or_default();
            format!("add the address `{zone}{port}` to the server block of line {}, which has it", other.line())
        }
        (None, []) => {
            "is this the Corefile of the cluster's DNS? --config-map and --namespace name another one".to_owned()
        }
        (None, files) => format!(
            "it may be in a file that is imported ({}), which this command does not see: add `{zone}` to its zones and \
             `multicluster {zone}` to its block by hand",
            files.join(", ")
        ),
    };
    Err(Refusal(format!("{answers}: {remedy}")))
}

fn is_reverse(zone: &str) -> bool {
    zone.ends_with("in-addr.arpa") || zone.ends_with("ip6.arpa") || zone.contains('/')
}

fn is(word: &Word, zone: &str) -> bool {
    name(&word.text) == zone
}

fn covers<'w>(zones: impl IntoIterator<Item = &'w Word>, zone: &str) -> bool {
    zones.into_iter().any(|word| within(zone, &name(&word.text)))
}

/// Lines can be added and removed only where the braces and the options of a block are on different lines.
fn on_lines_of_its_own(plugin: &Directive, block: &Block) -> Result<(), Refusal> {
    let starts = block.directives.iter().map(Directive::line).chain([block.close.line]);
    if starts.scan(block.open.line, |last, line| Some(line > std::mem::replace(last, line))).all(|later| later) {
        return Ok(());
    }
    Err(Refusal(format!(
        "line {}: the block of `{}` has several things on one line: put each option and the closing brace on a line of its \
         own, and run this again",
        plugin.line(),
        plugin.name()
    )))
}

impl<'c, 't> Edits<'c, 't> {
    pub(super) fn new(corefile: &'c Corefile<'t>) -> Self {
        Self { corefile, replacements: Vec::new(), changes: Vec::new(), seen: BTreeSet::new() }
    }

    pub(super) fn apply(mut self) -> Edited {
        let mut text = String::new();
        let mut copied = 0;
        self.replacements.sort_by_key(|(range, _)| range.start);
        for (range, replacement) in self.replacements {
            text.push_str(&self.corefile.text[copied..range.start]);
            text.push_str(&replacement);
            copied = range.end;
        }
        text.push_str(&self.corefile.text[copied..]);
        Edited { text, changes: self.changes }
    }

    pub(super) fn say(&mut self, line: usize, what: impl std::fmt::Display) {
        self.changes.push(format!("line {line}: {what}"));
    }

    pub(super) fn insert(&mut self, at: usize, text: String) {
        self.replacements.push((at..at, text));
    }

    /// Removes all lines from that of one place to that of another.
    pub(super) fn remove_lines(&mut self, from: usize, to: usize) {
        let end = self.corefile.line_end(to);
        let range = match self.corefile.previous_line_end(from) {
            Some(start) => start..end,
            None => 0..(end + self.corefile.line_break().len()).min(self.corefile.text.len()),
        };
        self.replacements.push((range, String::new()));
    }

    fn is_new(&mut self, directive: &Directive) -> bool {
        self.seen.insert(directive.words[0].at.start)
    }

    /// The CoreDNS of the AWS Cloud Map MCS Controller has a plugin `multicluster` of its own. Stock CoreDNS, whose
    /// `kubernetes` plugin does its work, does not start with it.
    fn drop_foreign_plugin(&mut self, server: &Server, zone: &str) {
        let foreign = server.block.directives.iter().filter(|it| it.name() == "multicluster");
        for plugin in foreign.filter(|it| it.args().iter().any(|arg| is(arg, zone))) {
            if self.corefile.begins_line(plugin.words[0].at.start) && self.is_new(plugin) {
                self.say(plugin.line(), "stock CoreDNS has no plugin `multicluster`, only the option");
                self.remove_lines(plugin.words[0].at.start, plugin.end());
            }
        }
    }

    fn add_to_kubernetes(&mut self, server: &Server, kubernetes: &Directive, zone: &str) -> Result<(), Refusal> {
        let line = kubernetes.line();
        let zones = kubernetes.args();
        let inherited = || server.zones().any(|(served, _)| served == zone);
        if !zones.iter().any(|word| is(word, zone)) && (!zones.is_empty() || !inherited()) {
            // The first one is the cluster's own.
            let Some(last) = zones.iter().rfind(|word| !is_reverse(&name(&word.text))) else {
                return Err(Refusal(format!(
                    "line {line}: `kubernetes` does not name its zones: write them, as in `kubernetes cluster.local \
                     in-addr.arpa ip6.arpa`, and run this again"
                )));
            };
            self.insert(last.at.end, format!(" {zone}"));
            self.say(line, format_args!("`kubernetes` does not answer for {zone}"));
        }
        // The last one counts.
        match kubernetes.options("multicluster").last() {
            Some(option) if option.args().iter().any(|word| is(word, zone)) => return Ok(()),
            Some(option) => self.insert(option.head_end(), format!(" {zone}")),
            None => self.insert_options(kubernetes, &[format!("multicluster {zone}")])?,
        }
        self.say(line, format_args!("`kubernetes` has no option `multicluster {zone}`"));
        Ok(())
    }

    fn add_to_cache(&mut self, cache: &Directive, zone: &str) -> Result<(), Refusal> {
        let mut missing = Vec::new();
        for kind in ["success", "denial"] {
            let of_kind = |option: &&Directive| option.args().first().is_some_and(|arg| arg.text == kind);
            // The last one counts. Without zones it is about all of them.
            match cache.options("disable").filter(of_kind).last() {
                Some(option) if option.args().len() == 1 || covers(&option.args()[1..], zone) => continue,
                Some(option) => self.insert(option.head_end(), format!(" {zone}")),
                None => missing.push(format!("disable {kind} {zone}")),
            }
            self.say(cache.line(), format_args!("`cache` has no `disable {kind} {zone}`"));
        }
        if missing.is_empty() { Ok(()) } else { self.insert_options(cache, &missing) }
    }

    /// Puts options first in the block of a plugin, which it gets if it has none.
    fn insert_options(&mut self, plugin: &Directive, options: &[String]) -> Result<(), Refusal> {
        let line_break = self.corefile.line_break();
        let outer = self.corefile.indentation(plugin.words[0].at.start);
        let deeper = format!("{outer}{}", if outer.contains('\t') { "\t" } else { "    " });
        let indentation = match &plugin.block {
            Some(block) => {
                on_lines_of_its_own(plugin, block)?;
                block.directives.first().map_or(&*deeper, |first| self.corefile.indentation(first.words[0].at.start))
            }
            None => &deeper,
        };
        let mut lines = options.iter().fold(String::new(), |lines, option| lines + line_break + indentation + option);
        if plugin.block.is_none() {
            self.insert(plugin.head_end(), " {".to_owned());
            lines = format!("{lines}{line_break}{outer}}}");
        }
        self.insert(self.corefile.line_end(plugin.head_end()), lines);
        Ok(())
    }

    fn remove_from_kubernetes(&mut self, kubernetes: &Directive, zone: &str) -> Result<(), Refusal> {
        let zones = kubernetes.args();
        if let Some(at) = zones.iter().position(|word| is(word, zone)) {
            if zones.len() == 1 {
                return Err(Refusal(format!(
                    "line {}: {zone} is the only zone of this `kubernetes`, so it is not `apply` that wrote it: remove the \
                     server block by hand",
                    kubernetes.line()
                )));
            }
            self.replacements.push((kubernetes.words[at].at.end..zones[at].at.end, String::new()));
            self.say(kubernetes.line(), format_args!("`kubernetes` answers for {zone}"));
        }
        self.remove_from_options(kubernetes, kubernetes.options("multicluster"), zone, 0)
    }

    /// Removes the zone from options whose zones begin after `skip` arguments. An option without zones goes, and a block
    /// without anything.
    fn remove_from_options<'d>(
        &mut self,
        plugin: &'d Directive,
        options: impl Iterator<Item = &'d Directive>,
        zone: &str,
        skip: usize,
    ) -> Result<(), Refusal> {
        let Some(block) = &plugin.block else { return Ok(()) };
        let mut emptied = Vec::new();
        for option in options {
            let Some(at) = option.args().iter().skip(skip).position(|word| is(word, zone)) else { continue };
            let said: Vec<_> = option.words.iter().take(1 + skip).map(|word| &*word.text).collect();
            self.say(option.line(), format_args!("`{}` has `{} {zone}`", plugin.name(), said.join(" ")));
            if option.args().len() == skip + 1 {
                emptied.push(option);
            } else {
                let at = at + skip;
                self.replacements.push((option.words[at].at.end..option.words[at + 1].at.end, String::new()));
            }
        }
        if emptied.is_empty() {
            return Ok(());
        }
        on_lines_of_its_own(plugin, block)?;
        let comments =
            self.corefile.text[self.corefile.line_end(block.open.at.start)..block.close.at.start].contains('#');
        if emptied.len() == block.directives.len() && !comments {
            self.replacements.push((plugin.head_end()..block.open.at.end, String::new()));
            let rest = self.corefile.line_end(block.open.at.start)..block.close.at.end;
            self.replacements.push((rest, String::new()));
        } else {
            for option in emptied {
                self.remove_lines(option.words[0].at.start, option.end());
            }
        }
        Ok(())
    }
}
