//! What `plan` finds, and what it proposes.

use super::*;

#[test]
fn what_lacks_nothing_is_ready_and_shows_what_its_steps_reach() {
    let plan = plan(&situation(), &[5, 25, 50, 100]);
    assert_eq!((plan.grade(), plan.grade().status(), &plan.patch), (Grade::Ok, 0, &None), "{:?}", plan.findings);
    let reached: Vec<_> = plan.steps.iter().map(|step| (step.asked, step.pods, step.share.to_string())).collect();
    let expected = [(5, 1, "7.69 %"), (25, 4, "25 %"), (50, 12, "50 %"), (100, 12, "50 %")];
    assert_eq!(reached, expected.map(|(asked, pods, share)| (asked, pods, share.to_owned())));
}

fn reached(situation: &Situation, steps: &[u8]) -> Vec<(u8, usize, String)> {
    let steps = plan(situation, steps).steps;
    steps.iter().map(|step| (step.asked, step.pods, step.share.to_string())).collect()
}

/// As the controller counts.
#[test]
fn the_pods_of_other_clusters_and_hidden_tasks_count_beside_the_pods() {
    let capacity = |situation: &Situation| {
        let findings = plan(situation, &[]).findings;
        findings.into_iter().find(|finding| finding.about == "capacity").unwrap()
    };
    let cluster = |address: &str, whole| Cluster {
        addresses: [address.parse().unwrap()].into(),
        healthy: Others { whole, ..Others::default() },
        instances: whole,
    };
    let mut seen = registry(12, 60);
    // One of them is the cluster of the pods.
    seen.clusters = [("a".to_owned(), cluster("192.0.2.101", 5)), ("b".to_owned(), cluster("198.51.100.1", 12))].into();
    let several = Situation { registry: Ok(seen), ..situation() };
    assert_eq!(reached(&several, &[25, 50]), [(25, 8, "25 %".to_owned()), (50, 12, "33.33 %".to_owned())]);
    assert_eq!(capacity(&several).text, "12 ready pods beside 12 tasks and 12 pods of other clusters");

    // Now 12 tasks and 12 pods elsewhere have the traffic. With 6 pods instead of the tasks, each of 18 has a third more.
    let few = capacity(&Situation { pods: Ok(pods(6)), ..several.clone() });
    assert_eq!((few.grade, few.remedy.as_deref()), (Grade::Warning, Some("scale the pods to 12")));

    let mut cutover = status::tests::sample("orders", "Finished", 100, "OthersServe", true);
    cutover.status.as_mut().unwrap().hidden = Some(12);
    let all_hidden = CloudMapService { ill: 12, ..registry(0, 60) };
    let mut hidden = Situation { cutover: Ok(Some(cutover.clone())), registry: Ok(all_hidden), ..situation() };
    assert_eq!(reached(&hidden, &[50, 100]), [(50, 12, "50 %".to_owned()), (100, 12, "50 %".to_owned())]);
    assert_eq!(capacity(&hidden).text, "12 ready pods beside 12 tasks");
    cutover.spec.hide_tasks = true;
    hidden.cutover = Ok(Some(cutover));
    assert_eq!(reached(&hidden, &[50, 100]), [(50, 12, "50 %".to_owned()), (100, 12, "100 %".to_owned())]);
    // Steps above p/(p+t) differ by the tasks that they hide.
    hidden.pods = Ok(pods(6));
    let steps = [(50, 6, "50 %".to_owned()), (75, 6, "75 %".to_owned())];
    assert_eq!(reached(&hidden, &[50, 75]), steps);
    assert!(!wrong(&hidden).iter().any(|(about, _)| *about == "steps"), "{:?}", plan(&hidden, &[50, 75]).findings);
    let few = capacity(&hidden);
    assert!(few.grade == Grade::Warning && few.text.ends_with("each pod has more traffic than each task has now"));
}

