//! Parses a line of JSON into exact column values. This is the only parser of lines: the library that builds the
//! columns receives values, not text.

use std::borrow::Cow;
use std::collections::HashSet;
use std::fmt::{self, Write};
use std::ops::RangeInclusive;

use arrow_array::timezone::Tz;
use arrow_array::types::Date32Type;
use arrow_cast::parse::{Parser, string_to_datetime};
use arrow_schema::{DataType, Fields};
use serde::de::{MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::value::RawValue;

use super::type_names::{self, UTC};
use crate::base::text::quoted;

/// Whole numbers that may be written with a zero fraction: other programs read those as float64.
const EXACT_FLOAT_RANGE: RangeInclusive<i128> = -(1 << 53)..=1 << 53;

#[derive(Debug)]
pub(super) struct Misfit {
    pub(super) at: usize,
    /// Path of the field, such as `meta.years[3]`; empty for a line that is not JSON.
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
}

impl fmt::Display for Misfit {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.field.is_empty() {
            return formatter.write_str(&self.why);
        }
        write!(formatter, "field {}: {}", quoted(&self.field), self.why)
    }
}

/// Value as its column stores it.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(untagged)]
pub(super) enum ColumnValue<'a> {
    Null,
    Bool(bool),
    Whole(i64),
    /// Whole number greater than `i64::MAX`.
    Unsigned(u64),
    Float32(f32),
    Float64(f64),
    Text(Cow<'a, str>),
    List(Vec<Self>),
    /// Fields in the order of the text, with different names.
    #[serde(serialize_with = "serialize_fields")]
    Object(Vec<(Cow<'a, str>, Self)>),
}

fn serialize_fields<S: Serializer>(
    fields: &[(Cow<'_, str>, ColumnValue<'_>)],
    serializer: S,
) -> Result<S::Ok, S::Error> {
    serializer.collect_map(fields.iter().map(|(name, value)| (name, value)))
}

/// Parses a line into the values of its columns. `strict`: a field without a column is an error.
pub(super) fn parse<'a>(
    line: &'a str,
    columns: &Fields,
    strict: bool,
) -> Result<Vec<(Cow<'a, str>, ColumnValue<'a>)>, Misfit> {
    let parser = LineParser { line, strict };
    let ObjectMembers(members) =
        serde_json::from_str(line).map_err(|error| parser.syntax_error(&error))?;
    // Half a surrogate pair is invalid JSON even in strings without a column.
    if let Some(at) = unpaired_surrogate(line) {
        return Err(Misfit::new(at, UNPAIRED));
    }
    parser.fields(members, columns)
}

/// Returns the position of the first escape in valid JSON that is half a surrogate pair.
fn unpaired_surrogate(line: &str) -> Option<usize> {
    let escaped = |at: usize| {
        let digits = line.get(at..)?.strip_prefix("\\u")?.get(..4)?;
        u16::from_str_radix(digits, 16).ok()
    };
    let mut at = 0;
    while let Some(distance) = line[at..].find('\\') {
        at += distance;
        at += match escaped(at) {
            Some(0xD800..=0xDBFF) if matches!(escaped(at + 6), Some(0xDC00..=0xDFFF)) => 12,
            Some(0xD800..=0xDFFF) => return Some(at),
            Some(_) => 6,
            None => 2,
        };
    }
    None
}

/// Fields of an object with their values as written, in order.
struct ObjectMembers<'a>(Vec<(String, &'a RawValue)>);

impl<'de> Deserialize<'de> for ObjectMembers<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Object;
        impl<'de> Visitor<'de> for Object {
            type Value = ObjectMembers<'de>;

            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("expected a JSON object")
            }

            fn visit_map<M: MapAccess<'de>>(self, mut object: M) -> Result<Self::Value, M::Error> {
                let mut members = Vec::new();
                while let Some(member) = object.next_entry()? {
                    members.push(member);
                }
                Ok(ObjectMembers(members))
            }
        }
        deserializer.deserialize_map(Object)
    }
}

/// Messages of the parser about an unpaired surrogate.
const SURROGATE: [&str; 2] =
    ["unexpected end of hex escape", "lone leading surrogate in hex escape"];
const UNPAIRED: &str =
    "a surrogate (`\\ud800` to `\\udfff`) is not part of a pair, so the string is not Unicode";

struct LineParser<'a> {
    line: &'a str,
    strict: bool,
}

impl<'a> LineParser<'a> {
    fn position(&self, part: &str) -> usize {
        part.as_ptr() as usize - self.line.as_ptr() as usize
    }

