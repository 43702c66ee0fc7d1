//! The clusters together.

use std::collections::{BTreeMap, BTreeSet};

use super::{
    super::{
        observe::{Cluster, Seen},
        report::Finding,
    },
    cluster::of_clock,
};
use cluster::identity::Identity;

type Clusters<'a> = [(&'a Cluster, &'a Seen)];

pub(super) fn plan(clusters: &Clusters<'_>) -> Vec<Finding> {
    if clusters.len() < 2 {
        return Vec::new();
    }
    let mut found = vec![versions(clusters)];
    found.extend(ids(clusters));
    found.extend(settings(clusters));
    for (at, one) in clusters.iter().enumerate() {
        for other in &clusters[at + 1..] {
            found.extend(clocks(*one, *other));
            found.push(addresses(*one, *other));
        }
    }
    found
}

fn names<'a>(clusters: impl IntoIterator<Item = &'a str>) -> String {
    clusters.into_iter().collect::<Vec<_>>().join(", ")
}

fn pair(one: &Cluster, other: &Cluster) -> String {
    format!("{}, {}", one.name, other.name)
}

/// The names of the clusters by what each has.
fn by<'a, T: Ord>(values: impl Iterator<Item = (&'a str, T)>) -> BTreeMap<T, Vec<&'a str>> {
    let mut groups: BTreeMap<T, Vec<&str>> = BTreeMap::new();
    for (name, value) in values {
        groups.entry(value).or_default().push(name);
    }
    groups
}

fn ids(clusters: &Clusters<'_>) -> Option<Finding> {
    let known: Vec<(&str, Identity)> =
        clusters.iter().filter_map(|(cluster, seen)| Some((cluster.name.as_str(), seen.identity()?.ok()?))).collect();
    let all = names(clusters.iter().map(|(cluster, _)| cluster.name.as_str()));
    let uids = by(clusters.iter().filter_map(|(cluster, seen)| Some((cluster.name.as_str(), seen.uid.as_ref().ok()?))));
    if let Some((uid, same)) = uids.iter().find(|(_, names)| names.len() > 1) {
        return Some(Finding::fail(
            &names(same.iter().copied()),
            "ids",
            format!(
                "kube-system has the UID {uid} in all of them: they are one cluster, or one is restored from another"
            ),
            "name each cluster once; a cluster that was restored from another's backup has to be created anew",
        ));
    }
    let of_clusters = by(known.iter().map(|(name, identity)| (*name, identity.cluster.to_string())));
    if let Some((id, same)) = of_clusters.iter().find(|(_, names)| names.len() > 1) {
        return Some(Finding::fail(
            &names(same.iter().copied()),
            "ids",
            format!("they have the same cluster id {id}, and only the first one exports"),
            "give each cluster an id of its own in its ClusterProperty cluster.clusterset.k8s.io",
        ));
    }
    let sets = by(known.iter().filter_map(|(name, identity)| Some((*name, identity.clusterset.as_ref()?.to_string()))));
    if sets.len() > 1 {
        let which: Vec<_> =
            sets.iter().map(|(set, members)| format!("{set}: {}", names(members.iter().copied()))).collect();
        return Some(Finding::fail(
            &all,
            "ids",
            format!("they are in different ClusterSets, and exchange nothing ({})", which.join("; ")),
            "give all clusters the same ClusterProperty clusterset.k8s.io",
        ));
    }
    let members = known.iter().filter(|(_, identity)| identity.clusterset.is_some()).map(|(name, _)| *name);
    let members: Vec<_> = members.collect();
    (members.len() > 1).then(|| Finding::ok(&names(members), "ids", "the ids differ, the ClusterSet is the same"))
}

/// The tag or digest of an image.
fn version(image: &str) -> &str {
    let name = image.rsplit('/').next().unwrap_or_default();
    name.find(['@', ':']).map_or("", |at| &name[at + 1..])
}

