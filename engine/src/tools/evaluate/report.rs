//! Results for one window length, as serialized: for each statistic, between statistics, and the matrix of statistics and kinds
//! of windows.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::Serialize;

use super::constructions::{KINDS, KindRole, Pool};
use super::estimates::agreement::{category_variance, inside_categories, quantiles, spearman};
use super::estimates::bootstrap::Bootstrap;
use super::estimates::{IntervalEstimate, Ladder, TopFifth, Values, pairs_of_kinds, share_of_wins};
use super::statistics::{MeasuredWindows, OrientedStatistic};

/// Results for one statistic; null without pairs of windows.
#[derive(Clone, Debug, Default, PartialEq, Serialize, JsonSchema)]
pub(crate) struct Report {
    /// AUROC of whole windows against windows of pieces.
    pub(crate) ladder: BTreeMap<&'static str, IntervalEstimate>,
    /// AUROC against eight pieces, by category.
    pub(crate) pieces_8_by_category: BTreeMap<String, Option<f64>>,
    /// Share of pairs that the whole window wins.
    pub(crate) paired: BTreeMap<&'static str, IntervalEstimate>,
    /// Share of real windows in the top fifth.
    pub(crate) top_fifth_real_share: TopFifthShares,
    /// Share of real windows in the top fifth, with copies and boilerplate at varying distances.
    pub(crate) top_fifth_jittered_real_share: TopFifthShares,
    /// Other properties that explain the statistic.
    pub(crate) explained: Confounders,
}

/// Share of real windows in the top fifth of a pool of one real to five other windows.
#[derive(Clone, Debug, Default, PartialEq, Serialize, JsonSchema)]
pub(crate) struct TopFifthShares {
    pub(crate) plain: IntervalEstimate,
    /// Share expected by chance.
    pub(crate) by_chance: Option<f64>,
    /// Share if windows with more than 40 % copied tokens are excluded.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) copy_cap: Option<IntervalEstimate>,
    /// Share if windows that the pipeline's guards reject are excluded.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) guarded: Option<IntervalEstimate>,
}

/// Properties that explain a statistic of whole windows.
#[derive(Clone, Debug, Default, PartialEq, Serialize, JsonSchema)]
#[schemars(rename = "Explained")]
pub(crate) struct Confounders {
    /// Share of its variance that lies between categories.
    pub(crate) category_variance: Option<f64>,
    /// Rank correlation with the document length in tokens, inside categories.
    pub(crate) length_spearman: Option<f64>,
    /// Rank correlation with the same window with its tokens shuffled: near 1, the statistic depends on the tokens and
    /// not on their order.
    pub(crate) token_shuffled_spearman: Option<f64>,
}

pub(crate) struct ResultInput<'a> {
    pub(crate) measured: &'a MeasuredWindows,
    pub(crate) bootstrap: &'a Bootstrap,
    /// Pools of which all kinds were built; a top fifth of incomplete pools is not comparable.
    pub(crate) pools: &'a [Pool],
    /// By window, whether its share of copied tokens is below the cap.
    pub(crate) below_copy_cap: Option<&'a [bool]>,
    /// By window, whether it passes all guards; `None` if the pipeline has no guards.
    pub(crate) passes_guards: Option<&'a [bool]>,
}

