//! What somebody else changes in our instances. It is taken back with the next reading, again and again where a program adds
//! it, so it is said once.

use std::{collections::BTreeSet, time::Duration};

use tokio::time::Instant;

use super::{Notice, TargetDesired, state::State};
use crate::{
    attributes::{Digest, belongs_to_us, digest},
    plan::find,
};
use api::{events::EventReason, names::ANNOTATION_ATTRIBUTES};
use cloudmap::Instance;
use model::Excerpt;

/// For how long without another change it is still reported.
const SAID: Duration = Duration::from_hours(1);
/// Most names of attributes that are reported. A program may use another one each time.
const NAMES: usize = 3;

/// Attributes that somebody else changed.
#[derive(Debug)]
pub(super) struct Altered {
    names: BTreeSet<String>,
    more: bool,
    last: Instant,
}

impl State {
    /// Compares an instance that was read with what was written last. `said` is the digest of that.
    pub(super) fn compare(&mut self, desired: &TargetDesired, there: &Instance, said: Digest, now: Instant) {
        let Some(traits) = self.place().map(|place| place.traits) else { return };
        // Something else may be desired by now, which is no change of somebody else.
        let spec = find(&desired.instances, &there.id).filter(|spec| spec.digest(traits) == said);
        let Some(wanted) = spec.map(|spec| spec.render(traits).attributes) else { return };
        if digest(&there.attributes) == said {
            return;
        }
        let names = wanted.keys().chain(there.attributes.keys()).filter(|name| belongs_to_us(name));
        let differ = names.filter(|name| wanted.get(*name) != there.attributes.get(*name));
        let none = Altered { names: BTreeSet::new(), more: false, last: now };
        let altered = self.remarks.altered.get_or_insert_with(|| Box::new(none));
        altered.last = now;
        for name in differ {
            if altered.names.len() < NAMES {
                altered.names.insert(name.clone());
            } else {
                altered.more |= !altered.names.contains(name);
            }
        }
    }

    /// Forgets changes that nobody repeats.
    pub(super) fn forget_altered(&mut self, now: Instant) {
        drop(self.remarks.altered.take_if(|altered| now.duration_since(altered.last) > SAID));
    }

    pub(super) fn altered(&self) -> Option<Notice> {
        let Altered { names, more, last: _ } = self.remarks.altered.as_deref()?;
        let names: Vec<_> = names.iter().map(|name| Excerpt(name).to_string()).collect();
        let others = if *more { " and others" } else { "" };
        let message = format!(
            "Somebody else changes attributes of the registered instances: {}{others}. The controller takes each change back. Set \
             attributes with the annotation {ANNOTATION_ATTRIBUTES}, and keep what changes often elsewhere",
            names.join(", ")
        );
        Some(Notice { reason: EventReason::InstancesAltered, message })
    }
}
