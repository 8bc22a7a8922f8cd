//! Whether a line of JSON is one object whose values are those of its columns, to the letter. The decoder of the columns is
//! looser: of `1.5` it makes the whole number 1, of `"8"` a number, and it passes over commas that are missing.

use std::borrow::Cow;
use std::fmt;
use std::ops::RangeInclusive;

use arrow_array::timezone::Tz;
use arrow_array::types::Date32Type;
use arrow_cast::parse::{Parser, string_to_datetime};
use arrow_schema::{DataType, Fields};

use super::type_names;
use crate::base::text::quoted;

/// The whole numbers that the decoder reads exactly where they are written with a fraction of zeros: it takes those for float64.
const EXACT: RangeInclusive<i128> = -(1 << 53)..=1 << 53;

/// What of a line does not fit.
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
/// The first thing that is not JSON or not of its column.
pub(super) fn check(line: &str, columns: &Fields, strict: bool) -> Result<(), Misfit> {
    let mut scan = Scan { line, at: 0, strict };
    scan.blank();
    if scan.peek() != Some(b'{') {
        return Err(Misfit::new(scan.at, "a JSON object is expected"));
    }
    scan.object(columns)?;
    scan.blank();
    if scan.at < line.len() {
        return Err(Misfit::new(scan.at, "trailing characters"));
    }
    Ok(())
}

/// A place in a line. What reads a value begins at its first byte and ends behind its last.
struct Scan<'a> {
    line: &'a str,
    at: usize,
    strict: bool,
}

impl<'a> Scan<'a> {
    fn peek(&self) -> Option<u8> {
        self.line.as_bytes().get(self.at).copied()
    }

    fn eat(&mut self, byte: u8) -> bool {
        let is_there = self.peek() == Some(byte);
        self.at += usize::from(is_there);
        is_there
    }

    fn expect(&mut self, byte: u8) -> Result<(), Misfit> {
        let is_there = self.eat(byte);
        is_there
            .then_some(())
            .ok_or_else(|| Misfit::new(self.at, format!("expected `{}`", char::from(byte))))
    }

    fn blank(&mut self) {
        while matches!(self.peek(), Some(b' ' | b'\t' | b'\n' | b'\r')) {
            self.at += 1;
        }
    }

    /// A value of a type.
    fn value(&mut self, data_type: &DataType) -> Result<(), Misfit> {
        match (self.peek(), data_type) {
            (Some(b'{'), DataType::Struct(fields)) => return self.object(fields),
            (Some(b'{'), DataType::Map(entries, _)) => {
                if let DataType::Struct(pair) = entries.data_type() {
                    return self.members(|scan, name, _| {
                        scan.value(pair[1].data_type()).map_err(|misfit| misfit.in_field(name))
                    });
                }
            }
            (Some(b'['), DataType::List(item)) => return self.list(item.data_type()),
            _ => {}
        }
        let start = self.at;
        self.skip()?;
        let value = &self.line[start..self.at];
        if holds(data_type, value) {
            return Ok(());
        }
        let name = type_names::name(data_type);
        let name = name.split('<').next().unwrap_or(&name);
        Err(Misfit::new(start, format!("{name} cannot hold {}", quoted(value))))
    }

    fn object(&mut self, fields: &Fields) -> Result<(), Misfit> {
        let mut next = 0;
        self.members(|scan, name, at| {
            // Most objects have their fields in the order of the columns.
            let place = match fields.get(next) {
                Some(field) if field.name() == name => Some(next),
                _ => fields.iter().position(|field| field.name() == name),
            };
            match place {
                Some(place) => {
                    next = place + 1;
                    scan.value(fields[place].data_type()).map_err(|misfit| misfit.in_field(name))
                }
                None if scan.strict => {
                    let why = "there is no column for it: the first lines of the files do not have it; name the columns in `input.schema`";
                    Err(Misfit::new(at, why).in_field(name))
                }
                None => scan.skip(),
            }
        })
    }

    /// An object: of each field its name and where that begins, with the scan at its value.
    fn members(
        &mut self,
        mut member: impl FnMut(&mut Self, &str, usize) -> Result<(), Misfit>,
    ) -> Result<(), Misfit> {
        self.expect(b'{')?;
        self.blank();
        if self.eat(b'}') {
            return Ok(());
        }
        loop {
            let at = self.at;
            let name = unescaped(self.name()?);
            member(self, &name, at)?;
            self.blank();
            if self.eat(b'}') {
                return Ok(());
            }
            self.expect(b',')?;
            self.blank();
        }
    }

    fn list(&mut self, item: &DataType) -> Result<(), Misfit> {
        self.expect(b'[')?;
        self.blank();
        if self.eat(b']') {
            return Ok(());
        }
        for place in 0.. {
            self.value(item).map_err(|misfit| misfit.in_item(place))?;
            self.blank();
            if self.eat(b']') {
                break;
            }
            self.expect(b',')?;
            self.blank();
        }
        Ok(())
    }

