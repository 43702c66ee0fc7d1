//! Whether a name is ready to be moved: a pure judgement over what is known.

use serde_json::{Value, json};

use super::{
    capacity::{self, Reachable},
    ecs_services, room,
    situation::{ASSUMED, CloudMapService, Counterpart, Situation},
    stopping,
};
use crate::table::Table;
use api::conditions::RegisteredReason;
use cli::shell::quoted;
use cloudmap::RecordType;
use cutover::{
    Course,
    course::STEPS,
    hiding::{obstacle, stoppable_after},
};
use iam::Mode;

/// How an object names a Cloud Map service before it is moved. Without a share, all ready pods would be registered at once.
const NAMES_IT: &str =
    "annotate it with cloudmap-mcs/namespace, cloudmap-mcs/service and cloudmap-mcs/share-of-traffic=0%";

/// How bad a finding is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Grade {
    Ok,
    Warning,
    Blocked,
}

impl Grade {
    pub(super) const fn as_str(self) -> &'static str {
        match self {
            Self::Ok => "OK",
            Self::Warning => "WARNING",
            Self::Blocked => "BLOCKED",
        }
    }

    /// The exit status of the command.
    pub(super) const fn status(self) -> u8 {
        match self {
            Self::Ok => 0,
            Self::Warning => 1,
            Self::Blocked => 2,
        }
    }
}

/// Something that was looked at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Finding {
    pub(super) grade: Grade,
    pub(super) about: &'static str,
    pub(super) text: String,
    pub(super) remedy: Option<String>,
}

/// The judgement about one name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Plan {
    pub(super) findings: Vec<Finding>,
    pub(super) steps: Vec<Reachable>,
    /// A patch for the pods' workload, if they stop too early or have no gate.
    pub(super) patch: Option<String>,
}

impl Plan {
    /// The worst of all.
    pub(super) fn grade(&self) -> Grade {
        self.findings.iter().map(|finding| finding.grade).max().unwrap_or(Grade::Ok)
    }
}

/// Collects findings.
#[derive(Debug, Default)]
pub(super) struct Findings(pub(super) Vec<Finding>);

impl Findings {
    pub(super) fn ok(&mut self, about: &'static str, text: impl Into<String>) {
        self.0.push(Finding { grade: Grade::Ok, about, text: text.into(), remedy: None });
    }

    pub(super) fn add(
        &mut self,
        grade: Grade,
        about: &'static str,
        text: impl Into<String>,
        remedy: impl Into<String>,
    ) {
        self.0.push(Finding { grade, about, text: text.into(), remedy: Some(remedy.into()) });
    }

    /// A part that could not be read.
    fn unread(&mut self, about: &'static str, why: &str) {
        let remedy = "look yourself, or run this as somebody who may read it";
        self.add(Grade::Warning, about, format!("not known: {why}"), remedy);
    }
}

/// Judges one name. `steps` are those of the command line; without any, those of the Cutover that is there, or the usual.
pub(super) fn plan(situation: &Situation, steps: &[u8]) -> Plan {
    let mut found = Findings::default();
    let steps = cutover(situation, steps, &mut found);
    match &situation.counterpart {
        Ok(counterpart) => the_counterpart(situation, counterpart, &mut found),
        Err(why) => found.unread("counterpart", why),
    }
    match (&situation.registry, &situation.counterpart) {
        (Ok(registry), Ok(counterpart)) if counterpart.target.is_some() => {
            the_registry(situation, registry, counterpart, &mut found);
            the_role(situation, registry, counterpart, &mut found);
        }
        (Err(why), Ok(_)) => found.unread("cloud map", why),
        // Without the counterpart nobody knows which service it is.
        (_, Err(_)) | (Ok(_), Ok(_)) => {}
    }
    ecs_services::judge(situation, &mut found);
    match (&situation.pods, &situation.registry) {
        (Ok(pods), Ok(registry)) => capacity::judge(situation, pods, registry, &mut found),
        (Err(why), _) => found.unread("pods", &why.to_string()),
        (Ok(_), Err(_)) => {}
    }
    if let Ok(registry) = &situation.registry {
        room::of_service(situation, registry, &mut found);
    }
    if let Some(assumed) = situation.assumed_settle() {
        found.ok("settle", assumed);
    }
    let patch = situation.pods.as_ref().ok().and_then(|pods| stopping::judge(situation, pods, &mut found));
    surroundings(situation, &mut found);
    hiding(situation, &mut found);
    let steps = match (&situation.pods, &situation.registry) {
        (Ok(pods), Ok(registry)) if pods.ready > 0 => capacity::reachable(situation, pods, registry, &steps),
        _ => Vec::new(),
    };
    capacity::judge_equal_steps(&steps, &mut found);
    Plan { findings: found.0, steps, patch }
}

