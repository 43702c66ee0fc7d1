//! What other clusters may bring into a cluster: closed namespaces, the annotation of a Namespace, and ClusterImportPolicies.

use std::time::Duration;

use serde_json::json;

use super::world::{Cluster, World, always, key, until};
use api::{AllowedNames, AllowedRanges, ClusterImportPolicySpec, ImportSources, names::ANNOTATION_ACCEPT_CLUSTERS};
use model::ServiceKey;

impl Cluster {
    /// Status, reason and message of the condition of a policy.
    fn enforced(&self, policy: &str) -> (String, String, String) {
        let status = self.objects.import_policy(policy).and_then(|policy| policy.status).unwrap_or_default();
        let condition = status.conditions.into_iter().find(|condition| condition.type_ == "Enforced");
        condition.map(|it| (it.status, it.reason, it.message)).unwrap_or_default()
    }

    fn excluded_names(&self, policy: &str) -> Option<i64> {
        self.objects.import_policy(policy)?.status?.excluded_names
    }

    /// Waits until an import says this of what does not count.
    async fn until_excluded(&self, name: &str, text: &str) {
        until(&format!("the import {name} says {text:?}"), || {
            self.import_condition(name, "Excluded").is_some_and(|said| said.message.contains(text))
        })
        .await;
    }
}

fn about(clusters: &[&str], spec: ClusterImportPolicySpec) -> ClusterImportPolicySpec {
    let clusters = Some(clusters.iter().map(ToString::to_string).collect());
    ClusterImportPolicySpec { from: ImportSources { clusters, ..ImportSources::default() }, ..spec }
}

fn denying(namespace: &str) -> ClusterImportPolicySpec {
    let namespaces = AllowedNames { allowed: None, denied: vec![namespace.to_owned()] };
    ClusterImportPolicySpec { namespaces, ..ClusterImportPolicySpec::default() }
}

#[tokio::test(start_paused = true)]
async fn a_closed_namespace_takes_no_exports_of_others_until_its_annotation_lists_them() {
    let world = World::new();
    let (blue, green) = (world.cluster("blue"), world.cluster("green"));
    let web = ServiceKey::new("default", "web");
    blue.objects.add_namespace("default");
    blue.export("known", 80, &["10.0.0.9"]);
    green.export_in(&web, 80, &["10.1.0.1"]);
    green.until_imports("known", &["10.0.0.9"]).await;
    until("the Namespace says so", || {
        blue.objects.take_note(|note| note.reason == "ImportExcluded").is_some_and(|note| {
            note.regarding.name.as_deref() == Some("default")
                && note.text.contains("green: its export is left out, because the namespace is closed")
                && note.text.contains(ANNOTATION_ACCEPT_CLUSTERS)
        })
    })
    .await;
    always("nothing is imported", Duration::from_secs(30), || blue.objects.import(&web).is_none()).await;
    // The own export counts, with the own endpoints alone.
    blue.export_in(&web, 80, &["10.0.0.1"]);
    until("the own export is imported", || blue.imported("web") == ["10.0.0.1"]).await;
    assert_eq!(green.imported("web"), ["10.1.0.1"], "closed there, too");

    blue.objects.annotate_namespace("default", &[(ANNOTATION_ACCEPT_CLUSTERS, "red,gr*")]);
    until("it is open", || blue.imported("web") == ["10.0.0.1", "10.1.0.1"]).await;
    blue.objects.annotate_namespace("default", &[(ANNOTATION_ACCEPT_CLUSTERS, "red")]);
    until("it is closed to green", || blue.imported("web") == ["10.0.0.1"]).await;
    blue.objects.annotate_namespace("default", &[(ANNOTATION_ACCEPT_CLUSTERS, "red,Green")]);
    until("a wrong id is said", || {
        blue.objects
            .take_note(|note| note.reason == "InvalidAnnotation")
            .is_some_and(|note| note.text.contains("\"Green\""))
    })
    .await;
}

