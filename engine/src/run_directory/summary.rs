//! JSON summary of a run: the last line of standard output, and `summary.json`.

use std::borrow::Cow;
use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::calibration::{GroupDrift, moved_most};
use super::dropped::is_selection_reason;
use crate::base::counts::{Counts, is_zero};
use crate::base::text::{count, quoted_value};

/// Maximum groups in a summary line: schedulers keep the line, and some accept only 48 kB.
const MAX_GROUPS_IN_LINE: usize = 100;

/// Maximum groups named in a sentence about a guard.
const MAX_NAMED: usize = 10;

/// The summary of a run: the last line of standard output, and `summary.json`. After a failure or a stop, rows, windows and
/// tokens are those of the units that are recorded; the next run continues after them.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Summary {
    /// `done`, `scored` or `written` (a shard), `nothing_to_do`, `failed` or `stopped`.
    pub status: String,
    /// Absolute path of the run directory.
    pub run_dir: String,
    /// Name given by `--run-id`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run_id: Option<String>,
    /// Rows read.
    pub rows_in: u64,
    /// Rows with at least one sample in the output.
    pub rows_kept: u64,
    /// Rows that are not in the output, by reason.
    pub rows_dropped: BTreeMap<String, u64>,
    /// Rows that could not be scored.
    pub quarantined: u64,
    /// Input files that could not be opened and are left out; their number of rows is unknown.
    #[serde(default)]
    pub files_quarantined: u64,
    /// Windows of all documents.
    pub windows_total: u64,
    /// Windows measured by this run.
    pub windows_scored: u64,
    /// Windows measured by an earlier run.
    pub windows_reused: u64,
    /// Windows that guards skip for a measure, by measure, even if an earlier run with other guards measured them. They have
    /// the statistics of other measures. For a shard: as counted when its units were scored.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub windows_not_measured: BTreeMap<String, u64>,
    /// Windows outside the sample of a measure, by measure (`sample_fraction`).
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub windows_not_sampled: BTreeMap<String, u64>,
    /// Windows in the output (of kept documents, with `samples: documents`).
    pub windows_kept: u64,
    /// Windows in the output without a score, because sampling excluded them from a measure (`filter.not_measured: keep`).
    #[serde(default, skip_serializing_if = "is_zero")]
    pub windows_kept_not_measured: u64,
    /// Windows that are not in the output, by reason.
    pub windows_dropped: BTreeMap<String, u64>,
    /// Kept samples: the rows of the output, unless `filter.mark_only` adds the others.
    pub kept: u64,
    /// Tokens of all documents.
    pub tokens_total: u64,
    /// Tokens of all scored windows, including BOS.
    pub tokens_scored: u64,
    /// Kernel that measures windows; null if the run ended before one was chosen.
    #[serde(default)]
    pub kernel: Option<String>,
    /// Wall-clock seconds of this run.
    pub seconds: f64,
    /// Peak resident memory of this run in bytes, including the mapped table; null if the system does not report it.
    pub peak_memory_bytes: Option<u64>,
    /// Peak memory by phase of this run: `plan`, `table`, `score`, `select`, `write`. If the system cannot reset the peak
    /// (other than Linux), the peak up to the end of each phase. Empty if the system does not report it.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub peak_memory_by_phase: BTreeMap<String, u64>,
    /// Layer-zero table; null if this run measured nothing and opened none.
    #[serde(default)]
    pub table: Option<TableUse>,
    /// Work of a process on its shard; only after `--phase score`. Nothing is selected then: `kept` and `windows_kept` are 0,
    /// and `rows_in` is the shard's rows, `rows_scored` + dropped + quarantined.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shard: Option<ShardSummary>,
    /// Devices that measured windows; null if this run measured none.
    #[serde(default)]
    pub devices: Option<DeviceUse>,
    /// With a saved calibration: drift of the scores of each group. The line has the 100 groups that moved most, `summary.json`
    /// all.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub drift: Vec<GroupDrift>,
    /// Number of groups that moved less and are left out of `drift`.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub drift_left_out: u64,
    /// Rejected samples of each guard, in the order of the filter. A guard that rejects more than half of all samples, or of
    /// those of a group, causes a warning.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub guards: Vec<GuardUse>,
    /// Results of the pipeline's checks, in order. If a check ends the run, the counts are those of the rejected result.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub checks: Vec<Checked>,
    /// The exit code.
    pub exit_code: u8,
    /// Error message, if the run failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

impl Summary {
    /// Returns the summary of a run that has not done anything yet.
    pub fn new(status: &str, run_dir: String) -> Self {
        Self { status: status.to_owned(), run_dir, ..Self::default() }
    }