    /// Any value, without recursion: what has no column may nest as deep as it likes.
    fn skip(&mut self) -> Result<(), Misfit> {
        let mut open = Vec::new();
        loop {
            let end = match self.peek() {
                Some(b'{') => Some(b'}'),
                Some(b'[') => Some(b']'),
                _ => None,
            };
            match end {
                Some(end) => {
                    self.at += 1;
                    self.blank();
                    if !self.eat(end) {
                        open.push(end);
                        if end == b'}' {
                            self.name()?;
                        }
                        continue;
                    }
                }
                None => self.scalar()?,
            }
            loop {
                let Some(end) = open.last().copied() else { return Ok(()) };
                self.blank();
                if self.eat(end) {
                    open.pop();
                    continue;
                }
                self.expect(b',')?;
                self.blank();
                if end == b'}' {
                    self.name()?;
                }
                break;
            }
        }
    }

    /// The name of a field, up to its value.
    fn name(&mut self) -> Result<&'a str, Misfit> {
        let start = self.at;
        self.string()?;
        let name = &self.line[start..self.at];
        self.blank();
        self.expect(b':')?;
        self.blank();
        Ok(name)
    }

    fn scalar(&mut self) -> Result<(), Misfit> {
        let word = match self.peek() {
            Some(b'"') => return self.string(),
            Some(b'-' | b'0'..=b'9') => return self.number(),
            Some(b'n') => "null",
            Some(b't') => "true",
            _ => "false",
        };
        if !self.line.as_bytes()[self.at..].starts_with(word.as_bytes()) {
            return Err(Misfit::new(self.at, "expected value"));
        }
        self.at += word.len();
        Ok(())
    }

    fn number(&mut self) -> Result<(), Misfit> {
        self.eat(b'-');
        if !self.eat(b'0') {
            self.digits()?;
        }
        if self.eat(b'.') {
            self.digits()?;
        }
        if self.eat(b'e') || self.eat(b'E') {
            let _ = self.eat(b'+') || self.eat(b'-');
            self.digits()?;
        }
        Ok(())
    }

    fn digits(&mut self) -> Result<(), Misfit> {
        let start = self.at;
        while matches!(self.peek(), Some(b'0'..=b'9')) {
            self.at += 1;
        }
        if self.at == start { Err(Misfit::new(start, "invalid number")) } else { Ok(()) }
    }

    fn string(&mut self) -> Result<(), Misfit> {
        self.expect(b'"')?;
        loop {
            let left = &self.line.as_bytes()[self.at..];
            let Some(end) = memchr::memchr2(b'"', b'\\', left) else {
                return Err(Misfit::new(self.line.len(), "EOF while parsing a string"));
            };
            let plain = &left[..end];
            // Without a stop at the first one, this takes many bytes at a time.
            if plain.iter().fold(u8::MAX, |least, byte| least.min(*byte)) < b' ' {
                let before = plain.iter().take_while(|byte| **byte >= b' ').count();
                return Err(Misfit::new(self.at + before, "a control character in a string"));
            }
            self.at += end;
            if self.eat(b'"') {
                return Ok(());
            }
            self.escape()?;
        }
    }

    fn escape(&mut self) -> Result<(), Misfit> {
        let at = self.at;
        let length = match self.line.as_bytes().get(at + 1) {
            Some(b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't') => 2,
            Some(b'u') => match (self.unit(at), self.unit(at + 6)) {
                (Some(0xD800..=0xDBFF), Some(0xDC00..=0xDFFF)) => 12,
                (Some(0xD800..=0xDFFF), _) => {
                    return Err(Misfit::new(at, "one half of a surrogate pair in a string"));
                }
                (Some(_), _) => 6,
                (None, _) => return Err(Misfit::new(at, "invalid escape")),
            },
            _ => return Err(Misfit::new(at, "invalid escape")),
        };
        self.at += length;
        Ok(())
    }

    /// The unit of UTF-16 that is escaped at a place, if one is.
    fn unit(&self, at: usize) -> Option<u16> {
        let digits = self.line.get(at..at + 6)?.strip_prefix("\\u")?;
        let is_hexadecimal = digits.bytes().all(|digit| digit.is_ascii_hexdigit());
        is_hexadecimal.then(|| u16::from_str_radix(digits, 16).ok()).flatten()
    }
}

/// What a string of JSON, with its quotes, says.
fn unescaped(string: &str) -> Cow<'_, str> {
    if !string.contains('\\') {
        return Cow::Borrowed(&string[1..string.len() - 1]);
    }
    Cow::Owned(serde_json::from_str(string).expect("a string of JSON"))
}

/// Whether a column of that type says the same as a value of JSON.
fn holds(data_type: &DataType, value: &str) -> bool {
    if value == "null" {
        return true;
    }
    let text = value.starts_with('"').then_some(value);
    match data_type {
        DataType::Utf8 | DataType::LargeUtf8 => text.is_some(),
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
        DataType::Date32 => text.is_some_and(|text| Date32Type::parse(&unescaped(text)).is_some()),
        DataType::Timestamp(..) => text.is_some_and(is_instant),
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
    string_to_datetime(&utc, &unescaped(text)).is_ok()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow_cast::display::array_value_to_string;
    use arrow_json::ReaderBuilder;
    use arrow_schema::{Field, Schema};
    use proptest::prelude::*;
    use serde_json::Value;

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
                .starts_with("10: field `meta.b`: there is no column for it")
        );
        assert_eq!(said(meta, r#"{"b\ud800": 1}"#), "3: one half of a surrogate pair in a string");
        assert_eq!(
            said(meta, "{\"meta\": \"a\u{1}\"}"),
            "11: field `meta`: a control character in a string"
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
