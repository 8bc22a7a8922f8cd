//! Regular expressions of a tokenizer, run so that a failing engine is an error. The `tokenizers` crate ends its search at
//! the first error of `fancy-regex` ("max stack size exceeded" on a million blanks) and treats the rest as one piece:
//! silently other ids than in training. This module runs the crate's steps in the same order, but matches patterns itself.

use std::sync::OnceLock;

use fancy_regex::Regex;
use tokenizers::normalizers::NormalizerWrapper;
use tokenizers::pattern::{Invert, Pattern};
use tokenizers::pre_tokenizers::PreTokenizerWrapper;
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::pre_tokenizers::split::SplitPattern;
use tokenizers::{
    NormalizedString, Normalizer, Offsets, PreTokenizedString, PreTokenizer, Result,
    SplitDelimiterBehavior, Tokenizer,
};

use super::budget;
use super::dialect::translate;
use super::problem::EncodeRefusal;

/// Pattern of `ByteLevel`, which the crate keeps private (`openai/gpt-2`, `src/encoder.py`, line 53).
pub(super) const BYTE_LEVEL_PATTERN: &str =
    r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";

/// Pattern of the tokenizers since cl100k. `digits`: the repetition of `\p{N}`.
pub(super) fn cl100k(digits: &str) -> String {
    let before = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}";
    format!(r"{before}{digits}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
}

/// Pattern of `o200k`.
pub(super) const O200K: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";

/// Steps of `DeepSeek`'s pre-tokenizers.
pub(super) const DEEPSEEK_CODER: [&str; 4] =
    ["[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", "[一-龥ࠀ-一가-\u{d7ff}]+"];
pub(super) const DEEPSEEK_V3: [&str; 3] = [
    r"\p{N}{1,3}",
    "[一-龥\u{3040}-ゟ゠-ヿ]+",
    "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\r\n]*|\\s*[\r\n]+|\\s+(?!\\S)|\\s+",
];

/// Steps of a tokenizer around its model. Each step of the pre-tokenizer processes one piece of the previous step at a time.
#[derive(Clone, Debug, Default)]
pub(super) struct TokenizerSteps {
    pub(super) normalizer: Vec<NormalizerStep>,
    pub(super) pre_tokenizer: Vec<PreTokenizerStep>,
    /// First pattern that the engine of Hugging Face's package may match differently, and the construct in question.
    pub(super) differing: Option<(String, String)>,
}

#[derive(Clone, Debug)]
pub(super) enum NormalizerStep {
    /// Replaces the matches of a pattern.
    Replace { regex: Regex, content: String },
    /// Any other step, run by the crate.
    Crate(NormalizerWrapper),
}

#[derive(Clone, Debug)]
pub(super) enum PreTokenizerStep {
    /// Cuts at the matches of a pattern.
    Pattern {
        regex: Regex,
        /// Treatment of the matches.
        behavior: SplitDelimiterBehavior,
        /// Whether matches and gaps are swapped.
        invert: bool,
    },
    /// Puts a space before a piece that does not begin with one.
    PrefixSpace,
    /// Any other step, run by the crate.
    Crate(PreTokenizerWrapper),
}

impl TokenizerSteps {
    pub(super) fn new(tokenizer: &Tokenizer) -> Result<Self> {
        let mut steps = Self::default();
        tokenizer.get_normalizer().map_or(Ok(()), |normalizer| steps.add_normalizer(normalizer))?;
        let pre_tokenizer = tokenizer.get_pre_tokenizer();
        pre_tokenizer.map_or(Ok(()), |pre_tokenizer| steps.add_pre_tokenizer(pre_tokenizer))?;
        Ok(steps)
    }

    fn add_normalizer(&mut self, normalizer: &NormalizerWrapper) -> Result<()> {
        match normalizer {
            NormalizerWrapper::Sequence(sequence) => {
                sequence.as_ref().iter().try_for_each(|step| self.add_normalizer(step))?;
            }
            NormalizerWrapper::Replace(replace) => {
                // The pattern is private; its serialised form is the file format.
                let form = serde_json::to_value(replace)?;
                let step = match form["pattern"]["Regex"].as_str() {
                    Some(pattern) => NormalizerStep::Replace {
                        regex: self.compile(pattern)?,
                        content: replace.content.clone(),
                    },
                    None => NormalizerStep::Crate(normalizer.clone()),
                };
                self.normalizer.push(step);
            }
            other => self.normalizer.push(NormalizerStep::Crate(other.clone())),
        }
        Ok(())
    }

