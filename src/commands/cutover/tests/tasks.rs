//! `finish` and `back`: whether tasks may stop, and what is said of them.

use super::*;

#[test]
fn the_tasks_are_stopped_only_when_there_are_pods_for_all_traffic() {
    let mut situation = situation();
    assert_eq!(check(&situation, false), Ok(()));
    let said = commands(&situation, false);
    assert!(!said.contains("aws ecs") && said.contains("stop no task yet"), "nothing is registered: {said}");
    situation.cutover = Ok(Some(status::tests::sample("orders", "Finished", 100, "OthersServe", true)));
    let said = commands(&situation, false);
    let command = "aws ecs update-service --region eu-central-1 --cluster prod --service orders --desired-count 0\n";
    assert!(said.ends_with(command) && said.contains("up to 90 s"), "{said}");
    // Somebody took the traffic back, and the controller has not seen that yet.
    let mut taken_back = status::tests::sample("orders", "Finished", 100, "OthersServe", true);
    taken_back.metadata.generation = Some(3);
    let said = commands(&Situation { cutover: Ok(Some(taken_back)), ..situation.clone() }, false);
    assert!(!said.contains("aws ecs") && said.contains("stop no task yet"), "{said}");
    situation.pods = Ok(pods(11));
    let why = check(&situation, false).unwrap_err();
    assert!(why.contains("11 pods are ready, and 12 tasks") && why.contains("--force"), "{why}");
    assert_eq!(check(&situation, true), Ok(()));
    // Tasks that were hidden when the status was written, and that Cloud Map shows now; another one is ill.
    let mut cutover = status::tests::sample("orders", "Finished", 100, "OthersServe", true);
    cutover.status.as_mut().unwrap().hidden = Some(12);
    let shown = Situation { cutover: Ok(Some(cutover)), pods: Ok(pods(13)), ..situation.clone() };
    assert_eq!(check(&shown, false), Ok(()));
    situation.registry = Err("no credentials".to_owned());
    assert!(check(&situation, false).unwrap_err().contains("no credentials"));
    situation.registry = Ok(CloudMapService::default());
    let why = check(&situation, false).unwrap_err();
    assert!(why.contains("not found") && why.contains("--region") && check(&situation, true).is_ok(), "{why}");
    let unnamed = Situation { counterpart: Ok(Counterpart::default()), ..situation.clone() };
    let why = check(&unnamed, false).unwrap_err();
    assert!(why.contains("no annotation names") && !why.contains("--region"), "{why}");
    assert!(!commands(&situation, true).contains("aws ecs"), "nobody knows what to stop");
    situation.registry = Ok(registry(0, 60));
    assert!(commands(&situation, false).contains("--service orders"), "tasks run that are not healthy");
    situation.pods = Ok(pods(0));
    assert!(check(&situation, false).unwrap_err().contains("no pod is ready, and prod/orders has tasks"));
    situation.pods = Ok(pods(1));
    assert_eq!(check(&situation, false), Ok(()));
    situation.ecs = Ok(Some(found([ecs::Service { active: false, ..ecs_service(1) }])));
    let said = commands(&situation, false);
    assert!(
        said.contains("prod/orders is being deleted") && !said.contains("update-service"),
        "ECS refuses it: {said}"
    );
    situation.ecs = Ok(Some(found([ecs_service(0)])));
    assert!(commands(&situation, false).contains("nothing to stop"));
}

/// Otherwise `finish --all` would give all traffic to the pods that the guard found bad.
#[test]
fn what_was_taken_back_is_not_finished_with_all_others() {
    let checked = |roll_back, failed: i64, force| {
        let mut cutover = status::tests::sample("orders", "RolledBack", 0, "RolledBack", true);
        cutover.spec.roll_back = roll_back;
        let failure = json!({"generation": failed, "message": "the pod at 192.0.2.101:80 failed"});
        cutover.status.as_mut().unwrap().guard_failure = serde_json::from_value(failure).unwrap();
        check(&Situation { cutover: Ok(Some(cutover)), ..situation() }, force)
    };
    for (roll_back, failed, part) in [(false, 2, "the guard took"), (true, 1, "spec.rollBack")] {
        let why = checked(roll_back, failed, false).unwrap_err();
        assert!(why.contains(part) && why.contains("cutover resume") && why.contains("--force"), "{why}");
        assert_eq!(why.contains("192.0.2.101:80 failed"), !roll_back, "{why}");
        assert_eq!(checked(roll_back, failed, true), Ok(()));
    }
    assert_eq!(checked(false, 1, false), Ok(()), "somebody has changed the spec since");
}

