//! Criteria of a selection: its statistics, in the order of a sample's values, and their terms, guards and amounts.

use std::sync::Arc;

use longsift_stages::contract::{Column, Merge, WindowSample};
use longsift_stages::filter::guards::Guard;
use longsift_stages::score::presets::Formula;
use longsift_stages::score::settings::RelativeError;
use longsift_stages::score::terms::{Combine, Scorer, Standardise, Term};
use longsift_stages::score::{DocumentScore, SummaryStatistics};
use longsift_stages::{Filter, Score};

use super::sample_state::{NOT_SAMPLED, SampleState};
use crate::base::diagnostic::{Blame, Diagnostic};
use crate::base::error::Result;
use crate::base::random::random_score;
use crate::dataset::documents::is_id_of_row;
use crate::plan::cascade::{Cascade, document_merge};
use crate::plan::{Plan, columns, sampling};
use crate::run_directory::dropped;
use crate::run_directory::scores::ScoredWindow;
use crate::spec::pipeline::Samples;

#[derive(Clone, Debug)]
pub(super) struct Criteria {
    /// Statistic of every term in order, then those that only guards use.
    pub(super) statistics: Vec<SelectionStatistic>,
    /// Columns of score tables that are read: those that the selection needs, then those of the output.
    pub(super) columns: Vec<String>,
    /// Number of columns that the selection needs.
    pub(super) selects_by: usize,
    pub(super) terms: Vec<Term>,
    pub(super) combine: Combine,
    /// Default for terms that do not set it.
    pub(super) standardise: Standardise,
    pub(super) cascade: Cascade,
    /// Guards, each with the index of its statistic.
    pub(super) guards: Vec<(Guard, usize)>,
    pub(super) filter: Filter,
    pub(super) samples: Samples,
    /// Seed of random scores.
    pub(super) random: Option<u64>,
    /// Measures with guards before them.
    pub(super) skipped: Vec<SkippedMeasure>,
    pub(super) written: Vec<SelectionStatistic>,
}

#[derive(Clone, Debug)]
pub(super) struct SkippedMeasure {
    pub(super) measure: String,
    index: u16,
    /// Sample of windows that it runs on.
    sample: Option<WindowSample>,
}

#[derive(Clone, Debug)]
pub(super) struct SelectionStatistic {
    pub(super) name: String,
    /// Rule for a document's value from those of its windows.
    pub(super) merge: Merge,
    /// Column indexes of numerator and denominator, if a document's value is a ratio.
    pub(super) ratio: Option<(usize, usize)>,
    /// Index among the columns that are read.
    pub(super) column: usize,
    /// Column index of its standard error, if the measure declares one.
    pub(super) error: Option<usize>,
    /// Index of its measure in the plan.
    pub(super) measure: u16,
    /// Sample of windows that its measure runs on.
    pub(super) sample: Option<WindowSample>,
}

impl Criteria {
    /// Whether a sample without this statistic is dropped: a guard or a term that is not optional needs it.
    pub(super) fn requires(&self, statistic: usize) -> bool {
        let is_optional = self.terms.get(statistic).is_some_and(|term| term.optional);
        !is_optional || self.guards.iter().any(|(_, guarded)| *guarded == statistic)
    }

    /// Returns the criteria of a plan, in which all statistics are known to exist.
    pub(super) fn from_plan(plan: &Plan) -> Self {
        let (score, filter) = (plan.spec.score(), plan.spec.filter());
        let declared = plan.measures.statistics();
        let mut criteria = Self::new(plan, score, filter, Vec::new());
        let statistic = |column: &Column| {
            let (columns, merge) = (&mut criteria.columns, score.document_score);
            SelectionStatistic::new(plan, &column.name, &declared, merge, columns)
        };
        criteria.written = columns::output_statistics(&declared).map(statistic).collect();
        let skipped =
            plan.measures().zip(&plan.measures.columns).filter_map(|((index, of), columns)| {
                let (measure, sample) = (columns.measure.clone(), of.sample());
                let has_guards = !plan.cascade.before(index).is_empty();
                has_guards.then_some(SkippedMeasure { measure, index, sample })
            });
        criteria.skipped = skipped.collect();
        criteria.cascade = plan.cascade.clone();
        criteria
    }

    /// Returns the criteria of a named score, with groups and amount of a plan but no guards. `columns`: those already read.
    pub(super) fn for_formula(plan: &Plan, formula: Formula, columns: Vec<String>) -> Self {
        let of_plan = plan.spec.score();
        let alpha = of_plan.alpha.filter(|_| formula == Formula::Longattn);
        let (formula, terms, combine) = (Some(formula), None, None);
        let score = Score { formula, alpha, terms, combine, ..of_plan.clone() };
        let filter = Filter { guards: Vec::new(), ..plan.spec.filter().clone() };
        Self::new(plan, &score, &filter, columns)
    }

