//! Fuzzing: whatever others wrote is decoded without a panic, in bounded time and space, and means the same when it is written
//! again.
//!
//! A [`Target`] begins with valid inputs, which the encoders of the product make, and [`generate`] changes them. Seed and number
//! of an input determine it, so that [`campaign`] needs no memory of what it tried, and a failure can be replayed.

mod annotations;
mod aws;
pub mod campaign;
mod corefiles;
mod fields;
pub mod generate;
mod instances;
mod ledger;
mod logs;
mod pages;
mod records;
mod stream;
pub mod supervisor;

/// Whether an input was accepted; an error says which property does not hold.
pub type Verdict = Result<bool, String>;

/// What decodes inputs of one kind.
#[derive(Debug, Clone, Copy)]
pub struct Target {
    /// Its name on the command line.
    pub name: &'static str,
    /// Valid inputs. Each of them must be accepted.
    pub corpus: fn() -> Vec<Vec<u8>>,
    /// Words that mean something to the decoder.
    pub words: &'static [&'static str],
    /// Most bytes of an input.
    pub longest: usize,
    /// Inputs in `make test`, where a debug build has seconds for all targets.
    pub quick: u64,
    /// Decodes an input, and checks what must hold.
    pub check: fn(&[u8]) -> Verdict,
}

/// All targets, by what they decode.
pub fn targets() -> Vec<Target> {
    [
        ledger::TARGETS,
        pages::TARGETS,
        stream::TARGETS,
        records::TARGETS,
        instances::TARGETS,
        annotations::TARGETS,
        logs::TARGETS,
        corefiles::TARGETS,
        aws::TARGETS,
    ]
    .concat()
}

/// An error unless two values are equal.
fn same<T: PartialEq + std::fmt::Debug>(what: &str, before: &T, after: &T) -> Result<(), String> {
    if before == after { Ok(()) } else { Err(format!("{what}: {before:?} became {after:?}")) }
}

/// An error unless it holds.
fn holds(is_so: bool, what: impl FnOnce() -> String) -> Result<(), String> {
    if is_so { Ok(()) } else { Err(what()) }
}
