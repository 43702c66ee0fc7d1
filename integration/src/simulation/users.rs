//! What the users of all clusters have: Services with endpoints, ServiceExports, annotations.

use std::{collections::BTreeMap, sync::Arc};

use cloudmap::Instance;
use ledger::{
    head::{Head, Presence, Root},
    record::Position,
    trust::{self, Scope},
};
use model::SigningKey;
use serde_json::{Value, json};

use super::{
    slices::{FAMILIES, address, pods, remove_slices},
    ttls,
    world::{World, must},
};
use crate::ledger_sim::rng::Rng;

/// The Services of users: namespace, name, and whether they are headless. All clusters know them by the same names.
pub(crate) const NAMES: [(&str, &str, bool); 6] = [
    ("shop", "web", false),
    ("shop", "db", true),
    ("pay", "api", false),
    ("pay", "web", false),
    ("shop", "cart", true),
    ("pay", "cart", true),
];

/// As many of them are exported, from the first on.
pub(crate) const EXPORTED: usize = 4;

/// Those that are annotated.
pub(crate) const ANNOTATED: [usize; 3] = [1, 4, 5];

/// What annotations name in Cloud Map: namespace and service. Two of them are the own names of exports.
pub(crate) const WISHES: [(&str, &str); 6] =
    [("internal", "a"), ("internal", "b"), ("internal", "x"), ("plain", "a"), ("pay", "api"), ("shop", "web")];

/// What the ports of a Service can be: name, number, and number at the endpoints. Some have a name, some a number that others
/// have for something else.
pub(crate) const PORTS: [&[(&str, u16, u16)]; 7] = [
    &[("http", 80, 8080)],
    &[("http", 80, 8080), ("admin", 9090, 9091)],
    &[("http", 81, 8081)],
    &[("web", 80, 8080)],
    &[("", 80, 8080)],
    &[("web", 80, 8080), ("metrics", 9100, 9101)],
    &[("web", 80, 8080), ("admin", 9090, 9091)],
];

/// What a Service is, in which the clusters need not agree.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Shape {
    /// Index into [`PORTS`].
    ports: usize,
    headless: bool,
    /// Seconds of `ClientIP`; `None`: no affinity.
    affinity: Option<u32>,
    /// `internalTrafficPolicy: Local`
    local: bool,
    /// By both IP families, where the cluster has them.
    dual: bool,
}

impl Shape {
    fn plain(headless: bool) -> Self {
        Self { ports: 0, headless, affinity: None, local: false, dual: false }
    }

    /// Any, the plain one more often than others.
    pub(crate) fn draw(rng: &mut Rng, headless: bool) -> Self {
        let mut any = |chance: f64| rng.chance(chance);
        let (ports, other, affine, long, local, dual) = (any(0.6), any(0.15), any(0.3), any(0.5), any(0.15), any(0.3));
        Self {
            ports: if ports { rng.below(PORTS.len()) } else { 0 },
            headless: headless != other,
            affinity: affine.then_some(if long { 10_800 } else { 60 }),
            local,
            dual,
        }
    }

    fn spec(self, app: &str) -> Value {
        let mut spec = json!({"selector": {"app": app}, "ports": ports(self.ports)});
        if self.headless {
            spec["clusterIP"] = json!("None");
        }
        if let Some(seconds) = self.affinity {
            spec["sessionAffinity"] = json!("ClientIP");
            spec["sessionAffinityConfig"] = json!({"clientIP": {"timeoutSeconds": seconds}});
        }
        if self.local {
            spec["internalTrafficPolicy"] = json!("Local");
        }
        spec["ipFamilyPolicy"] = json!(if self.dual { "PreferDualStack" } else { "SingleStack" });
        spec
    }
}

/// Ports of a Service, by index into [`PORTS`].
fn ports(index: usize) -> Value {
    let port = |(name, port, target): &(&str, u16, u16)| {
        let mut port = json!({"port": port, "targetPort": target});
        if !name.is_empty() {
            port["name"] = json!(name);
        }
        port
    };
    PORTS[index].iter().map(port).collect()
}

/// Where and what of a user's Service.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) cluster: usize,
    /// Index into [`NAMES`].
    pub(crate) name: usize,
}

/// external-dns' annotation.
pub(crate) const HOST: &str = "external-dns.alpha.kubernetes.io/hostname";
/// The Python controller's, for the namespace and the service.
pub(crate) const PYTHON: [&str; 2] = ["cloudmap.controller/namespace", "cloudmap.controller/hostname"];
/// On all objects that are registered.
pub(crate) const SHARE: &str = "cloudmap-mcs/share-of-traffic";
/// The name of the Service that joins ECS tasks, by index into [`NAMES`], in any cluster, and their Cloud Map service.
pub(crate) const JOINING: (usize, (&str, &str)) = (4, ("internal", "tasks"));
/// On a ServiceExport, for the namespace and the service.
pub(crate) const TARGET: [&str; 2] = ["cloudmap-mcs/namespace", "cloudmap-mcs/service"];

