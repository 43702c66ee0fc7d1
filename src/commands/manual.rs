//! Pages that are generated from the definition of the command line: man pages and completions for shells.

use std::{fs, io, path::Path};

use clap::CommandFactory as _;
use clap_complete::Shell;

use base::release;
use cli::Cli;

pub(super) fn completions(shell: Shell, out: &mut impl io::Write) -> io::Result<()> {
    // The generator panics if it cannot write, as to a pipe that was closed.
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), release::NAME, &mut script);
    out.write_all(&script)
}

/// One page for the program, and one for each command.
pub(super) fn man(folder: &Path) -> io::Result<()> {
    fs::create_dir_all(folder)?;
    clap_mangen::generate_to(Cli::command(), folder)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use clap::{Command, ValueEnum as _};

    use super::*;

    /// The names of the pages that there should be.
    fn expected(command: &Command, name: &str, pages: &mut BTreeSet<String>) {
        assert!(command.get_about().is_some(), "{name} says what it does");
        for flag in command.get_arguments() {
            assert!(flag.get_help().is_some(), "{name}: {} says what it does", flag.get_id());
        }
        pages.insert(format!("{name}.1"));
        for command in command.get_subcommands().filter(|it| it.get_name() != "help" && !it.is_hide_set()) {
            expected(command, &format!("{name}-{}", command.get_name()), pages);
        }
    }

    #[test]
    fn every_command_explains_itself_and_has_a_page() {
        let folder = std::env::temp_dir().join(format!("cloudmap-mcs-man-{}", std::process::id()));
        man(&folder).unwrap();
        let pages: BTreeSet<_> = fs::read_dir(&folder)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .filter(|name| !name.contains("-help"))
            .collect();
        let page = fs::read_to_string(folder.join("cloudmap-mcs-status.1")).unwrap();
        fs::remove_dir_all(&folder).unwrap();
        let mut wanted = BTreeSet::new();
        expected(&Cli::command(), release::NAME, &mut wanted);
        assert_eq!(pages, wanted);
        assert!(page.contains("Exit status"), "{page}");
    }

    #[test]
    fn a_closed_pipe_is_an_error() {
        let (reader, mut writer) = io::pipe().unwrap();
        drop(reader);
        let error = completions(Shell::Bash, &mut writer).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::BrokenPipe);
    }

    #[test]
    fn every_shell_completes_every_command() {
        for shell in Shell::value_variants() {
            let mut script = Vec::new();
            completions(*shell, &mut script).unwrap();
            let script = String::from_utf8(script).unwrap();
            for command in Cli::command().get_subcommands() {
                assert!(script.contains(command.get_name()), "{shell} does not know {}", command.get_name());
            }
        }
    }
}
