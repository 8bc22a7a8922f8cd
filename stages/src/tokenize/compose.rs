//! Unicode's composed form (NFC), one short range at a time, between characters that composition never reaches across.
//! Almost all text is composed already; the crate composes a text as a whole, with sixteen bytes of alignment per byte.

use std::borrow::Cow;

use tokenizers::NormalizedString;
use tokenizers::normalizer::Range;
use unicode_normalization_alignments::char::canonical_combining_class;
use unicode_normalization_alignments::{IsNormalized, is_nfc_quick};

use super::problem::EncodeRefusal;

/// Composed text, and the mapping to its source.
#[derive(Debug)]
pub(super) struct Composed<'a> {
    pub(super) text: Cow<'a, str>,
    /// Positions where the two texts diverge and where they agree again, ascending.
    marks: Vec<OffsetMark>,
}

/// End of a changed character.
#[derive(Debug)]
struct OffsetMark {
    end: usize,
    /// End, in the original, of a token that ends here.
    source_end: usize,
    /// Start of the following text in the original.
    source_next: usize,
}

impl<'a> Composed<'a> {
    pub(super) fn unchanged(text: &'a str) -> Self {
        Self { text: Cow::Borrowed(text), marks: Vec::new() }
    }

    /// Composes `source`. Memory: a copy if anything changes, and twenty-four bytes for each changed character. Fails if a range
    /// that must be composed at once has more than `largest` bytes.
    pub(super) fn new(source: &'a str, largest: usize) -> Result<Self, EncodeRefusal> {
        let (mut text, mut marks) = (String::new(), Vec::new());
        let mut copied = 0;
        for range in (UncomposedRanges { source, at: 0 }) {
            if is_nfc_quick(source[range.clone()].chars()) == IsNormalized::Yes {
                continue;
            }
            if range.len() > largest {
                return Err(EncodeRefusal::TooLarge(range.len()));
            }
            let mut composed = NormalizedString::from(&source[range.clone()]);
            composed.nfc();
            text.push_str(&source[copied..range.start]);
            copied = range.end;
            let (before, source_next) = (text.len(), range.end);
            marks.push(OffsetMark {
                end: before,
                source_end: range.start,
                source_next: range.start,
            });
            for (start, letter) in composed.get().char_indices() {
                let letter = start..start + letter.len_utf8();
                let end = before + letter.end;
                let from = composed.convert_offsets(Range::Normalized(letter));
                let source_end = range.start + from.map_or(0, |from| from.end);
                marks.push(OffsetMark { end, source_end, source_next });
            }
            text.push_str(composed.get());
        }
        if marks.is_empty() {
            return Ok(Self::unchanged(source));
        }
        text.push_str(&source[copied..]);
        Ok(Self { text: Cow::Owned(text), marks })
    }

    pub(super) fn changed(&self) -> bool {
        !self.marks.is_empty()
    }

    /// Maps the end of a token, byte `end` of the composed text and the end of a character, to the original.
    pub(super) fn source_end(&self, end: usize) -> usize {
        let passed = self.marks.partition_point(|mark| mark.end <= end);
        match passed.checked_sub(1).map(|last| &self.marks[last]) {
            None => end,
            Some(mark) if mark.end == end => mark.source_end,
            Some(mark) => mark.source_next + (end - mark.end),
        }
    }
}

/// Ranges of a text that composition might change, each between two boundaries that it never reaches across.
struct UncomposedRanges<'a> {
    source: &'a str,
    at: usize,
}

impl Iterator for UncomposedRanges<'_> {
    type Item = std::ops::Range<usize>;

    fn next(&mut self) -> Option<Self::Item> {
        let mut start = self.at;
        let mut letters;
        loop {
            let near = first_beyond_latin(&self.source.as_bytes()[self.at..])?;
            if near > 0 {
                start = self.source.floor_char_boundary(self.at + near - 1);
            }
            self.at += near;
            letters = self.source[self.at..].char_indices();
            let (_, letter) = letters.next()?;
            if !is_boundary_before(letter) {
                break;
            }
            start = self.at;
            self.at += letter.len_utf8();
        }
        let end = letters.find(|(_, letter)| is_boundary_before(*letter));
        let end = end.map_or(self.source.len(), |(at, _)| self.at + at);
        self.at = end;
        Some(start..end)
    }
}

