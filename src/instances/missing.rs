//! What is made where a Cloud Map namespace is missing.

use std::{fmt, str::FromStr, sync::Arc};

/// Which missing Cloud Map namespaces are made. Who may have one made is in [`policy`](crate::policy).
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum MissingNamespaces {
    /// None: people make them.
    Leave,
    /// API-only ones.
    #[default]
    ApiOnly,
    /// Private ones with DNS, for this VPC (`--create-dns-namespaces`).
    Private(VpcId),
}

impl MissingNamespaces {
    /// Whether the hosted zone of a namespace with this name would hide names of the Internet from its whole VPC. Whoever
    /// may make a Kubernetes namespace chooses such a name. Others come from administrators.
    ///
    /// Not all top-level domains count, because nobody can keep a list of them: those of countries, which have two letters
    /// (RFC 1591), and the first generic ones (RFC 920, RFC 1591).
    pub(crate) fn hides_the_internet(&self, name: &str) -> bool {
        let first = ["arpa", "com", "edu", "gov", "int", "mil", "net", "org"];
        let of_country = name.len() == 2 && name.bytes().all(|byte| byte.is_ascii_alphabetic());
        matches!(self, Self::Private(_)) && (of_country || first.iter().any(|it| it.eq_ignore_ascii_case(name)))
    }
}

/// The id of a VPC: `vpc-` and 8 or 17 hexadecimal digits in lower case (EC2, "Resource IDs").
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VpcId(Arc<str>);

/// A text that is not the id of a VPC.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not the id of a VPC: vpc- and 8 or 17 hexadecimal digits, such as vpc-0123456789abcdef0")]
pub struct NoVpcId(String);

impl VpcId {
    /// The text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for VpcId {
    type Err = NoVpcId;

    fn from_str(text: &str) -> Result<Self, NoVpcId> {
        let is_hex = |digits: &str| digits.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
        match text.strip_prefix("vpc-") {
            Some(digits) if matches!(digits.len(), 8 | 17) && is_hex(digits) => Ok(Self(text.into())),
            _ => Err(NoVpcId(text.to_owned())),
        }
    }
}

impl fmt::Display for VpcId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_id_of_a_vpc_has_its_prefix_and_8_or_17_digits() {
        for id in ["vpc-0123abcd", "vpc-0123456789abcdef0"] {
            assert_eq!(id.parse::<VpcId>().unwrap().to_string(), id);
        }
        for text in [
            "",
            "vpc",
            "vpc-",
            "vpc-0123abc",
            "vpc-0123456789abcdef",
            "vpc-0123456789ABCDEF0",
            "vpc-0123abcg",
            "0123abcd",
        ] {
            let error = text.parse::<VpcId>().unwrap_err().to_string();
            assert!(error.contains("vpc-0123456789abcdef0"), "{error}");
        }
    }

    #[test]
    fn only_zones_of_public_top_level_domains_hide_the_internet() {
        let private = MissingNamespaces::Private("vpc-0123abcd".parse().unwrap());
        for (name, expected) in
            [("com", true), ("NET", true), ("de", true), ("shop", false), ("a1", false), ("x.de", false)]
        {
            assert_eq!(private.hides_the_internet(name), expected, "{name}");
            assert!(!MissingNamespaces::ApiOnly.hides_the_internet(name), "without DNS, nothing is hidden");
        }
    }
}
