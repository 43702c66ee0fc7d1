//! The ClusterSet as this cluster sees it. Pure.

use std::time::Duration;

use k8s_openapi::{
    apimachinery::pkg::apis::meta::v1::{Condition, ObjectMeta, Time},
    jiff::Timestamp,
};

use super::{
    observe::{Cluster, Dark, Leader, Objects},
    report::{Finding, Report, State},
};
use crate::{ledger_show, table::human};
use api::{
    ServiceImport,
    conditions::{ImportStaleReason, ImportUnreachableReason, ReadyReason, Row, export_rows, import_rows},
};
use cluster::{identity::Identity, lease::LEASE, objects, reader::Unread, record::RECORD};
use ledger::{
    reader::TOO_LARGE,
    record::{Member, StoreError},
};
use model::{ClusterId, Exported, capitalized};
use records::ClusterView;

/// A Lease that was not renewed for this long has no leader, unless the clock here is wrong: renewals come every 3 s.
const RENEWED: Duration = Duration::from_secs(30);
/// A controller reports on a new object within this time.
const REPORTED: Duration = Duration::from_secs(30);

/// What is wrong in the ClusterSet, as far as this cluster sees it.
pub(super) fn plan(seen: &Cluster, objects: &Objects) -> Report {
    // Where exports were not read, there may be some.
    let mut findings = cluster(seen, !objects.exports.as_ref().is_ok_and(Vec::is_empty));
    findings.extend(ledger(seen));
    let exports = objects.exports.as_ref().map(|exports| {
        let wrong = |export: &api::ServiceExport| {
            let conditions = export.status.as_ref().map_or(&[][..], |status| &status.conditions);
            troubles(&about("ServiceExport", &export.metadata), &export_rows(), &export.metadata, conditions, seen.now)
        };
        exports.iter().map(wrong).collect()
    });
    let namespace = objects.namespace.as_deref();
    findings.extend(counted("ServiceExports", namespace, exports, &seen.flags));
    let imports =
        objects.imports.as_ref().map(|imports| imports.iter().map(|import| of_import(import, seen.now)).collect());
    findings.extend(counted("ServiceImports", namespace, imports, &seen.flags));
    Report { subject: subject(seen), findings }
}

/// A row with their number, and the findings of those that are not well. If there is none, the row names the namespace that
/// was asked for, because it may be misspelt.
fn counted(
    about: &str,
    namespace: Option<&str>,
    found: Result<Vec<Vec<Finding>>, &Unread>,
    flags: &str,
) -> Vec<Finding> {
    match found {
        Err(why) => vec![Finding::unread(about, why, flags)],
        Ok(each) if each.is_empty() => {
            let place = namespace.map_or_else(String::new, |namespace| format!(" in the namespace {namespace}"));
            vec![Finding::absent(about, format!("there is none{place}"))]
        }
        Ok(each) => {
            let well = each.iter().filter(|findings| findings.is_empty()).count();
            let text = format!("{well} of {} are well", each.len());
            std::iter::once(Finding::well(about, text)).chain(each.into_iter().flatten()).collect()
        }
    }
}

/// What is wrong with a ServiceImport.
pub(super) fn of_import(import: &ServiceImport, now: Timestamp) -> Vec<Finding> {
    let about = about("ServiceImport", &import.metadata);
    if !objects::is_managed(&import.metadata) {
        let text = "this controller did not create it, and leaves it alone";
        return vec![Finding::wrong(about, text, "Delete it, or stop whatever creates it")];
    }
    let conditions = import.status.as_ref().map_or(&[][..], |status| &status.conditions);
    troubles(&about, &import_rows(), &import.metadata, conditions, now)
}

fn about(kind: &str, metadata: &ObjectMeta) -> String {
    let part = |text: &Option<String>| text.clone().unwrap_or_default();
    format!("{kind} {}/{}", part(&metadata.namespace), part(&metadata.name))
}