    fn syntax_error(&self, error: &serde_json::Error) -> Misfit {
        if error.is_data() {
            let blank = self.line.len() - self.line.trim_ascii_start().len();
            return Misfit::new(blank, "expected a JSON object");
        }
        let at = error.column().saturating_sub(1);
        let message = error.to_string();
        let why = message.split(" at line ").next().unwrap_or(&message);
        match not_a_number(self.line, at) {
            Some(name) => Misfit::new(
                at,
                format!(
                    "`{name}` is not valid JSON (Python's json.dumps writes it); write null instead"
                ),
            ),
            None => Misfit::new(at, if SURROGATE.contains(&why) { UNPAIRED } else { why }),
        }
    }

    fn fields(
        &self,
        members: Vec<(String, &'a RawValue)>,
        fields: &Fields,
    ) -> Result<Vec<(Cow<'a, str>, ColumnValue<'a>)>, Misfit> {
        // `end`: columns from here on have no value yet.
        let (mut next, mut end) = (0, 0);
        let mut values: Vec<(Cow<'a, str>, _)> = Vec::with_capacity(members.len());
        for (name, value) in members {
            // Most objects have their fields in column order.
            let index = match fields.get(next) {
                Some(field) if *field.name() == name => Some(next),
                _ => fields.iter().position(|field| *field.name() == name),
            };
            match index {
                Some(index) => {
                    if index < end && values.iter().any(|(known, _)| *known == name) {
                        let why = "the object has this key twice";
                        return Err(Misfit::new(self.position(value.get()), why).in_field(&name));
                    }
                    next = index + 1;
                    end = end.max(next);
                    let data_type = fields[index].data_type();
                    let value = self.value(value.get(), data_type);
                    let value = value.map_err(|misfit| misfit.in_field(&name))?;
                    values.push((Cow::Owned(name), value));
                }
                None if self.strict => {
                    let why = "it has no column because it does not occur in the first lines of the files; list the columns in `input.schema`";
                    return Err(Misfit::new(self.position(value.get()), why).in_field(&name));
                }
                None => {}
            }
        }
        Ok(values)
    }

    fn value(&self, value: &'a str, data_type: &DataType) -> Result<ColumnValue<'a>, Misfit> {
        let parsed = "a part of valid JSON is valid JSON";
        match (value.as_bytes()[0], data_type) {
            (b'{', DataType::Struct(fields)) => {
                let ObjectMembers(members) = serde_json::from_str(value).expect(parsed);
                return self.fields(members, fields).map(ColumnValue::Object);
            }
            (b'{', DataType::Map(entries, _)) => {
                let ObjectMembers(members) = serde_json::from_str(value).expect(parsed);
                let DataType::Struct(pair) = entries.data_type() else {
                    return Ok(ColumnValue::Null);
                };
                let mut names = HashSet::new();
                let twice = members.iter().find(|(name, _)| !names.insert(name.as_str()));
                if let Some((name, value)) = twice {
                    let why = "the object has this key twice";
                    return Err(Misfit::new(self.position(value.get()), why).in_field(name));
                }
                let entry = |(name, value): (String, &'a RawValue)| {
                    let found = self.value(value.get(), pair[1].data_type());
                    let found = found.map_err(|misfit| misfit.in_field(&name))?;
                    Ok((Cow::Owned(name), found))
                };
                let entries = members.into_iter().map(entry).collect::<Result<_, _>>();
                return entries.map(ColumnValue::Object);
            }
            (b'[', DataType::List(item)) => {
                let items: Vec<&RawValue> = serde_json::from_str(value).expect(parsed);
                let item = |(index, value): (usize, &&'a RawValue)| {
                    let found = self.value(value.get(), item.data_type());
                    found.map_err(|misfit| misfit.in_field(&format!("[{index}]")))
                };
                let items = items.iter().enumerate().map(item).collect::<Result<_, _>>();
                return items.map(ColumnValue::List);
            }
            _ => {}
        }
        scalar(data_type, value).ok_or_else(|| {
            let name = type_names::name(data_type);
            let name = name.split('<').next().unwrap_or(&name);
            let exactly = if is_inexact(data_type, value) { " exactly" } else { "" };
            let mut why = format!("{name} cannot hold {}{exactly}", quoted(value));
            if let DataType::Timestamp(unit, zone) = data_type {
                let other = zone.is_none().then(|| UTC.into());
                let other = DataType::Timestamp(*unit, other);
                if scalar(&other, value).is_some() {
                    let has = if zone.is_some() { "no" } else { "an" };
                    let other = type_names::name(&other);
                    let _ =
                        write!(why, ", which has {has} offset from UTC: name the type `{other}`");
                }
            }
            Misfit::new(self.position(value), why)
        })
    }
}

fn not_a_number(line: &str, at: usize) -> Option<&'static str> {
    let names = ["NaN", "-Infinity", "Infinity"];
    // `at` is the first character that does not fit, which is the second one of `-Infinity`.
    let starts = [at.checked_sub(1), Some(at)].into_iter().flatten();
    let mut parts = starts.filter_map(|start| line.get(start..));
    parts.find_map(|part| names.into_iter().find(|name| part.starts_with(name)))
}

/// Returns the text of a JSON string; `None` for other values.
fn string_value(value: &str) -> Option<Cow<'_, str>> {
    let inside = value.strip_prefix('"')?.strip_suffix('"')?;
    if inside.contains('\\') {
        serde_json::from_str(value).ok().map(Cow::Owned)
    } else {
        Some(Cow::Borrowed(inside))
    }
}

/// Parses a value without parts as a column of that type; `None` if the conversion would lose information.
fn scalar<'a>(data_type: &DataType, value: &'a str) -> Option<ColumnValue<'a>> {
    if value == "null" {
        return Some(ColumnValue::Null);
    }
    match data_type {
        DataType::Utf8 | DataType::LargeUtf8 => string_value(value).map(ColumnValue::Text),
        DataType::Boolean => {
            matches!(value, "true" | "false").then(|| ColumnValue::Bool(value == "true"))
        }
        DataType::Int8 => whole::<i8>(value),
        DataType::Int16 => whole::<i16>(value),
        DataType::Int32 => whole::<i32>(value),
        DataType::Int64 => whole::<i64>(value),
        DataType::UInt8 => whole::<u8>(value),
        DataType::UInt16 => whole::<u16>(value),
        DataType::UInt32 => whole::<u32>(value),
        DataType::UInt64 => whole::<u64>(value),
        DataType::Float32 | DataType::Float64 if is_inexact(data_type, value) => None,
        // Numbers that are too large would become infinite.
        DataType::Float32 => {
            value.parse().ok().filter(|value: &f32| value.is_finite()).map(ColumnValue::Float32)
        }
        DataType::Float64 => {
            value.parse().ok().filter(|value: &f64| value.is_finite()).map(ColumnValue::Float64)
        }
        DataType::Date32 => {
            // The parser ignores a time of day.
            let is_date = |text: &Cow<'_, str>| {
                !text.contains(['T', ' ']) && Date32Type::parse(text).is_some()
            };
            string_value(value).filter(is_date).map(ColumnValue::Text)
        }
        DataType::Timestamp(_, zone) => string_value(value)
            .filter(|text| is_instant(text) && has_offset(text) == zone.is_some())
            .map(ColumnValue::Text),
        // Objects and lists are parsed by the caller.
        _ => None,
    }
}

