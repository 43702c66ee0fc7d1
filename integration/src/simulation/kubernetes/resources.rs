//! The kinds that this API server serves, and what server-side apply must know of each.

/// One kind of object.
#[derive(Debug)]
#[allow(clippy::struct_excessive_bools, reason = "independent facts about a kind")]
pub struct Resource {
    /// Empty for the core group.
    pub group: &'static str,
    pub version: &'static str,
    pub plural: &'static str,
    pub kind: &'static str,
    pub namespaced: bool,
    /// Served only where its CRD is installed.
    pub custom: bool,
    /// Its status is written through the subresource only.
    pub status: bool,
    /// `metadata.generation` counts its changes.
    pub counted: bool,
    /// Lists that are merged by the keys of their items, by path. All other lists are replaced whole.
    keyed: &'static [(&'static str, &'static [&'static str])],
    /// Maps that are replaced whole, by path.
    whole: &'static [&'static str],
}

const CONDITIONS: (&str, &[&str]) = ("status.conditions", &["type"]);

const PLAIN: Resource = Resource {
    group: "",
    version: "v1",
    plural: "",
    kind: "",
    namespaced: true,
    custom: false,
    status: false,
    counted: false,
    keyed: &[],
    whole: &[],
};

/// All kinds, in the order in which a namespace loses them.
pub static RESOURCES: &[Resource] = &[
    Resource {
        plural: "services",
        kind: "Service",
        status: true,
        keyed: &[("spec.ports", &["port", "protocol"]), CONDITIONS],
        whole: &["spec.selector"],
        ..PLAIN
    },
    Resource { plural: "pods", kind: "Pod", status: true, keyed: &[CONDITIONS], ..PLAIN },
    Resource { plural: "configmaps", kind: "ConfigMap", ..PLAIN },
    Resource { plural: "secrets", kind: "Secret", ..PLAIN },
    Resource { group: "discovery.k8s.io", plural: "endpointslices", kind: "EndpointSlice", counted: true, ..PLAIN },
    Resource { group: "networking.k8s.io", plural: "ingresses", kind: "Ingress", status: true, counted: true, ..PLAIN },
    Resource { group: "coordination.k8s.io", plural: "leases", kind: "Lease", ..PLAIN },
    Resource { group: "events.k8s.io", plural: "events", kind: "Event", whole: &["regarding"], ..PLAIN },
    Resource {
        group: "multicluster.x-k8s.io",
        version: "v1beta1",
        plural: "serviceexports",
        kind: "ServiceExport",
        custom: true,
        status: true,
        counted: true,
        keyed: &[CONDITIONS],
        ..PLAIN
    },
    Resource {
        group: "multicluster.x-k8s.io",
        version: "v1beta1",
        plural: "serviceimports",
        kind: "ServiceImport",
        custom: true,
        status: true,
        counted: true,
        keyed: &[CONDITIONS, ("status.clusters", &["cluster"])],
        ..PLAIN
    },
    Resource {
        group: "about.k8s.io",
        version: "v1beta1",
        plural: "clusterproperties",
        kind: "ClusterProperty",
        namespaced: false,
        custom: true,
        counted: true,
        ..PLAIN
    },
    Resource {
        group: "cloudmap-mcs.io",
        version: "v1alpha1",
        plural: "clusterimportpolicies",
        kind: "ClusterImportPolicy",
        namespaced: false,
        custom: true,
        status: true,
        counted: true,
        keyed: &[CONDITIONS],
        ..PLAIN
    },
    Resource {
        group: "cloudmap-mcs.io",
        version: "v1alpha1",
        plural: "cutovers",
        kind: "Cutover",
        custom: true,
        status: true,
        counted: true,
        keyed: &[CONDITIONS],
        ..PLAIN
    },
    Resource { plural: "namespaces", kind: "Namespace", namespaced: false, status: true, ..PLAIN },
];

impl Resource {
    /// The kind with that plural name: `services`.
    ///
    /// # Panics
    /// If there is none: the name is a mistake in a scenario.
    pub fn named(plural: &str) -> &'static Self {
        RESOURCES
            .iter()
            .find(|resource| resource.plural == plural)
            .unwrap_or_else(|| panic!("the simulated API server has no {plural:?}"))
    }

    pub(super) fn find(group: &str, version: &str, plural: &str) -> Option<&'static Self> {
        RESOURCES
            .iter()
            .find(|resource| (resource.group, resource.version, resource.plural) == (group, version, plural))
    }

    /// `multicluster.x-k8s.io/v1beta1`.
    pub fn api_version(&self) -> String {
        if self.group.is_empty() { self.version.to_owned() } else { format!("{}/{}", self.group, self.version) }
    }

    /// `serviceexports.multicluster.x-k8s.io`, as the API server's messages have it.
    pub(super) fn qualified(&self) -> String {
        if self.group.is_empty() { self.plural.to_owned() } else { format!("{}.{}", self.plural, self.group) }
    }

    /// The keys of the items of the list at this path, where they are merged.
    pub(super) fn keys(&self, path: &str) -> Option<&'static [&'static str]> {
        if path == "metadata.ownerReferences" {
            return Some(&["uid"]);
        }
        self.keyed.iter().find(|(keyed, _)| *keyed == path).map(|(_, keys)| *keys)
    }

    pub(super) fn is_whole(&self, path: &str) -> bool {
        self.whole.contains(&path)
    }
}
