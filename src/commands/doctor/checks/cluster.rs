//! One cluster by itself.

use std::collections::BTreeMap;

use k8s_openapi::{
    apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition, jiff::SignedDuration,
};

use super::{
    super::{
        observe::{Cluster, POD_SECURITY, Seen},
        report::Finding,
    },
    gates,
};
use crate::{apply_crds, coredns, installed::kube_dns};
use api::names;
use cluster::lease::Timing;

/// The first minor version of Kubernetes 1 that is supported, as in `Chart.yaml`.
pub(super) const SINCE: u32 = 30;
/// Clocks that differ by more than this are worth a look, and by more than that are wrong.
pub(super) const LOOK: SignedDuration = SignedDuration::from_secs(5);
pub(super) const WRONG: SignedDuration = SignedDuration::from_secs(30);

const SYNCHRONIZE: &str = "synchronize it with NTP (on EC2: chrony with 169.254.169.123)";

/// `standalone`: neither this cluster nor one that is named with it needs a ClusterSet.
pub(super) fn plan(cluster: &Cluster, standalone: bool) -> Vec<Finding> {
    let place = cluster.name.as_str();
    let seen = match &cluster.seen {
        Ok(seen) => seen,
        Err(why) => {
            let remedy =
                "look at the context of the kubeconfig, its credentials, and whether `kubectl version` answers";
            return vec![Finding::fail(place, "kubernetes", format!("not reached: {why}"), remedy)];
        }
    };
    let mut found = vec![kubernetes(place, seen)];
    found.extend(clock(place, seen));
    found.extend(crds(cluster, seen));
    found.push(controller(cluster, seen));
    found.extend(pod_security(cluster, seen));
    found.push(lease(cluster, seen));
    found.push(ids(cluster, seen, standalone));
    found.push(rbac(cluster, seen));
    // Without imports there are no names to answer.
    if !standalone {
        found.extend(dns(cluster, seen));
    }
    found.extend(gates::plan(cluster, seen));
    found
}

fn kubernetes(place: &str, seen: &Seen) -> Finding {
    let version = &seen.version;
    let mut parts = version.trim_start_matches('v').split('.').map_while(|part| part.parse::<u32>().ok());
    match (parts.next(), parts.next()) {
        (Some(1), Some(minor)) if minor < SINCE => Finding::fail(
            place,
            "kubernetes",
            format!("{version} is not supported"),
            format!("upgrade the cluster to 1.{SINCE} or later"),
        ),
        (Some(1), Some(_)) => Finding::ok(place, "kubernetes", version.clone()),
        _ => Finding::warn(
            place,
            "kubernetes",
            format!("{version:?} is no version of Kubernetes 1"),
            format!("make sure that it is 1.{SINCE} or later"),
        ),
    }
}

/// A clock that is ahead, or behind if `ahead` is negative.
pub(super) fn of_clock(place: &str, whose: &str, ahead: SignedDuration, remedy: &str) -> Finding {
    let by = ahead.abs();
    let what = match ahead.as_secs() {
        0 => format!("{whose} differs by less than a second"),
        seconds if seconds > 0 => format!("{whose} is {seconds} s ahead"),
        seconds => format!("{whose} is {} s behind", -seconds),
    };
    if by > WRONG {
        Finding::fail(place, "clock", what, remedy)
    } else if by > LOOK {
        Finding::warn(place, "clock", what, remedy)
    } else {
        Finding::ok(place, "clock", what)
    }
}

fn clock(place: &str, seen: &Seen) -> Option<Finding> {
    let remedy = format!("{SYNCHRONIZE}, there or here: AWS refuses calls when a clock is 5 minutes off");
    seen.ahead.map(|ahead| of_clock(place, "the API server's clock, compared with the one here,", ahead, &remedy))
}

fn crds(cluster: &Cluster, seen: &Seen) -> Vec<Finding> {
    let (place, flags) = (cluster.name.as_str(), &cluster.flags);
    let remedy = &apply_crds(flags);
    let stored = |crd: CustomResourceDefinition| {
        let version = crd.spec.versions.into_iter().find(|version| version.storage)?;
        Some((crd.metadata.name?, version.name))
    };
    let needed: BTreeMap<String, String> = api::crds().into_iter().filter_map(stored).collect();
    let mut wrong = Vec::new();
    for (name, crd) in &seen.crds {
        let version = needed.get(name).cloned().unwrap_or_default();
        match crd {
            Err(why) => return vec![Finding::unread(place, "crds", why, flags)],
            Ok(None) => wrong.push(Finding::fail(place, "crds", format!("{name} is missing"), remedy)),
            Ok(Some(crd)) if !crd.served.contains(&version) => wrong.push(Finding::fail(
                place,
                "crds",
                format!("{name} has {}, and the controller needs {version}", crd.served.join(", ")),
                remedy,
            )),
            Ok(Some(crd)) if !crd.established => wrong.push(Finding::fail(
                place,
                "crds",
                format!("{name} is not established"),
                format!("kubectl{flags} describe crd {name}: its conditions say why, such as a name that another has"),
            )),
            Ok(Some(_)) => {}
        }
    }
    if wrong.is_empty() {
        let names: Vec<_> = seen.crds.iter().filter_map(|(name, _)| name.split('.').next()).collect();
        wrong.push(Finding::ok(place, "crds", names.join(", ")));
    }
    wrong
}

