//! Exponentials of our own: the same bits on every machine, and in vectors where it counts.

use crate::tile::Arithmetic;

/// Floats that the row loops take at a time: two 256-bit vectors, so that one hides the other's latency.
pub(crate) const LANES: usize = 16;

/// Exponents below this give `2^FLOOR`: small enough to vanish beside 1, large enough to stay a normal number.
const FLOOR: f32 = -125.0;

/// Adding this rounds a float to an integer, which then stands in the low bits of its representation.
const ROUND: f32 = 12_582_912.0; // 1.5 · 2^23

/// Minimax polynomial of `2^f` for `f` in [-1/2, 1/2], by Remez exchange: relative error 7.5e-8 before rounding.
const POLYNOMIAL: [f32; 6] =
    [0.001_327_647_3, 0.009_675_541, 0.055_507_133, 0.240_221_2, 0.693_146_97, 1.000_000_1];

/// `2^x` for each lane, `x <= 126`. `NaN` stays `NaN`.
#[inline(always)]
pub(crate) fn exp2_lanes<A: Arithmetic>(x: [f32; LANES]) -> [f32; LANES] {
    let mut power = [0.0; LANES];
    for lane in 0..LANES {
        let x = if x[lane] < FLOOR { FLOOR } else { x[lane] };
        let shifted = x + ROUND;
        let fraction = x - (shifted - ROUND);
        let mut value = POLYNOMIAL[0];
        for coefficient in &POLYNOMIAL[1..] {
            value = A::mul_add(value, fraction, *coefficient);
        }
        // The integer part goes straight into the exponent's bits.
        power[lane] = f32::from_bits(value.to_bits().wrapping_add(shifted.to_bits() << 23));
    }
    power
}

/// `2^x` in float64, relative error below 1e-15: used where two running sums meet, not per key.
pub(crate) fn exp2(x: f64) -> f64 {
    if x < -1000.0 {
        return 0.0;
    }
    if x > 1000.0 {
        return f64::INFINITY;
    }
    let integer = (x + 0.5).floor();
    let z = (x - integer) * std::f64::consts::LN_2;
    // Taylor's series of e^z; |z| <= 0.347, so the term left out is below 1e-17.
    let series = (1..=14).rev().fold(1.0, |sum, n| 1.0 + sum * z / f64::from(n));
    if integer.is_nan() {
        f64::NAN
    } else {
        series * f64::from_bits(((integer as i64 + 1023) as u64) << 52)
    }
}

/// `tanh x` in float32, within 3 units in the last place: the rational minimax form that Eigen uses (degree 13 over 6).
#[inline(always)]
pub(crate) fn tanh<A: Arithmetic>(x: f32) -> f32 {
    const NUMERATOR: [f32; 7] = [
        -2.760_768_5e-16,
        2.000_188e-13,
        -8.604_672e-11,
        5.122_297_1e-8,
        1.485_722_4e-5,
        6.372_619_3e-4,
        4.893_524_6e-3,
    ];
    const DENOMINATOR: [f32; 4] = [1.198_258_4e-6, 1.185_347_1e-4, 2.268_434_6e-3, 4.893_525e-3];
    /// Beyond this the float nearest to tanh is 1.
    const SATURATED: f32 = 7.905_311;
    let x = if x < -SATURATED { -SATURATED } else { x };
    let x = if x > SATURATED { SATURATED } else { x };
    let square = x * x;
    let mut numerator = NUMERATOR[0];
    for coefficient in &NUMERATOR[1..] {
        numerator = A::mul_add(numerator, square, *coefficient);
    }
    let mut denominator = DENOMINATOR[0];
    for coefficient in &DENOMINATOR[1..] {
        denominator = A::mul_add(denominator, square, *coefficient);
    }
    x * numerator / denominator
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tile::{Fused, Plain};

    fn worst_exp2<A: Arithmetic>() -> f64 {
        let mut worst = 0.0_f64;
        for step in 0..400_000 {
            let x = -124.0 + step as f32 * 6e-4;
            let exact = f64::from(x).exp2();
            worst = worst.max((f64::from(exp2_lanes::<A>([x; LANES])[3]) / exact - 1.0).abs());
        }
        worst
    }

    #[test]
    fn two_to_the_x_is_within_2_4e_7_over_its_whole_range() {
        let (plain, fused) = (worst_exp2::<Plain>(), worst_exp2::<Fused>());
        assert!(plain < 2.4e-7 && fused < 2.4e-7, "plain {plain:e}, fused {fused:e}");
    }

    #[test]
    fn two_to_a_very_negative_power_vanishes_and_nan_stays() {
        let mut x = [-1e30; LANES];
        x[1] = f32::NAN;
        x[2] = f32::NEG_INFINITY;
        let power = exp2_lanes::<Plain>(x);
        assert!(power[0] > 0.0 && power[0] < 1e-37 && power[2] < 1e-37);
        assert!(power[1].is_nan());
    }

    #[test]
    fn the_float64_exponential_is_exact_to_1e_15() {
        for step in -6000..6000 {
            let x = f64::from(step) * 0.1618;
            assert!((exp2(x) / x.exp2() - 1.0).abs() < 1e-15, "2^{x}");
        }
        assert_eq!(
            (exp2(0.0), exp2(-1e9), exp2(f64::NEG_INFINITY), exp2(1e9)),
            (1.0, 0.0, 0.0, f64::INFINITY)
        );
        assert!(exp2(f64::NAN).is_nan());
    }

    #[test]
    fn tanh_keeps_its_relative_precision_near_zero_and_saturates() {
        for step in -40_000..40_000 {
            let x = step as f32 * 2.5e-4;
            let exact = f64::from(x).tanh();
            let error = (f64::from(tanh::<Plain>(x)) - exact).abs();
            assert!(error <= 4e-7 * exact.abs(), "tanh {x}: {error:e}");
        }
        assert!(
            (tanh::<Fused>(1e30) - 1.0).abs() < 2e-7 && (tanh::<Fused>(-1e30) + 1.0).abs() < 2e-7
        );
    }
}
