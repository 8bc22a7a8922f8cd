//! What a line holds: JSON, or JSON in the second column of a table separated by tabs.

use serde::de::IgnoredAny;

use super::shape::Shape;
use crate::dataset::problem::RowProblem;

/// The column of what stands before the first tab.
const KEY: &str = "tsv_key";

/// What a line holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::dataset) enum Form {
    /// A JSON object.
    Json,
    /// Anything without a tab, a tab, a JSON object.
    Tsv,
}

impl Form {
    /// A line, in words.
    pub(super) fn line(self) -> &'static str {
        match self {
            Self::Json => "a JSON object",
            Self::Tsv => "a key, a tab and a JSON object",
        }
    }

    /// Files of such lines, in words.
    pub(in crate::dataset) fn name(self) -> &'static str {
        match self {
            Self::Json => "jsonl",
            Self::Tsv => "tsv",
        }
    }

    /// The shape of a line; none where it is not of this form.
    pub(super) fn shape(self, line: &[u8]) -> Option<Shape> {
        match self {
            Self::Json => Shape::of_line(line),
            Self::Tsv => {
                let tab = memchr::memchr(b'\t', line)?;
                let key = Shape::of_text(KEY);
                Some(key.with(Shape::of_line(&line[tab + 1..])?))
            }
        }
    }

    /// Gives a decoder of JSON what it is to see of a line, in pieces.
    ///
    /// # Errors
    /// The line is not of this form; or what the decoder says.
    pub(super) fn feed<E>(
        self,
        line: &[u8],
        mut decode: impl FnMut(&[u8]) -> Result<(), E>,
    ) -> Result<(), Fed<E>> {
        if self == Self::Json {
            return decode(line).map_err(Fed::Refused);
        }
        let parts = memchr::memchr(b'\t', line).map(|tab| line.split_at(tab));
        let Some((key, json)) = parts else { return Err(Fed::NotOfTheForm) };
        let inside = json.trim_ascii().strip_prefix(b"{").map(<[u8]>::trim_ascii_start);
        let (Some(inside), Ok(key)) = (inside, std::str::from_utf8(key)) else {
            return Err(Fed::NotOfTheForm);
        };
        let key = serde_json::to_string(key).expect("a string");
        let comma = if inside.starts_with(b"}") { "" } else { "," };
        decode(format!("{{\"{KEY}\":{key}{comma}").as_bytes()).map_err(Fed::Refused)?;
        decode(inside).map_err(Fed::Refused)
    }

    /// Why a line is bad that a decoder refuses with the words of `refusal`.
    pub(super) fn problem(self, number: u64, line: &[u8], refusal: Option<&str>) -> RowProblem {
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        let bad = |code, place: String, why: &str| RowProblem {
            code,
            message: format!("{place}: {why}"),
        };
        let at = |byte: usize| format!("line {number}, column {}", byte + 1);
        if let Err(error) = std::str::from_utf8(line) {
            return bad("invalid_utf8", at(error.valid_up_to()), "bytes that are not UTF-8");
        }
        let start = match self {
            Self::Json => 0,
            Self::Tsv => match memchr::memchr(b'\t', line) {
                Some(tab) => tab + 1,
                None => {
                    return bad(
                        "bad_line",
                        format!("line {number}"),
                        "there is no tab: the second column holds the JSON",
                    );
                }
            },
        };
        let json = &line[start..];
        if let Err(error) = serde_json::from_slice::<IgnoredAny>(json) {
            let message = error.to_string();
            let why = message.split(" at line ").next().unwrap_or(&message);
            return bad("bad_line", at(start + error.column().saturating_sub(1)), why);
        }
        let blank = json.len() - json.trim_ascii_start().len();
        if json.get(blank) != Some(&b'{') {
            return bad("bad_line", at(start + blank), "a JSON object is expected");
        }
        let why = refusal.unwrap_or("the line is not one JSON object");
        bad("bad_line", format!("line {number}"), why.trim_start_matches("Json error: "))
    }
}

/// Why a line was not taken.
pub(super) enum Fed<E> {
    /// It is not of the form.
    NotOfTheForm,
    /// What the decoder says.
    Refused(E),
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(line: &str) -> Option<String> {
        let mut seen = Vec::new();
        let fed = Form::Tsv.feed(line.as_bytes(), |piece| {
            seen.extend_from_slice(piece);
            Ok::<(), ()>(())
        });
        fed.ok().map(|()| String::from_utf8(seen).unwrap())
    }

    #[test]
    fn the_key_of_a_table_is_a_field_before_the_others() {
        assert_eq!(seen("a\"b\t{\"x\": 1}\r").unwrap(), r#"{"tsv_key":"a\"b","x": 1}"#);
        assert_eq!(seen("\t { } ").unwrap(), r#"{"tsv_key":""}"#);
        assert_eq!((seen("{\"x\": 1}"), seen("key\t[1]")), (None, None));
    }

    #[test]
    fn a_bad_line_has_its_place_and_the_reason() {
        let of = |form: Form, line: &[u8]| {
            let RowProblem { code, message } = form.problem(7, line, Some("Json error: whilst"));
            format!("{code} {message}")
        };
        let json = |line: &[u8]| of(Form::Json, line);
        assert_eq!(json(b"{\"a\": }"), "bad_line line 7, column 7: expected value");
        assert_eq!(json(b"{\"a\": 1} x"), "bad_line line 7, column 10: trailing characters");
        assert_eq!(json(b" [1]"), "bad_line line 7, column 2: a JSON object is expected");
        assert_eq!(json(b"{\"a\": 1}"), "bad_line line 7: whilst");
        assert_eq!(
            json(b"{\"\xff\": 1}"),
            "invalid_utf8 line 7, column 3: bytes that are not UTF-8"
        );
        assert_eq!(of(Form::Tsv, b"key\t{\"a\" 1}"), "bad_line line 7, column 10: expected `:`");
        assert_eq!(
            of(Form::Tsv, b"{}"),
            "bad_line line 7: there is no tab: the second column holds the JSON"
        );
    }
}
