//! Flags of `run`.

use std::{
    net::{IpAddr, SocketAddr},
    time::Duration,
};

use clap::Args;

use super::{
    PlaceArgs,
    values::{duration, http_url, parsed},
};
use annotations::{Policy, ZoneKind, is_id};
use api::selection::ClusterSelection;
use cluster::{LabelKeys, selector::NamespaceSelector};
use cutover::Settle;
use discovery::ImportFrom;
use export::Quota;
use import::{DerivedNaming, policy::CLOSED_NAMESPACES};
use instances::{RegistrationPolicy, Selection, VpcId, target::validate};
use ledger::{driver::sessions::Streaming, joining::Join, limits::REMOTE_MEMORY_MIB, trust::Mode};
use model::Target;
use reachability::Probing;

/// The port on which a leader listens for those of other clusters, unless `--stream-port` says another one.
pub const STREAM_PORT: u16 = 7946;

/// Flags of `run`.
#[derive(Debug, Args)]
#[expect(clippy::struct_excessive_bools, reason = "each is a flag of its own")]
pub struct RunArgs {
    /// Where to run.
    #[command(flatten)]
    pub place: PlaceArgs,

    /// Which exports are also registered as ordinary Cloud Map instances, for ECS tasks and other readers. AWS charges
    /// about 0.10 USD per instance and month.
    #[arg(long, env = "CLOUDMAP_MCS_INSTANCES", value_enum, default_value_t = Selection::All)]
    pub instances: Selection,
    /// Register all instances in this one Cloud Map namespace, as `<service>.<namespace>`, instead of in one Cloud Map
    /// namespace per Kubernetes namespace.
    #[arg(long, env = "CLOUDMAP_MCS_INSTANCES_NAMESPACE", value_name = "NAME", value_parser = instances_namespace)]
    pub instances_namespace: Option<String>,
    /// Id of a VPC in the registry's account and region. Wherever the controller makes a missing Cloud Map namespace, it makes
    /// a private one with DNS for this VPC, and not an API-only one. AWS charges 0.50 USD a month for the hosted zone of each.
    /// Needs more permissions (`cloudmap-mcs iam --mode instances,dns-namespaces`). See docs/instances.md.
    ///
    /// Each zone answers for its name in the whole VPC: for a Kubernetes namespace `dev`, names under `.dev` of the Internet are
    /// hidden there. With --instances-namespace there is one zone, with a name that you choose.
    #[arg(long, env = "CLOUDMAP_MCS_CREATE_DNS_NAMESPACES", value_name = "VPC", value_parser = parsed::<VpcId>)]
    pub create_dns_namespaces: Option<VpcId>,
    /// Keys of pod labels, separated by commas, that become attributes of the pods' instances, with the same names. Needs
    /// permission to read pods (config/components/instance-labels), and memory for each pod that has one of these labels.
    #[arg(long, env = "CLOUDMAP_MCS_INSTANCE_LABELS", value_name = "KEYS", value_parser = parsed::<LabelKeys>)]
    pub instance_labels: Option<LabelKeys>,
    /// Open the readiness gate `cloudmap-mcs/registered` of pods when clients of Cloud Map find them. Needs permission to read
    /// pods and to write their status (config/components/readiness-gates), and memory for each pod that has the label
    /// `cloudmap-mcs/gate`. See docs/gates.md.
    #[arg(long, env = "CLOUDMAP_MCS_READINESS_GATES")]
    pub readiness_gates: bool,
    /// Open the readiness gate of a pod after this time, even if Cloud Map does not show the pod yet, so that it blocks no
    /// roll-out for longer.
    #[arg(long, env = "CLOUDMAP_MCS_GATE_TIMEOUT", value_name = "DURATION", default_value = "5m", value_parser = duration)]
    pub gate_timeout: Duration,
    /// Follow Cutovers, which move the traffic of a Cloud Map service to pods step by step. Needs the
    /// CustomResourceDefinition of Cutover (config/crd), and permission to read Cutovers and to write their status
    /// (config/components/cutovers). See docs/cutover.md.
    #[arg(long, env = "CLOUDMAP_MCS_CUTOVERS")]
    pub cutovers: bool,
    /// Let Cutovers hide ECS tasks (`spec.hideTasks`): mark them as unhealthy in Cloud Map, so that they leave DNS while they
    /// still run, and as healthy again on the way back. Needs permission for it (`cloudmap-mcs iam --mode hiding`). Not
    /// verified on AWS. See docs/cutover.md.
    #[arg(long, env = "CLOUDMAP_MCS_HIDE_TASKS")]
    pub hide_tasks: bool,
    /// By how much clients are late: for so long beyond the TTL they may use an answer of DNS. From 1s to 1h, in whole seconds.
    /// The steps of Cutovers, the time from which hidden tasks may be stopped, and the `preStop` hook that `cutover plan` asks
    /// for depend on it. Raise it if clients keep addresses or connections for longer, such as connection pools.
    #[arg(long, env = "CLOUDMAP_MCS_SETTLE", value_name = "DURATION", default_value_t = Settle::default(), value_parser = parsed::<Settle>)]
    pub settle: Settle,
    /// URL of the Prometheus that the guards of Cutovers ask, such as `http://prometheus.monitoring:9090`. Whoever may
    /// write Cutovers decides what is asked, and sees of the answer only whether a value is too high.
    #[arg(long, env = "CLOUDMAP_MCS_GUARD_PROMETHEUS", value_name = "URL", value_parser = prometheus_url)]
    pub guard_prometheus: Option<String>,
    /// How many Cloud Map listings a second the drift checks of instances may use. This determines how often each target is
    /// checked (every 50 s for up to 500 targets); see the metric `cloudmap_mcs_instances_drift_period_seconds`.
    ///
    /// From 0.1 to 1000.
    #[arg(long, env = "CLOUDMAP_MCS_DRIFT_CALLS_PER_SECOND", value_name = "N", default_value = "10", value_parser = rate)]
    pub drift_calls_per_second: f64,