fn cutover(situation: &Situation, steps: &[u8], found: &mut Findings) -> Vec<u8> {
    let about = "cutover";
    let there = match &situation.cutover {
        Err(why) => {
            let remedy = "run this as somebody who may read them (ClusterRole cloudmap-mcs-view). If the CRD is missing, install \
                          it (kubectl apply --server-side -k config/crd), and start the controller with --cutovers";
            found.add(Grade::Blocked, about, format!("Cutovers cannot be read: {why}"), remedy);
            None
        }
        Ok(there) => there.as_ref(),
    };
    let flag = "start the controller with --cutovers (config/components/cutovers, or config.cutovers of the chart)";
    if situation.has("CLOUDMAP_MCS_CUTOVERS") == Some(false) {
        let text = "the controller runs without --cutovers: it ignores Cutovers, and only annotations limit the share";
        found.add(Grade::Blocked, about, text, flag);
    } else if let Some(there) = there {
        let status = there.status.clone().unwrap_or_default();
        match status.phase {
            Some(phase) => found.ok(about, format!("there is one: {phase}")),
            None => found.add(Grade::Warning, about, "there is one, and no controller has seen it", flag),
        }
    } else if situation.cutover.is_ok() {
        found.ok(about, "there is none yet");
    }
    let wanted = match there {
        Some(there) if steps.is_empty() => there.spec.clone(),
        _ if steps.is_empty() => return STEPS.to_vec(),
        _ => api::CutoverSpec { steps: steps.iter().copied().map(i64::from).collect(), ..Default::default() },
    };
    match Course::read(&wanted) {
        Ok(course) => course.steps,
        Err(why) => {
            found.add(Grade::Blocked, about, why, "correct it");
            Vec::new()
        }
    }
}

fn the_counterpart(situation: &Situation, counterpart: &Counterpart, found: &mut Findings) {
    let (about, key) = ("counterpart", &situation.key);
    let Some(kind) = counterpart.kind else {
        return found.add(
            Grade::Blocked,
            about,
            format!(
                "there is no ServiceExport {key}, and no Service of that name with the annotations cloudmap.controller/namespace \
                 and cloudmap.controller/hostname; annotations of external-dns are not read here"
            ),
            format!("create a ServiceExport, and {NAMES_IT}"),
        );
    };
    let Some(target) = &counterpart.target else {
        return found.add(Grade::Blocked, about, format!("the {kind} names no Cloud Map service"), NAMES_IT);
    };
    if let Some(assumed) = situation.assumed() {
        found.add(Grade::Warning, about, assumed, ASSUMED);
    }
    let none = situation.settings.as_ref().is_ok_and(|settings| settings.get("CLOUDMAP_MCS_INSTANCES") == Some("none"));
    // A ServiceExport has no condition then. A Service never has one.
    let is_silent = match &counterpart.refused {
        Some((reason, _)) => reason == RegisteredReason::Pending.as_str(),
        None => kind == "Service",
    };
    match &counterpart.refused {
        _ if none && is_silent => {
            let text = format!("the controller runs with --instances=none: it does not register the pods in {target}");
            found.add(Grade::Blocked, about, text, "start it with --instances=annotated");
        }
        None => found.ok(about, format!("the {kind} names {target}")),
        Some((reason, message)) if reason == RegisteredReason::Pending.as_str() => {
            found.add(Grade::Warning, about, format!("the {kind}: {message}"), "wait, and look again");
        }
        Some((reason, message)) => {
            let text = format!("the {kind} is not accepted ({reason}): {message}");
            found.add(Grade::Blocked, about, text, "follow the message");
        }
    }
}

