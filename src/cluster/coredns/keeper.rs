//! Programs that write an object again and again, and so undo every change that others make in it.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use api::names::FieldManager;

/// A program that writes an object again and again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Keeper {
    /// The managed add-on of EKS.
    Eks,
    /// A Helm release, if its name is known.
    Helm(String),
    /// k3s, which applies its own manifests at every start.
    K3s,
    /// An application of Argo CD.
    ArgoCd(String),
    /// A Kustomization or HelmRelease of Flux: kind, namespace and name.
    Flux(String),
    /// The addon manager of the control plane, as of AKS.
    AddonManager,
    /// A tool that has a description of the wanted state elsewhere and knows what it wrote: its name.
    Tool(String),
    /// An operator: the object of which this one is a part, or the operator's name.
    Operator(String),
    /// A program of which only the field manager is known. Perhaps it wrote once, perhaps it comes again.
    Program(String),
}

/// Field managers of people and of installers, which write once.
const HANDS: &[&str] = &[
    "kubectl",
    "kubeadm",
    "k9s",
    "lens",
    "freelens",
    "openlens",
    "headlamp",
    "dashboard",
    "rancher",
    "mozilla",
    "node-fetch",
    "curl",
    "python-requests",
    "openapi-generator",
    "before-first-apply",
    "eksctl",
    "kubespray",
];

impl Keeper {
    /// Whether it is known that the keeper comes again.
    pub fn is_certain(&self) -> bool {
        !matches!(self, Self::Program(_))
    }

    /// EKS documents that fields of managed add-ons have the field manager `eks`. Its label `eks.amazonaws.com/component`
    /// says nothing: a CoreDNS that EKS installs without the add-on has it, too. The others document their labels and
    /// annotations. Who delivers a Helm chart is found before Helm, whose annotations are there, too.
    pub(super) fn of(metadata: &ObjectMeta) -> Option<Self> {
        let maps = || [&metadata.annotations, &metadata.labels].into_iter().flatten();
        let value = |key: &str| maps().find_map(|map| map.get(key)).cloned();
        let named = |prefix: &str| maps().any(|map| map.keys().any(|name| name.starts_with(prefix)));
        let managers = || metadata.managed_fields.iter().flatten().filter_map(|entry| entry.manager.as_deref());
        let wrote = |prefix: &str| managers().any(|manager| manager.to_ascii_lowercase().starts_with(prefix));
        let flux = |kind: &str, of: &str| {
            let name = value(&format!("{of}.toolkit.fluxcd.io/name"))?;
            let namespace = value(&format!("{of}.toolkit.fluxcd.io/namespace")).unwrap_or_default();
            Some(Self::Flux(format!("{kind} {namespace}/{name}")))
        };
        if managers().any(|manager| manager == "eks") {
            return Some(Self::Eks);
        }
        // `<application>:<group>/<kind>:<namespace>/<name>`
        let tracked =
            value("argocd.argoproj.io/tracking-id").map(|id| id.split(':').next().unwrap_or_default().to_owned());
        if let Some(application) = tracked.or_else(|| value("argocd.argoproj.io/instance")) {
            return Some(Self::ArgoCd(application));
        }
        if wrote("argocd") {
            return Some(Self::ArgoCd(value("app.kubernetes.io/instance").unwrap_or_default()));
        }
        if let Some(flux) = flux("HelmRelease", "helm").or_else(|| flux("Kustomization", "kustomize")) {
            return Some(flux);
        }
        if named("objectset.rio.cattle.io/") {
            let fleet =
                value("objectset.rio.cattle.io/id").is_some_and(|id| id.contains("fleet")) || named("fleet.cattle.io/");
            return Some(if fleet { Self::Tool("Rancher Fleet".to_owned()) } else { Self::K3s });
        }
        for (tool, here) in [
            ("Google Config Sync", named("configmanagement.gke.io/") || named("configsync.gke.io/")),
            ("kapp", named("kapp.k14s.io/")),
            ("kOps", named("addon.kops.k8s.io/")),
            ("Terraform", wrote("terraform") || wrote("hashicorp") || wrote("opentofu")),
            ("Pulumi", wrote("pulumi") || named("pulumi.com/")),
            ("Flux", wrote("kustomize-controller") || wrote("helm-controller")),
        ] {
            if here {
                return Some(Self::Tool(tool.to_owned()));
            }
        }
        if let Some(owner) = metadata.owner_references.iter().flatten().next() {
            return Some(Self::Operator(format!("{} {}", owner.kind, owner.name)));
        }
        for (prefix, operator) in
            [("dns.operator.openshift.io/", "the DNS operator of OpenShift"), ("resources.gardener.cloud/", "Gardener")]
        {
            if named(prefix) {
                return Some(Self::Operator(operator.to_owned()));
            }
        }
        if let Some(release) = value("meta.helm.sh/release-name") {
            return Some(Self::Helm(release));
        }
        // With the mode EnsureExists, it is created if it is missing, and otherwise left alone.
        if value("addonmanager.kubernetes.io/mode").is_some_and(|mode| mode == "Reconcile") {
            return Some(Self::AddonManager);
        }
        match value("app.kubernetes.io/managed-by") {
            Some(by) if by.eq_ignore_ascii_case("helm") => Some(Self::Helm(String::new())),
            Some(by) if !hand(&by) => Some(Self::Tool(by)),
            _ => writer(metadata).map(Self::Program),
        }
    }
}