/// So many tasks ECS runs at most.
pub(crate) const MOST_TASKS: usize = 6;

/// What people do by hand to what is ours in Cloud Map.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Meddling {
    /// They delete an instance.
    Deletes,
    /// They give an instance another port.
    Alters,
    /// They give the records of a service another TTL.
    ChangesTtl,
    DeletesHead,
    DeletesPage,
    /// They overwrite a head with one that they made up, without a signature or with their own, and as if it were newer.
    ForgesHead,
}

/// A head of the same cluster that says that all of it is gone, or that it left. `which` decides what else.
fn forged(id: &str, attributes: &BTreeMap<String, String>, which: usize) -> BTreeMap<String, String> {
    let found = Head::from_instance(&Instance { id: id.into(), attributes: attributes.clone() });
    let Ok(head) = found else { return attributes.clone() };
    let position = Position { epoch: head.position.epoch + [1, 1_000_000][which % 2], seq: 1 };
    let presence = if which.is_multiple_of(3) { Presence::Left { successor: None } } else { Presence::Live };
    let head = Head { position, presence, root: Root::empty(1), delta: Arc::default(), ..head };
    let key = SigningKey::from_seed(&[66; 32]).filter(|_| which % 5 > 1);
    let scope = Scope { clusterset: "their-own", namespace: "their-own" };
    key.map_or_else(|| head.to_instance(), |key| trust::sign(&head, &key, scope)).attributes
}

impl World {
    /// The name of a new pod, which begins with its address by IPv4 ([`address`]).
    fn pod(&mut self, cluster: usize) -> String {
        let now = self.began.elapsed();
        if let Some(pool) = &mut self.pool {
            let (pod, known) = pool.give(now);
            if known {
                self.registry.forget_shown(address(&pod));
                self.trace.line(|| format!("pod {pod} gets the address of another one"));
            }
            return pod;
        }
        self.addresses += 1;
        format!("10.{}.{}.{}", cluster + 1, self.addresses / 250, self.addresses % 250 + 1)
    }

    /// Makes the Service if it is not there, and gives it this many endpoints: those that it had go first where it has
    /// too many, or all of them where it is `rolled`.
    pub(crate) fn scale(&mut self, place: Place, to: usize, rolled: bool) {
        let Place { cluster, name } = place;
        let (namespace, service, headless) = NAMES[name];
        let api = self.clusters[cluster].api.clone();
        if api.get("namespaces", "", namespace).is_none_or(|object| is_terminating(&object)) {
            return;
        }
        if api.get("services", namespace, service).is_none() {
            let spec = Shape::plain(headless).spec(service);
            must(api.put("services", json!({"metadata": {"namespace": namespace, "name": service}, "spec": spec})));
        }
        let mut pods = if rolled { Vec::new() } else { pods(&api, namespace, service) };
        if pods.len() > to {
            pods.drain(..pods.len() - to);
        }
        while pods.len() < to {
            pods.push(self.pod(cluster));
        }
        self.put_endpoints(place, &pods);
    }

    /// Makes the Service another one: in place where Kubernetes allows it, else anew.
    pub(crate) fn shape(&self, place: Place, shape: Shape) {
        let Some(there) = self.service(place) else { return };
        let (namespace, name, _) = NAMES[place.name];
        let api = &self.clusters[place.cluster].api;
        let mut spec = shape.spec(name);
        let same = |field: &str| spec[field] == there["spec"][field];
        if shape.headless == (there["spec"]["clusterIP"] == "None") && same("ipFamilyPolicy") {
            for field in ["clusterIP", "clusterIPs", "ipFamilies"] {
                spec[field] = there["spec"][field].clone();
            }
        } else {
            must(api.delete("services", namespace, name));
        }
        self.put_service(place, &there, &spec);
    }

    /// Gives the Service other ports, by index into [`PORTS`].
    pub(crate) fn change_ports(&self, place: Place, index: usize) {
        let Some(there) = self.service(place) else { return };
        let mut spec = there["spec"].clone();
        spec["ports"] = ports(index);
        self.put_service(place, &there, &spec);
    }

    /// The Service, if its namespace does not terminate.
    fn service(&self, place: Place) -> Option<Arc<Value>> {
        let (namespace, name, _) = NAMES[place.name];
        let api = &self.clusters[place.cluster].api;
        let lives = api.get("namespaces", "", namespace).is_some_and(|object| !is_terminating(&object));
        api.get("services", namespace, name).filter(|_| lives)
    }