fn the_registry(situation: &Situation, registry: &CloudMapService, counterpart: &Counterpart, found: &mut Findings) {
    let about = "cloud map";
    let Some(service) = &registry.service else {
        let name = counterpart.target.as_ref().map_or_else(|| "the service".to_owned(), ToString::to_string);
        return found.add(
            Grade::Blocked,
            about,
            format!("{name} does not exist in this account and region"),
            "name the service in which ECS registers its tasks, and look at region and account",
        );
    };
    let (records, ttl) = (registry.records(), registry.ttl());
    if records.contains(&RecordType::Cname) {
        let text = "the service has a CNAME record: no pod can be registered beside it";
        found.add(Grade::Blocked, about, text, "use another service");
    } else if records.is_empty() {
        found.ok(about, "found by DiscoverInstances only");
    } else {
        let list: Vec<_> = records.iter().map(|record| record.as_str()).collect();
        found.ok(about, format!("records {} with TTL {ttl}", list.join(" and ")));
    }
    if ttl > 60 {
        found.add(
            Grade::Warning,
            "ttl",
            format!(
                "answers are used for {ttl} s, so each step lasts at least {} s",
                situation.settle().beyond(ttl).as_secs()
            ),
            "lower the TTL of the records to 60 or less some time before",
        );
    }
    if !service.custom_health_check {
        let text = "the service has no custom health check: a pod that is not ready is deregistered, not marked";
        found.add(Grade::Warning, "health", text, "nothing, if ECS did not make the service; those of ECS have one");
    }
    if let Some(port) = counterpart.port
        && !registry.ports.is_empty()
        && !registry.ports.contains(&port)
        && !records.contains(&RecordType::Srv)
    {
        let theirs: Vec<_> = registry.ports.iter().map(ToString::to_string).collect();
        found.add(
            Grade::Warning,
            "port",
            format!("pods listen on {port}, tasks on {}: an address record says no port", theirs.join(", ")),
            "give the pods the port that callers use",
        );
    }
}

/// What the controller's role has to allow, unless a registered pod shows that it does, or a condition that it does not.
fn the_role(situation: &Situation, registry: &CloudMapService, counterpart: &Counterpart, found: &mut Findings) {
    let (Some(service), Some(target), Ok(pods)) = (&registry.service, &counterpart.target, &situation.pods) else {
        return;
    };
    let is_refused = |(reason, _): &(String, String)| reason != RegisteredReason::Pending.as_str();
    if registry.clusters.values().any(|cluster| cluster.is_of(pods))
        || counterpart.refused.as_ref().is_some_and(is_refused)
    {
        return;
    }
    let spec = situation.there().map(|there| &there.spec);
    let looks = pods.gated > 0 || spec.is_some_and(|spec| spec.guard.is_some());
    let hides = spec.is_some_and(|spec| spec.hide_tasks);
    let dns = service.dns.is_some();
    let modes = [(Mode::Joining, true), (Mode::Gates, looks), (Mode::Hiding, hides), (Mode::Dns, dns)];
    let modes: Vec<_> = modes.into_iter().filter(|(_, is_needed)| *is_needed).map(|(mode, _)| mode.name()).collect();
    let namespaces =
        if looks { format!(" --cloudmap-namespaces {}", quoted(&target.namespace)) } else { String::new() };
    let zones = if dns { " --hosted-zones ZONES" } else { "" };
    let mut arn = service.arn.split(':').skip(3);
    let (region, account) = (arn.next().unwrap_or("REGION"), arn.next().unwrap_or("ACCOUNT"));
    let text = format!(
        "whether the controller's role may register there is not known: none of the pods is registered yet. Beside what it \
         has, it needs what this prints: cloudmap-mcs iam --mode {} --services {}{namespaces}{zones} --account {account} \
         --region {region}",
        modes.join(","),
        service.id,
    );
    found.ok("role", text);
}

