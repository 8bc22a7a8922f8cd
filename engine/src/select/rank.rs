//! Ranks one group: computes its rule from its statistics in a fixed number of passes over its samples, in the memory of a few
//! histograms.
//!
//! ```text
//! 1   to 4: bounds of guards with quantiles, sixteen bits per pass; skipped without quantiles
//! 5   means and ranges of the samples that pass the guards
//! 6   standard deviations and percentiles: the scales
//! 7   to 10: the score at the edge of the kept samples, and the deciles, sixteen bits per pass
//! 11  which samples at the edge are kept, and all totals
//! ```

use std::cmp::Ordering;
use std::sync::atomic::{AtomicU64, Ordering as Order};

use longsift_stages::filter::guards::{Bounds, Verdict};
use longsift_stages::score::percentile::{Histogram, HistogramBuilder};
use longsift_stages::score::terms::{Scale, Scorer, Standardise, Term};
use longsift_stages::score::{ColumnFigures, Deviations, Sums};

use super::criteria::Criteria;
use super::decided::{Cutoff, Rule, cutoff_index, passes, sample_state};
use super::edges::{Amount, Edge};
use super::gather::{Gathered, Record};
use super::histograms::{HistogramLocation, Histograms, HistogramsOfGroups};
use super::quantiles::Quantiles;
use super::radix::{PASSES, Search, key, value};
use super::sample_state::{SampleState, is_not_sampled};
use super::score_percentiles::{GroupPercentiles, PercentilesOfGroups, ScoreBins, ScoreRange};
use crate::base::error::Result;
use crate::base::stop::Stop;
use crate::run_directory::calibration::Threshold;

/// Number of parts that the deciles cut scores into.
const TENTHS: u64 = 10;

/// One group of the gathered samples.
#[derive(Clone, Copy)]
pub(super) struct Ranking<'a> {
    pub(super) criteria: &'a Criteria,
    pub(super) gathered: &'a Gathered,
    /// Value of the `within` column.
    pub(super) name: Option<&'a str>,
    /// Number of the group.
    pub(super) group: u32,
    /// Kept samples by unit.
    pub(super) kept: &'a [AtomicU64],
    /// Destination of the percentiles of its scores.
    pub(super) percentiles: &'a PercentilesOfGroups,
    /// Destination of the histograms of its terms.
    pub(super) histograms: &'a HistogramsOfGroups,
    pub(super) stop: &'a Stop,
}

/// Decision on a group.
#[derive(Clone, Debug)]
pub(super) struct Ranked {
    /// By statistic, over the samples that pass the guards; `None` if no sample has it.
    pub(super) figures: Vec<Option<ColumnFigures>>,
    /// By term, if it uses percentiles; `None` without a scale.
    histograms: Option<Vec<Option<HistogramLocation>>>,
    /// By guard.
    pub(super) bounds: Vec<Bounds>,
    cutoffs: Vec<Cutoff>,
    percentiles: GroupPercentiles,
    /// The nine scores that cut the group into ten parts of equal size; empty for a group without scores.
    pub(super) deciles: Vec<f64>,
    pub(super) totals: Totals,
}

impl Ranked {
    /// Scale of every term; `None` if no sample that passes has a statistic of the score.
    pub(super) fn scales(
        &self,
        criteria: &Criteria,
        histograms: &Histograms,
    ) -> Option<Vec<Scale>> {
        let places = self.histograms.as_ref()?.iter();
        let found = places.map(|place| place.as_ref().map(|place| histograms.get(place)));
        scales(criteria, &self.figures, found)
    }

    /// Returns the rule for the samples of the group.
    pub(super) fn rule(&self, criteria: &Criteria, histograms: &Histograms) -> Rule {
        Rule {
            scorer: scorer(criteria, self.scales(criteria, histograms)),
            bounds: self.bounds.clone(),
            cutoffs: self.cutoffs.clone(),
            percentiles: self.percentiles,
        }
    }
}

/// Builds the scale of every term from the totals of all statistics and the histograms of the terms.
fn scales(
    criteria: &Criteria,
    figures: &[Option<ColumnFigures>],
    histograms: impl Iterator<Item = Option<Histogram>>,
) -> Option<Vec<Scale>> {
    let terms = criteria.terms.iter().zip(figures).zip(histograms);
    let scale = |((term, figures), histogram): ((&Term, &Option<ColumnFigures>), _)| {
        term.scale(criteria.standardise, *figures, histogram)
    };
    terms.map(scale).collect()
}