fn controller(cluster: &Cluster, seen: &Seen) -> Finding {
    let (place, own, flags) = (cluster.name.as_str(), &cluster.own, &cluster.flags);
    let logs = format!(
        "kubectl{flags} -n {own} describe pods -l app.kubernetes.io/name=cloudmap-mcs; kubectl{flags} -n {own} logs \
         deployment/cloudmap-mcs"
    );
    match &seen.controller {
        Err(why) => Finding::unread(place, "controller", why, flags),
        Ok(None) => Finding::fail(
            place,
            "controller",
            format!("there is no Deployment cloudmap-mcs in {own}"),
            "install it (docs/install.md), or name its namespace with --controller-namespace",
        ),
        Ok(Some(controller)) => {
            let what = format!("{} of {} ready, {}", controller.ready, controller.wanted, controller.image);
            match (controller.ready, controller.wanted) {
                (_, 0) => {
                    let remedy = format!("kubectl{flags} -n {own} scale deployment cloudmap-mcs --replicas=2");
                    Finding::fail(place, "controller", what, remedy)
                }
                (0, _) => Finding::fail(place, "controller", what, logs),
                (ready, wanted) if ready < wanted => Finding::warn(place, "controller", what, logs),
                _ if controller.former > 0 => {
                    let what =
                        format!("{what}; {} of the pods are still those before the last change", controller.former);
                    let remedy =
                        format!("kubectl{flags} -n {own} describe replicasets: their Events say what refuses new pods");
                    Finding::warn(place, "controller", what, remedy)
                }
                _ if controller.pulled.len() > 1 => {
                    let what = format!(
                        "{what}; but the pods run {} different images of this name, because it was built again",
                        controller.pulled.len()
                    );
                    let remedy = format!(
                        "give each build a tag of its own, or name the image by its digest; for now: kubectl{flags} -n {own} \
                         rollout restart deployment/cloudmap-mcs"
                    );
                    Finding::warn(place, "controller", what, remedy)
                }
                _ => Finding::ok(place, "controller", what),
            }
        }
    }
}

/// Whether Kubernetes would refuse other pods with more rights beside the controller's, which could use its role.
fn pod_security(cluster: &Cluster, seen: &Seen) -> Option<Finding> {
    let (place, own, flags) = (cluster.name.as_str(), &cluster.own, &cluster.flags);
    // Without a controller there is another finding.
    seen.controller.as_ref().ok()?.as_ref()?;
    let what = match &seen.enforced {
        Err(why) => return Some(Finding::unread(place, "pod security", why, flags)),
        Ok(Some(level)) if level == "restricted" => return None,
        Ok(Some(level)) => {
            format!("the namespace {own} enforces {level}, and the controller needs no more than restricted")
        }
        Ok(None) => format!("the namespace {own} enforces no level of Pod Security"),
    };
    let remedy = format!("kubectl{flags} label --overwrite namespace {own} {POD_SECURITY}=restricted");
    Some(Finding::warn(place, "pod security", what, remedy))
}

fn lease(cluster: &Cluster, seen: &Seen) -> Finding {
    let (place, own, flags) = (cluster.name.as_str(), &cluster.own, &cluster.flags);
    let look = format!("kubectl{flags} -n {own} logs deployment/cloudmap-mcs");
    let leader = match &seen.lease {
        Err(why) => return Finding::unread(place, "leader", why, flags),
        Ok(None) => return Finding::fail(place, "leader", "there is no Lease: no controller has run here", look),
        Ok(Some(leader)) => leader,
    };
    let (Some(holder), Some(renewed)) = (&leader.holder, leader.renewed) else {
        return Finding::fail(place, "leader", "nobody holds the Lease", look);
    };
    let age = seen.read.duration_since(renewed);
    if age < -LOOK {
        return of_clock(place, &format!("the clock of {holder}'s Node"), -age, SYNCHRONIZE);
    }
    let lasts = SignedDuration::try_from(Timing::default().duration).unwrap_or(WRONG);
    if age > lasts + LOOK {
        let what = format!("{holder} has not renewed the Lease for {} s", age.as_secs());
        return Finding::fail(place, "leader", what, format!("{look}; or the clock of its Node is behind"));
    }
    match &leader.yields {
        Some(why) => Finding::warn(place, "leader", format!("{holder} would rather not lead: {why}"), look),
        None => Finding::ok(place, "leader", format!("{holder}, renewed {} s ago", age.as_secs().max(0))),
    }
}

