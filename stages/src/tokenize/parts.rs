//! Splitting of a tokenizer's texts into parts whose tokens do not depend on the surrounding text.
//!
//! The tokenizer's steps determine these parts. For each variant there is a reason why encoding the parts one by one
//! gives the tokens of the whole:
//!
//! * [`Parts::Pieces`]: the pre-tokenizer's patterns are searched for from left to right, each search from the end of
//!   the last match; later steps and the model see one piece at a time.
//! * [`Parts::Unmerged`]: no merge of the model joins characters across the ends of a part ([`MergedPairs`]).
//! * [`Parts::Words`]: the normaliser combines characters at most with marks after them, and the pre-tokenizer drops
//!   white space before anything else: nothing reaches across an ASCII blank.

use std::ops::Range;

use tokenizers::models::ModelWrapper;
use tokenizers::normalizers::NormalizerWrapper;
use tokenizers::pre_tokenizers::PreTokenizerWrapper;
use tokenizers::pre_tokenizers::metaspace::{Metaspace, PrependScheme};
use tokenizers::pre_tokenizers::split::SplitPattern;
use tokenizers::{SplitDelimiterBehavior, Tokenizer};

use super::bpe_model::BpeModel;
use super::budget::{self, BudgetExceeded};
use super::matcher::Matcher;
use super::pairs::MergedPairs;
use super::patterns::{NormalizerStep, PreTokenizerStep, TokenizerSteps};

/// Method of splitting texts.
#[derive(Debug)]
pub(super) enum Parts {
    /// Into the pieces of these steps of the pre-tokenizer.
    Pieces(Vec<SplitStep>),
    /// Between characters that no merge joins.
    Unmerged(MergedPairs),
    /// Before an ASCII blank that follows another character.
    Words,
}

/// Step of a pre-tokenizer that cuts a piece at matches.
#[derive(Debug)]
pub(super) struct SplitStep {
    matcher: Matcher,
    keeps_matches: bool,
    keeps_gaps: bool,
}

/// Steps of a tokenizer around its model, classified by their inputs.
#[derive(Debug)]
pub(super) struct Recipe {
    /// Method of splitting texts.
    pub(super) parts: Parts,
    /// Whether texts are composed (NFC) before they are cut.
    pub(super) composes: bool,
    /// Whether a text that does not begin with a space gets one.
    pub(super) prefix_space: bool,
    /// Steps of a part.
    pub(super) part: TokenizerSteps,
    /// Steps of the first part of a text, if they differ: at the start of a document, and after an added token.
    pub(super) first: Option<[TokenizerSteps; 2]>,
}

