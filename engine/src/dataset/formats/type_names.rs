//! Column types as users write them: `string`, `int64`, `list<int64>`, `struct<name: string, year: int32>`.

use std::fmt::Write;
use std::sync::Arc;

use arrow_schema::{DataType, Field, Fields, TimeUnit};

use super::shape::map_type;

const MAX_DEPTH: usize = 60;

/// Name of the type of instants, which are the same everywhere.
const TIMESTAMPTZ: &str = "timestamptz";

pub(crate) const UTC: &str = "+00:00";

/// Types without parts, and their names; see also [`TIMESTAMPTZ`].
const SIMPLE: [(&str, DataType); 15] = [
    ("string", DataType::Utf8),
    ("bool", DataType::Boolean),
    ("int8", DataType::Int8),
    ("int16", DataType::Int16),
    ("int32", DataType::Int32),
    ("int64", DataType::Int64),
    ("uint8", DataType::UInt8),
    ("uint16", DataType::UInt16),
    ("uint32", DataType::UInt32),
    ("uint64", DataType::UInt64),
    ("float32", DataType::Float32),
    ("float64", DataType::Float64),
    ("large_string", DataType::LargeUtf8),
    ("date", DataType::Date32),
    ("timestamp", DataType::Timestamp(TimeUnit::Microsecond, None)),
];

pub(crate) fn written(columns: &Fields) -> String {
    let columns =
        columns.iter().map(|field| format!("{}: {}", field.name(), name(field.data_type())));
    columns.collect::<Vec<_>>().join(", ")
}

/// Returns the name of a type; of a type that cannot be written in a pipeline, the nearest one.
pub fn name(data_type: &DataType) -> String {
    if let Some((name, _)) = SIMPLE.iter().find(|(_, known)| known == data_type) {
        return (*name).to_owned();
    }
    match data_type {
        DataType::Utf8View => "string".to_owned(),
        DataType::Binary
        | DataType::LargeBinary
        | DataType::BinaryView
        | DataType::FixedSizeBinary(_) => "binary".to_owned(),
        DataType::Duration(_) => "duration".to_owned(),
        DataType::Interval(_) => "interval".to_owned(),
        DataType::Date64 => "date".to_owned(),
        DataType::Timestamp(_, None) => "timestamp".to_owned(),
        DataType::Timestamp(_, Some(_)) => TIMESTAMPTZ.to_owned(),
        DataType::Time32(_) | DataType::Time64(_) => "time".to_owned(),
        DataType::Dictionary(_, value) => name(value),
        DataType::List(item)
        | DataType::LargeList(item)
        | DataType::ListView(item)
        | DataType::LargeListView(item)
        | DataType::FixedSizeList(item, _) => format!("list<{}>", name(item.data_type())),
        DataType::Struct(fields) => format!("struct<{}>", written(fields)),
        DataType::Map(entries, _) => match entries.data_type() {
            DataType::Struct(pair) => {
                format!("map<{}, {}>", name(pair[0].data_type()), name(pair[1].data_type()))
            }
            other => other.to_string(),
        },
        other => other.to_string().to_lowercase(),
    }
}

pub fn parse(text: &str) -> Result<DataType, String> {
    let mut parser = Parser { left: text, depth: 0 };
    let data_type = parser.data_type()?;
    match parser.left.trim() {
        "" => Ok(data_type),
        left => Err(format!("expected the end of the type, got `{left}`")),
    }
}

struct Parser<'a> {
    left: &'a str,
    depth: usize,
}

impl<'a> Parser<'a> {
    fn data_type(&mut self) -> Result<DataType, String> {
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            return Err(format!("types nest deeper than {MAX_DEPTH} levels"));
        }
        let name = self.word(|c| c.is_ascii_alphanumeric() || c == '_');
        let data_type = match name {
            "list" => {
                self.expect('<')?;
                let item = self.data_type()?;
                self.expect('>')?;
                DataType::List(Arc::new(Field::new("item", item, true)))
            }
            "map" => {
                self.expect('<')?;
                if self.data_type()? != DataType::Utf8 {
                    return Err("map keys must be `string`".to_owned());
                }
                self.expect(',')?;
                let value = self.data_type()?;
                self.expect('>')?;
                map_type(value)
            }
            "struct" => DataType::Struct(self.fields()?),
            TIMESTAMPTZ => DataType::Timestamp(TimeUnit::Microsecond, Some(UTC.into())),
            simple => match SIMPLE.iter().find(|(known, _)| *known == simple) {
                Some((_, data_type)) => data_type.clone(),
                None => return Err(unknown(simple)),
            },
        };
        self.depth -= 1;
        Ok(data_type)
    }

    fn fields(&mut self) -> Result<Fields, String> {
        self.expect('<')?;
        let mut fields: Vec<Field> = Vec::new();
        loop {
            let name = self.word(|c| !matches!(c, ':' | '<' | '>' | ',')).trim_end();
            self.expect(':')?;
            if name.is_empty() || fields.iter().any(|field| field.name() == name) {
                return Err(format!("`{name}` is not a field name, or occurs twice"));
            }
            fields.push(Field::new(name, self.data_type()?, true));
            if self.expect(',').is_err() {
                self.expect('>')?;
                return Ok(fields.into());
            }
        }
    }

    fn word(&mut self, of: impl Fn(char) -> bool) -> &'a str {
        let left = self.left.trim_start();
        let end = left.find(|c| !of(c)).unwrap_or(left.len());
        let (word, rest) = left.split_at(end);
        self.left = rest;
        word
    }

    fn expect(&mut self, expected: char) -> Result<(), String> {
        let left = self.left.trim_start();
        if let Some(rest) = left.strip_prefix(expected) {
            self.left = rest;
            return Ok(());
        }
        let found = left.chars().next().map_or("the end".to_owned(), |c| format!("`{c}`"));
        Err(format!("expected `{expected}`, got {found}"))
    }
}

fn unknown(name: &str) -> String {
    let mut message = format!("`{name}` is not a type; types are: ");
    for (known, _) in &SIMPLE {
        let _ = write!(message, "{known}, ");
    }
    message + TIMESTAMPTZ + ", list<type>, map<string, type>, struct<name: type, ...>"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn written_types_parse_again() {
        for text in [
            "string",
            "list<list<int32>>",
            "struct<t: timestamptz>",
            "map<string, list<float64>>",
            "struct<a b: struct<x: timestamp>, c: map<string, struct<d: bool>>>",
        ] {
            assert_eq!(name(&parse(text).unwrap()), text);
        }
        assert_eq!(name(&parse(" struct < a : list< int8 > > ").unwrap()), "struct<a: list<int8>>");
    }

    #[test]
    fn invalid_types_are_explained() {
        for (text, why) in [
            ("strin", "`strin` is not a type; types are: string, bool"),
            ("list<int32", "expected `>`, got the end"),
            ("list[int32]", "expected `<`, got `[`"),
            ("int32>", "expected the end of the type, got `>`"),
            ("struct<>", "expected `:`, got `>`"),
            ("struct<a: int8, a: int8>", "`a` is not a field name"),
            ("map<int8, string>", "map keys must be `string`"),
            (&"list<".repeat(100), "types nest deeper than 60 levels"),
        ] {
            assert!(parse(text).unwrap_err().starts_with(why), "{text}: {:?}", parse(text));
        }
    }
}
