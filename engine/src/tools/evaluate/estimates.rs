//! Measures of how well a statistic separates windows, as functions of the windows' values and of the documents' counts.
//! Counts are integers, so that resampled replicates use the same code, and sums do not depend on their order.

pub(crate) mod agreement;
pub(crate) mod bootstrap;

use std::cmp::Ordering;

use schemars::JsonSchema;
use serde::Serialize;

use super::constructions::Pool;
use super::windows::WindowOrigin;

/// Values of a statistic by window; windows without a finite one are left out of its results.
pub(crate) type Values = [Option<f64>];

/// A value with its 95 % bootstrap interval: `[value, low, high]`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, JsonSchema)]
#[schemars(with = "Option<[Option<f64>; 3]>", rename = "Figure")]
#[serde(into = "Option<[Option<f64>; 3]>")]
pub(crate) struct IntervalEstimate {
    /// Value; `None` without a pair of windows.
    pub(crate) value: Option<f64>,
    /// Interval; `None` if no replicate had a pair.
    pub(crate) interval: Option<[f64; 2]>,
}

impl From<IntervalEstimate> for Option<[Option<f64>; 3]> {
    fn from(estimate: IntervalEstimate) -> Self {
        let [low, high] = estimate.interval.map_or([None; 2], |interval| interval.map(Some));
        estimate.value.map(|value| [Some(value), low, high])
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DocumentCounts(pub(crate) Vec<Vec<u32>>);

impl DocumentCounts {
    pub(crate) fn count(&self, origin: &WindowOrigin) -> u64 {
        u64::from(self.0[origin.category][origin.document])
    }
}

/// Returns whether two values have the same rank; 0 and -0 do.
pub(crate) fn same_rank(a: f64, b: f64) -> bool {
    a.partial_cmp(&b).is_some_and(Ordering::is_eq)
}

/// Returns twice the wins of `a` over `b`: 2 if it is larger, 1 if they are equal.
fn wins_doubled(a: f64, b: f64) -> u64 {
    u64::from(a >= b) + u64::from(a > b)
}

/// Groups windows by category; `entry` takes the index of a window and leaves out those for which it returns `None`.
pub(crate) fn by_category<T: Clone>(
    origins: &[WindowOrigin],
    entry: impl Fn(usize, &WindowOrigin) -> Option<T>,
) -> Vec<Vec<T>> {
    let categories = origins.iter().map(|origin| origin.category + 1).max().unwrap_or(0);
    let mut all = vec![Vec::new(); categories];
    for (window, origin) in origins.iter().enumerate() {
        all[origin.category].extend(entry(window, origin));
    }
    all
}

/// The ladder: how often a whole window ranks above a window of pieces of the same category. By category, both are sorted by
/// ascending value once for all replicates.
pub(crate) struct Ladder(Vec<Vec<(f64, WindowOrigin)>>);

impl Ladder {
    /// Compares whole windows with those of a kind.
    pub(crate) fn new(origins: &[WindowOrigin], values: &Values, kind: &str) -> Self {
        let mut sorted = by_category(origins, |window, origin| {
            let is_compared = origin.is_whole() || origin.kind().name == kind;
            Some((values[window].filter(|_| is_compared)?, *origin))
        });
        for windows in &mut sorted {
            windows.sort_by(|(a, _), (b, _)| a.total_cmp(b));
        }
        Self(sorted)
    }

    /// Returns the AUROC over the pairs of all categories.
    pub(crate) fn pooled(&self, counts: &DocumentCounts) -> Option<f64> {
        let sum = |(a, b): (u64, u64), (wins, pairs): (u64, u64)| (a + wins, b + pairs);
        share(self.0.iter().map(|of| pairs(of, counts)).fold((0, 0), sum))
    }

    pub(crate) fn in_category(&self, category: usize, counts: &DocumentCounts) -> Option<f64> {
        share(pairs(&self.0[category], counts))
    }
}

fn share((wins_doubled, pairs): (u64, u64)) -> Option<f64> {
    (pairs > 0).then(|| wins_doubled as f64 / (2 * pairs) as f64)
}

/// Returns twice the pairs that the whole window wins, and all pairs, weighted by the product of their documents' counts.
fn pairs(sorted: &[(f64, WindowOrigin)], counts: &DocumentCounts) -> (u64, u64) {
    let (mut wins_doubled, mut whole, mut mixed) = (0, 0, 0);
    for equal in sorted.chunk_by(|(a, _), (b, _)| same_rank(*a, *b)) {
        let side = |whole: bool| -> u64 {
            let windows = equal.iter().filter(|(_, origin)| origin.is_whole() == whole);
            windows.map(|(_, origin)| counts.count(origin)).sum()
        };
        let (whole_here, mixed_here) = (side(true), side(false));
        wins_doubled += whole_here * (2 * mixed + mixed_here);
        whole += whole_here;
        mixed += mixed_here;
    }
    (wins_doubled, whole * mixed)
}

/// Pairs the windows of two kinds of the same base, if both have a value. Returns the origin of the first, and both values.
pub(crate) fn pairs_of_kinds(
    origins: &[WindowOrigin],
    values: &Values,
    first: &str,
    second: &str,
) -> Vec<(WindowOrigin, (f64, f64))> {
    let windows: Vec<(&WindowOrigin, &Option<f64>)> = origins.iter().zip(values).collect();
    // Windows of the same base are consecutive.
    let bases = windows.chunk_by(|(a, _), (b, _)| a.same_base(b));
    let pair = |base: &[(&WindowOrigin, &Option<f64>)]| {
        let of = |name: &str| {
            let (origin, value) = base.iter().find(|(origin, _)| origin.kind().name == name)?;
            Some((**origin, (**value)?))
        };
        let ((origin, a), (_, b)) = (of(first)?, of(second)?);
        Some((origin, (a, b)))
    };
    bases.filter_map(pair).collect()
}

/// Returns the share of pairs of windows that the first wins; draws count half, and pairs are weighted by their document's count.
pub(crate) fn share_of_wins(
    pairs: &[(WindowOrigin, (f64, f64))],
    counts: &DocumentCounts,
) -> Option<f64> {
    let add = |(wins, pairs), (origin, (a, b)): &(WindowOrigin, (f64, f64))| {
        let count = counts.count(origin);
        (wins + wins_doubled(*a, *b) * count, pairs + count)
    };
    share(pairs.iter().fold((0, 0), add))
}

/// The top fifth of a pool of one real to five other windows, with its share of real windows. The pool of each category is sorted
/// by descending value.
pub(crate) struct TopFifth(Vec<Vec<PoolEntry>>);

#[derive(Clone)]
struct PoolEntry {
    value: f64,
    origin: WindowOrigin,
    may_enter: bool,
}

impl TopFifth {
    /// `may_enter`, by window: a window that a guard rejects is never taken, but counts for the size of the fifth.
    pub(crate) fn new(
        pool: Pool,
        origins: &[WindowOrigin],
        values: &Values,
        may_enter: Option<&[bool]>,
    ) -> Self {
        let mut pools = by_category(origins, |window, origin| {
            let value = values[window].filter(|_| origin.kind().pools.contains(&pool))?;
            let may_enter = may_enter.is_none_or(|may| may[window]);
            Some(PoolEntry { value, origin: *origin, may_enter })
        });
        for pool in &mut pools {
            pool.sort_by(|a: &PoolEntry, b| b.value.total_cmp(&a.value));
        }
        Self(pools)
    }

    /// Returns the share of whole windows in the top fifth of the pools' weight; equal values at the edge are taken in equal parts.
    pub(crate) fn real_share(&self, counts: &DocumentCounts) -> Option<f64> {
        let (mut real, mut taken) = (0.0, 0.0);
        for pool in &self.0 {
            let weight = |entries: &[PoolEntry], of: fn(&PoolEntry) -> bool| -> f64 {
                entries
                    .iter()
                    .filter(|entry| of(entry))
                    .map(|entry| counts.count(&entry.origin))
                    .sum::<u64>() as f64
            };
            let mut room = 0.2 * weight(pool, |_| true);
            for equal in pool.chunk_by(|a, b| same_rank(a.value, b.value)) {
                let here = weight(equal, |entry| entry.may_enter);
                if here == 0.0 {
                    continue;
                }
                let part = (room / here).min(1.0);
                real += part * weight(equal, |entry| entry.may_enter && entry.origin.is_whole());
                taken += part * here;
                room -= part * here;
                if room <= 0.0 {
                    break;
                }
            }
        }
        (taken > 0.0).then(|| real / taken)
    }

    /// Returns the share of whole windows in the pools.
    pub(crate) fn by_chance(&self) -> Option<f64> {
        let all: usize = self.0.iter().map(Vec::len).sum();
        let whole = self.0.iter().flatten().filter(|entry| entry.origin.is_whole());
        (all > 0).then(|| whole.count() as f64 / all as f64)
    }
}
