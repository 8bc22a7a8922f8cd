//! The values whose figures are told: every number of every measure, and the pipeline's score of them.

use longsift_stages::contract::{Column, Figures, Kind, Orientation};
use longsift_stages::filter::guards::{Guard, Verdict};
use longsift_stages::score::terms::{Scale, Scorer, Term};

use super::guards::Rejections;
use super::measure::OfWindow;
use super::windows::Place;
use crate::base::random::random_score;
use crate::plan::Plan;

/// The share of copied tokens above which `copy_cap` never takes a window.
const COPY_CAP: f64 = 0.4;

/// A statistic, more of which means more long-range.
#[derive(Clone, Debug)]
pub(crate) struct Statistic {
    /// The column's name; with `_negated` where less of it means more.
    pub(crate) name: String,
    /// One sentence.
    pub(crate) doc: String,
    /// By window. A score is on the scales of the windows that pass the guards.
    pub(crate) values: Vec<Option<f64>>,
    /// By window, on the scales of all windows: the score that there is without guards. `None` where it is no other.
    pub(crate) unguarded: Option<Vec<Option<f64>>>,
}

impl Statistic {
    /// The values that a selection without guards ranks by.
    pub(crate) fn without_guards(&self) -> &[Option<f64>] {
        self.unguarded.as_ref().unwrap_or(&self.values)
    }
}

/// The measured windows of one length.
#[derive(Debug)]
pub(crate) struct Measured {
    pub(crate) tokens: usize,
    pub(crate) places: Vec<Place>,
    /// Ids by category and document.
    pub(crate) ids: Vec<Vec<String>>,
    /// By window, the group whose scales and quantiles are its own.
    groups: Vec<usize>,
    /// By window, then by number in [`Measured::columns`]; `NaN` where there is none.
    figures: Vec<Vec<f64>>,
    columns: Vec<Column>,
}

impl Measured {
    pub(crate) fn new(plan: &Plan, tokens: usize) -> Self {
        let numbers = plan.measures.columns.iter().flat_map(|of| of.columns.iter());
        let columns = numbers.filter(|column| column.kind != Kind::Numbers).cloned().collect();
        let (places, ids, groups, figures) = Default::default();
        Self { tokens, places, ids, groups, figures, columns }
    }

    /// Adds a window.
    pub(crate) fn push(&mut self, plan: &Plan, place: Place, group: usize, figures: &OfWindow) {
        let mut numbers = Vec::with_capacity(self.columns.len());
        for (of, figures) in plan.measures.columns.iter().zip(figures) {
            for (index, column) in of.columns.iter().enumerate() {
                if column.kind != Kind::Numbers {
                    let value = figures.as_ref().and_then(|Figures(values)| values[index].finite());
                    numbers.push(value.unwrap_or(f64::NAN));
                }
            }
        }
        self.places.push(place);
        self.groups.push(group);
        self.figures.push(numbers);
    }

    fn column(&self, name: &str) -> Option<usize> {
        self.columns.iter().position(|column| column.name == name)
    }

    /// The values of a column by window, as the measure gives them; `NaN` where there is none.
    pub(crate) fn raw(&self, name: &str) -> Option<Vec<f64>> {
        let place = self.column(name)?;
        Some(self.figures.iter().map(|numbers| numbers[place]).collect())
    }

    /// The windows of each group, and those of them that are whole.
    fn by_group(&self) -> Vec<(Vec<usize>, Vec<usize>)> {
        let groups = self.groups.iter().max().map_or(0, |last| last + 1);
        let mut windows = vec![(Vec::new(), Vec::new()); groups];
        for (window, (place, group)) in self.places.iter().zip(&self.groups).enumerate() {
            windows[*group].0.push(window);
            if place.is_whole() {
                windows[*group].1.push(window);
            }
        }
        windows
    }

    /// Every column of which any two windows have different values, and the score. `passes`: by window, whether it passes all
    /// guards; `None` without guards.
    pub(crate) fn statistics(&self, plan: &Plan, passes: Option<&[bool]>) -> Vec<Statistic> {
        let mut all = Vec::new();
        for (place, column) in self.columns.iter().enumerate() {
            let negated = column.orientation == Orientation::Lower;
            let values = self.figures.iter().map(|numbers| {
                let value = if negated { -numbers[place] } else { numbers[place] };
                Some(value).filter(|value| value.is_finite())
            });
            let values: Vec<Option<f64>> = values.collect();
            let mut known = values.iter().flatten();
            let first = known.next();
            // A distance in tokens, say, is the same for all windows of a length, and separates nothing.
            if known.any(|value| Some(value) != first) {
                let suffix = if negated { "_negated" } else { "" };
                let name = format!("{}{suffix}", column.name);
                let doc = column.doc.clone().into_owned();
                all.push(Statistic { name, doc, values, unguarded: None });
            }
        }
        all.extend(self.score(plan, passes));
        all
    }

