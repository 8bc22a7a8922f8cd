//! Logs: to standard error, as text or as JSON lines.

use std::io::{self, Write};
use std::sync::Arc;

use tracing::level_filters::LevelFilter;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::prelude::*;

use crate::base::secrets::shown;
use crate::base::text::{json_safe, line_safe};
use crate::cli::{Cli, Command, LogFormat};

/// Target of messages about the result, which are logged after progress bars as well.
pub const RESULT: &str = "longsift::result";

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
    let of_results = if cli.quiet { level } else { level.max(LevelFilter::INFO) };
    let filter = Targets::new()
        .with_default(level)
        .with_target("object_store", others)
        .with_target(RESULT, of_results);
    let run = match &cli.command {
        Command::Run(arguments) => arguments.run_id.clone(),
        _ => None,
    };
    let utc: fn(&mut Writer<'_>) -> std::fmt::Result =
        |writer| writer.write_str(&crate::base::clock::now_utc());
    let builder = tracing_subscriber::fmt()
        .with_max_level(of_results)
        .with_writer(Arc::new(Log { format: cli.log_format, run }))
        .with_timer(utc);
    match cli.log_format {
        LogFormat::Text => builder.with_target(false).with_ansi(false).finish().with(filter).init(),
        LogFormat::Json => builder.json().flatten_event(true).finish().with(filter).init(),
    }
}

/// Writer of log lines: to standard error, one line each, with the name of the run if it has one.
struct Log {
    format: LogFormat,
    run: Option<String>,
}

impl Log {
    fn line(&self, event: &str) -> String {
        let line = match (self.format, &self.run) {
            (LogFormat::Text, None) => line_safe(event),
            (LogFormat::Text, Some(run)) => {
                format!("{} run_id={}", line_safe(event), line_safe(run))
            }
            (LogFormat::Json, None) => json_safe(event),
            (LogFormat::Json, Some(run)) => {
                let name = json_safe(&serde_json::to_string(run).expect("a string"));
                let mut line = json_safe(event);
                line.insert_str(1, &format!("\"run_id\":{name},"));
                line
            }
        };
        line + "\n"
    }
}

impl Write for &Log {
    /// Writes a whole event, which the subscriber passes in one call. Failures are ignored: a full disk or a closed
    /// pipe must not end hours of work.
    fn write(&mut self, event: &[u8]) -> io::Result<usize> {
        let event_text = String::from_utf8_lossy(event);
        let line = self.line(shown(&event_text).trim_end_matches('\n'));
        let _ = io::stderr().write_all(line.as_bytes());
        Ok(event.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_line_names_the_run() {
        let log = |format, run: &str| Log { format, run: Some(run.to_owned()) };
        let text = log(LogFormat::Text, "web-1\n").line("INFO done");
        assert_eq!(text, "INFO done run_id=web-1\\u{a}\n");
        let json = log(LogFormat::Json, "web \"1\"").line(r#"{"level":"INFO"}"#);
        let read: serde_json::Value = serde_json::from_str(&json).unwrap();
        assert_eq!(read, serde_json::json!({ "run_id": "web \"1\"", "level": "INFO" }));
        let unnamed = Log { format: LogFormat::Json, run: None };
        assert_eq!(unnamed.line("{}"), "{}\n");
    }
}
