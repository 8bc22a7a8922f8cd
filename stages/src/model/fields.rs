//! Typed access to `config.json`: wrong values are noted, and reading continues.

use std::cell::RefCell;

use serde_json::{Map, Value};

use super::problem::ModelProblem;

/// Entries of one JSON object of `config.json`. `null` counts as absent, as in the transformers library. A method that
/// finds a wrong value notes a problem and returns a harmless placeholder (1 for sizes), so that all problems of a
/// file are found at once. Nothing is built while there are problems.
pub(crate) struct Fields<'a> {
    map: &'a Map<String, Value>,
    /// Name for messages: `config.json`, or the path of the object in it.
    pub(crate) location: String,
    problems: &'a RefCell<Vec<ModelProblem>>,
    /// Base frequency of the rotary embedding that replaces the checkpoint's.
    pub(crate) rope_theta: Option<f64>,
}

impl<'a> Fields<'a> {
    /// Reads `map`, which messages refer to as `location` (`config.json`).
    pub(crate) fn new(
        map: &'a Map<String, Value>,
        location: &str,
        problems: &'a RefCell<Vec<ModelProblem>>,
    ) -> Self {
        Self { map, location: location.to_owned(), problems, rope_theta: None }
    }

    pub(crate) fn with_rope_theta(self, rope_theta: Option<f64>) -> Self {
        Self { rope_theta, ..self }
    }

    pub(crate) fn note(&self, problem: ModelProblem) {
        self.problems.borrow_mut().push(problem);
    }

    /// Notes that the model is not supported.
    pub(crate) fn refuse(&self, message: impl Into<String>) {
        self.note(ModelProblem::settings(message));
    }

    /// Notes that config.json contradicts itself or is damaged.
    pub(crate) fn contradict(&self, message: impl Into<String>) {
        self.note(ModelProblem::checkpoint(message));
    }

