//! Attention of spans of rows to blocks of earlier keys, for scores that use a few rows only.

use std::ops::Range;

use rayon::prelude::*;

use crate::kernel::Kernel;
use crate::masks::visible_keys;
use crate::pointwise::Pointwise;
use crate::project::PackedWeights;
use crate::simd::exp2;
use crate::statistics::{AttentionShape, LogitRules, QueryKeySource};

/// Rows of a span whose logits are in memory at a time.
const ROWS_AT_ONCE: usize = 32;

/// Rows, and the blocks of earlier keys whose attention is summed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RowSpan {
    /// Not empty.
    pub rows: Range<usize>,
    /// Blocks of keys, each before the first row.
    pub blocks: Vec<Range<usize>>,
}

/// Computes, for each span, the attention of its rows to each block of keys: a sum over rows, a mean over query heads. The
/// softmax of a row runs only over its visible keys before the span; a row without such keys adds nothing.
///
/// Heads run in parallel in the current rayon pool; sums are float64 in a fixed order, so threads change no bit. Cost: rows of
/// all spans · tokens · query heads products of width `head_dim`; memory of each thread: the keys of a head twice and 32
/// rows of logits.
///
/// # Panics
/// If a span or a block is not in the window, or the processor lacks `kernel`.
pub fn span_masses(
    kernel: Kernel,
    shape: &AttentionShape,
    rules: &LogitRules,
    source: &dyn QueryKeySource,
    spans: &[RowSpan],
) -> Vec<Vec<f64>> {
    shape.assert_valid();
    rules.assert_matches(shape);
    for span in spans {
        let inside = |block: &Range<usize>| block.end <= span.rows.start;
        assert!(span.rows.end <= shape.tokens && span.blocks.iter().all(inside), "{span:?}");
    }
    let heads: Vec<Vec<Vec<f64>>> = (0..shape.query_heads)
        .into_par_iter()
        .map(|head| masses_of_head(kernel, shape, rules, source, spans, head))
        .collect();
    let mean = |span: usize, block: usize| {
        heads.iter().map(|head| head[span][block]).sum::<f64>() / shape.query_heads as f64
    };
    let of_span = |(index, span): (usize, &RowSpan)| {
        (0..span.blocks.len()).map(|block| mean(index, block)).collect()
    };
    spans.iter().enumerate().map(of_span).collect()
}

/// Returns the peak heap bytes of one thread of [`span_masses`].
pub fn span_bytes(shape: &AttentionShape) -> u64 {
    let keys = 2 * shape.tokens * shape.head_dim;
    let rows = ROWS_AT_ONCE * (shape.head_dim + shape.tokens);
    ((keys + rows) * size_of::<f32>() + shape.tokens * size_of::<f64>()) as u64
}

/// Returns the masses of one head, `[spans][blocks]`.
fn masses_of_head(
    kernel: Kernel,
    shape: &AttentionShape,
    rules: &LogitRules,
    source: &dyn QueryKeySource,
    spans: &[RowSpan],
    head: usize,
) -> Vec<Vec<f64>> {
    let (tokens, head_dim) = (shape.tokens, shape.head_dim);
    let mut keys = vec![0.0; tokens * head_dim];
    source.keys(head / shape.group(), 0..tokens, &mut keys);
    let packed = PackedWeights::new(kernel, &keys, None, head_dim);
    drop(keys);
    let mut weights = Vec::new();
    let of_span = |span: &RowSpan| {
        let mut masses = vec![0.0; span.blocks.len()];
        for first in span.rows.clone().step_by(ROWS_AT_ONCE) {
            let rows = first..span.rows.end.min(first + ROWS_AT_ONCE);
            let mut queries = vec![0.0; rows.len() * head_dim];
            source.queries(head, rows.clone(), &mut queries);
            let mut logits = vec![0.0; rows.len() * tokens];
            packed.apply(&queries, &mut logits);
            for (row, logits) in rows.zip(logits.chunks_exact_mut(tokens)) {
                let seen = visible_keys(rules, tokens, row);
                let seen = seen.start..seen.end.min(span.rows.start);
                if seen.is_empty() {
                    continue;
                }
                scale(kernel, rules, (head, row), seen.clone(), logits);
                probabilities(&logits[seen.clone()], &mut weights);
                for (mass, block) in masses.iter_mut().zip(&span.blocks) {
                    let block = block.start.max(seen.start)..block.end.min(seen.end);
                    if !block.is_empty() {
                        let weights = &weights[block.start - seen.start..block.end - seen.start];
                        *mass += weights.iter().sum::<f64>();
                    }
                }
            }
        }
        masses
    };
    spans.iter().map(of_span).collect()
}

