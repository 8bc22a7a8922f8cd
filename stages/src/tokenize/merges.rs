//! Byte-pair merging over packed tables: no strings, and no allocation for a part of up to [`MAX_SHORT`] symbols. The
//! neighbours whose merge has the lowest rank are joined first, the leftmost of equals.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use hashbrown::HashMap;

use super::bpe_model::{BpeModel, Text};
use super::long_parts::byte_character;
use super::random_table::RandomTable;
use super::token_bytes::byte_level_bytes;

/// Rank of a pair that is not merged.
const NO_RANK: u32 = u32::MAX;
/// Empty slot of the table of pairs; the others have [`FILLED`].
const EMPTY: u64 = 0;
/// Bit of a filled slot, above two ids and a rank.
const FILLED: u64 = 1 << 63;
/// Bits of an id and of a rank, so that two ids and a rank fill a slot.
const ID_BITS: u32 = 21;
/// Maximum symbols of a part that is merged by scanning all ranks for each merge. A longer part uses a heap.
const MAX_SHORT: usize = 1 << SHORT_BITS;
/// Bits of a position in such a part.
const SHORT_BITS: u32 = 6;
/// Positions before and after each position.
const BEFORE: [u8; MAX_SHORT + 1] = positions(u8::MAX);
const AFTER: [u8; MAX_SHORT] = positions(1);
/// In place of the id of a symbol that was merged into the one before.
const MERGED: u32 = u32::MAX;
/// Bits of the filter in front of the table of pairs, as a power of two: 256 KiB, to fit the L2 cache.
const FILTER_BITS: u32 = 21;

/// Merges of a model.
#[derive(Debug)]
pub(super) struct Merges {
    /// Open addressing: `FILLED | left << 42 | right << 21 | rank`.
    slots: RandomTable<u64>,
    /// A bit for the hash of each pair that has a merge.
    filter: Box<[u64]>,
    /// Ids that merges produce, by rank.
    merged: Box<[u32]>,
    symbols: Symbols,
    /// Rank of two neighbouring bytes: `first << 8 | second`; empty for a model of characters.
    byte_ranks: Box<[u32]>,
    /// Parts, by their bytes, that are one token regardless of merges: for models with `ignore_merges`.
    whole: HashMap<Box<[u8]>, u32>,
    /// Bytes of text per token; 0 for an id that is not in the vocabulary.
    token_bytes: Box<[u16]>,
}

/// Symbols of a part before the first merge.
#[derive(Debug)]
enum Symbols {
    Bytes(Box<[u32; 256]>),
    /// One symbol per character, or one per byte of a character without a token.
    Characters {
        ids: HashMap<char, u32>,
        bytes: Box<[u32; 256]>,
    },
}

