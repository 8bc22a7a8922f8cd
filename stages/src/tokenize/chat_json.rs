//! The `tojson` filter of chat templates as transformers defines it: Python's `json.dumps`. Jinja's own filter of
//! that name escapes HTML.

use std::io::{self, Write};

use minijinja::value::{Kwargs, Value};
use minijinja::{Error, ErrorKind};
use serde::Serialize;
use serde_json::ser::{Formatter, Serializer};

/// Implements `x | tojson(ensure_ascii=false, indent=none, separators=none, sort_keys=false)`.
#[expect(clippy::needless_pass_by_value, reason = "filters take their arguments by value")]
pub(super) fn tojson(
    value: &Value,
    ensure_ascii: Option<bool>,
    indent: Option<Value>,
    separators: Option<Vec<String>>,
    named: Kwargs,
) -> Result<String, Error> {
    let wrong = |error: serde_json::Error| {
        Error::new(ErrorKind::BadSerialization, format!("cannot convert to JSON: {error}"))
    };
    if value.is_undefined() {
        return Err(Error::new(
            ErrorKind::UndefinedError,
            "cannot convert an undefined value to JSON",
        ));
    }
    let ensure_ascii = ensure_ascii.or(named.get("ensure_ascii")?);
    let indent = indent.or(named.get("indent")?);
    let separators = separators.or(named.get("separators")?);
    let sort_keys: Option<bool> = named.get("sort_keys")?;
    named.assert_all_used()?;
    let indent = indent.filter(|indent| !indent.is_none()).map(|indent| match indent.as_str() {
        Some(text) => text.to_owned(),
        None => " ".repeat(indent.as_usize().unwrap_or(0)),
    });
    let item = if indent.is_some() { "," } else { ", " };
    let separators = separators.unwrap_or_else(|| vec![item.to_owned(), ": ".to_owned()]);
    let Ok([item, key]) = <[String; 2]>::try_from(separators) else {
        return Err(Error::new(ErrorKind::InvalidOperation, "expected two texts for `separators`"));
    };
    let is_ascii = ensure_ascii.unwrap_or(false);
    let layout = JsonLayout { item, key, indent, is_ascii, level: 0, has_entries: false };
    let mut json = serde_json::to_value(value).map_err(wrong)?;
    if sort_keys.unwrap_or(false) {
        json.sort_all_objects();
    }
    let mut bytes = Vec::new();
    json.serialize(&mut Serializer::with_formatter(&mut bytes, layout)).map_err(wrong)?;
    Ok(String::from_utf8(bytes).expect("JSON is UTF-8"))
}

/// Python's JSON layout.
struct JsonLayout {
    /// Separator between entries.
    item: String,
    /// Separator after a key.
    key: String,
    /// Indentation of one level; `None` for a single line.
    indent: Option<String>,
    is_ascii: bool,
    level: usize,
    /// Whether the current list or object has entries.
    has_entries: bool,
}

impl JsonLayout {
    fn begin(&mut self, bytes: &mut (impl Write + ?Sized), bracket: &str) -> io::Result<()> {
        self.level += 1;
        self.has_entries = false;
        bytes.write_all(bracket.as_bytes())
    }

    fn end(&mut self, bytes: &mut (impl Write + ?Sized), bracket: &str) -> io::Result<()> {
        self.level -= 1;
        if self.has_entries {
            self.line(bytes)?;
        }
        bytes.write_all(bracket.as_bytes())
    }

    fn entry(&mut self, bytes: &mut (impl Write + ?Sized), is_first: bool) -> io::Result<()> {
        if !is_first {
            bytes.write_all(self.item.as_bytes())?;
        }
        self.line(bytes)
    }

    fn line(&self, bytes: &mut (impl Write + ?Sized)) -> io::Result<()> {
        match &self.indent {
            Some(indent) => write!(bytes, "\n{}", indent.repeat(self.level)),
            None => Ok(()),
        }
    }
}

impl Formatter for JsonLayout {
    fn begin_array<W: Write + ?Sized>(&mut self, bytes: &mut W) -> io::Result<()> {
        self.begin(bytes, "[")
    }

    fn end_array<W: Write + ?Sized>(&mut self, bytes: &mut W) -> io::Result<()> {
        self.end(bytes, "]")
    }

    fn begin_array_value<W: Write + ?Sized>(
        &mut self,
        bytes: &mut W,
        is_first: bool,
    ) -> io::Result<()> {
        self.entry(bytes, is_first)
    }

    fn end_array_value<W: Write + ?Sized>(&mut self, _: &mut W) -> io::Result<()> {
        self.has_entries = true;
        Ok(())
    }

    fn begin_object<W: Write + ?Sized>(&mut self, bytes: &mut W) -> io::Result<()> {
        self.begin(bytes, "{")
    }

    fn end_object<W: Write + ?Sized>(&mut self, bytes: &mut W) -> io::Result<()> {
        self.end(bytes, "}")
    }

    fn begin_object_key<W: Write + ?Sized>(
        &mut self,
        bytes: &mut W,
        is_first: bool,
    ) -> io::Result<()> {
        self.entry(bytes, is_first)
    }

    fn begin_object_value<W: Write + ?Sized>(&mut self, bytes: &mut W) -> io::Result<()> {
        bytes.write_all(self.key.as_bytes())
    }

    fn end_object_value<W: Write + ?Sized>(&mut self, _: &mut W) -> io::Result<()> {
        self.has_entries = true;
        Ok(())
    }

    /// Writes like Python's `repr`: with an exponent of at least two digits below 1e-4 and from 1e16 on.
    fn write_f64<W: Write + ?Sized>(&mut self, bytes: &mut W, number: f64) -> io::Result<()> {
        if number == 0.0 || (1e-4..1e16).contains(&number.abs()) {
            return write!(bytes, "{number:?}");
        }
        let text = format!("{number:e}");
        let (digits, exponent) = text.split_once('e').unwrap_or((&text, "0"));
        write!(bytes, "{digits}e{:+03}", exponent.parse::<i32>().unwrap_or(0))
    }

    fn write_string_fragment<W: Write + ?Sized>(
        &mut self,
        bytes: &mut W,
        fragment: &str,
    ) -> io::Result<()> {
        if !self.is_ascii {
            return bytes.write_all(fragment.as_bytes());
        }
        for character in fragment.chars() {
            if matches!(character, ' '..='~') {
                write!(bytes, "{character}")?;
                continue;
            }
            for unit in character.encode_utf16(&mut [0; 2]) {
                write!(bytes, "\\u{unit:04x}")?;
            }
        }
        Ok(())
    }
}
