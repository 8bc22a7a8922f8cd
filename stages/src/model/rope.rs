//! Rotary position embedding: the inverse frequencies of a window, as the transformers library computes them.
//!
//! Source of all formulas: `transformers/modeling_rope_utils.py` (5.x). The library works in 32-bit floats, and so does
//! this file, operation by operation, with powers rounded from 64 bits: models are trained with the rounded
//! frequencies. Powers and logarithms are from the crate `libm`, whose results have the same bits on every machine,
//! unlike the C library's. The kernels compute the angles.

use std::f64::consts::PI;

use longsift_kernels::{RopeStyle, Rotation};
use serde::Serialize;

/// Rotary embedding of the first layer.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RopeSpec {
    pub pairing: RopeStyle,
    /// Number of dimensions of each head that rotate, even; the others are unchanged.
    pub rotary_dims: u64,
    pub theta: f64,
    pub scaling: RopeScaling,
}

/// Scaling of the frequencies for windows longer than the original training length.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "type", rename_all = "lowercase")]
pub enum RopeScaling {
    /// Unscaled.
    Default,
    /// All frequencies are divided by `factor`.
    Linear { factor: f64 },
    /// The base grows with the window's own length beyond `max_positions` (dynamic NTK).
    Dynamic {
        factor: f64,
        /// Longest window with the unchanged base.
        max_positions: u64,
    },
    /// High frequencies are unchanged, low ones divided by `factor`, with a ramp in between (`YaRN`).
    Yarn {
        factor: f64,
        /// Original training length.
        original_positions: u64,
        /// Rotations within `original_positions` above which a frequency is unchanged.
        beta_fast: f64,
        /// Rotations within `original_positions` below which a frequency is divided by `factor`.
        beta_slow: f64,
        /// Whether the ends of the ramp are rounded outwards to whole dimensions.
        truncate: bool,
        /// Multiplier of cos and sin.
        attention_factor: f64,
    },
    /// Each frequency is divided by its own factor (`LongRoPE`): a short factor up to the original training length, a
    /// long one beyond it. Depends on the window's own length only.
    LongRope {
        /// `[rotary_dims / 2]`
        short_factors: Vec<f64>,
        /// `[rotary_dims / 2]`
        long_factors: Vec<f64>,
        original_positions: u64,
        /// Multiplier of cos and sin, for windows of any length.
        attention_factor: f64,
    },
    /// The base grows in steps with the window beyond `trained` (Qwen 1).
    Stepped {
        /// Longest window with the unchanged base.
        trained: u64,
    },
    /// Llama 3.1: like `YaRN`, with the ramp over wavelengths.
    Llama3 {
        factor: f64,
        /// `factor` applies to wavelengths above `original_positions` divided by this.
        low_freq_factor: f64,
        /// Wavelengths below `original_positions` divided by this are unchanged.
        high_freq_factor: f64,
        original_positions: u64,
    },
}

impl RopeSpec {
    /// Returns the inverse frequencies for a window of `tokens` tokens, `[rotary_dims / 2]`, in radians per position.
    pub fn inverse_frequencies(&self, tokens: u64) -> Vec<f32> {
        let (base, dims) = (self.theta as f32, self.rotary_dims);
        match self.scaling {
            RopeScaling::LongRope {
                ref short_factors,
                ref long_factors,
                original_positions,
                ..
            } => {
                let is_long = tokens > original_positions;
                long_rope(base, dims, if is_long { long_factors } else { short_factors })
            }
            RopeScaling::Stepped { trained } => {
                unscaled(stepped_base(self.theta, dims, trained, tokens), dims)
            }
            RopeScaling::Default => unscaled(base, dims),
            RopeScaling::Linear { factor } => {
                unscaled(base, dims).into_iter().map(|f| f / factor as f32).collect()
            }
            RopeScaling::Dynamic { factor, max_positions } => {
                unscaled(dynamic_base(self.theta, dims, factor, max_positions, tokens), dims)
            }
            RopeScaling::Yarn {
                factor,
                original_positions,
                beta_fast,
                beta_slow,
                truncate,
                ..
            } => {
                let dimension =
                    |rotations| correction_dimension(rotations, self, original_positions);
                let (mut low, mut high) = (dimension(beta_fast), dimension(beta_slow));
                if truncate {
                    (low, high) = (low.floor(), high.ceil());
                }
                yarn(base, dims, factor as f32, low.max(0.0), high)
            }
            RopeScaling::Llama3 {
                factor,
                low_freq_factor,
                high_freq_factor,
                original_positions,
            } => {
                let context = original_positions as f64;
                let scaled = |frequency| {
                    llama3(frequency, factor, low_freq_factor, high_freq_factor, context)
                };
                unscaled(base, dims).into_iter().map(scaled).collect()
            }
        }
    }

