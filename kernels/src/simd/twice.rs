//! Two vectors used as one with twice the lanes.

use std::ops::Range;

use super::vector::Simd;

/// Two vectors of `S`. A register tile's loop has half as many iterations, and sums over lanes have the order of a
/// vector of that length. No closures: the compiler does not compile them with a kernel's instructions.
#[derive(Clone, Copy)]
pub(crate) struct Twice<S>(S);

impl<S: Simd> Twice<S> {
    #[inline(always)]
    pub(crate) fn new(simd: S) -> Self {
        Self(simd)
    }
}

/// Implements operations that apply to each of the two vectors.
macro_rules! operations {
    ($(fn $name:ident($($argument:ident),*);)*) => {
        $(#[inline(always)]
        fn $name(self, $($argument: Self::Vector),*) -> Self::Vector {
            [self.0.$name($($argument[0]),*), self.0.$name($($argument[1]),*)]
        })*
    };
}

impl<S: Simd> Simd for Twice<S> {
    type Vector = [S::Vector; 2];
    const LANES: usize = 2 * S::LANES;

    operations! {
        fn add(a, b);
        fn sub(a, b);
        fn mul(a, b);
        fn div(a, b);
        fn mul_add(a, b, c);
        fn max(a, b);
        fn min(a, b);
        fn between(from, at, to, vector, otherwise);
        fn exp2(x);
    }

    #[inline(always)]
    fn splat(self, value: f32) -> Self::Vector {
        [self.0.splat(value); 2]
    }
    #[inline(always)]
    fn load(self, from: &[f32]) -> Self::Vector {
        [self.0.load(from), self.0.load(&from[S::LANES..])]
    }
    #[inline(always)]
    fn store(self, vector: Self::Vector, to: &mut [f32]) {
        self.0.store(vector[0], to);
        self.0.store(vector[1], &mut to[S::LANES..]);
    }
    #[inline(always)]
    fn select(
        self,
        lanes: Range<usize>,
        vector: Self::Vector,
        otherwise: Self::Vector,
    ) -> Self::Vector {
        let low = lanes.start.min(S::LANES)..lanes.end.min(S::LANES);
        let high = lanes.start.max(S::LANES) - S::LANES..lanes.end.max(S::LANES) - S::LANES;
        [self.0.select(low, vector[0], otherwise[0]), self.0.select(high, vector[1], otherwise[1])]
    }
    #[inline(always)]
    fn any_above(self, a: Self::Vector, b: Self::Vector) -> bool {
        self.0.any_above(a[0], b[0]) || self.0.any_above(a[1], b[1])
    }
    #[inline(always)]
    fn sum(self, vector: Self::Vector) -> f32 {
        self.0.sum(self.0.add(vector[0], vector[1]))
    }
    #[inline(always)]
    fn largest(self, vector: Self::Vector) -> f32 {
        self.0.largest(self.0.max(vector[0], vector[1]))
    }
}
