//! Text for people: escaping, readable numbers and sizes, spelling suggestions, hexadecimal digests.

use std::fmt::Write as _;
use std::time::Duration;

use longsift_stages::contract::hex;
use sha2::{Digest, Sha256};

/// Maximum characters of the user's text in a message.
const MAX_QUOTED_CHARACTERS: usize = 80;

/// Quotes the user's text in backticks: escapes control characters and truncates long text.
pub fn quoted(text: &str) -> String {
    let more = if text.chars().nth(MAX_QUOTED_CHARACTERS).is_some() { "…" } else { "" };
    let shown: String = text.chars().take(MAX_QUOTED_CHARACTERS).map(printable).collect();
    format!("`{shown}{more}`")
}

/// Escapes a character that could move the cursor, change colours or reorder the line.
pub(crate) fn printable(character: char) -> String {
    if is_unsafe_to_print(character) {
        character.escape_unicode().to_string()
    } else {
        character.to_string()
    }
}

/// Escapes text so that it stays on one line and contains no terminal control sequences.
pub(crate) fn line_safe(text: &str) -> String {
    text.chars().map(printable).collect()
}

/// Like [`line_safe`], with a sign for each line break.
pub(crate) fn one_line(text: &str) -> String {
    line_safe(&text.replace("\r\n", "⏎ ").replace('\n', "⏎ "))
}

/// Formats the value of a group or a label on one line; an empty value becomes `(empty)`. Different values have different
/// names: text that looks like an escape or like the name of another value is escaped.
pub(crate) fn value_name(value: &str) -> String {
    match value {
        "" => "(empty)".to_owned(),
        "(empty)" | "(null)" => format!("\\u{{28}}{}", &value[1..]),
        _ => line_safe(&without_escapes(value)),
    }
}

/// Like [`value_name`], in backticks unless it is empty, and truncated like [`quoted`] text.
pub(crate) fn quoted_value(value: &str) -> String {
    if value.is_empty() { value_name(value) } else { quoted(&without_escapes(value)) }
}

/// Formats the value of a group like [`quoted_value`]; a missing value becomes `(null)`.
pub(crate) fn quoted_group(value: Option<&str>) -> String {
    value.map_or_else(|| "(null)".to_owned(), quoted_value)
}

/// Escapes the backslash of text that looks like an escape of [`printable`].
fn without_escapes(value: &str) -> String {
    value.replace("\\u{", "\\u{5c}u{")
}

/// Escapes characters in the strings of a JSON text that a terminal would interpret, as `\uXXXX`. Line breaks only occur
/// between values.
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

/// Whether a character is a control character, an invisible separator or a mark that changes the writing direction.
fn is_unsafe_to_print(character: char) -> bool {
    character.is_control()
        || matches!(character, '\u{ad}' | '\u{61c}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}')
        || matches!(character, '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e007f}')
}

/// Returns the candidate that a mistyped `text` most likely means, if any is similar enough.
pub fn suggest<'a>(text: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    if text.is_empty() || text.chars().count() > MAX_QUOTED_CHARACTERS {
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

/// Normalises case and `-`, `_` and spaces, the most likely mistakes, so that they do not count as differences.
fn normalised(text: &str) -> String {
    text.to_lowercase().replace(['-', ' '], "_")
}

/// Formats a number with thousands separators: `12,345`.
pub fn count(number: u64) -> String {
    indicatif::HumanCount(number).to_string()
}

/// Formats a number with its noun: `1 file`, `1,200 files`.
pub fn counted(number: u64, noun: &str) -> String {
    format!("{} {noun}{}", count(number), if number == 1 { "" } else { "s" })
}

/// Formats bytes with a decimal unit: `1.3 GB`.
pub fn bytes(bytes: u64) -> String {
    indicatif::DecimalBytes(bytes).to_string()
}

/// Formats a decimal fraction: `29 %` for 0.29, whose product with 100 is another number.
pub(crate) fn percent(fraction: f64) -> String {
    format!("{} %", (1e12 * fraction).round() / 1e10)
}

/// Formats seconds with one decimal.
pub fn seconds(time: Duration) -> String {
    format!("{:.1} s", time.as_secs_f64())
}

