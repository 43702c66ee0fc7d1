//! What the standard asks for, restated in short and numbered. KEP-1645 is the Multi-Cluster Services API, its document
//! `specification.md` the DNS specification, KEP-2149 ClusterProperty; "types" are the comments of the Go types of
//! sigs.k8s.io/mcs-api, "practice" is what other implementations and consumers rely on.

use std::fmt;

use serde::Serialize;

/// How binding a requirement is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub(crate) enum Level {
    #[serde(rename = "MUST")]
    Must,
    #[serde(rename = "SHOULD")]
    Should,
    #[serde(rename = "MAY")]
    May,
    /// Behaviour that the text describes without a keyword.
    #[serde(rename = "described")]
    Described,
}

impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Must => "MUST",
            Self::Should => "SHOULD",
            Self::May => "MAY",
            Self::Described => "described",
        })
    }
}

/// One requirement.
#[derive(Debug, Clone, Copy, Serialize)]
pub(crate) struct Requirement {
    pub number: u8,
    pub level: Level,
    pub source: &'static str,
    pub text: &'static str,
}

const fn must(number: u8, source: &'static str, text: &'static str) -> Requirement {
    Requirement { number, level: Level::Must, source, text }
}

const fn should(number: u8, source: &'static str, text: &'static str) -> Requirement {
    Requirement { number, level: Level::Should, source, text }
}

const fn may(number: u8, source: &'static str, text: &'static str) -> Requirement {
    Requirement { number, level: Level::May, source, text }
}

const fn described(number: u8, source: &'static str, text: &'static str) -> Requirement {
    Requirement { number, level: Level::Described, source, text }
}

const KEP: &str = "KEP-1645";
const DNS: &str = "DNS spec";
const ABOUT: &str = "KEP-2149";
const TYPES: &str = "types";
const PRACTICE: &str = "practice";

