//! Who uses the name: what all records together say.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
};

use k8s_openapi::jiff::Timestamp;

use super::{
    cloudtrail::{Bearer, Principal},
    frames::Place,
    holders::{Held, Holders, Who},
    record::{How, Kind, Read, Said, Sighting},
};

/// How many users are kept: tasks that the internet reaches have callers without end.
pub(super) const MOST_USERS: usize = 100_000;
/// How many addresses, aliases, names and files are kept of each.
pub(super) const MOST: usize = 10;

/// Some of many values, and whether there were more.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Few<T> {
    pub(super) kept: BTreeSet<T>,
    pub(super) more: bool,
}

impl<T> Default for Few<T> {
    fn default() -> Self {
        Self { kept: BTreeSet::new(), more: false }
    }
}

impl<T: Ord> Few<T> {
    fn add(&mut self, value: T) {
        if self.kept.len() < MOST {
            self.kept.insert(value);
        } else {
            self.more |= !self.kept.contains(&value);
        }
    }
}

/// When something was seen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Span {
    pub(super) first: Option<Timestamp>,
    pub(super) last: Option<Timestamp>,
}

impl Span {
    fn add(&mut self, first: Option<Timestamp>, last: Option<Timestamp>) {
        self.first = self.first.into_iter().chain(first).min();
        self.last = self.last.into_iter().chain(last).max();
    }
}

/// How somebody uses the name.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Use {
    pub(super) seen_by: BTreeSet<How>,
    pub(super) span: Span,
    /// At least one record is surely of this user, and not only of the one that has its address now.
    pub(super) certain: bool,
    pub(super) addresses: Few<IpAddr>,
    /// Names that lead to the name, and were asked for instead of it.
    pub(super) aliases: Few<String>,
    /// Names of a search path that were asked for, of which one may have been meant as the name.
    pub(super) hints: Few<String>,
    /// There is more than such hints.
    pub(super) surely: bool,
    /// Who has the address now, and since when, if that is not the one that was seen.
    pub(super) later: Option<(Who, Timestamp)>,
}

/// What was read of a kind of logs.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Coverage {
    pub(super) files: u64,
    pub(super) records: u64,
    /// Records about the name that have no time.
    pub(super) undated: bool,
    pub(super) span: Span,
}

/// Records of which something is to be said.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Places {
    pub(super) records: u64,
    /// The first one of each file, up to [`MOST`] files: the file, the place in it, and what is to be said.
    pub(super) first: Vec<(String, Place, String)>,
    pub(super) files: u64,
}

impl Places {
    /// Adds a record. `had`: whether its file had one before.
    pub(super) fn add(&mut self, had: &mut bool, name: &str, place: Place, what: String) {
        self.records += 1;
        if !std::mem::replace(had, true) {
            self.files += 1;
            if self.first.len() < MOST {
                self.first.push((name.to_owned(), place, what));
            }
        }
    }
}

/// Files that could not be read, or not to their end: some, with the reasons, and how many.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Unread {
    pub(super) first: Vec<(String, String)>,
    pub(super) files: u64,
}

/// What the logs say.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Seen {
    pub(super) users: BTreeMap<Who, Use>,
    /// There were more than [`MOST_USERS`].
    pub(super) more_users: bool,
    pub(super) suffixed: Few<String>,
    pub(super) below: Few<String>,
    /// Addresses of tasks that others had when somebody connected to them.
    pub(super) reused: Few<IpAddr>,
    /// Calls of `DiscoverInstances` that do not say of what.
    pub(super) unnamed: u64,
    /// Times of which AWS could not record all flows.
    pub(super) skipped: u64,
    pub(super) coverage: BTreeMap<Kind, Coverage>,
    /// Records with the name that do not say who uses it.
    pub(super) named: Places,
    /// Records that were not understood.
    pub(super) broken: Places,
    pub(super) unread: Unread,
}

/// What one file adds.
#[derive(Debug)]
pub(super) struct OfFile<'a> {
    name: &'a str,
    kinds: BTreeSet<Kind>,
    named: bool,
    pub(super) broken: bool,
}

impl<'a> OfFile<'a> {
    pub(super) fn new(name: &'a str) -> Self {
        Self { name, kinds: BTreeSet::new(), named: false, broken: false }
    }
}

