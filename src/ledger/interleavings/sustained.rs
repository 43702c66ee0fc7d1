//! W5: a ledger in which something changes all the time.

use super::*;

/// So many services, each with an export and ten endpoints of random addresses.
const SERVICES: u64 = 1_000;
/// Changes a second, for so many seconds.
const RATE: u64 = 100;
const SECONDS: u64 = 150;
const STEP: Duration = Duration::from_millis(100);

/// Bytes that do not compress.
fn noise(seed: u64, length: usize) -> Value {
    (0..length as u64)
        .map(|at| {
            let mixed = (seed ^ at << 40).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            ((mixed ^ mixed >> 29).wrapping_mul(0xbf58_476d_1ce4_e5b9) >> 56) as u8
        })
        .collect()
}

/// A chunk of ten endpoints: addresses, and the numbers of their nodes and zones.
fn endpoints(service: u64, version: u64) -> (Arc<str>, Value) {
    (format!("shop/service-{service:05}#0").into(), noise(service << 32 | version, 80))
}

#[test]
fn a_change_costs_its_own_bytes_however_long_changes_go_on() {
    let mut world = World::default();
    let mut blue = Process::elect_with(&mut world, "blue", "uid-blue", Limits::default(), None);
    let mut green = Process::elect_with(&mut world, "green", "uid-green", Limits::default(), None);
    let mut map: Map = (0..SERVICES).map(|service| endpoints(service, 0)).collect();
    map.extend((0..SERVICES).map(|service| (format!("shop/service-{service:05}").into(), noise(service % 7, 120))));
    blue.desire(&mut world, &Arc::new(map.clone()));
    green.desire(&mut world, &state(0..3, 1));
    pass(&mut world, &mut [&mut blue, &mut green], 120);
    assert_eq!(green.applies("blue").as_deref(), Some(&map));
    let before = blue.term.writer().figures();
    assert!(before.data_pages > 30, "{before:?}");
    let (mut most, mut behind, mut waiting) = (0, 0, 0);
    for step in 0..SECONDS * 10 {
        let changed = (0..RATE / 10).map(|n| (step * RATE / 10 + n).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32);
        map.extend(changed.map(|random| endpoints(random % SERVICES, step + 1)));
        blue.desire(&mut world, &Arc::new(map.clone()));
        pass_by(&mut world, &mut [&mut blue, &mut green], STEP, 1);
        most = most.max(world.count_pages("blue"));
        // What was wanted a second ago was said since.
        let said = blue.term.writer().figures().delta_occupancy <= 1.0;
        waiting = if said { 0 } else { waiting + 1 };
        behind = behind.max(waiting);
    }
    let after = blue.term.writer().figures();
    let each = (after.page_writes - before.page_writes) as f64 / (RATE * SECONDS) as f64;
    let what =
        format!("{each:.3} page writes a change, {most} pages at most, {behind} steps behind at most; {after:?}");
    // Garbage is kept for two minutes: the first services have no room for it.
    assert!(each < 0.1 && behind <= 10 && after.flush_quota_waits < 5, "{what}");
    assert!(after.compactions > before.compactions + 1 && most < 1_200, "{what}");
    assert!(world.sent.iter().all(|head| head.fits(&Limits::default())));
    // When it ends, everything has arrived, and the garbage goes.
    pass(&mut world, &mut [&mut blue, &mut green], 400);
    assert_eq!(green.applies("blue").as_deref(), Some(&map));
    assert!(world.count_pages("blue") < 120, "{}", world.count_pages("blue"));
}
