//! Whether a line of JSON is one object whose values are those of its columns, to the letter. The decoder of the columns is
//! looser: of `1.5` it makes the whole number 1, of `"8"` a number, and it passes over commas that are missing.

use std::borrow::Cow;
use std::fmt;
use std::ops::RangeInclusive;

use arrow_array::timezone::Tz;
use arrow_array::types::Date32Type;
use arrow_cast::parse::{Parser, string_to_datetime};
use arrow_schema::{DataType, Fields};
use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use serde_json::Value;
use serde_json::value::RawValue;

use super::type_names;
use crate::base::text::quoted;

/// The whole numbers that the decoder reads exactly where they are written with a fraction of zeros: it takes those for float64.
const EXACT: RangeInclusive<i128> = -(1 << 53)..=1 << 53;

/// Why a line does not fit its columns.
#[derive(Debug)]
pub(super) struct Misfit {
    /// The byte where it begins.
    pub(super) at: usize,
    /// The field that it is in: `meta.years[3]`; nothing for what is not JSON.
    field: String,
    why: String,
}

impl Misfit {
    fn new(at: usize, why: impl Into<String>) -> Self {
        Self { at, field: String::new(), why: why.into() }
    }

    fn in_field(mut self, name: &str) -> Self {
        let is_inside = !self.field.is_empty() && !self.field.starts_with('[');
        self.field.insert_str(0, if is_inside { "." } else { "" });
        self.field.insert_str(0, name);
        self
    }

    fn in_item(mut self, place: usize) -> Self {
        let dot = if self.field.is_empty() || self.field.starts_with('[') { "" } else { "." };
        self.field.insert_str(0, &format!("[{place}]{dot}"));
        self
    }
}

impl fmt::Display for Misfit {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.field.is_empty() {
            return formatter.write_str(&self.why);
        }
        write!(formatter, "field {}: {}", quoted(&self.field), self.why)
    }
}

/// Looks through a line. `strict`: objects may have no fields without a column.
///
/// # Errors
/// The first thing that is not JSON, or else the first that is not of its column.
pub(super) fn check(line: &str, columns: &Fields, strict: bool) -> Result<(), Misfit> {
    let looked = Looked { line, strict };
    let Members(members) = serde_json::from_str(line).map_err(|error| looked.no_json(&error))?;
    if ["\\ud", "\\uD"].iter().any(|surrogate| line.contains(surrogate)) {
        // Strings that no column holds are not looked into, and the decoder stumbles over half of a pair in them, too.
        serde_json::from_str::<Value>(line).map_err(|error| looked.no_json(&error))?;
    }
    looked.fields(&members, columns)
}

/// The fields of an object and their values as they are written, in their order.
struct Members<'a>(Vec<(String, &'a RawValue)>);

impl<'de> Deserialize<'de> for Members<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Object;
        impl<'de> Visitor<'de> for Object {
            type Value = Members<'de>;

            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("a JSON object is expected")
            }

            fn visit_map<M: MapAccess<'de>>(self, mut object: M) -> Result<Self::Value, M::Error> {
                let mut members = Vec::new();
                while let Some(member) = object.next_entry()? {
                    members.push(member);
                }
                Ok(Members(members))
            }
        }
        deserializer.deserialize_map(Object)
    }
}

/// A line that is looked through.
struct Looked<'a> {
    line: &'a str,
    strict: bool,
}

impl<'a> Looked<'a> {
    /// Where a part of the line begins.
    fn place(&self, part: &str) -> usize {
        part.as_ptr() as usize - self.line.as_ptr() as usize
    }

    /// What is said of a line that is not one object of JSON.
    fn no_json(&self, error: &serde_json::Error) -> Misfit {
        if error.is_data() {
            let blank = self.line.len() - self.line.trim_ascii_start().len();
            return Misfit::new(blank, "a JSON object is expected");
        }
        let message = error.to_string();
        let why = message.split(" at line ").next().unwrap_or(&message);
        Misfit::new(error.column().saturating_sub(1), why)
    }

