//! Every annotation and label, in one table: the constants that code uses, and what users have to know, of which
//! `docs/reference/annotations.md` is made. [`names`](super::names) has them, too.

/// What users have to know about an annotation or a label, as Markdown.
#[cfg(any(test, feature = "testing"))]
#[derive(Debug, Clone, Copy)]
pub struct Row {
    /// The key; of external-dns, without the prefix.
    pub key: &'static str,
    /// The kinds of objects that have it.
    pub on: &'static [&'static str],
    /// The values that it can have.
    pub values: &'static str,
    /// What holds without it; empty if users do not set it.
    pub default: &'static str,
    /// What it does. Links are relative to `docs/reference`.
    pub text: &'static str,
}

/// `CONSTANT = key on kinds: values; default; text`.
macro_rules! table {
    (
        $(#[$of:meta])* $name:ident;
        $($(#[$doc:meta])* $key:ident = $value:literal on $($on:literal),+: $values:literal; $default:literal; $text:literal;)*
    ) => {
        $($(#[$doc])* pub const $key: &str = $value;)*

        $(#[$of])*
        #[cfg(any(test, feature = "testing"))]
        pub const $name: &[Row] =
            &[$(Row { key: $key, on: &[$($on),+], values: $values, default: $default, text: $text },)*];
    };
}

/// The annotations of a cluster selection, for [`ClusterSelection::read`](crate::selection::ClusterSelection::read).
pub const CLUSTER_SELECTION: [&str; 4] =
    [ANNOTATION_CLUSTER_SELECTORS, ANNOTATION_FALLBACK_POLICY, ANNOTATION_MIN_READY, ANNOTATION_CLUSTER_WEIGHTS];

/// The annotations that ask for a drain, for [`drain::read`](crate::drain::read).
pub const DRAIN: [&str; 2] = [ANNOTATION_DRAIN, ANNOTATION_DRAIN_MIN_READY];

table! {
    /// What users and administrators set.
    SET;
    /// On a ServiceExport: `true` or `false` turns its instances on or off, regardless of `--instances`.
    ANNOTATION_INSTANCES = "cloudmap-mcs/instances" on "ServiceExport":
        "`true`, `false`"; "`--instances`"; "turn the export's instances on or off";
    /// On a ServiceExport: the Cloud Map namespace of its instances, instead of the default one.
    ANNOTATION_TARGET_NAMESPACE = "cloudmap-mcs/namespace" on "ServiceExport":
        "a Cloud Map namespace, by name or id"; "`--instances-namespace`, or the name of its Namespace"; "the Cloud Map namespace of the export's instances. It must exist, unless \
        `cloudmap-mcs/may-create` on the Namespace lists it. For a DNS namespace, capital letters do not count. Names that begin with \
        `clusterset-` are refused ([ledgers](../registrations.md#what-is-never-written))";
    /// On a ServiceExport: the Cloud Map service of its instances, instead of the default one.
    ANNOTATION_TARGET_SERVICE = "cloudmap-mcs/service" on "ServiceExport":
        "a Cloud Map service"; "its own name; with `--instances-namespace`, `<name>.<namespace>`"; "the Cloud Map service of the export's instances. An existing service is joined if \
        `cloudmap-mcs/may-register` on the Namespace lists it, unless another ClusterSet, external-dns or ECS Service Connect owns it";
    /// On a ServiceExport or an annotated Service: with `true`, an existing Cloud Map service is joined that would
    /// otherwise be refused, because it only has the default name, or because another controller created it.
    ANNOTATION_SHARE = "cloudmap-mcs/share" on "ServiceExport", "Service", "Ingress":
        "`true`, `false`"; "`false`"; "join a foreign Cloud Map service even if it only has the default name, or if another \
        ClusterSet or external-dns created it (never one of ECS Service Connect). Needs `cloudmap-mcs/may-register` on the Namespace";
    /// On a ServiceExport or an annotated Service or Ingress: the share of the traffic that its instances get beside
    /// those of others, from `0%` to `100%`.
    ANNOTATION_SHARE_OF_TRAFFIC = "cloudmap-mcs/share-of-traffic" on "ServiceExport", "Service", "Ingress":
        "a percentage from `0%` to `100%`, such as `25%`"; "all ready pods are registered"; "register only as many \
        ready pods as have this [share of the traffic](../shares.md) beside the instances of others";
    /// On a ServiceExport: which clusters serve its name, nearest first, in every importing cluster (KEP-5939, alpha). On a
    /// Namespace: the same for the imports in it, whatever exports say. The controller writes what is in force on the ServiceImport.
    ANNOTATION_CLUSTER_SELECTORS = "cloudmap-mcs/cluster-selectors" on "ServiceExport", "Namespace", "ServiceImport":
        "`local-first`, `local-only`, `spread`, or a list of selectors"; "`--cluster-selectors`"; "which clusters [serve the \
        name](../traffic.md), nearest first. On a ServiceExport, for all importing clusters; on a Namespace, for the imports in it, whatever \
        exports say. On a ServiceImport, the controller writes the selection that is in force, unless all clusters serve alike. Alpha: it \
        follows the draft KEP-5939";
    /// With [`ANNOTATION_CLUSTER_SELECTORS`]: what becomes of clusters that no selector selects.
    ANNOTATION_FALLBACK_POLICY = "cloudmap-mcs/cluster-selectors-fallback-policy" on "ServiceExport", "Namespace":
        "`AllClusters`, `None`"; "`AllClusters`; with `local-only`, `None`"; "whether [clusters that no selector selects](../traffic.md#selectors) serve when no other can. Alpha";
    /// With [`ANNOTATION_CLUSTER_SELECTORS`]: which share of a tier's endpoints must be ready for it to serve alone.
    ANNOTATION_MIN_READY = "cloudmap-mcs/min-ready" on "ServiceExport", "Namespace":
        "`any`, or a percentage from `1%` to `100%`"; "`any`; with `local-first`, `70%`"; "which share of a tier's endpoints must be ready for \
        it to [serve alone](../traffic.md#failover). Alpha";
    /// On a ServiceExport or a Namespace, as [`ANNOTATION_CLUSTER_SELECTORS`]: which part of the connections each cluster gets.
    ANNOTATION_CLUSTER_WEIGHTS = "cloudmap-mcs/cluster-weights" on "ServiceExport", "Namespace":
        "such as `blue=90%,green=10%`"; "all ready endpoints get the same"; "which part of the connections [each cluster gets](../traffic.md#weights) \
        among those that serve. Clusters that are not named share the rest. Alpha";
    /// On a ServiceExport: the endpoints of this cluster leave the name, as far as other clusters can serve it.
    ANNOTATION_DRAIN = "cloudmap-mcs/drain" on "ServiceExport":
        "`true`, `false`"; "`false`, or what the ClusterProperty `drain.cloudmap-mcs.io` says"; "take the endpoints of this cluster [out of the \
        name](../upgrading-a-cluster.md) in all clusters, step by step, as far as others can serve it. `cloudmap-mcs drain NAME` sets it";
    /// With [`ANNOTATION_DRAIN`]: which share of the endpoints elsewhere must be ready.
    ANNOTATION_DRAIN_MIN_READY = "cloudmap-mcs/drain-min-ready" on "ServiceExport":
        "`any`, or a percentage from `1%` to `100%`"; "`70%`"; "which share of the endpoints elsewhere must be ready for all endpoints of this cluster \
        to [leave](../upgrading-a-cluster.md#what-stays)";
    /// On a ServiceExport or an annotated Service: take over the Cloud Map service and the instances of another controller,
    /// `external-dns/<owner id>` or `cloudmap-controller`.
    ANNOTATION_ADOPT = "cloudmap-mcs/adopt" on "ServiceExport", "Service", "Ingress":
        "`external-dns/<owner id>`, `cloudmap-controller`"; "nothing"; "if the Namespace allows it (`cloudmap-mcs/allow-adopt`): join a service that the \
        controller in the value created, and deregister its instances when those of this cluster are registered";
    /// On a ServiceExport or an annotated Service: the records of a Cloud Map service that is created for it in a DNS
    /// namespace, `A`, `AAAA`, `A,AAAA`, `SRV` or `none`, instead of those of the Service's IP families.
    ANNOTATION_RECORDS = "cloudmap-mcs/dns-records" on "ServiceExport", "Service", "Ingress":
        "`A`, `AAAA`, `A,AAAA`, `SRV`, `none`"; "the Service's IP families"; "the types of the DNS records of a service that the controller \
        creates in a DNS namespace";
    /// On a ServiceExport or an annotated Service: TTL of these records, in seconds.
    ANNOTATION_TTL = "cloudmap-mcs/dns-ttl" on "ServiceExport", "Service", "Ingress":
        "seconds"; "60; 300 for external-dns' annotations"; "the TTL of the DNS records. A change takes effect in services that this ClusterSet created or \
        adopted";
    /// On a ServiceExport or an annotated Service: with `custom`, a Cloud Map service that is created gets a custom health
    /// check.
    ANNOTATION_HEALTH_CHECK = "cloudmap-mcs/health-check" on "ServiceExport", "Service", "Ingress":
        "`custom`"; "none"; "a service that the controller creates gets a custom health check, which [mirrors \
        readiness](../instances.md#readiness)";
    /// On a ServiceExport or an annotated Service or Ingress: attributes for its instances, `key=value` separated by commas
    /// or lines, or a JSON object.
    ANNOTATION_ATTRIBUTES = "cloudmap-mcs/attributes" on "ServiceExport", "Service", "Ingress":
        "`key=value` pairs, separated by commas or lines, or a JSON object"; "nothing"; "attributes for the instances \
        ([which](../instances.md#what))";
    /// On a ServiceExport: name or number of the Service port that becomes `AWS_INSTANCE_PORT`, instead of the first.
    ANNOTATION_INSTANCE_PORT = "cloudmap-mcs/instance-port" on "ServiceExport":
        "name or number of a Service port"; "the first port"; "the port that becomes `AWS_INSTANCE_PORT`";
    /// On a Namespace: from which controllers the objects in it may take over with [`ANNOTATION_ADOPT`]: values of that
    /// annotation, separated by commas, or `*`.
    ANNOTATION_ALLOW_ADOPT = "cloudmap-mcs/allow-adopt" on "Namespace":
        "values of `cloudmap-mcs/adopt`, separated by commas, or `*`"; "nothing"; "the controllers from which objects in this \
        namespace may take over services. The owner id of a service of external-dns is in the leader's log (`the Cloud Map service \
        belongs to somebody else`) and in the description of the service. Without it, `cloudmap-mcs/adopt` is refused \
        (`NotAllowed`, `InvalidAnnotation`), and what was taken over before is withdrawn as soon as somebody else is \
        registered there. `--txt-owner-id` allows its id \
        to all namespaces";
    /// On a Namespace: which services that others made the objects in it may join, and with `--registration-policy=granted`,
    /// which Cloud Map services they may name: `<Cloud Map namespace>/<service>` separated by commas, `*` for any text.
    ANNOTATION_MAY_REGISTER = "cloudmap-mcs/may-register" on "Namespace":
        "`<Cloud Map namespace>/<service>`, several separated by commas, `*` for any text (`internal/pay*, \
        *.example.org/*`)"; "nothing"; "the services of others (of ECS, Terraform, people) that objects in this namespace may \
        join, and whose tasks a Cutover may hide. With `--registration-policy=granted`, also the services that they may name. An export \
        needs no grant for its own name, unless it shares an existing service";
    /// On a Namespace: which missing Cloud Map namespaces the controller makes for the exports in it, separated by commas.
    ANNOTATION_MAY_CREATE = "cloudmap-mcs/may-create" on "Namespace":
        "names of Cloud Map namespaces, separated by commas, without `*`"; "nothing"; "the Cloud Map namespaces that the controller \
        makes, API-only or [with DNS](../instances.md#namespaces-with-dns), if an export in this namespace names them and they do not exist. The own name of an export needs none";
    /// On a Namespace: how much of the registry the objects in it may use, instead of `--namespace-quota`.
    ANNOTATION_QUOTA = "cloudmap-mcs/quota" on "Namespace":
        "`names`, `records`, `instances` and `bytes` with a number each, separated by commas (`names=2000,records=8000`)";
        "`--namespace-quota`"; "the [quota](../operations.md#quotas-of-namespaces) of this namespace. What it does not name stays \
        as the flag says";
    /// On a Namespace: the Cloud Map namespaces whose instances are imported into it, separated by commas. An empty value
    /// imports none, regardless of `--import-from`.
    ANNOTATION_IMPORT_FROM = "cloudmap.controller/import-from" on "Namespace":
        "Cloud Map namespaces, by name or id, separated by commas; those that other accounts share by ARN";
        "`--import-from`"; "foreign instances there (ECS tasks, ...) are imported into this namespace. An empty value \
        imports nothing. See [ecs.md](../ecs.md)";
    /// On a Namespace: the clusters whose exports may come into it, by id, separated by commas; `*` stands for any text. It opens a
    /// closed namespace to them.
    ANNOTATION_ACCEPT_CLUSTERS = "cloudmap-mcs/accept-clusters" on "Namespace":
        "ids of clusters, separated by commas; `*` stands for any text"; "all clusters, or none if `--closed-namespaces` has the \
        namespace"; "exports of other clusters count in this namespace only if they are listed. An empty value accepts nobody. See \
        [import policies](../import-policies.md)";
    /// On a Pod, in its template: the pod has the readiness gate [`CONDITION_REGISTERED`](super::names::CONDITION_REGISTERED).
    /// The controller watches only pods with this label.
    LABEL_GATE = "cloudmap-mcs/gate" on "Pod":
        "`registered`"; "the pod's readiness gate never opens"; "with `--readiness-gates`: the controller opens the \
        [readiness gate](../gates.md) `cloudmap-mcs/registered` of the pod. Set it in the pod template, beside the gate";
    /// On a Service: the Cloud Map namespace of its name, verbatim, as the Python controller reads it.
    ANNOTATION_PYTHON_NAMESPACE = "cloudmap.controller/namespace" on "Service":
        "a Cloud Map namespace, by name or id"; "nothing"; "with `cloudmap.controller/hostname`: the namespace in which the Service is \
        registered, [as the Python controller does](../moving-from-cloudmap-controller.md)";
    /// On a Service: the Cloud Map service of its name, verbatim.
    ANNOTATION_PYTHON_HOSTNAME = "cloudmap.controller/hostname" on "Service":
        "a Cloud Map service"; "nothing"; "with `cloudmap.controller/namespace`: the service in which it is registered";
    /// On a Service: TTL of its records.
    ANNOTATION_PYTHON_TTL = "cloudmap.controller/ttl" on "Service":
        "seconds, or a duration of at least a second, such as `1m30s`"; "60"; "the TTL of its records";
}

table! {
    /// What the controller writes.
    WRITTEN;
    /// On every ClusterSetIP ServiceImport: name of the derived Service. Not in KEP-1645, but mcs-api's own controllers
    /// write it and Gateway API implementations require it.
    ANNOTATION_DERIVED_SERVICE = "multicluster.kubernetes.io/derived-service" on "ServiceImport":
        "name of a Service"; ""; "the derived Service. KEP-1645 does not have it, but implementations of the Gateway API \
        need it";
    /// On the Lease: why its holder would rather not lead.
    ANNOTATION_YIELDS = "cloudmap-mcs/yields" on "Lease":
        "text"; ""; "why the leader [would rather not lead](../operations.md#frozen-watches-and-who-leads)";
    /// On the Lease: who would lead instead.
    ANNOTATION_BID = "cloudmap-mcs/bid" on "Lease":
        "name of a replica"; ""; "the replica that offers to lead instead";
    /// On the Lease: the clusters with whose leaders the leader is connected.
    ANNOTATION_STREAMS = "cloudmap-mcs/streams" on "Lease":
        "cluster ids, separated by spaces"; ""; "the clusters with whose leaders the leader is connected by \
        [stream](../stream.md), as of the last renewal. Without the annotation, leaders do not talk to each other";
    /// On the Lease: the clusters whose states are too large for the leader.
    ANNOTATION_REFUSED = "cloudmap-mcs/refused" on "Lease":
        "lines `<cluster id>: <why>`"; ""; "the clusters whose states do not fit into `--remote-memory` of the leader, at most 16, \
        as of the last renewal. `status` [reports them](../alerts.md#cloudmapmcsheadsignored)";
    /// On the Lease: which build the leader is.
    ANNOTATION_BUILD = "cloudmap-mcs/build" on "Lease":
        "version, commit and date"; ""; "which build the leader is, as `--version` says it. [doctor](../doctor.md) compares it \
        between the clusters";
    /// On ServiceImports and derived Services that this project created. The label is in this project's domain, because a
    /// ServiceImport also has the labels that users export, and `app.kubernetes.io/managed-by` may be one of them.
    LABEL_MANAGED_BY = "cloudmap-mcs/managed-by" on "ServiceImport", "Service":
        "`cloudmap-mcs`"; ""; "this controller created the object";
    /// On every imported EndpointSlice: name of the ServiceImport (KEP-1645, MUST). CoreDNS selects slices by it.
    LABEL_SERVICE_NAME = "multicluster.kubernetes.io/service-name" on "EndpointSlice":
        "name of a ServiceImport"; ""; "the import that it belongs to. CoreDNS selects slices by it";
    /// On every imported EndpointSlice: id of the cluster that its endpoints come from (KEP-1645, MUST).
    LABEL_SOURCE_CLUSTER = "multicluster.kubernetes.io/source-cluster" on "EndpointSlice":
        "id of a cluster"; ""; "the cluster that its endpoints come from";
    /// On EndpointSlices: which controller owns them. A slice with another value is never written or deleted.
    LABEL_SLICE_MANAGED_BY = "endpointslice.kubernetes.io/managed-by" on "EndpointSlice":
        "`cloudmap-mcs`"; ""; "this controller owns the slice. A slice with another value is never written or deleted";
    /// On EndpointSlices: the Service they belong to. kube-proxy needs it, for imported slices with the derived Service.
    LABEL_KUBERNETES_SERVICE_NAME = "kubernetes.io/service-name" on "EndpointSlice":
        "name of a Service"; ""; "the derived Service, for kube-proxy";
    /// On the temporary pods of `doctor`.
    LABEL_DOCTOR = "cloudmap-mcs/doctor" on "Pod":
        "text"; ""; "a temporary pod of [doctor](../doctor.md)";
    /// The release of the standard that the CRDs follow, as a label on them. An installer compares it to prevent
    /// downgrades.
    LABEL_RELEASE_VERSION = "multicluster.x-k8s.io/release-version" on "CustomResourceDefinition":
        "a version"; ""; "the release of the standard that the definition follows";
    /// Counts schema changes within one release of the standard (see [`LABEL_RELEASE_VERSION`]).
    LABEL_CRD_SCHEMA_REVISION = "multicluster.x-k8s.io/crd-schema-revision" on "CustomResourceDefinition":
        "a number"; ""; "counts changes of the schema within one release of the standard";
}

table! {
    /// What others write and the controller reads.
    READ;
    /// On EndpointSlices that the EndpointSlice controller mirrors from Endpoints or creates for headless Services.
    LABEL_HEADLESS = "service.kubernetes.io/headless" on "EndpointSlice":
        "empty"; ""; "the slice is mirrored from Endpoints, or belongs to a headless Service";
    /// On a derived Service: the kube-proxy implementation that should ignore it. This project never writes the label, but
    /// keeps it.
    LABEL_SERVICE_PROXY_NAME = "service.kubernetes.io/service-proxy-name" on "Service":
        "text"; ""; "on a derived Service: another proxy serves it. The controller keeps it";
}

table! {
    /// The annotations of external-dns, without their prefixes.
    EXTERNAL_DNS;
    /// Names for the external addresses.
    EXTERNAL_DNS_HOSTNAME = "hostname" on "Service", "Ingress":
        "host names, separated by commas"; "nothing"; "names under which the external addresses of the object are registered";
    /// Names for the internal addresses.
    EXTERNAL_DNS_INTERNAL_HOSTNAME = "internal-hostname" on "Service":
        "host names, separated by commas"; "nothing"; "names under which the internal addresses of the object are registered";
    /// Addresses in the place of those of the object.
    EXTERNAL_DNS_TARGET = "target" on "Service", "Ingress":
        "addresses or host names, separated by commas"; "the object's own"; "replaces the addresses of the object";
    /// TTL of the records.
    EXTERNAL_DNS_TTL = "ttl" on "Service", "Ingress":
        "seconds, or a duration of at least a second, such as `1m30s`"; "300"; "the TTL of its records";
    /// Which controller the object is for.
    EXTERNAL_DNS_CONTROLLER = "controller" on "Service", "Ingress":
        "`dns-controller`"; "`dns-controller`"; "with any other value the object is ignored";
    /// On an Ingress: whether hosts come from the annotation or the rules, in upper or lower case. Without it they come
    /// from both.
    EXTERNAL_DNS_SOURCE = "ingress-hostname-source" on "Ingress":
        "`annotation-only`, `defined-hosts-only`"; "both"; "whether host names come from the annotation or from the rules";
    /// Which addresses of a headless Service count.
    EXTERNAL_DNS_ENDPOINTS_TYPE = "endpoints-type" on "Service":
        "any"; "pod addresses"; "is not supported: an Event says so";
}
