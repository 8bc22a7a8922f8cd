//! Data of the what-if panel for moved guards. For every bound of a guard, samples that no other bound rejects are
//! counted by the components of their score and by the bound's statistic: those that pass, and those that only this
//! bound rejects. So one bound can be moved to any step with exact counts.
//!
//! Statistics are counted in fine bins, which are finally merged into a few steps of about equal numbers of samples.
//! An upper bound is counted as a lower bound of the negated statistic: bins include their lower end, so a value equal
//! to the bound passes, as in a run.

use longsift_stages::filter::guards::{Bounds, Verdict, Weigh};
use serde::Serialize;

use super::bins::{BinScale, Binned, shifted};
use super::cells::{Cells, Sum};
use super::choice::Choice;
use super::grid::Components;
use crate::report::amount::Amount;

/// Cells per axis of the score with two components and with one.
const BINS_OF_TWO: i64 = 32;
const BINS_OF_ONE: i64 = 512;
/// Bins of a statistic during counting.
const FINE_BINS: i64 = 256;
/// Steps of a bound that is a value, and of one that is a quantile.
const STEPS: u64 = 32;
const QUANTILES: u64 = 20;
/// Maximum number of cells of a bound in memory, and of all bounds and groups on a page; beyond it cells are merged.
const MAX_CELLS_IN_MEMORY: usize = 32_768;
const MAX_CELLS_SHOWN: usize = 16_000;

/// A bound of a guard.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Bound {
    /// Index of the guard in the filter.
    guard: usize,
    statistic: String,
    /// Whether it is an upper bound.
    high: bool,
    /// Whether it is a quantile of each group.
    quantile: bool,
    /// Value or quantile in the pipeline.
    now: f64,
    /// Index of the statistic in the selection.
    #[serde(skip)]
    index: usize,
    /// Whether quantiles are weighted by tokens.
    #[serde(skip)]
    tokens: bool,
}

/// Returns the bounds of all guards. A bound with both a value and a quantile is moved by value.
pub(super) fn bounds(choice: &Choice, statistics: &[String]) -> Vec<Bound> {
    let mut bounds = Vec::new();
    for (guard, of) in choice.filter.guards.iter().enumerate() {
        let Some(index) = statistics.iter().position(|name| *name == of.statistic) else {
            continue;
        };
        let ends = [(false, of.min, of.min_quantile), (true, of.max, of.max_quantile)];
        for (high, value, quantile) in ends {
            let Some(now) = value.or(quantile.map(|quantile| quantile.0)) else { continue };
            let (statistic, tokens) = (of.statistic.clone(), of.weigh == Weigh::Tokens);
            let quantile = value.is_none();
            bounds.push(Bound { guard, statistic, high, quantile, now, index, tokens });
        }
    }
    bounds
}

/// Returns the guards that reject a sample with these statistics. `bounds`: of the sample's group; `indices`: indices
/// of the guards' statistics.
pub(super) fn rejecting<'a>(
    bounds: &'a [Bounds],
    indices: &'a [Option<usize>],
    statistics: &'a [f64],
) -> impl Iterator<Item = usize> + 'a {
    let rejects = |(bounds, index): (&Bounds, &Option<usize>)| {
        index.is_some_and(|index| bounds.judge(statistics[index]) == Verdict::Refused)
    };
    let guards = bounds.iter().zip(indices).map(rejects).enumerate();
    guards.filter(|(_, rejects)| *rejects).map(|(guard, _)| guard)
}

/// Returns the index of each guard's statistic in the selection.
pub(super) fn indices(choice: &Choice, statistics: &[String]) -> Vec<Option<usize>> {
    let index = |name: &String| statistics.iter().position(|own| own == name);
    choice.filter.guards.iter().map(|guard| index(&guard.statistic)).collect()
}

impl Bound {
    fn oriented(&self, statistics: &[f64]) -> f64 {
        if self.high { -statistics[self.index] } else { statistics[self.index] }
    }

