//! That what the faults and the invariants are there for happens.

use super::{run, scenario::SCENARIOS};

/// Whether something happened in one of the first seeds of a scenario.
fn happens(scenario: &str, what: &str) -> bool {
    let scenario = SCENARIOS.iter().find(|it| it.name == scenario).unwrap();
    (0..8).any(|seed| run(scenario, seed, false).counts.contains_key(what))
}

#[test]
fn a_term_goes_on_when_its_lease_ran_out_and_is_renewed() {
    assert!(happens("kube", "terms that went on"));
}

#[test]
fn a_leader_refuses_another_whose_head_it_has_not_read_yet() {
    assert!(happens("stream", "keys refused"));
}
