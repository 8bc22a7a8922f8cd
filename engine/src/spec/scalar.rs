//! Resolves plain scalars by the core schema of YAML 1.2.2, chapter 10.3.2.

use super::node::Value;

/// Resolves an unquoted scalar. `yes`, `on` and `0777` are strings; `True` is a boolean, though settings only accept `true`.
pub(crate) fn resolve(text: &str) -> Value {
    match text {
        "" | "~" | "null" | "Null" | "NULL" => Value::Null,
        "true" | "True" | "TRUE" => Value::Boolean(true),
        "false" | "False" | "FALSE" => Value::Boolean(false),
        ".nan" | ".NaN" | ".NAN" => Value::Float(f64::NAN),
        _ => number(text).unwrap_or_else(|| Value::String(text.to_string())),
    }
}

fn number(text: &str) -> Option<Value> {
    if let Some(digits) = text.strip_prefix("0x") {
        return based(digits, 16);
    }
    if let Some(digits) = text.strip_prefix("0o") {
        return based(digits, 8);
    }
    let unsigned = text.strip_prefix(['-', '+']).unwrap_or(text);
    if matches!(unsigned, ".inf" | ".Inf" | ".INF") {
        return Some(Value::Float(if text.starts_with('-') {
            f64::NEG_INFINITY
        } else {
            f64::INFINITY
        }));
    }
    if is_digits(unsigned) {
        return Some(text.parse().map_or_else(|_| float(text), Value::Integer));
    }
    is_float(unsigned).then(|| float(text))
}

fn based(digits: &str, base: u32) -> Option<Value> {
    if digits.is_empty() || !digits.chars().all(|digit| digit.is_digit(base)) {
        return None;
    }
    let integer = i128::from_str_radix(digits, base).map(Value::Integer);
    Some(integer.unwrap_or(Value::Float(f64::MAX)))
}

/// A number that overflows becomes infinite, which is refused.
fn float(text: &str) -> Value {
    Value::Float(text.parse().unwrap_or(f64::NAN))
}

/// `(\. [0-9]+ | [0-9]+ (\. [0-9]*)?) ([eE] [-+]? [0-9]+)?`
fn is_float(unsigned: &str) -> bool {
    let (mantissa, exponent) = match unsigned.split_once(['e', 'E']) {
        Some((mantissa, exponent)) => (mantissa, Some(exponent)),
        None => (unsigned, None),
    };
    let mantissa_fits = match mantissa.split_once('.') {
        Some(("", fraction)) => is_digits(fraction),
        Some((whole, fraction)) => is_digits(whole) && (fraction.is_empty() || is_digits(fraction)),
        None => is_digits(mantissa),
    };
    mantissa_fits
        && exponent
            .is_none_or(|exponent| is_digits(exponent.strip_prefix(['-', '+']).unwrap_or(exponent)))
}

fn is_digits(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scalars_resolve_by_the_core_rules() {
        for (text, value) in [
            ("", Value::Null),
            ("~", Value::Null),
            ("true", Value::Boolean(true)),
            ("12", Value::Integer(12)),
            ("-012", Value::Integer(-12)),
            ("+3", Value::Integer(3)),
            ("0x1F", Value::Integer(31)),
            ("0o17", Value::Integer(15)),
            ("18446744073709551615", Value::Integer(u64::MAX.into())),
            ("0.29", Value::Float(0.29)),
            (".5", Value::Float(0.5)),
            ("5.", Value::Float(5.0)),
            ("1e3", Value::Float(1000.0)),
            ("-1.5E-2", Value::Float(-0.015)),
            ("-.inf", Value::Float(f64::NEG_INFINITY)),
        ] {
            assert_eq!(resolve(text), value, "{text:?}");
        }
        assert!(matches!(resolve(".nan"), Value::Float(float) if float.is_nan()));
        let huge = "9".repeat(400);
        assert_eq!(resolve(&huge), Value::Float(f64::INFINITY));
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
            assert_eq!(resolve(text), Value::String(text.to_string()), "{text:?}");
        }
    }
}