    fn refuses(&self, group: &[Bounds], statistics: &[f64]) -> bool {
        let value = statistics[self.index];
        group.get(self.guard).is_some_and(|bounds| {
            if self.high {
                bounds.high.is_some_and(|high| value > high)
            } else {
                bounds.low.is_some_and(|low| value < low)
            }
        })
    }
}

/// Samples that pass every bound, and those that only one bound rejects.
type PassingAndRejected = [Amount; 2];

impl Sum for PassingAndRejected {
    const NONE: Self = [Amount::NONE; 2];

    fn sum(&mut self, other: Self) {
        self.iter_mut().zip(other).for_each(|(amount, more)| amount.add(more));
    }
}

/// Counts of one bound.
#[derive(Clone, Debug)]
struct BoundCounts {
    /// All samples by bin of the statistic.
    all: Binned<Amount>,
    /// Samples by cell of the score and bin of the statistic.
    cells: Cells<[i64; 3], PassingAndRejected>,
}

/// Samples of a group by bound.
#[derive(Clone, Debug)]
pub(super) struct GuardCounts {
    axes: [BinScale; 2],
    bounds: Vec<BoundCounts>,
    /// State of the sample being counted, by bound: its bin, and whether the bound rejects it.
    now: Vec<(i64, bool)>,
}

/// Cells of a group, as serialized for the page.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct GuardCells {
    /// Lower bound of bin 0 and width of a bin, by axis.
    from: [f64; 2],
    width: [f64; 2],
    /// Eight numbers per cell: the bound, the bins of both axes, the step; samples and tokens that pass every bound,
    /// samples and tokens that only this bound rejects. A bound moved to a step passes this step and later ones.
    numbers: Vec<u64>,
}

/// A bound with the steps to which it can be moved.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Sliding {
    #[serde(flatten)]
    bound: Bound,
    /// Values or quantiles of the steps, each stricter than the previous one; before the first step nothing is
    /// rejected.
    steps: Vec<f64>,
}

impl GuardCounts {
    pub(super) fn new(components: &Components, bounds: &[Bound]) -> Self {
        let (x, y) =
            if components.has_two() { (BINS_OF_TWO, BINS_OF_TWO) } else { (BINS_OF_ONE, 1) };
        let counted = BoundCounts { all: Binned::new(FINE_BINS), cells: Cells::new() };
        let bounds = vec![counted; bounds.len()];
        Self { axes: [BinScale::new(x), BinScale::new(y)], bounds, now: Vec::new() }
    }

    /// Counts a sample with these components; `group`: bounds of its group, by guard. A sample without a score still
    /// counts for quantiles, as in a run.
    pub(super) fn add(
        &mut self,
        bounds: &[Bound],
        group: &[Bounds],
        statistics: &[f64],
        (x, y): (f64, f64),
        amount: Amount,
    ) {
        self.now.clear();
        let mut refused = 0;
        for (bound, counted) in bounds.iter().zip(&mut self.bounds) {
            let (value, refuses) = (bound.oriented(statistics), bound.refuses(group, statistics));
            refused += usize::from(refuses);
            if value.is_finite() {
                let (bin, wider) = counted.all.add(value, amount);
                counted.widen([0, 0, wider]);
                self.now.push((bin, refuses));
            }
        }
        let is_scored = x.is_finite() && y.is_finite();
        if !is_scored || self.now.len() < bounds.len() || refused > 1 {
            return;
        }
        let ((x, x_wider), (y, y_wider)) = (self.axes[0].add(x), self.axes[1].add(y));
        self.widen([x_wider, y_wider]);
        for (counted, (bin, refuses)) in self.bounds.iter_mut().zip(&self.now) {
            if *refuses || refused == 0 {
                let mut both = PassingAndRejected::NONE;
                both[usize::from(*refuses)] = amount;
                counted.cells.add([x, y, *bin], both);
            }
        }
    }

