//! Exponentials with the same bits on every machine.

use super::vector::Simd;

/// Adding this rounds a float to an integer in the low bits of its representation.
pub(super) const ROUND: f32 = 12_582_912.0; // 1.5 · 2^23

/// Minimax polynomial of `2^f` for `f` in [-1/2, 1/2], by Remez exchange: relative error 1.6e-7.
pub(super) const AROUND_ZERO: [f32; 6] =
    [0.001_327_647_3, 0.009_675_541, 0.055_507_133, 0.240_221_2, 0.693_146_97, 1.000_000_1];

/// Minimax polynomial of `2^f` for `f` in [0, 1]: relative error 9e-8.
#[cfg(target_arch = "x86_64")]
pub(super) const ABOVE_FLOOR_5: [f32; 6] =
    [0.001_877_576_7, 0.008_989_34, 0.055_826_318, 0.240_153_61, 0.693_153_1, 0.999_999_94];

/// Minimax polynomial of degree 3 for `f` in [0, 1]: relative error 7.5e-5, of alternating sign, 5e-6 in the mean.
#[cfg(target_arch = "x86_64")]
pub(super) const ABOVE_FLOOR_3: [f32; 4] = [0.078_024_52, 0.226_067_16, 0.695_833_56, 0.999_925_2];

/// Evaluates a polynomial, highest power first, by Horner's rule.
#[inline(always)]
pub(super) fn horner<S: Simd>(simd: S, coefficients: &[f32], x: S::Vector) -> S::Vector {
    let mut value = simd.splat(coefficients[0]);
    for &coefficient in &coefficients[1..] {
        value = simd.mul_add(value, x, simd.splat(coefficient));
    }
    value
}

/// Computes `2^x` in float64, relative error below 1e-15: for running sums, not for every key.
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

/// Computes `tanh x`, within 3 units in the last place: the rational minimax form that Eigen uses (degree 13 over 6).
#[inline(always)]
pub(crate) fn tanh<S: Simd>(simd: S, x: S::Vector) -> S::Vector {
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
    /// Beyond this, the nearest float to tanh is 1.
    const SATURATED: f32 = 7.905_311;
    let x = simd.min(simd.splat(SATURATED), simd.max(simd.splat(-SATURATED), x));
    let square = simd.mul(x, x);
    let numerator = simd.mul(x, horner(simd, &NUMERATOR, square));
    simd.div(numerator, horner(simd, &DENOMINATOR, square))
}

#[cfg(test)]
mod tests {
    use super::*;
    #[cfg(target_arch = "x86_64")]
    use crate::simd::{Avx2, Avx512, Degree3, Degree5, Nearest5};
    use crate::simd::{Portable, PortableFused, Twice};

    /// Applies `f` to one value.
    fn one<S: Simd>(simd: S, f: impl Fn(S::Vector) -> S::Vector, x: f32) -> f32 {
        let mut out = vec![0.0; S::LANES];
        simd.store(f(simd.splat(x)), &mut out);
        out[0]
    }

    /// Checks `2^x` over its whole range, and for `NaN`.
    fn check_exp2<S: Simd>(simd: S, tolerance: f64) {
        for step in 0..100_000 {
            let x = -126.0 + step as f32 * 2.52e-3;
            let exact = f64::from(x).exp2();
            let error = (f64::from(one(simd, |x| simd.exp2(x), x)) / exact - 1.0).abs();
            assert!(error < tolerance, "2^{x}: {error:e}");
        }
        assert!(one(simd, |x| simd.exp2(x), f32::NAN).is_nan());
    }

    fn check_tanh<S: Simd>(simd: S) {
        for step in -40_000..40_000 {
            let x = step as f32 * 2.5e-4;
            let exact = f64::from(x).tanh();
            let error = (f64::from(one(simd, |x| tanh(simd, x), x)) - exact).abs();
            assert!(error <= 4e-7 * exact.abs(), "tanh {x}: {error:e}");
        }
        for (x, want) in [(1e30, 1.0), (-1e30, -1.0)] {
            assert!((one(simd, |x| tanh(simd, x), x) - want).abs() < 2e-7);
        }
        assert!(one(simd, |x| tanh(simd, x), f32::NAN).is_nan());
    }

    #[test]
    fn exp2_and_tanh_are_within_their_stated_error() {
        check_exp2(Portable, 2.4e-7);
        check_tanh(Portable);
        check_exp2(PortableFused, 2.4e-7);
        #[cfg(target_arch = "aarch64")]
        {
            check_exp2(crate::simd::Neon, 2.4e-7);
            check_tanh(crate::simd::Neon);
        }
        #[cfg(target_arch = "x86_64")]
        {
            #[target_feature(enable = "avx2,fma")]
            fn avx2() {
                check_exp2(Avx2::new(), 2.4e-7);
                check_tanh(Avx2::new());
            }
            #[target_feature(enable = "avx512f,avx512dq")]
            fn avx512() {
                check_exp2(Avx512::<Degree5>::new(), 2.4e-7);
                check_exp2(Avx512::<Degree3>::new(), 7.6e-5);
                check_exp2(Avx512::<Nearest5>::new(), 2.4e-7);
                check_tanh(Avx512::<Degree5>::new());
            }
            if crate::Kernel::Avx2F32.is_supported() {
                // SAFETY: the line above detected the features.
                unsafe { avx2() }
            }
            if crate::Kernel::Avx512F32.is_supported() {
                // SAFETY: the line above detected the features.
                unsafe { avx512() }
            }
        }
    }

    /// Returns the bits of `2^x` and of sums of such numbers, for many `x`.
    fn bits<S: Simd>(simd: S) -> Vec<u32> {
        let mut out = vec![0.0; S::LANES];
        let of_row = |row: usize| {
            let x: Vec<f32> =
                (0..S::LANES).map(|lane| (row * S::LANES + lane) as f32 * 7.3e-3 - 62.0).collect();
            let powers = simd.exp2(simd.load(&x));
            simd.store(powers, &mut out);
            let sum = simd.sum(simd.mul(powers, simd.splat(1.3)));
            out.iter().chain([&sum]).map(|value| value.to_bits()).collect::<Vec<_>>()
        };
        (0..1000).flat_map(of_row).collect()
    }

    #[test]
    fn sixteen_fused_lanes_give_the_same_bits_on_every_processor() {
        let portable = bits(Twice::new(PortableFused));
        assert_eq!(portable.len(), 17_000);
        #[cfg(target_arch = "aarch64")]
        assert_eq!(bits(Twice::new(Twice::new(crate::simd::Neon))), portable);
        #[cfg(target_arch = "x86_64")]
        {
            #[target_feature(enable = "avx2,fma")]
            fn avx2() -> Vec<u32> {
                bits(Twice::new(Avx2::new()))
            }
            #[target_feature(enable = "avx512f,avx512dq")]
            fn avx512() -> Vec<u32> {
                bits(Avx512::<Nearest5>::new())
            }
            if crate::Kernel::Avx2F32.is_supported() {
                // SAFETY: the line above detected the features.
                assert_eq!(unsafe { avx2() }, portable);
            }
            if crate::Kernel::Avx512F32.is_supported() {
                // SAFETY: the line above detected the features.
                assert_eq!(unsafe { avx512() }, portable);
            }
        }
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
}
