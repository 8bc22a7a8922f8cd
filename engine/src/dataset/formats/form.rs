//! What a line holds: JSON, or JSON in the second column of a table separated by tabs.

use arrow_schema::Fields;

use super::fits;
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

    /// Why a line is bad, if it is: it is not one object with the values of these columns. `strict`: an object may have no
    /// fields without a column.
    pub(super) fn problem(
        self,
        number: u64,
        line: &[u8],
        columns: &Fields,
        strict: bool,
    ) -> Option<RowProblem> {
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        let bad = |code, byte: usize, why: &str| {
            let message = format!("line {number}, column {}: {why}", byte + 1);
            Some(RowProblem { code, message })
        };
        let text = match std::str::from_utf8(line) {
            Ok(text) => text,
            Err(error) => {
                return bad("invalid_utf8", error.valid_up_to(), "bytes that are not UTF-8");
            }
        };
        let start = match self {
            Self::Json => 0,
            Self::Tsv => {
                let Some(tab) = memchr::memchr(b'\t', line) else {
                    let why = "there is no tab: the second column holds the JSON";
                    return bad("bad_line", line.len(), why);
                };
                tab + 1
            }
        };
        let json = &text[start..];
        let misfit = fits::check(json, columns, strict).err()?;
        bad("bad_line", start + misfit.at, &misfit.to_string())
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
    use arrow_schema::{DataType, Field};

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
        let columns = Fields::from(vec![Field::new("a", DataType::Int64, true)]);
        let of = |form: Form, line: &[u8]| match form.problem(7, line, &columns, false) {
            Some(RowProblem { code, message }) => format!("{code} {message}"),
            None => "fine".to_owned(),
        };
        let json = |line: &[u8]| of(Form::Json, line);
        assert_eq!(json(b"{\"a\": 1, \"b\": [2]}\r"), "fine");
        assert_eq!(json(b"{\"a\": }"), "bad_line line 7, column 7: expected value");
        assert_eq!(json(b"{\"a\": 1} x"), "bad_line line 7, column 10: trailing characters");
        assert_eq!(json(b" [1]"), "bad_line line 7, column 2: a JSON object is expected");
        assert_eq!(
            json(b"{\"a\": 1.5}"),
            "bad_line line 7, column 7: field `a`: int64 cannot hold `1.5`"
        );
        assert_eq!(json(b"{\"a\": 1.5, }"), "bad_line line 7, column 12: trailing comma");
        assert_eq!(
            json(b"{\"\xff\": 1}"),
            "invalid_utf8 line 7, column 3: bytes that are not UTF-8"
        );
        assert_eq!(of(Form::Tsv, b"key\t{\"a\": 1}"), "fine");
        assert_eq!(of(Form::Tsv, b"key\t{\"a\" 1}"), "bad_line line 7, column 10: expected `:`");
        assert_eq!(
            of(Form::Tsv, b"key\t{\"a\": \"1\"}"),
            "bad_line line 7, column 11: field `a`: int64 cannot hold `\"1\"`"
        );
        assert_eq!(
            of(Form::Tsv, b"{}"),
            "bad_line line 7, column 3: there is no tab: the second column holds the JSON"
        );
    }
}
