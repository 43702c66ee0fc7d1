//! What the controller's service account may do in Kubernetes, compared with what the manifests grant.

use futures::{StreamExt as _, TryStreamExt as _, stream};
use k8s_openapi::api::{
    authentication::v1::SelfSubjectReview,
    authorization::v1::{
        ResourceAttributes, SelfSubjectAccessReview, SelfSubjectAccessReviewSpec, SubjectAccessReview,
        SubjectAccessReviewSpec,
    },
    rbac::v1::{ClusterRole, PolicyRule, Role},
};
use kube::{Api, Client, api::PostParams};

use super::observe::Read;
use cluster::reader::read;

const CLUSTER_ROLE: &str = include_str!("../../../config/rbac/cluster_role.yaml");
const ROLE: &str = include_str!("../../../config/rbac/role.yaml");
/// What a flag needs beside them: the variable that sets it, and the ClusterRole of its component.
const COMPONENTS: [(&str, &str); 3] = [
    ("CLOUDMAP_MCS_INSTANCE_LABELS", include_str!("../../../config/components/instance-labels/cluster_role.yaml")),
    ("CLOUDMAP_MCS_READINESS_GATES", include_str!("../../../config/components/readiness-gates/cluster_role.yaml")),
    ("CLOUDMAP_MCS_CUTOVERS", include_str!("../../../config/components/cutovers/cluster_role.yaml")),
];
/// How many questions are asked at once.
const AT_ONCE: usize = 4;

/// A permission, and whether the controller has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Access {
    /// As in `patch serviceexports/status.multicluster.x-k8s.io`.
    pub(super) permission: String,
    pub(super) allowed: bool,
}

/// What the manifests grant to a controller with these flags. A permission in `own` is for the controller's namespace only.
pub(super) fn granted(own: &str, is_set: impl Fn(&str) -> bool) -> Vec<ResourceAttributes> {
    let role: Role = serde_yaml_ng::from_str(ROLE).expect("a Role");
    let components = COMPONENTS.iter().filter(|(variable, _)| is_set(variable)).map(|(_, component)| *component);
    let everywhere = std::iter::once(CLUSTER_ROLE).chain(components).flat_map(|text| {
        let cluster_role: ClusterRole = serde_yaml_ng::from_str(text).expect("a ClusterRole");
        cluster_role.rules.into_iter().flatten().flat_map(|rule| of(rule, None))
    });
    let here = role.rules.into_iter().flatten().flat_map(|rule| of(rule, Some(own)));
    let mut all = Vec::new();
    for permission in everywhere.chain(here) {
        // Two components read pods.
        if !all.contains(&permission) {
            all.push(permission);
        }
    }
    all
}

fn of(rule: PolicyRule, namespace: Option<&str>) -> Vec<ResourceAttributes> {
    let mut found = Vec::new();
    // Without names: any.
    let names: Vec<_> = rule.resource_names.map_or(vec![None], |names| names.into_iter().map(Some).collect());
    for group in rule.api_groups.iter().flatten() {
        for resource in rule.resources.iter().flatten() {
            let (resource, subresource) = match resource.split_once('/') {
                Some((resource, sub)) => (resource, Some(sub.to_owned())),
                None => (resource.as_str(), None),
            };
            for verb in &rule.verbs {
                found.extend(names.iter().map(|name| ResourceAttributes {
                    group: Some(group.clone()),
                    resource: Some(resource.to_owned()),
                    subresource: subresource.clone(),
                    verb: Some(verb.clone()),
                    name: name.clone(),
                    namespace: namespace.map(str::to_owned),
                    ..ResourceAttributes::default()
                }));
            }
        }
    }
    found
}

fn words(asked: &ResourceAttributes) -> String {
    let part = |part: &Option<String>, before: &str| {
        part.as_deref().filter(|part| !part.is_empty()).map(|part| format!("{before}{part}")).unwrap_or_default()
    };
    format!(
        "{}{}{}{}{}{}",
        part(&asked.verb, ""),
        part(&asked.resource, " "),
        part(&asked.subresource, "/"),
        part(&asked.group, "."),
        part(&asked.name, " "),
        part(&asked.namespace, " in ")
    )
}

/// Asks the API server for each permission. The controller itself may ask only about itself.
pub(super) async fn observe(
    client: &Client,
    own: &str,
    account: &str,
    needed: Vec<ResourceAttributes>,
) -> Read<Vec<Access>> {
    let user = format!("system:serviceaccount:{own}:{account}");
    let me = ask(client, SelfSubjectReview::default()).await?;
    let name = me.status.and_then(|status| status.user_info).and_then(|user| user.username);
    let is_me = name.as_ref() == Some(&user);
    let groups = ["system:serviceaccounts", &format!("system:serviceaccounts:{own}"), "system:authenticated"]
        .map(str::to_owned)
        .to_vec();
    let questions = stream::iter(needed).map(|asked| {
        let (user, groups) = (user.clone(), groups.clone());
        async move {
            let permission = words(&asked);
            let status = if is_me {
                let spec = SelfSubjectAccessReviewSpec { resource_attributes: Some(asked), ..Default::default() };
                ask(client, SelfSubjectAccessReview { spec, ..Default::default() }).await?.status
            } else {
                let spec = SubjectAccessReviewSpec {
                    resource_attributes: Some(asked),
                    user: Some(user),
                    groups: Some(groups),
                    ..Default::default()
                };
                ask(client, SubjectAccessReview { spec, ..Default::default() }).await?.status
            };
            Ok(Access { permission, allowed: status.is_some_and(|status| status.allowed) })
        }
    });
    questions.buffered(AT_ONCE).try_collect().await
}

/// Creates a review, which only asks: nothing is stored.
async fn ask<K>(client: &Client, review: K) -> Read<K>
where
    K: kube::Resource<DynamicType = (), Scope = k8s_openapi::ClusterResourceScope>
        + serde::de::DeserializeOwned
        + serde::Serialize
        + Clone
        + std::fmt::Debug,
{
    read(Api::<K>::all(client.clone()).create(&PostParams::default(), &review)).await
}
