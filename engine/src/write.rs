//! The write phase: reads the input a second time and writes the kept rows with all columns and byte-exact slices of the text.
//!
//! Every part is staged in the run directory; [`commit`] moves them into place together.

mod batches;
pub(crate) mod by_shards;
pub(crate) mod commit;
mod cuts;
mod formats;
mod output_files;
mod output_rows;
pub(crate) mod slices;
pub(crate) mod staged;

use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::sync_channel;

use arrow_array::{ArrayRef, RecordBatch};

use crate::base::diagnostic::{Blame, Diagnostic};
use crate::base::error::Result;
use crate::base::parallel;
use crate::base::stop::Stop;
use crate::dataset::documents::{content_hash, document_contents, document_ids};
use crate::dataset::input_file::InputFile;
use crate::dataset::units::WorkUnit;
use crate::dataset::{labels, row_bytes, rows};
use crate::plan::Plan;
use crate::run_directory::borrowed::BorrowedScores;
use crate::run_directory::dropped::{self, DroppedRow};
use crate::run_directory::layout::{PartFolders, RunDirectory};
use crate::run_directory::quarantine;
use crate::run_directory::scores::{self, ScoredWindow};
use crate::run_directory::selected::{self, SelectedRow};
use crate::run_directory::summary::LabelCounts;
use crate::run_directory::units::{Part, UnitRecord};
use crate::select::{Sample, Selection};
use crate::spec::pipeline::Samples;
use crate::storage::files;
use cuts::{FileSeries, UnitRange, UnitSize};
use formats::Format;
use output_files::OutputFiles;
use output_rows::{OutputRow, by_bytes};
use staged::{Outcomes, StagedFiles};

/// Maximum rows per batch when kept rows are read again.
const BATCH_ROWS: usize = 256;

/// Host memory of a unit while it is written: an encoded row group, and two batches of whole rows.
const BYTES_PER_WRITER: u64 = 512 << 20;

/// Measured windows of a unit, by row.
type WindowsByRow = BTreeMap<u64, Vec<ScoredWindow>>;

/// Writes the output of a selection.
pub struct Writer<'a> {
    pub plan: &'a Plan,
    /// Directory of the score tables.
    pub scores: &'a RunDirectory,
    /// One record per unit.
    pub records: &'a [UnitRecord],
    pub selection: &'a Selection,
    /// Versions of the score tables that the selection was made from.
    pub tables: Option<&'a BorrowedScores>,
    /// Folders for the parts of this selection that shards of the write phase write.
    pub written: PartFolders,
    pub stop: &'a Stop,
}

