//! Who uses the name, according to all records together.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
};

use k8s_openapi::jiff::Timestamp;

use super::{
    cloudtrail::{Bearer, Principal},
    frames::Location,
    holders::{Held, Holders, Who},
    record::{How, Kind, Meaning, Read, Sighting},
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
    /// Aliases of the name that were queried instead of it.
    pub(super) aliases: Few<String>,
    /// Queried names of a search path, whose answer may have been that of the name.
    pub(super) hints: Few<String>,
    /// Whether some use is certain, and not only such a hint.
    pub(super) surely: bool,
    /// Who has the address now, and since when, if it changed hands after this use.
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

/// Records that the report mentions.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Flagged {
    pub(super) records: u64,
    /// The first one of each file, up to [`MOST`] files: the file, the place in it, and the remark.
    pub(super) first: Vec<(String, Location, String)>,
    pub(super) files: u64,
}

impl Flagged {
    /// Adds a record. `had`: whether its file had one before.
    pub(super) fn add(&mut self, had: &mut bool, name: &str, place: Location, what: String) {
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
    /// Addresses of tasks that had another holder when somebody connected to them.
    pub(super) reused: Few<IpAddr>,
    /// Calls of `DiscoverInstances` whose service is not in the log.
    pub(super) unnamed: u64,
    /// Periods in which AWS could not record all flows.
    pub(super) skipped: u64,
    pub(super) coverage: BTreeMap<Kind, Coverage>,
    /// Records with the name that do not say who uses it.
    pub(super) named: Flagged,
    /// Records that were not understood.
    pub(super) broken: Flagged,
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
    pub(super) fn add(&mut self, file: &mut OfFile<'_>, place: Location, read: Read, holders: &Holders) {
        let Read { kind, at, said } = read;
        let coverage = self.coverage.entry(kind).or_default();
        coverage.files += u64::from(file.kinds.insert(kind));
        coverage.records += u64::from(!matches!(said, Meaning::Nothing | Meaning::Mentioned(_)));
        coverage.span.add(at, at);
        coverage.undated |= at.is_none() && matches!(said, Meaning::Use(_));
        match said {
            Meaning::Use(sighting) => self.user(*sighting, holders),
            Meaning::Suffixed(name) => self.suffixed.add(name),
            Meaning::Below(name) => self.below.add(name),
            Meaning::Named(why) | Meaning::Mentioned(why) => {
                self.named.add(&mut file.named, file.name, place, why.to_owned());
            }
            Meaning::Unnamed => self.unnamed += 1,
            Meaning::Skipped => self.skipped += 1,
            Meaning::Other | Meaning::Nothing => {}
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
        // A pod can get the address of a task that ended. Connections to the pod are no use of the task.
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

/// Who used the name, whether that is certain, and who has the address now if it changed hands.
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