fn surroundings(situation: &Situation, found: &mut Findings) {
    match &situation.budgets {
        Ok(0) => found.add(
            Grade::Warning,
            "budget",
            "no PodDisruptionBudget selects the pods: a drain may stop all at once",
            "create one",
        ),
        Ok(_) => found.ok("budget", "a PodDisruptionBudget selects the pods"),
        Err(why) => found.unread("budget", why),
    }
    match &situation.autoscalers {
        Err(why) => found.unread("autoscaler", why),
        Ok(autoscalers) => {
            for (name, least) in autoscalers {
                let text = format!(
                    "HorizontalPodAutoscaler {name} may go down to {least}: pods that have no traffic yet lower its average"
                );
                found.add(
                    Grade::Warning,
                    "autoscaler",
                    text,
                    "set minReplicas to what all traffic needs, until it is finished",
                );
            }
        }
    }
}

/// Whether tasks can be hidden before they are stopped.
fn hiding(situation: &Situation, found: &mut Findings) {
    let Ok(registry) = &situation.registry else { return };
    let (Some(service), about) = (&registry.service, "hiding") else { return };
    let there = situation.cutover.as_ref().ok().and_then(Option::as_ref);
    let wanted = there.is_some_and(|there| there.spec.hide_tasks);
    let never = situation.has("CLOUDMAP_MCS_HIDE_TASKS") == Some(false);
    if let Some(said) = there.and_then(obstacle) {
        found.add(Grade::Warning, about, format!("no task is hidden ({})", said.reason), said.message.clone());
    } else if !service.custom_health_check && wanted {
        let text = "the service has no custom health check, so no task can be hidden";
        found.add(Grade::Warning, about, text, "remove spec.hideTasks");
    } else if never && wanted {
        let remedy = "start it with --hide-tasks, and grant what `cloudmap-mcs iam --mode hiding` prints; or remove \
                      spec.hideTasks";
        found.add(Grade::Warning, about, "no task is hidden: the controller runs without --hide-tasks", remedy);
    } else if service.custom_health_check && !registry.ecs.is_empty() {
        let wait = stoppable_after(registry.ttl(), situation.settle()).as_secs();
        let text = if never {
            "not possible: the controller runs without --hide-tasks".to_owned()
        } else if wanted {
            format!("tasks are hidden, and may be stopped {wait} s after the last one was marked")
        } else {
            format!(
                "possible (spec.hideTasks, --hide-tasks): tasks may be stopped {wait} s after the last one was marked"
            )
        };
        found.ok(about, text);
    }
}

/// The report about several names.
pub(super) fn text(plans: &[(String, Plan)]) -> String {
    let mut text = String::new();
    for (name, plan) in plans {
        text.extend([format!("{name}: {}\n\n", plan.grade().as_str())]);
        let mut table = Table::new(["", "ABOUT", "FINDING"]);
        for Finding { grade, about, text, remedy } in &plan.findings {
            let cells = [grade.as_str().to_owned(), (*about).to_owned(), text.clone()];
            table.finding(cells, remedy.as_ref());
        }
        text.extend([format!("{table}\n")]);
        if !plan.steps.is_empty() {
            let mut table = Table::new(["STEP", "PODS", "REACHED"]);
            for Reachable { asked, pods, share } in &plan.steps {
                table.row([format!("{asked} %"), pods.to_string(), share.to_string()]);
            }
            text.extend([format!("{table}\n")]);
        }
        if let Some(patch) = &plan.patch {
            text.extend([format!("{patch}\n\n")]);
        }
    }
    text
}

/// All fields. `rooms` are the judgements about Cloud Map namespaces.
pub(super) fn json(plans: &[(String, Plan)], rooms: &[(String, Plan)]) -> Value {
    let finding = |Finding { grade, about, text, remedy }: &Finding| json!({"grade": grade.as_str(), "about": about, "text": text, "remedy": remedy});
    let step = |Reachable { asked, pods, share }: &Reachable| json!({"asked": asked, "pods": pods, "reachedHundredths": share.hundredths()});
    let row = |(name, plan): &(String, Plan)| {
        json!({
            "name": name, "grade": plan.grade().as_str(), "patch": plan.patch,
            "findings": plan.findings.iter().map(finding).collect::<Vec<_>>(),
            "steps": plan.steps.iter().map(step).collect::<Vec<_>>(),
        })
    };
    let rows = |plans: &[(String, Plan)]| plans.iter().map(row).collect::<Vec<_>>();
    json!({"plans": rows(plans), "namespaces": rows(rooms)})
}
