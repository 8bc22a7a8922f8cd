//! Reference statistics as plain float64 loops, one row at a time; every kernel is checked against them.
//!
//! Passes per row: 1. logits, 2. softmax, 3. sums. Cost: `S² · head_dim` operations per head on one thread.

use crate::gated_linear::GatedLinearShape;
use crate::masks::visible_keys;
use crate::statistics::{
    AttentionShape, LogitRules, QueryKeySource, WindowSums, distance_bin, histogram_bins, normalise,
};

/// Calls `visit(head, row, probabilities)` for every query head and row, heads first, rows ascending.
///
/// `probabilities`: `[tokens]`, 0 for keys the row does not see. With a sink they sum to less than 1.
pub fn reference_rows(
    shape: &AttentionShape,
    rules: &LogitRules,
    source: &dyn QueryKeySource,
    mut visit: impl FnMut(usize, usize, &[f64]),
) {
    shape.assert_valid();
    rules.assert_matches(shape);
    let (tokens, head_dim) = (shape.tokens, shape.head_dim);
    let mut keys = vec![0.0_f32; tokens * head_dim];
    let mut query = vec![0.0_f32; head_dim];
    let mut row_values = vec![0.0_f64; tokens];
    for head in 0..shape.query_heads {
        source.keys(head / shape.group(), 0..tokens, &mut keys);
        for row in 0..tokens {
            source.queries(head, row..row + 1, &mut query);
            let visible = visible_keys(rules, tokens, row);
            let visible = visible.start.min(tokens)..visible.end.min(tokens);
            row_values.fill(0.0);
            // 1. Logits of the visible keys.
            for key in visible.clone() {
                let key_values = &keys[key * head_dim..][..head_dim];
                row_values[key] = logit(rules, head, row, key, dot(&query, key_values));
            }
            // 2. Softmax over them and the sink.
            softmax(
                &mut row_values[visible],
                rules.sinks.as_ref().map(|sinks| f64::from(sinks[head])),
            );
            visit(head, row, &row_values);
        }
    }
}

/// Computes [`attention_statistics`](crate::attention_statistics) in float64 and on one thread.
pub fn reference_statistics(
    shape: &AttentionShape,
    rules: &LogitRules,
    distance: usize,
    source: &dyn QueryKeySource,
) -> WindowSums {
    let mut sums = WindowSums {
        far_mass: vec![0.0; shape.query_heads],
        far_square: vec![0.0; shape.query_heads],
        histogram: vec![0.0; histogram_bins(shape.tokens)],
        row_far_mass: vec![0.0; shape.tokens],
    };
    reference_rows(shape, rules, source, |head, row, probabilities| {
        // 3. Sums over the keys up to the row, far ones first.
        for (key, &probability) in probabilities[..=row].iter().enumerate() {
            sums.histogram[distance_bin(row - key)] += probability;
            if row - key >= distance {
                sums.far_mass[head] += probability;
                sums.far_square[head] += probability * probability;
                sums.row_far_mass[row] += probability / shape.query_heads as f64;
            }
        }
    });
    normalise(&mut sums.histogram);
    sums
}

/// Keeps eight sums, so that an addition need not wait for the previous one.
fn dot(query: &[f32], key: &[f32]) -> f64 {
    let product = |(&q, &k): (&f32, &f32)| f64::from(q) * f64::from(k);
    let mut sums = [0.0; 8];
    let (queries, rest_of_query) = query.as_chunks::<8>();
    let (keys, rest_of_key) = key.as_chunks::<8>();
    for (query, key) in queries.iter().zip(keys) {
        sums.iter_mut().zip(query.iter().zip(key)).for_each(|(sum, pair)| *sum += product(pair));
    }
    sums.iter().sum::<f64>() + rest_of_query.iter().zip(rest_of_key).map(product).sum::<f64>()
}

/// Returns the logit of a product, as [`LogitRules`] defines it.
fn logit(rules: &LogitRules, head: usize, row: usize, key: usize, product: f64) -> f64 {
    let row_scale = rules.query_scale.as_ref().map_or(1.0, |scale| f64::from(scale[row]));
    let mut x = f64::from(rules.scale) * row_scale * product;
    if let Some(cap) = rules.softcap.map(f64::from) {
        x = cap * (x / cap).tanh();
    }
    if let Some(slopes) = &rules.alibi_slopes {
        x += f64::from(slopes[head]) * (key as f64 - row as f64);
    }
    x
}

