//! The registries of a ClusterSet that has several, as YAML.

use std::{collections::BTreeMap, fs, str::FromStr};

use serde::Deserialize;

use super::values::http_url;

/// Maximum number of registries. Each one is read all the time, which costs money.
const MAX_REGISTRIES: usize = 16;

/// How to reach a registry. What is not said is that of the SDK's default chain.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RegistryPlace {
    /// AWS region.
    pub region: Option<String>,
    /// Role to assume for all calls.
    pub role_arn: Option<String>,
    /// External id for the role.
    pub external_id: Option<String>,
    /// Another address, such as an emulator.
    pub endpoint: Option<String>,
}

/// The registries of a ClusterSet, by name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Registries(BTreeMap<String, RegistryPlace>);

/// What is written in the YAML. Two registries of one name would silently be one in a map.
#[derive(Deserialize)]
#[serde(transparent)]
struct Written(#[serde(deserialize_with = "unique")] BTreeMap<String, RegistryPlace>);

fn unique<'de, D: serde::Deserializer<'de>>(from: D) -> Result<BTreeMap<String, RegistryPlace>, D::Error> {
    struct Visitor;
    impl<'de> serde::de::Visitor<'de> for Visitor {
        type Value = BTreeMap<String, RegistryPlace>;

        fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.write_str("registries by name, such as `eu: {region: eu-central-1}`")
        }

        fn visit_map<A: serde::de::MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
            let mut registries = BTreeMap::new();
            while let Some((name, place)) = map.next_entry::<String, RegistryPlace>()? {
                if let Err(why) = check(&name, &place) {
                    return Err(serde::de::Error::custom(why));
                }
                if registries.insert(name.clone(), place).is_some() {
                    return Err(serde::de::Error::custom(format!("there are two registries {name}")));
                }
            }
            Ok(registries)
        }
    }
    from.deserialize_map(Visitor)
}

/// What is wrong with a registry.
fn check(name: &str, place: &RegistryPlace) -> Result<(), String> {
    let letters = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    if name.is_empty() || name.len() > 32 || !name.chars().all(letters) {
        return Err(format!("the registry {name:?}: a name has up to 32 of the characters a-z, 0-9 and -"));
    }
    let RegistryPlace { region, role_arn, external_id, endpoint } = place;
    if region.as_ref().is_none_or(String::is_empty) {
        return Err(format!("registry {name}: it needs a region"));
    }
    if external_id.is_some() && role_arn.is_none() {
        return Err(format!("registry {name}: an externalId is for a roleArn, and there is none"));
    }
    endpoint
        .as_deref()
        .map_or(Ok(()), |url| http_url(url).map(drop))
        .map_err(|why| format!("registry {name}: endpoint: {why}"))
}

impl Registries {
    /// All registries: name, and how to reach it.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &RegistryPlace)> {
        self.0.iter().map(|(name, place)| (name.as_str(), place))
    }
}

impl FromStr for Registries {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let text = match text.strip_prefix('@') {
            Some(path) => fs::read_to_string(path).map_err(|error| format!("cannot read {path}: {error}"))?,
            None => text.to_owned(),
        };
        let Written(registries) = serde_yaml_ng::from_str(&text).map_err(|error| error.to_string())?;
        let (count, mut there) = (registries.len(), BTreeMap::new());
        if count == 0 || count > MAX_REGISTRIES {
            return Err(format!("there are {count} registries; there must be 1 to {MAX_REGISTRIES}"));
        }
        for (name, RegistryPlace { region, role_arn, endpoint, .. }) in &registries {
            if let Some(other) = there.insert((region, role_arn, endpoint), name) {
                return Err(format!("the registries {other} and {name} are the same place"));
            }
        }
        Ok(Self(registries))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn registries_have_names_and_places() {
        let text = "eu: {region: eu-central-1}\nus:\n  region: us-east-1\n  roleArn: arn:aws:iam::111122223333:role/reader\n  \
                    externalId: mcs\n";
        let registries: Registries = text.parse().unwrap();
        let names: Vec<_> = registries.iter().map(|(name, _)| name).collect();
        assert_eq!(names, ["eu", "us"]);
        let us = registries.iter().nth(1).unwrap().1;
        assert_eq!(us.role_arn.as_deref(), Some("arn:aws:iam::111122223333:role/reader"));
        let file = std::env::temp_dir().join(format!("registries-{}.yaml", std::process::id()));
        fs::write(&file, text).unwrap();
        assert_eq!(format!("@{}", file.display()).parse(), Ok(registries));
        fs::remove_file(&file).unwrap();
    }

    #[test]
    fn what_is_wrong_names_the_registry_or_the_line() {
        let region = "{region: eu-central-1}";
        for (text, expected) in [
            ("@/nowhere/registries.yaml".to_owned(), "cannot read /nowhere/registries.yaml"),
            ("{}".to_owned(), "there are 0 registries"),
            ("eu: [".to_owned(), "line"),
            (format!("eu: {region}\nus: {{regoin: x}}"), "line 2"),
            (format!("eu: {region}\neu: {region}"), "two registries eu"),
            (format!("eu: {region}\nalso: {region}"), "also and eu are the same place"),
            (format!("EU: {region}"), "\"EU\""),
            ("eu: {}".to_owned(), "registry eu: it needs a region"),
            ("eu: {region: x, externalId: y}".to_owned(), "externalId is for a roleArn"),
            ("eu: {region: x, endpoint: localhost}".to_owned(), "registry eu: endpoint: it must start with http://"),
            ((0..17).map(|n| format!("r{n}: {{region: r{n}}}")).collect::<Vec<_>>().join("\n"), "17 registries"),
        ] {
            let error = text.parse::<Registries>().unwrap_err();
            assert!(error.contains(expected), "{text}: {error}");
        }
    }
}
