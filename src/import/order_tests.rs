use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use proptest::prelude::*;

use super::*;
use crate::{
    DerivedServices, Former, derived_service,
    objects::tests::{mk_port, mk_service},
    plan::tests::{mk_import, mk_slice},
};
use cluster::{cache::Narrow, objects::Endpoint as Row};
use model::{Conditions, Hints, IpFamily, Protocol, ServiceKey};

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
            cluster_selection: None,
            selection_conflict: None,
            service_type: if self.headless { ServiceType::Headless } else { ServiceType::ClusterSetIp },
            ports: self.ports().into_iter().zip(80..).map(|(name, port)| mk_port(name, port)).collect(),
            clusters: BTreeMap::new(),
            ..mk_service()
        }
    }

    fn there(&self, of_headless: bool) -> There {
        let slices = own_slices(&self.slices, name, None);
        let mut derived = DerivedServices { name: "derived".into(), of_headless, ..DerivedServices::default() };
        if of_headless || !self.headless {
            derived.there = Some(self.derived("derived", "10.96.0.1"));
        }
        let mut import = mk_import(true, &["there"]);
        import.spec.headless = self.headless;
        There { import: Some(Arc::new(import)), derived, slices }
    }

    /// Its derived Service.
    fn derived(&self, name: &str, ip: &str) -> Arc<Service> {
        let mut service = derived_service(&key(), name, &self.service());
        service.spec.as_mut().unwrap().cluster_ips = Some(vec![if self.headless { "None" } else { ip }.to_owned()]);
        Service::narrow(service).map(Arc::new).unwrap()
    }

    fn wanted(&self, there: &There) -> Wanted {
        let slices = slices(&self.slices, name);
        let names = there.slices.iter().map(|one| &one.key.name);
        let stale = names.filter(|name| slices.iter().all(|slice| slice.name != **name)).cloned().collect();
        Wanted {
            service: Some(self.service()),
            derived: Some("derived".into()),
            slices: [("there".parse().unwrap(), slices)].into(),
            stale,
            ..Wanted::default()
        }
    }
}

/// The slices that are there, and the Service to which they belong.
fn own_slices(contents: &[BTreeSet<u8>], name: fn(usize) -> Arc<str>, service: Option<&str>) -> Vec<Arc<OwnSlice>> {
    let row = |endpoint: SliceEndpoint| Row {
        address: Some(endpoint.address),
        conditions: endpoint.conditions,
        target: None,
        about: Arc::default(),
    };
    let own = |slice: Slice| {
        let mut own = mk_slice(&slice.name, "there").0.clone();
        (own.ports, own.endpoints) = (slice.ports, slice.endpoints.into_iter().map(row).collect());
        own.service = service.map(Into::into);
        Arc::new(OwnSlice(own))
    };
    slices(contents, name).into_iter().map(own).collect()
}

