//! Limits of one CPU thread: loops that only multiply and add, and loops that only compute exponentials.
//!
//! Multiply-adds use the kernel's own instruction and element type, operands in registers. Exponentials use the method
//! of the kernel's vectors: split off the integer part, evaluate a polynomial, put the integer part into the exponent.

#![allow(dead_code, reason = "every example uses a part")]

use std::hint::black_box;

use longsift_kernels::bench::Clock;
use longsift_kernels::{ElementType, Kernel};

/// Operations per second of one thread.
#[derive(Clone, Copy)]
pub(super) struct Limits {
    pub(super) multiply_adds: f64,
    pub(super) exponentials: f64,
}

/// Rounds of a loop of multiply-adds: about ten milliseconds.
const ROUNDS: usize = 2_000_000;
/// Independent sums: enough to hide the latency of an addition, few enough for the registers.
const CHAINS: usize = 12;
/// Logits of the loop of exponentials, in the first-level cache, and rounds over them.
const LOGITS: usize = 1024;
const LOGIT_ROUNDS: usize = 4_000;

impl Limits {
    /// Measures the limits of this thread; `None` if the kernel is for GPUs.
    pub(super) fn measure(kernel: Kernel) -> Option<Self> {
        assert!(kernel.is_supported(), "this machine does not run `{}`", kernel.name());
        Some(match kernel {
            Kernel::PortableF32 | Kernel::PortableInt16 => portable(),
            #[cfg(target_arch = "x86_64")]
            // SAFETY: the kernel is supported, so the processor has the instructions.
            Kernel::Avx2F32 | Kernel::Avx2Int16 => unsafe { x86::avx2(kernel.element_type()) },
            #[cfg(target_arch = "x86_64")]
            // SAFETY: as above.
            Kernel::Avx512F32 => unsafe { x86::avx512() },
            #[cfg(target_arch = "x86_64")]
            // SAFETY: as above.
            Kernel::Avx512Int16 => unsafe { x86::avx512_vnni() },
            #[cfg(target_arch = "x86_64")]
            // SAFETY: as above.
            Kernel::AmxBf16 => unsafe { x86::amx() },
            #[cfg(target_arch = "aarch64")]
            Kernel::NeonF32 => arm::neon(),
            _ => return None,
        })
    }

    pub(super) fn mean(&self, other: &Self) -> Self {
        Self {
            multiply_adds: f64::midpoint(self.multiply_adds, other.multiply_adds),
            exponentials: f64::midpoint(self.exponentials, other.exponentials),
        }
    }

    /// Returns the pairs per second that the limits allow: for float32 the multiply-adds alone count, because
    /// their units also compute the exponentials; for shorter numbers the slower of the two.
    pub(super) fn pairs(&self, element: ElementType, head_dim: usize) -> f64 {
        let multiply = self.multiply_adds / head_dim as f64;
        match element {
            ElementType::F32 => multiply,
            ElementType::Bf16 | ElementType::Int16 => multiply.min(self.exponentials),
        }
    }
}

fn logits() -> Vec<f32> {
    (0..LOGITS).map(|index| (index % 83) as f32 * 0.37 - 15.0).collect()
}

/// Coefficients of `2^f` for `f` in [-1/2, 1/2], highest power first: those of the kernels for AVX2, NEON and integers.
const POLYNOMIAL: [f32; 6] =
    [0.001_327_647_3, 0.009_675_541, 0.055_507_133, 0.240_221_2, 0.693_146_97, 1.000_000_1];
/// Adding this rounds a float to an integer.
const ROUND: f32 = 12_582_912.0;

/// Uses the vectors that the compiler generates from plain Rust for this target.
fn portable() -> Limits {
    let mut sums = [[1.0_f32; 8]; CHAINS];
    let (factor, term) = (black_box(0.999_f32), black_box(0.001_f32));
    let clock = Clock::start();
    for _ in 0..ROUNDS / 2 {
        for lane in sums.as_flattened_mut() {
            *lane = *lane * factor + term;
        }
    }
    let multiply_adds = (ROUNDS / 2 * CHAINS * 8) as f64 / clock.seconds();
    black_box(sums);
    let (logits, mut sum) = (logits(), [0.0_f32; 8]);
    let clock = Clock::start();
    for _ in 0..LOGIT_ROUNDS / 2 {
        for logits in black_box(&logits).as_chunks::<8>().0 {
            for (sum, x) in sum.iter_mut().zip(logits) {
                let shifted = x + ROUND;
                let fraction = x - (shifted - ROUND);
                let value =
                    POLYNOMIAL[1..].iter().fold(POLYNOMIAL[0], |value, c| value * fraction + c);
                *sum += f32::from_bits(value.to_bits().wrapping_add(shifted.to_bits() << 23));
            }
        }
    }
    let exponentials = (LOGIT_ROUNDS / 2 * LOGITS) as f64 / clock.seconds();
    black_box(sum);
    Limits { multiply_adds, exponentials }
}

