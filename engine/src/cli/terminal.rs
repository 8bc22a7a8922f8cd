//! What is printed, made safe to print: names out of files may hold anything, and a terminal obeys what it is sent.

use std::io::{self, Write};

use tracing_subscriber::fmt::MakeWriter;

use crate::base::text::{json_safe, line_safe, printable};
use crate::cli::LogFormat;

/// Lines of text without anything else that a terminal obeys.
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

/// Where log lines go: standard error, each on one line.
#[derive(Clone, Copy, Debug)]
pub(super) struct Log(pub(super) LogFormat);

impl<'a> MakeWriter<'a> for Log {
    type Writer = Self;

    fn make_writer(&'a self) -> Self {
        *self
    }
}

impl Write for Log {
    /// Takes a whole event, as the subscriber hands them over. One that cannot be written is lost: a full disk under the
    /// log, or a reader that has gone, must not end hours of work.
    fn write(&mut self, event: &[u8]) -> io::Result<usize> {
        let event_text = String::from_utf8_lossy(event);
        let line = event_text.trim_end_matches('\n');
        let mut line = match self.0 {
            LogFormat::Text => line_safe(line),
            LogFormat::Json => json_safe(line),
        };
        line.push('\n');
        let _ = io::stderr().write_all(line.as_bytes());
        Ok(event.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
