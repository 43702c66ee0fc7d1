//! Clusters serve nearest first, by the cluster selection of exports and of Namespaces, and by the properties of clusters.

use std::time::Duration;

use super::world::{Cluster, World, always, key, until};
use api::names::{
    ANNOTATION_CLUSTER_SELECTORS as SELECTORS, ANNOTATION_CLUSTER_WEIGHTS, ANNOTATION_MAY_REGISTER, PROPERTY_REGION,
};

/// Three clusters that export `web`, with `local-first`; blue and green are in one region.
async fn three(world: &World) -> [Cluster; 3] {
    let clusters = [("blue", "eu", 0), ("green", "eu", 1), ("red", "us", 2)].map(|(id, region, n)| {
        let cluster = world.cluster(id);
        cluster.objects.set_property(PROPERTY_REGION, Some(region));
        cluster.put_service("web", 80);
        cluster.put_endpoints("web", &[&format!("10.{n}.0.1"), &format!("10.{n}.0.2")]);
        cluster.put_export("web", &[(SELECTORS, "local-first")]);
        cluster
    });
    for (cluster, n) in clusters.iter().zip(0..) {
        cluster.until_imports("web", &[&format!("10.{n}.0.1"), &format!("10.{n}.0.2")]).await;
        until("the import names all clusters", || cluster.sources("web")[0].len() == 3).await;
    }
    clusters
}

fn message(cluster: &Cluster) -> String {
    cluster.condition("web", "ClusterSelection").map(|condition| condition.message).unwrap_or_default()
}

#[tokio::test(start_paused = true)]
async fn clients_use_their_own_cluster_then_their_region_then_all_and_come_back_step_by_step() {
    let world = World::new();
    let [mut blue, green, red] = three(&world).await;
    blue.until_says("web", "ClusterSelection", "True", "InForce").await;
    until("the export says who is next", || {
        message(&blue).ends_with("clients in this cluster use blue; then green; then red.")
    })
    .await;

    let away = [("10.0.0.1", false), ("10.0.0.2", false)];
    blue.put_readiness("web", &away);
    let with_green = ["10.0.0.1", "10.0.0.2", "10.1.0.1", "10.1.0.2"];
    blue.until_imports("web", &with_green).await;
    always("red is not asked", Duration::from_secs(5), || blue.imported("web") == with_green).await;
    assert_eq!(red.imported("web"), ["10.2.0.1", "10.2.0.2"], "nothing changes elsewhere");
    green.put_endpoints("web", &[]);
    blue.until_imports("web", &["10.0.0.1", "10.0.0.2", "10.2.0.1", "10.2.0.2"]).await;

    // Two endpoints go in two of the four steps, and a new leader begins with the first one again.
    blue.put_endpoints("web", &["10.0.0.1", "10.0.0.2"]);
    always("the first step takes 30 s", Duration::from_secs(25), || blue.imported("web").len() == 4).await;
    until("one goes", || blue.imported("web").len() == 3).await;
    blue.kill();
    blue.lead();
    always("the first step takes 30 s", Duration::from_secs(25), || blue.imported("web").len() == 3).await;
    blue.until_imports("web", &["10.0.0.1", "10.0.0.2"]).await;
    // Then nothing is left to do.
    let writes = blue.objects.writes();
    tokio::time::sleep(Duration::from_mins(3)).await;
    assert_eq!(blue.objects.writes(), writes);
}

#[tokio::test(start_paused = true)]
async fn a_property_that_changes_changes_who_is_near() {
    let world = World::new();
    let [blue, _green, red] = three(&world).await;
    red.objects.set_property(PROPERTY_REGION, Some("eu"));
    until("red is near", || message(&blue).contains("use blue; then green, red.")).await;
    blue.objects.set_property(PROPERTY_REGION, None);
    until("nobody is", || message(&blue).contains("use blue; then green, red.")).await;
    blue.put_readiness("web", &[("10.0.0.1", false), ("10.0.0.2", false)]);
    until("both serve", || blue.imported("web").len() == 6).await;
}

