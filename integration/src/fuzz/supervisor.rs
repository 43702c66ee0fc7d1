//! Watches a process that tries inputs: of a stack that overflows, only another process can say at which input.

use std::{
    env,
    fs::{self, File},
    io,
    path::Path,
    process::{Command, ExitStatus},
};

use super::{Target, campaign::Failure, generate::Generator};

/// Runs this program again with these arguments, and returns how it ended.
fn again(target: &str, seed: u64, rest: &[String], positions: &Path) -> io::Result<ExitStatus> {
    let seed = seed.to_string();
    let mut command = Command::new(env::current_exe()?);
    command.args(["--target", target, "--seed", &seed, "--positions"]).arg(positions).args(rest).status()
}

/// Tries inputs of a target in a process of its own, which prints what came of them. Returns whether all is well.
///
/// # Errors
/// A process could not be started, or the file `positions` cannot be used.
#[expect(clippy::print_stderr, reason = "the result of a campaign")]
pub fn supervise(target: Target, seed: u64, rest: &[String], positions: &Path) -> io::Result<bool> {
    File::create(positions)?;
    let status = again(target.name, seed, rest, positions)?;
    if status.code().is_some() {
        return Ok(status.success());
    }
    let last = fs::read(positions)?;
    let numbers = last.as_chunks().0.iter().map(|number| u64::from_be_bytes(*number));
    for number in numbers {
        let one = ["--number".to_owned(), number.to_string()];
        let alone = again(target.name, seed, &one, positions)?;
        if alone.code().is_none() {
            let input = Generator::new(target).input(seed, number);
            let what = format!("it ended the process ({alone}), as a stack does that overflows");
            eprintln!("{}", Failure { number, input, what }.text(target.name, seed));
            return Ok(false);
        }
    }
    eprintln!(
        "{}, seed {seed}: the process ended ({status}), and none of the last inputs does that again",
        target.name
    );
    Ok(false)
}
