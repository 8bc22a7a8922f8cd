//! Text for people: what is safe to print, numbers and bytes that read well, the nearest name, digests as hexadecimal digits.

use std::fmt::Write as _;
use std::time::Duration;

use longsift_stages::contract::hex;
use sha2::{Digest, Sha256};

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

/// The value of a group or a label as people read it: text that stays on its line, and never nothing.
pub(crate) fn value_name(value: &str) -> String {
    if value.is_empty() { "(empty)".to_owned() } else { line_safe(value) }
}

/// The same in backticks, where there is something to put into them.
pub(crate) fn quoted_value(value: &str) -> String {
    if value.is_empty() { value_name(value) } else { quoted(value) }
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

/// A number with thousands separators: `12,345`.
pub fn count(number: u64) -> String {
    indicatif::HumanCount(number).to_string()
}

/// Bytes with a decimal unit: `1.3 GB`.
pub fn bytes(bytes: u64) -> String {
    indicatif::DecimalBytes(bytes).to_string()
}

/// Seconds with one decimal.
pub fn seconds(time: Duration) -> String {
    format!("{:.1} s", time.as_secs_f64())
}

/// A table as lines: the first column from the left, the others from the right, two spaces between them. A short row has no
/// cells in its last columns.
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

/// A word of a shell command, quoted where a shell would see more in it than a word.
pub(crate) fn shell_word(word: &str) -> String {
    let plain = |letter: char| letter.is_ascii_alphanumeric() || "-_./=,:@+".contains(letter);
    if !word.is_empty() && word.chars().all(plain) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', "'\\''"))
    }
}

/// The SHA-256 of `bytes`, 64 hexadecimal digits.
pub fn sha256_hex(bytes: &[u8]) -> String {
    hex(&Sha256::digest(bytes))
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
    fn a_value_without_a_letter_has_a_name() {
        assert_eq!(["", " ", "a\n"].map(value_name), ["(empty)", " ", "a\\u{a}"]);
    }

    #[test]
    fn a_word_of_a_shell_stays_one_word() {
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