    /// Adds the cells of another.
    pub(super) fn append(&mut self, other: &Self) {
        let (own_x, x) = self.axes[0].join(&other.axes[0]);
        let (own_y, y) = self.axes[1].join(&other.axes[1]);
        self.widen([own_x, own_y]);
        for (counted, more) in self.bounds.iter_mut().zip(&other.bounds) {
            let (own, theirs) = counted.all.append(&more.all);
            counted.widen([0, 0, own]);
            counted.cells.append(&more.cells, |cell| wider(cell, [x, y, theirs]));
        }
        while self.bounds.iter_mut().any(|of| of.cells.compacted().len() > MAX_CELLS_IN_MEMORY) {
            let by = self.halve();
            if by == [0, 0] {
                break;
            }
            self.widen(by);
        }
    }

    fn widen(&mut self, [x, y]: [u32; 2]) {
        self.bounds.iter_mut().for_each(|counted| counted.widen([x, y, 0]));
    }

    /// Widens the bins of the score. Returns by which powers of two.
    fn halve(&mut self) -> [u32; 2] {
        [self.axes[0].halve(), self.axes[1].halve()]
    }

    /// Returns the cells by step. `steps`: the first bin of each step; `by`: the power of two by which these bins are
    /// wider.
    fn cells(&mut self, steps: &[Vec<i64>], by: &[u32]) -> Cells<[i64; 4], PassingAndRejected> {
        let mut cells = Cells::new();
        let steps = steps.iter().zip(by);
        for (index, (counted, (edges, by))) in self.bounds.iter_mut().zip(steps).enumerate() {
            for ([x, y, bin], both) in counted.cells.compacted() {
                let step = edges.partition_point(|edge| *edge <= shifted(*bin, *by));
                cells.add([index as i64, *x, *y, step as i64], *both);
            }
        }
        cells
    }
}

impl BoundCounts {
    fn widen(&mut self, by: [u32; 3]) {
        if by != [0, 0, 0] {
            self.cells.merge(|cell| wider(cell, by));
        }
    }
}

fn wider([x, y, bin]: [i64; 3], by: [u32; 3]) -> [i64; 3] {
    [shifted(x, by[0]), shifted(y, by[1]), shifted(bin, by[2])]
}

/// Returns the bounds with their steps, and the cells of every group; `None` for a group without samples.
pub(super) fn collapse(
    bounds: &[Bound],
    groups: &mut [&mut GuardCounts],
) -> (Vec<Sliding>, Vec<Option<GuardCells>>) {
    let mut sliding = Vec::new();
    // First bin of each step, by group and bound, in bins widened by `by`.
    let mut edges: Vec<Vec<Vec<i64>>> = vec![Vec::new(); groups.len()];
    let mut by: Vec<Vec<u32>> = vec![Vec::new(); groups.len()];
    for (index, bound) in bounds.iter().enumerate() {
        let counted: Vec<&BoundCounts> = groups.iter().map(|group| &group.bounds[index]).collect();
        let (steps, of_groups) =
            if bound.quantile { by_quantile(bound, &counted) } else { by_value(bound, &counted) };
        for ((edges, by), (own, wider)) in edges.iter_mut().zip(&mut by).zip(of_groups) {
            edges.push(own);
            by.push(wider);
        }
        sliding.push(Sliding { bound: bound.clone(), steps });
    }
    let mut all: Vec<Cells<[i64; 4], PassingAndRejected>> = groups
        .iter_mut()
        .zip(edges.iter().zip(&by))
        .map(|(of, (edges, by))| of.cells(edges, by))
        .collect();
    while all.iter_mut().map(|cells| cells.compacted().len()).sum::<usize>() > MAX_CELLS_SHOWN {
        let mut any = false;
        for (group, cells) in groups.iter_mut().zip(&mut all) {
            let [x, y] = group.halve();
            any |= x > 0 || y > 0;
            cells.merge(|[bound, of_x, of_y, step]| {
                [bound, shifted(of_x, x), shifted(of_y, y), step]
            });
        }
        if !any {
            break;
        }
    }
    let shown = groups.iter().zip(&mut all).map(|(group, cells)| shown(group, cells.compacted()));
    (sliding, shown.collect())
}

