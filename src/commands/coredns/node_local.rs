//! Pure: the server block of the zone in the Corefile of NodeLocal DNSCache, which forwards only the zones in it to the
//! cluster's DNS. Everything else goes to the resolver of the VPC, which answers NXDOMAIN.

use super::{
    corefile::{Corefile, Refusal, Server},
    edit::{Edited, Edits},
};

/// Adds a copy of the server block for the cluster's own domain, the first of `domains` that has one, unless queries for the
/// zone already go where those for the domain go. The copy keeps answers for 5 s, so that endpoints that are gone are served
/// no longer than by CoreDNS itself.
pub(super) fn add(text: &str, domains: &[String], zone: &str) -> Result<Edited, Refusal> {
    let corefile = Corefile::parse(text)?;
    let mut edits = Edits::new(&corefile);
    if exactly(&corefile, zone).is_some() {
        return Ok(edits.apply());
    }
    let Some((domain, model)) = domains.iter().find_map(|domain| Some((domain, exactly(&corefile, domain)?))) else {
        return Err(Refusal(format!(
            "the Corefile of NodeLocal DNSCache has no server block for {} of which that for {zone} could be a copy: \
             write one by hand, which forwards {zone} to the cluster's DNS",
            domains.join(" or ")
        )));
    };
    let forwards = |server: &Server| {
        let forward = corefile.plugin(server, "forward")?;
        Some(forward.args().iter().skip(1).map(|word| word.text.clone()).collect::<Vec<_>>())
    };
    let target = forwards(model);
    if corefile.serving(zone).iter().any(|server| forwards(server) == target) {
        return Ok(edits.apply());
    }
    edits.say(model.line(), format_args!("only {domain} is forwarded to the cluster's DNS, not {zone}"));
    let line_break = corefile.line_break();
    edits.insert(
        corefile.line_end(model.block.close.at.end),
        copy(&corefile, model, domain, zone).iter().fold(String::new(), |text, line| text + line_break + line),
    );
    Ok(edits.apply())
}

/// Removes the server block of the zone.
pub(super) fn remove(text: &str, zone: &str) -> Result<Edited, Refusal> {
    let corefile = Corefile::parse(text)?;
    let mut edits = Edits::new(&corefile);
    if let Some(server) = exactly(&corefile, zone).filter(|server| server.addresses.len() == 1) {
        edits.say(server.line(), format_args!("a server block for {zone}"));
        edits.remove_lines(server.addresses[0].at.start, server.block.close.at.end);
    }
    Ok(edits.apply())
}

/// The server block that has exactly this zone.
fn exactly<'c>(corefile: &'c Corefile, zone: &str) -> Option<&'c Server> {
    corefile.serving(zone).into_iter().find(|server| server.zones().any(|(served, _)| served == zone))
}

fn copy(corefile: &Corefile, model: &Server, domain: &str, zone: &str) -> Vec<String> {
    let own = model.zones().position(|(served, _)| served == domain).unwrap_or_default();
    let address = model.addresses[own].text.trim_end_matches(',').replacen(domain, zone, 1);
    let outer = corefile.indentation(model.addresses[0].at.start);
    let mut lines = vec![format!("{outer}{address} {{")];
    for directive in &model.block.directives {
        let start = directive.words[0].at.start;
        let inner = corefile.indentation(start);
        match directive.name() {
            // One server block is enough for the whole process.
            "health" => {}
            "cache" => {
                let deeper = format!("{inner}    ");
                lines.push(format!("{inner}cache {{"));
                lines.extend(["success", "denial"].map(|kind| format!("{deeper}{kind} 9984 5")));
                lines.push(format!("{inner}}}"));
            }
            _ => {
                let text = &corefile.text[start - inner.len()..corefile.line_end(directive.end())];
                lines.extend(text.lines().map(str::to_owned));
            }
        }
    }
    lines.push(format!("{outer}}}"));
    lines
}
