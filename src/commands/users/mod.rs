//! `users`: who still uses a name of Cloud Map, according to logs. It observes who has which address (a cluster and AWS, if
//! they can be reached), streams the logs through readers of each kind, judges (pure), and prints. It changes nothing.

mod cloudtrail;
mod coredns;
mod csv;
mod custom;
mod fields;
mod flow;
mod frames;
mod holders;
mod input;
mod notes;
mod observe;
mod plan;
mod reader;
mod record;
mod report;
mod resolver;
mod subject;
#[cfg(test)]
mod tests;
mod times;

use std::{
    io::{self, BufRead, Write as _},
    path::Path,
    process::ExitCode,
};

use self::{
    frames::Frames,
    holders::Holders,
    observe::Surroundings,
    plan::{OfFile, Seen},
    reader::Reader,
    report::Report,
    subject::Subject,
};
use crate::table;
use cli::{TaskAddress, UsersArgs};

/// For what cannot be read at all, as for wrong arguments.
const UNUSABLE: u8 = 2;

pub(super) async fn users(args: UsersArgs) -> anyhow::Result<ExitCode> {
    let mut subject = Subject::new(&args.name);
    args.addresses.iter().for_each(|task| subject.add(*task));
    let prepared = args.flow_format.as_deref().map(flow::Columns::new).transpose().and_then(|columns| {
        let files = input::files(&args.files)?;
        Ok((columns, files))
    });
    let (columns, files) = match prepared {
        Ok(prepared) => prepared,
        Err(why) => return unusable(&why),
    };
    let Surroundings { holders, left_out } = observe::observe(&args, &mut subject).await;
    let mut seen = Seen::default();
    for file in &files {
        let reader = Reader::new(&subject, columns.clone());
        read(file, reader, &holders, &mut seen);
    }
    if seen.coverage.is_empty() {
        return unusable(&nothing(&seen, files.len()));
    }
    let report = Report { subject: &subject, seen: &seen, holders: &holders, left_out: &left_out };
    table::print(args.output, || report.table(), || report.json())?;
    Ok(ExitCode::SUCCESS)
}

/// What a log says of the users of a name, as JSON, without a cluster and AWS.
///
/// # Errors
/// It cannot be read to its end, or no record of it is of a log that is known.
pub fn users_in_log(
    log: impl io::Read + 'static,
    name: &str,
    tasks: &[TaskAddress],
) -> Result<serde_json::Value, String> {
    let (mut subject, mut seen) = (Subject::new(name), Seen::default());
    for task in tasks {
        subject.add(*task);
    }
    let holders = Holders::default();
    let input = input::plain(log).map_err(|error| error.to_string())?;
    stream(input, "the log", Reader::new(&subject, None), &holders, &mut seen);
    if seen.coverage.is_empty() {
        return Err(nothing(&seen, 1));
    }
    let report = Report { subject: &subject, seen: &seen, holders: &holders, left_out: &[] };
    // What people get must not fail, either.
    report.table();
    Ok(report.json())
}

fn unusable(why: &str) -> anyhow::Result<ExitCode> {
    writeln!(io::stderr(), "error: {why}")?;
    Ok(ExitCode::from(UNUSABLE))
}

/// Why there is nothing to report.
fn nothing(seen: &Seen, files: usize) -> String {
    let unread = seen.unread.first.first().map(|(file, why)| format!("{file}: {why}"));
    let broken = seen.broken.first.first().map(|(file, place, why)| format!("{file}, {place}: {why}"));
    let first = unread.or(broken).map_or_else(String::new, |first| format!("; {first}"));
    format!("no record of a log that is known, files: {files}{first}")
}

/// Reads a file record by record. What is wrong with it is noted, and the next one goes on.
fn read(path: &Path, reader: Reader<'_>, holders: &Holders, seen: &mut Seen) {
    let name = if input::is_standard_input(path) { "standard input".to_owned() } else { path.display().to_string() };
    match input::open(path) {
        Ok(opened) => stream(opened, &name, reader, holders, seen),
        Err(error) => seen.unread(&name, error.to_string()),
    }
}

fn stream(input: impl BufRead, name: &str, mut reader: Reader<'_>, holders: &Holders, seen: &mut Seen) {
    let mut frames = Frames::new(input);
    let mut file = OfFile::new(name);
    loop {
        match frames.next() {
            Ok(Some((place, frame))) => {
                for found in reader.read(frame, frames.bytes()) {
                    match found {
                        Ok(read) => seen.add(&mut file, place, read, holders),
                        Err(why) => seen.broken.add(&mut file.broken, name, place, why),
                    }
                }
                frames.is_table = reader.is_in_table();
            }
            Ok(None) => return,
            Err(error) => return seen.unread(name, error.to_string()),
        }
    }
}
