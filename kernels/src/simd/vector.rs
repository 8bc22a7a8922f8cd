//! Operations of a vector.

use std::ops::Range;

/// Operations on [`Self::LANES`] floats at a time.
pub(crate) trait Simd: Copy {
    type Vector: Copy;
    /// Floats in a vector.
    const LANES: usize;

    fn splat(self, value: f32) -> Self::Vector;
    /// Returns the first [`Self::LANES`] values of `from`.
    fn load(self, from: &[f32]) -> Self::Vector;
    /// Writes the vector to the start of `to`.
    fn store(self, vector: Self::Vector, to: &mut [f32]);
    fn add(self, a: Self::Vector, b: Self::Vector) -> Self::Vector;
    fn sub(self, a: Self::Vector, b: Self::Vector) -> Self::Vector;
    fn mul(self, a: Self::Vector, b: Self::Vector) -> Self::Vector;
    fn div(self, a: Self::Vector, b: Self::Vector) -> Self::Vector;
    /// Returns `a·b + c`, rounded once on processors with fused multiply-add, else twice.
    fn mul_add(self, a: Self::Vector, b: Self::Vector, c: Self::Vector) -> Self::Vector;
    /// Returns `a` if `a > b`, otherwise `b`: a `NaN` in `b` is kept, one in `a` is not.
    fn max(self, a: Self::Vector, b: Self::Vector) -> Self::Vector;
    /// Returns `a` if `a < b`, otherwise `b`.
    fn min(self, a: Self::Vector, b: Self::Vector) -> Self::Vector;
    /// Returns the lanes `lanes` of `vector`, the other lanes of `otherwise`.
    fn select(
        self,
        lanes: Range<usize>,
        vector: Self::Vector,
        otherwise: Self::Vector,
    ) -> Self::Vector;
    /// Returns the lanes of `vector` with `from <= at < to`, the other lanes of `otherwise`.
    fn between(
        self,
        from: Self::Vector,
        at: Self::Vector,
        to: Self::Vector,
        vector: Self::Vector,
        otherwise: Self::Vector,
    ) -> Self::Vector;
    /// Splits `vector` into the lanes with `at < to` and the others; each result is zero elsewhere. `at` and `to` are
    /// finite.
    #[inline(always)]
    fn split(
        self,
        at: Self::Vector,
        to: Self::Vector,
        vector: Self::Vector,
    ) -> (Self::Vector, Self::Vector) {
        let (zero, least, most) =
            (self.splat(0.0), self.splat(f32::MIN), self.splat(f32::INFINITY));
        (self.between(least, at, to, vector, zero), self.between(to, at, most, vector, zero))
    }
    /// Whether any lane of `a` is greater than that of `b`.
    fn any_above(self, a: Self::Vector, b: Self::Vector) -> bool;
    /// Returns `2^x` for `x` in [-126, 126]; `NaN` stays `NaN`.
    fn exp2(self, x: Self::Vector) -> Self::Vector;
    /// Returns the sum of all lanes, added in halves.
    fn sum(self, vector: Self::Vector) -> f32;
    /// Returns the largest lane.
    fn largest(self, vector: Self::Vector) -> f32;
}

#[cfg(test)]
mod tests {
    use super::*;
    #[cfg(target_arch = "x86_64")]
    use crate::simd::{Avx2, Avx512, Degree5, Nearest5};
    use crate::simd::{Portable, PortableFused, Twice};

    /// Checks an implementation, over all ranges of lanes.
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
        let indices: Vec<f32> = (0..S::LANES).map(|lane| lane as f32).collect();
        let indices = simd.load(&indices);
        for lane in 0..S::LANES {
            let above = |least: f32| simd.any_above(indices, simd.splat(lane as f32 + least));
            assert_eq!((above(-0.5), above(0.0)), (true, lane + 1 < S::LANES));
        }
        assert!(!simd.any_above(simd.splat(f32::NAN), two));
        for start in 0..S::LANES {
            for end in start..=S::LANES {
                let (from, to) = (simd.splat(start as f32), simd.splat(end as f32));
                let kept = read(simd.between(from, indices, to, vector, two));
                assert_eq!(kept, read(simd.select(start..end, vector, two)));
                let (before, after) = simd.split(indices, from, vector);
                let zero = simd.splat(0.0);
                assert_eq!(read(before), read(simd.select(0..start, vector, zero)));
                assert_eq!(read(after), read(simd.select(start..S::LANES, vector, zero)));
                let kept = read(simd.select(start..end, vector, two));
                for (lane, kept) in kept.into_iter().enumerate() {
                    let want = if (start..end).contains(&lane) { values[lane] } else { 2.0 };
                    assert!((kept - want).abs() < 1e-9, "lane {lane} of {start}..{end}");
                }
            }
        }
    }

    #[test]
    fn vector_operations_match_their_definitions() {
        check(Portable);
        #[cfg(target_arch = "aarch64")]
        {
            check(crate::simd::Neon);
            check(Twice::new(crate::simd::Neon));
        }
        check(PortableFused);
        check(Twice::new(PortableFused));
        #[cfg(target_arch = "x86_64")]
        {
            #[target_feature(enable = "avx2,fma")]
            fn avx2() {
                check(Avx2::new());
                check(Twice::new(Avx2::new()));
            }
            #[target_feature(enable = "avx512f,avx512dq")]
            fn avx512() {
                check(Avx512::<Degree5>::new());
                check(Avx512::<Nearest5>::new());
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
}
