//! LADM's contextual dependency of a window: how strongly and how unevenly spans attend to spans far before them.

use std::fmt;

use longsift_kernels::RowSpan;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Settings of LADM's score (Chen et al. 2025, "LADM: Long-context Training Data Selection with Attention-based
/// Dependency Measurement for LLMs", and its code). Spans of l rows are placed every l·`d_cds` rows, starting at the
/// end of the window. The focus of a span on l keys is computed every l·`d_afs` keys before the span, with a softmax
/// over the keys before the span only. The score of a span is the standard deviation of its foci times their sum, each
/// focus weighted by its distance as a share of the window. The score of the window is the mean over its spans, each
/// weighted by its position in the window.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Ladm {
    /// Length l of a span in rows. Default 128.
    #[serde(default = "default_span_tokens")]
    #[schemars(range(min = 1, max = 65_536))]
    pub span_tokens: u32,
    /// Distance from one focus to the next, in spans. Default 4.
    #[serde(default = "default_step")]
    #[schemars(range(min = 1, max = 65_536))]
    pub d_afs: u32,
    /// Distance from one span of rows to the next, in spans. Default 4.
    #[serde(default = "default_step")]
    #[schemars(range(min = 1, max = 65_536))]
    pub d_cds: u32,
    /// Number of keys at the start of the window without a focus. Default: `span_tokens`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(max = 16_777_215))]
    pub keep_at_start: Option<u32>,
}

fn default_span_tokens() -> u32 {
    128
}

fn default_step() -> u32 {
    4
}

impl fmt::Display for Ladm {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { span_tokens, d_afs, .. } = self;
        write!(formatter, "spans of {span_tokens} tokens with foci every {d_afs} spans")
    }
}

impl Ladm {
    fn keep_at_start(&self) -> usize {
        self.keep_at_start.unwrap_or(self.span_tokens) as usize
    }

    /// Returns the number of keys between two focus positions.
    fn interval(&self) -> usize {
        self.span_tokens as usize * self.d_afs as usize
    }

    /// Returns the spans, the last first, each with the keys of its at least four foci, the nearest first.
    pub fn spans(&self, tokens: usize) -> Vec<RowSpan> {
        let (span, keep, interval) =
            (self.span_tokens as usize, self.keep_at_start(), self.interval());
        let mut spans = Vec::new();
        let mut next = tokens.checked_sub(span);
        while let Some(start) = next.filter(|start| *start > keep + 4 * interval) {
            let foci = (1..=(start - keep) / interval).map(|index| start - index * interval);
            let blocks = foci.map(|from| from..from + span).collect();
            spans.push(RowSpan { rows: start..start + span, blocks });
            next = start.checked_sub(span * self.d_cds as usize);
        }
        spans
    }

    /// Computes the score from the attention of each span to each of its foci; `None` without a span.
    pub fn context_dependence(
        &self,
        tokens: usize,
        spans: &[RowSpan],
        foci: &[Vec<f64>],
    ) -> Option<f64> {
        let length = tokens as f64;
        let of_span = |(span, foci): (&RowSpan, &Vec<f64>)| {
            let interval = |index: usize| ((index + 1) * self.interval()) as f64;
            let weighed = foci.iter().enumerate();
            let weighed: f64 =
                weighed.map(|(index, focus)| focus * (interval(index) / length)).sum();
            deviation(foci) * weighed * (span.rows.start as f64 / length)
        };
        let scores: f64 = spans.iter().zip(foci).map(of_span).sum();
        (!spans.is_empty()).then(|| scores / spans.len() as f64)
    }
}

/// Returns the sample standard deviation of at least two values.
fn deviation(values: &[f64]) -> f64 {
    let count = values.len() as f64;
    let mean = values.iter().sum::<f64>() / count;
    let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
    (squares / (count - 1.0)).sqrt()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ladm() -> Ladm {
        Ladm { span_tokens: 8, d_afs: 4, d_cds: 4, keep_at_start: Some(8) }
    }

    #[test]
    fn spans_start_at_the_end_and_need_four_foci() {
        let spans = ladm().spans(257);
        let starts: Vec<usize> = spans.iter().map(|span| span.rows.start).collect();
        assert_eq!(starts, [249, 217, 185, 153]);
        assert_eq!(spans[3].blocks, [121..129, 89..97, 57..65, 25..33]);
        assert!(ladm().spans(144).is_empty(), "136 is not above 8 + 4 · 32");
        assert_eq!(ladm().spans(145).len(), 1);
        assert!(ladm().spans(3).is_empty());
    }

    #[test]
    fn the_score_matches_the_definition() {
        let spans = ladm().spans(145);
        let foci = [vec![1.0, 2.0, 3.0, 6.0]];
        let deviation = (14.0_f64 / 3.0).sqrt();
        let weighed = (32.0 + 2.0 * 64.0 + 3.0 * 96.0 + 6.0 * 128.0) / 145.0;
        let want = deviation * weighed * 137.0 / 145.0;
        let got = ladm().context_dependence(145, &spans, &foci).unwrap();
        assert!((got - want).abs() < 1e-12);
        assert_eq!(ladm().context_dependence(3, &[], &[]), None);
    }
}
