//! Dialect of a tokenizer's patterns. Hugging Face's package compiles them with Oniguruma in Ruby's syntax, this crate with
//! `fancy-regex`.

/// Categories of Unicode, with the same names in both dialects.
const CATEGORIES: &str = "L Lu Ll Lt Lm Lo M Mn Mc Me N Nd Nl No P Pc Pd Ps Pe Pi Pf Po S Sm Sc Sk So Z Zs Zl Zp C Cc Cf Co Cn";
/// Scripts of Unicode that both dialects know, and that published tokenizers use or may use.
const SCRIPTS: &str = "Arabic Armenian Bengali Bopomofo Cherokee Cyrillic Devanagari Ethiopic Georgian Greek Gujarati Gurmukhi Han Hangul Hebrew Hiragana Kannada Katakana Khmer Lao Latin Malayalam Mongolian Myanmar Oriya Sinhala Tamil Telugu Thai Tibetan";
/// Pairs of letters that Oniguruma also finds as one character when it ignores case, such as `ß` and `ﬁ`.
const FOLDED_PAIRS: [&str; 5] = ["ss", "ff", "fi", "fl", "st"];
/// `^` of Ruby: the start of the text or of a line that is not empty because the text ends.
const LINE_START: &str = r"(?:\A|(?<=\n)(?!\z))";
/// `$` of Ruby: before the end of the text or of a line.
const LINE_END: &str = r"(?=\n|\z)";

/// Pattern for `fancy-regex`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Translation {
    pub(super) pattern: String,
    /// First construct that the two engines may match differently.
    pub(super) differs: Option<String>,
}

/// Translates a pattern of Oniguruma, the regular expressions of Ruby (kkos/oniguruma, `doc/RE` and `doc/SYNTAX.md`).
/// Constructs without a known equivalent stay and are named.
pub(super) fn translate(pattern: &str) -> Translation {
    let mut translator = Translator {
        rest: pattern,
        translation: Translation { pattern: String::new(), differs: None },
        groups: Vec::new(),
        ignores_case: false,
        atom: None,
        letter: None,
    };
    while !translator.rest.is_empty() {
        translator.step();
    }
    translator.translation
}

struct Translator<'a> {
    rest: &'a str,
    translation: Translation,
    /// Open groups: where each begins, and whether case is ignored outside.
    groups: Vec<(usize, bool)>,
    ignores_case: bool,
    /// Start of the expression that a quantifier repeats.
    atom: Option<usize>,
    /// Literal before this position.
    letter: Option<char>,
}

