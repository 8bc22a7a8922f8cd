//! What went wrong, where, why, and what to do about it.
//!
//! Every phase reports its mistakes as [`Diagnostic`]s; [`render`] turns them into the text that `main` prints once.

use serde::Serialize;

use super::secrets;

/// How bad a diagnostic is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// The run cannot go on.
    Error,
    /// The run goes on; its author may have meant something else.
    Warning,
}

/// Who can do something about it. The number is the exit code of the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Blame {
    /// A mistake in longsift itself.
    Bug = 1,
    /// The command line or the pipeline file.
    Pipeline = 2,
    /// Unreadable or corrupt input or checkpoint, too many bad rows.
    Data = 3,
    /// Input and output, space, memory, devices: the only one worth a retry.
    Machine = 4,
    /// The result is not what the pipeline's own checks ask for.
    Check = 6,
}

impl Blame {
    /// The exit code of the program.
    pub fn exit_code(self) -> u8 {
        self as u8
    }
}

/// Where something is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Place {
    /// A piece of a text: the pipeline file, or the command line.
    Text(TextPlace),
    /// A position in data, in words: `part-00017.parquet, row group 3, row 1204`.
    Data(String),
}

/// A piece of one line of a text.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct TextPlace {
    /// Name of the text: a path as it was given, or `command line`.
    pub name: String,
    /// Line, from 1; `None` for a text that has only one.
    pub line: Option<usize>,
    /// Column of the first character, from 1, counted in characters.
    pub column: usize,
    /// How many characters are meant; a caret is drawn even for 0.
    pub length: usize,
    /// The whole line, without its line break.
    pub text: String,
}

/// One thing that is wrong, or looks wrong.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Diagnostic {
    /// How bad it is.
    pub severity: Severity,
    /// Who can do something about it.
    pub blame: Blame,
    /// What happened: lower case, no full stop, the user's text in backticks.
    pub message: String,
    /// Where.
    pub place: Option<Place>,
    /// The text beside the caret: usually what would have been right.
    pub label: Option<String>,
    /// Further facts, one a line.
    pub notes: Vec<String>,
    /// What to do.
    pub hint: Option<String>,
}

impl Diagnostic {
    /// An error with nothing but a message.
    pub fn error(blame: Blame, message: impl Into<String>) -> Self {
        Self {
            severity: Severity::Error,
            blame,
            message: cut(&message.into()),
            place: None,
            label: None,
            notes: Vec::new(),
            hint: None,
        }
    }

    /// A warning with nothing but a message.
    pub fn warning(blame: Blame, message: impl Into<String>) -> Self {
        Self { severity: Severity::Warning, ..Self::error(blame, message) }
    }

    /// Says where.
    #[must_use]
    pub fn at(mut self, place: Place) -> Self {
        self.place = Some(place);
        self
    }

    /// Says where, if nothing has said it before.
    #[must_use]
    pub fn or_at(mut self, place: Place) -> Self {
        self.place.get_or_insert(place);
        self
    }

    /// Says what stands beside the caret.
    #[must_use]
    pub fn label(mut self, label: impl Into<String>) -> Self {
        self.label = Some(cut(&label.into()));
        self
    }

    /// Adds a fact.
    #[must_use]
    pub fn note(mut self, note: impl Into<String>) -> Self {
        self.notes.push(cut(&note.into()));
        self
    }

    /// Says what to do.
    #[must_use]
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(cut(&hint.into()));
        self
    }

    /// Whether the run cannot go on.
    pub fn is_error(&self) -> bool {
        self.severity == Severity::Error
    }
}

/// The longest message, in bytes: names out of files may be of any length.
const LONGEST_MESSAGE: usize = 8_000;

/// A text without secret parts of addresses, and without what is beyond any reader's patience.
fn cut(text: &str) -> String {
    let mut text = secrets::shown(text).into_owned();
    if text.len() > LONGEST_MESSAGE {
        text.truncate(text.floor_char_boundary(LONGEST_MESSAGE));
        text.push('…');
    }
    text
}
