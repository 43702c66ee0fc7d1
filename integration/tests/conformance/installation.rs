//! What is installed: definitions and identity.

use std::collections::BTreeSet;

use anyhow::Result;
use cloudmap_mcs_integration::scenario::{
    CLUSTER_PROPERTY, CUSTOM_RESOURCE_DEFINITION, Cluster, Skip, World, contexts, holds,
};

use crate::check::{Check, check};
use crate::facts;

pub(crate) const CHECKS: &[Check] = &[
    check!(Two, [52, 51, 33], installation::has_the_definitions_of_the_standard),
    check!(Two, [53], installation::is_useful_with_kubectl_get),
    check!(Two, [1, 2], installation::has_an_identity_in_every_cluster),
];

async fn has_the_definitions_of_the_standard(world: &World) -> Result<()> {
    for cluster in &world.clusters {
        for name in ["serviceexports.multicluster.x-k8s.io", "serviceimports.multicluster.x-k8s.io"] {
            let definition = cluster.expect(CUSTOM_RESOURCE_DEFINITION, "", name).await?;
            let spec = &definition["spec"];
            let strategy = &spec["conversion"]["strategy"];
            holds(strategy.is_null() || strategy == "None", "there is no conversion webhook", &spec["conversion"])?;
            let versions: Vec<_> = spec["versions"].as_array().into_iter().flatten().collect();
            let served: BTreeSet<_> = versions
                .iter()
                .filter(|version| version["served"] == true)
                .filter_map(|v| v["name"].as_str())
                .collect();
            holds(served.is_superset(&["v1alpha1", "v1beta1"].into()), "both versions are served", &served)?;
            let labels = &definition["metadata"]["labels"];
            holds(
                labels["multicluster.x-k8s.io/release-version"].is_string()
                    && labels["multicluster.x-k8s.io/crd-schema-revision"].is_string(),
                "labels say which release of the standard it is",
                labels,
            )?;
            for version in versions {
                holds(version["subresources"]["status"].is_object(), "there is a status subresource", version)?;
                let schema = &version["schema"]["openAPIV3Schema"]["properties"];
                if name.starts_with("serviceimports") {
                    let status = &schema["status"]["properties"];
                    holds(status["endpointSliceObjects"].is_object(), "the status has endpointSliceObjects", status)?;
                    let ips = &schema["spec"]["properties"]["ips"];
                    holds(ips["maxItems"] == 2, "there are at most two addresses", ips)?;
                }
            }
        }
        let definition = cluster.expect(CUSTOM_RESOURCE_DEFINITION, "", "clusterproperties.about.k8s.io").await?;
        let served = definition["spec"]["versions"].as_array().into_iter().flatten();
        let served = served.filter(|version| version["served"] == true).any(|version| version["name"] == "v1beta1");
        holds(served, "ClusterProperty v1beta1 is served", &definition["spec"]["versions"])?;
    }
    Ok(())
}

async fn is_useful_with_kubectl_get(world: &World) -> Result<()> {
    for cluster in &world.clusters {
        for name in ["serviceexports.multicluster.x-k8s.io", "serviceimports.multicluster.x-k8s.io"] {
            let definition = cluster.expect(CUSTOM_RESOURCE_DEFINITION, "", name).await?;
            let names = &definition["spec"]["names"];
            holds(!facts::strings(&names["shortNames"]).is_empty(), "there are short names", names)?;
            holds(!facts::strings(&names["categories"]).is_empty(), "there are categories", names)?;
            for version in definition["spec"]["versions"].as_array().into_iter().flatten() {
                let columns = &version["additionalPrinterColumns"];
                let more =
                    columns.as_array().is_some_and(|columns| columns.iter().any(|column| column["name"] != "Age"));
                holds(more, &format!("kubectl get shows more of {name} than name and age"), columns)?;
            }
        }
    }
    Ok(())
}

async fn has_an_identity_in_every_cluster(_: &World) -> Result<()> {
    let (mut ids, mut sets) = (BTreeSet::new(), BTreeSet::new());
    let contexts = contexts()?;
    for context in &contexts {
        let cluster = Cluster::connect(context).await?;
        let id = &cluster.id;
        let labels = id.len() < 128 && id.split('.').all(is_dns_label);
        holds(labels, "the cluster id is a DNS subdomain of less than 128 characters", id)?;
        ids.insert(id.clone());
        let Some(set) = cluster.get(CLUSTER_PROPERTY, "", "clusterset.k8s.io").await? else {
            return Err(Skip(format!("{context} has no ClusterProperty clusterset.k8s.io")).into());
        };
        sets.insert(set["spec"]["value"].to_string());
    }
    holds(ids.len() == contexts.len(), "the cluster ids differ", &ids)?;
    holds(sets.len() == 1, "they are in one ClusterSet", &sets)
}

fn is_dns_label(label: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    (1..=63).contains(&label.len())
        && label.bytes().all(|byte| plain(byte) || byte == b'-')
        && label.bytes().next().is_some_and(plain)
        && label.bytes().last().is_some_and(plain)
}
