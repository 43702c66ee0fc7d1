//! Annotated Services that the ledger, or a claim, holds up: nothing happens, and that is said on them.

use std::time::Duration;

use tokio::time::sleep;

use super::{
    annotated::PYTHON,
    world::{Cluster, World, until},
};
use cloudmap::{ErrorKind, NamespaceKind};

fn world() -> World {
    let world = World::new();
    world.add_namespace("internal", NamespaceKind::Http);
    world
}

impl Cluster {
    fn want(&self, name: &str, address: &str) {
        self.headless(name, &[(PYTHON[0], "internal"), (PYTHON[1], name)], &[address]);
    }

    /// What was said on a Service since that was asked last, by reason.
    fn said(&self, name: &str) -> Vec<String> {
        let notes = self.objects.take_notes().into_iter();
        notes.filter(|note| note.regarding.name.as_deref() == Some(name)).map(|note| note.reason.to_string()).collect()
    }
}

#[tokio::test(start_paused = true)]
async fn a_registry_that_refuses_the_ledger_is_said_on_annotated_services() {
    let world = world();
    world.fail();
    let blue = world.cluster("blue");
    blue.want("web", "10.0.0.1");
    let text = blue.until_noted("web", "Failed").await;
    assert!(text.contains("Claiming the cluster id"), "{text}");
    world.heal();
    until("it is registered", || world.holds("internal", "web") == ["10.0.0.1"]).await;
    blue.until_noted("web", "IPRegistered").await;

    // Later on it concerns only what is not on record.
    world.fail();
    blue.want("api", "10.0.0.2");
    let text = blue.until_noted("api", "Failed").await;
    assert!(text.contains("does not accept changes"), "{text}");
    sleep(Duration::from_mins(2)).await;
    assert!(!blue.said("web").contains(&"Failed".to_owned()));
    world.heal();
    until("it is registered", || world.holds("internal", "api") == ["10.0.0.2"]).await;
}

#[tokio::test(start_paused = true)]
async fn an_id_that_is_taken_is_said_on_annotated_services() {
    let world = world();
    let _blue = world.cluster("blue");
    sleep(Duration::from_secs(30)).await;
    let impostor = world.cluster_with_uid("blue", "uid-of-another");
    impostor.want("web", "10.6.0.1");
    let text = impostor.until_noted("web", "Failed").await;
    assert!(text.contains("belongs to another member") && text.contains("--cluster-id"), "{text}");
    // Said of one that comes later, and of each once.
    impostor.want("api", "10.6.0.2");
    impostor.until_noted("api", "Failed").await;
    impostor.want("web", "10.6.0.3");
    sleep(Duration::from_mins(2)).await;
    assert_eq!((impostor.said("web"), world.holds("internal", "web")), (vec![], vec![]));
}

#[tokio::test(start_paused = true)]
async fn a_cluster_that_cannot_be_read_is_said_on_services_that_wait_for_it() {
    let world = world();
    let (mut blue, green) = (world.cluster("blue"), world.cluster("green"));
    green.export("other", 80, &["10.1.0.1"]);
    blue.until_imports("other", &["10.1.0.1"]).await;
    // Until its pages are written, without which its head tells nothing.
    sleep(Duration::from_mins(5)).await;
    blue.kill();
    world.fake.registry().failing.insert("exports-0.green".into(), ErrorKind::AccessDenied);
    blue.lead();
    blue.want("web", "10.0.0.1");
    let text = blue.until_noted("web", "AwaitsClusters").await;
    assert!(text.contains("every cluster") && text.contains("internal/web"), "{text}");
    world.fake.registry().failing.clear();
    until("it is registered", || world.holds("internal", "web") == ["10.0.0.1"]).await;
    // What waits for seconds is not worth a word.
    blue.want("api", "10.0.0.2");
    until("it is registered", || world.holds("internal", "api") == ["10.0.0.2"]).await;
    sleep(Duration::from_mins(1)).await;
    assert_eq!(blue.said("api"), ["IPRegistered"]);
}

#[tokio::test(start_paused = true)]
async fn outside_a_clusterset_a_record_that_cannot_be_stored_is_said() {
    let world = world();
    let mut blue = world.cluster("blue");
    blue.kill();
    blue.member = false;
    blue.refuse_record(true);
    blue.lead();
    blue.want("web", "10.0.0.1");
    let text = blue.until_noted("web", "Failed").await;
    assert!(text.contains("cloudmap-mcs-ledger") && text.contains("forbidden"), "{text}");
    blue.refuse_record(false);
    until("it is registered", || world.holds("internal", "web") == ["10.0.0.1"]).await;
}
