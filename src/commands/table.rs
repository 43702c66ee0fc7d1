//! Output for people: tables, ages, times.

use std::{fmt::Write as _, io::Write as _, time::Duration};

use serde_json::Value;

use cli::OutputFormat;

/// Prints a report in the form that was asked for.
pub(super) fn print(
    output: OutputFormat,
    table: impl FnOnce() -> String,
    json: impl FnOnce() -> Value,
) -> anyhow::Result<()> {
    let text = match output {
        OutputFormat::Table => table(),
        OutputFormat::Json => serde_json::to_string_pretty(&json())? + "\n",
    };
    std::io::stdout().write_all(text.as_bytes())?;
    Ok(())
}

/// A time in seconds since 1970, for people.
pub(super) fn time(seconds: i64) -> String {
    k8s_openapi::jiff::Timestamp::from_second(seconds).map_or_else(|_| seconds.to_string(), |time| time.to_string())
}

/// Formats an age as kubectl does.
pub(super) fn human(age: Duration) -> String {
    match age.as_secs() {
        seconds @ 0..120 => format!("{seconds}s"),
        seconds @ 120..7200 => format!("{}m", seconds / 60),
        seconds @ 7200..172_800 => format!("{}h", seconds / 3600),
        seconds => format!("{}d", seconds / 86_400),
    }
}

/// A table with columns as wide as their widest cell, as kubectl prints them.
pub(super) struct Table<const N: usize> {
    rows: Vec<[String; N]>,
}

impl<const N: usize> Table<N> {
    pub(super) fn new(header: [&str; N]) -> Self {
        Self { rows: vec![header.map(str::to_owned)] }
    }

    /// Errors of AWS have several lines: they become one.
    pub(super) fn row(&mut self, cells: [String; N]) {
        self.rows.push(cells.map(|cell| cell.split_whitespace().collect::<Vec<_>>().join(" ")));
    }

    /// A row, and below its last cell what to do.
    pub(super) fn finding(&mut self, cells: [String; N], remedy: Option<&String>) {
        self.row(cells);
        if let Some(remedy) = remedy {
            let mut cells = [const { String::new() }; N];
            if let Some(last) = cells.last_mut() {
                *last = format!("-> {remedy}");
            }
            self.row(cells);
        }
    }
}

impl<const N: usize> std::fmt::Display for Table<N> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut widths = [0; N];
        for row in &self.rows {
            for (width, cell) in widths.iter_mut().zip(row) {
                *width = (*width).max(cell.chars().count());
            }
        }
        for row in &self.rows {
            let mut line = String::new();
            for (cell, width) in row.iter().zip(widths) {
                write!(line, "{cell:<width$}   ")?;
            }
            writeln!(f, "{}", line.trim_end())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up() {
        let mut table = Table::new(["A", "LONGER"]);
        table.row(["value".to_owned(), "x".to_owned()]);
        table.row(["its\n    lines".to_owned(), "y".to_owned()]);
        assert_eq!(table.to_string(), "A           LONGER\nvalue       x\nits lines   y\n");
    }

    #[test]
    fn ages_are_short() {
        assert_eq!([5, 300, 9000, 200_000].map(|s| human(Duration::from_secs(s))), ["5s", "5m", "2h", "2d"]);
    }
}