    /// Register the host names of annotated Services only in Cloud Map namespaces of this domain and its subdomains.
    /// With a leading dot: only of its subdomains. Several domains are separated by commas. Without it: in all
    /// namespaces. As in external-dns.
    #[arg(long, env = "CLOUDMAP_MCS_DOMAIN_FILTER", value_name = "DOMAIN", value_delimiter = ',')]
    pub domain_filter: Vec<String>,
    /// Register the host names of annotated Services only in Cloud Map namespaces of this kind. Without it: in all
    /// namespaces, including API-only ones. As in external-dns.
    ///
    /// If several namespaces have one name, only the oldest counts. If the oldest is of another kind, names in it are
    /// refused.
    #[arg(long, env = "CLOUDMAP_MCS_AWS_ZONE_TYPE", value_name = "TYPE", value_enum)]
    pub aws_zone_type: Option<ZoneKind>,
    /// Owner id of the external-dns that this controller replaces. Where external-dns annotations name a service that
    /// external-dns owns by exactly this id, this controller takes over the service and its instances. Stop external-dns
    /// first.
    #[arg(long, env = "CLOUDMAP_MCS_TXT_OWNER_ID", value_name = "ID")]
    pub txt_owner_id: Option<String>,
    /// Whether to withdraw names that no annotated Service requests any more. With `upsert-only` they keep their last
    /// addresses. Names that are requested follow their endpoints in both cases. As in external-dns. With `--instances=none`,
    /// all are withdrawn.
    #[arg(long, env = "CLOUDMAP_MCS_POLICY", value_enum, default_value_t = Policy::Sync)]
    pub policy: Policy,
    /// Register nothing for annotated Services, and log what would be registered. Does not apply to ServiceExports.
    ///
    /// Nor to `leave`, which withdraws what was registered before.
    #[arg(long, env = "CLOUDMAP_MCS_DRY_RUN")]
    pub dry_run: bool,

