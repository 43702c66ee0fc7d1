//! Logging.

use std::io::IsTerminal as _;

use anyhow::Context as _;
use clap::{Args, ValueEnum};
use tracing_subscriber::EnvFilter;

/// The flags for logging.
#[derive(Debug, Args)]
pub struct LogArgs {
    /// What to log: a level, or a list of `module=level`. Without it: `info` for the controller, and `cloudmap_mcs=info` for
    /// the other commands, whose output would mix with lines of the AWS SDK.
    #[arg(long, global = true, env = "CLOUDMAP_MCS_LOG", value_name = "FILTER")]
    pub log: Option<String>,
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

/// Starts logging to stderr, for the controller or for another command.
///
/// # Errors
/// The filter is not valid.
pub fn init(args: &LogArgs, controller: bool) -> anyhow::Result<()> {
    let log = args.log.as_deref().unwrap_or(if controller { "info" } else { "cloudmap_mcs=info" });
    let filter = EnvFilter::try_new(log)
        .with_context(|| format!("--log {log:?} is neither a level nor a list of module=level"))?;
    let logs = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    // It would report on stderr that stderr is closed, and panic.
    let logs = logs.log_internal_errors(false);
    // Whether there are colours on a terminal is up to NO_COLOR, which the library reads.
    let logs = if std::io::stderr().is_terminal() { logs } else { logs.with_ansi(false) };
    match args.log_format {
        LogFormat::Text => logs.init(),
        LogFormat::Json => logs.json().flatten_event(true).init(),
    }
    Ok(())
}
