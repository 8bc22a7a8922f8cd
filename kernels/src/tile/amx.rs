//! AMX tiles: one instruction computes 16 × 16 sums of 32 bf16 products each.
//!
//! The compiler's intrinsics are unstable, so the instructions are inline assembly. Everything around the product is shared
//! with the AVX-512 kernels: the panels of queries (whose rows of 16 words are the second operand of the instruction) and the
//! softmax.

use std::arch::asm;
use std::cell::Cell;
use std::marker::PhantomData;

use super::Tile;
use crate::online_softmax::{Logits, STRIP_ROWS};
use crate::panels::{AMX, Layout};
use crate::simd::{Avx512, Degree3};

/// Rows of a hardware tile, words of its row.
const SIDE: usize = 16;
/// Keys and queries of a product: two tiles of each give four tiles of sums.
const SPAN: usize = AMX.keys;
const _: () = assert!(SPAN == STRIP_ROWS, "a strip is what a product gives");

/// AMX-TILE and AMX-BF16, permitted by the operating system, in addition to AVX-512 F and DQ. Its exponentials are no less
/// exact than products of bf16.
#[derive(Clone, Copy)]
pub(crate) struct AmxTile(Avx512<Degree3>);

impl AmxTile {
    /// # Safety
    /// The processor has AMX-TILE and AMX-BF16, and the operating system permits this process to use them.
    #[inline]
    #[target_feature(enable = "avx512f,avx512dq")]
    pub(crate) unsafe fn new() -> Self {
        Self(Avx512::new())
    }
}

/// The shapes of the eight tiles, as `ldtilecfg` reads them.
#[repr(C, align(64))]
struct TileShapes {
    palette: u8,
    start_row: u8,
    reserved: [u8; 14],
    row_bytes: [u16; 16],
    rows: [u8; 16],
}

thread_local! {
    /// Whether this thread has a session.
    static CONFIGURED: Cell<bool> = const { Cell::new(false) };
}

/// Proof that this thread's tiles are configured. It stays on its thread, and a thread has only one, because the first
/// of two to be dropped would release the tiles of the other.
pub(crate) struct TileSession(PhantomData<*const ()>);

impl TileSession {
    /// Acquires this thread's tiles, not yet configured.
    fn take() -> Self {
        assert!(!CONFIGURED.replace(true), "a thread has one session of tiles at a time");
        Self(PhantomData)
    }
}

impl Drop for TileSession {
    fn drop(&mut self) {
        CONFIGURED.set(false);
        // SAFETY: a session exists only where AMX may be used; releasing the tiles touches no memory.
        unsafe {
            asm!("tilerelease", out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
                out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
                options(nostack, nomem, preserves_flags));
        }
    }
}

impl Tile for AmxTile {
    type Simd = Avx512<Degree3>;
    type Session = TileSession;
    const CHUNK_KEYS: usize = SPAN;
    const GROUP_ROWS: usize = STRIP_ROWS;

    #[inline(always)]
    fn simd(self) -> Self::Simd {
        self.0
    }

    #[inline(always)]
    fn layout(self) -> Layout {
        AMX
    }

    #[inline(always)]
    fn begin(self) -> TileSession {
        let session = TileSession::take();
        let mut shapes = TileShapes {
            palette: 1,
            start_row: 0,
            reserved: [0; 14],
            row_bytes: [0; 16],
            rows: [0; 16],
        };
        shapes.row_bytes[..8].fill(4 * SIDE as u16);
        shapes.rows[..8].fill(SIDE as u8);
        // SAFETY: `new` promises AMX; the instruction reads the 64 bytes of `shapes` and zeroes the tiles.
        unsafe {
            asm!("ldtilecfg [{shapes}]", shapes = in(reg) &raw const shapes,
                out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
                out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
                options(nostack, readonly, preserves_flags));
        }
        session
    }

