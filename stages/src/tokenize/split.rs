//! Encoding of a text part by part, with many parts of a long text at once: the tokens of the whole, in a fraction of
//! its time and memory, because most parts have occurred before and only ids and ends are stored.

use std::ops::Range;
use std::sync::{Mutex, PoisonError};

use rayon::prelude::*;
use tokenizers::{Model, NormalizedString, Normalizer, OffsetType, PreTokenizedString, Tokenizer};

use super::added::{Added, AddedTokens};
use super::bpe_model::BpeModel;
use super::budget::PatternBudget;
use super::compose::Composed;
use super::encoded::{EncodedText, character_ends};
use super::fast::FastPath;
use super::library::Library;
use super::long_parts::LongParts;
use super::memo::{Memo, PartToken};
use super::part_cache::PartCache;
use super::parts::Recipe;
use super::patterns::TokenizerSteps;
use super::problem::EncodeRefusal;

/// Bytes of text per run; runs of a longer text are encoded at once.
const RUN_BYTES: usize = 256 << 10;
/// Maximum number of boundaries that a run records.
const MAX_BOUNDARIES: usize = 1024;

/// Tokenizer whose texts can be split.
#[derive(Debug)]
pub(super) struct Splitter {
    recipe: Recipe,
    /// Added tokens that occur in the original text.
    added: AddedTokens,
    /// Added tokens that occur in the normalised text.
    normalised: AddedTokens,
    /// Chunked merging of long parts; `None` if the crate must read them whole.
    pub(super) long_parts: Option<LongParts>,
    /// Fast path of most texts; an error is the reason why no text takes it.
    pub(super) fast: Result<FastPath, &'static str>,
    /// [`RUN_BYTES`]; tests choose others.
    pub(super) run_bytes: usize,
    /// Maximum bytes of a thread's cache of parts.
    pub(super) cache_bytes: usize,
    /// Idle working memory of threads.
    scratch: Mutex<Vec<EncodeScratch>>,
}

/// Working memory of a thread.
#[derive(Debug, Default)]
struct EncodeScratch {
    memo: Memo,
    /// Created when the fast path is first taken.
    cache: Option<Box<PartCache>>,
}

/// Tokens of a range of a text: of all its parts from the first that begins at or after a given position.
#[derive(Debug, Default)]
struct EncodedRange {
    tokens: EncodedText,
    /// First [`MAX_BOUNDARIES`] boundaries between parts, each with the number of tokens before it.
    boundaries: Vec<(usize, usize)>,
    /// End of the last part.
    end: usize,
}

/// Text to encode, with the steps of its first part.
#[derive(Clone, Copy)]
struct EncodeInput<'a> {
    library: &'a Library,
    text: &'a str,
    first: Option<&'a TokenizerSteps>,
    fast: Option<&'a FastPath>,
    largest_part: usize,
}

