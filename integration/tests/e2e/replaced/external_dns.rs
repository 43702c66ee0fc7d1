//! external-dns with the provider `aws-sd`: the Services of its tutorials, and what its other documents say of sources.

use std::collections::BTreeSet;

use anyhow::{Context as _, Result};
use cloudmap_mcs_integration::ecs::Ecs;
use cloudmap_mcs_integration::scenario::{
    Cluster, EVENT, INGRESS, NAMES, POD, SERVICE, World, eventually, holds, manifests,
};
use serde_json::{Value, json};

use super::{leads_to, serve, set};

/// The Cloud Map namespace of its tutorial for this provider.
const ZONE: &str = "external-dns-test.my-org.com";
/// That of its other tutorials.
const EXAMPLE: &str = "example.org";
/// The prefix of all its tutorials, and the one that is its default since v0.22.
const PREFIXES: [&str; 2] = ["external-dns.alpha.kubernetes.io/", "external-dns.kubernetes.io/"];

/// A Service with annotations.
fn service(name: &str, annotations: &Value, spec: &Value) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Service", "metadata": {"name": name, "annotations": annotations}, "spec": spec,
    })
}

/// The spec of the tutorial's Service, of another kind.
fn nginx(fields: &Value) -> Value {
    let spec = json!({"ports": [{"port": 80, "name": "http", "targetPort": 80}], "selector": {"app": "nginx"}});
    manifests::with_spec(json!({"spec": spec}), fields)["spec"].clone()
}

fn hostname(prefix: usize, name: &str) -> Value {
    json!({format!("{}hostname", PREFIXES[prefix]): name})
}