/// What is excluded takes no part in the merge here, and all clusters still agree on conflicts.
#[tokio::test(start_paused = true)]
async fn an_excluded_export_decides_nothing_here_and_conflicts_are_judged_over_all() {
    let world = World::new();
    let (amber, mut blue) = (world.cluster("amber"), world.cluster("blue"));
    amber.export("web", 8080, &["10.1.0.1"]);
    amber.until_imports("web", &["10.1.0.1"]).await;
    // Every object in memory gets a serial number as its creation time, per cluster: make this one younger.
    for _ in 0..50 {
        blue.put_service("unrelated", 1);
    }
    blue.export("web", 80, &["10.0.0.1"]);
    // The oldest export wins, and an endpoint without a port of it serves nothing.
    let oldest = ["10.1.0.1"];
    let ports = |cluster: &Cluster| -> Vec<i32> {
        cluster.objects.import(&key("web")).unwrap().spec.ports.iter().map(|port| port.port).collect()
    };
    blue.until_says("web", "Conflict", "True", "PortConflict").await;
    assert_eq!(ports(&blue), [8080]);
    blue.until_imports("web", &oldest).await;

    blue.objects.put_import_policy("no-amber", about(&["am*"], denying("shop")));
    blue.until_imports("web", &["10.0.0.1"]).await;
    until("the own port counts", || ports(&blue) == [80]).await;
    blue.until_excluded("web", "ClusterImportPolicy no-amber does not let it into the namespace").await;
    assert_eq!(blue.sources("web")[0], ["blue".to_owned()].into());
    until("the policy says whom it is about, and how much it excludes", || {
        blue.enforced("no-amber") == ("True".into(), "Enforced".into(), "It is about amber.".into())
            && blue.excluded_names("no-amber") == Some(1)
    })
    .await;
    assert!(blue.shows("cloudmap_mcs_import_policy_excluded_names{policy=\"no-amber\"} 1"));
    assert_eq!(blue.says("web", "Conflict"), ("True".into(), "PortConflict".into()), "all clusters come to one result");
    assert_eq!(amber.imported("web"), oldest, "nothing changes elsewhere");
    tokio::time::sleep(Duration::from_secs(10)).await;
    let writes = blue.objects.writes();
    tokio::time::sleep(Duration::from_mins(3)).await;
    assert_eq!(blue.objects.writes(), writes, "nothing is written at rest");

    // A new leader that cannot read the registry takes nothing of it back, and says nothing else.
    blue.objects.take_notes();
    let (said, status) =
        (blue.import_condition("web", "Excluded"), blue.objects.import_policy("no-amber").unwrap().status);
    blue.kill();
    world.fail();
    blue.lead();
    always("what is said stays", Duration::from_mins(1), || {
        blue.import_condition("web", "Excluded") == said
            && blue.objects.import_policy("no-amber").unwrap().status == status
            && blue.objects.take_note(|note| note.reason == "ImportIncluded").is_none()
    })
    .await;
    world.heal();
    always("also when it is read again", Duration::from_mins(1), || {
        blue.import_condition("web", "Excluded") == said
            && blue.objects.import_policy("no-amber").unwrap().status == status
            && blue.objects.take_note(|note| note.reason == "ImportIncluded").is_none()
    })
    .await;

    blue.objects.remove_import_policy("no-amber");
    blue.until_imports("web", &oldest).await;
    until("it says nothing any more", || blue.import_condition("web", "Excluded").is_none()).await;
    let included = blue.objects.take_note(|note| note.reason == "ImportIncluded");
    assert!(included.is_some(), "its end is an Event");
}

