//! The values whose figures are told: every number of every measure, and the pipeline's score of them.

use longsift_stages::contract::{Column, Figures, Kind, Orientation};
use longsift_stages::filter::guards::Verdict;
use longsift_stages::score::terms::{Scale, Scorer};

use super::measure::OfWindow;
use super::windows::Place;
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
    /// By window.
    pub(crate) values: Vec<Option<f64>>,
}

/// The measured windows of one length.
#[derive(Debug)]
pub(crate) struct Measured {
    pub(crate) tokens: usize,
    pub(crate) places: Vec<Place>,
    /// By window, then by number in [`Measured::columns`]; `NaN` where there is none.
    figures: Vec<Vec<f64>>,
    columns: Vec<Column>,
    pub(crate) categories: usize,
}

impl Measured {
    pub(crate) fn new(plan: &Plan, tokens: usize, categories: usize) -> Self {
        let numbers = plan.measures.columns.iter().flat_map(|of| of.columns.iter());
        let columns = numbers.filter(|column| column.kind != Kind::Numbers).cloned().collect();
        Self { tokens, places: Vec::new(), figures: Vec::new(), columns, categories }
    }

    /// Adds a window.
    pub(crate) fn push(&mut self, plan: &Plan, place: Place, figures: &OfWindow) {
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

    /// The windows of a category that are whole.
    fn whole(&self, category: usize) -> impl Iterator<Item = usize> + Clone + '_ {
        let places = self.places.iter().enumerate();
        let whole =
            move |(_, place): &(usize, &Place)| place.category == category && place.is_whole();
        places.filter(whole).map(|(window, _)| window)
    }

    /// Every column of which any two windows have different values, and the score.
    pub(crate) fn statistics(&self, plan: &Plan) -> Vec<Statistic> {
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
                all.push(Statistic { name, doc: column.doc.clone().into_owned(), values });
            }
        }
        all.extend(self.score(plan));
        all
    }

    /// The pipeline's score, its scales taken over the whole windows of each category. None where a term has no figures.
    fn score(&self, plan: &Plan) -> Option<Statistic> {
        let settings = plan.spec.score();
        let (terms, combine) = settings.terms(&plan.measures.statistics());
        let columns: Option<Vec<usize>> =
            terms.iter().map(|term| self.column(&term.statistic)).collect();
        let columns = columns?;
        let mut values = vec![None; self.places.len()];
        for category in 0..self.categories {
            let scales: Vec<Scale> = terms
                .iter()
                .zip(&columns)
                .map(|(term, column)| {
                    let whole: Vec<f64> =
                        self.whole(category).map(|window| self.figures[window][*column]).collect();
                    Scale::of(&whole, term.standardise.unwrap_or(settings.standardise))
                })
                .collect();
            let scorer = Scorer::new(&terms, combine, settings.standardise, &scales)?;
            for (window, place) in self.places.iter().enumerate() {
                if place.category == category {
                    let of: Vec<f64> =
                        columns.iter().map(|column| self.figures[window][*column]).collect();
                    values[window] = Some(scorer.score(&of)).filter(|score| score.is_finite());
                }
            }
        }
        let doc = format!("The pipeline's score: {}.", combine.formula(&terms));
        values.iter().any(Option::is_some).then(|| Statistic { name: "score".into(), doc, values })
    }

    /// By window, whether its copied tokens are at most two in five; none without `copy_share`.
    pub(crate) fn below_copy_cap(&self) -> Option<Vec<bool>> {
        Some(self.raw("copy_share")?.into_iter().map(|share| share <= COPY_CAP).collect())
    }

    /// By guard of the pipeline and window, whether it passes; quantiles are those of the whole windows of its category. None
    /// for a guard on a statistic that no window of this length has.
    pub(crate) fn passes(&self, plan: &Plan) -> Vec<Option<Vec<bool>>> {
        let guards = &plan.spec.filter().guards;
        let of_guard = |guard: &longsift_stages::filter::guards::Guard| {
            let values = self.raw(&guard.statistic)?;
            if values.iter().all(|value| value.is_nan()) {
                return None;
            }
            let bounds: Vec<_> = (0..self.categories)
                .map(|category| {
                    let whole: Vec<f64> =
                        self.whole(category).map(|window| values[window]).collect();
                    guard.bounds_of(&whole, &vec![self.tokens as u64; whole.len()])
                })
                .collect();
            let judge = |(place, value): (&Place, &f64)| {
                bounds[place.category].judge(*value) == Verdict::Passes
            };
            Some(self.places.iter().zip(&values).map(judge).collect())
        };
        guards.iter().map(of_guard).collect()
    }
}
