//! One cluster, as kubectl would use it.

use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use kube::api::{
    ApiResource, AttachParams, DeleteParams, DynamicObject, GroupVersionKind, ListParams, LogParams, Patch,
    PatchParams, PostParams,
};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Api, Client, Config};
use serde_json::Value;
use tokio::io::AsyncReadExt as _;

use super::wait::changed;

/// For a command in a pod.
const COMMAND: Duration = Duration::from_mins(10);

/// A kind of object. Those of the Multi-Cluster Services API are named by what the standard says, not by our own types.
#[derive(Debug, Clone, Copy)]
pub struct Kind {
    group: &'static str,
    version: &'static str,
    name: &'static str,
    plural: &'static str,
}

const fn kind(group: &'static str, version: &'static str, kind: &'static str, plural: &'static str) -> Kind {
    Kind { group, version, name: kind, plural }
}

pub const NAMESPACE: Kind = kind("", "v1", "Namespace", "namespaces");
pub const POD: Kind = kind("", "v1", "Pod", "pods");
pub const SERVICE: Kind = kind("", "v1", "Service", "services");
pub const INGRESS: Kind = kind("networking.k8s.io", "v1", "Ingress", "ingresses");
pub const CONFIG_MAP: Kind = kind("", "v1", "ConfigMap", "configmaps");
pub const EVENT: Kind = kind("events.k8s.io", "v1", "Event", "events");
pub const DEPLOYMENT: Kind = kind("apps", "v1", "Deployment", "deployments");
pub const STATEFUL_SET: Kind = kind("apps", "v1", "StatefulSet", "statefulsets");
pub const ENDPOINT_SLICE: Kind = kind("discovery.k8s.io", "v1", "EndpointSlice", "endpointslices");
pub const LEASE: Kind = kind("coordination.k8s.io", "v1", "Lease", "leases");
pub const SERVICE_EXPORT: Kind = kind("multicluster.x-k8s.io", "v1beta1", "ServiceExport", "serviceexports");
pub const SERVICE_IMPORT: Kind = kind("multicluster.x-k8s.io", "v1beta1", "ServiceImport", "serviceimports");
/// The version that CoreDNS reads.
pub const SERVICE_IMPORT_V1ALPHA1: Kind = kind("multicluster.x-k8s.io", "v1alpha1", "ServiceImport", "serviceimports");
pub const CLUSTER_PROPERTY: Kind = kind("about.k8s.io", "v1beta1", "ClusterProperty", "clusterproperties");
pub const NODE: Kind = kind("", "v1", "Node", "nodes");
pub const CUSTOM_RESOURCE_DEFINITION: Kind =
    kind("apiextensions.k8s.io", "v1", "CustomResourceDefinition", "customresourcedefinitions");
pub const IMPORT_POLICY: Kind = kind("cloudmap-mcs.io", "v1alpha1", "ClusterImportPolicy", "clusterimportpolicies");
pub const CUTOVER: Kind = kind("cloudmap-mcs.io", "v1alpha1", "Cutover", "cutovers");
pub const ROLE_BINDING: Kind = kind("rbac.authorization.k8s.io", "v1", "RoleBinding", "rolebindings");
pub const CLUSTER_ROLE: Kind = kind("rbac.authorization.k8s.io", "v1", "ClusterRole", "clusterroles");
pub const CLUSTER_ROLE_BINDING: Kind =
    kind("rbac.authorization.k8s.io", "v1", "ClusterRoleBinding", "clusterrolebindings");
pub const SERVICE_ACCOUNT: Kind = kind("", "v1", "ServiceAccount", "serviceaccounts");
pub const ADMISSION_POLICY: Kind =
    kind("admissionregistration.k8s.io", "v1", "ValidatingAdmissionPolicy", "validatingadmissionpolicies");
pub const ADMISSION_POLICY_BINDING: Kind =
    kind("admissionregistration.k8s.io", "v1", "ValidatingAdmissionPolicyBinding", "validatingadmissionpolicybindings");
const SUBJECT_ACCESS_REVIEW: Kind = kind("authorization.k8s.io", "v1", "SubjectAccessReview", "subjectaccessreviews");

