//! Infers table columns from examples of JSON values.

use std::fmt;
use std::sync::Arc;

use arrow_schema::{DataType, Field, Fields};
use serde::de::{Deserializer, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Serialize};

use crate::base::text;

/// Summary of JSON values: counts per kind.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct JsonShape {
    texts: u64,
    objects: u64,
    lists: u64,
    numbers: u64,
    bools: u64,
    /// Whole numbers that float64 may round.
    large: u64,
    /// Whole numbers that fit only an unsigned 64-bit integer.
    unsigned: u64,
    /// Numbers that no integer holds.
    fractions: u64,
    items: Option<Box<JsonShape>>,
    /// Fields of the objects, in order of first appearance.
    fields: Vec<(String, JsonShape)>,
    /// All fields merged into one, for objects with more than [`MAX_FIELDS`] fields: their names are data.
    values: Option<Box<JsonShape>>,
}

/// Maximum fields of a column's objects. Each is a column in memory, whether a row has it or not.
const MAX_FIELDS: usize = 1000;

const MAX_EXACT: u64 = 1 << 53;

impl JsonShape {
    /// Returns the shape of one line of JSON; `None` if it is not an object.
    pub(super) fn from_line(line: &[u8]) -> Option<Self> {
        let ParsedShape(shape) = serde_json::from_slice(line).ok()?;
        (shape.objects > 0).then_some(shape)
    }

    pub(super) fn from_text_field(name: &str) -> Self {
        let text = Self { texts: 1, ..Self::default() };
        Self { fields: vec![(name.to_owned(), text)], ..Self::default() }
    }

    pub(crate) fn merge(self, other: Self) -> Self {
        let both = |own: Option<Box<Self>>, other: Option<Box<Self>>| match (own, other) {
            (Some(own), Some(other)) => Some(Box::new(own.merge(*other))),
            (own, other) => own.or(other),
        };
        let joined = Self {
            texts: self.texts + other.texts,
            objects: self.objects + other.objects,
            lists: self.lists + other.lists,
            numbers: self.numbers + other.numbers,
            bools: self.bools + other.bools,
            large: self.large + other.large,
            unsigned: self.unsigned + other.unsigned,
            fractions: self.fractions + other.fractions,
            items: both(self.items, other.items),
            fields: merge_fields(self.fields, other.fields),
            values: both(self.values, other.values),
        };
        if joined.values.is_some() || joined.fields.len() > MAX_FIELDS {
            joined.into_dictionary()
        } else {
            joined
        }
    }

    /// Converts fields to values of a dictionary.
    fn into_dictionary(mut self) -> Self {
        let fields = std::mem::take(&mut self.fields).into_iter().map(|(_, shape)| shape);
        let known = self.values.take().map(|values| *values).unwrap_or_default();
        self.values = Some(Box::new(fields.fold(known, Self::merge)));
        self
    }

    pub(crate) fn is_too_wide(&self) -> bool {
        self.values.is_some()
    }

    pub(crate) fn columns(&self) -> Fields {
        let field = |(name, shape): &(String, Self)| Field::new(name, shape.data_type(), true);
        self.fields.iter().map(field).collect()
    }

    /// Whether an object has a value in this field that is not null, or its names are data.
    pub(crate) fn may_have(&self, name: &str) -> bool {
        let has_values = |of: &Self| of.texts + of.objects + of.lists + of.numbers + of.bools > 0;
        let mut fields = self.fields.iter();
        self.values.is_some() || fields.any(|(known, field)| known == name && has_values(field))
    }

    /// Returns the columns and fields that no object has, as paths, each with a similar name among its siblings. Objects whose
    /// names are data, and columns without objects, are not compared.
    pub(crate) fn unseen(&self, columns: &Fields) -> Vec<(String, Option<String>)> {
        let mut unseen = Vec::new();
        if self.values.is_some() || self.fields.is_empty() {
            return unseen;
        }
        for column in columns {
            let name = column.name();
            let Some((_, shape)) = self.fields.iter().find(|(known, _)| known == name) else {
                let others = self.fields.iter().map(|(known, _)| known.as_str());
                unseen.push((name.clone(), text::suggest(name, others).map(str::to_owned)));
                continue;
            };
            let inner = match column.data_type() {
                DataType::Struct(fields) => shape.unseen(fields),
                DataType::List(item) => match (item.data_type(), &shape.items) {
                    (DataType::Struct(fields), Some(items)) => items.unseen(fields),
                    _ => continue,
                },
                _ => continue,
            };
            unseen.extend(inner.into_iter().map(|(path, like)| (format!("{name}.{path}"), like)));
        }
        unseen
    }