/// Steps of a bound, and for each group the first bin of each step with the power of two by which bins are widened.
type Steps = (Vec<f64>, Vec<(Vec<i64>, u32)>);

/// Returns the non-empty bins of a statistic.
fn filled(of: &BoundCounts) -> impl Iterator<Item = (i64, Amount)> {
    of.all.bins().filter(|(_, amount)| amount.samples > 0)
}

/// Returns steps at every twentieth of each group's own distribution. As in a run, a lower bound is the first value
/// with the share at or below it, an upper bound the first value with the rest at or above it; both pass, with all
/// equal values.
fn by_quantile(bound: &Bound, counted: &[&BoundCounts]) -> Steps {
    let mass = |amount: &Amount| if bound.tokens { amount.tokens } else { amount.samples };
    let begins = |_: u128, with: u128, wanted: u128| {
        if bound.high { with > wanted } else { with >= wanted }
    };
    let own = |of: &&BoundCounts| {
        let all: Vec<(i64, Amount)> = filled(of).collect();
        (edges(&all, QUANTILES, &mass, &begins), 0)
    };
    let share = |step: u64| if bound.high { QUANTILES - step } else { step };
    let steps = (1..QUANTILES).map(|step| share(step) as f64 / QUANTILES as f64);
    (steps.collect(), counted.iter().map(own).collect())
}

/// Returns steps with about equal numbers of samples of all groups combined.
fn by_value(bound: &Bound, counted: &[&BoundCounts]) -> Steps {
    let mut joint = BinScale::new(FINE_BINS);
    for of in counted {
        let _ = joint.join(of.all.scale());
    }
    let mut all: Cells<i64, Amount> = Cells::new();
    let wider: Vec<u32> = counted.iter().map(|of| joint.join(of.all.scale()).1).collect();
    for (of, wider) in counted.iter().zip(&wider) {
        filled(of).for_each(|(bin, amount)| all.add(shifted(bin, *wider), amount));
    }
    let all = all.compacted();
    let begins = |without: u128, _: u128, wanted: u128| without >= wanted;
    let mut edges = edges(all, STEPS, &|amount| amount.samples, &begins);
    edges.dedup();
    // At the lowest bin everything passes.
    edges.retain(|edge| all.first().is_some_and(|(lowest, _)| edge > lowest));
    let sign = if bound.high { -1.0 } else { 1.0 };
    let steps = edges.iter().map(|edge| sign * joint.value(*edge)).collect();
    (steps, wider.into_iter().map(|wider| (edges.clone(), wider)).collect())
}

/// Returns the first bin of each but the first of `parts` equal shares of `all`. `begins` decides, given the mass
/// below the bin, the mass including it, and the mass below the share, each multiplied by `parts`.
fn edges(
    all: &[(i64, Amount)],
    parts: u64,
    mass: &dyn Fn(&Amount) -> u64,
    begins: &dyn Fn(u128, u128, u128) -> bool,
) -> Vec<i64> {
    let total: u64 = all.iter().map(|(_, amount)| mass(amount)).sum();
    let (mut below, mut edges) = (0_u64, Vec::new());
    let times = |mass: u64| u128::from(mass) * u128::from(parts);
    for (bin, amount) in all {
        let with = below + mass(amount);
        while (edges.len() as u64) < parts - 1
            && begins(times(below), times(with), u128::from(total) * (edges.len() as u128 + 1))
        {
            edges.push(*bin);
        }
        below = with;
    }
    let end = all.last().map_or(0, |(bin, _)| bin + 1);
    edges.resize(parts as usize - 1, end);
    edges
}

