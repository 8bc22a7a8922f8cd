//! The `tojson` filter of transformers' chat templates: Python's `json.dumps`. Jinja's own filter escapes HTML.

use minijinja::value::{Kwargs, Value};
use minijinja::{Error, ErrorKind};
use serde_json::Value as Json;

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
    let layout = JsonLayout { item, key, indent, is_ascii };
    let mut json = serde_json::to_value(value).map_err(wrong)?;
    if sort_keys.unwrap_or(false) {
        json.sort_all_objects();
    }
    let mut text = String::new();
    layout.add(&mut text, &json, 0);
    Ok(text)
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
}

impl JsonLayout {
    fn add(&self, text: &mut String, value: &Json, level: usize) {
        match value {
            Json::Null | Json::Bool(_) => text.push_str(&value.to_string()),
            Json::Number(number) => match number.as_f64().filter(|_| number.is_f64()) {
                Some(float) => text.push_str(&python_float(float)),
                None => text.push_str(&number.to_string()),
            },
            Json::String(_) => self.add_string(text, value),
            Json::Array(items) => {
                let items = items.iter().map(|item| (None, item));
                self.add_entries(text, ('[', ']'), items, level);
            }
            Json::Object(entries) => {
                let entries = entries.iter().map(|(key, item)| (Some(Json::from(&**key)), item));
                self.add_entries(text, ('{', '}'), entries, level);
            }
        }
    }

    fn add_entries<'j>(
        &self,
        text: &mut String,
        (open, close): (char, char),
        entries: impl ExactSizeIterator<Item = (Option<Json>, &'j Json)>,
        level: usize,
    ) {
        let indent = |level| self.indent.iter().map(move |one| format!("\n{}", one.repeat(level)));
        let is_empty = entries.len() == 0;
        text.push(open);
        for (index, (key, value)) in entries.enumerate() {
            if index > 0 {
                text.push_str(&self.item);
            }
            text.extend(indent(level + 1));
            if let Some(key) = key {
                self.add_string(text, &key);
                text.push_str(&self.key);
            }
            self.add(text, value, level + 1);
        }
        if !is_empty {
            text.extend(indent(level));
        }
        text.push(close);
    }

    fn add_string(&self, text: &mut String, string: &Json) {
        for character in string.to_string().chars() {
            if !self.is_ascii || matches!(character, ' '..='~') {
                text.push(character);
                continue;
            }
            let mut units = [0; 2];
            let units = character.encode_utf16(&mut units).iter();
            text.extend(units.map(|unit| format!("\\u{unit:04x}")));
        }
    }
}

/// Formats like Python's `repr`: with an exponent of at least two digits below 1e-4 and from 1e16 on.
fn python_float(number: f64) -> String {
    if number == 0.0 || (1e-4..1e16).contains(&number.abs()) {
        return format!("{number:?}");
    }
    let text = format!("{number:e}");
    let (digits, exponent) = text.split_once('e').unwrap_or((&text, "0"));
    format!("{digits}e{:+03}", exponent.parse::<i32>().unwrap_or(0))
}
