//! The ledger under simulation, a little of it: that a debug build can run every scenario. Thousands of seeds run from the
//! release build: `ledger-simulation`.

use cloudmap_mcs_integration::ledger_sim::{campaign::campaign, scenario::SCENARIOS};

#[test]
fn every_scenario_holds() {
    let failures = campaign(&SCENARIOS.iter().collect::<Vec<_>>(), 0, 2);
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}
