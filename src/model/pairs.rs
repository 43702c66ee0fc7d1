//! Labels or annotations of an object.

use std::sync::Arc;

/// Labels or annotations of an object, sorted by name, each once. They are compact because caches hold many.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Pairs(Box<[(Arc<str>, Arc<str>)]>);

impl Pairs {
    /// The value of a label or annotation.
    pub fn get(&self, name: &str) -> Option<&str> {
        let at = self.0.binary_search_by(|(there, _)| (**there).cmp(name)).ok()?;
        Some(&self.0[at].1)
    }

    /// All pairs, in the order of the names.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(name, value)| (&**name, &**value))
    }

    /// Whether there are no pairs.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl<N: Into<Arc<str>>, V: Into<Arc<str>>> FromIterator<(N, V)> for Pairs {
    fn from_iter<I: IntoIterator<Item = (N, V)>>(pairs: I) -> Self {
        let mut pairs: Vec<_> = pairs.into_iter().map(|(name, value)| (name.into(), value.into())).collect();
        pairs.sort();
        pairs.dedup_by(|(later, _), (name, _)| later == name);
        Self(pairs.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_found_in_whatever_order_they_came() {
        let pairs: Pairs = [("b", "2"), ("a", "1"), ("c", "")].into_iter().collect();
        assert_eq!(["a", "b", "c", "d", ""].map(|name| pairs.get(name)), [Some("1"), Some("2"), Some(""), None, None]);
        assert!(pairs.iter().map(|(name, _)| name).eq(["a", "b", "c"]) && Pairs::default().is_empty());
    }
}
