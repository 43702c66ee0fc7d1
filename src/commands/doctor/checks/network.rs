//! What the temporary pods found.

use std::{
    collections::BTreeSet,
    net::{IpAddr, SocketAddr},
};

use super::super::{
    observe::{Cluster, Import, Seen},
    probe::{Connected, Outcome, Probe, Probed, Tried, selector},
    report::Finding,
};
use api::names;
use model::addresses::Range;

pub(super) fn plan(probed: &Probed, clusters: &[(&Cluster, &Seen)]) -> Vec<Finding> {
    let mut found = Vec::new();
    // A cluster that was seen is left out only for this reason.
    for (cluster, _) in clusters.iter().filter(|(cluster, _)| !probed.clusters.contains_key(&cluster.name)) {
        let what = "no image is known for the temporary pods: the network of this cluster is not tried";
        let remedy = "--probe-image names an image that the Nodes can pull, --no-probe leaves the network out";
        found.push(Finding::skip(&cluster.name, "pods", what, remedy));
    }
    for (name, probe) in &probed.clusters {
        let cluster = clusters.iter().find(|(cluster, _)| cluster.name == *name);
        let flags = cluster.map_or("", |(cluster, _)| cluster.flags.as_str());
        found.extend(pods(name, probe));
        if let Ok(tried) = &probe.tried {
            for (other, there) in probed.clusters.iter().filter(|(other, _)| *other != name) {
                found.extend(ways(name, probe, tried, other, there, probed, clusters));
            }
            let later = probed.clusters.iter().filter(|(other, _)| *other > name);
            found.extend(later.filter_map(|(other, there)| stream((name, probe), (other, there), clusters)));
            found.push(answer(name, flags, probe.import.as_ref(), tried));
        }
        found.extend(probe.left.as_ref().map(|why| {
            let what = format!("temporary pods are left: {why}");
            let remedy = format!("kubectl{flags} delete pods -A -l {}", selector(&probe.run));
            Finding::fail(name, "pods", what, remedy)
        }));
    }
    found
}

fn pods(name: &str, probe: &Probe) -> Option<Finding> {
    let remedy = "kubectl get events in the namespace says more; --probe-image names an image that the Nodes can pull, \
                  --namespace another namespace, --no-probe leaves the network out";
    let why = match (&probe.listens, &probe.tried) {
        (Err(why), _) => format!("the temporary pod does not run: {why}"),
        (_, Err(why)) => format!("the temporary pod tried nothing: {why}"),
        _ => return None,
    };
    Some(Finding::fail(name, "pods", why, remedy))
}

/// From one cluster to another, by each address of the pod there.
fn ways(
    from: &str,
    here: &Probe,
    tried: &Tried,
    to: &str,
    there: &Probe,
    probed: &Probed,
    clusters: &[(&Cluster, &Seen)],
) -> Vec<Finding> {
    let place = format!("{from}→{to}");
    let (Ok(own), Ok(theirs)) = (&here.listens, &there.listens) else { return Vec::new() };
    let attempts: Vec<_> = tried.connected.iter().filter(|it| probed.listener(it.address.ip()) == Some(to)).collect();
    if attempts.is_empty() {
        let family = |ips: &[IpAddr]| if ips.iter().all(IpAddr::is_ipv4) { "IPv4" } else { "IPv6" };
        let what = format!("pods have only {} here and only {} there", family(own), family(theirs));
        let remedy = "clusters reach each other only by a family that both have: create one of them with the other's";
        return vec![Finding::fail(&place, "tcp", what, remedy)];
    }
    attempts
        .into_iter()
        .map(|attempt| way(&place, attempt, to, &source(from, own, attempt.address, clusters)))
        .collect()
}

