//! Constructed windows of an evaluation, made of whole windows, which a score should rank lower.
//!
//! A construction is a row of [`KINDS`]: a function of the base window, the other sampled documents of its category, and random
//! numbers, which are drawn in the order of the code.

use KindRole::{Dependence, Information, Junk, Ladder, Planted, PlantedTwin, Tokens, Whole};

use crate::base::random::Rng;

#[derive(Clone, Copy, Debug)]
pub(crate) struct Base<'a> {
    /// Whole window: `[tokens]`.
    pub(crate) window: &'a [u32],
    /// Other sampled documents of the category in sample order, each at least as long as the window.
    pub(crate) others: &'a [&'a [u32]],
}

/// Function that returns as many ids as the base has; `None` if the category has too few documents or the window is too short.
type Construct = fn(&Base<'_>, &mut Rng) -> Option<Vec<u32>>;

#[derive(Clone, Copy, Debug)]
pub(crate) struct WindowKind {
    /// Name in tables and files: `pieces_8`.
    pub(crate) name: &'static str,
    pub(crate) role: KindRole,
    /// Pools of one real to five other windows for the top-fifth test.
    pub(crate) pools: &'static [Pool],
    /// Description as a noun phrase: `pieces of eight documents`.
    pub(crate) doc: &'static str,
    pub(crate) construct: Construct,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pool {
    Fixed,
    /// Copies and boilerplate at varying distances: fixed distances favour a statistic that counts tokens at one distance.
    Jittered,
}

/// Comparison in which a kind is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum KindRole {
    /// A window of the corpus itself.
    Whole,
    /// Compared with all whole windows of the category: the ladder.
    Ladder,
    /// Compared with the whole window it was made of: its long-range dependence is removed.
    Dependence,
    /// Contains inserted long-range dependence; compared with its twin, which has the same tokens without it.
    Planted,
    PlantedTwin,
    /// Junk, compared with the whole window it was made of, which should rank higher.
    Junk,
    /// Compared with the whole window it was made of, for information only.
    Information,
    /// Only correlated with the whole window: shows how much of a score depends on the tokens alone.
    Tokens,
}

const FIXED: &[Pool] = &[Pool::Fixed];
const JITTERED: &[Pool] = &[Pool::Jittered];
const BOTH: &[Pool] = &[Pool::Fixed, Pool::Jittered];

/// All kinds, in the order in which the windows of a base are built.
pub(crate) const KINDS: [WindowKind; 18] = [
    kind("whole", Whole, BOTH, |base, _| Some(base.window.to_vec()))
        .doc("a window of one document"),
    kind("pieces_2", Ladder, &[], |base, rng| join(base, 2, rng)).doc("pieces of two documents"),
    kind("pieces_4", Ladder, &[], |base, rng| join(base, 4, rng)).doc("pieces of four documents"),
    kind("pieces_8", Ladder, BOTH, |base, rng| join(base, 8, rng)).doc("pieces of eight documents"),
    kind("far_permute", Dependence, &[], |base, rng| {
        Some(shuffle(base, base.window.len() / 2, 1, rng))
    })
    .doc("its first half in random order"),
    kind("far_swap", Dependence, &[], swap_half).doc("its first half from another document"),
    kind("plant", Planted, &[], |base, rng| plant(base, rng).map(|(window, _)| window))
        .doc("sixteen short facts in its first quarter, again in its last"),
    kind("plant_twin", PlantedTwin, &[], plant_twin)
        .doc("as `plant`, with the tokens of the repeated facts shuffled"),
    kind("chunk_shuffle", Information, &[], |base, rng| {
        let tokens = base.window.len();
        Some(shuffle(base, tokens, (tokens / 16).max(1), rng))
    })
    .doc("its sixteen chunks in random order (turns near links into far ones)"),
    kind("token_shuffle", Tokens, &[], |base, rng| Some(shuffle(base, base.window.len(), 1, rng)))
        .doc("its tokens in random order"),
    kind("dup", Junk, FIXED, |base, rng| Some(duplicate(base, rng)))
        .doc("its first half twice, one token in twenty changed in the copy"),
    kind("rep", Junk, BOTH, |base, _| Some(repeat_beginning(base)))
        .doc("its first 256 tokens repeated"),
    kind("boil_far", Junk, FIXED, |base, _| repeat(base, FAR))
        .doc("its first sixteenth repeated far apart between its text"),
    kind("boil_near", Junk, &[], |base, _| repeat(base, NEAR))
        .doc("its first block repeated eight times between its text"),
    kind("header", Junk, FIXED, |base, _| repeat(base, HEADER))
        .doc("its first sixteen tokens repeated eight times between its text"),
    kind("boil_jit", Junk, JITTERED, |base, rng| repeat_jittered(base, FAR, rng))
        .doc("its first sixteenth repeated at varying distances between its text"),
    kind("header_jit", Junk, JITTERED, |base, rng| repeat_jittered(base, HEADER, rng))
        .doc("its first sixteen tokens repeated at varying distances between its text"),
    kind("dup_indel", Junk, JITTERED, |base, rng| Some(duplicate_with_edits(base, rng)))
        .doc("its first half twice, with tokens changed, inserted and omitted in the copy"),
];

const fn kind(
    name: &'static str,
    role: KindRole,
    pools: &'static [Pool],
    construct: Construct,
) -> WindowKind {
    WindowKind { name, role, pools, doc: "", construct }
}

impl WindowKind {
    const fn doc(self, doc: &'static str) -> Self {
        Self { doc, ..self }
    }

    /// Returns the key of its random numbers: the name, except for twins that differ only in their last step.
    pub(crate) fn key(&self) -> &'static str {
        self.name.trim_end_matches("_twin")
    }
}

