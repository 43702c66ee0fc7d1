//! How much of the registry the objects of one Kubernetes namespace may use. Tenants write exports and annotations; only
//! administrators write the flag and the annotation on the Namespace that say how much there is for them.

use std::{fmt, str::FromStr};

use api::names::ANNOTATION_QUOTA;

/// What objects use, or may use, of each resource.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Usage {
    /// Number of names: targets, and exports without one.
    pub names: usize,
    /// Number of records in the ledger.
    pub records: usize,
    /// Number of instances in all targets, including those of pods that are not ready.
    pub instances: usize,
    /// Bytes of these records: keys and values.
    pub bytes: usize,
}

/// A resource that has a limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Resource {
    /// [`Usage::names`].
    Names,
    /// [`Usage::records`].
    Records,
    /// [`Usage::instances`].
    Instances,
    /// [`Usage::bytes`].
    Bytes,
}

impl Resource {
    /// All resources.
    pub const ALL: [Self; 4] = [Self::Names, Self::Records, Self::Instances, Self::Bytes];

    /// Its name in the flag, the annotation and metrics.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Names => "names",
            Self::Records => "records",
            Self::Instances => "instances",
            Self::Bytes => "bytes",
        }
    }
}

impl Usage {
    /// No limit.
    pub const UNLIMITED: Self =
        Self { names: usize::MAX, records: usize::MAX, instances: usize::MAX, bytes: usize::MAX };

    /// The amount of one resource.
    pub const fn of(&self, resource: Resource) -> usize {
        match resource {
            Resource::Names => self.names,
            Resource::Records => self.records,
            Resource::Instances => self.instances,
            Resource::Bytes => self.bytes,
        }
    }

    const fn of_mut(&mut self, resource: Resource) -> &mut usize {
        match resource {
            Resource::Names => &mut self.names,
            Resource::Records => &mut self.records,
            Resource::Instances => &mut self.instances,
            Resource::Bytes => &mut self.bytes,
        }
    }

    pub(super) fn combined(mut self, other: Self, combine: impl Fn(usize, usize) -> usize) -> Self {
        for resource in Resource::ALL {
            *self.of_mut(resource) = combine(self.of(resource), other.of(resource));
        }
        self
    }

    /// Both together.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        self.combined(other, usize::saturating_add)
    }

    /// What is left without the other.
    #[must_use]
    pub fn minus(self, other: Self) -> Self {
        self.combined(other, usize::saturating_sub)
    }

    /// The smaller amount of each resource.
    #[must_use]
    pub fn least(self, other: Self) -> Self {
        self.combined(other, usize::min)
    }

    /// The first resource of which this is more than the limit.
    pub fn excess(&self, limit: &Self) -> Option<Resource> {
        Resource::ALL.into_iter().find(|resource| self.of(*resource) > limit.of(*resource))
    }
}

/// The limits of one Kubernetes namespace (`--namespace-quota`).
///
/// The defaults follow from the limits of a whole cluster, of which one namespace may take less than a tenth: 65,536 records
/// and 32 MiB. Kubernetes is tested with 3,000 pods in a namespace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Quota(pub Usage);

impl Default for Quota {
    fn default() -> Self {
        Self(Usage { names: 1_000, records: 5_000, instances: 10_000, bytes: 3 << 20 })
    }
}

impl fmt::Display for Quota {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (n, resource) in Resource::ALL.into_iter().enumerate() {
            let comma = if n == 0 { "" } else { "," };
            write!(f, "{comma}{}={}", resource.as_str(), self.0.of(resource))?;
        }
        Ok(())
    }
}

