//! Counts the steps of loops over what tenants decide the size of. Tests compare the counts for few and for many objects: unlike
//! a time, a count does not depend on the machine. Outside tests, and the feature `testing`, this is nothing.

#[cfg(any(test, feature = "testing"))]
thread_local! {
    static STEPS: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
}

/// Counts one step.
#[inline]
pub fn count() {
    #[cfg(any(test, feature = "testing"))]
    STEPS.with(|steps| steps.set(steps.get() + 1));
}

/// The steps of this thread since this was called last.
#[cfg(any(test, feature = "testing"))]
pub fn take() -> usize {
    STEPS.with(std::cell::Cell::take)
}
