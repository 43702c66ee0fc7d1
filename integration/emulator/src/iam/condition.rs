//! Condition operators and keys.

use super::reference::is_known_key;
use super::{arn_fits, fits};

/// One key of one operator.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Condition {
    test: Test,
    /// `...Not...`
    negated: bool,
    set: Set,
    /// `...IfExists`
    if_exists: bool,
    /// In lower case: "Condition key names are not case-sensitive."
    pub(super) key: String,
    values: Vec<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Test {
    Equals,
    EqualsIgnoreCase,
    Like,
    Arn,
    Null,
}

/// For keys with several values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Set {
    Single,
    All,
    Any,
}

impl Condition {
    pub(super) fn parse(operator: &str, key: &str, values: Vec<String>) -> Result<Self, String> {
        let (set, rest) = match operator.split_once(':') {
            None => (Set::Single, operator),
            Some(("ForAllValues", rest)) => (Set::All, rest),
            Some(("ForAnyValue", rest)) => (Set::Any, rest),
            Some((other, _)) => return Err(format!("`{other}` in `{operator}` is no set operator")),
        };
        let (name, if_exists) = rest.strip_suffix("IfExists").map_or((rest, false), |name| (name, true));
        let (test, negated) = match name {
            "StringEquals" => (Test::Equals, false),
            "StringNotEquals" => (Test::Equals, true),
            "StringEqualsIgnoreCase" => (Test::EqualsIgnoreCase, false),
            "StringNotEqualsIgnoreCase" => (Test::EqualsIgnoreCase, true),
            "StringLike" => (Test::Like, false),
            "StringNotLike" => (Test::Like, true),
            // "ArnEquals and ArnLike behave identically."
            "ArnEquals" | "ArnLike" => (Test::Arn, false),
            "ArnNotEquals" | "ArnNotLike" => (Test::Arn, true),
            // "You can add IfExists to the end of any condition operator name except the Null condition."
            "Null" if !if_exists => (Test::Null, false),
            _ => return Err(format!("condition operator `{operator}` is not evaluated here")),
        };
        if test == Test::Null && !values.iter().all(|value| value == "true" || value == "false") {
            return Err(format!("{operator} of {key} must be true or false"));
        }
        let lower = key.to_ascii_lowercase();
        // Keys of other services are for other services' actions.
        if ["aws:", "servicediscovery:"].iter().any(|own| lower.starts_with(own)) && !is_known_key(&lower) {
            return Err(format!("condition key `{key}` is not evaluated here"));
        }
        // What AWS does then is not documented, so that such a policy is a mistake.
        if lower == "aws:tagkeys" && set == Set::Single && test != Test::Null {
            return Err(format!("{key} has several values; write ForAllValues:{operator} or ForAnyValue:{operator}"));
        }
        Ok(Self { test, negated, set, if_exists, key: lower, values })
    }

    /// Whether it holds for the values that the call has for the key; none if it has no such key.
    pub(super) fn holds(&self, found: Option<&[String]>) -> bool {
        let found = found.filter(|found| !found.is_empty());
        if self.test == Test::Null {
            return self.values.iter().any(|value| (value == "true") == found.is_none());
        }
        let one = |value: &String| self.values.iter().any(|wanted| self.fits(wanted, value)) != self.negated;
        match (found, self.set) {
            // "If the key that you specify in a policy condition is not present in the request context, the values do not
            // match and the condition is false. If the policy condition requires that the key is not matched, such as
            // StringNotLike or ArnNotLike, and the right key is not present, the condition is true."
            (None, Set::Single) => self.negated || self.if_exists,
            // "The ForAllValues qualifier also returns true if there are no context keys in the request."
            (None, Set::All) => true,
            // "For no matching context key or if the key does not exist, ForAnyValue returns false."
            (None, Set::Any) => self.if_exists,
            (Some(found), Set::Single | Set::All) => found.iter().all(one),
            (Some(found), Set::Any) => found.iter().any(one),
        }
    }

    fn fits(&self, wanted: &str, value: &str) -> bool {
        match self.test {
            Test::Equals => wanted == value,
            Test::EqualsIgnoreCase => wanted.eq_ignore_ascii_case(value),
            Test::Like => fits(wanted, value),
            Test::Arn => arn_fits(wanted, value),
            Test::Null => false,
        }
    }
}