/// Subnets of AWS are at most a /16.
#[test]
fn clients_that_stay_with_the_tasks_are_said_with_a_command_that_probes_from_there() {
    let said = |pod: &str, groups: &[&str]| {
        let mut situation = situation();
        let subnets = ["subnet-a", "subnet-b"].map(str::to_owned).into();
        let security_groups = groups.iter().map(|id| (*id).to_owned()).collect();
        let network = Some(ecs::Network { subnets, security_groups, public: false });
        situation.ecs = Ok(Some(found([ecs::Service { network, ..ecs_service(12) }])));
        situation.pods.as_mut().unwrap().addresses = [pod.parse().unwrap()].into();
        let findings = plan(&situation, &[]).findings;
        findings.into_iter().find(|finding| finding.about == "callers").unwrap()
    };
    let near = said("192.0.200.7", &["sg-1"]);
    assert_eq!(near.grade, Grade::Ok);
    assert!(near.text.starts_with("prod/orders: tasks are in subnet-a,subnet-b (security groups: sg-1); "));
    assert_eq!(
        near.remedy.unwrap(),
        "try the way from there to a pod: aws ecs run-task --region eu-central-1 --cluster prod --task-definition \
         cloudmap-mcs-probe --launch-type FARGATE --network-configuration \
         'awsvpcConfiguration={subnets=[subnet-a,subnet-b],securityGroups=[sg-1],assignPublicIp=DISABLED}' --overrides \
         '{\"containerOverrides\":[{\"command\":[\"nc\",\"-z\",\"-v\",\"-w\",\"5\",\"192.0.200.7\",\"8080\"],\"name\":\"probe\"}]}'"
    );
    let apart = said("100.64.0.7", &[]);
    assert!(apart.grade == Grade::Warning && apart.text.contains("no pod is in one of these subnets"), "{apart:?}");
    assert!(!apart.remedy.unwrap().contains("securityGroups"), "the VPC has a default one");
}

