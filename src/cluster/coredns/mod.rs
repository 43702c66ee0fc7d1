//! What `coredns` reads from a cluster and writes there: the Corefiles of CoreDNS and NodeLocal DNSCache, and the
//! permission to read ServiceImports.

mod ask;
mod keeper;
mod workload;

use std::collections::BTreeSet;

use k8s_openapi::{
    api::{
        core::v1::ConfigMap,
        rbac::v1::{ClusterRole, ClusterRoleBinding, Subject},
    },
    apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
};
use kube::{
    Api, Client, Resource, ResourceExt as _,
    api::{DeleteParams, Patch, PatchParams, Preconditions},
};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::json;

pub use self::{
    ask::{Answer, Ask, Forwarded, Kind},
    keeper::Keeper,
    workload::Workload,
};
use super::identity::{AskError, ask, code};
use api::names::FieldManager;

/// The ConfigMap of NodeLocal DNSCache: in its own manifest, and as kubespray installs it. A DaemonSet may name others.
const NODE_LOCAL: [&str; 2] = ["node-local-dns", "nodelocaldns"];

/// Key of the Corefile in a ConfigMap.
const KEY: &str = "Corefile";

/// The definition that CoreDNS needs, and the version that it reads.
const DEFINITION: (&str, &str) = ("serviceimports.multicluster.x-k8s.io", "v1alpha1");

/// The role and its binding.
const PERMISSION: &str = include_str!("../../../coredns/rbac.yaml");

/// Where CoreDNS is in a cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Installation {
    /// Its namespace.
    pub namespace: String,
    /// The ConfigMap with its Corefile.
    pub config_map: String,
    /// Its Deployment, or its DaemonSet.
    pub deployment: String,
}

/// A Corefile in a ConfigMap.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Corefile {
    /// Name of the ConfigMap.
    pub config_map: String,
    /// The text.
    pub text: String,
    /// Who else writes it.
    pub keeper: Option<Keeper>,
    /// The DaemonSet that reads it, if it is that of NodeLocal DNSCache.
    pub daemon_set: Option<String>,
    version: Option<String>,
}

/// What is in the cluster.
#[derive(Debug, Clone)]
pub struct Observed {
    /// The Corefile of CoreDNS.
    pub corefile: Option<Corefile>,
    /// The Corefiles of NodeLocal DNSCache.
    pub node_locals: Vec<Corefile>,
    /// What runs CoreDNS.
    pub workload: Option<Workload>,
    /// The service accounts as which it runs, by its pods, or by the template of what creates them. None: it is not known.
    pub accounts: BTreeSet<String>,
    /// Its running pods. None if they were not read.
    pub pods: Vec<String>,
    /// ServiceImports are defined in the version that CoreDNS reads. It does not become ready while it cannot list them.
    pub defined: bool,
    /// The role and the binding are there.
    pub permitted: bool,
    /// Something of the permission is there that nobody else needs, perhaps only a part: an earlier removal may have failed
    /// halfway, and somebody may have changed the role.
    pub revocable: bool,
    /// For this CoreDNS alone, with the version of the binding that was read.
    permission: (ClusterRole, ClusterRoleBinding),
    /// The other subjects of the binding.
    others: Vec<Subject>,
}

impl Observed {
    /// Somebody else has the permission by the same binding, such as a second CoreDNS.
    pub fn is_shared(&self) -> bool {
        !self.others.is_empty()
    }
}

#[cfg(any(test, feature = "testing"))]
impl Observed {
    /// A cluster with this Corefile and image.
    pub fn sample(corefile: &str, image: &str) -> Self {
        let (config_map, text) = ("coredns".to_owned(), corefile.to_owned());
        Self {
            corefile: Some(Corefile { config_map, text, keeper: None, daemon_set: None, version: None }),
            node_locals: Vec::new(),
            workload: Some(Workload { image: image.to_owned(), ..Workload::default() }),
            accounts: ["coredns".to_owned()].into(),
            pods: Vec::new(),
            defined: true,
            permitted: true,
            revocable: true,
            permission: permission("kube-system", &["coredns".to_owned()].into()),
            others: Vec::new(),
        }
    }
}

