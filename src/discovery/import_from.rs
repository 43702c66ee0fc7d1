//! The Cloud Map namespaces from which a Kubernetes namespace imports.

use std::{str::FromStr, sync::Arc};

use cloudmap::NamespaceArn;

/// Placeholder for the Kubernetes namespace's own name.
const OWN_NAME: &str = "{namespace}";
/// Maximum length of the name of a Cloud Map namespace.
const MAX_NAME: usize = 1024;

/// Names, ids or ARNs of Cloud Map namespaces, separated by commas. `{namespace}` stands for the name of the Kubernetes
/// namespace. May be empty. A name or an id is one of the own account; only an ARN names what another account shares
/// (AWS RAM).
///
/// This is the value of the annotation `cloudmap.controller/import-from`, and of the flag `--import-from` for
/// namespaces without the annotation.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ImportFrom(Vec<String>);

/// A list of Cloud Map namespaces is not valid.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{name:?} cannot be a Cloud Map namespace: write names separated by commas, each of at most 1,024 printable characters \
     without spaces, such as internal or shop.internal or {{namespace}}, or ARNs of namespaces, such as \
     arn:aws:servicediscovery:eu-central-1:111122223333:namespace/ns-abcdefghij123456"
)]
pub struct InvalidImportFrom {
    name: String,
}

impl ImportFrom {
    /// The Cloud Map namespaces for a Kubernetes namespace, each once, in their written order.
    pub fn in_namespace(&self, namespace: &str) -> Vec<Arc<str>> {
        let mut names: Vec<Arc<str>> = Vec::new();
        for name in &self.0 {
            let name = name.replace(OWN_NAME, namespace);
            if !names.iter().any(|there| **there == *name) {
                names.push(name.into());
            }
        }
        names
    }
}

impl FromStr for ImportFrom {
    type Err = InvalidImportFrom;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if text.trim().is_empty() {
            return Ok(Self::default());
        }
        let name = |name: &str| {
            let name = name.trim();
            let printable = (1..=MAX_NAME).contains(&name.len()) && name.bytes().all(|c| c.is_ascii_graphic());
            let of_its_kind = !NamespaceArn::is_meant(name) || NamespaceArn::parse(name).is_some();
            if printable && of_its_kind {
                Ok(name.to_owned())
            } else {
                Err(InvalidImportFrom { name: name.to_owned() })
            }
        };
        Ok(Self(text.split(',').map(name).collect::<Result<_, _>>()?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(text: &str) -> Vec<String> {
        let names = text.parse::<ImportFrom>().unwrap().in_namespace("shop");
        names.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn accepts_several_names_and_the_placeholder() {
        assert_eq!(names("internal"), ["internal"]);
        assert_eq!(names(" internal , ns-abc,internal"), ["internal", "ns-abc"]);
        assert_eq!(names("{namespace},{namespace}.internal"), ["shop", "shop.internal"]);
        assert_eq!(names(""), [""; 0], "an empty annotation opts out");
        let arn = "arn:aws-eusc:servicediscovery:eusc-de-east-1:111122223333:namespace/ns-abc";
        assert_eq!(names(&format!("ns-abc, {arn}")), ["ns-abc", arn]);
    }

    #[test]
    fn reports_invalid_names() {
        let other = "arn:aws:servicediscovery:eu-central-1:111122223333:service/srv-abc";
        for text in ["a,,b", "a b", "é", ",", &"a".repeat(1025), other, "arn:{namespace}", "arn:"] {
            let error = text.parse::<ImportFrom>().unwrap_err().to_string();
            assert!(error.contains("separated by commas") && error.contains("{namespace}"), "{error}");
        }
    }
}
