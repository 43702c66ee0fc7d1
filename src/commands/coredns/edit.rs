//! Pure: what a Corefile lacks so that CoreDNS answers for the zone of the ClusterSet, and the text that has it; and the
//! inverse.

use std::{collections::BTreeSet, ops::Range};

use super::{
    corefile::{Corefile, covers, is, is_reverse, name},
    faults::sound,
    syntax::{Block, Directive, Refusal, Server},
};

/// A Corefile with changes.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Edited {
    /// The whole text.
    pub(super) text: String,
    /// What was changed, for people: what was missing, or what is removed. Empty: the text is as it was.
    pub(super) changes: Vec<String>,
    /// What has the zone and stays, because nothing says that [`add`] wrote it.
    pub(super) kept: Vec<String>,
}

/// Replacements in a text.
pub(super) struct Edits<'c, 't> {
    corefile: &'c Corefile<'t>,
    zone: &'c str,
    replacements: Vec<(Range<usize>, Insertion, String)>,
    kept: Vec<String>,
    changes: Vec<String>,
    /// Where the directives are that were already looked at: several server blocks may import one snippet.
    seen: BTreeSet<usize>,
}

/// What is put at one place, in this order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Insertion {
    Words,
    Mark,
    Lines,
}

/// The comment that ends each line which has the zone because of [`add`], so that [`remove`] takes nothing that somebody else
/// wrote, such as Cilium's or Submariner's installation.
pub(super) fn mark(zone: &str) -> String {
    format!(" # cloudmap-mcs added {zone}")
}

/// Adds the zone to the `kubernetes` plugin of the server blocks that answer for it, and to the zones that their `cache`
/// plugin leaves alone. What is there is left as it is, so that a second time nothing changes.
///
/// CoreDNS would otherwise answer from its cache for up to 30 s: for a name that was queried before its first export, and
/// for an endpoint that is gone.
pub(super) fn add(text: &str, zone: &str) -> Result<Edited, Refusal> {
    let corefile = Corefile::parse(text)?;
    let mut edits = Edits::new(&corefile, zone);
    for server in answering(&corefile, zone)? {
        edits.drop_foreign_plugin(server);
        if let Some(kubernetes) = server.plugin("kubernetes").filter(|it| edits.is_new(it)) {
            edits.add_to_kubernetes(server, kubernetes)?;
        }
        if let Some(cache) = server.plugin("cache").filter(|it| caches(it, zone)).filter(|it| edits.is_new(it)) {
            edits.add_to_cache(cache)?;
        }
    }
    edits.apply()
}

/// Whether a plugin `cache` keeps answers of the zone: it may have zones of its own.
pub(super) fn caches(cache: &Directive, zone: &str) -> bool {
    let mut zones = cache.args().iter().filter(|arg| arg.text.parse::<u64>().is_err()).peekable();
    zones.peek().is_none() || covers(zones, zone)
}

/// Removes what [`add`] has added. A block that has nothing else goes, too. What has the zone without the mark stays.
///
/// It does so also where the server block no longer answers for the zone: somebody may have taken the address away first.
pub(super) fn remove(text: &str, zone: &str) -> Result<Edited, Refusal> {
    let corefile = Corefile::parse(text)?;
    let mut edits = Edits::new(&corefile, zone);
    let mut servers: Vec<_> = corefile.having("kubernetes").collect();
    if servers.is_empty() {
        servers = answering(&corefile, zone)?;
    }
    for server in servers {
        if let Some(kubernetes) = server.plugin("kubernetes").filter(|it| edits.is_new(it)) {
            edits.remove_from_kubernetes(kubernetes)?;
        }
        if let Some(cache) = server.plugin("cache").filter(|it| edits.is_new(it)) {
            let options = cache.options("disable").filter(|option| option.args().len() > 1);
            edits.remove_from_options(cache, options, 1)?;
        }
    }
    Ok(edits.undo())
}

/// Whether CoreDNS reads a changed Corefile by itself.
pub(super) fn reloads(text: &str) -> bool {
    Corefile::parse(text).is_ok_and(|corefile| corefile.having("reload").next().is_some())
}

