use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
};

use clap::Parser as _;
use serde_json::{Value, json};

use super::{
    facts::{Counterpart, Facts, Pods, Registry, Stop},
    finish::{check, commands},
    observe::{counterpart, summed, there},
    plan::{Grade, plan, text},
    *,
};
use crate::{
    api::CutoverSpec,
    cli::{Cli, Command},
    cloudmap::{
        Discovery, DnsConfig, DnsRecord, Instance, NamespaceKind, RecordType,
        fake::{Fake, mk_service},
    },
    cluster::fake_api::FakeApi,
    commands::installed::Settings,
    ecs::{Found, fake},
    iam::{self, Mode, statements},
    model::Target,
};

const ARN: &str = "arn:aws:servicediscovery:eu-central-1:111122223333:service/srv-aaaaaaaaaaaaaaaa";

fn instance(id: &str, attributes: &[(&str, &str)]) -> Instance {
    let attributes = attributes.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
    Instance { id: id.into(), attributes }
}

/// Cloud Map with so many tasks of ECS, and a pod of ours.
fn registry(tasks: u8, ttl: u32) -> Registry {
    let task = |n: u8| {
        let address = format!("192.0.2.{n}");
        let attributes = [
            ("AWS_INSTANCE_IPV4", &*address),
            ("AWS_INSTANCE_PORT", "8080"),
            ("ECS_CLUSTER_NAME", "prod"),
            ("ECS_SERVICE_NAME", "orders"),
        ];
        instance(&format!("task-{n}"), &attributes)
    };
    let mut instances: Vec<_> = (0..tasks).map(task).collect();
    instances.push(instance("pod", &[("AWS_INSTANCE_IPV4", "192.0.2.99"), ("CLOUDMAP_MCS_CLUSTER_UID", "u")]));
    instances.push(instance("ill", &[("AWS_INSTANCE_IPV4", "192.0.2.98"), ("ECS_SERVICE_NAME", "other")]));
    let discovery = Discovery { instances, unhealthy: ["ill".into()].into(), truncated: false };
    let records = vec![DnsRecord { record_type: RecordType::A, ttl }];
    let dns = Some(DnsConfig { weighted: false, records });
    let (id, arn) = ("srv-aaaaaaaaaaaaaaaa".into(), ARN.into());
    there(crate::cloudmap::Service { id, arn, dns, custom_health_check: true, ..mk_service() }, &discovery)
}

fn pods(ready: usize) -> Pods {
    Pods {
        ready,
        addresses: ["192.0.2.101".parse().unwrap()].into(),
        gated: ready,
        containers: stopping([("orders", 120, None)]),
        grace: 150,
        workload: Some("deployment/orders".to_owned()),
        ..Pods::default()
    }
}