fn shown(group: &GuardCounts, cells: &[([i64; 4], PassingAndRejected)]) -> Option<GuardCells> {
    let ((x, _), (y, _)) = (group.axes[0].range()?, group.axes[1].range()?);
    let numbers =
        |([bound, of_x, of_y, step], [passing, refused]): &([i64; 4], PassingAndRejected)| {
            let bins = [*bound, of_x - x, of_y - y, *step].map(|number| number as u64);
            let amounts = [passing.samples, passing.tokens, refused.samples, refused.tokens];
            bins.into_iter().chain(amounts)
        };
    Some(GuardCells {
        from: [group.axes[0].value(x), group.axes[1].value(y)],
        width: [group.axes[0].width(), group.axes[1].width()],
        numbers: cells.iter().flat_map(numbers).collect(),
    })
}

#[cfg(test)]
mod tests {
    use longsift_stages::contract::Decimal;
    use longsift_stages::filter::guards::Guard;
    use longsift_stages::score::terms::Combine;

    use super::*;

    fn bound(index: usize, high: bool, quantile: bool, now: f64) -> Bound {
        let statistic = ["a", "b"][index].to_owned();
        Bound { guard: index, statistic, high, quantile, now, index, tokens: false }
    }

    fn samples() -> Vec<[f64; 2]> {
        (0..6000_u32).map(|n| [(f64::from(n) * 0.37).sin(), f64::from(n % 97)]).collect()
    }

    fn counted(components: &Components, bounds: &[Bound], samples: &[[f64; 2]]) -> GuardCounts {
        let group =
            [Bounds { low: Some(-0.5), high: None }, Bounds { low: None, high: Some(60.0) }];
        let mut guarded = GuardCounts::new(components, bounds);
        for sample in samples {
            let score = (sample[0] * sample[1], 0.0);
            guarded.add(bounds, &group, sample, score, Amount { samples: 1, tokens: 10 });
        }
        guarded
    }

    /// Returns the samples that pass if this bound is at this step and the others are unchanged.
    fn passing(cells: &GuardCells, bound: u64, step: u64) -> u64 {
        let cells =
            cells.numbers.chunks_exact(8).filter(|cell| cell[0] == bound && cell[3] >= step);
        cells.map(|cell| cell[4] + cell[6]).sum()
    }

    #[test]
    fn samples_that_pass_a_moved_bound_are_counted_exactly() {
        let components = Components::new(Combine::Sum, &[Some("a")]);
        let bounds = [bound(0, false, false, -0.5), bound(1, true, false, 60.0)];
        let mut guarded = counted(&components, &bounds, &samples());
        let (sliding, cells) = collapse(&bounds, &mut [&mut guarded]);
        let cells = cells[0].as_ref().unwrap();
        for (index, of) in sliding.iter().enumerate() {
            assert!(of.steps.len() >= 20, "{:?}", of.steps);
            for (step, value) in of.steps.iter().enumerate() {
                let passes = |sample: &&[f64; 2]| match index {
                    0 => sample[0] >= *value && sample[1] <= 60.0,
                    _ => sample[0] >= -0.5 && sample[1] <= *value,
                };
                let expected = samples().iter().filter(passes).count() as u64;
                assert_eq!(
                    passing(cells, index as u64, step as u64 + 1),
                    expected,
                    "{index} {value}"
                );
            }
        }
        let free = samples().iter().filter(|sample| sample[1] <= 60.0).count() as u64;
        assert_eq!(passing(cells, 0, 0), free, "before the first step there is no bound");
    }