impl Seen {
    /// Adds a record.
    pub(super) fn add(&mut self, file: &mut OfFile<'_>, place: Place, read: Read, holders: &Holders) {
        let Read { kind, at, said } = read;
        let coverage = self.coverage.entry(kind).or_default();
        coverage.files += u64::from(file.kinds.insert(kind));
        coverage.records += u64::from(!matches!(said, Said::Nothing | Said::Mentioned(_)));
        coverage.span.add(at, at);
        coverage.undated |= at.is_none() && matches!(said, Said::Use(_));
        match said {
            Said::Use(sighting) => self.user(*sighting, holders),
            Said::Suffixed(name) => self.suffixed.add(name),
            Said::Below(name) => self.below.add(name),
            Said::Named(why) | Said::Mentioned(why) => {
                self.named.add(&mut file.named, file.name, place, why.to_owned());
            }
            Said::Unnamed => self.unnamed += 1,
            Said::Skipped => self.skipped += 1,
            Said::Other | Said::Nothing => {}
        }
    }

    /// Adds a file that could not be read, or not to its end.
    pub(super) fn unread(&mut self, name: &str, why: String) {
        self.unread.files += 1;
        if self.unread.first.len() < MOST {
            self.unread.first.push((name.to_owned(), why));
        }
    }

    fn user(&mut self, sighting: Sighting, holders: &Holders) {
        let Sighting { how, first, last, address, instance, endpoint, principal, alias, hint, task } = sighting;
        // The address of a task that ended goes to a pod: who connects to the pod does not use the task.
        if let Some(task) = task.filter(|task| matches!(holders.at(*task, first, how), Held::By(_))) {
            return self.reused.add(task);
        }
        let (who, certain, later) = identify(how, first, address, instance, endpoint, principal, holders);
        if self.users.len() >= MOST_USERS && !self.users.contains_key(&who) {
            self.more_users = true;
            return;
        }
        let user = self.users.entry(who).or_default();
        user.seen_by.insert(how);
        user.span.add(first, last);
        user.certain |= certain;
        if let Some(address) = address {
            user.addresses.add(address);
        }
        if let Some(alias) = alias {
            user.aliases.add(alias);
        }
        match hint {
            Some(hint) => user.hints.add(hint),
            None => user.surely = true,
        }
        user.later = user.later.take().or(later);
    }
}

/// Who it was, whether that is certain, and who has the address now if that is another one.
fn identify(
    how: How,
    then: Option<Timestamp>,
    address: Option<IpAddr>,
    instance: Option<String>,
    endpoint: Option<String>,
    principal: Option<Principal>,
    holders: &Holders,
) -> (Who, bool, Option<(Who, Timestamp)>) {
    let held = address.map_or(Held::Unknown, |address| holders.at(address, then, how));
    let by_role = principal.map(|principal| of_principal(principal, holders));
    match &held {
        // A pod says more than its role, unless it is one of ours. A Node says less, because many pods share its address.
        Held::By(who)
            if by_role.is_none() || matches!((who, &by_role), (Who::Pod { .. }, Some(role)) if !is_ours(role)) =>
        {
            return ((*who).clone(), true, None);
        }
        Held::Perhaps(who) if by_role.is_none() && instance.is_none() => return ((*who).clone(), false, None),
        _ => {}
    }
    if let Some(who) = by_role {
        return (who, true, None);
    }
    let later = if let Held::Later(who, since) = held { Some((who.clone(), since)) } else { None };
    let logged = instance.map(|id| Who::Ec2 { id }).or_else(|| endpoint.map(|id| Who::ResolverEndpoint { id }));
    let who = logged.or_else(|| address.map(|address| Who::Address { address }));
    // Readers refuse records that say nothing about the one who asks.
    (who.unwrap_or_else(|| Who::Principal { arn: "unknown".to_owned() }), true, later)
}

fn is_ours(who: &Who) -> bool {
    matches!(who, Who::Ours { .. })
}

fn of_principal(principal: Principal, holders: &Holders) -> Who {
    match principal {
        Principal::Role { arn, bearer } => match bearer {
            Bearer::Lambda(function) => Who::Lambda { function, role: arn },
            Bearer::Instance(id) => Who::Ec2 { id },
            // ECS gives a task's instance in Cloud Map the task's id.
            Bearer::Task(id) => match holders.tasks.get(&id) {
                Some(task) => task.clone(),
                None => Who::Task { id, ecs_cluster: None, ecs_service: None },
            },
            Bearer::Unknown => Who::Role { arn },
        },
        Principal::Other(arn) => Who::Principal { arn },
        Principal::Service(name) => Who::AwsService { name },
        Principal::Ours(role) => Who::Ours { role },
    }
}
