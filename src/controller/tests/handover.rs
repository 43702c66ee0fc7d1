//! Names that annotated Services share with exports, or give up for others.

use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::{
    annotated::PYTHON,
    world::{Cluster, World, key, until},
};
use api::names::{ANNOTATION_TARGET_NAMESPACE, ANNOTATION_TARGET_SERVICE};
use cloudmap::{NamespaceKind, Operation};

const WANTS: [(&str, &str); 2] = [(PYTHON[0], "internal"), (PYTHON[1], "web")];

async fn pair() -> (World, Cluster, Cluster) {
    let world = World::new();
    world.add_namespace("internal", NamespaceKind::Http);
    let (blue, green) = (world.cluster("blue"), world.cluster("green"));
    blue.until_knows(&green).await;
    green.until_knows(&blue).await;
    (world, blue, green)
}

impl World {
    fn web(&self) -> Vec<String> {
        self.holds("internal", "web")
    }
}

#[tokio::test(start_paused = true)]
async fn a_service_that_one_cluster_exports_and_another_annotates_has_one_name() {
    // Which of the claims is the older one is decided by the cluster's id where they date from one second.
    for (first, exports_here) in [("export", true), ("export", false), ("annotation", true), ("annotation", false)] {
        let (world, blue, green) = pair().await;
        let (exporting, annotating) = if exports_here { (&blue, &green) } else { (&green, &blue) };
        let export = || {
            exporting.put_service("web", 80);
            exporting.put_endpoints("web", &["10.0.0.1"]);
            let target = [(ANNOTATION_TARGET_NAMESPACE, "internal"), (ANNOTATION_TARGET_SERVICE, "web")];
            exporting.put_export("web", &target);
        };
        let annotate = || annotating.headless("web", &WANTS, &["10.1.0.1"]);
        if first == "export" {
            export();
            until("the export is registered", || world.web() == ["10.0.0.1"]).await;
            annotate();
        } else {
            annotate();
            until("the annotated Service is registered", || world.web() == ["10.1.0.1"]).await;
            export();
        }
        until("both are registered", || world.web() == ["10.0.0.1", "10.1.0.1"]).await;
        exporting.until_says("web", "Registered", "True", "Registered").await;
        sleep(Duration::from_mins(2)).await;
        assert_eq!(world.web(), ["10.0.0.1", "10.1.0.1"]);
        let notes = [&blue, &green].map(|cluster| cluster.objects.take_notes()).concat();
        assert!(notes.iter().all(|note| !note.reason.as_str().ends_with("Conflict")), "{notes:?}");
    }
}

