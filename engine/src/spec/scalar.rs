//! Resolves plain scalars by the core schema of YAML 1.2.2, chapter 10.3.2.

use super::node::YamlValue;

/// Resolves an unquoted scalar. `yes`, `on` and `0777` are strings; `True` is a boolean, though settings only accept `true`.
pub(crate) fn resolve(text: &str) -> YamlValue {
    match text {
        "" | "~" | "null" | "Null" | "NULL" => YamlValue::Null,
        "true" | "True" | "TRUE" => YamlValue::Boolean(true),
        "false" | "False" | "FALSE" => YamlValue::Boolean(false),
        ".nan" | ".NaN" | ".NAN" => YamlValue::Float(f64::NAN),
        _ => number(text).unwrap_or_else(|| YamlValue::String(text.to_string())),
    }
}

fn number(text: &str) -> Option<YamlValue> {
    if let Some(digits) = text.strip_prefix("0x") {
        return based(digits, 16);
    }
    if let Some(digits) = text.strip_prefix("0o") {
        return based(digits, 8);
    }
    let unsigned = text.strip_prefix(['-', '+']).unwrap_or(text);
    if matches!(unsigned, ".inf" | ".Inf" | ".INF") {
        return Some(YamlValue::Float(if text.starts_with('-') {
            f64::NEG_INFINITY
        } else {
            f64::INFINITY
        }));
    }
    if let Ok(integer) = text.parse() {
        return Some(YamlValue::Integer(integer));
    }
    // The standard library accepts the same floats, and words such as `inf`. A float that overflows becomes infinite, which the
    // checker refuses.
    let is_number = unsigned.starts_with(|first: char| first.is_ascii_digit() || first == '.');
    text.parse().ok().filter(|_| is_number).map(YamlValue::Float)
}

fn based(digits: &str, base: u32) -> Option<YamlValue> {
    if digits.is_empty() || !digits.chars().all(|digit| digit.is_digit(base)) {
        return None;
    }
    let integer = i128::from_str_radix(digits, base).map(YamlValue::Integer);
    Some(integer.unwrap_or(YamlValue::Float(f64::MAX)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scalars_resolve_by_the_core_rules() {
        for (text, value) in [
            ("", YamlValue::Null),
            ("~", YamlValue::Null),
            ("true", YamlValue::Boolean(true)),
            ("12", YamlValue::Integer(12)),
            ("-012", YamlValue::Integer(-12)),
            ("+3", YamlValue::Integer(3)),
            ("0x1F", YamlValue::Integer(31)),
            ("0o17", YamlValue::Integer(15)),
            ("18446744073709551615", YamlValue::Integer(u64::MAX.into())),
            ("0.29", YamlValue::Float(0.29)),
            (".5", YamlValue::Float(0.5)),
            ("5.", YamlValue::Float(5.0)),
            ("1e3", YamlValue::Float(1000.0)),
            ("-1.5E-2", YamlValue::Float(-0.015)),
            ("-.inf", YamlValue::Float(f64::NEG_INFINITY)),
        ] {
            assert_eq!(resolve(text), value, "{text:?}");
        }
        assert!(matches!(resolve(".nan"), YamlValue::Float(float) if float.is_nan()));
        let huge = "9".repeat(400);
        assert_eq!(resolve(&huge), YamlValue::Float(f64::INFINITY));
    }

    #[test]
    fn non_numbers_are_strings() {
        for text in [
            "yes",
            "no",
            "on",
            "y",
            "1_000",
            "1,000",
            "0x",
            "0xg",
            "1e",
            "e5",
            ".",
            "-",
            "+",
            "1.2.3",
            "nan",
            "inf",
            "infinity",
            "0b1",
            "--1",
            "1-2",
            "2026-11-20",
            "10 ",
            "½",
            "0x-1",
            "-0x1",
            "TrUe",
        ] {
            assert_eq!(resolve(text), YamlValue::String(text.to_string()), "{text:?}");
        }
    }
}
