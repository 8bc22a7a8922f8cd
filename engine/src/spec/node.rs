//! Tree of a pipeline in which every key and value has a position.

use serde_json::{Map, Number};

use super::source::Span;

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Node {
    pub(crate) span: Span,
    pub(crate) value: YamlValue,
    /// Scalar as written, without quotes; empty for lists and mappings.
    pub(crate) text: String,
    pub(crate) plain: bool,
}

/// Value by the core schema of YAML 1.2.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum YamlValue {
    Null,
    Boolean(bool),
    Integer(i128),
    /// Also `.inf` and `.nan`, which no setting accepts.
    Float(f64),
    String(String),
    List(Vec<Node>),
    Mapping(Vec<Entry>),
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Entry {
    pub(crate) key: String,
    pub(crate) span: Span,
    pub(crate) value: Node,
}

impl Node {
    pub(crate) fn mapping(span: Span) -> Self {
        Self { span, value: YamlValue::Mapping(Vec::new()), text: String::new(), plain: true }
    }

    pub(crate) fn string(span: Span, text: &str) -> Self {
        Self {
            span,
            value: YamlValue::String(text.to_string()),
            text: text.to_string(),
            plain: true,
        }
    }

    pub(crate) fn entries(&self) -> &[Entry] {
        if let YamlValue::Mapping(entries) = &self.value { entries } else { &[] }
    }

    pub(crate) fn items(&self) -> &[Node] {
        if let YamlValue::List(items) = &self.value { items } else { &[] }
    }

    pub(crate) fn as_str(&self) -> Option<&str> {
        if let YamlValue::String(text) = &self.value { Some(text) } else { None }
    }

    /// Returns an integer, including one written as `4096.0` or `4e3`.
    pub(crate) fn as_integer(&self) -> Option<i128> {
        match self.value {
            YamlValue::Integer(integer) => Some(integer),
            YamlValue::Float(float) => whole(float),
            _ => None,
        }
    }

    pub(crate) fn as_number(&self) -> Option<f64> {
        match self.value {
            YamlValue::Integer(integer) => Some(integer as f64),
            YamlValue::Float(float) => Some(float),
            _ => None,
        }
    }

    pub(crate) fn is_null(&self) -> bool {
        self.value == YamlValue::Null
    }

    pub(crate) fn entry(&self, key: &str) -> Option<&Entry> {
        self.entries().iter().find(|entry| entry.key == key)
    }

    /// Returns the value of a key; null counts as absent.
    pub(crate) fn get(&self, key: &str) -> Option<&Node> {
        self.entry(key).map(|entry| &entry.value).filter(|value| !value.is_null())
    }

    /// Converts the value to JSON. Whole floats become integers, as in JSON Schema; numbers that JSON does not support become
    /// null.
    pub(crate) fn to_json(&self) -> serde_json::Value {
        match &self.value {
            YamlValue::Null => serde_json::Value::Null,
            YamlValue::Boolean(boolean) => (*boolean).into(),
            YamlValue::Integer(integer) => integer_json(*integer),
            YamlValue::Float(float) => match whole(*float) {
                Some(integer) => integer_json(integer),
                None => Number::from_f64(*float).map_or(serde_json::Value::Null, Into::into),
            },
            YamlValue::String(text) => text.as_str().into(),
            YamlValue::List(items) => items.iter().map(Node::to_json).collect(),
            YamlValue::Mapping(entries) => {
                let map: Map<_, _> = entries
                    .iter()
                    .map(|entry| (entry.key.clone(), entry.value.to_json()))
                    .collect();
                map.into()
            }
        }
    }
}

/// 2^64: no setting accepts a larger integer.
const MAX_WHOLE: f64 = 18_446_744_073_709_551_616.0;

pub(crate) fn whole(float: f64) -> Option<i128> {
    (float.fract() == 0.0 && float.abs() <= MAX_WHOLE).then_some(float as i128)
}

fn integer_json(integer: i128) -> serde_json::Value {
    if let Ok(integer) = u64::try_from(integer) {
        integer.into()
    } else if let Ok(integer) = i64::try_from(integer) {
        integer.into()
    } else {
        (integer as f64).into()
    }
}
