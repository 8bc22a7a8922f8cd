//! Fast path: parts from a hand-written scanner, tokens from a cache or from packed merges. For known shapes of tokenizers
//! it gives the ids of the `tokenizers` crate, which encodes everything else.

use tokenizers::SplitDelimiterBehavior;
use tokenizers::normalizers::NormalizerWrapper;
use tokenizers::pre_tokenizers::PreTokenizerWrapper;

use super::ascii_block::BLOCK;
use super::bpe_model::BpeModel;
use super::classes::{CLASSES, Classes, count_read};
use super::joins::Joins;
use super::long_parts::LongParts;
use super::memo::PartToken;
use super::merges::Merges;
use super::part_cache::{self, Key, LONG_PART, MAX_IDS, MAX_SHORT, PartCache};
use super::parts::{Parts, Recipe};
use super::patterns::{
    BYTE_LEVEL_PATTERN, DEEPSEEK_CODER, DEEPSEEK_V3, O200K, PreTokenizerStep, TokenizerSteps,
    cl100k,
};
use super::scan::{Cl100k, DeepSeekCoder, DeepSeekV3, Gpt2, O200k, Scan};
use super::token_bytes::byte_level_bytes;

/// Number of parts whose ends and keys are computed before the first look-up, so that reads of the cache overlap.
const BATCH: usize = 128;
/// Bytes of a text read at once: a block, and after each of its bytes as many as a key has.
const READ: usize = BLOCK + 16;

#[derive(Debug)]
pub(super) struct FastPath {
    /// Pre-tokenizer into whose pieces a text is cut; tokens consist of bytes. `None` to cut at unjoined characters; tokens
    /// consist of characters.
    scanner: Option<Box<dyn Scan>>,
    merges: Merges,
    joins: Joins,
    pub(super) long_parts: LongParts,
    /// Whether a piece may be cut where no token joins its characters; false if a whole piece may be one token.
    cuts_pieces: bool,
}

impl FastPath {
    /// Builds the fast path of a tokenizer; an error is the reason why it is not supported.
    pub(super) fn new(
        model: Option<&BpeModel<'_>>,
        recipe: &Recipe,
        steps: &TokenizerSteps,
        long_parts: Option<LongParts>,
    ) -> Result<Self, &'static str> {
        let model = model.ok_or("its model does not merge pairs")?;
        let long_parts = long_parts.ok_or("its tokens depend on more than merges")?;
        let (scanner, merges, joins) = match &recipe.parts {
            Parts::Pieces(_) => {
                let scanner =
                    scanner(&steps.pre_tokenizer).ok_or("its pre-tokenizer is unknown")?;
                (Some(scanner), Merges::for_bytes(model)?, Joins::new(model, byte_level_bytes()))
            }
            Parts::Unmerged(_) => {
                use super::patterns::NormalizerStep::Crate;
                use NormalizerWrapper::Replace;
                let replaces_blanks =
                    match (recipe.part.normalizer.as_slice(), recipe.part.pre_tokenizer.as_slice())
                    {
                        ([Crate(Replace(replace))], []) => replace.content == "▁",
                        ([], [PreTokenizerStep::Crate(PreTokenizerWrapper::Metaspace(spaces))]) => {
                            spaces.get_replacement() == '▁'
                        }
                        _ => false,
                    };
                if !replaces_blanks {
                    return Err("its normalizer does more than write blanks as `▁`");
                }
                let spelled = |token: &str| Some(token.replace('▁', " ").into_bytes());
                (None, Merges::for_characters(model)?, Joins::new(model, spelled))
            }
            Parts::Words => return Err("its pre-tokenizer is unknown"),
        };
        let cuts_pieces = !model.ignore_merges;
        Ok(Self { scanner, merges, joins, long_parts, cuts_pieces })
    }

    /// Returns whether a text can take this path: blanks are encoded as `▁`, so a `▁` in the text would be ambiguous.
    pub(super) fn supports(&self, text: &str) -> bool {
        self.scanner.is_some() || !text.contains('▁')
    }

    /// Appends the ids of the parts from byte `start`, a part boundary, to the first boundary at or after `stop`, and
    /// returns that boundary. Calls `on_boundary` with the start of each part and the number of ids before it.
    pub(super) fn encode(
        &self,
        cache: &mut PartCache,
        text: &str,
        start: usize,
        stop: usize,
        ids: &mut Vec<u32>,
        on_boundary: impl FnMut(usize, usize),
    ) -> usize {
        let scanner = self.scanner.as_deref().unwrap_or(&self.joins);
        let work = EncodeCall { path: self, scanner, cache, text, classes: &CLASSES, on_boundary };
        work.encode(start, stop, ids)
    }

    /// Appends the ends of consecutive tokens from byte `start` on, each rounded up to the end of its last character.
    pub(super) fn add_ends(&self, text: &str, start: usize, ids: &[u32], ends: &mut Vec<u32>) {
        let mut end = start;
        ends.extend(ids.iter().map(|id| {
            end += self.merges.token_bytes(*id);
            text.ceil_char_boundary(end) as u32
        }));
    }

    /// Returns the end of the part that begins at byte `at`.
    pub(super) fn part_end(&self, text: &str, at: usize) -> usize {
        assert!(self.scanner.is_none(), "only parts between unjoined characters have a first one");
        self.joins.end(&CLASSES, text.as_bytes(), at)
    }

    /// Appends the ids of a part that is longer than one chunk.
    fn encode_chunks(&self, part: &str, ids: &mut Vec<u32>) {
        let encode = |range: std::ops::Range<usize>| {
            let (mut of_stretch, mut end) = (Vec::new(), 0);
            self.merges.encode(&part.as_bytes()[range], &mut of_stretch);
            let token = |id: u32| -> PartToken {
                end += self.merges.token_bytes(id) as u32;
                (id, end)
            };
            of_stretch.into_iter().map(token).collect()
        };
        ids.extend(self.long_parts.merge(part, encode).into_iter().map(|(id, _)| id));
    }
}