#[test]
fn each_thing_that_is_missing_is_found_with_its_remedy() {
    use Grade::{Blocked, Warning};
    let with = |change: fn(&mut Situation)| {
        let mut situation = situation();
        change(&mut situation);
        wrong(&situation)
    };
    assert_eq!(with(|_| {}), []);
    for (change, expected) in [
        ((|situation| situation.cutover = Err(Unread::NoSuchKind)) as fn(&mut Situation), ("cutover", Blocked)),
        (|situation| situation.counterpart = Err("forbidden".to_owned()), ("counterpart", Warning)),
        (|situation| situation.counterpart.as_mut().unwrap().target = None, ("counterpart", Blocked)),
        (
            |situation| {
                situation.counterpart.as_mut().unwrap().refused =
                    Some(("ForeignOwner".to_owned(), "whose?".to_owned()));
            },
            ("counterpart", Blocked),
        ),
        (|situation| situation.settings = Ok(settings(&[("CLOUDMAP_MCS_CUTOVERS", "false")])), ("cutover", Blocked)),
        (
            |situation| {
                situation.counterpart.as_mut().unwrap().refused =
                    Some(("Pending".to_owned(), "nobody says".to_owned()));
                situation.settings = Ok(settings(&[("CLOUDMAP_MCS_INSTANCES", "none")]));
            },
            ("counterpart", Blocked),
        ),
        (|situation| situation.settings = Ok(settings(&[])), ("gate", Warning)),
        (
            |situation| {
                let hides = CutoverSpec { hide_tasks: true, ..CutoverSpec::default() };
                (situation.cutover, situation.settings) = (Ok(Some(Cutover::new("orders", hides))), Ok(settings(&[])));
            },
            ("hiding", Warning),
        ),
        (
            |situation| {
                situation.settings = Err("deployments are forbidden".to_owned());
                situation.counterpart.as_mut().unwrap().is_implied = true;
            },
            ("counterpart", Warning),
        ),
        (|situation| situation.registry = Err("no credentials".to_owned()), ("cloud map", Warning)),
        (|situation| situation.registry.as_mut().unwrap().service = None, ("cloud map", Blocked)),
        (|situation| situation.registry = Ok(registry(12, 300)), ("ttl", Warning)),
        (|situation| situation.counterpart.as_mut().unwrap().port = Some(80), ("port", Warning)),
        (|situation| situation.pods = Ok(pods(0)), ("capacity", Blocked)),
        (|situation| situation.pods = Ok(pods(11)), ("capacity", Warning)),
        (|situation| situation.pods.as_mut().unwrap().unready = 1, ("capacity", Warning)),
        (|situation| situation.pods.as_mut().unwrap().addresses.clear(), ("families", Blocked)),
        (
            |situation| situation.pods.as_mut().unwrap().containers = stopping([("orders", 5, None)]),
            ("preStop", Warning),
        ),
        // It is killed before, or at the end of its sleep.
        (|situation| situation.pods.as_mut().unwrap().grace = 30, ("preStop", Warning)),
        (|situation| situation.pods.as_mut().unwrap().grace = 120, ("preStop", Warning)),
        (|situation| situation.pods.as_mut().unwrap().gated = 0, ("gate", Warning)),
        (|situation| situation.budgets = Ok(0), ("budget", Warning)),
        (|situation| situation.budgets = Err("forbidden".to_owned()), ("budget", Warning)),
        (|situation| situation.autoscalers = Ok(vec![("orders".to_owned(), 2)]), ("autoscaler", Warning)),
        (|situation| situation.ecs = Err("access denied".to_owned()), ("ecs", Warning)),
        (|situation| situation.ecs = Ok(Some(found([]))), ("ecs", Warning)),
        (|situation| situation.ecs = Ok(Some(found_in_part([ecs_service(12)]))), ("ecs", Warning)),
        (
            |situation| situation.ecs = Ok(Some(found([ecs::Service { daemon: true, ..ecs_service(12) }]))),
            ("ecs", Blocked),
        ),
    ] {
        let found = with(change);
        assert!(found.contains(&expected), "{expected:?} is not in {found:?}");
    }
    let unread =
        plan(&Situation { cutover: Err(Unread::Forbidden("cutovers are forbidden".to_owned())), ..situation() }, &[])
            .findings;
    let remedy = unread.into_iter().find_map(|finding| finding.remedy.filter(|_| finding.about == "cutover")).unwrap();
    assert!(remedy.contains("cloudmap-mcs-view") && remedy.contains("config/crd"), "{remedy}");
    let unknown = with(|situation| situation.settings = Err("deployments are forbidden".to_owned()));
    assert_eq!(unknown, [], "nothing depends on it but what is assumed");
    assert_eq!(plan(&situation(), &[50, 25]).grade(), Blocked, "steps that fall");
}

#[test]
fn without_an_object_nothing_can_be_moved_and_the_remedy_registers_no_pod_at_once() {
    let mut nothing = situation();
    nothing.counterpart.as_mut().unwrap().kind = None;
    assert!(wrong(&nothing).contains(&("counterpart", Grade::Blocked)));
    let said = plan(&nothing, &[]).findings.into_iter().find(|finding| finding.about == "counterpart").unwrap();
    assert!(said.text.contains("external-dns are not read"), "{said:?}");
    // An export without a share registers all pods at once.
    assert!(said.remedy.is_some_and(|remedy| remedy.contains("share-of-traffic=0%")), "{}", said.text);
    assert_eq!(plan(&nothing, &[]).grade().status(), 2);
}

