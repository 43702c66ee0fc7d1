//! Cuts a log of any kind into records: lines, JSON objects on one or several lines, and the elements of a list of objects, as
//! in CloudTrail's files in S3. Only one record is in memory at a time. A broken record does not affect the others.

use std::{
    fmt,
    io::{self, BufRead},
};

use serde_json::Value;

use super::{csv, fields::text};

/// The longest record. CloudTrail's have at most 1 MB, lines of all other kinds some kilobytes; a page of results that is one
/// object may have some megabytes.
pub(super) const LONGEST: usize = 16 << 20;
const TOO_LONG: &str = "it is longer than 16 MiB";

/// The first field of an object that is a list of records: in CloudTrail's files, and in answers to `aws logs
/// filter-log-events`.
const LISTS: [&str; 2] = ["Records", "events"];
/// The same for objects in which other fields come first: what subscriptions of CloudWatch Logs deliver, results of Logs Insights and CloudTrail Lake.
const ANYWHERE: [&str; 3] = ["\"logEvents\":", "\"results\":", "\"QueryResultRows\":"];
/// The limits of rows in answers of Logs Insights: the default, and the highest.
const LIMITS: [u64; 2] = [1_000, 10_000];
const PARTIAL: &str = "what is before it is only a part of the answer, which was not complete: ask for all of it";

/// Where a record begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Location {
    /// The first line is 1.
    pub(super) line: u64,
    /// Which record of a list it is; the first one is 1.
    pub(super) record: Option<u64>,
}

impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}", self.line)?;
        self.record.map_or(Ok(()), |record| write!(f, ", record {record}"))
    }
}

/// What a record is made of; its bytes are in [`Frames::bytes`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Frame {
    /// Text that begins and ends like a JSON object, by its brackets.
    Json,
    /// A line of other text.
    Line,
    /// Not a record.
    Broken(&'static str),
}

/// The records of a log.
#[derive(Debug)]
pub(super) struct Frames<R> {
    input: R,
    bytes: Vec<u8>,
    line: u64,
    /// In a list: how many of its records were read, and whether it is a field of an object.
    list: Option<(u64, bool)>,
    /// Whether lines that are not JSON are rows of a table.
    pub(super) is_table: bool,
}

/// How an object ended.
enum End {
    Whole,
    /// Its list of records begins here.
    List,
    Broken(&'static str),
}

impl<R: BufRead> Frames<R> {
    pub(super) fn new(input: R) -> Self {
        Self { input, bytes: Vec::new(), line: 1, list: None, is_table: false }
    }

    /// The bytes of the last record.
    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// The next record, and where it begins; `None` at the end.
    ///
    /// # Errors
    /// The input cannot be read further.
    pub(super) fn next(&mut self) -> io::Result<Option<(Location, Frame)>> {
        loop {
            self.bytes.clear();
            let Some(byte) = self.peek()? else { return Ok(None) };
            let place = Location { line: self.line, record: self.list.map(|(read, _)| read + 1) };
            match byte {
                b'\n' => {
                    self.input.consume(1);
                    self.line += 1;
                }
                b' ' | b'\t' | b'\r' | b',' => self.input.consume(1),
                b'{' => match self.object(0, false)? {
                    End::Whole => {
                        self.count();
                        return Ok(Some((place, Frame::Json)));
                    }
                    End::List => self.list = Some((0, true)),
                    End::Broken(why) => {
                        self.count();
                        return Ok(Some((place, Frame::Broken(why))));
                    }
                },
                b']' if self.list.is_some() => {
                    self.input.consume(1);
                    // The fields after the list are no record. They may say that the answer has more pages.
                    if let Some((read, true)) = self.list.take() {
                        match self.object(1, false)? {
                            End::Broken(why) => return Ok(Some((place, Frame::Broken(why)))),
                            _ if is_partial(&self.bytes, read) => return Ok(Some((place, Frame::Broken(PARTIAL)))),
                            _ => {}
                        }
                    }
                }
                b'[' if self.list.is_none() => {
                    self.input.consume(1);
                    let Some(b'{' | b']' | b'[' | b'"' | b'\n' | b'\r' | b' ') = self.peek()? else {
                        self.bytes.push(b'[');
                        return Ok(Some((place, self.rest_of_line()?)));
                    };
                    self.list = Some((0, false));
                }
                // A row, or a line as a text.
                b'[' | b'"' if self.list.is_some() => {
                    let end = self.object(0, false)?;
                    self.count();
                    return Ok(Some((
                        place,
                        if let End::Broken(why) = end { Frame::Broken(why) } else { Frame::Json },
                    )));
                }
                _ => {
                    self.list = None;
                    return Ok(Some((place, self.rest_of_line()?)));
                }
            }
        }
    }

    fn peek(&mut self) -> io::Result<Option<u8>> {
        Ok(self.input.fill_buf()?.first().copied())
    }

    fn count(&mut self) {
        if let Some((read, _)) = &mut self.list {
            *read += 1;
        }
    }

