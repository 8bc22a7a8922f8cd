//! From the statistics of one group to the rule of what is kept of it: a fixed number of passes over its samples, in the
//! memory of a few histograms.
//!
//! ```text
//! 1   deviations, percentiles, and with quantiles in the guards their first sixteen bits (2 to 4: the others)
//! 2   to 5: the score at the edge of what is kept, and the deciles, sixteen bits a pass
//! 6   which of the samples at the edge are kept, and what there is of everything
//! ```

use std::cmp::Ordering;
use std::sync::atomic::{AtomicU64, Ordering as Order};

use longsift_stages::filter::guards::Bounds;
use longsift_stages::score::percentile::Counting;
use longsift_stages::score::terms::{Scale, Scorer, Standardise};
use longsift_stages::score::{ColumnFigures, Deviations};

use super::criteria::Criteria;
use super::decided::{Cutoff, Rule, place, standing};
use super::edges::{Amount, Edge};
use super::gather::{Gathered, Record};
use super::histograms::{Histograms, HistogramsOfGroups, Place};
use super::quantiles::Quantiles;
use super::radix::{PASSES, Search, key, value};
use super::score_percentiles::{OfGroup, PercentilesOfGroups, ScoreBins, ScoreRange};
use super::standing::Standing;
use crate::base::error::Result;
use crate::base::stop::Stop;
use crate::run_directory::calibration::Threshold;

/// The tenths that scores are cut into.
const TENTHS: u64 = 10;

/// One group among all samples.
#[derive(Clone, Copy)]
pub(super) struct Ranking<'a> {
    pub(super) criteria: &'a Criteria,
    pub(super) gathered: &'a Gathered,
    /// The value of the `within` column.
    pub(super) name: Option<&'a str>,
    /// The number of the group.
    pub(super) group: u32,
    /// By unit, the samples that are kept.
    pub(super) kept: &'a [AtomicU64],
    /// Where the percentiles of the scores go.
    pub(super) percentiles: &'a PercentilesOfGroups,
    /// Where the histograms of its terms go.
    pub(super) histograms: &'a HistogramsOfGroups,
    pub(super) stop: &'a Stop,
}

/// What was decided of a group.
#[derive(Clone, Debug)]
pub(super) struct Ranked {
    /// By statistic.
    pub(super) figures: Vec<ColumnFigures>,
    /// By term, where it takes percentiles.
    histograms: Vec<Option<Place>>,
    /// By guard.
    pub(super) bounds: Vec<Bounds>,
    cutoffs: Vec<Cutoff>,
    percentiles: OfGroup,
    /// The nine scores that cut the group into ten parts of equal size; none for a group without scores.
    pub(super) deciles: Vec<f64>,
    pub(super) totals: Totals,
}

impl Ranked {
    /// By term, what it is made comparable with.
    pub(super) fn scales(&self, histograms: &Histograms) -> Vec<Scale> {
        let scales = self.figures.iter().zip(&self.histograms);
        let scale = |(figures, place): (&ColumnFigures, &Option<Place>)| Scale {
            figures: *figures,
            histogram: place.as_ref().map(|place| histograms.at(place)),
        };
        scales.map(scale).collect()
    }

    /// What decides of the samples of the group.
    pub(super) fn rule(&self, criteria: &Criteria, histograms: &Histograms) -> Rule {
        Rule {
            scorer: scorer(criteria, &self.scales(histograms)),
            bounds: self.bounds.clone(),
            cutoffs: self.cutoffs.clone(),
            percentiles: self.percentiles,
        }
    }
}

fn scorer(criteria: &Criteria, scales: &[Scale]) -> Scorer {
    let scorer = Scorer::new(&criteria.terms, criteria.combine, criteria.standardise, scales);
    scorer.expect("every term has the scale that it asks for")
}

