//! The owner of an instance, a service or a namespace.
//!
//! An instance is ours because of attributes that only we write, never because it lacks somebody else's. Everything
//! that is not provably ours is foreign, and nothing foreign is ever written or deleted.

use std::{collections::BTreeMap, sync::Arc};

use sha2::{Digest, Sha256};

use super::Adopt;
use api::names::ANNOTATION_MAY_REGISTER;
use cloudmap::{
    Instance, Service,
    attributes::{CLUSTER, CLUSTER_UID, CLUSTERSET, NAMESPACE, SERVICE},
};
use model::{ClusterId, ClusterSetId, ServiceKey, Target};

/// Key of the tag that marks namespaces and services that we created. Its value is [`Owner::set`].
pub const OWNER_TAG: &str = "cloudmap-mcs/made-for";
/// Prefix of the `CreatorRequestId` of everything that the controllers of any ClusterSet created.
const CREATOR: &str = "cloudmap-mcs:";
/// Prefix of the descriptions of services that we created.
const HERITAGE: &str = "heritage=cloudmap-mcs,cloudmap-mcs/made-for=";
/// Tag of the services that ECS Service Connect manages. Foreign instances break these.
const SERVICE_CONNECT_TAG: &str = "AmazonECSManaged";

/// Number of bytes of the hash of the cluster's UID in ids. Two of a thousand clusters have the same hash in one of a
/// million accounts.
const CLUSTER_HASH: usize = 5;

/// Tag of the services that the Python CloudMap Kubernetes Controller created.
const PYTHON_TAG: &str = "CreatedBy";
const PYTHON_CREATOR: &str = "cloudmap-controller";

/// Our identity in the owner marks of instances.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Owner {
    /// ClusterSet id; `None` for a standalone cluster, which shares services with nobody.
    pub clusterset: Option<ClusterSetId>,
    /// Cluster id.
    pub cluster: ClusterId,
    /// UID of the namespace kube-system.
    pub cluster_uid: Arc<str>,
}

impl Owner {
    /// The owner of the services and namespaces that we create: the ClusterSet, or a standalone cluster.
    pub fn set(&self) -> String {
        match &self.clusterset {
            Some(id) => format!("clusterset/{id}"),
            None => self.standalone(),
        }
    }

    /// The owner in this cluster's standalone time. What it created then is still its own.
    fn standalone(&self) -> String {
        format!("cluster/{}", self.cluster_uid)
    }

    fn made(&self, creator: &str) -> bool {
        [self.set(), self.standalone()].iter().any(|set| creator.starts_with(&creator_prefix(set)))
    }

    /// Prefix of the ids of this cluster's instances, except for those in the AWS controller's form.
    pub fn id_prefix(&self) -> String {
        format!("k8s-{}", short_hash(&self.cluster_uid, CLUSTER_HASH))
    }

    /// The `CreatorRequestId` of something that we create now. The nonce makes it unique, because AWS may answer a
    /// repeated id with its earlier answer. The rest is the same for the whole ClusterSet, and proves later that the
    /// thing is ours. It has 42 of the 64 characters that AWS allows.
    pub fn creator_request_id(&self, nonce: u64) -> String {
        format!("{}{:012x}", creator_prefix(&self.set()), nonce & 0xffff_ffff_ffff)
    }

    /// The description of namespaces, and of services with records: for people, and for listings, in which AWS omits
    /// the `CreatorRequestId`. At most 1,024 characters. Services without records have none, because external-dns
    /// (provider `aws-sd`) reads services that have any description and crashes if they have no records.
    pub fn description(&self) -> String {
        format!("{HERITAGE}{},deleted when its last instance is gone", self.set())
    }

    /// The tags of namespaces and services that we create.
    pub fn tags(&self) -> BTreeMap<String, String> {
        [(OWNER_TAG.to_owned(), self.set())].into()
    }
}

fn creator_prefix(set: &str) -> String {
    format!("{CREATOR}{}:", short_hash(set, 8))
}