    /// Returns the parameters of the rotation of a window of `tokens` tokens.
    pub(crate) fn rotation(&self, tokens: usize) -> Rotation {
        Rotation {
            style: self.pairing,
            inverse_frequencies: self.inverse_frequencies(tokens as u64),
            attention_factor: self.attention_factor(),
        }
    }

    /// Returns the multiplier of cos and sin: 1 except for `YaRN` and `LongRoPE`.
    pub fn attention_factor(&self) -> f64 {
        match self.scaling {
            RopeScaling::Yarn { attention_factor, .. }
            | RopeScaling::LongRope { attention_factor, .. } => attention_factor,
            _ => 1.0,
        }
    }

    /// Whether the kernels' parameters are finite, for both short and long windows.
    pub(crate) fn is_finite(&self) -> bool {
        let lengths = [1, 1 << 20];
        let finite =
            |tokens| self.inverse_frequencies(tokens).iter().all(|frequency| frequency.is_finite());
        lengths.into_iter().all(finite) && self.attention_factor().is_finite()
    }

    /// Returns the longest window with the same frequencies as one of `tokens` tokens.
    pub(crate) fn same_frequencies_up_to(&self, tokens: u64) -> u64 {
        match self.scaling {
            RopeScaling::Dynamic { max_positions, .. } => max_positions.max(tokens),
            RopeScaling::LongRope { original_positions, .. } if tokens <= original_positions => {
                original_positions
            }
            RopeScaling::Stepped { trained } => {
                let doublings = tokens.div_ceil(trained.max(1)).next_power_of_two();
                trained.saturating_mul(doublings).max(tokens)
            }
            _ => u64::MAX,
        }
    }
}

/// Computes `base ^ exponent` in 64 bits, rounded once to 32.
fn power(base: f32, exponent: f32) -> f32 {
    libm::pow(f64::from(base), f64::from(exponent)) as f32
}

/// Computes `base ^ (2i / dims)` for each pair `i`.
fn position_frequencies(base: f32, dims: u64) -> impl Iterator<Item = f32> {
    (0..dims / 2).map(move |pair| power(base, (2 * pair) as f32 / dims as f32))
}

fn unscaled(base: f32, dims: u64) -> Vec<f32> {
    position_frequencies(base, dims).map(|frequency| 1.0 / frequency).collect()
}

/// Returns the base for a window of `tokens` tokens, unchanged up to `max_positions`.
fn dynamic_base(theta: f64, dims: u64, factor: f64, max_positions: u64, tokens: u64) -> f32 {
    if tokens <= max_positions {
        return theta as f32;
    }
    let growth = factor as f32 * tokens as f32 / max_positions as f32 - (factor - 1.0) as f32;
    let exponent = dims as f64 / (dims as f64 - 2.0);
    theta as f32 * power(growth, exponent as f32)
}