impl Base<'_> {
    fn span(&self, other: usize, length: usize, rng: &mut Rng) -> &[u32] {
        let document = self.others[other];
        let start = rng.below(document.len() - length + 1);
        &document[start..start + length]
    }
}

/// Joins pieces of several documents to one window, as packing and faulty extraction produce them. Keeps one piece of the base
/// in place and takes the others from other documents; cuts are offset randomly from equal parts.
fn join(base: &Base<'_>, pieces: usize, rng: &mut Rng) -> Option<Vec<u32>> {
    let tokens = base.window.len();
    let length = tokens / pieces;
    if base.others.len() < pieces - 1 || length < 2 {
        return None;
    }
    let step = rng.below(length);
    let cut = |piece: usize| match piece {
        0 => 0,
        _ if piece == pieces => tokens,
        _ => piece * length + step - length / 2,
    };
    let mut order = rng.permutation(base.others.len()).into_iter();
    let own = rng.below(pieces);
    let mut window = base.window.to_vec();
    for piece in (0..pieces).filter(|piece| *piece != own) {
        let (start, end) = (cut(piece), cut(piece + 1));
        let other = order.next().expect("there are enough documents");
        window[start..end].copy_from_slice(base.span(other, end - start, rng));
    }
    Some(window)
}

/// Permutes the first `tokens` of a window in chunks of `length` tokens.
fn shuffle(base: &Base<'_>, tokens: usize, length: usize, rng: &mut Rng) -> Vec<u32> {
    let order = rng.permutation(tokens / length);
    let mut window = base.window.to_vec();
    for (chunk, from) in window.chunks_exact_mut(length).zip(order) {
        chunk.copy_from_slice(&base.window[from * length..][..length]);
    }
    window
}

fn swap_half(base: &Base<'_>, rng: &mut Rng) -> Option<Vec<u32>> {
    let half = base.window.len() / 2;
    let other = (!base.others.is_empty()).then(|| rng.below(base.others.len()))?;
    let mut window = base.window.to_vec();
    window[..half].copy_from_slice(base.span(other, half, rng));
    Some(window)
}

