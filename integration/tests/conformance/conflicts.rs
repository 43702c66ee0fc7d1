//! Several clusters export one name and do not agree.

use std::collections::BTreeSet;

use anyhow::Result;
use cloudmap_mcs_integration::scenario::{
    Cluster, PROPAGATION, SERVICE, SERVICE_EXPORT, Skip, World, condition, eventually, holds, manifests, name_of,
};
use serde_json::{Value, json};

use crate::check::{Check, check};
use crate::facts::{self, AGE};

pub(crate) const CHECKS: &[Check] = &[
    check!(All, [15, 16, 17, 19, 22], conflicts::over_the_type),
    check!(All, [15, 16, 17, 19, 23], conflicts::over_the_session_affinity),
    check!(All, [15, 16, 17, 19, 23], conflicts::over_the_configuration_of_the_session_affinity),
    check!(All, [15, 16, 17, 19, 24], conflicts::over_the_internal_traffic_policy),
    check!(All, [15, 16, 17, 19, 24], conflicts::over_the_traffic_distribution),
    check!(All, [15, 16, 17, 19, 25], conflicts::over_labels),
    check!(All, [15, 16, 17, 19, 25], conflicts::over_annotations),
    check!(Two, [15, 16, 26], conflicts::over_ip_families),
    check!(All, [15], conflicts::over_several_properties_have_all_reasons),
    check!(All, [19], conflicts::of_exports_of_one_second_have_the_same_winner_everywhere),
    check!(Two, [20, 21, 32], conflicts::leave_running_traffic_alone),
    check!(All, [20, 29, 32], conflicts::end_when_the_oldest_export_goes),
];

/// A Service and a ServiceExport of one name.
#[derive(Debug, Clone)]
pub(crate) struct Exported {
    pub service: Value,
    pub export: Value,
}

impl Exported {
    pub(crate) fn service(service: Value) -> Self {
        let export = manifests::export(name_of(&service));
        Self { service, export }
    }

    /// The Service `web` with these fields in its spec.
    fn with(fields: &Value) -> Self {
        Self::service(manifests::with_spec(manifests::single_stack("web", &[manifests::http(80)]), fields))
    }

    /// The ServiceExport `web` with these fields in its spec.
    fn exporting(fields: &Value) -> Self {
        let plain = Self::with(&json!({}));
        Self { export: manifests::with_spec(plain.export, fields), ..plain }
    }

    async fn apply(&self, world: &World, cluster: &Cluster) -> Result<()> {
        world.apply(cluster, self.service.clone()).await?;
        world.apply(cluster, self.export.clone()).await.map(drop)
    }
}

/// What differs, and what should come of it.
pub(crate) struct Dispute<'a> {
    pub oldest: Exported,
    /// Exported by the last cluster; those between export what the oldest one does.
    pub youngest: Exported,
    pub reason: &'a str,
    /// What the message must name, in small letters without spaces.
    pub field: &'a str,
    /// Whether the import is as the oldest export has it.
    pub decided: &'a dyn Fn(&Value) -> bool,
}

impl Dispute<'_> {
    /// The clusters export one after the other; all of them say the conflict, all of them import what the oldest
    /// exports, and when they agree no one says a conflict any more.
    pub(crate) async fn play(&self, world: &World) -> Result<()> {
        // The oldest is not the cluster that would win by its id.
        let mut order: Vec<&Cluster> = world.clusters.iter().collect();
        order.swap(0, 1);
        let (oldest, count) = (order[0], order.len());
        let youngest = if count == 2 { order[1] } else { order[2] };
        for cluster in &order {
            let exported = if cluster.id == youngest.id { &self.youngest } else { &self.oldest };
            exported.apply(world, cluster).await?;
            world.export_condition(cluster, "web", "Ready", "True", "Exported").await?;
            tokio::time::sleep(AGE).await;
        }
        for cluster in &world.clusters {
            // A cluster may hear of the others one after the other.
            eventually(&format!("{} says the conflict", cluster.context), PROPAGATION, async || {
                let export = cluster.expect(SERVICE_EXPORT, &world.namespace, "web").await?;
                let condition = condition(&export, "Conflict");
                holds(condition["status"] == "True" && condition["reason"] == self.reason, self.reason, &export)?;
                let message = condition["message"].as_str().unwrap_or_default();
                let plain = message.to_lowercase().replace(' ', "");
                holds(plain.contains(self.field), &format!("the message names the {}", self.field), &condition)?;
                holds(message.contains(&oldest.id), "the message names the cluster that wins", &condition)?;
                let share = format!("1/{count}");
                holds(message.contains(&share), &format!("the message says that {share} disagree"), &condition)
            })
            .await?;
            facts::import_where(world, cluster, "web", "it is as the oldest export has it", self.decided).await?;
            facts::import_where(world, cluster, "web", "all clusters are in its status", |import| {
                facts::clusters_of(import).len() == count
            })
            .await?;
        }
        if self.youngest.service["spec"]["clusterIP"] != self.oldest.service["spec"]["clusterIP"] {
            youngest.delete(SERVICE, &world.namespace, "web").await?;
        }
        self.oldest.apply(world, youngest).await?;
        for cluster in &world.clusters {
            world.export_condition(cluster, "web", "Conflict", "False", "NoConflicts").await?;
        }
        Ok(())
    }
}

