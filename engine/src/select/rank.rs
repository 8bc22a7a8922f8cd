//! Ranks the samples of a group: computes its rule from its statistics.
//!
//! ```text
//! bounds   of guards with quantiles: a pass and a sort for each
//! sums     means and ranges of the samples that pass the guards
//! scales   standard deviations and percentiles
//! scores   states of all samples; those with a score are sorted
//! rank     in descending order of scores: which samples are kept, thresholds, deciles
//! ```

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use longsift_stages::filter::guards::{Bounds, Guard, Verdict, quantile_weight};
use longsift_stages::score::percentile::{Histogram, HistogramBuilder};
use longsift_stages::score::terms::{Scale, Scorer, Standardise, Term};
use longsift_stages::score::{Deviations, SummaryStatistics, Sums};

use super::criteria::Criteria;
use super::decided::{Cutoff, Quota, Rule, cutoff_index, passes, sample_state};
use super::gather::{GatheredSamples, Record};
use super::mapped_words::{MappedWords, StoredHistogram, WordsWriter};
use super::sample_state::{SampleState, is_not_sampled};
use super::score_percentiles::{GroupPercentiles, ScoreBins, ScoreRange};
use super::sort::{Sorter, key, value};
use crate::base::error::Result;
use crate::base::parallel;
use crate::base::stop::Stop;
use crate::run_directory::calibration::Threshold;
use crate::run_directory::layout::RunDirectory;

/// Number of ranges between the deciles of scores.
const TENTHS: u64 = 10;

pub(super) struct Ranking<'a> {
    criteria: &'a Criteria,
    gathered: &'a GatheredSamples,
    directory: &'a RunDirectory,
    stop: &'a Stop,
    kept: Vec<AtomicU64>,
    /// Percentiles and histograms of all groups.
    file: WordsWriter,
}

#[derive(Clone, Copy)]
pub(super) struct RankedGroup<'a> {
    ranking: &'a Ranking<'a>,
    /// Value of the `within` column.
    pub(super) value: &'a Option<String>,
    group: u32,
}

impl<'a> Ranking<'a> {
    pub(super) fn new(
        criteria: &'a Criteria,
        gathered: &'a GatheredSamples,
        directory: &'a RunDirectory,
        stop: &'a Stop,
    ) -> Result<Self> {
        Ok(Self {
            criteria,
            gathered,
            directory,
            stop,
            kept: gathered.units.iter().skip(1).map(|_| AtomicU64::new(0)).collect(),
            file: WordsWriter::new(directory)?,
        })
    }

    /// Decides on all groups, in parallel; the results are in the order of their values.
    pub(super) fn each_group<'s, T: Send>(
        &'s self,
        decide: impl Fn(RankedGroup<'s>) -> Result<T> + Sync,
    ) -> Result<Vec<T>> {
        let groups: Vec<_> = self.gathered.groups.iter().collect();
        parallel::in_order(groups.len(), rayon::current_num_threads(), |index| {
            let (value, group) = groups[index];
            decide(RankedGroup { ranking: self, value, group: *group })
        })
    }

    /// Returns the kept samples by unit, and the file of the percentiles and histograms of all groups.
    pub(super) fn finish(self) -> Result<(Vec<u64>, MappedWords)> {
        let kept = self.kept.into_iter().map(AtomicU64::into_inner).collect();
        Ok((kept, self.file.finish()?))
    }
}

#[derive(Clone, Debug)]
pub(super) struct GroupDecision {
    group: Option<Arc<str>>,
    /// By statistic, over the samples that pass the guards; `None` if no sample has it.
    pub(super) summaries: Vec<Option<SummaryStatistics>>,
    /// By term, if it uses percentiles; `None` without a scale.
    histograms: Option<Vec<Option<StoredHistogram>>>,
    pub(super) bounds: Vec<Bounds>,
    pub(super) samples: SampleDecisions,
}

impl GroupDecision {
    /// Scale of every term; `None` if no sample that passes has a statistic of the score.
    pub(super) fn scales(&self, criteria: &Criteria, file: &MappedWords) -> Option<Vec<Scale>> {
        let stored = self.histograms.as_ref()?.iter();
        let histograms = stored.map(|stored| stored.as_ref().map(|stored| stored.read(file)));
        scales(criteria, &self.summaries, histograms)
    }

    pub(super) fn rule(&self, criteria: &Criteria, file: &MappedWords) -> Rule {
        Rule {
            group: self.group.clone(),
            scorer: scorer(criteria, self.scales(criteria, file)),
            bounds: self.bounds.clone(),
            cutoffs: self.samples.cutoffs.clone(),
            percentiles: self.samples.percentiles.clone(),
        }
    }
}

/// Builds the scale of every term from the totals of all statistics and the histograms of the terms.
fn scales(
    criteria: &Criteria,
    summaries: &[Option<SummaryStatistics>],
    histograms: impl Iterator<Item = Option<Histogram>>,
) -> Option<Vec<Scale>> {
    let terms = criteria.terms.iter().zip(summaries).zip(histograms);
    let scale = |((term, summary), histogram): ((&Term, &Option<SummaryStatistics>), _)| {
        term.scale(criteria.standardise, *summary, histogram)
    };
    terms.map(scale).collect()
}