const EVERY_KIND: [Kind; 22] = [
    NAMESPACE,
    POD,
    SERVICE,
    INGRESS,
    CONFIG_MAP,
    EVENT,
    DEPLOYMENT,
    STATEFUL_SET,
    ENDPOINT_SLICE,
    LEASE,
    SERVICE_EXPORT,
    SERVICE_IMPORT,
    CLUSTER_PROPERTY,
    IMPORT_POLICY,
    CUTOVER,
    ROLE_BINDING,
    CLUSTER_ROLE,
    CLUSTER_ROLE_BINDING,
    SERVICE_ACCOUNT,
    ADMISSION_POLICY,
    ADMISSION_POLICY_BINDING,
    SUBJECT_ACCESS_REVIEW,
];

impl Kind {
    fn resource(self) -> ApiResource {
        ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk(self.group, self.version, self.name), self.plural)
    }

    /// The kind of a manifest.
    fn of(manifest: &Value) -> Result<Self> {
        let name = manifest["kind"].as_str().unwrap_or_default();
        EVERY_KIND
            .into_iter()
            .find(|kind| kind.name == name)
            .with_context(|| format!("scenarios do not know the kind {name:?}"))
    }
}

/// One cluster.
#[derive(Clone)]
pub struct Cluster {
    /// The context of the kubeconfig.
    pub context: String,
    /// Its id in the ClusterSet.
    pub id: String,
    client: Client,
}

impl std::fmt::Debug for Cluster {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} ({})", self.context, self.id)
    }
}

impl Cluster {
    /// Connects to a context of the kubeconfig, and asks for the cluster's id.
    pub async fn connect(context: &str) -> Result<Self> {
        let options = KubeConfigOptions { context: Some(context.to_owned()), ..KubeConfigOptions::default() };
        let kubeconfig = Kubeconfig::read().context("failed to read the kubeconfig (KUBECONFIG)")?;
        let config = Config::from_custom_kubeconfig(kubeconfig, &options)
            .await
            .with_context(|| format!("failed to use the context {context} of the kubeconfig"))?;
        let client = Client::try_from(config)?;
        let mut cluster = Self { context: context.to_owned(), id: String::new(), client };
        let property = cluster
            .get(CLUSTER_PROPERTY, "", "cluster.clusterset.k8s.io")
            .await?
            .with_context(|| format!("{context} has no ClusterProperty cluster.clusterset.k8s.io: install first"))?;
        property["spec"]["value"].as_str().unwrap_or_default().clone_into(&mut cluster.id);
        Ok(cluster)
    }

    /// The same cluster, as this user sees it.
    pub async fn as_user(&self, user: &str) -> Result<Self> {
        let options = KubeConfigOptions { context: Some(self.context.clone()), ..KubeConfigOptions::default() };
        let mut config = Config::from_custom_kubeconfig(Kubeconfig::read()?, &options).await?;
        config.auth_info.impersonate = Some(user.to_owned());
        Ok(Self { client: Client::try_from(config)?, ..self.clone() })
    }

    fn api(&self, kind: Kind, namespace: &str) -> Api<DynamicObject> {
        if namespace.is_empty() {
            Api::all_with(self.client.clone(), &kind.resource())
        } else {
            Api::namespaced_with(self.client.clone(), namespace, &kind.resource())
        }
    }

    /// `kubectl apply --server-side --force-conflicts`.
    pub async fn apply(&self, namespace: &str, manifest: Value) -> Result<Value> {
        let kind = Kind::of(&manifest)?;
        let name = manifest["metadata"]["name"].as_str().context("a manifest without a name")?.to_owned();
        let applied = self
            .api(kind, namespace)
            .patch(&name, &PatchParams::apply("e2e").force(), &Patch::Apply(&manifest))
            .await
            .with_context(|| format!("failed to apply {} {namespace}/{name} in {}", kind.name, self.context))?;
        changed();
        Ok(serde_json::to_value(applied)?)
    }