/// Number of planted facts, and tokens of each.
const FACTS: usize = 16;
const FACT_TOKENS: usize = 6;

/// Inserts short facts of another document in the first quarter of the window and repeats them in the last: exactly what
/// long-range recurrence detects. Returns the window, and the indices of all tokens of the repeated facts in order.
fn plant(base: &Base<'_>, rng: &mut Rng) -> Option<(Vec<u32>, Vec<usize>)> {
    let tokens = base.window.len();
    let slot = tokens / 4 / FACTS;
    if base.others.is_empty() || slot < FACT_TOKENS {
        return None;
    }
    let other = rng.below(base.others.len());
    let facts: Vec<&[u32]> = (0..FACTS).map(|_| base.span(other, FACT_TOKENS, rng)).collect();
    let order = rng.permutation(FACTS);
    let positions = |first: usize, rng: &mut Rng| -> Vec<usize> {
        let offsets = slot - FACT_TOKENS + 1;
        (0..FACTS).map(|fact| first + fact * slot + rng.below(offsets)).collect()
    };
    let front = positions(0, rng);
    let back = positions(tokens - FACTS * slot, rng);
    let mut window = base.window.to_vec();
    for fact in 0..FACTS {
        window[front[fact]..][..FACT_TOKENS].copy_from_slice(facts[fact]);
        window[back[fact]..][..FACT_TOKENS].copy_from_slice(facts[order[fact]]);
    }
    Some((window, back.iter().flat_map(|start| *start..start + FACT_TOKENS).collect()))
}

fn plant_twin(base: &Base<'_>, rng: &mut Rng) -> Option<Vec<u32>> {
    let (mut window, indices) = plant(base, rng)?;
    let facts: Vec<u32> = indices.iter().map(|index| window[*index]).collect();
    let order = rng.permutation(facts.len());
    indices.iter().zip(order).for_each(|(index, from)| window[*index] = facts[from]);
    Some(window)
}

fn duplicate(base: &Base<'_>, rng: &mut Rng) -> Vec<u32> {
    let (tokens, half) = (base.window.len(), base.window.len() / 2);
    let mut window = base.window.to_vec();
    window.copy_within(..half, half);
    for id in &mut window[half..2 * half] {
        if rng.below(20) == 0 {
            *id = base.window[rng.below(tokens)];
        }
    }
    window
}

fn duplicate_with_edits(base: &Base<'_>, rng: &mut Rng) -> Vec<u32> {
    let (tokens, half) = (base.window.len(), base.window.len() / 2);
    let mut window = base.window[..half].to_vec();
    for id in &base.window[..half] {
        match rng.below(60) {
            0 => window.push(base.window[rng.below(tokens)]),
            1 => window.extend([*id, base.window[rng.below(tokens)]]),
            2 => {}
            _ => window.push(*id),
        }
    }
    window.extend_from_slice(&base.window[half..]);
    window.truncate(tokens);
    window
}

fn repeat_beginning(base: &Base<'_>) -> Vec<u32> {
    let period = (base.window.len() / 4).clamp(1, 256);
    (0..base.window.len()).map(|index| base.window[index % period]).collect()
}

/// Tokens of a repeated block and its period, as a function of the tokens of the window.
type Boilerplate = fn(usize) -> (usize, usize);

const FAR: Boilerplate = |tokens| (tokens / 16, 3 * tokens / 8);
const NEAR: Boilerplate = |tokens| (tokens / 32, tokens / 8);
const HEADER: Boilerplate = |tokens| ((tokens / 32).min(16), tokens / 8);

/// Repeats the beginning of a window at a fixed period between its text, like page headers, licences and menus.
fn repeat(base: &Base<'_>, boilerplate: Boilerplate) -> Option<Vec<u32>> {
    let (block, period) = boilerplate(base.window.len());
    interleave(base.window, block, || period - block)
}