fn ids(cluster: &Cluster, seen: &Seen, standalone: bool) -> Finding {
    let (place, flags) = (cluster.name.as_str(), &cluster.flags);
    let properties = format!("kubectl{flags} apply -f samples/cluster-properties.yaml, with ids of your own");
    if let Some(why) = seen.properties.as_ref().err().or(seen.uid.as_ref().err()) {
        return Finding::unread(place, "ids", why, flags);
    }
    match seen.identity() {
        None => Finding::skip(
            place,
            "ids",
            "not known: the ClusterProperties do not say both, and the flags of the controller were not read",
            "have the ClusterRole and the Role cloudmap-mcs-reader bound to you, and run this on a workstation",
        ),
        Some(Err(error)) => Finding::fail(
            place,
            "ids",
            error.to_string(),
            "correct the ClusterProperty, or the flag in cloudmap-mcs-config",
        ),
        Some(Ok(identity)) => match &identity.clusterset {
            None if standalone => Finding::ok(
                place,
                "ids",
                format!(
                    "in no ClusterSet, which annotated Services and Ingresses do not need. To join one, {properties}"
                ),
            ),
            None => Finding::fail(
                place,
                "ids",
                format!("the cluster {} is in no ClusterSet, so it neither exports nor imports", identity.cluster),
                format!("{properties} ({})", names::PROPERTY_CLUSTERSET_ID),
            ),
            Some(clusterset) if identity.cluster.as_str() == &*identity.uid => Finding::warn(
                place,
                "ids",
                format!("in {clusterset}, without an id of its own: the UID of kube-system is its id"),
                format!("before the first export, {properties} ({})", names::PROPERTY_CLUSTER_ID),
            ),
            Some(clusterset) => match identity.warning() {
                Some(warning) => {
                    Finding::warn(place, "ids", warning, "choose an id without dots before the first export")
                }
                None => {
                    Finding::ok(place, "ids", format!("cluster {} of the ClusterSet {clusterset}", identity.cluster))
                }
            },
        },
    }
}

fn rbac(cluster: &Cluster, seen: &Seen) -> Finding {
    let (place, flags) = (cluster.name.as_str(), &cluster.flags);
    let access = match &seen.access {
        Err(why) => return Finding::unread(place, "rbac", why, flags),
        Ok(access) => access,
    };
    let lacks: Vec<_> = access.iter().filter(|it| !it.allowed).map(|it| it.permission.as_str()).collect();
    if lacks.is_empty() {
        return Finding::ok(place, "rbac", format!("the controller has all {} permissions", access.len()));
    }
    let what = format!("the controller lacks {} of {} permissions: {}", lacks.len(), access.len(), lacks.join(", "));
    // `config/rbac` has the service account without the annotation that an overlay gives it.
    let remedy = format!(
        "kubectl{flags} apply -k your overlay, with the components of its flags (docs/install.md#kubectl-apply--k), or helm \
         upgrade"
    );
    Finding::fail(place, "rbac", what, remedy)
}

fn dns(cluster: &Cluster, seen: &Seen) -> Vec<Finding> {
    let (place, flags) = (cluster.name.as_str(), &cluster.flags);
    let observed = match &seen.dns {
        Err(why) => return vec![Finding::unread(place, "coredns", why, flags)],
        Ok(observed) => observed,
    };
    let closed = observed.corefile.is_none() && observed.workload.is_none();
    let mut found = Vec::new();
    for finding in coredns::findings(observed, &kube_dns(), names::ZONE, flags) {
        match finding {
            coredns::Finding::There(_) => {}
            coredns::Finding::Missing { what, remedy } if closed => {
                found.push(Finding::skip(place, "coredns", what, remedy));
            }
            coredns::Finding::Missing { what, remedy } => found.push(Finding::fail(place, "coredns", what, remedy)),
            coredns::Finding::Warning { what, remedy } => found.push(Finding::warn(place, "coredns", what, remedy)),
            coredns::Finding::Unknown(what) => {
                let remedy = format!("cloudmap-mcs coredns check{flags}");
                found.push(Finding::skip(place, "coredns", what, remedy));
            }
        }
    }
    if closed {
        // Of the several consequences only the cause.
        found.drain(..found.len().saturating_sub(1));
    } else if found.is_empty() {
        found.push(Finding::ok(place, "coredns", format!("names in {} are answered", names::ZONE)));
    }
    found
}