impl Quota {
    /// The limits with those that a text has instead: `<resource>=<number>`, separated by commas.
    ///
    /// # Errors
    /// The text is not of this form. The message says what is.
    pub fn with(mut self, text: &str) -> Result<Self, String> {
        let wrong = |item: &str| {
            format!("{item:?} is not one of names, records, instances and bytes with a number, such as \"names=2000\"")
        };
        for item in text.split(',').map(str::trim).filter(|item| !item.is_empty()) {
            let (name, number) = item.split_once('=').ok_or_else(|| wrong(item))?;
            let resource = Resource::ALL.into_iter().find(|resource| resource.as_str() == name.trim());
            let number = number.trim().parse().map_err(|_| wrong(item))?;
            *self.0.of_mut(resource.ok_or_else(|| wrong(item))?) = number;
        }
        Ok(self)
    }
}

impl FromStr for Quota {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Self::default().with(text)
    }
}

/// Why an object, or a part of it, is left out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Limit {
    /// Of its Kubernetes namespace.
    Namespace(Resource),
    /// Of the whole cluster: the ledger, or the record of a cluster in no ClusterSet, takes no more.
    Cluster,
}

/// What is left out of an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Extent {
    /// All of it.
    Whole,
    /// Some of its names.
    Names,
    /// Some of its endpoints.
    Endpoints,
}

/// An object that exceeds a limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Exceeded {
    /// Which limit.
    pub limit: Limit,
    /// What is left out.
    pub extent: Extent,
}

impl Exceeded {
    /// The text for the user, with the remedy. `quota` is that of the Kubernetes namespace.
    pub fn text(self, namespace: &str, quota: Quota) -> String {
        let what = match self.extent {
            Extent::Whole => "Not exported or registered",
            Extent::Names => "Some names are not registered",
            Extent::Endpoints => "Some endpoints are left out",
        };
        match self.limit {
            Limit::Namespace(resource) => {
                let (name, most) = (resource.as_str(), quota.0.of(resource));
                format!(
                    "{what}: this would exceed the quota of Kubernetes namespace {namespace}, which is {most} {name}. Remove \
                     exports, names or endpoints there, or ask an administrator for the annotation {ANNOTATION_QUOTA}: \
                     \"{name}=...\" with a larger number on the Namespace."
                )
            }
            Limit::Cluster => format!(
                "{what}: this cluster has no room for more records. What is there stays and is kept up to date. Remove exports or \
                 names, or move some to another cluster; then this one follows."
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quota_replaces_the_limits_that_it_names_and_keeps_the_others() {
        let quota = Quota::default().with("names=7, bytes = 100").unwrap();
        assert_eq!(quota.0, Usage { names: 7, bytes: 100, ..Quota::default().0 });
        assert_eq!(Quota::default().to_string().parse(), Ok(Quota::default()));
        assert_eq!(Quota::default().with(""), Ok(Quota::default()));
        for wrong in ["names", "name=3", "names=many", "names=-1", "names=1 records=2"] {
            let message = Quota::default().with(wrong).unwrap_err();
            assert!(message.contains("names=2000") && message.contains("records"), "{message}");
        }
    }

    #[test]
    fn the_text_about_a_limit_names_it_and_what_an_administrator_can_do() {
        let exceeded = Exceeded { limit: Limit::Namespace(Resource::Instances), extent: Extent::Endpoints };
        let text = exceeded.text("shop", Quota::default());
        for part in ["shop", "10000 instances", "cloudmap-mcs/quota", "Some endpoints"] {
            assert!(text.contains(part), "{text}");
        }
        let text = Exceeded { limit: Limit::Cluster, extent: Extent::Whole }.text("shop", Quota::default());
        assert!(text.contains("no room for more records") && !text.contains("quota"), "{text}");
    }

    #[test]
    fn the_default_quota_has_room_for_a_full_set_of_exports_and_is_a_small_part_of_the_ledger() {
        let Quota(Usage { names, records, instances, bytes }) = Quota::default();
        // An export, its claim, and the chunks of the endpoints.
        assert!(2 * names + instances / 16 + names <= records);
        assert!(records * 10 < ledger::limits::MAX_PAIRS && bytes * 10 < ledger::limits::MAX_STATE_BYTES);
    }
}
