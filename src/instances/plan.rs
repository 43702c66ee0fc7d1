//! The writes that bring a target to its desired instances: pure.

use std::{
    cell::LazyCell,
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    sync::Arc,
};

use super::{
    Adopt,
    attributes::{Digest, InstanceSpec, ServiceTraits, digest},
    ownership::{Owner, is_of_peer, is_ours},
};
use cloudmap::{
    Instance,
    attributes::{IPV4, IPV6},
};

/// The own instances of a target, with the digests of their attributes as last read or written. `None` if one of our
/// writes has an outcome that is not known (yet).
pub type Own = BTreeMap<Arc<str>, Option<Digest>>;

/// The result of a complete reading of a service. (A partial reading proves nothing, so it is not used.)
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Reading {
    /// Our own instances.
    pub own: Own,
    /// Ids of foreign instances that our instances could have, desired or not. They must never be written.
    pub taken: BTreeSet<Arc<str>>,
    /// Number of foreign instances.
    pub foreign: usize,
    /// Number of those that were not registered by clusters like ours ([`is_of_peer`]).
    pub strangers: usize,
    /// Instances that are deregistered when everything else is registered: those of the controller from which the user
    /// takes over, and our own ones whose endpoints continue under other ids.
    pub adopted: Adopted,
}

/// Ids of instances, with the addresses in them.
pub type Adopted = BTreeMap<Arc<str>, Vec<IpAddr>>;

/// Sorts a complete listing of a service into own and foreign instances. `adopt` is the controller from which the user
/// takes over.
pub fn read<'a>(
    listing: impl IntoIterator<Item = &'a Instance>,
    desired: &[InstanceSpec],
    identity: &Owner,
    adopt: Option<&Adopt>,
) -> Reading {
    let mut reading = Reading::default();
    let wanted_addresses: LazyCell<BTreeSet<IpAddr>, _> =
        LazyCell::new(|| desired.iter().flat_map(InstanceSpec::addresses).collect());
    // The endpoint still exists, but with another id, as after a change of `--aws-mcs-compat`.
    let goes_on = |instance| addresses(instance).any(|address| wanted_addresses.contains(&address));
    let own_ids = identity.id_prefix();
    for instance in listing {
        let ours = is_ours(instance, identity);
        let adopted = !ours && adopt.is_some_and(|adopt| adopt.wrote(instance));
        let wanted = find(desired, &instance.id);
        reading.foreign += usize::from(!ours);
        reading.strangers += usize::from(!ours && !is_of_peer(instance, identity));
        if !ours && !adopted {
            // Other ids need no memory here: there may be many ECS tasks.
            if instance.id.starts_with(&own_ids) || awsmcs::is_id(&instance.id) {
                reading.taken.insert(instance.id.clone());
            }
        } else if wanted.is_none() && (adopted || ours && goes_on(instance)) {
            reading.adopted.insert(instance.id.clone(), addresses(instance).collect());
        } else if ours || adopted {
            // An instance with an id that we use is overwritten in place.
            let id = wanted.map_or(&instance.id, InstanceSpec::id);
            reading.own.insert(Arc::clone(id), Some(digest(&instance.attributes)));
        }
    }
    reading
}

/// The addresses in an instance.
fn addresses(instance: &Instance) -> impl Iterator<Item = IpAddr> {
    [IPV4, IPV6].into_iter().filter_map(|key| instance.attributes.get(key)?.parse().ok())
}

/// What remains to be written.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Plan {
    /// Own instances that are no longer desired.
    pub deregister: Vec<Arc<str>>,
    /// Those of them whose endpoints get other ids, and are not registered under these yet. They go last.
    pub renamed: Adopted,
    /// Desired instances that are missing or have other attributes.
    pub register: Vec<Arc<str>>,
    /// Those of them that overwrite an endpoint which gets another id, and is not registered under that yet.
    pub displacing: Vec<Arc<str>>,
    /// Desired instances that cannot be registered, with the reason.
    pub refused: Vec<(Arc<str>, &'static str)>,
    /// Number of desired instances that can be registered.
    pub wanted: usize,
    /// Number of those that are registered, whatever their attributes are.
    pub present: usize,
}