/// Times `$rounds` rounds over `$chains` independent sums; returns sums and seconds.
macro_rules! chains {
    ($rounds:expr, $zero:expr, |$sum:ident| $body:expr) => {{
        let mut sums = [$zero; CHAINS];
        let clock = Clock::start();
        for _ in 0..$rounds {
            for $sum in &mut sums {
                *$sum = $body;
            }
        }
        let seconds = clock.seconds();
        black_box(sums);
        seconds
    }};
}

/// Times exponentials of the logits, added up; returns exponentials a second.
macro_rules! exponentials {
    ($lanes:literal, $load:ident, $add:ident, $zero:expr, |$x:ident| $exp2:expr) => {{
        let (logits, mut sum) = (logits(), $zero);
        let clock = Clock::start();
        for _ in 0..LOGIT_ROUNDS {
            for logits in black_box(&logits).as_chunks::<$lanes>().0 {
                // SAFETY: this many floats are at this address, and the function is compiled for the instructions.
                let $x = unsafe { $load(logits.as_ptr()) };
                sum = $add(sum, $exp2);
            }
        }
        let seconds = clock.seconds();
        black_box(sum);
        (LOGIT_ROUNDS * LOGITS) as f64 / seconds
    }};
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::asm;
    use std::arch::x86_64::{
        _mm256_add_epi32, _mm256_add_ps, _mm256_castps_si256, _mm256_castsi256_ps, _mm256_fmadd_ps,
        _mm256_loadu_ps, _mm256_madd_epi16, _mm256_set1_epi32, _mm256_set1_ps, _mm256_slli_epi32,
        _mm256_sub_ps, _mm512_add_ps, _mm512_dpwssd_epi32, _mm512_fmadd_ps, _mm512_loadu_ps,
        _mm512_reduce_ps, _mm512_roundscale_ps, _mm512_scalef_ps, _mm512_set1_epi32,
        _mm512_set1_ps, _mm512_setzero_ps, _mm512_sub_ps,
    };

    use super::{
        CHAINS, Clock, ElementType, LOGIT_ROUNDS, LOGITS, Limits, POLYNOMIAL, ROUND, ROUNDS,
        black_box, logits,
    };

    /// `2^f` for `f` in [0, 1], highest power first: the polynomials of `avx512-f32` and of `amx-bf16`.
    const DEGREE_5: [f32; 6] =
        [0.001_877_576_7, 0.008_989_34, 0.055_826_318, 0.240_153_61, 0.693_153_1, 0.999_999_94];
    const DEGREE_3: [f32; 4] = [0.078_024_52, 0.226_067_16, 0.695_833_56, 0.999_925_2];

    #[target_feature(enable = "avx2,fma")]
    pub(super) fn avx2(element: ElementType) -> Limits {
        let multiply_adds = if element == ElementType::Int16 {
            let factor = _mm256_set1_epi32(black_box(0x0001_0003));
            let rounds = ROUNDS / 2;
            let seconds = chains!(rounds, _mm256_set1_epi32(1), |sum| {
                // The compiler treats the operand as new in every round, so that it cannot hoist the product.
                _mm256_add_epi32(*sum, _mm256_madd_epi16(black_box(factor), factor))
            });
            (rounds * CHAINS * 16) as f64 / seconds
        } else {
            let (factor, term) =
                (_mm256_set1_ps(black_box(0.999)), _mm256_set1_ps(black_box(0.001)));
            let seconds =
                chains!(ROUNDS, _mm256_set1_ps(1.0), |sum| _mm256_fmadd_ps(*sum, factor, term));
            (ROUNDS * CHAINS * 8) as f64 / seconds
        };
        let round = _mm256_set1_ps(ROUND);
        let exponentials =
            exponentials!(8, _mm256_loadu_ps, _mm256_add_ps, _mm256_set1_ps(0.0), |x| {
                let shifted = _mm256_add_ps(x, round);
                let fraction = _mm256_sub_ps(x, _mm256_sub_ps(shifted, round));
                let mut value = _mm256_set1_ps(POLYNOMIAL[0]);
                for coefficient in &POLYNOMIAL[1..] {
                    value = _mm256_fmadd_ps(value, fraction, _mm256_set1_ps(*coefficient));
                }
                let exponent = _mm256_slli_epi32::<23>(_mm256_castps_si256(shifted));
                _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(value), exponent))
            });
        Limits { multiply_adds, exponentials }
    }

    #[target_feature(enable = "avx512f,avx512dq")]
    pub(super) fn avx512() -> Limits {
        let (factor, term) = (_mm512_set1_ps(black_box(0.999)), _mm512_set1_ps(black_box(0.001)));
        let seconds =
            chains!(ROUNDS, _mm512_set1_ps(1.0), |sum| _mm512_fmadd_ps(*sum, factor, term));
        Limits {
            multiply_adds: (ROUNDS * CHAINS * 16) as f64 / seconds,
            exponentials: exponentials_avx512(&DEGREE_5),
        }
    }

    #[inline]
    #[target_feature(enable = "avx512f,avx512dq")]
    fn exponentials_avx512<const COEFFICIENTS: usize>(polynomial: &[f32; COEFFICIENTS]) -> f64 {
        exponentials!(16, _mm512_loadu_ps, _mm512_add_ps, _mm512_setzero_ps(), |x| {
            let fraction = _mm512_reduce_ps::<0b1001>(x);
            let mut value = _mm512_set1_ps(polynomial[0]);
            for coefficient in &polynomial[1..] {
                value = _mm512_fmadd_ps(value, fraction, _mm512_set1_ps(*coefficient));
            }
            _mm512_scalef_ps(value, x)
        })
    }

    #[target_feature(enable = "avx512f,avx512dq,avx512vnni")]
    pub(super) fn avx512_vnni() -> Limits {
        let factor = _mm512_set1_epi32(black_box(0x0001_0003));
        let seconds = chains!(ROUNDS, _mm512_set1_epi32(1), |sum| {
            _mm512_dpwssd_epi32(*sum, black_box(factor), factor)
        });
        let exponentials =
            exponentials!(16, _mm512_loadu_ps, _mm512_add_ps, _mm512_setzero_ps(), |x| {
                let integer = _mm512_roundscale_ps::<0b1000>(x);
                let fraction = _mm512_sub_ps(x, integer);
                let mut value = _mm512_set1_ps(POLYNOMIAL[0]);
                for coefficient in &POLYNOMIAL[1..] {
                    value = _mm512_fmadd_ps(value, fraction, _mm512_set1_ps(*coefficient));
                }
                _mm512_scalef_ps(value, integer)
            });
        Limits { multiply_adds: (ROUNDS * CHAINS * 32) as f64 / seconds, exponentials }
    }

    /// The shapes of eight tiles of 16 rows of 64 bytes, as `ldtilecfg` reads them.
    #[repr(C, align(64))]
    struct TileShapes([u8; 64]);

    /// Measures products of 16 × 16 × 32 numbers, four tiles of sums at a time.
    #[target_feature(enable = "avx512f,avx512dq")]
    pub(super) fn amx() -> Limits {
        let mut shapes = TileShapes([0; 64]);
        shapes.0[0] = 1; // the palette
        for tile in 0..8 {
            (shapes.0[16 + 2 * tile], shapes.0[48 + tile]) = (64, 16);
        }
        let rounds = ROUNDS / 16;
        let clock = Clock::start();
        // SAFETY: AMX may be used, and this thread has no other tiles: no kernel runs on it meanwhile. Only `shapes` is read.
        unsafe {
            asm!(
                "ldtilecfg [{shapes}]",
                "2:",
                "tdpbf16ps tmm0, tmm4, tmm6",
                "tdpbf16ps tmm1, tmm4, tmm7",
                "tdpbf16ps tmm2, tmm5, tmm6",
                "tdpbf16ps tmm3, tmm5, tmm7",
                "dec {rounds}",
                "jnz 2b",
                "tilerelease",
                shapes = in(reg) &raw const shapes,
                rounds = inout(reg) rounds => _,
                out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
                out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
                options(nostack, readonly),
            );
        }
        Limits {
            multiply_adds: (rounds * 4 * 16 * 16 * 32) as f64 / clock.seconds(),
            exponentials: exponentials_avx512(&DEGREE_3),
        }
    }
}

