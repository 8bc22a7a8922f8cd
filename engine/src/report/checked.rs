//! Checks that a pipeline declares for its result, evaluated before each publication and for a finished run.

use std::collections::BTreeMap;
use std::path::PathBuf;

use longsift_stages::score::settings::OnDrift;

use crate::base::diagnostic::{Blame, Diagnostic};
use crate::base::error::{Failure, Result};
use crate::plan::Plan;
use crate::run_directory::selected;
use crate::run_directory::summary::{Checked, Summary};
use crate::select::warnings;
use crate::spec::assertions::{Check, CheckSeverity, Figure, Of, Take};

pub struct CheckResults {
    /// Results by check, in the order of the pipeline.
    pub checks: Vec<Checked>,
    /// Warnings of failed checks with the severity "warn".
    pub warnings: Vec<Diagnostic>,
    /// Failure that rejects the result: failed checks at their locations, and drifted scores if `on_drift: fail`.
    pub refused: Option<Failure>,
}

/// Evaluates the checks of `plan` on a result: its summary and, if a check needs samples, one pass over its selection.
pub fn check(
    plan: &Plan,
    summary: &Summary,
    selection: impl FnOnce() -> Result<Vec<PathBuf>>,
) -> Result<CheckResults> {
    let checks = &plan.spec.pipeline.checks;
    let mut samples: Vec<Option<SampleAggregate<'_>>> =
        checks.iter().map(SampleAggregate::for_check).collect();
    if samples.iter().any(Option::is_some) {
        for path in selection()? {
            let names = selected::statistics(&path)?;
            for samples in samples.iter_mut().flatten() {
                samples.column =
                    names.iter().position(|name| Some(name) == samples.check.statistic.as_ref());
            }
            selected::read(&path, |row| {
                for samples in samples.iter_mut().flatten() {
                    let value = samples.column.map_or(row.score, |column| row.statistics[column]);
                    samples.add(row.group, row.reason.is_none(), value);
                }
                Ok(())
            })?;
        }
    }
    let (mut found, mut broken, mut warned) = (Vec::new(), Vec::new(), Vec::new());
    for (index, (check, samples)) in checks.iter().zip(&samples).enumerate() {
        let value =
            samples.as_ref().map_or_else(|| summary_value(check, summary), SampleAggregate::value);
        let inside = |value: f64| {
            check.min.is_none_or(|min| value >= min) && check.max.is_none_or(|max| value <= max)
        };
        let holds = value.is_some_and(inside);
        let (min, max) = (check.min, check.max);
        found.push(Checked { check: check.subject(), value, min, max, holds });
        if holds {
            continue;
        }
        let (path, message) = (format!("checks.{index}"), message(check, value));
        match check.severity {
            CheckSeverity::Warn => warned.push(plan.spec.warning(&path, message)),
            CheckSeverity::Error => {
                let problem = Diagnostic::error(Blame::Check, message).at(plan.spec.locate(&path));
                broken.push(problem.hint(HINT));
            }
        }
    }
    if plan.spec.score().on_drift == Some(OnDrift::Fail)
        && let Some(moved) = warnings::drift_warning(&summary.drift)
    {
        let location = plan.spec.locate("stages.score.on_drift");
        let problem = Diagnostic::error(Blame::Check, moved.message).at(location);
        broken.push(problem.hint(moved.hint.unwrap_or_default()));
    }
    let refused = (!broken.is_empty()).then(|| broken.into());
    Ok(CheckResults { checks: found, warnings: warned, refused })
}

const HINT: &str =
    "the output is unchanged and scores are kept: change the selection or the check, and run again";

fn message(check: &Check, value: Option<f64>) -> String {
    let bounds = match (check.min, check.max) {
        (Some(min), Some(max)) => format!("between {min} and {max}"),
        (Some(min), None) => format!("at least {min}"),
        (None, max) => format!("at most {}", max.unwrap_or_default()),
    };
    let found = value.map_or_else(|| "no value".to_owned(), |value| value.to_string());
    format!("check of {} failed: expected {bounds}, got {found}", check.subject())
}

