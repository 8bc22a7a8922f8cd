//! Vectors of float32 as a processor has them: the few operations that the hot loops are written in.
//!
//! A value of a type that implements [`Simd`] is the proof that the processor has the instructions: it can only be
//! made in code that is compiled for them. Everything that takes such a value is `#[inline(always)]`, and so is compiled
//! again, with those instructions, inside each kernel's entry.

use std::ops::Range;

use crate::exponential::{AROUND_ZERO, ROUND, horner};

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;

#[cfg(target_arch = "x86_64")]
pub(crate) use avx2::Avx2;
#[cfg(target_arch = "x86_64")]
pub(crate) use avx512::{Avx512, Degree3, Degree5};

/// Operations on [`Self::LANES`] floats at a time.
pub(crate) trait Simd: Copy {
    /// As many floats as the processor takes at once.
    type Vector: Copy;
    /// Floats in a vector.
    const LANES: usize;

    /// `value` in every lane.
    fn splat(self, value: f32) -> Self::Vector;
    /// The first [`Self::LANES`] values of `from`.
    fn load(self, from: &[f32]) -> Self::Vector;
    /// Writes the vector to the start of `to`.
    fn store(self, vector: Self::Vector, to: &mut [f32]);
    /// `a + b`
    fn add(self, a: Self::Vector, b: Self::Vector) -> Self::Vector;
    /// `a - b`
    fn sub(self, a: Self::Vector, b: Self::Vector) -> Self::Vector;
    /// `a·b`
    fn mul(self, a: Self::Vector, b: Self::Vector) -> Self::Vector;
    /// `a / b`
    fn div(self, a: Self::Vector, b: Self::Vector) -> Self::Vector;
    /// `a·b + c`, rounded once where the processor can, else twice.
    fn mul_add(self, a: Self::Vector, b: Self::Vector, c: Self::Vector) -> Self::Vector;
    /// `a` where `a > b`, else `b`: a `NaN` in `b` stays, one in `a` does not.
    fn max(self, a: Self::Vector, b: Self::Vector) -> Self::Vector;
    /// `a` where `a < b`, else `b`.
    fn min(self, a: Self::Vector, b: Self::Vector) -> Self::Vector;
    /// The lanes `lanes` of `vector`, the others of `otherwise`.
    fn keep(
        self,
        lanes: Range<usize>,
        vector: Self::Vector,
        otherwise: Self::Vector,
    ) -> Self::Vector;
    /// `2^x` for `x` in [-126, 126]; `NaN` stays `NaN`.
    fn exp2(self, x: Self::Vector) -> Self::Vector;
    /// The sum of all lanes, added in halves.
    fn sum(self, vector: Self::Vector) -> f32;
    /// The largest lane.
    fn largest(self, vector: Self::Vector) -> f32;
}

/// Plain Rust, multiply then add: the compiler makes of it whatever every processor of the target has.
#[derive(Clone, Copy)]
pub(crate) struct Portable;

/// Lanes of the portable vector: two registers of the 16 that every `x86_64` has.
const PORTABLE_LANES: usize = 8;

impl Portable {
    #[inline(always)]
    fn lanes(value: impl Fn(usize) -> f32) -> [f32; PORTABLE_LANES] {
        let mut lanes = [0.0; PORTABLE_LANES];
        for (index, lane) in lanes.iter_mut().enumerate() {
            *lane = value(index);
        }
        lanes
    }

    #[inline(always)]
    fn in_halves(mut lanes: [f32; PORTABLE_LANES], combine: impl Fn(f32, f32) -> f32) -> f32 {
        let mut half = PORTABLE_LANES / 2;
        while half > 0 {
            for lane in 0..half {
                lanes[lane] = combine(lanes[lane], lanes[lane + half]);
            }
            half /= 2;
        }
        lanes[0]
    }
}

impl Simd for Portable {
    type Vector = [f32; PORTABLE_LANES];
    const LANES: usize = PORTABLE_LANES;

