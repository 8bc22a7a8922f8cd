//! What a whole model makes of a window, and the sums behind it.

use rayon::prelude::*;

/// What a whole model makes of one window.
#[derive(Clone, Debug, PartialEq)]
pub struct Forward {
    /// `[tokens - 1]`: the loss of each token but the first, in nats.
    pub losses: Vec<f64>,
    /// `[layers + 2]`: the root of the mean square of what the first layer reads, of what each layer leaves in the
    /// residual stream, and of what the head reads.
    pub hidden_rms: Vec<f64>,
    /// `[vocabulary_size]`: the logits behind the last token.
    pub last_logits: Vec<f32>,
}

/// Numbers whose squares are added together before they join the sum, so that threads change no bit of it.
const SUMMED: usize = 1 << 14;

pub(super) fn root_mean_square(numbers: &[f32]) -> f64 {
    let square =
        |numbers: &[f32]| numbers.iter().map(|x| f64::from(*x) * f64::from(*x)).sum::<f64>();
    let parts: Vec<f64> = numbers.par_chunks(SUMMED).map(square).collect();
    (parts.iter().sum::<f64>() / numbers.len() as f64).sqrt()
}
