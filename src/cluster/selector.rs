//! Label selectors on the command line.

use std::{collections::BTreeMap, fmt, str::FromStr};

use kube::core::{Expression, Selector, SelectorExt as _};

use model::labels::{is_label_key, is_label_value};

/// A label selector for namespaces, in the syntax of `kubectl get -l`: `team=a,env in (prod, test),!private`. All
/// requirements must hold. Without any, it selects every namespace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NamespaceSelector(Selector);

/// A selector was refused. The message names the requirement and the valid forms.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{requirement:?} is not a requirement of a label selector: {reason}. Write key, !key, key=value, key!=value, \
     key in (a, b) or key notin (a, b), several separated by commas"
)]
pub struct InvalidSelector {
    requirement: String,
    reason: &'static str,
}

impl NamespaceSelector {
    /// Whether the selector selects an object with these labels.
    pub fn matches(&self, labels: &BTreeMap<String, String>) -> bool {
        self.0.matches(labels)
    }
}

impl FromStr for NamespaceSelector {
    type Err = InvalidSelector;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if text.trim().is_empty() {
            return Ok(Self(Selector::default()));
        }
        let expressions = requirements(text).map(|requirement| {
            expression(requirement)
                .map_err(|reason| InvalidSelector { requirement: requirement.trim().to_owned(), reason })
        });
        Ok(Self(expressions.collect::<Result<Vec<_>, _>>()?.into_iter().collect()))
    }
}

impl fmt::Display for NamespaceSelector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Splits at the commas outside of parentheses.
fn requirements(text: &str) -> impl Iterator<Item = &str> {
    let mut inside = false;
    text.split(move |c| {
        match c {
            '(' => inside = true,
            ')' => inside = false,
            _ => {}
        }
        c == ',' && !inside
    })
}

fn expression(requirement: &str) -> Result<Expression, &'static str> {
    let requirement = requirement.trim();
    if let Some((left, values)) = requirement.split_once('(') {
        let values = values.strip_suffix(')').ok_or("the list of values does not end with \")\"")?;
        let values = values.split(',').map(value).collect::<Result<_, _>>()?;
        return match left.split_whitespace().collect::<Vec<_>>()[..] {
            [name, "in"] => Ok(Expression::In(key(name)?, values)),
            [name, "notin"] => Ok(Expression::NotIn(key(name)?, values)),
            _ => Err("a list of values follows \"in\" or \"notin\""),
        };
    }
    if requirement.contains(['<', '>']) {
        return Err("comparing numbers is not supported");
    }
    if let Some((name, wanted)) = requirement.split_once("!=") {
        return Ok(Expression::NotEqual(key(name)?, value(wanted)?));
    }
    if let Some((name, wanted)) = requirement.split_once("==").or_else(|| requirement.split_once('=')) {
        return Ok(Expression::Equal(key(name)?, value(wanted)?));
    }
    match requirement.strip_prefix('!') {
        Some(name) => Ok(Expression::DoesNotExist(key(name)?)),
        None => Ok(Expression::Exists(key(requirement)?)),
    }
}

fn key(text: &str) -> Result<String, &'static str> {
    let text = text.trim();
    if is_label_key(text) { Ok(text.to_owned()) } else { Err("the key is not a valid label key") }
}

fn value(text: &str) -> Result<String, &'static str> {
    let text = text.trim();
    if is_label_value(text) { Ok(text.to_owned()) } else { Err("the value is not a valid label value") }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
    }

    #[test]
    fn a_selector_selects_as_kubectl_does() {
        let (prod, test, bare) = (labels(&[("env", "prod"), ("team", "a")]), labels(&[("env", "test")]), labels(&[]));
        for (selector, expected) in [
            ("", [true, true, true]),
            ("  ", [true, true, true]),
            ("env", [true, true, false]),
            ("!team", [false, true, true]),
            ("env=prod", [true, false, false]),
            ("env==prod", [true, false, false]),
            ("env != prod", [false, true, true]),
            ("env in (prod, test)", [true, true, false]),
            ("env in(prod)", [true, false, false]),
            ("env notin (prod)", [false, true, true]),
            ("env in (prod,test),!team", [false, true, false]),
            ("env=prod , team in (a)", [true, false, false]),
            ("kubernetes.io/metadata.name notin (kube-system,default)", [true, true, true]),
        ] {
            let parsed: NamespaceSelector = selector.parse().unwrap();
            assert_eq!([&prod, &test, &bare].map(|labels| parsed.matches(labels)), expected, "{selector}");
            assert_eq!(parsed.to_string().parse(), Ok(parsed), "{selector}");
        }
    }

    #[test]
    fn an_invalid_selector_is_refused_with_the_requirement() {
        for (selector, requirement, reason) in [
            ("env=prod,", "\"\"", "key"),
            ("env in prod", "env in prod", "key"),
            ("env in (prod", "env in (prod", "does not end"),
            ("env within (prod)", "env within (prod)", "\"in\""),
            ("a b=c", "a b=c", "key"),
            ("env=a b", "env=a b", "value"),
            ("env in (a b)", "env in (a b)", "value"),
            ("cpu>3", "cpu>3", "numbers"),
            ("=x", "=x", "key"),
            ("!", "!", "key"),
            ("a=b=c", "a=b=c", "value"),
        ] {
            let error = selector.parse::<NamespaceSelector>().unwrap_err().to_string();
            assert!(error.contains(requirement) && error.contains(reason), "{selector}: {error}");
            assert!(error.contains("key notin (a, b)"), "{error}");
        }
    }
}