/// The cluster that the report is about.
pub(super) fn subject(seen: &Cluster) -> String {
    match &seen.identity {
        Ok(Ok(Identity { cluster, clusterset: Some(set), .. })) => format!("{cluster} in the ClusterSet {set}"),
        Ok(Ok(Identity { cluster, .. })) => format!("{cluster} in no ClusterSet"),
        _ => "this cluster".to_owned(),
    }
}

/// Time since then, which is none if the clock here is behind.
pub(crate) fn since(now: Timestamp, then: Timestamp) -> Duration {
    Duration::try_from(now.duration_since(then)).unwrap_or_default()
}

/// The identity, the leader and the record: without them nothing else works. `exports`: this cluster has a ServiceExport, or
/// may have one, so it needs a ClusterSet.
pub(super) fn cluster(seen: &Cluster, exports: bool) -> Vec<Finding> {
    let mut findings = vec![identity(seen, exports), leader(seen)];
    findings.extend(match &seen.record {
        Err(StoreError::Forbidden(why)) => {
            Some(Finding::unread("record", &Unread::Forbidden(why.clone()), &seen.flags))
        }
        Err(why) => {
            let remedy = "While the controller cannot read it either, nothing is exported or imported";
            Some(Finding::wrong("record", why.to_string(), remedy))
        }
        Ok(Some(record)) if record.leaving => Some(Finding::wrong(
            "membership",
            "this cluster is leaving its ClusterSet: nothing of it is exported, and nothing imported",
            format!("If that is not wanted: `cloudmap-mcs leave --undo{}`", seen.flags),
        )),
        Ok(None) => Some(Finding::absent("record", format!("there is no ConfigMap {RECORD}: no leader has begun yet"))),
        Ok(Some(_)) => None,
    });
    findings
}

fn identity(seen: &Cluster, exports: bool) -> Finding {
    const ABOUT: &str = "identity";
    match &seen.identity {
        Err(why) => Finding::unread(ABOUT, why, &seen.flags),
        Ok(Err(error)) => Finding::wrong(ABOUT, error.to_string(), "Nothing is exported or imported until then"),
        Ok(Ok(identity)) => {
            let Identity { cluster, clusterset, uid } = identity;
            let member = seen.record.as_ref().ok().and_then(|record| record.as_ref()?.member.as_ref());
            // The flags of the controller are not read here.
            if let Some(member) = member.filter(|member| !member.is_of(identity.clusterset.as_ref(), &identity.cluster))
            {
                let here = clusterset.as_ref().map_or_else(
                    || "no ClusterProperty says in which ClusterSet this cluster is".to_owned(),
                    |set| format!("cluster {cluster} of the ClusterSet {set} is what can be read here"),
                );
                let Member { clusterset, cluster } = member;
                let text = format!("{here}; its controller was last in {clusterset}, as {cluster}");
                let remedy = format!(
                    "If the controller has flags that say so, add them here: `--clusterset-id {clusterset} --cluster-id {cluster}`"
                );
                return Finding::wrong(ABOUT, text, remedy);
            }
            if let Some(set) = clusterset {
                return Finding::well(ABOUT, format!("cluster {cluster} of the ClusterSet {set}, UID {uid}"));
            }
            if identity.is_unset() && !exports {
                let text = "in no ClusterSet, which annotated Services and Ingresses do not need. To join one, create the \
                            ClusterProperties `cluster.clusterset.k8s.io` and `clusterset.k8s.io`, or set `--cluster-id` and \
                            `--clusterset-id`";
                return Finding::absent(ABOUT, text);
            }
            let outside = ReadyReason::Outside.row();
            Finding::wrong(ABOUT, format!("cluster {cluster}: {}", outside.text), outside.remedy)
        }
    }
}

