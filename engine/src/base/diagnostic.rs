//! Diagnostics: message, location, cause and hint.
//!
//! Every phase reports errors as [`Diagnostic`]s; [`render`] formats them for `main`, which prints them once.

use serde::Serialize;

use super::secrets;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// The run cannot continue.
    Error,
    /// The run continues, but may not do what its author intended.
    Warning,
}

/// Party that can fix a problem. The value is the program's exit code.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Blame {
    Bug = 1,
    /// The command line or the pipeline file.
    Pipeline = 2,
    /// Unreadable or corrupt input or checkpoint, too many bad rows.
    Data = 3,
    /// I/O, space, memory, devices: the only category for which a retry can help.
    Machine = 4,
    /// The result fails the pipeline's own checks.
    Check = 6,
}

impl Blame {
    pub fn exit_code(self) -> u8 {
        self as u8
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum DiagnosticLocation {
    /// Range in a text: the pipeline file or the command line.
    Text(TextLocation),
    /// Position in data, in words: `part-00017.parquet, row group 3, row 1204`.
    Data(String),
}

/// Range within one line of a text.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct TextLocation {
    /// Name of the text: a path as given, or `command line`.
    pub name: String,
    /// Line, from 1; `None` for a text with a single line.
    pub line: Option<usize>,
    /// Column of the first character, from 1, counted in characters.
    pub column: usize,
    /// Length in characters; a caret is drawn even for 0.
    pub length: usize,
    /// The whole line, without its line break.
    pub text: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Diagnostic {
    pub severity: Severity,
    pub blame: Blame,
    /// Message: lower case, no full stop, the user's text in backticks.
    pub message: String,
    #[serde(rename = "place")]
    pub location: Option<DiagnosticLocation>,
    /// Text next to the caret: usually the expected value.
    pub label: Option<String>,
    /// Further facts, one per line.
    pub notes: Vec<String>,
    pub hint: Option<String>,
}

impl Diagnostic {
    pub fn error(blame: Blame, message: impl Into<String>) -> Self {
        Self {
            severity: Severity::Error,
            blame,
            message: cut(&message.into()),
            location: None,
            label: None,
            notes: Vec::new(),
            hint: None,
        }
    }

    pub fn warning(blame: Blame, message: impl Into<String>) -> Self {
        Self { severity: Severity::Warning, ..Self::error(blame, message) }
    }

    #[must_use]
    pub fn at(mut self, location: DiagnosticLocation) -> Self {
        self.location = Some(location);
        self
    }

    /// Sets the location unless one is already set.
    #[must_use]
    pub fn or_at(mut self, location: DiagnosticLocation) -> Self {
        self.location.get_or_insert(location);
        self
    }

    #[must_use]
    pub fn label(mut self, label: impl Into<String>) -> Self {
        self.label = Some(cut(&label.into()));
        self
    }

    #[must_use]
    pub fn note(mut self, note: impl Into<String>) -> Self {
        self.notes.push(cut(&note.into()));
        self
    }

    #[must_use]
    pub fn notes(self, notes: impl IntoIterator<Item = impl Into<String>>) -> Self {
        notes.into_iter().fold(self, Self::note)
    }

    #[must_use]
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(cut(&hint.into()));
        self
    }

    pub fn is_error(&self) -> bool {
        self.severity == Severity::Error
    }
}

/// Maximum bytes of a message: names in files may have any length.
const MAX_MESSAGE_BYTES: usize = 8_000;

/// Removes secret parts of addresses and truncates to [`MAX_MESSAGE_BYTES`].
fn cut(text: &str) -> String {
    let mut text = secrets::shown(text).into_owned();
    if text.len() > MAX_MESSAGE_BYTES {
        text.truncate(text.floor_char_boundary(MAX_MESSAGE_BYTES));
        text.push('…');
    }
    text
}