#[test]
fn without_ecs_the_instances_say_what_to_stop() {
    let finished = Ok(Some(status::tests::sample("orders", "Finished", 100, "OthersServe", true)));
    let situation = Situation { cutover: finished, ecs: Err("access denied".to_owned()), ..situation() };
    let said = commands(&situation, false);
    let command = "aws ecs update-service --region eu-central-1 --cluster prod --service orders --desired-count 0\n";
    assert!(said.ends_with(command), "{said}");
    assert!(!said.contains("application-autoscaling"), "{said}");
    let situation = Situation { ecs: Ok(Some(found([ecs_service(12)]))), ..situation };
    let said = commands(&situation, false);
    assert!(said.contains("describe-scalable-targets --region eu-central-1 --service-namespace ecs"), "{said}");
}

/// Whoever pastes a command expects that it stops what has moved.
#[test]
fn no_command_is_printed_for_tasks_that_serve_others_or_have_no_number() {
    let said = |change: fn(&mut ecs::Service), force| {
        let mut service = ecs_service(12);
        change(&mut service);
        let finished = Ok(Some(status::tests::sample("orders", "Finished", 100, "OthersServe", true)));
        commands(&Situation { cutover: finished, ecs: Ok(Some(found([service]))), ..situation() }, force)
    };
    for (change, part, even_by_force) in [
        ((|it| it.load_balancers = 1) as fn(&mut ecs::Service), "a load balancer", false),
        (|it| it.service_connect = true, "Service Connect", false),
        (|it| it.daemon = true, "DAEMON", true),
    ] {
        let why = said(change, false);
        assert!(why.contains("prod/orders is not to be stopped") && why.contains(part), "{why}");
        assert!(!why.contains("update-service") && why.contains("--force") != even_by_force, "{why}");
        assert_eq!(said(change, true).contains("update-service"), !even_by_force, "{part}");
    }
}

/// Who may register instances or create pods chooses these names.
#[test]
fn what_others_wrote_stays_one_word_of_a_command() {
    let finished = Ok(Some(status::tests::sample("orders", "Finished", 100, "OthersServe", true)));
    let mut situation = Situation { cutover: finished, ecs: Err("access denied".to_owned()), ..situation() };
    situation.registry.as_mut().unwrap().ecs = [("prod".to_owned(), "x; reboot".to_owned())].into();
    let said = commands(&situation, false);
    assert!(said.ends_with(" --cluster prod --service 'x; reboot' --desired-count 0\n"), "{said}");
    let pods = situation.pods.as_mut().unwrap();
    (pods.workload, pods.gated) = (Some("x; reboot/orders".to_owned()), 0);
    let patch = plan(&situation, &[]).patch.unwrap();
    assert!(patch.starts_with("kubectl patch --namespace shop 'x; reboot/orders' --patch '{"), "{patch}");
}

/// What has to be done before the tasks may be stopped.
fn never(refused: Result<Vec<ecs::Service>, Refusal>) -> String {
    let Err(Refusal::Never(why)) = refused else { panic!("{refused:?}") };
    why
}

/// What passes by itself before the tasks may be stopped.
fn later(refused: Result<Vec<ecs::Service>, Refusal>) -> String {
    let Err(Refusal::Later(why)) = refused else { panic!("{refused:?}") };
    why
}