/// Returns the position of the first character from U+0300 on: every character below is a boundary.
fn first_beyond_latin(text: &[u8]) -> Option<usize> {
    // Characters below U+0300 start with bytes below 0xCC and continue with bytes below 0xC0.
    const BLOCK: usize = 32;
    let is_beyond = |byte: &u8| *byte >= 0xCC;
    let skipped = text
        .chunks_exact(BLOCK)
        .take_while(|block| !block.iter().fold(false, |any, byte| any | is_beyond(byte)));
    let skipped = skipped.count() * BLOCK;
    text[skipped..].iter().position(is_beyond).map(|at| skipped + at)
}

/// Returns whether nothing before `letter` can compose or be reordered with it or with the text after it: a starter
/// that the composed form always allows (Unicode Standard Annex 15, section 9).
fn is_boundary_before(letter: char) -> bool {
    // No mark is below U+0300, and no character of the CJK block composes with one before it.
    matches!(letter, '\0'..='\u{2ff}' | '\u{4e00}'..='\u{9fff}')
        || canonical_combining_class(letter) == 0
            && is_nfc_quick(std::iter::once(letter)) == IsNormalized::Yes
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use unicode_normalization_alignments::UnicodeNormalization;

    use super::*;

    fn letters() -> impl Iterator<Item = char> {
        ('\0'..=char::MAX).filter(|letter| !letter.is_ascii())
    }

    #[test]
    fn composition_does_not_cross_boundaries() {
        // Two characters compose only if the pair is the decomposition of a character. So no boundary may be inside a
        // decomposition, and the decomposition of a boundary must begin with a boundary.
        for letter in letters() {
            let parts: Vec<char> = std::iter::once(letter).nfd().map(|(part, _)| part).collect();
            let inside = parts[1..].iter().any(|part| is_boundary_before(*part));
            // A decomposition that is never composed (U+2126) cannot reach across.
            assert!(!inside || !parts.iter().copied().nfc().map(|part| part.0).eq([letter]));
            if is_boundary_before(letter) {
                assert_eq!(canonical_combining_class(parts[0]), 0, "{letter:?}");
                assert!(is_boundary_before(parts[0]), "{letter:?}");
                assert!([letter].into_iter().nfc().map(|part| part.0).eq([letter]), "{letter:?}");
            }
        }
    }

    #[test]
    fn too_many_marks_in_a_row_are_rejected() {
        let text = format!("a e{}", "\u{301}".repeat(50));
        assert!(Composed::new(&text, 101).is_ok());
        assert!(matches!(Composed::new(&text, 100), Err(EncodeRefusal::TooLarge(101))));
        assert!(Composed::new(&"é".repeat(500), 100).is_ok());
    }

    proptest! {
        #[test]
        fn ranges_compose_like_the_whole(
            text in "([ aeoAs\u{300}\u{301}\u{323}\u{307}\u{31b}\u{344}\u{340}\u{f73}\u{1100}\u{1161}\u{11a8}\u{ac00}\u{ac01}\u{e9}\u{1e9b}\u{2126}\u{212b}\u{915}\u{93c}\u{958}\u{9c7}\u{9be}\u{2adc}\u{fb1d}\u{1d15e}\u{304b}\u{3099}]|\\PC)*"
        ) {
            let mut whole = NormalizedString::from(text.as_str());
            whole.nfc();
            let composed = Composed::new(&text, usize::MAX).unwrap();
            prop_assert_eq!(&*composed.text, whole.get());
            for (start, letter) in whole.get().char_indices() {
                let end = start + letter.len_utf8();
                let from = whole.convert_offsets(Range::Normalized(start..end)).unwrap();
                prop_assert_eq!(composed.source_end(end), from.end, "{:?} at {}", letter, end);
            }
        }
    }
}
