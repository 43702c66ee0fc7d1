//! What belongs into which target, by the annotations, the Service with its endpoints, and the list of namespaces.
//!
//! | Service | `hostname` | `internal-hostname` | `cloudmap.controller/...` |
//! |---|---|---|---|
//! | headless | ready endpoints, and `<pod host name>.<name>` for each that has one | the same | ready endpoints |
//! | LoadBalancer | external IPs, else the load balancer's addresses and names | cluster IPs | refused |
//! | ClusterIP | refused | cluster IPs | refused |
//! | ExternalName | external IPs, else the external name | the same | refused |
//! | NodePort | refused | refused | refused |
//!
//! For an Ingress: the addresses and names of its load balancer, for the hosts in its annotations and its rules.
//! `target` replaces all of these. A service that is created gets these records: A, AAAA or both (MULTIVALUE) for
//! addresses, A (WEIGHTED, an alias) for load balancers of AWS, CNAME (WEIGHTED) for other names.

mod backends;

use std::{
    collections::{BTreeMap, btree_map::Entry},
    sync::Arc,
};

use self::backends::{Backends, cluster_ips, fixed, pods, ports};
use super::{
    AnnotationSettings, Zones, needs_zones,
    request::{HostTarget, Hosts, Named, Request},
};
use api::{events::EventReason, names::ANNOTATION_SHARE};
use cluster::objects::{Ingress, Service, ServiceKind};
use instances::{
    Adopt, Consent, Custom, InstanceSpec, Rights, Source, Traffic,
    custom::{self, ByAddress},
    policy::Verdict,
    records::Wishes,
    sync::Creation,
    target::validate,
};
use model::{Endpoint, EndpointPort, Excerpt, Pairs, Target, addresses::check, some_of};

/// Most host names of one object that are registered, without those of single pods. Two annotations have room for thousands.
pub const MOST_NAMES: usize = 100;

/// Most instances that are planned for one object, over all its host names, of which each gets all addresses. Each gets as many
/// as that leaves for it.
const MOST_INSTANCES: usize = 50_000;

/// What an object waits for while its Cloud Map namespaces are not known.
pub const UNLISTED: &str = "the Cloud Map namespaces are not listed yet";

/// The field with the addresses and names of a load balancer.
const LOAD_BALANCER: &str = "status.loadBalancer.ingress";

/// Most refusals that are kept of one object. Nobody reads more Events.
const MOST_REFUSALS: usize = 100;

/// What an object requests, as far as it is possible.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Planned {
    /// The targets; `None` if something is not known yet, so that nothing may be concluded.
    pub wanted: Option<BTreeMap<Target, Wanted>>,
    /// What is not known yet, if there are no targets for that reason. The text completes "waiting: ".
    pub waits: Option<String>,
    /// What is not possible.
    pub refusals: Vec<Refusal>,
}

/// One target of an object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wanted {
    /// The desired instances, sorted by id, including those of pods that are not ready.
    pub instances: Arc<[InstanceSpec]>,
    /// How to create a missing Cloud Map service.
    pub creation: Creation,
    /// Which foreign services and instances may be used.
    pub consent: Consent,
    /// [`TargetDesired::keep`](instances::sync::TargetDesired::keep), set if instances would be too large.
    pub keep: bool,
    /// [`TargetDesired::as_is`](instances::sync::TargetDesired::as_is), set if instances would be too large.
    pub as_is: bool,
    /// Which part of the traffic they should get.
    pub traffic: Traffic,
}

/// A request that is not possible: a Warning on the object.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Refusal {
    /// Reason of the Event, in CamelCase.
    pub reason: EventReason,
    /// What is wrong, and the remedy.
    pub message: String,
}