    fn new(plan: &Plan, score: &Score, filter: &Filter, mut columns: Vec<String>) -> Self {
        let declared = plan.measures.statistics();
        let (terms, combine) = score.terms(&declared);
        let mut statistic = |name: &str| {
            SelectionStatistic::new(plan, name, &declared, score.document_score, &mut columns)
        };
        let mut statistics: Vec<SelectionStatistic> =
            terms.iter().map(|term| statistic(&term.statistic)).collect();
        let mut guards = Vec::new();
        for guard in &filter.guards {
            let known = statistics.iter().position(|known| known.name == guard.statistic);
            let index = known.unwrap_or_else(|| {
                statistics.push(statistic(&guard.statistic));
                statistics.len() - 1
            });
            guards.push((guard.clone(), index));
        }
        Self {
            statistics,
            skipped: Vec::new(),
            written: Vec::new(),
            cascade: Cascade::default(),
            selects_by: columns.len(),
            columns,
            terms,
            combine,
            standardise: score.standardise,
            guards,
            filter: filter.clone(),
            samples: plan.spec.pipeline.output.samples,
            random: score.random_seed(),
        }
    }

    /// Reason for not keeping a sample in this state, as in the accounting.
    pub(super) fn reason(&self, sample_state: SampleState) -> Arc<str> {
        match sample_state {
            SampleState::Missing(index) => format!("no_{}", self.statistics[index].name).into(),
            SampleState::NotMeasured => dropped::NOT_MEASURED.into(),
            SampleState::Rejected(index, _) => {
                format!("guard_{}", self.guards[index].0.statistic).into()
            }
            SampleState::Ranked(_) => dropped::NOT_SELECTED.into(),
        }
    }

    pub(super) fn tokens(&self, sample: &[ScoredWindow]) -> u64 {
        match (self.samples, sample.first()) {
            (_, None) => 0,
            (Samples::Windows, Some(window)) => window.tokens.1 - window.tokens.0,
            (Samples::Documents, Some(first)) => first.tokens_total,
        }
    }

    /// Index of a sample's window; `None` for a document.
    pub(super) fn window(&self, sample: &[ScoredWindow]) -> Option<u32> {
        match self.samples {
            Samples::Windows => sample.first().map(|window| window.window),
            Samples::Documents => None,
        }
    }

    /// Values of a sample: those of the statistics, then its random score.
    pub(super) fn values(&self, sample: &[ScoredWindow], file: &str) -> Vec<f64> {
        let statistics = self.statistics.iter().map(|statistic| self.value(statistic, sample));
        let random = self.random.map(|seed| self.random_score(seed, sample, file));
        statistics.chain(random).collect()
    }

    /// Draws the score of a sample of a file. A document without an id is identified by its file and row.
    fn random_score(&self, seed: u64, sample: &[ScoredWindow], file: &str) -> f64 {
        let ScoredWindow { input_row, id, .. } = &sample[0];
        let (row, window) = (input_row.to_string(), self.window(sample).map(|of| of.to_string()));
        let by_row = is_id_of_row(id, file, *input_row);
        let mut parts: Vec<&str> = if by_row { vec![file, &row] } else { vec![id] };
        parts.extend(window.as_deref());
        random_score(seed, &parts)
    }

    /// Score of a sample with these values; `NaN` if one is missing or its group has no scale.
    pub(super) fn score(&self, scorer: Option<&Scorer>, values: &[f64]) -> f64 {
        match (self.random, scorer) {
            (Some(_), _) => values[self.statistics.len()],
            (None, Some(scorer)) => scorer.score(&values[..self.terms.len()]),
            (None, None) => f64::NAN,
        }
    }

    /// Value of a statistic of a sample; `NaN` if missing.
    ///
    /// If guards skip its measure, the value is missing even if an earlier run with other guards computed it. If sampling
    /// excluded the measure, it is [`NOT_SAMPLED`].
    pub(super) fn value(&self, statistic: &SelectionStatistic, sample: &[ScoredWindow]) -> f64 {
        if self.is_skipped(statistic.measure, sample) {
            f64::NAN
        } else if sample.iter().any(|window| statistic.includes(window)) {
            self.measured(statistic, sample)
        } else {
            NOT_SAMPLED
        }
    }

    fn is_skipped(&self, measure: u16, sample: &[ScoredWindow]) -> bool {
        self.cascade.skips(measure, &|guard| {
            let statistic = &self.statistics[self.guards[guard.guard].1];
            statistic.windows(statistic.column, sample)
        })
    }