    /// Sets the counts of rows, windows and tokens to those of scored units.
    pub fn set_counts(&mut self, counts: Counts) {
        self.rows_in = counts.rows;
        self.quarantined = counts.quarantined_rows();
        self.windows_total = counts.windows_total();
        self.rows_dropped = counts.rows_dropped;
        self.windows_dropped = counts.windows_dropped;
        self.tokens_total = counts.tokens_total;
        self.tokens_scored = counts.tokens_scored;
    }

    /// Peak memory of each phase, in the order of phases.
    pub fn phases_by_memory(&self) -> Vec<(&'static str, u64)> {
        let known = |phase| Some((phase, *self.peak_memory_by_phase.get(phase)?));
        ["plan", "table", "score", "select", "write"].into_iter().filter_map(known).collect()
    }

    /// Returns the kept samples in the output: 0 if the run failed, even if it would have kept some.
    pub fn samples_written(&self) -> u64 {
        if self.error.is_none() { self.kept } else { 0 }
    }

    /// Returns the samples that the selection did not keep. `documents`: whether samples are documents.
    pub fn samples_not_kept(&self, documents: bool) -> u64 {
        let dropped = if documents { &self.rows_dropped } else { &self.windows_dropped };
        dropped.iter().filter(|(reason, _)| is_selection_reason(reason)).map(|(_, of)| of).sum()
    }

    /// Returns the rows of the output; with `mark_only` also samples that are not kept, and rows without a sample.
    pub fn rows_written(&self, documents: bool, mark_only: bool) -> u64 {
        if !mark_only || self.error.is_some() {
            return self.samples_written();
        }
        let without_sample =
            self.rows_dropped.iter().filter(|(reason, _)| !is_selection_reason(reason));
        let without_sample: u64 = without_sample.map(|(_, rows)| rows).sum();
        self.kept + self.samples_not_kept(documents) + without_sample
    }

    /// Checks both accounting equations. A violation is a bug.
    pub fn check(&self) -> Result<(), String> {
        let dropped: u64 = self.rows_dropped.values().sum();
        if self.rows_kept + dropped + self.quarantined != self.rows_in {
            return Err(format!(
                "{} rows were read, but {} were kept, {dropped} dropped and {} quarantined",
                self.rows_in, self.rows_kept, self.quarantined
            ));
        }
        let dropped: u64 = self.windows_dropped.values().sum();
        if self.windows_kept + dropped != self.windows_total {
            return Err(format!(
                "{} windows were cut, but {} were kept and {dropped} dropped",
                self.windows_total, self.windows_kept
            ));
        }
        Ok(())
    }

    /// Formats the summary as one line of JSON with bounded length for any number of groups.
    pub fn to_line(&self) -> String {
        let left_out = self.drift.len().saturating_sub(MAX_GROUPS_IN_LINE);
        let mut line = Cow::Borrowed(self);
        if left_out > 0 {
            let most = moved_most(&self.drift, MAX_GROUPS_IN_LINE).into_iter().cloned().collect();
            let line = line.to_mut();
            (line.drift, line.drift_left_out) = (most, left_out as u64);
        }
        serde_json::to_string(&line).expect("a summary is plain data")
    }
}

/// Rejected samples of a guard.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct GuardUse {
    /// Setting of the guard: `stages.filter.guards.0`.
    pub setting: String,
    /// Statistic that it bounds.
    pub statistic: String,
    /// Bounds in words: `at most 0.4`.
    pub bounds: String,
    /// Samples outside its bounds, including those that other guards reject.
    pub rejected: u64,
    /// Samples that lack its statistic and that no guard rejects. They do not pass.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub missing: u64,
    /// All samples.
    pub samples: u64,
    /// Groups in which more than half of the samples do not pass it, at most 100, those that lose the most samples first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub groups: Vec<GuardedGroup>,
    /// Number of further such groups, which are left out of `groups`.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub groups_left_out: u64,
}

/// Rejected samples of a guard in one group.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct GuardedGroup {
    /// Value of the `within` column.
    pub value: Option<String>,
    /// Samples outside the guard's bounds.
    pub rejected: u64,
    /// Samples that lack the guard's statistic and that no guard rejects.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub missing: u64,
    /// All samples of the group.
    pub samples: u64,
}

impl GuardUse {
    /// Whether more than half of all samples, or of the samples of a group, do not pass the guard.
    pub fn rejects_most(&self) -> bool {
        2 * (self.rejected + self.missing) > self.samples || !self.groups.is_empty()
    }