fn slices(contents: &[BTreeSet<u8>], name: fn(usize) -> Arc<str>) -> Vec<Slice> {
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
    contents.iter().enumerate().filter(|(_, endpoints)| !endpoints.is_empty()).map(slice).collect()
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
        let listed = |slice: &Slice| -> BTreeSet<u8> {
            let lists = |n: &u8| slice.endpoints.iter().any(|endpoint| endpoint.address == ip(*n));
            (0..ADDRESSES).filter(lists).collect()
        };
        match step {
            Step::Service(_) => self.service = Some(after),
            Step::Slice(step) => self.slices[nth(&step.slice.name)] = listed(&step.slice),
            Step::Kept(step) => self.slices[nth(&step.slice.name)] = listed(&step.slice),
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

/// Makes all writes but one, which is refused, or ends everything. `look` sees each step, and whether it was written. Returns
/// whether all were.
fn drive<'a>(
    mut order: Order<'a>,
    (refused, over): (usize, bool),
    mut look: impl FnMut(&Step<'a>, bool) -> Result<(), TestCaseError>,
) -> Result<bool, TestCaseError> {
    let mut steps = 0;
    while let Some(step) = order.next() {
        let outcome = match (steps == refused, over) {
            (false, _) => Outcome::Written,
            (true, false) => Outcome::Refused,
            (true, true) => Outcome::Over,
        };
        look(&step, outcome == Outcome::Written)?;
        order.done(&step, outcome);
        steps += 1;
        prop_assert!(steps < 60, "it never ends: {:?}", order);
    }
    Ok(steps <= refused)
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
        let is_whole = drive(Order::new(&there, &wanted), (refused, over), |step, written| {
            if written {
                world.apply(step, &after);
            }
            world.check(&before, &after)
        })?;
        if is_whole {
            prop_assert_eq!(&world.slices, &after.slices);
            let derives = of_headless || !after.headless;
            prop_assert_eq!(world.service.map(std::ptr::from_ref), derives.then_some(std::ptr::from_ref(&after)));
        }
    }
}

fn new_name(nth: usize) -> Arc<str> {
    format!("new-{nth}").into()
}

/// A former Service with its slices, and the one that takes over.
#[derive(Debug, Default)]
struct Takeover {
    /// The Service to which each slice belongs, and its endpoints.
    slices: BTreeMap<Arc<str>, (String, BTreeSet<IpAddr>)>,
    services: BTreeSet<&'static str>,
    shown: &'static str,
    headless: bool,
}

impl Takeover {
    fn new(there: &There) -> Self {
        let mut before = Self { services: ["former"].into(), shown: "former", ..Self::default() };
        for slice in &there.slices {
            let addresses = slice.endpoints.iter().filter_map(|row| row.address).collect();
            before.slices.insert(slice.key.name.clone(), (slice.service.as_deref().unwrap().to_owned(), addresses));
        }
        before.services.extend(there.derived.there.as_ref().map(|_| "derived"));
        before
    }

    fn apply(&mut self, step: &Step<'_>) {
        match step {
            Step::Service(_) => self.services.extend(["derived"]),
            Step::Slice(step) => {
                let addresses = step.slice.endpoints.iter().map(|endpoint| endpoint.address).collect();
                let service = step.derived.unwrap().to_owned();
                self.slices.insert(step.slice.name.clone(), (service, addresses));
            }
            Step::Import(service) => {
                (self.shown, self.headless) = ("derived", service.service_type == ServiceType::Headless);
            }
            Step::Former(service) => self.services.retain(|name| **name != *service.key.name),
            Step::Stale(slice) => self.slices.retain(|name, _| *name != slice.key.name),
            Step::Kept(step) => {
                let addresses = step.slice.endpoints.iter().map(|endpoint| endpoint.address).collect();
                let service = step.existing.service.as_deref().unwrap().to_owned();
                self.slices.insert(step.slice.name.clone(), (service, addresses));
            }
        }
    }

    /// The endpoints of a Service.
    fn of(&self, service: &str) -> BTreeSet<IpAddr> {
        self.slices.values().filter(|(of, _)| of == service).flat_map(|(_, endpoints)| endpoints).copied().collect()
    }

    fn check(&self, before: &Form, after: &Form) -> Result<(), TestCaseError> {
        prop_assert!(self.headless || self.services.contains(self.shown), "there is no Service: {:?}", self);
        let found = if self.headless { &self.of("former") | &self.of("derived") } else { self.of(self.shown) };
        for n in all(&before.slices).intersection(&all(&after.slices)) {
            prop_assert!(found.contains(&ip(*n)), "{} is not found: {:?}", n, self);
        }
        if !self.headless && self.shown == "former" {
            for port in before.ports() {
                let live = !with(&before.slices, port).is_disjoint(&all(&after.slices));
                let mut its = self.slices.iter().filter(|(_, (of, _))| of == "former");
                let serves = |name: &Arc<str>| port_of(name.rsplit('-').next().unwrap().parse().unwrap()) == port;
                let served = its.any(|(name, (_, endpoints))| serves(name) && !endpoints.is_empty());
                prop_assert!(!live || served, "{} has no endpoints: {:?}", port, self);
            }
        }
        Ok(())
    }
}

proptest! {
    /// The new Service is there already with some slices, or is not.
    #[test]
    fn whatever_is_refused_the_service_that_the_import_shows_has_its_endpoints_until_another_one_takes_over(
        before in forms(),
        after in forms(),
        begun in prop::option::of(forms()),
        refused in 0..30usize,
        over in any::<bool>(),
    ) {
        let before = Form { headless: false, ..before };
        let mut there = before.there(true);
        there.slices = own_slices(&before.slices, name, Some("former"));
        there.derived.former = vec![before.derived("former", "10.96.0.2")];
        there.derived.there = begun.as_ref().map(|begun| begun.derived("derived", "10.96.0.1"));
        if let Some(begun) = &begun {
            there.slices.extend(own_slices(&begun.slices, new_name, Some("derived")));
        }
        let of_former: BTreeMap<ClusterId, Vec<Slice>> = [("there".parse().unwrap(), slices(&after.slices, name))].into();
        let present = [("there".parse().unwrap(), slices(&after.slices, new_name))].into();
        let mut wanted = Wanted { slices: present, ..after.wanted(&there) };
        let all_wanted = wanted.slices.values().chain(of_former.values()).flatten();
        let names: BTreeSet<Arc<str>> = all_wanted.map(|slice| slice.name.clone()).collect();
        let left = there.slices.iter().map(|slice| slice.key.name.clone()).filter(|name| !names.contains(name));
        wanted.stale = left.collect();
        wanted.former = Some(Former { derived: "former".into(), slices: of_former });

        let mut world = Takeover::new(&there);
        let is_whole = drive(Order::new(&there, &wanted), (refused, over), |step, written| {
            if written {
                world.apply(step);
            }
            world.check(&before, &after)
        })?;
        if is_whole {
            let addresses: BTreeSet<IpAddr> = all(&after.slices).into_iter().map(ip).collect();
            prop_assert_eq!(world.of("derived"), addresses);
            // What was made in between goes next time.
            let there: BTreeSet<&Arc<str>> = there.slices.iter().map(|slice| &slice.key.name).collect();
            prop_assert!(world.slices.iter().all(|(name, (of, _))| of != "former" || !there.contains(name)));
            prop_assert_eq!((world.services, world.shown), (["derived"].into(), "derived"));
        }
    }
}

/// A cluster that serves no more because others do keeps a slice without endpoints.
#[test]
fn a_slice_is_emptied_when_others_have_taken_over_and_not_before() {
    let before = Form { headless: false, named: 0, slices: vec![[1].into(), BTreeSet::new(), [2].into()] };
    let there = before.there(false);
    for (after, refused, last) in [
        // The other one is new.
        (vec![BTreeSet::new(), [3].into(), BTreeSet::new()], 99, Some("slice-0")),
        (vec![BTreeSet::new(), [3].into(), BTreeSet::new()], 0, None),
        // Nobody serves.
        (vec![BTreeSet::new(); 3], 99, Some("slice-0")),
    ] {
        let form = Form { slices: after, ..before.clone() };
        let mut wanted = form.wanted(&there);
        let emptied = Slice { endpoints: Vec::new(), ..slices(&before.slices, name)[0].clone() };
        wanted.slices.values_mut().next().unwrap().insert(0, emptied);
        wanted.stale.retain(|name| **name != *"slice-0");
        let mut written = Vec::new();
        drive(Order::new(&there, &wanted), (refused, false), |step, is_written| {
            if let (Step::Slice(step), true) = (step, is_written) {
                written.push(step.slice.name.clone());
            }
            Ok(())
        })
        .unwrap();
        assert_eq!(written.last().map(|name| &**name), last, "{:?}", form.slices);
    }
}
