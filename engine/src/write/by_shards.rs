//! Parts that shards of the write phase prepare for the selection: in `written/<selection>/` of the run directory, data files
//! in `.written/<selection>/` of the output. The parts of a range of units count once its record exists in the subfolder
//! `units/`, named after the range's first unit.

use super::cuts::UnitRange;
use super::formats::Format;
use super::staged::{Outcomes, StagedFiles};
use crate::base::error::Result;
use crate::base::parallel;
use crate::dataset::units::WorkUnit;
use crate::plan::shard::{self, Shard};
use crate::run_directory::seal;
use crate::storage::{atomic, files, marked};
use crate::write::Writer;

/// Work of a shard of the write phase.
#[derive(Clone, Debug, Default)]
pub struct ShardWritten {
    /// Units written by this process.
    pub written: u64,
    /// Units that were already written.
    pub before: u64,
    pub rows: u64,
    pub outcomes: Outcomes,
}

impl Writer<'_> {
    /// Writes the parts of a shard for [`Writer::stage`]. Several processes may do so at once: they write the same bytes.
    pub fn write_shard(&self, own: Shard, each: impl Fn(&WorkUnit) + Sync) -> Result<ShardWritten> {
        marked::create_folder(&self.plan.directory.written_data())?;
        files::create_folder(&self.written.data)?;
        for part in ["dropped", "selection", "units"] {
            files::create_folder(&self.written.records.join(part))?;
        }
        let format = Format::from_plan(self.plan);
        let mut ranges = self.ranges();
        // Files without work units belong to no shard; the commit creates them.
        ranges.retain(|range| !range.units.is_empty());
        let bytes = |range: &UnitRange| {
            self.plan.units[range.units.clone()].iter().map(|unit| unit.bytes).sum()
        };
        let shards = shard::distribute(&ranges.iter().map(bytes).collect::<Vec<u64>>(), own.count);
        let mut shards = shards.into_iter();
        ranges.retain(|_| shards.next() == Some(own.index));
        let done = parallel::in_order(ranges.len(), self.writers(), |index| {
            self.stop.check()?;
            let range = &ranges[index];
            let units = &self.plan.units[range.units.clone()];
            if let Some(staged) = self.written_before(range, &format)? {
                units.iter().for_each(&each);
                return Ok((false, staged.outcomes));
            }
            let staged = self.stage_range(range, &format, &self.written, &each)?;
            if let Some(tables) = self.tables {
                tables.check_records(&self.records[range.units.clone()])?;
            }
            let record = seal::sealed(&staged).to_string();
            atomic::write_atomic(&self.record(range), record.as_bytes())?;
            Ok((true, staged.outcomes))
        })?;
        let mut shard = ShardWritten::default();
        for (range, (new, outcomes)) in ranges.iter().zip(done) {
            let units = range.units.len() as u64;
            *(if new { &mut shard.written } else { &mut shard.before }) += units;
            let rows = self.plan.units[range.units.clone()].iter().map(|unit| unit.rows);
            shard.rows += rows.sum::<u64>();
            shard.outcomes.add(&outcomes);
        }
        Ok(shard)
    }

    /// Returns the parts that a shard has written for a range, if the record and all bytes are intact. Reads the parts.
    pub(super) fn written_before(
        &self,
        range: &UnitRange,
        format: &Format<'_>,
    ) -> Result<Option<StagedFiles>> {
        let Some(bytes) = files::read_if_present(&self.record(range))? else { return Ok(None) };
        let intact = seal::is_intact(&bytes).then_some(bytes);
        let staged = intact.and_then(|bytes| serde_json::from_slice::<StagedFiles>(&bytes).ok());
        let names: Vec<String> = range.files.iter().flat_map(|stem| format.names(stem)).collect();
        let named = |staged: &StagedFiles| staged.data.iter().map(|part| &part.path).eq(&names);
        let Some(staged) = staged.filter(named) else { return Ok(None) };
        let folders = &self.written;
        let of_records = staged.dropped.iter().chain(&staged.selection);
        let parts = of_records.map(|part| (part, &folders.records));
        for (part, folder) in parts.chain(staged.data.iter().map(|part| (part, &folders.data))) {
            if !part.is_original(folder, false)? {
                return Ok(None);
            }
        }
        Ok(Some(staged))
    }

    fn record(&self, range: &UnitRange) -> std::path::PathBuf {
        let first = &self.plan.units[range.units.start];
        self.written.records.join("units").join(format!("{}.json", first.name()))
    }
}