    /// Puts a Service in the place of the one that is or was there, and its ports into the EndpointSlices.
    fn put_service(&self, place: Place, before: &Value, spec: &Value) {
        let (namespace, name, _) = NAMES[place.name];
        let cluster = &self.clusters[place.cluster];
        let pods = pods(&cluster.api, namespace, name);
        let annotations = &before["metadata"]["annotations"];
        let metadata = json!({"namespace": namespace, "name": name, "annotations": annotations});
        let put = must(cluster.api.put("services", json!({"metadata": metadata, "spec": spec})));
        let same = put["metadata"]["uid"] == before["metadata"]["uid"];
        let (before, after) = (&before["spec"]["ports"], &spec["ports"]);
        let first = |ports: &Value| ["name", "port", "targetPort"].map(|field| ports[0][field].clone());
        let count = |ports: &Value| ports.as_array().map_or(0, Vec::len);
        // Instances have the first port, so it is another one that comes or goes.
        let late = first(before) == first(after) && count(before) != count(after);
        if same && late && pods.len() > 1 && !cluster.site.has_gates() {
            self.put_late_endpoints(place, &pods, before);
        } else {
            self.put_endpoints(place, &pods);
        }
    }

    /// Exports a label, or none.
    pub(crate) fn label_export(&mut self, place: Place, tier: Option<&'static str>) {
        let (namespace, name, _) = NAMES[place.name];
        let patch = json!({"spec": {"exportedLabels": {"tier": tier}}});
        drop(self.clusters[place.cluster].api.patch("serviceexports", namespace, name, &patch));
    }

    pub(crate) fn export(&mut self, place: Place) {
        let (namespace, name, _) = NAMES[place.name];
        let api = &self.clusters[place.cluster].api;
        let there = api.get("namespaces", "", namespace).is_some_and(|object| !is_terminating(&object));
        if there && api.get("serviceexports", namespace, name).is_none() {
            must(api.put("serviceexports", json!({"metadata": {"namespace": namespace, "name": name}})));
        }
    }

    pub(crate) fn unexport(&mut self, place: Place) {
        let (namespace, name, _) = NAMES[place.name];
        drop(self.clusters[place.cluster].api.delete("serviceexports", namespace, name));
    }

    /// Deletes the Service and its endpoints; the export stays.
    pub(crate) fn remove_service(&mut self, place: Place) {
        let (namespace, name, _) = NAMES[place.name];
        let api = &self.clusters[place.cluster].api;
        drop(api.delete("services", namespace, name));
        for (_, suffix) in FAMILIES {
            remove_slices(api, (namespace, name), suffix);
        }
    }

    /// Deletes or alters something of ours in Cloud Map, as people do it by hand.
    pub(crate) fn meddle(&mut self, which: usize, how: Meddling) {
        let ours = self.registry.with(|cloudmap, _| {
            let mut ours = Vec::new();
            for service in cloudmap.services() {
                let namespace = cloudmap.namespace(&service.namespace_id).map(|it| it.name.clone()).unwrap_or_default();
                for (id, instance) in &service.instances {
                    let is_it = match how {
                        Meddling::Deletes | Meddling::Alters => {
                            instance.attributes.contains_key("CLOUDMAP_MCS_CLUSTER")
                        }
                        Meddling::ChangesTtl => {
                            service.dns_config.is_some()
                                && service.tags.contains_key("cloudmap-mcs/made-for")
                                && instance.attributes.contains_key("CLOUDMAP_MCS_CLUSTER")
                        }
                        Meddling::DeletesHead | Meddling::ForgesHead => service.name == "clusters",
                        Meddling::DeletesPage => service.name.starts_with("exports-"),
                    };
                    if is_it {
                        let target = (namespace.clone(), service.name.clone());
                        ours.push((target, service.id.clone(), id.clone(), (*instance.attributes).clone()));
                    }
                }
            }
            ours
        });
        let Some((target, service, instance, mut attributes)) = ours.get(which % ours.len().max(1)).cloned() else {
            return;
        };
        match how {
            Meddling::Deletes | Meddling::Alters => drop(self.meddled.insert(target, self.began.elapsed())),
            Meddling::ForgesHead => attributes = forged(&instance, &attributes, which),
            Meddling::ChangesTtl => return ttls::change(self, &service),
            Meddling::DeletesHead | Meddling::DeletesPage => self.torn = Some(self.began.elapsed()),
        }
        if how == Meddling::Alters {
            attributes.insert("AWS_INSTANCE_PORT".to_owned(), "9".to_owned());
        }
        if matches!(how, Meddling::Alters | Meddling::ForgesHead) {
            let body = json!({"ServiceId": service, "InstanceId": instance, "Attributes": attributes});
            self.registry.call("people", "RegisterInstance", &body);
        } else {
            self.registry.call("people", "DeregisterInstance", &json!({"ServiceId": service, "InstanceId": instance}));
        }
    }