impl Translator<'_> {
    /// Copies the next `length` bytes.
    fn copy(&mut self, length: usize) {
        let (copied, rest) = self.rest.split_at(length);
        self.translation.pattern.push_str(copied);
        self.rest = rest;
    }

    /// Copies the next `length` bytes, which the engines may match differently.
    fn copy_differing(&mut self, length: usize) {
        self.translation.differs.get_or_insert_with(|| self.rest[..length].to_owned());
        self.copy(length);
    }

    /// Replaces the next `length` bytes.
    fn replace(&mut self, length: usize, with: &str) {
        self.translation.pattern.push_str(with);
        self.rest = &self.rest[length..];
    }

    fn step(&mut self) {
        let start = self.translation.pattern.len();
        let Some(next) = self.rest.chars().next() else { return };
        match next {
            '(' => return self.open(),
            ')' => {
                self.copy(1);
                let (start, ignores_case) = self.groups.pop().unwrap_or((start, false));
                self.ignores_case = ignores_case;
                self.atom = Some(start);
                return;
            }
            '|' => {
                self.copy(1);
                (self.atom, self.letter) = (None, None);
                return;
            }
            '*' | '+' | '?' => return self.repeat(1),
            '{' => {
                let bounds = self.rest.find('}').map(|end| &self.rest[1..end]);
                return match bounds.and_then(interval) {
                    Some(is_fixed) => self.repeat_counted(is_fixed),
                    None => self.copy_differing(1),
                };
            }
            '^' | '$' => {
                self.replace(1, if next == '^' { LINE_START } else { LINE_END });
                (self.atom, self.letter) = (None, None);
                return;
            }
            '[' => self.class(),
            // Literals, but borders of words here.
            '\\' if self.rest.starts_with(r"\<") || self.rest.starts_with(r"\>") => {
                let literal = self.rest[1..2].to_owned();
                self.replace(2, &literal);
            }
            '\\' => self.escape(),
            '.' => {
                self.copy(1);
                self.letter = None;
            }
            _ if self.ignores_case => self.letter(next, next.len_utf8()),
            _ => self.copy(next.len_utf8()),
        }
        self.atom = Some(start);
    }

    /// Copies `length` bytes that stand for a literal whose case is ignored.
    fn letter(&mut self, literal: char, length: usize) {
        let lower = literal.to_ascii_lowercase();
        let pair = self.letter.map(|before| String::from_iter([before, lower]));
        if !literal.is_ascii() || pair.is_some_and(|pair| FOLDED_PAIRS.contains(&&*pair)) {
            self.copy_differing(length);
        } else {
            self.copy(length);
        }
        self.letter = Some(lower);
    }

    fn open(&mut self) {
        let start = self.translation.pattern.len();
        let outside = self.ignores_case;
        let known = ["(?:", "(?=", "(?!", "(?>", "(?<=", "(?<!"];
        if let Some(known) = known.iter().find(|known| self.rest.starts_with(**known)) {
            self.copy(known.len());
        } else if self.rest.starts_with("(?i:") {
            self.copy(4);
            self.ignores_case = true;
        } else if self.rest.starts_with("(?i)") && start == 0 {
            self.copy(4);
            self.ignores_case = true;
            return;
        } else if self.rest.starts_with("(?") {
            self.copy_differing(self.rest.chars().take(3).map(char::len_utf8).sum());
        } else {
            self.copy(1);
        }
        self.groups.push((start, outside));
        self.atom = None;
    }

    /// Copies a quantifier of `length` bytes with its suffix.
    fn repeat(&mut self, length: usize) {
        let length = length + usize::from(self.rest[length..].starts_with(['?', '+']));
        if self.atom.take().is_some() {
            self.copy(length);
        } else {
            self.copy_differing(length);
        }
    }

    /// Copies `{n}`, `{n,}` or `{n,m}`. In Ruby's syntax, a `+` after it and a `?` after `{n}` are quantifiers of their own.
    fn repeat_counted(&mut self, is_fixed: bool) {
        let length = self.rest.find('}').map_or(1, |end| end + 1);
        let after = &self.rest[length..];
        let has_quantifier = after.starts_with('+') || is_fixed && after.starts_with('?');
        if !has_quantifier {
            return self.repeat(length);
        }
        let Some(atom) = self.atom else { return self.copy_differing(length) };
        // Ruby sometimes ignores what follows.
        if self.rest.starts_with("{1}") {
            return self.copy_differing(length + 1);
        }
        self.translation.pattern.insert_str(atom, "(?:");
        self.copy(length);
        self.translation.pattern.push(')');
    }

    /// Copies a class of characters with the classes inside it.
    fn class(&mut self) {
        let mut open = 0;
        self.letter = None;
        while let Some(next) = self.rest.chars().next() {
            match next {
                '[' if self.rest.starts_with("[:") => {
                    let length = self.rest.find(":]").map_or(2, |end| end + 2);
                    self.copy_differing(length);
                    continue;
                }
                '[' => {
                    open += 1;
                    self.copy(1);
                    if self.rest.starts_with('^') {
                        if self.ignores_case { self.copy_differing(1) } else { self.copy(1) }
                    }
                    if self.rest.starts_with(']') {
                        self.copy_differing(1);
                    }
                    continue;
                }
                ']' => {
                    open -= 1;
                    self.copy(1);
                    if open == 0 {
                        self.letter = None;
                        return;
                    }
                    continue;
                }
                '\\' => {
                    self.escape();
                    continue;
                }
                _ => {}
            }
            if ["--", "~~"].iter().any(|operator| self.rest.starts_with(operator)) {
                self.copy_differing(2);
            } else if self.ignores_case && !next.is_ascii() {
                self.copy_differing(next.len_utf8());
            } else {
                self.copy(next.len_utf8());
            }
        }
    }

    fn escape(&mut self) {
        let mut letters = self.rest.chars().skip(1);
        let Some(kind) = letters.next() else { return self.copy_differing(1) };
        let length = 1 + kind.len_utf8();
        if kind != 'x' {
            self.letter = None;
        }
        match kind {
            'p' | 'P' => {
                let name =
                    self.rest[length..].strip_prefix('{').and_then(|rest| rest.split_once('}'));
                let Some((name, _)) = name else { return self.copy_differing(length) };
                let mut known = CATEGORIES.split(' ').chain(SCRIPTS.split(' '));
                let length = length + name.len() + 2;
                if !self.ignores_case && known.any(|known| known == name) {
                    self.copy(length);
                } else {
                    self.copy_differing(length);
                }
            }
            'x' => {
                let digits = &self.rest[length..];
                let code = digits.get(..2).and_then(|code| u8::from_str_radix(code, 16).ok());
                match (code, digits.strip_prefix('{').and_then(|digits| digits.find('}'))) {
                    (Some(code), _) if code.is_ascii() && self.ignores_case => {
                        self.letter(char::from(code), length + 2);
                    }
                    (Some(code), _) if code.is_ascii() => self.copy(length + 2),
                    (_, Some(digits)) if !self.ignores_case => self.copy(length + digits + 2),
                    _ => self.copy_differing(length),
                }
            }
            'u' => {
                let digits = self.rest.get(length..length + 4).unwrap_or_default();
                let is_code =
                    digits.len() == 4 && digits.bytes().all(|digit| digit.is_ascii_hexdigit());
                if is_code && !self.ignores_case {
                    self.copy(length + 4);
                } else {
                    self.copy_differing(length);
                }
            }
            'S' | 'D' if self.ignores_case => self.copy_differing(length),
            'r' | 'n' | 't' | 'f' | 'v' | 's' | 'S' | 'd' | 'D' | 'A' | 'z' => self.copy(length),
            _ if kind.is_ascii_punctuation() => self.copy(length),
            _ => self.copy_differing(length),
        }
    }
}

