//! Evaluation of labelled windows, as serialized.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::Serialize;

use super::kept::{KeptShare, LabelledWindows};
use crate::base::text::count;
use crate::tools::evaluate::estimates::IntervalEstimate;
use crate::tools::evaluate::report::{Cell, MIN_DOCUMENTS, Matrix, shortcomings};
use crate::tools::evaluate::statistics::{GuardRejections, OrientedStatistic};
use crate::tools::evaluate::windows::{WindowLength, WindowOrigin};

/// Index of the fraction by which scores are judged: 25 %.
pub(crate) const QUARTER: usize = 1;
pub(crate) const RANDOM: &str = "random";
const MAX_BEST_WINDOWS: usize = 20;

/// Evaluation of scores on labelled documents.
#[derive(Clone, Debug, Serialize, JsonSchema)]
#[schemars(rename = "LabelFigures")]
pub(crate) struct LabelResults {
    /// Column of the class labels.
    pub(crate) column: String,
    /// Classes of real text.
    pub(crate) good: Vec<String>,
    /// Rows left out because they have no label.
    pub(crate) rows_without_label: u64,
    /// Results by window length: `S2048` and so on.
    #[serde(flatten)]
    pub(crate) lengths: BTreeMap<WindowLength, LabelLength>,
}

/// Results for windows of one length.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub(crate) struct LabelLength {
    /// Tokens of a window.
    #[serde(rename = "S")]
    pub(crate) tokens: u64,
    /// Result for the pipeline's score in one sentence; null without a score.
    pub(crate) sentence: Option<String>,
    pub(crate) classes: BTreeMap<String, ClassSize>,
    /// Classes without a document of this length, which are left out.
    pub(crate) classes_without_windows: Vec<String>,
    /// Descriptions of the statistics.
    pub(crate) statistics: BTreeMap<String, String>,
    /// By score and other class, the AUROC of the good classes against it, with its outcome.
    pub(crate) matrix: Matrix,
    /// Results by score.
    pub(crate) reports: BTreeMap<String, LabelReport>,
    /// Windows of each class that each guard rejects.
    pub(crate) guards: Vec<GuardRejections>,
    /// Windows with the highest scores among those that pass the guards, the best first.
    pub(crate) best: Vec<BestWindow>,
    pub(crate) notes: Vec<String>,
}

/// Size of a class.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub(crate) struct ClassSize {
    pub(crate) good: bool,
    pub(crate) documents: u64,
    pub(crate) windows: u64,
}

/// Results for one score.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub(crate) struct LabelReport {
    /// Windows without a value. They are never kept, count in the total weight, and are left out of AUROC.
    pub(crate) missing: u64,
    /// Selections among the windows that pass the guards; null without guards.
    pub(crate) guarded: Option<Vec<KeptShare>>,
    /// Selections without guards.
    pub(crate) unguarded: Vec<KeptShare>,
    /// By other class, how often a window of a good class ranks above one of it. Includes windows that guards reject.
    pub(crate) auroc: BTreeMap<String, IntervalEstimate>,
}

/// A window with a high score.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub(crate) struct BestWindow {
    pub(crate) class: String,
    /// Id of its document, or `FILE:ROW` without `input.id_column`.
    pub(crate) id: String,
    /// First token in the document.
    pub(crate) start: u64,
    pub(crate) score: f64,
}

impl LabelReport {
    /// Returns what the pipeline's selection keeps, with guards if it has any.
    pub(crate) fn kept(&self) -> &[KeptShare] {
        self.guarded.as_deref().unwrap_or(&self.unguarded)
    }
}

