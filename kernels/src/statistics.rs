//! Inputs and results of attention statistics.

use std::ops::Range;

/// Source of one window's queries and keys: after the rotary embedding, before any scale.
pub trait QueryKeySource: Sync {
    /// Writes rows `rows` of query head `head` to `out`: `[rows, head_dim]`.
    fn queries(&self, head: usize, rows: Range<usize>, out: &mut [f32]);
    /// Writes rows `rows` of key head `head` to `out`: `[rows, head_dim]`.
    fn keys(&self, head: usize, rows: Range<usize>, out: &mut [f32]);
    /// Writes the queries of a range of heads: `[rows, heads, head_dim]`. Rows up to row `end` will be requested next (0 if
    /// unknown), so a source may prefetch them.
    fn queries_of_heads(
        &self,
        heads: Range<usize>,
        rows: Range<usize>,
        end: usize,
        out: &mut [f32],
    ) {
        let _ = end;
        if heads.len() == 1 {
            return self.queries(heads.start, rows, out);
        }
        let of_head = out.len() / heads.len();
        let head_dim = of_head / rows.len();
        let mut queries = vec![0.0; of_head];
        for (index, head) in heads.clone().enumerate() {
            self.queries(head, rows.clone(), &mut queries);
            let out = out.chunks_exact_mut(head_dim).skip(index).step_by(heads.len());
            for (out, query) in out.zip(queries.chunks_exact(head_dim)) {
                out.copy_from_slice(query);
            }
        }
    }
    /// Returns the preferred rows per call. Few rows stay in a cache until they are packed; a source whose calls have a
    /// fixed cost should return many.
    fn rows_at_once(&self) -> usize {
        1
    }
}

/// The sizes of one window's attention. Query head `h` reads key head `h / (query_heads / key_heads)`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AttentionShape {
    pub tokens: usize,
    /// Query heads, a multiple of `key_heads`.
    pub query_heads: usize,
    /// At least 1.
    pub key_heads: usize,
    pub head_dim: usize,
}

impl AttentionShape {
    /// Returns the number of query heads that share one key head.
    pub fn group(&self) -> usize {
        self.query_heads / self.key_heads
    }

    pub(crate) fn assert_valid(&self) {
        assert!(
            self.key_heads > 0 && self.head_dim > 0,
            "a window needs key heads and a head width: {self:?}"
        );
        assert!(
            self.query_heads.is_multiple_of(self.key_heads),
            "query heads are a multiple of key heads: {self:?}"
        );
    }
}

/// Rules that turn products of queries and keys into logits, and determine each row's visible keys.
///
/// With `i` the row and `j` the key: `x = scale · query_scale[i] · (q·k)`; with a softcap `x = cap · tanh(x / cap)`; with
/// `ALiBi` `x += slope[head] · (j - i)`. The softmax runs over the visible keys and the head's sink.
#[derive(Clone, Debug)]
pub struct LogitRules {
    /// Factor of every product, `1/√head_dim` in most models.
    pub scale: f32,
    /// Bound of the logits, applied as a scaled tanh (Gemma 2).
    pub softcap: Option<f32>,
    /// `[query_heads]`: `ALiBi` slopes; the bias is `slope · (j - i)`, so positive slopes favour near keys.
    pub alibi_slopes: Option<Vec<f32>>,
    /// `[query_heads]`: an unscaled logit that is added to the softmax's denominator only (gpt-oss).
    pub sinks: Option<Vec<f32>>,
    /// A key is visible iff `i - j < window`.
    pub window: Option<usize>,
    /// A key is visible iff `i / chunk == j / chunk` (Llama 4).
    pub chunk: Option<usize>,
    /// `[tokens]`: a factor per row (log-n scaling, Llama 4's temperature).
    pub query_scale: Option<Vec<f32>>,
    /// Whether keys after the row are hidden.
    pub causal: bool,
}