async fn get<K>(api: Api<K>, what: &'static str, name: &str) -> Result<Option<K>, AskError>
where
    K: Clone + DeserializeOwned + std::fmt::Debug,
{
    ask(what, api.get_opt(name)).await
}

/// The role and the binding, for the service accounts of this CoreDNS.
fn permission(namespace: &str, accounts: &BTreeSet<String>) -> (ClusterRole, ClusterRoleBinding) {
    let (role, binding) = PERMISSION.split_once("\n---\n").expect("a role and a binding");
    let role = serde_yaml_ng::from_str(role).expect("a ClusterRole");
    let binding: ClusterRoleBinding = serde_yaml_ng::from_str(binding).expect("a ClusterRoleBinding");
    let subject = |account: &String| Subject {
        kind: "ServiceAccount".to_owned(),
        name: account.clone(),
        namespace: Some(namespace.to_owned()),
        ..Subject::default()
    };
    (role, ClusterRoleBinding { subjects: Some(accounts.iter().map(subject).collect()), ..binding })
}

/// Reads all of it, as far as the names of the objects are known: [`observe_pods`] looks for the rest.
///
/// # Errors
/// If the API server does not answer, or refuses a call.
pub async fn observe(client: &Client, installation: &Installation) -> Result<Observed, AskError> {
    let maps: Api<ConfigMap> = Api::namespaced(client.clone(), &installation.namespace);
    let corefile = get(maps.clone(), "read the ConfigMap of CoreDNS", &installation.config_map).await?;
    let mut node_locals = Vec::new();
    for name in NODE_LOCAL {
        let found = get(maps.clone(), "read the ConfigMap of NodeLocal DNSCache", name).await?;
        node_locals.extend(found.and_then(narrow).map(|it| Corefile { daemon_set: Some(name.to_owned()), ..it }));
    }
    let workload = workload::named(client, installation).await?;
    let definition =
        get(Api::<CustomResourceDefinition>::all(client.clone()), "read the CRD of ServiceImport", DEFINITION.0)
            .await?;
    let mut corefile = corefile.and_then(narrow);
    // The add-on manages Deployment and ConfigMap together.
    if let (Some(corefile), Some(Keeper::Eks)) = (&mut corefile, workload.as_ref().and_then(|it| it.keeper.as_ref())) {
        corefile.keeper = Some(Keeper::Eks);
    }
    let observed = Observed {
        corefile,
        node_locals,
        accounts: workload.iter().map(|workload| workload.account.clone()).collect(),
        pods: Vec::new(),
        workload,
        defined: definition.is_some_and(|crd| crd.spec.versions.iter().any(|it| it.name == DEFINITION.1 && it.served)),
        permitted: false,
        revocable: false,
        permission: permission(&installation.namespace, &BTreeSet::new()),
        others: Vec::new(),
    };
    permissions(client, installation, observed).await
}

/// Reads the same, and what only pods and DaemonSets show: the service account with which CoreDNS really runs, and the ConfigMaps of NodeLocal
/// DNSCache that have other names.
///
/// # Errors
/// If the API server does not answer, or refuses a call.
pub async fn observe_pods(client: &Client, installation: &Installation) -> Result<Observed, AskError> {
    let mut observed = observe(client, installation).await?;
    let running = workload::running(client, installation, observed.workload.as_ref()).await?;
    if observed.workload.is_none() {
        observed.workload = running.first().cloned();
    }
    observed.pods = running.iter().map(|pod| pod.name.clone()).collect();
    let accounts: BTreeSet<_> = running.into_iter().map(|workload| workload.account).collect();
    if !accounts.is_subset(&observed.accounts) {
        observed.accounts.extend(accounts);
        observed = permissions(client, installation, observed).await?;
    }
    let maps: Api<ConfigMap> = Api::namespaced(client.clone(), &installation.namespace);
    for (daemon_set, config_map) in workload::node_locals(client, installation).await? {
        if let Some(known) = observed.node_locals.iter_mut().find(|it| it.config_map == config_map) {
            known.daemon_set = Some(daemon_set);
        } else {
            let found = get(maps.clone(), "read the ConfigMap of NodeLocal DNSCache", &config_map).await?;
            let found = found.and_then(narrow).map(|it| Corefile { daemon_set: Some(daemon_set), ..it });
            observed.node_locals.extend(found);
        }
    }
    Ok(observed)
}

/// Compares the permission with the service accounts.
async fn permissions(client: &Client, installation: &Installation, observed: Observed) -> Result<Observed, AskError> {
    let mut permission = permission(&installation.namespace, &observed.accounts);
    let role = get(Api::<ClusterRole>::all(client.clone()), "read a ClusterRole", &permission.0.name_any()).await?;
    let binding =
        get(Api::<ClusterRoleBinding>::all(client.clone()), "read a ClusterRoleBinding", &permission.1.name_any())
            .await?;
    let ours = permission.1.subjects.clone().unwrap_or_default();
    let there = binding.as_ref().and_then(|it| it.subjects.clone()).unwrap_or_default();
    let others: Vec<_> = there.iter().filter(|subject| !is_in(&ours, subject)).cloned().collect();
    let revocable = if others.is_empty() { role.is_some() || binding.is_some() } else { others.len() < there.len() };
    let permitted = role.is_some_and(|role| role.rules == permission.0.rules)
        && binding.as_ref().is_some_and(|it| it.role_ref == permission.1.role_ref)
        && !ours.is_empty()
        && ours.iter().all(|subject| is_in(&there, subject));
    permission.1.metadata.resource_version = binding.and_then(|it| it.metadata.resource_version);
    Ok(Observed { permitted, revocable, permission, others, ..observed })
}

fn is_in(subjects: &[Subject], one: &Subject) -> bool {
    let same = |it: &Subject| (&it.kind, &it.name, &it.namespace) == (&one.kind, &one.name, &one.namespace);
    subjects.iter().any(same)
}

fn narrow(object: ConfigMap) -> Option<Corefile> {
    let text = object.data?.remove(KEY)?;
    let config_map = object.metadata.name.clone().unwrap_or_default();
    let keeper = Keeper::of(&object.metadata);
    Some(Corefile { config_map, text, keeper, daemon_set: None, version: object.metadata.resource_version })
}

/// Replaces the text of a Corefile, unless somebody else has written the ConfigMap since it was read: then the API server
/// answers with a conflict. Returns the Corefile as it is now.
///
/// # Errors
/// If the API server does not answer, or refuses the call.
pub async fn write(
    client: &Client,
    installation: &Installation,
    corefile: &Corefile,
    text: &str,
) -> Result<Corefile, AskError> {
    let api: Api<ConfigMap> = Api::namespaced(client.clone(), &installation.namespace);
    let patch = json!({"metadata": {"resourceVersion": corefile.version}, "data": {KEY: text}});
    let params =
        PatchParams { field_manager: Some(FieldManager::CoreDns.as_str().to_owned()), ..PatchParams::default() };
    let written = ask("write the Corefile", api.patch(&corefile.config_map, &params, &Patch::Merge(patch))).await?;
    Ok(Corefile { text: text.to_owned(), version: written.metadata.resource_version, ..corefile.clone() })
}

/// Allows CoreDNS to read ServiceImports. Whoever else is in the binding stays there: the API server replaces the list of
/// subjects as a whole. If somebody else has written the binding since it was read, the API server answers with a conflict.
///
/// # Errors
/// If the API server does not answer, or refuses a call.
pub async fn permit(client: &Client, observed: &Observed) -> Result<(), AskError> {
    let (role, binding) = &observed.permission;
    apply(Api::all(client.clone()), "apply the ClusterRole", role).await?;
    let subjects = observed.others.iter().chain(binding.subjects.iter().flatten()).cloned().collect();
    bind(client, binding, subjects).await
}

async fn bind(client: &Client, binding: &ClusterRoleBinding, subjects: Vec<Subject>) -> Result<(), AskError> {
    let binding = ClusterRoleBinding { subjects: Some(subjects), ..binding.clone() };
    apply(Api::all(client.clone()), "apply the ClusterRoleBinding", &binding).await
}

async fn apply<K>(api: Api<K>, what: &'static str, object: &K) -> Result<(), AskError>
where
    K: Clone + DeserializeOwned + Serialize + std::fmt::Debug + Resource<DynamicType = ()>,
{
    let params = PatchParams::apply(FieldManager::CoreDns.as_str()).force();
    ask(what, api.patch(&object.name_any(), &params, &Patch::Apply(object))).await.map(drop)
}

/// Takes the permission away from this CoreDNS. Role and binding stay while somebody else is in the binding. It is no error
/// if there is no permission. If somebody else has written the binding since it was read, the API server answers with a
/// conflict.
///
/// # Errors
/// If the API server does not answer, or refuses a call.
pub async fn forbid(client: &Client, observed: &Observed) -> Result<(), AskError> {
    let (role, binding) = &observed.permission;
    if observed.is_shared() {
        return bind(client, binding, observed.others.clone()).await;
    }
    let (roles, bindings) = (Api::<ClusterRole>::all(client.clone()), Api::<ClusterRoleBinding>::all(client.clone()));
    let resource_version = binding.metadata.resource_version.clone();
    let unchanged = DeleteParams::default().preconditions(Preconditions { uid: None, resource_version });
    delete(bindings, "delete the ClusterRoleBinding", &binding.name_any(), &unchanged).await?;
    delete(roles, "delete the ClusterRole", &role.name_any(), &DeleteParams::default()).await
}

async fn delete<K>(api: Api<K>, what: &'static str, name: &str, params: &DeleteParams) -> Result<(), AskError>
where
    K: Clone + DeserializeOwned + std::fmt::Debug,
{
    match ask(what, api.delete(name, params)).await {
        Err(AskError::Api { source, .. }) if code(&source) == Some(404) => Ok(()),
        answer => answer.map(drop),
    }
}

/// Whether the cluster refused a write because somebody else was faster.
pub fn is_conflict(error: &AskError) -> bool {
    matches!(error, AskError::Api { source, .. } if code(source) == Some(409))
}