    /// Which Cloud Map services the annotations on ServiceExports, Services and Ingresses may name. With `open`: all,
    /// as in external-dns. With `granted`: only those that the annotation `cloudmap-mcs/may-register` on their
    /// Namespace lists, and an export's own name. Joining a service that others made always needs the annotation.
    #[arg(long, env = "CLOUDMAP_MCS_REGISTRATION_POLICY", value_enum, default_value_t = RegistrationPolicy::Open)]
    pub registration_policy: RegistrationPolicy,

    /// How much of the registry the objects of one Kubernetes namespace may use, so that nobody takes the room of others:
    /// names in Cloud Map, records in the ledger, instances, and bytes of the records. The annotation
    /// `cloudmap-mcs/quota` on a Namespace replaces what it names. See docs/operations.md.
    #[arg(long, env = "CLOUDMAP_MCS_NAMESPACE_QUOTA", value_name = "LIMITS", default_value_t = Quota::default(), value_parser = parsed::<Quota>)]
    pub namespace_quota: Quota,
    /// How long a new claim to a Cloud Map name must be visible to the other clusters before the controller registers
    /// instances there. Applies to names that an annotation gives.
    #[arg(long, env = "CLOUDMAP_MCS_CLAIM_DELAY", value_name = "DURATION", default_value = "10s", value_parser = duration)]
    pub claim_delay: Duration,

    /// Label selector of the namespaces that may export Services, as in `kubectl get -l`: `team in (a, b),!private`.
    /// ServiceExports in other namespaces report that they are not allowed. Without it all namespaces may export.
    ///
    /// Another example: `kubernetes.io/metadata.name notin (default, kube-system)`. Changes of labels take effect
    /// without a restart. Annotated Services are not affected.
    #[arg(long, env = "CLOUDMAP_MCS_EXPORT_NAMESPACES", value_name = "SELECTOR", value_parser = parsed::<NamespaceSelector>)]
    pub export_namespaces: Option<NamespaceSelector>,

    /// Cloud Map namespaces to import from, separated by commas. Their foreign instances (ECS tasks and everything else
    /// that this ClusterSet did not register) are imported into every Kubernetes namespace without the annotation
    /// `cloudmap.controller/import-from`. `{namespace}` stands for the name of the Kubernetes namespace. Namespaces
    /// that other accounts share are named by their ARN.
    #[arg(long, env = "CLOUDMAP_MCS_IMPORT_FROM", value_name = "NAMES", value_parser = parsed::<ImportFrom>)]
    pub import_from: Option<ImportFrom>,
    /// How many Cloud Map calls a second the imports of foreign instances may use. This determines how often each
    /// service is read; see the metric `cloudmap_mcs_import_period_seconds`. One call a second costs 2.63 USD a month.
    ///
    /// From 0.1 to 1000.
    #[arg(long, env = "CLOUDMAP_MCS_IMPORT_CALLS_PER_SECOND", value_name = "N", default_value = "60", value_parser = rate)]
    pub import_calls_per_second: f64,

    /// Kubernetes namespaces that take no exports of other clusters, separated by commas; `*` stands for any text. The annotation
    /// `cloudmap-mcs/accept-clusters` on a Namespace opens it. Names in `kube-*` and in the controller's own namespace are never
    /// imported. See docs/import-policies.md.
    #[arg(long, env = "CLOUDMAP_MCS_CLOSED_NAMESPACES", value_name = "NAMES", default_value = CLOSED_NAMESPACES, value_delimiter = ',', value_parser = namespaces)]
    pub closed_namespaces: Vec<String>,

    /// Set this while other clusters of this ClusterSet still run the AWS Cloud Map MCS Controller for K8s. Registers
    /// every export with the instance ids and attributes of that controller, one instance per endpoint and port, and
    /// imports its exports. That controller must not run in this cluster. See docs/moving-from-aws-mcs-controller.md.
    #[arg(long, env = "CLOUDMAP_MCS_AWS_MCS_COMPAT", conflicts_with = "instances_namespace")]
    pub aws_mcs_compat: bool,

