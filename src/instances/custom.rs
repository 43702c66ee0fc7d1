//! Attributes of users on their instances: from the annotation on the object, and from the pod labels that the operator
//! selected.

use std::{collections::BTreeMap, net::IpAddr, sync::Arc};

use super::attributes::Unfit;
use api::names::ANNOTATION_ATTRIBUTES;
use cloudmap::{
    Attributes,
    attributes::{MAX_VALUE, check_name},
};
use model::{Endpoint, Pairs};

/// Additional attributes for the instances of a Service.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Custom {
    /// Attributes for each instance.
    pub service: Attributes,
    /// Pod labels copied onto the pods' instances, indexed by pod IP. The Service's attributes take precedence.
    pub pods: Arc<ByAddress>,
}

/// Attributes by pod IP.
pub type ByAddress = BTreeMap<IpAddr, Arc<Attributes>>;

impl Custom {
    /// The attributes of one endpoint.
    pub(super) fn of(&self, endpoint: &Endpoint) -> Attributes {
        let addresses = [endpoint.ipv4.map(IpAddr::from), endpoint.ipv6.map(IpAddr::from)];
        let pod = addresses.into_iter().flatten().find_map(|address| self.pods.get(&address));
        let mut attributes = pod.map(|pod| (**pod).clone()).unwrap_or_default();
        attributes.extend(self.service.clone());
        attributes
    }
}

/// Makes instances with the attributes of users, or else without: one attribute too many must not cost the name its
/// instances. `None` if they are too large even without. The second value is the complaint, which says what happens
/// meanwhile.
pub fn fit<T>(custom: &Custom, make: impl Fn(&Custom) -> Result<T, Unfit>) -> (Option<T>, Option<String>) {
    let unfit = match make(custom) {
        Ok(made) => return (Some(made), None),
        Err(unfit) => unfit,
    };
    let made = make(&Custom::default()).ok();
    let meanwhile = match made {
        Some(_) => "existing instances stay as they are, and new instances have no attributes of your own",
        None => "existing instances stay as they are",
    };
    (made, Some(format!("{unfit}; until then {meanwhile}")))
}

/// Parses the annotation: `key=value` pairs separated by commas or lines, or a JSON object of strings.
///
/// Pairs that cannot be attributes are left out; the second value says which, and why.
pub fn read(annotations: &Pairs) -> (Attributes, Vec<String>) {
    let Some(text) = annotations.get(ANNOTATION_ATTRIBUTES).map(str::trim) else {
        return Default::default();
    };
    let complain = |what: String| format!("{ANNOTATION_ATTRIBUTES}: {what}");
    let pairs: Vec<(String, String)> = if text.starts_with('{') {
        match serde_json::from_str::<BTreeMap<String, String>>(text) {
            Ok(pairs) => pairs.into_iter().collect(),
            Err(error) => {
                return (Attributes::new(), vec![complain(format!("it is not a JSON object of strings ({error})"))]);
            }
        }
    } else {
        let pair = |item: &str| match item.split_once('=') {
            Some((key, value)) => (key.trim_end().to_owned(), value.trim().to_owned()),
            // It is refused below because of its spaces.
            None => (format!("{item} (write key=value)"), String::new()),
        };
        text.split([',', '\n']).map(str::trim).filter(|item| !item.is_empty()).map(pair).collect()
    };
    let (mut attributes, mut complaints) = (Attributes::new(), Vec::new());
    for (key, value) in pairs {
        match check(&key, &value) {
            Ok(()) => {
                attributes.insert(key, value);
            }
            Err(rule) => complaints.push(complain(format!("{key:?} is left out: {rule}"))),
        }
    }
    (attributes, complaints)
}

fn check(key: &str, value: &str) -> Result<(), &'static str> {
    check_name(key)?;
    let printable = value.bytes().all(|c| c.is_ascii_graphic() || c == b' ' || c == b'\t');
    if value.len() > MAX_VALUE || !printable || value.starts_with([' ', '\t']) {
        return Err("a value has at most 1,024 printable ASCII characters and does not begin with a space");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn annotated(text: &str) -> (Attributes, Vec<String>) {
        read(&[(ANNOTATION_ATTRIBUTES, text)].into_iter().collect())
    }

    fn pairs(pairs: &[(&str, &str)]) -> Attributes {
        pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
    }

    #[test]
    fn a_list_lines_and_json_are_equivalent() {
        let expected = pairs(&[("stage", "canary"), ("team", "web shop"), ("empty", "")]);
        for text in [
            "stage=canary, team=web shop,empty=",
            "stage = canary\nteam=web shop\n empty=\n",
            r#"{"stage": "canary", "team": "web shop", "empty": ""}"#,
        ] {
            assert_eq!(annotated(text), (expected.clone(), vec![]), "{text}");
        }
        assert_eq!(read(&Pairs::default()), Default::default());
        assert_eq!(annotated(r#"{"list": "a,b=c"}"#).0, pairs(&[("list", "a,b=c")]));
    }

    #[test]
    fn invalid_and_reserved_pairs_are_left_out_and_named_and_the_rest_stays() {
        let long = format!("long={}", "x".repeat(1025));
        for (wrong, word) in [
            ("AWS_INSTANCE_IPV4=10.0.0.1", "reserved"),
            ("aws_instance_port=1", "reserved"),
            ("ECS_CLUSTER_NAME=x", "reserved"),
            ("CLOUDMAP_MCS_CLUSTER_UID=x", "reserved"),
            ("PORT_http=80", "reserved"),
            ("REGION=x", "reserved"),
            ("CLUSTERSET_ID=x", "reserved"),
            ("no value", "key=value"),
            ("=x", "1 to 255"),
            ("a b=x", "no spaces"),
            ("grün=x", "ASCII"),
            ("umlaut=grün", "ASCII"),
            (long.as_str(), "1,024"),
        ] {
            let (attributes, complaints) = annotated(&format!("{wrong},team=web"));
            assert_eq!(attributes, pairs(&[("team", "web")]), "{wrong}");
            assert!(complaints.len() == 1 && complaints[0].contains(word), "{wrong}: {complaints:?}");
        }
        let (attributes, complaints) = annotated(r#"{"team": 7}"#);
        assert!(attributes.is_empty() && complaints[0].contains("JSON"), "{complaints:?}");
    }

    #[test]
    fn a_pod_is_found_by_either_address_and_the_services_attributes_win() {
        let mut endpoint = model::fixtures::mk_endpoint([10, 0, 0, 1]);
        endpoint.ipv6 = "fd00::1".parse().ok();
        let pod = Arc::new(pairs(&[("version", "2"), ("team", "pod")]));
        for address in ["10.0.0.1", "fd00::1"] {
            let pods = Arc::new([(address.parse().unwrap(), Arc::clone(&pod))].into());
            let custom = Custom { service: pairs(&[("team", "web")]), pods };
            assert_eq!(custom.of(&endpoint), pairs(&[("version", "2"), ("team", "web")]));
        }
    }
}
