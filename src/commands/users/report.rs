//! What `users` says.

use std::fmt::Display;

use k8s_openapi::jiff::Timestamp;
use serde_json::{Value, json};

use super::{
    holders::{Holders, Who},
    plan::{Coverage, Few, Flagged, MOST_USERS, Seen, Use},
    record::Kind,
    subject::Subject,
};
use crate::table::Table;

/// Everything that is printed.
#[derive(Debug)]
pub(super) struct Report<'a> {
    pub(super) subject: &'a Subject,
    pub(super) seen: &'a Seen,
    pub(super) holders: &'a Holders,
    pub(super) left_out: &'a [String],
}

impl Report<'_> {
    /// The users, the last seen first.
    fn users(&self) -> Vec<(&Who, &Use)> {
        let mut users: Vec<_> = self.seen.users.iter().collect();
        users.sort_by(|(a, of_a), (b, of_b)| of_b.span.last.cmp(&of_a.span.last).then_with(|| a.cmp(b)));
        users
    }

    /// Whether there is a record of this kind. Without its plugin `log`, CoreDNS writes lines, and no query.
    pub(super) fn has(&self, kind: Kind) -> bool {
        self.seen.coverage.get(&kind).is_some_and(|of| of.records > 0)
    }

    /// The answer first, then the users, then what the logs cover and what they cannot show.
    pub(super) fn table(&self) -> String {
        let users = self.users();
        let mut text = format!("{}: {}\n", self.subject.dns, self.answer());
        text += if users.is_empty() { "" } else { "\n" };
        if !users.is_empty() {
            let mut table = Table::new(["USER", "SEEN BY", "FIRST", "LAST", "ABOUT"]);
            for (who, how) in users {
                let seen_by: Vec<_> = how.seen_by.iter().map(|how| how.as_str()).collect();
                table.row([
                    title(who, how),
                    seen_by.join(", "),
                    time(how.span.first),
                    time(how.span.last),
                    self.about(who, how).join("; "),
                ]);
            }
            text += &table.to_string();
        }
        text += "\n";
        let mut logs = Table::new(["LOGS", "FILES", "RECORDS", "FIRST", "LAST"]);
        for kind in Kind::ALL {
            let Coverage { files, records, span, .. } = self.seen.coverage.get(&kind).cloned().unwrap_or_default();
            logs.row([
                kind.as_str().to_owned(),
                files.to_string(),
                records.to_string(),
                time(span.first),
                time(span.last),
            ]);
        }
        text += &logs.to_string();
        text += "\n";
        for note in self.notes() {
            text.extend(["- ", note.as_str(), "\n"]);
        }
        text
    }

    /// The answer in one sentence. It says that nobody was seen only if all records were understood.
    fn answer(&self) -> String {
        let open = self.open();
        match (self.seen.users.len(), open.is_empty()) {
            (0, true) => "nobody was seen".to_owned(),
            (0, false) => format!("who uses it is not known: {}", open.join("; ")),
            (count, is_all) => {
                let were = if count == 1 { "1 user was seen".to_owned() } else { format!("{count} users were seen") };
                if is_all { were } else { format!("{were}, and there may be more: {}", open.join("; ")) }
            }
        }
    }

    /// The logs and records that may hide a user.
    fn open(&self) -> Vec<String> {
        let Seen { named, broken, unread, unnamed, skipped, more_users, coverage, .. } = self.seen;
        let blind = self.has(Kind::Flow) && self.subject.tasks.is_empty();
        let is_empty = coverage.values().all(|of| of.records == 0);
        let counted = |count: u64, one: &str, many: &str| match count {
            0 => None,
            1 => Some(format!("1 {one}")),
            count => Some(format!("{count} {many}")),
        };
        [
            counted(
                named.records,
                "record has the name and does not say who asked",
                "records have the name and do not say who asked",
            ),
            counted(broken.records, "record was not understood", "records were not understood"),
            counted(unread.files, "file was not read to its end", "files were not read to their end"),
            counted(*unnamed, "call does not say of which service", "calls do not say of which service"),
            counted(*skipped, "flow record says that flows are missing", "flow records say that flows are missing"),
            more_users.then(|| format!("only {MOST_USERS} are kept")),
            blind.then(|| "without addresses of tasks, flow logs show nothing".to_owned()),
            is_empty.then(|| "the logs have no query, call or flow".to_owned()),
        ]
        .into_iter()
        .flatten()
        .collect()
    }

    pub(super) fn json(&self) -> Value {
        let users: Vec<_> = self.users().into_iter().map(|(who, how)| self.user_json(who, how)).collect();
        let coverage: Vec<_> = Kind::ALL.into_iter().map(|kind| coverage_json(kind, self.seen)).collect();
        let Seen { named, broken, unread, unnamed, skipped, .. } = self.seen;
        let files = unread.first.iter().map(|(file, why)| json!({"file": file, "text": why}));
        json!({
            "name": self.subject.dns,
            "services": self.subject.found.iter().map(|(namespace, service)| json!({"namespace": namespace, "service": service})).collect::<Vec<_>>(),
            "users": users,
            "moreUsers": self.seen.more_users,
            "logs": coverage,
            "complete": self.open().is_empty(),
            "named": places_json(named),
            "broken": places_json(broken),
            "unread": {"files": unread.files, "first": files.collect::<Vec<_>>()},
            "callsWithoutService": unnamed,
            "skippedFlows": skipped,
            "leftOut": self.left_out,
            "notes": self.notes(),
        })
    }

    fn user_json(&self, who: &Who, how: &Use) -> Value {
        json!({
            "who": who,
            "certain": how.certain && how.surely,
            "seenBy": how.seen_by,
            "first": how.span.first.map(|time| time.to_string()),
            "last": how.span.last.map(|time| time.to_string()),
            "addresses": how.addresses.kept,
            "moreAddresses": how.addresses.more,
            "aliases": how.aliases.kept,
            "searchPathNames": how.hints.kept,
            "heldLaterBy": how.later.as_ref().map(|(who, since)| json!({"who": who, "since": since.to_string()})),
            "about": self.about(who, how),
        })
    }

    /// What is known of a user besides its name.
    fn about(&self, who: &Who, how: &Use) -> Vec<String> {
        let mut about = Vec::new();
        let addresses = || format!("address {}", few(&how.addresses));
        match who {
            Who::Pod { workload, service_account, .. } => {
                about.extend(workload.clone());
                about.extend(service_account.as_ref().map(|account| format!("service account {account}")));
            }
            Who::ClusterDns { .. } => {
                let log = if self.has(Kind::CoreDns) { "its log shows them" } else { "give its log" };
                about.push(format!("queries of pods come through it: {log}"));
            }
            Who::Node { .. } => about.push("itself, or pods in its network".to_owned()),
            Who::Task { ecs_cluster, ecs_service, .. } => {
                about.extend(ecs_service.as_ref().map(|service| format!("ECS service {service}")));
                about.extend(ecs_cluster.as_ref().map(|cluster| format!("ECS cluster {cluster}")));
            }
            Who::Instance { namespace, service, .. } => about.push(format!("registered in {namespace}/{service}")),
            Who::Ec2 { id } => {
                about
                    .extend(self.holders.nodes.get(id).map(|node| format!("the Node {node}, or a pod that was there")));
                if !how.addresses.kept.is_empty() {
                    about.push(addresses());
                }
            }
            Who::Lambda { role, .. } => about.push(role.clone()),
            Who::Role { .. } | Who::Principal { .. } | Who::AwsService { .. } => {
                if !how.addresses.kept.is_empty() {
                    about.push(addresses());
                }
            }
            Who::Ours { .. } => about.push("a controller or command of cloudmap-mcs: no client".to_owned()),
            Who::ResolverEndpoint { .. } => {
                about.push(format!("clients outside of the VPC, {}: its DNS servers know which", addresses()));
            }
            Who::Address { address } if self.holders.is_in_several_clusters(*address) => {
                about.push("in several clusters somebody has or had it: the log does not say who it was".to_owned());
            }
            Who::Address { .. } if how.later.is_none() => about.push("nobody who is known had it then".to_owned()),
            Who::Address { .. } => {}
        }
        about.extend(
            how.later
                .as_ref()
                .map(|(who, since)| format!("now of {}, but only since {}", plain_title(who), time(Some(*since)))),
        );
        if !how.certain {
            about.push(format!("it has {} now; nobody says since when", addresses()));
        }
        if !how.aliases.kept.is_empty() {
            about.push(format!("asked for {}, which leads to it", few(&how.aliases)));
        }
        if !how.hints.kept.is_empty() {
            about.push(format!("asked for {}, and not in vain: that may mean {}", few(&how.hints), self.subject.dns));
        }
        about
    }
}

