//! Where metrics are registered.

use prometheus::{Registry, core::Collector};

/// Takes metrics.
pub trait Register {
    /// Registers a metric.
    ///
    /// # Errors
    /// There is one with this name.
    fn register(&self, metric: Box<dyn Collector>) -> prometheus::Result<()>;
}

impl Register for Registry {
    fn register(&self, metric: Box<dyn Collector>) -> prometheus::Result<()> {
        Self::register(self, metric)
    }
}