    /// Random scores: of the id of a document, the number of a window, and the kind of a constructed one.
    pub(crate) fn random(&self, seed: u64) -> Vec<Option<f64>> {
        let score = |place: &Place| {
            let id = &self.ids[place.category][place.document];
            let window = (place.start / self.tokens).to_string();
            let kind = (!place.is_whole()).then(|| place.kind().name);
            let sample: Vec<&str> = [id.as_str(), &window].into_iter().chain(kind).collect();
            Some(random_score(seed, &sample))
        };
        self.places.iter().map(score).collect()
    }

    /// The pipeline's score. `None` where a term has no figures.
    fn score(&self, plan: &Plan, passes: Option<&[bool]>) -> Option<Statistic> {
        let settings = plan.spec.score();
        if let Some(seed) = settings.random_seed() {
            let doc = format!(
                "The pipeline's score: a random number of document and window, seed {seed}."
            );
            let values = self.random(seed);
            return Some(Statistic { name: "score".into(), doc, values, unguarded: None });
        }
        let (terms, combine) = settings.terms(&plan.measures.statistics());
        let values = self.scores(plan, |window| passes.is_none_or(|passes| passes[window]))?;
        let unguarded = passes.and_then(|_| self.scores(plan, |_| true));
        let doc = format!("The pipeline's score: {}.", combine.formula(&terms));
        let any = values.iter().any(Option::is_some);
        any.then(|| Statistic { name: "score".into(), doc, values, unguarded })
    }

    /// The pipeline's score by window, on the scales of those whole windows of its group that `is_counted` counts.
    fn scores(&self, plan: &Plan, is_counted: impl Fn(usize) -> bool) -> Option<Vec<Option<f64>>> {
        let settings = plan.spec.score();
        let (terms, combine) = settings.terms(&plan.measures.statistics());
        let columns: Option<Vec<usize>> =
            terms.iter().map(|term| self.column(&term.statistic)).collect();
        let columns = columns?;
        let mut values = vec![None; self.places.len()];
        for (windows, mut counted) in self.by_group() {
            counted.retain(|window| is_counted(*window));
            if counted.is_empty() {
                continue;
            }
            let scale = |(term, column): (&Term, &usize)| {
                let of: Vec<f64> =
                    counted.iter().map(|window| self.figures[*window][*column]).collect();
                let is_known = term.optional || of.iter().any(|value| value.is_finite());
                is_known.then(|| Scale::of(&of, term.standardise.unwrap_or(settings.standardise)))
            };
            // As in a run, a group has no scores where all its windows lack the statistic of a term.
            let Some(scales) = terms.iter().zip(&columns).map(scale).collect::<Option<Vec<_>>>()
            else {
                continue;
            };
            let scorer = Scorer::new(&terms, combine, settings.standardise, &scales)?;
            for window in windows {
                let of: Vec<f64> =
                    columns.iter().map(|column| self.figures[window][*column]).collect();
                values[window] = Some(scorer.score(&of)).filter(|score| score.is_finite());
            }
        }
        Some(values)
    }

    /// By window, whether its copied tokens are at most two in five; none without `copy_share`.
    pub(crate) fn below_copy_cap(&self) -> Option<Vec<bool>> {
        Some(self.raw("copy_share")?.into_iter().map(|share| share <= COPY_CAP).collect())
    }

    /// Verdicts of the pipeline's guards; quantiles are those of the whole windows of a group. A guard on a statistic that is not
    /// measured is left out.
    pub(crate) fn rejections(&self, plan: &Plan) -> Rejections {
        let by_group = self.by_group();
        let of_guard = |guard: &Guard| {
            let values = self.raw(&guard.statistic)?;
            let mut verdicts = vec![Verdict::Missing; values.len()];
            for (windows, whole) in &by_group {
                let of_whole: Vec<f64> = whole.iter().map(|window| values[*window]).collect();
                let tokens = vec![self.tokens as u64; of_whole.len()];
                let bounds = guard.bounds_of(&of_whole, &tokens);
                for window in windows {
                    verdicts[*window] = bounds.judge(values[*window]);
                }
            }
            Some(verdicts)
        };
        let guards = plan.spec.filter().guards.iter();
        Rejections::new(guards.map(|guard| (guard.statistic.clone(), of_guard(guard))).collect())
    }
}