    fn add_pre_tokenizer(&mut self, pre_tokenizer: &PreTokenizerWrapper) -> Result<()> {
        match pre_tokenizer {
            PreTokenizerWrapper::Sequence(sequence) => {
                sequence.as_ref().iter().try_for_each(|step| self.add_pre_tokenizer(step))?;
            }
            PreTokenizerWrapper::Split(split)
                if let SplitPattern::Regex(pattern) = &split.pattern =>
            {
                let (behavior, invert) = (split.behavior, split.invert);
                let regex = self.compile(pattern)?;
                self.pre_tokenizer.push(PreTokenizerStep::Pattern { regex, behavior, invert });
            }
            PreTokenizerWrapper::ByteLevel(bytes) if bytes.use_regex => {
                if bytes.add_prefix_space {
                    self.pre_tokenizer.push(PreTokenizerStep::PrefixSpace);
                }
                let (regex, behavior) =
                    (Regex::new(BYTE_LEVEL_PATTERN)?, SplitDelimiterBehavior::Isolated);
                let cut = PreTokenizerStep::Pattern { regex, behavior, invert: false };
                let only_bytes = ByteLevel::new(false, bytes.trim_offsets, false);
                let only_bytes = PreTokenizerWrapper::ByteLevel(only_bytes);
                self.pre_tokenizer.extend([cut, PreTokenizerStep::Crate(only_bytes)]);
            }
            other => self.pre_tokenizer.push(PreTokenizerStep::Crate(other.clone())),
        }
        Ok(())
    }

    /// Returns the normaliser for one text. The crate drops a normaliser's errors, so this one records the first.
    pub(super) fn watched_normalizer(&self) -> WatchedNormalizer<'_> {
        WatchedNormalizer { steps: &self.normalizer, problem: OnceLock::new() }
    }

    pub(super) fn pre_tokenize(&self, text: &mut PreTokenizedString) -> Result<()> {
        self.pre_tokenizer.iter().try_for_each(|step| match step {
            PreTokenizerStep::Pattern { regex, behavior, invert: false } => {
                text.split(|_, piece| piece.split(ReportingPattern(regex), *behavior))
            }
            PreTokenizerStep::Pattern { regex, behavior, invert: true } => {
                text.split(|_, piece| piece.split(Invert(ReportingPattern(regex)), *behavior))
            }
            PreTokenizerStep::PrefixSpace => text.normalize(|piece| {
                if !piece.get().starts_with(' ') {
                    piece.prepend(" ");
                }
                Ok(())
            }),
            PreTokenizerStep::Crate(step) => step.pre_tokenize(text),
        })
    }

    /// Returns the first pattern with a construct that the engine of Hugging Face's package may match differently, and this construct.
    pub(super) fn differing_pattern(&self) -> Option<(&str, &str)> {
        self.differing.as_ref().map(|(pattern, construct)| (&**pattern, &**construct))
    }

    /// Compiles a pattern of `tokenizer.json`.
    fn compile(&mut self, pattern: &str) -> Result<Regex> {
        let translation = translate(pattern);
        if let Some(construct) = translation.differs {
            self.differing.get_or_insert_with(|| (pattern.to_owned(), construct));
        }
        Ok(Regex::new(&translation.pattern)?)
    }
}

/// Normaliser that records the first error of its steps.
pub(super) struct WatchedNormalizer<'a> {
    steps: &'a [NormalizerStep],
    problem: OnceLock<EncodeRefusal>,
}

impl WatchedNormalizer<'_> {
    /// Returns the first error, if any.
    pub(super) fn into_problem(self) -> Option<EncodeRefusal> {
        self.problem.into_inner()
    }
}

impl Normalizer for WatchedNormalizer<'_> {
    fn normalize(&self, text: &mut NormalizedString) -> Result<()> {
        let outcome = self.steps.iter().try_for_each(|step| match step {
            NormalizerStep::Replace { regex, content } => {
                text.replace(ReportingPattern(regex), content)
            }
            NormalizerStep::Crate(step) => step.normalize(text),
        });
        outcome.inspect_err(|problem| {
            self.problem.get_or_init(|| EncodeRefusal::from_crate_error(problem));
        })
    }
}

/// Pattern that reports the errors of its engine.
struct ReportingPattern<'a>(&'a Regex);