impl Plan {
    /// Leaves existing instances as they are, even if their attributes differ.
    #[must_use]
    pub fn as_is(mut self, own: &Own) -> Self {
        self.register.retain(|id| !matches!(own.get(id), Some(Some(_))));
        self
    }

    /// Whether nothing remains to be written.
    pub fn is_empty(&self) -> bool {
        self.deregister.is_empty() && self.renamed.is_empty() && self.register.is_empty()
    }
}

/// Compares desired and observed instances. `desired` is sorted by id. `own` comes from [`read`] and later writes. An
/// instance is deregistered only if its id is in `own` and nobody else was seen to use it.
pub fn plan(desired: &[InstanceSpec], own: &Own, taken: &BTreeSet<Arc<str>>, service: ServiceTraits) -> Plan {
    let mut plan = Plan::default();
    let mut wanted = BTreeSet::new();
    for spec in desired.iter().filter(|spec| spec.belongs(service, own.contains_key(spec.id()))) {
        if taken.contains(spec.id()) {
            plan.refused.push((spec.id().clone(), "somebody else registered an instance with this id"));
        } else if let Some(reason) = spec.lacks(service) {
            plan.refused.push((spec.id().clone(), reason));
        } else {
            wanted.insert(spec.id());
            plan.present += usize::from(matches!(own.get(spec.id()), Some(Some(_))));
            if own.get(spec.id()) != Some(&Some(spec.digest(service))) {
                plan.register.push(spec.id().clone());
            }
        }
    }
    for id in own.keys().filter(|id| !wanted.contains(id) && !taken.contains(*id)) {
        match renamed(id, &plan.register, desired) {
            Some(spec) => drop(plan.renamed.insert(id.clone(), spec.addresses().collect())),
            None => plan.deregister.push(id.clone()),
        }
    }
    let displacing = plan.register.iter().filter(|id| displaces(id, &plan.register, desired, own, service));
    plan.displacing = displacing.cloned().collect();
    plan.wanted = wanted.len();
    plan
}

/// Whether an endpoint gets the id of another one, because it has a lower port at the same address, while the other one is
/// still to be registered under its new id, which ends with its port.
fn displaces(id: &str, register: &[Arc<str>], desired: &[InstanceSpec], own: &Own, service: ServiceTraits) -> bool {
    let Some(Some(said)) = own.get(id) else { return false };
    let after = &register[register.partition_point(|other| **other <= *id)..];
    let with_port = |other: &&Arc<str>| other.strip_prefix(id).is_some_and(|rest| rest.starts_with('-'));
    let is_it = |other: &Arc<str>| find(desired, other).is_some_and(|spec| spec.digest(service) == *said);
    after.iter().take_while(with_port).any(is_it)
}

/// The instance that is to be registered for the endpoint of an own instance, whose id ends with the port. The endpoint
/// shared its address with one that has a lower port, and has the address alone now.
fn renamed<'a>(id: &str, register: &[Arc<str>], desired: &'a [InstanceSpec]) -> Option<&'a InstanceSpec> {
    let (base, port) = id.rsplit_once('-')?;
    register.binary_search_by(|other| (**other).cmp(base)).ok()?;
    find(desired, base).filter(|spec| spec.port() == port.parse().ok())
}

/// The attributes with which to write a desired instance; `None` if it must go.
pub fn writable<'a>(
    desired: &'a [InstanceSpec],
    id: &Arc<str>,
    own: &Own,
    taken: &BTreeSet<Arc<str>>,
    service: ServiceTraits,
) -> Option<&'a InstanceSpec> {
    let fits = |spec: &&InstanceSpec| {
        spec.belongs(service, own.contains_key(id)) && spec.lacks(service).is_none() && !taken.contains(id)
    };
    find(desired, id).filter(fits)
}

/// Which of the instances that go last can go now, because ours already have all of their addresses.
pub fn replaced(adopted: &Adopted, desired: &[InstanceSpec], own: &Own) -> Vec<Arc<str>> {
    let registered = desired.iter().filter(|spec| matches!(own.get(spec.id()), Some(Some(_))));
    let there: BTreeSet<IpAddr> = registered.flat_map(InstanceSpec::addresses).collect();
    let had = |addresses: &[IpAddr]| !addresses.is_empty() && addresses.iter().all(|address| there.contains(address));
    adopted.iter().filter(|(_, addresses)| had(addresses)).map(|(id, _)| id.clone()).collect()
}