/// Formats a table as lines: the first column left-aligned, the others right-aligned, two spaces between them. Short rows lack
/// their last cells.
pub(crate) fn table(rows: &[Vec<String>]) -> Vec<String> {
    let width = |column: usize| {
        let cells = rows.iter().filter_map(|row| row.get(column));
        cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let line = |row: &Vec<String>| {
        let mut line = String::new();
        for (column, (cell, width)) in row.iter().zip(&widths).enumerate() {
            let _ = if column == 0 {
                write!(line, "{cell:width$}")
            } else {
                write!(line, "  {cell:>width$}")
            };
        }
        line.trim_end().to_owned()
    };
    rows.iter().map(line).collect()
}

pub(crate) fn shell_word(word: &str) -> String {
    let plain = |letter: char| letter.is_ascii_alphanumeric() || "-_./=,:@+".contains(letter);
    if !word.is_empty() && word.chars().all(plain) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', "'\\''"))
    }
}

pub fn sha256_hex(bytes: &[u8]) -> String {
    hex(&Sha256::digest(bytes))
}

/// Decodes the escapes (`%2F`) of addresses and of folder names.
pub fn unescaped(value: &str) -> String {
    let bytes = value.as_bytes();
    let mut text = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while at < bytes.len() {
        let digits = bytes.get(at + 1..at + 3).filter(|_| bytes[at] == b'%');
        let escaped = digits
            .filter(|digits| digits.iter().all(u8::is_ascii_hexdigit))
            .and_then(|digits| std::str::from_utf8(digits).ok())
            .and_then(|digits| u8::from_str_radix(digits, 16).ok());
        text.push(escaped.unwrap_or(bytes[at]));
        at += if escaped.is_some() { 3 } else { 1 };
    }
    String::from_utf8(text).unwrap_or_else(|_| value.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_is_aligned_and_has_no_blanks_at_the_end() {
        let row = |cells: &[&str]| cells.iter().map(ToString::to_string).collect::<Vec<_>>();
        let rows = [row(&["", "one", "two"]), row(&["längest", "1"]), row(&["b", "22", ""])];
        assert_eq!(table(&rows), ["         one  two", "längest    1", "b         22"]);
        assert!(table(&[]).is_empty());
    }

    #[test]
    fn percentages_are_those_of_decimal_fractions() {
        let written: Vec<String> = [0.29, 0.07, 0.145, 0.5, 1.0, 0.0001].map(percent).into();
        assert_eq!(written, ["29 %", "7 %", "14.5 %", "50 %", "100 %", "0.01 %"]);
    }

    #[test]
    fn empty_values_have_a_name() {
        assert_eq!(["", " ", "a\n"].map(value_name), ["(empty)", " ", "a\\u{a}"]);
    }

    #[test]
    fn different_values_have_different_names() {
        let values = ["a\n", "a\\u{a}", "a\\u{5c}u{a}", "", "(empty)", "\\u{28}empty)", "(null)"];
        let names: std::collections::HashSet<String> =
            values.iter().map(|of| value_name(of)).collect();
        assert_eq!(names.len(), values.len(), "{names:?}");
        assert!(!names.contains("(null)"), "the name of a missing value");
        assert_eq!(quoted_value("a\\u{a}"), "`a\\u{5c}u{a}`");
        assert_eq!(value_name("C:\\users\\x1"), "C:\\users\\x1");
    }

    #[test]
    fn shell_words_are_quoted_if_necessary() {
        for plain in ["a-b_c.d/e", "--set", "a=1,2", "s3://b/c"] {
            assert_eq!(shell_word(plain), plain);
        }
        assert_eq!(shell_word(""), "''");
        assert_eq!(shell_word("a b"), "'a b'");
        assert_eq!(shell_word("#a$b"), "'#a$b'");
        assert_eq!(shell_word("it's"), r"'it'\''s'");
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
        assert_eq!(quoted(&"x".repeat(1000)).chars().count(), MAX_QUOTED_CHARACTERS + 3);
    }

    #[test]
    fn control_characters_in_json_are_escaped() {
        let name = "a\u{1b}[2J\u{9b}31m\u{202e}\u{e0041}\nb";
        assert_eq!(line_safe(name), "a\\u{1b}[2J\\u{9b}31m\\u{202e}\\u{e0041}\\u{a}b");
        let value = serde_json::json!({ name: [name, "plain", 1] });
        let safe = json_safe(&serde_json::to_string_pretty(&value).unwrap());
        assert!(!safe.chars().any(|character| character != '\n' && is_unsafe_to_print(character)));
        assert_eq!(serde_json::from_str::<serde_json::Value>(&safe).unwrap(), value);
    }
}
