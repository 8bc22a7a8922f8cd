//! What a run did, to look at: what it kept and why, in bins and never in rows, so that a report of ten million windows is as
//! small as one of a thousand.
//!
//! Made of the records of a run directory and one pass over its selection and its scores; the texts of a few samples are read
//! from the input again. `page` shows it, `report.json` holds it.

mod bins;
mod cells;
pub(crate) mod choice;
mod drawings;
mod excerpts;
mod gather;
mod grid;
mod groups;
mod guards;
mod machine;
mod page;
mod panel;
mod picks;
mod rejected;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use serde::Serialize;
use serde_json::Value;

use crate::base::error::Result;
use crate::base::text::count;
use crate::plan::Plan;
use crate::plan::options::PlanOptions;
use crate::report::amount::Amount;
use crate::run_directory::calibration::{CalibratedGroup, Calibration};
use crate::run_directory::counts::Counts;
use crate::run_directory::layout::RunDirectory;
use crate::run_directory::manifest::{Manifest, not_finished};
use crate::run_directory::selected;
use crate::run_directory::summary::Summary;
use crate::run_directory::units::{self, Part, UnitRecord};
use crate::spec::Overrides;
use choice::Choice;
use gather::{Fate, Gathering, Known, Lists, OfGroup};
use grid::Sides;
use groups::Group;
use machine::Machine;
use panel::{MOST_KNOWN, Panel};
use rejected::Rejected;

/// What a report is made of.
pub(crate) struct Sources<'a> {
    /// The run directory.
    pub(crate) directory: &'a RunDirectory,
    pub(crate) manifest: &'a Manifest,
    pub(crate) summary: &'a Summary,
    pub(crate) calibration: &'a Calibration,
    /// Where the scores are.
    pub(crate) scores: &'a RunDirectory,
    /// Where a table of the selection lies.
    pub(crate) selection: &'a dyn Fn(&Part) -> PathBuf,
    /// The input, or why it cannot be read.
    pub(crate) input: std::result::Result<&'a Plan, String>,
    /// Whether samples are shown as text.
    pub(crate) text: bool,
    /// Where the time went, where it is known.
    pub(crate) times: Vec<(&'static str, Duration)>,
}

/// A report, `report.json`.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Overview {
    /// Version of this file's format.
    version: u32,
    /// Version of longsift.
    longsift: String,
    /// The name of the pipeline.
    name: String,
    /// When the selection was committed, UTC.
    committed: String,
    /// The run directory as its last part.
    run_directory: String,
    /// The score in words.
    score: String,
    /// The guards in words.
    guards: Vec<String>,
    /// How much is kept, in words.
    amount: String,
    /// What each guard rejects, by group, with some windows and the passages that its statistic counts.
    rejected: Vec<Rejected>,
    /// The column inside whose values samples are ranked.
    within: Option<String>,
    /// Settings as resolved.
    settings: Value,
    /// What everything depended on besides the input.
    identity: Value,
    /// Rows, windows, devices, seconds.
    summary: Summary,
    /// Samples and tokens that were kept, and those that were not, by reason.
    kept: Amount,
    dropped: BTreeMap<String, Amount>,
    /// What the counts of histograms are of, in their order.
    kinds: [&'static str; gather::FATES],
    /// The groups with the most samples, then all others as one.
    groups: Vec<Group>,
    /// Groups that are in the last one.
    groups_together: u64,
    /// Where the score is the least of its terms: by statistic, how often it was the least, of kept samples and of those
    /// below the threshold, in the groups that are shown.
    weakest: Vec<(String, [u64; 2])>,
    /// By label of `output.report_by`: all samples, and those that are kept.
    labels: Option<Labels>,
    /// By statistic that is a list: what it is, and its mean over kept windows and over the others.
    lists: BTreeMap<String, Means>,
    machine: Machine,
    /// What another choice would keep, for the page.
    #[serde(skip)]
    panel: Option<Panel>,
    /// Rows that could not be scored, by code.
    quarantined: BTreeMap<String, u64>,
    /// Why texts and labels are missing, if so: of the whole input, or of files that are not what was scored.
    without_input: Option<String>,
}

/// What was kept by label.
#[derive(Clone, Debug, Serialize)]
struct Labels {
    column: String,
    /// Those with the most samples.
    shares: Vec<(Option<String>, [u64; 2])>,
    /// Labels that are not listed.
    others: u64,
}