/// Which of the instances that go last can go although some endpoints cannot be registered: all but those that may serve
/// such an endpoint. None if nothing of ours is there, so that the name is not empty.
pub fn unneeded(adopted: &Adopted, desired: &[InstanceSpec], own: &Own) -> Vec<Arc<str>> {
    let is_there = |spec: &&InstanceSpec| matches!(own.get(spec.id()), Some(Some(_)));
    let (there, missing): (Vec<_>, Vec<_>) = desired.iter().filter(|spec| spec.is_ready()).partition(is_there);
    if there.is_empty() {
        return Vec::new();
    }
    let missing: BTreeSet<IpAddr> = missing.into_iter().flat_map(InstanceSpec::addresses).collect();
    let goes =
        |addresses: &[IpAddr]| !addresses.is_empty() && addresses.iter().all(|address| !missing.contains(address));
    adopted.iter().filter(|(_, addresses)| goes(addresses)).map(|(id, _)| id.clone()).collect()
}

/// Which registered instances have another health status than their pods. `last` is the last status that was set for
/// each. Only for services with a custom health check.
pub fn last_ill<'a>(
    desired: &'a [InstanceSpec],
    own: &'a Own,
    last: impl Fn(&str) -> Option<bool>,
) -> impl Iterator<Item = (Arc<str>, bool)> {
    let registered = desired.iter().filter(|spec| matches!(own.get(spec.id()), Some(Some(_))));
    let differ = registered.filter(move |spec| last(spec.id()) != Some(spec.is_ready()));
    differ.map(|spec| (spec.id().clone(), spec.is_ready()))
}

/// Whether own instances stay, and follow the pods, in a service that may no longer be used: nobody else is there, so the
/// name would be empty without them. A pod that is registered shows that the service was used for the same object.
pub fn outstays(desired: &[InstanceSpec], own: &Own, strangers: usize) -> bool {
    strangers == 0 && desired.iter().any(|spec| own.contains_key(spec.id()))
}

/// The instance with this id, in a list sorted by id.
pub fn find<'a>(desired: &'a [InstanceSpec], id: &str) -> Option<&'a InstanceSpec> {
    desired.binary_search_by(|spec| (**spec.id()).cmp(id)).ok().map(|at| &desired[at])
}