/// Turns products of a row with its visible keys into logits.
fn scale(
    kernel: Kernel,
    rules: &LogitRules,
    (head, row): (usize, usize),
    seen: Range<usize>,
    logits: &mut [f32],
) {
    let factor = rules.query_scale.as_ref().map_or(1.0, |scale| f64::from(scale[row]));
    let factor = f64::from(rules.scale) * factor;
    for x in &mut logits[seen.clone()] {
        *x = (f64::from(*x) * factor) as f32;
    }
    if let Some(cap) = rules.softcap {
        Pointwise::Softcap(cap).apply(kernel, &mut logits[seen.clone()]);
    }
    if let Some(slopes) = &rules.alibi_slopes {
        let slope = f64::from(slopes[head]);
        for key in seen {
            let bias = slope * (key as f64 - row as f64);
            logits[key] = (f64::from(logits[key]) + bias) as f32;
        }
    }
}

/// Computes the softmax of one or more logits.
fn probabilities(logits: &[f32], weights: &mut Vec<f64>) {
    let largest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let power = |x: &f32| exp2((f64::from(*x) - f64::from(largest)) * std::f64::consts::LOG2_E);
    weights.clear();
    weights.extend(logits.iter().map(power));
    let total: f64 = weights.iter().sum();
    for weight in weights {
        *weight /= total;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reference::reference_rows;

    /// Queries and keys that differ at every position.
    struct Waves;

    impl QueryKeySource for Waves {
        fn queries(&self, head: usize, rows: Range<usize>, out: &mut [f32]) {
            fill(head, rows, 0.37, out);
        }
        fn keys(&self, head: usize, rows: Range<usize>, out: &mut [f32]) {
            fill(head, rows, 0.59, out);
        }
    }

    fn fill(head: usize, rows: Range<usize>, step: f32, out: &mut [f32]) {
        let width = out.len() / rows.len();
        for (row, out) in rows.zip(out.chunks_exact_mut(width)) {
            for (d, x) in out.iter_mut().enumerate() {
                *x = 2.0 * (step * (row * (d + 2) + 7 * head) as f32).sin();
            }
        }
    }

    #[test]
    fn masses_match_the_dense_softmax_before_the_span() {
        let shape = AttentionShape { tokens: 150, query_heads: 4, key_heads: 2, head_dim: 6 };
        let spans = [
            RowSpan { rows: 100..140, blocks: vec![10..20, 0..100, 60..60, 80..95] },
            RowSpan { rows: 40..48, blocks: vec![32..40, 0..32] },
        ];
        let plain = LogitRules::causal(6);
        let bent = LogitRules {
            softcap: Some(3.0),
            alibi_slopes: Some(vec![0.1, 0.02, 0.3, 0.0]),
            window: Some(70),
            query_scale: Some((0..150).map(|row| 1.0 + row as f32 / 100.0).collect()),
            ..plain.clone()
        };
        for rules in [plain, bent] {
            let mut want: Vec<Vec<f64>> =
                spans.iter().map(|span| vec![0.0; span.blocks.len()]).collect();
            reference_rows(&shape, &rules, &Waves, |_, row, probabilities| {
                for (span, want) in spans.iter().zip(&mut want) {
                    if !span.rows.contains(&row) {
                        continue;
                    }
                    let before: f64 = probabilities[..span.rows.start].iter().sum();
                    if before == 0.0 {
                        continue;
                    }
                    for (want, block) in want.iter_mut().zip(&span.blocks) {
                        *want += probabilities[block.clone()].iter().sum::<f64>() / before / 4.0;
                    }
                }
            });
            let kernels = Kernel::ALL.iter().filter(|kernel| kernel.is_supported());
            for kernel in kernels {
                let got = span_masses(*kernel, &shape, &rules, &Waves, &spans);
                for (got, want) in got.iter().flatten().zip(want.iter().flatten()) {
                    let off = (got - want).abs();
                    assert!(off <= 1e-5 * (1e-3 + want), "{}: {got} {want}", kernel.name());
                }
            }
        }
    }
}
