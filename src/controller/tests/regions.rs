//! One ClusterSet over several registries: each cluster writes to its home, and reads all of them.

use std::time::Duration;

use super::world::{Cluster, World, always, key, until};
use api::names::{ANNOTATION_MAY_REGISTER, ANNOTATION_SHARE};

/// Two registries.
struct Regions {
    eu: World,
    us: World,
}

impl Regions {
    fn new() -> Self {
        let eu = World::new();
        Self { us: eu.beside(), eu }
    }

    fn in_eu(&self, id: &str) -> Cluster {
        World::cluster_of(id, &format!("uid-{id}"), &[("eu", &self.eu), ("us", &self.us)])
    }

    fn in_us(&self, id: &str) -> Cluster {
        World::cluster_of(id, &format!("uid-{id}"), &[("us", &self.us), ("eu", &self.eu)])
    }
}

/// `web` in both clusters, imported in both.
async fn share(one: &Cluster, other: &Cluster) {
    one.export("web", 80, &["10.1.0.1"]);
    other.export("web", 80, &["10.2.0.1"]);
    for cluster in [one, other] {
        cluster.until_imports("web", &["10.1.0.1", "10.2.0.1"]).await;
        until("all export", || cluster.sources("web")[0].len() == 2).await;
    }
}

#[tokio::test(start_paused = true)]
async fn clusters_with_different_homes_import_each_other_and_register_at_home() {
    let regions = Regions::new();
    let (green, blue) = (regions.in_eu("green"), regions.in_us("blue"));
    share(&green, &blue).await;
    for (world, own) in [(&regions.eu, "10.1.0.1"), (&regions.us, "10.2.0.1")] {
        until("the own pods are registered at home, and only those", || {
            let registry = world.fake.registry();
            let own_pods = registry.instances.values().filter_map(|attributes| attributes.get("AWS_INSTANCE_IPV4"));
            own_pods.collect::<Vec<_>>() == [own]
        })
        .await;
    }
    blue.put_endpoints("web", &["10.2.0.2", "10.2.0.3"]);
    green.until_imports("web", &["10.1.0.1", "10.2.0.2", "10.2.0.3"]).await;
    blue.objects.remove_export(&key("web"));
    green.until_imports("web", &["10.1.0.1"]).await;
    blue.until_imports("web", &["10.1.0.1"]).await;
    green.until_says("web", "Ready", "True", "Exported").await;
}

#[tokio::test(start_paused = true)]
async fn a_registry_that_is_away_withdraws_nothing_and_stops_nothing_of_the_others() {
    let regions = Regions::new();
    let (mut green, red, blue) = (regions.in_eu("green"), regions.in_eu("red"), regions.in_us("blue"));
    share(&green, &blue).await;
    let made = green.uids("web");
    regions.us.fail();
    red.export("api", 80, &["10.3.0.1"]);
    green.until_imports("api", &["10.3.0.1"]).await;
    let stays = || green.imported("web") == ["10.1.0.1", "10.2.0.1"];
    always("what was read stays", Duration::from_mins(20), stays).await;
    assert!(green.import_condition("web", "Stale").is_none(), "nobody knows whether blue is silent");

    // A new leader has read nothing of blue, and knows it from the record.
    green.kill();
    green.lead();
    red.export("new", 80, &["10.3.0.2"]);
    green.until_imports("new", &["10.3.0.2"]).await;
    red.put_endpoints("new", &["10.3.0.3"]);
    green.until_imports("new", &["10.3.0.3"]).await;
    red.objects.remove_export(&key("new"));
    until("names of others go", || green.is_clean("new")).await;
    let stays = || green.imported("web") == ["10.1.0.1", "10.2.0.1"];
    always("what an earlier leader read stays", Duration::from_mins(5), stays).await;
    assert_eq!(green.uids("web"), made, "and nothing was made again");

    regions.us.heal();
    blue.put_endpoints("web", &["10.2.0.9"]);
    green.until_imports("web", &["10.1.0.1", "10.2.0.9"]).await;
    blue.objects.remove_export(&key("web"));
    green.until_imports("web", &["10.1.0.1"]).await;
}

