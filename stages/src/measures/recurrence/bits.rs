//! Sets of tokens as bits, 64 to a word: what holds of few tokens is found without looking at the others.

/// Bits of a word.
pub(super) const WORD: usize = 64;

/// The bits of 64 bytes that are 0 or 1.
pub(super) fn of(bytes: &[u8; WORD]) -> u64 {
    // The product gathers the lowest bits of eight bytes in its highest byte.
    let gathered =
        |eight: &[u8; 8]| u64::from_le_bytes(*eight).wrapping_mul(0x0102_0408_1020_4080) >> 56;
    bytes.as_chunks().0.iter().rev().map(gathered).fold(0, |word, eight| word << 8 | eight)
}

/// The bits of `word` that are set together with the five before them; `before` is the word before.
pub(super) fn sixth_of_run(before: u64, word: u64) -> u64 {
    let both = u128::from(word) << WORD | u128::from(before);
    let two = both & both << 1;
    let four = two & two << 2;
    ((four & two << 4) >> WORD) as u64
}

/// Places of the bits that are set, ascending.
pub(super) fn ones(mut word: u64) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let lowest = (word != 0).then(|| word.trailing_zeros() as usize);
        word &= word.wrapping_sub(1);
        lowest
    })
}

/// Whether a bit is set.
pub(super) fn is_set(word: u64, bit: usize) -> bool {
    word >> bit & 1 != 0
}

/// Sets a bit of many words.
pub(super) fn set(words: &mut [u64], bit: usize) {
    words[bit / WORD] |= 1 << (bit % WORD);
}

/// The bits of a word from `first` of all words on.
pub(super) fn from(first: usize, word: usize) -> u64 {
    let skipped = first.saturating_sub(word * WORD);
    if skipped < WORD { u64::MAX << skipped } else { 0 }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_word_has_the_bits_of_its_bytes(word: u64) {
            let bytes: Vec<u8> = (0..WORD).map(|bit| u8::from(is_set(word, bit))).collect();
            prop_assert_eq!(of(bytes.first_chunk().unwrap()), word);
            let expected: Vec<usize> = (0..WORD).filter(|bit| bytes[*bit] == 1).collect();
            let mut words = [0; 3];
            for bit in &expected {
                set(&mut words, WORD + bit);
            }
            prop_assert_eq!(words, [0, word, 0]);
            prop_assert_eq!(ones(word).collect::<Vec<_>>(), expected);
        }

        #[test]
        fn a_run_may_begin_in_the_word_before(before in runs(), word in runs()) {
            let is_on = |bit: usize| {
                if bit < WORD { is_set(before, bit) } else { is_set(word, bit - WORD) }
            };
            let expected: Vec<usize> =
                (0..WORD).filter(|bit| (0..6).all(|back| is_on(WORD + bit - back))).collect();
            prop_assert_eq!(ones(sixth_of_run(before, word)).collect::<Vec<_>>(), expected);
        }

        #[test]
        fn from_a_bit_on_are_all_that_follow(first in 0_usize..200) {
            for bit in 0..192 {
                prop_assert_eq!(is_set(from(first, bit / WORD), bit % WORD), bit >= first);
            }
        }
    }

    /// Words with long runs of ones.
    fn runs() -> impl Strategy<Value = u64> {
        prop_oneof![
            Just(0),
            Just(u64::MAX),
            any::<u64>(),
            (any::<u64>(), any::<u64>()).prop_map(|(a, b)| a | b | a << 1)
        ]
    }
}
