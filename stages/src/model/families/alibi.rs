//! Slopes of linear biases (`ALiBi`), one per query head.

/// Returns the slopes of the `ALiBi` paper's code: powers of `2^(-8/n)`. If the number of heads is not a power of two,
/// the slopes of the next lower power of two are followed by every other slope of the next higher one. Used by Bloom,
/// Falcon and Baichuan.
pub(super) fn slopes(heads: u64) -> Vec<f64> {
    let below = 1 << heads.max(1).ilog2();
    let powers = |count: u64, step: usize| {
        let base = libm::exp2(-8.0 / count as f64);
        (1..=count).step_by(step).map(move |power| libm::pow(base, power as f64))
    };
    powers(below, 1).chain(powers(2 * below, 2)).take(heads as usize).collect()
}

/// Returns MPT's slopes: powers of `2^(-max/n)`, where `n` is the number of heads rounded up to a power of two. If
/// that rounds up, slopes at odd positions come first.
pub(super) fn mpt_slopes(heads: u64, max: f64) -> Vec<f64> {
    let above = heads.next_power_of_two();
    let slope = |power: u64| libm::exp2(-max * power as f64 / above as f64);
    if above == heads {
        return (1..=heads).map(slope).collect();
    }
    let (odd, even) = ((2..=above).step_by(2), (1..=above).step_by(2));
    odd.chain(even).take(heads as usize).map(slope).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn near(got: &[f64], expected: &[f64]) {
        assert_eq!(got.len(), expected.len());
        assert!(got.iter().zip(expected).all(|(g, e)| (g - e).abs() < 1e-12), "{got:?}");
    }

    #[test]
    fn slopes_of_a_power_of_two_halve_evenly() {
        near(
            &slopes(8),
            &[0.5, 0.25, 0.125, 0.0625, 0.03125, 0.015_625, 0.007_812_5, 0.003_906_25],
        );
        near(&slopes(4), &[0.25, 0.0625, 0.015_625, 0.003_906_25]);
        near(&mpt_slopes(4, 8.0), &slopes(4));
    }

    #[test]
    fn further_heads_take_every_other_slope_of_the_next_power() {
        near(&slopes(6), &[0.25, 0.0625, 0.015_625, 0.003_906_25, 0.5, 0.125]);
        near(&mpt_slopes(6, 8.0), &[0.25, 0.0625, 0.015_625, 0.003_906_25, 0.5, 0.125]);
        near(&mpt_slopes(3, 8.0), &[0.0625, 0.003_906_25, 0.25]);
    }
}
