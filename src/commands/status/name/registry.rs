//! What the registry has of a name: the exports in the ledger, the claims, and the instances.

use std::collections::BTreeSet;

use k8s_openapi::jiff::Timestamp;

use super::{
    super::{
        observe::Instances,
        overview::{self, ignored, is_silent, look_at_controller, since},
        report::{Finding, State},
    },
    Count, Follow,
};
use crate::ledger_show;
use api::conditions::ImportStaleReason;
use cli::shell::quoted;
use model::{ClaimOwner, ClaimState, Registration, ServiceKey, Target};
use records::ClusterView;

/// The targets to which some cluster has a claim, or waits for one, for the ServiceExport or Service of this name.
pub(in super::super) fn targets(views: &[ClusterView], key: &ServiceKey) -> BTreeSet<Target> {
    views.iter().flat_map(|view| claims(view, key)).map(|(claim, _)| claim.target.clone()).collect()
}

/// The claims of a cluster for this name, and whether they wait.
fn claims<'a>(view: &'a ClusterView, key: &ServiceKey) -> impl Iterator<Item = (&'a Registration, bool)> {
    let owner = ClaimOwner::export(key);
    let held = view.catalog.registrations.values().map(|held| (held, false));
    let all = held.chain(view.catalog.waiting.iter().map(|waiting| (waiting, true)));
    all.filter(move |(claim, _)| claim.owner.is_same_service(&owner))
}

impl Follow<'_> {
    /// What each cluster's ledger says of the name, this cluster's first.
    pub(super) fn ledger(&self) -> Vec<Finding> {
        if self.seen.ledger.is_err() {
            return overview::ledger(self.seen);
        }
        let (own, others): (Vec<_>, Vec<_>) = self.views.iter().partition(|view| Some(&*view.id) == self.own);
        let mut findings: Vec<_> = own.into_iter().filter_map(|view| self.own_ledger(view)).collect();
        if findings.is_empty() && self.exported_here() {
            let text = "this cluster is not in the ledger";
            findings.push(Finding::wrong("ledger", text, look_at_controller(self.seen)));
        }
        findings.extend(others.into_iter().filter_map(|view| self.other_ledger(view)));
        findings
    }

    fn own_ledger(&self, view: &ClusterView) -> Option<Finding> {
        let about = format!("ledger of {}", view.id);
        let position = view.head.as_ref().map_or_else(String::new, |head| format!("position {}: ", head.position));
        let finding = match (self.exported_here(), self.exporters.get(&*view.id)) {
            (false, None) => return None,
            (true, Some(count)) => {
                let here = self.name.local.as_ref().map(Count::of_slices).unwrap_or_default();
                let text = format!("{position}{count}");
                if count.ready == 0 && here.ready > 0 {
                    let remedy =
                        "Addresses that cannot be endpoints are left out: look at the Events of the ServiceExport";
                    Finding::wrong(about, text, remedy)
                } else {
                    Finding::well(about, text)
                }
            }
            // The part that was not read may have the export.
            (true, None) if is_live(view) && view.state.is_none() => Finding::wrong(
                about,
                format!(
                    "{position}{}, so it is not known whether the export is there: {}",
                    ledger_show::state(view),
                    view.problems.join("; ")
                ),
                look_at_controller(self.seen),
            ),
            (true, None) => {
                let remedy = "The conditions of the ServiceExport say why; if they are well, wait some seconds";
                Finding::wrong(about, format!("{position}the export is not there"), remedy)
            }
            (false, Some(_)) => {
                let text = format!("{position}the export is still there, but no ServiceExport is");
                Finding::wrong(about, text, look_at_controller(self.seen))
            }
        };
        Some(finding.aged(view.age))
    }

    fn other_ledger(&self, view: &ClusterView) -> Option<Finding> {
        let about = format!("ledger of {}", view.id);
        if self.exporters.contains_key(&*view.id)
            && let Some(finding) = ignored(self.seen, view, &about)
        {
            return Some(finding);
        }
        let finding = match self.exporters.get(&*view.id) {
            None if is_live(view) && view.state.is_none() => Finding::wrong(
                about,
                format!("{}, so it may export the name: {}", ledger_show::state(view), view.problems.join("; ")),
                "Its last state that could be read stays in use. Look at the controller there",
            ),
            None => return None,
            Some(count) if is_silent(view) => {
                let silent = ImportStaleReason::ClusterSilent.row();
                Finding::wrong(about, format!("silent: {count} when it was last written"), silent.remedy)
            }
            Some(count) if count.ready == 0 => {
                let ServiceKey { namespace, name } = &self.name.key;
                let remedy = format!("Run `cloudmap-mcs status {} -n {}` there", quoted(name), quoted(namespace));
                Finding::wrong(about, count.to_string(), remedy)
            }
            Some(count) => {
                let kind = view.catalog.exports.get(&self.name.key).map(|exported| exported.export.service_type);
                let kind = kind.map_or_else(String::new, |kind| format!("{kind}, "));
                Finding::well(about, format!("{kind}{count}"))
            }
        };
        Some(finding.aged(view.age))
    }

    pub(super) fn targets(&self) -> impl Iterator<Item = Finding> {
        self.name.targets.iter().map(|(target, instances)| {
            let about = format!("Cloud Map {target}");
            let claims: Vec<_> = self
                .views
                .iter()
                .flat_map(|view| claims(view, &self.name.key).map(move |claim| (&view.id, claim)))
                .filter(|(_, (claim, _))| claim.target == *target)
                .collect();
            let claimed = claims.iter().map(|(id, (claim, waits))| match (waits, claim.state) {
                (_, ClaimState::Unable) => format!("{id} may not register there"),
                (true, _) => format!("{id} waits for an older claim"),
                (_, ClaimState::Retiring) => format!("{id} withdraws its instances"),
                (_, ClaimState::Empty) => format!("claimed by {id}, which has no ready endpoints"),
                (_, ClaimState::Serves) => format!("claimed by {id}"),
            });
            let claimed = claimed.collect::<Vec<_>>().join(", ");
            // Cloud Map does not say when an instance was registered.
            let newest = claims.iter().filter_map(|(_, (claim, _))| Timestamp::from_second(claim.claimed).ok()).max();
            let finding = match instances {
                Err(why) => {
                    Finding::new(about, State::Unseen, format!("{claimed}; instances not read from here: {why}"))
                }
                Ok(None) => Finding::absent(about, format!("{claimed}; there is no such Cloud Map service")),
                Ok(Some(instances)) => Finding::well(about, format!("{claimed}; {}", instances_text(instances))),
            };
            finding.aged(newest.map(|then| since(self.seen.now, then)))
        })
    }
}

/// Whether the cluster is, or may be, a member: one whose head cannot be read may be.
pub(super) fn is_live(view: &ClusterView) -> bool {
    view.head.as_ref().is_none_or(|head| head.is_live())
}

fn instances_text(instances: &Instances) -> String {
    let Instances { registered, unhealthy, truncated } = instances;
    let of = |(cluster, count): (&String, &usize)| match cluster.as_str() {
        "" => format!("{count} of others"),
        cluster => format!("{count} of {cluster}"),
    };
    let counts: Vec<_> = registered.iter().map(of).collect();
    let counts =
        if counts.is_empty() { "no instances".to_owned() } else { format!("instances: {}", counts.join(", ")) };
    let unhealthy = if *unhealthy == 0 { String::new() } else { format!(", {unhealthy} unhealthy") };
    let truncated = if *truncated { ", and more than AWS returns" } else { "" };
    format!("{counts}{unhealthy}{truncated}")
}