/// Plans an annotated Service. `source` names the Service and its ports; `endpoints` are those of its EndpointSlices,
/// for headless Services; `pods` are pod labels. `None` if the Service requests nothing.
pub fn plan(
    service: &Service,
    source: &Source<'_>,
    endpoints: &[Endpoint],
    pods: &Arc<ByAddress>,
    zones: Option<&Zones>,
    settings: &AnnotationSettings,
    rights: &Rights,
) -> Option<Planned> {
    let request = Request::read(&service.annotations)?;
    let origin = Origin::Service(service, endpoints);
    Some(Planner::new(origin, settings, rights, pods).plan(request, &service.annotations, source, zones))
}

/// Plans an annotated Ingress: its hosts point to its load balancer. `None` if the Ingress requests nothing.
pub fn plan_ingress(
    ingress: &Ingress,
    source: &Source<'_>,
    zones: Option<&Zones>,
    settings: &AnnotationSettings,
    rights: &Rights,
) -> Option<Planned> {
    let request = Request::read_ingress(&ingress.annotations, &ingress.hosts)?;
    let planner = Planner::new(Origin::Ingress(ingress), settings, rights, &Arc::default());
    Some(planner.plan(request, &ingress.annotations, source, zones))
}

/// The annotated object.
#[derive(Clone, Copy)]
enum Origin<'a> {
    Service(&'a Service, &'a [Endpoint]),
    Ingress(&'a Ingress),
}

struct Planner<'a> {
    origin: Origin<'a>,
    settings: &'a AnnotationSettings,
    rights: &'a Rights,
    pods: Arc<ByAddress>,
    refusals: Vec<Refusal>,
    found: BTreeMap<Target, Backends>,
    /// Whether it is not known yet what the Namespace allows, on which a target depends.
    unknown: bool,
}

impl<'a> Planner<'a> {
    fn new(origin: Origin<'a>, settings: &'a AnnotationSettings, rights: &'a Rights, pods: &Arc<ByAddress>) -> Self {
        let (refusals, found, unknown) = Default::default();
        Self { origin, settings, rights, pods: Arc::clone(pods), refusals, found, unknown }
    }

