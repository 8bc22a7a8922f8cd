//! Bounded cache from the bytes of a part to its token ids, one per thread. Ids never depend on its content.

use bytemuck::{Pod, Zeroable};
use hashbrown::HashMap;

use super::random_table::RandomTable;

/// Maximum bytes of a part that fit into a key, next to its length.
pub(super) const MAX_SHORT: usize = 15;
/// Maximum number of ids next to a key.
pub(super) const MAX_IDS: usize = 4;
/// Maximum length of a cached part, in bytes.
const MAX_LONG: usize = 256;
/// Maximum lines of short parts, two entries each: 16 MiB, which holds the words of a few dozen books.
const MAX_LINES: usize = 1 << 18;
/// Minimum lines: 40 KiB including all arrays.
const MIN_LINES: usize = 1 << 8;
/// Ids of short parts of more than four tokens, per line.
const SPILLED_PER_LINE: usize = 4;
/// Bytes of long parts, their ids and their positions, per line.
const LONG_BYTES_PER_LINE: usize = 32;
/// Bytes of memory per line: vectors grow by doubling, and maps have empty slots.
const BYTES_PER_LINE: usize =
    size_of::<Line>() + 2 * SPILLED_PER_LINE * size_of::<u32>() + 2 * LONG_BYTES_PER_LINE;

/// Marks spilled ids, in place of the first id: the largest ids are below 2²¹.
const SPILLED: u32 = u32::MAX;

/// Key of a short part: its bytes in the lower 15 bytes, its length in the highest. 0 is not a part.
pub(super) type Key = u128;
/// In place of the key of a part of more than [`MAX_SHORT`] bytes.
pub(super) const LONG_PART: Key = Key::MAX;

/// Ids of a part; the last one is the inverse of their number if they are fewer. Or [`SPILLED`], and the index and the
/// number of ids in `spilled`.
pub(super) type PartIds = [u32; MAX_IDS];

#[derive(Debug)]
pub(super) struct PartCache {
    lines: RandomTable<Line>,
    spilled: Vec<u32>,
    long: HashMap<Box<[u8]>, Box<[u32]>>,
    long_bytes: usize,
}

/// Two entries with the same hash, in one cache line of the processor; the first is the more recent.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C, align(64))]
struct Line([CachedPart; 2]);

#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C, align(32))]
struct CachedPart {
    key: Key,
    ids: PartIds,
}

impl Line {
    /// Returns the entry of `key`, or another one.
    #[inline]
    fn entry(&self, key: Key) -> &CachedPart {
        // Selects without a branch: which entry it is cannot be predicted.
        &self.0[usize::from(self.0[1].key == key)]
    }
}

#[inline]
pub(super) fn count(ids: &PartIds) -> usize {
    // The inverse of an id is large.
    MAX_IDS.min(!ids[MAX_IDS - 1] as usize)
}

/// Returns the key of a part; [`LONG_PART`] for more than [`MAX_SHORT`] bytes.
#[inline]
pub(super) fn key(part: &[u8]) -> Key {
    if part.len() > MAX_SHORT {
        return LONG_PART;
    }
    let mut bytes = [0; 16];
    bytes[..part.len()].copy_from_slice(part);
    bytes[15] = part.len() as u8;
    u128::from_le_bytes(bytes)
}

/// Returns the key of the first `length` bytes; [`LONG_PART`] for more than [`MAX_SHORT`].
#[inline]
pub(super) fn key_of_start(bytes: [u8; 16], length: usize) -> Key {
    /// Bits of the first bytes.
    const FIRST: [u128; MAX_SHORT + 1] = {
        let mut bits = [0; MAX_SHORT + 1];
        let mut length = 0;
        while length <= MAX_SHORT {
            bits[length] = (1 << (8 * length)) - 1;
            length += 1;
        }
        bits
    };
    match FIRST.get(length) {
        Some(first) => u128::from_le_bytes(bytes) & first | (length as u128) << 120,
        None => LONG_PART,
    }
}

impl PartCache {
    /// Maximum memory of a cache, in bytes: 40 MiB.
    pub(super) const MAX_BYTES: usize = MAX_LINES * BYTES_PER_LINE;

    /// Creates an empty cache of up to `bytes` of memory, at most [`Self::MAX_BYTES`].
    pub(super) fn new(bytes: usize) -> Self {
        let lines = (bytes / BYTES_PER_LINE).clamp(MIN_LINES, MAX_LINES);
        Self {
            lines: RandomTable::zeroed(1 << lines.ilog2()),
            spilled: Vec::new(),
            long: HashMap::new(),
            long_bytes: 0,
        }
    }

    /// Finds the lines of parts and reads each once, so that their cache misses overlap.
    #[inline]
    pub(super) fn load_lines(&self, keys: &[Key], lines: &mut [usize]) {
        let mut read = 0;
        for (key, line) in keys.iter().zip(lines) {
            *line = self.line(*key);
            read ^= self.lines[*line].0[0].ids[0];
        }
        std::hint::black_box(read);
    }

    /// Returns the ids of a short part; `None` if they are not cached or more than [`MAX_IDS`]. `line`: that of `key`.
    #[inline]
    pub(super) fn ids(&self, key: Key, line: usize) -> Option<&PartIds> {
        let found = self.lines[line].entry(key);
        (found.key == key && found.ids[0] != SPILLED).then_some(&found.ids)
    }

