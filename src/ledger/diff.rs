//! How one state became the next. Pure.

use std::sync::Arc;

use super::{Map, Value};

/// What differs between two states. It is made once where a state changes, and whoever follows that state takes it from
/// there. It has both states, so that whoever is at another one sees that.
#[derive(Debug, Clone)]
pub struct Diff {
    from: Arc<Map>,
    to: Arc<Map>,
    changed: Vec<Changed>,
}

/// A pair that differs: its value in the former state, and in the next one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Changed {
    /// The key.
    pub key: Arc<str>,
    /// The former value; `None` if there was none.
    pub was: Option<Value>,
    /// The next value; `None` if the pair is gone.
    pub is: Option<Value>,
}

impl Diff {
    /// What differs between these two.
    pub fn between(from: Arc<Map>, to: Arc<Map>) -> Self {
        let changed = |(key, was, is): (&Arc<str>, Option<&Value>, Option<&Value>)| Changed {
            key: key.clone(),
            was: was.cloned(),
            is: is.cloned(),
        };
        Self { changed: from.difference(&to).map(changed).collect(), from, to }
    }

    /// This one, if it leads from one of these states to the other; otherwise another one that does.
    pub fn or_between(this: Option<&Arc<Self>>, from: &Arc<Map>, to: &Arc<Map>) -> Arc<Self> {
        let leads = |diff: &&Arc<Self>| Arc::ptr_eq(&diff.from, from) && Arc::ptr_eq(&diff.to, to);
        this.filter(leads).cloned().unwrap_or_else(|| Arc::new(Self::between(from.clone(), to.clone())))
    }

    /// The next state.
    pub fn to(&self) -> &Arc<Map> {
        &self.to
    }

    /// The pairs that differ, in the order of their keys.
    pub fn changed(&self) -> &[Changed] {
        &self.changed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_difference_is_taken_only_by_those_who_are_at_its_states() {
        let map = |value: u8| Arc::new(Map::from([("a".into(), Value::from([value])), ("b".into(), Value::from([0]))]));
        let (one, two, three) = (map(1), map(2), map(3));
        let changed = |was: u8, is: u8| {
            let [was, is] = [was, is].map(|value| Some(Value::from([value])));
            [Changed { key: "a".into(), was, is }]
        };
        let diff = Arc::new(Diff::between(one.clone(), two.clone()));
        assert_eq!(diff.changed(), changed(1, 2));
        assert!(Arc::ptr_eq(&Diff::or_between(Some(&diff), &one, &two), &diff));
        assert_eq!(Diff::or_between(Some(&diff), &one, &three).changed(), changed(1, 3));
        assert_eq!(Diff::or_between(Some(&diff), &three, &two).changed(), changed(3, 2));
        assert_eq!(Diff::or_between(None, &two, &one).changed(), changed(2, 1));
    }
}
