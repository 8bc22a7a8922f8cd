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
const SUMMED: usize = 1 << 14;

pub(super) fn root_mean_square(numbers: &[f32]) -> f64 {
    let square =
        |numbers: &[f32]| numbers.iter().map(|x| f64::from(*x) * f64::from(*x)).sum::<f64>();
    let parts: Vec<f64> = numbers.par_chunks(SUMMED).map(square).collect();
    (parts.iter().sum::<f64>() / numbers.len() as f64).sqrt()
}