impl Splitter {
    /// Builds the splitter of a tokenizer; an error is the reason why its texts cannot be split.
    pub(super) fn new(
        tokenizer: &Tokenizer,
        model: Option<&BpeModel<'_>>,
        steps: &TokenizerSteps,
        added: Vec<Added>,
    ) -> tokenizers::Result<Result<Self, &'static str>> {
        let recipe = match Recipe::new(tokenizer, model, steps) {
            Ok(recipe) => recipe,
            Err(why) => return Ok(Err(why)),
        };
        let (normalised, plain): (Vec<_>, Vec<_>) =
            added.into_iter().partition(|(_, _, token)| token.normalized);
        let is_normalised = steps.normalizer.is_empty() || recipe.composes;
        if !normalised.is_empty() && !is_normalised {
            return Ok(Err("its added tokens are matched in normalised text"));
        }
        let as_text = tokenizer.get_added_vocabulary().get_encode_special_tokens();
        let long_parts = model.and_then(|model| LongParts::new(model, &recipe));
        Ok(Ok(Self {
            fast: FastPath::new(model, &recipe, steps, long_parts),
            long_parts,
            recipe,
            added: AddedTokens::new(plain, as_text)?,
            normalised: AddedTokens::new(normalised, as_text)?,
            run_bytes: RUN_BYTES,
            cache_bytes: PartCache::MAX_BYTES,
            scratch: Mutex::default(),
        }))
    }

    /// Encodes a text. `largest_part`: longer parts are rejected if the crate must read them whole.
    pub(super) fn encode(
        &self,
        library: &Library,
        text: &str,
        largest_part: usize,
    ) -> Result<EncodedText, EncodeRefusal> {
        let mut encoded = EncodedText::default();
        for (id, range) in self.added.split(text) {
            if let Some(id) = id {
                encoded.push(id, range.end as u32);
                continue;
            }
            let between = &text[range.clone()];
            let composed = if self.recipe.composes {
                Composed::new(between, largest_part)?
            } else {
                Composed::unchanged(between)
            };
            for (id, part) in self.normalised.split(&composed.text) {
                let source_end = |end: u32| {
                    let end = composed.source_end(part.start + end as usize);
                    (range.start + between.ceil_char_boundary(end)) as u32
                };
                if let Some(id) = id {
                    encoded.push(id, source_end(part.len() as u32));
                    continue;
                }
                let at_front = range.start + part.start == 0;
                let first = self.recipe.first.as_ref().map(|steps| &steps[usize::from(!at_front)]);
                let text = &composed.text[part.clone()];
                let fast = self.fast.as_ref().ok().filter(|fast| fast.supports(text));
                let source = EncodeInput { library, text, first, fast, largest_part };
                if fast.is_some() && first.is_none() && !composed.changed() {
                    // Ends of the fast path are ends of characters.
                    let offset = (range.start + part.start) as u32;
                    self.encode_between(source, &mut encoded, |end| offset + end)?;
                } else {
                    self.encode_between(source, &mut encoded, source_end)?;
                }
            }
        }
        Ok(encoded)
    }

    /// Encodes the text between two added tokens. `source_end`: maps a byte of this text to the whole text.
    fn encode_between(
        &self,
        source: EncodeInput<'_>,
        encoded: &mut EncodedText,
        source_end: impl Fn(u32) -> u32,
    ) -> Result<(), EncodeRefusal> {
        let text = source.text;
        if !self.recipe.prefix_space || text.starts_with(' ') {
            return self.encode_runs(source, |run| encoded.extend(run.tokens, &source_end));
        }
        // The space in front belongs to the first character.
        let first_character = text.chars().next().map_or(0, char::len_utf8) as u32;
        let with_space = format!(" {text}");
        self.encode_runs(EncodeInput { text: &with_space, ..source }, |run| {
            encoded.extend(run.tokens, |end| source_end((end - 1).max(first_character)));
        })
    }

    /// Encodes a text in runs and passes them to `take` in order.
    ///
    /// All runs but the first begin at an arbitrary position, perhaps inside a part. The text after a part boundary is
    /// split depending on that boundary alone ([`super::parts::Parts::next`]), so once the previous run ends at a
    /// boundary of this run, the rest of this run equals the result for the whole text.
    fn encode_runs(
        &self,
        source: EncodeInput<'_>,
        mut take: impl FnMut(EncodedRange),
    ) -> Result<(), EncodeRefusal> {
        let text = source.text;
        let starts: Vec<usize> = if source.fast.is_some() || self.recipe.parts.resynchronises() {
            (0..text.len()).step_by(self.run_bytes).map(|at| text.ceil_char_boundary(at)).collect()
        } else {
            vec![0]
        };
        let stop = |run: usize| starts.get(run + 1).copied().unwrap_or(text.len());
        if let [start] = starts[..] {
            self.run(source, start, text.len(), false).map(&mut take)?;
            return Ok(());
        }
        let mut reached = 0;
        // A few runs at a time, which bounds the memory in addition to the result.
        let wave = 2 * rayon::current_num_threads();
        for first in (0..starts.len()).step_by(wave) {
            let wave = first..(first + wave).min(starts.len());
            // A part may be longer than many runs.
            let is_passed = |run: usize| stop(run) <= reached;
            let runs: Vec<EncodedRange> = wave
                .clone()
                .into_par_iter()
                .map(|run| {
                    if is_passed(run) {
                        return Ok(EncodedRange::default());
                    }
                    self.run(source, starts[run], stop(run), starts[run] > reached)
                })
                .collect::<Result<_, _>>()?;
            for (run, mut ahead) in wave.zip(runs) {
                while reached < stop(run) {
                    let boundaries = &ahead.boundaries;
                    if let Ok(index) = boundaries.binary_search_by_key(&reached, |(at, _)| *at) {
                        ahead.drop_before(index);
                        reached = ahead.end;
                        take(std::mem::take(&mut ahead));
                        break;
                    }
                    let is_near = boundaries.last().is_some_and(|(at, _)| reached < *at);
                    let next = if is_near { reached + 1 } else { stop(run) };
                    let between = self.run(source, reached, next, false)?;
                    reached = between.end;
                    take(between);
                }
            }
        }
        Ok(())
    }

    /// Encodes the parts from byte `start` on, up to the first that ends at or after `stop`. `ahead`: whether `start` may be
    /// inside a part. If that does not end before `stop`, the run in which it begins encodes it, and this one is empty.
    fn run(
        &self,
        source: EncodeInput<'_>,
        start: usize,
        stop: usize,
        ahead: bool,
    ) -> Result<EncodedRange, EncodeRefusal> {
        let idle = || self.scratch.lock().unwrap_or_else(PoisonError::into_inner);
        let mut scratch = idle().pop().unwrap_or_default();
        let run = match source.fast {
            Some(fast) => self.fast_run(
                fast,
                scratch.cache.get_or_insert_with(|| PartCache::new(self.cache_bytes).into()),
                source,
                start,
                stop,
                ahead,
            ),
            None => self.crate_run(&mut scratch.memo, source, start, stop, ahead),
        };
        idle().push(scratch);
        run
    }

    fn fast_run(
        &self,
        fast: &FastPath,
        cache: &mut PartCache,
        source: EncodeInput<'_>,
        start: usize,
        stop: usize,
        ahead: bool,
    ) -> Result<EncodedRange, EncodeRefusal> {
        let mut run = EncodedRange { end: start, ..EncodedRange::default() };
        if let Some(first) = source.first.filter(|_| start == 0) {
            run.boundaries.push((0, 0));
            run.end = fast.part_end(source.text, 0);
            for (id, end) in self.part_tokens(source, &source.text[..run.end], first)? {
                run.tokens.push(id, end);
            }
        }
        let (first_id, first_end) = (run.tokens.ids.len(), run.end);
        run.tokens.ids.reserve((stop.saturating_sub(run.end)) / 4);
        let boundaries = &mut run.boundaries;
        run.end = fast.encode(cache, source.text, run.end, stop, &mut run.tokens.ids, |at, ids| {
            if boundaries.len() < MAX_BOUNDARIES {
                boundaries.push((at, ids));
            }
        });
        // A single part spans the whole run: the run in which it begins encodes it.
        if ahead && run.boundaries.len() == 1 && run.end >= stop {
            return Ok(EncodedRange::default());
        }
        fast.add_ends(source.text, first_end, &run.tokens.ids[first_id..], &mut run.tokens.ends);
        debug_assert!(run.tokens.ends.last().is_none_or(|end| *end as usize == run.end));
        Ok(run)
    }

    fn crate_run(
        &self,
        memo: &mut Memo,
        source: EncodeInput<'_>,
        start: usize,
        stop: usize,
        ahead: bool,
    ) -> Result<EncodedRange, EncodeRefusal> {
        let mut run = EncodedRange { end: start, ..EncodedRange::default() };
        let mut is_inside = false;
        let budget = PatternBudget::start(stop - start);
        while run.end < stop {
            budget.reach((stop - start).max(run.end - start));
            if run.boundaries.len() < MAX_BOUNDARIES {
                run.boundaries.push((run.end, run.tokens.ids.len()));
            }
            let tokens = &mut run.tokens;
            let mut take = |part: Range<usize>| {
                is_inside |= ahead && part.start == start && part.end >= stop;
                if is_inside {
                    return Ok(());
                }
                let (text, offset) = (&source.text[part.clone()], part.start as u32);
                let mut add = |of_part: &[PartToken]| {
                    tokens.ids.extend(of_part.iter().map(|(id, _)| id));
                    tokens.ends.extend(of_part.iter().map(|(_, end)| offset + end));
                };
                match source.first {
                    Some(first) if part.start == 0 => {
                        add(&self.part_tokens(source, text, first)?);
                        Ok(())
                    }
                    _ => {
                        let encode = || self.part_tokens(source, text, &self.recipe.part);
                        memo.tokens(text, encode, add)
                    }
                }
            };
            run.end = self.recipe.parts.next(source.text, run.end, &mut take)?;
        }
        Ok(if is_inside { EncodedRange::default() } else { run })
    }

    /// Encodes a part. `steps`: those of its beginning.
    fn part_tokens(
        &self,
        source: EncodeInput<'_>,
        part: &str,
        steps: &TokenizerSteps,
    ) -> Result<Vec<PartToken>, EncodeRefusal> {
        if let Some(long_parts) = self.long_parts.as_ref().filter(|long| long.is_long(part)) {
            return long_parts.encode(source.library, part, |range| {
                let steps = if range.start == 0 { steps } else { &self.recipe.part };
                crate_tokens(source.library, &part[range], steps)
            });
        }
        if part.len() > source.largest_part {
            return Err(EncodeRefusal::TooLarge(part.len()));
        }
        crate_tokens(source.library, part, steps)
    }
}

