//! Sanitises text for terminals: names from files may contain control characters.

use std::io::{self, Write};

use tracing_subscriber::fmt::MakeWriter;

use crate::base::secrets::shown;
use crate::base::text::{json_safe, line_safe, printable};
use crate::cli::LogFormat;

/// Escapes all characters that a terminal would interpret, except line breaks.
pub(super) fn text(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for character in text.chars() {
        if character == '\n' {
            safe.push('\n');
        } else {
            safe.push_str(&printable(character));
        }
    }
    safe
}

/// Writer of log lines: to standard error, one line each, with the name of the run if it has one.
#[derive(Clone, Debug)]
pub(super) struct Log {
    pub(super) format: LogFormat,
    /// Value of `--run-id`.
    pub(super) run: Option<String>,
}

impl Log {
    fn line(&self, event: &str) -> String {
        let mut line = match self.format {
            LogFormat::Text => line_safe(event),
            LogFormat::Json => json_safe(event),
        };
        match (&self.run, self.format) {
            (None, _) => {}
            (Some(run), LogFormat::Text) => {
                line.push_str(" run_id=");
                line.push_str(&line_safe(run));
            }
            (Some(run), LogFormat::Json) => {
                let name = json_safe(&serde_json::to_string(run).expect("a string"));
                line.insert_str(1, &format!("\"run_id\":{name},"));
            }
        }
        line.push('\n');
        line
    }
}

impl<'a> MakeWriter<'a> for Log {
    type Writer = &'a Self;

    fn make_writer(&'a self) -> &'a Self {
        self
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
