//! What units are scored with, and what becomes of them.

use std::collections::BTreeMap;

use super::programs::Programs;
use super::watch::Watch;
use crate::base::progress::Progress;
use crate::base::stop::Stop;
use crate::dataset::units::WorkUnit;
use crate::devices::scheduler::Scheduler;
use crate::plan::Plan;
use crate::plan::attention::Attention;
use crate::run_directory::counts::Counts;
use crate::run_directory::facts::Fingerprints;
use crate::run_directory::layout::RunDirectory;
use crate::run_directory::scores::MeasureColumns;
use crate::run_directory::units::{MeasuredBy, UnitRecord};

/// What the score phase did.
#[derive(Clone, Debug, Default)]
pub struct Scored {
    /// One record per unit, in the order of the plan.
    pub records: Vec<UnitRecord>,
    /// Where the rows of all units went.
    pub counts: Counts,
    /// Windows measured by this run.
    pub windows_scored: u64,
    /// Windows measured by an earlier run.
    pub windows_reused: u64,
}

impl Scored {
    /// By measure of the plan, windows that the guards of then refused when their units were scored.
    pub fn not_measured(&self, plan: &Plan) -> BTreeMap<String, u64> {
        self.by_measure(plan, |by| by.not_measured)
    }

    /// By measure of the plan, windows that are not in its sample.
    pub fn not_sampled(&self, plan: &Plan) -> BTreeMap<String, u64> {
        self.by_measure(plan, |by| by.not_sampled)
    }

    fn by_measure(&self, plan: &Plan, count: fn(&MeasuredBy) -> u64) -> BTreeMap<String, u64> {
        let spared = |columns: &MeasureColumns| {
            let own =
                self.records.iter().filter_map(|record| record.measures.get(&columns.measure));
            let windows = own.map(count).fold(0, u64::saturating_add);
            (windows > 0).then(|| (columns.measure.clone(), windows))
        };
        plan.measures.columns.iter().filter_map(spared).collect()
    }

    pub(super) fn add(&mut self, record: UnitRecord, windows_scored: u64) {
        self.counts.add(&record.counts);
        self.windows_scored += windows_scored;
        self.windows_reused += record.counts.windows.saturating_sub(windows_scored);
        self.records.push(record);
    }
}

/// What became of a unit.
#[derive(Debug)]
pub(super) struct ScoredUnit {
    /// The record that counts.
    pub(super) record: UnitRecord,
    /// Windows measured here, whether or not they count.
    pub(super) windows_measured: u64,
    /// Whether the record is another process's.
    pub(super) by_another: bool,
}

/// The devices of a plan at work.
#[derive(Clone, Copy)]
pub struct OnDevices<'a> {
    /// The model, and what is measured with it.
    pub attention: &'a Attention,
    /// Where windows are measured.
    pub scheduler: &'a Scheduler<'a>,
    /// What is noted of the devices.
    pub watch: &'a Watch<'a>,
}

/// What all units are scored with.
#[derive(Clone, Copy)]
pub struct ScoreContext<'a> {
    /// What to do.
    pub plan: &'a Plan,
    /// Where the results go.
    pub directory: &'a RunDirectory,
    /// What makes the evidence that a measure needs; none where no measure needs any.
    pub devices: Option<OnDevices<'a>>,
    /// The programs that measures and documents are asked of.
    pub(crate) programs: &'a Programs<'a>,
    /// What windows and figures depend on besides the input.
    pub wanted: &'a Fingerprints,
    /// Whether no other process works in the run directory.
    pub alone: bool,
    /// What people see.
    pub progress: &'a Progress,
    /// Whether to stop.
    pub stop: &'a Stop,
}

impl ScoreContext<'_> {
    /// Tells of a unit that was scored and committed.
    pub(super) fn done(&self, unit: &WorkUnit, counts: &Counts) {
        let quarantined = counts.quarantined_rows();
        let (rows, windows) = (counts.rows, counts.windows);
        self.progress.unit_done(&unit.name(), &unit.file_path, rows, windows, quarantined);
    }

    /// Tells of a unit that an earlier run has scored.
    pub(super) fn reused(&self, unit: &WorkUnit, counts: &Counts) {
        let (windows, tokens) = (counts.windows, counts.tokens_scored);
        self.progress.unit_reused(&unit.name(), &unit.file_path, windows, tokens);
    }
}
