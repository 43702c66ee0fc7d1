//! What `users` says.

use std::fmt::Display;

use k8s_openapi::jiff::Timestamp;
use serde_json::{Value, json};

use super::{
    holders::{Holders, Who},
    plan::{Coverage, Few, MOST_USERS, Seen, Use},
    record::Kind,
    subject::Subject,
};
use crate::commands::table::Table;

/// Everything that is printed.
#[derive(Debug)]
pub(super) struct Report<'a> {
    pub(super) subject: &'a Subject,
    pub(super) seen: &'a Seen,
    pub(super) holders: &'a Holders,
    pub(super) left_out: &'a [String],
}

impl Report<'_> {
    /// Who was seen last comes first.
    fn users(&self) -> Vec<(&Who, &Use)> {
        let mut users: Vec<_> = self.seen.users.iter().collect();
        users.sort_by(|(a, of_a), (b, of_b)| of_b.span.last.cmp(&of_a.span.last).then_with(|| a.cmp(b)));
        users
    }

    /// Whether there is a record of this kind. Without its plugin `log`, CoreDNS writes lines, and no query.
    fn has(&self, kind: Kind) -> bool {
        self.seen.coverage.get(&kind).is_some_and(|of| of.records > 0)
    }

    /// The answer first, then the users, then what the logs cover and what they cannot show.
    pub(super) fn table(&self) -> String {
        let users = self.users();
        let name = &self.subject.dns;
        let mut text = match users.len() {
            0 => format!("{name}: nobody was seen\n"),
            1 => format!("{name}: 1 user was seen\n\n"),
            many => format!("{name}: {many} users were seen\n\n"),
        };
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

    pub(super) fn json(&self) -> Value {
        let users: Vec<_> = self.users().into_iter().map(|(who, how)| self.user_json(who, how)).collect();
        let coverage: Vec<_> = Kind::ALL.into_iter().map(|kind| coverage_json(kind, self.seen)).collect();
        let broken = &self.seen.broken;
        let first = broken
            .first
            .iter()
            .map(|(file, place, why)| json!({"file": file, "line": place.line, "record": place.record, "text": why}));
        let unread = broken.unread.iter().map(|(file, why)| json!({"file": file, "text": why}));
        json!({
            "name": self.subject.dns,
            "services": self.subject.found.iter().map(|(namespace, service)| json!({"namespace": namespace, "service": service})).collect::<Vec<_>>(),
            "users": users,
            "moreUsers": self.seen.more_users,
            "logs": coverage,
            "broken": {"records": broken.records, "files": broken.files, "first": first.collect::<Vec<_>>()},
            "unread": {"files": broken.unread_files, "first": unread.collect::<Vec<_>>()},
            "leftOut": self.left_out,
            "notes": self.notes(),
        })
    }

    fn user_json(&self, who: &Who, how: &Use) -> Value {
        json!({
            "who": who,
            "certain": how.certain,
            "seenBy": how.seen_by,
            "first": how.span.first.map(|time| time.to_string()),
            "last": how.span.last.map(|time| time.to_string()),
            "addresses": how.addresses.kept,
            "moreAddresses": how.addresses.more,
            "aliases": how.aliases.kept,
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
        about
    }

    /// What one must know to judge the list.
    fn notes(&self) -> Vec<String> {
        let Seen { users, more_users, suffixed, below, reused, unnamed, coverage, broken } = self.seen;
        let name = &self.subject.dns;
        let given = |kind| self.has(kind);
        let mut notes = Vec::new();
        if given(Kind::Resolver) || given(Kind::CoreDns) {
            notes.push(
                "Caches answer most queries, and only the others are logged: each user was seen at least once, how often it asks \
                 nobody knows. Clients that resolve once and never again show up only in flow logs."
                    .to_owned(),
            );
        }
        let is_silent = coverage.contains_key(&Kind::CoreDns) && !given(Kind::CoreDns);
        if is_silent {
            notes.push(
                "The logs of CoreDNS have no query, so they show no pod: turn on its plugin `log`, and give what it writes from then on."
                    .to_owned(),
            );
        } else if given(Kind::Resolver)
            && !given(Kind::CoreDns)
            && users.keys().any(|who| matches!(who, Who::ClusterDns { .. }))
        {
            notes.push("Pods ask through CoreDNS. Its log says which: turn on its plugin `log`, and give the output of `kubectl logs --timestamps`.".to_owned());
        }
        let missing = [
            (Kind::CloudTrail, "callers of DiscoverInstances"),
            (Kind::Flow, "those who are connected, or know an address without asking,"),
        ];
        for (kind, who) in missing.into_iter().filter(|(kind, _)| !given(*kind)) {
            notes.push(format!("No {} were given: {who} are not seen.", kind.as_str()));
        }
        if !given(Kind::Resolver) && !given(Kind::CoreDns) && !is_silent {
            notes.push("No logs of DNS were given: those who ask for the name are not seen.".to_owned());
        }
        if given(Kind::Flow) && self.subject.tasks.is_empty() {
            notes.push(
                "No address of a task is known, so that flow logs show nobody: give them with --address.".to_owned(),
            );
        }
        if coverage.values().any(|coverage| coverage.undated) {
            notes.push("Some lines have no time: `kubectl logs --timestamps` writes one. Without it, addresses are those of today.".to_owned());
        }
        if !suffixed.kept.is_empty() {
            notes.push(format!(
                "Not counted: queries for {}. A search path makes such names, which are not {name}; who means it asks for that as well.",
                few(suffixed)
            ));
        }
        if !below.kept.is_empty() {
            notes.push(format!(
                "Not counted: queries for {}. Cloud Map has such names for single instances of services with SRV records.",
                few(below)
            ));
        }
        if !reused.kept.is_empty() {
            notes.push(format!(
                "Not counted: connections to {} while a pod or Node had the address: these do not go to a task.",
                few(reused)
            ));
        }
        if *unnamed {
            notes.push(
                "CloudTrail has calls of DiscoverInstances without a service: these callers are not in the list."
                    .to_owned(),
            );
        }
        if *more_users {
            notes.push(format!("There are more than {MOST_USERS} users. The others are left out."));
        }
        notes.extend(self.left_out.iter().map(|what| format!("Left out: {what}.")));
        if broken.records > 0 {
            let places: Vec<_> =
                broken.first.iter().map(|(file, place, why)| format!("{file}, {place}: {why}")).collect();
            let of = if broken.files > 1 {
                format!("in {} files; the first of each", broken.files)
            } else {
                "the first".to_owned()
            };
            let more = if broken.files > places.len() as u64 { "; ..." } else { "" };
            notes.push(format!(
                "Not understood: {} record{}, {of}: {}{more}.",
                broken.records,
                if broken.records == 1 { "" } else { "s" },
                places.join("; ")
            ));
        }
        for (file, why) in &broken.unread {
            notes.push(format!("Not read, or not to its end: {file}: {why}."));
        }
        if broken.unread_files > broken.unread.len() as u64 {
            notes.push(format!("Not read: {} files in total.", broken.unread_files));
        }
        notes
    }
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
    let mark = if how.certain { "" } else { " (?)" };
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

fn few<T: Display + Ord>(some: &Few<T>) -> String {
    let listed: Vec<_> = some.kept.iter().map(ToString::to_string).collect();
    format!("{}{}", listed.join(", "), if some.more { ", ..." } else { "" })
}

fn time(time: Option<Timestamp>) -> String {
    time.map_or_else(|| "-".to_owned(), |time| time.strftime("%Y-%m-%dT%H:%M:%SZ").to_string())
}