/// The first `bytes` bytes of a SHA-256, in hexadecimal digits.
pub fn short_hash(text: &str, bytes: usize) -> String {
    let mut hash = format!("{:x}", Sha256::digest(text));
    hash.truncate(2 * bytes);
    hash
}

/// Whether this cluster registered an instance: our attributes contain this cluster's UID, and our ClusterSet, or none
/// if this cluster was standalone then.
pub fn is_ours(instance: &Instance, identity: &Owner) -> bool {
    let attribute = |key| instance.attributes.get(key).map(String::as_str);
    let clusterset = attribute(CLUSTERSET);
    attribute(CLUSTER_UID) == Some(&identity.cluster_uid)
        && (clusterset.is_none() || clusterset == identity.clusterset.as_ref().map(ClusterSetId::as_str))
}

/// Whether this cluster registered an instance for a Service.
pub fn is_of(instance: &Instance, service: &ServiceKey, identity: &Owner) -> bool {
    let says = |key, value: &str| instance.attributes.get(key).is_some_and(|there| there == value);
    is_ours(instance, identity) && says(NAMESPACE, &service.namespace) && says(SERVICE, &service.name)
}

/// Whether a cluster of our ClusterSet registered an instance for a Service.
pub fn is_of_cluster(instance: &Instance, cluster: &ClusterId, service: &ServiceKey, identity: &Owner) -> bool {
    let says = |key, value: &str| instance.attributes.get(key).is_some_and(|there| there == value);
    is_of_peer(instance, identity)
        && says(CLUSTER, cluster.as_str())
        && says(NAMESPACE, &service.namespace)
        && says(SERVICE, &service.name)
}

/// Whether any cluster of our ClusterSet registered an instance, so that its ledger contains the endpoint.
pub fn is_of_our_set(instance: &Instance, identity: &Owner) -> bool {
    match &identity.clusterset {
        Some(set) => {
            instance.attributes.contains_key(CLUSTER_UID)
                && instance.attributes.get(CLUSTERSET).is_some_and(|there| there == set.as_str())
        }
        None => is_ours(instance, identity),
    }
}

/// Whether a cluster of our ClusterSet registered an instance, or, outside any ClusterSet, a cluster that is in none either.
/// All of them may lose a permission at the same moment.
pub fn is_of_peer(instance: &Instance, identity: &Owner) -> bool {
    let clusterset = instance.attributes.get(CLUSTERSET).map(String::as_str);
    instance.attributes.contains_key(CLUSTER_UID)
        && clusterset == identity.clusterset.as_ref().map(ClusterSetId::as_str)
}

/// Who created or claims a service.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ServiceOwner {
    /// A controller of our ClusterSet created it.
    Ours,
    /// A controller of another ClusterSet created it. The value is that owner, or the whole mark.
    OtherSet(String),
    /// external-dns owns it with exactly this owner id (`heritage=external-dns`).
    ExternalDns(String),
    /// ECS Service Connect manages it.
    ServiceConnect,
    /// It is part of the ledger of a ClusterSet, by its tag.
    Ledger,
    /// It has no owner mark: ECS service discovery, Terraform or a person created it.
    Unclaimed,
}

