//! What may be taken over from the controllers that this one replaces, and only if the user allows it.
//!
//! | from | service | its instances |
//! |---|---|---|
//! | external-dns (provider `aws-sd`) | `heritage=external-dns` with exactly this owner | one attribute, whose value in lower case is the id; for longer values the id is their SHA-256 |
//! | the Python CloudMap Kubernetes Controller | any service that it could use | only `AWS_INSTANCE_IPV4`, and the address with dashes as the id |
//! | the AWS Cloud Map MCS Controller that ran in this cluster, with `--aws-mcs-compat` | any service that it could use | all of its attributes, with our `CLUSTERSET_ID` and `CLUSTER_ID`, and protocol, address and port as the id |

use std::{fmt, str::FromStr, sync::Arc};

use super::ownership::{ServiceOwner, short_hash};
use cloudmap::{
    Instance,
    attributes::{ALIAS, CNAME, IPV4, IPV6},
};
use model::{ClusterId, ClusterSetId};

/// Maximum length of an instance id (Cloud Map `RegisterInstance`).
const MAX_ID: usize = 64;
/// The value for the Python controller.
const CLOUDMAP_CONTROLLER: &str = "cloudmap-controller";
/// Prefix of the value for external-dns.
const EXTERNAL_DNS: &str = "external-dns/";

/// The controller whose instances in a target become ours.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Adopt {
    /// external-dns with this `--txt-owner-id`.
    ExternalDns(Arc<str>),
    /// The Python CloudMap Kubernetes Controller, which has no owner ids.
    CloudMapController,
    /// The AWS Cloud Map MCS Controller with this cluster's id. No annotation has this value.
    AwsMcsController {
        /// Id of this cluster.
        cluster: ClusterId,
        /// Id of its ClusterSet.
        clusterset: ClusterSetId,
    },
}

/// The value names no controller.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("it must be \"external-dns/<owner id>\" or \"cloudmap-controller\"")]
pub struct InvalidAdopt;

impl FromStr for Adopt {
    type Err = InvalidAdopt;

    fn from_str(text: &str) -> Result<Self, InvalidAdopt> {
        match text.strip_prefix(EXTERNAL_DNS) {
            Some(owner) if !owner.is_empty() => Ok(Self::ExternalDns(owner.into())),
            None if text == CLOUDMAP_CONTROLLER => Ok(Self::CloudMapController),
            _ => Err(InvalidAdopt),
        }
    }
}

impl fmt::Display for Adopt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ExternalDns(owner) => write!(f, "{EXTERNAL_DNS}{owner}"),
            Self::CloudMapController => f.write_str(CLOUDMAP_CONTROLLER),
            Self::AwsMcsController { cluster, .. } => write!(f, "aws-cloud-map-mcs-controller/{cluster}"),
        }
    }
}

impl Adopt {
    /// Whether this controller may have instances in a service of `owner`.
    pub fn covers(&self, owner: &ServiceOwner) -> bool {
        match self {
            Self::ExternalDns(id) => matches!(owner, ServiceOwner::ExternalDns(other) if **other == **id),
            Self::CloudMapController | Self::AwsMcsController { .. } => {
                matches!(owner, ServiceOwner::Unclaimed | ServiceOwner::Ours)
            }
        }
    }

    /// Whether this controller wrote an instance, by its id scheme, in a service for which [`covers`](Self::covers) is
    /// true.
    pub fn wrote(&self, instance: &Instance) -> bool {
        if let Self::AwsMcsController { cluster, clusterset } = self {
            return awsmcs::wrote(instance, cluster, clusterset);
        }
        let mut attributes = instance.attributes.iter();
        let (Some((key, value)), None) = (attributes.next(), attributes.next()) else { return false };
        match self {
            Self::ExternalDns(_) => {
                let target = value.to_ascii_lowercase();
                [IPV4, IPV6, ALIAS, CNAME].contains(&key.as_str())
                    && *instance.id == *if target.len() > MAX_ID { short_hash(&target, 32) } else { target }
            }
            Self::CloudMapController => key == IPV4 && *instance.id == *value.replace('.', "-"),
            Self::AwsMcsController { .. } => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn instance(id: &str, attributes: &[(&str, &str)]) -> Instance {
        let attributes = attributes.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
        Instance { id: id.into(), attributes }
    }

    #[test]
    fn a_value_names_a_controller_with_its_id() {
        assert_eq!("external-dns/eks".parse(), Ok(Adopt::ExternalDns("eks".into())));
        assert_eq!("cloudmap-controller".parse(), Ok(Adopt::CloudMapController));
        for wrong in ["", "external-dns", "external-dns/", "true", "ecs"] {
            assert_eq!(wrong.parse::<Adopt>(), Err(InvalidAdopt), "{wrong}");
        }
    }

    /// external-dns itself compares by prefix: owner `eks` deletes services of `eks-prod`.
    #[test]
    fn only_the_exact_owner_id_matches() {
        let eks = Adopt::ExternalDns("eks".into());
        assert!(eks.covers(&ServiceOwner::ExternalDns("eks".to_owned())));
        for owner in [ServiceOwner::ExternalDns("eks-prod".to_owned()), ServiceOwner::Unclaimed, ServiceOwner::Ours] {
            assert!(!eks.covers(&owner), "{owner:?}");
        }
        for owner in [ServiceOwner::ServiceConnect, ServiceOwner::OtherSet("x".to_owned())] {
            assert!(!Adopt::CloudMapController.covers(&owner), "{owner:?}");
        }
    }

    /// The ids that external-dns v0.18.0 created, from `aws servicediscovery list-instances`.
    #[test]
    fn only_the_id_scheme_identifies_instances() {
        let (edns, python) = (Adopt::ExternalDns("eks".into()), Adopt::CloudMapController);
        let long = format!("{}.eu-west-1.elb.amazonaws.com", "Internal-".repeat(6));
        let hashed = short_hash(&long.to_ascii_lowercase(), 32);
        for (id, attributes, is_edns, is_python) in [
            ("10.101.0.118", &[(IPV4, "10.101.0.118")][..], true, false),
            ("fd00::1", &[(IPV6, "fd00::1")], true, false),
            ("a.eu-west-1.elb.amazonaws.com", &[(ALIAS, "A.eu-west-1.elb.amazonaws.com")], true, false),
            (hashed.as_str(), &[(ALIAS, long.as_str())], true, false),
            ("db.example.org", &[(CNAME, "db.example.org")], true, false),
            ("10-0-0-9", &[(IPV4, "10.0.0.9")], false, true),
            ("10.0.0.9", &[(IPV4, "10.0.0.8")], false, false),
            ("10.0.0.9", &[(IPV4, "10.0.0.9"), ("AWS_INSTANCE_PORT", "80")], false, false),
            ("0db8dbd2185c4c0184e80f58fee8ba1d", &[(IPV4, "10.0.0.9")], false, false),
            ("10-0-0-9", &[], false, false),
        ] {
            let instance = instance(id, attributes);
            assert_eq!((edns.wrote(&instance), python.wrote(&instance)), (is_edns, is_python), "{instance:?}");
        }
    }
}