/// Where to look when the controller does not do what it should.
pub(super) fn look_at_controller(seen: &Cluster) -> String {
    let Cluster { own, flags, .. } = seen;
    format!(
        "Look at the controller: `kubectl{flags} -n {own} get pods`, `kubectl{flags} -n {own} logs \
         deployment/cloudmap-mcs`"
    )
}

fn leader(seen: &Cluster) -> Finding {
    const ABOUT: &str = "leader";
    let wrong = |text: String| Finding::wrong(ABOUT, text, look_at_controller(seen));
    match &seen.lease {
        Err(why) => Finding::unread(ABOUT, why, &seen.flags),
        Ok(None) => Finding::wrong(
            ABOUT,
            format!("there is no Lease {LEASE} in the namespace {}: no controller has led here", seen.own),
            "Install the controller, or name its namespace with `--controller-namespace`",
        ),
        Ok(Some(Leader { holder: None, renewed, .. })) => {
            wrong("nobody leads: the Lease was released".to_owned()).aged(renewed.map(|then| since(seen.now, then)))
        }
        Ok(Some(Leader { holder: Some(holder), acquired, renewed, transitions, yields, .. })) => {
            let age = renewed.map(|then| since(seen.now, then));
            let finding = match (age, yields) {
                (None, _) => wrong(format!("{holder} has never renewed the Lease")),
                (Some(age), _) if age > RENEWED => {
                    wrong(format!("nobody leads: {holder} has not renewed the Lease for {}", human(age)))
                }
                (Some(_), Some(why)) => wrong(format!("{holder} leads, but would rather not: {why}")),
                (Some(_), None) => {
                    let since =
                        acquired.map_or_else(String::new, |then| format!(" for {}", human(since(seen.now, then))));
                    Finding::well(ABOUT, format!("{holder} leads{since}; the leader has changed {transitions} times"))
                }
            };
            finding.aged(age)
        }
    }
}

/// The registry, each cluster in the ledger, and those that this cluster refuses, which the leader knows.
pub(super) fn ledger(seen: &Cluster) -> Vec<Finding> {
    let mut findings = registry(seen);
    for id in recent_leader(seen).into_iter().flat_map(|leader| leader.peers.refused.keys()) {
        let about = format!("cluster {id}");
        if !findings.iter().any(|finding| finding.about == about) {
            findings.extend(refused(seen, id, &about));
        }
    }
    findings
}

fn registry(seen: &Cluster) -> Vec<Finding> {
    const ABOUT: &str = "registry";
    let views = match &seen.ledger {
        Err(Dark::NoClusterSet) => return vec![Finding::absent(ABOUT, "not asked: no ClusterSet is known")],
        Err(Dark::NoLedger(why)) => return vec![Finding::wrong(ABOUT, why.clone(), look_at_controller(seen))],
        Err(Dark::Unseen(why)) => {
            let remedy = format!(
                "Set --region and credentials that may read Cloud Map, or ask where the controller runs: `kubectl{} -n {} \
                 exec deployment/cloudmap-mcs -- cloudmap-mcs status`",
                seen.flags, seen.own
            );
            let finding = Finding::new(ABOUT, State::Unseen, format!("not read from here: {why}"));
            return vec![Finding { remedy: Some(remedy), ..finding }];
        }
        Ok(views) => views,
    };
    let own = known(seen);
    let mut findings = vec![Finding::well(ABOUT, format!("clusters in the ledger: {}", views.len()))];
    findings.extend(views.iter().map(|view| {
        let ignored = ignored(seen, view, &format!("cluster {}", view.id));
        let unreachable = own.and_then(|own| unreachable(views, &own.cluster, &view.id));
        let of_cluster = || match unreachable {
            Some(since) => of_unreachable(view, since),
            None => of_cluster(view, own, stream(seen, view)),
        };
        ignored.unwrap_or_else(of_cluster)
    }));
    if let Some(own) = own
        && !views.iter().any(|view| *view.id == *own.cluster.as_str())
    {
        let text = "this cluster is not in the ledger: it has never written there";
        findings.push(Finding::wrong(format!("cluster {}", own.cluster), text, look_at_controller(seen)));
    }
    findings
}

