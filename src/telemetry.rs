//! Logging.

use std::io::IsTerminal as _;

use anyhow::Context as _;
use clap::{Args, ValueEnum};
use tracing_subscriber::EnvFilter;

/// The flags for logging.
#[derive(Debug, Args)]
pub struct LogArgs {
    /// What to log: a level, or a list of `module=level`.
    #[arg(long, global = true, env = "CLOUDMAP_MCS_LOG", value_name = "FILTER", default_value = "info")]
    pub log: String,
    /// Format of the log.
    #[arg(long, global = true, env = "CLOUDMAP_MCS_LOG_FORMAT", value_enum, default_value_t = LogFormat::Text)]
    pub log_format: LogFormat,
}

/// Format of the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// One line per record, for people.
    Text,
    /// One JSON object per line.
    Json,
}

/// Starts logging to stderr.
///
/// # Errors
/// The filter is not valid.
pub fn init(args: &LogArgs) -> anyhow::Result<()> {
    let filter = EnvFilter::try_new(&args.log)
        .with_context(|| format!("--log {:?} is neither a level nor a list of module=level", args.log))?;
    let logs = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    // Whether there are colours on a terminal is up to NO_COLOR, which the library reads.
    let logs = if std::io::stderr().is_terminal() { logs } else { logs.with_ansi(false) };
    match args.log_format {
        LogFormat::Text => logs.init(),
        LogFormat::Json => logs.json().flatten_event(true).init(),
    }
    Ok(())
}