fn softmax(logits: &mut [f64], sink: Option<f64>) {
    let largest = logits.iter().copied().chain(sink).fold(f64::NEG_INFINITY, f64::max);
    for logit in &mut *logits {
        *logit = (*logit - largest).exp();
    }
    let total = logits.iter().sum::<f64>() + sink.map_or(0.0, |sink| (sink - largest).exp());
    for probability in logits {
        *probability /= total;
    }
}

/// Computes gated linear attention token by token in float64: `[rows, query_heads · value_dim]`. Arguments as the fields of
/// [`GatedLinearRows`](crate::GatedLinearRows).
pub fn reference_gated_linear(
    shape: &GatedLinearShape,
    queries: &[f64],
    keys: &[f64],
    values: &[f64],
    log_decays: &[f64],
) -> Vec<f64> {
    let (key_dim, value_dim) = (shape.key_dim, shape.value_dim);
    let group = shape.query_heads / shape.key_heads;
    let mut matrices = vec![0.0; shape.key_heads * key_dim * value_dim];
    let mut out = vec![0.0; values.len() * group];
    let rows = keys.chunks_exact(shape.key_heads * key_dim);
    let rows = rows.zip(log_decays.chunks_exact(shape.key_heads * key_dim));
    let rows = rows.zip(values.chunks_exact(shape.key_heads * value_dim));
    let rows = rows.zip(queries.chunks_exact(shape.query_heads * key_dim));
    let rows = rows.zip(out.chunks_exact_mut(shape.query_heads * value_dim));
    for ((((keys, log_decays), values), queries), out) in rows {
        let channels = matrices.chunks_exact_mut(value_dim).zip(keys).zip(log_decays);
        for (channel, ((matrix, key), log_decay)) in channels.enumerate() {
            let values = &values[channel / key_dim * value_dim..][..value_dim];
            let decay = log_decay.exp();
            for (x, value) in matrix.iter_mut().zip(values) {
                *x = *x * decay + key * value;
            }
        }
        let heads = queries.chunks_exact(key_dim).zip(out.chunks_exact_mut(value_dim));
        for (head, (queries, out)) in heads.enumerate() {
            let matrix = &matrices[head / group * key_dim * value_dim..];
            for (query, matrix) in queries.iter().zip(matrix.chunks_exact(value_dim)) {
                out.iter_mut().zip(matrix).for_each(|(out, x)| *out += query * x);
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Keys whose product with every query is `logits[key]`.
    struct Fixed(Vec<f32>);

    impl QueryKeySource for Fixed {
        fn queries(&self, _: usize, _: std::ops::Range<usize>, out: &mut [f32]) {
            out.fill(1.0);
        }
        fn keys(&self, _: usize, rows: std::ops::Range<usize>, out: &mut [f32]) {
            out.copy_from_slice(&self.0[rows]);
        }
    }

    #[test]
    fn a_row_matches_hand_calculation() {
        let shape = AttentionShape { tokens: 3, query_heads: 1, key_heads: 1, head_dim: 1 };
        let source = Fixed(vec![0.0, 2.0_f32.ln(), 0.0]);
        let rules = LogitRules { scale: 1.0, ..LogitRules::causal(1) };
        let sums = reference_statistics(&shape, &rules, 1, &source);
        // Row 1 sees weights 1, 2; row 2 sees 1, 2, 1.
        let rows = [0.0, 1.0 / 3.0, 3.0 / 4.0];
        let got = &sums.row_far_mass;
        assert!(got.iter().zip(rows).all(|(got, want)| (got - want).abs() < 1e-7), "{got:?}");
        assert!((sums.far_square[0] - (1.0 / 9.0 + 5.0 / 16.0)).abs() < 1e-7);
        // Distances 0, 1, 2 over three rows: 1 + 2/3 + 1/4, 1/3 + 1/2, 1/4.
        let histogram = [23.0 / 36.0, 10.0 / 36.0, 3.0 / 36.0];
        assert!(sums.histogram.iter().zip(histogram).all(|(got, want)| (got - want).abs() < 1e-7));
    }

    #[test]
    fn the_histogram_sums_to_one_with_a_sink() {
        let shape = AttentionShape { tokens: 2, query_heads: 1, key_heads: 1, head_dim: 1 };
        let rules = LogitRules { scale: 1.0, sinks: Some(vec![0.0]), ..LogitRules::causal(1) };
        let sums = reference_statistics(&shape, &rules, 1, &Fixed(vec![0.0; 2]));
        assert!((sums.far_mass[0] - 1.0 / 3.0).abs() < 1e-15);
        assert!((sums.histogram.iter().sum::<f64>() - 1.0).abs() < 1e-15);
    }
}