#[test]
fn tasks_are_scaled_down_only_when_it_is_finished_and_hidden_ones_are_used_no_more() {
    let now: Timestamp = "2026-11-24T10:02:00Z".parse().unwrap();
    let ready = |situation: &Situation| scale::stoppable(situation, Ok(now), false);
    let mut situation = situation();
    assert!(never(ready(&situation)).contains("before it is Finished"));
    for (phase, share, reason, passes) in [
        ("Shifting", 50, "Shifting", true),
        ("Holding", 100, "Held", true),
        ("Holding", 50, "Held", false),
        ("Paused", 50, "Paused", false),
        ("RolledBack", 0, "RolledBack", false),
        ("Blocked", 50, "NoObject", false),
    ] {
        let cutover = Ok(Some(status::tests::sample("orders", phase, share, reason, true)));
        let refused = ready(&Situation { cutover, ..situation.clone() });
        let why = if passes { later(refused) } else { never(refused) };
        assert!(why.contains("before it is Finished"), "{phase} at {share}: {why}");
    }
    let mut finished = status::tests::sample("orders", "Finished", 100, "OthersServe", true);
    situation.cutover = Ok(Some(finished.clone()));
    assert_eq!(ready(&situation).unwrap(), [ecs_service(12)]);
    // The controller has not seen the last change yet.
    finished.metadata.generation = Some(3);
    situation.cutover = Ok(Some(finished.clone()));
    assert!(later(ready(&situation)).contains("before it is Finished"));
    finished.metadata.generation = Some(2);
    // Hidden tasks are used for 30 s, the TTL of 60 s, and 30 s.
    finished.spec.hide_tasks = true;
    situation.cutover = Ok(Some(finished.clone()));
    assert!(later(ready(&situation)).contains("not hidden yet"));
    situation.registry = Ok(registry(0, 60));
    let hidden = json!({"type": "TasksHidden", "status": "True", "reason": "Hidden", "message": "12 tasks are hidden",
        "lastTransitionTime": "2026-11-24T10:00:30Z"});
    for (since, may) in [("2026-11-24T10:00:30Z", false), ("2026-11-24T10:00:00Z", true)] {
        let status = finished.status.as_mut().unwrap();
        status.conditions.push(serde_json::from_value(hidden.clone()).unwrap());
        (status.hidden, status.hidden_since) = (Some(12), serde_json::from_value(json!(since)).unwrap());
        situation.cutover = Ok(Some(finished.clone()));
        assert_eq!(ready(&situation).is_ok(), may, "{since}: {:?}", ready(&situation));
        assert!(may || later(ready(&situation)).contains("from 2026-11-24T10:02:30Z on, by the API server's clock"));
    }
    let why = later(scale::stoppable(&situation, Err(&Unread::Failed("no answer".to_owned())), false));
    assert!(why.contains("from 2026-11-24T10:02:00Z on") && why.contains("no answer"), "{why}");
    // One that began a moment ago.
    let new = Situation { registry: Ok(registry(1, 60)), ..situation.clone() };
    assert!(later(ready(&new)).contains("1 of its tasks are visible in Cloud Map"));
    let mut assumed = Situation { settings: Err("deployments are forbidden".to_owned()), ..situation.clone() };
    // 30 s, the TTL of 60 s, and the longest --settle.
    let why = later(ready(&assumed));
    assert!(why.contains("from 2026-11-24T11:01:30Z on") && why.contains("deployments are forbidden"), "{why}");
    let then = scale::stoppable(&assumed, Ok("2026-11-24T11:01:30Z".parse().unwrap()), false);
    assert!(then.is_ok(), "the annotations name all: {then:?}");
    assumed.counterpart.as_mut().unwrap().is_implied = true;
    let why = never(ready(&assumed));
    assert!(why.contains("internal/orders is assumed") && why.contains("deployments are forbidden"), "{why}");
    let failed = Situation { pods: Ok(pods(0)), ..situation.clone() };
    let why = never(scale::stoppable(&failed, Ok(now), true));
    assert!(why.contains("while no pod is ready"), "not even by force: {why}");
    let with = |ecs| ready(&Situation { ecs, ..situation.clone() });
    assert!(never(with(Err("access denied".to_owned()))).contains("access denied"));
    assert!(never(with(Ok(None))).contains("--ecs-endpoint"));
    assert!(never(with(Ok(Some(found([]))))).contains("--ecs-cluster"));
    assert!(never(with(Ok(Some(found_in_part([]))))).contains("the ECS cluster test could not be read"));
    assert_eq!(with(Ok(Some(found_in_part([ecs_service(12)])))), Ok(vec![ecs_service(12)]), "it is known which one");
    let serves = ecs::Service { load_balancers: 1, ..ecs_service(12) };
    assert!(never(with(Ok(Some(found([serves]))))).contains("prod/orders is not stopped"));
    let stopped = ecs::Service { load_balancers: 1, ..ecs_service(0) };
    assert_eq!(with(Ok(Some(found([stopped])))), Ok(Vec::new()), "nothing is left to refuse");
}

