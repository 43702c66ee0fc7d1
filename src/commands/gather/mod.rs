//! `gather`: a bundle for a bug report, without secrets. Each part may fail by itself; the index says why.

mod bundle;
mod redact;
#[cfg(test)]
mod tests;

use std::{
    fs::{File, Permissions},
    io::Write as _,
    os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _},
    path::Path,
    pin::pin,
    time::Duration,
};

use anyhow::Context as _;
use futures::AsyncReadExt as _;
use k8s_openapi::api::{
    coordination::v1::Lease,
    core::v1::{ConfigMap, Pod, Service},
    discovery::v1::EndpointSlice,
    events::v1::Event,
};
use kube::{
    Api, Client, ResourceExt as _,
    api::{ListParams, LogParams},
};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::json;

use self::bundle::Bundle;
use super::{
    asking::aloud,
    installed, ledger_show,
    status::{self, Observer},
};
use api::{ClusterImportPolicy, ClusterProperty, Cutover, ServiceExport, ServiceImport, names};
use app::connect;
use base::env;
use cli::GatherArgs;
use cluster::{
    lease::LEASE,
    reader::{Unread, read, read_within},
    record::RECORD,
};

/// The label of the Deployment's pods.
const PODS: &str = "app.kubernetes.io/name=cloudmap-mcs";
/// Who may read the archive, and the files in it.
const MODE: u32 = 0o600;
/// The name of the controller's port.
const ADMIN: &str = "admin";
/// How much of each log is taken, from its end.
const LOG_LINES: i64 = 20_000;
const LOG_BYTES: i64 = 8 << 20;
/// How long a log may take. From a workstation, some megabytes need more than any other read.
const LOG_PATIENCE: Duration = Duration::from_mins(2);
/// How many objects of a kind are taken, because all of them are in memory at once; and how many come in one answer.
const MOST: usize = 10_000;
const PAGE: u32 = 500;

pub(super) async fn gather(args: GatherArgs) -> anyhow::Result<()> {
    let GatherArgs { place, output, namespace } = args;
    let client = connect::kubernetes(&place.kube).await?;
    let name = format!("cloudmap-mcs-{}", env::timestamp().strftime("%Y%m%dT%H%M%SZ"));
    let output = output.unwrap_or_else(|| format!("{name}.tar.gz").into());
    // Before everything is read, which may take minutes.
    let file = if output == Path::new("-") { None } else { Some(create(&output)?) };
    let observer = Observer::new(client, &place).await;
    let bundle = aloud(&mut std::io::stderr(), "gathering", Box::pin(collect(&observer, &namespace))).await;
    let mut stdout = std::io::stdout();
    let Some(file) = file else {
        bundle.write(&name, stdout)?;
        return Ok(());
    };
    bundle.write(&name, file).with_context(|| format!("failed to write {}", output.display()))?;
    stdout.write_all(said(&bundle, &output).as_bytes())?;
    Ok(())
}

/// Only its owner may read it: what looks secret is taken out, and what does not look so may still be.
fn create(output: &Path) -> anyhow::Result<File> {
    let only_owner = |file: File| file.set_permissions(Permissions::from_mode(MODE)).map(|()| file);
    let mut options = File::options();
    options.write(true).create(true).truncate(true).mode(MODE);
    // One that was there keeps its mode when it is opened.
    options
        .open(output)
        .and_then(|file| if file.metadata()?.is_file() { only_owner(file) } else { Ok(file) })
        .with_context(|| format!("failed to write {}: name another file with --output", output.display()))
}

/// What is said of a bundle that was written.
fn said(bundle: &Bundle, output: &Path) -> String {
    format!("{}\nWritten to {}. Look through it before you send it.\n", bundle.index(), output.display())
}

/// Reads everything. `namespaces` are those of users' objects; none means all.
async fn collect(observer: &Observer<'_>, namespaces: &[String]) -> Bundle {
    let mut bundle = Bundle::default();
    controller(&mut bundle, &observer.client, &observer.place.kube.controller.namespace).await;
    objects(&mut bundle, &observer.client, namespaces).await;
    let (cluster, _, report) = status::overview(observer, None).await;
    bundle.text("status.txt", Ok::<_, String>(redact::without_secrets(&report.table())));
    bundle.object("status.json", Ok::<_, String>(report.json()));
    let ledger = cluster.ledger.as_deref().map(ledger_show::clusters_json).map_err(ToString::to_string);
    bundle.object("ledger.json", ledger);
    bundle
}

