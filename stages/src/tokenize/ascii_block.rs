//! Starts of the pieces of 64 ASCII bytes at once, by operations on masks: those that do not depend on bytes after the block,
//! or after its first byte that is not ASCII.

/// Bytes of a block.
pub(super) const BLOCK: usize = 64;

/// Known bytes of a block that starts with a piece, by class: a bit for each byte, the lowest for the first.
pub(super) struct AsciiBlock<'a> {
    bytes: &'a [u8; BLOCK],
    /// Bytes before the first that is not ASCII or not in the text.
    known: u64,
    letters: u64,
    numbers: u64,
    blanks: u64,
    spaces: u64,
    line_ends: u64,
    /// Known bytes in none of the classes above.
    others: u64,
}

/// Differences between pre-tokenizers like that of `cl100k`.
pub(super) struct WordRules {
    /// Maximum digits of a piece.
    pub(super) digits: u8,
    /// Whether `'s`, `'re` and the like are pieces.
    pub(super) contractions: bool,
    /// Whether numbers are cut off first, so that the blanks before them are one piece.
    pub(super) numbers_first: bool,
}

impl<'a> AsciiBlock<'a> {
    /// Classifies the first `length` bytes.
    #[inline]
    pub(super) fn new(bytes: &'a [u8; BLOCK], length: usize) -> Self {
        let missing = bits_from(length as u32);
        let unknown = in_ranges(bytes, [(0x80, 0xFF)]) | missing;
        let known = bits_below_lowest(unknown);
        let letters = known & in_ranges(bytes, [(b'A', b'Z'), (b'a', b'z')]);
        let numbers = known & in_ranges(bytes, [(b'0', b'9')]);
        let spaces = known & in_ranges(bytes, [(b' ', b' ')]);
        let blanks = spaces | known & in_ranges(bytes, [(b'\t', b'\r')]);
        let line_ends = known & in_ranges(bytes, [(b'\n', b'\n'), (b'\r', b'\r')]);
        let others = known & !(letters | numbers | blanks);
        Self { bytes, known, letters, numbers, blanks, spaces, line_ends, others }
    }

    /// Returns the bytes of a class that do not follow one.
    fn run_starts(class: u64) -> u64 {
        class & !(class << 1)
    }

    /// Returns the starts of the pieces of GPT-2's pattern.
    #[inline]
    pub(super) fn gpt2(&self) -> u64 {
        let words = [self.letters, self.numbers, self.others]
            .into_iter()
            .fold(0, |words, class| words | Self::run_starts(class));
        // The last blank before a word leads it, if it is a space; otherwise it is a piece.
        let last_blanks = self.blanks & ((self.known & !self.blanks) >> 1);
        let mut starts = words & !(self.spaces << 1) | Self::run_starts(self.blanks) | last_blanks;
        for at in self.apostrophes(starts) {
            match self.contraction(at, false) {
                Contraction::None => {}
                Contraction::Unknown => starts &= !(1 << (at + 1)),
                Contraction::Ends(end) => {
                    starts = starts & !(1 << (at + 1)) | self.letters & bit_at(end);
                }
            }
        }
        starts
    }

    /// Returns the starts of the pieces of a pattern like that of `cl100k`.
    #[inline]
    pub(super) fn words(&self, rules: &WordRules) -> u64 {
        let others = Self::run_starts(self.others) & !(self.spaces << 1);
        // One character before letters leads them, unless a space leads it.
        let leads = others & (self.letters >> 1);
        let leading_blanks = self.blanks & !self.line_ends;
        let letters = Self::run_starts(self.letters) & !((leading_blanks | leads) << 1);
        let mut numbers = self.numbers;
        if rules.digits == 3 {
            numbers = Self::run_starts(self.numbers);
            let after_three = self.numbers & self.numbers << 1 & self.numbers << 2;
            let mut next = numbers << 3 & after_three;
            while next != 0 {
                numbers |= next;
                next = next << 3 & after_three;
            }
        }
        // Line ends after other characters belong to them. A sum clears each run of line ends from its seed on.
        let seeds = self.line_ends & self.others << 1;
        let trailing = self.line_ends & !self.line_ends.wrapping_add(seeds);
        let blanks = self.blanks & !trailing;
        let after_line = blanks & !self.line_ends;
        let followers = self.known & !self.blanks;
        let words = if rules.numbers_first { followers & !self.numbers } else { followers };
        let last_blanks = after_line & words >> 1;
        let mut starts = letters | numbers | others | Self::run_starts(blanks) | last_blanks;
        // Blanks up to the last line end of a run are a piece; those after it begin another one.
        let mut indents = Self::run_starts(after_line) & self.line_ends << 1 & !last_blanks;
        while indents != 0 {
            let start = indents & indents.wrapping_neg();
            let end = after_line.wrapping_add(start) & !after_line;
            if end & followers != 0 {
                starts |= start;
            }
            indents ^= start;
        }
        if rules.contractions {
            for at in self.apostrophes(starts) {
                if let Contraction::Ends(end) = self.contraction(at, true) {
                    starts |= self.letters & bit_at(end);
                }
            }
        }
        starts
    }

