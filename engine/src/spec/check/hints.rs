//! Hints for likely mistakes.

use serde_json::Value as Json;

use crate::base::text::line_safe;
use crate::spec::node::{Node, YamlValue};
use crate::spec::schema::{self, ValueKind};

/// Suggests the fix for a value of the wrong type.
pub(super) fn type_hint(node: &Node, kinds: &[ValueKind], key: &str) -> Option<String> {
    let text = line_safe(&node.text);
    let wants_number = kinds
        .iter()
        .any(|kind| matches!(kind, ValueKind::Integer { .. } | ValueKind::Number { .. }));
    let is_scalar =
        matches!(node.value, YamlValue::Boolean(_) | YamlValue::Integer(_) | YamlValue::Float(_));
    for kind in kinds {
        match (kind, &node.value) {
            (ValueKind::Boolean, YamlValue::String(word)) => match word.to_lowercase().as_str() {
                "yes" | "on" | "y" | "1" | "true" => return Some("write `true`".to_string()),
                "no" | "off" | "n" | "0" | "false" => return Some("write `false`".to_string()),
                _ => {}
            },
            (ValueKind::Boolean, YamlValue::Integer(0)) => {
                return Some("write `false`".to_string());
            }
            (ValueKind::Boolean, YamlValue::Integer(1)) => return Some("write `true`".to_string()),
            (ValueKind::String, _) if is_scalar => {
                return Some(format!("put it in quotes: `\"{text}\"`"));
            }
            (ValueKind::Mapping(mapping), YamlValue::String(_)) if kinds.len() == 1 => {
                return mapping_hint(mapping, &text, key);
            }
            (ValueKind::Stage(_), YamlValue::String(_)) => {
                return Some(format!("write `- stage: {text}`"));
            }
            (ValueKind::List { .. }, YamlValue::Mapping(_)) if key == "stages" => {
                return Some("begin each stage with `- stage: NAME`".to_string());
            }
            _ => {}
        }
    }
    match &node.value {
        YamlValue::String(word) if wants_number => number_hint(word, node.plain, key),
        YamlValue::Null => {
            Some("give it a value, or remove the key if it has a default".to_string())
        }
        _ => None,
    }
}

fn mapping_hint(mapping: &Json, text: &str, key: &str) -> Option<String> {
    let first = if mapping["properties"].get("default").is_some() {
        "default"
    } else {
        schema::properties(mapping).map(|(key, _)| key).next()?
    };
    Some(format!("write `{key}: {{{first}: \"{text}\"}}`"))
}

/// Suggests the fix for a number that was written as text.
fn number_hint(word: &str, plain: bool, key: &str) -> Option<String> {
    if !plain && word.parse::<f64>().is_ok() {
        return Some(format!("remove the quotes: `{key}: {}`", line_safe(word)));
    }
    let digits: String =
        word.chars().filter(|character| !matches!(character, '_' | ',' | '\'' | ' ')).collect();
    if digits != word && digits.parse::<u64>().is_ok() {
        return Some(format!("write the digits without separators: `{digits}`"));
    }
    let percent = word.strip_suffix('%').and_then(|number| number.trim().parse::<f64>().ok());
    percent
        .filter(|number| number.is_finite())
        .map(|number| format!("write it as a fraction: `{}`", number / 100.0))
}

/// Returns the mapping that has a key, if there is exactly one.
pub(super) fn home_of(root: &Json, key: &str) -> Option<String> {
    let mut homes = schema::sections(root)
        .filter(|(_, schema)| schema["properties"].get(key).is_some() && key != "stage");
    let (home, _) = homes.next()?;
    let kind = if matches!(home, "input" | "output") { "" } else { "stage " };
    homes.next().is_none().then(|| format!("{kind}`{home}`"))
}

pub(super) fn first_sentence(text: &str) -> &str {
    text.split_once(". ").map_or(text.trim_end_matches('.'), |(first, _)| first)
}
