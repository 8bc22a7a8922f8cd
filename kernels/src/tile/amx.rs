//! AMX tiles: 16 × 16 sums of 32 bf16 products each, an instruction.
//!
//! The compiler's intrinsics are unstable, so the instructions are inline assembly. Everything around [`AmxTile`]'s
//! product is what `avx512-bf16` runs: the same panels of queries (a panel's rows of 16 words are what the instruction
//! wants of its second operand), the same softmax.

use std::arch::asm;
use std::cell::Cell;
use std::marker::PhantomData;

use super::{AMX, Tile};
use crate::online_softmax::{Logits, STRIP_ROWS};
use crate::panels::Layout;
use crate::simd::{Avx512, Degree3};

/// Rows of a hardware tile, words of its row.
const SIDE: usize = 16;
/// Keys and queries of a product: two tiles of each meet in four tiles of sums.
const SPAN: usize = AMX.keys;
const _: () = assert!(SPAN == STRIP_ROWS, "a strip is what a product gives");

/// AMX-TILE and AMX-BF16, allowed by the operating system, beside AVX-512 F and DQ.
#[derive(Clone, Copy)]
pub(crate) struct AmxTile(Avx512<Degree3>);

#[expect(clippy::unused_self, reason = "a value is the proof that the instructions are there")]
impl AmxTile {
    /// # Safety
    /// The processor has AMX-TILE and AMX-BF16, and the operating system lets this process use them.
    #[inline]
    #[target_feature(enable = "avx512f,avx512dq")]
    pub(crate) unsafe fn new() -> Self {
        Self(Avx512::new())
    }

    /// Multiply-adds of a round of [`Self::repeat`].
    pub(crate) const REPEATED_PRODUCTS: usize = 4 * SIDE * SIDE * 2 * SIDE;