/// The means of a list.
#[derive(Clone, Debug, Serialize)]
struct Means {
    doc: String,
    /// Windows that have it.
    windows: [u64; 2],
    kept: Vec<f64>,
    not_kept: Vec<f64>,
}

/// Labels that are listed.
const MOST_LABELS: usize = 24;

/// The report of a finished run.
///
/// # Errors
/// A run that is not finished, or records that cannot be read.
pub(crate) fn read(directory: &RunDirectory, text: bool) -> Result<Overview> {
    let unfinished = || not_finished(directory);
    let manifest = Manifest::of_finished(directory)?;
    let calibration = directory.read_json(&directory.calibration())?.ok_or_else(unfinished)?;
    let summary = directory.read_json(&directory.summary())?.ok_or_else(unfinished)?;
    let scores = manifest.scores_directory(directory)?;
    let options = PlanOptions { offline: true, devices_absent: true, ..PlanOptions::default() };
    let plan = crate::plan::read::plan(&directory.root, &Overrides::default(), options);
    let sources = Sources {
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
    Overview::of(sources)
}

impl Overview {
    /// The report of what these sources say.
    pub(crate) fn of(sources: Sources<'_>) -> Result<Self> {
        let Sources { manifest, summary, calibration, scores, .. } = sources;
        let choice = Choice::of(manifest, scores)?;
        let tables: Vec<PathBuf> = manifest.selection.iter().map(sources.selection).collect();
        let statistics = match tables.first() {
            Some(path) => selected::statistics(path)?,
            None => Vec::new(),
        };
        let measures: Vec<Option<&str>> =
            choice.terms.iter().map(|term| choice.measure(&term.statistic)).collect();
        let sides = Sides::of(choice.combine, &measures);
        let shown = groups::shown(calibration, &summary.drift);
        let plan = sources.input.as_ref().ok().copied();
        let by_name: HashMap<String, usize> = plan.map_or_else(HashMap::new, |plan| {
            let names = plan.units.iter().enumerate().map(|(index, unit)| (unit.name(), index));
            // What has changed since is not what was scored.
            let same = |record: &&UnitRecord, index: usize| {
                units::identity(&plan.dataset, &plan.units[index]) == record.input
            };
            let records: HashMap<&str, &UnitRecord> =
                manifest.units.iter().map(|record| (record.unit.as_str(), record)).collect();
            names
                .filter(|(name, index)| {
                    records.get(name.as_str()).is_some_and(|record| same(record, *index))
                })
                .collect()
        });
        let column = manifest.lock.settings["output"]["report_by"].as_str();
        let parts = manifest.selection.iter().zip(&tables).filter_map(|(part, path)| {
            let name = part.path.strip_prefix("selection/part-")?.strip_suffix(".parquet")?;
            Some((name, path.clone()))
        });
        let gathering = Gathering {
            choice: &choice,
            records: &manifest.units,
            scores,
            selection: parts.collect(),
            statistics: statistics.clone(),
            shown: shown.len(),
            groups: known(&choice, calibration, &shown),
            lists: choice.lists(),
            sides,
            bounds: guards::bounds(&choice, &statistics),
            guards: guards::places(&choice, &statistics),
            labels: plan.zip(column).map(|(plan, column)| (plan, column, by_name.clone())),
        };
        let mut gathered = gathering.gather()?;
        let left_out = unscored(calibration, &shown);
        let panel = panel_of(&gathering, &mut gathered.groups, &shown, left_out);
        let unit = |unit: usize| by_name.get(&manifest.units[unit].unit).copied();
        let texts = groups::Texts { plan: plan.filter(|_| sources.text), unit: &unit };
        let rejected = rejected::of(
            &summary.guards,
            &gathering.guards,
            &shown,
            &gathered.groups,
            &gathered.rejected,
            &texts,
        )?;
        let groups_together = calibration.groups.len().saturating_sub(shown.len()) as u64;
        let groups = groups::of(&choice, &statistics, &shown, gathered.groups, &texts)?;
        let mut machine = Machine::of(sources.directory)?;
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
            guards: choice.guards(),
            amount: choice.amount(),
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
                .map(|column| Labels::of(column, gathered.labels)),
            lists: (gathering.lists.iter().zip(&gathered.lists))
                .filter(|(_, of)| of.iter().any(|side| side.windows > 0))
                .map(|((name, _), of)| means(&choice, name, of))
                .collect(),
            machine,
            panel,
            quarantined: counts.quarantined,
            without_input: sources.input.err().or_else(|| changed(manifest, &by_name)),
        })
    }

    /// All samples.
    fn all(&self) -> Amount {
        let mut all = self.kept;
        self.dropped.values().for_each(|amount| all.add(*amount));
        all
    }

    /// `report.json`.
    pub(crate) fn json(&self) -> Value {
        serde_json::to_value(self).expect("plain data")
    }
}