fn hand(manager: &str) -> bool {
    let manager = manager.to_ascii_lowercase();
    ["oc", FieldManager::CoreDns.as_str()].contains(&&*manager) || HANDS.iter().any(|hand| manager.starts_with(hand))
}

/// Who owns the field with the Corefile, unless it is a person's tool.
fn writer(metadata: &ObjectMeta) -> Option<String> {
    let owns = |fields: &serde_json::Value| fields.pointer("/f:data/f:Corefile").is_some();
    let entries = metadata.managed_fields.iter().flatten();
    let mut owners = entries.filter(|entry| entry.fields_v1.as_ref().is_some_and(|fields| owns(&fields.0)));
    let manager = owners.find_map(|entry| entry.manager.clone().filter(|manager| !hand(manager)))?;
    Some(manager)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn keeper(metadata: Value) -> Option<Keeper> {
        Keeper::of(&serde_json::from_value(metadata).unwrap())
    }

    #[test]
    fn who_writes_an_object_anew_is_known_by_its_marks() {
        let operator = |name: &str| Some(Keeper::Operator(name.to_owned()));
        let tool = |name: &str| Some(Keeper::Tool(name.to_owned()));
        let manager = |name: &str| json!({"managedFields": [{"manager": name, "operation": "Update"}]});
        let release = ("meta.helm.sh/release-name", "dns");
        for (metadata, expected) in [
            (manager("eks"), Some(Keeper::Eks)),
            (json!({"annotations": {release.0: release.1}}), Some(Keeper::Helm("dns".to_owned()))),
            (json!({"labels": {"app.kubernetes.io/managed-by": "Helm"}}), Some(Keeper::Helm(String::new()))),
            (json!({"labels": {"objectset.rio.cattle.io/hash": "00"}}), Some(Keeper::K3s)),
            (json!({"annotations": {"objectset.rio.cattle.io/id": "default-fleet-agent"}}), tool("Rancher Fleet")),
            (
                json!({"annotations": {"argocd.argoproj.io/tracking-id": "dns:/ConfigMap:kube-system/coredns"}}),
                Some(Keeper::ArgoCd("dns".to_owned())),
            ),
            (json!({"labels": {"argocd.argoproj.io/instance": "dns"}}), Some(Keeper::ArgoCd("dns".to_owned()))),
            (manager("argocd-controller"), Some(Keeper::ArgoCd(String::new()))),
            (
                json!({"labels": {"kustomize.toolkit.fluxcd.io/name": "dns", "kustomize.toolkit.fluxcd.io/namespace": "flux"}}),
                Some(Keeper::Flux("Kustomization flux/dns".to_owned())),
            ),
            // Flux delivers the chart.
            (
                json!({"labels": {"helm.toolkit.fluxcd.io/name": "dns", "helm.toolkit.fluxcd.io/namespace": "flux"},
                       "annotations": {release.0: release.1}}),
                Some(Keeper::Flux("HelmRelease flux/dns".to_owned())),
            ),
            (json!({"labels": {"addonmanager.kubernetes.io/mode": "Reconcile"}}), Some(Keeper::AddonManager)),
            (json!({"labels": {"addonmanager.kubernetes.io/mode": "EnsureExists"}}), None),
            (manager("Terraform"), tool("Terraform")),
            (manager("HashiCorp"), tool("Terraform")),
            (manager("pulumi-kubernetes-1f2e"), tool("Pulumi")),
            (json!({"labels": {"app.kubernetes.io/managed-by": "tanka"}}), tool("tanka")),
            (
                json!({"ownerReferences": [{"apiVersion": "v1", "kind": "DNS", "name": "default", "uid": "1"}]}),
                operator("DNS default"),
            ),
            (
                json!({"labels": {"dns.operator.openshift.io/owning-dns": "x"}}),
                operator("the DNS operator of OpenShift"),
            ),
            // EKS gives every CoreDNS of its this label.
            (json!({"labels": {"eks.amazonaws.com/component": "coredns"}}), None),
            (json!({}), None),
        ] {
            assert_eq!(keeper(metadata.clone()), expected, "{metadata}");
        }
    }

    #[test]
    fn a_program_that_wrote_the_corefile_is_named_and_a_person_is_not() {
        let wrote = |manager: &str, field: &str| {
            keeper(
                json!({"managedFields": [{"manager": manager, "operation": "Update", "fieldsV1": {"f:data": {field: {}}}}]}),
            )
        };
        assert_eq!(wrote("tkg-manager", "f:Corefile"), Some(Keeper::Program("tkg-manager".to_owned())));
        for (manager, field) in [
            ("tkg-manager", "f:other"),
            ("kubectl-edit", "f:Corefile"),
            ("kubeadm", "f:Corefile"),
            (FieldManager::CoreDns.as_str(), "f:Corefile"),
        ] {
            assert_eq!(wrote(manager, field), None, "{manager} {field}");
        }
    }
}