    /// Returns the starts of the pieces of `DeepSeek` Coder's patterns.
    #[inline]
    pub(super) fn deepseek_coder(&self) -> u64 {
        let symbols = in_ranges(
            self.bytes,
            [
                (b'$', b'$'),
                (b'+', b'+'),
                (b'<', b'>'),
                (b'^', b'^'),
                (b'`', b'`'),
                (b'|', b'|'),
                (b'~', b'~'),
            ],
        );
        let punctuation = self.others & !symbols & !self.controls();
        let leads = self.blanks & !self.line_ends & (self.letters | punctuation) >> 1;
        let words = Self::run_starts(self.letters) | Self::run_starts(punctuation);
        let single = self.line_ends | self.numbers;
        let gaps = self.known & !(self.letters | punctuation | single | leads);
        (leads | words & !(leads << 1) | single | Self::run_starts(gaps)) & self.known
    }

    /// Returns the starts of the pieces of the pattern of `o200k`.
    #[inline]
    pub(super) fn o200k(self) -> u64 {
        // A slash after line ends belongs to them.
        let slashes = self.line_ends << 1 & in_ranges(self.bytes, [(b'/', b'/')]);
        let block = self.cut_at(slashes);
        let rules = WordRules { digits: 3, contractions: false, numbers_first: false };
        let upper = block.letters & in_ranges(block.bytes, [(b'A', b'Z')]);
        let lower = block.letters & !upper;
        let mut starts = block.words(&rules) | upper & lower << 1;
        // Contractions belong to the word before.
        let mut after_contraction = 0;
        for at in block.apostrophes(block.letters << 1) {
            if at == after_contraction {
                continue;
            }
            match block.contraction(at, true) {
                Contraction::None => {}
                Contraction::Unknown => return starts & ((1 << at) - 1),
                Contraction::Ends(end) => {
                    let word = bits_from(end);
                    starts &= word | ((1 << at) - 1);
                    starts |= block.letters & bit_at(end);
                    after_contraction = end;
                }
            }
        }
        // A character after the last letters may begin a contraction, so its start is not known.
        starts & !(block.known & !(block.known >> 1) & block.letters << 1 & block.others)
    }

    /// Returns the block up to the first of some bytes.
    #[inline]
    fn cut_at(mut self, unknown: u64) -> Self {
        let known = bits_below_lowest(unknown);
        for class in [
            &mut self.known,
            &mut self.letters,
            &mut self.numbers,
            &mut self.blanks,
            &mut self.spaces,
            &mut self.line_ends,
            &mut self.others,
        ] {
            *class &= known;
        }
        self
    }

    /// Returns the block up to its first control character that is not a blank.
    #[inline]
    pub(super) fn cut_at_controls(self) -> Self {
        let controls = self.controls();
        self.cut_at(controls)
    }

    fn controls(&self) -> u64 {
        self.others & in_ranges(self.bytes, [(0, 0x1F), (0x7F, 0x7F)])
    }

    /// Returns the positions in `starts` of apostrophes before a letter.
    fn apostrophes(&self, starts: u64) -> impl Iterator<Item = u32> + use<> {
        let mut left = starts & self.others & self.letters >> 1;
        if left != 0 {
            left &= in_ranges(self.bytes, [(b'\'', b'\'')]);
        }
        std::iter::from_fn(move || {
            let at = left.trailing_zeros();
            left &= left.wrapping_sub(1);
            (at < u64::BITS).then_some(at)
        })
    }

    /// Finds `'s|'t|'re|'ve|'m|'ll|'d` at an apostrophe before a letter.
    fn contraction(&self, apostrophe: u32, any_case: bool) -> Contraction {
        let letter = |at: u32| {
            let byte = self.bytes[at as usize];
            if any_case { byte.to_ascii_lowercase() } else { byte }
        };
        let second = match letter(apostrophe + 1) {
            b's' | b't' | b'm' | b'd' => return Contraction::Ends(apostrophe + 2),
            b'r' | b'v' => b'e',
            b'l' => b'l',
            _ => return Contraction::None,
        };
        let at = apostrophe + 2;
        if self.known & bit_at(at) == 0 {
            return Contraction::Unknown;
        }
        if letter(at) == second { Contraction::Ends(at + 1) } else { Contraction::None }
    }
}