    #[test]
    fn parts_are_counted_like_the_whole_and_quantiles_to_a_bin() {
        let components = Components::new(Combine::Sum, &[Some("a")]);
        let bounds = [bound(0, false, true, 0.2), bound(1, true, true, 0.6)];
        let all = samples();
        let mut whole = counted(&components, &bounds, &all);
        let mut parts = counted(&components, &bounds, &all[..2500]);
        parts.append(&counted(&components, &bounds, &all[2500..]));
        let collapsed = collapse(&bounds, &mut [&mut whole]);
        assert_eq!(collapse(&bounds, &mut [&mut parts]), collapsed);
        assert!((collapsed.0[0].steps[3] - 0.2).abs() < 1e-12);
        assert!((collapsed.0[1].steps[3] - 0.8).abs() < 1e-12);
        // Values below the quantile are rejected.
        let mut values: Vec<f64> = all.iter().map(|sample| sample[0]).collect();
        values.sort_by(f64::total_cmp);
        let expected = all.iter().filter(|of| of[0] >= values[1199] && of[1] <= 60.0).count();
        let found = passing(collapsed.1[0].as_ref().unwrap(), 0, 4);
        assert!(found.abs_diff(expected as u64) < 60, "{found} {expected}");
    }

    #[test]
    fn equal_values_pass_a_moved_quantile_together_as_in_a_run() {
        let components = Components::new(Combine::Sum, &[Some("a")]);
        // Seven values, most of them zeros, and a group of equal values; token counts vary.
        let values = |equal: bool| {
            (0..700_u64).map(move |n| if equal || n % 3 > 0 { 0.0 } else { (n % 7) as f64 / 8.0 })
        };
        let tokens = |n: u64| 1 + n * n % 50;
        for (equal, high, weigh) in (0..8)
            .map(|n| (n & 1 > 0, n & 2 > 0, if n & 4 > 0 { Weigh::Tokens } else { Weigh::Samples }))
        {
            let bounds = [Bound { tokens: weigh == Weigh::Tokens, ..bound(0, high, true, 0.5) }];
            let mut guarded = GuardCounts::new(&components, &bounds);
            for (n, value) in (0..).zip(values(equal)) {
                // Every fifth sample has no score, but its value still counts for the group.
                let score = if n % 5 == 0 { f64::NAN } else { n as f64 };
                let amount = Amount { samples: 1, tokens: tokens(n) };
                guarded.add(&bounds, &[Bounds::default()], &[value], (score, 0.0), amount);
            }
            let (sliding, cells) = collapse(&bounds, &mut [&mut guarded]);
            let all: Vec<f64> = values(equal).collect();
            let all_tokens: Vec<u64> = (0..700).map(tokens).collect();
            for (step, quantile) in sliding[0].steps.iter().enumerate() {
                let quantile = Some(Decimal(*quantile));
                let (min_quantile, max_quantile) =
                    if high { (None, quantile) } else { (quantile, None) };
                let (statistic, min, max, before) = ("a".to_owned(), None, None, None);
                let guard =
                    Guard { statistic, min, max, min_quantile, max_quantile, weigh, before };
                let exact = guard.bounds_of(&all, &all_tokens);
                let scored = all.iter().enumerate().filter(|(n, _)| n % 5 > 0);
                let expected =
                    scored.filter(|(_, value)| exact.judge(**value) == Verdict::Passes).count();
                let found = passing(cells[0].as_ref().unwrap(), 0, step as u64 + 1);
                assert_eq!(found, expected as u64, "{equal} {high} {weigh:?} {quantile:?}");
            }
        }
    }

    #[test]
    fn the_cells_of_many_groups_are_bounded() {
        let components = Components::new(Combine::Sum, &[Some("a")]);
        let bounds = [bound(0, false, false, -0.5), bound(1, true, false, 60.0)];
        let one = counted(&components, &bounds, &samples());
        let mut groups = vec![one; 25];
        let (_, cells) = collapse(&bounds, &mut groups.iter_mut().collect::<Vec<_>>());
        let numbers = |of: &Option<GuardCells>| of.as_ref().unwrap().numbers.len() / 8;
        assert!(cells.iter().map(numbers).sum::<usize>() <= MAX_CELLS_SHOWN);
    }
}
