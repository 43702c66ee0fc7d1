//! What a tenant cannot use up: the names, the records, the memory and the time of others.

use std::{process::Command, time::Duration};

use super::{
    annotated::HOSTNAME,
    world::{Cluster, World, always, key, until},
};
use api::names;
use cloudmap::NamespaceKind;
use export::{Quota, Usage};
use model::ServiceKey;

/// The shipped memory limit, 256 MiB.
const LIMIT: u64 = 256 << 20;

impl Cluster {
    /// Starts again with this quota for each namespace.
    fn limit(&mut self, quota: &str) {
        self.kill();
        self.quota = quota.parse().unwrap();
        self.lead();
    }
}

/// `count` host names in a zone, of which an annotation of 64 KiB has room for thousands.
fn hosts(prefix: &str, count: usize) -> String {
    (0..count).map(|n| format!("{prefix}-{n}.internal")).collect::<Vec<_>>().join(",")
}

fn bank() -> ServiceKey {
    ServiceKey::new("bank", "payments")
}

#[tokio::test(start_paused = true)]
async fn the_export_that_exceeds_the_quota_says_so_and_follows_when_there_is_room_whoever_leads() {
    let world = World::new();
    let (mut blue, green) = (world.cluster("blue"), world.cluster("green"));
    blue.limit("names=2");
    blue.until_knows(&green).await;
    for name in ["a", "b", "c"] {
        blue.export(name, 80, &["10.0.0.1"]);
        blue.until_says(
            name,
            "Ready",
            if name == "c" { "False" } else { "True" },
            if name == "c" { "Failed" } else { "Exported" },
        )
        .await;
    }
    blue.until_says("c", "Registered", "False", "QuotaExceeded").await;
    let text = blue.condition("c", "Registered").unwrap().message;
    assert!(text.contains("shop") && text.contains("2 names") && text.contains(names::ANNOTATION_QUOTA), "{text}");
    assert_eq!(blue.condition("c", "Ready").unwrap().message, text);
    assert!(blue.imported("c").is_empty(), "not in this cluster either");
    // Not the others: another namespace, and what is there.
    blue.export_in(&bank(), 80, &["10.0.0.7"]);
    until("the bank is registered", || world.holds("bank", "payments") == ["10.0.0.7"]).await;
    blue.put_endpoints("a", &["10.0.0.2"]);
    until("a moves", || world.holds("shop", "a") == ["10.0.0.2"]).await;
    until("the use is shown", || {
        blue.shows("cloudmap_mcs_namespace_quota_used{kubernetes_namespace=\"shop\",resource=\"names\"} 2")
            && blue.shows("cloudmap_mcs_namespace_quota_limit{kubernetes_namespace=\"shop\",resource=\"names\"} 2")
            && blue.shows("cloudmap_mcs_quota_refused_objects 1")
    })
    .await;
    for _ in 0..2 {
        blue.kill();
        blue.lead();
        always("the next leader decides alike", Duration::from_mins(1), || {
            blue.says("c", "Registered").1 == "QuotaExceeded" && world.instances("b").len() == 1
        })
        .await;
    }
    blue.objects.remove_export(&key("a"));
    blue.until_says("c", "Ready", "True", "Exported").await;
    until("c is registered", || world.holds("shop", "c") == ["10.0.0.1"]).await;
    // An administrator gives more.
    blue.export("d", 80, &["10.0.0.4"]);
    blue.until_says("d", "Registered", "False", "QuotaExceeded").await;
    blue.objects.annotate_namespace("shop", &[(names::ANNOTATION_QUOTA, "names=3")]);
    blue.until_says("d", "Ready", "True", "Exported").await;
    until("and nothing is refused", || blue.shows("cloudmap_mcs_quota_refused_objects 0")).await;
}