/// All of them, in the order of their numbers, which are for ever.
pub(crate) const REQUIREMENTS: &[Requirement] = &[
    // Membership and identity.
    must(1, ABOUT, "ClusterProperty cluster.clusterset.k8s.io is the cluster's id, unique in the ClusterSet"),
    must(2, ABOUT, "ClusterProperty clusterset.k8s.io exists while the cluster is a member, and only then"),
    should(
        3,
        ABOUT,
        "a changed id is the end of one membership and the beginning of another: nothing stays under the old id",
    ),
    described(4, ABOUT, "an id that is missing, or that another member has, is refused with an actionable error"),
    described(5, KEP, "namespace sameness: a namespaced name is the same Service in all clusters"),
    // Export.
    described(6, KEP, "nothing is exported by default; a ServiceExport exports the Service of its name and namespace"),
    described(
        7,
        KEP,
        "a Service without a ServiceExport in its own cluster is not exported, whoever else exports that name",
    ),
    described(8, KEP, "deleting a ServiceExport ends the export; deleting the last one deletes the imports everywhere"),
    described(
        9,
        KEP,
        "ClusterIP, NodePort and LoadBalancer become ClusterSetIP, headless Services Headless; ExternalName is invalid",
    ),
    described(10, TYPES, "an export without a Service is Valid=False, NoService"),
    must(11, KEP, "labels and annotations are exported only from spec.exportedLabels and spec.exportedAnnotations"),
    should(12, KEP, "administrators can restrict exports"),
    // Conditions of ServiceExports.
    must(13, TYPES, "Valid: True/Valid, False/NoService, False/InvalidServiceType"),
    must(14, TYPES, "Ready: True/Exported, False/Pending, False/Failed with the reason in the message"),
    must(15, TYPES, "Conflict: False/NoConflicts, True/ with the standard's reasons, several joined with commas"),
    described(16, KEP, "Conflict=True is on every ServiceExport of the name, in every cluster"),
    described(
        17,
        KEP,
        "the message of a conflict names the field, the value used, the cluster that wins, and how many disagree",
    ),
    described(
        18,
        KEP,
        "conditions are those of metav1.Condition: observedGeneration, transition times only on transitions",
    ),
    // Conflict resolution.
    must(19, KEP, "the oldest export wins, with a tie-break that is the same everywhere"),
    described(20, KEP, "a younger export never changes running traffic; when the oldest goes, the import stays usable"),
    should(
        21,
        KEP,
        "ports: union, by name, then by protocol and number; no duplicates; traffic only to clusters that expose the port",
    ),
    described(22, KEP, "type: the oldest export's; TypeConflict"),
    described(23, KEP, "session affinity and its configuration: the oldest export's; separate reasons"),
    described(24, KEP, "internalTrafficPolicy and trafficDistribution: the oldest export's; separate reasons"),
    described(25, KEP, "exported labels and annotations: the oldest export's set as a whole; separate reasons"),
    must(
        26,
        KEP,
        "ipFamilies without duplicates, ips in their order; IPFamilyConflict where traffic reaches only some backends by family",
    ),
    may(27, KEP, "publishNotReadyAddresses and endpoint conditions: not in the standard, carried faithfully here"),
    // ServiceImport.
    described(
        28,
        KEP,
        "an import is in every cluster that has the namespace, exporters too, also when the namespace comes later",
    ),
    described(29, KEP, "one import per name, however many exporters, as long as there is one"),
    should(30, KEP, "the controller alone owns ServiceImports; ordinary users cannot write them"),
    described(
        31,
        TYPES,
        "the import's spec has ports, type, ips, affinity and its configuration, families and policies",
    ),
    described(32, KEP, "a ClusterSetIP import has stable IPs for its whole life; a headless one has none"),
    must(33, TYPES, "the import's status has clusters, conditions and endpointSliceObjects"),
    should(34, KEP, "errors of an import are in the conditions of its status"),
    described(
        35,
        PRACTICE,
        "annotation multicluster.kubernetes.io/derived-service names the derived Service (Gateway API)",
    ),
    // EndpointSlices.
    must(36, KEP, "slices carry service-name, source-cluster, and a managed-by that is the controller's"),
    described(37, KEP, "each slice has endpoints of exactly one source cluster"),
    described(38, KEP, "un-exporting deletes the slices"),
    described(39, PRACTICE, "kubernetes.io/service-name names the derived Service, for kube-proxy"),
    described(
        40,
        KEP,
        "conditions, host names, zones and hints are carried, also when those of an existing endpoint change",
    ),
    // Cluster loss.
    should(
        41,
        KEP,
        "endpoints of a cluster that is lost: stale ones are visible, and removed after a time-out where that is set",
    ),
    // DNS.
    must(42, DNS, "the zone is clusterset.local; cluster.local is untouched"),
    must(43, DNS, "dns-version.clusterset.local TXT \"1.0.0\""),
    must(44, DNS, "A and AAAA of a ClusterSetIP service are its IPs, by family"),
    must(45, DNS, "SRV of a ClusterSetIP service for each named port, none for unnamed ones"),
    must(46, DNS, "A and AAAA of a headless service are its ready endpoints; NXDOMAIN if there are none"),
    must(
        47,
        DNS,
        "<hostname>.<clusterid>.<service> for each ready endpoint of a headless service, its own hostname first",
    ),
    must(48, DNS, "SRV of a headless service for each ready endpoint and named port"),
    must(49, DNS, "no record <clusterid>.<service>.<namespace>.svc.clusterset.local"),
    may(50, DNS, "PTR records are not required"),
    described(51, PRACTICE, "CoreDNS finds what it reads: v1alpha1 is served, slices have their labels"),
    // Versions.
    must(52, KEP, "the installed CRDs serve the standard's versions and fields, without a conversion webhook"),
    described(53, PRACTICE, "kubectl get shows what matters: short names, categories, columns"),
    described(
        54,
        PRACTICE,
        "a name that clients keep asking for follows the endpoints within seconds, caches included",
    ),
];

/// Why no check shows a requirement.
pub(crate) const fn unchecked(number: u8) -> Option<&'static str> {
    match number {
        50 => Some("asks for nothing"),
        _ => None,
    }
}