fn scorer(criteria: &Criteria, scales: Option<Vec<Scale>>) -> Option<Scorer> {
    let scorer = Scorer::new(&criteria.terms, criteria.combine, criteria.standardise, &scales?);
    Some(scorer.expect("every term has the scale that it asks for"))
}

/// Totals of every statistic, and the scale of every term if all have one.
type Scales = (Vec<Option<ColumnFigures>>, Option<Vec<Scale>>);

/// Final statistics of one group.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Totals {
    /// Samples that pass the guards and have a score.
    pub(super) scored: u64,
    /// Samples that `keep_fraction` refers to.
    pub(super) counted: u64,
    /// By guard, samples out of its bounds, independent of other guards.
    pub(super) rejected: Vec<u64>,
    /// By guard, samples that no guard rejects and that lack its statistic.
    pub(super) missing: Vec<u64>,
    /// Kept samples with a score.
    pub(super) kept: u64,
    /// Kept samples without a score because sampling excluded them from a measure.
    pub(super) kept_not_measured: u64,
    /// By cutoff.
    pub(super) thresholds: Vec<Threshold>,
    /// Samples that pass and have a score, by tenth as cut by the deciles.
    pub(super) parts: [u64; TENTHS as usize],
}

impl Totals {
    /// Adds a sample that may be kept. The threshold follows the lowest score that is kept.
    fn note(&mut self, place: usize, score: f64, kept: bool) {
        let threshold = &mut self.thresholds[place];
        match threshold.score.map(|lowest| key(score).cmp(&key(lowest))) {
            Some(Ordering::Equal) => {
                threshold.ties += 1;
                threshold.ties_kept += u64::from(kept);
            }
            // Among equal scores the first are kept: no sample with this score was skipped before.
            Some(Ordering::Less) | None if kept => {
                *threshold = Threshold { score: Some(score), ties: 1, ties_kept: 1 };
            }
            Some(Ordering::Less | Ordering::Greater) | None => {}
        }
    }
}

/// Counts kept samples by unit; they come in input order.
struct KeptCounter<'a> {
    /// Number of the first sample of every unit, then the number of all samples.
    units: &'a [u64],
    kept: &'a [AtomicU64],
    unit: usize,
    count: u64,
}