#[tokio::test(start_paused = true)]
async fn a_new_leader_that_cannot_read_its_home_imports_what_others_export_elsewhere() {
    let regions = Regions::new();
    let (mut green, red, blue) = (regions.in_eu("green"), regions.in_us("red"), regions.in_us("blue"));
    share(&green, &blue).await;
    regions.eu.fail();
    green.kill();
    green.lead();
    red.export("new", 80, &["10.3.0.2"]);
    green.until_imports("new", &["10.3.0.2"]).await;
    red.put_endpoints("new", &["10.3.0.3"]);
    green.until_imports("new", &["10.3.0.3"]).await;
    blue.put_endpoints("web", &["10.2.0.2"]);
    until("what others export follows", || green.imported("web").contains(&"10.2.0.2".to_owned())).await;
    let stays = || green.imported("web") == ["10.1.0.1", "10.2.0.2"];
    always("what it exports itself stays", Duration::from_mins(5), stays).await;
    regions.eu.heal();
    green.put_endpoints("web", &["10.1.0.2"]);
    blue.until_imports("web", &["10.1.0.2", "10.2.0.2"]).await;
}

#[tokio::test(start_paused = true)]
async fn clusters_of_a_registry_in_which_nobody_writes_are_silent_and_expire_only_beside_one_that_writes() {
    let regions = Regions::new();
    let (mut green, mut red, blue) = (regions.in_eu("green"), regions.in_us("red"), regions.in_us("blue"));
    green.stale_ttl = Some(Duration::from_mins(6));
    green.kill();
    green.lead();
    red.export("api", 80, &["10.3.0.1"]);
    blue.export("web", 80, &["10.2.0.1"]);
    green.until_imports("api", &["10.3.0.1"]).await;
    green.until_imports("web", &["10.2.0.1"]).await;
    regions.us.refuse_writes();
    until("both are said to be silent", || {
        ["web", "api"].iter().all(|name| green.import_condition(name, "Stale").is_some())
    })
    .await;
    let stays = || green.imported("web") == ["10.2.0.1"] && green.imported("api") == ["10.3.0.1"];
    always("nothing expires", Duration::from_mins(20), stays).await;
    regions.us.heal();
    until("nobody is silent any more", || {
        ["web", "api"].iter().all(|name| green.import_condition(name, "Stale").is_none())
    })
    .await;
    assert!(stays());
    red.kill();
    until("who stays silent expires", || green.imported("api").is_empty()).await;
    assert_eq!(green.imported("web"), ["10.2.0.1"]);
}

#[tokio::test(start_paused = true)]
async fn a_new_leader_without_a_record_deletes_nothing_of_a_registry_that_it_has_not_read() {
    let regions = Regions::new();
    let (mut green, blue) = (regions.in_eu("green"), regions.in_us("blue"));
    share(&green, &blue).await;
    regions.us.fail();
    green.kill();
    green.lose_record();
    green.lead();
    let stays = || green.imported("web") == ["10.1.0.1", "10.2.0.1"];
    always("it stays", Duration::from_mins(5), stays).await;
    regions.us.heal();
    blue.objects.remove_export(&key("web"));
    green.until_imports("web", &["10.1.0.1"]).await;
}