#[cfg(test)]
pub(super) mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::{Custom, attributes::Source};
    use awsmcs::ExportAttributes;
    use model::{Endpoint, EndpointPort, Protocol, ServiceKey, ServicePort, ServiceType, fixtures};

    fn identity(uid: &str) -> Owner {
        Owner { clusterset: Some("prod".parse().unwrap()), cluster: "c1".parse().unwrap(), cluster_uid: uid.into() }
    }

    fn specs(uid: &str, addresses: &BTreeSet<u8>, zone: &str) -> Vec<InstanceSpec> {
        let endpoint = |&last: &u8| Endpoint { zone: Some(zone.into()), ..fixtures::mk_endpoint([10, 0, 0, last]) };
        let endpoints: Vec<_> = addresses.iter().map(endpoint).collect();
        let service = ServiceKey::new("shop", "web");
        let identity = identity(uid);
        Source { identity: &identity, service: &service, ports: &[], region: None }.instances(&endpoints).unwrap()
    }

    /// Pods on the host network of one node, by their ports.
    pub(crate) fn on_host(ports: &[u16]) -> Vec<InstanceSpec> {
        let (us, service) = (identity("uid-1"), ServiceKey::new("shop", "web"));
        let port = ServicePort { name: "".into(), protocol: Protocol::Tcp, port: 80, app_protocol: None };
        let source = Source { identity: &us, service: &service, ports: &[port], region: None };
        let endpoint = |&port: &u16| {
            let port = EndpointPort { name: "".into(), protocol: Protocol::Tcp, port, app_protocol: None };
            Endpoint { ports: [port].into(), ..fixtures::mk_endpoint([10, 0, 0, 1]) }
        };
        source.instances(&ports.iter().map(endpoint).collect::<Vec<_>>()).unwrap()
    }

    fn rendered(uid: &str, addresses: &BTreeSet<u8>, zone: &str) -> Vec<Instance> {
        specs(uid, addresses, zone).iter().map(|spec| spec.render(ServiceTraits::default())).collect()
    }

    #[test]
    fn an_id_that_somebody_else_uses_is_never_written() {
        let desired = specs("uid-1", &[1].into(), "a");
        let mut squatter = desired[0].render(ServiceTraits::default());
        squatter.attributes.clear();
        let reading = read([&squatter], &desired, &identity("uid-1"), None);
        let plan = plan(&desired, &reading.own, &reading.taken, ServiceTraits::default());
        assert!(plan.is_empty());
        assert_eq!(plan.refused.len(), 1);
    }

    /// While instances of another controller, or of another form, become ours, the name must not be empty.
    #[test]
    fn adopted_instances_are_overwritten_in_place_and_renamed_ones_go_last() {
        let us = identity("uid-1");
        let here = Adopt::AwsMcsController { cluster: "c1".parse().unwrap(), clusterset: "prod".parse().unwrap() };
        let theirs = |ip: &str, cluster: &str| Instance {
            id: format!("tcp-{}-80", ip.replace('.', "_")).into(),
            attributes: [
                ("AWS_INSTANCE_IPV4", ip),
                ("AWS_INSTANCE_PORT", "80"),
                ("CLUSTERSET_ID", "prod"),
                ("CLUSTER_ID", cluster),
                ("ENDPOINT_PORT_NAME", ""),
                ("ENDPOINT_PROTOCOL", "TCP"),
                ("READY", "true"),
                ("SERVICE_EXPORT_CREATION_TIMESTAMP", "0"),
                ("SERVICE_PORT", "80"),
                ("SERVICE_PORT_NAME", ""),
                ("SERVICE_PROTOCOL", "TCP"),
                ("SERVICE_TARGET_PORT", "80"),
                ("SERVICE_TYPE", "Headless"),
            ]
            .map(|(key, value)| (key.to_owned(), value.to_owned()))
            .into(),
        };
        // Our own instance, in the form that is desired now, with its id.
        let port = EndpointPort { name: "".into(), protocol: Protocol::Tcp, port: 80, app_protocol: None };
        let endpoint = |last| Endpoint { ports: [port.clone()].into(), ..fixtures::mk_endpoint([10, 0, 0, last]) };
        let service = ServiceKey::new("shop", "web");
        let ports = [ServicePort { name: "".into(), protocol: Protocol::Tcp, port: 80, app_protocol: None }];
        let source = Source { identity: &us, service: &service, ports: &ports, region: None };
        let exported = ExportAttributes {
            cluster: &us.cluster,
            clusterset: us.clusterset.as_ref().unwrap(),
            created: 0,
            service_type: ServiceType::Headless,
        };
        let desired =
            source.instances_per_port(exported, &[endpoint(1), endpoint(2), endpoint(3)], &Custom::default()).unwrap();

        let renamed = rendered("uid-1", &[2].into(), "a").remove(0);
        let dead = rendered("uid-1", &[9].into(), "a").remove(0);
        let listing = [
            theirs("10.0.0.1", "c1"),
            theirs("10.0.0.7", "c1"),
            theirs("10.0.0.3", "c2"),
            renamed.clone(),
            dead.clone(),
        ];
        let reading = read(&listing, &desired, &us, Some(&here));
        let adopted: Vec<_> = reading.adopted.keys().cloned().collect();
        assert_eq!(adopted, [renamed.id.clone(), "tcp-10_0_0_7-80".into()]);
        assert_eq!(reading.taken, ["tcp-10_0_0_3-80".into()].into(), "another cluster's is left alone");
        let steps = plan(&desired, &reading.own, &reading.taken, ServiceTraits::default());
        assert_eq!(steps.deregister, [dead.id]);
        assert_eq!(steps.register, ["tcp-10_0_0_1-80".into(), "tcp-10_0_0_2-80".into()]);
        // If there is no room for both, an instance whose address another one already has goes first.
        let own = Own::from([(desired[1].id().clone(), Some(desired[1].digest(ServiceTraits::default())))]);
        assert_eq!(replaced(&reading.adopted, &desired, &reading.own), Vec::<Arc<str>>::new());
        assert_eq!(replaced(&reading.adopted, &desired, &own), [renamed.id]);
        // Without the flag they are foreign.
        let reading = read(&listing, &desired, &us, None);
        assert_eq!(reading.taken.len(), 3);
    }

    #[test]
    fn of_the_instances_that_go_last_only_those_of_endpoints_that_do_not_fit_stay() {
        let desired = specs("uid-1", &[1, 2].into(), "a");
        let registered = |spec: &InstanceSpec| (spec.id().clone(), Some(spec.digest(ServiceTraits::default())));
        let theirs = |last: u8| (Arc::<str>::from(format!("10.0.0.{last}")), vec![IpAddr::from([10, 0, 0, last])]);
        let mut adopted: Adopted = [1, 2, 9].map(theirs).into();
        adopted.insert("lb.example.org".into(), Vec::new());
        let own = Own::from([registered(&desired[0])]);
        assert_eq!(unneeded(&adopted, &desired, &own), ["10.0.0.1".into(), "10.0.0.9".into()]);
        // The name would be empty.
        for own in [Own::new(), Own::from([(desired[0].id().clone(), None)])] {
            assert_eq!(unneeded(&adopted, &desired, &own), Vec::<Arc<str>>::new());
        }
    }

    #[test]
    fn own_instances_stay_in_a_service_that_is_refused_only_for_a_pod_that_is_there_and_beside_nobody_else() {
        let own: Own = specs("uid-1", &[1, 2].into(), "a").iter().map(|spec| (spec.id().clone(), None)).collect();
        for (pods, strangers, expected) in [
            (&[1_u8, 2][..], 0, true),
            (&[2, 3][..], 0, true),
            (&[1, 2][..], 1, false),
            // Of another object, which gets the name.
            (&[3, 4][..], 0, false),
            (&[][..], 0, false),
        ] {
            // Their attributes may change meanwhile.
            let desired = specs("uid-1", &pods.iter().copied().collect(), "b");
            assert_eq!(outstays(&desired, &own, strangers), expected, "{pods:?} beside {strangers}");
            assert!(!outstays(&desired, &Own::new(), strangers), "nothing was registered");
        }
    }

    /// As pods on the host network of a node.
    #[test]
    fn an_endpoint_whose_id_loses_its_port_goes_last_under_the_former_id() {
        let traits = ServiceTraits::default();
        let both = on_host(&[8080, 9090]);
        let mut own: Own = both.iter().map(|spec| (spec.id().clone(), Some(spec.digest(traits)))).collect();
        let [base, with_port] = [0, 1].map(|at: usize| both[at].id().clone());
        let host: IpAddr = "10.0.0.1".parse().unwrap();
        let desired = on_host(&[9090]);
        let steps = plan(&desired, &own, &BTreeSet::new(), traits);
        assert_eq!((steps.register, steps.deregister), (vec![base.clone()], vec![]));
        let last = Adopted::from([(with_port.clone(), vec![host])]);
        assert_eq!(steps.renamed, last);
        // Also while another endpoint cannot be registered.
        let mut two = on_host(&[9090]);
        two.extend(specs("uid-1", &[2].into(), "a"));
        let steps = plan(&two, &own, &[two[1].id().clone()].into(), traits);
        assert_eq!((steps.refused.len(), steps.deregister, steps.renamed), (1, vec![], last));

        own.insert(base, Some(desired[0].digest(traits)));
        let steps = plan(&desired, &own, &BTreeSet::new(), traits);
        assert_eq!((steps.deregister, steps.renamed), (vec![with_port.clone()], Adopted::new()), "it is registered");
        let other = on_host(&[7070]);
        let steps = plan(&other, &own, &BTreeSet::new(), traits);
        assert_eq!((steps.deregister, steps.renamed), (vec![with_port], Adopted::new()), "it is another endpoint");
    }

    #[test]
    fn an_endpoint_that_gives_its_id_to_one_with_a_lower_port_is_registered_under_its_next_id_before() {
        let (traits, taken) = (ServiceTraits::default(), BTreeSet::new());
        let (one, both) = (on_host(&[9090]), on_host(&[8080, 9090]));
        let [base, with_port] = [0, 1].map(|at: usize| both[at].id().clone());
        let mut own = Own::from([(base.clone(), Some(one[0].digest(traits)))]);
        let steps = plan(&both, &own, &taken, traits);
        assert_eq!((steps.register, steps.displacing), (vec![base.clone(), with_port.clone()], vec![base.clone()]));
        own.insert(with_port, Some(both[1].digest(traits)));
        let steps = plan(&both, &own, &taken, traits);
        assert_eq!((steps.register, steps.displacing), (vec![base], vec![]));
    }

    /// Ids in the AWS controller's form are the same in all clusters: a pod can get the address that another cluster's
    /// pod had.
    #[test]
    fn an_id_that_somebody_else_has_is_known_before_it_is_desired_and_never_deregistered() {
        let us = identity("uid-1");
        let theirs =
            |id: &str| Instance { id: id.into(), attributes: [(IPV4.to_owned(), "10.0.0.1".to_owned())].into() };
        let ours = rendered("uid-1", &[1].into(), "a").remove(0).id;
        let ecs = theirs("0db8dbd2185c4c0184e80f58fee8ba1d");
        let reading = read(&[theirs("tcp-10_0_0_1-80"), theirs(&ours), ecs], &[], &us, None);
        assert_eq!(reading.taken, [ours.clone(), "tcp-10_0_0_1-80".into()].into());
        assert_eq!(reading.foreign, 3);

        // A write of ours had no answer, and now the instance is foreign.
        let own = Own::from([(ours, None)]);
        for desired in [vec![], specs("uid-1", &[1].into(), "a")] {
            assert!(plan(&desired, &own, &reading.taken, ServiceTraits::default()).is_empty());
        }
    }

    proptest! {
        /// Writing the plan results in exactly the desired instances, and leaves every foreign one as it was.
        #[test]
        fn converges_in_one_step_and_never_touches_foreign_instances(
            before in any::<BTreeSet<u8>>(),
            moved in any::<BTreeSet<u8>>(),
            others in any::<BTreeSet<u8>>(),
            after in any::<BTreeSet<u8>>(),
        ) {
            let us = identity("uid-1");
            let ecs = |&last: &u8| Instance {
                id: format!("{last:032x}").into(),
                attributes: [("AWS_INSTANCE_IPV4".to_owned(), format!("10.0.0.{last}"))].into(),
            };
            let mut foreign = rendered("uid-2", &others, "a");
            foreign.extend(others.iter().map(ecs));
            let mut world: BTreeMap<_, _> = rendered("uid-1", &before, "a")
                .into_iter()
                .chain(rendered("uid-1", &moved, "b"))
                .chain(foreign.iter().cloned())
                .map(|instance| (instance.id, instance.attributes))
                .collect();
            let listing = |world: &BTreeMap<Arc<str>, _>| -> Vec<Instance> {
                world.iter().map(|(id, attributes)| Instance { id: id.clone(), attributes: Clone::clone(attributes) }).collect()
            };

            let desired = specs("uid-1", &after, "a");
            let reading = read(&listing(&world), &desired, &us, None);
            prop_assert_eq!((reading.foreign, reading.strangers), (foreign.len(), others.len()));
            let steps = plan(&desired, &reading.own, &reading.taken, ServiceTraits::default());
            for id in &steps.deregister {
                prop_assert!(foreign.iter().all(|instance| instance.id != *id));
                world.remove(id);
            }
            for id in &steps.register {
                prop_assert!(foreign.iter().all(|instance| instance.id != *id));
                let instance = find(&desired, id).unwrap().render(ServiceTraits::default());
                world.insert(id.clone(), instance.attributes);
            }
            let mut expected: Vec<_> = rendered("uid-1", &after, "a").into_iter().chain(foreign).collect();
            expected.sort_by(|a, b| a.id.cmp(&b.id));
            prop_assert_eq!(listing(&world), expected);

            let reading = read(&listing(&world), &desired, &us, None);
            prop_assert!(plan(&desired, &reading.own, &reading.taken, ServiceTraits::default()).is_empty());
        }
    }
}