    /// Returns the raw value; `null` counts as absent.
    pub(crate) fn value(&self, name: &str) -> Option<&'a Value> {
        self.map.get(name).filter(|value| !value.is_null())
    }

    /// Whether the key exists, even as `null`.
    pub(crate) fn contains(&self, name: &str) -> bool {
        self.map.contains_key(name)
    }

    /// Whether no problem has been noted. Values are compared with each other only in that case.
    pub(crate) fn is_clean(&self) -> bool {
        self.problems.borrow().is_empty()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.map.is_empty()
    }

    pub(crate) fn names(&self) -> impl Iterator<Item = &'a String> + use<'a> {
        self.map.keys()
    }

    fn wrong(&self, name: &str, value: &Value, wanted: &str) {
        let text: String = value.to_string().chars().take(60).collect();
        self.contradict(format!("`{name}` in {}: expected {wanted}, got {text}", self.location));
    }

    /// Converts a value, or returns `None` if absent. A value that `convert` rejects is noted as not `wanted`.
    fn optional<T>(
        &self,
        name: &str,
        wanted: &str,
        convert: impl FnOnce(&'a Value) -> Option<T>,
    ) -> Option<T> {
        let value = self.value(name)?;
        let converted = convert(value);
        if converted.is_none() {
            self.wrong(name, value, wanted);
        }
        converted
    }

    /// Returns a size between 1 and `max`, or `None` if absent.
    pub(crate) fn optional_size(&self, name: &str, max: u64) -> Option<u64> {
        let wanted = format!("a whole number between 1 and {max}");
        let size = |value: &Value| value.as_u64().filter(|size| (1..=max).contains(size));
        self.optional(name, &wanted, size)
    }

    pub(crate) fn size(&self, name: &str, max: u64) -> u64 {
        if self.value(name).is_none() {
            self.contradict(format!("{} has no `{name}`", self.location));
            return 1;
        }
        self.optional_size(name, max).unwrap_or(1)
    }

    /// Notes a contradiction if keys that are names of one number have different values. An absent first name has `default`.
    pub(crate) fn check_agreement(&self, names: &[&str], default: Option<f64>) {
        let numbers = names.iter().map(|name| (*name, self.value(name).and_then(Value::as_f64)));
        let mut numbers: Vec<(&str, Option<f64>)> = numbers.collect();
        if let Some((_, first)) = numbers.first_mut() {
            *first = first.or(default);
        }
        let mut present = numbers.iter().filter_map(|(name, number)| Some((name, (*number)?)));
        let Some((name, value)) = present.next() else { return };
        if let Some((other, other_value)) =
            present.find(|(_, other)| other.to_bits() != value.to_bits())
        {
            self.contradict(format!(
                "{} has `{other}` {other_value}, but `{name}` is {value}: two names of one number",
                self.location
            ));
        }
    }

    /// Returns a size under the first of several keys that is present; otherwise the default, or notes a problem.
    pub(crate) fn first_size(&self, names: &[&str], max: u64, default: Option<u64>) -> u64 {
        let name = names.iter().find(|name| self.value(name).is_some());
        match (name, default) {
            (Some(name), _) => self.size(name, max),
            (None, Some(default)) => default,
            (None, None) => self.size(names[0], max),
        }
    }

    pub(crate) fn optional_numbers(&self, name: &str) -> Option<Vec<f64>> {
        self.optional(name, "a list of numbers", |value| {
            value.as_array()?.iter().map(finite).collect()
        })
    }

    pub(crate) fn optional_count(&self, name: &str) -> Option<u64> {
        self.optional(name, "a whole number from 0", Value::as_u64)
    }

    pub(crate) fn optional_number(&self, name: &str) -> Option<f64> {
        self.optional(name, "a number", finite)
    }

    pub(crate) fn optional_positive(&self, name: &str) -> Option<f64> {
        let number = self.optional_number(name)?;
        if number > 0.0 {
            return Some(number);
        }
        self.wrong(name, &self.map[name], "a number greater than 0");
        None
    }

    pub(crate) fn positive(&self, name: &str) -> f64 {
        if self.value(name).is_none() {
            self.contradict(format!("{} has no `{name}`", self.location));
        }
        self.optional_positive(name).unwrap_or(1.0)
    }

    /// Returns a flag. A `null` counts as false, as a condition in Python does.
    pub(crate) fn flag(&self, name: &str, default: bool) -> bool {
        let default = default && !self.contains(name);
        self.optional(name, "true or false", Value::as_bool).unwrap_or(default)
    }

    pub(crate) fn optional_text(&self, name: &str) -> Option<&'a str> {
        self.optional(name, "a text", Value::as_str)
    }

    pub(crate) fn optional_texts(&self, name: &str) -> Option<Vec<&'a str>> {
        self.optional(name, "a list of texts", |value| {
            value.as_array()?.iter().map(Value::as_str).collect()
        })
    }

    /// Returns the objects of a list; a single object counts as a list of one. Empty if absent.
    pub(crate) fn objects(&self, name: &str) -> Vec<Fields<'a>> {
        let Some(items) = self.value(name).and_then(Value::as_array) else {
            return self.optional_object(name).into_iter().collect();
        };
        let fields = |(index, item): (usize, &'a Value)| {
            let path = format!("`{name}.{index}`");
            if item.as_object().is_none() {
                self.wrong(&path, item, "an object");
            }
            let location = format!("{path} of {}", self.location);
            item.as_object().map(|map| Fields::new(map, &location, self.problems))
        };
        items.iter().enumerate().filter_map(fields).collect()
    }

    pub(crate) fn optional_object(&self, name: &str) -> Option<Fields<'a>> {
        let map = self.optional(name, "an object", Value::as_object)?;
        let fields = Fields::new(map, &format!("`{name}` of {}", self.location), self.problems);
        Some(fields.with_rope_theta(self.rope_theta))
    }
}

fn finite(value: &Value) -> Option<f64> {
    value.as_f64().filter(|number| number.is_finite())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_wrong_value_is_noted_and_null_is_absent() {
        let json: Value = serde_json::from_str(
            r#"{"a": "7", "b": 0, "c": null, "d": 1e400, "e": -2.0, "f": 3, "g": 18446744073709551616, "h": [1]}"#
                .replace("1e400", "\"x\"")
                .as_str(),
        )
        .unwrap();
        let problems = RefCell::new(Vec::new());
        let fields = Fields::new(json.as_object().unwrap(), "config.json", &problems);
        assert_eq!(fields.size("a", 10), 1);
        assert_eq!(fields.size("b", 10), 1);
        assert_eq!(fields.optional_size("c", 10), None);
        assert_eq!(fields.optional_number("d"), None);
        assert_eq!(fields.optional_positive("e"), None);
        assert!(!fields.flag("f", false));
        assert_eq!(fields.optional_size("g", 10), None);
        assert_eq!(fields.optional_texts("h"), None);
        assert_eq!(fields.size("missing", 10), 1);
        let messages: Vec<String> = problems.borrow().iter().map(ToString::to_string).collect();
        assert_eq!(messages.len(), 8, "{messages:#?}");
        assert_eq!(
            messages[0],
            "`a` in config.json: expected a whole number between 1 and 10, got \"7\""
        );
        assert_eq!(messages[7], "config.json has no `missing`");
    }
}