/// Whether the bounds of a quantifier, as `n`, `n,` or `n,m`, are one fixed number; `None` for other texts.
fn interval(bounds: &str) -> Option<bool> {
    let number = |text: &str| {
        let is_number = text.bytes().all(|byte| byte.is_ascii_digit());
        is_number.then(|| text.parse::<u32>().ok()).flatten()
    };
    match bounds.split_once(',') {
        None => number(bounds).map(|_| true),
        Some((least, "")) => number(least).map(|_| false),
        Some((least, most)) => (number(least)? <= number(most)?).then_some(false),
    }
}

#[cfg(test)]
mod tests {
    use fancy_regex::Regex;
    use tokenizers::{OffsetReferential, OffsetType, PreTokenizedString, SplitDelimiterBehavior};

    use super::super::patterns::{
        BYTE_LEVEL_PATTERN, DEEPSEEK_CODER, DEEPSEEK_V3, O200K, PreTokenizerStep, TokenizerSteps,
        cl100k,
    };
    use super::*;

    #[test]
    fn published_patterns_are_the_same_in_both_dialects() {
        let cl100k = ["{1,3}", "", "+"].map(cl100k);
        let patterns = cl100k.iter().map(String::as_str).chain([BYTE_LEVEL_PATTERN, O200K]);
        for pattern in patterns.chain(DEEPSEEK_CODER).chain(DEEPSEEK_V3) {
            let expected = Translation { pattern: pattern.to_owned(), differs: None };
            assert_eq!(translate(pattern), expected);
        }
    }

    /// Returns the pieces of a text that is cut at the matches.
    fn pieces(pattern: &str, text: &str) -> Vec<(usize, usize)> {
        let Translation { pattern, differs } = translate(pattern);
        assert_eq!(differs, None, "{pattern}");
        let cut = PreTokenizerStep::Pattern {
            regex: Regex::new(&pattern).unwrap(),
            behavior: SplitDelimiterBehavior::Isolated,
            invert: false,
        };
        let steps = TokenizerSteps { pre_tokenizer: vec![cut], ..TokenizerSteps::default() };
        let mut text = PreTokenizedString::from(text);
        steps.pre_tokenize(&mut text).unwrap();
        let pieces = text.get_splits(OffsetReferential::Original, OffsetType::Byte);
        pieces.into_iter().map(|(_, range, _)| range).collect()
    }