/// What is known of each group. Of more groups than can be held for a panel, of those that are shown.
fn known<'a>(
    choice: &Choice,
    calibration: &'a Calibration,
    shown: &[&'a CalibratedGroup],
) -> HashMap<Option<&'a str>, Known<'a>> {
    let scored: Vec<&CalibratedGroup> = match unscored(calibration, shown) {
        0 => calibration.groups.iter().collect(),
        _ => shown.to_vec(),
    };
    let scoring = |group: &'a CalibratedGroup| {
        let (scorer, bounds) = (choice.scorer(group), &group.guards[..]);
        (group.value.as_deref(), Known { place: None, scorer, bounds })
    };
    let mut known: HashMap<_, _> = scored.into_iter().map(scoring).collect();
    for (place, group) in shown.iter().enumerate() {
        known.entry(group.value.as_deref()).or_default().place = Some(place);
    }
    known
}

/// What is said of files that are not what was scored, given the units that are: how many, and the first of them by name.
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

/// Groups that are neither shown nor in the panel, because there are too many.
fn unscored(calibration: &Calibration, shown: &[&CalibratedGroup]) -> usize {
    let all = calibration.groups.len();
    if all <= MOST_KNOWN { 0 } else { all - shown.len() }
}

/// The panel over the groups that are shown, and all others as one.
fn panel_of(
    gathering: &Gathering<'_>,
    gathered: &mut [OfGroup],
    shown: &[&CalibratedGroup],
    left_out: usize,
) -> Option<Panel> {
    grid::bound(&mut gathered.iter_mut().map(|group| &mut group.grid).collect::<Vec<_>>());
    let mut guarded: Vec<_> = gathered.iter_mut().map(|group| &mut group.guarded).collect();
    let (bounds, guarded) = guards::collapse(&gathering.bounds, &mut guarded);
    let names = shown.iter().map(|known| groups::name(known.value.as_deref()));
    let names = names.chain(["all other groups".to_owned()]);
    let groups = gathered.iter_mut().zip(names).zip(guarded);
    let groups = groups.filter_map(|((group, name), guarded)| {
        let kept = group.fates[Fate::Kept as usize];
        Some(panel::OfGroup {
            name,
            counted: group.counted,
            counted_without_guards: group.counted_without_guards,
            kept: kept.samples,
            tokens: kept.tokens,
            cells: group.grid.cells()?,
            guarded: guarded.filter(|_| !bounds.is_empty()),
        })
    });
    let groups = groups.collect();
    Panel::of(gathering.choice, gathering.sides.first(), bounds, groups, left_out)
}

impl Labels {
    fn of(column: &str, labels: BTreeMap<Option<String>, [u64; 2]>) -> Self {
        let mut shares: Vec<_> = labels.into_iter().collect();
        shares.sort_by_key(|(_, [samples, _])| std::cmp::Reverse(*samples));
        let others = shares.len().saturating_sub(MOST_LABELS) as u64;
        shares.truncate(MOST_LABELS);
        shares.sort();
        Self { column: column.to_owned(), shares, others }
    }
}

fn means(choice: &Choice, name: &str, [kept, others]: &[Lists; 2]) -> (String, Means) {
    let mean = |of: &Lists| of.sums.iter().map(|sum| sum / of.windows.max(1) as f64).collect();
    let doc = choice.column(name).map_or(String::new(), |column| column.doc.to_string());
    let windows = [kept.windows, others.windows];
    (name.to_owned(), Means { doc, windows, kept: mean(kept), not_kept: mean(others) })
}

/// What is said of a run in a few lines.
impl fmt::Display for Overview {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let share = |part: u64, all: u64| 100.0 * part as f64 / all.max(1) as f64;
        let all = self.all();
        writeln!(f, "{}", self.verdict())?;
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