/// What there is of a group in the end.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Totals {
    /// Samples with a score.
    pub(super) scored: u64,
    /// Samples with a score that are kept.
    pub(super) kept: u64,
    /// Samples without one that are kept, because a measure was not taken of them.
    pub(super) kept_not_measured: u64,
    /// By cutoff.
    pub(super) thresholds: Vec<Threshold>,
    /// Samples with a score by the part of ten they are in, as the deciles cut them.
    pub(super) parts: [u64; TENTHS as usize],
}

impl Totals {
    /// Takes in a sample that may be kept. Its threshold follows the lowest score that is.
    fn note(&mut self, place: usize, score: f64, kept: bool) {
        let threshold = &mut self.thresholds[place];
        match threshold.score.map(|lowest| key(score).cmp(&key(lowest))) {
            Some(Ordering::Equal) => {
                threshold.ties += 1;
                threshold.ties_kept += u64::from(kept);
            }
            // Of equal scores the first are kept: none was passed over before this one.
            Some(Ordering::Less) | None if kept => {
                *threshold = Threshold { score: Some(score), ties: 1, ties_kept: 1 };
            }
            Some(Ordering::Less | Ordering::Greater) | None => {}
        }
    }
}

/// Counts the samples that are kept, by unit; they come in input order.
struct KeptOfUnits<'a> {
    /// The number of the first sample of every unit, and behind them that of all samples.
    units: &'a [u64],
    kept: &'a [AtomicU64],
    unit: usize,
    count: u64,
}

impl KeptOfUnits<'_> {
    fn add(&mut self, number: u64) {
        if number >= self.units[self.unit + 1] {
            self.note();
            self.unit = self.units.partition_point(|first| *first <= number) - 1;
        }
        self.count += 1;
    }

    fn note(&mut self) {
        if self.count > 0 {
            self.kept[self.unit].fetch_add(self.count, Order::Relaxed);
        }
        self.count = 0;
    }
}