    /// Computes all 32 rows regardless of `rows`.
    #[inline(always)]
    fn multiply(
        self,
        _: &mut TileSession,
        keys: &[u32],
        queries: &[u32],
        _rows: usize,
        logits: &mut Logits,
    ) {
        let depth = keys.len() / SPAN;
        let logits = logits[..SPAN].as_flattened_mut();
        // SAFETY: `new` promises AMX, the session configured tiles.
        unsafe { multiply(&keys[..SPAN * depth], &queries[..SPAN * depth], depth, logits) }
    }
}

/// Writes the products of 32 keys with 32 queries, `[SPAN, SPAN]`. Both are a panel of the layout, of `depth` words a row.
///
/// # Safety
/// The processor has AMX-TILE and AMX-BF16, and this thread's tiles are configured.
#[inline(always)]
unsafe fn multiply(keys: &[u32], queries: &[u32], depth: usize, products: &mut [f32]) {
    assert!(depth > 0 && depth.is_multiple_of(SIDE), "rows are padded to whole tiles");
    assert!(keys.len() == SPAN * depth && queries.len() == SPAN * depth);
    assert_eq!(products.len(), SPAN * SPAN);
    // SAFETY: the caller promises AMX and configured tiles. Loads, at each of depth/16 steps of 2048 bytes: 32 rows of 64
    // bytes, which are `keys`, and 16 rows of 128 bytes, which are `queries`. Stores: 32 rows of 128 bytes one after the
    // other, which are `products`.
    unsafe {
        asm!(
            "tilezero tmm0",
            "tilezero tmm1",
            "tilezero tmm2",
            "tilezero tmm3",
            "2:",
            "tileloadd tmm4, [{keys} + {key_bytes}]",
            "tileloadd tmm6, [{queries} + {row_bytes}]",
            "tileloadd tmm7, [{queries} + {row_bytes} + 64]",
            "tdpbf16ps tmm0, tmm4, tmm6",
            "tdpbf16ps tmm1, tmm4, tmm7",
            "tileloadd tmm5, [{keys} + {key_bytes} + 1024]",
            "tdpbf16ps tmm2, tmm5, tmm6",
            "tdpbf16ps tmm3, tmm5, tmm7",
            "add {keys}, {step_bytes}",
            "add {queries}, {step_bytes}",
            "dec {steps}",
            "jnz 2b",
            "tilestored [{products} + {row_bytes}], tmm0",
            "tilestored [{products} + {row_bytes} + 64], tmm1",
            "tilestored [{products} + {row_bytes} + {step_bytes}], tmm2",
            "tilestored [{products} + {row_bytes} + {step_bytes} + 64], tmm3",
            keys = inout(reg) keys.as_ptr() => _,
            queries = inout(reg) queries.as_ptr() => _,
            steps = inout(reg) depth / SIDE => _,
            key_bytes = in(reg) 4 * SIDE,
            row_bytes = in(reg) 4 * SPAN,
            products = in(reg) products.as_mut_ptr(),
            step_bytes = const 4 * SPAN * SIDE,
            out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
            out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
            options(nostack),
        );
    }
}

#[cfg(test)]
mod tests {
    use half::bf16;

    use super::*;
    use crate::panels::one_panel_each;

    /// A tile register: 16 rows of 16 words.
    type Register = [[u32; SIDE]; SIDE];

    /// `tileloadd`: 16 rows of 64 bytes, `stride` words apart.
    fn load(words: &[u32], stride: usize) -> Register {
        std::array::from_fn(|row| std::array::from_fn(|word| words[row * stride + word]))
    }

    /// `tdpbf16ps` as Intel's manual, volume 2, defines it: row `m` of `a` holds pairs `k` of key `m`, row `k` of `b`
    /// pair `k` of every query `n`; even and odd products are summed separately, then added to `c`.
    fn multiply_add(c: &mut [[f32; SIDE]; SIDE], a: &Register, b: &Register) {
        let halves =
            |word: u32| [word as u16, (word >> 16) as u16].map(|x| bf16::from_bits(x).to_f32());
        for m in 0..SIDE {
            for n in 0..SIDE {
                let mut sums = [0.0; 2];
                for k in 0..SIDE {
                    let (a, b) = (halves(a[m][k]), halves(b[k][n]));
                    sums[0] += a[0] * b[0];
                    sums[1] += a[1] * b[1];
                }
                c[m][n] += sums[0] + sums[1];
            }
        }
    }

