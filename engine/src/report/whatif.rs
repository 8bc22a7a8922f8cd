//! `longsift whatif`: evaluates other score and filter settings on a finished run. Selects as a run does.

use std::collections::{BTreeMap, HashMap};
use std::fmt;

use serde::Serialize;

use super::amount::Amount;
use crate::base::diagnostic::{Blame, Diagnostic};
use crate::base::error::{Failure, Result};
use crate::base::parallel;
use crate::base::stop::Stop;
use crate::base::text::{count, line_safe, table, value_name};
use crate::dataset::units::WorkUnit;
use crate::plan::Plan;
use crate::plan::identity::{AttentionDigests, Digests, Kernels, WholeModelDigests, identity};
use crate::plan::options::PlanOptions;
use crate::run_directory::calibration::{Calibration, Threshold};
use crate::run_directory::layout::RunDirectory;
use crate::run_directory::manifest::Manifest;
use crate::run_directory::scores::{self, ScoredWindow};
use crate::run_directory::units::UnitRecord;
use crate::run_directory::{facts, pipeline_lock, selected};
use crate::select::{self, Sample, Selection};
use crate::spec::pipeline::Samples;
use crate::spec::rules::AMOUNTS;
use crate::spec::{Overrides, Spec};
use crate::storage::hub::Network;