#[tokio::test(start_paused = true)]
async fn endpoints_beyond_the_quota_are_left_out_and_those_that_go_are_removed_all_the_same() {
    let world = World::new();
    let (mut blue, green) = (world.cluster("blue"), world.cluster("green"));
    blue.limit("instances=6");
    blue.until_knows(&green).await;
    blue.export("small", 80, &["10.0.1.1"]);
    blue.export("big", 80, &["10.0.0.1"]);
    until("both are registered", || world.instances("small").len() + world.instances("big").len() == 2).await;
    let many: Vec<_> = (1..=20).map(|n| format!("10.0.0.{n}")).collect();
    let many: Vec<_> = many.iter().map(String::as_str).collect();
    blue.put_endpoints("big", &many);
    blue.until_says("big", "Registered", "False", "QuotaExceeded").await;
    let text = blue.condition("big", "Registered").unwrap().message;
    assert!(text.contains("Some endpoints are left out") && text.contains("6 instances"), "{text}");
    until("as many as there is room for", || world.instances("big").len() == 5).await;
    assert_eq!((world.holds("shop", "small"), blue.imported("big").len()), (vec!["10.0.1.1".to_owned()], 5));
    blue.put_endpoints("big", &many[15..]);
    until("the others follow", || world.holds("shop", "big") == many[15..]).await;
    blue.until_says("big", "Registered", "True", "Registered").await;
    blue.put_endpoints("big", &many[2..4]);
    until("and go", || world.holds("shop", "big") == many[2..4]).await;
}

/// A quota of 150 names, and a neighbour in another namespace that is registered.
async fn beside_the_bank(world: &World, blue: &mut Cluster, green: &Cluster) {
    blue.limit("names=150");
    blue.until_knows(green).await;
    blue.export_in(&bank(), 80, &["10.0.0.7"]);
    until("the bank is registered", || world.holds("bank", "payments") == ["10.0.0.7"]).await;
}

/// How many Cloud Map services there are for the tenant that asks for too much.
fn made_for_evil(world: &World) -> usize {
    world.fake.registry().services.values().filter(|there| there.name.starts_with("evil-")).count()
}

/// The neighbour's changes arrive at once.
async fn the_bank_moves(world: &World, blue: &Cluster) {
    for last in ["10.0.0.8", "10.0.0.9"] {
        blue.export_in(&bank(), 80, &[last]);
        let begun = tokio::time::Instant::now();
        until("the bank moves", || world.holds("bank", "payments") == [last]).await;
        assert!(begun.elapsed() < Duration::from_secs(15), "{:?}", begun.elapsed());
    }
}

/// 8 Services with 128 KiB of host names each made 95,264 names: nothing of this cluster moved any more.
#[tokio::test(start_paused = true)]
async fn services_with_thousands_of_host_names_delay_no_neighbour_and_go_without_a_trace() {
    let world = World::new();
    world.add_namespace("internal", NamespaceKind::DnsPrivate);
    let (mut blue, green) = (world.cluster("blue"), world.cluster("green"));
    beside_the_bank(&world, &mut blue, &green).await;
    let evil: Vec<_> = (0..8).map(|n| format!("evil-{n}")).collect();
    for name in &evil {
        let inner = "external-dns.alpha.kubernetes.io/internal-hostname";
        blue.headless(
            name,
            &[(HOSTNAME, &hosts(name, 2_000)), (inner, &hosts(&format!("in-{name}"), 2_000))],
            &["10.6.6.6"],
        );
    }
    let text = blue.until_noted("evil-0", "QuotaExceeded").await;
    assert!(text.contains("100 host names"), "{text}");
    let text = blue.until_noted("evil-3", "QuotaExceeded").await;
    assert!(text.contains("100 host names") || text.contains("150 names"), "{text}");
    until("as many as the quota allows", || made_for_evil(&world) == 150).await;
    the_bank_moves(&world, &blue).await;
    for name in &evil {
        blue.objects.remove_service(&key(name));
    }
    until("all of it goes", || made_for_evil(&world) == 0).await;
    until("nothing is counted any more", || {
        blue.shows("cloudmap_mcs_quota_refused_objects 0")
            && !blue.shows("cloudmap_mcs_namespace_quota_used{kubernetes_namespace=\"shop\",resource=\"names\"} 150")
    })
    .await;
}

