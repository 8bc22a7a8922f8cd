//! 32-bit words that start on a cache line, for packed queries and keys: one float32 or two 16-bit numbers per word.

use std::ops::{Deref, DerefMut};

use bytemuck::{Pod, Zeroable};

/// Words of a cache line, which is also the widest vector.
const LINE_WORDS: usize = 16;

#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
struct CacheLine([u32; LINE_WORDS]);

// SAFETY: a line of zeros is sixteen zeros.
unsafe impl Zeroable for CacheLine {}
// SAFETY: sixteen integers fill the 64 bytes of a line, which has no padding and allows any bits.
unsafe impl Pod for CacheLine {}

/// A fixed number of words, the first at the start of a cache line, so that no vector read from a panel straddles two.
#[derive(Clone, Debug)]
pub(crate) struct AlignedWords {
    lines: Vec<CacheLine>,
    count: usize,
}

impl AlignedWords {
    /// Allocates `count` zeros.
    pub(crate) fn new(count: usize) -> Self {
        Self { lines: bytemuck::zeroed_vec(count.div_ceil(LINE_WORDS)), count }
    }

    /// Allocates `count` zeros; `None` if memory does not suffice.
    pub(crate) fn try_new(count: usize) -> Option<Self> {
        let mut lines = Vec::new();
        lines.try_reserve_exact(count.div_ceil(LINE_WORDS)).ok()?;
        lines.resize(count.div_ceil(LINE_WORDS), CacheLine::zeroed());
        Some(Self { lines, count })
    }

    /// Returns the heap bytes of `count` words.
    pub(crate) fn bytes(count: usize) -> u64 {
        (count.div_ceil(LINE_WORDS) * size_of::<CacheLine>()) as u64
    }

    #[inline(always)]
    pub(crate) fn floats(&self) -> &[f32] {
        bytemuck::cast_slice(self)
    }

    pub(crate) fn floats_mut(&mut self) -> &mut [f32] {
        bytemuck::cast_slice_mut(self)
    }
}

impl Deref for AlignedWords {
    type Target = [u32];

    #[inline(always)]
    fn deref(&self) -> &[u32] {
        &bytemuck::cast_slice(&self.lines)[..self.count]
    }
}

impl DerefMut for AlignedWords {
    fn deref_mut(&mut self) -> &mut [u32] {
        &mut bytemuck::cast_slice_mut(&mut self.lines)[..self.count]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_start_on_a_cache_line_and_have_the_requested_count() {
        for count in [0, 1, 16, 17, 1000] {
            let words = AlignedWords::new(count);
            assert_eq!((words.len(), words.floats().len()), (count, count));
            assert!(words.as_ptr().addr().is_multiple_of(64));
        }
    }
}
