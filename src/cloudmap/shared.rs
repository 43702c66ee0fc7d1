//! Names of namespaces that another account may own and share with this one (AWS RAM).
//!
//! Calls take the ARN of such a namespace, and the ARNs of its services, in place of their ids. `DiscoverInstances`
//! takes the owner's account beside the name. Whoever asks the port by ARN gets ARNs as [`Namespace::id`] and
//! [`Service::id`](super::Service::id), so that what it asks next is about the same namespace. An ARN of the own
//! account is as good as the id.

use super::Namespace;

/// With what ARNs begin. The name of no namespace does.
const ARN: &str = "arn:";
/// Maximum length of the id of a namespace.
const MAX_ID: usize = 64;

/// The ARN of a namespace, such as `arn:aws:servicediscovery:eu-central-1:111122223333:namespace/ns-abcdefghij123456`,
/// in any partition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NamespaceArn<'a> {
    text: &'a str,
    /// All before `:namespace/`.
    registry: &'a str,
    owner: &'a str,
    id: &'a str,
}

impl<'a> NamespaceArn<'a> {
    /// `None` if it is not the ARN of a namespace.
    pub fn parse(text: &'a str) -> Option<Self> {
        let (registry, id) = text.split_once(":namespace/")?;
        let parts: Vec<&str> = registry.split(':').collect();
        let &["arn", partition, "servicediscovery", region, owner] = parts.as_slice() else { return None };
        let of = |text: &str, also: fn(u8) -> bool| {
            !text.is_empty() && text.bytes().all(|c| c.is_ascii_lowercase() || also(c))
        };
        let is_partition = partition == "aws" || partition.starts_with("aws-") && of(partition, |c| c == b'-');
        let is_region = of(region, |c| c.is_ascii_digit() || c == b'-');
        let is_account = owner.len() == 12 && owner.bytes().all(|c| c.is_ascii_digit());
        let is_id = id.len() <= MAX_ID && id.strip_prefix("ns-").is_some_and(|id| of(id, |c| c.is_ascii_digit()));
        (is_partition && is_region && is_account && is_id).then_some(Self { text, registry, owner, id })
    }

    /// Whether a text is meant as an ARN. It may be none of a namespace.
    pub fn is_meant(text: &str) -> bool {
        text.starts_with(ARN)
    }

    /// The text.
    pub const fn as_str(&self) -> &'a str {
        self.text
    }

    /// The account that owns the namespace.
    pub const fn owner(&self) -> &'a str {
        self.owner
    }

    /// The id, such as `ns-abcdefghij123456`.
    pub const fn id(&self) -> &'a str {
        self.id
    }

    /// The ARNs of all services of the owner in this region, as IAM takes them.
    pub fn services(&self) -> String {
        format!("{}:service/*", self.registry)
    }
}

/// What calls take for something that was asked for by `asked`: its ARN, if that is an ARN, otherwise its id.
pub(super) fn named_as<'a>(asked: &str, id: &'a str, arn: &'a str) -> &'a str {
    if NamespaceArn::is_meant(asked) && !arn.is_empty() { arn } else { id }
}

/// A namespace as `DiscoverInstances` takes it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HttpName<'a> {
    /// The [`Namespace::http_name`].
    pub name: &'a str,
    /// The account that owns it. `None` for the own one: of a namespace that others share, AWS finds nothing then.
    pub owner: Option<&'a str>,
}

impl<'a> HttpName<'a> {
    /// That of an own namespace.
    pub const fn own(name: &'a str) -> Self {
        Self { name, owner: None }
    }
}

impl Namespace {
    /// How `DiscoverInstances` names it.
    pub fn in_discovery(&self) -> HttpName<'_> {
        HttpName { name: &self.http_name, owner: NamespaceArn::parse(&self.id).map(|arn| arn.owner()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arns_of_namespaces_are_read_in_every_partition_and_nothing_else_is() {
        for (region, partition) in [
            ("eu-central-1", "aws"),
            ("us-gov-west-1", "aws-us-gov"),
            ("cn-north-1", "aws-cn"),
            ("eusc-de-east-1", "aws-eusc"),
        ] {
            let text = format!("arn:{partition}:servicediscovery:{region}:111122223333:namespace/ns-abcdefghij123456");
            let arn = NamespaceArn::parse(&text).unwrap();
            assert_eq!((arn.as_str(), arn.owner(), arn.id()), (&*text, "111122223333", "ns-abcdefghij123456"));
            assert_eq!(arn.services(), format!("arn:{partition}:servicediscovery:{region}:111122223333:service/*"));
        }
        for text in [
            "internal",
            "ns-abcdefghij123456",
            "arn:aws:servicediscovery:eu-central-1:111122223333:service/srv-abcdefghij123456",
            "arn:aws:servicediscovery:eu-central-1:111122223333:namespace/",
            "arn:aws:servicediscovery:eu-central-1:111122223333:namespace/internal",
            "arn:aws:servicediscovery:eu-central-1:111122223333:namespace/ns-",
            "arn:aws:servicediscovery:eu-central-1:111122223333:namespace/ns-a/b",
            "arn:aws:servicediscovery:eu-central-1:11112222333:namespace/ns-a",
            "arn:aws:servicediscovery:eu-central-1:x11122223333:namespace/ns-a",
            "arn:aws:servicediscovery::111122223333:namespace/ns-a",
            "arn:aws:ecs:eu-central-1:111122223333:namespace/ns-a",
            "arn:gcp:servicediscovery:eu-central-1:111122223333:namespace/ns-a",
            "arn:aws:servicediscovery:eu-central-1:extra:111122223333:namespace/ns-a",
            "aws:servicediscovery:eu-central-1:111122223333:namespace/ns-a",
        ] {
            assert_eq!(NamespaceArn::parse(text), None, "{text}");
        }
        let long = format!("arn:aws:servicediscovery:eu-central-1:111122223333:namespace/ns-{}", "a".repeat(62));
        assert_eq!(NamespaceArn::parse(&long), None);
    }
}
