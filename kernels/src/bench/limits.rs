//! What a processor can do at most: loops of nothing but multiply-adds, and of nothing but exponentials.

use std::hint::black_box;

use super::clock::Clock;
use crate::kernel::Kernel;
use crate::online_softmax::STRIP_ROWS;
#[cfg(target_arch = "x86_64")]
use crate::simd::{Avx2, Avx512, Degree5};
#[cfg(target_arch = "aarch64")]
use crate::simd::{Neon, Twice};
use crate::simd::{Portable, Simd};
use crate::tile::int16::PortableInt16Tile;
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
use crate::tile::int16::Products;
#[cfg(target_arch = "aarch64")]
use crate::tile::int16::neon::NeonInt16Tile;
#[cfg(target_arch = "x86_64")]
use crate::tile::int16::{avx2::Avx2Int16Tile, avx512::Avx512Int16Tile};
use crate::tile::{Tile, multiply};
#[cfg(target_arch = "x86_64")]
use crate::tile::{amx, amx::AmxTile, bf16_dot::Bf16DotTile};

/// The limits of one thread for one kernel.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Limits {
    /// Multiply-adds a second, in the kernel's own instruction and numbers, operands in registers; for the portable
    /// kernel, whose registers are the compiler's, its register tile on operands in the first-level cache.
    pub multiply: f64,
    /// Exponentials a second: logits from the first-level cache, the kernel's own polynomial, summed up.
    pub exponential: f64,
}

/// Rounds of a loop of multiply-adds: some ten milliseconds.
const MULTIPLY_ROUNDS: usize = 5_000_000;
/// Logits of the loop of exponentials.
const LOGITS: usize = 1024;
/// Rounds over them.
const EXPONENTIAL_ROUNDS: usize = 10_000;

impl Limits {
    /// Measures this thread's limits; some tens of milliseconds.
    ///
    /// # Panics
    /// If the processor lacks the kernel.
    pub fn measure(kernel: Kernel) -> Self {
        kernel.assert_supported();
        match kernel {
            Kernel::PortableF32 => portable(),
            #[cfg(target_arch = "x86_64")]
            // SAFETY: the kernel is supported: AVX2 and FMA are there.
            Kernel::Avx2F32 => unsafe { avx2() },
            #[cfg(target_arch = "x86_64")]
            // SAFETY: the kernel is supported: AVX-512 F and DQ are there.
            Kernel::Avx512F32 => unsafe { avx512() },
            #[cfg(target_arch = "x86_64")]
            // SAFETY: the kernel is supported: AVX-512 F, DQ and BF16 are there.
            Kernel::Avx512Bf16 => unsafe { bf16_dot() },
            #[cfg(target_arch = "x86_64")]
            // SAFETY: the kernel is supported: AMX may be used, and AVX-512 F and DQ are there.
            Kernel::AmxBf16 => unsafe { amx::<amx::Rounded>(1) },
            #[cfg(target_arch = "x86_64")]
            // SAFETY: the kernel is supported: AMX may be used, and AVX-512 F and DQ are there.
            Kernel::AmxBf16x3 => unsafe { amx::<amx::Split>(3) },
            Kernel::PortableInt16 => portable_int16(),
            #[cfg(target_arch = "aarch64")]
            Kernel::NeonF32 => Self::of::<_, 12>(Twice::new(Neon)),
            #[cfg(target_arch = "aarch64")]
            Kernel::NeonInt16 => {
                let (tile, products) = (NeonInt16Tile::neon(), NeonInt16Tile::neon().products());
                Self {
                    multiply: integer_products(products),
                    exponential: exponentials(tile.simd()),
                }
            }
            #[cfg(target_arch = "x86_64")]
            // SAFETY: the kernel is supported: AVX2 and FMA are there.
            Kernel::Avx2Int16 => unsafe { avx2_int16() },
            #[cfg(target_arch = "x86_64")]
            // SAFETY: the kernel is supported: AVX-512 F, DQ and VNNI are there.
            Kernel::Avx512Int16 => unsafe { avx512_int16() },
            _ => unreachable!("not supported on this target"),
        }
    }

    #[inline(always)]
    fn of<S: Simd, const CHAINS: usize>(simd: S) -> Self {
        Self { multiply: multiply_adds::<S, CHAINS>(simd), exponential: exponentials(simd) }
    }

    /// The mean of two measurements.
    pub(super) fn mean(&self, other: &Self) -> Self {
        Self {
            multiply: f64::midpoint(self.multiply, other.multiply),
            exponential: f64::midpoint(self.exponential, other.exponential),
        }
    }
}