/// An IPv4 address of a pod.
async fn pod_ip(world: &World, cluster: &Cluster, pod: &str) -> Result<String> {
    let pod = cluster.expect(POD, &world.namespace, pod).await?;
    let ips = pod["status"]["podIPs"].as_array().context("the pod has no addresses")?;
    let four = ips.iter().filter_map(|ip| ip["ip"].as_str()).find(|ip| !ip.contains(':'));
    four.map(ToOwned::to_owned).context("the pod has no IPv4 address")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_services_of_its_tutorials_work_unchanged() {
    World::run_in(&[4, 5], &[], "external-dns", async |world| {
        let [here, there] = world.pair();
        let ecs = Ecs::from_env().await?;
        ecs.cloud_map().public_namespace(ZONE, 1).await?;
        ecs.cloud_map().public_namespace(EXAMPLE, 1).await?;
        serve(world, here, "nginx", 2).await?;
        let (balanced, rest) = tokio::join!(load_balancer(world, here, there), async {
            external_names(world, here).await?;
            cluster_ip(world, here).await?;
            pods_of_a_stateful_set(world, here).await
        });
        balanced?;
        rest?;
        headless(world, here, there).await?;
        for name in ["nginx", "nginx-internal", "aws-service", "ksvc"] {
            here.delete(SERVICE, &world.namespace, name).await?;
        }
        for name in ["nginx", "nginx-internal"] {
            world.names()?.have_not(&format!("{name}.{ZONE}")).await?;
        }
        for name in ["tenant1", "tenant2", "kafka-0", "kafka-1"] {
            world.names()?.have_not(&format!("{name}.{EXAMPLE}")).await?;
        }
        eventually("it is said that the Service was deleted", NAMES, async || {
            let events = here.list(EVENT, &world.namespace, "").await?;
            let told =
                events.iter().any(|event| event["reason"] == "ServiceDeleted" && event["regarding"]["name"] == "nginx");
            holds(told, "an Event says so", &events.iter().map(|event| &event["reason"]).collect::<Vec<_>>())
        })
        .await
    })
    .await;
}

/// The tutorial's own: a load balancer of AWS, which the scenario plays, becomes an alias.
async fn load_balancer(world: &World, here: &Cluster, there: &Cluster) -> Result<()> {
    let name = format!("nginx.{ZONE}");
    world.apply(here, service("nginx", &hostname(0, &name), &nginx(&json!({"type": "LoadBalancer"})))).await?;
    let pod = world.pods(here, "nginx").await?.into_iter().next().context("no pod")?;
    let address = pod_ip(world, here, &pod).await?;
    let balancer = format!("{}.elb.eu-central-1.amazonaws.com", world.namespace);
    world.registry()?.set_load_balancer(&balancer, std::slice::from_ref(&address)).await?;
    let status = json!({"status": {"loadBalancer": {"ingress": [{"hostname": balancer}]}}});
    here.merge_status(SERVICE, &world.namespace, "nginx", &status).await?;
    world.names()?.have(&name, "A", &[address].into()).await?;
    leads_to(there, &name, &[pod].into()).await?;
    // Discovery may lag behind DNS.
    eventually("the alias is discovered", NAMES, async || {
        let instances = world.registry()?.discover(ZONE, "nginx").await?;
        let alias = instances.values().all(|attributes| attributes.get("AWS_ALIAS_DNS_NAME") == Some(&balancer));
        holds(instances.len() == 1 && alias, "the load balancer is an alias", &instances)
    })
    .await?;
    world.described(here, SERVICE, "nginx", "IPRegistered", &balancer).await
}

/// The same Service, headless, with the tutorial's TTL and the other prefix; its annotation is changed and removed.
async fn headless(world: &World, here: &Cluster, there: &Cluster) -> Result<()> {
    let name = format!("nginx-headless.{ZONE}");
    let mut annotations = hostname(1, &name);
    annotations[format!("{}ttl", PREFIXES[1])] = "60".into();
    let spec = nginx(&json!({"clusterIP": "None"}));
    world.apply(here, service("nginx-headless", &annotations, &spec)).await?;
    let addresses = world.pod_ipv4s(here, "nginx").await?;
    world.names()?.have(&name, "A", &addresses).await?;
    world.names()?.have_ttl(&name, "A", 60).await?;
    leads_to(there, &name, &world.pods(here, "nginx").await?).await?;
    for replicas in [3, 1] {
        serve(world, here, "nginx", replicas).await?;
        world.names()?.have(&name, "A", &world.pod_ipv4s(here, "nginx").await?).await?;
    }
    let addresses = world.pod_ipv4s(here, "nginx").await?;
    // The prefix of the tutorials, several names, and one that is in no namespace.
    let other = format!("nginx-other.{ZONE}");
    let list = format!("{other}, nginx-third.{ZONE}, nginx.my-org.net");
    world.apply(here, service("nginx-headless", &hostname(0, &list), &spec)).await?;
    for name in [&other, &format!("nginx-third.{ZONE}")] {
        world.names()?.have(name, "A", &addresses).await?;
        // That of external-dns.
        world.names()?.have_ttl(name, "A", 300).await?;
    }
    world.names()?.have_not(&name).await?;
    world.described(here, SERVICE, "nginx-headless", "NoNamespace", "nginx.my-org.net").await?;
    world.described(here, SERVICE, "nginx-headless", "IPRemoved", &format!("{ZONE}/nginx-headless")).await?;
    world.apply(here, service("nginx-headless", &json!({}), &spec)).await?;
    world.names()?.have_not(&other).await?;
    world.names()?.have_not(&format!("nginx-third.{ZONE}")).await
}

/// The cluster IP, which is for those who reach it.
async fn cluster_ip(world: &World, here: &Cluster) -> Result<()> {
    let name = format!("nginx-internal.{ZONE}");
    let annotations = json!({format!("{}internal-hostname", PREFIXES[0]): name});
    world.apply(here, service("nginx-internal", &annotations, &nginx(&json!({"type": "ClusterIP"})))).await?;
    let applied = here.expect(SERVICE, &world.namespace, "nginx-internal").await?;
    let address = applied["spec"]["clusterIP"].as_str().context("no cluster IP")?.to_owned();
    world.names()?.have(&name, "A", &[address].into()).await?;
    eventually("a pod of the cluster reaches it by the name", NAMES, async || {
        let answered = here.curl(&format!("http://{name}/hostname"), &[]).await?;
        holds(answered.starts_with("nginx-"), "a pod of the Service answers", &answered)
    })
    .await
}

/// The tutorial for ExternalName Services: two names, two CNAME records.
async fn external_names(world: &World, here: &Cluster) -> Result<()> {
    let names = [format!("tenant1.{EXAMPLE}"), format!("tenant2.{EXAMPLE}")];
    let spec = json!({"type": "ExternalName", "externalName": "aws.external.com"});
    world.apply(here, service("aws-service", &hostname(0, &names.join(",")), &spec)).await?;
    for name in &names {
        world.names()?.have(name, "CNAME", &set(&["aws.external.com."])).await?;
    }
    // Its query may reach a replica that does not know the name yet.
    eventually("a pod sees it", NAMES, async || {
        let found = here.dig(&names[0], "CNAME").await?;
        holds(found == set(&["aws.external.com."]), "it is the annotation's", &found)
    })
    .await
}

/// The tutorial for headless Services: pods with host names have names of their own below a name that is the domain itself.
async fn pods_of_a_stateful_set(world: &World, here: &Cluster) -> Result<()> {
    let mut pods = manifests::stateful_set("kafka", 2);
    pods["spec"]["serviceName"] = "ksvc".into();
    pods["spec"]["template"]["metadata"]["labels"]["component"] = "kafka".into();
    world.apply(here, pods).await?;
    let spec = json!({
        "ports": [{"port": 9092, "name": "external"}], "clusterIP": "None", "selector": {"component": "kafka"}});
    world.apply(here, service("ksvc", &hostname(0, EXAMPLE), &spec)).await?;
    for pod in ["kafka-0", "kafka-1"] {
        let address = eventually("the pod has an address", NAMES, async || pod_ip(world, here, pod).await).await?;
        world.names()?.have(&format!("{pod}.{EXAMPLE}"), "A", &[address].into()).await?;
    }
    // The domain itself is no service.
    world.described(here, SERVICE, "ksvc", "NoNamespace", EXAMPLE).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_ingress_leads_to_its_load_balancer_under_all_its_names() {
    World::run_in(&[4, 5], &[], "external-dns-ingress", async |world| {
        let [here, there] = world.pair();
        let zone = format!("{}.internal", world.namespace);
        Ecs::from_env().await?.cloud_map().private_namespace(&zone, 1).await?;
        serve(world, here, "nginx", 1).await?;
        let (annotated, ruled) = (format!("nginx.{zone}"), format!("nginx-rule.{zone}"));
        let backend = json!({"service": {"name": "nginx", "port": {"number": 80}}});
        let ingress = |annotations: &Value| {
            json!({
                "apiVersion": "networking.k8s.io/v1", "kind": "Ingress",
                "metadata": {"name": "nginx", "annotations": annotations},
                "spec": {"rules": [{"host": ruled, "http": {"paths": [
                    {"path": "/", "pathType": "Prefix", "backend": backend}]}}]},
            })
        };
        world.apply(here, ingress(&hostname(0, &annotated))).await?;
        let pod = world.pods(here, "nginx").await?;
        let address = pod_ip(world, here, pod.first().context("no pod")?).await?;
        let status = json!({"status": {"loadBalancer": {"ingress": [{"ip": address}]}}});
        here.merge_status(INGRESS, &world.namespace, "nginx", &status).await?;
        for name in [&annotated, &ruled] {
            world.names()?.have(name, "A", &BTreeSet::from([address.clone()])).await?;
            leads_to(there, name, &pod).await?;
        }
        world.described(here, INGRESS, "nginx", "IPRegistered", &address).await?;
        let source = json!({
            format!("{}hostname", PREFIXES[0]): annotated,
            format!("{}ingress-hostname-source", PREFIXES[0]): "annotation-only",
        });
        world.apply(here, ingress(&source)).await?;
        world.names()?.have_not(&ruled).await?;
        world.names()?.have(&annotated, "A", &BTreeSet::from([address])).await?;
        here.delete(INGRESS, &world.namespace, "nginx").await?;
        world.names()?.have_not(&annotated).await
    })
    .await;
}