/// Reads the owner marks of a service: its creator (which listings omit), its description, and its tags (empty if they
/// were not read).
pub fn service_owner(service: &Service, tags: &BTreeMap<String, String>, identity: &Owner) -> ServiceOwner {
    if let Some(creator) = service.creator_request_id.as_deref().filter(|creator| creator.starts_with(CREATOR)) {
        if identity.made(creator) {
            return ServiceOwner::Ours;
        }
        return ServiceOwner::OtherSet(creator.to_owned());
    }
    if tags.contains_key(ledger::CLUSTERSET_TAG) {
        return ServiceOwner::Ledger;
    }
    let description = service.description.as_deref().unwrap_or_default();
    if let Some(rest) = description.strip_prefix(HERITAGE) {
        let set = rest.split(',').next().unwrap_or_default();
        // A copied description proves nothing if AWS says that somebody else created the service.
        let ours = set == identity.set() || set == identity.standalone();
        if ours && service.creator_request_id.is_none() {
            return ServiceOwner::Ours;
        }
        if !ours {
            return ServiceOwner::OtherSet(set.to_owned());
        }
    }
    if description.split(',').any(|token| token.trim() == "heritage=external-dns") {
        let owner = description.split(',').find_map(|token| token.trim().strip_prefix("external-dns/owner="));
        return ServiceOwner::ExternalDns(owner.unwrap_or_default().to_owned());
    }
    if tags.get(SERVICE_CONNECT_TAG).is_some_and(|value| value == "true") {
        return ServiceOwner::ServiceConnect;
    }
    ServiceOwner::Unclaimed
}

/// Whether our ClusterSet provably created a service, so that it may be deleted. Only the creator proves that.
pub fn made_by_us(service: &Service, identity: &Owner) -> bool {
    service.creator_request_id.as_deref().is_some_and(|creator| identity.made(creator))
}

/// Who may change a service itself, as opposed to its instances.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Control {
    /// Our ClusterSet created it, so we may.
    Ours,
    /// The controller from which the user takes over created it, so we may.
    Adopted,
    /// It is foreign, even if it is shared.
    Others,
}

/// Who controls a service, by the same marks as [`service_owner`] and by what the user takes over.
pub fn control(service: &Service, tags: &BTreeMap<String, String>, identity: &Owner, adopt: Option<&Adopt>) -> Control {
    let owner = service_owner(service, tags, identity);
    let made = match adopt.filter(|adopt| adopt.covers(&owner)) {
        Some(Adopt::ExternalDns(_)) => true,
        // That controller uses existing services, such as those of ECS, as they are. It tagged the services that it
        // created.
        Some(Adopt::CloudMapController) => tags.get(PYTHON_TAG).is_some_and(|value| value == PYTHON_CREATOR),
        // That controller does not mark what it creates.
        Some(Adopt::AwsMcsController { .. }) | None => false,
    };
    match owner {
        ServiceOwner::Ours => Control::Ours,
        _ if made => Control::Adopted,
        _ => Control::Others,
    }
}

/// Whether the tags of a namespace prove that our ClusterSet created it.
pub fn namespace_made_by_us(tags: &BTreeMap<String, String>, identity: &Owner) -> bool {
    tags.get(OWNER_TAG) == Some(&identity.set())
}

/// What the user allowed for a foreign target.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[expect(clippy::struct_excessive_bools, reason = "each is a fact of its own")]
pub struct Consent {
    /// Whether the user named the target or shares it: services without an owner mark are then joined. Otherwise the
    /// name was only implied, and only services that our ClusterSet created are used. Names coincide in accounts, and
    /// production traffic must not move by accident.
    pub named: bool,
    /// Whether the user shares the target: services that another controller claims are then joined as well.
    pub share: bool,
    /// The controller from which the user takes over.
    pub adopt: Option<Adopt>,
    /// Whether the user named a controller in an invalid way. Nothing follows from that for existing instances.
    pub unclear: bool,
    /// Whether no administrator has granted the target, so that the user cannot join what others made, with `named` and
    /// `share`.
    pub ungranted: bool,
}

