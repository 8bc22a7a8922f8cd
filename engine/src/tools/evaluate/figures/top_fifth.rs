//! The top fifth of a pool of one real to five other windows: its share of real windows.

use super::{DocumentCounts, Values, same_rank};
use crate::tools::evaluate::constructions::Pool;
use crate::tools::evaluate::windows::WindowOrigin;

/// Pool of each category, by descending value.
#[derive(Clone, Debug)]
pub(crate) struct TopFifth {
    categories: Vec<Vec<PoolEntry>>,
}

#[derive(Clone, Copy, Debug)]
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
        categories: usize,
        may_enter: impl Fn(usize) -> bool,
    ) -> Self {
        let mut pools = vec![Vec::new(); categories];
        for (window, (origin, value)) in origins.iter().zip(values).enumerate() {
            if let Some(value) = value.filter(|_| origin.kind().pools.contains(&pool)) {
                pools[origin.category].push(PoolEntry {
                    value,
                    origin: *origin,
                    may_enter: may_enter(window),
                });
            }
        }
        for pool in &mut pools {
            pool.sort_by(|a: &PoolEntry, b| b.value.total_cmp(&a.value));
        }
        Self { categories: pools }
    }

    /// Takes windows from the top until a fifth of the pool's weight is taken, equal values at the edge in equal
    /// parts. Returns the share of whole windows among them, over all categories.
    pub(crate) fn real_share(&self, counts: &DocumentCounts) -> Option<f64> {
        let (mut real, mut taken) = (0.0, 0.0);
        for pool in &self.categories {
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
        let all: usize = self.categories.iter().map(Vec::len).sum();
        let whole = self.categories.iter().flatten().filter(|entry| entry.origin.is_whole());
        (all > 0).then(|| whole.count() as f64 / all as f64)
    }
}
