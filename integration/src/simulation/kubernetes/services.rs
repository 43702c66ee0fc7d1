//! What the API server makes of Services: IP families and cluster IPs.

use std::{
    collections::BTreeSet,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
};

use serde_json::{Value, json};

use super::{refusal::Refusal, resources::Resource};

/// First addresses of the Service ranges, 10.96.0.0/12 and fd00:10:96::/112.
const V4: Ipv4Addr = Ipv4Addr::new(10, 96, 0, 1);
const V6: Ipv6Addr = Ipv6Addr::new(0xfd00, 0x10, 0x96, 0, 0, 0, 0, 1);

/// Gives out cluster IPs. An address that was freed is given out again only after all others.
#[derive(Debug)]
pub(super) struct Allocator {
    /// `IPv4`, `IPv6`, the first one being the default.
    families: Vec<String>,
    used: BTreeSet<IpAddr>,
    next: u32,
}

impl Allocator {
    pub(super) fn new(families: &[String]) -> Self {
        Self { families: families.to_vec(), used: BTreeSet::new(), next: 1 }
    }

    /// Sets families and cluster IPs. Returns the addresses that are new.
    ///
    /// # Errors
    /// A family that the cluster has not, an address that is not free, or a change that is not allowed.
    pub(super) fn allocate(&mut self, service: &mut Value, live: Option<&Value>) -> Result<Vec<IpAddr>, Refusal> {
        let name = service["metadata"]["name"].as_str().unwrap_or_default().to_owned();
        let invalid = |field: &str, why: &str| Refusal::invalid(Resource::named("services"), &name, field, why);
        if service["spec"]["type"] == "ExternalName" {
            return Ok(Vec::new());
        }
        let before = live.map(|live| texts(&live["spec"]["clusterIPs"])).unwrap_or_default();
        let mut wanted = texts(&service["spec"]["clusterIPs"]);
        if let Some(first) = service["spec"]["clusterIP"].as_str().filter(|first| !first.is_empty()) {
            match wanted.first_mut() {
                None => wanted.push(first.to_owned()),
                Some(listed) if listed != first => {
                    return Err(invalid("spec.clusterIPs[0]", "must match the value specified for clusterIP"));
                }
                Some(_) => {}
            }
        }
        if wanted.is_empty() {
            wanted.clone_from(&before);
        }
        if before.first().is_some_and(|first| wanted.first() != Some(first)) {
            return Err(invalid("spec.clusterIPs[0]", "field is immutable"));
        }
        let headless = wanted.first().is_some_and(|first| first == "None");
        let families = self.families_of(service, live, headless).map_err(|(field, why)| invalid(field, why))?;
        service["spec"]["ipFamilies"] = json!(families);
        if headless {
            service["spec"]["clusterIP"] = "None".into();
            service["spec"]["clusterIPs"] = json!(["None"]);
            return Ok(Vec::new());
        }
        wanted.truncate(families.len());
        let mut new = Vec::new();
        for text in &wanted {
            let address: IpAddr = text.parse().map_err(|_| invalid("spec.clusterIPs", "must be a valid IP address"))?;
            if !before.contains(text) {
                if !self.used.insert(address) {
                    for address in &new {
                        self.release(address);
                    }
                    return Err(invalid("spec.clusterIPs", "provided IP is already allocated"));
                }
                new.push(address);
            }
        }
        for family in families.iter().skip(wanted.len()) {
            let address = self.free_one(family == "IPv6");
            wanted.push(address.to_string());
            new.push(address);
        }
        service["spec"]["clusterIP"] = wanted[0].as_str().into();
        service["spec"]["clusterIPs"] = json!(wanted);
        Ok(new)
    }

    fn families_of(
        &self,
        service: &mut Value,
        live: Option<&Value>,
        headless: bool,
    ) -> Result<Vec<String>, (&'static str, &'static str)> {
        let spec = &mut service["spec"];
        let mut families = texts(&spec["ipFamilies"]);
        let before = live.map(|live| texts(&live["spec"]["ipFamilies"])).unwrap_or_default();
        if families.is_empty() && before.is_empty() {
            let asked = texts(&spec["clusterIPs"]).into_iter().filter_map(|text| text.parse::<IpAddr>().ok());
            families = asked.map(|ip| if ip.is_ipv6() { "IPv6" } else { "IPv4" }.to_owned()).collect();
        }
        if families.iter().any(|family| !self.families.contains(family)) {
            return Err(("spec.ipFamilies", "not configured on this cluster"));
        }
        if let (Some(new), Some(old)) = (families.first(), before.first())
            && new != old
        {
            return Err(("spec.ipFamilies[0]", "field is immutable"));
        }
        let selectorless = spec["selector"].as_object().is_none_or(serde_json::Map::is_empty);
        let policy = match spec["ipFamilyPolicy"].as_str() {
            Some(policy) => policy,
            None if headless && selectorless => "RequireDualStack",
            None if families.len() > 1 => "RequireDualStack",
            None => "SingleStack",
        }
        .to_owned();
        spec["ipFamilyPolicy"] = policy.as_str().into();
        if policy == "RequireDualStack" && self.families.len() < 2 && !(headless && selectorless) {
            return Err(("spec.ipFamilyPolicy", "this cluster is not configured for dual-stack services"));
        }
        if families.is_empty() {
            families = if before.is_empty() { self.families[..1].to_vec() } else { before };
        }
        if policy == "SingleStack" {
            families.truncate(1);
        } else if families.len() == 1 {
            families.extend(self.families.iter().find(|family| **family != families[0]).cloned());
        }
        Ok(families)
    }

    fn free_one(&mut self, v6: bool) -> IpAddr {
        loop {
            let n = self.next;
            // Wraps within the ranges.
            self.next = self.next % 0xfff0 + 1;
            let address: IpAddr = if v6 {
                Ipv6Addr::from_bits(V6.to_bits() + u128::from(n)).into()
            } else {
                Ipv4Addr::from_bits(V4.to_bits() + n).into()
            };
            if self.used.insert(address) {
                return address;
            }
        }
    }

    pub(super) fn release(&mut self, address: &IpAddr) {
        self.used.remove(address);
    }

    /// Of a Service that is gone.
    pub(super) fn free(&mut self, service: &Value) {
        for address in texts(&service["spec"]["clusterIPs"]).iter().filter_map(|text| text.parse().ok()) {
            self.release(&address);
        }
    }

    /// The addresses that a Service had and has not any more.
    pub(super) fn free_unused(&mut self, live: &Value, new: &Value) {
        let kept = texts(&new["spec"]["clusterIPs"]);
        let gone = texts(&live["spec"]["clusterIPs"]).into_iter().filter(|text| !kept.contains(text));
        for address in gone.filter_map(|text| text.parse().ok()) {
            self.release(&address);
        }
    }
}

fn texts(list: &Value) -> Vec<String> {
    list.as_array().into_iter().flatten().filter_map(Value::as_str).map(str::to_owned).collect()
}
