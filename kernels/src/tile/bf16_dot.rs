//! The register tile of `vdpbf16ps`: two bf16 products a lane and instruction.

use std::arch::x86_64::{
    __m512, __m512bh, __m512i, _mm512_dpbf16_ps, _mm512_loadu_si512, _mm512_set1_epi32,
};
use std::mem::transmute;

use super::{BF16_DOT, Tile};
use crate::online_softmax::{Logits, STRIP_ROWS};
use crate::panels::Layout;
use crate::simd::{Avx512, Degree3, Simd};

const ROWS: usize = BF16_DOT.keys;
const WIDTH: usize = BF16_DOT.queries;
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
    const CHUNK_KEYS: usize = 24;
    const GROUP_ROWS: usize = STRIP_ROWS;

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
    fn multiply(
        self,
        (): &mut (),
        keys: &[u32],
        queries: &[u32],
        _rows: usize,
        logits: &mut Logits,
    ) {
        let mut sums = [[self.0.splat(0.0); VECTORS]; ROWS];
        let keys = keys.as_chunks::<ROWS>().0;
        for (keys, queries) in keys.iter().zip(queries.as_chunks::<WIDTH>().0) {
            let (left, right) = (self.load(queries), self.load(&queries[16..]));
            for (key, sums) in keys.iter().zip(&mut sums) {
                let key = self.splat(*key);
                sums[0] = self.multiply_add(key, left, sums[0]);
                sums[1] = self.multiply_add(key, right, sums[1]);
            }
        }
        // Known to be so many, they are written from registers.
        for (logits, sums) in logits[..ROWS].iter_mut().zip(&sums) {
            self.0.store(sums[0], logits);
            self.0.store(sums[1], &mut logits[16..]);
        }
    }
}
