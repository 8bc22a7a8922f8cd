//! Describes accepted values for messages and reference pages.

use serde_json::Value;

use crate::base::text::count;
use crate::spec::schema::{ValueKind, kinds};

/// Describes the accepted values of a setting: `an integer from 2 to 16,777,216`, `` `auto`, `cpu` or a list of strings ``.
pub(crate) fn in_words(root: &Value, schema: &Value) -> String {
    let words = kinds(root, schema).into_iter().flat_map(|kind| match kind {
        ValueKind::Boolean => vec!["`true`".to_string(), "`false`".to_string()],
        ValueKind::Integer { minimum, maximum } if minimum == maximum => vec![grouped(minimum)],
        ValueKind::Integer { minimum, maximum } => {
            vec![format!("an integer{}", range(minimum, maximum))]
        }
        ValueKind::Number { minimum, maximum } => {
            vec![format!("a number{}", number_range(minimum, maximum))]
        }
        ValueKind::Names(names) => quoted(&names),
        ValueKind::Stage(_) => vec!["a stage".to_string()],
        kind => short(root, &kind).into_iter().collect(),
    });
    joined(&words.collect::<Vec<_>>())
}

/// Like [`in_words`], with a single word per kind, for messages such as "is a string, not an integer".
pub(crate) fn in_short(root: &Value, schema: &Value) -> String {
    let words = kinds(root, schema).into_iter().filter_map(|kind| short(root, &kind));
    joined(&words.collect::<Vec<_>>())
}

fn short(root: &Value, kind: &ValueKind) -> Option<String> {
    Some(match kind {
        ValueKind::Null => return None,
        ValueKind::Boolean => "a boolean".to_string(),
        ValueKind::Integer { .. } => "an integer".to_string(),
        ValueKind::Number { .. } => "a number".to_string(),
        ValueKind::String => "a string".to_string(),
        ValueKind::Names(names) => joined(&quoted(names)),
        ValueKind::List { items, .. } => format!("a list of {}", plural(root, items)),
        ValueKind::Mapping(_) | ValueKind::Stage(_) => "a mapping".to_string(),
    })
}

fn quoted(names: &[(&str, &str)]) -> Vec<String> {
    names.iter().map(|(name, _)| format!("`{name}`")).collect()
}

fn plural(root: &Value, items: &Value) -> &'static str {
    match kinds(root, items).first() {
        Some(ValueKind::String) => "strings",
        Some(ValueKind::Integer { .. }) => "integers",
        Some(ValueKind::Stage(_)) => "stages",
        _ => "values",
    }
}

pub(crate) fn joined(words: &[String]) -> String {
    match words {
        [] => "nothing".to_string(),
        [one] => one.clone(),
        [first @ .., last] => format!("{} or {last}", first.join(", ")),
    }
}

fn range(minimum: i128, maximum: i128) -> String {
    match (minimum, maximum) {
        (i128::MIN, i128::MAX) => String::new(),
        (minimum, maximum) if maximum >= i128::from(u64::MAX) => {
            format!(" from {}", grouped(minimum))
        }
        (i128::MIN, maximum) => format!(" up to {}", grouped(maximum)),
        (minimum, maximum) => format!(" from {} to {}", grouped(minimum), grouped(maximum)),
    }
}

fn number_range(minimum: f64, maximum: f64) -> String {
    match (minimum.is_finite(), maximum.is_finite()) {
        (true, true) => format!(" from {minimum} to {maximum}"),
        (true, false) => format!(" from {minimum}"),
        (false, true) => format!(" up to {maximum}"),
        (false, false) => String::new(),
    }
}

pub(crate) fn grouped(integer: i128) -> String {
    let sign = if integer < 0 { "-" } else { "" };
    match u64::try_from(integer.unsigned_abs()) {
        Ok(size @ 10_000..) => format!("{sign}{}", count(size)),
        _ => integer.to_string(),
    }
}