    /// `kubectl create`, for objects that are questions.
    pub async fn create(&self, manifest: Value) -> Result<Value> {
        let kind = Kind::of(&manifest)?;
        let object: DynamicObject = serde_json::from_value(manifest)?;
        let created = self
            .api(kind, "")
            .create(&PostParams::default(), &object)
            .await
            .with_context(|| format!("failed to create a {} in {}", kind.name, self.context))?;
        Ok(serde_json::to_value(created)?)
    }

    /// The version of its API server, such as `v1.34.4`.
    pub async fn version(&self) -> Result<String> {
        Ok(self.client.apiserver_version().await?.git_version)
    }

    /// The object, if it is there.
    pub async fn get(&self, kind: Kind, namespace: &str, name: &str) -> Result<Option<Value>> {
        let object = self
            .api(kind, namespace)
            .get_opt(name)
            .await
            .with_context(|| format!("failed to get {} {namespace}/{name} in {}", kind.name, self.context))?;
        Ok(object.map(serde_json::to_value).transpose()?)
    }

    /// The object.
    ///
    /// # Errors
    /// Also if it is not there.
    pub async fn expect(&self, kind: Kind, namespace: &str, name: &str) -> Result<Value> {
        self.get(kind, namespace, name)
            .await?
            .with_context(|| format!("there is no {} {namespace}/{name} in {}", kind.name, self.context))
    }

    /// # Errors
    /// If it is there.
    pub async fn expect_none(&self, kind: Kind, namespace: &str, name: &str) -> Result<()> {
        match self.get(kind, namespace, name).await? {
            None => Ok(()),
            Some(object) => bail!("{} has it:\n{}", self.context, super::yaml(&object)),
        }
    }

    /// The objects that a label selector selects.
    pub async fn list(&self, kind: Kind, namespace: &str, selector: &str) -> Result<Vec<Value>> {
        let list = self
            .api(kind, namespace)
            .list(&ListParams::default().labels(selector))
            .await
            .with_context(|| format!("failed to list {} in {}", kind.plural, self.context))?;
        list.items.into_iter().map(|object| Ok(serde_json::to_value(object)?)).collect()
    }

    /// `kubectl patch --type merge`.
    pub async fn merge(&self, kind: Kind, namespace: &str, name: &str, patch: &Value) -> Result<()> {
        self.api(kind, namespace)
            .patch(name, &PatchParams::default(), &Patch::Merge(patch))
            .await
            .with_context(|| format!("failed to patch {} {namespace}/{name} in {}", kind.name, self.context))?;
        changed();
        Ok(())
    }

    /// `kubectl patch --subresource status --type merge`: what other controllers say of an object.
    pub async fn merge_status(&self, kind: Kind, namespace: &str, name: &str, patch: &Value) -> Result<()> {
        self.api(kind, namespace)
            .patch_status(name, &PatchParams::default(), &Patch::Merge(patch))
            .await
            .with_context(|| {
                format!("failed to patch the status of {} {namespace}/{name} in {}", kind.name, self.context)
            })?;
        changed();
        Ok(())
    }

    /// What `kubectl describe` prints.
    pub async fn describe(&self, kind: Kind, namespace: &str, name: &str) -> Result<String> {
        self.kubectl(&["--namespace", namespace, "describe", kind.plural, name]).await
    }

    /// A kubeconfig of this context alone.
    pub async fn kubeconfig(&self) -> Result<String> {
        self.kubectl(&["config", "view", "--raw", "--minify", "--flatten"]).await
    }

    async fn kubectl(&self, arguments: &[&str]) -> Result<String> {
        let what = || format!("failed to run kubectl {} in {}", arguments.join(" "), self.context);
        let mut command = tokio::process::Command::new("kubectl");
        command.args(["--context", &self.context]).args(arguments).stdin(Stdio::null()).kill_on_drop(true);
        let output = tokio::time::timeout(COMMAND, command.output())
            .await
            .with_context(|| format!("{}: it did not end within {COMMAND:?}", what()))?
            .with_context(what)?;
        ensure!(output.status.success(), "{}: {}", what(), String::from_utf8_lossy(&output.stderr).trim());
        Ok(String::from_utf8(output.stdout)?)
    }

    /// Deletes an object; that it is gone already is fine.
    pub async fn delete(&self, kind: Kind, namespace: &str, name: &str) -> Result<()> {
        self.delete_with(kind, namespace, name, &DeleteParams::default()).await
    }