impl KeptCounter<'_> {
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
    /// Decides by the group's own statistics.
    pub(super) fn by_own_statistics(self) -> Result<Ranked> {
        let bounds = self.bounds()?;
        let (figures, scales) = self.scales(&bounds)?;
        self.criteria.check_z_scores(self.name, &figures)?;
        let place = |scale: &Scale| {
            scale.histogram.as_ref().map(|all| self.histograms.add(all)).transpose()
        };
        let histograms = scales.as_ref().map(|scales| scales.iter().map(place).collect());
        let histograms = histograms.transpose()?;
        let scorer = scorer(self.criteria, scales);
        let (mut edges, deciles, range) = self.edges(scorer.as_ref(), &bounds)?;
        let mut bins = ScoreBins::between(range);
        let mut totals = self.totals(scorer.as_ref(), &bounds, &mut edges, &deciles, &mut bins)?;
        if let Some(score) = self.criteria.filter.min_score {
            totals.thresholds = vec![Threshold { score: Some(score), ties: 0, ties_kept: 0 }];
        }
        let cutoffs = edges.iter().map(|edge| edge.cutoff).collect();
        let percentiles = self.percentiles.add(&bins)?;
        Ok(Ranked { figures, histograms, bounds, cutoffs, percentiles, deciles, totals })
    }

    /// Decides by a calibration and sums the statistics of the samples that pass. `deciles`: deciles of the scores in the
    /// calibration.
    pub(super) fn by_calibration(
        self,
        scorer: Option<Scorer>,
        bounds: Vec<Bounds>,
        thresholds: &[Threshold],
        deciles: &[f64],
    ) -> Result<(Rule, Totals, Vec<Sums>)> {
        let mut edges: Vec<Edge> = thresholds.iter().map(Edge::calibrated).collect();
        let (mut ties, mut range) = (vec![0_u64; edges.len()], ScoreRange::default());
        let sums = self.sums(&bounds)?;
        self.gathered.visit(self.group, self.stop, |sample| {
            let sample_state = sample_state(scorer.as_ref(), &bounds, self.criteria, sample.values);
            range.add(sample_state.passing_score());
            if let Some((place, score)) = self.ranked(sample_state, &sample) {
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
        let totals = self.totals(scorer.as_ref(), &bounds, &mut edges, deciles, &mut bins)?;
        let cutoffs = edges.iter().map(|edge| edge.cutoff).collect();
        let percentiles = self.percentiles.add(&bins)?;
        Ok((Rule { scorer, bounds, cutoffs, percentiles }, totals, sums))
    }

    /// Index of a sample's cutoff and its score; `None` if it cannot be kept.
    fn ranked(self, sample_state: SampleState, sample: &Record<'_>) -> Option<(usize, f64)> {
        let SampleState::Ranked(score) = sample_state else { return None };
        let place = cutoff_index(self.criteria, self.name, sample.tokens)?;
        (!score.is_nan()).then_some((place, score))
    }

    /// Computes the bounds of every guard. Quantiles are over all samples that have the statistic.
    fn bounds(self) -> Result<Vec<Bounds>> {
        let samples = self.gathered.of_groups[self.group as usize].samples;
        let guards = self.criteria.guards.iter();
        let mut quantiles: Vec<Quantiles> =
            guards.map(|(guard, statistic)| Quantiles::new(guard, *statistic, samples)).collect();
        for pass in 0..PASSES {
            if quantiles.iter().all(Quantiles::are_finished) {
                break;
            }
            self.gathered.visit(self.group, self.stop, |sample| {
                for quantiles in &mut quantiles {
                    quantiles.add(sample.values, sample.tokens, pass);
                }
            })?;
            quantiles.iter_mut().for_each(Quantiles::end_pass);
        }
        Ok(quantiles.iter().map(Quantiles::bounds).collect())
    }

    /// Calls `each` with the index and value of every finite statistic of the samples that pass, in input order.
    fn visit_passing(self, bounds: &[Bounds], mut each: impl FnMut(usize, f64)) -> Result<()> {
        self.gathered.visit(self.group, self.stop, |sample| {
            if passes(bounds, self.criteria, sample.values) {
                let values = sample.values[..self.criteria.statistics.len()].iter().enumerate();
                let finite = values.filter(|(_, value)| value.is_finite());
                finite.for_each(|(statistic, value)| each(statistic, *value));
            }
        })
    }

    /// Sums and ranges over the samples that pass, by statistic.
    fn sums(self, bounds: &[Bounds]) -> Result<Vec<Sums>> {
        let mut sums = vec![Sums::default(); self.criteria.statistics.len()];
        self.visit_passing(bounds, |statistic, value| sums[statistic].add(value))?;
        Ok(sums)
    }

    /// Computes the totals of every statistic and the scale of every term over the samples that pass.
    fn scales(self, bounds: &[Bounds]) -> Result<Scales> {
        let (criteria, sums) = (self.criteria, self.sums(bounds)?);
        let mut deviations: Vec<Deviations> = sums.iter().copied().map(Deviations::from).collect();
        let mut histograms: Vec<Option<HistogramBuilder>> = (0..)
            .zip(&sums)
            .map(|(index, sums)| {
                let percentile = criteria.standardise_of(index) == Some(Standardise::Percentile);
                (percentile && sums.count > 0)
                    .then(|| HistogramBuilder::between(sums.min, sums.max))
            })
            .collect();
        self.visit_passing(bounds, |statistic, value| {
            deviations[statistic].add(value);
            if let Some(counting) = &mut histograms[statistic] {
                counting.add(value);
            }
        })?;
        let figures = deviations.iter().zip(&sums);
        let figures: Vec<Option<ColumnFigures>> =
            figures.map(|(of, sums)| (sums.count > 0).then(|| of.figures())).collect();
        let histograms = histograms.iter().map(|of| of.as_ref().map(HistogramBuilder::finish));
        let scales = scales(criteria, &figures, histograms);
        Ok((figures, scales))
    }

    /// Finds the edge of every cutoff, the deciles of the scores that pass, and their range.
    fn edges(
        self,
        scorer: Option<&Scorer>,
        bounds: &[Bounds],
    ) -> Result<(Vec<Edge>, Vec<f64>, ScoreRange)> {
        let (criteria, most) =
            (self.criteria, self.gathered.of_groups[self.group as usize].samples);
        // The number of samples that a fraction refers to is only known after the first pass.
        let amounts = self.amounts(0);
        let search = |amount: &Amount| match amount {
            Amount::All | Amount::From(_) => Search::Finished(None),
            Amount::Samples(_) | Amount::Tokens(_) => Search::among(most),
        };
        let mut searches: Vec<Search> = amounts.iter().map(search).collect();
        let mut deciles = vec![Search::among(most); TENTHS as usize - 1];
        let (mut scored, mut counted) = (0_u64, 0_u64);
        let mut range = ScoreRange::default();
        for pass in 0..PASSES {
            if deciles.iter().chain(&searches).all(Search::is_finished) {
                break;
            }
            self.gathered.visit(self.group, self.stop, |sample| {
                let sample_state = sample_state(scorer, bounds, criteria, sample.values);
                let score = sample_state.passing_score();
                if pass == 0 {
                    range.add(score);
                    counted += u64::from(sample_state.counts());
                    scored += u64::from(!score.is_nan());
                }
                if score.is_nan() {
                    return;
                }
                let key = key(score);
                for search in &mut deciles {
                    search.add(key, 1);
                }
                if let Some(place) = cutoff_index(criteria, self.name, sample.tokens) {
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
        let edges = edges.map(|(search, amount)| Edge::from_search(search, amount)).collect();
        let found = deciles.iter().filter_map(Search::found);
        Ok((edges, found.map(|found| value(found.key)).collect(), range))
    }

    /// Amount to keep, by cutoff. `counted`: number of samples that a fraction refers to.
    fn amounts(self, counted: u64) -> Vec<Amount> {
        let filter = &self.criteria.filter;
        if let Some(score) = filter.min_score {
            vec![Amount::From(score)]
        } else if let Some(fraction) = filter.keep_fraction {
            vec![Amount::Samples(fraction.floor_of(counted))]
        } else if let Some(budget) = &filter.keep_tokens {
            vec![Amount::Tokens(budget.for_group(self.name))]
        } else if let Some(budgets) = &filter.budgets {
            budgets.iter().map(|budget| Amount::Tokens(budget.keep_tokens)).collect()
        } else {
            vec![Amount::All]
        }
    }

    /// Runs the last pass, which decides on every sample.
    fn totals(
        self,
        scorer: Option<&Scorer>,
        bounds: &[Bounds],
        edges: &mut [Edge],
        deciles: &[f64],
        bins: &mut ScoreBins,
    ) -> Result<Totals> {
        let (criteria, units) = (self.criteria, &self.gathered.units[..]);
        let nothing = Threshold { score: None, ties: 0, ties_kept: 0 };
        let by_guard = || vec![0; criteria.guards.len()];
        let (thresholds, rejected, missing) = (vec![nothing; edges.len()], by_guard(), by_guard());
        let mut totals = Totals { rejected, missing, thresholds, ..Totals::default() };
        let mut kept_of_unit = KeptCounter { units, kept: self.kept, unit: 0, count: 0 };
        self.gathered.visit(self.group, self.stop, |sample| {
            let sample_state = sample_state(scorer, bounds, criteria, sample.values);
            let score = sample_state.passing_score();
            totals.counted += u64::from(sample_state.counts());
            let is_rejected = matches!(sample_state, SampleState::Rejected(..));
            for (guard, ((_, statistic), bounds)) in criteria.guards.iter().zip(bounds).enumerate()
            {
                let value = sample.values[*statistic];
                let verdict = bounds.judge(value);
                let is_missing = verdict == Verdict::Missing && !is_not_sampled(value);
                totals.rejected[guard] += u64::from(verdict == Verdict::Refused);
                totals.missing[guard] += u64::from(is_missing && !is_rejected);
            }
            if sample_state == SampleState::NotMeasured && criteria.filter.keeps_not_measured() {
                totals.kept_not_measured += 1;
                kept_of_unit.add(sample.number);
            }
            if score.is_nan() {
                return;
            }
            totals.scored += 1;
            bins.add(score);
            totals.parts[deciles.partition_point(|decile| *decile <= score)] += 1;
            let place = cutoff_index(criteria, self.name, sample.tokens);
            let Some(place) = place else { return };
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
