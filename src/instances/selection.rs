//! Which Services are registered.

use clap::ValueEnum;

/// Which exports are also registered as instances (`--instances`). An annotation overrides it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Selection {
    /// Every export.
    All,
    /// Only exports whose annotations request it.
    Annotated,
    /// None, not even annotated Services.
    None,
}