#[derive(Clone, Debug, Serialize)]
pub(crate) struct WhatIf {
    /// Settings that differ from those of the run, a line each.
    changes: Vec<String>,
    total: Change,
    groups: Vec<GroupChange>,
    /// Samples that only the new settings keep, the highest scores first.
    entering: Vec<MovedSample>,
    /// Samples that only the run kept, the highest scores first.
    leaving: Vec<MovedSample>,
    #[serde(skip)]
    pub(crate) warnings: Vec<Diagnostic>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
struct Change {
    all: Amount,
    /// Kept by the run.
    now: Amount,
    /// Kept with the new settings.
    then: Amount,
    both: Amount,
}

#[derive(Clone, Debug, Serialize)]
struct GroupChange {
    /// Value of the group column of the new settings.
    value: Option<String>,
    #[serde(flatten)]
    change: Change,
    /// Lowest kept score of the run: one, or one per budget; empty if the run has no such group or other groups.
    thresholds_now: Vec<Option<f64>>,
    /// Lowest kept score with the new settings. Scores of different terms are not comparable.
    thresholds_then: Vec<Option<f64>>,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
struct MovedSample {
    id: String,
    window: Option<u32>,
    group: Option<String>,
    tokens: u64,
    score_now: Option<f64>,
    score_then: Option<f64>,
    /// Reason for which it is not kept, by the run or with the new settings.
    reason: String,
    /// Index of its unit and row, the tie-breaker of equal scores.
    #[serde(skip)]
    at: (usize, u64),
}

#[derive(Default)]
struct UnitCounts {
    groups: BTreeMap<Option<String>, Change>,
    entering: Vec<MovedSample>,
    leaving: Vec<MovedSample>,
}

/// Evaluates the settings of a run with `overrides`. `listed`: maximum number of samples listed each way.
pub(crate) fn whatif(
    directory: &RunDirectory,
    overrides: &Overrides,
    listed: usize,
    stop: &Stop,
) -> Result<WhatIf> {
    let manifest = Manifest::read_with_tables(directory)?;
    let recorded = manifest.lock.recorded()?;
    let overrides = with_removals(overrides, &manifest);
    let (spec, warnings) = Spec::recorded(&recorded.pipeline, &manifest.lock.settings, &overrides)?;
    let changes = changes(&spec, &manifest)?;
    let options = PlanOptions {
        limit_rows: recorded.limit_rows,
        network: Network::InputOnly,
        devices_absent: true,
        pins: manifest.lock.hub_commits.clone(),
        stop: stop.clone(),
        ..PlanOptions::default()
    };
    let mut plan = Plan::new(spec, options, warnings)?;
    // The run directory may have been moved.
    plan.directory = directory.clone();
    let before = &manifest.lock.identity;
    let weights = before.find_in_measures("weights").and_then(|digest| digest.as_str());
    let attention = weights.zip(Kernels::recorded(before));
    let attention = attention
        .map(|(weights, kernels)| AttentionDigests { weights: weights.to_owned(), kernels });
    let whole = plan.whole_models.values().filter_map(|whole| {
        let digests = WholeModelDigests::recorded(before, &whole.measure)?;
        Some((whole.measure.clone(), digests))
    });
    let digests = Digests { attention, ..Digests::new(&plan, None, whole.collect())? };
    let identity = identity(&plan, &digests);
    let scores = manifest.scores_directory(directory)?;
    let wanted = identity.fingerprints();
    let by_unit: HashMap<&str, &UnitRecord> =
        manifest.units.iter().map(|record| (&*record.unit, record)).collect();
    let recorded = |unit: &WorkUnit| {
        let record = by_unit.get(&*unit.name()).copied();
        record.filter(|record| record.is_of(&plan.dataset, unit) && record.serves(&wanted)).cloned()
    };
    let records: Vec<UnitRecord> = plan.units.iter().filter_map(recorded).collect();
    if records.len() != plan.units.len() || records.len() != manifest.units.len() {
        let mut why = Vec::new();
        for (name, now) in &identity.measures {
            match before.measures.get(name) {
                None => why.push(format!("{name}: not measured")),
                Some(then) if !then.only.is_no_stricter_than(&now.only) => {
                    why.push(format!("{name}: windows skipped by an earlier guard are required"));
                }
                Some(_) => {}
            }
        }
        if why.is_empty() {
            why = identity.differences_of_scores(before);
        }
        return Err(not_available(why, records.len(), plan.units.len().max(manifest.units.len())));
    }
    let selection = select::select(&plan, &scores, &records, &identity, stop)?;
    let counter = Counter {
        plan: &plan,
        manifest: &manifest,
        scores: &scores,
        records: &records,
        selection: &selection,
        listed,
    };
    let counted = counter.count()?;
    let calibration = manifest.read_calibration(directory);
    manifest.check_current(directory)?;
    let calibration = calibration?;
    let mut total = Change::default();
    counted.groups.values().for_each(|group| total.append(group));
    let thresholds = |calibration: &Calibration| -> HashMap<Option<String>, Vec<Option<f64>>> {
        let score = |threshold: &Threshold| threshold.score;
        let groups = calibration.groups.iter();
        groups
            .map(|group| (group.value.clone(), group.thresholds.iter().map(score).collect()))
            .collect()
    };
    let regrouped = changes.iter().any(|line| line.starts_with("stages.score.within:"));
    let mut now = if regrouped { HashMap::new() } else { thresholds(&calibration) };
    let mut then = thresholds(&selection.calibration);
    let groups = counted.groups.into_iter().map(|(value, change)| GroupChange {
        thresholds_now: now.remove(&value).unwrap_or_default(),
        thresholds_then: then.remove(&value).unwrap_or_default(),
        value,
        change,
    });
    Ok(WhatIf {
        changes,
        total,
        groups: groups.collect(),
        entering: counted.entering,
        leaving: counted.leaving,
        warnings: plan.warnings.into_iter().chain(selection.warnings).collect(),
    })
}

/// Prepends overrides that remove the settings which the given ones replace, such as those of another formula.
fn with_removals(overrides: &Overrides, manifest: &Manifest) -> Overrides {
    let recorded = pipeline_lock::flat(&manifest.lock.settings);
    let given: Vec<(&str, &str)> =
        overrides.set.iter().map(|set| set.split_once('=').unwrap_or((set, ""))).collect();
    let is_given = |path: &str| given.iter().any(|(given, _)| *given == path);
    let mut set = Vec::new();
    for (path, value) in &given {
        let (stage, others) = match path.rsplit_once('.') {
            // A weight or a seed is kept if the new score has one.
            Some((stage @ "stages.score", "formula")) => match value.trim() {
                "longattn" => (stage, &["terms", "combine", "seed"][..]),
                "random" => (stage, &["terms", "combine", "alpha"][..]),
                _ => (stage, &["terms", "combine", "alpha", "seed"][..]),
            },
            Some((stage @ "stages.score", "terms")) => (stage, &["formula", "alpha", "seed"][..]),
            Some((stage @ "stages.filter", name)) if AMOUNTS.contains(&name) => {
                (stage, &AMOUNTS[..])
            }
            _ => continue,
        };
        for path in others.iter().map(|name| format!("{stage}.{name}")) {
            // Budgets of groups are nested settings.
            let is_there = |key: &String| *key == path || key.starts_with(&format!("{path}."));
            if recorded.keys().any(is_there) && !is_given(&path) {
                set.push(format!("{path}=null"));
            }
        }
    }
    set.extend(overrides.set.iter().cloned());
    Overrides { set, ..overrides.clone() }
}

/// Returns the settings that differ from those of the run, a line each. Only score and filter settings may differ.
fn changes(spec: &Spec, manifest: &Manifest) -> Result<Vec<String>> {
    let now = pipeline_lock::flat(&spec.resolved_json());
    let before = pipeline_lock::flat(&manifest.lock.settings);
    let lines = facts::differences(&now, &before);
    let of_selection =
        |line: &&String| line.starts_with("stages.score.") || line.starts_with("stages.filter.");
    let others: Vec<&String> = lines.iter().filter(|line| !of_selection(line)).collect();
    if others.is_empty() {
        return Ok(lines);
    }
    let (written, measured): (Vec<&String>, Vec<&String>) = others
        .into_iter()
        .partition(|line| line.starts_with("output.") || line.starts_with("name:"));
    let message = if !measured.is_empty() {
        "this setting requires a new run"
    } else if written.iter().any(|line| line.starts_with("output.samples:")) {
        match spec.pipeline.output.samples {
            Samples::Documents => "documents would be ranked instead of windows",
            Samples::Windows => "windows would be ranked instead of documents",
        }
    } else {
        "this changes what is written, not what is kept"
    };
    let hint = "`whatif` supports settings of `stages.score` and `stages.filter`; run the pipeline to change others";
    let lines = measured.into_iter().chain(written);
    Err(Diagnostic::error(Blame::Pipeline, message).notes(lines).hint(hint).into())
}

fn not_available(why: Vec<String>, there: usize, all: usize) -> Failure {
    let (message, hint) = if why.is_empty() {
        let units = format!("{} of {} work units", count(there as u64), count(all as u64));
        let message = format!(
            "the input changed after it was scored, or records are missing: {units} have scores"
        );
        (message, "run the pipeline again; only the other work units are scored")
    } else {
        let message = "this setting requires a new run".to_owned();
        (message, "run the pipeline with this change; only missing statistics are measured")
    };
    Diagnostic::error(Blame::Pipeline, message).notes(why).hint(hint).into()
}

struct Counter<'a> {
    plan: &'a Plan,
    manifest: &'a Manifest,
    scores: &'a RunDirectory,
    records: &'a [UnitRecord],
    selection: &'a Selection,
    listed: usize,
}

impl Counter<'_> {
    fn count(&self) -> Result<UnitCounts> {
        let threads = self.scores.concurrency(rayon::current_num_threads());
        let mut all = UnitCounts::default();
        let count = |unit: usize| {
            self.plan.options.stop.check()?;
            self.unit(unit)
        };
        parallel::each_in_order(self.records.len(), threads, count, |unit: UnitCounts| {
            for (value, change) in unit.groups {
                all.groups.entry(value).or_default().append(&change);
            }
            for (list, more) in
                [(&mut all.entering, unit.entering), (&mut all.leaving, unit.leaving)]
            {
                list.extend(more);
                cut(list, self.listed);
            }
            Ok(())
        })?;
        Ok(all)
    }

