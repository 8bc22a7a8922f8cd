//! Sample of the input's documents, and estimates for the whole input: short documents and tokens outside windows.

use std::collections::BTreeMap;

use longsift_stages::tokenize::Windows;
use serde_json::{Value, json};

use super::Plan;
use crate::base::diagnostic::Diagnostic;
use crate::base::text::count;

const MAX_DROPPED_SHARE: f64 = 0.5;

/// Sampled rows: the lengths of documents, and the rows that would be quarantined.
#[derive(Clone, Debug, Default)]
pub struct DocumentSample {
    /// Rows of the input that the sample represents.
    pub rows: u64,
    lengths: Vec<u64>,
    too_short: u64,
    tokens: u64,
    covered: u64,
    windows: u64,
    bad: BTreeMap<&'static str, u64>,
}

impl DocumentSample {
    /// Adds a document: its tokens, its tokens inside windows, and its windows.
    pub fn add(&mut self, tokens: u64, covered: u64, windows: u64) {
        self.lengths.push(tokens);
        self.too_short += u64::from(windows == 0);
        self.tokens += tokens;
        self.covered += covered;
        self.windows += windows;
    }

    pub fn add_bad(&mut self, reason: &'static str) {
        *self.bad.entry(reason).or_default() += 1;
    }

    pub fn documents(&self) -> u64 {
        self.lengths.len() as u64
    }

    fn bad_rows(&self) -> u64 {
        self.bad.values().sum()
    }

    fn sampled_rows(&self) -> u64 {
        self.documents() + self.bad_rows()
    }

    fn scaled(&self, of_sample: u64) -> u64 {
        let sampled = self.sampled_rows();
        let scale = self.rows.max(sampled) as f64 / sampled.max(1) as f64;
        (of_sample as f64 * scale).round() as u64
    }

    pub fn windows(&self) -> Option<u64> {
        (!self.lengths.is_empty()).then(|| self.scaled(self.windows))
    }

    /// Returns the estimated tokens of the whole input; `None` without a sample.
    pub fn tokens(&self) -> Option<u64> {
        (!self.lengths.is_empty()).then(|| self.scaled(self.tokens))
    }

    fn dropped_share(&self) -> f64 {
        (self.tokens - self.covered) as f64 / self.tokens.max(1) as f64
    }

    /// Returns the largest power of two from 1,024 to 32,768 that at least half of the documents reach, if any.
    pub fn window_tokens(&self) -> Option<u32> {
        let reach = |tokens: u32| {
            self.lengths.iter().filter(|length| **length >= u64::from(tokens)).count()
        };
        (10..=15)
            .rev()
            .map(|power| 1 << power)
            .find(|tokens| 2 * reach(*tokens) >= self.lengths.len().max(1))
    }

    pub(super) fn in_words(&self) -> Option<String> {
        let (rows, bad) = (self.sampled_rows(), self.bad_rows());
        let sampled = if rows >= self.rows {
            format!("all {} read", count(rows))
        } else {
            format!("a sample of {} of {}", count(rows), count(self.rows))
        };
        let bad =
            if bad > 0 { format!("{} to be quarantined, ", count(bad)) } else { String::new() };
        (self.documents() > 0).then(|| {
            format!(
                "{sampled}: {bad}{} too short for a window; {:.0} % of the tokens are in no window",
                count(self.too_short),
                100.0 * self.dropped_share()
            )
        })
    }

    /// Returns a warning if more rows are bad than a run accepts.
    pub fn quarantine_warning(&self, plan: &Plan) -> Option<Diagnostic> {
        let (bad, rows) = (self.bad_rows(), self.sampled_rows());
        let limit = plan.spec.pipeline.input.quarantine_limit(rows);
        if bad <= limit.rows {
            return None;
        }
        let reasons: Vec<String> =
            self.bad.iter().map(|(reason, rows)| format!("{reason}: {}", count(*rows))).collect();
        let message = format!(
            "{} of {} {}rows would be quarantined ({}), more than {} allows",
            count(bad),
            count(rows),
            if rows >= self.rows { "" } else { "sampled " },
            reasons.join(", "),
            limit.setting
        );
        let hint = format!("fix the input, or {}", limit.remedy);
        Some(plan.spec.warning(limit.path, message).hint(hint))
    }

    /// Returns a warning if the pipeline drops more than half of its tokens.
    pub fn dropped_warning(&self, plan: &Plan) -> Option<Diagnostic> {
        let settings = plan.spec.tokenize();
        if self.dropped_share() <= MAX_DROPPED_SHARE || settings.windows == Windows::WholeDocument {
            return None;
        }
        let documents = self.documents();
        let message = format!(
            "about {:.0} % of the tokens would be dropped: {} of {} {}documents are shorter than a window of {} tokens",
            100.0 * self.dropped_share(),
            count(self.too_short),
            count(documents),
            if self.sampled_rows() >= self.rows { "" } else { "sampled " },
            count(u64::from(settings.window_tokens))
        );
        let smaller = self.window_tokens().filter(|tokens| *tokens < settings.window_tokens);
        let hint = match smaller {
            Some(tokens) => format!(
                "half of the documents have at least {} tokens: set `window_tokens: {tokens}`, or `short_documents: score`",
                count(u64::from(tokens))
            ),
            None => "lower `window_tokens`, or set `short_documents: score`".to_owned(),
        };
        Some(plan.spec.warning("stages.tokenize.window_tokens", message).hint(hint))
    }

    pub(super) fn json(&self) -> Value {
        if self.lengths.is_empty() {
            return Value::Null;
        }
        json!({
            "documents": self.documents(),
            "too_short": self.too_short,
            "tokens": self.tokens,
            "tokens_in_windows": self.covered,
            "windows": self.windows,
        })
    }
}