/// The controller: how it is installed, what it says, its Lease with the Events there, and its record.
async fn controller(bundle: &mut Bundle, client: &Client, own: &str) {
    let pods: Api<Pod> = Api::namespaced(client.clone(), own);
    let found = read(pods.list(&ListParams::default().labels(PODS))).await.map(|list| list.items);
    bundle.object("controller/pods.json", found.as_ref().map(|pods| json!(pods)).map_err(Unread::clone));
    for pod in found.unwrap_or_default() {
        of_pod(bundle, client, &pods, &pod).await;
    }
    let configs: Api<ConfigMap> = Api::namespaced(client.clone(), own);
    let deployment = there(installed::deployment(client, own).await);
    let pod = deployment.as_ref().ok().and_then(|deployment| deployment.spec.as_ref()?.template.spec.as_ref());
    let names: Vec<&str> = pod.into_iter().flat_map(|pod| &pod.containers).flat_map(installed::config_maps).collect();
    for name in names {
        let config = get(&configs, name).await;
        bundle.object(format!("controller/config-{name}.json"), config.map(|config| json!(config)));
    }
    bundle.object("controller/deployment.json", deployment.map(|deployment| json!(deployment)));
    let lease = get(&Api::<Lease>::namespaced(client.clone(), own), LEASE).await;
    bundle.object("controller/lease.json", lease.map(|lease| json!(lease)));
    let record = get(&configs, RECORD).await;
    bundle.object("controller/record.json", record.map(|record| json!(record)));
    let dns = installed::kube_dns();
    let configs: Api<ConfigMap> = Api::namespaced(client.clone(), &dns.namespace);
    let dns = get(&configs, &dns.config_map).await.map(|config| config.data.unwrap_or_default());
    let corefile = dns.map(|mut data| redact::redact_corefile(&data.remove("Corefile").unwrap_or_default()));
    bundle.text("Corefile", corefile);
    let version = read(client.apiserver_version()).await;
    bundle.text("kubernetes.txt", version.map(|version| format!("{}\n", version.git_version)));
    // Those on the Lease are in no namespace that users name.
    let events: Api<Event> = Api::namespaced(client.clone(), own);
    list(bundle, "controller/events.json", &events, &of_controller()).await;
}

/// The Events that the controller emits.
fn of_controller() -> ListParams {
    ListParams::default().fields(&format!("reportingController={}", names::CONTROLLER))
}

/// Logs and metrics of a pod.
async fn of_pod(bundle: &mut Bundle, client: &Client, pods: &Api<Pod>, pod: &Pod) {
    let name = pod.name_any();
    let spec = pod.spec.clone().unwrap_or_default();
    let statuses = pod.status.iter().flat_map(|status| status.container_statuses.iter().flatten());
    let restarted: Vec<_> =
        statuses.filter(|status| status.restart_count > 0).map(|status| status.name.clone()).collect();
    for container in &spec.containers {
        let log = LogParams {
            container: Some(container.name.clone()),
            tail_lines: Some(LOG_LINES),
            limit_bytes: Some(LOG_BYTES),
            timestamps: true,
            ..LogParams::default()
        };
        let path = format!("controller/{name}/{}", container.name);
        bundle.text(format!("{path}.log"), end_of_log(pods, &name, log.clone()).await);
        if restarted.contains(&container.name) {
            let previous = LogParams { previous: true, ..log };
            bundle.text(format!("{path}-previous.log"), end_of_log(pods, &name, previous).await);
        }
        let ports = container.ports.iter().flatten();
        for port in ports.filter(|port| port.name.as_deref() == Some(ADMIN)).map(|port| port.container_port) {
            let namespace = pod.namespace().unwrap_or_default();
            let page = format!("/api/v1/namespaces/{namespace}/pods/{name}:{port}/proxy/metrics");
            let metrics = match axum::http::Request::get(page).body(Vec::new()) {
                Ok(request) => read(client.request_text(request)).await,
                Err(error) => Err(Unread::Failed(error.to_string())),
            };
            bundle.text(format!("controller/{name}/metrics.txt"), metrics);
        }
    }
}

