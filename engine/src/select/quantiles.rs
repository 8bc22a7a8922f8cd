//! Bounds of a guard at quantiles of a group, found in passes over its samples.

use longsift_stages::contract::Decimal;
use longsift_stages::filter::guards::{Bounds, Guard, quantile_weight};

use super::radix::{Search, key, value};

/// Search for the quantiles of a guard.
pub(super) struct Quantiles<'a> {
    guard: &'a Guard,
    statistic: usize,
    /// Weight of all samples that have the statistic.
    weight: u64,
    low: Option<(Decimal, Search)>,
    high: Option<(Decimal, Search)>,
}

impl<'a> Quantiles<'a> {
    pub(super) fn new(guard: &'a Guard, statistic: usize, samples: u64) -> Self {
        let search = |quantile: Decimal| (quantile, Search::among(samples));
        let (low, high) = (guard.min_quantile.map(search), guard.max_quantile.map(search));
        Self { guard, statistic, weight: 0, low, high }
    }

    pub(super) fn searches(&mut self) -> impl Iterator<Item = &mut (Decimal, Search)> {
        self.low.iter_mut().chain(&mut self.high)
    }

    pub(super) fn add(&mut self, values: &[f64], tokens: u64, pass: u32) {
        let value = values[self.statistic];
        if !value.is_finite() {
            return;
        }
        let weight = self.guard.weight(tokens);
        if pass == 0 {
            self.weight = self.weight.saturating_add(weight);
        }
        self.searches().for_each(|(_, search)| search.add(key(value), weight));
    }

    pub(super) fn end_pass(&mut self) {
        let weight = self.weight;
        self.searches().for_each(|(quantile, search)| {
            search.end_pass(quantile_weight(*quantile, weight));
        });
    }

    pub(super) fn are_finished(&self) -> bool {
        self.low.iter().chain(&self.high).all(|(_, search)| search.is_finished())
    }

    pub(super) fn bounds(&self) -> Bounds {
        let at = |of: &Option<(Decimal, Search)>| Some(value(of.as_ref()?.1.found()?.key));
        self.guard.bounds(at(&self.low), at(&self.high))
    }
}