/// The identity, if it is known.
pub(super) fn known(seen: &Cluster) -> Option<&Identity> {
    seen.identity.as_ref().ok()?.as_ref().ok()
}

/// Whether the head of the cluster is live and recent.
pub(super) fn is_silent(view: &ClusterView) -> bool {
    view.head.as_ref().zip(view.age).is_some_and(|(head, age)| head.is_live() && age > head.lease)
}

/// The finding about a cluster whose head the controller here ignores.
pub(super) fn ignored(seen: &Cluster, view: &ClusterView, about: &str) -> Option<Finding> {
    let finding = unknown_key(seen, view, about).or_else(|| refused(seen, &view.id, about))?;
    Some(finding.aged(view.age))
}

/// What is wrong if the leader here has no room for the state of a cluster.
fn refused(seen: &Cluster, id: &str, about: &str) -> Option<Finding> {
    let why = recent_leader(seen)?.peers.refused.get(id)?;
    let text = format!("it is refused: {why}. What was imported from it stays as it is");
    Some(Finding::wrong(about, text, capitalized(TOO_LARGE)))
}

/// What is wrong if the controller here ignores the head of a cluster, because the key that this cluster has pinned did not
/// sign it (R9). The state of such a head looks as well as any other.
fn unknown_key(seen: &Cluster, view: &ClusterView, about: &str) -> Option<Finding> {
    let pinned = seen.record.as_ref().ok()?.as_ref()?.accepted.get(&*view.id)?.key?;
    let (text, remedy) = match view.head.as_ref()?.signer {
        Some(signer) if signer == pinned => return None,
        Some(signer) => (
            format!("its head is ignored: the key {signer} signed it, and this cluster has pinned another one"),
            format!(
                "If that cluster was rebuilt: `cloudmap-mcs trust accept {}{}`. Otherwise somebody writes in its name",
                view.id, seen.flags
            ),
        ),
        None => (
            format!("its head is ignored: it has no valid signature, and this cluster has pinned the key {pinned}"),
            "If that cluster runs with --trust=open, start it without. Otherwise somebody writes in its name"
                .to_owned(),
        ),
    };
    Some(Finding::wrong(about, text, remedy))
}

/// The leader here, if its report about other clusters is recent.
fn recent_leader(seen: &Cluster) -> Option<&Leader> {
    let leader = seen.lease.as_ref().ok()?.as_ref().filter(|leader| leader.holder.is_some())?;
    leader.renewed.is_some_and(|then| since(seen.now, then) <= RENEWED).then_some(leader)
}

/// Whether the leader here is connected with the one of that cluster; `None` if the leader here does not report it, or if the
/// other one publishes no address.
pub(crate) fn stream(seen: &Cluster, view: &ClusterView) -> Option<bool> {
    let leader = recent_leader(seen)?;
    let is_own = known(seen).is_some_and(|own| *view.id == *own.cluster.as_str());
    let listens = view.head.as_ref().is_some_and(|head| head.is_live() && !head.addresses.is_empty());
    let streams = leader.peers.connected.as_ref().filter(|_| listens && !is_own)?;
    Some(streams.contains(&*view.id))
}

/// Since when a cluster says of another one that it cannot reach it; `None`: it does not say so.
pub(super) fn unreachable(views: &[ClusterView], here: &ClusterId, other: &str) -> Option<Timestamp> {
    let own = views.iter().find(|view| *view.id == *here.as_str())?;
    let mut others = api::unreachable::read(&own.catalog.properties);
    Timestamp::from_second(others.find(|(cluster, _)| cluster.as_str() == other)?.1).ok()
}

fn of_unreachable(view: &ClusterView, since: Timestamp) -> Finding {
    let text = format!("the network from here to it is gone since {since}: its endpoints serve only if no others do");
    let remedy = ImportUnreachableReason::NoAnswer.row().remedy;
    Finding::wrong(format!("cluster {}", view.id), text, remedy).aged(view.age)
}

