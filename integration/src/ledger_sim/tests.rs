//! That what the faults and the invariants are there for happens.

use super::{run, scenario::SCENARIOS};

/// Whether something happened in one of the first twenty seeds of a scenario.
fn happens(scenario: &str, what: &str) -> bool {
    let scenario = SCENARIOS.iter().find(|it| it.name == scenario).unwrap();
    (0..20).any(|seed| run(scenario, seed, false).counts.contains_key(what))
}

#[test]
fn a_term_goes_on_when_its_lease_ran_out_and_is_renewed() {
    assert!(happens("kube", "terms that went on"));
}

#[test]
fn claims_are_read_where_heads_are_read_rarely() {
    for what in ["rests", "claims of others read", "own claims read"] {
        assert!(happens("stream-rest-calm", what), "{what}");
    }
}

#[test]
fn clusters_join_with_approvals_and_wait_for_them() {
    for what in ["joined", "waits for approvals", "waits for newcomers"] {
        assert!(happens("approvals", what), "{what}");
    }
}

#[test]
fn readers_go_back_after_a_forged_head() {
    assert!(happens("forge", "positions given up"));
}

#[test]
fn a_leader_refuses_another_whose_head_it_has_not_read_yet() {
    assert!(happens("stream", "keys refused"));
}
