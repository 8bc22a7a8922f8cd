//! Patterns of pre-tokenizers as finite automata: linear time, and no stack that a long text could overflow. Supported are
//! regular ones and those that end in `|\s+(?!\S)|\s+`, the only look-ahead that published tokenizers use; the
//! backtracking engine runs the others.

use std::ops::Range;

use regex_automata::meta;
use regex_automata::util::syntax;
use regex_automata::{Anchored, Input, PatternID};

/// Look-ahead of the tokenizers since GPT-2: a run of blanks before a word leaves its last blank to the word.
const BLANKS: &str = r"|\s+(?!\S)|\s+";

/// Finds the matches of a pre-tokenizer's pattern.
#[derive(Debug)]
pub(super) enum Matcher {
    Regular(meta::Regex),
    /// The pattern before [`BLANKS`] as pattern 0, and `\s+` as pattern 1.
    WithBlanks(meta::Regex),
    /// Numeric characters, one by one or in runs.
    Numbers {
        /// Whether they are matched in runs.
        runs: bool,
    },
}

impl Matcher {
    /// Builds the automaton of a pattern; `None` if its matches might differ from those of the backtracking engine,
    /// or could be empty (a search would then depend on more than its start).
    pub(super) fn new(pattern: &str) -> Option<Self> {
        let body = pattern.strip_suffix(BLANKS);
        let regular = body.unwrap_or(pattern);
        // A flag without a group, `(?x)`, would extend to the look-ahead.
        let mut groups = regular.match_indices("(?").map(|(at, _)| &regular[at + 2..]);
        if has_possessive_quantifier(regular)
            || !groups.all(|rest| rest.starts_with(':') || rest.starts_with("i:"))
        {
            return None;
        }
        let form = syntax::parse(regular).ok()?;
        let form = form.properties();
        if form.minimum_len().is_none_or(|length| length == 0) || !form.look_set().is_empty() {
            return None;
        }
        match body {
            Some(body) => Some(Self::WithBlanks(meta::Regex::new_many(&[body, r"\s+"]).ok()?)),
            None => Some(Self::Regular(meta::Regex::new(regular).ok()?)),
        }
    }

    /// Returns whether matches cover all or almost all text: a search from any position ends soon.
    pub(super) fn is_dense(&self) -> bool {
        matches!(self, Self::WithBlanks(_))
    }

    /// Returns the first match at or after byte `at` of `text`. It depends on nothing else.
    pub(super) fn find(&self, text: &str, at: usize) -> Option<Range<usize>> {
        let search = |regex: &meta::Regex, anchored| {
            regex.search(&Input::new(text).range(at..).anchored(anchored))
        };
        match self {
            Self::Regular(regex) => search(regex, Anchored::No).map(|found| found.range()),
            Self::WithBlanks(regex) => {
                let found = search(regex, Anchored::Yes).or_else(|| search(regex, Anchored::No))?;
                let blanks = found.pattern() == PatternID::must(1);
                Some(if blanks { blanks_before_word(text, found.range()) } else { found.range() })
            }
            Self::Numbers { runs } => find_number(text, at, *runs),
        }
    }
}

/// Returns whether a quantifier is followed by `+`: `regex-syntax` would parse it as a repeated repetition.
fn has_possessive_quantifier(pattern: &str) -> bool {
    let (mut letters, mut class_depth, mut is_quantifier) = (pattern.chars(), 0_u32, false);
    while let Some(letter) = letters.next() {
        let was_quantifier = std::mem::take(&mut is_quantifier);
        match letter {
            '\\' => {
                let may_have_name = matches!(letters.next(), Some('p' | 'P' | 'x' | 'u'));
                if may_have_name && letters.as_str().starts_with('{') {
                    letters.find(|letter| *letter == '}');
                }
            }
            '[' => class_depth += 1,
            ']' => class_depth = class_depth.saturating_sub(1),
            '+' if class_depth == 0 && was_quantifier => return true,
            '+' | '*' | '?' | '}' => is_quantifier = class_depth == 0,
            _ => {}
        }
    }
    false
}