async fn over_the_type(world: &World) -> Result<()> {
    Dispute {
        oldest: Exported::with(&json!({})),
        youngest: Exported::with(&json!({"clusterIP": "None"})),
        reason: "TypeConflict",
        field: "type",
        decided: &|import| import["spec"]["type"] == "ClusterSetIP",
    }
    .play(world)
    .await
}

async fn over_the_session_affinity(world: &World) -> Result<()> {
    Dispute {
        oldest: Exported::with(&json!({"sessionAffinity": "ClientIP"})),
        youngest: Exported::with(&json!({"sessionAffinity": "None"})),
        reason: "SessionAffinityConflict",
        field: "sessionaffinity",
        decided: &|import| import["spec"]["sessionAffinity"] == "ClientIP",
    }
    .play(world)
    .await
}

async fn over_the_configuration_of_the_session_affinity(world: &World) -> Result<()> {
    let after = |seconds: u32| {
        let config = json!({"clientIP": {"timeoutSeconds": seconds}});
        Exported::with(&json!({"sessionAffinity": "ClientIP", "sessionAffinityConfig": config}))
    };
    Dispute {
        oldest: after(100),
        youngest: after(200),
        reason: "SessionAffinityConfigConflict",
        field: "sessionaffinityconfig",
        decided: &|import| import["spec"]["sessionAffinityConfig"]["clientIP"]["timeoutSeconds"] == 100,
    }
    .play(world)
    .await
}

async fn over_the_internal_traffic_policy(world: &World) -> Result<()> {
    Dispute {
        oldest: Exported::with(&json!({"internalTrafficPolicy": "Local"})),
        youngest: Exported::with(&json!({"internalTrafficPolicy": "Cluster"})),
        reason: "InternalTrafficPolicyConflict",
        field: "internaltrafficpolicy",
        decided: &|import| import["spec"]["internalTrafficPolicy"] == "Local",
    }
    .play(world)
    .await
}

async fn over_the_traffic_distribution(world: &World) -> Result<()> {
    facts::needs(&world.clusters[0], facts::TRAFFIC_DISTRIBUTION).await?;
    Dispute {
        oldest: Exported::with(&json!({"trafficDistribution": "PreferClose"})),
        youngest: Exported::with(&json!({})),
        reason: "TrafficDistributionConflict",
        field: "trafficdistribution",
        decided: &|import| import["spec"]["trafficDistribution"] == "PreferClose",
    }
    .play(world)
    .await
}

async fn over_labels(world: &World) -> Result<()> {
    Dispute {
        oldest: Exported::exporting(&json!({"exportedLabels": {"example.com/a": "1", "example.com/b": "1"}})),
        youngest: Exported::exporting(&json!({"exportedLabels": {"example.com/a": "2", "example.com/c": "2"}})),
        reason: "LabelsConflict",
        field: "label",
        decided: &|import| {
            let labels = &import["metadata"]["labels"];
            labels["example.com/a"] == "1" && labels["example.com/b"] == "1" && labels["example.com/c"].is_null()
        },
    }
    .play(world)
    .await
}

async fn over_annotations(world: &World) -> Result<()> {
    Dispute {
        oldest: Exported::exporting(&json!({"exportedAnnotations": {"example.com/a": "1"}})),
        youngest: Exported::exporting(&json!({"exportedAnnotations": {"example.com/c": "2"}})),
        reason: "AnnotationsConflict",
        field: "annotation",
        decided: &|import| {
            let annotations = &import["metadata"]["annotations"];
            annotations["example.com/a"] == "1" && annotations["example.com/c"].is_null()
        },
    }
    .play(world)
    .await
}

