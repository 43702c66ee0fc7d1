//! Pure: the plugin `rewrite`, which asks for another name than the client did, before any plugin answers.

use regex_lite::Regex;

use super::{
    astray::{Astray, example},
    corefile::within,
    syntax::{Directive, Server},
};

/// A rule for names.
struct Rule<'d> {
    line: usize,
    stops: bool,
    kind: String,
    from: &'d str,
    to: &'d str,
}

impl<'d> Rule<'d> {
    /// `rewrite [continue|stop] name [KIND] FROM TO [...]`, on one line or in a block. Other fields than the name lead nowhere
    /// else.
    fn of(rewrite: &'d Directive) -> Option<Self> {
        let mut words: Vec<&str> = rewrite.args().iter().map(|word| &*word.text).collect();
        if words.len() < 2 {
            words.extend(rewrite.all_options().iter().flat_map(|line| &line.words).map(|word| &*word.text));
        }
        let mode = words.first().map(|word| word.to_ascii_lowercase()).unwrap_or_default();
        let (stops, rest) = match &*mode {
            "continue" => (false, words.get(1..)?),
            "stop" => (true, words.get(1..)?),
            _ => (true, &words[..]),
        };
        let (kind, from, to) = match *rest {
            [field, from, to] if field.eq_ignore_ascii_case("name") => ("exact".to_owned(), from, to),
            [field, kind, from, to, ..] if field.eq_ignore_ascii_case("name") => (kind.to_ascii_lowercase(), from, to),
            _ => return None,
        };
        Some(Self { line: rewrite.line(), stops, kind, from, to })
    }

    /// What becomes of a name that ends with a dot; `None`: the rule is not about it, or its effect is not known.
    fn apply(&self, name: &str) -> Option<String> {
        let (from, to) = (full(self.from), full(self.to));
        match &*self.kind {
            "exact" => (name == from).then_some(to),
            "prefix" => Some(to + name.strip_prefix(&from)?),
            "suffix" => Some(name.strip_suffix(&from)?.to_owned() + &to),
            "substring" => name.contains(&from).then(|| name.replace(&from, &to)),
            "regex" => {
                let groups = Regex::new(self.from).ok()?.captures(name)?;
                let group = |at: usize| groups.get(at).map_or("", |found| found.as_str());
                Some((0..groups.len()).fold(to, |text, at| text.replace(&format!("{{{at}}}"), group(at))))
            }
            _ => None,
        }
    }

    /// Whether the rule names the zone, so that it is about some names of it.
    fn names(&self, zone: &str) -> bool {
        let plain: String = self.from.chars().filter(|c| !"\\^$()".contains(*c)).collect();
        full(&plain).contains(&full(zone))
    }
}

/// As CoreDNS compares names.
fn full(name: &str) -> String {
    format!("{}.", name.trim_end_matches('.')).to_lowercase()
}

/// Whether a pattern of Go's `regexp` matches; `None`: it is not known.
pub(super) fn matches(pattern: &str, name: &str) -> Option<bool> {
    Regex::new(pattern).ok().map(|pattern| pattern.is_match(name))
}

/// The rules of a server block that lead names of the zone elsewhere.
pub(super) fn rewrites(server: &Server, zone: &str) -> Vec<Astray> {
    let asked = full(&example(zone));
    let mut now = asked.clone();
    let mut goes_on = true;
    let mut found = Vec::new();
    for rule in server.plugins("rewrite").filter_map(Rule::of) {
        let Rule { line, kind, from, to, .. } = &rule;
        let applied = rule.apply(&now).filter(|_| goes_on);
        let about = match &applied {
            Some(name) => {
                let asks =
                    if within(name.trim_end_matches('.'), zone) { "another name of the zone" } else { "another zone" };
                let about = (*name != asked).then(|| (true, format!("asks {asks}: {}", name.trim_end_matches('.'))));
                now.clone_from(name);
                goes_on = !rule.stops;
                about
            }
            None if rule.names(zone) => Some((false, format!("asks {to} for some names of the zone"))),
            None => None,
        };
        if let Some((all, asks)) = about {
            let what = format!("line {line}: `rewrite name {kind} {from} {to}` {asks}, and its address is answered");
            found.push(Astray {
                what,
                remedy: "remove this line, or let its pattern leave the zone out".to_owned(),
                all,
            });
        }
    }
    found
}