    /// Describes in a sentence how many samples the guard rejects, in total and by group.
    pub fn in_words(&self, samples: &str) -> String {
        let of = |rejected: u64, samples: u64| {
            let share = 100.0 * rejected as f64 / samples.max(1) as f64;
            format!("{} of {} ({share:.0} %)", count(rejected), count(samples))
        };
        let all = of(self.rejected, self.samples);
        let mut text = format!("`{}` {} rejects {all} {samples}", self.statistic, self.bounds);
        if self.missing > 0 {
            text.extend(["; also rejected, for a missing statistic: ", &count(self.missing)]);
        }
        let named: Vec<&GuardedGroup> =
            self.groups.iter().filter(|group| group.value.is_some()).take(MAX_NAMED).collect();
        if !named.is_empty() {
            let name = |of_group: &&GuardedGroup| {
                let group = of_group.value.as_deref().map(quoted_value).unwrap_or_default();
                format!("{group} {}", of(of_group.rejected + of_group.missing, of_group.samples))
            };
            let named: Vec<String> = named.iter().map(name).collect();
            let left_out = self.groups.len() as u64 - named.len() as u64 + self.groups_left_out;
            text.extend(["; of group ", &named.join(", ")]);
            if left_out > 0 {
                text.extend([" and ", &count(left_out), " more"]);
            }
        }
        text
    }
}

/// Result of a check of the pipeline.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Checked {
    /// Checked value: `rows_kept_share`, `mean copy_share of kept samples`.
    pub check: String,
    /// Value found; null if no sample has the statistic.
    pub value: Option<f64>,
    /// Lowest accepted value, if there is a bound.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub min: Option<f64>,
    /// Highest accepted value, if there is a bound.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max: Option<f64>,
    /// Whether the check holds.
    pub holds: bool,
}

/// Use of the layer-zero table by a run.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct TableUse {
    /// Whether it was in the cache.
    pub from_cache: bool,
    /// Bytes of weights read to build it: 0 from the cache, otherwise the estimate of `longsift plan`.
    pub checkpoint_bytes_read: u64,
    /// Bytes of the table: every row of the vocabulary.
    pub bytes: u64,
    /// Bytes of one row.
    pub row_bytes: u64,
    /// Rows of the token ids that occurred in windows measured by this run.
    pub rows_used: u64,
    /// Bytes of those rows. The table is memory-mapped, so this much of it is in memory.
    pub bytes_used: u64,
}

/// Work of a process on the units of its shard.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ShardSummary {
    /// Index of the shard, from 0.
    pub index: u32,
    /// Number of shards.
    pub count: u32,
    /// Work units of the shard.
    pub units: u64,
    /// Units scored and committed by this process.
    pub units_scored: u64,
    /// Units that already had scores.
    pub units_reused: u64,
    /// Units that another process committed first.
    pub units_by_others: u64,
    /// Rows with at least one measured window.
    pub rows_scored: u64,
    /// Units whose kept rows this process wrote (`--phase write`).
    #[serde(default)]
    pub units_written: u64,
}

/// Work of the devices of a run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct DeviceUse {
    /// Devices of the run.
    pub list: Vec<DeviceWork>,
    /// Steps of the scheduler other than measuring, by kind: `out_of_memory`, `fewer_in_flight`, `head_groups`, `window_groups`, `memory_wait`,
    /// `window_given_up`, `device_failed`, `device_retired`, … Each is also an event.
    pub steps: BTreeMap<String, u64>,
}

impl DeviceUse {
    /// Adds other work, by name of the device.
    #[must_use]
    pub fn merged_with(mut self, other: Self) -> Self {
        for work in other.list {
            match self.list.iter_mut().find(|own| own.name == work.name) {
                Some(own) => {
                    own.pieces += work.pieces;
                    own.tokens += work.tokens;
                    own.busy_seconds += work.busy_seconds;
                    own.most_reserved_bytes = own.most_reserved_bytes.max(work.most_reserved_bytes);
                    own.retired = own.retired.take().or(work.retired);
                }
                None => self.list.push(work),
            }
        }
        for (step, count) in other.steps {
            *self.steps.entry(step).or_default() += count;
        }
        self
    }
}

/// Work of one device of a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct DeviceWork {
    /// `cpu`, `cuda:0`.
    pub name: String,
    /// UUID of a GPU.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uuid: Option<String>,
    /// Windows, and pieces of windows, that it measured.
    pub pieces: u64,
    /// Tokens of those windows; of a piece, in proportion to its heads.
    pub tokens: u64,
    /// Seconds in which it was busy.
    pub busy_seconds: f64,
    /// Peak of the bytes reserved on it.
    pub most_reserved_bytes: u64,
    /// Reason for retiring it; null if it was not retired.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retired: Option<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LabelCounts {
    pub samples: u64,
    pub kept: u64,
    /// Samples that each of `output.compare` would keep.
    pub compared: Vec<u64>,
}

/// Counts by label, ascending.
pub type LabelShares = Vec<(Option<String>, LabelCounts)>;
