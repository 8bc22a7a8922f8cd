//! Vectors without processor-specific instructions.

use std::ops::Range;

use super::exponential::{AROUND_ZERO, ROUND, horner};
use super::operations::operations;
use super::vector::Simd;

/// Plain Rust, multiply then add, compiled for every processor of the target.
#[derive(Clone, Copy)]
pub(crate) struct Portable;

/// Plain Rust with multiply-adds that are rounded once: the bits of processors with fused instructions, slowly.
#[derive(Clone, Copy)]
pub(crate) struct PortableFused;

/// Lanes of the portable vector: two registers of the 16 that every `x86_64` has.
const PORTABLE_LANES: usize = 8;

/// Written out: thousands of loops over eight lanes would take the compiler a minute to unroll.
#[inline(always)]
fn lanes(value: impl Fn(usize) -> f32) -> [f32; PORTABLE_LANES] {
    [value(0), value(1), value(2), value(3), value(4), value(5), value(6), value(7)]
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

type Lanes = [f32; PORTABLE_LANES];

/// Implements the operations; the two differ in how a multiply-add is rounded.
macro_rules! vectors {
    ($vectors:ident, $mul_add:expr) => {
        impl Simd for $vectors {
            type Vector = Lanes;
            const LANES: usize = PORTABLE_LANES;

            operations! {
                fn splat(self, value: f32) -> Lanes { [value; PORTABLE_LANES] }
                fn load(self, from: &[f32]) -> Lanes {
                    let from = &from[..PORTABLE_LANES];
                    lanes(|lane| from[lane])
                }
                fn store(self, vector: Lanes, to: &mut [f32]) { to[..PORTABLE_LANES].copy_from_slice(&vector); }
                fn add(self, a: Lanes, b: Lanes) -> Lanes { lanes(|lane| a[lane] + b[lane]) }
                fn sub(self, a: Lanes, b: Lanes) -> Lanes { lanes(|lane| a[lane] - b[lane]) }
                fn mul(self, a: Lanes, b: Lanes) -> Lanes { lanes(|lane| a[lane] * b[lane]) }
                fn div(self, a: Lanes, b: Lanes) -> Lanes { lanes(|lane| a[lane] / b[lane]) }
                fn mul_add(self, a: Lanes, b: Lanes, c: Lanes) -> Lanes { lanes(|lane| $mul_add(a[lane], b[lane], c[lane])) }
                fn max(self, a: Lanes, b: Lanes) -> Lanes { lanes(|lane| larger(a[lane], b[lane])) }
                fn min(self, a: Lanes, b: Lanes) -> Lanes { lanes(|lane| if a[lane] < b[lane] { a[lane] } else { b[lane] }) }
                fn select(self, kept: Range<usize>, vector: Lanes, otherwise: Lanes) -> Lanes {
                    lanes(|lane| if kept.contains(&lane) { vector[lane] } else { otherwise[lane] })
                }
                fn between(self, from: Lanes, at: Lanes, to: Lanes, vector: Lanes, otherwise: Lanes) -> Lanes {
                    lanes(|lane| {
                        let kept = from[lane] <= at[lane] && at[lane] < to[lane];
                        if kept { vector[lane] } else { otherwise[lane] }
                    })
                }
                fn any_above(self, a: Lanes, b: Lanes) -> bool { (0..PORTABLE_LANES).any(|lane| a[lane] > b[lane]) }
                fn exp2(self, x: Lanes) -> Lanes {
                    let shifted = self.add(x, self.splat(ROUND));
                    let fraction = self.sub(x, self.sub(shifted, self.splat(ROUND)));
                    let value = horner(self, &AROUND_ZERO, fraction);
                    // The integer part goes straight into the exponent's bits.
                    lanes(|lane| {
                        let exponent = shifted[lane].to_bits() << 23;
                        f32::from_bits(value[lane].to_bits().wrapping_add(exponent))
                    })
                }
                fn sum(self, vector: Lanes) -> f32 { in_halves(vector, |a, b| a + b) }
                fn largest(self, vector: Lanes) -> f32 { in_halves(vector, larger) }
            }
        }
    };
}

vectors!(Portable, |a: f32, b: f32, c: f32| a * b + c);
vectors!(PortableFused, f32::mul_add);

/// Compiles to one vector instruction, unlike `f32::max`, which treats `NaN` differently.
#[inline(always)]
fn larger(a: f32, b: f32) -> f32 {
    if a > b { a } else { b }
}
