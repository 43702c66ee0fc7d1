//! That the simulation is one.

use ::cloudmap::{Access, Operation};

use super::*;
use crate::simulation::{draw::draw, scenario::SCENARIOS, schedule::Action};
use emulator::{Effect, Fault};

/// What no simulated controller calls: only commands do, or a flag is needed that none has (`--create-dns-namespaces`).
const NOT_CALLED: [Operation; 3] =
    [Operation::DeleteNamespace, Operation::TagResource, Operation::CreatePrivateDnsNamespace];

fn scenario(name: &str) -> &'static Scenario {
    SCENARIOS.iter().find(|scenario| scenario.name == name).unwrap()
}

#[test]
fn whole_controllers_converge_when_nothing_goes_wrong() {
    let report = run(scenario("calm"), 1, None, false);
    assert_eq!(report.violation, None, "{:#?}", report.steps);
}

#[test]
fn gates_open_when_discovery_shows_their_pods_whatever_goes_wrong() {
    for seed in 1..=2 {
        let report = run(scenario("gates"), seed, None, false);
        assert_eq!(report.violation, None, "seed {seed}: {:#?}", report.steps);
    }
}

#[test]
fn an_address_that_another_pod_had_leads_to_the_service_of_its_present_pod_whatever_goes_wrong() {
    for seed in 1..=2 {
        let report = run(scenario("cooldown"), seed, None, true);
        assert_eq!(report.violation, None, "seed {seed}: {:#?}", report.steps);
        let passed_on = report.trace.iter().filter(|line| line.contains("gets the address of another one")).count();
        assert!(passed_on > 0, "seed {seed}: {:#?}", report.steps);
    }
}

#[test]
fn the_traffic_moves_step_by_step_whatever_goes_wrong() {
    for seed in 1..=2 {
        let report = run(scenario("cutovers"), seed, None, false);
        assert_eq!(report.violation, None, "seed {seed}: {:#?}", report.steps);
    }
}

#[test]
fn a_cluster_that_is_silent_is_reported_and_its_endpoints_stay_until_they_expire() {
    for seed in 1..=3 {
        let report = run(scenario("silences"), seed, None, false);
        assert_eq!(report.violation, None, "seed {seed}: {:#?}", report.steps);
        assert!(report.kinds.contains_key(&Kind::Silences), "seed {seed}: {:#?}", report.steps);
    }
}

#[test]
fn what_others_made_under_our_names_stays_as_it_is() {
    let report = run(scenario("strangers"), 1, None, false);
    assert_eq!(report.violation, None, "{:#?}", report.steps);
    assert!(report.kinds.contains_key(&Kind::Strangers), "{:#?}", report.steps);
}

#[test]
fn what_strikes_the_api_server_a_few_times_is_about_one_kind() {
    // Else renewals of the Lease use it up.
    let scenario = scenario("kubernetes");
    let steps = (0..50).flat_map(|seed| draw(&mut Rng::new(scenario.name, seed), scenario, scenario.trouble()));
    let scopes: Vec<_> = steps
        .filter_map(|step| match step.action {
            Action::Kubernetes { scope, .. } if scope.times.is_some() => Some(scope),
            _ => None,
        })
        .collect();
    assert!(scopes.iter().all(|scope| scope.resource.is_some()), "{scopes:?}");
    let records = scopes.iter().filter(|scope| scope.resource.is_some_and(|kind| kind.plural == "configmaps"));
    assert!(records.count() > 10, "{scopes:?}");
}

#[test]
fn each_operation_that_controllers_call_is_denied_alone() {
    let scenario = scenario("registry");
    let steps = (0..1000).flat_map(|seed| draw(&mut Rng::new(scenario.name, seed), scenario, scenario.trouble()));
    let alone = |rules: &[Fault]| match rules {
        [Fault { operation, effect: Effect::Error { code, .. }, .. }] if code == "AccessDeniedException" => {
            operation.clone()
        }
        _ => None,
    };
    let denied: BTreeSet<String> = steps
        .filter_map(|step| match step.action {
            Action::Registry { rules, .. } => alone(&rules),
            _ => None,
        })
        .collect();
    let called = Operation::ALL.iter().filter(|operation| !NOT_CALLED.contains(operation));
    let called: BTreeSet<String> = called.map(|operation| operation.name().to_owned()).collect();
    assert_eq!(denied, called);
}

#[test]
fn the_checks_know_all_writes_of_a_controller() {
    let writes = Operation::ALL.iter().filter(|operation| operation.access() == Access::Write);
    let writes = writes.filter(|operation| !NOT_CALLED.contains(operation));
    let writes: BTreeSet<&str> = writes.map(|operation| operation.name()).collect();
    assert_eq!(writes, BTreeSet::from(ownership::WRITTEN));
}

#[cfg(tokio_unstable)]
#[test]
fn the_same_seed_gives_the_same_run() {
    let [first, second] = [(), ()].map(|()| run(scenario("everything"), 3, None, true).trace);
    assert!(first.len() > 1000);
    for (one, other) in first.iter().zip(&second) {
        assert_eq!(one, other);
    }
    assert_eq!(first.len(), second.len());
}
