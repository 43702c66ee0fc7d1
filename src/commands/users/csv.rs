//! Rows of results as CSV (Logs Insights, Athena, CloudTrail Lake, Datadog), separated by commas, semicolons or tabs.

use serde_json::Value;

use super::fields::{self, Object};

/// A line is the header of a table if it has one of these columns. The names have no separators.
const KNOWN: [&str; 14] = [
    "srcaddr",
    "dstaddr",
    "pktsrcaddr",
    "pktdstaddr",
    "queryname",
    "eventname",
    "eventsource",
    "useridentity",
    "message",
    "log",
    "line",
    "content",
    "body",
    "eventjson",
];

/// The columns of a table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Table {
    separator: char,
    columns: Vec<String>,
}

impl Table {
    /// From the first line of a table, if it is one.
    pub(super) fn header(line: &str) -> Option<Self> {
        [',', ';', '\t'].into_iter().find_map(|separator| {
            let columns = cells(line, separator)?;
            let only_message = columns.len() == 1 && columns.iter().all(|column| column == "@message");
            (only_message || columns.len() > 1).then(|| Self::of(separator, columns))?
        })
    }

    /// The table with these columns, if a log has them.
    pub(super) fn of(separator: char, columns: Vec<String>) -> Option<Self> {
        let is_name = |column: &String| {
            column.starts_with(|c: char| c.is_ascii_alphabetic() || c == '@' || c == '_')
                && column.chars().all(|c| c.is_ascii_alphanumeric() || " _-.@()*".contains(c))
        };
        let of_known = |column: &String| {
            let plain: Object =
                [(column.rsplit('.').next().unwrap_or(column).to_owned(), Value::Null)].into_iter().collect();
            KNOWN.iter().any(|known| fields::get(&plain, known).is_some())
        };
        (columns.iter().all(is_name) && columns.iter().any(of_known)).then_some(Self { separator, columns })
    }

    /// A row as an object; `None` if the line is no row.
    pub(super) fn row(&self, line: &str) -> Option<Object> {
        self.object(&cells(line, self.separator)?)
    }

    /// The same from its cells.
    pub(super) fn object(&self, cells: &[String]) -> Option<Object> {
        let pairs = || self.columns.iter().cloned().zip(cells.iter().cloned().map(Value::String));
        (cells.len() == self.columns.len()).then(|| pairs().collect())
    }
}

/// Whether a quote that begins a cell is still open at the end of a text, so that the row goes on in the next line.
pub(super) fn is_open(text: &[u8]) -> bool {
    text.iter().fold(false, |open, byte| open != (*byte == b'"'))
}

/// The cells of a line; `None` if a quote is where none can be.
fn cells(line: &str, separator: char) -> Option<Vec<String>> {
    let mut found = Vec::new();
    let mut rest = line.trim_end_matches(['\r', '\n']);
    loop {
        let (cell, after) = if let Some(quoted) = rest.strip_prefix('"') {
            let mut cell = String::new();
            let mut rest = quoted;
            loop {
                let (before, after) = rest.split_once('"')?;
                cell += before;
                match after.strip_prefix('"') {
                    Some(more) => {
                        cell.push('"');
                        rest = more;
                    }
                    None => break (cell, after),
                }
            }
        } else {
            let end = rest.find(separator).unwrap_or(rest.len());
            (rest.get(..end)?.to_owned(), rest.get(end..)?)
        };
        found.push(cell);
        if after.is_empty() {
            return Some(found);
        }
        rest = after.strip_prefix(separator)?;
    }
}
