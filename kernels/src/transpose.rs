//! Transposition of rows of words in registers. Arrays would go through memory, where reading several words together
//! that were written one by one takes several times as long.

#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::{
    __m512i, _mm_loadu_si128, _mm512_castsi128_si512, _mm512_inserti32x4, _mm512_mask_storeu_epi32,
    _mm512_unpackhi_epi32, _mm512_unpackhi_epi64, _mm512_unpacklo_epi32, _mm512_unpacklo_epi64,
};

#[derive(Clone, Copy)]
pub(crate) struct WordRows<'a> {
    /// Start of the first row.
    pub(crate) words: &'a [u32],
    /// Words from the start of a row to that of the next.
    pub(crate) stride: usize,
    /// Words taken from each row.
    pub(crate) depth: usize,
    pub(crate) count: usize,
}

impl<'a> WordRows<'a> {
    #[inline(always)]
    fn row(&self, index: usize) -> &'a [u32] {
        &self.words[index * self.stride..][..self.depth]
    }

    /// Returns at most `count` rows, from `first` on.
    #[inline(always)]
    pub(crate) fn some(&self, first: usize, count: usize) -> Self {
        let first = first.min(self.count);
        let words = &self.words[self.words.len().min(first * self.stride)..];
        Self { words, count: count.min(self.count - first), ..*self }
    }
}

/// Transposition of rows in the registers of a processor.
pub(crate) trait Transpose: Copy {
    /// Rows that are transposed together.
    const ROWS: usize;

    /// Writes at most [`Self::ROWS`] rows to the columns of `[depth, width]` words from `first` on.
    fn write_columns(self, rows: WordRows<'_>, to: &mut [u32], width: usize, first: usize);

    /// Writes any number of rows to the first columns of `[depth, width]` words.
    #[inline(always)]
    fn transpose(self, rows: WordRows<'_>, to: &mut [u32], width: usize) {
        for first in (0..rows.count).step_by(Self::ROWS) {
            self.write_columns(rows.some(first, Self::ROWS), to, width, first);
        }
    }
}

/// Writes rows from word `from` on, word by word.
#[inline(always)]
fn write_words(rows: WordRows<'_>, from: usize, to: &mut [u32], width: usize, first: usize) {
    for index in 0..rows.count {
        let columns = to.chunks_exact_mut(width).skip(from);
        for (to, word) in columns.zip(&rows.row(index)[from..]) {
            to[first + index] = *word;
        }
    }
}

/// Four rows, four words of each at a time, with instructions of every processor.
#[derive(Clone, Copy)]
pub(crate) struct FourRows;

impl Transpose for FourRows {
    const ROWS: usize = 4;

    #[inline(always)]
    fn write_columns(self, rows: WordRows<'_>, to: &mut [u32], width: usize, first: usize) {
        if rows.count < Self::ROWS {
            return write_words(rows, 0, to, width, first);
        }
        let [a, b, c, d] = [0, 1, 2, 3].map(|index| rows.row(index).as_chunks::<4>().0);
        let squares = a.iter().zip(b).zip(c.iter().zip(d));
        for (((a, b), (c, d)), to) in squares.zip(to.chunks_exact_mut(4 * width)) {
            let columns = transposed(
                FourWords::from_words(a),
                FourWords::from_words(b),
                FourWords::from_words(c),
                FourWords::from_words(d),
            );
            let (to_first, rest) = to.split_at_mut(width);
            let (second, rest) = rest.split_at_mut(width);
            let (third, fourth) = rest.split_at_mut(width);
            columns.0.write(&mut to_first[first..first + 4]);
            columns.1.write(&mut second[first..first + 4]);
            columns.2.write(&mut third[first..first + 4]);
            columns.3.write(&mut fourth[first..first + 4]);
        }
        write_words(rows, rows.depth / 4 * 4, to, width, first);
    }
}

#[cfg(target_arch = "x86_64")]
#[derive(Clone, Copy)]
struct FourWords(std::arch::x86_64::__m128i);

#[cfg(target_arch = "x86_64")]
impl FourWords {
    #[inline(always)]
    fn from_words(words: &[u32; 4]) -> Self {
        Self(bytemuck::cast(*words))
    }

    /// `to` has room for four.
    #[inline(always)]
    fn write(self, to: &mut [u32]) {
        to.copy_from_slice(&bytemuck::cast::<_, [u32; 4]>(self.0));
    }
}

#[cfg(target_arch = "x86_64")]
#[inline(always)]
fn transposed(
    a: FourWords,
    b: FourWords,
    c: FourWords,
    d: FourWords,
) -> (FourWords, FourWords, FourWords, FourWords) {
    use std::arch::x86_64::{
        _mm_unpackhi_epi32, _mm_unpackhi_epi64, _mm_unpacklo_epi32, _mm_unpacklo_epi64,
    };
    // SAFETY: every x86-64 processor has SSE2.
    unsafe {
        let (low, high) = (_mm_unpacklo_epi32(a.0, b.0), _mm_unpackhi_epi32(a.0, b.0));
        let (low_after, high_after) = (_mm_unpacklo_epi32(c.0, d.0), _mm_unpackhi_epi32(c.0, d.0));
        (
            FourWords(_mm_unpacklo_epi64(low, low_after)),
            FourWords(_mm_unpackhi_epi64(low, low_after)),
            FourWords(_mm_unpacklo_epi64(high, high_after)),
            FourWords(_mm_unpackhi_epi64(high, high_after)),
        )
    }
}

#[cfg(not(target_arch = "x86_64"))]
#[derive(Clone, Copy)]
struct FourWords([u32; 4]);

#[cfg(not(target_arch = "x86_64"))]
impl FourWords {
    #[inline(always)]
    fn from_words(words: &[u32; 4]) -> Self {
        Self(*words)
    }