    /// Returns the type of the most frequent kind: values of other kinds are bad.
    fn data_type(&self) -> DataType {
        let Self { texts, objects, lists, numbers, bools, .. } = *self;
        let max = texts.max(objects).max(lists).max(numbers).max(bools);
        // All values are null: a string is the most likely type.
        if texts == max {
            DataType::Utf8
        } else if objects == max {
            // Parquet has no structs without fields.
            match &self.values {
                Some(values) => map_type(values.data_type()),
                // The fields of these objects are not known.
                None if self.fields.is_empty() => map_type(DataType::Utf8),
                None => DataType::Struct(self.columns()),
            }
        } else if lists == max {
            let item = self.items.as_ref().map_or(DataType::Utf8, |items| items.data_type());
            DataType::List(Arc::new(Field::new("item", item, true)))
        } else if numbers == max {
            // No value is rounded: if both fractions and large whole numbers occur, those that are rarer are bad values.
            match () {
                () if self.fractions > 0 && self.fractions >= self.large => DataType::Float64,
                () if self.unsigned > 0 => DataType::UInt64,
                () => DataType::Int64,
            }
        } else {
            DataType::Boolean
        }
    }
}

pub(super) fn map_type(value: DataType) -> DataType {
    let fields = vec![Field::new("key", DataType::Utf8, false), Field::new("value", value, true)];
    let entries = Field::new("entries", DataType::Struct(fields.into()), false);
    DataType::Map(Arc::new(entries), false)
}

fn merge_fields(
    mut own: Vec<(String, JsonShape)>,
    other: Vec<(String, JsonShape)>,
) -> Vec<(String, JsonShape)> {
    for (index, (name, shape)) in other.into_iter().enumerate() {
        // Most lines have their fields in the same order.
        let at = match own.get(index) {
            Some((known, _)) if *known == name => Some(index),
            _ => own.iter().position(|(known, _)| *known == name),
        };
        match at {
            Some(at) => {
                let known = std::mem::take(&mut own[at].1);
                own[at].1 = known.merge(shape);
            }
            None => own.push((name, shape)),
        }
    }
    own
}

/// Shape of a JSON value, computed while it is deserialized.
struct ParsedShape(JsonShape);

impl<'de> Deserialize<'de> for ParsedShape {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(ShapeVisitor).map(Self)
    }
}

struct ShapeVisitor;