impl ResultInput<'_> {
    pub(crate) fn report(&self, statistic: &OrientedStatistic) -> Report {
        let values = &statistic.values;
        let mixed = KINDS.iter().filter(|kind| kind.role == KindRole::Ladder);
        let categories = self.measured.categories.iter().enumerate();
        let by_category = Ladder::new(&self.measured.origins, values, "pieces_8");
        let of_category = |(index, name): (usize, &String)| {
            (name.clone(), by_category.in_category(index, &self.bootstrap.once))
        };
        Report {
            ladder: mixed.map(|kind| (kind.name, self.for_kind(values, kind.name))).collect(),
            pieces_8_by_category: categories.map(of_category).collect(),
            paired: pairs().map(|pair| (pair.name, self.paired(values, pair))).collect(),
            top_fifth_real_share: self.top_fifth(Pool::Fixed, statistic),
            top_fifth_jittered_real_share: self.top_fifth(Pool::Jittered, statistic),
            explained: self.explained(values),
        }
    }

    /// Returns the result for one kind of windows: the ladder for joined windows, the share of pairs for others.
    pub(crate) fn for_kind(&self, values: &Values, kind: &str) -> IntervalEstimate {
        if let Some(pair) = pairs().find(|pair| pair.name == kind) {
            return self.paired(values, pair);
        }
        let ladder = Ladder::new(&self.measured.origins, values, kind);
        self.bootstrap.estimate(|counts| ladder.pooled(counts))
    }

    fn paired(&self, values: &Values, pair: Pair) -> IntervalEstimate {
        let pairs = pairs_of_kinds(&self.measured.origins, values, pair.first, pair.second);
        self.bootstrap.estimate(|counts| share_of_wins(&pairs, counts))
    }

    fn top_fifth(&self, pool: Pool, statistic: &OrientedStatistic) -> TopFifthShares {
        if !self.pools.contains(&pool) {
            return TopFifthShares::default();
        }
        let with = |values: &Values, may_enter: Option<&[bool]>| {
            let pools = TopFifth::new(pool, &self.measured.origins, values, may_enter);
            (self.bootstrap.estimate(|counts| pools.real_share(counts)), pools.by_chance())
        };
        let free = statistic.without_guards();
        let (plain, by_chance) = with(free, None);
        TopFifthShares {
            plain,
            by_chance,
            copy_cap: self.below_copy_cap.map(|may| with(free, Some(may)).0),
            guarded: self.passes_guards.map(|may| with(&statistic.values, Some(may)).0),
        }
    }

    pub(super) fn explained(&self, values: &Values) -> Confounders {
        let origins = &self.measured.origins;
        let of = |window: usize| values[window];
        let length = |window: usize| Some(self.measured.document(window).tokens as f64);
        let shuffled = pairs_of_kinds(origins, values, "whole", "token_shuffle").into_iter();
        let shuffled: Vec<(f64, f64)> = shuffled.map(|(_, values)| values).collect();
        Confounders {
            category_variance: category_variance(origins, values),
            length_spearman: inside_categories(origins, of, length),
            token_shuffled_spearman: spearman(&shuffled),
        }
    }

    /// Returns the rank correlations of all pairs of statistics over whole windows.
    pub(crate) fn agreement(
        &self,
        statistics: &[OrientedStatistic],
    ) -> BTreeMap<String, BTreeMap<String, Option<f64>>> {
        let row = |one: &OrientedStatistic| {
            let cell = |other: &OrientedStatistic| {
                let (a, b) =
                    (|window: usize| one.values[window], |window: usize| other.values[window]);
                inside_categories(&self.measured.origins, a, b)
            };
            let cells = statistics.iter().map(|other| (other.name.clone(), cell(other)));
            (one.name.clone(), cells.collect())
        };
        statistics.iter().map(row).collect()
    }

    /// Returns the 5, 50 and 95 % quantiles over whole windows.
    pub(crate) fn quantiles(&self, values: &Values) -> Option<[f64; 3]> {
        let whole =
            self.measured.origins.iter().zip(values).filter(|(origin, _)| origin.is_whole());
        quantiles(whole.filter_map(|(_, value)| *value))
    }
}

impl Report {
    /// Judges the results that have a target: the ladder, and the pairs except those for information.
    pub(crate) fn cells(&self) -> BTreeMap<String, Cell> {
        let targets = pairs_of(&[KindRole::Dependence, KindRole::PlantedTwin, KindRole::Junk]);
        let paired = self.paired.iter().filter(|(name, _)| targets.contains(name));
        let estimates = self.ladder.iter().chain(paired);
        estimates.filter_map(|(name, of)| Some(((*name).to_owned(), Cell::new(*of)?))).collect()
    }
}