/// Repeats the beginning of a window at distances that vary by half around the period without the block.
fn repeat_jittered(base: &Base<'_>, boilerplate: Boilerplate, rng: &mut Rng) -> Option<Vec<u32>> {
    let (block, period) = boilerplate(base.window.len());
    interleave(base.window, block, || (period - block) / 2 + rng.below(period - block))
}

/// Alternates the first `block` tokens with ranges of the rest, of `next_length()` tokens each, cut to the window's length.
fn interleave(
    window: &[u32],
    block: usize,
    mut next_length: impl FnMut() -> usize,
) -> Option<Vec<u32>> {
    let tokens = window.len();
    let (mut start, mut built) = (block, Vec::with_capacity(2 * tokens));
    while block > 0 && built.len() < tokens {
        let end = (start + next_length()).min(tokens);
        built.extend_from_slice(&window[..block]);
        built.extend_from_slice(&window[start..end]);
        start = end;
    }
    built.truncate(tokens);
    (block > 0).then_some(built)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn built(name: &str, tokens: usize, key: u64) -> Option<Vec<u32>> {
        let window: Vec<u32> = (0..tokens as u32).collect();
        let kind = KINDS.iter().find(|kind| kind.name == name).unwrap();
        (kind.construct)(&Base { window: &window, others: &[] }, &mut Rng::new(key))
    }

    #[test]
    fn blocks_recur_at_varying_distances_between_continuous_text() {
        for (kind, block, period) in [("boil_jit", 64, 384), ("header_jit", 16, 128)] {
            let window = built(kind, 1024, 7).unwrap();
            let starts: Vec<usize> = (0..1024).filter(|index| window[*index] == 0).collect();
            let distances: Vec<usize> = starts.windows(2).map(|pair| pair[1] - pair[0]).collect();
            let (min, max) = (block + (period - block) / 2, block + 3 * (period - block) / 2);
            assert!(distances.iter().all(|of| (min..max).contains(of)), "{distances:?}");
            assert!(distances.windows(2).any(|pair| pair[0] != pair[1]), "{distances:?}");
            let text: Vec<u32> = window.into_iter().filter(|id| *id >= block as u32).collect();
            let expected: Vec<u32> = (block as u32..).take(text.len()).collect();
            assert_eq!(text, expected);
        }
    }

    #[test]
    fn blocks_recur_at_a_fixed_period_between_continuous_text() {
        for (kind, block, period) in [("boil_far", 64, 384), ("boil_near", 32, 128)] {
            let window = built(kind, 1024, 7).unwrap();
            let starts: Vec<usize> = (0..1024).filter(|index| window[*index] == 0).collect();
            assert_eq!(starts, (0..1024).step_by(period).collect::<Vec<_>>());
            let text: Vec<u32> = window.into_iter().filter(|id| *id >= block).collect();
            assert_eq!(text, (block..).take(text.len()).collect::<Vec<u32>>());
        }
    }

    #[test]
    fn windows_too_short_for_a_block_are_not_built() {
        assert_eq!((built("boil_jit", 15, 1), built("header_jit", 31, 1)), (None, None));
        assert!(built("boil_jit", 16, 1).is_some() && built("header_jit", 32, 1).is_some());
    }

    #[test]
    fn copies_have_about_as_many_insertions_as_omissions() {
        let window = built("dup_indel", 12_000, 3).unwrap();
        assert_eq!(window[..6000], (0..6000).collect::<Vec<u32>>());
        let copied = window[6000..].iter().filter(|id| **id < 6000).count();
        assert!((5800..=6000).contains(&copied), "{copied}");
        let distances: std::collections::BTreeSet<usize> = (6000..12_000)
            .filter(|index| window[*index] < 6000)
            .map(|index| index - window[index] as usize)
            .collect();
        assert!(distances.len() > 50, "distances vary: {}", distances.len());
    }
}
