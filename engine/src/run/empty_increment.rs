//! Increments without new files. They are recorded, because the next increment requires the list of filtered files and the
//! calibration.

use super::record;
use crate::base::error::Result;
use crate::plan::identity::calibration_bytes;
use crate::plan::lock;
use crate::run::{Run, RunOptions};
use crate::run_directory::calibration;
use crate::run_directory::keep::sealed;
use crate::run_directory::manifest::Manifest;
use crate::score::context::ScoreTotals;
use crate::write::staged::StagedFiles;

impl Run<'_> {
    /// Records an increment whose input was completely filtered by earlier runs: a manifest without data, and the calibration.
    /// Does nothing without `input.since`, or if an earlier run has written data.
    pub(super) fn record_empty_increment(&mut self) -> Result<()> {
        let (plan, directory) = (self.plan, self.directory);
        let Some(calibration) = &plan.spec.score().calibration else { return Ok(()) };
        if plan.input_before.is_empty() {
            return Ok(());
        }
        if let Some(before) = Manifest::read(directory)? {
            // An earlier run was killed before its last step.
            let is_open = before.data.is_empty() && !directory.is_finished()?;
            return if is_open { directory.mark_finished() } else { Ok(()) };
        }
        let digests = self.digests(&RunOptions::default())?;
        let lock = lock::with_command(lock::lock(plan, &digests), plan);
        let calibration = calibration_bytes(plan, calibration, &lock.identity)?;
        let (scored, staged) = (ScoreTotals::default(), StagedFiles::default());
        let mut manifest = record::manifest(plan, &lock, &scored, &staged, String::new());
        lock::with_model(lock, plan, &digests).write(&directory.lock_file())?;
        calibration::put(directory, &calibration)?;
        directory.create_data()?;
        let summary = self.base_summary("done");
        manifest.summary =
            Some(directory.write_record(&directory.root, "summary.json", &summary)?);
        directory.write_record(&directory.root, "manifest.json", &sealed(&manifest))?;
        directory.mark_finished()
    }
}