#[tokio::test(start_paused = true)]
async fn of_two_clusters_with_one_id_the_one_counts_that_is_there_for_longer_and_the_other_one_says_so() {
    let regions = Regions::new();
    let green = regions.in_eu("green");
    let older = World::cluster_of("twin", "uid-older", &[("us", &regions.us), ("eu", &regions.eu)]);
    older.export("web", 80, &["10.1.0.1"]);
    green.until_imports("web", &["10.1.0.1"]).await;
    tokio::time::sleep(Duration::from_secs(10)).await;
    let younger = World::cluster_of("twin", "uid-younger", &[("eu", &regions.eu), ("us", &regions.us)]);
    younger.export("web", 80, &["10.2.0.1"]);
    younger.export("other", 80, &["10.2.0.2"]);
    younger.until_says("other", "Valid", "True", "Valid").await;
    until("the younger one says that the id is not its own", || {
        let said = younger.condition("other", "Ready").map(|condition| condition.message).unwrap_or_default();
        said.contains("registry us") && said.contains("uid-older") && said.contains("--cluster-id")
    })
    .await;
    let stays = || green.imported("web") == ["10.1.0.1"] && green.objects.import(&key("other")).is_none();
    always("what the older one exports counts", Duration::from_mins(2), stays).await;

    // When it is gone, the id is free.
    older.set_leaving(true);
    until("it has left", || regions.us.has_left("twin")).await;
    green.until_imports("other", &["10.2.0.2"]).await;
    green.until_imports("web", &["10.2.0.1"]).await;
    younger.until_says("other", "Ready", "True", "Exported").await;
}

#[tokio::test(start_paused = true)]
async fn claims_are_about_the_registry_in_which_they_are() {
    let regions = Regions::new();
    let (green, blue) = (regions.in_eu("green"), regions.in_us("blue"));
    for (cluster, world, address) in [(&green, &regions.eu, "10.1.0.1"), (&blue, &regions.us, "10.2.0.1")] {
        cluster.objects.annotate_namespace("shop", &[(ANNOTATION_MAY_REGISTER, "*/*")]);
        cluster.export("web", 80, &[address]);
        cluster.put_export("web", &[("cloudmap-mcs/service", "one"), (ANNOTATION_SHARE, "true")]);
        cluster.until_says("web", "Registered", "True", "Registered").await;
        assert_eq!(world.instances("one").len(), 1, "{}", cluster.id);
    }
}

#[tokio::test(start_paused = true)]
async fn a_cluster_moves_to_another_home_and_its_endpoints_stay() {
    let regions = Regions::new();
    let (green, mut blue) = (regions.in_eu("green"), regions.in_us("blue"));
    share(&green, &blue).await;
    blue.move_to("eu", &regions.eu, &[("us", &regions.us)]);
    let stays = |cluster: &Cluster| cluster.imported("web") == ["10.1.0.1", "10.2.0.1"];
    always("they stay", Duration::from_mins(2), || stays(&green) && stays(&blue)).await;
    blue.put_endpoints("web", &["10.2.0.7"]);
    green.until_imports("web", &["10.1.0.1", "10.2.0.7"]).await;
    until("its pods are registered in the new home", || regions.eu.instances("web").len() == 2).await;
}

/// Whatever happens to registries and leaders, and whatever users do meanwhile.
#[tokio::test(start_paused = true)]
async fn after_any_storm_all_clusters_import_the_same_and_no_name_was_empty() {
    for seed in 0..10 {
        storm(seed).await;
    }
}