impl Ranking<'_> {
    /// Decides by the group's own figures.
    pub(super) fn own(self) -> Result<Ranked> {
        let (figures, scales, bounds) = self.figures()?;
        self.criteria.check_z_scores(self.name, &figures)?;
        let scorer = scorer(self.criteria, &scales);
        let (mut edges, deciles, range) = self.edges(&scorer, &bounds)?;
        let mut bins = ScoreBins::between(range);
        let mut totals = self.totals(&scorer, &bounds, &mut edges, &deciles, &mut bins)?;
        if let Some(score) = self.criteria.filter.min_score {
            totals.thresholds = vec![Threshold { score: Some(score), ties: 0, ties_kept: 0 }];
        }
        let histograms = scales
            .iter()
            .map(|scale| scale.histogram.as_ref().map(|all| self.histograms.add(all)).transpose())
            .collect::<Result<_>>()?;
        let cutoffs = edges.iter().map(|edge| edge.cutoff).collect();
        let percentiles = self.percentiles.add(&bins)?;
        Ok(Ranked { figures, histograms, bounds, cutoffs, percentiles, deciles, totals })
    }

    /// Decides as a calibration says. `deciles`: of the scores that it was made from.
    pub(super) fn by(
        self,
        scorer: Scorer,
        bounds: Vec<Bounds>,
        thresholds: &[Threshold],
        deciles: &[f64],
    ) -> Result<(Rule, Totals)> {
        let mut edges: Vec<Edge> = thresholds.iter().map(Edge::calibrated).collect();
        let (mut ties, mut range) = (vec![0_u64; edges.len()], ScoreRange::default());
        self.gathered.visit(self.group, self.stop, |sample| {
            let standing = standing(&scorer, &bounds, self.criteria, sample.values);
            range.add(standing.score());
            if let Some((place, score)) = self.ranked(standing, &sample) {
                ties[place] += u64::from(key(score) == edges[place].cutoff.key);
            }
        })?;
        for ((edge, threshold), ties) in edges.iter_mut().zip(thresholds).zip(ties) {
            if let Some((left, _)) = &mut edge.ties {
                let share = u128::from(ties) * u128::from(threshold.ties_kept);
                *left = (share / u128::from(threshold.ties)) as u64;
            }
        }
        let mut bins = ScoreBins::between(range);
        let totals = self.totals(&scorer, &bounds, &mut edges, deciles, &mut bins)?;
        let cutoffs = edges.iter().map(|edge| edge.cutoff).collect();
        let percentiles = self.percentiles.add(&bins)?;
        Ok((Rule { scorer, bounds, cutoffs, percentiles }, totals))
    }

    /// The place of a sample's cutoff and its score; none where it cannot be kept.
    fn ranked(self, standing: Standing, sample: &Record<'_>) -> Option<(usize, f64)> {
        let Standing::Ranked(score) = standing else { return None };
        let place = place(self.criteria, self.name, sample.tokens)?;
        (!score.is_nan()).then_some((place, score))
    }

    /// Figures by statistic, the scale of every term, the bounds of every guard.
    fn figures(self) -> Result<(Vec<ColumnFigures>, Vec<Scale>, Vec<Bounds>)> {
        let (criteria, group) = (self.criteria, &self.gathered.of_groups[self.group as usize]);
        let mut deviations: Vec<Deviations> =
            group.sums.iter().map(|sums| Deviations::from(*sums)).collect();
        let mut histograms: Vec<Option<Counting>> = (0..deviations.len())
            .map(|index| {
                let percentile = criteria.standardise_of(index) == Some(Standardise::Percentile);
                let sums = group.sums.get(index).filter(|_| percentile)?;
                // Without values there is no range: all percentiles are a half.
                let (low, high) = if sums.count > 0 { (sums.min, sums.max) } else { (0.0, 0.0) };
                Some(Counting::between(low, high))
            })
            .collect();
        let mut quantiles: Vec<Quantiles> = criteria
            .guards
            .iter()
            .map(|(guard, statistic)| Quantiles::of(guard, *statistic, group.samples))
            .collect();
        for pass in 0..PASSES {
            if pass > 0 && quantiles.iter().all(Quantiles::are_over) {
                break;
            }
            self.gathered.visit(self.group, self.stop, |sample| {
                for quantiles in &mut quantiles {
                    quantiles.add(sample.values, sample.tokens, pass);
                }
                if pass > 0 {
                    return;
                }
                for (index, value) in sample.values.iter().enumerate() {
                    if value.is_finite() {
                        deviations[index].add(*value);
                        if let Some(counting) = &mut histograms[index] {
                            counting.add(*value);
                        }
                    }
                }
            })?;
            quantiles.iter_mut().for_each(Quantiles::end_pass);
        }
        let figures: Vec<ColumnFigures> = deviations.iter().map(Deviations::figures).collect();
        let scales = figures.iter().zip(histograms).take(criteria.terms.len());
        let scale = |(figures, counting): (&ColumnFigures, Option<Counting>)| Scale {
            figures: *figures,
            histogram: counting.as_ref().map(Counting::finish),
        };
        let scales = scales.map(scale).collect();
        Ok((figures, scales, quantiles.iter().map(Quantiles::bounds).collect()))
    }

    /// Where what is kept ends, by cutoff, the deciles of the scores and their range.
    fn edges(
        self,
        scorer: &Scorer,
        bounds: &[Bounds],
    ) -> Result<(Vec<Edge>, Vec<f64>, ScoreRange)> {
        let (criteria, most) =
            (self.criteria, self.gathered.of_groups[self.group as usize].samples);
        // A fraction is one of a number of samples that the first pass counts.
        let amounts = self.amounts(0);
        let search = |amount: &Amount| match amount {
            Amount::All | Amount::From(_) => Search::Over(None),
            Amount::Samples(_) | Amount::Tokens(_) => Search::among(most),
        };
        let mut searches: Vec<Search> = amounts.iter().map(search).collect();
        let mut deciles = vec![Search::among(most); TENTHS as usize - 1];
        let (mut scored, mut counted) = (0_u64, 0_u64);
        let mut range = ScoreRange::default();
        for pass in 0..PASSES {
            if deciles.iter().chain(&searches).all(Search::is_over) {
                break;
            }
            self.gathered.visit(self.group, self.stop, |sample| {
                let standing = standing(scorer, bounds, criteria, sample.values);
                let score = standing.score();
                if pass == 0 {
                    range.add(score);
                    counted += u64::from(standing.counts());
                    scored += u64::from(!score.is_nan());
                }
                if score.is_nan() {
                    return;
                }
                let key = key(score);
                for search in &mut deciles {
                    search.add(key, 1);
                }
                if matches!(standing, Standing::Ranked(_))
                    && let Some(place) = place(criteria, self.name, sample.tokens)
                {
                    searches[place].add(!key, amounts[place].weight(sample.tokens));
                }
            })?;
            for (search, amount) in searches.iter_mut().zip(self.amounts(counted)) {
                search.end_pass(amount.searched().unwrap_or(u64::MAX));
            }
            for (tenth, search) in (1..).zip(&mut deciles) {
                search.end_pass(tenth * scored / TENTHS + 1);
            }
        }
        let edges = searches.iter().zip(self.amounts(counted));
        let edges = edges.map(|(search, amount)| Edge::at(search, amount)).collect();
        let found = deciles.iter().filter_map(Search::found);
        Ok((edges, found.map(|found| value(found.key)).collect(), range))
    }

    /// What is kept, by cutoff. `counted`: the samples that a fraction is one of.
    fn amounts(self, counted: u64) -> Vec<Amount> {
        let filter = &self.criteria.filter;
        if let Some(score) = filter.min_score {
            vec![Amount::From(score)]
        } else if let Some(fraction) = filter.keep_fraction {
            vec![Amount::Samples(fraction.floor_of(counted))]
        } else if let Some(budget) = &filter.keep_tokens {
            vec![Amount::Tokens(budget.of(self.name))]
        } else if let Some(budgets) = &filter.budgets {
            budgets.iter().map(|budget| Amount::Tokens(budget.keep_tokens)).collect()
        } else {
            vec![Amount::All]
        }
    }

    /// The last pass: decides of every sample.
    fn totals(
        self,
        scorer: &Scorer,
        bounds: &[Bounds],
        edges: &mut [Edge],
        deciles: &[f64],
        bins: &mut ScoreBins,
    ) -> Result<Totals> {
        let nothing = Threshold { score: None, ties: 0, ties_kept: 0 };
        let mut totals = Totals { thresholds: vec![nothing; edges.len()], ..Totals::default() };
        let (criteria, units) = (self.criteria, &self.gathered.units[..]);
        let mut kept_of_unit = KeptOfUnits { units, kept: self.kept, unit: 0, count: 0 };
        self.gathered.visit(self.group, self.stop, |sample| {
            let standing = standing(scorer, bounds, criteria, sample.values);
            let score = standing.score();
            if standing == Standing::NotMeasured && criteria.filter.keeps_not_measured() {
                totals.kept_not_measured += 1;
                kept_of_unit.add(sample.number);
            }
            if score.is_nan() {
                return;
            }
            totals.scored += 1;
            bins.add(score);
            totals.parts[deciles.partition_point(|decile| *decile <= score)] += 1;
            let place = place(criteria, self.name, sample.tokens);
            let (Standing::Ranked(_), Some(place)) = (standing, place) else { return };
            let kept = edges[place].keeps(key(score), sample.tokens, sample.number);
            totals.note(place, score, kept);
            if !kept {
                return;
            }
            totals.kept += 1;
            kept_of_unit.add(sample.number);
        })?;
        kept_of_unit.note();
        Ok(totals)
    }
}