fn portable() -> Limits {
    const DEPTH: usize = 256;
    let (rows, columns) = (vec![0.5; 4 * DEPTH], vec![0.25; Portable::LANES * DEPTH]);
    let rounds = MULTIPLY_ROUNDS / DEPTH;
    let clock = Clock::start();
    for _ in 0..rounds {
        black_box(multiply::<_, 4, 1>(Portable, black_box(&rows), &columns));
    }
    let seconds = clock.seconds();
    let multiply = (rounds * DEPTH * 4 * Portable::LANES) as f64 / seconds;
    Limits { multiply, exponential: exponentials(Portable) }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma")]
fn avx2() -> Limits {
    Limits::of::<_, 12>(Avx2::new())
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512dq")]
fn avx512() -> Limits {
    Limits::of::<_, 12>(Avx512::<Degree5>::new())
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512dq,avx512bf16")]
fn bf16_dot() -> Limits {
    const CHAINS: usize = 16;
    let (tile, simd) = (Bf16DotTile::new(), Bf16DotTile::new().simd());
    let (a, b) = (tile.splat(black_box(0x3F80_3F00)), tile.splat(black_box(0x3A00_3A00)));
    let mut sums = [simd.splat(1.0); CHAINS];
    let rounds = MULTIPLY_ROUNDS / 4;
    let clock = Clock::start();
    for _ in 0..rounds {
        for sum in &mut sums {
            *sum = tile.multiply_add(a, b, *sum);
        }
    }
    let seconds = clock.seconds();
    for sum in sums {
        black_box(simd.sum(sum));
    }
    let multiply = (rounds * CHAINS * 32) as f64 / seconds;
    Limits { multiply, exponential: exponentials(simd) }
}

/// The limits of tiles that need `products` products for each of two numbers.
///
/// # Safety
/// As for [`AmxTile::new`].
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512dq")]
unsafe fn amx<N: amx::Numbers>(products: usize) -> Limits {
    // SAFETY: the caller's promise.
    let tile = unsafe { AmxTile::<N>::new() };
    let mut session = tile.begin();
    let clock = Clock::start();
    tile.repeat(&mut session, MULTIPLY_ROUNDS / 16);
    let seconds = clock.seconds();
    drop(session);
    let multiply = (MULTIPLY_ROUNDS / 16 * amx::REPEATED_PRODUCTS / products) as f64 / seconds;
    Limits { multiply, exponential: exponentials(tile.simd()) }
}

fn portable_int16() -> Limits {
    const DEPTH: usize = 128;
    let tile = PortableInt16Tile::portable();
    let layout = tile.layout();
    let (queries, keys) =
        (vec![0x0101_0101; layout.queries * DEPTH], vec![0x0101_0101; layout.keys * DEPTH]);
    let mut logits = vec![[0.0; STRIP_ROWS]; layout.keys];
    let rounds = MULTIPLY_ROUNDS / DEPTH;
    let clock = Clock::start();
    for _ in 0..rounds {
        let queries = black_box(&queries);
        tile.multiply(&mut (), &keys, queries, layout.queries, black_box(&mut logits));
    }
    let seconds = clock.seconds();
    let multiply = (rounds * 2 * (DEPTH - 1) * layout.queries * layout.keys) as f64 / seconds;
    Limits { multiply, exponential: exponentials(tile.simd()) }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma")]
fn avx2_int16() -> Limits {
    let tile = Avx2Int16Tile::avx2();
    Limits { multiply: integer_products(tile.products()), exponential: exponentials(tile.simd()) }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512dq,avx512vnni")]
fn avx512_int16() -> Limits {
    let tile = Avx512Int16Tile::avx512();
    Limits { multiply: integer_products(tile.products()), exponential: exponentials(tile.simd()) }
}

/// As [`multiply_adds`], of pairs of integers: each of a few words by each of others, which the compiler takes for new ones
/// in every round, so that no product is formed once for all.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
#[inline(always)]
fn integer_products<P: Products>(products: P) -> f64 {
    const ROWS: usize = 6;
    const COLUMNS: usize = 2;
    let columns = [products.splat(black_box(0x0001_0001)), products.splat(black_box(0x0001_0003))];
    let mut sums = [[products.zero(); COLUMNS]; ROWS];
    let rounds = MULTIPLY_ROUNDS / 2;
    let clock = Clock::start();
    for round in 0..rounds {
        for (row, sums) in sums.iter_mut().enumerate() {
            let row = products.splat(black_box((round + row) as u32));
            for (column, sum) in columns.iter().zip(sums) {
                *sum = products.multiply_add(row, *column, *sum);
            }
        }
    }
    let seconds = clock.seconds();
    let (ones, mut out) = (vec![1.0; P::LANES], vec![0.0; P::LANES]);
    for sum in sums.as_flattened() {
        products.store(*sum, &ones, 1.0, &mut out);
        black_box(&mut out);
    }
    (rounds * ROWS * COLUMNS * 2 * P::LANES) as f64 / seconds
}

/// `CHAINS` independent sums: enough to hide an addition's latency, few enough for the registers.
#[inline(always)]
fn multiply_adds<S: Simd, const CHAINS: usize>(simd: S) -> f64 {
    let (factor, term) = (simd.splat(black_box(0.999)), simd.splat(black_box(0.001)));
    let mut sums = [simd.splat(1.0); CHAINS];
    let clock = Clock::start();
    for _ in 0..MULTIPLY_ROUNDS {
        for sum in &mut sums {
            *sum = simd.mul_add(*sum, factor, term);
        }
    }
    let seconds = clock.seconds();
    for sum in sums {
        black_box(simd.sum(sum));
    }
    (MULTIPLY_ROUNDS * CHAINS * S::LANES) as f64 / seconds
}

#[inline(always)]
fn exponentials<S: Simd>(simd: S) -> f64 {
    let logits: Vec<f32> = (0..LOGITS).map(|index| (index % 83) as f32 * 0.37 - 15.0).collect();
    let mut sum = simd.splat(0.0);
    let clock = Clock::start();
    for _ in 0..EXPONENTIAL_ROUNDS {
        for logits in black_box(&logits).chunks_exact(S::LANES) {
            sum = simd.add(sum, simd.exp2(simd.load(logits)));
        }
    }
    let seconds = clock.seconds();
    black_box(simd.sum(sum));
    (EXPONENTIAL_ROUNDS * LOGITS) as f64 / seconds
}