impl LabelledWindows<'_> {
    pub(crate) fn sizes(&self) -> BTreeMap<String, ClassSize> {
        let size = |(class, name): (usize, &String)| {
            let origins = self.measured.origins.iter();
            let windows = origins.filter(|origin| origin.category == class).count();
            let (good, documents) = (self.good[class], self.measured.documents[class].len() as u64);
            (name.clone(), ClassSize { good, documents, windows: windows as u64 })
        };
        self.measured.categories.iter().enumerate().map(size).collect()
    }

    pub(crate) fn report(&self, statistic: &OrientedStatistic) -> LabelReport {
        let missing = statistic.values.iter().filter(|value| value.is_none()).count() as u64;
        let auroc = self.measured.categories.iter().zip(self.auroc(&statistic.values));
        LabelReport {
            missing,
            guarded: self.passes.map(|_| self.kept(&statistic.values, self.passes)),
            unguarded: self.kept(statistic.without_guards(), None),
            auroc: auroc.filter_map(|(class, estimate)| Some((class.clone(), estimate?))).collect(),
        }
    }

    pub(crate) fn cells(&self, report: &LabelReport) -> BTreeMap<String, Cell> {
        let documents = self.measured.documents.iter().map(Vec::len);
        let good = documents.clone().zip(self.good).filter(|(_, good)| **good);
        if good.map(|(documents, _)| documents).sum::<usize>() < MIN_DOCUMENTS {
            return BTreeMap::new();
        }
        let many = self.measured.categories.iter().zip(documents);
        many.filter(|(_, documents)| *documents >= MIN_DOCUMENTS)
            .filter_map(|(class, _)| Some((class.clone(), Cell::new(*report.auroc.get(class)?)?)))
            .collect()
    }

    pub(crate) fn best(&self, score: &OrientedStatistic) -> Vec<BestWindow> {
        let mut windows: Vec<(usize, f64)> = (0..self.measured.origins.len())
            .filter(|window| self.passes.is_none_or(|passes| passes[*window]))
            .filter_map(|window| Some((window, score.values[window]?)))
            .collect();
        windows.sort_by(|(_, a), (_, b)| b.total_cmp(a));
        let window = |(window, score): (usize, f64)| {
            let WindowOrigin { category, start, .. } = self.measured.origins[window];
            let class = self.measured.categories[category].clone();
            let id = self.measured.document(window).name.clone();
            BestWindow { class, id, start: start as u64, score }
        };
        windows.into_iter().take(MAX_BEST_WINDOWS).map(window).collect()
    }
}

/// Summarises the result for the pipeline's score. With guards, the random control shows what the score adds to them.
pub(crate) fn sentence(
    report: &LabelReport,
    control: &LabelReport,
    cells: Option<&BTreeMap<String, Cell>>,
    classes: &BTreeMap<String, ClassSize>,
) -> Option<String> {
    let quarter = report.kept().get(QUARTER)?;
    let percent = |share: f64| format!("{:.0}", 100.0 * share);
    let value = percent(quarter.real_share.value?);
    let guarded = control.guarded.as_deref().and_then(|kept| kept.get(QUARTER));
    let guarded =
        guarded.and_then(|quarter| quarter.real_share.value).map_or_else(String::new, |share| {
            format!(", a random score with the same guards {}", percent(share))
        });
    let interval = quarter
        .real_share
        .interval
        .map_or_else(String::new, |[low, high]| format!(", {} to {}", percent(low), percent(high)));
    let guards = if report.guarded.is_some() { "with its guards" } else { "without guards" };
    let shortcomings = cells.map(shortcomings).unwrap_or_default();
    let [good, others] = [true, false].map(|good| {
        let classes = classes.values().filter(|class| class.good == good);
        classes.map(|class| class.documents).sum::<u64>()
    });
    let few = if good.min(others) < MIN_DOCUMENTS as u64 {
        let (good, others) = (count(good), count(others));
        format!(
            "too few documents to judge the score ({good} good, {others} others; at least {MIN_DOCUMENTS} of each are needed); "
        )
    } else {
        String::new()
    };
    Some(format!(
        "{few}{value} % of the best quarter is real text ({guards}{interval}; chance 50{guarded}){shortcomings}"
    ))
}