/// Computes `LongRoPE`'s `1 / (factor · base ^ (2i / dims))`.
fn long_rope(base: f32, dims: u64, factors: &[f64]) -> Vec<f32> {
    let frequencies = position_frequencies(base, dims).zip(factors);
    frequencies.map(|(frequency, factor)| 1.0 / (*factor as f32 * frequency)).collect()
}

/// Returns Qwen's base, with the NTK factor `2 ^ ⌈log2(tokens / trained) + 1⌉ - 1`, at least 1.
fn stepped_base(theta: f64, dims: u64, trained: u64, tokens: u64) -> f32 {
    let context = libm::log2(tokens as f64 / trained as f64) + 1.0;
    let alpha = (libm::exp2(context.ceil()) - 1.0).max(1.0);
    (theta * libm::pow(alpha, dims as f64 / (dims as f64 - 2.0))) as f32
}

/// Returns the dimension whose frequency makes `rotations` turns within the original positions.
fn correction_dimension(rotations: f64, rope: &RopeSpec, original_positions: u64) -> f64 {
    let turns = original_positions as f64 / (rotations * 2.0 * PI);
    rope.rotary_dims as f64 * libm::log(turns) / (2.0 * libm::log(rope.theta))
}

fn yarn(base: f32, dims: u64, factor: f32, low: f64, high: f64) -> Vec<f32> {
    let mut high = high.min(dims as f64 - 1.0);
    if low.to_bits() == high.to_bits() {
        high += 0.001;
    }
    let ramp = |pair: usize| ((pair as f32 - low as f32) / (high - low) as f32).clamp(0.0, 1.0);
    let blend = |(pair, frequency): (usize, f32)| {
        let keep = 1.0 - ramp(pair);
        1.0 / (factor * frequency) * (1.0 - keep) + 1.0 / frequency * keep
    };
    position_frequencies(base, dims).enumerate().map(blend).collect()
}

fn llama3(frequency: f32, factor: f64, low: f64, high: f64, context: f64) -> f32 {
    let (longest, shortest) = ((context / low) as f32, (context / high) as f32);
    let wavelength = (2.0 * PI) as f32 / frequency;
    if wavelength > longest {
        return frequency / factor as f32;
    }
    if wavelength < shortest {
        return frequency;
    }
    let smooth = (context as f32 / wavelength - low as f32) / (high - low) as f32;
    (1.0 - smooth) * frequency / factor as f32 + smooth * frequency
}