fn places_json(places: &Flagged) -> Value {
    let first = places
        .first
        .iter()
        .map(|(file, place, text)| json!({"file": file, "line": place.line, "record": place.record, "text": text}));
    json!({"records": places.records, "files": places.files, "first": first.collect::<Vec<_>>()})
}

fn coverage_json(kind: Kind, seen: &Seen) -> Value {
    let Coverage { files, records, undated, span } = seen.coverage.get(&kind).cloned().unwrap_or_default();
    json!({
        "kind": kind, "files": files, "records": records, "undated": undated,
        "first": span.first.map(|time| time.to_string()), "last": span.last.map(|time| time.to_string()),
    })
}

/// A user that is not certain has a question mark.
fn title(who: &Who, how: &Use) -> String {
    let mark = if how.certain && how.surely { "" } else { " (?)" };
    format!("{}{mark}", plain_title(who))
}

fn plain_title(who: &Who) -> String {
    let of = |what: &str, cluster: &Option<String>, name: &str| match cluster {
        Some(cluster) => format!("{what} {name} of {cluster}"),
        None => format!("{what} {name}"),
    };
    match who {
        Who::Pod { cluster, namespace, name, .. } => of("pod", cluster, &format!("{namespace}/{name}")),
        Who::ClusterDns { cluster, name } => {
            cluster.as_ref().map_or_else(|| name.clone(), |cluster| format!("{name} of {cluster}"))
        }
        Who::Node { cluster, name } => of("Node", cluster, name),
        Who::Task { id, .. } => format!("ECS task {id}"),
        Who::Instance { id, .. } => format!("instance {id}"),
        Who::Ec2 { id } => format!("EC2 {id}"),
        Who::Lambda { function, .. } => format!("Lambda {function}"),
        Who::Role { arn } => format!("role {}", short(arn)),
        Who::Principal { arn } => short(arn).to_owned(),
        Who::AwsService { name } => name.clone(),
        Who::Ours { role } => format!("a controller {}", short(role)),
        Who::ResolverEndpoint { id } => format!("endpoint {id}"),
        Who::Address { address } => address.to_string(),
    }
}

/// An ARN without what all have: `arn:aws:iam::`.
fn short(arn: &str) -> &str {
    let mut parts = arn.splitn(5, ':');
    if parts.next() == Some("arn") { parts.nth(3).unwrap_or(arn) } else { arn }
}

pub(super) fn few<T: Display + Ord>(some: &Few<T>) -> String {
    let listed: Vec<_> = some.kept.iter().map(ToString::to_string).collect();
    format!("{}{}", listed.join(", "), if some.more { ", ..." } else { "" })
}

fn time(time: Option<Timestamp>) -> String {
    time.map_or_else(|| "-".to_owned(), |time| time.strftime("%Y-%m-%dT%H:%M:%SZ").to_string())
}
