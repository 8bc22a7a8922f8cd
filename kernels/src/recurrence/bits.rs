//! Sets of tokens as bits, 64 per word, so that rare tokens are found without visiting the others.

pub(super) const WORD: usize = 64;

/// Packs 64 bytes that are 0 or 1 into bits.
#[inline(always)]
pub(super) fn pack(bytes: &[u8; WORD]) -> u64 {
    // The product gathers the lowest bits of eight bytes in its highest byte.
    let gathered =
        |eight: &[u8; 8]| u64::from_le_bytes(*eight).wrapping_mul(0x0102_0408_1020_4080) >> 56;
    bytes.as_chunks().0.iter().rev().map(gathered).fold(0, |word, eight| word << 8 | eight)
}

/// Returns a bit for each value that is at least `bound`; values are below 2^31.
#[inline(always)]
pub(super) fn at_least(values: &[u32; WORD], bound: usize) -> u64 {
    // Signed numbers, which every processor can compare in vectors.
    let bound = i32::try_from(bound).unwrap_or(i32::MAX);
    pack(&values.map(|value| u8::from(value as i32 >= bound)))
}

/// Returns the bits of `word` that are the `N`th or a later bit in a run of set bits; `before` is the previous word.
#[inline(always)]
pub(super) fn nth_of_run<const N: usize>(before: u64, word: u64) -> u64 {
    let both = u128::from(word) << WORD | u128::from(before);
    let all = (1..N).fold(both, |all, back| all & both << back);
    (all >> WORD) as u64
}

/// Extends each bit of `word` to the `N - 1` bits before it; returns the bits in the previous word and in this one.
#[inline(always)]
pub(super) fn extended_back<const N: usize>(word: u64) -> [u64; 2] {
    let word = u128::from(word) << WORD;
    let all = (1..N).fold(word, |all, back| all | word >> back);
    [all as u64, (all >> WORD) as u64]
}

/// Returns the indices of the set bits, ascending.
#[inline(always)]
pub(super) fn ones(mut word: u64) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let lowest = (word != 0).then(|| word.trailing_zeros() as usize);
        word &= word.wrapping_sub(1);
        lowest
    })
}

#[inline(always)]
pub(super) fn is_set(word: u64, bit: usize) -> bool {
    word >> bit & 1 != 0
}

/// Returns a mask of word number `word` with the bits from index `first` on, counted over all words.
#[inline(always)]
pub(super) fn mask_from(first: usize, word: usize) -> u64 {
    let skipped = first.saturating_sub(word * WORD);
    if skipped < WORD { u64::MAX << skipped } else { 0 }
}

/// Replaces `values` by `length` zeros.
pub(super) fn clear<T: Copy + Default>(values: &mut Vec<T>, length: usize) {
    values.clear();
    values.resize(length, T::default());
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_word_has_the_bits_of_its_bytes(word: u64) {
            let bytes: Vec<u8> = (0..WORD).map(|bit| u8::from(is_set(word, bit))).collect();
            prop_assert_eq!(pack(bytes.first_chunk().unwrap()), word);
            let expected: Vec<usize> = (0..WORD).filter(|bit| bytes[*bit] == 1).collect();
            prop_assert_eq!(ones(word).collect::<Vec<_>>(), expected);
        }

        #[test]
        fn a_run_may_begin_in_the_word_before(before in runs(), word in runs()) {
            let is_on = |bit: usize| {
                if bit < WORD { is_set(before, bit) } else { is_set(word, bit - WORD) }
            };
            let run = |length: usize| -> Vec<usize> {
                (0..WORD).filter(|bit| (0..length).all(|back| is_on(WORD + bit - back))).collect()
            };
            prop_assert_eq!(ones(nth_of_run::<4>(before, word)).collect::<Vec<_>>(), run(4));
            prop_assert_eq!(ones(nth_of_run::<6>(before, word)).collect::<Vec<_>>(), run(6));
        }

        #[test]
        fn bits_are_spread_into_the_word_before(word in runs()) {
            let [before, spread] = extended_back::<8>(word);
            let is_on = |bit: usize| {
                if bit < WORD { is_set(before, bit) } else { is_set(spread, bit - WORD) }
            };
            for bit in 0..2 * WORD {
                let later = (bit..bit + 8).filter(|bit| (WORD..2 * WORD).contains(bit));
                let expected = later.into_iter().any(|bit| is_set(word, bit - WORD));
                prop_assert_eq!(is_on(bit), expected, "{}", bit);
            }
        }

        #[test]
        fn a_mask_has_all_bits_from_its_first(first in 0_usize..200) {
            for bit in 0..192 {
                prop_assert_eq!(is_set(mask_from(first, bit / WORD), bit % WORD), bit >= first);
            }
        }
    }

    /// Generates words with long runs of ones.
    fn runs() -> impl Strategy<Value = u64> {
        prop_oneof![
            Just(0),
            Just(u64::MAX),
            any::<u64>(),
            (any::<u64>(), any::<u64>()).prop_map(|(a, b)| a | b | a << 1)
        ]
    }
}