/// Without a quota, the records of these exports alone would fill the ledger.
#[tokio::test(start_paused = true)]
async fn thousands_of_exports_delay_no_neighbour_and_go_without_a_trace() {
    const EVIL: usize = 22_000;
    let world = World::new();
    let (mut blue, green) = (world.cluster("blue"), world.cluster("green"));
    beside_the_bank(&world, &mut blue, &green).await;
    let evil: Vec<_> = (0..EVIL).map(|n| key(&format!("evil-{n}"))).collect();
    for key in &evil {
        blue.export_in(key, 80, &["10.6.6.6"]);
    }
    until("as many as the quota allows", || made_for_evil(&world) == 150).await;
    the_bank_moves(&world, &blue).await;
    for key in &evil {
        blue.objects.remove_export(key);
    }
    until("all of it goes", || made_for_evil(&world) == 0).await;
    until("nothing is counted any more", || blue.shows("cloudmap_mcs_quota_refused_objects 0")).await;
}

/// Set in the process that measures.
const ALONE: &str = "CLOUDMAP_MCS_TEST_ALONE";

/// With a tenth of the default quota, so that it takes seconds. Ten times the memory must leave room for everything else below
/// the shipped limit. The memory is that of a process of its own, and the fake API server and the fake Cloud Map are in it, so
/// that the controller has even less.
#[test]
fn the_worst_tenant_that_the_quotas_allow_stays_below_the_shipped_memory_limit() {
    if std::env::var_os(ALONE).is_some() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
        return runtime.block_on(the_worst_tenant());
    }
    let name = "the_worst_tenant_that_the_quotas_allow_stays_below_the_shipped_memory_limit";
    let name = format!("{}::{name}", module_path!().split_once("::").unwrap().1);
    let test = std::env::current_exe().unwrap();
    let run = Command::new(test).args([&name, "--exact", "--nocapture"]).env(ALONE, "1").output().unwrap();
    let said = String::from_utf8_lossy(&run.stdout);
    assert!(run.status.success() && said.contains("1 passed"), "{said}\n{}", String::from_utf8_lossy(&run.stderr));
}

/// The most memory that this process had, in bytes.
fn peak() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() * 1_024
}

async fn the_worst_tenant() {
    let world = World::new();
    world.add_namespace("internal", NamespaceKind::DnsPrivate);
    let mut blue = world.cluster("blue");
    let most = Quota::default().0;
    let most = Usage {
        names: most.names / 10,
        records: most.records / 10,
        instances: most.instances / 10,
        bytes: most.bytes / 10,
    };
    blue.limit(&Quota(most).to_string());
    blue.export_in(&bank(), 80, &["10.0.0.7"]);
    until("the bank is registered", || world.holds("bank", "payments") == ["10.0.0.7"]).await;
    let before = peak();
    let ten: Vec<_> = (1..=10).map(|n| format!("10.6.6.{n}")).collect();
    let ten: Vec<_> = ten.iter().map(String::as_str).collect();
    let pods: Vec<_> = (0..100).map(|n| format!("10.7.0.{}", n + 1)).collect();
    let pods: Vec<_> = pods.iter().map(String::as_str).collect();
    let made = || world.fake.registry().services.values().filter(|there| there.name.starts_with("evil-")).count();
    blue.headless("evil-0", &[(HOSTNAME, &hosts("evil-0", 50))], &["10.6.6.6"]);
    until("half of the names are those of annotations", || made() == 50).await;
    for n in 0..150 {
        blue.export(&format!("more-{n}"), 80, &ten);
    }
    let exported = || (0..150).filter(|n| blue.says(&format!("more-{n}"), "Ready").1 == "Exported").count();
    until("all names of the quota are used", || made() + exported() == most.names).await;
    for n in 1..4 {
        let name = format!("evil-{n}");
        blue.headless(&name, &[(HOSTNAME, &hosts(&name, 3_000))], &pods);
    }
    blue.put_endpoints("evil-0", &pods);
    tokio::time::sleep(Duration::from_mins(2)).await;
    blue.export_in(&bank(), 80, &["10.0.0.8"]);
    until("the bank moves", || world.holds("bank", "payments") == ["10.0.0.8"]).await;
    assert_eq!(made() + exported(), most.names, "nothing of it went");
    let grown = peak() - before;
    assert!(before + 10 * grown < LIMIT, "{} KiB, and then {} KiB more", before >> 10, grown >> 10);
}
