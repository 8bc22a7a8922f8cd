//! Report of a run: what it kept and why, in bins instead of rows, so that its size does not depend on the number of
//! windows.
//!
//! Built from the records of a run directory and one pass over its selection and scores; the texts of a few samples
//! are read from the input. `page` renders it as HTML, `report.json` holds the data.

mod amounts;
mod bins;
pub(crate) mod choice;
mod drawings;
mod excerpts;
mod gather;
mod groups;
mod machine;
mod page;
mod picks;
mod rejected;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use serde::Serialize;
use serde_json::Value;

use crate::base::counts::Counts;
use crate::base::error::Result;
use crate::base::text::count;
use crate::dataset::units::WorkUnit;
use crate::plan::options::PlanOptions;
use crate::plan::{Plan, explain};
use crate::report::amount::Amount;
use crate::report::closing::equation;
use crate::report::page::chart::BY_POSITION;
use crate::run_directory::calibration::{CalibratedGroup, Calibration};
use crate::run_directory::layout::RunDirectory;
use crate::run_directory::manifest::Manifest;
use crate::run_directory::selected;
use crate::run_directory::summary::Summary;
use crate::run_directory::units::{self, InputIdentity, Part};
use crate::spec::Overrides;
use crate::storage::hub::Network;
use amounts::OtherAmount;
use choice::SelectionSettings;
use excerpts::Texts;
use gather::{CountSources, GroupRules, Lists};
use groups::GroupReport;
use machine::Machine;
use rejected::GuardRejection;

pub(crate) struct ReportSources<'a> {
    pub(crate) directory: &'a RunDirectory,
    pub(crate) manifest: &'a Manifest,
    pub(crate) summary: &'a Summary,
    pub(crate) calibration: &'a Calibration,
    pub(crate) scores: &'a RunDirectory,
    /// Path of a table of the selection.
    pub(crate) selection: &'a dyn Fn(&Part) -> PathBuf,
    /// The plan of the input, or the reason for which it cannot be read.
    pub(crate) input: std::result::Result<&'a Plan, String>,
    /// Whether samples are shown as text.
    pub(crate) text: bool,
    pub(crate) times: Vec<(&'static str, Duration)>,
}

/// A report: the contents of `report.json`.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Overview {
    version: u32,
    longsift: String,
    name: String,
    /// Time at which the selection was committed, UTC.
    committed: String,
    /// Last component of the path of the run directory.
    run_directory: String,
    score: String,
    /// Scale of the score's terms; `None` without terms.
    scale: Option<String>,
    guards: Vec<String>,
    /// Description of how much is kept.
    amount: String,
    /// Rejections by guard and group, with example windows and the passages that the guard's statistic counts.
    rejected: Vec<GuardRejection>,
    /// Column of the groups within which samples are ranked.
    within: Option<String>,
    settings: Value,
    /// Identity: everything on which the result depends, except the input.
    identity: Value,
    /// Summary of the run: rows, windows, devices, seconds.
    summary: Summary,
    /// Kept samples and tokens, and the others by reason.
    kept: Amount,
    dropped: BTreeMap<String, Amount>,
    /// Outcomes, in the order of the counts of histograms.
    kinds: [&'static str; gather::OUTCOMES],
    /// Groups with the most samples, then all others combined.
    groups: Vec<GroupReport>,
    /// Number of groups combined in the last entry of `groups`; 0 if all are shown.
    groups_together: u64,
    /// If the score is the minimum of its terms: how often each was, for kept samples and for those below the threshold.
    weakest: Vec<(String, [u64; 2])>,
    /// By label of `output.report_by`: all samples, and the kept ones.
    labels: Option<KeptByLabel>,
    /// By statistic that is a list: its means over kept windows and over the others.
    lists: BTreeMap<String, Means>,
    machine: Machine,
    /// Other amounts with the samples and tokens that they keep; empty if they cannot be counted exactly.
    amounts: Vec<OtherAmount>,
    /// Rows that could not be scored, by code.
    quarantined: BTreeMap<String, u64>,
    /// Reason for which texts and labels are missing: the input cannot be read, or files have changed.
    without_input: Option<String>,
}

#[derive(Clone, Debug, Serialize)]
struct KeptByLabel {
    column: String,
    /// Labels with the most samples.
    shares: Vec<(Option<String>, [u64; 2])>,
    others: u64,
}

#[derive(Clone, Debug, Serialize)]
struct Means {
    doc: String,
    /// Number of kept windows and of others.
    windows: [u64; 2],
    kept: Vec<f64>,
    not_kept: Vec<f64>,
}

const MAX_LABELS: usize = 24;

