//! Measures, per window, how many different tokens it has.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::contract::{
    Column, Figures, Kind, Measure, Merge, Orientation, Unmeasured, Value, Window,
};

/// Measures, per window, which share of its tokens are different ones: a baseline that a score has to beat, and a guard
/// against word lists and boilerplate. It falls with the length of a window: compare it at one length.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Lexical {}

impl Measure for Lexical {
    fn columns(&self) -> Vec<Column> {
        vec![Column {
            name: "unique_token_share".into(),
            kind: Kind::Number,
            unit: "share of the tokens".into(),
            doc: "different token ids of the window, BOS included".into(),
            merge: Merge::Mean,
            orientation: Orientation::Lower,
            error: None,
        }]
    }

    fn version(&self) -> u32 {
        1
    }

    fn facts(&self) -> serde_json::Value {
        let Self {} = self;
        json!({})
    }

    fn figures(&self, window: &Window<'_>) -> Result<Figures, Unmeasured> {
        let mut ids = window.ids.to_vec();
        ids.sort_unstable();
        ids.dedup();
        let share = (!ids.is_empty()).then(|| ids.len() as f64 / window.ids.len() as f64);
        Ok(Figures(vec![Value::number(share)]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_tokens_count_once() {
        let share = |ids: &[u32]| {
            let window = Window { ids, text: None, text_half: None, document: &[], evidence: &[] };
            Lexical::default().figures(&window).unwrap().0
        };
        assert_eq!(share(&[5, 9, 5, u32::MAX, 9, 5, 5, 5]), [Value::Number(0.375)]);
        assert_eq!(share(&[7]), [Value::Number(1.0)]);
        assert_eq!(share(&[]), [Value::Null]);
    }
}