    /// Appends the ids of a short part to `ids`, cached or from `encode`. `line`: that of `key`.
    #[inline]
    pub(super) fn short(
        &mut self,
        key: Key,
        line: usize,
        ids: &mut Vec<u32>,
        encode: impl FnOnce(&mut Vec<u32>),
    ) {
        let found = self.lines[line].entry(key);
        if found.key != key {
            return self.add_short(key, line, ids, encode);
        }
        match found.ids {
            [SPILLED, start, length, _] => {
                let start = start as usize;
                ids.extend_from_slice(&self.spilled[start..start + length as usize]);
            }
            of_part => ids.extend_from_slice(&of_part[..count(&of_part)]),
        }
    }

    #[cold]
    fn add_short(
        &mut self,
        key: Key,
        line: usize,
        ids: &mut Vec<u32>,
        encode: impl FnOnce(&mut Vec<u32>),
    ) {
        let first = ids.len();
        encode(ids);
        let of_part = &ids[first..];
        let mut entry = CachedPart { key, ids: [!(of_part.len() as u32); MAX_IDS] };
        if of_part.len() <= MAX_IDS {
            entry.ids[..of_part.len()].copy_from_slice(of_part);
        } else {
            if self.spilled.len() + of_part.len() > SPILLED_PER_LINE * self.lines.len() {
                self.forget_spilled();
            }
            entry.ids = [SPILLED, self.spilled.len() as u32, of_part.len() as u32, 0];
            self.spilled.extend_from_slice(of_part);
        }
        let Line(entries) = &mut self.lines[line];
        entries[1] = entries[0];
        entries[0] = entry;
    }

    fn forget_spilled(&mut self) {
        self.spilled.clear();
        for entry in self.lines.iter_mut().flat_map(|line| &mut line.0) {
            if entry.ids[0] == SPILLED {
                entry.key = 0;
            }
        }
    }

    /// Appends the ids of a part of more than [`MAX_SHORT`] bytes, cached up to [`MAX_LONG`] bytes.
    pub(super) fn long(
        &mut self,
        part: &[u8],
        ids: &mut Vec<u32>,
        encode: impl FnOnce(&mut Vec<u32>),
    ) {
        if part.len() > MAX_LONG {
            return encode(ids);
        }
        if let Some(known) = self.long.get(part) {
            ids.extend_from_slice(known);
            return;
        }
        let first = ids.len();
        encode(ids);
        let of_part: Box<[u32]> = ids[first..].into();
        let bytes = part.len() + size_of_val(&*of_part) + size_of::<(Box<[u8]>, Box<[u32]>)>();
        if self.long_bytes + bytes > LONG_BYTES_PER_LINE * self.lines.len() {
            self.long.clear();
            self.long_bytes = 0;
        }
        self.long_bytes += bytes;
        self.long.insert(part.into(), of_part);
    }

    #[inline]
    pub(super) fn line(&self, key: Key) -> usize {
        let low = key as u64 ^ 0xA076_1D64_78BD_642F;
        let high = (key >> 64) as u64 ^ 0xE703_7ED1_A0B4_28DB;
        let product = u128::from(low) * u128::from(high);
        (product as u64 ^ (product >> 64) as u64) as usize & (self.lines.len() - 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Ids that depend on the part only.
    fn encode(part: &[u8]) -> impl FnOnce(&mut Vec<u32>) {
        let ids: Vec<u32> = part.iter().map(|byte| u32::from(*byte)).collect();
        let tokens = 1 + ids.len() % 7;
        move |into| into.extend(ids.into_iter().cycle().take(tokens))
    }

    #[test]
    fn cached_ids_match_the_encoder() {
        for bytes in [0, 1 << 20, usize::MAX] {
            check(PartCache::new(bytes));
        }
    }

    fn check(mut cache: PartCache) {
        let (mut ids, mut expected) = (Vec::new(), Vec::new());
        let mut misses = 0;
        for round in 0..2 {
            for number in 0..600_000_u32 {
                // Every second part returns in the second round; the others evict entries.
                let number = if round == 0 { number } else { number / 2 * 2 };
                let part = format!("{number:x}{}", "y".repeat(number as usize % 30));
                let part = part.as_bytes();
                ids.clear();
                expected.clear();
                encode(part)(&mut expected);
                let miss = |into: &mut Vec<u32>| {
                    misses += 1;
                    encode(part)(into);
                };
                match part.len() {
                    ..=MAX_SHORT => {
                        let key = key(part);
                        cache.short(key, cache.line(key), &mut ids, miss);
                    }
                    _ => cache.long(part, &mut ids, miss),
                }
                assert_eq!(ids, expected, "{number}");
            }
        }
        assert!(misses < 1_200_000, "some ids were cached");
        let lines = cache.lines.len();
        assert!(cache.spilled.len() <= SPILLED_PER_LINE * lines);
        assert!(cache.long_bytes <= LONG_BYTES_PER_LINE * lines);
    }

    #[test]
    fn the_key_of_a_start_is_the_key_of_its_bytes() {
        let bytes: [u8; 16] = std::array::from_fn(|at| 0xF0 - at as u8);
        for length in 1..=MAX_SHORT {
            assert_eq!(key_of_start(bytes, length), key(&bytes[..length]));
        }
        assert_eq!(key_of_start(bytes, MAX_SHORT + 1), LONG_PART);
    }

    #[test]
    fn trailing_zero_bytes_belong_to_a_part() {
        assert_ne!(key(b"a"), key(b"a\0"));
        assert_ne!(key(b"\0"), 0);
    }
}