/// Otherwise the cutover itself is the first sign that a permission is missing.
#[test]
fn the_permissions_of_a_move_are_named_until_a_pod_is_registered() {
    let said = |situation: &Situation| {
        let findings = plan(situation, &[]).findings;
        findings.into_iter().find(|finding| finding.about == "role").map(|finding| (finding.grade, finding.text))
    };
    let mut situation = situation();
    let hides = CutoverSpec { hide_tasks: true, ..CutoverSpec::default() };
    situation.cutover = Ok(Some(Cutover::new("orders", hides)));
    let (grade, text) = said(&situation).unwrap();
    let command = "cloudmap-mcs iam --mode joining,gates,hiding,dns --services srv-aaaaaaaaaaaaaaaa \
                   --cloudmap-namespaces internal --hosted-zones ZONES --account 111122223333 --region eu-central-1";
    assert!(grade == Grade::Ok && text.ends_with(command), "{text}");
    let command = command.replace("ZONES", "Z0123456789ABCDEFGHIJ");
    assert!(Cli::try_parse_from(command.split_whitespace()).is_ok(), "{command}");
    let counterpart = situation.counterpart.as_mut().unwrap();
    counterpart.refused = Some(("Failed".to_owned(), "AWS denies RegisterInstance".to_owned()));
    assert_eq!(said(&situation), None, "the condition says it");
    situation.counterpart.as_mut().unwrap().refused = None;
    situation.pods.as_mut().unwrap().addresses.insert("192.0.2.99".parse().unwrap());
    assert_eq!(said(&situation), None, "this pod is registered");
}

