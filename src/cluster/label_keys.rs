//! The labels of pods that the operator selected.

use std::{collections::BTreeSet, str::FromStr};

use cloudmap::attributes::check_name;
use model::labels::is_label_key;

/// Keys of pod labels that become attributes of instances (`--instance-labels`).
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LabelKeys(pub BTreeSet<Box<str>>);

impl FromStr for LabelKeys {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let keys: BTreeSet<Box<str>> =
            text.split(',').map(str::trim).filter(|key| !key.is_empty()).map(Box::from).collect();
        for key in &keys {
            check_name(key).map_err(|rule| format!("{key:?} cannot be an attribute: {rule}"))?;
            if !is_label_key(key) {
                return Err(format!("{key:?} is not the key of a label"));
            }
        }
        if keys.is_empty() {
            return Err("it must be a list of label keys, separated by commas".to_owned());
        }
        Ok(Self(keys))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_label_must_be_named() {
        let keys = "version, app.kubernetes.io/name".parse::<LabelKeys>().unwrap();
        assert_eq!(keys.0.iter().map(|key| &**key).collect::<Vec<_>>(), ["app.kubernetes.io/name", "version"]);
        for (wrong, word) in [("", "separated by commas"), ("REGION", "reserved"), ("a/b/c", "not the key of a label")]
        {
            let error = wrong.parse::<LabelKeys>().unwrap_err();
            assert!(error.contains(word), "{error}");
        }
    }
}