/// Returns the match of `\s+(?!\S)|\s+` in a maximal run of blanks.
fn blanks_before_word(text: &str, run: Range<usize>) -> Range<usize> {
    let last = text[run.clone()].char_indices().next_back().map_or(0, |(last, _)| last);
    if run.end == text.len() || last == 0 { run } else { run.start..run.start + last }
}

fn find_number(text: &str, at: usize, runs: bool) -> Option<Range<usize>> {
    let start = at + text[at..].find(char::is_numeric)?;
    let rest = &text[start..];
    let length = if runs {
        rest.find(|letter: char| !letter.is_numeric()).unwrap_or(rest.len())
    } else {
        rest.chars().next().map_or(0, char::len_utf8)
    };
    Some(start..start + length)
}

#[cfg(test)]
mod tests {
    use fancy_regex::Regex;
    use proptest::prelude::*;

    use super::*;

    /// Patterns of published tokenizers: GPT-2, Qwen2.5, Llama 3, `o200k`, `DeepSeek` (V3 and Coder), Bloom, Kimi.
    const PUBLISHED: [&str; 11] = [
        r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
        "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\r\n]*|\\s*[\r\n]+|\\s+(?!\\S)|\\s+",
        r"\p{N}{1,3}",
        "[\r\n]",
        r"\s?\p{L}+",
        r"\s?\p{P}+",
        r" ?[^(\s|[.,!?…。，、।۔،])]+",
        r"[\p{Han}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Ll}&&[^\p{Han}]]+|\p{N}{1,3}|\s+(?!\S)|\s+",
    ];

    fn all(pattern: &str, text: &str) -> Vec<Range<usize>> {
        let matcher = Matcher::new(pattern).unwrap();
        let (mut found, mut at) = (Vec::new(), 0);
        while let Some(range) = matcher.find(text, at) {
            at = range.end;
            found.push(range);
        }
        found
    }

    #[test]
    fn unsupported_patterns_have_no_automaton() {
        for pattern in [
            r"\p{N}{1,3}(?=(?:\p{N}{3})*\b)",
            r"\s+(?!\S)",
            r"a|\s+(?!\S)|\s+|b",
            r"(?x) a # |\s+(?!\S)|\s+",
            r"\p{L}++|\s+(?!\S)|\s+",
            r"[a*+]\p{N}{1,3}+",
            r"[\]\[]?+a",
            r"(?<!a)b",
            r"(a)\1",
            r"a*",
            r"|a",
            r"\bword",
            r"^a",
        ] {
            assert!(Matcher::new(pattern).is_none(), "{pattern}");
        }
    }

    #[test]
    fn a_million_blanks_are_cut_as_written() {
        let blanks = " ".repeat(1_200_000);
        let expected = [0..5, 5..1_200_004, 1_200_004..1_200_010];
        assert_eq!(all(PUBLISHED[1], &format!("hello{blanks}world")), expected);
        assert_eq!(all(PUBLISHED[0], &blanks)[0], 0..1_200_000);
    }

    proptest! {
        #[test]
        fn matches_equal_the_backtracking_engine(
            text in "(\\PC|[ \u{a0}\u{3000}\t\r\n'sSſtTlLK\u{212a}dm1２½.,!(|)*/_中あ가e\u{301}\u{200d}\u{1f999}\u{130}]| {1,9}|\r\n|\n{1,4}|[a-zA-Z]{1,5})*"
        ) {
            for pattern in PUBLISHED {
                let expected: Vec<_> = Regex::new(pattern)
                    .unwrap()
                    .find_iter(&text)
                    .map(|found| found.unwrap().range())
                    .collect();
                prop_assert_eq!(all(pattern, &text), expected, "{}", pattern);
            }
        }
    }
}
