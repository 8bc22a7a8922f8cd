//! Evaluation of labelled windows, as serialized.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::Serialize;

use super::kept::{FRACTIONS, Kept, Labelled};
use crate::tools::evaluate::figures::Figure;
use crate::tools::evaluate::guards::GuardRejections;
use crate::tools::evaluate::matrix::{Cell, MIN_DOCUMENTS, Matrix, shortcomings};
use crate::tools::evaluate::statistics::Statistic;
use crate::tools::evaluate::windows::{Place, Tokens};

/// Fraction by which scores are judged.
pub(crate) const QUARTER: f64 = 0.25;
/// Name of the random control.
pub(crate) const RANDOM: &str = "random";
/// Maximum number of best windows listed.
const BEST: usize = 20;

/// The shares of real text that scores keep of labelled documents.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub(crate) struct LabelFigures {
    /// The column of classes.
    pub(crate) column: String,
    /// The classes that are real text.
    pub(crate) good: Vec<String>,
    /// Rows left out because they have no label.
    pub(crate) rows_without_label: u64,
    /// Figures by length of windows: `S2048` and so on.
    #[serde(flatten)]
    pub(crate) lengths: BTreeMap<Tokens, LabelLength>,
}

/// The figures of windows of one length.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub(crate) struct LabelLength {
    /// Tokens of a window.
    #[serde(rename = "S")]
    pub(crate) tokens: u64,
    /// The result for the pipeline's score, in one sentence; null without one.
    pub(crate) sentence: Option<String>,
    pub(crate) classes: BTreeMap<String, ClassSize>,
    /// Classes without a document of this length: they are in no figure.
    pub(crate) classes_without_windows: Vec<String>,
    /// Descriptions of the statistics.
    pub(crate) statistics: BTreeMap<String, String>,
    /// By score and class that is not good, the AUROC of the good classes against it, judged.
    pub(crate) matrix: Matrix,
    /// By score.
    pub(crate) reports: BTreeMap<String, LabelReport>,
    /// The windows of each class that each guard rejects.
    pub(crate) guards: Vec<GuardRejections>,
    /// The windows with the highest scores among those that pass the guards, the best first.
    pub(crate) best: Vec<BestWindow>,
    pub(crate) notes: Vec<String>,
}

/// The size of a class.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub(crate) struct ClassSize {
    pub(crate) good: bool,
    pub(crate) documents: u64,
    pub(crate) windows: u64,
}

/// The figures of one score.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub(crate) struct LabelReport {
    /// Windows without a value: they are never taken, count in the weight of all windows, and are left out of AUROC.
    pub(crate) missing: u64,
    /// What is kept of the windows that pass the guards; null without guards.
    pub(crate) guarded: Option<Vec<KeptShare>>,
    /// What is kept without guards.
    pub(crate) unguarded: Vec<KeptShare>,
    /// By class that is not good, how often a window of a good class ranks above one of it; windows that guards reject count.
    pub(crate) auroc: BTreeMap<String, Figure>,
}

/// What is kept of one fraction of the weight of all windows.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub(crate) struct KeptShare {
    pub(crate) fraction: f64,
    /// The weight that is kept: below the fraction where guards leave less.
    pub(crate) taken: f64,
    /// The share of good classes in it; 0.5 by chance.
    pub(crate) real_share: Figure,
    /// By class, the share of its windows that is kept.
    pub(crate) by_class: BTreeMap<String, f64>,
}

/// A window with a high score.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub(crate) struct BestWindow {
    pub(crate) class: String,
    /// The id of its document.
    pub(crate) id: String,
    /// The token of the document at which it begins.
    pub(crate) start: u64,
    pub(crate) score: f64,
}

impl LabelReport {
    /// Returns what the pipeline's selection keeps, with guards if it has any.
    pub(crate) fn kept(&self) -> &[KeptShare] {
        self.guarded.as_deref().unwrap_or(&self.unguarded)
    }
}

/// Returns the kept share of a fraction.
pub(crate) fn of_fraction(kept: &[KeptShare], fraction: f64) -> Option<&KeptShare> {
    kept.iter().find(|of| (of.fraction - fraction).abs() < 1e-12)
}

