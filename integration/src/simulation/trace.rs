//! What happened, line by line: the same for the same seed.

use std::sync::{Arc, Mutex, PoisonError};

use tokio::time::Instant;

/// Where lines go. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct Trace {
    began: Instant,
    lines: Option<Arc<Mutex<Vec<String>>>>,
}

impl Trace {
    /// `wanted`: lines are kept, else they are not even made.
    pub(crate) fn new(began: Instant, wanted: bool) -> Self {
        Self { began, lines: wanted.then(Arc::default) }
    }

    pub(crate) fn line(&self, text: impl FnOnce() -> String) {
        if let Some(lines) = &self.lines {
            let line = format!("{:>9.3} s  {}", self.began.elapsed().as_secs_f64(), text());
            lines.lock().unwrap_or_else(PoisonError::into_inner).push(line);
        }
    }

    /// All lines since they were taken last.
    pub(crate) fn take(&self) -> Vec<String> {
        let lines = self.lines.as_ref();
        lines
            .map(|lines| std::mem::take(&mut *lines.lock().unwrap_or_else(PoisonError::into_inner)))
            .unwrap_or_default()
    }
}
