//! The remarks below a report of `users`: what the logs cannot show, and what was not counted.

use super::{
    holders::Who,
    plan::{Flagged, MOST_USERS, Seen},
    record::Kind,
    report::{Report, few},
};

impl Report<'_> {
    /// What one must know to judge the list.
    pub(super) fn notes(&self) -> Vec<String> {
        let mut notes = self.what_logs_cannot_show();
        notes.extend(self.not_counted());
        let Seen { unnamed, skipped, more_users, named, broken, unread, .. } = self.seen;
        if *unnamed > 0 {
            notes.push(
                "CloudTrail has calls of DiscoverInstances without a service: these callers are not in the list."
                    .to_owned(),
            );
        }
        if *skipped > 0 {
            notes.push(
                "AWS could not record all flows (SKIPDATA): who is in none of the others is not seen.".to_owned(),
            );
        }
        if *more_users {
            notes.push(format!("There are more than {MOST_USERS} users. The others are left out."));
        }
        notes.extend(self.left_out.iter().map(|what| format!("Left out: {what}.")));
        notes.extend(places("The name without a user", named));
        notes.extend(places("Not understood", broken));
        for (file, why) in &unread.first {
            notes.push(format!("Not read, or not to its end: {file}: {why}."));
        }
        if unread.files > unread.first.len() as u64 {
            notes.push(format!("Not read: {} files in total.", unread.files));
        }
        notes
    }

    /// Which users the given logs cannot show.
    fn what_logs_cannot_show(&self) -> Vec<String> {
        let Seen { users, coverage, .. } = self.seen;
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
        notes
    }

    /// Records that resemble uses of the name, and are none.
    fn not_counted(&self) -> Vec<String> {
        let Seen { users, suffixed, below, reused, .. } = self.seen;
        let name = &self.subject.dns;
        let mut notes = Vec::new();
        if !suffixed.kept.is_empty() {
            notes.push(format!(
                "Not counted: queries for {}. A search path makes such names, and they do not exist or belong to Kubernetes: who means {name} asks for that as well.",
                few(suffixed)
            ));
        }
        if users.values().any(|how| !how.hints.kept.is_empty()) {
            notes.push(format!(
                "Some names of a search path have an answer. With its plugin `autopath`, CoreDNS answers such a name as it would {name}, \
                 and logs only that one: who asked is in the list with (?)."
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
                "Not counted: connections to {} and names with this address while a pod or Node had it: these do not go to a task.",
                few(reused)
            ));
        }
        notes
    }
}

/// A remark about records: how many there are, and where the first ones are.
fn places(title: &str, of: &Flagged) -> Option<String> {
    let first: Vec<_> = of.first.iter().map(|(file, place, what)| format!("{file}, {place}: {what}")).collect();
    let which = if of.files > 1 { format!("in {} files; the first of each", of.files) } else { "the first".to_owned() };
    let records = if of.records == 1 { "1 record".to_owned() } else { format!("{} records", of.records) };
    let more = if of.files > first.len() as u64 { "; ..." } else { "" };
    (of.records > 0).then(|| format!("{title}: {records}, {which}: {}{more}.", first.join("; ")))
}
