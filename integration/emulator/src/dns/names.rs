//! Names as Cloud Map has them and as DNS does.

use hickory_proto::rr::Name;

/// "Each label can be up to 63 bytes long" (Amazon Route 53, DNS domain name format).
const MAX_LABEL: usize = 63;

/// The text of a name as counters and fault rules have it: in lower case, without the dot at its end.
pub(crate) fn text(name: &Name) -> String {
    let mut text = name.to_ascii().to_ascii_lowercase();
    if text.len() > 1 && text.ends_with('.') {
        text.pop();
    }
    text
}

/// The zone of a namespace; none where its name is no name of DNS, as private ones need not be.
pub(crate) fn zone(namespace: &str) -> Option<Name> {
    let mut name = Name::from_ascii(namespace.trim_end_matches('.')).ok()?;
    name.set_fqdn(true);
    (!name.is_root()).then_some(name)
}

/// The name of a service within its zone, in lower case; empty for the zone itself. The pattern of service names allows
/// `.`, which can be nothing but that.
pub(crate) fn owner(service: &str) -> String {
    if service == "." { String::new() } else { service.to_ascii_lowercase() }
}

/// The name before the zone, in lower case; empty for the zone itself.
pub(crate) fn relative(name: &Name, zone: &Name) -> String {
    let before = usize::from(name.num_labels() - zone.num_labels());
    let labels: Vec<_> =
        name.iter().take(before).map(|label| String::from_utf8_lossy(label).to_ascii_lowercase()).collect();
    labels.join(".")
}

/// `<instance id>.<service>.<namespace>`: "service-hostname" of an SRV record (AWS API model, `DnsRecord`).
pub(crate) fn srv_target(instance: &str, service: &str, zone: &Name) -> Option<Name> {
    let labels = instance.split('.').chain(service.split('.').filter(|label| !label.is_empty()));
    let name = Name::from_labels(labels.map(str::as_bytes)).ok()?;
    name.append_domain(zone).ok()
}

/// Says why there can be no SRV target for an instance.
pub(crate) fn check_srv_target(instance: &str, service: &str, namespace: &str) -> Result<(), String> {
    if let Some(label) = instance.split('.').find(|label| label.is_empty() || label.len() > MAX_LABEL) {
        let bytes = label.len();
        return Err(format!("instance ID {instance} has a DNS label of {bytes} bytes; 1 to {MAX_LABEL} are allowed"));
    }
    match zone(namespace).map(|zone| srv_target(instance, service, &zone)) {
        Some(None) => Err(format!("{instance}.{service}.{namespace} is longer than a domain name can be")),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_lose_case_and_zone() {
        let zone = zone("Example.COM").unwrap();
        assert_eq!(relative(&Name::from_ascii("_http._TCP.Web.example.com.").unwrap(), &zone), "_http._tcp.web");
        assert_eq!(relative(&zone, &zone), "");
        assert_eq!(text(&Name::from_ascii("Web.Example.com.").unwrap()), "web.example.com");
        assert_eq!(srv_target("i-1", ".", &zone).unwrap().to_ascii(), "i-1.Example.COM.");
    }

    #[test]
    fn an_instance_id_is_a_label_of_its_srv_target_or_refused() {
        for good in ["a", "i-0.b", "a_b/c:d@e", "x".repeat(63).as_str()] {
            check_srv_target(good, "web", "internal").unwrap_or_else(|error| panic!("{good}: {error}"));
        }
        for bad in ["a..b", ".a", "x".repeat(64).as_str()] {
            assert!(check_srv_target(bad, "web", "internal").is_err(), "{bad}");
        }
        let long = [["y"; 60].concat(), ["z"; 60].concat()].join(".");
        assert!(check_srv_target(&"x".repeat(63), &long, &[["n"; 60].concat(), ["m"; 60].concat()].join(".")).is_err());
    }
}