    /// Name of the Service that each import gets in this cluster, such as `{name}-global`: `{name}` stands for the name of
    /// the ServiceImport. Every DNS server of the cluster answers for it (`payments-global.shop.svc.cluster.local`), also where
    /// nobody may add `clusterset.local` to CoreDNS. By default the name is `derived-` and a hash.
    ///
    /// Headless imports get such a Service as well. If a Service of others has the name, or it would have more than 63
    /// characters, the name is `derived-` and the hash, and an Event says so. A change replaces the Services one by one, and
    /// with them the cluster IPs: connections to the former ones end.
    #[arg(long, env = "CLOUDMAP_MCS_DERIVED_NAME", value_name = "TEMPLATE", value_parser = parsed::<DerivedNaming>)]
    pub derived_name: Option<DerivedNaming>,

    /// How long the controller says that the type of an import changes (ClusterSetIP, Headless) before it makes the change, if an
    /// export of another cluster causes it while another export still has the former type. Set the same in all clusters.
    #[arg(long, env = "CLOUDMAP_MCS_TYPE_NOTICE", value_name = "DURATION", default_value = "15m", value_parser = duration)]
    pub type_notice: Duration,

    /// Which clusters serve an imported name, nearest first, if neither its exports nor its Namespace here say it with
    /// annotations: `spread` (all alike), `local-first` (this cluster, then its region, then all), `local-only` (this cluster), or
    /// a list of selectors. See docs/traffic.md.
    #[arg(long, env = "CLOUDMAP_MCS_CLUSTER_SELECTORS", value_name = "SELECTORS", default_value = "spread", value_parser = parsed::<ClusterSelection>)]
    pub cluster_selectors: ClusterSelection,

    /// Whether to stop using a cluster to which the network is gone while others are ready: its leader's stream is lost, and
    /// several of its endpoints on several nodes take no TCP connection from the controller's pod. With `auto`: where leaders are
    /// connected (see `--stream`). With `off`: never, and no connections are made. See docs/unreachable.md.
    #[arg(long, env = "CLOUDMAP_MCS_PROBE", value_enum, default_value_t = Probing::Auto)]
    pub probe: Probing,

    /// Which heads in the ledger count. With `open`: all heads, whoever wrote them. With `tofu` (trust on first use):
    /// those that are signed with the key with which a cluster was first accepted. With `pinned`: only those that are
    /// signed with a key in the ConfigMap `cloudmap-mcs-trust`. Unless it is `open`, this cluster signs its own heads.
    /// See docs/trust.md.
    #[arg(long, env = "CLOUDMAP_MCS_TRUST", value_enum, default_value_t = Mode::Tofu)]
    pub trust: Mode,
    /// Whether a new cluster of the ClusterSet needs the word of an administrator of this cluster before anything that it says
    /// counts here. With `tofu`: no, its first key is trusted. With `approve`: yes, `cloudmap-mcs trust accept`. A new cluster
    /// registers nothing in Cloud Map before every member that runs with `approve` has accepted it. See docs/trust.md.
    #[arg(long, env = "CLOUDMAP_MCS_JOIN", value_enum, default_value_t = Join::Tofu)]
    pub join: Join,
    /// Whether the leaders of the clusters also send each other their endpoints directly, which takes milliseconds.
    /// With `auto`: wherever they reach each other and sign (see `--trust`). With `off`: never. See docs/stream.md.
    #[arg(long, env = "CLOUDMAP_MCS_STREAM", value_enum, default_value_t = Streaming::Auto)]
    pub stream: Streaming,
    /// The TCP port on which the leader listens for the leaders of other clusters. NetworkPolicies and security groups must let
    /// them connect; one direction is enough.
    #[arg(long, env = "CLOUDMAP_MCS_STREAM_PORT", value_name = "PORT", default_value_t = STREAM_PORT, value_parser = clap::value_parser!(u16).range(1..))]
    pub stream_port: u16,
    /// IP addresses at which other clusters reach the leader, separated by commas, at most 4. Without it: the addresses
    /// of the leader's pod.
    #[arg(long, env = "CLOUDMAP_MCS_STREAM_ADDRESSES", value_name = "IP,...", value_delimiter = ',')]
    pub stream_addresses: Vec<IpAddr>,
    /// How often to read the ledger, from 200ms to 20s.
    #[arg(long, env = "CLOUDMAP_MCS_LEDGER_TICK", value_name = "DURATION", default_value = "1s", value_parser = tick)]
    pub ledger_tick: Duration,
    /// Remove the endpoints of a cluster whose ledger has not advanced for this long, at least 5m. Off by default, because
    /// the pods of a cluster still serve while its controller is down.
    ///
    /// The endpoints come back when the ledger advances again. Until then they stay removed, also across restarts of
    /// this controller.
    #[arg(long, env = "CLOUDMAP_MCS_STALE_CLUSTER_TTL", value_name = "DURATION", value_parser = stale_ttl)]
    pub stale_cluster_ttl: Option<Duration>,

