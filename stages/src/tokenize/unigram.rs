//! Scores of Unigram models as Hugging Face's package reads them. Its JSON parser rounds a decimal number twice, so paths of
//! mathematically equal scores, as of runs of one character, can differ from those of exactly read scores.

use serde::Deserialize;
use serde_json::value::RawValue;
use tokenizers::Result;
use tokenizers::models::unigram::Unigram;

#[derive(Deserialize)]
struct TokenizerJson<'a> {
    #[serde(borrow)]
    model: Model<'a>,
}

#[derive(Deserialize)]
struct Model<'a> {
    #[serde(borrow)]
    vocab: Vec<(String, &'a RawValue)>,
    unk_id: Option<usize>,
    #[serde(default)]
    byte_fallback: bool,
}

/// Reads the Unigram model of a `tokenizer.json`.
pub(super) fn model(json: &[u8]) -> Result<Unigram> {
    let TokenizerJson { model } = serde_json::from_slice(json)?;
    let score = |(token, score): (String, &RawValue)| Ok((token, twice_rounded(score.get())?));
    let vocab = model.vocab.into_iter().map(score).collect::<Result<_>>()?;
    Unigram::from(vocab, model.unk_id, model.byte_fallback)
}

/// Parses a JSON number like the `serde_json` crate without its feature `float_roundtrip`: digits are collected in an integer of
/// 64 bits, rounded to float64, and multiplied or divided by a power of ten.
fn twice_rounded(text: &str) -> Result<f64> {
    let exact: f64 = text.parse()?;
    let (digits, exponent) = text.split_once(['e', 'E']).unwrap_or((text, "0"));
    let (whole, fraction) = digits.split_once('.').unwrap_or((digits, ""));
    if fraction.is_empty() && digits == text {
        return Ok(exact);
    }
    let (mut significand, mut exponent) = (0_u64, exponent.parse::<i32>().unwrap_or(i32::MAX));
    let with = |significand: u64, digit: u8| {
        significand.checked_mul(10)?.checked_add(u64::from(digit - b'0'))
    };
    let mut is_full = false;
    for digit in whole.bytes().filter(u8::is_ascii_digit) {
        match with(significand, digit) {
            Some(next) if !is_full => significand = next,
            _ => {
                is_full = true;
                exponent = exponent.saturating_add(1);
            }
        }
    }
    for digit in fraction.bytes() {
        let Some(next) = with(significand, digit) else { break };
        significand = next;
        exponent = exponent.saturating_sub(1);
    }
    let mut value = significand as f64;
    while exponent < -308 && value != 0.0 {
        value /= 1e308;
        exponent += 308;
    }
    let power: f64 = format!("1e{}", exponent.unsigned_abs().min(308)).parse()?;
    value = if exponent < 0 { value / power } else { value * power };
    Ok(if text.starts_with('-') { -value } else { value })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Numbers as Hugging Face's package, version 0.23.3, reads them.
    #[test]
    fn scores_are_those_of_the_package() {
        for (text, expected) in [
            ("-12.458033561706543", "-12.458033561706545"),
            ("-15.903871536254883", "-15.903871536254885"),
            ("-18.446500778198242", "-18.44650077819824"),
            ("-13.556609153747559", "-13.55660915374756"),
            ("-1.8446744073709551616", "-1.8446744073709553"),
            ("-0.00012345678901234567", "-0.00012345678901234567"),
            ("-1.5e-10", "-1.5e-10"),
            ("-123456789012345678901234.5", "-1.2345678901234567e23"),
            ("-1234567890123456789012345e-20", "-12345.678901234567"),
            ("-3.14159265358979323846264338327950288", "-3.141592653589793"),
            ("-7", "-7"),
            ("0.1", "0.1"),
            ("-12.345E+1", "-123.45"),
            ("-184467440737095516159.1234", "-1.844674407370955e20"),
            ("-4.9e-320", "-4.9e-320"),
        ] {
            let (found, expected) =
                (twice_rounded(text).unwrap(), expected.parse::<f64>().unwrap());
            assert_eq!(found.to_bits(), expected.to_bits(), "{text}: {found:?}, not {expected:?}");
        }
    }
}
