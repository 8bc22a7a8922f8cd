//! Sums of a window's losses: of the whole, and of the gain from a long context over short ones.

use crate::contract::{ForwardStatistics, Value};

/// A key token gains more than this from the long context, in nats, and has a loss below this with it (Fang et al.
/// 2024, "What is Wrong with Perplexity for Long-context Language Modeling?").
const KEY_NATS: f64 = 2.0;

/// Sums over the tokens of a window, in nats.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct LossSums {
    pub tokens: u64,
    pub loss: f64,
    /// Number of tokens that have short losses as well.
    pub counted: u64,
    /// Their gain: loss with the short context minus loss with the long one.
    pub gain: f64,
    /// Their gain, weighted by the probability with the long context (`LongFilter`).
    pub longfilter: f64,
    /// Number of key tokens among them.
    pub key: u64,
    /// Losses of the key tokens with the long context.
    pub key_loss: f64,
}

/// Returns the mean gain by position: band b has the positions from C·2^b to C·2^(b+1), where C is the short context.
/// The last band ends with the window. `None` without gains.
pub(super) fn gain_by_position(output: &ForwardStatistics) -> Option<Vec<f64>> {
    let (long, short) = (&output.losses, &output.short_losses);
    let context = long.len() + 1 - short.len();
    let gains: Vec<f64> =
        long[context - 1..].iter().zip(short).map(|(long, short)| short - long).collect();
    let mut means = Vec::new();
    let (mut rest, mut width) = (&gains[..], context);
    while !rest.is_empty() {
        let (band, later) = rest.split_at(width.min(rest.len()));
        means.push(band.iter().sum::<f64>() / band.len() as f64);
        (rest, width) = (later, 2 * width);
    }
    (!means.is_empty()).then_some(means)
}

impl LossSums {
    /// Sums the losses of a window.
    pub fn new(output: &ForwardStatistics) -> Self {
        let (long, short) = (&output.losses, &output.short_losses);
        let mut sums =
            Self { tokens: long.len() as u64, loss: long.iter().sum(), ..Self::default() };
        for (long, short) in long[long.len() - short.len()..].iter().zip(short) {
            let gain = short - long;
            sums.counted += 1;
            sums.gain += gain;
            sums.longfilter += libm::exp(-long) * gain;
            if gain > KEY_NATS && *long < KEY_NATS {
                sums.key += 1;
                sums.key_loss += long;
            }
        }
        sums
    }

    /// Returns the values in the order of the columns.
    pub(super) fn values(&self, short: bool) -> Vec<Value> {
        let mean = |sum: f64, count: u64| Value::number((count > 0).then(|| sum / count as f64));
        let power = |sum: f64, count: u64| {
            Value::number((count > 0).then(|| libm::exp(sum / count as f64)))
        };
        let mut values = vec![
            mean(self.loss, self.tokens),
            power(self.loss, self.tokens),
            Value::Number(self.loss),
            Value::Count(self.tokens),
        ];
        if short {
            values.extend([
                mean(self.gain, self.counted),
                mean(self.longfilter, self.counted),
                mean(self.key as f64, self.counted),
                power(self.key_loss, self.key),
                Value::Number(self.gain),
                Value::Number(self.longfilter),
                Value::Number(self.key_loss),
                Value::Count(self.counted),
                Value::Count(self.key),
            ]);
        }
        values
    }
}
