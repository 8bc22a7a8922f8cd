//! Builds the manifest.

use serde_json::{Value, json};

use crate::base::clock;
use crate::plan::Plan;
use crate::plan::identity::Kernels;
use crate::run_directory::manifest::{KnownFile, Manifest};
use crate::run_directory::pipeline_lock::{self, PipelineLock};
use crate::score::context::ScoreTotals;
use crate::write::staged::StagedFiles;

/// Builds the manifest of a selection that is about to be committed.
pub(super) fn manifest(
    plan: &Plan,
    lock: &PipelineLock,
    scored: &ScoreTotals,
    staged: &StagedFiles,
    selection_fingerprint: String,
) -> Manifest {
    let input = KnownFile::for_dataset(&plan.dataset).into_iter().zip(&plan.dataset.files);
    let input = input.map(|(known, file)| {
        let mut known = serde_json::to_value(known).expect("plain data");
        known["rows"] = file.rows.into();
        known
    });
    let bad_files = plan.dataset.bad_files.iter().map(
        |file| json!({ "path": file.path, "size": file.size, "message": file.problem.message }),
    );
    Manifest {
        version: pipeline_lock::VERSION,
        longsift: env!("CARGO_PKG_VERSION").to_owned(),
        committed: clock::now_utc(),
        lock: lock.clone(),
        selection_fingerprint,
        device: plan.attention.as_ref().map_or(Value::Null, |_| {
            let recorded = Kernels::recorded(&lock.identity).map(|kernels| kernels.windows);
            json!({ "name": null, "kernel": recorded })
        }),
        table: None,
        input: input.collect(),
        bad_files: bad_files.collect(),
        quarantined_files: staged.quarantined_files.clone(),
        input_before: plan.input_before.clone(),
        units: scored.records.clone(),
        mark_only: plan.spec.filter().mark_only,
        data: staged.data.clone(),
        dropped: staged.dropped.clone(),
        selection: staged.selection.clone(),
        calibration: None,
        summary: None,
        events: None,
        card: None,
        report: Vec::new(),
    }
}
