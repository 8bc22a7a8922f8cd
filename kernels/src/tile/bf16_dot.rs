//! The register tile of `vdpbf16ps`: two bf16 products a lane and instruction.

use std::arch::x86_64::{
    __m512, __m512bh, __m512i, _mm512_dpbf16_ps, _mm512_loadu_si512, _mm512_set1_epi32,
};
use std::mem::transmute;

use super::{BF16_DOT, LOGIT_STRIDE, Tile};
use crate::panels::Layout;
use crate::simd::{Avx512, Degree3, Simd};

const ROWS: usize = BF16_DOT.query_rows;
const WIDTH: usize = BF16_DOT.keys;
const VECTORS: usize = WIDTH / 16;

/// Pairs of bf16, 24 accumulators of the 32 registers. An element is one running float32 sum over the pairs, ascending.
#[derive(Clone, Copy)]
pub(crate) struct Bf16DotTile(Avx512<Degree3>);

#[expect(clippy::unused_self, reason = "a value is the proof that the instructions are there")]
impl Bf16DotTile {
    #[inline]
    #[target_feature(enable = "avx512f,avx512dq,avx512bf16")]
    pub(crate) fn new() -> Self {
        Self(Avx512::new())
    }

    /// `sum + Σ a·b` of the two numbers in each lane's word.
    #[inline(always)]
    pub(crate) fn multiply_add(self, a: __m512bh, b: __m512bh, sum: __m512) -> __m512 {
        // SAFETY: `new` can only be called where AVX-512 BF16 is there, and `self` comes from it.
        unsafe { _mm512_dpbf16_ps(sum, a, b) }
    }

    /// A word in every lane.
    #[inline(always)]
    pub(crate) fn splat(self, word: u32) -> __m512bh {
        // SAFETY: AVX-512 as above; both types are 512 bits of which any are valid.
        unsafe { transmute::<__m512i, __m512bh>(_mm512_set1_epi32(word.cast_signed())) }
    }

    #[inline(always)]
    fn load(self, words: &[u32]) -> __m512bh {
        let words = &words[..16];
        // SAFETY: sixteen words are there, AVX-512 as above, and both types are 512 bits of which any are valid.
        unsafe { transmute::<__m512i, __m512bh>(_mm512_loadu_si512(words.as_ptr().cast())) }
    }
}

impl Tile for Bf16DotTile {
    type Simd = Avx512<Degree3>;
    type Session = ();
    const STRIP_ROWS: usize = 24;

    #[inline(always)]
    fn simd(self) -> Avx512<Degree3> {
        self.0
    }

    #[inline(always)]
    fn layout(self) -> Layout {
        BF16_DOT
    }

    #[inline(always)]
    fn begin(self) {}

    #[inline(always)]
    fn multiply(self, (): &mut (), queries: &[u32], keys: &[u32], rows: usize, logits: &mut [f32]) {
        let depth = keys.len() / WIDTH;
        let panels = queries.chunks_exact(ROWS * depth).take(rows.div_ceil(ROWS));
        for (queries, logits) in panels.zip(logits.chunks_mut(ROWS * LOGIT_STRIDE)) {
            let mut sums = [[self.0.splat(0.0); VECTORS]; ROWS];
            let queries = queries.as_chunks::<ROWS>().0;
            for (queries, keys) in queries.iter().zip(keys.as_chunks::<WIDTH>().0) {
                let (left, right) = (self.load(keys), self.load(&keys[16..]));
                for (query, sums) in queries.iter().zip(&mut sums) {
                    let query = self.splat(*query);
                    sums[0] = self.multiply_add(query, left, sums[0]);
                    sums[1] = self.multiply_add(query, right, sums[1]);
                }
            }
            // Known to be as long as this, they are written from registers.
            let logits = &mut logits[..(ROWS - 1) * LOGIT_STRIDE + WIDTH];
            for (row, sums) in sums.iter().enumerate() {
                self.0.store(sums[0], &mut logits[row * LOGIT_STRIDE..]);
                self.0.store(sums[1], &mut logits[row * LOGIT_STRIDE + 16..]);
            }
        }
    }
}