impl Recipe {
    /// Analyses a tokenizer with all its steps; an error is the reason why its texts cannot be split.
    pub(super) fn new(
        tokenizer: &Tokenizer,
        model: Option<&BpeModel<'_>>,
        steps: &TokenizerSteps,
    ) -> Result<Self, &'static str> {
        Self::pieces(steps)
            .or_else(|| Self::words(steps))
            .map_or_else(|| Self::unmerged(tokenizer, model, steps), Ok)
    }

    /// Returns the recipe for a pre-tokenizer that begins with patterns, after at most composition.
    fn pieces(TokenizerSteps { normalizer, pre_tokenizer, .. }: &TokenizerSteps) -> Option<Self> {
        let composes = match normalizer.as_slice() {
            [] => false,
            [NormalizerStep::Crate(NormalizerWrapper::NFC(_))] => true,
            _ => return None,
        };
        let prefix_space = matches!(pre_tokenizer.first(), Some(PreTokenizerStep::PrefixSpace));
        let rest = &pre_tokenizer[usize::from(prefix_space)..];
        let steps: Vec<SplitStep> = rest.iter().map_while(SplitStep::new).collect();
        let inner = rest[steps.len()..].to_vec();
        if steps.is_empty() || inner.iter().any(wants_place) {
            return None;
        }
        let part = TokenizerSteps { pre_tokenizer: inner, ..TokenizerSteps::default() };
        Some(Self { parts: Parts::Pieces(steps), composes, prefix_space, part, first: None })
    }

    /// Returns the recipe for a pre-tokenizer that drops white space first.
    fn words(all: &TokenizerSteps) -> Option<Self> {
        use NormalizerWrapper as N;
        use PreTokenizerWrapper as P;
        let by_character = |step: &NormalizerStep| {
            matches!(
                step,
                NormalizerStep::Crate(
                    N::BertNormalizer(_)
                        | N::NFC(_)
                        | N::NFD(_)
                        | N::NFKC(_)
                        | N::NFKD(_)
                        | N::StripAccents(_)
                        | N::Lowercase(_)
                )
            )
        };
        let drops_blanks = matches!(
            all.pre_tokenizer.first(),
            Some(PreTokenizerStep::Crate(
                P::BertPreTokenizer(_) | P::Whitespace(_) | P::WhitespaceSplit(_)
            ))
        );
        if !drops_blanks
            || !all.normalizer.iter().all(by_character)
            || all.pre_tokenizer.iter().any(wants_place)
        {
            return None;
        }
        let (parts, part) = (Parts::Words, all.clone());
        Some(Self { parts, composes: false, prefix_space: false, part, first: None })
    }

    /// Returns the recipe for a model that merges whole texts, in which blanks have become a visible character.
    fn unmerged(
        tokenizer: &Tokenizer,
        model: Option<&BpeModel<'_>>,
        all: &TokenizerSteps,
    ) -> Result<Self, &'static str> {
        if !matches!(tokenizer.get_model(), ModelWrapper::BPE(_)) {
            return Err("its model reads whole texts and does not merge pairs");
        }
        let mut replaced = Vec::new();
        let mut inner = Vec::new();
        for step in &all.normalizer {
            match step {
                NormalizerStep::Crate(NormalizerWrapper::Prepend(_)) => continue,
                NormalizerStep::Crate(step) => replaced.push(
                    replaced_character(step)
                        .ok_or("its normaliser does more than replace characters")?,
                ),
                NormalizerStep::Replace { .. } => return Err("its normaliser replaces a pattern"),
            }
            inner.push(step.clone());
        }
        let not_first = match all.pre_tokenizer.as_slice() {
            [] => None,
            [PreTokenizerStep::Crate(PreTokenizerWrapper::Metaspace(spaces))] if !spaces.split => {
                replaced.push((' ', spaces.get_replacement()));
                Some(spaces)
            }
            [PreTokenizerStep::Crate(PreTokenizerWrapper::Split(split))] if matches!(&split.pattern, SplitPattern::String(text) if never_occurs(text, &all.normalizer)) => {
                None
            }
            _ => return Err("its pre-tokenizer has an unknown type"),
        };
        let pairs = model
            .and_then(|model| MergedPairs::new(model, replaced))
            .ok_or("its tokens depend on more than merges")?;
        let pre_tokenizer_with = |scheme: fn(PrependScheme) -> PrependScheme| {
            let metaspace = not_first.map(|spaces| {
                let scheme = scheme(spaces.prepend_scheme);
                let spaces = Metaspace::new(spaces.get_replacement(), scheme, false);
                PreTokenizerStep::Crate(PreTokenizerWrapper::Metaspace(spaces))
            });
            metaspace.into_iter().collect()
        };
        let after_a_token = |scheme| match scheme {
            PrependScheme::First => PrependScheme::Never,
            other => other,
        };
        let later = pre_tokenizer_with(after_a_token);
        let first = [all.clone(), TokenizerSteps { pre_tokenizer: later, ..all.clone() }];
        let pre_tokenizer = pre_tokenizer_with(|_| PrependScheme::Never);
        let part = TokenizerSteps { normalizer: inner, pre_tokenizer, ..TokenizerSteps::default() };
        let parts = Parts::Unmerged(pairs);
        Ok(Self { parts, composes: false, prefix_space: false, part, first: Some(first) })
    }
}

/// Returns whether a step treats the start of a text differently.
fn wants_place(step: &PreTokenizerStep) -> bool {
    matches!(step, PreTokenizerStep::Crate(PreTokenizerWrapper::Metaspace(_)))
}

/// Returns whether `wanted` cannot occur in normalised text because a step replaces one of its characters. The steps
/// only replace single characters and prepend text.
fn never_occurs(wanted: &str, steps: &[NormalizerStep]) -> bool {
    let leaves = |letter: char, step: &NormalizerStep| match step {
        NormalizerStep::Crate(NormalizerWrapper::Prepend(prepend)) => {
            prepend.prepend.contains(letter)
        }
        NormalizerStep::Crate(step) => replaced_character(step).is_none_or(|(_, to)| to == letter),
        NormalizerStep::Replace { .. } => true,
    };
    let takes = |letter: char, step: &NormalizerStep| match step {
        NormalizerStep::Crate(step) => {
            replaced_character(step).is_some_and(|(from, _)| from == letter)
        }
        NormalizerStep::Replace { .. } => false,
    };
    wanted.chars().any(|letter| {
        let last = steps.iter().rposition(|step| takes(letter, step));
        last.is_some_and(|last| !steps[last..].iter().any(|step| leaves(letter, step)))
    })
}