impl Pattern for ReportingPattern<'_> {
    /// Returns consecutive ranges that cover `text`, each with whether it is a match.
    fn find_matches(&self, text: &str) -> Result<Vec<(Offsets, bool)>> {
        if text.is_empty() {
            return Ok(vec![((0, 0), false)]);
        }
        let (mut pieces, mut covered) = (Vec::new(), 0);
        for found in self.0.find_iter(text) {
            let found = found.map_err(|problem| {
                format!(
                    "the pattern gave up after byte {covered} of a part of {} bytes: {problem}",
                    text.len()
                )
            })?;
            budget::count_match()?;
            if covered != found.start() {
                pieces.push(((covered, found.start()), false));
            }
            pieces.push(((found.start(), found.end()), true));
            covered = found.end();
        }
        if covered != text.len() {
            pieces.push(((covered, text.len()), false));
        }
        Ok(pieces)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};
    use tokenizers::Tokenizer;

    use crate::tokenize::SpecialTokensInText;
    use crate::tokenize::encoder::Encoder;
    use crate::tokenize::fixtures::{
        SHARED_TOKENIZERS, bytes_with, encoder_with, shared_tokenizer,
    };

    /// Compares with the crate's own ids and ends.
    fn compare(json: &[u8]) {
        let text = "He's  here,\r\n\t e\u{301}\u{e9} \u{1f999}\u{fe0f} 1234 \u{915}\u{93f} <s>x</s>  <|endoftext|> y ";
        let encoder = Encoder::from_bytes(json, SpecialTokensInText::Parse).unwrap();
        let mut reference = Tokenizer::from_bytes(json).unwrap();
        reference.with_post_processor(None::<tokenizers::PostProcessorWrapper>);
        let reference = reference.encode(text, false).unwrap();
        let got = encoder.encode(text, usize::MAX).unwrap();
        assert_eq!(got.ids, reference.get_ids());
        let ends: Vec<_> = reference.get_offsets().iter().map(|&(_, end)| end as u32).collect();
        assert_eq!(got.ends, ends);
    }

    #[test]
    #[cfg_attr(not(longsift_shared), ignore = "needs ../shared, a sibling of the repository")]
    fn published_tokenizers_need_no_pattern_of_the_crate() {
        for name in SHARED_TOKENIZERS {
            compare(&shared_tokenizer(name));
        }
    }

    #[test]
    fn own_matching_gives_the_results_of_the_crate() {
        let bytes = json!({"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true});
        let only_bytes = json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false});
        let words = json!({"type": "Split", "pattern": {"Regex": "\\p{L}+|\\p{N}"}, "behavior": "Removed", "invert": true});
        let blank = json!({"type": "Split", "pattern": {"String": " "}, "behavior": "MergedWithNext", "invert": false});
        let collapse = json!({"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " "});
        for pre_tokenizer in [
            bytes.clone(),
            json!({"type": "Sequence", "pretokenizers": [words, bytes]}),
            json!({"type": "Sequence", "pretokenizers": [blank, only_bytes]}),
        ] {
            let json = bytes_with(|form| {
                form["pre_tokenizer"] = pre_tokenizer;
                form["normalizer"] =
                    json!({"type": "Sequence", "normalizers": [{"type": "NFC"}, collapse]});
            });
            compare(&json);
        }
    }

    #[test]
    fn patterns_with_differing_constructs_are_named() {
        let warnings = |pattern: &str| {
            let encoder = encoder_with(|form| {
                form["normalizer"] =
                    json!({"type": "Replace", "pattern": {"Regex": pattern}, "content": " "});
            });
            encoder.warnings()
        };
        let [warning] = &warnings(r"\p{L}+|[[:punct:]]")[..] else { panic!("one warning") };
        assert!(warning.contains(r"`\p{L}+|[[:punct:]]` has `[:punct:]`"), "{warning}");
        for pattern in [r"\\w+", r"'s|\p{L}+|b", r"\s+(?!\S)", r"^\s+|\p{N}{1,3}+$"] {
            assert_eq!(warnings(pattern), Vec::<String>::new(), "{pattern}");
        }
    }

    #[test]
    fn a_failing_pattern_is_an_error_instead_of_one_long_piece() {
        let blanks = " ".repeat(1_200_000);
        let gives_up = |change: fn(&mut Value)| {
            let encoder = encoder_with(change);
            assert!(encoder.unsplittable_reason().is_some());
            assert!(encoder.encode("a  b", usize::MAX).is_ok());
            encoder.encode(&format!("hello{blanks}world"), usize::MAX).unwrap_err().to_string()
        };
        let problem = gives_up(|form| {
            form["pre_tokenizer"] = json!({"type": "Split", "behavior": "Isolated", "invert": false,
                                           "pattern": {"Regex": "\\s+(?!\\S)|\\w+|\\s"}});
        });
        assert!(problem.contains("the text of 1200010 bytes"), "{problem}");
        assert!(problem.contains("gave up after byte 5 of a part of 1200010 bytes"), "{problem}");
        let problem = gives_up(|form| {
            form["normalizer"] = json!({"type": "Replace", "pattern": {"Regex": "\\s+(?!\\S)|\\s+"}, "content": " "});
        });
        assert!(problem.contains("gave up"), "{problem}");
    }
}