    /// `to` has room for four.
    #[inline(always)]
    fn write(self, to: &mut [u32]) {
        to.copy_from_slice(&self.0);
    }
}

#[cfg(not(target_arch = "x86_64"))]
#[inline(always)]
fn transposed(
    a: FourWords,
    b: FourWords,
    c: FourWords,
    d: FourWords,
) -> (FourWords, FourWords, FourWords, FourWords) {
    let column = |index: usize| FourWords([a.0[index], b.0[index], c.0[index], d.0[index]]);
    (column(0), column(1), column(2), column(3))
}

/// Sixteen rows, four words of each at a time, in registers of AVX-512.
#[cfg(target_arch = "x86_64")]
#[derive(Clone, Copy)]
pub(crate) struct SixteenRows(());

#[cfg(target_arch = "x86_64")]
impl SixteenRows {
    #[inline]
    #[target_feature(enable = "avx512f")]
    pub(crate) fn new() -> Self {
        Self(())
    }
}

/// Loads four words, starting at word `at`, of every fourth row from `first` on.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
unsafe fn every_fourth(row: &impl Fn(usize) -> *const u32, first: usize, at: usize) -> __m512i {
    let load = |index: usize| {
        // SAFETY: guaranteed by the caller.
        unsafe { _mm_loadu_si128(row(first + 4 * index).add(at).cast()) }
    };
    // SAFETY: guaranteed by the caller.
    unsafe {
        let words = _mm512_castsi128_si512(load(0));
        let words = _mm512_inserti32x4::<1>(words, load(1));
        let words = _mm512_inserti32x4::<2>(words, load(2));
        _mm512_inserti32x4::<3>(words, load(3))
    }
}

/// Writes `depth` words, a multiple of four, of sixteen rows to columns that are `width` words apart; `present` masks
/// the rows.
///
/// # Safety
/// The processor has AVX-512, the words of all sixteen rows exist at the starts that `row` returns, and so do the written words
/// of `to`.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
unsafe fn write_sixteen(
    row: impl Fn(usize) -> *const u32,
    depth: usize,
    present: u16,
    mut to: *mut u32,
    width: usize,
) {
    for at in (0..depth).step_by(4) {
        // SAFETY: guaranteed by the caller.
        unsafe {
            let (a, b) = (every_fourth(&row, 0, at), every_fourth(&row, 1, at));
            let (c, d) = (every_fourth(&row, 2, at), every_fourth(&row, 3, at));
            let (low, high) = (_mm512_unpacklo_epi32(a, b), _mm512_unpackhi_epi32(a, b));
            let (low_after, high_after) =
                (_mm512_unpacklo_epi32(c, d), _mm512_unpackhi_epi32(c, d));
            for column in [
                _mm512_unpacklo_epi64(low, low_after),
                _mm512_unpackhi_epi64(low, low_after),
                _mm512_unpacklo_epi64(high, high_after),
                _mm512_unpackhi_epi64(high, high_after),
            ] {
                _mm512_mask_storeu_epi32(to.cast(), present, column);
                to = to.wrapping_add(width);
            }
        }
    }
}

#[cfg(target_arch = "x86_64")]
impl Transpose for SixteenRows {
    const ROWS: usize = 16;

    #[inline(always)]
    fn write_columns(self, rows: WordRows<'_>, to: &mut [u32], width: usize, first: usize) {
        let WordRows { words, stride, depth, count } = rows;
        let fours = depth / 4 * 4;
        if count > 0 && fours > 0 {
            assert!(count <= Self::ROWS && first + count <= width && to.len() >= depth * width);
            assert!((count - 1) * stride + depth <= words.len());
            let start = words.as_ptr();
            let column_start = to.as_mut_ptr().wrapping_add(first);
            // SAFETY: `new` can only be called with AVX-512. The words of `count` rows are in `words`; the last row is
            // read again in place of each missing one, which `present` keeps from being written. Columns from `first`
            // on are in `to`.
            unsafe {
                if count == Self::ROWS {
                    let row = |index: usize| start.wrapping_add(index * stride);
                    write_sixteen(row, fours, u16::MAX, column_start, width);
                } else {
                    let present = ((1_u32 << count) - 1) as u16;
                    let starts: [_; Self::ROWS] = std::array::from_fn(|index| {
                        start.wrapping_add(index.min(count - 1) * stride)
                    });
                    write_sixteen(|index| starts[index], fours, present, column_start, width);
                }
            }
        }
        write_words(rows, fours, to, width, first);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(registers: impl Transpose) {
        for count in 0..=33 {
            for (depth, stride, width) in [(1, 1, 40), (4, 4, 33), (9, 11, 36), (64, 64, 48)] {
                let words: Vec<u32> = (1..=(count * stride) as u32).collect();
                let rows = WordRows { words: &words, stride, depth, count };
                let mut to = vec![u32::MAX; depth * width];
                registers.transpose(rows, &mut to, width);
                for (at, word) in to.into_iter().enumerate() {
                    let (row, depth) = (at % width, at / width);
                    let want = if row < count { words[row * stride + depth] } else { u32::MAX };
                    assert_eq!(word, want, "row {row} of {count}, word {depth}");
                }
            }
        }
    }

    #[test]
    fn rows_of_any_number_and_depth_become_columns() {
        check(FourRows);
        #[cfg(target_arch = "x86_64")]
        {
            #[target_feature(enable = "avx512f")]
            fn sixteen() {
                check(SixteenRows::new());
            }
            if is_x86_feature_detected!("avx512f") {
                // SAFETY: the line above detected the feature.
                unsafe { sixteen() }
            }
        }
    }
}