impl<'de> Visitor<'de> for ShapeVisitor {
    type Value = JsonShape;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("JSON")
    }

    fn visit_unit<E>(self) -> Result<JsonShape, E> {
        Ok(JsonShape::default())
    }

    fn visit_bool<E>(self, _: bool) -> Result<JsonShape, E> {
        Ok(JsonShape { bools: 1, ..JsonShape::default() })
    }

    fn visit_i64<E>(self, number: i64) -> Result<JsonShape, E> {
        let large = u64::from(number.unsigned_abs() > MAX_EXACT);
        Ok(JsonShape { numbers: 1, large, ..JsonShape::default() })
    }

    fn visit_u64<E>(self, number: u64) -> Result<JsonShape, E> {
        let (large, unsigned) = (number > MAX_EXACT, i64::try_from(number).is_err());
        let (large, unsigned) = (u64::from(large), u64::from(unsigned));
        Ok(JsonShape { numbers: 1, large, unsigned, ..JsonShape::default() })
    }

    fn visit_f64<E>(self, _: f64) -> Result<JsonShape, E> {
        Ok(JsonShape { numbers: 1, fractions: 1, ..JsonShape::default() })
    }

    fn visit_str<E>(self, _: &str) -> Result<JsonShape, E> {
        Ok(JsonShape { texts: 1, ..JsonShape::default() })
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<JsonShape, A::Error> {
        let mut shape = JsonShape::default();
        while let Some(ParsedShape(item)) = items.next_element()? {
            shape = shape.merge(item);
        }
        Ok(JsonShape { lists: 1, items: Some(Box::new(shape)), ..JsonShape::default() })
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<JsonShape, A::Error> {
        let (mut fields, mut values) = (Vec::new(), None);
        while let Some((name, ParsedShape(shape))) = entries.next_entry::<String, ParsedShape>()? {
            fields = merge_fields(fields, vec![(name, shape)]);
            if fields.len() > MAX_FIELDS {
                let full = JsonShape {
                    fields: std::mem::take(&mut fields),
                    values: values.take(),
                    ..JsonShape::default()
                };
                values = full.into_dictionary().values;
            }
        }
        let shape = JsonShape { objects: 1, fields, values, ..JsonShape::default() };
        Ok(if shape.values.is_some() { shape.into_dictionary() } else { shape })
    }
}

#[cfg(test)]
mod tests {
    use super::super::type_names::written;
    use super::*;

    fn columns(lines: &[&str]) -> String {
        let shapes = lines.iter().filter_map(|line| JsonShape::from_line(line.as_bytes()));
        written(&shapes.fold(JsonShape::default(), JsonShape::merge).columns())
    }

    #[test]
    fn columns_are_inferred_from_all_lines() {
        assert_eq!(
            columns(&[
                r#"{"id": 7, "text": "a", "meta": {"a": null}, "tags": []}"#,
                r#"{"text": "b", "score": 1, "meta": {"b": true, "a": "x"}, "tags": [1]}"#,
                "not JSON",
                "[1]",
                r#"{"id": 8, "text": null, "score": 0.5, "tags": null, "none": null, "other": {}}"#,
            ]),
            "id: int64, text: string, meta: struct<a: string, b: bool>, tags: list<int64>, score: float64, none: string, \
             other: map<string, string>"
        );
    }

    #[test]
    fn names_that_no_line_has_are_unseen() {
        let lines = [
            r#"{"id": 1, "meta": {"lang": "en"}, "none": null, "list": [{"a": 1}], "n": 2}"#,
            r#"{"id": 2, "n": {"x": 1}}"#,
        ];
        let shapes = lines.iter().filter_map(|line| JsonShape::from_line(line.as_bytes()));
        let shape = shapes.fold(JsonShape::default(), JsonShape::merge);
        let unseen = |columns: &str| -> Vec<(String, Option<String>)> {
            let parsed = super::super::type_names::parse(&format!("struct<{columns}>")).unwrap();
            let DataType::Struct(columns) = parsed else { unreachable!() };
            shape.unseen(&columns)
        };
        let all = "id: int64, meta: struct<lang: string>, none: struct<x: string>, list: list<struct<a: int64>>";
        assert_eq!(unseen(all), []);
        let like = |path: &str, like: Option<&str>| (path.to_owned(), like.map(str::to_owned));
        assert_eq!(
            unseen(
                "metta: string, meta: struct<lagn: string>, list: list<struct<xyz: string>>, n: struct<y: int64>"
            ),
            [
                like("metta", Some("meta")),
                like("meta.lagn", Some("lang")),
                like("list.xyz", None),
                like("n.y", None),
            ]
        );
        assert_eq!(JsonShape::default().unseen(&shape.columns()), []);
    }

    #[test]
    fn objects_with_too_many_fields_are_maps() {
        let line = |row: usize| {
            let fields: Vec<String> = (0..7).map(|at| format!("\"{row}-{at}\": {at}")).collect();
            format!("{{\"id\": {row}, \"meta\": {{{}}}}}", fields.join(", "))
        };
        let found = |rows: usize| {
            let lines: Vec<String> = (0..rows).map(line).collect();
            columns(&lines.iter().map(String::as_str).collect::<Vec<_>>())
        };
        assert!(found(142).starts_with("id: int64, meta: struct<0-0: int64, "));
        assert_eq!(found(144), "id: int64, meta: map<string, int64>");
        let wide =
            |row: usize| JsonShape::from_line(format!("{{\"{row}\": 1}}").as_bytes()).unwrap();
        let shape = |rows: usize| (0..rows).map(wide).fold(JsonShape::default(), JsonShape::merge);
        assert!(!shape(1000).is_too_wide() && shape(1001).is_too_wide());
    }

    #[test]
    fn numbers_widen_and_otherwise_the_most_frequent_kind_wins() {
        let of = |values: &[&str]| {
            let lines: Vec<String> =
                values.iter().map(|value| format!("{{\"x\": {value}}}")).collect();
            columns(&lines.iter().map(String::as_str).collect::<Vec<_>>())
        };
        assert_eq!(of(&["1", "18446744073709551615"]), "x: uint64");
        assert_eq!(of(&["18446744073709551615", "0.5", "1"]), "x: float64");
        assert_eq!(of(&["1152921504606846977", "0.5", "1152921504606846979", "7"]), "x: int64");
        assert_eq!(of(&["1152921504606846977", "0.5", "1.5"]), "x: float64");
        assert_eq!(of(&["9007199254740992", "0.5"]), "x: float64");
        assert_eq!(of(&["1", "\"a\"", "2"]), "x: int64");
        assert_eq!(of(&["1", "\"a\""]), "x: string");
        assert_eq!(of(&["true", "1", "null", "false"]), "x: bool");
        assert_eq!(of(&["[1]", "{}", "[2]"]), "x: list<int64>");
        assert_eq!(of(&["[[1], [0.5]]"]), "x: list<list<float64>>");
    }
}