impl LogitRules {
    /// Returns the rules of causal attention with the scale `1/√head_dim` and nothing else.
    pub fn causal(head_dim: usize) -> Self {
        Self {
            scale: (1.0 / (head_dim as f64).sqrt()) as f32,
            softcap: None,
            alibi_slopes: None,
            sinks: None,
            window: None,
            chunk: None,
            query_scale: None,
            causal: true,
        }
    }

    pub(crate) fn assert_matches(&self, shape: &AttentionShape) {
        let per_head = |values: &Option<Vec<f32>>| {
            values.as_ref().is_none_or(|v| v.len() == shape.query_heads)
        };
        assert!(per_head(&self.alibi_slopes), "one ALiBi slope per query head");
        assert!(per_head(&self.sinks), "one sink per query head");
        assert!(
            self.query_scale.as_ref().is_none_or(|v| v.len() == shape.tokens),
            "one query scale per row"
        );
    }
}

/// Sample of rows that stand for all rows of a window.
#[derive(Clone, Debug, PartialEq)]
pub struct RowSample {
    /// Their positions in the window, ascending.
    pub positions: Vec<usize>,
    /// `[positions]`: how many rows each stands for; sums over rows are weighted with it.
    pub weights: Vec<f64>,
}

impl RowSample {
    pub(crate) fn assert_matches(&self, shape: &AttentionShape) {
        assert!(
            self.positions.last().is_some_and(|last| *last < shape.tokens)
                && self.positions.is_sorted_by(|a, b| a < b),
            "sampled rows are ascending rows of the window"
        );
        assert_eq!(self.weights.len(), self.positions.len(), "one weight per sampled row");
    }
}

/// Sums over one window's attention matrix, without the division by its size.
#[derive(Clone, Debug, PartialEq)]
pub struct WindowSums {
    /// `[query_heads]`: the far mass, `Σ p` over far pairs.
    pub far_mass: Vec<f64>,
    /// `[query_heads]`: `Σ p²` over far pairs.
    pub far_square: Vec<f64>,
    /// `[histogram_bins(tokens)]`: share of attention by distance `i - j`, over all rows and heads. Bin 0 is distance
    /// 0, bin `b` is `[2^(b-1), 2^b)`. Attention to a sink or a later key (`j > i`) has no distance: it is excluded,
    /// and the rest is divided by its sum, so the histogram sums to 1 (or is all zero if no key is visible).
    pub histogram: Vec<f64>,
    /// `[tokens]`: the far mass of each row, averaged over heads; empty if the sums are those of separate heads.
    pub row_far_mass: Vec<f64>,
}

/// Sums of some key heads of a window and of the query heads that read them.
///
/// Nothing is summed over key heads, so the sums of a window have the same bits for any grouping of its heads on any devices.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct HeadSums {
    /// `[query heads]`: the far mass, `Σ p` over far pairs.
    pub far_mass: Vec<f64>,
    /// `[query heads]`: `Σ p²` over far pairs.
    pub far_square: Vec<f64>,
    /// `[key heads, histogram_bins(tokens)]`: attention by distance, a sum over rows and the query heads of a key head.
    pub histograms: Vec<f64>,
    /// `[key heads, sampled rows]`: the far mass of each sampled row, a sum over the query heads of a key head, not
    /// weighted. Empty if all rows were measured.
    pub row_far_mass: Vec<f64>,
    /// `[key heads, sampled rows]`: the far `Σ p²` of each sampled row.
    pub row_far_square: Vec<f64>,
}

impl HeadSums {
    pub fn append(&mut self, next: &Self) {
        self.far_mass.extend_from_slice(&next.far_mass);
        self.far_square.extend_from_slice(&next.far_square);
        self.histograms.extend_from_slice(&next.histograms);
        self.row_far_mass.extend_from_slice(&next.row_far_mass);
        self.row_far_square.extend_from_slice(&next.row_far_square);
    }