/// A cluster that is not trusted any more goes at once, also while its ledger, or the registry, cannot be read.
#[tokio::test(start_paused = true)]
async fn a_policy_takes_effect_for_a_cluster_that_nobody_can_read() {
    let world = World::new();
    let (mut blue, green) = (world.cluster("blue"), world.cluster("green"));
    green.export("web", 80, &["10.1.0.1"]);
    green.export("api", 80, &["10.1.0.2"]);
    blue.export("api", 80, &["10.0.0.2"]);
    blue.until_imports("web", &["10.1.0.1"]).await;
    blue.until_imports("api", &["10.0.0.2", "10.1.0.2"]).await;
    blue.kill();
    world.fail();
    blue.lead();
    always("what is not known stays", Duration::from_secs(30), || {
        blue.imported("web") == ["10.1.0.1"] && blue.imported("api") == ["10.0.0.2", "10.1.0.2"]
    })
    .await;
    // The Namespace's own word, and that of a policy.
    blue.objects.annotate_namespace("shop", &[(ANNOTATION_ACCEPT_CLUSTERS, "red")]);
    until("nothing of it is left", || blue.is_clean("web")).await;
    until("the own endpoints stay", || blue.imported("api") == ["10.0.0.2"]).await;
    blue.objects.put_import_policy("no-green", about(&["green"], denying("*")));
    blue.objects.annotate_namespace("shop", &[]);
    always("a policy says it still", Duration::from_secs(20), || blue.imported("api") == ["10.0.0.2"]).await;
    world.heal();
    blue.objects.remove_import_policy("no-green");
    blue.until_imports("web", &["10.1.0.1"]).await;
    blue.until_imports("api", &["10.0.0.2", "10.1.0.2"]).await;
}

#[tokio::test(start_paused = true)]
async fn over_a_limit_of_names_the_imported_ones_stay_whoever_leads_and_no_more_come() {
    let world = World::new();
    let (mut blue, green) = (world.cluster("blue"), world.cluster("green"));
    blue.objects.put_import_policy("few", ClusterImportPolicySpec { max_names: Some(2), ..Default::default() });
    until("it is about nobody", || blue.enforced("few").1 == "NoCluster").await;
    green.export("m", 80, &["10.1.0.1"]);
    green.export("n", 80, &["10.1.0.2"]);
    blue.until_imports("n", &["10.1.0.2"]).await;
    blue.until_imports("m", &["10.1.0.1"]).await;
    // Earlier in every order.
    for name in ["a", "b", "c"] {
        green.export(name, 80, &["10.1.0.3"]);
    }
    green.until_imports("c", &["10.1.0.3"]).await;
    until("the policy counts them", || blue.excluded_names("few") == Some(3)).await;
    let stays =
        || blue.imported("m").len() + blue.imported("n").len() == 2 && ["a", "b", "c"].iter().all(|n| blue.is_clean(n));
    always("the first ones stay", Duration::from_secs(20), stays).await;
    blue.kill();
    blue.lead();
    always("the first ones stay, whoever leads", Duration::from_secs(30), || {
        blue.imported("m").len() + blue.imported("n").len() == 2 && ["a", "b", "c"].iter().all(|n| blue.is_clean(n))
    })
    .await;
    // Room for one more.
    green.objects.remove_export(&key("m"));
    blue.until_imports("a", &["10.1.0.3"]).await;
    until("the other is gone", || blue.is_clean("m") && blue.is_clean("b") && blue.imported("n").len() == 1).await;
    blue.objects.put_import_policy("few", ClusterImportPolicySpec { max_names: Some(9), ..Default::default() });
    blue.until_imports("b", &["10.1.0.3"]).await;
    blue.until_imports("c", &["10.1.0.3"]).await;
    until("nothing is left out", || blue.excluded_names("few") == Some(0)).await;
}