    /// Executes the steps and addresses of [`multiply`] on the model.
    fn modelled(keys: &[u32], queries: &[u32]) -> Vec<f32> {
        let depth = keys.len() / SPAN;
        let mut products = vec![0.0; SPAN * SPAN];
        for (rows, columns) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
            let mut sums = [[0.0; SIDE]; SIDE];
            for step in 0..depth / SIDE {
                let at = step * SIDE * SPAN;
                let a = load(&keys[at + rows * SIDE * SIDE..], SIDE);
                let b = load(&queries[at + columns * SIDE..], SPAN);
                multiply_add(&mut sums, &a, &b);
            }
            for (m, sums) in sums.iter().enumerate() {
                let at = (rows * SIDE + m) * SPAN + columns * SIDE;
                products[at..at + SIDE].copy_from_slice(sums);
            }
        }
        products
    }

    /// Packs 32 keys and 32 queries as the kernel does.
    fn packed(head_dim: usize, number: impl Fn(usize, usize) -> f32) -> [Vec<u32>; 2] {
        let rows = |first: usize| -> Vec<f32> {
            (0..SPAN * head_dim).map(|at| number(at / head_dim + first, at % head_dim)).collect()
        };
        one_panel_each(AMX, head_dim, [&rows(0), &rows(FIRST_KEY)])
    }

    /// Number of the first key's row; queries are the rows from 0 on.
    const FIRST_KEY: usize = 100;

    const WIDTHS: [usize; 10] = [1, 31, 32, 33, 64, 80, 96, 128, 192, 256];

    /// For heads of any width, packed as in the kernel, the tiles' definition yields every product of query and key.
    #[test]
    fn the_layout_matches_the_tile_instructions() {
        for head_dim in WIDTHS {
            let number = |row: usize, d: usize| ((row * 37 + d * 11) % 17) as f32 - 8.0;
            let [queries, keys] = packed(head_dim, number);
            for (at, product) in modelled(&keys, &queries).iter().enumerate() {
                let (key, query) = (at / SPAN, at % SPAN);
                let want: f64 = (0..head_dim)
                    .map(|d| f64::from(number(query, d)) * f64::from(number(key + FIRST_KEY, d)))
                    .sum();
                let error = (f64::from(*product) - want).abs();
                assert!(error < 1e-3, "{query}, {key} of {head_dim}: {product}, not {want}");
            }
        }
    }

    /// The processor follows its manual.
    #[test]
    #[cfg_attr(not(longsift_amx), ignore = "needs a processor with AMX")]
    fn the_processor_matches_the_model() {
        assert!(crate::Kernel::AmxBf16.is_supported());
        let number = |row: usize, d: usize| ((row * 37 + d * 11) as f32 * 0.7).sin();
        for head_dim in WIDTHS {
            let [queries, keys] = packed(head_dim, number);
            assert_eq!(multiplied(&keys, &queries), modelled(&keys, &queries), "{head_dim}");
        }
    }

    /// Computes the products on this processor, `[SPAN, SPAN]`.
    fn multiplied(keys: &[u32], queries: &[u32]) -> Vec<f32> {
        #[target_feature(enable = "avx512f,avx512dq")]
        fn with_amx(keys: &[u32], queries: &[u32], logits: &mut Logits) {
            // SAFETY: the caller has checked that the kernel is supported.
            let tile = unsafe { AmxTile::new() };
            tile.multiply(&mut tile.begin(), keys, queries, SPAN, logits);
        }
        let mut logits = [[0.0; STRIP_ROWS]; SPAN];
        // SAFETY: the kernel is supported.
        unsafe { with_amx(keys, queries, &mut logits) }
        logits.as_flattened().to_vec()
    }

    #[test]
    fn the_tile_configuration_has_the_documented_layout() {
        assert_eq!(size_of::<TileShapes>(), 64);
        assert_eq!(std::mem::offset_of!(TileShapes, row_bytes), 16);
        assert_eq!(std::mem::offset_of!(TileShapes, rows), 48);
    }
}