impl Merges {
    /// Builds the tables of a model that writes each byte as one character; an error is the reason why they cannot hold it.
    pub(super) fn for_bytes(model: &BpeModel<'_>) -> Result<Self, &'static str> {
        let spelled = byte_level_bytes();
        let mut ids = Box::new([0; 256]);
        for byte in 0..=u8::MAX {
            // Bytes that do not occur in UTF-8 may have no token.
            if let Some(id) = model.vocab.get(byte_character(byte).encode_utf8(&mut [0; 4]) as &str)
            {
                ids[usize::from(byte)] = *id;
            }
        }
        let symbols = Symbols::Bytes(ids.clone());
        let mut merges =
            Self::new(model, symbols, |token| spelled(token).map_or(0, |bytes| bytes.len()))?;
        let rank = |pair: usize| merges.rank(ids[pair >> 8], ids[pair & 0xFF]);
        merges.byte_ranks = (0..1 << 16).map(rank).collect();
        if model.ignore_merges {
            let spelled = |(token, id): (&Text<'_>, &u32)| Some((spelled(token)?.into(), *id));
            merges.whole = model.vocab.iter().filter_map(spelled).collect();
        }
        Ok(merges)
    }

    /// Builds the tables of a model of characters with `▁` for a blank and `<0xNN>` for a byte of an unknown character.
    pub(super) fn for_characters(model: &BpeModel<'_>) -> Result<Self, &'static str> {
        let mut bytes = Box::new([0; 256]);
        for byte in 0..=u8::MAX {
            let token = model.vocab.get(format!("<0x{byte:02X}>").as_str());
            bytes[usize::from(byte)] = *token.ok_or("a byte has no token")?;
        }
        // Without a token, a blank is written as the bytes of `▁`, which are more than it has in the text.
        if !model.vocab.contains_key("▁") {
            return Err("a blank has no token");
        }
        let single = |(token, id): (&Text<'_>, &u32)| {
            let mut letters = token.chars();
            let letter = letters.next().filter(|_| letters.next().is_none())?;
            // A blank of the text is merged as `▁`.
            (letter != ' ').then_some((if letter == '▁' { ' ' } else { letter }, *id))
        };
        let ids = model.vocab.iter().filter_map(single).collect();
        let of_byte: std::collections::HashSet<u32> = bytes.iter().copied().collect();
        Self::new(model, Symbols::Characters { ids, bytes }, |token| {
            if of_byte.contains(&model.vocab[token]) { 1 } else { token.replace('▁', " ").len() }
        })
    }

    /// `bytes_of`: bytes of text of a token of the vocabulary.
    fn new(
        model: &BpeModel<'_>,
        symbols: Symbols,
        bytes_of: impl Fn(&str) -> usize,
    ) -> Result<Self, &'static str> {
        let ids = model.vocab.values().copied().max().map_or(0, |largest| largest as usize + 1);
        if ids > 1 << ID_BITS || model.merges.len() >= 1 << ID_BITS {
            return Err("it has more than two million tokens");
        }
        let mut token_bytes = vec![0; ids];
        let lengths = model.vocab.iter().map(|(token, id)| (*id, bytes_of(token)));
        for (id, length) in lengths {
            token_bytes[id as usize] = length as u16;
        }
        let capacity = (model.merges.len() * 2).next_power_of_two().max(64);
        let mut merges = Self {
            slots: RandomTable::zeroed(capacity),
            filter: vec![0; 1 << (FILTER_BITS - 6)].into(),
            merged: Box::default(),
            symbols,
            byte_ranks: Box::default(),
            whole: HashMap::new(),
            token_bytes: token_bytes.into(),
        };
        let mut merged = Vec::with_capacity(model.merges.len());
        let id_of = |token: &str| model.vocab.get(token).copied().ok_or("a merge has no token");
        let mut token = String::new();
        for (rank, merge) in model.merges.iter().enumerate() {
            let (left, right) = merge.tokens().ok_or("a merge is not a pair of tokens")?;
            token.clear();
            token.push_str(left);
            token.push_str(right);
            merged.push(id_of(&token)?);
            merges.insert(id_of(left)?, id_of(right)?, rank as u64);
        }
        merges.merged = merged.into();
        Ok(merges)
    }

    /// Adds a merge; a later one of the same pair replaces the earlier.
    fn insert(&mut self, left: u32, right: u32, rank: u64) {
        let key = key(left, right);
        let hash = hash(key);
        self.filter[filter_word(hash)] |= filter_bit(hash);
        let mut slot = hash as usize & (self.slots.len() - 1);
        while self.slots[slot] != EMPTY && self.slots[slot] >> ID_BITS != key {
            slot = (slot + 1) & (self.slots.len() - 1);
        }
        self.slots[slot] = key << ID_BITS | rank;
    }

    #[inline]
    fn rank(&self, left: u32, right: u32) -> u32 {
        let key = key(left, right);
        let hash = hash(key);
        if self.filter[filter_word(hash)] & filter_bit(hash) == 0 {
            return NO_RANK;
        }
        let mut slot = hash as usize & (self.slots.len() - 1);
        loop {
            let found = self.slots[slot];
            if found == EMPTY {
                return NO_RANK;
            }
            if found >> ID_BITS == key {
                return found as u32 & ((1 << ID_BITS) - 1);
            }
            slot = (slot + 1) & (self.slots.len() - 1);
        }
    }

    /// Returns the number of bytes of a token's text.
    #[inline]
    pub(super) fn token_bytes(&self, id: u32) -> usize {
        usize::from(self.token_bytes[id as usize])
    }

    /// Appends the tokens of a part. Time: linear for short parts, `n log n` for others; memory: up to 40 bytes for
    /// each byte of a part of more than [`MAX_SHORT`] symbols.
    pub(super) fn encode(&self, part: &[u8], ids: &mut Vec<u32>) {
        if !self.whole.is_empty()
            && let Some(id) = self.whole.get(part)
        {
            ids.push(*id);
            return;
        }
        let first = ids.len();
        match &self.symbols {
            Symbols::Bytes(byte_ids) => {
                ids.extend(part.iter().map(|byte| byte_ids[usize::from(*byte)]));
            }
            Symbols::Characters { ids: letter_ids, bytes } => {
                let text = std::str::from_utf8(part).expect("parts of characters are text");
                for letter in text.chars() {
                    match letter_ids.get(&letter) {
                        Some(id) => ids.push(*id),
                        None => ids.extend(
                            letter
                                .encode_utf8(&mut [0; 4])
                                .bytes()
                                .map(|byte| bytes[usize::from(byte)]),
                        ),
                    }
                }
            }
        }
        let left = match ids.len() - first {
            0 | 1 => return,
            ..=MAX_SHORT => self.merge_short(part, &mut ids[first..]),
            _ => self.merge_long(&mut ids[first..]),
        };
        ids.truncate(first + left);
    }

    /// Merges up to [`MAX_SHORT`] symbols in place; returns the number of tokens left.
    fn merge_short(&self, part: &[u8], ids: &mut [u32]) -> usize {
        let symbols = ids.len();
        // Symbols before and after each symbol; those merged into another are skipped.
        let (mut before, mut after) = (BEFORE, AFTER);
        // The merge of each symbol with the next one: its rank above the position of the symbol, so that the lowest is
        // the first of the lowest rank.
        let mut merges = [NO_RANK; MAX_SHORT];
        let merge = |rank: u32, at: usize| {
            if rank == NO_RANK { NO_RANK } else { rank << SHORT_BITS | at as u32 }
        };
        for at in 0..symbols - 1 {
            let rank = match self.symbols {
                Symbols::Bytes(_) => {
                    self.byte_ranks[usize::from(part[at]) << 8 | usize::from(part[at + 1])]
                }
                Symbols::Characters { .. } => self.rank(ids[at], ids[at + 1]),
            };
            merges[at] = merge(rank, at);
        }
        // Blocks of eight, so that the search takes a few vector instructions.
        let searched = (symbols - 1).next_multiple_of(8);
        loop {
            let lowest =
                merges[..searched].iter().fold(NO_RANK, |lowest, merge| lowest.min(*merge));
            if lowest == NO_RANK {
                break;
            }
            let at = lowest as usize % MAX_SHORT;
            let id = self.merged[(lowest >> SHORT_BITS) as usize];
            let merged = usize::from(after[at]);
            let next = usize::from(after[merged]);
            ids[at] = id;
            ids[merged] = MERGED;
            after[at] = next as u8;
            before[next] = at as u8;
            merges[merged] = NO_RANK;
            merges[at] = if next < symbols { merge(self.rank(id, ids[next]), at) } else { NO_RANK };
            let previous = usize::from(before[at]);
            if previous < symbols {
                merges[previous] = merge(self.rank(ids[previous], id), previous);
            }
        }
        compact(ids)
    }

    /// Merges any number of symbols in place with a heap of pairs; returns the number of tokens left.
    fn merge_long(&self, ids: &mut [u32]) -> usize {
        let symbols = ids.len();
        // Previous and next remaining symbol of each symbol.
        let mut links: Vec<(u32, u32)> =
            (0..symbols as u32).map(|at| (at.wrapping_sub(1), at + 1)).collect();
        let pair = |rank: u32, at: u32| (rank != NO_RANK).then_some(Reverse((rank, at)));
        let mut heap: BinaryHeap<Reverse<(u32, u32)>> = (0..symbols - 1)
            .filter_map(|at| pair(self.rank(ids[at], ids[at + 1]), at as u32))
            .collect();
        while let Some(Reverse((rank, at))) = heap.pop() {
            let (before, right) = links[at as usize];
            if ids[at as usize] == MERGED
                || right as usize >= symbols
                || self.rank(ids[at as usize], ids[right as usize]) != rank
            {
                continue;
            }
            let id = self.merged[rank as usize];
            ids[at as usize] = id;
            ids[right as usize] = MERGED;
            let after = links[right as usize].1;
            links[at as usize].1 = after;
            if (after as usize) < symbols {
                links[after as usize].0 = at;
                heap.extend(pair(self.rank(id, ids[after as usize]), at));
            }
            if (before as usize) < symbols {
                heap.extend(pair(self.rank(ids[before as usize], id), before));
            }
        }
        compact(ids)
    }
}

const fn positions<const N: usize>(offset: u8) -> [u8; N] {
    let mut positions = [0; N];
    let mut at = 0;
    while at < N {
        positions[at] = (at as u8).wrapping_add(offset);
        at += 1;
    }
    positions
}

/// Moves the ids that are not [`MERGED`] to the front; returns their number.
fn compact(ids: &mut [u32]) -> usize {
    let mut left = 0;
    for at in 0..ids.len() {
        ids[left] = ids[at];
        left += usize::from(ids[at] != MERGED);
    }
    left
}

/// Returns the upper bits of the slot of a pair.
fn key(left: u32, right: u32) -> u64 {
    FILLED >> ID_BITS | u64::from(left) << ID_BITS | u64::from(right)
}

/// Hashes a key; well mixed in all bits used: the lower by the table, the upper by the filter.
fn hash(key: u64) -> u64 {
    let product = u128::from(key ^ 0xA076_1D64_78BD_642F) * 0x9E37_79B9_7F4A_7C15;
    product as u64 ^ (product >> 64) as u64
}

fn filter_word(hash: u64) -> usize {
    (hash >> (64 - FILTER_BITS + 6)) as usize
}

fn filter_bit(hash: u64) -> u64 {
    1 << (hash >> (64 - FILTER_BITS) & 63)
}