#[cfg(target_arch = "aarch64")]
mod arm {
    use std::arch::aarch64::{
        vaddq_f32, vaddq_s32, vdupq_n_f32, vfmaq_f32, vld1q_f32, vreinterpretq_f32_s32,
        vreinterpretq_s32_f32, vshlq_n_s32, vsubq_f32,
    };

    use super::{
        CHAINS, Clock, LOGIT_ROUNDS, LOGITS, Limits, POLYNOMIAL, ROUND, ROUNDS, black_box, logits,
    };

    pub(super) fn neon() -> Limits {
        // SAFETY: every processor of the target has NEON.
        unsafe {
            let (factor, term) = (vdupq_n_f32(black_box(0.999)), vdupq_n_f32(black_box(0.001)));
            let seconds = chains!(ROUNDS, vdupq_n_f32(1.0), |sum| vfmaq_f32(term, *sum, factor));
            let round = vdupq_n_f32(ROUND);
            let exponentials = exponentials!(4, vld1q_f32, vaddq_f32, vdupq_n_f32(0.0), |x| {
                let shifted = vaddq_f32(x, round);
                let fraction = vsubq_f32(x, vsubq_f32(shifted, round));
                let mut value = vdupq_n_f32(POLYNOMIAL[0]);
                for coefficient in &POLYNOMIAL[1..] {
                    value = vfmaq_f32(vdupq_n_f32(*coefficient), value, fraction);
                }
                let exponent = vshlq_n_s32::<23>(vreinterpretq_s32_f32(shifted));
                vreinterpretq_f32_s32(vaddq_s32(vreinterpretq_s32_f32(value), exponent))
            });
            Limits { multiply_adds: (ROUNDS * CHAINS * 4) as f64 / seconds, exponentials }
        }
    }
}