    /// Memory for what all other clusters say in the ledger, together, in MiB. If they say more, the largest cluster counts as
    /// not read: what was imported from it stays as it is, and an Event on the Lease says so. Raise the memory limit of the
    /// controller with it.
    ///
    /// From 1 to 65536.
    #[arg(long, env = "CLOUDMAP_MCS_REMOTE_MEMORY", value_name = "MIB", default_value_t = REMOTE_MEMORY_MIB,
          value_parser = clap::value_parser!(u32).range(1..=65_536))]
    pub remote_memory: u32,

    /// Address on which to serve /healthz, /readyz and /metrics.
    ///
    /// On nodes without IPv6: `0.0.0.0` with the same port.
    #[arg(long, env = "CLOUDMAP_MCS_LISTEN", value_name = "ADDRESS", default_value = "[::]:8080")]
    pub listen: SocketAddr,
    /// Address on which to serve a page for people: what `cloudmap-mcs status` says, in a browser. The page only reads,
    /// but it has no login. With 127.0.0.1:8090, only users who may `kubectl port-forward` to the pod see it. Off by
    /// default.
    #[arg(long, env = "CLOUDMAP_MCS_PAGE_LISTEN", value_name = "ADDRESS")]
    pub page_listen: Option<SocketAddr>,
    /// How many names to reconcile at once.
    ///
    /// From 1 to 256.
    #[arg(long, env = "CLOUDMAP_MCS_CONCURRENCY", value_name = "N", default_value_t = 8,
          value_parser = clap::value_parser!(u16).range(1..=256))]
    pub concurrency: u16,
}

/// Length of the id of a Cloud Map namespace. A shorter name may begin in the same way.
const ID: usize = "ns-abcdefghij123456".len();

fn instances_namespace(text: &str) -> Result<String, String> {
    if text.len() >= ID && is_id(text) {
        return Err("it is the id of a Cloud Map namespace: write its name".to_owned());
    }
    let target = Target { namespace: text.into(), service: "any".into() };
    validate(&target).map(|()| text.to_owned()).map_err(|invalid| invalid.to_string())
}

/// A pattern of names of Kubernetes namespaces. An empty one matches none, so that an empty list closes none.
fn namespaces(text: &str) -> Result<String, String> {
    let is_of_name = |letter: char| letter.is_ascii_lowercase() || letter.is_ascii_digit() || "-*".contains(letter);
    if text.chars().all(is_of_name) {
        return Ok(text.to_owned());
    }
    Err(format!("{text:?} is no name of a Kubernetes namespace, in which * may stand for any text"))
}

/// Reading more often costs more and shows little more. Reading more slowly than the ledger's heartbeats cannot tell which
/// clusters are silent.
fn tick(text: &str) -> Result<Duration, String> {
    let bounds = Duration::from_millis(200)..=Duration::from_secs(20);
    let tick = duration(text)?;
    if bounds.contains(&tick) { Ok(tick) } else { Err(format!("{text:?} is not a duration from 200ms to 20s")) }
}