pub(crate) fn read(directory: &RunDirectory, text: bool) -> Result<Overview> {
    let manifest = Manifest::read_with_tables(directory)?;
    let calibration = manifest.read_calibration(directory)?;
    let summary = manifest.read_summary(directory)?;
    let scores = manifest.scores_directory(directory)?;
    // A report does not wait for the hub.
    let options =
        PlanOptions { network: Network::Offline, devices_absent: true, ..PlanOptions::default() };
    let plan = crate::plan::read::plan(&directory.root, &Overrides::default(), options);
    let sources = ReportSources {
        directory,
        manifest: &manifest,
        summary: &summary,
        calibration: &calibration,
        scores: &scores,
        selection: &|part| directory.root.join(&part.path),
        input: plan.as_ref().map_err(ToString::to_string),
        text,
        times: Vec::new(),
    };
    let overview = Overview::new(sources)?;
    manifest.check_current(directory)?;
    Ok(overview)
}

impl Overview {
    pub(crate) fn new(sources: ReportSources<'_>) -> Result<Self> {
        let ReportSources { manifest, summary, calibration, scores, .. } = sources;
        let choice = SelectionSettings::from_manifest(manifest, scores)?;
        let tables: Vec<PathBuf> = manifest.selection.iter().map(sources.selection).collect();
        let statistics = match tables.first() {
            Some(path) => selected::statistics(path)?,
            None => Vec::new(),
        };
        let shown = groups::shown(calibration, &summary.drift);
        let plan = sources.input.as_ref().ok().copied();
        let by_name = plan.map_or_else(HashMap::new, |plan| unchanged_units(plan, manifest));
        let column = manifest.lock.settings["output"]["report_by"].as_str();
        let parts = manifest.selection.iter().zip(&tables).filter_map(|(part, path)| {
            let name = part.path.strip_prefix("selection/part-")?.strip_suffix(".parquet")?;
            Some((name, path.clone()))
        });
        let gathering = CountSources {
            choice: &choice,
            records: &manifest.units,
            scores,
            selection: parts.collect(),
            statistics: statistics.clone(),
            shown: shown.len(),
            groups: known(&choice, calibration, &shown),
            lists: choice.lists(),
            guards: (choice.filter.guards.iter())
                .map(|guard| statistics.iter().position(|name| *name == guard.statistic))
                .collect(),
            labels: plan.zip(column).map(|(plan, column)| (plan, column, by_name.clone())),
        };
        let gathered = gathering.gather()?;
        let amounts = if amounts::is_exact(&choice) {
            let outcomes = gathered.groups.iter().flat_map(|group| group.outcomes);
            gathered.scores.amounts(outcomes.map(|outcome| outcome.samples).sum())
        } else {
            Vec::new()
        };
        let unit = |unit: usize| by_name.get(&manifest.units[unit].unit).copied();
        let texts = Texts { plan: plan.filter(|_| sources.text), unit: &unit };
        let rejected = rejected::build(
            &summary.guards,
            &gathering.guards,
            &shown,
            &gathered.groups,
            &gathered.rejected,
            &texts,
        )?;
        let groups_together = calibration.groups.len().saturating_sub(shown.len()) as u64;
        let groups = groups::build(&choice, &statistics, &shown, gathered.groups, &texts)?;
        let mut machine = Machine::from_events(sources.directory)?;
        if !sources.times.is_empty() {
            let seconds =
                |(stage, time): &(&str, Duration)| ((*stage).to_owned(), time.as_secs_f64());
            machine.seconds = sources.times.iter().map(seconds).collect();
        }
        let mut counts = Counts::default();
        manifest.units.iter().for_each(|record| counts.add(&record.counts));
        let weakest = choice.terms.iter().map(|term| term.statistic.clone()).zip(gathered.weakest);
        let run_directory = sources.directory.root.file_name().unwrap_or_default();
        Ok(Self {
            version: 1,
            longsift: manifest.longsift.clone(),
            name: manifest.lock.settings["name"].as_str().unwrap_or_default().to_owned(),
            committed: manifest.committed.clone(),
            run_directory: run_directory.to_string_lossy().into_owned(),
            score: choice.score_in_words(),
            scale: explain::scale(&choice.score, &choice.filter, &choice.terms),
            guards: choice.guards(),
            amount: explain::amount(&choice.score, &choice.filter),
            rejected,
            within: choice.score.within.clone(),
            settings: manifest.lock.settings.clone(),
            identity: serde_json::to_value(&manifest.lock.identity).expect("plain data"),
            summary: summary.clone(),
            kept: gathered.kept,
            dropped: gathered.dropped,
            kinds: ["kept", "not_selected", "refused"],
            groups,
            groups_together,
            weakest: weakest.filter(|(_, counts)| counts.iter().any(|count| *count > 0)).collect(),
            labels: column
                .filter(|_| plan.is_some())
                .map(|column| KeptByLabel::new(column, gathered.labels)),
            lists: (gathering.lists.iter().zip(&gathered.lists))
                .filter(|(_, of)| of.iter().any(|side| side.windows > 0))
                .map(|((name, _), of)| means(&choice, name, of))
                .collect(),
            machine,
            amounts,
            quarantined: counts.quarantined,
            without_input: sources.input.err().or_else(|| changed(manifest, &by_name)),
        })
    }

