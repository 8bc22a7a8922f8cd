//! What went wrong, where, why, and what to do about it.
//!
//! Every phase reports its mistakes as [`Diagnostic`]s; [`render`] turns them into the text that `main` prints once.

mod render;

pub use render::render;

use std::fmt::Write as _;

use serde::Serialize;

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
            message: cut(message.into()),
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
        self.label = Some(cut(label.into()));
        self
    }

    /// Adds a fact.
    #[must_use]
    pub fn note(mut self, note: impl Into<String>) -> Self {
        self.notes.push(cut(note.into()));
        self
    }

    /// Says what to do.
    #[must_use]
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(cut(hint.into()));
        self
    }

    /// Whether the run cannot go on.
    pub fn is_error(&self) -> bool {
        self.severity == Severity::Error
    }
}

/// The exit code for a list of diagnostics: that of the first error, since later ones may follow from it; 0 without
/// errors.
pub fn exit_code(diagnostics: &[Diagnostic]) -> u8 {
    diagnostics.iter().find(|one| one.is_error()).map_or(0, |one| one.blame.exit_code())
}

/// The longest message, in bytes: names out of files may be of any length.
const LONGEST_MESSAGE: usize = 8_000;

/// A text without what is beyond any reader's patience.
fn cut(mut text: String) -> String {
    if text.len() > LONGEST_MESSAGE {
        text.truncate(text.floor_char_boundary(LONGEST_MESSAGE));
        text.push('…');
    }
    text
}

/// The longest piece of the user's text that a message repeats, in characters.
const LONGEST_QUOTE: usize = 80;

/// The user's text in backticks, as it is safe to print: control characters escaped, long text cut.
pub fn quoted(text: &str) -> String {
    let mut out = String::from("`");
    for (index, character) in text.chars().enumerate() {
        if index == LONGEST_QUOTE {
            out.push('…');
            break;
        }
        out.push_str(&printable(character));
    }
    out.push('`');
    out
}

/// A character as it is safe to print: what could move the cursor, change colours or reorder the line is escaped.
pub(crate) fn printable(character: char) -> String {
    if is_unsafe_to_print(character) {
        character.escape_unicode().to_string()
    } else {
        character.to_string()
    }
}

/// Text that stays on its line and carries no terminal command.
pub(crate) fn line_safe(text: &str) -> String {
    text.chars().map(printable).collect()
}

/// The same JSON, with what a terminal obeys inside its strings as `\uXXXX`. Line breaks stand between values only.
pub(crate) fn json_safe(json: &str) -> String {
    let mut safe = String::with_capacity(json.len());
    for character in json.chars() {
        if character == '\n' || !is_unsafe_to_print(character) {
            safe.push(character);
            continue;
        }
        for unit in character.encode_utf16(&mut [0; 2]) {
            let _ = write!(safe, "\\u{unit:04x}");
        }
    }
    safe
}

/// Control characters, invisible separators, and the marks that change the direction of writing.
fn is_unsafe_to_print(character: char) -> bool {
    character.is_control()
        || matches!(character, '\u{ad}' | '\u{61c}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}')
        || matches!(character, '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e007f}')
}

/// The candidate that a mistyped `text` most likely means, if any is near enough.
pub fn suggest<'a>(text: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    if text.is_empty() || text.chars().count() > LONGEST_QUOTE {
        return None;
    }
    let typed = normalised(text);
    candidates
        .into_iter()
        .map(|candidate| (strsim::damerau_levenshtein(&typed, &normalised(candidate)), candidate))
        .filter(|(distance, candidate)| {
            let length = candidate.chars().count().max(typed.chars().count());
            *distance <= (length / 3).max(1) && *distance < length
        })
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, candidate)| candidate)
}

/// Case and the choice between `-`, `_` and a space are the likeliest mistakes of all: they count as none.
fn normalised(text: &str) -> String {
    text.to_lowercase().replace(['-', ' '], "_")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_exit_code_is_that_of_the_first_error() {
        let warning = Diagnostic::warning(Blame::Bug, "odd");
        assert_eq!(exit_code(std::slice::from_ref(&warning)), 0);
        let errors =
            [warning, Diagnostic::error(Blame::Data, "a"), Diagnostic::error(Blame::Machine, "b")];
        assert_eq!(exit_code(&errors), 3);
    }

    #[test]
    fn the_nearest_candidate_is_suggested_and_a_far_one_is_not() {
        let names = ["window_tokens", "windows", "bos"];
        assert_eq!(suggest("window_token", names), Some("window_tokens"));
        assert_eq!(suggest("Window-Tokens", names), Some("window_tokens"));
        assert_eq!(suggest("window", names), Some("windows"));
        assert_eq!(suggest("alpha", names), None);
        assert_eq!(suggest("x", ["y"]), None);
        assert_eq!(suggest(&"w".repeat(100_000), names), None);
    }

    #[test]
    fn quoted_text_cannot_reach_the_terminal() {
        assert_eq!(quoted("a\u{1b}[31m\u{202e}b\n"), "`a\\u{1b}[31m\\u{202e}b\\u{a}`");
        assert_eq!(quoted(&"x".repeat(1000)).chars().count(), LONGEST_QUOTE + 3);
    }

    #[test]
    fn what_a_terminal_obeys_is_escaped_and_json_stays_what_it_is() {
        let name = "a\u{1b}[2J\u{9b}31m\u{202e}\u{e0041}\nb";
        assert_eq!(line_safe(name), "a\\u{1b}[2J\\u{9b}31m\\u{202e}\\u{e0041}\\u{a}b");
        let value = serde_json::json!({ name: [name, "plain", 1] });
        let safe = json_safe(&serde_json::to_string_pretty(&value).unwrap());
        assert!(!safe.chars().any(|character| character != '\n' && is_unsafe_to_print(character)));
        assert_eq!(serde_json::from_str::<serde_json::Value>(&safe).unwrap(), value);
    }
}
