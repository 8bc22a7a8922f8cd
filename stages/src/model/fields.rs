//! Typed reading of `config.json`: every wrong value is noted, and reading goes on.

use std::cell::RefCell;

use serde_json::{Map, Value};

use super::problem::ModelProblem;

/// The entries of one JSON object of `config.json`. `null` counts as absent, as the transformers library treats it.
///
/// A method that finds a wrong value notes a problem and returns a harmless stand-in (1 for sizes), so that all
/// problems of a file are found in one go; nothing is built while there are problems.
pub(crate) struct Fields<'a> {
    map: &'a Map<String, Value>,
    place: String,
    problems: &'a RefCell<Vec<ModelProblem>>,
}

impl<'a> Fields<'a> {
    /// Reads `map`, which messages call `place` (`config.json`).
    pub(crate) fn new(
        map: &'a Map<String, Value>,
        place: &str,
        problems: &'a RefCell<Vec<ModelProblem>>,
    ) -> Self {
        Self { map, place: place.to_owned(), problems }
    }

    /// Notes a problem of the file.
    pub(crate) fn note(&self, problem: ModelProblem) {
        self.problems.borrow_mut().push(problem);
    }

    /// The raw value, with `null` as absent.
    pub(crate) fn value(&self, name: &str) -> Option<&'a Value> {
        self.map.get(name).filter(|value| !value.is_null())
    }

    /// Whether the key is there, be it `null`.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.map.contains_key(name)
    }

    /// Whether nothing is wrong so far. Values are compared with each other only then.
    pub(crate) fn is_clean(&self) -> bool {
        self.problems.borrow().is_empty()
    }

    /// Whether the object has no entries.
    pub(crate) fn is_empty(&self) -> bool {
        self.map.is_empty()
    }

    /// The names of all entries.
    pub(crate) fn names(&self) -> impl Iterator<Item = &'a String> + use<'a> {
        self.map.keys()
    }

    fn wrong(&self, name: &str, value: &Value, wanted: &str) {
        let text: String = value.to_string().chars().take(60).collect();
        self.note(ModelProblem::checkpoint(format!(
            "`{name}` in {} is {text}, not {wanted}",
            self.place
        )));
    }

    /// A size between 1 and `most`, or absent.
    pub(crate) fn optional_size(&self, name: &str, most: u64) -> Option<u64> {
        let value = self.value(name)?;
        match value.as_u64() {
            Some(size) if (1..=most).contains(&size) => Some(size),
            _ => {
                self.wrong(name, value, &format!("a whole number between 1 and {most}"));
                None
            }
        }
    }

    /// A size between 1 and `most` that must be there.
    pub(crate) fn size(&self, name: &str, most: u64) -> u64 {
        if self.value(name).is_none() {
            self.note(ModelProblem::checkpoint(format!("{} has no `{name}`", self.place)));
            return 1;
        }
        self.optional_size(name, most).unwrap_or(1)
    }

    /// A size under the first of several names that is there; without any, the default or a problem.
    pub(crate) fn size_of(&self, names: &[&str], most: u64, default: Option<u64>) -> u64 {
        let name = names.iter().find(|name| self.value(name).is_some());
        match (name, default) {
            (Some(name), _) => self.size(name, most),
            (None, Some(default)) => default,
            (None, None) => self.size(names[0], most),
        }
    }

    /// Where these fields are: `config.json`, or a name for the object inside it.
    pub(crate) fn place(&self) -> &str {
        &self.place
    }

    /// A list of finite numbers, or absent.
    pub(crate) fn optional_numbers(&self, name: &str) -> Option<Vec<f64>> {
        let value = self.value(name)?;
        let finite = |item: &Value| item.as_f64().filter(|number| number.is_finite());
        let numbers = value.as_array().and_then(|items| items.iter().map(finite).collect());
        if numbers.is_none() {
            self.wrong(name, value, "a list of numbers");
        }
        numbers
    }

    /// A whole number from 0, or absent.
    pub(crate) fn optional_count(&self, name: &str) -> Option<u64> {
        let value = self.value(name)?;
        if value.as_u64().is_none() {
            self.wrong(name, value, "a whole number from 0");
        }
        value.as_u64()
    }

    /// A finite number, or absent.
    pub(crate) fn optional_number(&self, name: &str) -> Option<f64> {
        let value = self.value(name)?;
        match value.as_f64() {
            Some(number) if number.is_finite() => Some(number),
            _ => {
                self.wrong(name, value, "a number");
                None
            }
        }
    }

    /// A finite number greater than 0, or absent.
    pub(crate) fn optional_positive(&self, name: &str) -> Option<f64> {
        let number = self.optional_number(name)?;
        if number > 0.0 {
            return Some(number);
        }
        self.wrong(name, &self.map[name], "a number greater than 0");
        None
    }

    /// A finite number greater than 0 that must be there.
    pub(crate) fn positive(&self, name: &str) -> f64 {
        if self.value(name).is_none() {
            self.note(ModelProblem::checkpoint(format!("{} has no `{name}`", self.place)));
        }
        self.optional_positive(name).unwrap_or(1.0)
    }

    /// `true` or `false`, or the default where it is absent.
    pub(crate) fn flag(&self, name: &str, default: bool) -> bool {
        let Some(value) = self.value(name) else { return default };
        if value.as_bool().is_none() {
            self.wrong(name, value, "true or false");
        }
        value.as_bool().unwrap_or(default)
    }

    /// A text, or absent.
    pub(crate) fn optional_text(&self, name: &str) -> Option<&'a str> {
        let value = self.value(name)?;
        if value.as_str().is_none() {
            self.wrong(name, value, "a text");
        }
        value.as_str()
    }

    /// A list of texts, or absent.
    pub(crate) fn optional_texts(&self, name: &str) -> Option<Vec<&'a str>> {
        let value = self.value(name)?;
        let texts = value.as_array().and_then(|items| items.iter().map(Value::as_str).collect());
        if texts.is_none() {
            self.wrong(name, value, "a list of texts");
        }
        texts
    }

    /// A nested object, or absent.
    pub(crate) fn optional_object(&self, name: &str) -> Option<Fields<'a>> {
        let value = self.value(name)?;
        if value.as_object().is_none() {
            self.wrong(name, value, "an object");
        }
        value
            .as_object()
            .map(|map| Fields::new(map, &format!("`{name}` of {}", self.place), self.problems))
    }
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
        assert_eq!(messages[0], "`a` in config.json is \"7\", not a whole number between 1 and 10");
        assert_eq!(messages[7], "config.json has no `missing`");
    }
}