    fn all(&self) -> Amount {
        let mut all = self.kept;
        self.dropped.values().for_each(|amount| all.add(*amount));
        all
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::to_value(self).expect("plain data")
    }
}

/// Returns the indices of the units in the plan, by name, without those that changed after they were scored.
fn unchanged_units(plan: &Plan, manifest: &Manifest) -> HashMap<String, usize> {
    let inputs = manifest.units.iter().map(|record| (record.unit.as_str(), &record.input));
    let inputs: HashMap<&str, &InputIdentity> = inputs.collect();
    let unchanged = |(index, unit): (usize, &WorkUnit)| {
        let (name, input) = (unit.name(), units::identity(&plan.dataset, unit));
        (inputs.get(name.as_str()) == Some(&&input)).then_some((name, index))
    };
    plan.units.iter().enumerate().filter_map(unchanged).collect()
}

/// Returns the properties of each group; only shown ones have a scorer.
fn known<'a>(
    choice: &SelectionSettings,
    calibration: &'a Calibration,
    shown: &[&'a CalibratedGroup],
) -> HashMap<Option<&'a str>, GroupRules<'a>> {
    let rules = |group: &'a CalibratedGroup| {
        let index = shown.iter().position(|other| other.value == group.value);
        let scorer = index.and_then(|_| choice.scorer(group));
        (group.value.as_deref(), GroupRules { index, scorer, bounds: &group.guards[..] })
    };
    calibration.groups.iter().map(rules).collect()
}

/// Describes input files that changed after they were scored. `same`: unchanged units.
fn changed(manifest: &Manifest, same: &HashMap<String, usize>) -> Option<String> {
    let all: BTreeSet<&str> = manifest.units.iter().map(|record| record.file.as_str()).collect();
    let others = manifest.units.iter().filter(|record| !same.contains_key(&record.unit));
    let others: BTreeSet<&str> = others.map(|record| record.file.as_str()).collect();
    let (first, changed) = (others.first()?, count(others.len() as u64));
    let all = count(all.len() as u64);
    Some(format!(
        "{changed} of {all} input files changed after they were scored, the first is `{first}`"
    ))
}

impl KeptByLabel {
    fn new(column: &str, labels: BTreeMap<Option<String>, [u64; 2]>) -> Self {
        let mut shares: Vec<_> = labels.into_iter().collect();
        shares.sort_by_key(|(_, [samples, _])| std::cmp::Reverse(*samples));
        let others = shares.len().saturating_sub(MAX_LABELS) as u64;
        shares.truncate(MAX_LABELS);
        shares.sort();
        Self { column: column.to_owned(), shares, others }
    }
}

fn means(choice: &SelectionSettings, name: &str, [kept, others]: &[Lists; 2]) -> (String, Means) {
    // A bin that a list is too short for is 0; a position that a window is too short for has no value.
    let by_position = name.ends_with(BY_POSITION);
    let mean = |of: &Lists| {
        let mean = |(sum, count): &(f64, u64)| {
            sum / if by_position { *count } else { of.windows }.max(1) as f64
        };
        of.sums.iter().map(mean).collect()
    };
    let doc = choice.column(name).map_or(String::new(), |column| column.doc.to_string());
    let windows = [kept.windows, others.windows];
    (name.to_owned(), Means { doc, windows, kept: mean(kept), not_kept: mean(others) })
}

impl fmt::Display for Overview {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let share = |part: u64, all: u64| 100.0 * part as f64 / all.max(1) as f64;
        let all = self.all();
        writeln!(f, "{}", self.verdict())?;
        let summary = &self.summary;
        let (dropped, quarantined) = (&summary.rows_dropped, summary.quarantined);
        let rows = equation(summary.rows_in, "kept", summary.rows_kept, dropped, quarantined);
        writeln!(f, "  rows      {rows}")?;
        writeln!(f, "  score     {}", self.score)?;
        writeln!(f, "  keeps     {}", self.amount)?;
        for guard in &self.guards {
            writeln!(f, "  guard     {guard}")?;
        }
        let mut line = |name: &str, amount: &Amount| {
            writeln!(
                f,
                "  {name:<24} {:>14} samples {:>5.1} %  {:>18} tokens {:>5.1} %",
                count(amount.samples),
                share(amount.samples, all.samples),
                count(amount.tokens),
                share(amount.tokens, all.tokens)
            )
        };
        line("kept", &self.kept)?;
        self.dropped.iter().try_for_each(|(reason, amount)| line(reason, amount))?;
        self.groups.iter().try_for_each(|group| write!(f, "{group}"))
    }
}