/// Returns `YaRN`'s attention factor for a config.json that states none.
pub(crate) fn yarn_attention_factor(
    factor: f64,
    mscale: Option<f64>,
    mscale_all_dim: Option<f64>,
) -> f64 {
    let scale =
        |mscale: f64| if factor <= 1.0 { 1.0 } else { 0.1 * mscale * libm::log(factor) + 1.0 };
    match (mscale, mscale_all_dim) {
        (Some(mscale), Some(all)) if mscale != 0.0 && all != 0.0 => scale(mscale) / scale(all),
        _ => scale(1.0),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn rope(scaling: RopeScaling) -> RopeSpec {
        RopeSpec { pairing: RopeStyle::Half, rotary_dims: 128, theta: 500_000.0, scaling }
    }

    const LLAMA_3_1: RopeScaling = RopeScaling::Llama3 {
        factor: 8.0,
        low_freq_factor: 1.0,
        high_freq_factor: 4.0,
        original_positions: 8192,
    };

    #[test]
    fn llama_3_scales_only_long_wavelengths() {
        let plain = rope(RopeScaling::Default).inverse_frequencies(1);
        let scaled = rope(LLAMA_3_1).inverse_frequencies(1);
        assert_eq!(plain[0].to_bits(), 1.0f32.to_bits());
        assert_eq!(plain[..25], scaled[..25]);
        assert!(
            scaled.iter().zip(&plain).skip(45).all(|(s, p)| s.to_bits() == (p / 8.0).to_bits())
        );
        assert!(scaled.windows(2).all(|pair| pair[0] > pair[1]));
    }

    /// Folds all frequencies of a window and the attention factor. The C library's powers and logarithms would differ
    /// in the last bits between machines.
    #[test]
    fn frequencies_have_these_bits_on_every_machine() {
        let yarn = RopeScaling::Yarn {
            factor: 40.0,
            original_positions: 4096,
            beta_fast: 32.0,
            beta_slow: 1.0,
            truncate: false,
            attention_factor: yarn_attention_factor(40.0, Some(0.707), Some(1.3)),
        };
        let dynamic = RopeScaling::Dynamic { factor: 2.0, max_positions: 128 };
        let scalings = [
            (RopeScaling::Default, 0x2293_7ef1_2c44_8294),
            (LLAMA_3_1, 0xf8ac_3a5f_9e6c_a8cb),
            (dynamic, 0x8b9a_a47f_3db2_c52f),
            (RopeScaling::Stepped { trained: 2048 }, 0x2484_ce16_27c4_d16a),
            (yarn, 0x274d_75ef_030a_c32e),
        ];
        for (scaling, bits) in scalings {
            let rope = rope(scaling);
            let frequencies = rope.inverse_frequencies(5000).into_iter().map(f32::to_bits);
            let factor = rope.attention_factor().to_bits();
            let got = frequencies.fold(factor, |sum, bits| sum.rotate_left(7) ^ u64::from(bits));
            assert_eq!(got, bits, "{:?}: {got:#x}", rope.scaling);
        }
    }

    #[test]
    fn a_stepped_base_doubles_at_exact_multiples_of_the_trained_positions() {
        let base = |tokens| stepped_base(10_000.0, 128, 2048, tokens).to_bits();
        for doubled in [2048, 4096, 8192, 16_384, 1 << 20] {
            assert_eq!(base(doubled - 1), base(doubled), "{doubled}");
            assert!(base(doubled) < base(doubled + 1), "{doubled}");
        }
    }

    #[test]
    fn a_dynamic_base_grows_only_beyond_the_trained_positions() {
        let dynamic = rope(RopeScaling::Dynamic { factor: 2.0, max_positions: 128 });
        let plain = rope(RopeScaling::Default).inverse_frequencies(128);
        assert_eq!(dynamic.inverse_frequencies(128), plain);
        assert!(dynamic.inverse_frequencies(129)[63] < plain[63]);
        assert!(dynamic.inverse_frequencies(300)[63] < dynamic.inverse_frequencies(200)[63]);
    }

    #[test]
    fn long_rope_uses_the_long_factors_beyond_the_original_length() {
        let factors = |from: u32| (0..64).map(|pair| f64::from(from + pair)).collect();
        let long = rope(RopeScaling::LongRope {
            short_factors: vec![1.0; 64],
            long_factors: factors(2),
            original_positions: 4096,
            attention_factor: 1.19,
        });
        let plain = rope(RopeScaling::Default).inverse_frequencies(1);
        assert_eq!(long.inverse_frequencies(4096), plain);
        let scaled = long.inverse_frequencies(4097);
        assert!((plain[10] / scaled[10] - 12.0).abs() < 1e-5);
        assert!(long.attention_factor() > 1.0);
    }

    #[test]
    fn a_stepped_base_is_the_same_within_a_doubling_of_the_window() {
        let stepped = rope(RopeScaling::Stepped { trained: 2048 });
        let plain = rope(RopeScaling::Default).inverse_frequencies(1);
        assert_eq!(stepped.inverse_frequencies(2048), plain);
        assert_eq!(stepped.inverse_frequencies(2049), stepped.inverse_frequencies(4096));
        assert!(stepped.inverse_frequencies(4097)[63] < stepped.inverse_frequencies(4096)[63]);
    }

    #[test]
    fn yarn_divides_the_lowest_frequency_and_keeps_the_highest() {
        let yarn = rope(RopeScaling::Yarn {
            factor: 4.0,
            original_positions: 4096,
            beta_fast: 32.0,
            beta_slow: 1.0,
            truncate: true,
            attention_factor: yarn_attention_factor(4.0, None, None),
        });
        let (plain, scaled) =
            (rope(RopeScaling::Default).inverse_frequencies(1), yarn.inverse_frequencies(1));
        assert_eq!(plain[0].to_bits(), scaled[0].to_bits());
        assert!((plain[63] / scaled[63] - 4.0).abs() < 1e-6);
        assert!((yarn.attention_factor() - (0.1 * 4f64.ln() + 1.0)).abs() < 1e-15);
    }

    #[test]
    fn equal_mscales_cancel_and_zero_is_ignored() {
        assert!((yarn_attention_factor(40.0, Some(0.707), Some(0.707)) - 1.0).abs() < 1e-15);
        assert!(
            (yarn_attention_factor(40.0, Some(1.0), Some(0.0)) - (0.1 * 40f64.ln() + 1.0)).abs()
                < 1e-15
        );
        assert!((yarn_attention_factor(0.5, None, None) - 1.0).abs() < 1e-15);
    }

    #[test]
    fn frequencies_change_beyond_the_reported_length() {
        let factors = |factor| vec![factor; 64];
        let long_rope = RopeScaling::LongRope {
            short_factors: factors(1.0),
            long_factors: factors(2.0),
            original_positions: 4096,
            attention_factor: 1.0,
        };
        for (scaling, tokens, longest) in [
            (RopeScaling::Default, 7, u64::MAX),
            (long_rope.clone(), 4096, 4096),
            (long_rope, 4097, u64::MAX),
            (RopeScaling::Dynamic { factor: 2.0, max_positions: 128 }, 7, 128),
            (RopeScaling::Dynamic { factor: 2.0, max_positions: 128 }, 130, 130),
            (RopeScaling::Stepped { trained: 2048 }, 7, 2048),
            (RopeScaling::Stepped { trained: 2048 }, 2049, 4096),
            (RopeScaling::Stepped { trained: 2048 }, 4096, 4096),
            (RopeScaling::Stepped { trained: 2048 }, 5000, 8192),
        ] {
            let rope = rope(scaling);
            assert_eq!(rope.same_frequencies_up_to(tokens), longest, "{rope:?} {tokens}");
            let frequencies = |tokens| rope.inverse_frequencies(tokens);
            assert_eq!(frequencies(tokens), frequencies(longest.min(1 << 30)), "{rope:?} {tokens}");
            if longest < u64::MAX {
                assert_ne!(frequencies(tokens), frequencies(longest + 1), "{rope:?} {tokens}");
            }
        }
    }

    proptest! {
        #[test]
        fn frequencies_are_finite_positive_and_at_most_one(
            pairs in 1u64..128, theta in 2.0f64..1e8, factor in 1.0f64..64.0, original in 16u64..100_000,
            tokens in 1u64..2_000_000,
        ) {
            for scaling in [
                RopeScaling::Default,
                RopeScaling::Linear { factor },
                RopeScaling::Llama3 { factor, low_freq_factor: 1.0, high_freq_factor: 4.0, original_positions: original },
                RopeScaling::Yarn {
                    factor, original_positions: original, beta_fast: 32.0, beta_slow: 1.0, truncate: true,
                    attention_factor: 1.0,
                },
            ] {
                let spec = RopeSpec { pairing: RopeStyle::Half, rotary_dims: 2 * pairs, theta, scaling };
                let frequencies = spec.inverse_frequencies(tokens);
                prop_assert_eq!(frequencies.len() as u64, pairs);
                prop_assert!(frequencies.iter().all(|f| f.is_finite() && *f > 0.0 && *f <= 1.0), "{spec:?} {frequencies:?}");
            }
        }
    }
}