fn scorer(criteria: &Criteria, scales: Option<Vec<Scale>>) -> Option<Scorer> {
    let scorer = Scorer::new(&criteria.terms, criteria.combine, criteria.standardise, &scales?);
    Some(scorer.expect("every term has its scale"))
}

/// Totals of every statistic, and the scale of every term if all have one.
type GroupScales = (Vec<Option<SummaryStatistics>>, Option<Vec<Scale>>);

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

struct ScoredSamples<'a> {
    totals: Totals,
    /// Samples that pass and have a score: inverted key of the score, number, tokens.
    sorter: Sorter<'a, 3>,
    range: ScoreRange,
}

#[derive(Clone, Debug)]
pub(super) struct SampleDecisions {
    pub(super) totals: Totals,
    cutoffs: Vec<Option<Cutoff>>,
    percentiles: GroupPercentiles,
    /// The nine scores that cut the group into ten parts of equal size; empty for a group without scores.
    pub(super) deciles: Vec<f64>,
}

impl<'a> RankedGroup<'a> {
    pub(super) fn by_own_statistics(self) -> Result<GroupDecision> {
        let criteria = self.ranking.criteria;
        let (name, filter) = (self.value.as_deref(), &criteria.filter);
        let guards = criteria.guards.iter();
        let bounds: Vec<Bounds> = guards
            .map(|(guard, statistic)| self.bounds(guard, *statistic))
            .collect::<Result<_>>()?;
        let (summaries, scales) = self.scales(&bounds)?;
        criteria.check_z_scores(name, &summaries)?;
        let store = |scale: &Scale| {
            let histogram = scale.histogram.as_ref();
            histogram.map(|of| StoredHistogram::write(of, &self.ranking.file)).transpose()
        };
        let histograms = scales.as_ref().map(|scales| scales.iter().map(store).collect());
        let histograms = histograms.transpose()?;
        let scorer = scorer(criteria, scales);
        let scored = self.score(scorer.as_ref(), &bounds, |_, _| {})?;
        let quotas = Quota::for_group(filter, name, scored.totals.counted);
        let mut samples = self.rank(scored, quotas, Vec::new())?;
        samples.deciles.reverse();
        if let Some(score) = filter.min_score {
            let threshold = Threshold { score: Some(score), ties: 0, ties_kept: 0 };
            samples.totals.thresholds = vec![threshold];
        }
        Ok(GroupDecision { group: name.map(Arc::from), summaries, histograms, bounds, samples })
    }

    /// Decides by a calibration, with its `deciles` of scores, and sums the statistics of the samples that pass.
    pub(super) fn by_calibration(
        self,
        scorer: Option<Scorer>,
        bounds: Vec<Bounds>,
        thresholds: &[Threshold],
        deciles: &[f64],
    ) -> Result<(Rule, Totals, Vec<Sums>)> {
        let sums = self.sums(&bounds)?;
        let mut ties = vec![0_u64; thresholds.len()];
        let scored = self.score(scorer.as_ref(), &bounds, |index, score| {
            ties[index] += u64::from(thresholds[index].score == Some(score));
        })?;
        let quotas = thresholds.iter().zip(ties);
        let quotas = quotas.map(|(threshold, ties)| Quota::calibrated(threshold, ties)).collect();
        let deciles = deciles.iter().rev().copied().collect();
        let SampleDecisions { totals, cutoffs, percentiles, .. } =
            self.rank(scored, quotas, deciles)?;
        let group = self.value.as_deref().map(Arc::from);
        Ok((Rule { group, scorer, bounds, cutoffs, percentiles }, totals, sums))
    }