async fn storm(seed: u64) {
    let mut state = seed;
    let mut below = |most: u64| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % most
    };
    let regions = Regions::new();
    let mut clusters = [regions.in_eu("green"), regions.in_us("blue"), regions.in_us("red")];
    let mut endpoints: Vec<Vec<String>> = (1..=3).map(|n| vec![format!("10.{n}.0.1")]).collect();
    let mut api = [false; 3];
    for (cluster, endpoints) in clusters.iter().zip(&endpoints) {
        cluster.export("web", 80, &[&endpoints[0]]);
        cluster.put_service("api", 81);
        cluster.put_endpoints("api", &["10.9.9.9"]);
    }
    for cluster in &clusters {
        until("all export", || cluster.imported("web").len() == 3).await;
    }
    for _ in 0..25 {
        let which = below(3) as usize;
        match below(10) {
            0 => regions.eu.fail(),
            1 => regions.us.fail(),
            2 => regions.eu.heal(),
            3 => regions.us.heal(),
            4 | 5 => {
                clusters[which].kill();
                if below(4) == 0 {
                    clusters[which].lose_record();
                }
                clusters[which].lead();
            }
            6 => {
                api[which] = !api[which];
                if api[which] {
                    clusters[which].put_export("api", &[]);
                } else {
                    clusters[which].objects.remove_export(&key("api"));
                }
            }
            _ => {
                let (n, count) = (which + 1, below(4) + 1);
                endpoints[which] = (0..count).map(|_| format!("10.{n}.{}.{}", below(250), below(250) + 1)).collect();
                let addresses: Vec<_> = endpoints[which].iter().map(String::as_str).collect();
                clusters[which].put_endpoints("web", &addresses);
            }
        }
        let pause = Duration::from_millis(below(40_000));
        always("no name is empty", pause, || clusters.iter().all(|cluster| !cluster.imported("web").is_empty())).await;
    }
    regions.eu.heal();
    regions.us.heal();
    let mut wanted: Vec<String> = endpoints.concat();
    wanted.sort();
    wanted.dedup();
    for cluster in &clusters {
        until(&format!("seed {seed}: {} has the endpoints of all", cluster.id), || cluster.imported("web") == wanted)
            .await;
        until(&format!("seed {seed}: {} has who exports api", cluster.id), || {
            let exporters: Vec<_> = cluster.sources("api")[0].iter().cloned().collect();
            let mut ids: Vec<_> =
                clusters.iter().zip(api).filter(|(_, does)| *does).map(|(it, _)| it.id.clone()).collect();
            ids.sort();
            exporters == ids
        })
        .await;
    }
}

/// ECS tasks of two regions have one Cloud Map service, by name.
#[tokio::test(start_paused = true)]
async fn a_namespace_imports_from_the_registry_that_it_names() {
    let regions = Regions::new();
    let green = regions.in_eu("green");
    let [here] = regions.eu.foreign("internal", &["orders"]).try_into().unwrap();
    let [there, bills] = regions.us.foreign("internal", &["orders", "bills"]).try_into().unwrap();
    regions.eu.task(&here, "10.9.0.1", Some(8080));
    regions.us.task(&there, "10.8.0.1", Some(8080));
    regions.us.task(&bills, "10.8.0.2", Some(8080));
    green.import_from(Some("us/internal"));
    green.until_imports("orders", &["10.8.0.1"]).await;
    green.until_imports("bills", &["10.8.0.2"]).await;
    green.import_from(Some("us/internal,eu/internal"));
    green.until_imports("orders", &["10.8.0.1", "10.9.0.1"]).await;

    regions.us.fail();
    regions.eu.task(&here, "10.9.0.2", Some(8080));
    let both = ["10.8.0.1", "10.9.0.1", "10.9.0.2"];
    green.until_imports("orders", &both).await;
    always("what was read stays", Duration::from_mins(20), || green.imported("orders") == both).await;
    regions.us.heal();
    regions.us.stop_task(&there, "10.8.0.1");
    green.until_imports("orders", &["10.9.0.1", "10.9.0.2"]).await;
    green.until_imports("bills", &["10.8.0.2"]).await;

    green.import_from(Some("eu/internal"));
    until("nothing of the other region is left", || green.is_clean("bills")).await;
    green.until_imports("orders", &["10.9.0.1", "10.9.0.2"]).await;
}

#[tokio::test(start_paused = true)]
async fn who_names_a_registry_or_a_namespace_that_is_not_there_is_told_which_there_are() {
    let regions = Regions::new();
    let green = regions.in_eu("green");
    regions.us.foreign("internal", &["orders"]);
    for (from, reason, words) in [
        ("uss/internal", "NoNamespace", "what precedes the slash is none of the registries us, eu"),
        ("us/orders", "NoNamespace", "no Cloud Map namespace orders in the registry us"),
        ("us/clusterset-prod", "InvalidAnnotation", "the ledger of a ClusterSet"),
    ] {
        green.import_from(Some(from));
        until(words, || green.notes(reason).iter().any(|note| note.contains(words))).await;
    }
}