enum Contraction {
    None,
    /// The known bytes end before its second letter.
    Unknown,
    /// Position after it.
    Ends(u32),
}

/// Returns a bit; none from position 64 on.
fn bit_at(at: u32) -> u64 {
    1_u64.checked_shl(at).unwrap_or(0)
}

/// Returns the bits from a position on.
fn bits_from(at: u32) -> u64 {
    u64::MAX.checked_shl(at).unwrap_or(0)
}

/// Returns the bits below the lowest set bit; all if none is set.
fn bits_below_lowest(bits: u64) -> u64 {
    bits.wrapping_sub(1) & !bits
}

/// Returns the bytes in any of the ranges, which include both ends.
#[inline]
fn in_ranges<const N: usize>(bytes: &[u8; BLOCK], ranges: [(u8, u8); N]) -> u64 {
    /// Gathers the lowest bits of eight bytes in the highest byte.
    const GATHER: u64 = 0x0102_0408_1020_4080;
    // The comparisons are vector instructions on every processor.
    let is_in = bytes.map(|byte| {
        ranges
            .iter()
            .fold(0, |any, (first, last)| any | u8::from(byte.wrapping_sub(*first) <= last - first))
    });
    let eights: [[u8; 8]; BLOCK / 8] = bytemuck::cast(is_in);
    eights
        .into_iter()
        .rev()
        .fold(0, |mask, eight| mask << 8 | u64::from_le_bytes(eight).wrapping_mul(GATHER) >> 56)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::classes::CLASSES;
    use super::super::scan::{Cl100k, DeepSeekCoder, DeepSeekV3, Gpt2, O200k, Scan};
    use super::*;

    /// Compares the starts of each block that begins with a part with the ends of single parts.
    fn check(name: &str, scanner: &impl Scan, text: &str) {
        let mut ends = vec![0];
        while ends[ends.len() - 1] < text.len() {
            ends.push(scanner.end(&CLASSES, text.as_bytes(), ends[ends.len() - 1]));
        }
        for (part, at) in ends.iter().enumerate() {
            let mut bytes = [b'x'; BLOCK];
            let rest = &text.as_bytes()[*at..];
            let length = rest.len().min(BLOCK);
            bytes[..length].copy_from_slice(&rest[..length]);
            let starts = scanner.starts(&bytes, length) & !1;
            let starts: Vec<usize> =
                (0..BLOCK).filter(|bit| starts >> bit & 1 != 0).map(|bit| at + bit).collect();
            let expected = &ends[part + 1..];
            assert_eq!(
                starts,
                expected[..starts.len().min(expected.len())],
                "{name}, from {at} of {text:?}"
            );
        }
    }

    #[test]
    fn all_pieces_of_a_block_are_found() {
        let block: &[u8; BLOCK] =
            b"It's (really) 7 o'clock;\n  two  FooBars\tcost $3.50 each, don't!!";
        let found = |scanner: &dyn Scan| {
            let mut ends = vec![0];
            while ends[ends.len() - 1] < BLOCK {
                ends.push(scanner.end(&CLASSES, block, ends[ends.len() - 1]));
            }
            (scanner.starts(block, BLOCK).count_ones() as usize, ends.len() - 1)
        };
        let scanners: [&dyn Scan; 6] = [
            &Gpt2,
            &Cl100k { digits: 1 },
            &Cl100k { digits: 3 },
            &O200k,
            &DeepSeekCoder,
            &DeepSeekV3,
        ];
        for (number, scanner) in scanners.into_iter().enumerate() {
            let (starts, pieces) = found(scanner);
            assert_eq!(starts, pieces, "scanner {number}");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(4000))]
        #[test]
        fn starts_match_the_ends_of_single_parts(
            text in "( {1,3}|[a-z]{1,9}|[A-Z]{1,2}|[0-9]{1,7}|'(s|t|re|ve|m|ll|d|S|LL|rE)?|[.,/(+$_`]{1,3}|[\r\n]{1,3}|\t|\x0b|\x01|\x7f|\u{e9}|\u{17f}){0,90}"
        ) {
            check("gpt2", &Gpt2, &text);
            check("cl100k, one digit", &Cl100k { digits: 1 }, &text);
            check("cl100k, three digits", &Cl100k { digits: 3 }, &text);
            check("o200k", &O200k, &text);
            check("deepseek coder", &DeepSeekCoder, &text);
            check("deepseek v3", &DeepSeekV3, &text);
        }
    }
}
