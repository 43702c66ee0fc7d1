//! Pure: the server block of the zone in the Corefile of NodeLocal DNSCache, which forwards only the zones in it to the
//! cluster's DNS. Everything else goes to the resolver of the VPC, which answers NXDOMAIN.

use super::{
    corefile::{Address, Corefile, is_reverse, may_be, within},
    edit::{Edited, Edits, mark},
    syntax::{Directive, Refusal, Server},
};

/// How long the copy keeps answers, in seconds: as long as CoreDNS lets clients keep them.
pub(super) const KEEPS: u64 = 5;

/// Adds a copy of the server block for the cluster's own domain, the first of `domains` that has one, unless queries for the
/// zone already go where those for the domain go. The copy keeps answers for 5 s, so that endpoints that are gone are served
/// no longer than by CoreDNS itself. What the block imports from snippets is written out in the copy, because a `cache` may be
/// in a snippet.
pub(super) fn add(text: &str, domains: &[String], zone: &str) -> Result<Edited, Refusal> {
    let corefile = Corefile::parse(text)?;
    let mut edits = Edits::new(&corefile, zone);
    let Some((domain, model)) = model(&corefile, domains) else {
        if of_zone(&corefile, zone).is_some() {
            return edits.apply();
        }
        return Err(Refusal(format!(
            "the Corefile of NodeLocal DNSCache has no server block for {} of which that for {zone} could be a copy: \
             write one by hand, which forwards {zone} to the cluster's DNS",
            domains.join(" or ")
        )));
    };
    let there = serving(&corefile, model, domain, zone);
    if there.iter().any(|server| server.is_of(zone) || goes_alike(server, model)) {
        return edits.apply();
    }
    let end = model.block.close.at.end;
    let behind = text[end..corefile.line_end(end)].trim();
    if !behind.is_empty() && !behind.starts_with('#') {
        return Err(Refusal(format!(
            "line {}: something begins on the line on which the server block for {domain} ends: put it on a line of its own, and \
             run this again",
            model.block.close.line
        )));
    }
    edits.note(model.line(), format_args!("only {domain} is forwarded to the cluster's DNS, not {zone}"));
    edits.insert_lines(end, &copy(&corefile, model, domain, zone));
    edits.apply()
}

/// Removes the server block of the zone, if [`add`] wrote it.
pub(super) fn remove(text: &str, zone: &str) -> Result<Edited, Refusal> {
    let corefile = Corefile::parse(text)?;
    let mut edits = Edits::new(&corefile, zone);
    for server in corefile.servers().iter().filter(|server| server.is_of(zone)) {
        let what = format!("a server block for {zone}");
        match &*server.addresses {
            [only] if edits.marked(only.at.end).is_some() => {
                edits.note(server.line(), what);
                edits.remove_lines(only.at.start, server.block.close.at.end);
            }
            _ => edits.keep(server.line(), what),
        }
    }
    Ok(edits.undo())
}

/// Whether a text is a Corefile of NodeLocal DNSCache, which asks another DNS, on addresses of its own.
pub(super) fn is_node_local(text: &str) -> bool {
    let own = |corefile: Corefile| {
        let bound = corefile.having("bind").next().is_some() || text.contains("__PILLAR__");
        bound && corefile.having("kubernetes").next().is_none()
    };
    Corefile::parse(text).is_ok_and(own)
}

/// The zones that may be the domain of the cluster, where its CoreDNS is not there to say it.
pub(super) fn domains(text: &str, zone: &str) -> Result<Vec<String>, Refusal> {
    let corefile = Corefile::parse(text)?;
    let zones = corefile.servers().iter().flat_map(Server::zones).map(|(served, _)| served);
    Ok(zones.filter(|served| !served.is_empty() && !within(served, zone) && !is_reverse(served)).collect())
}

/// The server block of the cluster's own domain, and that domain.
pub(super) fn model<'c, 'd>(corefile: &'c Corefile, domains: &'d [String]) -> Option<(&'d str, &'c Server)> {
    domains.iter().find_map(|domain| Some((&**domain, of_zone(corefile, domain)?)))
}

fn of_zone<'c>(corefile: &'c Corefile, zone: &str) -> Option<&'c Server> {
    corefile.servers().iter().find(|server| server.is_of(zone))
}

/// The server blocks that answer for the zone where pods ask for the domain.
pub(super) fn serving<'c>(corefile: &'c Corefile, model: &Server, domain: &str, zone: &str) -> Vec<&'c Server> {
    let sockets: Vec<_> = model.zones().filter(|(served, _)| served == domain).map(|(_, socket)| socket).collect();
    let meets = |server: &&Server| server.zones().any(|(_, it)| sockets.iter().any(|socket| may_be(socket, &it)));
    corefile.serving(zone).into_iter().filter(meets).collect()
}

/// Where a server block forwards everything.
pub(super) fn target(server: &Server) -> Option<Vec<&str>> {
    Some(server.plugin("forward")?.args().iter().skip(1).map(|word| &*word.text).collect())
}

pub(super) fn goes_alike(one: &Server, other: &Server) -> bool {
    target(one).is_some_and(|here| target(other).is_some_and(|there| here == there))
}

fn copy(corefile: &Corefile, model: &Server, domain: &str, zone: &str) -> Vec<String> {
    let own = model.addresses().find(|address| address.zone() == domain);
    let (prefix, suffix) = own.map_or(("", ""), |Address { prefix, suffix, .. }| (prefix, suffix));
    let outer = corefile.indentation(model.addresses[0].at.start);
    let first = model.block.written().next();
    let inner = first.map_or_else(|| format!("{outer}    "), |it| corefile.indentation(it.start()).to_owned());
    let mut lines = vec![format!("{outer}{prefix}{zone}{suffix} {{{}", mark(zone))];
    for directive in &model.block.directives {
        match directive.name() {
            // One server block is enough for the whole process.
            "health" | "pprof" => {}
            "cache" => {
                lines.push(format!("{inner}cache {{"));
                lines.extend(["success", "denial"].map(|kind| format!("{inner}    {kind} 9984 {KEEPS}")));
                lines.push(format!("{inner}}}"));
            }
            _ => lines.extend(written(corefile, directive, &inner)),
        }
    }
    lines.push(format!("{outer}}}"));
    lines
}

/// The lines of a plugin as they are, with the indentation of the block into which they come.
fn written(corefile: &Corefile, directive: &Directive, inner: &str) -> Vec<String> {
    let own = corefile.indentation(directive.start());
    let text = &corefile.text[directive.start()..corefile.line_end(directive.end())];
    let lines = text.lines().enumerate().map(|(at, line)| match line.strip_prefix(own) {
        Some(line) if at > 0 => format!("{inner}{line}"),
        _ if at > 0 => line.to_owned(),
        _ => format!("{inner}{line}"),
    });
    lines.collect()
}