    fn namespace(&self) -> &'a str {
        match self.origin {
            Origin::Service(service, _) => &service.key.namespace,
            Origin::Ingress(ingress) => &ingress.key.namespace,
        }
    }

    /// Keeps the takeover that the annotation requests only if the Namespace allows it. The flag is allowed for all.
    fn permit(&mut self, request: &mut Request, flag: Option<&Adopt>) {
        let Some(adopt) = request.adopt.as_ref().filter(|adopt| Some(*adopt) != flag) else { return };
        match self.rights.adopt(self.namespace(), adopt) {
            Verdict::Allowed => return,
            Verdict::Unknown => request.unclear = true,
            Verdict::Refused(why) => self.refuse(EventReason::NotAllowed, why),
        }
        request.adopt = None;
    }

    fn plan(
        mut self,
        mut request: Request,
        annotations: &Pairs,
        source: &Source<'_>,
        zones: Option<&Zones>,
    ) -> Planned {
        for message in std::mem::take(&mut request.complaints) {
            self.refuse(EventReason::InvalidAnnotation, message);
        }
        let flag = self.settings.owner_id.as_deref().map(|owner| Adopt::ExternalDns(owner.into()));
        self.permit(&mut request, flag.as_ref());
        let needs_list = |named: &Named| needs_zones(&named.target);
        if zones.is_none() && (request.hosts.is_some() || request.named.as_ref().is_some_and(needs_list)) {
            let waits = Some(UNLISTED.to_owned());
            return Planned { waits, refusals: kept(self.refusals), ..Planned::default() };
        }
        if let (Some(named), Origin::Service(service, endpoints)) = (request.named, self.origin) {
            self.named(named, request.adopt.clone(), (service, endpoints), zones);
        }
        if let Some((hosts, zones)) = request.hosts.zip(zones) {
            // An annotation about the Python controller takes no host name from the flag.
            let about_hosts = |adopt: &Adopt| flag.is_none() || *adopt != Adopt::CloudMapController;
            let adopt = request.adopt.filter(about_hosts).or(flag);
            self.hosts(&hosts, adopt.as_ref(), zones);
        }
        if self.unknown {
            let waits = Some(format!("the Namespace {} is not known yet", self.namespace()));
            return Planned { waits, refusals: kept(self.refusals), ..Planned::default() };
        }
        let namespace = self.namespace();
        let Self { mut refusals, found, pods, rights, .. } = self;
        let wishes = Wishes::read(annotations)
            .map_err(|message| {
                let message = message.trim_end_matches('.').to_owned();
                refusals.push(Refusal { reason: EventReason::InvalidAnnotation, message });
            })
            .ok();
        let (service, complaints) = custom::read(annotations);
        let complaint = |message| Refusal { reason: EventReason::InvalidAnnotation, message };
        refusals.extend(complaints.into_iter().map(complaint));
        let custom = Custom { service, pods };
        let share = annotations.get(ANNOTATION_SHARE).is_some_and(|value| value.trim() == "true");
        let consent = |target: &Target| {
            let ungranted = !rights.is_granted(namespace, target);
            Consent { named: true, share, adopt: None, unclear: request.unclear, ungranted }
        };
        let (traffic, _) = Traffic::read(annotations);
        let mut wanted = BTreeMap::new();
        for (target, backends) in found {
            let (found, complaint) = backends.wanted(source, &custom, &consent(&target));
            refusals.extend(complaint.map(|message| Refusal { reason: EventReason::TooManyAttributes, message }));
            // An invalid annotation decides nothing, so the service is neither created nor changed.
            let unknown = |creation| Creation { service: false, ..creation };
            let creation = match &wishes {
                Some(wishes) => wishes.apply(found.creation),
                None => unknown(found.creation),
            };
            wanted.insert(target, Wanted { creation, traffic, ..found });
        }
        Planned { wanted: Some(wanted), waits: None, refusals: kept(refusals) }
    }

    fn refuse(&mut self, reason: EventReason, message: String) {
        self.refusals.push(Refusal { reason, message });
    }

    fn named(
        &mut self,
        named: Named,
        adopt: Option<Adopt>,
        (service, endpoints): (&Service, &[Endpoint]),
        zones: Option<&Zones>,
    ) {
        let Named { target, ttl, ttl_asked } = named;
        let target = match zones.filter(|_| needs_zones(&target)) {
            None => target,
            Some(zones) => match zones.place(target) {
                Ok(target) => target,
                Err(message) => return self.refuse(EventReason::NoNamespace, message),
            },
        };
        if !service.headless {
            let message = format!(
                "cloudmap.controller/... registers only the pods of headless Services; set clusterIP: None, or export Service \
                 {} with a ServiceExport that names {target}",
                service.key
            );
            return self.refuse(EventReason::NotHeadless, message);
        }
        let backends = Backends { ttl, ttl_asked, adopt, ..pods(service, endpoints) };
        self.add(target, &backends);
    }

    /// Whether a host name is one, and is not left to others. If it is none, that is reported.
    fn takes(&mut self, host: &str, zones: &Zones) -> bool {
        if let Err(no_host) = model::hosts::check(host)
            && let meant @ [_, ..] = no_host.meant().as_slice()
        {
            if !meant.iter().all(|host| zones.leaves(host, self.settings)) {
                let message = format!("host name {} {no_host}", Excerpt(host));
                self.refuse(EventReason::InvalidAnnotation, message);
            }
            return false;
        }
        !zones.leaves(host, self.settings)
    }

    fn hosts(&mut self, hosts: &Hosts, adopt: Option<&Adopt>, zones: &Zones) {
        let all = hosts.names.iter().map(|host| (host, false)).chain(hosts.internal.iter().map(|host| (host, true)));
        let mut all: Vec<_> = all.filter(|(host, _)| self.takes(host, zones)).collect();
        let has_more_hosts = matches!(self.origin, Origin::Ingress(ingress) if ingress.has_more_hosts);
        if all.len() > MOST_NAMES || has_more_hosts {
            let message = format!(
                "it has more than {MOST_NAMES} host names, of which the first {MOST_NAMES} in their alphabetical order are \
                 registered; divide them among several objects"
            );
            self.refuse(EventReason::QuotaExceeded, message);
            all.truncate(MOST_NAMES);
        }
        let most = MOST_INSTANCES / all.len().max(1);
        // All names get the same.
        let (mut outside, mut inside) = (None, None);
        for (host, internal) in all {
            if host.contains('*') {
                let message = format!("host name {host:?}: Cloud Map has no wildcards; list the names one by one");
                self.refuse(EventReason::InvalidAnnotation, message);
                continue;
            }
            let target = zones.target(host, self.settings);
            let made = if internal { &mut inside } else { &mut outside };
            let made = made.get_or_insert_with(|| {
                let (ttl, ttl_asked, adopt) = (hosts.ttl, hosts.ttl_asked, adopt.cloned());
                let made = self.backends(hosts.targets.as_deref(), internal);
                made.map(|backends| Backends { ttl, ttl_asked, adopt, ..self.shortened(backends, most) })
            });
            let backends: &Backends = match made {
                Ok(backends) => backends,
                Err(message) => {
                    let no_address = format!("host name {host:?}: {message}");
                    match target {
                        Ok(_) => self.refuse(EventReason::NoAddress, no_address),
                        Err(message) => self.refuse(EventReason::NoNamespace, message),
                    }
                    continue;
                }
            };
            if let Origin::Service(Service { headless: true, .. }, _) = self.origin
                && hosts.targets.is_none()
            {
                // Even if the name itself is a domain, which is no service: the pods' names are below it.
                self.pod_names(host, backends, zones);
            }
            match target {
                Ok(target) => self.add(target, backends),
                Err(message) => self.refuse(EventReason::NoNamespace, message),
            }
        }
    }

    /// external-dns (from v0.22 on) gives each pod with a host name a record of its own, and uses the host name of the
    /// pod. This controller does not read pods, and EndpointSlices have the host name only if the pod's `subdomain` is
    /// the Service.
    fn pod_names(&mut self, host: &str, all: &Backends, zones: &Zones) {
        let mut names = BTreeMap::<String, Vec<Endpoint>>::new();
        for endpoint in &all.endpoints {
            if let Some(pod) = &endpoint.hostname {
                names.entry(format!("{pod}.{host}")).or_default().push(endpoint.clone());
            }
        }
        for (name, endpoints) in names {
            if let Ok(target) = zones.target(&name, self.settings) {
                let (families, adopt) = (all.families.clone(), all.adopt.clone());
                let Backends { ttl, ttl_asked, .. } = *all;
                self.add(target, &Backends { endpoints, families, ttl, ttl_asked, adopt, ..Backends::default() });
            }
        }
    }

    /// Adds a target. Two names can mean the same target, which then gets the instances of both.
    fn add(&mut self, target: Target, backends: &Backends) {
        if let Err(invalid) = validate(&target) {
            return self.refuse(EventReason::InvalidName, invalid.to_string());
        }
        match self.rights.register(self.namespace(), &target) {
            Verdict::Allowed => {}
            Verdict::Unknown => {
                self.unknown = true;
                return;
            }
            Verdict::Refused(why) => return self.refuse(EventReason::NotAllowed, why),
        }
        let backends = backends.clone();
        match self.found.entry(target) {
            Entry::Vacant(vacant) => {
                vacant.insert(backends);
            }
            Entry::Occupied(mut there) => {
                let there = there.get_mut();
                there.endpoints.extend(backends.endpoints);
                there.endpoints.sort();
                there.endpoints.dedup();
                there.hosts.extend(backends.hosts);
                there.families.extend(backends.families);
                there.adopt = there.adopt.take().or(backends.adopt);
                there.keep |= backends.keep;
            }
        }
    }

    /// At most so many of the backends: the ready ones first.
    fn shortened(&mut self, mut backends: Backends, most: usize) -> Backends {
        if backends.endpoints.len() + backends.hosts.len() > most {
            let message = format!(
                "its host names and addresses are more than {MOST_INSTANCES} instances together, because each name gets all \
                 addresses: each gets {most} of them. List fewer of either"
            );
            self.refuse(EventReason::QuotaExceeded, message);
            backends.endpoints = some_of(&backends.endpoints, most, |endpoint| endpoint.conditions.ready);
            let rest = most - backends.endpoints.len();
            backends.hosts = backends.hosts.into_iter().take(rest).collect();
        }
        backends
    }

    /// Removes addresses that can never be an endpoint.
    fn admit(&mut self, mut targets: Vec<HostTarget>) -> Vec<HostTarget> {
        targets.retain(|target| {
            let HostTarget::Ip(ip) = target else { return true };
            let Err(forbidden) = check(*ip) else { return true };
            let message = format!(
                "{ip} is left out: it is {}; register the address of a pod or a load balancer",
                forbidden.as_str()
            );
            self.refuse(EventReason::AddressSkipped, message);
            false
        });
        targets
    }

    /// The backends that a field of the object lists. If they are all wrong, existing instances stay.
    fn of_texts(&mut self, field: &str, texts: &[Box<str>], ports: &[EndpointPort]) -> Backends {
        let mut targets = Vec::new();
        for text in texts {
            match HostTarget::parse(text) {
                Ok(target) => targets.push(target),
                Err(no_host) => {
                    let message = format!("{field} has {}, which {no_host}. It is left out", Excerpt(text));
                    self.refuse(EventReason::AddressSkipped, message);
                }
            }
        }
        let keep = targets.is_empty() && !texts.is_empty();
        Backends { keep, ..fixed(&self.admit(targets), ports) }
    }

    /// The backends of a host name.
    fn backends(&mut self, targets: Option<&[HostTarget]>, internal: bool) -> Result<Backends, String> {
        if let Some(targets) = targets {
            return Ok(Backends { keep: targets.is_empty(), ..fixed(&self.admit(targets.to_vec()), &[]) });
        }
        let (service, endpoints) = match self.origin {
            Origin::Service(service, endpoints) => (service, endpoints),
            Origin::Ingress(ingress) => {
                return Ok(self.of_texts(LOAD_BALANCER, &ingress.load_balancer, &[]));
            }
        };
        match &service.kind {
            _ if service.headless => Ok(pods(service, endpoints)),
            ServiceKind::LoadBalancer if !internal => {
                let addresses = service.external_ips.iter().copied().map(HostTarget::Ip).collect::<Vec<_>>();
                if addresses.is_empty() {
                    return Ok(self.of_texts(LOAD_BALANCER, &service.load_balancer, &ports(service)));
                }
                Ok(fixed(&self.admit(addresses), &ports(service)))
            }
            ServiceKind::ClusterIp | ServiceKind::LoadBalancer if internal => Ok(cluster_ips(service)),
            ServiceKind::ExternalName => {
                let addresses: Vec<_> = service.external_ips.iter().copied().map(HostTarget::Ip).collect();
                if addresses.is_empty() {
                    return Ok(self.of_texts("spec.externalName", service.external_name.as_slice(), &[]));
                }
                Ok(fixed(&self.admit(addresses), &[]))
            }
            ServiceKind::NodePort => Err(format!(
                "Service {} is of type NodePort, whose node addresses are not registered; make it headless or a LoadBalancer, \
                 or add the annotation external-dns.alpha.kubernetes.io/target",
                service.key
            )),
            _ => Err(format!(
                "Service {} has only cluster IPs, which cannot be reached from outside; use the annotation \
                 external-dns.alpha.kubernetes.io/internal-hostname to register them, make the Service headless to register \
                 its pods, or export it with a ServiceExport",
                service.key
            )),
        }
    }
}

/// The refusals as they are reported: sorted, each once.
fn kept(mut refusals: Vec<Refusal>) -> Vec<Refusal> {
    refusals.sort();
    refusals.dedup();
    refusals.truncate(MOST_REFUSALS);
    refusals
}

#[cfg(test)]
#[path = "plan_tests.rs"]
mod tests;