/// A cluster counts as stale only after [`Timing::lease`](ledger::limits::Timing::lease), so its endpoints cannot
/// expire before that.
fn stale_ttl(text: &str) -> Result<Duration, String> {
    let ttl = duration(text)?;
    if ttl >= Duration::from_mins(5) { Ok(ttl) } else { Err(format!("{text:?} is too short: at least 5m")) }
}

fn rate(text: &str) -> Result<f64, String> {
    text.parse::<f64>()
        .ok()
        .filter(|rate| (0.1..=1000.0).contains(rate))
        .ok_or_else(|| format!("{text:?} is not a number from 0.1 to 1000"))
}

fn prometheus_url(text: &str) -> Result<String, String> {
    let url = http_url(text)?;
    if url.starts_with("https://") {
        return Err(
            "only http:// is spoken with Prometheus: name a proxy in the cluster, which also signs for AMP".to_owned()
        );
    }
    Ok(url)
}

#[cfg(test)]
mod tests {
    use clap::{CommandFactory as _, Parser as _};

    use super::super::Cli;

    #[test]
    fn every_long_flag_of_run_has_an_environment_variable() {
        let command = Cli::command();
        let run = command.find_subcommand("run").unwrap();
        for arg in run.get_arguments().filter(|arg| arg.get_long().is_some_and(|long| long != "help")) {
            assert!(arg.get_env().is_some(), "--{}", arg.get_long().unwrap());
            assert!(arg.get_help().is_some(), "--{} explains itself", arg.get_long().unwrap());
        }
    }

    #[test]
    fn a_wrong_value_names_the_flag_and_what_it_takes() {
        for (flag, value, hint) in [
            ("--cluster-id", "Prod", "DNS-1123"),
            ("--ledger-tick", "fast", "500ms"),
            ("--ledger-tick", "1ms", "from 200ms to 20s"),
            ("--ledger-tick", "1m", "from 200ms to 20s"),
            ("--stale-cluster-ttl", "0s", "positive"),
            ("--stale-cluster-ttl", "1m", "at least 5m"),
            ("--drift-calls-per-second", "0", "0.1"),
            ("--drift-calls-per-second", "-5", "0.1"),
            ("--drift-calls-per-second", "NaN", "0.1"),
            ("--instances", "some", "annotated"),
            ("--cloudmap-endpoint", "localhost:1", "http://"),
            ("--concurrency", "0", "1..=256"),
            ("--instances-namespace", "clusterset-prod", "ledgers"),
            ("--instances-namespace", "ns-abcdefghij123456", "write its name"),
            ("--create-dns-namespaces", "shop", "vpc-0123456789abcdef0"),
            ("--create-dns-namespaces", "vpc-0123456789abcdef", "8 or 17"),
            ("--policy", "create-only", "upsert-only"),
            ("--aws-zone-type", "http", "private"),
            ("--export-namespaces", "env in prod", "key in (a, b)"),
            ("--import-from", "a b", "separated by commas"),
            ("--instance-labels", "AWS_INSTANCE_IPV4", "reserved"),
            ("--namespace-quota", "names=many", "names=2000"),
            ("--import-calls-per-second", "0", "0.1"),
            ("--settle", "0s", "from 1s to 1h"),
            ("--settle", "90m", "from 1s to 1h"),
            ("--settle", "1500ms", "whole seconds"),
        ] {
            let error =
                Cli::try_parse_from(["cloudmap-mcs", "run", &format!("{flag}={value}")]).unwrap_err().to_string();
            assert!(error.contains(flag) && error.contains(hint), "{error}");
        }
    }

    #[test]
    fn aws_mcs_compat_excludes_instances_namespace() {
        let flags = ["cloudmap-mcs", "run", "--aws-mcs-compat", "--instances-namespace", "internal"];
        let error = Cli::try_parse_from(flags).unwrap_err().to_string();
        assert!(error.contains("--instances-namespace") && error.contains("--aws-mcs-compat"), "{error}");
    }
}
