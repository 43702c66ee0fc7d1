//! The name of the derived Service, and which derived Services of an import there are.

use std::{str::FromStr, sync::Arc};

use sha2::{Digest, Sha256};

use api::names::ANNOTATION_DERIVED_SERVICE;
use cluster::objects::{Service, ServiceImport};
use model::{ServiceKey, ServiceType};

/// Stands for the name of the ServiceImport in a template.
const PLACEHOLDER: &str = "{name}";
/// Maximum length of the name of a Service (RFC 1035, as the API server requires it).
const MAX_NAME: usize = 63;

/// How derived Services are named.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum DerivedNaming {
    /// `derived-` and a hash. KEP-1645 leaves the name open; mcs-api and other implementations use this one.
    #[default]
    Hash,
    /// The name of the ServiceImport between two texts. People can guess such a name, and every DNS server of the
    /// cluster answers for it.
    Template {
        /// What comes before the name.
        prefix: Box<str>,
        /// What comes after it.
        suffix: Box<str>,
    },
}

/// A template for names of derived Services is not valid.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{template:?} cannot name derived Services: write {{name}} once, with lower-case letters, digits and '-' before or after \
     it, such as {{name}}-global; a name begins with a letter, and ends with a letter or a digit"
)]
pub struct InvalidDerivedName {
    template: String,
}

impl FromStr for DerivedNaming {
    type Err = InvalidDerivedName;

    fn from_str(template: &str) -> Result<Self, Self::Err> {
        let naming = template.split_once(PLACEHOLDER).map(|(prefix, suffix)| {
            let named = format!("{prefix}x{suffix}");
            (is_service_name(&named) && named.len() > 1)
                .then(|| Self::Template { prefix: prefix.into(), suffix: suffix.into() })
        });
        naming.flatten().ok_or_else(|| InvalidDerivedName { template: template.to_owned() })
    }
}

impl DerivedNaming {
    /// The name of the derived Service of an import. If it is not the one that the template gives, also why. `foreign`
    /// returns whether a Service with that name exists that is not this import's.
    pub fn name(&self, key: &ServiceKey, foreign: impl FnOnce(&str) -> bool) -> (Arc<str>, Option<String>) {
        let Self::Template { prefix, suffix } = self else { return (hashed(key).into(), None) };
        let name = format!("{prefix}{}{suffix}", key.name);
        let why = if name.len() > MAX_NAME {
            format!("{name} cannot be the name of a Service: it has more than {MAX_NAME} characters")
        } else if !is_service_name(&name) {
            // Services in Cloud Map may have such names.
            format!("{name} cannot be the name of a Service: it does not begin with a letter")
        } else if foreign(&name) {
            format!("Service {}/{name} was not created by cloudmap-mcs for this import; delete it", key.namespace)
        } else {
            return (name.into(), None);
        };
        let instead = hashed(key);
        (
            instead.clone().into(),
            Some(format!("The derived Service has the name {instead} instead of that of --derived-name: {why}.")),
        )
    }

    /// Whether headless imports have a derived Service as well. DNS servers that know the multicluster zone do not need
    /// it, but others answer only for Services.
    pub const fn serves(&self, service_type: ServiceType) -> bool {
        matches!((self, service_type), (Self::Template { .. }, _) | (_, ServiceType::ClusterSetIp))
    }

    /// The name of the import whose derived Service would have this name by the template.
    pub fn import_of<'a>(&self, service: &'a str) -> Option<&'a str> {
        let Self::Template { prefix, suffix } = self else { return None };
        service.strip_prefix(&**prefix)?.strip_suffix(&**suffix).filter(|name| !name.is_empty())
    }
}

/// `derived-` and the first ten characters of `base32hex(sha256("<ns>/<name>"))`.
pub fn hashed(key: &ServiceKey) -> String {
    const ALPHABET: &[u8; 32] = b"0123456789abcdefghijklmnopqrstuv";
    let digest = Sha256::digest(key.to_string());
    let bits = digest[..8].iter().fold(0u64, |bits, byte| (bits << 8) | u64::from(*byte));
    let hash: String = (0..10).map(|n| char::from(ALPHABET[(bits >> (59 - 5 * n)) as usize & 31])).collect();
    format!("derived-{hash}")
}

fn is_service_name(name: &str) -> bool {
    name.len() <= MAX_NAME
        && name.starts_with(|c: char| c.is_ascii_lowercase())
        && !name.ends_with('-')
        && name.bytes().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == b'-')
}

/// Whether an import of this project shows an address of a Service. A headless one has none: the import must name it, and
/// it the import.
pub fn is_shown(service: &Service, import: Option<&ServiceImport>) -> bool {
    let Some(import) = import.filter(|import| import.managed) else { return false };
    if service.headless && import.spec.headless {
        return import.annotations.get(ANNOTATION_DERIVED_SERVICE) == Some(&*service.key.name)
            && service.service_import.as_deref() == Some(&*import.key.name);
    }
    service.cluster_ips.iter().any(|ip| import.spec.ips.contains(ip))
}

/// The derived Services of one import.
#[derive(Debug, Clone, Default)]
pub struct DerivedServices {
    /// The desired name.
    pub name: Arc<str>,
    /// Whether a headless import has one as well.
    pub of_headless: bool,
    /// The Service with that name, no matter who created it.
    pub there: Option<Arc<Service>>,
    /// This project's Services for the import that have other names: the naming has changed.
    pub former: Vec<Arc<Service>>,
}