/// Otherwise requests fail that `hideTasks` was to save.
#[test]
fn tasks_that_cannot_be_hidden_are_stopped_by_force_only() {
    let mk_facts = |hide_tasks: bool, tasks: u32| {
        let mut cutover = status::tests::sample("orders", "Finished", 100, "OthersServe", true);
        let denied = json!({"type": "TasksHidden", "status": "False", "reason": "NotPermitted", "message": "AWS denies it.",
            "lastTransitionTime": "2026-11-24T10:00:00Z"});
        cutover.status.as_mut().unwrap().conditions.push(serde_json::from_value(denied).unwrap());
        cutover.spec.hide_tasks = hide_tasks;
        Situation { cutover: Ok(Some(cutover)), ecs: Ok(Some(found([ecs_service(tasks)]))), ..situation() }
    };
    let stoppable = |hide_tasks, tasks, force| {
        scale::stoppable(&mk_facts(hide_tasks, tasks), Ok("2026-11-24T10:02:00Z".parse().unwrap()), force)
    };
    let why = never(stoppable(true, 12, false));
    assert!(why.contains("(NotPermitted): AWS denies it. With --force"), "{why}");
    assert_eq!(stoppable(true, 12, true), Ok(vec![ecs_service(12)]));
    assert_eq!(stoppable(false, 12, false), Ok(vec![ecs_service(12)]), "nobody asked for it");
    assert_eq!(stoppable(true, 0, false), Ok(Vec::new()), "nothing is left to stop");
    for hide_tasks in [true, false] {
        let said = commands(&mk_facts(hide_tasks, 12), false);
        assert!(said.contains("update-service") && said.contains("fail for up to 90 s"), "{said}");
        let why = "# shop/orders: the tasks cannot be hidden (NotPermitted): AWS denies it.\n";
        assert_eq!(said.contains(why), hide_tasks, "{said}");
    }
}

#[test]
fn tasks_are_used_for_as_long_as_the_controller_that_is_installed_says() {
    let mut cutover = status::tests::sample("orders", "Finished", 100, "OthersServe", true);
    let mut situation = situation();
    let late = |settle| Ok(settings(&[("CLOUDMAP_MCS_CUTOVERS", "true"), ("CLOUDMAP_MCS_SETTLE", settle)]));
    (situation.cutover, situation.settings) = (Ok(Some(cutover.clone())), late("5m"));
    let said = commands(&situation, false);
    assert!(said.contains("fail for up to 360 s"), "{said}");
    cutover.spec.hide_tasks = true;
    let hidden = json!({"type": "TasksHidden", "status": "True", "reason": "Hidden", "message": "12 tasks are hidden",
        "lastTransitionTime": "2026-11-24T10:00:00Z"});
    let status = cutover.status.as_mut().unwrap();
    status.conditions.push(serde_json::from_value(hidden).unwrap());
    (status.hidden, status.hidden_since) = (Some(12), serde_json::from_value(json!("2026-11-24T10:00:00Z")).unwrap());
    (situation.cutover, situation.registry) = (Ok(Some(cutover)), Ok(registry(0, 60)));
    // 30 s, the TTL of 60 s, and the setting.
    for (settle, now, may) in [
        ("3s", "2026-11-24T10:01:32Z", false),
        ("3s", "2026-11-24T10:01:33Z", true),
        ("5m", "2026-11-24T10:06:29Z", false),
        ("5m", "2026-11-24T10:06:30Z", true),
    ] {
        situation.settings = late(settle);
        let ready = scale::stoppable(&situation, Ok(now.parse().unwrap()), false);
        assert_eq!(ready.is_ok(), may, "{settle} at {now}: {ready:?}");
    }
}