#[test]
fn the_patch_has_what_the_pods_lack_and_no_more() {
    let patched = |change: fn(&mut Pods)| {
        let mut situation = situation();
        change(situation.pods.as_mut().unwrap());
        let patch = plan(&situation, &[]).patch.unwrap();
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
    // Otherwise the patch would take the other gates away.
    let both = json!([{"conditionType": "example.com/warm"}, {"conditionType": "cloudmap-mcs/registered"}]);
    let patch = patched(|pods| (pods.gated, pods.gates) = (0, ["example.com/warm".to_owned()].into()));
    assert_eq!(patch, json!({"readinessGates": both}));
}

#[test]
fn clients_are_as_late_as_the_controller_that_is_installed_says() {
    let said = |settle: Result<&str, &str>, ttl| {
        let mut situation = situation();
        let values = settle.map(|settle| [("CLOUDMAP_MCS_HIDE_TASKS", "true"), ("CLOUDMAP_MCS_SETTLE", settle)]);
        situation.settings = values.map(|values| settings(&values)).map_err(str::to_owned);
        let pods = situation.pods.as_mut().unwrap();
        (pods.containers, pods.grace) = (stopping([("orders", 5, None)]), 30);
        situation.registry = Ok(registry(12, ttl));
        text(&[("shop/orders".to_owned(), plan(&situation, &[]))])
    };
    // 5 s + 15 s + the TTL + the setting; 30 s more for requests in flight; 30 s until Cloud Map leaves a hidden task out.
    for (settle, seconds, step, lingers, grace, hidden) in
        [("3s", 3, 303, 323, 353, 333), ("30s", 30, 330, 350, 380, 360), ("5m", 300, 600, 620, 650, 630)]
    {
        let said = said(Ok(settle), 300);
        for part in [
            format!("so each step lasts at least {step} s"),
            format!(
                "use its address for up to {lingers} s: withdrawal 5 s, another leader 15 s, TTL 300 s, and {seconds} s"
            ),
            format!(r#""preStop":{{"sleep":{{"seconds":{lingers}}}}}"#),
            format!(r#""terminationGracePeriodSeconds":{grace}"#),
            format!("tasks may be stopped {hidden} s after the last one was marked"),
        ] {
            assert!(said.contains(&part), "{part}: {said}");
        }
        assert!(!said.contains("assumed"), "{said}");
    }
    let said = said(Err("deployments are forbidden"), 60);
    let assumed = "late by up to 30 s beyond the TTL, as without --settle, because deployments are forbidden";
    assert!(said.contains(assumed) && said.contains("for up to 110 s"), "{said}");
}

/// The API server refuses two handlers of one hook, and a container in the template that has no image.
#[test]
fn the_patch_has_each_container_of_the_template_that_stops_early_and_no_injected_one() {
    let mut situation = situation();
    let pods = situation.pods.as_mut().unwrap();
    pods.containers =
        stopping([("istio-proxy", 0, None), ("log", 110, None), ("orders", 5, Some("exec")), ("web", 0, None)]);
    pods.template = Some(["log", "orders", "web"].map(str::to_owned).into());
    let said = |situation: &Situation| {
        let plan = plan(situation, &[]);
        let found = plan.findings.into_iter().find(|finding| finding.about == "preStop").unwrap();
        (plan.patch, found.text, found.remedy.unwrap())
    };
    let (patch, text, remedy) = said(&situation);
    let orders = r#"{"lifecycle":{"preStop":{"exec":null,"sleep":{"seconds":110}}},"name":"orders"}"#;
    let web = r#"{"lifecycle":{"preStop":{"sleep":{"seconds":110}}},"name":"web"}"#;
    let patch = patch.unwrap();
    assert!(patch.contains(&format!(r#""containers":[{orders},{web}]}}"#)), "{patch}");
    assert!(text.contains("stops after 0 s (containers: orders, web, istio-proxy), and"), "{text}");
    for part in ["apply the patch below; ", "the exec hook of orders: ", "istio-proxy is injected"] {
        assert!(remedy.contains(part), "{remedy}");
    }
    // Nothing in the template can be mended.
    situation.pods.as_mut().unwrap().containers = stopping([("istio-proxy", 0, None), ("orders", 110, None)]);
    let (patch, _, remedy) = said(&situation);
    assert!(patch.is_none() && remedy.starts_with("istio-proxy is injected"), "{patch:?} {remedy}");
    // Where the template is not known, nobody knows what is injected.
    let pods = situation.pods.as_mut().unwrap();
    (pods.template, pods.containers) = (None, stopping([("istio-proxy", 0, None), ("orders", 0, None)]));
    let (patch, _, remedy) = said(&situation);
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
            "spec": {
                "containers": [{"name": "orders"}, {"name": "istio-proxy"}],
                "readinessGates": [{"conditionType": "cloudmap-mcs/registered"}, {"conditionType": "injected"}],
            },
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
        (pods.template, pods.gates)
    };
    let (containers, gates) = (json!([{"name": "orders"}]), json!([{"conditionType": "example.com/warm"}]));
    let deployment = json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "orders"},
        "spec": {"selector": {}, "template": {"spec": {"containers": containers, "readinessGates": gates}}},
    });
    let set = |text: &str| BTreeSet::from([text.to_owned()]);
    assert_eq!(template(Some(deployment)).await, (Some(set("orders")), set("example.com/warm")));
    assert_eq!(template(None).await, (None, set("injected")));
}

#[test]
fn the_document_shows_a_plan() {
    let mut situation = situation();
    let scarce = Pods { ready: 2, gated: 0, containers: stopping([("orders", 0, None)]), grace: 30, ..pods(2) };
    (situation.pods, situation.registry) = (Ok(scarce), Ok(registry(2, 60)));
    situation.ecs = Ok(Some(found([ecs_service(2)])));
    let plans = [("shop/orders".to_owned(), plan(&situation, &[5, 25, 50, 100]))];
    let mut coming = Coming::default();
    coming.observed(&situation);
    let shown = text(&plans) + &text(&coming.plans());
    let shown: String = shown
        .trim_end()
        .lines()
        .map(|line| if line.is_empty() { "\n".to_owned() } else { format!("    {line}\n") })
        .collect();
    let path = base::repository().join("docs/moving-from-ecs.md");
    let document = fs::read_to_string(path).unwrap_or_default();
    assert!(document.contains(&shown), "docs/moving-from-ecs.md lacks:\n\n{shown}");
}