    /// Returns the sums of a window of `tokens` tokens, from those of all its heads. Cost: `key_heads · bins`
    /// additions, in the order of the key heads.
    pub fn window_sums(self, tokens: usize) -> WindowSums {
        let mut histogram = vec![0.0; histogram_bins(tokens)];
        for head in self.histograms.chunks_exact(histogram.len()) {
            histogram.iter_mut().zip(head).for_each(|(sum, mass)| *sum += mass);
        }
        normalise(&mut histogram);
        let Self { far_mass, far_square, .. } = self;
        WindowSums { far_mass, far_square, histogram, row_far_mass: Vec::new() }
    }
}

impl WindowSums {
    /// Returns, per head, the mean far mass of a row: `Σ p / S` (`LongAttn`, equation 5).
    pub fn dependency_strength(&self, tokens: usize) -> Vec<f64> {
        self.far_mass.iter().map(|mass| mass / tokens as f64).collect()
    }

    /// Returns, per head, the unbiased variance of the far-masked matrix over all S² entries, zeros included: `(Σp² -
    /// (Σp)²/S²) / (S² - 1)`. 0 for a window of one token.
    pub fn far_variance(&self, tokens: usize) -> Vec<f64> {
        let entries = (tokens as f64) * (tokens as f64);
        let variance = |(&mass, &square): (&f64, &f64)| {
            if tokens < 2 { 0.0 } else { (square - mass * mass / entries) / (entries - 1.0) }
        };
        self.far_mass.iter().zip(&self.far_square).map(variance).collect()
    }
}

/// Returns the number of bins of the distance histogram of a window of `tokens`: enough for the distances `0..tokens`,
/// and at least one.
///
/// ```
/// use longsift_kernels::histogram_bins;
/// assert_eq!(histogram_bins(1), 1); // distance 0
/// assert_eq!(histogram_bins(4), 3); // 0, 1, 2..4
/// assert_eq!(histogram_bins(5), 4); // 0, 1, 2..4, 4..8
/// ```
pub fn histogram_bins(tokens: usize) -> usize {
    1 + distance_bin(tokens.saturating_sub(1)).min(usize::BITS as usize)
}

/// Returns the histogram bin of a distance: 0 for 0, `b` for `[2^(b-1), 2^b)`.
pub(crate) fn distance_bin(distance: usize) -> usize {
    (usize::BITS - distance.leading_zeros()) as usize
}

/// Divides the histogram by its sum, so that it sums to 1; leaves an empty one at zero.
pub(crate) fn normalise(histogram: &mut [f64]) {
    let total: f64 = histogram.iter().sum();
    if total != 0.0 {
        for bin in histogram {
            *bin /= total;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bins_start_at_powers_of_two() {
        assert_eq!([0, 1, 2, 3, 4, 7, 8].map(distance_bin), [0, 1, 2, 2, 3, 3, 4]);
    }

    #[test]
    fn the_last_distance_of_a_window_has_the_last_bin() {
        for tokens in 1..200 {
            assert_eq!(distance_bin(tokens - 1) + 1, histogram_bins(tokens), "{tokens} tokens");
        }
        assert_eq!(histogram_bins(0), 1);
    }

    #[test]
    fn variance_covers_all_entries_of_the_far_masked_matrix() {
        // Rows 2 and 3 of a 4×4 matrix have far entries 0.5 and 0.25, 0.125; the other 13 entries are zero.
        let entries: Vec<f64> = [0.5, 0.25, 0.125].into_iter().chain([0.0; 13]).collect();
        let mean = entries.iter().sum::<f64>() / 16.0;
        let expected = entries.iter().map(|p| (p - mean).powi(2)).sum::<f64>() / 15.0;
        let square = entries.iter().map(|p| p * p).sum();
        let sums = WindowSums {
            far_mass: vec![0.875],
            far_square: vec![square],
            histogram: vec![],
            row_far_mass: Vec::new(),
        };
        assert!((sums.far_variance(4)[0] - expected).abs() < 1e-15);
        assert_eq!(sums.far_variance(1), [0.0]);
        assert_eq!(sums.dependency_strength(4), [0.875 / 4.0]);
    }
}
