//! A cluster that has not joined its ClusterSet yet, or was rejected.

use super::*;

fn says(bench: &mut Bench, barred: Option<&str>, now: Now) -> Vec<Command> {
    let barred = barred.map(str::to_owned);
    let status = Status { stage: Stage::Running, judged: true, barred, ..Status::default() };
    bench.core.handle(Input::Ledger(Arc::new(status)), now)
}

fn has_claims(map: &Map) -> bool {
    map.keys().any(|key| key.starts_with('!'))
}

#[test]
fn a_cluster_that_has_not_joined_exports_without_claims_and_says_so() {
    let mut bench = Bench::member();
    says(&mut bench, Some("nobody approved it"), at(1));
    bench.export("web", &[]);
    let map = published(&bench.observe(at(2))).unwrap();
    assert!(map.contains_key("shop/web") && !has_claims(&map), "{map:?}");
    bench.core.handle(Input::Published(Some(map)), at(3));
    let report = bench.work("web", at(10)).report.unwrap();
    let registered = report.conditions.iter().find(|condition| condition.type_ == "Registered").unwrap();
    assert_eq!((&*registered.reason, &*registered.message), ("NotApproved", "nobody approved it"));
    assert!(report.notes.iter().any(|note| note.reason == "NotApproved"), "{:?}", report.notes);
    let map = published(&says(&mut bench, None, at(11))).unwrap();
    assert!(has_claims(&map), "{map:?}");
}