impl Writer<'_> {
    /// Writes the parts of the selection into `folders`, over those of an interrupted run, which have the same bytes.
    pub fn stage(
        &self,
        folders: &PartFolders,
        each: impl Fn(&WorkUnit) + Sync,
    ) -> Result<StagedFiles> {
        let (ranges, format) = (self.ranges(), Format::from_plan(self.plan));
        let by_shards = files::is_folder(&self.written.records)?;
        let units = parallel::in_order(ranges.len(), self.writers(), |index| {
            self.stop.check()?;
            let range = &ranges[index];
            let shared = by_shards && !range.units.is_empty();
            let before = if shared { self.written_before(range, &format)? } else { None };
            if let Some(before) = before {
                self.plan.units[range.units.clone()].iter().for_each(&each);
                return Ok((before, &self.written));
            }
            Ok((self.stage_range(range, &format, folders, &each)?, folders))
        })?;
        let directory = &self.plan.directory;
        let (mut staged, mut labels) = (StagedFiles::default(), staged::Labels::new());
        for (mut range, folders) in units {
            for (label, counts) in std::mem::take(&mut range.labels) {
                staged::count(&mut labels, label, &counts);
            }
            staged.add(range, folders, directory);
        }
        staged.labels = labels.into_iter().collect();
        let records = &folders.records;
        if let Some(part) =
            quarantine::write_files(&records.join(quarantine::FILES), &self.plan.dataset)?
        {
            staged.moves.push((records.join(&part.path), directory.root.join(&part.path)));
            staged.quarantined_files = Some(part);
        }
        Ok(staged)
    }

    fn ranges(&self) -> Vec<UnitRange> {
        let sizes: Vec<UnitSize> =
            (0..self.records.len()).map(|unit| self.unit_size(unit)).collect();
        cuts::ranges(&self.series(), &sizes, self.plan.spec.pipeline.output.part_bytes)
    }

    /// Groups units by the name of their files: all units or, with `output.mirror`, the units of each input file.
    fn series(&self) -> Vec<FileSeries> {
        let plan = self.plan;
        let units = &plan.units;
        if !plan.spec.pipeline.output.mirror {
            let stem = "train".to_owned();
            return vec![FileSeries { stem, always_numbered: true, units: 0..units.len() }];
        }
        let file_series = |(index, file): (usize, &InputFile)| {
            let before = |at: usize| units.partition_point(|unit| unit.file < at);
            let units = before(index)..before(index + 1);
            // Files beyond a limit were not read.
            let was_read = !units.is_empty() || file.rows == 0;
            let (stem, always_numbered) = (file.stem().to_owned(), false);
            was_read.then_some(FileSeries { stem, always_numbered, units })
        };
        plan.dataset.files.iter().enumerate().filter_map(file_series).collect()
    }

    /// Estimates the rows and bytes that a unit adds to the output: its bytes in the input, times the kept share.
    fn unit_size(&self, index: usize) -> UnitSize {
        let (kept, samples) = (self.selection.kept(index), self.selection.samples(index));
        let unit = &self.plan.units[index];
        let groups = &self.plan.dataset.files[unit.file].row_groups[unit.row_groups.clone()];
        let bytes: u64 = groups.iter().map(|group| group.compressed_bytes).sum();
        if self.marks() {
            let without_sample: u64 = self.records[index].counts.rows_dropped.values().sum();
            return UnitSize { rows: samples + without_sample, bytes };
        }
        let bytes = u128::from(bytes) * u128::from(kept) / u128::from(samples.max(1));
        UnitSize { rows: kept, bytes: bytes as u64 }
    }

    /// Whether the output contains all rows and marks which are kept.
    fn marks(&self) -> bool {
        self.plan.spec.filter().mark_only
    }

    fn writers(&self) -> usize {
        let fit = self.plan.spec.pipeline.input.memory_limit_bytes / BYTES_PER_WRITER;
        let threads = self.plan.options.threads.unwrap_or_else(rayon::current_num_threads);
        threads.min(usize::try_from(fit).unwrap_or(usize::MAX)).max(1)
    }

    /// Writes the rows of a range of units to its files, and the selection's result for the samples of each unit.
    fn stage_range(
        &self,
        range: &UnitRange,
        format: &Format<'_>,
        folders: &PartFolders,
        each: impl Fn(&WorkUnit),
    ) -> Result<StagedFiles> {
        let rows = range.units.clone().map(|unit| self.unit_size(unit).rows).sum();
        let mut output = OutputFiles::new(range, rows, &folders.data, format);
        let (mut staged, mut labels) = (StagedFiles::default(), staged::Labels::new());
        for index in range.units.clone() {
            self.stop.check()?;
            self.stage_unit(index, folders, &mut output, &mut staged, &mut labels)?;
            each(&self.plan.units[index]);
        }
        staged.data = output.finish()?;
        staged.labels = labels.into_iter().collect();
        Ok(staged)
    }

    fn stage_unit(
        &self,
        index: usize,
        folders: &PartFolders,
        output: &mut OutputFiles<'_>,
        staged: &mut StagedFiles,
        labels: &mut staged::Labels,
    ) -> Result<()> {
        let unit = &self.plan.units[index];
        let windows = self.windows(index)?;
        let samples = self.selection.unit_samples(self.plan, index, &windows)?;
        let without_sample = match &self.records[index].dropped {
            Some(part) if self.marks() => dropped::read(&self.scores.root.join(&part.path))?,
            _ => Vec::new(),
        };
        let before = output.written;
        self.write_rows(unit, &samples, &without_sample, &windows, output)?;
        let outcomes = Outcomes::count(&samples, |row| windows[&row].len() as u64);
        let all = (samples.len() + without_sample.len()) as u64;
        let expected = if self.marks() { all } else { outcomes.kept };
        let written = output.written - before;
        outcomes.check(&self.records[index].counts, expected, written).map_err(|violation| {
            Diagnostic::error(Blame::Bug, format!("{}: {violation}", unit.file_path))
        })?;
        staged.dropped.extend(write_dropped(unit, &samples, &windows, &folders.records)?);
        staged.selection.extend(self.write_selected(unit, &samples, &windows, &folders.records)?);
        staged.outcomes.add(&outcomes);
        self.add_labels(index, &samples, labels)
    }

    fn windows(&self, index: usize) -> Result<WindowsByRow> {
        let mut windows = WindowsByRow::new();
        if self.records[index].counts.windows > 0 {
            let path = self.scores.root.join(&self.records[index].scores.path);
            scores::read(&path, &self.selection.columns(), |window| {
                windows.entry(window.input_row).or_default().push(window);
                Ok(())
            })?;
        }
        Ok(windows)
    }

    /// Writes the samples of a unit that belong to the output, and the rows without samples, in input order.
    fn write_rows(
        &self,
        unit: &WorkUnit,
        samples: &[Sample],
        without_sample: &[DroppedRow],
        windows: &WindowsByRow,
        output: &mut OutputFiles<'_>,
    ) -> Result<()> {
        let (marks, schema) = (self.marks(), &output.format.schema);
        let mut written: HashMap<u64, Vec<&Sample>> = HashMap::new();
        for sample in samples.iter().filter(|sample| marks || sample.keep()) {
            written.entry(sample.row).or_default().push(sample);
        }
        let without_sample: HashMap<u64, &DroppedRow> =
            without_sample.iter().map(|dropped| (dropped.input_row, dropped)).collect();
        let mut rows: Vec<u64> = written.keys().chain(without_sample.keys()).copied().collect();
        rows.sort_unstable();
        if rows.is_empty() {
            return Ok(());
        }
        let batches = rows::read_rows(&self.plan.dataset, unit, &rows, BATCH_ROWS)?;
        let batches = batches.refusing_bad_rows();
        std::thread::scope(|scope| {
            // Reads the next batch while this one is written; the channel has no capacity, so that at most two are in memory.
            let (sender, read) = sync_channel(0);
            scope.spawn(move || {
                // A closed channel means that the writer has stopped.
                batches.into_iter().try_for_each(|batch| sender.send(batch))
            });
            for batch in read {
                self.stop.check()?;
                let (numbers, batch) = batch?;
                self.verify(unit, &numbers, &batch, windows)?;
                let mut rows: Vec<OutputRow<'_>> = Vec::new();
                for (position, row) in numbers.iter().enumerate() {
                    if let Some(dropped) = without_sample.get(row) {
                        rows.push(OutputRow::without_sample(position, dropped));
                    }
                    for sample in written.get(row).into_iter().flatten() {
                        rows.push(OutputRow::from_sample(position, sample, &windows[row]));
                    }
                }
                let others = self.other_bytes(&batch)?;
                for some in by_bytes(&rows, &others) {
                    output.write(&if output.format.is_tokens() {
                        self.token_batch(unit, schema, &batch, some)?
                    } else {
                        self.batch(unit, schema, &batch, some)?
                    })?;
                }
            }
            Ok(())
        })
    }

    /// Returns the bytes of each row that are copied for each window: all columns except the one that windows are cut from.
    fn other_bytes(&self, batch: &RecordBatch) -> Result<Vec<u64>> {
        let content = self.plan.content_column();
        let in_windows = self.plan.spec.pipeline.output.samples == Samples::Windows;
        let schema = batch.schema();
        let others: Vec<ArrayRef> = schema
            .fields()
            .iter()
            .zip(batch.columns())
            .filter(|(field, _)| !in_windows || field.name() != content)
            .map(|(_, column)| Arc::clone(column))
            .collect();
        Ok(row_bytes::stored_row_bytes(&others, batch.num_rows())?)
    }

    /// Checks that the documents have not changed since they were scored.
    fn verify(
        &self,
        unit: &WorkUnit,
        rows: &[u64],
        batch: &RecordBatch,
        windows: &WindowsByRow,
    ) -> Result<()> {
        let contents = document_contents(&self.plan.dataset, batch, &self.plan.columns)?;
        let ids = document_ids(&self.plan.dataset, unit, batch, rows, &self.plan.columns)?;
        for ((row, content), id) in rows.iter().zip(contents).zip(ids) {
            // Rows without a sample were not hashed.
            let Some(measured) = windows.get(row) else { continue };
            let measured = &measured[0];
            let same = id == measured.id
                && content.is_ok_and(|content| content_hash(&content) == measured.content_hash);
            if !same {
                let file = &unit.file_path;
                let message =
                    format!("{file}, row {row}: the document is not the one that was scored");
                let hint = "the file was changed between scoring and writing; run again to score it again, with `--fresh` if its size and time did not change";
                return Err(Diagnostic::error(Blame::Data, message).hint(hint).into());
            }
        }
        Ok(())
    }

    fn write_selected(
        &self,
        unit: &WorkUnit,
        samples: &[Sample],
        windows: &WindowsByRow,
        folder: &Path,
    ) -> Result<Option<Part>> {
        let rows = samples.iter().map(|sample| SelectedRow {
            input_row: sample.row,
            id: &windows[&sample.row][0].id,
            window: sample.window,
            group: sample.group.as_deref(),
            statistics: &sample.used,
            score: sample.score,
            percentile: sample.percentile,
            reason: sample.reason.as_deref(),
        });
        let rows: Vec<SelectedRow<'_>> = rows.collect();
        let path = format!("selection/part-{}.parquet", unit.name());
        let statistics = self.selection.used();
        selected::write(folder, path, &unit.file_path, &statistics, &rows)
    }

    /// Counts the samples of a unit and the kept ones, by label of `output.report_by`.
    fn add_labels(
        &self,
        index: usize,
        samples: &[Sample],
        labels: &mut staged::Labels,
    ) -> Result<()> {
        let plan = self.plan;
        let Some(column) = &plan.spec.pipeline.output.report_by else { return Ok(()) };
        if samples.is_empty() {
            return Ok(());
        }
        let (unit, unreadable) = (&plan.units[index], self.records[index].unreadable_rows());
        let row_labels = labels::read_labels(&plan.dataset, unit, column, &unreadable)?;
        for sample in samples {
            let label = row_labels[(sample.row - unit.first_row) as usize].clone();
            let kept = u64::from(sample.keep());
            let compared = sample.compared.iter().map(|keep| u64::from(*keep)).collect();
            staged::count(labels, label, &LabelCounts { samples: 1, kept, compared });
        }
        Ok(())
    }
}

fn write_dropped(
    unit: &WorkUnit,
    samples: &[Sample],
    windows: &WindowsByRow,
    folder: &Path,
) -> Result<Option<Part>> {
    let rows: Vec<DroppedRow> = samples
        .iter()
        .filter_map(|sample| {
            Some(DroppedRow {
                input_row: sample.row,
                id: windows[&sample.row][0].id.clone(),
                window: sample.window,
                reason: Arc::clone(sample.reason.as_ref()?),
                score: Some(sample.score).filter(|score| !score.is_nan()),
            })
        })
        .collect();
    let path = format!("dropped/select-{}.parquet", unit.name());
    dropped::write(folder, path, &unit.file_path, &rows)
}