/// A clock that is ahead would stop tasks that clients still use. The one of this machine is years ahead here.
#[tokio::test]
async fn for_how_long_tasks_are_hidden_is_measured_with_the_clock_of_the_api_server() {
    let mut cutover = status::tests::sample("orders", "Finished", 100, "OthersServe", true);
    cutover.spec.hide_tasks = true;
    let hidden = json!({"type": "TasksHidden", "status": "True", "reason": "Hidden", "message": "12 tasks are hidden",
        "lastTransitionTime": "2020-01-01T10:00:00Z"});
    let status = cutover.status.as_mut().unwrap();
    status.conditions.push(serde_json::from_value(hidden).unwrap());
    (status.hidden, status.hidden_since) = (Some(12), serde_json::from_value(json!("2020-01-01T10:00:00Z")).unwrap());
    let situation = Situation { cutover: Ok(Some(cutover.clone())), registry: Ok(registry(0, 60)), ..situation() };
    for (date, part) in [
        (None, "does not say what time it is"),
        (
            Some("Wed, 01 Jan 2020 10:01:59 GMT"),
            "from 2020-01-01T10:02:00Z on, by the API server's clock: run this again",
        ),
        (Some("Wed, 01 Jan 2020 10:02:00 GMT"), ""),
    ] {
        let api = FakeApi::default();
        api.prepare(200, json!({"major": "1", "minor": "34", "gitVersion": "v1.34.4"}));
        if let Some(date) = date {
            api.answers_with_date(date);
        }
        api.prepare(200, serde_json::to_value(&cutover).unwrap());
        pods_are(&api, &[true; 12]);
        let mut observer = observer(&api, &cloudmap());
        let (mut out, mut errors) = (Vec::<u8>::new(), Vec::<u8>::new());
        let open = vec![situation.clone()];
        let failed = stop(&mut observer, None, open, false, Duration::ZERO, &mut out, &mut errors).await.unwrap();
        let [out, errors] = [out, errors].map(|said| String::from_utf8(said).unwrap());
        assert_eq!(failed, usize::from(!part.is_empty()), "{date:?}: {errors}");
        assert!(errors.contains(part) && out.contains("12 -> 0") == part.is_empty(), "{date:?}: {out}{errors}");
    }
}

/// The Service of `orders` and its pods, as they are read.
fn pods_are(api: &FakeApi, ready: &[bool]) {
    let pod = |ready: &bool| {
        let condition = json!({"type": "Ready", "status": if *ready { "True" } else { "False" }});
        json!({"metadata": {"name": "pod"}, "status": {"conditions": [condition]}})
    };
    let items: Vec<_> = ready.iter().map(pod).collect();
    api.prepare(200, json!({"metadata": {"name": "orders"}, "spec": {"selector": {"app": "orders"}}}));
    api.prepare(200, json!({"apiVersion": "v1", "kind": "PodList", "metadata": {}, "items": items}));
}

/// Cloud Map with the service of `orders`, which has no instance.
fn cloudmap() -> Fake {
    let cloudmap = Fake::new();
    let namespace = cloudmap.registry().add_namespace("internal", NamespaceKind::Http);
    let id = cloudmap.registry().add_service(&namespace, "orders", "ecs", "");
    cloudmap.registry().services.get_mut(&id).unwrap().arn = ARN.into();
    cloudmap
}

fn observer(api: &FakeApi, cloudmap: &Fake) -> Observer {
    let reader = EcsReader::new(Ok(None), Choice::default());
    Observer::new(api.client(), Ok(Arc::new(cloudmap.clone())), reader, Ok(Settings::default()))
}