/// Parses a whole number of type `T`, possibly written with a zero fraction.
fn whole<T: TryFrom<i128>>(value: &str) -> Option<ColumnValue<'static>> {
    let (digits, exact) = match value.split_once('.') {
        Some((digits, zeros)) if zeros.bytes().all(|zero| zero == b'0') => {
            (digits, EXACT_FLOAT_RANGE)
        }
        Some(_) => return None,
        None => (value, i128::MIN..=i128::MAX),
    };
    let number: i128 = digits.parse().ok()?;
    if !exact.contains(&number) || T::try_from(number).is_err() {
        return None;
    }
    let small = i64::try_from(number).map(ColumnValue::Whole);
    small.or_else(|_| u64::try_from(number).map(ColumnValue::Unsigned)).ok()
}

/// Whether a value is a whole number that a floating-point number of the type can only round.
fn is_inexact(data_type: &DataType, value: &str) -> bool {
    let digits = value.strip_prefix('-').unwrap_or(value);
    if digits.is_empty() || !digits.bytes().all(|digit| digit.is_ascii_digit()) {
        return false;
    }
    let nearest = match data_type {
        DataType::Float32 => value.parse::<f32>().map(f64::from),
        DataType::Float64 => value.parse::<f64>(),
        _ => return false,
    };
    // A number that does not fit an i128 counts as rounded.
    let written = value.parse::<i128>();
    !matches!((nearest, written), (Ok(nearest), Ok(written)) if nearest as i128 == written)
}

