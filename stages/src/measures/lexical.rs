//! Lexical measure: distinct tokens, and the shares of digits and of long strings without blanks in the text.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::passages;
use crate::contract::{
    Column, Measure, Needs, Orientation, Passages, RowError, StatisticValues, Value, Window,
};

/// Measures signs of junk: the share of distinct tokens in a window and, in its text, the shares of digits and of long
/// strings without a blank. Use them as guards against word lists, tables of numbers, and minified or encoded text. The
/// share of distinct tokens falls with the length of a window: compare it at one length only.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Lexical {
    /// Whether to measure `digit_share` and `unbroken_share`, which need the text of a window. Default true, or false
    /// with `input.tokens_column`, since token ids have no text. With `digit_share`, the scores `balanced-recurrence`
    /// and `balanced-gain` have one more component: few digits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub text: Option<bool>,
}

impl Lexical {
    pub fn measures_text(&self) -> bool {
        self.text.unwrap_or(true)
    }
}

impl Measure for Lexical {
    fn columns(&self) -> Vec<Column> {
        let share = |name: &'static str, unit, doc: &'static str| Column {
            orientation: Orientation::Lower,
            ..Column::number(name, unit, doc)
        };
        let of_tokens = share(
            "unique_token_share",
            "share of the tokens",
            "distinct token ids of the window, BOS included",
        );
        let of_text = [
            share("digit_share", "share of the bytes that are not blank", "ASCII digits"),
            share(
                "unbroken_share",
                "share of the bytes",
                "bytes in runs of 40 or more of ASCII without a blank or control character: minified or encoded text",
            ),
        ];
        std::iter::once(of_tokens)
            .chain(of_text.into_iter().filter(|_| self.measures_text()))
            .collect()
    }

    fn needs(&self) -> Needs {
        Needs { window_text: self.measures_text(), ..Needs::default() }
    }

    fn version(&self) -> u32 {
        2
    }

    fn facts(&self) -> serde_json::Value {
        json!({ "text": self.measures_text() })
    }

    fn passages(&self, column: &str, window: &Window<'_>) -> Option<Passages> {
        let text = window.text?;
        match column {
            "digit_share" => Some(passages::ranges(text.iter().map(u8::is_ascii_digit))),
            "unbroken_share" => Some(passages::unbroken(text)),
            _ => None,
        }
        .map(Passages::Bytes)
    }

    fn statistics(&self, window: &Window<'_>) -> Result<StatisticValues, RowError> {
        let mut ids = window.ids.to_vec();
        ids.sort_unstable();
        ids.dedup();
        let mut values = vec![share(ids.len(), window.ids.len())];
        if self.measures_text() {
            let text = window.text.expect("the measure requests the window's text");
            let counts = TextCounts::new(text);
            values.push(share(counts.digits, counts.above_blank));
            values.push(share(counts.unbroken, text.len()));
        }
        Ok(StatisticValues(values))
    }
}