/// To observe hundreds of names takes minutes.
#[tokio::test(start_paused = true)]
async fn what_changed_since_it_was_observed_is_not_stopped() {
    let stopped = async |phase: Option<&str>, hides: bool, tasks: usize, pods: &[bool], force: bool| {
        let (api, cloudmap) = (FakeApi::default(), cloudmap());
        let id = cloudmap.registry().services.keys().next().cloned().unwrap();
        for task in 0..tasks {
            let attributes = [("ECS_SERVICE_NAME".to_owned(), "orders".to_owned())].into();
            cloudmap.registry().instances.insert((Arc::clone(&id), format!("task-{task}").into()), attributes);
        }
        api.prepare(200, json!({"major": "1", "minor": "34", "gitVersion": "v1.34.4"}));
        if let Some(phase) = phase {
            let mut cutover = status::tests::sample("orders", phase, 100, "OthersServe", true);
            cutover.spec.hide_tasks = hides;
            api.prepare(200, serde_json::to_value(&cutover).unwrap());
        } else {
            api.refuse(404, "NotFound", "there is none");
        }
        pods_are(&api, pods);
        let ecs = fake::FakeEcs::with([ecs_service(12)]);
        let (mut observer, mut errors) = (observer(&api, &cloudmap), Vec::<u8>::new());
        // What hidden tasks wait for is another test.
        let patience = if hides { Duration::ZERO } else { Duration::from_mins(10) };
        let (open, out) = (vec![situation()], &mut Vec::<u8>::new());
        let failed = stop(&mut observer, Some(&ecs), open, force, patience, out, &mut errors).await.unwrap();
        let errors = String::from_utf8(errors).unwrap();
        assert_eq!((ecs.state().calls.is_empty(), errors.lines().count()), (failed > 0, failed), "{errors}");
        errors
    };
    let (all, few) = ([true; 12], [true; 11]);
    let ill = [&all[..], &[false]].concat();
    let finished = Some("Finished");
    assert_eq!(stopped(finished, false, 12, &all[..], false).await, "");
    assert_eq!(stopped(finished, false, 12, &few[..], true).await, "");
    for (phase, hides, tasks, pods, force, part) in [
        // Somebody took it back.
        (Some("RollingBack"), false, 12, &all[..], false, "before it is Finished"),
        (None, false, 12, &all[..], false, "before it is Finished"),
        // ECS reported a hidden task as healthy.
        (finished, true, 12, &all[..], false, "not hidden yet"),
        (
            finished,
            false,
            12,
            &few[..],
            false,
            "11 pods are ready, and 12 tasks have the traffic now: scale the pods to 12",
        ),
        // Autoscaling started one.
        (
            finished,
            false,
            13,
            &all[..],
            false,
            "12 pods are ready, and 13 tasks have the traffic now: scale the pods to 13",
        ),
        (finished, false, 12, &ill[..], false, "1 pods are not ready: repair them"),
        (finished, false, 12, &all[..0], true, "while no pod is ready: repair the pods"),
    ] {
        let why = stopped(phase, hides, tasks, pods, force).await;
        assert!(why.contains(part), "{part}: {why}");
    }
}

/// Whoever stops hundreds of services need not come back for each of them.
#[tokio::test(start_paused = true)]
async fn tasks_stop_as_soon_as_time_and_the_controller_allow_it() {
    let (api, cloudmap) = (FakeApi::default(), cloudmap());
    let cutover = |phase, reason, since: Option<&str>| {
        let mut cutover = status::tests::sample("orders", phase, 100, "OthersServe", true);
        cutover.spec.hide_tasks = true;
        let said = json!({"type": "TasksHidden", "status": "True", "reason": reason, "message": "12 tasks are hidden",
            "lastTransitionTime": "2020-01-01T10:00:00Z"});
        let status = cutover.status.as_mut().unwrap();
        status.conditions.push(serde_json::from_value(said).unwrap());
        (status.hidden, status.hidden_since) = (Some(12), since.map(|at| serde_json::from_value(json!(at)).unwrap()));
        serde_json::to_value(&cutover).unwrap()
    };
    // 30 s, and 30 s: the service that is read again has no records.
    api.answers_with_date("Wed, 01 Jan 2020 10:01:00 GMT");
    let since = [Some("2020-01-01T10:00:00Z"), Some("2020-01-01T10:00:01Z")];
    let version = json!({"major": "1", "minor": "34", "gitVersion": "v1.34.4"});
    for (phase, reason, since) in [
        ("Shifting", "Hiding", None),
        ("Finished", "Hiding", None),
        ("Finished", "Hiding", None),
        ("Finished", "Hidden", since[1]),
        ("Finished", "Hidden", since[0]),
    ] {
        api.prepare(200, version.clone());
        api.prepare(200, cutover(phase, reason, since));
    }
    // An API server that restarts is there again in a while.
    api.refuse(503, "ServiceUnavailable", "the pods are away");
    api.refuse(503, "ServiceUnavailable", "the clock is away");
    api.prepare(200, cutover("Finished", "Hidden", since[0]));
    api.prepare(200, version.clone());
    api.refuse(503, "ServiceUnavailable", "the Cutover is away");
    api.prepare(200, version);
    api.prepare(200, cutover("Finished", "Hidden", since[0]));
    pods_are(&api, &[true; 12]);
    let ecs = fake::FakeEcs::with([ecs_service(12)]);
    let situation = Situation { registry: Ok(registry(0, 0)), ..situation() };
    let (mut observer, begun) = (observer(&api, &cloudmap), Instant::now());
    let (mut out, mut errors, patience) = (Vec::<u8>::new(), Vec::<u8>::new(), Duration::from_mins(10));
    let failed =
        stop(&mut observer, Some(&ecs), vec![situation], false, patience, &mut out, &mut errors).await.unwrap();
    let [out, errors] = [out, errors].map(|said| String::from_utf8(said).unwrap());
    assert_eq!(failed, 0, "{errors}");
    assert_eq!(
        errors,
        "shop/orders: no task is stopped before it is Finished: waiting\n\
         shop/orders: its tasks are not hidden yet: waiting\n\
         shop/orders: its hidden tasks may be stopped from 2020-01-01T10:01:01Z on, by the API server's clock: waiting\n\
         shop/orders: no task is stopped: the pods are away: waiting\n\
         shop/orders: its hidden tasks may be stopped from 2020-01-01T10:01:00Z on, and the API server does not say what time \
         it is: the API server answers 503 Service Unavailable. You may stop them yourself then, with the command that `finish` prints without \
         --scale-ecs: waiting\n\
         shop/orders: no task is stopped: the Cutover is away: waiting\n"
    );
    assert!(out.contains("prod/orders has no task any more") && begun.elapsed() >= AGAIN * 7, "{out}");
}