    /// Expects the pieces of Hugging Face's package, version 0.23.3.
    #[test]
    fn pieces_are_those_of_oniguruma() {
        for (pattern, text, expected) in [
            (r"\p{N}{1,3}+", "1111111 a", &[(0, 7), (7, 9)][..]),
            (r"\p{N}{3}?", "1111 a", &[(0, 3), (3, 4), (4, 5), (5, 6)]),
            (r"\p{N}{1,2}?", "111", &[(0, 1), (1, 2), (2, 3)]),
            (r"(?:ab){2}+", "ababababab", &[(0, 8), (8, 10)]),
            (r"(a|b){2}+", "abab a", &[(0, 4), (4, 6)]),
            (r"a{1,2}++a", "aaaa", &[(0, 4)]),
            (r"a{1,3}+?", "aaaaa", &[(0, 3), (3, 5)]),
            (r"a{2}??", "aaa", &[(0, 1), (1, 2), (2, 3)]),
            (r"[^\n]+$", "ab\ncd\n", &[(0, 2), (2, 3), (3, 5), (5, 6)]),
            (r"\s+$", "a \n b  ", &[(0, 1), (1, 2), (2, 5), (5, 7)]),
            (r"^\s+", " a\n b\n", &[(0, 1), (1, 3), (3, 4), (4, 6)]),
            (r"^\s*", "a\n\n b\n", &[(0, 2), (2, 4), (4, 6)]),
            (r"^a|b$", "ab\nab", &[(0, 1), (1, 2), (2, 3), (3, 4), (4, 5)]),
            ("$", "a\nb\n", &[(0, 1), (1, 3), (3, 4)]),
            (r"\<[^<>]*\>|[\<\>]", "a<b>c<", &[(0, 1), (1, 4), (4, 5), (5, 6)]),
            ("^", "a\nb\n", &[(0, 2), (2, 4)]),
            (r"[^a-c[x-z]]+", "abxyzq", &[(0, 5), (5, 6)]),
            (r"[\s\v]+|\f", "a\x0bb\x0cc", &[(0, 1), (1, 2), (2, 3), (3, 4), (4, 5)]),
            ("(?i:k)", "kK a", &[(0, 1), (1, 2), (2, 4)]),
            (r"[a-z&&[^b]c]+", "abcab", &[(0, 1), (1, 2), (2, 4), (4, 5)]),
            (r"[^a-z&&[^b]]+", "abcA1", &[(0, 1), (1, 2), (2, 3), (3, 5)]),
            (r"[a-c&&[b-d]&&[c-e]]", "abcd", &[(0, 2), (2, 3), (3, 4)]),
            (r"[\u0041-\u0043]+", "ABCD", &[(0, 3), (3, 4)]),
        ] {
            assert_eq!(pieces(pattern, text), expected, "{pattern}");
        }
    }

    #[test]
    fn differing_constructs_are_named() {
        for (pattern, construct) in [
            (r"\w+|\d", r"\w"),
            (r"a(?!\B)", r"\B"),
            (r"\\\\\b", r"\b"),
            ("[[:word:]]+", "[:word:]"),
            ("[^[:punct:]a]", "[:punct:]"),
            ("(?m:x.y)", "(?m"),
            ("a(?i)b|c", "(?i"),
            (r"(?i:\p{Lu})", r"\p{Lu}"),
            ("(?i:ss)", "s"),
            (r"(?i:s\x73)", r"\x73"),
            ("(?i:f(?:i))", "i"),
            (r"(?i:[\S]$)", r"\S"),
            ("(?:ab){1}?", "{1}?"),
            ("^+a", "+"),
            ("(?i:äb)", "ä"),
            (r"\p{Punct}", r"\p{Punct}"),
            (r"\h", r"\h"),
            (r"\xE4", r"\x"),
            ("[a-z--[b]]", "--"),
            ("a{,3}", "{"),
            ("a**", "*"),
        ] {
            assert_eq!(translate(pattern).differs.as_deref(), Some(construct), "{pattern}");
        }
    }
}