/// Containers by name, with how long each sleeps before it stops, and its handler if that is another one.
fn stopping<const N: usize>(containers: [(&str, u64, Option<&'static str>); N]) -> BTreeMap<String, Stop> {
    containers.map(|(name, after, handler)| (name.to_owned(), Stop { after, handler })).into()
}

/// The ECS service of these tasks.
fn ecs_service(tasks: u32) -> crate::ecs::Service {
    crate::ecs::Service { desired: tasks, running: tasks, ..fake::mk_service("prod", "orders", ARN) }
}

/// All of ECS was read, and these register there.
fn found(services: impl IntoIterator<Item = crate::ecs::Service>) -> Found {
    Found { services: services.into_iter().collect(), unread: None }
}

/// One cluster of ECS could not be read, and these register there.
fn found_in_part(services: impl IntoIterator<Item = crate::ecs::Service>) -> Found {
    let unread = Some("the ECS cluster test could not be read: denied".to_owned());
    Found { unread, ..found(services) }
}

fn settings(values: &[(&str, &str)]) -> Settings {
    let values = values.iter().map(|(variable, value)| ((*variable).to_owned(), (*value).to_owned())).collect();
    Settings { values, ..Settings::default() }
}

fn facts() -> Facts {
    let target = Target { namespace: "internal".into(), service: "orders".into() };
    let counterpart =
        Counterpart { kind: Some("ServiceExport"), target: Some(target), port: Some(8080), ..Counterpart::default() };
    Facts {
        key: ServiceKey::new("shop", "orders"),
        cutover: Ok(None),
        counterpart: Ok(counterpart),
        settings: Ok(settings(&[
            ("CLOUDMAP_MCS_CUTOVERS", "true"),
            ("CLOUDMAP_MCS_READINESS_GATES", "true"),
            ("CLOUDMAP_MCS_HIDE_TASKS", "true"),
        ])),
        pods: Ok(pods(12)),
        registry: Ok(registry(12, 60)),
        ecs: Ok(Some(found([ecs_service(12)]))),
        budgets: Ok(1),
        autoscalers: Ok(Vec::new()),
    }
}

/// What is wrong, by what it is about.
fn wrong(facts: &Facts) -> Vec<(&'static str, Grade)> {
    let plan = plan(facts, &[]);
    let bad = plan.findings.iter().filter(|finding| finding.grade != Grade::Ok);
    bad.map(|finding| {
        assert!(finding.remedy.as_ref().is_some_and(|remedy| !remedy.is_empty()), "{finding:?}");
        (finding.about, finding.grade)
    })
    .collect()
}

#[test]
fn what_lacks_nothing_is_ready_and_shows_what_its_steps_reach() {
    let plan = plan(&facts(), &[5, 25, 50, 100]);
    assert_eq!((plan.grade(), plan.grade().status(), &plan.patch), (Grade::Ok, 0, &None), "{:?}", plan.findings);
    let reached: Vec<_> = plan.steps.iter().map(|step| (step.asked, step.pods, step.share.to_string())).collect();
    let expected = [(5, 1, "7.69 %"), (25, 4, "25 %"), (50, 12, "50 %"), (100, 12, "50 %")];
    assert_eq!(reached, expected.map(|(asked, pods, share)| (asked, pods, share.to_owned())));
}

/// Subnets of AWS are at most a /16.
#[test]
fn clients_that_stay_with_the_tasks_are_said_with_a_command_that_probes_from_there() {
    let said = |pod: &str, groups: &[&str]| {
        let mut facts = facts();
        let subnets = ["subnet-a", "subnet-b"].map(str::to_owned).into();
        let security_groups = groups.iter().map(|id| (*id).to_owned()).collect();
        let network = Some(crate::ecs::Network { subnets, security_groups, public: false });
        facts.ecs = Ok(Some(found([crate::ecs::Service { network, ..ecs_service(12) }])));
        facts.pods.as_mut().unwrap().addresses = [pod.parse().unwrap()].into();
        let findings = plan(&facts, &[]).findings;
        findings.into_iter().find(|finding| finding.about == "callers").unwrap()
    };
    let near = said("192.0.200.7", &["sg-1"]);
    assert_eq!(near.grade, Grade::Ok);
    assert!(near.text.starts_with("prod/orders: tasks are in subnet-a,subnet-b (security groups: sg-1); "));
    assert_eq!(
        near.remedy.unwrap(),
        "try the way from there to a pod: aws ecs run-task --cluster prod --task-definition cloudmap-mcs-probe --launch-type \
         FARGATE --network-configuration 'awsvpcConfiguration={subnets=[subnet-a,subnet-b],securityGroups=[sg-1],\
         assignPublicIp=DISABLED}' --overrides \
         '{\"containerOverrides\":[{\"command\":[\"nc\",\"-z\",\"-v\",\"-w\",\"5\",\"192.0.200.7\",\"8080\"],\"name\":\"probe\"}]}'"
    );
    let apart = said("100.64.0.7", &[]);
    assert!(apart.grade == Grade::Warning && apart.text.contains("no pod is in one of these subnets"), "{apart:?}");
    assert!(!apart.remedy.unwrap().contains("securityGroups"), "the VPC has a default one");
}

#[test]
fn each_thing_that_is_missing_is_found_with_its_remedy() {
    use Grade::{Blocked, Warning};
    let with = |change: fn(&mut Facts)| {
        let mut facts = facts();
        change(&mut facts);
        wrong(&facts)
    };
    assert_eq!(with(|_| {}), []);
    let kind = |facts: &mut Facts, kind| facts.counterpart.as_mut().unwrap().kind = kind;
    for (change, expected) in [
        ((|facts| facts.cutover = Err("no such kind".to_owned())) as fn(&mut Facts), ("cutover", Blocked)),
        (|facts| facts.counterpart = Err("forbidden".to_owned()), ("counterpart", Warning)),
        (|facts| facts.counterpart.as_mut().unwrap().target = None, ("counterpart", Blocked)),
        (
            |facts| {
                facts.counterpart.as_mut().unwrap().refused = Some(("ForeignOwner".to_owned(), "whose?".to_owned()));
            },
            ("counterpart", Blocked),
        ),
        (|facts| facts.settings = Ok(settings(&[("CLOUDMAP_MCS_CUTOVERS", "false")])), ("cutover", Blocked)),
        (
            |facts| {
                facts.counterpart.as_mut().unwrap().refused = Some(("Pending".to_owned(), "nobody says".to_owned()));
                facts.settings = Ok(settings(&[("CLOUDMAP_MCS_INSTANCES", "none")]));
            },
            ("counterpart", Blocked),
        ),
        (|facts| facts.settings = Ok(settings(&[])), ("gate", Warning)),
        (
            |facts| {
                let hides = CutoverSpec { hide_tasks: true, ..CutoverSpec::default() };
                (facts.cutover, facts.settings) = (Ok(Some(Cutover::new("orders", hides))), Ok(settings(&[])));
            },
            ("hiding", Warning),
        ),
        (
            |facts| {
                facts.settings = Err("deployments are forbidden".to_owned());
                facts.counterpart.as_mut().unwrap().is_implied = true;
            },
            ("counterpart", Warning),
        ),
        (|facts| facts.registry = Err("no credentials".to_owned()), ("cloud map", Warning)),
        (|facts| facts.registry.as_mut().unwrap().service = None, ("cloud map", Blocked)),
        (|facts| facts.registry = Ok(registry(12, 300)), ("ttl", Warning)),
        (|facts| facts.counterpart.as_mut().unwrap().port = Some(80), ("port", Warning)),
        (|facts| facts.pods = Ok(pods(0)), ("capacity", Blocked)),
        (|facts| facts.pods = Ok(pods(11)), ("capacity", Warning)),
        (|facts| facts.pods.as_mut().unwrap().unready = 1, ("capacity", Warning)),
        (|facts| facts.pods.as_mut().unwrap().addresses.clear(), ("families", Blocked)),
        (|facts| facts.pods.as_mut().unwrap().containers = stopping([("orders", 5, None)]), ("preStop", Warning)),
        // It is killed before, or at the end of its sleep.
        (|facts| facts.pods.as_mut().unwrap().grace = 30, ("preStop", Warning)),
        (|facts| facts.pods.as_mut().unwrap().grace = 120, ("preStop", Warning)),
        (|facts| facts.pods.as_mut().unwrap().gated = 0, ("gate", Warning)),
        (|facts| facts.budgets = Ok(0), ("budget", Warning)),
        (|facts| facts.budgets = Err("forbidden".to_owned()), ("budget", Warning)),
        (|facts| facts.autoscalers = Ok(vec![("orders".to_owned(), 2)]), ("autoscaler", Warning)),
        (|facts| facts.ecs = Err("access denied".to_owned()), ("ecs", Warning)),
        (|facts| facts.ecs = Ok(Some(found([]))), ("ecs", Warning)),
        (|facts| facts.ecs = Ok(Some(found_in_part([ecs_service(12)]))), ("ecs", Warning)),
        (
            |facts| facts.ecs = Ok(Some(found([crate::ecs::Service { daemon: true, ..ecs_service(12) }]))),
            ("ecs", Blocked),
        ),
    ] {
        let found = with(change);
        assert!(found.contains(&expected), "{expected:?} is not in {found:?}");
    }
    let unknown = with(|facts| facts.settings = Err("deployments are forbidden".to_owned()));
    assert_eq!(unknown, [], "nothing depends on it");
    let mut nothing = facts();
    kind(&mut nothing, None);
    assert!(wrong(&nothing).contains(&("counterpart", Blocked)));
    let said = plan(&nothing, &[]).findings.into_iter().find(|finding| finding.about == "counterpart").unwrap();
    assert!(said.text.contains("external-dns are not read"), "{said:?}");
    assert_eq!(plan(&nothing, &[]).grade().status(), 2);
    assert_eq!(plan(&facts(), &[50, 25]).grade(), Blocked, "steps that fall");
}

/// Otherwise the cutover itself is the first sign that a permission is missing.
#[test]
fn the_permissions_of_a_move_are_named_until_a_pod_is_registered() {
    let said = |facts: &Facts| {
        let findings = plan(facts, &[]).findings;
        findings.into_iter().find(|finding| finding.about == "role").map(|finding| (finding.grade, finding.text))
    };
    let mut facts = facts();
    let hides = CutoverSpec { hide_tasks: true, ..CutoverSpec::default() };
    facts.cutover = Ok(Some(Cutover::new("orders", hides)));
    let (grade, text) = said(&facts).unwrap();
    let command = "cloudmap-mcs iam --mode joining,gates,hiding,dns --services srv-aaaaaaaaaaaaaaaa \
                   --cloudmap-namespaces internal --hosted-zones ZONES --account 111122223333 --region eu-central-1";
    assert!(grade == Grade::Ok && text.ends_with(command), "{text}");
    let command = command.replace("ZONES", "Z0123456789ABCDEFGHIJ");
    assert!(Cli::try_parse_from(command.split_whitespace()).is_ok(), "{command}");
    let counterpart = facts.counterpart.as_mut().unwrap();
    counterpart.refused = Some(("Failed".to_owned(), "AWS denies RegisterInstance".to_owned()));
    assert_eq!(said(&facts), None, "the condition says it");
    facts.counterpart.as_mut().unwrap().refused = None;
    facts.pods.as_mut().unwrap().addresses.insert("192.0.2.99".parse().unwrap());
    assert_eq!(said(&facts), None, "this pod is registered");
}

#[test]
fn the_patch_has_what_the_pods_lack_and_no_more() {
    let patched = |change: fn(&mut Pods)| {
        let mut facts = facts();
        change(facts.pods.as_mut().unwrap());
        let patch = plan(&facts, &[]).patch.unwrap();
        let patch = patch
            .strip_prefix("kubectl patch --namespace shop deployment/orders --patch '")
            .unwrap()
            .trim_end_matches('\'');
        serde_json::from_str::<Value>(patch).unwrap()["spec"]["template"]["spec"].clone()
    };
    // 5 s + 15 s + a TTL of 60 s + 30 s
    let container = json!({"name": "orders", "lifecycle": {"preStop": {"sleep": {"seconds": 110}}}});
    let both = json!({"terminationGracePeriodSeconds": 140, "containers": [container]});
    assert_eq!(patched(|pods| (pods.containers, pods.grace) = (stopping([("orders", 0, None)]), 30)), both);
    // A longer grace period may be there for a reason.
    assert_eq!(
        patched(|pods| (pods.containers, pods.grace) = (stopping([("orders", 0, None)]), 600)),
        json!({"containers": [container]})
    );
    assert_eq!(patched(|pods| pods.grace = 30), json!({"terminationGracePeriodSeconds": 150}));
    let gates = json!([{"conditionType": "cloudmap-mcs/registered"}]);
    assert_eq!(patched(|pods| pods.gated = 0), json!({"readinessGates": gates}));
}

/// The API server refuses two handlers of one hook, and a container in the template that has no image.
#[test]
fn the_patch_has_each_container_of_the_template_that_stops_early_and_no_injected_one() {
    let mut facts = facts();
    let pods = facts.pods.as_mut().unwrap();
    pods.containers =
        stopping([("istio-proxy", 0, None), ("log", 110, None), ("orders", 5, Some("exec")), ("web", 0, None)]);
    pods.template = Some(["log", "orders", "web"].map(str::to_owned).into());
    let said = |facts: &Facts| {
        let plan = plan(facts, &[]);
        let found = plan.findings.into_iter().find(|finding| finding.about == "preStop").unwrap();
        (plan.patch, found.text, found.remedy.unwrap())
    };
    let (patch, text, remedy) = said(&facts);
    let orders = r#"{"lifecycle":{"preStop":{"exec":null,"sleep":{"seconds":110}}},"name":"orders"}"#;
    let web = r#"{"lifecycle":{"preStop":{"sleep":{"seconds":110}}},"name":"web"}"#;
    let patch = patch.unwrap();
    assert!(patch.contains(&format!(r#""containers":[{orders},{web}]}}"#)), "{patch}");
    assert!(text.contains("stops after 0 s (containers: orders, web, istio-proxy), and"), "{text}");
    for part in ["apply the patch below; ", "the exec hook of orders: ", "istio-proxy is injected"] {
        assert!(remedy.contains(part), "{remedy}");
    }
    // Nothing in the template can be mended.
    facts.pods.as_mut().unwrap().containers = stopping([("istio-proxy", 0, None), ("orders", 110, None)]);
    let (patch, _, remedy) = said(&facts);
    assert!(patch.is_none() && remedy.starts_with("istio-proxy is injected"), "{patch:?} {remedy}");
    // Where the template is not known, nobody knows what is injected.
    let pods = facts.pods.as_mut().unwrap();
    (pods.template, pods.containers) = (None, stopping([("istio-proxy", 0, None), ("orders", 0, None)]));
    let (patch, _, remedy) = said(&facts);
    assert!(patch.unwrap().contains("istio-proxy") && remedy.contains("take those out of it"), "{remedy}");
}

#[tokio::test]
async fn what_is_injected_into_pods_is_told_by_the_template_of_their_deployment() {
    let template = |deployment: Option<Value>| async move {
        let api = FakeApi::default();
        let pod = json!({
            "metadata": {
                "name": "orders-5d4-x", "labels": {"pod-template-hash": "5d4"},
                "ownerReferences": [{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "orders-5d4", "uid": "u", "controller": true}],
            },
            "spec": {"containers": [{"name": "orders"}, {"name": "istio-proxy"}]},
        });
        api.prepare(200, json!({"apiVersion": "v1", "kind": "PodList", "metadata": {}, "items": [pod]}));
        match deployment {
            Some(deployment) => api.prepare(200, deployment),
            None => api.refuse(403, "Forbidden", "deployments are forbidden"),
        }
        let ecs = EcsReader::new(Ok(None), Choice::default());
        let observer = Observer::new(api.client(), Err("no credentials".to_owned()), ecs, Ok(Settings::default()));
        let selector = [("app".to_owned(), "orders".to_owned())].into();
        let (pods, _) = observer.pods(&ServiceKey::new("shop", "orders"), selector).await.unwrap();
        assert_eq!(pods.containers.len(), 2);
        assert!(api.requests()[1].path.ends_with("/namespaces/shop/deployments/orders"), "{:?}", api.requests());
        pods.template
    };
    let containers = json!([{"name": "orders"}]);
    let deployment = json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "orders"},
        "spec": {"selector": {}, "template": {"spec": {"containers": containers}}},
    });
    assert_eq!(template(Some(deployment)).await, Some(["orders".to_owned()].into()));
    assert_eq!(template(None).await, None);
}

#[test]
fn the_document_shows_a_plan() {
    let mut facts = facts();
    let scarce = Pods { ready: 2, gated: 0, containers: stopping([("orders", 0, None)]), grace: 30, ..pods(2) };
    (facts.pods, facts.registry) = (Ok(scarce), Ok(registry(2, 60)));
    facts.ecs = Ok(Some(found([ecs_service(2)])));
    let plans = [("shop/orders".to_owned(), plan(&facts, &[5, 25, 50, 100]))];
    let shown = text(&plans);
    let shown: String = shown
        .trim_end()
        .lines()
        .map(|line| if line.is_empty() { "\n".to_owned() } else { format!("    {line}\n") })
        .collect();
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/moving-from-ecs.md");
    let document = fs::read_to_string(path).unwrap_or_default();
    assert!(document.contains(&shown), "docs/moving-from-ecs.md lacks:\n\n{shown}");
}

#[test]
fn the_tasks_are_stopped_only_when_there_are_pods_for_all_traffic() {
    let mut facts = facts();
    assert_eq!(check(&facts, false), Ok(()));
    let said = commands(&facts, Some("eu-central-1"), false);
    assert!(!said.contains("aws ecs") && said.contains("stop no task yet"), "nothing is registered: {said}");
    facts.cutover = Ok(Some(status::tests::sample("orders", "Finished", 100, "OthersServe", true)));
    let said = commands(&facts, Some("eu-central-1"), false);
    let command = "aws ecs update-service --region eu-central-1 --cluster prod --service orders --desired-count 0\n";
    assert!(said.ends_with(command) && said.contains("up to 90 s"), "{said}");
    // Somebody took the traffic back, and the controller has not seen that yet.
    let mut taken_back = status::tests::sample("orders", "Finished", 100, "OthersServe", true);
    taken_back.metadata.generation = Some(3);
    let said = commands(&Facts { cutover: Ok(Some(taken_back)), ..facts.clone() }, None, false);
    assert!(!said.contains("aws ecs") && said.contains("stop no task yet"), "{said}");
    facts.pods = Ok(pods(11));
    let why = check(&facts, false).unwrap_err();
    assert!(why.contains("11 pods are ready, and 12 tasks") && why.contains("--force"), "{why}");
    assert_eq!(check(&facts, true), Ok(()));
    // Tasks that were hidden when the status was written, and that Cloud Map shows now; another one is ill.
    let mut cutover = status::tests::sample("orders", "Finished", 100, "OthersServe", true);
    cutover.status.as_mut().unwrap().hidden = Some(12);
    let shown = Facts { cutover: Ok(Some(cutover)), pods: Ok(pods(13)), ..facts.clone() };
    assert_eq!(check(&shown, false), Ok(()));
    facts.registry = Err("no credentials".to_owned());
    assert!(check(&facts, false).unwrap_err().contains("no credentials"));
    facts.registry = Ok(Registry::default());
    let why = check(&facts, false).unwrap_err();
    assert!(why.contains("not found") && why.contains("--region") && check(&facts, true).is_ok(), "{why}");
    let unnamed = Facts { counterpart: Ok(Counterpart::default()), ..facts.clone() };
    let why = check(&unnamed, false).unwrap_err();
    assert!(why.contains("no annotation names") && !why.contains("--region"), "{why}");
    assert!(!commands(&facts, None, true).contains("aws ecs"), "nobody knows what to stop");
    facts.registry = Ok(registry(0, 60));
    assert!(commands(&facts, None, false).contains("--service orders"), "tasks run that are not healthy");
    facts.pods = Ok(pods(0));
    assert!(check(&facts, false).unwrap_err().contains("no pod is ready, and prod/orders has tasks"));
    facts.pods = Ok(pods(1));
    assert_eq!(check(&facts, false), Ok(()));
    facts.ecs = Ok(Some(found([crate::ecs::Service { active: false, ..ecs_service(1) }])));
    let said = commands(&facts, None, false);
    assert!(
        said.contains("prod/orders is being deleted") && !said.contains("update-service"),
        "ECS refuses it: {said}"
    );
    facts.ecs = Ok(Some(found([ecs_service(0)])));
    assert!(commands(&facts, None, false).contains("nothing to stop"));
}

#[test]
fn without_ecs_the_instances_say_what_to_stop() {
    let finished = Ok(Some(status::tests::sample("orders", "Finished", 100, "OthersServe", true)));
    let facts = Facts { cutover: finished, ecs: Err("access denied".to_owned()), ..facts() };
    let said = commands(&facts, None, false);
    assert!(said.ends_with("aws ecs update-service --cluster prod --service orders --desired-count 0\n"), "{said}");
    assert!(!said.contains("application-autoscaling"), "{said}");
    let facts = Facts { ecs: Ok(Some(found([ecs_service(12)]))), ..facts };
    let said = commands(&facts, Some("eu-west-1"), false);
    assert!(said.contains("--resource-ids service/prod/orders --region eu-west-1\n"), "{said}");
}

/// Who may register instances or create pods chooses these names.
#[test]
fn what_others_wrote_stays_one_word_of_a_command() {
    let finished = Ok(Some(status::tests::sample("orders", "Finished", 100, "OthersServe", true)));
    let mut facts = Facts { cutover: finished, ecs: Err("access denied".to_owned()), ..facts() };
    facts.registry.as_mut().unwrap().ecs = [("prod".to_owned(), "x; reboot".to_owned())].into();
    let said = commands(&facts, None, false);
    assert!(said.ends_with(" --cluster prod --service 'x; reboot' --desired-count 0\n"), "{said}");
    let pods = facts.pods.as_mut().unwrap();
    (pods.workload, pods.gated) = (Some("x; reboot/orders".to_owned()), 0);
    let patch = plan(&facts, &[]).patch.unwrap();
    assert!(patch.starts_with("kubectl patch --namespace shop 'x; reboot/orders' --patch '{"), "{patch}");
}

#[test]
fn tasks_are_scaled_down_only_when_it_is_finished_and_hidden_ones_are_used_no_more() {
    let now: Timestamp = "2026-11-24T10:02:00Z".parse().unwrap();
    let ready = |facts: &Facts| scale::stoppable(facts, Ok(now), false);
    let mut facts = facts();
    assert!(ready(&facts).unwrap_err().contains("before it is Finished"));
    let mut finished = status::tests::sample("orders", "Finished", 100, "OthersServe", true);
    facts.cutover = Ok(Some(finished.clone()));
    assert_eq!(ready(&facts).unwrap(), [ecs_service(12)]);
    // The controller has not seen the last change yet.
    finished.metadata.generation = Some(3);
    facts.cutover = Ok(Some(finished.clone()));
    assert!(ready(&facts).is_err());
    finished.metadata.generation = Some(2);
    // Hidden tasks are used for 30 s, the TTL of 60 s, and 30 s.
    finished.spec.hide_tasks = true;
    facts.cutover = Ok(Some(finished.clone()));
    let why = ready(&facts).unwrap_err();
    assert!(why.contains("not hidden yet") && why.ends_with("--timeout=10m`"), "{why}");
    facts.registry = Ok(registry(0, 60));
    let hidden = json!({"type": "TasksHidden", "status": "True", "reason": "Hidden", "message": "12 tasks are hidden",
        "lastTransitionTime": "2026-11-24T10:00:30Z"});
    for (since, may) in [("2026-11-24T10:00:30Z", false), ("2026-11-24T10:00:00Z", true)] {
        let status = finished.status.as_mut().unwrap();
        status.conditions.push(serde_json::from_value(hidden.clone()).unwrap());
        (status.hidden, status.hidden_since) = (Some(12), serde_json::from_value(json!(since)).unwrap());
        facts.cutover = Ok(Some(finished.clone()));
        assert_eq!(ready(&facts).is_ok(), may, "{since}: {:?}", ready(&facts));
    }
    let why = scale::stoppable(&facts, Err(&"no answer".to_owned()), false).unwrap_err();
    assert!(why.contains("from 2026-11-24T10:02:00Z on") && why.contains("no answer"), "{why}");
    // One that began a moment ago.
    let new = Facts { registry: Ok(registry(1, 60)), ..facts.clone() };
    assert!(ready(&new).unwrap_err().contains("1 of its tasks are visible in Cloud Map"));
    let mut assumed = Facts { settings: Err("deployments are forbidden".to_owned()), ..facts.clone() };
    assert!(ready(&assumed).is_ok(), "the annotations name all");
    assumed.counterpart.as_mut().unwrap().is_implied = true;
    let why = ready(&assumed).unwrap_err();
    assert!(why.contains("internal/orders is assumed") && why.contains("deployments are forbidden"), "{why}");
    let with = |ecs| ready(&Facts { ecs, ..facts.clone() });
    assert!(with(Err("access denied".to_owned())).unwrap_err().contains("access denied"));
    assert!(with(Ok(None)).unwrap_err().contains("--ecs-endpoint"));
    assert!(with(Ok(Some(found([])))).unwrap_err().contains("--ecs-cluster"));
    assert!(with(Ok(Some(found_in_part([])))).unwrap_err().contains("the ECS cluster test could not be read"));
    assert_eq!(with(Ok(Some(found_in_part([ecs_service(12)])))), Ok(vec![ecs_service(12)]), "it is known which one");
    let serves = crate::ecs::Service { load_balancers: 1, ..ecs_service(12) };
    assert!(with(Ok(Some(found([serves])))).unwrap_err().contains("prod/orders is not stopped"));
    let stopped = crate::ecs::Service { load_balancers: 1, ..ecs_service(0) };
    assert_eq!(with(Ok(Some(found([stopped])))), Ok(Vec::new()), "nothing is left to refuse");
}

/// A clock that is ahead would stop tasks that clients still use. The one of this machine is years ahead here.
#[tokio::test]
async fn for_how_long_tasks_are_hidden_is_measured_with_the_clock_of_the_api_server() {
    let api = FakeApi::default();
    let mut cutover = status::tests::sample("orders", "Finished", 100, "OthersServe", true);
    cutover.spec.hide_tasks = true;
    let hidden = json!({"type": "TasksHidden", "status": "True", "reason": "Hidden", "message": "12 tasks are hidden",
        "lastTransitionTime": "2020-01-01T10:00:00Z"});
    let status = cutover.status.as_mut().unwrap();
    status.conditions.push(serde_json::from_value(hidden).unwrap());
    (status.hidden, status.hidden_since) = (Some(12), serde_json::from_value(json!("2020-01-01T10:00:00Z")).unwrap());
    let facts = [Facts { cutover: Ok(Some(cutover)), registry: Ok(registry(0, 60)), ..facts() }];
    for (date, may) in
        [(None, false), (Some("Wed, 01 Jan 2020 10:01:59 GMT"), false), (Some("Wed, 01 Jan 2020 10:02:00 GMT"), true)]
    {
        api.prepare(200, json!({"major": "1", "minor": "34", "gitVersion": "v1.34.4"}));
        if let Some(date) = date {
            api.says_the_time(date);
        }
        let (ready, why) = stoppable(&api.client(), &facts, false).await.unwrap();
        assert_eq!((ready.len(), why.len()), (may.into(), (!may).into()), "{date:?}: {why:?}");
    }
}

#[tokio::test]
async fn what_changed_since_it_was_observed_is_not_stopped() {
    let api = FakeApi::default();
    api.prepare(200, json!({"major": "1", "minor": "34", "gitVersion": "v1.34.4"}));
    let mut cutover = status::tests::sample("orders", "Finished", 100, "OthersServe", true);
    // The second one was taken back. In the third one, ECS reported a hidden task as healthy.
    for (generation, hides) in [(2, false), (3, false), (2, true)] {
        (cutover.metadata.generation, cutover.spec.hide_tasks) = (Some(generation), hides);
        api.prepare(200, serde_json::to_value(&cutover).unwrap());
    }
    api.refuse(404, "NotFound", "there is none");
    let facts = facts();
    let ready: Vec<_> = (0..4).map(|_| (&facts, ecs_service(12))).collect();
    let (still, changed) = still_stoppable(&api.client(), ready).await;
    assert_eq!((still.len(), changed.len()), (1, 3));
    assert!(changed[0].contains("before it is Finished") && changed[1].contains("not hidden yet"), "{changed:?}");
}

#[test]
fn who_goes_back_is_told_when_no_task_takes_the_traffic() {
    let mut facts = facts();
    let remark = |facts: &Facts| back::remark(facts, None);
    assert_eq!(remark(&facts), None);
    facts.ecs = Err("access denied".to_owned());
    assert_eq!(remark(&facts), None, "there are healthy tasks");
    // The pods go as soon as one task is healthy.
    let few = Ok(Some(found([crate::ecs::Service { running: 1, ..ecs_service(3) }])));
    let said = remark(&Facts { registry: Ok(registry(1, 60)), ecs: few, ..facts.clone() }).unwrap();
    assert!(said.contains("1 of 3 tasks run") && !said.contains("keep the traffic"), "{said}");
    facts.registry = Ok(registry(0, 60));
    let said = remark(&facts).unwrap();
    assert!(said.contains("ECS could not be read") && said.contains("--desired-count 12"), "{said}");
    facts.ecs = Ok(Some(found([ecs_service(0)])));
    let said = remark(&facts).unwrap();
    assert!(said.contains("prod/orders is to have 0 tasks") && said.contains("--cluster prod"), "{said}");
    facts.ecs = Ok(Some(found([crate::ecs::Service { running: 1, ..ecs_service(3) }])));
    let said = remark(&facts).unwrap();
    assert!(said.contains("1 of 3 tasks run") && said.contains("keep the traffic"), "{said}");
    facts.ecs = Ok(Some(found([crate::ecs::Service { active: false, desired: 0, ..ecs_service(3) }])));
    let said = remark(&facts).unwrap();
    assert!(said.contains("prod/orders is being deleted") && !said.contains("update-service"), "{said}");
    facts.ecs = Ok(Some(found([])));
    assert!(remark(&facts).unwrap().contains("the ECS service is gone"));
    facts.ecs = Ok(Some(found_in_part([])));
    let said = remark(&facts).unwrap();
    assert!(said.contains("ECS could not be read everywhere") && said.contains("Raise the count"), "{said}");
    facts.registry = Err("no credentials".to_owned());
    assert!(remark(&facts).unwrap().contains("not known: no credentials"));
}

#[tokio::test(start_paused = true)]
async fn the_mode_of_iam_for_people_who_move_services_allows_the_calls_to_ecs_that_are_made() {
    let services = [ecs_service(2)];
    let ecs = fake::FakeEcs::with(services.clone());
    let mut reader = EcsReader::new(Ok(Some(Arc::new(ecs.clone()))), Choice::default());
    reader.registering(ARN, &[].into()).await.unwrap();
    let stopping = services.map(|service| (ServiceKey::new("shop", "orders"), service)).into();
    scale::stop(&ecs, stopping, Duration::from_mins(1), &mut Vec::new()).await.unwrap();
    let called: BTreeSet<_> = ecs.state().calls.iter().map(|operation| operation.action()).collect();
    let facts = iam::Facts { ecs_clusters: vec!["prod".to_owned()], ..iam::Facts::default() };
    let actions = statements(&[Mode::Cutover], &facts).unwrap().into_iter().flat_map(|statement| statement.action.0);
    let allowed: BTreeSet<_> = actions.filter(|action| action.starts_with("ecs:")).collect();
    assert_eq!(called, allowed);
}

#[test]
fn pods_are_summed_up_by_the_one_that_is_worst() {
    let pod = |ready: &str, seconds: u64, gate: bool, going: bool| {
        let gates = if gate { json!([{"conditionType": "cloudmap-mcs/registered"}]) } else { json!([]) };
        let mut pod = json!({
            "metadata": {
                "name": "orders-5d4-x", "labels": {"app": "orders", "pod-template-hash": "5d4"},
                "ownerReferences": [{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "orders-5d4", "uid": "u", "controller": true}],
            },
            "spec": {
                "readinessGates": gates, "terminationGracePeriodSeconds": 60,
                "containers": [
                    {"name": "orders", "lifecycle": {"preStop": {"exec": {"command": ["sh", "-c", format!("sleep {seconds}; true")]}}}},
                    {"name": "linger", "lifecycle": {"preStop": {"httpGet": {"port": 15020}}}},
                ],
            },
            "status": {"podIPs": [{"ip": "192.0.2.1"}], "conditions": [{"type": "Ready", "status": ready}]},
        });
        if going {
            pod["metadata"]["deletionTimestamp"] = json!("2026-11-24T10:00:00Z");
        }
        serde_json::from_value(pod).unwrap()
    };
    let mut evicted: k8s_openapi::api::core::v1::Pod = pod("False", 0, false, false);
    evicted.status.as_mut().unwrap().phase = Some("Failed".to_owned());
    let all = [pod("True", 90, true, false), pod("False", 20, false, false), pod("True", 0, false, true), evicted];
    let (pods, labels) = summed(&all);
    assert_eq!((pods.ready, pods.unready, pods.gated, pods.grace), (1, 1, 1, 60));
    assert_eq!(pods.containers, stopping([("linger", 0, Some("httpGet")), ("orders", 20, Some("exec"))]));
    assert!(!pods.addresses.is_empty() && pods.addresses.iter().all(std::net::IpAddr::is_ipv4));
    assert_eq!(pods.workload.as_deref(), Some("deployment/orders"));
    assert_eq!(labels["app"], "orders");
    let (nothing, _) = summed(&[]);
    assert_eq!((nothing.stops_after(), nothing.grace), (0, 0));
}

#[tokio::test]
async fn who_may_not_read_the_export_hears_that_and_not_that_there_are_no_tasks() {
    let api = FakeApi::default();
    api.refuse(404, "NotFound", "there is no Cutover");
    api.prepare(200, json!({"metadata": {"name": "orders"}}));
    api.refuse(403, "Forbidden", "exports are forbidden");
    let ecs = EcsReader::new(Ok(None), Choice::default());
    let mut observer = Observer::new(api.client(), Err("no credentials".to_owned()), ecs, Ok(Settings::default()));
    let facts = observer.observe(&ServiceKey::new("shop", "orders")).await;
    let said = [check(&facts, false).unwrap_err(), back::remark(&facts, None).unwrap()];
    assert!(said.iter().all(|said| said.contains("exports are forbidden")), "{said:?}");
    let findings = plan(&facts, &[]).findings;
    assert!(findings.iter().all(|finding| !finding.text.contains("nobody else")), "{findings:?}");
}

#[test]
fn the_counterpart_is_the_export_or_an_annotated_service() {
    let service = |annotations: Value| {
        serde_json::from_value(json!({
            "metadata": {"name": "orders", "annotations": annotations},
            "spec": {"ports": [{"port": 80, "targetPort": 8080}]},
        }))
        .unwrap()
    };
    let plain = service(json!({}));
    let (usual, one) = (Naming::PerNamespace, Naming::OneNamespace("all".into()));
    let nothing = Counterpart { port: Some(8080), ..Counterpart::default() };
    assert_eq!(counterpart(None, Some(&plain), &usual), nothing);
    let annotated =
        service(json!({"cloudmap.controller/namespace": "internal ", "cloudmap.controller/hostname": " orders"}));
    assert_eq!(counterpart(None, Some(&annotated), &one).target.unwrap().to_string(), "internal/orders");
    let export: ServiceExport = serde_json::from_value(json!({
        "metadata": {"name": "orders", "annotations": {"cloudmap-mcs/namespace": "internal", "cloudmap-mcs/service": "orders"}},
    }))
    .unwrap();
    let found = counterpart(Some(&export), Some(&plain), &one);
    assert!(!found.is_implied && found.target.unwrap().to_string() == "internal/orders");
    assert_eq!((found.kind, found.refused.unwrap().0.as_str()), (Some("ServiceExport"), "Pending"));
    // One annotation is enough. The flag --instances-namespace counts for the rest.
    for (annotation, value, expected) in [
        ("cloudmap-mcs/namespace", "other", Some(["other/orders", "other/orders.shop"])),
        ("cloudmap-mcs/service", "other", Some(["shop/other", "all/other"])),
        ("cloudmap-mcs/service", " other ", Some(["shop/other", "all/other"])),
        ("cloudmap-mcs/share", "true", Some(["shop/orders", "all/orders.shop"])),
        ("cloudmap-mcs/share-of-traffic", "25%", Some(["shop/orders", "all/orders.shop"])),
        ("cloudmap-mcs/share", "false", None),
    ] {
        let export: ServiceExport = serde_json::from_value(json!({
            "metadata": {"name": "orders", "namespace": "shop", "annotations": {annotation: value}},
        }))
        .unwrap();
        for (at, naming) in [&usual, &one].into_iter().enumerate() {
            let found = counterpart(Some(&export), Some(&plain), naming);
            let target = found.target.map(|target| target.to_string());
            assert_eq!(target.as_deref(), expected.map(|expected| expected[at]), "{annotation}");
            assert!(found.is_implied);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_service_in_a_dns_namespace_is_found_whatever_the_case_of_its_name() {
    let cloudmap = Fake::new();
    for (namespace, kind) in [("internal", NamespaceKind::DnsPrivate), ("api", NamespaceKind::Http)] {
        let id = cloudmap.registry().add_namespace(namespace, kind);
        cloudmap.registry().add_service(&id, "Orders", "ecs", "");
    }
    let ecs = EcsReader::new(Ok(None), Choice::default());
    let mut observer = Observer::new(FakeApi::default().client(), Ok(Arc::new(cloudmap)), ecs, Ok(Settings::default()));
    for (namespace, found) in [("internal", true), ("api", false)] {
        let target = Target { namespace: namespace.into(), service: "orders".into() };
        let registry = observer.registry(&target).await.unwrap();
        assert_eq!(registry.service.is_some(), found, "{namespace}");
    }
}

#[tokio::test]
async fn all_exports_are_those_with_an_annotation_that_names_a_cloud_map_service_or_joins_one() {
    let api = FakeApi::default();
    let export = |name: &str, annotations: Value| json!({"metadata": {"name": name, "annotations": annotations}});
    let items = [
        export("both", json!({"cloudmap-mcs/namespace": "internal", "cloudmap-mcs/service": "orders"})),
        export("elsewhere", json!({"cloudmap-mcs/namespace": "internal"})),
        export("renamed", json!({"cloudmap-mcs/service": "orders"})),
        export("joins", json!({"cloudmap-mcs/share": "true"})),
        export("shares", json!({"cloudmap-mcs/share-of-traffic": "25%"})),
        export("plain", json!({})),
    ];
    let kind = "ServiceExportList";
    let list = json!({"apiVersion": "multicluster.x-k8s.io/v1beta1", "kind": kind, "metadata": {}, "items": items});
    api.prepare(200, list);
    assert_eq!(exported(&api.client(), "shop").await.unwrap(), ["both", "elsewhere", "renamed", "joins", "shares"]);
}

#[tokio::test]
async fn what_is_written_is_printed_and_nothing_of_others_is_overwritten() {
    let api = FakeApi::default();
    let key = ServiceKey::new("shop", "orders");
    let spec = serde_json::from_value(json!({"steps": [5, 100]})).unwrap();
    api.refuse(404, "NotFound", "there is none");
    fulfil(&api.client(), &key, &Wish::Start(spec), true).await.unwrap();
    assert!(api.requests().iter().all(|request| request.method == "GET"), "a dry run");
    api.prepare(200, serde_json::to_value(status::tests::sample("orders", "Shifting", 25, "Shifting", true)).unwrap());
    fulfil(&api.client(), &key, &Wish::Pause, false).await.unwrap();
    let patches: BTreeMap<_, _> = api
        .requests()
        .into_iter()
        .filter(|request| request.method == "PATCH")
        .map(|request| (request.path.clone(), request.query.clone()))
        .collect();
    let (path, query) = patches.first_key_value().unwrap();
    assert!(path.ends_with("/apis/cloudmap-mcs.io/v1alpha1/namespaces/shop/cutovers/orders"), "{path}");
    assert!(query.contains("fieldManager=cloudmap-mcs-cutover-hold") && !query.contains("force=true"), "{query}");
}

#[tokio::test(start_paused = true)]
async fn who_watches_goes_on_after_a_failed_list_and_hears_what_does_not_heal() {
    let refuse = |api: &FakeApi, code, reason| api.refuse(code, reason, "no");
    let list = |api: &FakeApi, phase| {
        let items = [status::tests::sample("orders", phase, 100, "Shifting", true)];
        let list =
            json!({"apiVersion": "cloudmap-mcs.io/v1alpha1", "kind": "CutoverList", "metadata": {}, "items": items});
        api.prepare(200, list);
    };
    let followed = |api: FakeApi, watch: bool| async move {
        let line = ["cloudmap-mcs", "cutover", "status", "--watch"].into_iter().take(if watch { 4 } else { 3 });
        let Command::Cutover(command) = Cli::try_parse_from(line).unwrap().command else { panic!("not cutover") };
        let CutoverCommand::Status(args) = *command else { panic!("not status") };
        let cutovers = Api::namespaced(api.client(), "shop");
        let is_well = follow(&cutovers, "shop", &args).await.is_ok();
        (is_well, api.requests().len())
    };
    let api = FakeApi::default();
    refuse(&api, 500, "InternalError");
    list(&api, "Shifting");
    refuse(&api, 403, "Forbidden");
    refuse(&api, 500, "InternalError");
    list(&api, "Finished");
    assert_eq!(followed(api, true).await, (true, 5));
    for (code, reason, watch) in [(500, "InternalError", false), (403, "Forbidden", true), (404, "NotFound", true)] {
        let api = FakeApi::default();
        refuse(&api, code, reason);
        assert_eq!(followed(api, watch).await, (false, 1), "{reason}");
    }
}
