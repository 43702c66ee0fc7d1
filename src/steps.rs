//! Counts the steps of loops over what tenants decide the size of. Tests compare the counts for few and for many objects: unlike
//! a time, a count does not depend on the machine. Outside tests this is nothing.

#[cfg(test)]
thread_local! {
    static STEPS: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
}

/// Counts one step.
#[inline]
pub(crate) fn count() {
    #[cfg(test)]
    STEPS.with(|steps| steps.set(steps.get() + 1));
}

/// The steps of this thread since this was called last.
#[cfg(test)]
pub(crate) fn take() -> usize {
    STEPS.with(std::cell::Cell::take)
}