impl DerivedServices {
    /// Whether an import of this type has a derived Service.
    pub fn serves(&self, service_type: ServiceType) -> bool {
        self.of_headless || service_type == ServiceType::ClusterSetIp
    }

    /// This project's Services.
    pub fn ours(&self) -> impl Iterator<Item = &Arc<Service>> {
        self.there.iter().filter(|service| service.managed).chain(&self.former)
    }

    /// The Service with the desired name, if it is not (any longer) this project's, but the import shows it ([`is_shown`]).
    /// Somebody took our label away, and clients use the Service as before.
    pub fn unmarked(&self, import: Option<&ServiceImport>) -> Option<&Arc<Service>> {
        self.there.as_ref().filter(|service| !service.managed && is_shown(service, import))
    }

    /// Whether there is a Service by which clients may find the endpoints of the import.
    pub fn is_used(&self, import: Option<&ServiceImport>) -> bool {
        self.ours().next().is_some() || self.unmarked(import).is_some()
    }

    /// The Service to which the import sends clients: the one whose address it shows, or that it names. If it names none
    /// that there is, a former one.
    pub fn shown(&self, import: Option<&ServiceImport>) -> Option<&Arc<Service>> {
        let named = import.and_then(|import| import.annotations.get(ANNOTATION_DERIVED_SERVICE));
        let shown = || self.ours().find(|service| named == Some(&*service.key.name));
        self.unmarked(import).or_else(shown).or_else(|| self.former.first()).or_else(|| self.ours().next())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{derived_service, objects::tests::mk_service, plan::tests::mk_import};
    use api::names::LABEL_MANAGED_BY;
    use cluster::cache::Narrow;
    use model::ClusterSetService;

    fn global() -> DerivedNaming {
        "{name}-global".parse().unwrap()
    }

    #[test]
    fn the_hash_is_that_of_other_implementations() {
        assert_eq!(hashed(&ServiceKey::new("ns", "svc")), "derived-eoric1rhri");
        assert_eq!(DerivedNaming::Hash.name(&ServiceKey::new("ns", "svc"), |_| true).0, "derived-eoric1rhri".into());
    }

    #[test]
    fn a_template_names_the_service_by_its_import() {
        let key = ServiceKey::new("shop", "payments");
        assert_eq!(global().name(&key, |_| false), ("payments-global".into(), None));
        assert_eq!("all-{name}".parse::<DerivedNaming>().unwrap().name(&key, |_| false).0, "all-payments".into());
        assert_eq!(global().import_of("payments-global"), Some("payments"));
        assert_eq!(global().import_of("-global"), None);
        assert_eq!(DerivedNaming::Hash.import_of("payments-global"), None);
        assert!(global().serves(ServiceType::Headless) && !DerivedNaming::Hash.serves(ServiceType::Headless));
    }

    #[test]
    fn a_name_that_is_taken_or_too_long_falls_back_to_the_hash_and_says_why() {
        let key = ServiceKey::new("ns", "svc");
        let (name, why) = global().name(&key, |name| name == "svc-global");
        assert_eq!(&*name, "derived-eoric1rhri");
        assert!(why.unwrap().contains("ns/svc-global was not created by cloudmap-mcs"));
        let (name, why) = global().name(&ServiceKey::new("ns", "x".repeat(57)), |_| false);
        assert!(name.starts_with("derived-") && why.unwrap().contains("more than 63 characters"));
        assert_eq!(global().name(&ServiceKey::new("ns", "x".repeat(56)), |_| false).1, None);
        let (name, why) = global().name(&ServiceKey::new("ns", "3scale"), |_| false);
        assert!(name.starts_with("derived-") && why.unwrap().contains("does not begin with a letter"));
    }

    #[test]
    fn a_headless_service_that_lost_our_label_is_known_by_its_import_and_a_foreign_one_is_not() {
        let headless = ClusterSetService { service_type: ServiceType::Headless, ..mk_service() };
        let mut object = derived_service(&ServiceKey::new("ns", "svc"), "svc-global", &headless);
        object.metadata.labels.as_mut().unwrap().remove(LABEL_MANAGED_BY);
        let service = Service::narrow(object).unwrap();
        let mut import = mk_import(true, &["there"]);
        import.spec.headless = true;
        assert!(!is_shown(&service, Some(&import)), "the import does not name it");
        import.annotations = [(ANNOTATION_DERIVED_SERVICE, "svc-global")].into_iter().collect();
        assert!(is_shown(&service, Some(&import)));
        assert!(!is_shown(&Service { service_import: None, ..service }, Some(&import)), "it has no label of ours");
    }

    #[test]
    fn refuses_templates_that_cannot_work() {
        for bad in [
            "",
            "global",
            "{name}",
            "{name}{name}-x",
            "{name}-",
            "-{name}",
            "1{name}",
            "{name}.x",
            "{Name}-x",
            "{name}-X",
        ] {
            let error = bad.parse::<DerivedNaming>().unwrap_err().to_string();
            assert!(error.contains("{name}-global"), "{error}");
        }
        assert!(format!("{{name}}-{}", "x".repeat(62)).parse::<DerivedNaming>().is_err(), "no name fits");
    }
}