    #[inline(always)]
    fn splat(self, value: f32) -> Self::Vector {
        [value; PORTABLE_LANES]
    }
    #[inline(always)]
    fn load(self, from: &[f32]) -> Self::Vector {
        let from = &from[..PORTABLE_LANES];
        Self::lanes(|lane| from[lane])
    }
    #[inline(always)]
    fn store(self, vector: Self::Vector, to: &mut [f32]) {
        to[..PORTABLE_LANES].copy_from_slice(&vector);
    }
    #[inline(always)]
    fn add(self, a: Self::Vector, b: Self::Vector) -> Self::Vector {
        Self::lanes(|lane| a[lane] + b[lane])
    }
    #[inline(always)]
    fn sub(self, a: Self::Vector, b: Self::Vector) -> Self::Vector {
        Self::lanes(|lane| a[lane] - b[lane])
    }
    #[inline(always)]
    fn mul(self, a: Self::Vector, b: Self::Vector) -> Self::Vector {
        Self::lanes(|lane| a[lane] * b[lane])
    }
    #[inline(always)]
    fn div(self, a: Self::Vector, b: Self::Vector) -> Self::Vector {
        Self::lanes(|lane| a[lane] / b[lane])
    }
    #[inline(always)]
    fn mul_add(self, a: Self::Vector, b: Self::Vector, c: Self::Vector) -> Self::Vector {
        Self::lanes(|lane| a[lane] * b[lane] + c[lane])
    }
    #[inline(always)]
    fn max(self, a: Self::Vector, b: Self::Vector) -> Self::Vector {
        Self::lanes(|lane| larger(a[lane], b[lane]))
    }
    #[inline(always)]
    fn min(self, a: Self::Vector, b: Self::Vector) -> Self::Vector {
        Self::lanes(|lane| if a[lane] < b[lane] { a[lane] } else { b[lane] })
    }
    #[inline(always)]
    fn keep(
        self,
        lanes: Range<usize>,
        vector: Self::Vector,
        otherwise: Self::Vector,
    ) -> Self::Vector {
        Self::lanes(|lane| if lanes.contains(&lane) { vector[lane] } else { otherwise[lane] })
    }
    #[inline(always)]
    fn exp2(self, x: Self::Vector) -> Self::Vector {
        let shifted = self.add(x, self.splat(ROUND));
        let fraction = self.sub(x, self.sub(shifted, self.splat(ROUND)));
        let value = horner(self, &AROUND_ZERO, fraction);
        // The integer part goes straight into the exponent's bits.
        Self::lanes(|lane| {
            let exponent = shifted[lane].to_bits() << 23;
            f32::from_bits(value[lane].to_bits().wrapping_add(exponent))
        })
    }
    #[inline(always)]
    fn sum(self, vector: Self::Vector) -> f32 {
        Self::in_halves(vector, |a, b| a + b)
    }
    #[inline(always)]
    fn largest(self, vector: Self::Vector) -> f32 {
        Self::in_halves(vector, larger)
    }
}

/// One vector instruction, unlike `f32::max`, which has rules of its own for `NaN`.
#[inline(always)]
fn larger(a: f32, b: f32) -> f32 {
    if a > b { a } else { b }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What every implementation must do, over all ranges of lanes.
    fn check<S: Simd>(simd: S) {
        let values: Vec<f32> = (0..S::LANES).map(|lane| ((lane * 7) % 5) as f32 - 1.5).collect();
        let vector = simd.load(&values);
        let read = |vector: S::Vector| {
            let mut out = vec![0.0; S::LANES];
            simd.store(vector, &mut out);
            out
        };
        assert_eq!(read(vector), values);
        let two = simd.splat(2.0);
        let lanes = |f: &dyn Fn(f32) -> f32| values.iter().map(|&x| f(x)).collect::<Vec<_>>();
        assert_eq!(read(simd.add(vector, two)), lanes(&|x| x + 2.0));
        assert_eq!(read(simd.sub(vector, two)), lanes(&|x| x - 2.0));
        assert_eq!(read(simd.mul_add(vector, two, vector)), lanes(&|x| 3.0 * x));
        assert_eq!(read(simd.mul(vector, two)), lanes(&|x| 2.0 * x));
        assert_eq!(read(simd.div(vector, two)), lanes(&|x| x / 2.0));
        assert_eq!(read(simd.min(vector, simd.splat(0.5))), lanes(&|x| x.min(0.5)));
        assert_eq!(read(simd.max(vector, simd.splat(0.5))), lanes(&|x| x.max(0.5)));
        assert!(read(simd.max(two, simd.splat(f32::NAN))).iter().all(|x| x.is_nan()));
        assert!((simd.sum(vector) - values.iter().sum::<f32>()).abs() < 1e-6);
        let largest = values.iter().fold(f32::NEG_INFINITY, |a, &b| a.max(b));
        assert!((simd.largest(vector) - largest).abs() < 1e-6);
        for start in 0..S::LANES {
            for end in start..=S::LANES {
                let kept = read(simd.keep(start..end, vector, two));
                for (lane, kept) in kept.into_iter().enumerate() {
                    let want = if (start..end).contains(&lane) { values[lane] } else { 2.0 };
                    assert!((kept - want).abs() < 1e-9, "lane {lane} of {start}..{end}");
                }
            }
        }
    }

    #[test]
    fn every_vector_does_what_its_operations_say() {
        check(Portable);
        #[cfg(target_arch = "x86_64")]
        {
            #[target_feature(enable = "avx2,fma")]
            fn avx2() {
                check(Avx2::new());
            }
            #[target_feature(enable = "avx512f,avx512dq")]
            fn avx512() {
                check(Avx512::<Degree5>::new());
            }
            if crate::Kernel::Avx2F32.is_supported() {
                // SAFETY: the line above saw the features.
                unsafe { avx2() }
            }
            if crate::Kernel::Avx512F32.is_supported() {
                // SAFETY: the line above saw the features.
                unsafe { avx512() }
            }
        }
    }
}