fn summary_value(check: &Check, summary: &Summary) -> Option<f64> {
    let share = |part: u64, of: u64| part as f64 / of.max(1) as f64;
    let reasons = |reasons: &BTreeMap<String, u64>| -> u64 {
        let wanted = |name: &String| check.reason.as_ref().is_none_or(|reason| reason == name);
        reasons.iter().filter(|(name, _)| wanted(name)).map(|(_, count)| count).sum()
    };
    let count = match check.figure? {
        Figure::RowsIn => summary.rows_in,
        Figure::RowsKept => summary.rows_kept,
        Figure::RowsKeptShare => return Some(share(summary.rows_kept, summary.rows_in)),
        Figure::RowsDropped => reasons(&summary.rows_dropped),
        Figure::Quarantined => summary.quarantined,
        Figure::QuarantinedShare => return Some(share(summary.quarantined, summary.rows_in)),
        Figure::FilesQuarantined => summary.files_quarantined,
        Figure::WindowsTotal => summary.windows_total,
        Figure::WindowsKept => summary.windows_kept,
        Figure::WindowsKeptShare => {
            return Some(share(summary.windows_kept, summary.windows_total));
        }
        Figure::WindowsDropped => reasons(&summary.windows_dropped),
        Figure::TokensTotal => summary.tokens_total,
        Figure::Samples | Figure::SamplesKept | Figure::SamplesKeptShare => return None,
    };
    Some(count as f64)
}

struct SampleAggregate<'a> {
    check: &'a Check,
    /// Index of the statistic in the table; `None` for the score.
    column: Option<usize>,
    /// Samples of the group, and the kept ones among them.
    count: u64,
    kept: u64,
    /// Number of values, their sum in input order, minimum and maximum.
    present: u64,
    sum: f64,
    least: f64,
    most: f64,
}

impl<'a> SampleAggregate<'a> {
    fn for_check(check: &'a Check) -> Option<Self> {
        let (count, kept, present, sum) = (0, 0, 0, 0.0);
        let (column, least, most) = (None, f64::INFINITY, f64::NEG_INFINITY);
        let is_of_samples = check.figure.map_or(check.statistic.is_some(), Figure::is_of_samples);
        is_of_samples.then_some(Self { check, column, count, kept, present, sum, least, most })
    }

    fn add(&mut self, group: Option<&str>, kept: bool, value: f64) {
        let only_kept =
            self.check.figure.is_none() && self.check.of.unwrap_or_default() == Of::Kept;
        let wanted = &self.check.group;
        if wanted.is_some() && wanted.as_deref() != group || only_kept && !kept {
            return;
        }
        self.count += 1;
        self.kept += u64::from(kept);
        if value.is_nan() {
            return;
        }
        self.present += 1;
        self.sum += value;
        self.least = self.least.min(value);
        self.most = self.most.max(value);
    }

    /// Returns the aggregate; `None` if no sample has a value.
    fn value(&self) -> Option<f64> {
        let share = |part: u64| part as f64 / self.count.max(1) as f64;
        let present = |value: f64| (self.present > 0).then_some(value);
        match (self.check.figure, self.check.take.unwrap_or_default()) {
            (Some(Figure::Samples), _) => Some(self.count as f64),
            (Some(Figure::SamplesKept), _) => Some(self.kept as f64),
            // A group without samples is probably misspelt.
            (Some(_), _) => {
                (self.count > 0 || self.check.group.is_none()).then(|| share(self.kept))
            }
            (None, Take::Mean) => present(self.sum / self.present.max(1) as f64),
            (None, Take::Min) => present(self.least),
            (None, Take::Max) => present(self.most),
            (None, Take::MissingShare) => {
                (self.count > 0).then(|| share(self.count - self.present))
            }
        }
    }
}