/// Windows of one length, with their classes and documents.
pub(crate) struct LabelWindows<'a> {
    pub(crate) labelled: Labelled<'a>,
    /// Names of the classes, in order.
    pub(crate) classes: &'a [String],
    /// Document ids by class and document.
    pub(crate) ids: &'a [Vec<String>],
    /// By window, whether it passes the guards; `None` without guards.
    pub(crate) passes: Option<&'a [bool]>,
}

impl LabelWindows<'_> {
    fn places(&self) -> &[Place] {
        self.labelled.places
    }

    pub(crate) fn sizes(&self) -> BTreeMap<String, ClassSize> {
        let size = |(class, name): (usize, &String)| {
            let windows = self.places().iter().filter(|place| place.category == class).count();
            let (good, documents) = (self.labelled.good[class], self.ids[class].len() as u64);
            (name.clone(), ClassSize { good, documents, windows: windows as u64 })
        };
        self.classes.iter().enumerate().map(size).collect()
    }

    pub(crate) fn report(&self, statistic: &Statistic) -> LabelReport {
        let missing = statistic.values.iter().filter(|value| value.is_none()).count() as u64;
        let shares = |values: &[Option<f64>], passes: Option<&[bool]>| {
            let kept = self.labelled.kept(values, passes);
            let share = |(fraction, Kept { taken, real_share, by_class }): (f64, Kept)| KeptShare {
                fraction,
                taken,
                real_share,
                by_class: self.classes.iter().cloned().zip(by_class).collect(),
            };
            FRACTIONS.into_iter().zip(kept).map(share).collect()
        };
        let auroc = self.classes.iter().zip(self.labelled.auroc(&statistic.values));
        LabelReport {
            missing,
            guarded: self.passes.map(|passes| shares(&statistic.values, Some(passes))),
            unguarded: shares(statistic.without_guards(), None),
            auroc: auroc.filter_map(|(class, figure)| Some((class.clone(), figure?))).collect(),
        }
    }

    /// Returns the AUROCs of the classes with enough documents.
    pub(crate) fn cells(&self, report: &LabelReport) -> BTreeMap<String, Cell> {
        let documents = |class: &usize| self.ids[*class].len();
        let good = (0..self.classes.len()).filter(|class| self.labelled.good[*class]);
        if good.map(|class| documents(&class)).sum::<usize>() < MIN_DOCUMENTS {
            return BTreeMap::new();
        }
        let many = (0..self.classes.len()).filter(|class| documents(class) >= MIN_DOCUMENTS);
        many.map(|class| &self.classes[class])
            .filter_map(|class| Some((class.clone(), Cell::new(*report.auroc.get(class)?)?)))
            .collect()
    }

    pub(crate) fn best(&self, score: &Statistic) -> Vec<BestWindow> {
        let passes = |window: &usize| self.passes.is_none_or(|passes| passes[*window]);
        let mut windows: Vec<(usize, f64)> = (0..self.places().len())
            .filter(passes)
            .filter_map(|window| Some((window, score.values[window]?)))
            .collect();
        windows.sort_by(|(_, a), (_, b)| b.total_cmp(a));
        let window = |(window, score): (usize, f64)| {
            let Place { category, document, start, .. } = self.places()[window];
            let (class, id) =
                (self.classes[category].clone(), self.ids[category][document].clone());
            BestWindow { class, id, start: start as u64, score }
        };
        windows.into_iter().take(BEST).map(window).collect()
    }
}

/// Summarises the result for the pipeline's score.
pub(crate) fn sentence(
    report: &LabelReport,
    cells: Option<&BTreeMap<String, Cell>>,
) -> Option<String> {
    let quarter = of_fraction(report.kept(), QUARTER)?;
    let percent = |share: f64| format!("{:.0}", 100.0 * share);
    let value = percent(quarter.real_share.value?);
    let interval = quarter
        .real_share
        .interval
        .map_or_else(String::new, |[low, high]| format!(", {} to {}", percent(low), percent(high)));
    let guards = if report.guarded.is_some() { "with its guards" } else { "without guards" };
    let shortcomings = cells.map(shortcomings).unwrap_or_default();
    Some(format!(
        "the score keeps {value} % real text here (best quarter {guards}{interval}; 50 by chance){shortcomings}"
    ))
}