#[tokio::test(start_paused = true)]
async fn addresses_and_endpoints_that_a_policy_does_not_allow_are_left_out_and_said() {
    let world = World::new();
    let (blue, green) = (world.cluster("blue"), world.cluster("green"));
    let range = |range: &str| vec![range.to_owned()];
    let spec = ClusterImportPolicySpec {
        addresses: AllowedRanges { allowed: Some(range("10.0.0.0/8")), denied: range("10.9.0.0/16") },
        max_endpoints_per_name: Some(2),
        ..ClusterImportPolicySpec::default()
    };
    blue.objects.put_import_policy("narrow", spec.clone());
    green.export("web", 80, &["10.1.0.1", "10.9.0.1", "192.168.0.1"]);
    blue.until_imports("web", &["10.1.0.1"]).await;
    blue.until_excluded("web", "ClusterImportPolicy narrow does not allow their addresses").await;
    green.put_endpoints("web", &["10.1.0.1", "10.1.0.5", "10.1.0.3", "10.1.0.4"]);
    until("two are shown, the former one among them", || {
        let shown = blue.imported("web");
        shown.len() == 2 && shown.contains(&"10.1.0.1".to_owned())
    })
    .await;
    blue.until_excluded("web", "lets it have 2 of them under a name").await;
    let shown = blue.imported("web");
    green.put_endpoints("web", &["10.1.0.0", "10.1.0.1", "10.1.0.5", "10.1.0.3", "10.1.0.4"]);
    always("those that are shown stay", Duration::from_secs(10), || blue.imported("web") == shown).await;
    let gone: Vec<&str> = shown.iter().map(|address| &**address).collect();
    green.put_readiness("web", &[(gone[0], false), (gone[1], true), ("10.1.0.9", true)]);
    until("a ready one displaces only one that is not", || {
        let now = blue.imported("web");
        now.len() == 2 && now.contains(&shown[1]) && now.contains(&"10.1.0.9".to_owned())
    })
    .await;

    let wrong = AllowedRanges { allowed: None, denied: range("10.300.0.0/8") };
    blue.objects.put_import_policy("narrow", ClusterImportPolicySpec { addresses: wrong, ..spec });
    until("a wrong range is said, and the rest is in force", || {
        let (status, reason, message) = blue.enforced("narrow");
        status == "False" && reason == "InvalidSpec" && message.contains("spec.addresses.denied has \"10.300.0.0/8\"")
    })
    .await;
    assert_eq!(blue.imported("web").len(), 2);
}

/// A hostile member exports what it can think of: nothing of it shows under the default policy and one that an administrator wrote
/// for it, and the other names do not notice.
#[tokio::test(start_paused = true)]
async fn a_hostile_member_brings_in_nothing_that_policies_do_not_allow() {
    let world = World::new();
    let (blue, green, mallory) = (world.cluster("blue"), world.cluster("green"), world.cluster("mallory"));
    for namespace in ["kube-system", "default", "team"] {
        blue.objects.add_namespace(namespace);
    }
    let partner = ClusterImportPolicySpec {
        namespaces: AllowedNames { allowed: Some(vec!["shop".to_owned()]), denied: Vec::new() },
        addresses: AllowedRanges { allowed: Some(vec!["10.66.0.0/16".to_owned()]), denied: Vec::new() },
        max_names: Some(8),
        ..ClusterImportPolicySpec::default()
    };
    blue.objects.put_import_policy("mallory", about(&["mal*"], partner));
    green.export("web", 80, &["10.1.0.1"]);
    blue.until_imports("web", &["10.1.0.1"]).await;
    let outside = [("kube-system", "coredns"), ("default", "kubernetes"), ("default", "web"), ("team", "db")];
    for (namespace, name) in outside {
        mallory.export_in(&ServiceKey::new(namespace, name), 443, &["10.66.0.1"]);
    }
    for n in 0..40 {
        mallory.export(&format!("junk-{n}"), 80, &["10.66.0.2"]);
    }
    // Addresses of this cluster's Services, of its nodes and of other clusters' pods.
    mallory.export("web", 80, &["10.96.0.1", "192.168.7.7", "10.1.0.1"]);
    until("as many names as it may have", || {
        blue.objects.slices().iter().filter(|slice| json!(slice).to_string().contains("mallory")).count() > 0
            && blue.excluded_names("mallory").is_some_and(|count| count > 30)
    })
    .await;
    let names = || (0..40).filter(|n| !blue.is_clean(&format!("junk-{n}"))).count();
    always("nothing else ever shows", Duration::from_mins(1), || {
        names() <= 8
            && blue.imported("web") == ["10.1.0.1"]
            && outside
                .iter()
                .all(|(namespace, name)| blue.objects.import(&ServiceKey::new(*namespace, *name)).is_none())
    })
    .await;
    assert!(names() >= 7, "{} names", names());
    green.put_endpoints("web", &["10.1.0.2"]);
    blue.until_imports("web", &["10.1.0.2"]).await;
}