    fn visit(self, each: impl FnMut(Record<'_>) -> Result<()>) -> Result<()> {
        self.ranking.gathered.visit(self.group, self.ranking.stop, each)
    }

    /// Computes the bounds of a guard. Quantiles are over all samples that have the statistic.
    fn bounds(self, guard: &Guard, statistic: usize) -> Result<Bounds> {
        let quantiles = [guard.min_quantile, guard.max_quantile];
        let (mut total, mut sorter) = (0_u64, Sorter::new(self.ranking.directory));
        if quantiles.iter().any(Option::is_some) {
            self.visit(|sample| {
                let (value, weight) = (sample.values[statistic], guard.weight(sample.tokens));
                if !value.is_finite() {
                    return Ok(());
                }
                total = total.saturating_add(weight);
                sorter.push([key(value), weight])
            })?;
        }
        let wanted =
            quantiles.map(|quantile| quantile.map(|quantile| quantile_weight(quantile, total)));
        let (mut reached, mut found) = (0_u64, [None; 2]);
        sorter.for_each(self.ranking.stop, |[key, weight]| {
            reached = reached.saturating_add(weight);
            for (found, wanted) in found.iter_mut().zip(wanted) {
                if found.is_none() && wanted.is_some_and(|wanted| reached >= wanted) {
                    *found = Some(value(key));
                }
            }
            Ok(())
        })?;
        let [low, high] = found;
        Ok(guard.bounds(low, high))
    }

    /// Calls `each` with the index and value of every finite statistic of the samples that pass, in input order.
    fn visit_passing(self, bounds: &[Bounds], mut each: impl FnMut(usize, f64)) -> Result<()> {
        let criteria = self.ranking.criteria;
        self.visit(|sample| {
            if passes(bounds, criteria, sample.values) {
                let values = sample.values[..criteria.statistics.len()].iter().enumerate();
                let finite = values.filter(|(_, value)| value.is_finite());
                finite.for_each(|(statistic, value)| each(statistic, *value));
            }
            Ok(())
        })
    }

    fn sums(self, bounds: &[Bounds]) -> Result<Vec<Sums>> {
        let mut sums = vec![Sums::default(); self.ranking.criteria.statistics.len()];
        self.visit_passing(bounds, |statistic, value| sums[statistic].add(value))?;
        Ok(sums)
    }

    /// Computes the totals of every statistic and the scale of every term over the samples that pass.
    fn scales(self, bounds: &[Bounds]) -> Result<GroupScales> {
        let (criteria, sums) = (self.ranking.criteria, self.sums(bounds)?);
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
        let summaries = deviations.iter().zip(&sums);
        let summaries: Vec<Option<SummaryStatistics>> =
            summaries.map(|(of, sums)| (sums.count > 0).then(|| of.summary())).collect();
        let histograms = histograms.iter().map(|of| of.as_ref().map(HistogramBuilder::finish));
        let scales = scales(criteria, &summaries, histograms);
        Ok((summaries, scales))
    }

    /// Counts states and collects samples with a score. Calls `each` with cutoff index and score of those that may be kept.
    fn score(
        self,
        scorer: Option<&Scorer>,
        bounds: &[Bounds],
        mut each: impl FnMut(usize, f64),
    ) -> Result<ScoredSamples<'a>> {
        let criteria = self.ranking.criteria;
        let by_guard = || vec![0; criteria.guards.len()];
        let mut totals = Totals { rejected: by_guard(), missing: by_guard(), ..Totals::default() };
        let (mut sorter, mut range) = (Sorter::new(self.ranking.directory), ScoreRange::default());
        self.visit(|sample| {
            let sample_state = sample_state(scorer, bounds, criteria, sample.values);
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
                self.count_kept(sample.number);
            }
            let score = sample_state.passing_score();
            if score.is_nan() {
                return Ok(());
            }
            totals.scored += 1;
            range.add(score);
            if let Some(index) = cutoff_index(criteria, self.value.as_deref(), sample.tokens) {
                each(index, score);
            }
            sorter.push([!key(score), sample.number, sample.tokens])
        })?;
        Ok(ScoredSamples { totals, sorter, range })
    }

    /// Decides on every sample, in rank order. `quotas`: by cutoff. `deciles`: descending; computed if empty.
    fn rank(
        self,
        scored: ScoredSamples<'_>,
        mut quotas: Vec<Quota>,
        mut deciles: Vec<f64>,
    ) -> Result<SampleDecisions> {
        let ScoredSamples { mut totals, sorter, range } = scored;
        let nothing = Threshold { score: None, ties: 0, ties_kept: 0 };
        totals.thresholds = vec![nothing; quotas.len()];
        let mut cutoffs = vec![None; quotas.len()];
        let mut bins = ScoreBins::between(range);
        // Number of samples with a lower rank.
        let mut lower = totals.scored;
        sorter.for_each(self.ranking.stop, |[rank, number, tokens]| {
            let score = value(!rank);
            bins.add(score);
            lower -= 1;
            for tenth in (1..TENTHS - deciles.len() as u64).rev() {
                if tenth * totals.scored / TENTHS != lower {
                    break;
                }
                deciles.push(score);
            }
            let higher = deciles.partition_point(|decile| *decile > score);
            totals.parts[TENTHS as usize - 1 - higher] += 1;
            let Some(index) = cutoff_index(self.ranking.criteria, self.value.as_deref(), tokens)
            else {
                return Ok(());
            };
            let threshold = &mut totals.thresholds[index];
            let is_tie = threshold.score == Some(score);
            if quotas[index].keeps(score, tokens) {
                let (ties, ties_kept) =
                    if is_tie { (threshold.ties, threshold.ties_kept) } else { (0, 0) };
                *threshold =
                    Threshold { score: Some(score), ties: ties + 1, ties_kept: ties_kept + 1 };
                cutoffs[index] = Some(Cutoff { score, last_tie: number });
                totals.kept += 1;
                self.count_kept(number);
            } else if is_tie {
                threshold.ties += 1;
            }
            Ok(())
        })?;
        Ok(SampleDecisions {
            totals,
            cutoffs,
            percentiles: GroupPercentiles::write(&bins, &self.ranking.file)?,
            deciles,
        })
    }

    fn count_kept(self, number: u64) {
        let unit = self.ranking.gathered.units.partition_point(|first| *first <= number) - 1;
        self.ranking.kept[unit].fetch_add(1, Ordering::Relaxed);
    }
}