/// Returns the character that a step replaces, and its replacement; `None` for any other step.
fn replaced_character(step: &NormalizerWrapper) -> Option<(char, char)> {
    let NormalizerWrapper::Replace(replace) = step else { return None };
    // The pattern is private; its serialised form is the file format.
    let form = serde_json::to_value(replace).ok()?;
    let only = |text: &str| {
        let mut letters = text.chars();
        letters.next().filter(|_| letters.next().is_none())
    };
    Some((only(form["pattern"]["String"].as_str()?)?, only(&replace.content)?))
}

impl SplitStep {
    /// Converts a step that cuts at the matches of a [`Matcher`] and keeps matches and gaps separate.
    fn new(step: &PreTokenizerStep) -> Option<Self> {
        use SplitDelimiterBehavior::{Isolated, Removed};
        let (matcher, keeps_matches, keeps_gaps) = match step {
            PreTokenizerStep::Pattern { regex, behavior: Isolated, .. } => {
                (Matcher::new(regex.as_str())?, true, true)
            }
            PreTokenizerStep::Pattern { regex, behavior: Removed, invert } => {
                (Matcher::new(regex.as_str())?, *invert, !*invert)
            }
            PreTokenizerStep::Crate(PreTokenizerWrapper::Digits(digits)) => {
                (Matcher::Numbers { runs: !digits.individual_digits }, true, true)
            }
            _ => return None,
        };
        Some(Self { matcher, keeps_matches, keeps_gaps })
    }
}

impl Parts {
    /// Returns whether parts from any position on soon coincide with those of the whole text.
    pub(super) fn resynchronises(&self) -> bool {
        match self {
            Self::Pieces(steps) => steps[0].matcher.is_dense(),
            Self::Unmerged(_) | Self::Words => true,
        }
    }

    /// Passes the next parts of `text` from byte `at`, a part boundary, to `take`, and returns their end: after `at`,
    /// and again a part boundary. The result depends only on `text` and `at`.
    pub(super) fn next<E: From<BudgetExceeded>>(
        &self,
        text: &str,
        at: usize,
        take: &mut impl FnMut(Range<usize>) -> Result<(), E>,
    ) -> Result<usize, E> {
        let end = match self {
            Self::Pieces(steps) => return next_match(steps, text, 0, at, take),
            Self::Unmerged(pairs) => {
                let mut before = None;
                text[at..].char_indices().find_map(|(offset, letter)| {
                    let parts = before.is_some_and(|before| pairs.may_part(before, letter));
                    before = Some(letter);
                    parts.then_some(at + offset)
                })
            }
            Self::Words => {
                let bytes = &text.as_bytes()[at..];
                let is_end = |pair: &[u8]| !is_blank(pair[0]) && is_blank(pair[1]);
                bytes.windows(2).position(is_end).map(|offset| at + offset + 1)
            }
        };
        let end = end.unwrap_or(text.len());
        take(at..end)?;
        Ok(end)
    }
}

fn is_blank(byte: u8) -> bool {
    matches!(byte, b' ' | b'\n' | b'\r' | b'\t')
}

/// Cuts the text before the next match of the first step, and the match, by the following steps. `text[at..]` is the
/// rest of a piece that begins at byte `offset` of the text in which the parts are given.
fn next_match<E: From<BudgetExceeded>>(
    steps: &[SplitStep],
    text: &str,
    offset: usize,
    at: usize,
    take: &mut impl FnMut(Range<usize>) -> Result<(), E>,
) -> Result<usize, E> {
    let [step, steps @ ..] = steps else {
        take(offset + at..offset + text.len())?;
        return Ok(text.len());
    };
    budget::count_match()?;
    let found = step.matcher.find(text, at).unwrap_or(text.len()..text.len());
    for (range, kept) in [(at..found.start, step.keeps_gaps), (found.clone(), step.keeps_matches)] {
        let (piece, mut at) = (&text[range.clone()], 0);
        while kept && at < piece.len() {
            at = next_match(steps, piece, offset + range.start, at, take)?;
        }
    }
    Ok(found.end)
}