    fn rest_of_line(&mut self) -> io::Result<Frame> {
        let (mut longer, from) = (false, self.bytes.len());
        // Whether a quote is open after so many bytes: each line of a long cell is looked at once.
        let (mut open, mut judged) = (false, 0);
        loop {
            let chunk = self.input.fill_buf()?;
            let end = chunk.iter().position(|byte| *byte == b'\n');
            let part = chunk.get(..end.unwrap_or(chunk.len())).unwrap_or_default();
            longer |= !keep(&mut self.bytes, part);
            let used = part.len() + usize::from(end.is_some());
            let over = chunk.is_empty() || end.is_some();
            self.input.consume(used);
            if end.is_some() {
                self.line += 1;
            }
            if !over {
                continue;
            }
            if longer {
                return Ok(Frame::Broken(TOO_LONG));
            }
            // A cell may have several lines.
            if self.is_table && end.is_some() {
                open ^= csv::is_open(self.bytes.get(judged..).unwrap_or_default());
                judged = self.bytes.len();
                if open {
                    keep(&mut self.bytes, b"\n");
                    continue;
                }
            }
            // `aws logs tail --format json` writes the object after the time over several lines.
            let line = self.bytes.get(from..).unwrap_or_default();
            if end.is_some() && line.first().is_some_and(u8::is_ascii_digit) && line.trim_ascii_end().ends_with(b"{") {
                return Ok(if let End::Broken(why) = self.object(1, true)? { Frame::Broken(why) } else { Frame::Line });
            }
            return Ok(Frame::Line);
        }
    }

    /// Reads an object, list or text to its end, from `depth` open brackets. A record that was cut off ends before the next line
    /// that begins another record: with `{`, or with a digit if records are `dated`. (Texts in JSON have no line breaks.)
    fn object(&mut self, mut depth: usize, dated: bool) -> io::Result<End> {
        let (mut in_text, mut escaped, mut begins, mut longer) = (false, false, dated, false);
        loop {
            let chunk = self.input.fill_buf()?;
            if chunk.is_empty() {
                return Ok(End::Broken("it does not end"));
            }
            let mut end = None;
            let mut used = chunk.len();
            for (at, byte) in chunk.iter().enumerate() {
                if begins && (*byte == b'{' || (dated && byte.is_ascii_digit())) {
                    (end, used) = (Some(End::Broken("it ends in the middle")), at);
                    break;
                }
                begins = *byte == b'\n';
                self.line += u64::from(begins);
                if in_text {
                    if begins {
                        (end, used) = (Some(End::Broken("it ends in the middle of a text")), at + 1);
                        break;
                    }
                    in_text = escaped || *byte != b'"';
                    escaped = !escaped && *byte == b'\\';
                    if !in_text && depth == 0 {
                        (end, used) = (Some(End::Whole), at + 1);
                        break;
                    }
                    continue;
                }
                match byte {
                    b'"' => in_text = true,
                    b'{' => depth += 1,
                    b'[' => {
                        depth += 1;
                        let before = chunk.get(..at).unwrap_or_default();
                        if depth == 2 && self.list.is_none() && !longer && is_list(&self.bytes, before) {
                            (end, used) = (Some(End::List), at + 1);
                            break;
                        }
                    }
                    b'}' | b']' => {
                        depth = depth.saturating_sub(1);
                        if depth == 0 {
                            (end, used) = (Some(End::Whole), at + 1);
                            break;
                        }
                    }
                    _ => {}
                }
            }
            longer |= !keep(&mut self.bytes, chunk.get(..used).unwrap_or_default());
            self.input.consume(used);
            match end {
                Some(End::Whole) if longer => return Ok(End::Broken(TOO_LONG)),
                Some(end) => return Ok(end),
                None => {}
            }
        }
    }
}

/// Appends a part of a record. `false` if the record would be longer than [`LONGEST`]; nothing is appended then.
fn keep(bytes: &mut Vec<u8>, part: &[u8]) -> bool {
    let fits = bytes.len() + part.len() <= LONGEST;
    if fits {
        bytes.extend_from_slice(part);
    }
    fits
}

/// Whether a list that begins now has records, by what the object has before it: `{"Records": ` in `{"Records": [`.
fn is_list(bytes: &[u8], rest: &[u8]) -> bool {
    let backwards = bytes.iter().chain(rest).rev().copied().filter(|byte| !byte.is_ascii_whitespace());
    if ANYWHERE.iter().any(|name| backwards.clone().take(name.len()).eq(name.bytes().rev())) {
        return true;
    }
    if bytes.len() + rest.len() > 256 {
        return false;
    }
    let begin: Vec<u8> = bytes.iter().chain(rest).copied().filter(|byte| !byte.is_ascii_whitespace()).collect();
    LISTS.iter().any(|name| begin == format!("{{\"{name}\":").as_bytes())
}

/// Whether the fields after a list say that there are more records, or that the query was still running. `read` is the number
/// of records in the list.
fn is_partial(bytes: &[u8], read: u64) -> bool {
    let rest = bytes.trim_ascii_start();
    let rest = [b"{", rest.strip_prefix(b",").unwrap_or(rest)].concat();
    let Ok(Value::Object(rest)) = serde_json::from_slice(&rest) else { return false };
    let token = text(&rest, "nexttoken").is_some();
    let unfinished = text(&rest, "status").is_some_and(|status| status != "Complete");
    let matched = rest.get("statistics").and_then(|of| of.get("recordsMatched")).and_then(Value::as_f64);
    token || unfinished || (LIMITS.contains(&read) && matched.is_some_and(|matched| matched > read as f64))
}
