//! Clusters and names are drained: their endpoints leave what others can serve, and come back step by step.

use std::time::Duration;

use super::world::{Cluster, World, always, until};
use api::names::{ANNOTATION_DRAIN, PROPERTY_DRAIN, PROPERTY_DRAIN_MIN_READY};

const HERE: [&str; 4] = ["10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.0.4"];
const THERE: [&str; 2] = ["10.1.0.1", "10.1.0.2"];

/// Two clusters that export `web`.
async fn two(world: &World) -> [Cluster; 2] {
    let clusters = [("blue", &HERE[..]), ("green", &THERE[..])].map(|(id, addresses)| {
        let cluster = world.cluster(id);
        cluster.put_service("web", 80);
        cluster.put_endpoints("web", addresses);
        cluster.put_export("web", &[]);
        cluster
    });
    for cluster in &clusters {
        until("all serve", || cluster.imported("web").len() == 6).await;
    }
    clusters
}

fn message(cluster: &Cluster) -> String {
    cluster.condition("web", "Drained").map(|condition| condition.message).unwrap_or_default()
}

#[tokio::test(start_paused = true)]
async fn a_drained_cluster_leaves_step_by_step_in_every_cluster_and_comes_back_so() {
    let world = World::new();
    let [mut blue, green] = two(&world).await;
    blue.objects.set_property(PROPERTY_DRAIN, Some("true"));
    blue.until_says("web", "Drained", "False", "Leaving").await;
    always("the first step takes 30 s", Duration::from_secs(25), || green.imported("web").len() == 6).await;
    until("one goes", || green.imported("web").len() == 5).await;
    blue.until_says("web", "Drained", "True", "Drained").await;
    assert_eq!(message(&blue), "Clients use green.");
    green.until_imports("web", &THERE).await;
    assert_eq!(blue.imported("web"), THERE);
    assert!(green.condition("web", "Drained").is_none());

    // The cluster is upgraded: its controller goes, its pods go, and another leader comes.
    blue.kill();
    always("nothing changes", Duration::from_mins(2), || green.imported("web") == THERE).await;
    blue.lead();
    always("nothing changes", Duration::from_mins(2), || green.imported("web") == THERE).await;

    blue.objects.set_property(PROPERTY_DRAIN, None);
    blue.until_says("web", "Drained", "False", "Returning").await;
    assert_eq!(message(&blue), "25 % of the endpoints of this cluster are back.");
    until("one is back", || green.imported("web").len() == 3).await;
    blue.kill();
    blue.lead();
    always("a new leader waits", Duration::from_secs(25), || green.imported("web").len() == 3).await;
    until("two are back", || green.imported("web").len() == 4).await;
    always("each step takes 30 s", Duration::from_secs(25), || green.imported("web").len() == 4).await;
    until("all are back", || green.imported("web").len() == 6 && blue.imported("web").len() == 6).await;
    until("nothing is said", || blue.condition("web", "Drained").is_none()).await;
    let writes = blue.objects.writes();
    tokio::time::sleep(Duration::from_mins(3)).await;
    assert_eq!(blue.objects.writes(), writes);
}

#[tokio::test(start_paused = true)]
async fn what_nobody_else_can_serve_stays_and_the_export_says_why() {
    let world = World::new();
    let [blue, green] = two(&world).await;
    blue.put_service("only", 80);
    blue.put_endpoints("only", &["10.0.1.1"]);
    blue.put_export("only", &[]);
    green.until_imports("only", &["10.0.1.1"]).await;
    green.put_readiness("web", &[(THERE[0], true), (THERE[1], false)]);
    blue.objects.set_property(PROPERTY_DRAIN_MIN_READY, Some("100%"));
    blue.objects.set_property(PROPERTY_DRAIN, Some("true"));
    blue.until_says("only", "Drained", "False", "Stays").await;
    assert_eq!(blue.condition("only", "Drained").unwrap().message, "No other cluster exports this name.");
    blue.until_says("web", "Drained", "False", "Stays").await;
    assert!(
        message(&blue).starts_with("In other clusters 1 of 2 endpoints are ready, and 100% must be"),
        "{}",
        message(&blue)
    );
    until("the others take what they can", || green.imported("web").len() == 3).await;
    always("the rest stays", Duration::from_mins(3), || green.imported("web").len() == 3).await;
    blue.objects.set_property(PROPERTY_DRAIN_MIN_READY, Some("50%"));
    blue.until_says("web", "Drained", "True", "Drained").await;
    green.until_imports("web", &THERE).await;

    // Both at once: the last ones stay.
    green.objects.set_property(PROPERTY_DRAIN, Some("true"));
    green.until_says("web", "Drained", "False", "Stays").await;
    assert_eq!(message(&green), "The other clusters that export this name are drained, too: blue.");
    until("all serve", || [&blue, &green].iter().all(|cluster| cluster.imported("web").len() == 6)).await;
    assert_eq!(green.imported("only"), ["10.0.1.1"]);
}

#[tokio::test(start_paused = true)]
async fn one_name_is_drained_by_its_export_and_what_is_unclear_changes_nothing() {
    let world = World::new();
    let [mut blue, green] = two(&world).await;
    blue.put_export("web", &[(ANNOTATION_DRAIN, "yes")]);
    blue.until_says("web", "Drained", "False", "InvalidDrain").await;
    assert!(message(&blue).starts_with("cloudmap-mcs/drain is \"yes\": write \"true\""), "{}", message(&blue));
    always("all serve", Duration::from_mins(3), || green.imported("web").len() == 6).await;
    blue.put_export("web", &[(ANNOTATION_DRAIN, "true")]);
    blue.until_says("web", "Drained", "True", "Drained").await;
    green.until_imports("web", &THERE).await;
    blue.put_export("web", &[(ANNOTATION_DRAIN, "yes")]);
    blue.until_says("web", "Drained", "False", "InvalidDrain").await;
    // A new leader knows it from the ledger.
    blue.kill();
    blue.lead();
    always("it is still drained", Duration::from_mins(3), || green.imported("web") == THERE).await;
    blue.put_export("web", &[]);
    until("one is back", || green.imported("web").len() == 3).await;
    until("all are back", || green.imported("web").len() == 6).await;
    until("nothing is said", || blue.condition("web", "Drained").is_none()).await;
}