    fn fields(&self, members: &[(String, &'a RawValue)], fields: &Fields) -> Result<(), Misfit> {
        let mut next = 0;
        for (name, value) in members {
            // Most objects have their fields in the order of the columns.
            let place = match fields.get(next) {
                Some(field) if field.name() == name => Some(next),
                _ => fields.iter().position(|field| field.name() == name),
            };
            match place {
                Some(place) => {
                    next = place + 1;
                    let data_type = fields[place].data_type();
                    self.value(value.get(), data_type).map_err(|misfit| misfit.in_field(name))?;
                }
                None if self.strict => {
                    let why = "there is no column for it: the first lines of the files do not have it; name the columns in `input.schema`";
                    return Err(Misfit::new(self.place(value.get()), why).in_field(name));
                }
                None => {}
            }
        }
        Ok(())
    }

    /// A value of a type, as it is written.
    fn value(&self, value: &'a str, data_type: &DataType) -> Result<(), Misfit> {
        let parsed = "what is within a line of JSON is JSON";
        match (value.as_bytes()[0], data_type) {
            (b'{', DataType::Struct(fields)) => {
                let Members(members) = serde_json::from_str(value).expect(parsed);
                return self.fields(&members, fields);
            }
            (b'{', DataType::Map(entries, _)) => {
                let Members(members) = serde_json::from_str(value).expect(parsed);
                let DataType::Struct(pair) = entries.data_type() else { return Ok(()) };
                return members.iter().try_for_each(|(name, value)| {
                    let found = self.value(value.get(), pair[1].data_type());
                    found.map_err(|misfit| misfit.in_field(name))
                });
            }
            (b'[', DataType::List(item)) => {
                let items: Vec<&RawValue> = serde_json::from_str(value).expect(parsed);
                return items.iter().enumerate().try_for_each(|(place, value)| {
                    let found = self.value(value.get(), item.data_type());
                    found.map_err(|misfit| misfit.in_item(place))
                });
            }
            _ if holds(data_type, value) => return Ok(()),
            _ => {}
        }
        let name = type_names::name(data_type);
        let name = name.split('<').next().unwrap_or(&name);
        Err(Misfit::new(self.place(value), format!("{name} cannot hold {}", quoted(value))))
    }
}

/// What a string of JSON says; none of another value.
fn text_of(value: &str) -> Option<Cow<'_, str>> {
    let inside = value.strip_prefix('"')?.strip_suffix('"')?;
    if inside.contains('\\') {
        serde_json::from_str(value).ok().map(Cow::Owned)
    } else {
        Some(Cow::Borrowed(inside))
    }
}

/// Whether a column of that type says the same as a value of JSON.
fn holds(data_type: &DataType, value: &str) -> bool {
    if value == "null" {
        return true;
    }
    match data_type {
        DataType::Utf8 | DataType::LargeUtf8 => value.starts_with('"'),
        DataType::Boolean => matches!(value, "true" | "false"),
        DataType::Int8 => is_whole::<i8>(value),
        DataType::Int16 => is_whole::<i16>(value),
        DataType::Int32 => is_whole::<i32>(value),
        DataType::Int64 => is_whole::<i64>(value),
        DataType::UInt8 => is_whole::<u8>(value),
        DataType::UInt16 => is_whole::<u16>(value),
        DataType::UInt32 => is_whole::<u32>(value),
        DataType::UInt64 => is_whole::<u64>(value),
        // These parse no string of JSON, and of its numbers those that are too large become infinite.
        DataType::Float32 => value.parse().is_ok_and(f32::is_finite),
        DataType::Float64 => value.parse().is_ok_and(f64::is_finite),
        DataType::Date32 => text_of(value).is_some_and(|text| Date32Type::parse(&text).is_some()),
        DataType::Timestamp(..) => text_of(value).is_some_and(|text| is_instant(&text)),
        // Objects and lists are looked into where they are expected.
        _ => false,
    }
}

/// Whether a value is a whole number that the type has; it may be written with a fraction of zeros.
fn is_whole<T: TryFrom<i128>>(value: &str) -> bool {
    let (digits, exact) = match value.split_once('.') {
        Some((digits, zeros)) if zeros.bytes().all(|zero| zero == b'0') => (digits, EXACT),
        Some(_) => return false,
        None => (value, i128::MIN..=i128::MAX),
    };
    digits.parse().is_ok_and(|number| exact.contains(&number) && T::try_from(number).is_ok())
}

fn is_instant(text: &str) -> bool {
    let utc: Tz = "+00:00".parse().expect("an offset");
    string_to_datetime(&utc, text).is_ok()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow_cast::display::array_value_to_string;
    use arrow_json::ReaderBuilder;
    use arrow_schema::{Field, Schema};
    use proptest::prelude::*;

    use super::*;

    fn columns(data_type: &str) -> Fields {
        vec![Field::new("x", type_names::parse(data_type).unwrap(), true)].into()
    }

    fn of(data_type: &str, value: &str) -> Result<(), Misfit> {
        check(&format!("{{\"x\": {value}}}"), &columns(data_type), true)
    }

    /// A value as the decoder of columns reads it.
    fn decoded(data_type: &str, value: &str) -> String {
        let schema = Arc::new(Schema::new(columns(data_type)));
        let mut decoder = ReaderBuilder::new(schema).build_decoder().unwrap();
        decoder.decode(format!("{{\"x\": {value}}}\n").as_bytes()).unwrap();
        array_value_to_string(decoder.flush().unwrap().unwrap().column(0), 0).unwrap()
    }

    #[test]
    fn a_value_fits_the_column_that_says_the_same() {
        let fitting = [
            ("int64", "9223372036854775807", "9223372036854775807"),
            ("int64", "-9223372036854775808", "-9223372036854775808"),
            ("int64", "-0", "0"),
            ("int64", "9007199254740992.00", "9007199254740992"),
            ("int8", "-128.0", "-128"),
            ("uint8", "255", "255"),
            ("uint64", "18446744073709551615", "18446744073709551615"),
            ("float64", "1", "1.0"),
            ("float64", "1e300", "1e300"),
            ("float64", "-0.0", "-0.0"),
            ("float32", "0.5e1", "5.0"),
            ("bool", "true", "true"),
            ("string", r#""8\u00e9\ud83d\ude00\n""#, "8\u{e9}\u{1f600}\n"),
            ("large_string", r#""""#, ""),
            ("date", r#""2024-02-29""#, "2024-02-29"),
            ("date", r#""2024\u002d02-29""#, "2024-02-29"),
            ("timestamp", r#""2024-02-29T12:00:00.5Z""#, "2024-02-29T12:00:00.500"),
            ("list<list<int8>>", "[[1], [], null]", "[[1], [], ]"),
            ("struct<a: int8, b: string>", r#"{"b": "c"}"#, "{a: , b: c}"),
            ("map<string, int8>", r#"{"b": 1, "c": null}"#, "{b: 1, c: }"),
        ];
        for (data_type, value, expected) in fitting {
            of(data_type, value).unwrap_or_else(|misfit| panic!("{data_type} {value}: {misfit}"));
            assert_eq!(decoded(data_type, value), expected, "{data_type} {value}");
            of(data_type, "null").unwrap();
        }
    }

    #[test]
    fn a_value_that_a_column_would_change_does_not_fit() {
        let refused = [
            (
                "int64",
                "1.5 -1.99 0.1 1e3 1E0 9007199254740993.0 9223372036854775808 \"8\" \"\\u0038\" true [1] {}",
            ),
            ("int8", "128 -129 127.5"),
            ("uint8", "2.7 256 -1"),
            ("uint64", "18446744073709551616 -1 1.00000000000000000000001"),
            ("float64", "\"1.5\" \"nan\" 1e999 -1e999 false [] \"inf\""),
            ("float32", "1e39 -3.5e38"),
            ("bool", "0 1 \"true\""),
            ("string", "1 1.5 true [1] {\"a\":1}"),
            ("date", "19000 1.5 \"2024-02-30\" \"\" true"),
            ("timestamp", "1700000000 \"yesterday\" \"2024-01-01T25:00:00\""),
            ("list<int64>", "1 \"1\" {} [0.9] [\"1\"] [[1]]"),
            ("list<list<int64>>", "[1] [[1.5]]"),
            ("struct<a: int64>", "1 [] {\"a\":1.5} {\"a\":\"1\"} {\"b\":1} {\"a\":1.5,\"a\":1}"),
            ("map<string, int64>", "1 [] {\"a\":1.5} {\"a\":\"1\"}"),
            ("list<string>", "\"a\" {} [1] [true]"),
        ];
        for (data_type, values) in refused {
            for value in values.split(' ') {
                assert!(of(data_type, value).is_err(), "{data_type} {value}");
            }
        }
    }

    #[test]
    fn what_does_not_fit_is_named_with_its_place() {
        let said = |columns: &str, line: &str| {
            let DataType::Struct(fields) =
                type_names::parse(&format!("struct<{columns}>")).unwrap()
            else {
                panic!()
            };
            let misfit = check(line, &fields, true).unwrap_err();
            format!("{}: {misfit}", misfit.at)
        };
        let meta = "meta: struct<years: list<struct<from: int32>>>";
        assert_eq!(
            said(meta, r#"{"meta": {"years": [null, {"from": "1"}]}}"#),
            "35: field `meta.years[1].from`: int32 cannot hold `\"1\"`"
        );
        assert_eq!(said(meta, r#" {"meta": [] }"#), "10: field `meta`: struct cannot hold `[]`");
        assert_eq!(
            said("a: list<list<float64>>", r#"{"a": [[1], [0.5, 1e999]]}"#),
            "18: field `a[1][1]`: float64 cannot hold `1e999`"
        );
        assert!(
            said(meta, r#"{"meta": {"b": 1}}"#)
                .starts_with("15: field `meta.b`: there is no column for it")
        );
        assert_eq!(said(meta, r#"{"b\ud800": 1}"#), "9: unexpected end of hex escape");
        assert_eq!(
            said(meta, "{\"meta\": \"a\u{1}\"}"),
            "10: control character (\\u0000-\\u001F) found while parsing a string"
        );
    }

    proptest! {
        /// Without columns everything that is JSON fits, and nothing else.
        #[test]
        fn what_is_json_is_what_is_json_to_others(
            changes in proptest::collection::vec((0_usize..90, 0_usize..3, 0_usize..20), 0..3),
        ) {
            let pieces = [
                "", " ", ",", ":", "{", "}", "[", "]", "\"", "\\", "\\u00e9", "\\ud83d", "\\ude00", "\u{1}", "1", "-", ".5",
                "e1", "null", "\u{e9}",
            ];
            let mut line = r#"{"a": [1, -2.5e3, {"b\n": "c\ud83d\ude00"}, []], "d": {}, "e" : null, "f":[true,false]}"#.to_owned();
            for (at, length, piece) in changes {
                let at = at.min(line.len());
                let end = (at + length).min(line.len());
                if line.is_char_boundary(at) && line.is_char_boundary(end) {
                    line.replace_range(at..end, pieces[piece]);
                }
            }
            let is_json = serde_json::from_str::<Value>(&line).is_ok_and(|value| value.is_object());
            prop_assert_eq!(check(&line, &Fields::empty(), false).is_ok(), is_json, "{}", line);
        }
    }
}
