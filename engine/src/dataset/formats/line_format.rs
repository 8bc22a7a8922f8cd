//! Content of a line: JSON, or JSON in the second column of a tab-separated table.

use std::borrow::Cow;

use arrow_schema::Fields;
use longsift_stages::contract::RowError;

use super::fits::{self, ColumnValue};
use super::shape::JsonShape;
use crate::dataset::types::is_text;

/// Name of the column before the first tab.
const KEY: &str = "tsv_key";

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum LineFormat {
    Json,
    /// Key without a tab, a tab, a JSON object.
    Tsv,
}

impl LineFormat {
    pub(super) fn line(self) -> &'static str {
        match self {
            Self::Json => "a JSON object",
            Self::Tsv => "a key, a tab and a JSON object",
        }
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Json => "jsonl",
            Self::Tsv => "tsv",
        }
    }

    /// Returns the shape of a line; `None` if the line does not have this form.
    pub(super) fn shape(self, line: &[u8]) -> Option<JsonShape> {
        match self {
            Self::Json => JsonShape::from_line(line),
            Self::Tsv => {
                let tab = memchr::memchr(b'\t', line)?;
                let key = JsonShape::from_text_field(KEY);
                Some(key.merge(JsonShape::from_line(&line[tab + 1..])?))
            }
        }
    }

    /// Whether a line has values of these columns only, and they fit.
    pub(crate) fn fits(self, line: &str, columns: &Fields) -> bool {
        self.row(1, line.as_bytes(), columns, true).is_ok()
    }

    /// Parses a line into an object with the values of these columns. `strict`: a field without a column is an error.
    pub(super) fn row<'a>(
        self,
        number: u64,
        line: &'a [u8],
        columns: &Fields,
        strict: bool,
    ) -> Result<ColumnValue<'a>, RowError> {
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        let bad = |code, byte: usize, why: &str| {
            let message = format!("line {number}, column {}: {why}", byte + 1);
            RowError { code, message }
        };
        let text = std::str::from_utf8(line)
            .map_err(|error| bad("invalid_utf8", error.valid_up_to(), "invalid UTF-8"))?;
        if text.starts_with('\u{feff}') {
            let why = "a byte order mark (U+FEFF) after the first line; remove it";
            return Err(bad("bad_line", 0, why));
        }
        let (mut fields, json) = match self {
            Self::Json => (Vec::new(), text),
            Self::Tsv => {
                let (key, json) = text.split_once('\t').ok_or_else(|| {
                    let why = "expected a tab between key and JSON";
                    bad("bad_line", line.len(), why)
                })?;
                let column = columns.iter().find(|column| column.name() == KEY);
                if column.is_some_and(|column| !is_text(column.data_type())) {
                    return Err(bad(
                        "bad_line",
                        0,
                        "the key is a string, but its column has another type",
                    ));
                }
                let key =
                    column.map(|_| (Cow::Borrowed(KEY), ColumnValue::Text(Cow::Borrowed(key))));
                (key.into_iter().collect(), json)
            }
        };
        let start = text.len() - json.len();
        let values = fits::parse(json, columns, strict);
        let values =
            values.map_err(|misfit| bad("bad_line", start + misfit.at, &misfit.to_string()))?;
        if !fields.is_empty() && values.iter().any(|(name, _)| name == KEY) {
            let why = "the object has the field `tsv_key`, which is the column of the key";
            return Err(bad("bad_line", start, why));
        }
        fields.extend(values);
        Ok(ColumnValue::Object(fields))
    }
}

#[cfg(test)]
mod tests {
    use arrow_schema::{DataType, Field};

    use super::*;

    #[test]
    fn the_tsv_key_is_the_first_field() {
        let columns = ["tsv_key", "x"].map(|name| Field::new(name, DataType::Utf8, true));
        let columns = Fields::from(columns.to_vec());
        let row = |line: &'static str| {
            let row = LineFormat::Tsv.row(1, line.as_bytes(), &columns, true);
            row.map(|row| serde_json::to_string(&row).unwrap()).map_err(|problem| problem.message)
        };
        assert_eq!(row("a\"b\t{\"x\": \"1\"}\r").unwrap(), r#"{"tsv_key":"a\"b","x":"1"}"#);
        assert_eq!(row("\t { } ").unwrap(), r#"{"tsv_key":""}"#);
        assert!(row("{\"x\": 1}").unwrap_err().contains("expected a tab"));
        let twice = row("key\t{\"x\": \"1\", \"tsv_key\": \"2\"}").unwrap_err();
        assert!(twice.contains("column 5: the object has the field `tsv_key`"), "{twice}");
        assert!(row("key\t[1]").unwrap_err().contains("expected a JSON object"));
    }

    #[test]
    fn a_bad_line_has_its_number_and_the_reason() {
        let columns = Fields::from(vec![Field::new("a", DataType::Int64, true)]);
        let of = |line_format: LineFormat, line: &[u8]| match line_format
            .row(7, line, &columns, false)
        {
            Err(RowError { code, message }) => format!("{code} {message}"),
            Ok(_) => "fine".to_owned(),
        };
        let json = |line: &[u8]| of(LineFormat::Json, line);
        assert_eq!(json(b"{\"a\": 1, \"b\": [2]}\r"), "fine");
        assert_eq!(json(b"{\"a\": }"), "bad_line line 7, column 7: expected value");
        assert_eq!(json(b"{\"a\": 1} x"), "bad_line line 7, column 10: trailing characters");
        assert_eq!(json(b" [1]"), "bad_line line 7, column 2: expected a JSON object");
        assert_eq!(
            json(b"{\"a\": 1.5}"),
            "bad_line line 7, column 7: field `a`: int64 cannot hold `1.5`"
        );
        assert_eq!(json(b"{\"a\": 1.5, }"), "bad_line line 7, column 12: trailing comma");
        assert_eq!(json(b"{\"\xff\": 1}"), "invalid_utf8 line 7, column 3: invalid UTF-8");
        assert_eq!(
            json("\u{feff}{\"a\": 1}".as_bytes()),
            "bad_line line 7, column 1: a byte order mark (U+FEFF) after the first line; remove it"
        );
        assert_eq!(of(LineFormat::Tsv, b"key\t{\"a\": 1}"), "fine");
        assert_eq!(
            of(LineFormat::Tsv, b"key\t{\"a\" 1}"),
            "bad_line line 7, column 10: expected `:`"
        );
        assert_eq!(
            of(LineFormat::Tsv, b"key\t{\"a\": \"1\"}"),
            "bad_line line 7, column 11: field `a`: int64 cannot hold `\"1\"`"
        );
        assert_eq!(
            of(LineFormat::Tsv, b"{}"),
            "bad_line line 7, column 3: expected a tab between key and JSON"
        );
    }
}
