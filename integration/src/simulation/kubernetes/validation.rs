//! What the API server refuses in an object, and what it fills in: as much of it as this project can come upon.

use std::{io, net::IpAddr};

use serde_json::{Value, json};

use super::{refusal::Refusal, resources::Resource, store::Key};

/// Fields that older versions of Kubernetes do not have.
///
/// # Errors
/// As server-side apply answers, with a 500.
pub(super) fn known_fields(config: &Value, resource: &Resource, key: &Key, node_hints: bool) -> Result<(), Refusal> {
    if resource.plural != "endpointslices" || node_hints {
        return Ok(());
    }
    let endpoints = config["endpoints"].as_array().into_iter().flatten();
    for (index, endpoint) in endpoints.enumerate() {
        if endpoint["hints"].get("forNodes").is_some() {
            let field = format!(".endpoints[{index}].hints.forNodes");
            return Err(Refusal::unknown_field(&format!("{}/{}", key.0, key.1), resource, &field));
        }
    }
    Ok(())
}

fn default(map: &mut Value, field: &str, value: &Value) {
    if map[field].is_null() {
        map[field] = value.clone();
    }
}

/// The defaults that readers can see.
pub(super) fn set_defaults(object: &mut Value, resource: &Resource) {
    match resource.plural {
        "services" => {
            let spec = &mut object["spec"];
            default(spec, "type", &"ClusterIP".into());
            default(spec, "sessionAffinity", &"None".into());
            default(spec, "internalTrafficPolicy", &"Cluster".into());
            for port in spec["ports"].as_array_mut().into_iter().flatten() {
                default(port, "protocol", &"TCP".into());
                let number = port["port"].clone();
                default(port, "targetPort", &number);
            }
        }
        "endpointslices" => {
            for port in object["ports"].as_array_mut().into_iter().flatten() {
                default(port, "name", &"".into());
                default(port, "protocol", &"TCP".into());
            }
        }
        "namespaces" => {
            if object["status"].is_null() {
                object["status"] = json!({"phase": "Active"});
            }
            let name = object["metadata"]["name"].clone();
            object["metadata"]["labels"]["kubernetes.io/metadata.name"] = name;
        }
        _ => {}
    }
}

/// Longest `metadata.name` of most kinds, and of those that are DNS labels.
const MAX_NAME: usize = 253;
const MAX_LABEL: usize = 63;

/// Bytes of all annotations of an object.
const MAX_ANNOTATIONS: usize = 256 * 1024;

/// Bytes of an object: etcd takes 1.5 MiB, a ConfigMap has 1 MiB.
const MAX_OBJECT: usize = 3 * 512 * 1024;
const MAX_DATA: usize = 1024 * 1024;

/// # Errors
/// What the API server would refuse.
pub(super) fn check(object: &Value, live: Option<&Value>, resource: &Resource) -> Result<(), Refusal> {
    let name = object["metadata"]["name"].as_str().unwrap_or_default();
    let invalid = |field: &str, why: &str| Err(Refusal::invalid(resource, name, field, why));
    let longest = if matches!(resource.plural, "services" | "namespaces") { MAX_LABEL } else { MAX_NAME };
    if name.is_empty()
        || name.len() > longest
        || !name.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || "-.".contains(c))
    {
        return invalid(
            "metadata.name",
            "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.'",
        );
    }
    for (label, value) in object["metadata"]["labels"].as_object().into_iter().flatten() {
        let value = value.as_str().unwrap_or_default();
        let edges = |c: Option<char>| c.is_none_or(|c| c.is_ascii_alphanumeric());
        let inner = value.chars().all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c));
        if value.len() > MAX_LABEL || !inner || !edges(value.chars().next()) || !edges(value.chars().last()) {
            return invalid("metadata.labels", &format!("{label}: {value:?} is no valid label value"));
        }
    }
    let annotations = object["metadata"]["annotations"].as_object().into_iter().flatten();
    if annotations.map(|(name, value)| name.len() + value.as_str().map_or(0, str::len)).sum::<usize>() > MAX_ANNOTATIONS
    {
        return invalid("metadata.annotations", "Too long: must have at most 262144 bytes");
    }
    if size(object) > MAX_OBJECT {
        return Err(Refusal::bad_request("etcdserver: request is too large"));
    }
    match resource.plural {
        "services" => check_service(object, &invalid),
        "endpointslices" => check_slice(object, live, &invalid),
        "configmaps" if size(&object["data"]) > MAX_DATA => invalid("", "Too long: may not be more than 1048576 bytes"),
        "events" if object["note"].as_str().map_or(0, str::len) > 1024 => {
            invalid("note", "can have at most 1024 characters")
        }
        "events" if object["regarding"]["namespace"] != object["metadata"]["namespace"] => {
            invalid("regarding.namespace", "does not match event.namespace")
        }
        _ => Ok(()),
    }
}