/// Compares what the leaders say of their build, which has the commit. A tag can be built again, and nothing shows it.
fn versions(clusters: &Clusters<'_>) -> Finding {
    let image = |seen: &Seen| Some(seen.controller.as_ref().ok()?.as_ref()?.image.clone());
    let build = |seen: &Seen| seen.lease.as_ref().ok()?.as_ref()?.build.clone();
    let all = names(clusters.iter().map(|(cluster, _)| cluster.name.as_str()));
    let each = |of: &dyn Fn(&Seen) -> Option<String>| -> Vec<(&str, String)> {
        clusters.iter().filter_map(|(cluster, seen)| Some((cluster.name.as_str(), of(seen)?))).collect()
    };
    let (images, builds) = (each(&image), each(&build));
    let tags = by(images.iter().map(|(name, image)| (*name, version(image))));
    let knows_builds = !builds.is_empty() && builds.len() >= images.len();
    let versions =
        if knows_builds { by(builds.iter().map(|(name, build)| (*name, build.as_str()))) } else { tags.clone() };
    let mut kinds = versions.keys();
    match (kinds.next(), kinds.next()) {
        (None, _) => Finding::skip(&all, "versions", "no controller was read", "correct what was found before"),
        (Some(build), None) if knows_builds => {
            Finding::ok(&all, "versions", format!("all controllers that were read are the same build, {build}"))
        }
        (Some(_), None) => Finding::ok(&all, "versions", "all controllers that were read have the same version"),
        _ => {
            let which: Vec<_> = versions
                .iter()
                .map(|(version, members)| format!("{version}: {}", names(members.iter().copied())))
                .collect();
            let which = which.join("; ");
            if knows_builds && tags.len() == 1 {
                let what = format!("the images have the same tag, and the controllers are different builds ({which})");
                let remedy =
                    "give each build a tag of its own, and roll it out in all clusters (docs/operations.md#upgrades)";
                return Finding::warn(&all, "versions", what, remedy);
            }
            let what = format!("the controllers have different versions ({which})");
            Finding::warn(&all, "versions", what, "complete the upgrade (docs/operations.md#upgrades)")
        }
    }
}

/// Clusters exchange exports only through one registry.
fn settings(clusters: &Clusters<'_>) -> Option<Finding> {
    let region = |seen: &Seen| {
        let names = ["CLOUDMAP_MCS_REGION", "AWS_REGION"];
        names.iter().find_map(|name| seen.setting(name)).map(str::to_owned)
    };
    let regions = by(clusters.iter().filter_map(|(cluster, seen)| Some((cluster.name.as_str(), region(seen)?))));
    let which = regions.iter().map(|(region, members)| format!("{region}: {}", names(members.iter().copied())));
    let all = names(clusters.iter().map(|(cluster, _)| cluster.name.as_str()));
    (regions.len() > 1).then(|| {
        let what = format!("the controllers use different regions ({})", which.collect::<Vec<_>>().join("; "));
        Finding::fail(
            &all,
            "region",
            what,
            "set CLOUDMAP_MCS_REGION to one region in cloudmap-mcs-config of all clusters",
        )
    })
}

fn clocks((one, a): (&Cluster, &Seen), (other, b): (&Cluster, &Seen)) -> Option<Finding> {
    let ahead = b.ahead? - a.ahead?;
    let whose = format!("{}'s clock, compared with {}'s,", other.name, one.name);
    let remedy = "synchronize both with NTP: ages in `status` and `ledger show` are wrong until then";
    Some(of_clock(&pair(one, other), &whose, ahead, remedy))
}

fn addresses((one, a): (&Cluster, &Seen), (other, b): (&Cluster, &Seen)) -> Finding {
    let place = pair(one, other);
    for (cluster, seen) in [(one, a), (other, b)] {
        if let (Err(why), _) | (_, Err(why)) = (&seen.ranges, &seen.pods) {
            return Finding::unread(&place, "pod ranges", why, &cluster.flags);
        }
    }
    let remedy = "give the pods of one cluster another range: requests to such addresses stay in their own cluster";
    let fail = |what: String| Finding::fail(&place, "pod ranges", what, remedy);
    let (ranges, pods) = ([&a.ranges, &b.ranges].map(|it| it.as_deref().unwrap_or_default()), [&a.pods, &b.pods]);
    let both = ranges[0].iter().find_map(|x| ranges[1].iter().find(|y| x.overlaps(y)).map(|y| (x, y)));
    if let Some((x, y)) = both {
        return fail(format!("{x} of {} overlaps {y} of {}", one.name, other.name));
    }
    for ((owner, pods), (holder, ranges)) in
        [((one, pods[0]), (other, ranges[1])), ((other, pods[1]), (one, ranges[0]))]
    {
        let inside = pods.iter().flatten().find_map(|ip| Some((ip, ranges.iter().find(|range| range.contains(*ip))?)));
        if let Some((ip, range)) = inside {
            return fail(format!("the pod {ip} of {} is in the range {range} of {}", owner.name, holder.name));
        }
    }
    let empty = BTreeSet::new();
    let [mine, theirs] = pods.map(|it| it.as_ref().unwrap_or(&empty));
    if let Some(ip) = mine.intersection(theirs).next() {
        return fail(format!("pods of both have the address {ip}"));
    }
    Finding::ok(&place, "pod ranges", "no overlap is seen")
}
