//! Logs: to standard error, as text or as JSON lines.

use tracing::level_filters::LevelFilter;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::FormatTime;
use tracing_subscriber::prelude::*;

use super::terminal::Log;
use crate::cli::{Cli, Command, LogFormat};

/// Timestamp of a log line: UTC, to the second.
struct Utc;

impl FormatTime for Utc {
    fn format_time(&self, writer: &mut Writer<'_>) -> std::fmt::Result {
        writer.write_str(&crate::base::clock::now_utc())
    }
}

/// Starts logging. While progress bars are drawn, only warnings are logged by default.
pub fn start(cli: &Cli, bars: bool) {
    let level = match (cli.quiet, cli.verbose) {
        (true, _) => LevelFilter::WARN,
        (_, 0) if bars => LevelFilter::WARN,
        (_, 0) => LevelFilter::INFO,
        (_, 1) => LevelFilter::DEBUG,
        _ => LevelFilter::TRACE,
    };
    // `object_store` logs every failed attempt of a request; the module `object_stores` reports requests that fail for good.
    let others = if level == LevelFilter::INFO { LevelFilter::WARN } else { level };
    let filter = Targets::new().with_default(level).with_target("object_store", others);
    let run = match &cli.command {
        Command::Run(arguments) => arguments.run_id.clone(),
        _ => None,
    };
    let builder = tracing_subscriber::fmt()
        .with_max_level(level)
        .with_writer(Log { format: cli.log_format, run })
        .with_timer(Utc);
    match cli.log_format {
        LogFormat::Text => builder.with_target(false).with_ansi(false).finish().with(filter).init(),
        LogFormat::Json => builder.json().flatten_event(true).finish().with(filter).init(),
    }
}