/// Bytes as JSON.
fn size(value: &Value) -> usize {
    struct Count(usize);
    impl io::Write for Count {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0 += bytes.len();
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
    let mut count = Count(0);
    serde_json::to_writer(&mut count, value).map_or(usize::MAX, |()| count.0)
}

type Invalid<'a> = &'a dyn Fn(&str, &str) -> Result<(), Refusal>;

fn check_service(service: &Value, invalid: Invalid<'_>) -> Result<(), Refusal> {
    let spec = &service["spec"];
    let ports: &[Value] = spec["ports"].as_array().map_or(&[], Vec::as_slice);
    if ports.is_empty() && spec["clusterIP"] != "None" && spec["type"] != "ExternalName" {
        return invalid("spec.ports", "Required value");
    }
    for (index, port) in ports.iter().enumerate() {
        let number = port["port"].as_u64().unwrap_or(0);
        if !(1..=65535).contains(&number) {
            return invalid("spec.ports.port", "must be between 1 and 65535, inclusive");
        }
        let name = port["name"].as_str().unwrap_or_default();
        if name.is_empty() && ports.len() > 1 {
            return invalid("spec.ports.name", "Required value");
        }
        let twin = |other: &Value| {
            other["name"].as_str().unwrap_or_default() == name
                || (&other["port"], &other["protocol"]) == (&port["port"], &port["protocol"])
        };
        if ports[..index].iter().any(twin) {
            return invalid("spec.ports", "Duplicate value");
        }
    }
    Ok(())
}

fn check_slice(slice: &Value, live: Option<&Value>, invalid: Invalid<'_>) -> Result<(), Refusal> {
    let kind = slice["addressType"].as_str().unwrap_or_default();
    if !["IPv4", "IPv6", "FQDN"].contains(&kind) {
        return invalid("addressType", "Unsupported value");
    }
    if live.is_some_and(|live| live["addressType"] != kind) {
        return invalid("addressType", "field is immutable");
    }
    let endpoints: &[Value] = slice["endpoints"].as_array().map_or(&[], Vec::as_slice);
    if endpoints.len() > 1000 {
        return invalid("endpoints", "Too many: must have at most 1000 items");
    }
    for endpoint in endpoints {
        let addresses: &[Value] = endpoint["addresses"].as_array().map_or(&[], Vec::as_slice);
        if addresses.is_empty() || addresses.len() > 100 {
            return invalid("endpoints.addresses", "must contain between 1 and 100 addresses");
        }
        for address in addresses.iter().map(|address| address.as_str().unwrap_or_default()) {
            let parsed = address.parse::<IpAddr>();
            let fits = match (kind, &parsed) {
                ("IPv4", Ok(IpAddr::V4(ip))) => {
                    !ip.is_loopback() && !ip.is_unspecified() && !ip.is_link_local() && !ip.is_multicast()
                }
                ("IPv6", Ok(IpAddr::V6(ip))) => {
                    !ip.is_loopback() && !ip.is_unspecified() && !ip.is_unicast_link_local() && !ip.is_multicast()
                }
                ("FQDN", _) => !address.is_empty(),
                _ => false,
            };
            if !fits {
                return invalid("endpoints.addresses", &format!("Invalid value: {address:?}"));
            }
        }
    }
    let ports: &[Value] = slice["ports"].as_array().map_or(&[], Vec::as_slice);
    if ports.len() > 100 {
        return invalid("ports", "Too many: must have at most 100 items");
    }
    for (index, port) in ports.iter().enumerate() {
        if ports[..index].iter().any(|other| other["name"] == port["name"]) {
            return invalid("ports.name", "Duplicate value");
        }
    }
    Ok(())
}