/// Why a target may not be used, for the user: its owner, and what to do. `None` if it may be used.
pub fn refusal(target: &Target, owner: &ServiceOwner, consent: &Consent) -> Option<String> {
    let Consent { named, share, adopt, unclear: _, ungranted } = consent;
    let adopted = adopt.as_ref().is_some_and(|adopt| adopt.covers(owner));
    // ECS Service Connect and ledgers are refused in any case.
    let lacks_grant = match owner {
        ServiceOwner::Unclaimed => *named || *share,
        ServiceOwner::OtherSet(_) | ServiceOwner::ExternalDns(_) => *share,
        ServiceOwner::Ours | ServiceOwner::ServiceConnect | ServiceOwner::Ledger => false,
    };
    if *ungranted && lacks_grant && !adopted {
        return Some(format!(
            "somebody else made the service, and who joins it gets a part of its traffic; ask an administrator for the annotation \
             {ANNOTATION_MAY_REGISTER}: \"{target}\" on the Namespace, or choose another name"
        ));
    }
    match owner {
        ServiceOwner::Ours => None,
        ServiceOwner::Unclaimed if *named || *share || adopted => None,
        ServiceOwner::Unclaimed => Some(
            "a service with this name already exists and was not created by this ClusterSet; to join it, name it in an \
             annotation on the ServiceExport, and have an administrator list it in cloudmap-mcs/may-register on the Namespace"
                .to_owned(),
        ),
        ServiceOwner::ServiceConnect => Some(
            "ECS Service Connect manages the service, and only ECS may register there; choose another name"
                .to_owned(),
        ),
        ServiceOwner::Ledger => Some(
            "the service belongs to the ledger of a ClusterSet, in which nothing else may be registered; choose another name"
                .to_owned(),
        ),
        _ if *share || adopted => None,
        ServiceOwner::OtherSet(set) => Some(format!(
            "the service was created by the controllers of {set}; choose another name, remove it there first, or share it with \
             the annotation cloudmap-mcs/share"
        )),
        // Without the owner id, which a takeover needs and which is for administrators.
        ServiceOwner::ExternalDns(_) => Some(
            "the service belongs to external-dns; share it with cloudmap-mcs/share, choose another name, or have an \
             administrator stop external-dns and allow the annotation cloudmap-mcs/adopt, or for all host names set \
             --txt-owner-id (the log of this controller has the owner id)"
                .to_owned(),
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cloudmap::fake::mk_service;

    fn refusal(owner: &ServiceOwner, consent: &Consent) -> Option<String> {
        super::refusal(&Target { namespace: "internal".into(), service: "pay".into() }, owner, consent)
    }

    fn identity(set: Option<&str>, uid: &str) -> Owner {
        Owner {
            clusterset: set.map(|set| set.parse().unwrap()),
            cluster: "c1".parse().unwrap(),
            cluster_uid: uid.into(),
        }
    }

    fn instance(attributes: &[(&str, &str)]) -> Instance {
        let attributes = attributes.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
        Instance { id: "x".into(), attributes }
    }

    fn service(description: Option<&str>, creator: Option<&str>) -> Service {
        Service {
            description: description.map(str::to_owned),
            creator_request_id: creator.map(str::to_owned),
            ..mk_service()
        }
    }

    #[test]
    fn only_both_marks_together_make_an_instance_ours() {
        let us = identity(Some("prod"), "uid-1");
        assert!(is_ours(&instance(&[(CLUSTERSET, "prod"), (CLUSTER_UID, "uid-1")]), &us));
        assert!(is_ours(&instance(&[(CLUSTER_UID, "uid-1")]), &us), "from before it was in a ClusterSet");
        for foreign in [
            &[][..],
            &[(CLUSTERSET, "prod")],
            &[(CLUSTERSET, "prod"), (CLUSTER_UID, "uid-2")],
            &[(CLUSTERSET, "test"), (CLUSTER_UID, "uid-1")],
            &[("CLUSTERSET_ID", "prod"), ("CLUSTER_ID", "c1"), ("AWS_INSTANCE_IPV4", "10.0.0.1")],
            &[("ECS_SERVICE_NAME", "web"), ("ECS_CLUSTER_NAME", "c1")],
        ] {
            assert!(!is_ours(&instance(foreign), &us), "{foreign:?}");
        }
        let standalone = identity(None, "uid-1");
        for (who, of_set, of_none) in [(&us, true, false), (&standalone, false, true)] {
            assert_eq!(is_of_peer(&instance(&[(CLUSTERSET, "prod"), (CLUSTER_UID, "uid-2")]), who), of_set);
            assert_eq!(is_of_peer(&instance(&[(CLUSTER_UID, "uid-2")]), who), of_none);
            assert!(!is_of_peer(&instance(&[("ECS_SERVICE_NAME", "web")]), who));
        }
        assert!(is_ours(&instance(&[(CLUSTER_UID, "uid-1")]), &standalone));
        assert!(!is_ours(&instance(&[(CLUSTERSET, "prod"), (CLUSTER_UID, "uid-1")]), &standalone));
    }

    #[test]
    fn marks_fit_aws_and_every_cluster_of_the_clusterset_recognises_them() {
        let long = "a".repeat(63) + "." + &"b".repeat(63);
        for set in [None, Some("prod"), Some(long.as_str())] {
            let us = identity(set, "uid-1");
            let creator = us.creator_request_id(u64::MAX);
            assert!(creator.len() <= 64 && us.description().len() <= 1024);
            assert!(us.tags().iter().all(|(key, value)| key.len() <= 128 && value.len() <= 256));
            assert!(made_by_us(&service(None, Some(&creator)), &us));
            assert_eq!(made_by_us(&service(None, Some(&creator)), &identity(set, "uid-2")), set.is_some());
            // What a standalone cluster created remains its own, whichever ClusterSet it joins.
            let other = identity(Some("other"), "uid-1");
            assert_eq!(made_by_us(&service(None, Some(&creator)), &other), set.is_none());
            assert_ne!(creator, us.creator_request_id(7));
        }
    }

    #[test]
    fn distinguishes_the_owners_of_services() {
        let us = identity(Some("prod"), "uid-1");
        let other = identity(Some("prod-eu"), "uid-1");
        let none = BTreeMap::new();
        let edns = "heritage=external-dns,external-dns/owner=eks-prod,external-dns/resource=service/shop/web";
        let cases = [
            (service(Some(&us.description()), None), ServiceOwner::Ours),
            (service(None, Some(&us.creator_request_id(1))), ServiceOwner::Ours),
            (service(Some("edited by a person"), Some(&us.creator_request_id(1))), ServiceOwner::Ours),
            (service(Some(&us.description()), Some("terraform-1")), ServiceOwner::Unclaimed),
            (service(Some(&other.description()), None), ServiceOwner::OtherSet("clusterset/prod-eu".to_owned())),
            (service(None, Some(&other.creator_request_id(1))), ServiceOwner::OtherSet(other.creator_request_id(1))),
            (service(Some(edns), None), ServiceOwner::ExternalDns("eks-prod".to_owned())),
            (service(Some("about heritage"), None), ServiceOwner::Unclaimed),
            (service(None, Some("1b9d6bcd-bbfd-4b2d-9b5d-ab8dfbbd4bed")), ServiceOwner::Unclaimed),
        ];
        for (service, owner) in cases {
            assert_eq!(service_owner(&service, &none, &us), owner, "{service:?}");
        }
        let ledger = [(ledger::CLUSTERSET_TAG.to_owned(), "any".to_owned())].into();
        assert_eq!(service_owner(&service(None, Some("cloudmap-mcs")), &ledger, &us), ServiceOwner::Ledger);
        let connect = [(SERVICE_CONNECT_TAG.to_owned(), "true".to_owned())].into();
        assert_eq!(service_owner(&service(None, None), &connect, &us), ServiceOwner::ServiceConnect);
    }

    #[test]
    fn an_implied_target_joins_only_services_that_we_created() {
        let foreign = [
            ServiceOwner::OtherSet("x".to_owned()),
            ServiceOwner::ExternalDns("x".to_owned()),
            ServiceOwner::ServiceConnect,
            ServiceOwner::Ledger,
        ];
        let named = Consent { named: true, ..Consent::default() };
        let share = Consent { share: true, ..Consent::default() };
        assert_eq!(refusal(&ServiceOwner::Ours, &Consent::default()), None);
        assert_eq!(refusal(&ServiceOwner::Unclaimed, &named), None);
        assert!(refusal(&ServiceOwner::Unclaimed, &Consent::default()).unwrap().contains("annotation"));
        for owner in foreign {
            assert!(refusal(&owner, &Consent::default()).is_some() && refusal(&owner, &named).is_some(), "{owner:?}");
            let never = [ServiceOwner::ServiceConnect, ServiceOwner::Ledger].contains(&owner);
            assert_eq!(refusal(&owner, &share).is_some(), never, "{owner:?}");
        }
    }

    #[test]
    fn what_others_made_is_joined_only_with_a_grant_or_a_takeover() {
        let edns = ServiceOwner::ExternalDns("eks".to_owned());
        let named = Consent { named: true, ungranted: true, ..Consent::default() };
        let share = Consent { share: true, ..named.clone() };
        for (owner, consent, refused) in [
            (&ServiceOwner::Ours, &named, false),
            (&ServiceOwner::Unclaimed, &named, true),
            (&ServiceOwner::Unclaimed, &share, true),
            (&ServiceOwner::OtherSet("x".to_owned()), &share, true),
            (&edns, &share, true),
            (&edns, &Consent { adopt: Some("external-dns/eks".parse().unwrap()), ..named.clone() }, false),
            (
                &ServiceOwner::Unclaimed,
                &Consent { adopt: Some("cloudmap-controller".parse().unwrap()), ..named.clone() },
                false,
            ),
        ] {
            let message = refusal(owner, consent);
            assert_eq!(message.is_some(), refused, "{owner:?} {consent:?}");
            let remedy = "cloudmap-mcs/may-register: \"internal/pay\" on the Namespace";
            assert!(message.is_none_or(|message| message.contains(remedy)));
            assert_eq!(refusal(owner, &Consent { ungranted: false, ..consent.clone() }), None);
        }
    }

    #[test]
    fn a_service_that_is_only_shared_is_not_ours_to_change() {
        let us = identity(Some("prod"), "uid-1");
        let edns = service(Some("heritage=external-dns,external-dns/owner=eks"), None);
        let (ours, ecs) = (service(None, Some(&us.creator_request_id(1))), service(None, Some("ecs")));
        let (none, python) = (BTreeMap::new(), [("CreatedBy".to_owned(), "cloudmap-controller".to_owned())].into());
        for (service, tags, adopt, expected) in [
            (&ours, &none, None, Control::Ours),
            (&ecs, &none, None, Control::Others),
            (&ecs, &none, Some("cloudmap-controller"), Control::Others),
            (&ecs, &python, None, Control::Others),
            (&ecs, &python, Some("cloudmap-controller"), Control::Adopted),
            (&edns, &none, None, Control::Others),
            (&edns, &none, Some("external-dns/eks"), Control::Adopted),
            (&edns, &none, Some("external-dns/eks-prod"), Control::Others),
        ] {
            let adopt = adopt.map(|adopt| adopt.parse().unwrap());
            assert_eq!(control(service, tags, &us, adopt.as_ref()), expected, "{service:?} {adopt:?}");
        }
    }

    #[test]
    fn adopting_one_owner_gives_no_right_to_another() {
        let adopt = |text: &str| Consent { adopt: Some(text.parse().unwrap()), ..Consent::default() };
        let eks_prod = ServiceOwner::ExternalDns("eks-prod".to_owned());
        assert_eq!(refusal(&eks_prod, &adopt("external-dns/eks-prod")), None);
        let message = refusal(&eks_prod, &adopt("external-dns/eks")).unwrap();
        assert!(message.contains("cloudmap-mcs/adopt") && message.contains("--txt-owner-id"), "{message}");
        assert!(refusal(&eks_prod, &adopt("cloudmap-controller")).is_some());
        assert_eq!(refusal(&ServiceOwner::Unclaimed, &adopt("cloudmap-controller")), None);
    }
}