/// State of one call of [`FastPath::encode`].
struct EncodeCall<'a, J> {
    path: &'a FastPath,
    scanner: &'a dyn Scan,
    cache: &'a mut PartCache,
    text: &'a str,
    classes: &'a Classes,
    on_boundary: J,
}

impl<J: FnMut(usize, usize)> EncodeCall<'_, J> {
    /// Encodes the parts from byte `start` to the first boundary at or after `stop`.
    fn encode(mut self, start: usize, stop: usize, ids: &mut Vec<u32>) -> usize {
        let text = self.text.as_bytes();
        let (mut batch, mut lines) = (PartBatch::new(start), [0; BATCH]);
        while batch.end() < stop {
            batch.restart();
            while batch.parts <= BATCH - BLOCK && batch.end() < stop {
                self.scan(&mut batch, stop);
            }
            let keys = &batch.keys[..batch.parts];
            self.cache.load_lines(keys, &mut lines);
            // Ids of the batch that `ids` lacks.
            let (mut known, mut count) = ([0; BATCH * MAX_IDS], 0);
            for ((part, key), line) in batch.bounds.windows(2).zip(keys).zip(lines) {
                (self.on_boundary)(part[0], ids.len() + count);
                if let Some(of_part) = self.cache.ids(*key, line) {
                    known[count..count + MAX_IDS].copy_from_slice(of_part);
                    count += part_cache::count(of_part);
                    continue;
                }
                ids.extend_from_slice(&known[..count]);
                count = 0;
                let merges = &self.path.merges;
                if *key == LONG_PART {
                    self.long_piece(part[0]..part[1], ids);
                } else {
                    let part = &text[part[0]..part[1]];
                    self.cache.short(*key, line, ids, |ids| merges.encode(part, ids));
                }
            }
            ids.extend_from_slice(&known[..count]);
        }
        batch.end()
    }

    /// Adds the parts of a block of ASCII, or else one part.
    #[inline]
    fn scan(&self, batch: &mut PartBatch, stop: usize) {
        let text = self.text.as_bytes();
        let at = batch.end();
        let mut copy = [0; READ];
        let (read, length) = if let Some(read) = text[at..].first_chunk::<READ>() {
            (read, BLOCK)
        } else {
            let rest = &text[at..];
            copy[..rest.len()].copy_from_slice(rest);
            (&copy, rest.len().min(BLOCK))
        };
        let block = read.first_chunk::<BLOCK>().expect("a block is shorter than what is read");
        count_read();
        let mut starts = match block {
            // A character that is not ASCII is so near that the block would be wasted.
            [a, b, c, d, ..] if (a | b | c | d) & 0x80 != 0 => 0,
            _ => self.scanner.starts(block, length) & !1,
        };
        if starts == 0 {
            let end = self.scanner.end(self.classes, text, at);
            return batch.push(part_cache::key(&text[at..end]), end);
        }
        let mut begin = 0;
        while starts != 0 && at + begin < stop {
            let end = starts.trailing_zeros() as usize;
            let bytes =
                read[begin..].first_chunk().expect("as many bytes as a key has follow a block");
            batch.push(part_cache::key_of_start(*bytes, end - begin), at + end);
            begin = end;
            starts &= starts - 1;
        }
    }

    fn long_piece(&mut self, piece: std::ops::Range<usize>, ids: &mut Vec<u32>) {
        let text = self.text.as_bytes();
        if !self.path.cuts_pieces || text[piece.clone()].is_ascii() {
            return self.long_part(piece, ids);
        }
        // Scripts without blanks: shorter parts, between unjoined characters, recur more often.
        let mut at = piece.start;
        while at < piece.end {
            let end = self.path.joins.end(self.classes, &text[..piece.end], at);
            self.part(at..end, ids);
            at = end;
        }
    }

    fn part(&mut self, part: std::ops::Range<usize>, ids: &mut Vec<u32>) {
        let bytes = &self.text.as_bytes()[part.clone()];
        if bytes.len() > MAX_SHORT {
            return self.long_part(part, ids);
        }
        let merges = &self.path.merges;
        let key = part_cache::key(bytes);
        let line = self.cache.line(key);
        self.cache.short(key, line, ids, |ids| merges.encode(bytes, ids));
    }

    fn long_part(&mut self, part: std::ops::Range<usize>, ids: &mut Vec<u32>) {
        let part = &self.text[part];
        if self.path.long_parts.is_long(part) {
            return self.path.encode_chunks(part, ids);
        }
        let merges = &self.path.merges;
        self.cache.long(part.as_bytes(), ids, |ids| merges.encode(part.as_bytes(), ids));
    }
}