fn of_cluster(view: &ClusterView, own: Option<&Identity>, stream: Option<bool>) -> Finding {
    let about = format!("cluster {}", view.id);
    let Some(head) = &view.head else {
        let remedy = "Look at the controller there: another version wrote its head, or somebody changed it";
        return Finding::wrong(about, view.problems.join("; "), remedy);
    };
    let is_own = own.is_some_and(|own| *view.id == *own.cluster.as_str());
    let creator = view.creator.as_deref();
    let finding = if is_own && creator.is_some() && creator != own.map(|own| &*own.uid) {
        let text = format!("this id belongs to another cluster, whose UID is {}", creator.unwrap_or_default());
        Finding::wrong(
            about,
            text,
            "Give one of the two clusters another id; if the other one is gone, `forget` and `purge` it",
        )
    } else if !head.is_live() {
        Finding::absent(about, ledger_show::state(view))
    } else if !view.problems.is_empty() {
        let remedy = "Its last state that could be read stays in use. Look at the controller there";
        Finding::wrong(about, format!("{}: {}", ledger_show::state(view), view.problems.join("; ")), remedy)
    } else if is_silent(view) {
        let silent = ImportStaleReason::ClusterSilent.row();
        Finding::wrong(about, format!("its ledger is silent at position {}", head.position), silent.remedy)
    } else {
        let exports = || view.catalog.exports.values();
        let ready: usize = exports().map(Exported::ready).sum();
        let total: usize = exports().map(|exported| exported.endpoints.len()).sum();
        Finding::well(
            about,
            format!(
                "{} at position {}; exports: {}, endpoints ready: {ready} of {total}, claims: {}{}",
                ledger_show::state(view),
                head.position,
                view.catalog.exports.len(),
                view.catalog.registrations.len(),
                match stream {
                    Some(true) => ", stream: connected",
                    Some(false) => ", stream: not connected",
                    None => "",
                },
            ),
        )
    };
    finding.aged(view.age)
}

/// Which of the conditions are bad, in the order of their table, and what to do.
pub(super) fn troubles(
    about: &str,
    rows: &[Row],
    metadata: &ObjectMeta,
    conditions: &[Condition],
    now: Timestamp,
) -> Vec<Finding> {
    let mut ours: Vec<(usize, &Condition)> = conditions
        .iter()
        .filter_map(|condition| Some((rows.iter().position(|row| row.explains(condition))?, condition)))
        .collect();
    ours.sort_by_key(|(row, _)| *row);
    let created = metadata.creation_timestamp.as_ref().map(|Time(then)| since(now, *then));
    let remedy = "See who leads, above; the leader's log names the object";
    if ours.is_empty() {
        let late = created.is_none_or(|age| age > REPORTED);
        let finding = Finding::wrong(about, "no controller has reported on it", remedy).aged(created);
        return if late { vec![finding] } else { Vec::new() };
    }
    let mut findings: Vec<_> = ours
        .iter()
        .filter(|(row, _)| !rows[*row].remedy.is_empty())
        .map(|(row, condition)| {
            let Condition { type_, status, reason, message, last_transition_time: Time(then), .. } = condition;
            let message = if message.is_empty() { rows[*row].text } else { message };
            let text = format!("{type_}={status} {reason}: {message}");
            Finding::wrong(about, text, rows[*row].remedy).aged(Some(since(now, *then)))
        })
        .collect();
    let observed = ours.iter().filter_map(|(_, condition)| condition.observed_generation).min();
    if let (Some(observed), Some(generation)) = (observed, metadata.generation)
        && observed < generation
    {
        let text = format!("its conditions are those of generation {observed}, not yet of {generation}");
        findings.push(Finding::wrong(about, text, remedy));
    }
    findings
}
