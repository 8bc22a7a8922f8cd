//! Parts that shards of the write phase leave for the selection: `written/<selection>/` in the run directory. A unit's
//! parts count once its record in `units/` there stands.

use super::staged::{Fates, StagedUnit};
use super::{Writer, schema};
use crate::dataset::WorkUnit;
use crate::error::Result;
use crate::files;
use crate::parallel;
use crate::units::Part;

/// What a shard of the write phase did.
#[derive(Clone, Copy, Debug, Default)]
pub struct ShardWritten {
    /// Units written by this process.
    pub written: u64,
    /// Units that had been written before.
    pub before: u64,
    /// What became of the rows and windows of all its units.
    pub fates: Fates,
}

impl Writer<'_> {
    /// Writes the parts of some units, ascending, to where [`Writer::stage`] finds them. Any number of processes may do
    /// so at once; a unit that two of them write gets the same bytes twice.
    pub fn write_shard(
        &self,
        units: &[usize],
        each: impl Fn(&WorkUnit) + Sync,
    ) -> Result<ShardWritten> {
        for part in ["data", "dropped", "units"] {
            files::create_folder(&self.written.join(part))?;
        }
        let (names, schema) = (self.names(), schema(self.plan));
        let done = parallel::in_order(units.len(), self.writers(), |index| {
            self.stop.check()?;
            let unit = units[index];
            let name = names.of(unit);
            let before = self.written_before(unit, name.as_deref())?;
            let new = before.is_none();
            let staged = if let Some(staged) = before {
                staged
            } else {
                let staged = self.stage_unit(unit, name, &schema, &self.written)?;
                let record = serde_json::to_vec(&staged).expect("a record is plain data");
                files::write_atomic(&self.record(unit), &record)?;
                staged
            };
            each(&self.plan.units[unit]);
            Ok((new, staged.fates))
        })?;
        let mut shard = ShardWritten::default();
        for (new, fates) in done {
            shard.written += u64::from(new);
            shard.before += u64::from(!new);
            shard.fates.add(fates);
        }
        Ok(shard)
    }

    /// What a shard has written of a unit, if its record stands and its parts are in place.
    pub(super) fn written_before(
        &self,
        unit: usize,
        name: Option<&str>,
    ) -> Result<Option<StagedUnit>> {
        let Some(bytes) = files::read_if_present(&self.record(unit))? else { return Ok(None) };
        let staged = serde_json::from_slice::<StagedUnit>(&bytes).ok();
        let Some(staged) = staged.filter(|unit| unit.data.as_ref().map(|part| &*part.path) == name)
        else {
            return Ok(None);
        };
        let in_place = Part::all_in_place(&staged.data, &self.written.join("data"))?
            && Part::all_in_place(&staged.dropped, &self.written)?;
        Ok(in_place.then_some(staged))
    }

    fn record(&self, unit: usize) -> std::path::PathBuf {
        self.written.join("units").join(format!("{}.json", self.plan.units[unit].name()))
    }
}