/// The older export has both families, the younger one only one of them, and then both.
async fn over_ip_families(world: &World) -> Result<()> {
    let [younger, older] = world.pair();
    facts::export(world, older, manifests::service("web", &[manifests::http(80)])).await?;
    for cluster in [older, younger] {
        let service = manifests::service("probe", &[manifests::http(80)]);
        let families = world.apply(cluster, service).await?["spec"]["ipFamilies"].clone();
        if facts::strings(&families).len() < 2 {
            return Err(Skip(format!("needs two dual-stack clusters; {} has {families}", cluster.context)).into());
        }
    }
    let both = facts::import_with_ips(world, younger, "web").await?;
    tokio::time::sleep(AGE).await;
    facts::export(world, younger, manifests::single_stack("web", &[manifests::http(80)])).await?;
    for cluster in [older, younger] {
        let condition = world.export_condition(cluster, "web", "Conflict", "True", "IPFamilyConflict").await?;
        let message = condition["message"].as_str().unwrap_or_default().to_lowercase().replace(' ', "");
        let named = message.contains("ipfamil") && message.contains(&older.id);
        holds(named, "the message names the field and the cluster that wins", &condition)?;
        let import = facts::import_with_ips(world, cluster, "web").await?;
        let families = facts::strings(&import["spec"]["ipFamilies"]);
        let distinct: BTreeSet<_> = families.iter().collect();
        holds(distinct.len() == families.len() && !families.is_empty(), "no family is there twice", &import)?;
    }
    let import = younger.expect(cloudmap_mcs_integration::scenario::SERVICE_IMPORT, &world.namespace, "web").await?;
    holds(import["spec"]["ips"][0] == both["spec"]["ips"][0], "the first address stays", &import)?;
    world.apply(younger, manifests::service("web", &[manifests::http(80)])).await?;
    for cluster in [older, younger] {
        world.export_condition(cluster, "web", "Conflict", "False", "NoConflicts").await?;
    }
    Ok(())
}

async fn over_several_properties_have_all_reasons(world: &World) -> Result<()> {
    let mut order: Vec<&Cluster> = world.clusters.iter().collect();
    order.swap(0, 1);
    let different = Exported {
        export: manifests::with_spec(manifests::export("web"), &json!({"exportedLabels": {"example.com/a": "1"}})),
        ..Exported::service(manifests::with_spec(
            manifests::single_stack("web", &[manifests::http(81)]),
            &json!({"sessionAffinity": "ClientIP", "internalTrafficPolicy": "Local"}),
        ))
    };
    Exported::with(&json!({})).apply(world, order[0]).await?;
    world.export_condition(order[0], "web", "Conflict", "False", "NoConflicts").await?;
    tokio::time::sleep(AGE).await;
    for cluster in &order[1..] {
        different.apply(world, cluster).await?;
    }
    let wanted =
        BTreeSet::from(["PortConflict", "SessionAffinityConflict", "InternalTrafficPolicyConflict", "LabelsConflict"]);
    for cluster in &world.clusters {
        eventually("the reasons are joined with commas", PROPAGATION, async || {
            let export = cluster.expect(SERVICE_EXPORT, &world.namespace, "web").await?;
            let condition = condition(&export, "Conflict");
            let reasons: BTreeSet<_> = condition["reason"].as_str().unwrap_or_default().split(',').collect();
            holds(reasons == wanted, &format!("the reasons are {wanted:?}"), condition)?;
            let message = condition["message"].as_str().unwrap_or_default();
            let count = format!("{}/{}", world.clusters.len() - 1, world.clusters.len());
            holds(message.contains(&count), &format!("the message says that {count} disagree"), condition)
        })
        .await?;
    }
    Ok(())
}

/// Creation times are whole seconds: these exports are equally old, or nearly so.
async fn of_exports_of_one_second_have_the_same_winner_everywhere(world: &World) -> Result<()> {
    let exports = world.clusters.iter().enumerate().map(async |(n, cluster)| {
        let config = json!({"clientIP": {"timeoutSeconds": 100 + n}});
        let fields = json!({"sessionAffinity": "ClientIP", "sessionAffinityConfig": config});
        Exported::with(&fields).apply(world, cluster).await
    });
    futures::future::try_join_all(exports).await?;
    let mut ages = Vec::new();
    for (n, cluster) in world.clusters.iter().enumerate() {
        world.export_condition(cluster, "web", "Conflict", "True", "SessionAffinityConfigConflict").await?;
        let export = cluster.expect(SERVICE_EXPORT, &world.namespace, "web").await?;
        let created = export["metadata"]["creationTimestamp"].as_str().unwrap_or_default().to_owned();
        ages.push((created, cluster.id.clone(), 100 + n));
    }
    ages.sort();
    let (_, winner, seconds) = &ages[0];
    for cluster in &world.clusters {
        let what = format!("{winner} decides, by age and then by id: {ages:?}");
        facts::import_where(world, cluster, "web", &what, |import| {
            import["spec"]["sessionAffinityConfig"]["clientIP"]["timeoutSeconds"] == *seconds
        })
        .await?;
    }
    Ok(())
}