    fn unit(&self, unit: usize) -> Result<UnitCounts> {
        let (record, mut counted) = (&self.records[unit], UnitCounts::default());
        if record.counts.windows == 0 {
            return Ok(counted);
        }
        let mut windows: BTreeMap<u64, Vec<ScoredWindow>> = BTreeMap::new();
        scores::read(
            &self.scores.root.join(&record.scores.path),
            &self.selection.columns(),
            |window| {
                windows.entry(window.input_row).or_default().push(window);
                Ok(())
            },
        )?;
        let mut samples = self.selection.unit_samples(self.plan, unit, &windows)?.into_iter();
        let path = format!("selection/part-{}.parquet", record.unit);
        let path = self.plan.directory.root.join(path);
        selected::read(&path, |now| {
            let Some(then) = samples
                .next()
                .filter(|then| (then.row, then.window) == (now.input_row, now.window))
            else {
                return Err(changed(self.manifest, &record.file));
            };
            self.sample(unit, now, &then, &mut counted);
            Ok(())
        })?;
        if samples.next().is_some() {
            return Err(changed(self.manifest, &record.file));
        }
        Ok(counted)
    }

    fn sample(
        &self,
        unit: usize,
        now: &selected::SelectedRow<'_>,
        then: &Sample,
        counted: &mut UnitCounts,
    ) {
        let amount = Amount { samples: 1, tokens: then.tokens };
        let group = then.group.as_deref().map(str::to_owned);
        let change = counted.groups.entry(group.clone()).or_default();
        change.all.add(amount);
        let (is, will) = (now.reason.is_none(), then.keep());
        let Change { now: kept_now, then: kept_then, both, .. } = change;
        for (counts, kept) in [(is, kept_now), (will, kept_then), (is && will, both)] {
            kept.add(if counts { amount } else { Amount::default() });
        }
        if is == will || self.listed == 0 {
            return;
        }
        let finite = |score: f64| Some(score).filter(|score| !score.is_nan());
        let moved = MovedSample {
            id: now.id.to_owned(),
            window: now.window,
            group,
            tokens: then.tokens,
            score_now: finite(now.score),
            score_then: finite(then.score),
            reason: now.reason.or(then.reason.as_deref()).unwrap_or_default().to_owned(),
            at: (unit, now.input_row),
        };
        let list = if will { &mut counted.entering } else { &mut counted.leaving };
        list.push(moved);
        if list.len() >= 2 * self.listed + 1024 {
            cut(list, self.listed);
        }
    }
}