    /// Number of windows of a sample that guards skip for a measure.
    pub(super) fn skipped_windows(&self, of: &SkippedMeasure, sample: &[ScoredWindow]) -> u64 {
        if self.is_skipped(of.index, sample) {
            let included = |own: &&ScoredWindow| sampling::contains(of.sample, &own.id, own.window);
            sample.iter().filter(included).count() as u64
        } else {
            0
        }
    }

    fn measured(&self, statistic: &SelectionStatistic, sample: &[ScoredWindow]) -> f64 {
        if let (Samples::Windows, [window]) = (self.samples, sample) {
            return window.statistic(statistic.column);
        }
        let windows = |column: usize| statistic.windows(column, sample);
        match (&statistic.merge, statistic.ratio) {
            (Merge::Ratio { exponential, .. }, Some((above, below))) => {
                Merge::ratio(&windows(above), &windows(below), *exponential)
            }
            _ => statistic.merge.merge_windows(&windows(statistic.column)),
        }
    }

    /// Adds the relative errors of the values of a sample's windows, by term.
    pub(super) fn add_errors(&self, sample: &[ScoredWindow], errors: &mut [RelativeError]) {
        for (statistic, error) in self.statistics.iter().zip(errors) {
            let Some(column) = statistic.error else { continue };
            if self.is_skipped(statistic.measure, sample) {
                continue;
            }
            for window in sample {
                if let Some(own) = window.statistics[column] {
                    error.add(window.statistic(statistic.column), own);
                }
            }
        }
    }

    /// Names of the columns of score tables that the selection needs.
    pub(super) fn columns(&self) -> Vec<&str> {
        self.columns[..self.selects_by].iter().map(String::as_str).collect()
    }

    pub(super) fn standardise_of(&self, term: usize) -> Option<Standardise> {
        let term = self.terms.get(term)?;
        Some(term.standardise.unwrap_or(self.standardise))
    }

    /// Refuses z-scores of a group whose standard deviation overflows or underflows. `summaries`: by statistic.
    pub(super) fn check_z_scores(
        &self,
        group: Option<&str>,
        summaries: &[Option<SummaryStatistics>],
    ) -> Result<()> {
        let by_z_score = |term: usize| self.standardise_of(term) == Some(Standardise::ZScore);
        let terms = self.terms.iter().zip(summaries).enumerate();
        let terms = terms.filter_map(|(term, (own, of))| Some((term, (own, of.as_ref()?))));
        let mut without =
            terms.filter(|(term, (_, own))| by_z_score(*term) && !own.supports_z_scores());
        let Some((_, (Term { statistic, .. }, SummaryStatistics { min, max, .. }))) =
            without.next()
        else {
            return Ok(());
        };
        let fails = if max - min > 1.0 { "overflows" } else { "underflows" };
        let group = group.map_or(String::new(), |group| format!(" in group `{group}`"));
        let message = format!(
            "`{statistic}` has no z-scores{group}: its values are between {min:e} and {max:e}, and their standard \
             deviation {fails}"
        );
        let hint = "use its percentiles (`standardise: percentile`), or skip such windows with a guard that has `before`; the scores \
                    are kept";
        Err(Diagnostic::error(Blame::Data, message).hint(hint).into())
    }
}

impl SelectionStatistic {
    /// Whether sampling includes a window for its measure.
    fn includes(&self, window: &ScoredWindow) -> bool {
        sampling::contains(self.sample, &window.id, window.window)
    }

    /// Values of a column, of the windows of a sample that its measure runs on.
    fn windows(&self, column: usize, sample: &[ScoredWindow]) -> Vec<f64> {
        let included = sample.iter().filter(|window| self.includes(window));
        included.map(|window| window.statistic(column)).collect()
    }

    /// `read`: columns of score tables that are read, to which those of this statistic are added.
    fn new(
        plan: &Plan,
        name: &str,
        columns: &[Column],
        document_score: Option<DocumentScore>,
        read: &mut Vec<String>,
    ) -> Self {
        let mut column_index = |name: &str| {
            let known = read.iter().position(|known| known == name);
            known.unwrap_or_else(|| {
                read.push(name.to_owned());
                read.len() - 1
            })
        };
        let column = columns.iter().find(|column| column.name == name);
        let merge = column.map_or(Merge::Never, |column| document_merge(column, document_score));
        let error = column.and_then(|column| column.error).map(&mut column_index);
        let ratio = match &merge {
            Merge::Ratio { numerator, denominator, .. } => {
                Some((column_index(numerator), column_index(denominator)))
            }
            _ => None,
        };
        let measure = plan.measures.index_of(name).map(|(measure, _)| measure);
        Self {
            name: name.to_owned(),
            merge,
            ratio,
            column: column_index(name),
            error,
            measure: measure.unwrap_or(0),
            sample: measure.and_then(|measure| plan.measure(measure).sample()),
        }
    }
}
