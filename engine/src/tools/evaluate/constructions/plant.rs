//! Sixteen short facts of another document, inserted in the first quarter of the window and repeated in the last.
//!
//! These windows contain exactly what long-range recurrence detects: a high result shows only that the statistic works as
//! defined.

use super::kind::{Base, KindRole, WindowKind};
use crate::base::random::Rng;

/// Number of facts, and tokens of each.
const FACTS: usize = 16;
const LENGTH: usize = 6;

pub(super) const PLANTED: WindowKind = WindowKind {
    name: "plant",
    role: KindRole::Planted,
    pools: &[],
    doc: "sixteen short facts in its first quarter, again in its last",
    construct: |base, rng| plant(base, rng).map(|(window, _)| window),
};

pub(super) const TWIN: WindowKind = WindowKind {
    name: "plant_twin",
    role: KindRole::PlantedTwin,
    doc: "as `plant`, with the tokens of the repeated facts shuffled",
    construct: |base, rng| {
        let (mut window, places) = plant(base, rng)?;
        let facts: Vec<u32> = places.iter().map(|place| window[*place]).collect();
        let order = rng.permutation(facts.len());
        places.iter().zip(order).for_each(|(place, from)| window[*place] = facts[from]);
        Some(window)
    },
    ..PLANTED
};

/// Returns the window, and the indices of all tokens of the repeated facts in order.
fn plant(base: &Base<'_>, rng: &mut Rng) -> Option<(Vec<u32>, Vec<usize>)> {
    let tokens = base.window.len();
    let room = tokens / 4 / FACTS;
    if base.others.is_empty() || room < LENGTH {
        return None;
    }
    let other = rng.below(base.others.len());
    let facts: Vec<&[u32]> = (0..FACTS).map(|_| base.span(other, LENGTH, rng)).collect();
    let order = rng.permutation(FACTS);
    let place = |first: usize, rng: &mut Rng| -> Vec<usize> {
        let spare = room - LENGTH + 1;
        (0..FACTS).map(|fact| first + fact * room + rng.below(spare)).collect()
    };
    let front = place(0, rng);
    let back = place(tokens - FACTS * room, rng);
    let mut window = base.window.to_vec();
    for fact in 0..FACTS {
        window[front[fact]..front[fact] + LENGTH].copy_from_slice(facts[fact]);
        window[back[fact]..back[fact] + LENGTH].copy_from_slice(facts[order[fact]]);
    }
    Some((window, back.iter().flat_map(|place| *place..place + LENGTH).collect()))
}