/// Keeps the samples with the highest new scores.
fn cut(list: &mut Vec<MovedSample>, listed: usize) {
    let score = |moved: &MovedSample| moved.score_then.unwrap_or(f64::NEG_INFINITY);
    list.sort_by(|one, other| {
        score(other)
            .total_cmp(&score(one))
            .then((one.at, one.window).cmp(&(other.at, other.window)))
    });
    list.truncate(listed);
}

fn changed(manifest: &Manifest, file: &str) -> Failure {
    let message = format!(
        "the selection of {}, committed {}, does not match the scores",
        line_safe(file),
        manifest.committed
    );
    let hint = "`longsift verify` reports which file changed after it was written";
    Diagnostic::error(Blame::Data, message).hint(hint).into()
}

impl Change {
    fn append(&mut self, other: &Self) {
        self.all.add(other.all);
        self.now.add(other.now);
        self.then.add(other.then);
        self.both.add(other.both);
    }
}

/// Maximum number of groups printed; JSON lists all.
const MAX_PRINTED_GROUPS: usize = 40;

impl fmt::Display for WhatIf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for change in &self.changes {
            writeln!(f, "{}", line_safe(change))?;
        }
        let header = [
            "group",
            "samples",
            "now",
            "new",
            "tokens now",
            "tokens new",
            "enter",
            "leave",
            "score ≥",
        ];
        let mut rows = vec![header.map(str::to_owned).to_vec()];
        let mut groups: Vec<&GroupChange> = self.groups.iter().collect();
        groups.sort_by_key(|group| std::cmp::Reverse(group.change.all.samples));
        let score = |group: &GroupChange| match group.thresholds_then.as_slice() {
            [Some(score)] => format!("{score:.4}"),
            [None] => "none".to_owned(),
            budgets => format!("{} budgets", budgets.len()),
        };
        let total = match &groups[..] {
            [only] if only.value.is_none() => score(only),
            _ => {
                for group in groups.iter().take(MAX_PRINTED_GROUPS) {
                    let name =
                        group.value.as_deref().map_or_else(|| "(null)".to_owned(), value_name);
                    rows.push(row(name, &group.change, score(group)));
                }
                String::new()
            }
        };
        rows.push(row("all".to_owned(), &self.total, total));
        table(&rows).iter().try_for_each(|line| writeln!(f, "{line}"))?;
        let smaller = groups.len().saturating_sub(MAX_PRINTED_GROUPS);
        if smaller > 0 {
            writeln!(f, "and {} smaller groups", count(smaller as u64))?;
        }
        let Change { now, then, both, .. } = self.total;
        let either = now.samples + then.samples - both.samples;
        let share = 100.0 * both.samples as f64 / either.max(1) as f64;
        let [both, either] = [both.samples, either].map(count);
        writeln!(f, "both keep {both} of the {either} samples that either keeps ({share:.1} %)")?;
        for (name, list) in [("enters", &self.entering), ("leaves", &self.leaving)] {
            list.iter().try_for_each(|moved| writeln!(f, "{name}  {moved}"))?;
        }
        Ok(())
    }
}

fn row(name: String, change: &Change, score: String) -> Vec<String> {
    let Change { all, now, then, both } = *change;
    let numbers = [
        all.samples,
        now.samples,
        then.samples,
        now.tokens,
        then.tokens,
        then.samples - both.samples,
        now.samples - both.samples,
    ];
    let [all, now, then, tokens_now, tokens_then, enter, leave] = numbers.map(count);
    vec![name, all, now, then, tokens_now, tokens_then, enter, leave, score]
}

impl fmt::Display for MovedSample {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let score = |score: Option<f64>| {
            score.map_or_else(|| "none".to_owned(), |score| format!("{score:.4}"))
        };
        write!(f, "{}", line_safe(&self.id))?;
        if let Some(window) = self.window {
            write!(f, "#{window}")?;
        }
        if let Some(group) = &self.group {
            write!(f, "  {}", value_name(group))?;
        }
        let (now, then) = (score(self.score_now), score(self.score_then));
        write!(f, "  score {now} → {then}  {}", self.reason)
    }
}