    /// Nothing but products, four at a time, of what the tiles hold.
    pub(crate) fn repeat(self, _: &mut TileSession, rounds: usize) {
        assert!(rounds > 0, "the loop runs at least once");
        // SAFETY: `new` promises AMX, the session configured tiles; no memory is touched.
        unsafe {
            asm!(
                "2:",
                "tdpbf16ps tmm0, tmm4, tmm6",
                "tdpbf16ps tmm1, tmm4, tmm7",
                "tdpbf16ps tmm2, tmm5, tmm6",
                "tdpbf16ps tmm3, tmm5, tmm7",
                "dec {rounds}",
                "jnz 2b",
                rounds = inout(reg) rounds => _,
                out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
                out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
                options(nostack, nomem),
            );
        }
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

/// This thread's tiles are configured while it lives: it stays on its thread, and no thread has two, since the first that
/// went would take the tiles from the other.
pub(crate) struct TileSession(PhantomData<*const ()>);

impl TileSession {
    /// Takes this thread's tiles, not yet configured.
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

    #[inline(always)]
    fn simd(self) -> Avx512<Degree3> {
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

    /// All 32 rows, whatever `rows` says.
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
        assert!(depth > 0 && depth.is_multiple_of(SIDE), "rows are padded to whole tiles");
        let (keys, queries) = (&keys[..SPAN * depth], &queries[..SPAN * depth]);
        let logits = logits[..SPAN].as_flattened_mut();
        // SAFETY: `new` promises AMX, the session configured tiles. Loads: 2·16 rows of 64 bytes, `key_bytes` apart, at each of
        // depth/16 steps of 64 bytes, which are `keys`; 16 rows of 128 bytes at each step, which are `queries`. Stores:
        // 32 rows of 128 bytes one after the other, which are `logits`.
        unsafe {
            asm!(
                "tilezero tmm0",
                "tilezero tmm1",
                "tilezero tmm2",
                "tilezero tmm3",
                "2:",
                "tileloadd tmm4, [{upper} + {key_bytes}]",
                "tileloadd tmm6, [{queries} + {row_bytes}]",
                "tileloadd tmm7, [{queries} + {row_bytes} + 64]",
                "tdpbf16ps tmm0, tmm4, tmm6",
                "tdpbf16ps tmm1, tmm4, tmm7",
                "tileloadd tmm5, [{lower} + {key_bytes}]",
                "tdpbf16ps tmm2, tmm5, tmm6",
                "tdpbf16ps tmm3, tmm5, tmm7",
                "add {upper}, 64",
                "add {lower}, 64",
                "add {queries}, {step_bytes}",
                "dec {steps}",
                "jnz 2b",
                "tilestored [{top} + {row_bytes}], tmm0",
                "tilestored [{top} + {row_bytes} + 64], tmm1",
                "tilestored [{bottom} + {row_bytes}], tmm2",
                "tilestored [{bottom} + {row_bytes} + 64], tmm3",
                upper = inout(reg) keys.as_ptr() => _,
                lower = inout(reg) keys.as_ptr().add(SIDE * depth) => _,
                queries = inout(reg) queries.as_ptr() => _,
                steps = inout(reg) depth / SIDE => _,
                key_bytes = in(reg) 4 * depth,
                row_bytes = in(reg) 4 * SPAN,
                top = in(reg) logits.as_mut_ptr(),
                bottom = in(reg) logits.as_mut_ptr().add(SIDE * SPAN),
                step_bytes = const 4 * SPAN * SIDE,
                out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
                out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
                options(nostack),
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use half::bf16;

    use super::*;
    use crate::panels::regroup;
    use crate::transpose::{FourRows, Rows};

    /// A tile register: 16 rows of 16 words.
    type Register = [[u32; SIDE]; SIDE];

    /// `tileloadd`: 16 rows of 64 bytes, `stride` words apart.
    fn load(words: &[u32], stride: usize) -> Register {
        std::array::from_fn(|row| std::array::from_fn(|word| words[row * stride + word]))
    }

    /// `tdpbf16ps` as Intel's manual, volume 2, defines it: row `m` of `a` holds pairs `k` of key `m`, row `k` of `b`
    /// pair `k` of every query `n`; even and odd products are summed apart, then added to `c`.
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

    /// The steps and addresses of [`AmxTile::multiply`], on the model.
    fn modelled(keys: &[u32], queries: &[u32]) -> Vec<f32> {
        let depth = keys.len() / SPAN;
        let mut products = vec![0.0; SPAN * SPAN];
        for (rows, columns) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
            let mut sums = [[0.0; SIDE]; SIDE];
            for step in 0..depth / SIDE {
                let a = load(&keys[rows * SIDE * depth + step * SIDE..], depth);
                let b = load(&queries[step * SIDE * SPAN + columns * SIDE..], SPAN);
                multiply_add(&mut sums, &a, &b);
            }
            for (m, sums) in sums.iter().enumerate() {
                let at = (rows * SIDE + m) * SPAN + columns * SIDE;
                products[at..at + SIDE].copy_from_slice(sums);
            }
        }
        products
    }

    /// Heads of any width: packed as the kernel packs them, the tiles' definition gives every product of query and key.
    #[test]
    fn the_layout_is_what_the_tile_instructions_want() {
        for head_dim in [1, 31, 32, 33, 64, 80, 96, 128, 192, 256] {
            let number = |row: usize, d: usize| ((row * 37 + d * 11) % 17) as f32 - 8.0;
            let depth = AMX.depth(head_dim);
            let pack = |shift: usize| {
                let number = |at: usize| number(at / head_dim + shift, at % head_dim);
                let rows: Vec<f32> = (0..SPAN * head_dim).map(number).collect();
                AMX.words(&rows, head_dim, &mut vec![7; SPAN * depth]).to_vec()
            };
            let keys = pack(100);
            let mut queries = vec![9; SPAN * depth];
            let rows = Rows { words: &pack(0), stride: depth, depth, count: SPAN };
            regroup(FourRows, rows, AMX.queries, &mut queries);
            for (at, product) in modelled(&keys, &queries).into_iter().enumerate() {
                let (key, query) = (at / SPAN, at % SPAN);
                let want: f32 =
                    (0..head_dim).map(|d| number(query, d) * number(key + 100, d)).sum();
                assert!(
                    (product - want).abs() < 1e-3,
                    "{query}, {key} of {head_dim}: {product}, not {want}"
                );
            }
        }
    }

    #[test]
    fn the_configuration_has_the_bytes_that_the_instruction_reads() {
        assert_eq!(size_of::<TileShapes>(), 64);
        assert_eq!(std::mem::offset_of!(TileShapes, row_bytes), 16);
        assert_eq!(std::mem::offset_of!(TileShapes, rows), 48);
    }
}
