//! Which Services are registered at all.

use clap::ValueEnum;

/// Which exported Services are also registered as instances (`--instances`); an annotation overrides it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Selection {
    /// Every exported Service.
    All,
    /// Only Services whose annotations ask for it.
    Annotated,
    /// None, annotated Services included.
    None,
}