struct PartBatch {
    keys: [Key; BATCH],
    /// Start of the first part, and the end of each.
    bounds: [usize; BATCH + 1],
    parts: usize,
}

impl PartBatch {
    fn new(start: usize) -> Self {
        Self { keys: [0; BATCH], bounds: [start; BATCH + 1], parts: 0 }
    }

    /// Drops all parts. The next one begins where the last one ended.
    fn restart(&mut self) {
        self.bounds[0] = self.end();
        self.parts = 0;
    }

    fn end(&self) -> usize {
        self.bounds[self.parts]
    }

    #[inline]
    fn push(&mut self, key: Key, end: usize) {
        self.keys[self.parts] = key;
        self.parts += 1;
        self.bounds[self.parts] = end;
    }
}

/// Returns the scanner of a pre-tokenizer that has exactly these patterns and writes pieces as bytes.
fn scanner(steps: &[PreTokenizerStep]) -> Option<Box<dyn Scan>> {
    let has_prefix = matches!(steps.first(), Some(PreTokenizerStep::PrefixSpace));
    let steps = &steps[usize::from(has_prefix)..];
    let [steps @ .., PreTokenizerStep::Crate(PreTokenizerWrapper::ByteLevel(bytes))] = steps else {
        return None;
    };
    if bytes.use_regex || bytes.add_prefix_space {
        return None;
    }
    let patterns: Vec<&str> = steps
        .iter()
        .map(|step| match step {
            PreTokenizerStep::Pattern {
                regex,
                behavior: SplitDelimiterBehavior::Isolated,
                invert: false,
            } => Some(regex.as_str()),
            PreTokenizerStep::Crate(PreTokenizerWrapper::Digits(digits))
                if digits.individual_digits =>
            {
                Some("digits")
            }
            _ => None,
        })
        .collect::<Option<_>>()?;
    match patterns.as_slice() {
        [pattern] if *pattern == BYTE_LEVEL_PATTERN => Some(Box::new(Gpt2)),
        [pattern] if *pattern == cl100k("") => Some(Box::new(Cl100k { digits: 1 })),
        [pattern] if *pattern == cl100k("{1,3}") => Some(Box::new(Cl100k { digits: 3 })),
        [pattern] if *pattern == O200K => Some(Box::new(O200k)),
        [steps @ .., "digits"] if *steps == DEEPSEEK_CODER => Some(Box::new(DeepSeekCoder)),
        steps if *steps == DEEPSEEK_V3 => Some(Box::new(DeepSeekV3)),
        _ => None,
    }
}
