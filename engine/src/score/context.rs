//! Context and results of scoring units.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use super::passes::ModelOnDevices;
use super::programs::Programs;
use super::watch::Watch;
use crate::base::counts::Counts;
use crate::base::error::Result;
use crate::base::progress::Progress;
use crate::base::stop::Stop;
use crate::devices::scheduler::Scheduler;
use crate::plan::Plan;
use crate::plan::attention::Attention;
use crate::plan::calibrated_groups::CalibratedGroups;
use crate::run_directory::events;
use crate::run_directory::facts::{Fingerprints, MeasuredBy};
use crate::run_directory::layout::RunDirectory;
use crate::run_directory::scores::MeasureColumns;
use crate::run_directory::units::UnitRecord;

#[derive(Clone, Debug, Default)]
pub struct ScoreTotals {
    /// One record per unit, in the order of the plan.
    pub records: Vec<UnitRecord>,
    pub counts: Counts,
    /// Windows measured by this run.
    pub windows_scored: u64,
    /// Windows measured by an earlier run.
    pub windows_reused: u64,
    /// Units measured and committed by this process.
    pub units_scored: u64,
    pub units_reused: u64,
    /// Units that another process committed first, including units that this process was measuring.
    pub units_by_others: u64,
}

impl ScoreTotals {
    /// Sums a count of windows over all units, by measure of the plan.
    pub fn by_measure(&self, plan: &Plan, count: fn(&MeasuredBy) -> u64) -> BTreeMap<String, u64> {
        let skipped = |columns: &MeasureColumns| {
            let own =
                self.records.iter().filter_map(|record| record.measures.get(&columns.measure));
            let windows = own.map(count).fold(0, u64::saturating_add);
            (windows > 0).then(|| (columns.measure.clone(), windows))
        };
        plan.measures.columns.iter().filter_map(skipped).collect()
    }

    pub(super) fn add(&mut self, counts: &Counts, windows_scored: u64) {
        self.counts.add(counts);
        self.windows_scored += windows_scored;
        self.windows_reused += counts.windows.saturating_sub(windows_scored);
    }

    pub(super) fn reuse(&mut self, counts: &Counts) {
        self.units_reused += 1;
        self.add(counts, 0);
    }
}

#[derive(Debug)]
pub(super) struct ScoredUnit {
    pub(super) record: UnitRecord,
    /// Windows measured by this process, whether or not its record is the valid one.
    pub(super) windows_measured: u64,
    pub(super) by_another: bool,
}

#[derive(Clone, Copy)]
pub struct OnDevices<'a> {
    pub attention: &'a Attention,
    pub scheduler: &'a Scheduler<'a>,
    pub watch: &'a Watch<'a>,
}

#[derive(Clone, Copy)]
pub struct ScoreContext<'a> {
    pub plan: &'a Plan,
    pub directory: &'a RunDirectory,
    /// Devices that compute attention; `None` if no measure needs it.
    pub devices: Option<OnDevices<'a>>,
    pub(crate) models: &'a [ModelOnDevices<'a>],
    /// External programs that judge windows and documents.
    pub(crate) programs: &'a Programs<'a>,
    /// Fingerprints of windows and statistics, without the input.
    pub wanted: &'a Fingerprints,
    /// Paths of the score tables of the committed selection.
    pub committed: &'a BTreeSet<String>,
    /// Groups of the pipeline's calibration; `None` without a calibration or without groups.
    pub calibrated: Option<&'a CalibratedGroups>,
    pub exclusive: bool,
    pub progress: &'a Progress,
    pub stop: &'a Stop,
}

impl ScoreContext<'_> {
    pub(super) fn append_event(&self, event: &str, facts: Value) -> Result<()> {
        let append = if self.exclusive { events::append } else { events::append_shared };
        append(&self.plan.directory, event, facts)
    }
}
