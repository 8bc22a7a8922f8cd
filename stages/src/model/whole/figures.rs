//! Output of a whole model for one window, and mean squares.

use rayon::prelude::*;

/// Output of a whole model for one window.
#[derive(Clone, Debug, PartialEq)]
pub struct ForwardOutput {
    /// Loss of each token except the first, in nats, `[tokens - 1]`.
    pub losses: Vec<f64>,
    /// Root mean square of the first layer's input, of the residual stream after each layer, and of the head's input,
    /// `[layers + 2]`.
    pub hidden_rms: Vec<f64>,
    /// Logits after the last token, `[vocabulary_size]`.
    pub last_logits: Vec<f32>,
}

/// Numbers per partial sum of squares. Fixed, so that the sum has the same bits for any number of threads.
pub(super) const SUMMED: usize = 1 << 14;

#[derive(Clone, Debug, Default)]
pub(super) struct Squares {
    parts: Vec<f64>,
    count: usize,
}

impl Squares {
    /// Sums the squares of `summed` numbers at a time.
    pub(super) fn new(numbers: &[f32], summed: usize) -> Self {
        let square =
            |numbers: &[f32]| numbers.iter().map(|x| f64::from(*x) * f64::from(*x)).sum::<f64>();
        Self { parts: numbers.par_chunks(summed).map(square).collect(), count: numbers.len() }
    }

    /// Creates the squares of `count` numbers from their sum.
    #[cfg(feature = "candle")]
    pub(super) fn from_sum(sum: f64, count: usize) -> Self {
        Self { parts: vec![sum], count }
    }

    pub(super) fn append(&mut self, next: Self) {
        self.parts.extend(next.parts);
        self.count += next.count;
    }

    pub(super) fn root_mean(&self) -> f64 {
        (self.parts.iter().sum::<f64>() / self.count as f64).sqrt()
    }
}