impl EncodedRange {
    /// Removes the tokens before the boundary with this index.
    fn drop_before(&mut self, index: usize) {
        let tokens = self.boundaries[index].1;
        self.tokens.ids.drain(..tokens);
        self.tokens.ends.drain(..tokens);
    }
}

/// Encodes a text with the crate.
fn crate_tokens(
    library: &Library,
    part: &str,
    steps: &TokenizerSteps,
) -> Result<Vec<PartToken>, EncodeRefusal> {
    let mut text = NormalizedString::from(part);
    steps.watched_normalizer().normalize(&mut text)?;
    if text.is_empty() {
        return Ok(Vec::new());
    }
    let mut pieces = PreTokenizedString::from(text);
    steps.pre_tokenize(&mut pieces)?;
    library.model()?.tokenize_in_pretokenized(&mut pieces, None)?;
    let encoding = pieces.into_encoding(None, 0, OffsetType::Byte)?;
    let ends = character_ends(part, encoding.get_offsets());
    Ok(encoding.get_ids().iter().copied().zip(ends).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tokenize::fixtures::encoder_with;

    #[test]
    fn a_run_inside_a_longer_part_is_omitted() {
        let encoder = encoder_with(|_| ());
        let splitter = encoder.splitter.as_ref().unwrap();
        let text = format!("{} and so on", "a".repeat(1000));
        for fast in [splitter.fast.as_ref().ok(), None] {
            let source = EncodeInput {
                library: &encoder.library,
                text: &text,
                first: None,
                fast,
                largest_part: 5000,
            };
            let run = |start, stop, ahead| splitter.run(source, start, stop, ahead).unwrap();
            let inside = run(100, 1000, true);
            assert_eq!((inside.tokens.ids.len(), inside.boundaries.len()), (0, 0));
            assert_eq!(run(100, 1001, true).boundaries[..2], [(100, 0), (1000, 900)]);
            assert_eq!(run(100, 1000, false).tokens.ids.len(), 900);
        }
    }
}