/// Whether a text is an instant with at most microsecond precision. A leap second would become the next day.
fn is_instant(text: &str) -> bool {
    let utc: Tz = "+00:00".parse().expect("an offset");
    let nanoseconds =
        string_to_datetime(&utc, text).map(|instant| instant.timestamp_subsec_nanos());
    nanoseconds.is_ok_and(|nanoseconds| nanoseconds < 1_000_000_000 && nanoseconds % 1000 == 0)
}

/// Whether an instant has an offset from UTC: then it is the same everywhere.
fn has_offset(text: &str) -> bool {
    let instant = |zone: &str| string_to_datetime(&zone.parse::<Tz>().expect("an offset"), text);
    matches!((instant("+00:00"), instant("+01:00")), (Ok(one), Ok(other)) if one == other)
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

    fn check(data_type: &str, value: &str) -> Result<(), Misfit> {
        parse(&format!("{{\"x\": {value}}}"), &columns(data_type), true).map(drop)
    }

    /// Returns a value as the column stores it.
    fn decoded(data_type: &str, value: &str) -> String {
        let columns = columns(data_type);
        let line = format!("{{\"x\": {value}}}");
        let row = parse(&line, &columns, true).map(ColumnValue::Object).unwrap();
        let mut decoder =
            ReaderBuilder::new(Arc::new(Schema::new(columns))).build_decoder().unwrap();
        decoder.serialize(&[row]).unwrap();
        array_value_to_string(decoder.flush().unwrap().unwrap().column(0), 0).unwrap()
    }

    #[test]
    fn values_fit_columns_that_hold_them_exactly() {
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
            ("float64", "-0", "-0.0"),
            ("float64", "9007199254740992", "9007199254740992.0"),
            ("float64", "1152921504606846976", "1.152921504606847e18"),
            ("float64", "0.1000000000000000055511151231257827", "0.1"),
            ("float32", "16777216", "16777216.0"),
            ("float32", "0.1", "0.1"),
            ("uint64", "9223372036854775808", "9223372036854775808"),
            ("string", r#""\ud842\udfb7\uDBFF\uDFFD""#, "\u{20bb7}\u{10fffd}"),
            ("map<string, int8>", r#"{"\ud840\udc00": 1}"#, "{\u{20000}: 1}"),
            ("float32", "0.5e1", "5.0"),
            ("bool", "true", "true"),
            ("string", r#""8\u00e9\ud83d\ude00\n""#, "8\u{e9}\u{1f600}\n"),
            ("large_string", r#""""#, ""),
            ("date", r#""2024-02-29""#, "2024-02-29"),
            ("date", r#""2024\u002d02-29""#, "2024-02-29"),
            ("timestamp", r#""2024-02-29T12:00:00.5""#, "2024-02-29T12:00:00.500"),
            ("timestamptz", r#""2024-02-29T12:00:00.5Z""#, "2024-02-29T12:00:00.500Z"),
            ("timestamptz", r#""2024-02-29 14:00:00+02:00""#, "2024-02-29T12:00:00Z"),
            ("list<list<int8>>", "[[1], [], null]", "[[1], [], ]"),
            ("struct<a: int8, b: string>", r#"{"b": "c"}"#, "{a: , b: c}"),
            ("map<string, int8>", r#"{"b": 1, "c": null}"#, "{b: 1, c: }"),
        ];
        for (data_type, value, expected) in fitting {
            check(data_type, value)
                .unwrap_or_else(|misfit| panic!("{data_type} {value}: {misfit}"));
            assert_eq!(decoded(data_type, value), expected, "{data_type} {value}");
            check(data_type, "null").unwrap();
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
            (
                "float64",
                "\"1.5\" \"nan\" 1e999 -1e999 false [] \"inf\" 9007199254740993 -1152921504606846977 123456789012345678901234567890123456789012345",
            ),
            ("float32", "1e39 -3.5e38 16777217"),
            ("bool", "0 1 \"true\""),
            ("string", "1 1.5 true [1] {\"a\":1}"),
            ("date", "19000 1.5 \"2024-02-30\" \"\" true \"2024-02-29T12:00:00\""),
            (
                "timestamp",
                "1700000000 \"yesterday\" \"2024-01-01T25:00:00\" \"2024-01-01T12:00:00.0000001\" \"2016-12-31T23:59:60\" \"2024-01-01T12:00:00Z\" \"2024-01-01T12:00:00+02:00\"",
            ),
            (
                "timestamptz",
                "1700000000 \"2024-01-01T12:00:00\" \"2024-01-01\" \"2016-12-31T23:59:60Z\" \"2016-12-31T23:59:60.5Z\" \"2017-01-01T01:59:60+02:00\"",
            ),
            ("list<int64>", "1 \"1\" {} [0.9] [\"1\"] [[1]]"),
            ("list<list<int64>>", "[1] [[1.5]]"),
            (
                "struct<a: int64>",
                "1 [] {\"a\":1.5} {\"a\":\"1\"} {\"b\":1} {\"a\":1.5,\"a\":1} {\"a\":1,\"a\":1}",
            ),
            (
                "struct<a: int8, b: int8, c: int8>",
                "{\"c\":1,\"a\":1,\"c\":1} {\"b\":1,\"a\":1,\"\\u0062\":1}",
            ),
            (
                "map<string, int64>",
                "1 [] {\"a\":1.5} {\"a\":\"1\"} {\"a\":1,\"a\":1} {\"a\":1,\"b\":2,\"\\u0061\":2}",
            ),
            ("list<string>", "\"a\" {} [1] [true]"),
        ];
        for (data_type, values) in refused {
            for value in values.split(' ') {
                assert!(check(data_type, value).is_err(), "{data_type} {value}");
            }
        }
    }

    #[test]
    fn misfits_have_a_field_and_an_offset() {
        let message = |columns: &str, line: &str| {
            let DataType::Struct(fields) =
                type_names::parse(&format!("struct<{columns}>")).unwrap()
            else {
                panic!()
            };
            let misfit = parse(line, &fields, true).unwrap_err();
            format!("{}: {misfit}", misfit.at)
        };
        // A field without a column may hold any valid JSON, also next to an escaped pair.
        let other = r#"{"other": 1e999, "a": "\ud83d\ude42", "x": ""}"#;
        assert!(parse(other, &columns("string"), false).is_ok_and(|values| values.len() == 1));
        let meta = "meta: struct<years: list<struct<from: int32>>>";
        assert_eq!(
            message(meta, r#"{"meta": {"years": [null, {"from": "1"}]}}"#),
            "35: field `meta.years[1].from`: int32 cannot hold `\"1\"`"
        );
        assert_eq!(message(meta, r#" {"meta": [] }"#), "10: field `meta`: struct cannot hold `[]`");
        assert_eq!(
            message("a: list<list<float64>>", r#"{"a": [[1], [0.5, 1e999]]}"#),
            "18: field `a[1][1]`: float64 cannot hold `1e999`"
        );
        assert!(
            message(meta, r#"{"meta": {"b": 1}}"#)
                .starts_with("15: field `meta.b`: it has no column because")
        );
        let number = "x: float64";
        assert_eq!(
            message(number, r#"{"x": 1152921504606846977}"#),
            "6: field `x`: float64 cannot hold `1152921504606846977` exactly"
        );
        assert_eq!(
            message("t: timestamp", r#"{"t": "2024-01-01T12:00:00Z"}"#),
            "6: field `t`: timestamp cannot hold `\"2024-01-01T12:00:00Z\"`, which has an offset from UTC: name the type `timestamptz`"
        );
        assert_eq!(
            message("a: int8, b: int8", r#"{"a": 1, "b": 2, "a": 1}"#),
            "22: field `a`: the object has this key twice"
        );
        for name in ["NaN", "Infinity", "-Infinity"] {
            let misfit = message(number, &format!("{{\"x\": {name}}}"));
            assert!(misfit.contains(&format!("`{name}` is not valid JSON")), "{misfit}");
        }
        assert_eq!(message(meta, r#"{"b\ud800": 1}"#), format!("9: {UNPAIRED}"));
        assert_eq!(message(meta, r#"{"b\udfb7": 1}"#), format!("8: {UNPAIRED}"));
        assert_eq!(
            message(meta, "{\"meta\": \"a\u{1}\"}"),
            "10: control character (\\u0000-\\u001F) found while parsing a string"
        );
    }

    proptest! {
        /// Without columns, all JSON fits, and nothing else.
        #[test]
        fn accepts_the_same_json_as_serde_json(
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
            let is_json = serde_json::from_str::<serde_json::Value>(&line).is_ok_and(|value| value.is_object());
            prop_assert_eq!(parse(&line, &Fields::empty(), false).is_ok(), is_json, "{}", line);
        }
    }
}