/// A comparison of two windows of the same base.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pair {
    pub(crate) name: &'static str,
    /// Kind that should win.
    pub(crate) first: &'static str,
    pub(crate) second: &'static str,
    /// Role of the second kind.
    pub(crate) role: KindRole,
}

pub(crate) fn pairs() -> impl Iterator<Item = Pair> {
    KINDS.iter().filter_map(|kind| {
        let (name, first) = match kind.role {
            KindRole::Dependence | KindRole::Junk | KindRole::Information => (kind.name, "whole"),
            KindRole::PlantedTwin => ("plant_over_twin", "plant"),
            KindRole::Whole | KindRole::Ladder | KindRole::Planted | KindRole::Tokens => {
                return None;
            }
        };
        Some(Pair { name, first, second: kind.name, role: kind.role })
    })
}

pub(crate) fn pairs_of(roles: &[KindRole]) -> Vec<&'static str> {
    pairs().filter(|pair| roles.contains(&pair.role)).map(|pair| pair.name).collect()
}

/// Minimum number of documents of a cell.
pub(crate) const MIN_DOCUMENTS: usize = 8;

/// Outcome of a result compared with chance, ½.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Outcome {
    /// The interval lies above ½: real windows win.
    Pass,
    /// The interval contains ½.
    Weak,
    /// The interval lies below ½: the other windows win.
    Fail,
}

/// A result and its outcome.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, JsonSchema)]
pub(crate) struct Cell {
    pub(crate) outcome: Outcome,
    /// Value and interval.
    #[serde(rename = "figure")]
    pub(crate) estimate: IntervalEstimate,
}

/// Cells by score, then kind of window. Kinds with fewer than eight documents are left out.
pub(crate) type Matrix = BTreeMap<String, BTreeMap<String, Cell>>;

impl Cell {
    /// Judges a result; `None` without an interval.
    pub(crate) fn new(estimate: IntervalEstimate) -> Option<Self> {
        let [low, high] = estimate.interval?;
        let outcome = match (low > 0.5, high < 0.5) {
            (true, _) => Outcome::Pass,
            (_, true) => Outcome::Fail,
            _ => Outcome::Weak,
        };
        Some(Self { outcome, estimate })
    }
}

impl Outcome {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Pass => "pass",
            Self::Weak => "weak",
            Self::Fail => "fail",
        }
    }
}

/// Lists the kinds that do not pass: `weak: header, rep; fails: pieces_2`; empty if all pass.
pub(crate) fn shortcomings(cells: &BTreeMap<String, Cell>) -> String {
    let of = |outcome: Outcome| {
        let names = cells.iter().filter(|(_, cell)| cell.outcome == outcome);
        names.map(|(name, _)| name.as_str()).collect::<Vec<_>>().join(", ")
    };
    let parts = [("weak", of(Outcome::Weak)), ("fails", of(Outcome::Fail))];
    let parts = parts.iter().filter(|(_, names)| !names.is_empty());
    let parts: Vec<String> = parts.map(|(what, names)| format!("; {what}: {names}")).collect();
    parts.concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interval_that_contains_chance_is_weak() {
        let outcome = |low, high| {
            let estimate = IntervalEstimate { value: Some(0.5), interval: Some([low, high]) };
            Cell::new(estimate).map(|cell| cell.outcome)
        };
        assert_eq!(outcome(0.44, 0.62), Some(Outcome::Weak));
        assert_eq!(outcome(0.5, 0.7), Some(Outcome::Weak), "its end equals chance");
        assert_eq!(outcome(0.51, 0.7), Some(Outcome::Pass));
        assert_eq!(outcome(0.3, 0.49), Some(Outcome::Fail));
        assert_eq!(Cell::new(IntervalEstimate::default()), None);
    }
}