    /// `kubectl delete pod --force --grace-period 0`: its processes get no signal but SIGKILL.
    pub async fn kill_pod(&self, namespace: &str, name: &str) -> Result<()> {
        self.delete_with(POD, namespace, name, &DeleteParams::default().grace_period(0)).await
    }

    async fn delete_with(&self, kind: Kind, namespace: &str, name: &str, params: &DeleteParams) -> Result<()> {
        match self.api(kind, namespace).delete(name, params).await {
            Ok(_) => {
                changed();
                Ok(())
            }
            Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
            Err(error) => Err(error)
                .with_context(|| format!("failed to delete {} {namespace}/{name} in {}", kind.name, self.context)),
        }
    }

    /// Runs a command in a pod's first container and gives what it printed.
    ///
    /// # Errors
    /// Also if the command fails; the error has both its outputs.
    pub async fn exec(&self, namespace: &str, pod: &str, command: &[&str]) -> Result<String> {
        self.exec_within(COMMAND, namespace, pod, command).await
    }

    /// [`Cluster::exec`] of a command that may take so long.
    pub(super) async fn exec_within(
        &self,
        limit: Duration,
        namespace: &str,
        pod: &str,
        command: &[&str],
    ) -> Result<String> {
        let pods: Api<k8s_openapi::api::core::v1::Pod> = Api::namespaced(self.client.clone(), namespace);
        let what = || format!("failed to run {command:?} in {namespace}/{pod} in {}", self.context);
        let run = async {
            let mut process = pods.exec(pod, command.iter().copied(), &AttachParams::default()).await?;
            let (mut output, mut errors) = (String::new(), String::new());
            let status = process.take_status().context("no status")?;
            let mut stdout = process.stdout().context("no stdout")?;
            let mut stderr = process.stderr().context("no stderr")?;
            let (out, err) = tokio::join!(stdout.read_to_string(&mut output), stderr.read_to_string(&mut errors));
            out?;
            err?;
            let status = status.await.context("the connection broke")?;
            ensure!(
                status.status.as_deref() == Some("Success"),
                "{}: {}{}",
                status.message.unwrap_or_default(),
                output.trim_end(),
                errors.trim_end()
            );
            Ok(output)
        };
        tokio::time::timeout(limit, run)
            .await
            .unwrap_or_else(|_| Err(anyhow::anyhow!("it did not end within {limit:?}")))
            .with_context(what)
    }

    /// Ends the API server as a crash does, and starts it again when it has been `away` for so long, if this process was told
    /// how. Waits until it answers.
    pub async fn restart_api_server(&self, away: Duration) -> Result<()> {
        let command = super::setting("MCS_E2E_RESTART_API_SERVER", "");
        let mut words = command.split_whitespace();
        let Some(program) = words.next() else { return Ok(()) };
        let status = tokio::process::Command::new(program)
            .args(words)
            .arg(&self.context)
            .arg(away.as_secs().to_string())
            .status()
            .await?;
        ensure!(status.success(), "{command} {}: {status}", self.context);
        super::wait::eventually("the API server answers again", super::wait::PODS, async || {
            self.version().await.map(drop)
        })
        .await
    }

    /// What a pod's first container printed.
    pub async fn logs(&self, namespace: &str, pod: &str) -> Result<String> {
        let pods: Api<k8s_openapi::api::core::v1::Pod> = Api::namespaced(self.client.clone(), namespace);
        let what = || format!("failed to read the log of {namespace}/{pod} in {}", self.context);
        pods.logs(pod, &LogParams::default()).await.with_context(what)
    }

    /// GETs a path of a pod's HTTP server through the API server.
    pub async fn get_from_pod(&self, namespace: &str, pod: &str, port: u16, path: &str) -> Result<String> {
        let path = format!("/api/v1/namespaces/{namespace}/pods/{pod}:{port}/proxy/{path}");
        let request = axum::http::Request::get(&path).body(Vec::new())?;
        self.client.request_text(request).await.with_context(|| format!("failed to GET {path} in {}", self.context))
    }
}