/// The port on which CoreDNS answers for the zone by plain DNS.
pub(super) fn port(text: &str, zone: &str) -> u16 {
    let port = |corefile: Corefile| {
        let mut sockets =
            answering(&corefile, zone).ok()?.into_iter().flat_map(Server::zones).map(|(_, socket)| socket);
        sockets.find_map(|socket| socket.strip_prefix("dns:")?.parse().ok())
    };
    Corefile::parse(text).ok().and_then(port).unwrap_or(53)
}

/// Whether CoreDNS reads ServiceImports with this Corefile.
pub(super) fn is_multicluster(text: &str) -> bool {
    Corefile::parse(text).is_ok_and(|corefile| {
        let plugins = corefile.having("kubernetes").filter_map(|server| server.plugin("kubernetes"));
        plugins.flat_map(|kubernetes| kubernetes.options("multicluster")).next().is_some()
    })
}

/// The domains of the cluster itself, usually `cluster.local` alone: the zones of the `kubernetes` plugin.
pub(super) fn cluster_domains(text: &str, zone: &str) -> Result<Vec<String>, Refusal> {
    let corefile = Corefile::parse(text)?;
    let domains = corefile.having("kubernetes").flat_map(|server| {
        let plugin = server.plugin("kubernetes");
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
pub(super) fn answering<'c>(corefile: &'c Corefile, zone: &str) -> Result<Vec<&'c Server>, Refusal> {
    let serving = corefile.serving(zone);
    let with: Vec<_> = serving.iter().copied().filter(|server| server.plugin("kubernetes").is_some()).collect();
    if !with.is_empty() {
        return Ok(with);
    }
    let own = serving.iter().find(|server| server.is_of(zone));
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
    let remedy = match (corefile.having("kubernetes").next(), corefile.files()) {
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

/// Lines can be added and removed only where the braces and the options of a block are on different lines.
fn on_lines_of_its_own(plugin: &Directive, block: &Block) -> Result<(), Refusal> {
    let starts = block.written().map(Directive::line).chain([block.close.line]);
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
    pub(super) fn new(corefile: &'c Corefile<'t>, zone: &'c str) -> Self {
        let (replacements, changes, kept) = (Vec::new(), Vec::new(), Vec::new());
        Self { corefile, zone, replacements, changes, kept, seen: BTreeSet::new() }
    }

    /// The text with all changes, if CoreDNS loads it.
    pub(super) fn apply(self) -> Result<Edited, Refusal> {
        let corefile = self.corefile;
        let edited = self.undo();
        sound(corefile, &edited)?;
        Ok(edited)
    }

    /// The text with all changes: less can be in it than in the one that is there.
    pub(super) fn undo(mut self) -> Edited {
        let mut text = String::new();
        let mut copied = 0;
        // What is put at the end of a line comes before the lines below it that go.
        self.replacements.sort_by_key(|(range, part, _)| (range.start, !range.is_empty(), *part));
        self.replacements.dedup();
        for (range, _, replacement) in self.replacements {
            // Lines that go may share a line break.
            text.push_str(&self.corefile.text[copied..range.start.max(copied)]);
            text.push_str(&replacement);
            copied = copied.max(range.end);
        }
        text.push_str(&self.corefile.text[copied..]);
        Edited { text, changes: self.changes, kept: self.kept }
    }

    pub(super) fn note(&mut self, line: usize, what: impl std::fmt::Display) {
        self.changes.push(format!("line {line}: {what}"));
    }

    /// Says what stays, although it has the zone.
    pub(super) fn keep(&mut self, line: usize, what: impl std::fmt::Display) {
        self.kept.push(format!("line {line}: {what}, which `apply` has not written"));
    }

    fn put(&mut self, range: Range<usize>, part: Insertion, text: String) {
        self.replacements.push((range, part, text));
    }

    fn insert_words(&mut self, at: usize, text: String) {
        self.put(at..at, Insertion::Words, text);
        self.put_mark(at);
    }

    /// Ends the line of a place with the mark.
    fn put_mark(&mut self, at: usize) {
        let end = self.corefile.line_end(at);
        self.put(end..end, Insertion::Mark, mark(self.zone));
    }

    /// Puts lines below that of a place.
    pub(super) fn insert_lines(&mut self, at: usize, lines: &[String]) {
        let line_break = self.corefile.line_break();
        let end = self.corefile.line_end(at);
        self.put(end..end, Insertion::Lines, lines.iter().fold(String::new(), |text, line| text + line_break + line));
    }

    /// Where the mark is on the line of a place.
    pub(super) fn marked(&self, at: usize) -> Option<Range<usize>> {
        let mark = mark(self.zone);
        let line = &self.corefile.text[at..self.corefile.line_end(at)];
        let ends = |found: &usize| line[found + mark.len()..].chars().next().is_none_or(char::is_whitespace);
        let found = line.match_indices(&mark).map(|(found, _)| found).find(ends)?;
        Some(at + found..at + found + mark.len())
    }

    /// Removes all lines from that of one place to that of another.
    pub(super) fn remove_lines(&mut self, from: usize, to: usize) {
        let end = self.corefile.line_end(to);
        let range = match self.corefile.previous_line_end(from) {
            Some(start) => start..end,
            None => 0..(end + self.corefile.line_break().len()).min(self.corefile.text.len()),
        };
        self.put(range, Insertion::Words, String::new());
    }

    /// Removes words, and the mark of their line.
    fn remove_words(&mut self, range: Range<usize>, mark: Range<usize>) {
        self.put(range, Insertion::Words, String::new());
        self.put(mark, Insertion::Mark, String::new());
    }

    fn is_new(&mut self, directive: &Directive) -> bool {
        self.seen.insert(directive.start())
    }

    /// The CoreDNS of the AWS Cloud Map MCS Controller has a plugin `multicluster` of its own. Stock CoreDNS, whose
    /// `kubernetes` plugin does its work, does not start with it.
    fn drop_foreign_plugin(&mut self, server: &Server) {
        for plugin in server.plugins("multicluster").filter(|it| it.args().iter().any(|arg| is(arg, self.zone))) {
            if self.corefile.begins_line(plugin.start()) && self.is_new(plugin) {
                self.note(plugin.line(), "stock CoreDNS has no plugin `multicluster`, only the option");
                self.remove_lines(plugin.start(), plugin.end());
            }
        }
    }

    fn add_to_kubernetes(&mut self, server: &Server, kubernetes: &Directive) -> Result<(), Refusal> {
        let (line, zone) = (kubernetes.line(), self.zone);
        let zones = kubernetes.args();
        if !zones.iter().any(|word| is(word, zone)) && (!zones.is_empty() || !server.is_of(zone)) {
            // The first one is the cluster's own.
            let Some(last) = zones.iter().rfind(|word| !is_reverse(&name(&word.text))) else {
                return Err(Refusal(format!(
                    "line {line}: `kubernetes` does not name its zones: write them, as in `kubernetes cluster.local \
                     in-addr.arpa ip6.arpa`, and run this again"
                )));
            };
            self.insert_words(last.at.end, format!(" {zone}"));
            self.note(line, format_args!("`kubernetes` does not answer for {zone}"));
        }
        // The last one counts.
        match kubernetes.options("multicluster").last() {
            Some(option) if option.args().iter().any(|word| is(word, zone)) => return Ok(()),
            Some(option) => self.insert_words(option.head_end(), format!(" {zone}")),
            None => self.insert_options(kubernetes, &[format!("multicluster {zone}")])?,
        }
        self.note(line, format_args!("`kubernetes` has no option `multicluster {zone}`"));
        Ok(())
    }

    fn add_to_cache(&mut self, cache: &Directive) -> Result<(), Refusal> {
        let zone = self.zone;
        let mut missing = Vec::new();
        for kind in ["success", "denial"] {
            let of_kind = |option: &&Directive| option.args().first().is_some_and(|arg| arg.text == kind);
            // The last one counts. Without zones it is about all of them.
            match cache.options("disable").filter(of_kind).last() {
                Some(option) if option.args().len() == 1 || covers(&option.args()[1..], zone) => continue,
                Some(option) => self.insert_words(option.head_end(), format!(" {zone}")),
                None => missing.push(format!("disable {kind} {zone}")),
            }
            self.note(cache.line(), format_args!("`cache` has no `disable {kind} {zone}`"));
        }
        if missing.is_empty() { Ok(()) } else { self.insert_options(cache, &missing) }
    }

    /// Puts options first in the block of a plugin, which it gets if it has none.
    fn insert_options(&mut self, plugin: &Directive, options: &[String]) -> Result<(), Refusal> {
        let outer = self.corefile.indentation(plugin.start());
        let deeper = format!("{outer}{}", if outer.contains('\t') { "\t" } else { "    " });
        let indentation = match &plugin.block {
            Some(block) => {
                on_lines_of_its_own(plugin, block)?;
                block.written().next().map_or(&*deeper, |first| self.corefile.indentation(first.start()))
            }
            None => &deeper,
        };
        let mark = mark(self.zone);
        let mut lines: Vec<_> = options.iter().map(|option| format!("{indentation}{option}{mark}")).collect();
        if plugin.block.is_none() {
            self.put(plugin.head_end()..plugin.head_end(), Insertion::Words, " {".to_owned());
            lines.push(format!("{outer}}}"));
        }
        self.insert_lines(plugin.head_end(), &lines);
        Ok(())
    }

    fn remove_from_kubernetes(&mut self, kubernetes: &Directive) -> Result<(), Refusal> {
        let (line, zone) = (kubernetes.line(), self.zone);
        let zones = kubernetes.args();
        if let Some(at) = zones.iter().position(|word| is(word, zone)) {
            let what = format!("`kubernetes` answers for {zone}");
            match self.marked(zones[at].at.end) {
                Some(mark) => {
                    self.remove_words(kubernetes.words[at].at.end..zones[at].at.end, mark);
                    self.note(line, what);
                }
                None => self.keep(line, what),
            }
        }
        self.remove_from_options(kubernetes, kubernetes.options("multicluster"), 0)
    }

    /// Removes the zone from options whose zones begin after `skip` arguments. An option without zones goes, and a block
    /// without anything.
    fn remove_from_options<'d>(
        &mut self,
        plugin: &'d Directive,
        options: impl Iterator<Item = &'d Directive>,
        skip: usize,
    ) -> Result<(), Refusal> {
        let zone = self.zone;
        let Some(block) = &plugin.block else { return Ok(()) };
        let mut emptied = Vec::new();
        for option in options {
            let Some(at) = option.args().iter().skip(skip).position(|word| is(word, zone)) else { continue };
            let said: Vec<_> = option.words.iter().take(1 + skip).map(|word| &*word.text).collect();
            let what = format!("`{}` has `{} {zone}`", plugin.name(), said.join(" "));
            let Some(mark) = self.marked(option.head_end()) else {
                self.keep(option.line(), what);
                continue;
            };
            self.note(option.line(), what);
            if option.args().len() == skip + 1 {
                emptied.push(option);
            } else {
                let at = at + skip;
                self.remove_words(option.words[at].at.end..option.words[at + 1].at.end, mark);
            }
        }
        if emptied.is_empty() {
            return Ok(());
        }
        on_lines_of_its_own(plugin, block)?;
        let inside = &self.corefile.text[self.corefile.line_end(block.open.at.start)..block.close.at.start];
        // Comments and imports stay.
        if inside.lines().filter(|line| !line.trim().is_empty()).count() == emptied.len() {
            self.put(plugin.head_end()..block.open.at.end, Insertion::Words, String::new());
            let rest = self.corefile.line_end(block.open.at.start)..block.close.at.end;
            self.put(rest, Insertion::Lines, String::new());
        } else {
            for option in emptied {
                self.remove_lines(option.start(), option.end());
            }
        }
        Ok(())
    }
}