    /// The Cloud Map service of that name, which ECS makes where there is none, and whether it did.
    pub(crate) fn foreign_service(&self, namespace: &str, service: &str) -> Option<(String, bool)> {
        let snapshot = self.registry.with(|cloudmap, _| cloudmap.snapshot());
        if let Some(service) = snapshot.service(namespace, service) {
            return Some((service.id.clone(), false));
        }
        let mut body = json!({"Name": service, "NamespaceId": snapshot.namespace(namespace)?.id, "Type": "HTTP"});
        // As ECS makes it. Where nobody moves traffic, pods that are not ready are withdrawn.
        if (namespace, service) == JOINING.1 && self.clusters.iter().any(|cluster| cluster.site.has_cutovers()) {
            body["HealthCheckCustomConfig"] = json!({"FailureThreshold": 1});
        }
        let made = self.registry.call("ecs", "CreateService", &body)?;
        Some((made["Service"]["Id"].as_str()?.to_owned(), true))
    }

    /// Asks for names in Cloud Map, by index into [`WISHES`], as external-dns and as the Python controller understand it.
    pub(crate) fn annotate(&mut self, place: Place, host: Option<usize>, python: Option<usize>) {
        let host = host.map(|wish| format!("{1}.{0}", WISHES[wish].0, WISHES[wish].1));
        let [namespace, service] = pair(python);
        let annotations = json!({HOST: host, PYTHON[0]: namespace, PYTHON[1]: service});
        self.set_annotations("services", place, &annotations);
    }

    /// Has the Service of a cluster join the ECS tasks, with this share of their traffic, or with all of its pods.
    pub(crate) fn share(&mut self, cluster: usize, share: Option<&'static str>) {
        let (name, (namespace, service)) = JOINING;
        let annotations = json!({PYTHON[0]: namespace, PYTHON[1]: service, SHARE: share});
        self.set_annotations("services", Place { cluster, name }, &annotations);
    }

    /// ECS runs so many tasks from now on.
    pub(crate) fn run_tasks(&self, count: usize) {
        let Some((id, _)) = self.foreign_service(JOINING.1.0, JOINING.1.1) else { return };
        for n in 0..MOST_TASKS {
            let mut body = json!({"ServiceId": id, "InstanceId": format!("task-{n}")});
            if n < count {
                let address = format!("172.16.2.{}", n + 1);
                body["Attributes"] = json!({"AWS_INSTANCE_IPV4": address, "ECS_SERVICE_NAME": "orders"});
            }
            self.registry.call("ecs", if n < count { "RegisterInstance" } else { "DeregisterInstance" }, &body);
        }
    }

    /// Has an export registered under another name, or under its own.
    pub(crate) fn name_target(&mut self, place: Place, wish: Option<usize>) {
        let [namespace, service] = pair(wish);
        self.set_annotations("serviceexports", place, &json!({TARGET[0]: namespace, TARGET[1]: service}));
    }

    /// `null` removes one. Where there is no such object, nothing happens.
    fn set_annotations(&self, plural: &str, place: Place, annotations: &Value) {
        let (namespace, name, _) = NAMES[place.name];
        let patch = json!({"metadata": {"annotations": annotations}});
        drop(self.clusters[place.cluster].api.patch(plural, namespace, name, &patch));
    }
}

fn pair(wish: Option<usize>) -> [Option<&'static str>; 2] {
    wish.map_or([None; 2], |wish| [Some(WISHES[wish].0), Some(WISHES[wish].1)])
}

/// Ready addresses of an EndpointSlice.
pub(crate) fn addresses(slice: &Value) -> Vec<String> {
    let endpoints = slice["endpoints"].as_array().into_iter().flatten();
    endpoints
        .filter(|endpoint| endpoint["conditions"]["ready"] != false)
        .flat_map(|endpoint| endpoint["addresses"].as_array().into_iter().flatten())
        .filter_map(|address| address.as_str().map(str::to_owned))
        .collect()
}

pub(crate) fn is_terminating(object: &Value) -> bool {
    !object["metadata"]["deletionTimestamp"].is_null()
}

/// A label of an object, or nothing.
pub(crate) fn label<'a>(object: &'a Value, name: &str) -> &'a str {
    object["metadata"]["labels"][name].as_str().unwrap_or_default()
}

/// An annotation of an object, if it has it.
pub(crate) fn annotation<'a>(object: &'a Value, name: &str) -> Option<&'a str> {
    object["metadata"]["annotations"][name].as_str()
}
