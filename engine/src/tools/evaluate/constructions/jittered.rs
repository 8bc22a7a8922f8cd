//! Copies and boilerplate at varying distances: fixed distances favour a statistic that counts tokens at one distance.

use super::kind::{KindRole, Pool, WindowKind};
use crate::base::random::Rng;

pub(super) const BOILERPLATE: WindowKind = WindowKind {
    name: "boil_jit",
    role: KindRole::Junk,
    pools: &[Pool::Jittered],
    doc: "its first sixteenth repeated at varying distances between its text",
    construct: |base, rng| {
        let tokens = base.window.len();
        interleave(base.window, tokens / 16, 3 * tokens / 8, rng)
    },
};

pub(super) const HEADER: WindowKind = WindowKind {
    name: "header_jit",
    doc: "its first sixteen tokens repeated at varying distances between its text",
    construct: |base, rng| {
        let tokens = base.window.len();
        interleave(base.window, (tokens / 32).min(16), tokens / 8, rng)
    },
    ..BOILERPLATE
};

pub(super) const DUPLICATED: WindowKind = WindowKind {
    name: "dup_indel",
    doc: "its first half twice, with tokens changed, inserted and omitted in the copy",
    construct: |base, rng| {
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
        Some(window)
    },
    ..BOILERPLATE
};

/// Alternates the first `block` tokens with ranges of the rest whose length varies by half around `period - block`.
fn interleave(window: &[u32], block: usize, period: usize, rng: &mut Rng) -> Option<Vec<u32>> {
    let tokens = window.len();
    let (mut next, mut built) = (block, Vec::with_capacity(2 * tokens));
    let mut length = 0;
    while block > 0 && length < tokens {
        let stretch = (period - block) / 2 + rng.below(period - block);
        built.extend_from_slice(&window[..block]);
        built.extend_from_slice(&window[next.min(tokens)..(next + stretch).min(tokens)]);
        next += stretch;
        length += block + stretch;
    }
    built.truncate(tokens);
    (block > 0).then_some(built)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tools::evaluate::constructions::kind::Base;

    fn built(kind: &WindowKind, tokens: usize, key: u64) -> Option<Vec<u32>> {
        let window: Vec<u32> = (0..tokens as u32).collect();
        (kind.construct)(&Base { window: &window, others: &[] }, &mut Rng::new(key))
    }

    #[test]
    fn blocks_recur_at_varying_distances_between_continuous_text() {
        for (kind, block, period) in [(BOILERPLATE, 64, 384), (HEADER, 16, 128)] {
            let window = built(&kind, 1024, 7).unwrap();
            let starts: Vec<usize> = (0..1024).filter(|place| window[*place] == 0).collect();
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
    fn windows_too_short_for_a_block_are_not_built() {
        assert_eq!((built(&BOILERPLATE, 15, 1), built(&HEADER, 31, 1)), (None, None));
        assert!(built(&BOILERPLATE, 16, 1).is_some() && built(&HEADER, 32, 1).is_some());
    }

    #[test]
    fn copies_have_about_as_many_insertions_as_omissions() {
        let window = built(&DUPLICATED, 12_000, 3).unwrap();
        assert_eq!(window[..6000], (0..6000).collect::<Vec<u32>>());
        let copied = window[6000..].iter().filter(|id| **id < 6000).count();
        assert!((5800..=6000).contains(&copied), "{copied}");
        let distances: std::collections::BTreeSet<usize> = (6000..12_000)
            .filter(|place| window[*place] < 6000)
            .map(|place| place - window[place] as usize)
            .collect();
        assert!(distances.len() > 50, "distances vary: {}", distances.len());
    }
}
