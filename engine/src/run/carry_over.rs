//! An increment without new files: the next one must still know what was filtered, and by which calibration.

use super::{Run, pretty};
use crate::error::Result;
use crate::execute::Scored;
use crate::files;
use crate::lock::Lock;
use crate::manifest::Manifest;
use crate::output::Staged;
use crate::plan::identity;

impl Run<'_> {
    /// Records a run that left out all its input because earlier ones have filtered it: a manifest without data, and
    /// the calibration. Does nothing for a run without `input.since`, and nothing where an earlier run has written data.
    pub(super) fn carry_over(&mut self) -> Result<()> {
        let (plan, directory) = (self.plan, self.directory);
        let Some(calibration) = &plan.spec.score().calibration else { return Ok(()) };
        if plan.input_before.is_empty() || Manifest::read(directory)?.is_some() {
            return Ok(());
        }
        let digest = self.model_digest(false)?;
        let lock = Lock::of(plan, &digest)?;
        let calibration = files::read_limited(&plan.spec.resolve(calibration), 256 << 20)?;
        let settings = identity::select_settings(plan, Some(&files::sha256_hex(&calibration)));
        let (scored, staged) = (Scored::default(), Staged::default());
        let manifest = Manifest::new(plan, &lock, &scored, &staged, settings, String::new());
        lock.with_model(plan, &digest).write(&directory.lock_file())?;
        files::write_atomic(&directory.calibration(), &calibration)?;
        files::write_atomic(&directory.manifest(), &pretty(&manifest))?;
        files::write_atomic(&directory.success(), b"")?;
        Ok(())
    }
}
