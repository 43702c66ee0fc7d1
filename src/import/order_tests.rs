use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use proptest::prelude::*;

use super::*;
use crate::{
    cluster::{cache::Narrow, objects::Endpoint as Row},
    import::{
        DerivedServices, derived_service,
        objects::tests::{mk_port, mk_service},
        plan::tests::{mk_import, mk_slice},
    },
    model::{Conditions, Hints, IpFamily, Protocol, ServiceKey},
};

const PORTS: [&str; 3] = ["http", "web", "admin"];
const ADDRESSES: u8 = 8;

/// Endpoints by slice. A slice that has none is not there.
type Contents = Vec<BTreeSet<u8>>;

/// An import: its type, which of the ports the Service's first number has, and what is in the slices.
#[derive(Debug, Clone)]
struct Form {
    headless: bool,
    named: usize,
    slices: Contents,
}

fn forms() -> impl Strategy<Value = Form> {
    let slices = prop::collection::vec(prop::collection::btree_set(0..ADDRESSES, 0..4), 6);
    (any::<bool>(), 0..PORTS.len(), slices).prop_map(|(headless, named, slices)| Form { headless, named, slices })
}

fn key() -> ServiceKey {
    ServiceKey::new("ns", "svc")
}

fn ip(n: u8) -> IpAddr {
    [10, 0, 0, n].into()
}

fn name(nth: usize) -> Arc<str> {
    format!("slice-{nth}").into()
}

/// The slices in turn have the ports.
fn port_of(nth: usize) -> &'static str {
    PORTS[nth % PORTS.len()]
}

fn mk_ports(nth: usize) -> Arc<[EndpointPort]> {
    [EndpointPort { name: port_of(nth).into(), protocol: Protocol::Tcp, port: 8080, app_protocol: None }].into()
}

impl Form {
    /// The names of the Service's ports 80 and 81.
    fn ports(&self) -> [&'static str; 2] {
        [port_of(self.named), port_of(self.named + 1)]
    }

    fn service(&self) -> ClusterSetService {
        ClusterSetService {
            service_type: if self.headless { ServiceType::Headless } else { ServiceType::ClusterSetIp },
            ports: self.ports().into_iter().zip(80..).map(|(name, port)| mk_port(name, port)).collect(),
            clusters: BTreeMap::new(),
            ..mk_service()
        }
    }

    fn there(&self, of_headless: bool) -> There {
        let row = |n: &u8| Row {
            address: Some(ip(*n)),
            further_addresses: false,
            conditions: Conditions::READY,
            hostname: None,
            node: None,
            zone: None,
            hints: None,
            target: None,
        };
        let slice = |(nth, endpoints): (usize, &BTreeSet<u8>)| {
            let mut slice = mk_slice(&name(nth), "there").0.clone();
            (slice.ports, slice.endpoints) = (mk_ports(nth), endpoints.iter().map(row).collect());
            Arc::new(OwnSlice(slice))
        };
        let full = self.slices.iter().enumerate().filter(|(_, endpoints)| !endpoints.is_empty());
        let slices = full.map(slice).collect();
        let mut derived = DerivedServices { name: "derived".into(), of_headless, ..DerivedServices::default() };
        if of_headless || !self.headless {
            let mut service = derived_service(&key(), "derived", &self.service());
            let spec = service.spec.as_mut().unwrap();
            spec.cluster_ips = Some(vec![if self.headless { "None" } else { "10.96.0.1" }.to_owned()]);
            derived.there = Service::narrow(service).map(Arc::new);
        }
        let mut import = mk_import(true, &["there"]);
        import.spec.headless = self.headless;
        There { import: Some(Arc::new(import)), derived, slices }
    }