fn share(count: usize, total: usize) -> Value {
    Value::number((total > 0).then(|| count as f64 / total as f64))
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TextCounts {
    /// Bytes `0` to `9`.
    pub digits: usize,
    /// Bytes above 0x20, including those beyond ASCII.
    pub above_blank: usize,
    /// Bytes in runs of at least 40 bytes from 0x21 to 0x7F.
    pub unbroken: usize,
}

/// Shortest run of bytes without a blank that counts as unbroken.
const MIN_RUN: usize = 40;
/// Bytes tested at once. A run of at least `2 · BLOCK - 1` bytes contains a whole aligned block.
const BLOCK: usize = 16;

impl TextCounts {
    pub fn new(text: &[u8]) -> Self {
        let (mut digits, mut above_blank) = (0, 0);
        // Sums of so many bytes fit in a byte, which gives vectors the most lanes.
        for bytes in text.chunks(usize::from(u8::MAX)) {
            let count = |is: fn(u8) -> bool| {
                usize::from(bytes.iter().map(|byte| u8::from(is(*byte))).sum::<u8>())
            };
            digits += count(|byte| byte.is_ascii_digit());
            above_blank += count(|byte| byte > 0x20);
        }
        Self { digits, above_blank, unbroken: unbroken(text) }
    }
}

fn unbroken(text: &[u8]) -> usize {
    let is_inside = |byte: &u8| matches!(byte, 0x21..=0x7f);
    let (mut bytes, mut start, mut last_end) = (0, 0, 0);
    while let Some(block) = text[start..].first_chunk::<BLOCK>() {
        if !block.iter().fold(true, |all, byte| all & is_inside(byte)) {
            start += BLOCK;
            continue;
        }
        let before = text[last_end..start].iter().rev().take_while(|byte| is_inside(byte)).count();
        let after = text[start..].iter().take_while(|byte| is_inside(byte)).count();
        if before + after >= MIN_RUN {
            bytes += before + after;
        }
        start += after;
        last_end = start;
    }
    bytes
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn values(settings: &Lexical, ids: &[u32], text: Option<&str>) -> Vec<Value> {
        let text = text.map(str::as_bytes);
        let window = Window { ids, text, text_half: text.map(|_| 0), document: &[], evidence: &[] };
        settings.statistics(&window).unwrap().0
    }

    #[test]
    fn equal_tokens_count_once() {
        let share = |ids: &[u32]| values(&Lexical { text: Some(false) }, ids, None);
        assert_eq!(share(&[5, 9, 5, u32::MAX, 9, 5, 5, 5]), [Value::Number(0.375)]);
        assert_eq!(share(&[7]), [Value::Number(1.0)]);
        assert_eq!(share(&[]), [Value::Null]);
    }

    #[test]
    fn shares_of_an_empty_text_are_null() {
        let shares = |text: &str| values(&Lexical::default(), &[1], Some(text))[1..].to_vec();
        assert_eq!(shares(""), [Value::Null, Value::Null]);
        assert_eq!(shares(" \n"), [Value::Null, Value::Number(0.0)]);
        assert_eq!(shares("a1 b"), [Value::Number(1.0 / 3.0), Value::Number(0.0)]);
        let minified = format!("{} ", "x".repeat(49));
        assert_eq!(shares(&minified), [Value::Number(0.0), Value::Number(0.98)]);
    }

    #[test]
    fn text_is_in_the_identity_with_its_default() {
        let settings = |text| serde_json::from_str::<Lexical>(text).unwrap();
        assert_eq!(settings("{}").facts(), settings(r#"{"text": true}"#).facts());
        let without_text = settings(r#"{"text": false}"#);
        assert_ne!(without_text.facts(), settings("{}").facts());
        assert_eq!((without_text.columns().len(), without_text.needs().window_text), (1, false));
        assert_eq!((settings("{}").columns().len(), settings("{}").needs().window_text), (3, true));
    }

    /// Counts by the definition, byte by byte.
    fn by_definition(text: &[u8]) -> TextCounts {
        let runs = text.split(|byte| !(0x21..=0x7f).contains(byte));
        TextCounts {
            digits: text.iter().filter(|byte| byte.is_ascii_digit()).count(),
            above_blank: text.iter().filter(|byte| **byte > 0x20).count(),
            unbroken: runs.map(<[u8]>::len).filter(|length| *length >= 40).sum(),
        }
    }

    proptest! {
        #[test]
        fn counts_match_the_definition(
            runs in prop::collection::vec((0_usize..90, prop_oneof![Just(0x21_u8), Just(b'7'), Just(0x7f)], any::<u8>()), 0..40),
        ) {
            let mut text = Vec::new();
            for (length, byte, end) in runs {
                text.extend(std::iter::repeat_n(byte, length));
                text.push(end);
            }
            prop_assert_eq!(TextCounts::new(&text), by_definition(&text));
        }
    }
}