/// A younger export differs in everything, also in the number of the port: under load nothing changes but that it is said.
async fn leave_running_traffic_alone(world: &World) -> Result<()> {
    let [younger, older] = world.pair();
    for cluster in [older, younger] {
        world.deploy(cluster, "web", 1).await?;
    }
    facts::export(world, older, manifests::service("web", &[manifests::http(80)])).await?;
    let before = facts::import_with_ips(world, younger, "web").await?;
    world.followed(older, "web").await?;
    let url = format!("http://{}/hostname", world.name("web"));
    let pods = facts::pods(world, older, "web").await?;
    facts::reaches(younger, None, &url, &pods).await?;
    tokio::time::sleep(AGE).await;
    let arrival = async {
        let fields = json!({"clusterIP": "None", "sessionAffinity": "ClientIP", "internalTrafficPolicy": "Local"});
        let service = manifests::service("web", &[manifests::http(8080)]);
        facts::export(world, younger, manifests::with_spec(service, &fields)).await?;
        for cluster in [older, younger] {
            eventually("the conflict is said", PROPAGATION, async || {
                let export = cluster.expect(SERVICE_EXPORT, &world.namespace, "web").await?;
                let conflict = condition(&export, "Conflict");
                holds(conflict["status"] == "True", "there is a conflict", conflict)
            })
            .await?;
        }
        facts::reaches(younger, None, &url, &pods).await
    };
    let ((), load) = younger.load(&url, arrival).await?;
    holds(load.failures.is_empty() && load.answers > 0, "every request was answered", &load)?;
    let after = world.imported(younger, "web").await?;
    let (mut old, mut new) = (before["spec"].clone(), after["spec"].clone());
    let ports = [facts::ports(&old["ports"]), facts::ports(&new["ports"])];
    holds(ports[1].is_superset(&ports[0]), "the ports are still there", &after)?;
    for spec in [&mut old, &mut new] {
        spec["ports"].take();
    }
    holds(old == new, &format!("nothing else of the spec has changed; it was {old}"), &new)?;
    holds(before["metadata"]["uid"] == after["metadata"]["uid"], "it is the same object", &after)
}

async fn end_when_the_oldest_export_goes(world: &World) -> Result<()> {
    let mut order: Vec<&Cluster> = world.clusters.iter().collect();
    order.swap(0, 1);
    let after = |seconds: u32| {
        let config = json!({"clientIP": {"timeoutSeconds": seconds}});
        Exported::with(&json!({"sessionAffinity": "ClientIP", "sessionAffinityConfig": config}))
    };
    after(100).apply(world, order[0]).await?;
    world.export_condition(order[0], "web", "Ready", "True", "Exported").await?;
    tokio::time::sleep(AGE).await;
    for cluster in &order[1..] {
        after(200).apply(world, cluster).await?;
    }
    for cluster in &world.clusters {
        world.export_condition(cluster, "web", "Conflict", "True", "SessionAffinityConfigConflict").await?;
    }
    let mut before = Vec::new();
    for cluster in &world.clusters {
        before.push(facts::import_with_ips(world, cluster, "web").await?);
    }
    order[0].delete(SERVICE_EXPORT, &world.namespace, "web").await?;
    for cluster in &order[1..] {
        world.export_condition(cluster, "web", "Conflict", "False", "NoConflicts").await?;
    }
    for (cluster, before) in world.clusters.iter().zip(&before) {
        let import = facts::import_where(world, cluster, "web", "the oldest cluster is not in its status", |import| {
            facts::clusters_of(import).len() == order.len() - 1
        })
        .await?;
        holds(import["spec"]["ips"] == before["spec"]["ips"], "its addresses are what they were", &import)?;
        holds(import["metadata"]["uid"] == before["metadata"]["uid"], "it is the same object", &import)?;
    }
    Ok(())
}