/// Reads a log, from as many of its last lines as fit. Kubernetes cuts what does not fit at the end, where the newest lines are,
/// and within a character if need be.
async fn end_of_log(pods: &Api<Pod>, name: &str, mut log: LogParams) -> Result<String, Unread> {
    loop {
        let reading = async {
            let mut stream = pin!(pods.log_stream(name, &log).await?);
            let mut bytes = Vec::new();
            stream.read_to_end(&mut bytes).await.map_err(|error| kube::Error::Service(error.into()))?;
            Ok::<_, kube::Error>(bytes)
        };
        let bytes = read_within(LOG_PATIENCE, reading).await?;
        let fewer = log.tail_lines.unwrap_or(LOG_LINES) / 4;
        if fewer == 0 || i64::try_from(bytes.len()).is_ok_and(|bytes| bytes < LOG_BYTES) {
            return Ok(redact::without_known(&String::from_utf8_lossy(&bytes)));
        }
        log.tail_lines = Some(fewer);
    }
}

/// Exports, imports, and what the controller made for them.
async fn objects(bundle: &mut Bundle, client: &Client, namespaces: &[String]) {
    let managed = |label| ListParams::default().labels(&format!("{label}={}", names::MANAGED_BY));
    let all = ListParams::default();
    let properties: Api<ClusterProperty> = Api::all(client.clone());
    list(bundle, "objects/clusterproperties.json", &properties, &all).await;
    let policies: Api<ClusterImportPolicy> = Api::all(client.clone());
    list(bundle, "objects/clusterimportpolicies.json", &policies, &all).await;
    let scopes: Vec<Option<&str>> =
        if namespaces.is_empty() { vec![None] } else { namespaces.iter().map(|name| Some(name.as_str())).collect() };
    for scope in scopes {
        macro_rules! gather {
            ($kind:ty, $file:literal, $params:expr) => {{
                let api: Api<$kind> =
                    scope.map_or_else(|| Api::all(client.clone()), |name| Api::namespaced(client.clone(), name));
                let path =
                    format!("objects/{}{}.json", scope.map_or_else(String::new, |name| format!("{name}/")), $file);
                list(bundle, &path, &api, $params).await;
            }};
        }
        gather!(ServiceExport, "serviceexports", &all);
        gather!(ServiceImport, "serviceimports", &all);
        gather!(Cutover, "cutovers", &all);
        gather!(Service, "services", &managed(names::LABEL_MANAGED_BY));
        gather!(EndpointSlice, "endpointslices", &managed(names::LABEL_SLICE_MANAGED_BY));
        gather!(Event, "events", &of_controller());
    }
}

/// One object, of a kind that every cluster has.
async fn get<K>(api: &Api<K>, name: &str) -> Result<K, Unread>
where
    K: Clone + DeserializeOwned + std::fmt::Debug,
{
    there(read(api.get_opt(name)).await)
}

/// An object that has to be there.
fn there<K>(found: Result<Option<K>, Unread>) -> Result<K, Unread> {
    found?.ok_or_else(|| Unread::Failed("there is none".to_owned()))
}

/// All objects, page by page, up to [`MOST`]. What was read before a page that fails is kept.
async fn list<K>(bundle: &mut Bundle, path: &str, api: &Api<K>, params: &ListParams)
where
    K: Clone + DeserializeOwned + Serialize + std::fmt::Debug,
{
    let mut found = Vec::new();
    let mut params = params.clone().limit(PAGE);
    let left_out = loop {
        let page = match read(api.list(&params)).await {
            Ok(page) => page,
            Err(why) => break Some(why.to_string()),
        };
        found.extend(page.items.iter().map(|object| json!(object)));
        match page.metadata.continue_.filter(|token| !token.is_empty()) {
            None => break None,
            Some(_) if found.len() >= MOST => break Some("gather single namespaces with --namespace".to_owned()),
            Some(token) => params = params.continue_token(&token),
        }
    };
    let taken = found.len();
    if taken > 0 || left_out.is_none() {
        bundle.object(path, Ok::<_, String>(found.into()));
    }
    if let Some(why) = left_out {
        let why = if taken > 0 { format!("all but the first {taken}: {why}") } else { why };
        bundle.text(path, Err(why));
    }
}