#[test]
fn who_goes_back_is_told_when_no_task_takes_the_traffic() {
    let mut situation = situation();
    let remark = back::remark;
    assert_eq!(remark(&situation), None);
    situation.ecs = Err("access denied".to_owned());
    assert_eq!(remark(&situation), None, "there are healthy tasks");
    // The pods go as soon as one task is healthy.
    let few = Ok(Some(found([ecs::Service { running: 1, ..ecs_service(3) }])));
    let said = remark(&Situation { registry: Ok(registry(1, 60)), ecs: few, ..situation.clone() }).unwrap();
    assert!(said.contains("1 of 3 tasks run") && !said.contains("keep the traffic"), "{said}");
    situation.registry = Ok(registry(0, 60));
    let said = remark(&situation).unwrap();
    assert!(said.contains("ECS could not be read") && said.contains("--desired-count 12"), "{said}");
    situation.ecs = Ok(Some(found([ecs_service(0)])));
    let said = remark(&situation).unwrap();
    assert!(said.contains("prod/orders is to have 0 tasks") && said.contains("--cluster prod"), "{said}");
    situation.ecs = Ok(Some(found([ecs::Service { running: 1, ..ecs_service(3) }])));
    let said = remark(&situation).unwrap();
    assert!(said.contains("1 of 3 tasks run") && said.contains("keep the traffic"), "{said}");
    situation.ecs = Ok(Some(found([ecs::Service { active: false, desired: 0, ..ecs_service(3) }])));
    let said = remark(&situation).unwrap();
    assert!(said.contains("prod/orders is being deleted") && !said.contains("update-service"), "{said}");
    situation.ecs = Ok(Some(found([])));
    assert!(remark(&situation).unwrap().contains("the ECS service is gone"));
    situation.ecs = Ok(Some(found_in_part([])));
    let said = remark(&situation).unwrap();
    assert!(said.contains("ECS could not be read everywhere") && said.contains("Raise the count"), "{said}");
    situation.registry = Err("no credentials".to_owned());
    assert!(remark(&situation).unwrap().contains("not known: no credentials"));
}

#[tokio::test(start_paused = true)]
async fn the_mode_of_iam_for_people_who_move_services_allows_the_calls_to_ecs_that_are_made() {
    let services = [ecs_service(2)];
    let ecs = fake::FakeEcs::with(services.clone());
    let mut reader = EcsReader::new(Ok(Some(Arc::new(ecs.clone()))), Choice::default());
    reader.registering(ARN, &[].into()).await.unwrap();
    let [service] = services;
    let stopping = scale::begin(&ecs, &ServiceKey::new("shop", "orders"), service).await.unwrap();
    scale::wait(&ecs, vec![stopping], Duration::from_mins(1), &mut Vec::new()).await.unwrap();
    let called: BTreeSet<_> = ecs.state().calls.iter().map(|operation| operation.action()).collect();
    let scope = iam::Scope { ecs_clusters: vec!["prod".to_owned()], ..iam::Scope::default() };
    let actions = statements(&[Mode::Cutover], &scope).unwrap().into_iter().flat_map(|statement| statement.action.0);
    let allowed: BTreeSet<_> = actions.filter(|action| action.starts_with("ecs:")).collect();
    assert_eq!(called, allowed);
}