/// Between two leaders, of which one has to reach the other.
fn stream(one: (&str, &Probe), other: (&str, &Probe), clusters: &[(&Cluster, &Seen)]) -> Option<Finding> {
    let place = format!("{}↔{}", one.0, other.0);
    let ways = [(one, other), (other, one)].into_iter().flat_map(|(from, to)| {
        let connected = from.1.tried.iter().flat_map(|tried| &tried.connected);
        connected.filter(move |it| to.1.streams.contains(&it.address)).map(move |it| (from, to.0, it))
    });
    let ways: Vec<_> = ways.collect();
    if let Some(((from, _), _, attempt)) = ways.iter().find(|(_, _, attempt)| attempt.outcome == Outcome::Answered) {
        return Some(Finding::ok(&place, "stream", format!("{from} reaches the other leader at {}", attempt.address)));
    }
    let ((from, here), to, attempt) = *ways.first()?;
    let list: Vec<_> = ways.iter().map(|(_, _, attempt)| attempt.address.to_string()).collect();
    let source = source(from, here.listens.as_deref().unwrap_or_default(), attempt.address, clusters);
    let remedy = format!(
        "allow {source} to reach port {} in {to}'s node security group (docs/stream.md#network), or set --stream=off: changes \
         take seconds through the registry, and nobody notices that the network to a cluster is gone (docs/unreachable.md)",
        attempt.address.port()
    );
    let what = format!("neither leader is reached by the other cluster's pods: {}", list.join(", "));
    Some(Finding::warn(&place, "stream", what, remedy))
}

/// The range of the pods from which the attempt came, as far as it is known.
fn source(from: &str, own: &[IpAddr], to: SocketAddr, clusters: &[(&Cluster, &Seen)]) -> String {
    let family = |ip: &IpAddr| ip.is_ipv4() == to.is_ipv4();
    let seen = clusters.iter().find(|(cluster, _)| cluster.name == from).map(|(_, seen)| seen);
    let ranges = seen.and_then(|seen| seen.ranges.as_ref().ok()).into_iter().flatten();
    let mut ranges = ranges.filter(|range| family(&range.base()));
    let whole: Option<Range> = ranges.next().map(|first| ranges.fold(*first, |all, range| all.extended(range.base())));
    match (whole, own.iter().find(|ip| family(ip))) {
        (Some(range), _) => range.to_string(),
        (None, Some(ip)) => format!("the subnets of {from}'s pods ({ip} is one of them)"),
        (None, None) => format!("the subnets of {from}'s pods"),
    }
}

fn way(place: &str, attempt: &Connected, to: &str, source: &str) -> Finding {
    let address = attempt.address;
    match &attempt.outcome {
        Outcome::Answered => Finding::ok(place, "tcp", format!("{address} answered")),
        Outcome::TimedOut => Finding::fail(
            place,
            "tcp",
            format!("{address} timed out"),
            format!(
                "allow {source} in {to}'s node security group, and see to routes in both directions \
                 (docs/install.md#what-the-network-must-allow)"
            ),
        ),
        Outcome::Failed(why) => Finding::fail(
            place,
            "tcp",
            format!("{address} failed: {why}"),
            format!("look for a NetworkPolicy or firewall in {to} that rejects {source}, and for the route there"),
        ),
        Outcome::Stranger(heard) => Finding::fail(
            place,
            "tcp",
            format!("another program answered at {address}: {heard:?}"),
            "the pod ranges of the clusters overlap, or something between them answers for others: give each its own range",
        ),
    }
}

fn answer(name: &str, flags: &str, import: Option<&Import>, tried: &Tried) -> Finding {
    let check = format!("cloudmap-mcs coredns check{flags}");
    let (Some(Import { key, ips }), Some(resolved)) = (import, &tried.resolved) else {
        let remedy = "run this again after the first export";
        return Finding::skip(name, "dns", "there is no ServiceImport with an IP to resolve", remedy);
    };
    let asked = names::dns_name(key);
    let list = |ips: &BTreeSet<IpAddr>| ips.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
    match resolved {
        Ok(answers) if answers.is_empty() => {
            Finding::fail(name, "dns", format!("{asked} has no addresses in a pod"), check)
        }
        // A pod asks for the families that it has.
        Ok(answers) if answers.is_subset(ips) => {
            Finding::ok(name, "dns", format!("{asked} is {} in a pod", list(answers)))
        }
        Ok(answers) => Finding::fail(
            name,
            "dns",
            format!("{asked} is {} in a pod, and {} in the ServiceImport", list(answers), list(ips)),
            format!("look for another DNS server that answers for {}; {check}", names::ZONE),
        ),
        Err(why) => Finding::fail(name, "dns", format!("{asked} does not resolve in a pod: {why}"), check),
    }
}