/// The record of this cluster is another name's, which waits for the other cluster.
#[tokio::test(start_paused = true)]
async fn a_service_shares_a_name_with_the_other_cluster_though_another_one_here_waits_for_it() {
    for waits_first in [true, false] {
        let (world, blue, green) = pair().await;
        green.headless("web", &WANTS, &["10.1.0.1"]);
        until("the first is registered", || world.web() == ["10.1.0.1"]).await;
        sleep(Duration::from_secs(1)).await;
        let names = if waits_first { ["a", "web"] } else { ["web", "a"] };
        for name in names {
            blue.headless(name, &WANTS, &[if name == "a" { "10.0.0.9" } else { "10.0.0.1" }]);
            sleep(Duration::from_secs(5)).await;
        }
        until("both clusters' are registered", || world.web() == ["10.0.0.1", "10.1.0.1"]).await;
        blue.until_noted("a", "DomainConflict").await;
        sleep(Duration::from_mins(2)).await;
        assert_eq!(world.web(), ["10.0.0.1", "10.1.0.1"]);
        // Who waits follows when both give the name up, as before.
        for cluster in [&blue, &green] {
            cluster.headless("web", &[], &["10.2.0.1"]);
        }
        until("the other one follows", || world.web() == ["10.0.0.9"]).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_name_that_an_annotated_service_gives_up_is_never_empty() {
    for within_one in [false, true] {
        let (world, blue, green) = pair().await;
        blue.headless("a", &WANTS, &["10.0.0.1"]);
        until("the first is registered", || world.web() == ["10.0.0.1"]).await;
        let (successor, address) = if within_one { (&blue, "10.0.0.2") } else { (&green, "10.1.0.2") };
        successor.headless("b", &WANTS, &[address]);
        successor.until_noted("b", "DomainConflict").await;
        // Until its claim was visible for long enough.
        sleep(Duration::from_secs(20)).await;
        let before = world.writes().len();
        blue.headless("a", &[], &["10.0.0.1"]);
        let deadline = Instant::now() + Duration::from_mins(10);
        while world.web() != [address] {
            assert!(!world.web().is_empty(), "nobody has the name");
            assert!(Instant::now() < deadline, "{:?}", world.web());
            sleep(Duration::from_millis(20)).await;
        }
        let first = |operation, suffix: &str| {
            let writes = &world.writes()[before..];
            writes.iter().position(|(done, id)| *done == operation && id.ends_with(suffix)).unwrap()
        };
        let (came, went) = (
            first(Operation::RegisterInstance, &address.replace('.', "-")),
            first(Operation::DeregisterInstance, "10-0-0-1"),
        );
        assert!(came < went, "the successor is there first");
        blue.until_noted("a", "IPRemoved").await;
    }
}

#[tokio::test(start_paused = true)]
async fn what_a_deleted_service_had_goes_at_once_whoever_waits_for_its_name() {
    for gives_up_first in [false, true] {
        let (world, blue, green) = pair().await;
        blue.headless("a", &WANTS, &["10.0.0.1"]);
        until("the first is registered", || world.web() == ["10.0.0.1"]).await;
        green.headless("b", &WANTS, &["10.1.0.2"]);
        green.until_noted("b", "DomainConflict").await;
        sleep(Duration::from_secs(20)).await;
        if gives_up_first {
            blue.headless("a", &[], &["10.0.0.1"]);
            sleep(Duration::from_secs(1)).await;
            assert_eq!(world.web(), ["10.0.0.1"]);
        }
        blue.objects.remove_service(&key("a"));
        let since = Instant::now();
        until("it goes", || !world.web().contains(&"10.0.0.1".to_owned())).await;
        assert!(since.elapsed() < Duration::from_secs(8), "{:?}", since.elapsed());
        until("its successor is there", || world.web() == ["10.1.0.2"]).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_name_that_two_others_wait_for_is_never_empty() {
    for next_is_here in [false, true] {
        // Of claims that date from one second that of the cluster with the lesser id is the older one.
        let (world, waiting, holding) = pair().await;
        holding.headless("a", &WANTS, &["10.0.0.1"]);
        until("the first is registered", || world.web() == ["10.0.0.1"]).await;
        sleep(Duration::from_secs(1)).await;
        let waits = |cluster: &Cluster, name: &str, address: &str| cluster.headless(name, &WANTS, &[address]);
        let [first, second] = if next_is_here { [&holding, &waiting] } else { [&waiting, &holding] };
        waits(first, "b", "10.1.0.2");
        first.until_noted("b", "DomainConflict").await;
        sleep(Duration::from_secs(20)).await;
        sleep(Duration::from_secs(1)).await;
        waits(second, "c", "10.2.0.3");
        second.until_noted("c", "DomainConflict").await;
        sleep(Duration::from_secs(20)).await;
        holding.headless("a", &[], &["10.0.0.1"]);
        let deadline = Instant::now() + Duration::from_mins(10);
        while world.web() != ["10.1.0.2"] {
            assert!(!world.web().is_empty(), "nobody has the name");
            assert!(Instant::now() < deadline, "{next_is_here} {:?}", world.web());
            sleep(Duration::from_millis(20)).await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_name_changes_hands_without_a_gap_though_the_leader_does_so_meanwhile() {
    let (world, mut blue, mut green) = pair().await;
    blue.headless("a", &WANTS, &["10.0.0.1"]);
    until("the first is registered", || world.web() == ["10.0.0.1"]).await;
    green.headless("b", &WANTS, &["10.1.0.2"]);
    green.until_noted("b", "DomainConflict").await;
    sleep(Duration::from_secs(20)).await;
    // While nobody leads there, the successor cannot see the release.
    green.kill();
    blue.headless("a", &[], &["10.0.0.1"]);
    sleep(Duration::from_secs(4)).await;
    blue.kill();
    blue.lead();
    sleep(Duration::from_secs(5)).await;
    green.lead();
    let deadline = Instant::now() + Duration::from_mins(10);
    while world.web() != ["10.1.0.2"] {
        assert!(!world.web().is_empty(), "nobody has the name");
        assert!(Instant::now() < deadline, "{:?}", world.web());
        sleep(Duration::from_millis(20)).await;
    }
}

/// Where a name is at home in `shop`, but not as `a`.
const AT_HOME: [(&str, &str); 2] = [(PYTHON[0], "internal"), (PYTHON[1], "web.shop")];

#[tokio::test(start_paused = true)]
async fn a_name_is_not_given_up_for_a_cluster_of_which_nothing_is_heard() {
    let (world, mut blue, mut green) = pair().await;
    let there = || world.holds("internal", "web.shop");
    blue.headless("a", &AT_HOME, &["10.0.0.1"]);
    until("the first is registered", || there() == ["10.0.0.1"]).await;
    green.headless("web", &AT_HOME, &["10.1.0.2"]);
    blue.until_noted("a", "DomainConflict").await;
    green.kill();
    sleep(Duration::from_mins(5)).await;
    assert_eq!(there(), ["10.0.0.1"]);
    blue.put_endpoints("a", &["10.0.0.3"]);
    until("it is kept up to date", || there() == ["10.0.0.3"]).await;
    // The next leader does not know that the one before held it.
    blue.kill();
    blue.lead();
    sleep(Duration::from_mins(2)).await;
    blue.put_endpoints("a", &["10.0.0.4"]);
    until("the next leader keeps it up to date as well", || there() == ["10.0.0.4"]).await;
    sleep(Duration::from_mins(2)).await;
    assert_eq!(there(), ["10.0.0.4"]);
    green.lead();
    let deadline = Instant::now() + Duration::from_mins(10);
    while there() != ["10.1.0.2"] {
        assert!(!there().is_empty(), "nobody has the name");
        assert!(Instant::now() < deadline, "{:?}", there());
        sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_claim_that_never_held_registers_nothing_after_a_change_of_leader() {
    let (world, mut blue, green) = pair().await;
    let there = || world.holds("internal", "web.shop");
    green.headless("web", &AT_HOME, &["10.1.0.2"]);
    until("the name is at home there", || there() == ["10.1.0.2"]).await;
    blue.headless("a", &AT_HOME, &["10.0.0.1"]);
    blue.until_noted("a", "DomainConflict").await;
    drop(green);
    blue.kill();
    blue.lead();
    for _ in 0..300 {
        sleep(Duration::from_secs(1)).await;
        assert_eq!(there(), ["10.1.0.2"]);
    }
}

/// Its instances go at once, and the claim with them, whoever follows and whenever.
#[tokio::test(start_paused = true)]
async fn the_claim_of_a_deleted_export_goes_with_its_instances() {
    for led_meanwhile in [true, false] {
        let (world, mut blue, green) = pair().await;
        blue.put_service("web", 80);
        blue.put_endpoints("web", &["10.0.0.1"]);
        blue.put_export("web", &[(ANNOTATION_TARGET_NAMESPACE, "internal"), (ANNOTATION_TARGET_SERVICE, "web")]);
        until("the export is registered", || world.web() == ["10.0.0.1"]).await;
        green.headless("b", &WANTS, &["10.1.0.2"]);
        green.until_noted("b", "DomainConflict").await;
        sleep(Duration::from_secs(20)).await;
        if !led_meanwhile {
            blue.kill();
        }
        blue.objects.remove_export(&key("web"));
        if !led_meanwhile {
            blue.lead();
        }
        until("its successor is there", || world.web() == ["10.1.0.2"]).await;
        sleep(Duration::from_mins(5)).await;
        assert_eq!(world.claims("blue").await, [""; 0], "the claim goes, too");
    }
}

/// AWS takes nothing from clocks that are more than five minutes off.
#[tokio::test(start_paused = true)]
async fn a_clock_that_is_behind_wins_no_claim() {
    for elected in [false, true] {
        let (world, blue, mut green) = pair().await;
        green.kill();
        World::set_back(&mut green, Duration::from_mins(4));
        if !elected {
            green.lead();
        }
        blue.headless("a", &WANTS, &["10.0.0.1"]);
        until("the first is registered", || world.web() == ["10.0.0.1"]).await;
        sleep(Duration::from_mins(1)).await;
        green.headless("b", &WANTS, &["10.1.0.2"]);
        if elected {
            green.lead();
        }
        green.until_noted("b", "DomainConflict").await;
        for _ in 0..120 {
            sleep(Duration::from_secs(1)).await;
            assert_eq!(world.web(), ["10.0.0.1"], "elected: {elected}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn of_those_that_wait_the_oldest_follows_whoever_leads_by_then() {
    let (world, mut blue, _green) = pair().await;
    for (name, address) in [("first", "10.0.0.1"), ("z-long", "10.0.0.2"), ("a-short", "10.0.0.3")] {
        blue.headless(name, &WANTS, &[address]);
        sleep(Duration::from_secs(30)).await;
    }
    assert_eq!(world.web(), ["10.0.0.1"]);
    blue.kill();
    blue.lead();
    sleep(Duration::from_mins(1)).await;
    blue.headless("first", &[], &["10.0.0.1"]);
    until("the one that waited longest is there", || world.web() == ["10.0.0.2"]).await;
    // Also where the one before goes while nobody leads.
    blue.kill();
    blue.headless("first", &WANTS, &["10.0.0.1"]);
    blue.objects.remove_service(&key("z-long"));
    blue.lead();
    until("the next one is there", || world.web() == ["10.0.0.3"]).await;
}