    fn wanted(&self, there: &There) -> Wanted {
        let endpoint = |n: &u8| SliceEndpoint {
            address: ip(*n),
            conditions: Conditions::READY,
            hostname: None,
            zone: None,
            node: None,
            hints: Hints::default(),
        };
        let slice = |(nth, endpoints): (usize, &BTreeSet<u8>)| Slice {
            name: name(nth),
            family: IpFamily::V4,
            ports: mk_ports(nth),
            endpoints: endpoints.iter().map(endpoint).collect(),
        };
        let full = self.slices.iter().enumerate().filter(|(_, endpoints)| !endpoints.is_empty());
        let slices: Vec<Slice> = full.map(slice).collect();
        let names = there.slices.iter().map(|one| &one.key.name);
        let stale = names.filter(|name| slices.iter().all(|slice| slice.name != **name)).cloned().collect();
        Wanted {
            service: Some(self.service()),
            obstacle: None,
            silent: BTreeMap::new(),
            slices: [("there".parse().unwrap(), slices)].into(),
            stale,
            out_of_reach: BTreeMap::new(),
            skipped: vec![],
        }
    }
}

/// The objects in the cluster: what is in the slices, and by which form the import and the Service were written.
#[derive(Debug)]
struct World<'a> {
    slices: Contents,
    import: &'a Form,
    service: Option<&'a Form>,
}

impl<'a> World<'a> {
    fn apply(&mut self, step: &Step<'_>, after: &'a Form) {
        let nth = |slice: &str| slice.strip_prefix("slice-").unwrap().parse::<usize>().unwrap();
        match step {
            Step::Service(_) => self.service = Some(after),
            Step::Slice(step) => {
                let lists = |n: &u8| step.slice.endpoints.iter().any(|endpoint| endpoint.address == ip(*n));
                self.slices[nth(&step.slice.name)] = (0..ADDRESSES).filter(lists).collect();
            }
            Step::Import(_) => self.import = after,
            Step::Former(_) => self.service = None,
            Step::Stale(slice) => self.slices[nth(&slice.key.name)].clear(),
        }
    }

    fn check(&self, before: &Form, after: &Form) -> Result<(), TestCaseError> {
        let there = all(&self.slices);
        for n in all(&before.slices).intersection(&all(&after.slices)) {
            prop_assert!(there.contains(n), "{} is nowhere: {:?}", n, self);
        }
        if self.import.headless {
            return Ok(());
        }
        let Some(service) = self.service.filter(|service| !service.headless) else {
            return Err(TestCaseError::fail(format!("there is no address: {self:?}")));
        };
        for (former, port) in before.ports().into_iter().zip(service.ports()) {
            let live = if std::ptr::eq(service, before) { all(&after.slices) } else { with(&after.slices, port) };
            let served = with(&before.slices, former).is_disjoint(&live) || !with(&self.slices, port).is_empty();
            prop_assert!(served, "{} has no endpoints: {:?}", port, self);
        }
        Ok(())
    }
}

fn all(slices: &[BTreeSet<u8>]) -> BTreeSet<u8> {
    slices.iter().flatten().copied().collect()
}

/// The endpoints of the slices that have a port.
fn with(slices: &[BTreeSet<u8>], port: &str) -> BTreeSet<u8> {
    let slices = slices.iter().enumerate().filter(|(nth, _)| port_of(*nth) == port);
    slices.flat_map(|(_, endpoints)| endpoints.iter().copied()).collect()
}

proptest! {
    #[test]
    fn no_write_and_no_refusal_leaves_an_endpoint_nowhere_or_a_port_or_a_name_without_endpoints(
        before in forms(),
        after in forms(),
        of_headless in any::<bool>(),
        refused in 0..15usize,
        over in any::<bool>(),
    ) {
        let there = before.there(of_headless);
        let wanted = after.wanted(&there);
        let service = (of_headless || !before.headless).then_some(&before);
        let mut world = World { slices: before.slices.clone(), import: &before, service };
        let mut order = Order::new(&there, &wanted);
        let mut steps = 0;
        while let Some(step) = order.next() {
            let outcome = match (steps == refused, over) {
                (false, _) => Outcome::Written,
                (true, false) => Outcome::Refused,
                (true, true) => Outcome::Over,
            };
            if outcome == Outcome::Written {
                world.apply(&step, &after);
            }
            world.check(&before, &after)?;
            order.done(&step, outcome);
            steps += 1;
            prop_assert!(steps < 30, "it never ends: {:?}", order);
        }
        if steps <= refused {
            prop_assert_eq!(&world.slices, &after.slices);
            let derives = of_headless || !after.headless;
            prop_assert_eq!(world.service.map(std::ptr::from_ref), derives.then_some(std::ptr::from_ref(&after)));
        }
    }
}