#[tokio::test(start_paused = true)]
async fn the_namespace_of_the_importing_cluster_has_the_last_word() {
    let world = World::new();
    let [mut blue, green, _red] = three(&world).await;
    let objects = blue.objects.clone();
    let annotate = |selectors: &str| {
        objects.annotate_namespace("shop", &[(ANNOTATION_MAY_REGISTER, "*/*"), (SELECTORS, selectors)]);
    };
    annotate("spread");
    until("all serve here", || blue.imported("web").len() == 6).await;
    assert_eq!(green.imported("web").len(), 2, "and nothing changes there");
    let overruled =
        "By spread, which the Namespace in this cluster says instead of local-first, clients in this cluster use";
    until("the export says so", || message(&blue).starts_with(overruled)).await;
    assert!(!message(&green).contains("Namespace"), "{}", message(&green));
    annotate("nearest");
    let is_it = |note: &cluster::events::EventRecord| note.text.contains("cloudmap-mcs/cluster-selectors: \"nearest\"");
    until("it is said", || blue.objects.take_note(is_it).is_some()).await;
    always("the last valid one counts", Duration::from_secs(5), || blue.imported("web").len() == 6).await;
    blue.kill();
    blue.lead();
    always("also for a new leader", Duration::from_mins(2), || blue.imported("web").len() == 6).await;
    blue.objects.annotate_namespace("shop", &[(ANNOTATION_MAY_REGISTER, "*/*")]);
    until("the export counts again", || blue.imported("web").len() == 2).await;
}

#[tokio::test(start_paused = true)]
async fn what_is_wrong_is_said_on_the_export_and_the_last_valid_selection_stays() {
    let world = World::new();
    let [mut blue, green, red] = three(&world).await;
    let all = [&blue, &green, &red];
    for cluster in all {
        cluster.put_export("web", &[(SELECTORS, "nearest")]);
        cluster.until_says("web", "ClusterSelection", "False", "InvalidClusterSelector").await;
        assert!(
            message(cluster).contains("\"local-first\"") && message(cluster).ends_with("local-first stays in force.")
        );
        cluster.until_says("web", "Ready", "True", "Exported").await;
    }
    // A new leader knows it from the ledger.
    blue.kill();
    blue.lead();
    always("it stays", Duration::from_mins(1), || blue.imported("web").len() == 2).await;

    blue.put_export("web", &[(SELECTORS, "local-first")]);
    green.put_export("web", &[(SELECTORS, "spread")]);
    red.put_export("web", &[]);
    for cluster in [&blue, &green, &red] {
        cluster.until_says("web", "ClusterSelection", "False", "ClusterSelectorsConflict").await;
        cluster.until_says("web", "Conflict", "False", "NoConflicts").await;
    }
    assert!(message(&red).contains("This cluster's ServiceExport has none"), "{}", message(&red));

    let unknown = "[{\"propertySelector\": {\"matchExpressions\": [{\"key\": \"gpu\", \"operator\": \"Exists\"}]}}]";
    for cluster in [&blue, &green, &red] {
        cluster.put_export("web", &[(SELECTORS, unknown)]);
    }
    blue.until_says("web", "ClusterSelection", "False", "UnknownProperty").await;
    green.objects.set_property("gpu", Some("yes"));
    blue.until_says("web", "ClusterSelection", "True", "InForce").await;
    blue.until_imports("web", &["10.1.0.1", "10.1.0.2"]).await;
    for cluster in [&blue, &green, &red] {
        cluster.put_export("web", &[]);
    }
    for cluster in [&blue, &green, &red] {
        until("nothing is said", || cluster.condition("web", "ClusterSelection").is_none()).await;
    }
    until("all serve", || blue.imported("web").len() == 6).await;
    assert!(blue.objects.import(&key("web")).is_some());
}

#[tokio::test(start_paused = true)]
async fn a_canary_gets_its_weight_and_a_wrong_id_is_said() {
    let world = World::new();
    let [blue, green, red] = three(&world).await;
    let weigh = |weights: &str| {
        for cluster in [&blue, &green, &red] {
            cluster.put_export("web", &[(ANNOTATION_CLUSTER_WEIGHTS, weights)]);
        }
    };
    let alone = ["10.0.0.1", "10.0.0.2"];
    weigh("blue=100%");
    until("blue serves alone", || [&blue, &green, &red].iter().all(|here| here.imported("web") == alone)).await;
    weigh("blue=50%,green=25%,red=25%");
    until("blue has half of them", || red.imported("web").len() == 4).await;
    weigh("blue=50%,gren=50%");
    red.until_says("web", "ClusterSelection", "False", "UnknownCluster").await;
    assert!(message(&red).starts_with("No cluster gren exports this name"), "{}", message(&red));
    weigh("blue=101%");
    red.until_says("web", "ClusterSelection", "False", "InvalidClusterSelector").await;
    assert!(message(&red).contains("cloudmap-mcs/cluster-weights: \"blue=101%\" is no weight"), "{}", message(&red));
}
