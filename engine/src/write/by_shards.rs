//! Parts that shards of the write phase leave for the selection: `written/<selection>/` in the run directory, data files in
//! `.written/<selection>/` of the output. The parts of a range of units count once its record exists in `units/` there, named
//! after its first unit.

use super::cuts::Stretch;
use super::formats::Format;
use super::staged::{Fates, StagedStretch};
use crate::base::error::Result;
use crate::base::parallel;
use crate::dataset::units::WorkUnit;
use crate::plan::shard::{self, Shard};
use crate::run_directory::units::Part;
use crate::storage::{atomic, files, marked};
use crate::write::Writer;

/// Work of a shard of the write phase.
#[derive(Clone, Debug, Default)]
pub struct ShardWritten {
    /// Units written by this process.
    pub written: u64,
    /// Units that were already written.
    pub before: u64,
    /// Rows of all its units.
    pub rows: u64,
    /// Outcomes of the rows and windows of all its units.
    pub fates: Fates,
}

impl Writer<'_> {
    /// Writes the parts of a shard for [`Writer::stage`] to find. Several processes may do so at once: they write the same
    /// bytes.
    pub fn write_shard(&self, own: Shard, each: impl Fn(&WorkUnit) + Sync) -> Result<ShardWritten> {
        marked::create_folder(&self.plan.directory.written_data())?;
        files::create_folder(&self.written.data)?;
        for part in ["dropped", "selection", "units"] {
            files::create_folder(&self.written.records.join(part))?;
        }
        let format = self.format();
        let schema = format.schema(self.plan);
        let mut stretches = self.stretches();
        // Files without work units belong to no shard; the commit creates them.
        stretches.retain(|stretch| !stretch.units.is_empty());
        let bytes = |stretch: &Stretch| {
            self.plan.units[stretch.units.clone()].iter().map(|unit| unit.bytes).sum()
        };
        let shards =
            shard::distribute(&stretches.iter().map(bytes).collect::<Vec<u64>>(), own.count);
        let mut shards = shards.into_iter();
        stretches.retain(|_| shards.next() == Some(own.index));
        let done = parallel::in_order(stretches.len(), self.writers(), |index| {
            self.stop.check()?;
            let stretch = &stretches[index];
            let units = &self.plan.units[stretch.units.clone()];
            if let Some(staged) = self.written_before(stretch, &format)? {
                units.iter().for_each(&each);
                return Ok((false, staged.fates));
            }
            let staged = self.stage_stretch(stretch, &schema, &format, &self.written, &each)?;
            let record = serde_json::to_vec(&staged).expect("a record is plain data");
            atomic::write_atomic(&self.record(stretch), &record)?;
            Ok((true, staged.fates))
        })?;
        let mut shard = ShardWritten::default();
        for (stretch, (new, fates)) in stretches.iter().zip(done) {
            let units = stretch.units.len() as u64;
            *(if new { &mut shard.written } else { &mut shard.before }) += units;
            let rows = self.plan.units[stretch.units.clone()].iter().map(|unit| unit.rows);
            shard.rows += rows.sum::<u64>();
            shard.fates.add(&fates);
        }
        Ok(shard)
    }

    /// Returns the parts that a shard has written for a range of units, if its record exists and all parts are in place.
    pub(super) fn written_before(
        &self,
        stretch: &Stretch,
        format: &Format,
    ) -> Result<Option<StagedStretch>> {
        let Some(bytes) = files::read_if_present(&self.record(stretch))? else { return Ok(None) };
        let staged = serde_json::from_slice::<StagedStretch>(&bytes).ok();
        let names: Vec<String> = stretch.files.iter().flat_map(|stem| format.names(stem)).collect();
        let named = |staged: &StagedStretch| staged.data.iter().map(|part| &part.path).eq(&names);
        let Some(staged) = staged.filter(named) else { return Ok(None) };
        let in_place = Part::all_in_place(&staged.data, &self.written.data)?
            && Part::all_in_place(&staged.dropped, &self.written.records)?
            && Part::all_in_place(&staged.selection, &self.written.records)?;
        Ok(in_place.then_some(staged))
    }

    fn record(&self, stretch: &Stretch) -> std::path::PathBuf {
        let first = &self.plan.units[stretch.units.start];
        self.written.records.join("units").join(format!("{}.json", first.name()))
    }
}
