//! The write phase: a second read of the input, only kept rows, all columns, byte-exact slices of the text.
//!
//! Every part is staged in the run directory; [`crate::commit`] moves them into place together.

mod slices;

use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::sync_channel;

use arrow::array::{
    ArrayRef, Float64Array, Int32Array, Int64Array, RecordBatch, StringArray, UInt32Array,
};
use arrow::compute::take;
use arrow::datatypes::{DataType, Field, Schema, SchemaRef};

use crate::accounting::Counts;
use crate::dataset::{self, PartWriter, WorkUnit, document_contents, output_metadata};
use crate::diagnostic::{Blame, Diagnostic};
use crate::dropped::{self, DroppedRow};
use crate::error::Result;
use crate::execute::content_hash;
use crate::parallel;
use crate::plan::Plan;
use crate::quarantine;
use crate::run_directory::RunDirectory;
use crate::scores::{self, ScoredWindow};
use crate::select::{Sample, Selection};
use crate::spec::pipeline::Samples;
use crate::stop::Stop;
use crate::units::{Part, UnitRecord};

use slices::{sliced, slices};

/// The columns that the output has besides the input's.
pub const COLUMNS: [&str; 11] = [
    "longsift_sample_id",
    "longsift_score",
    "longsift_dependency_strength",
    "longsift_far_variance",
    "longsift_window",
    "longsift_windows",
    "longsift_token_start",
    "longsift_token_end",
    "longsift_byte_start",
    "longsift_byte_end",
    "longsift_tokens_total",
];

/// Kept rows are read again in batches of at most this many.
const BATCH_ROWS: usize = 256;

/// Bytes of one batch: below it 32-bit offsets cannot overflow, and memory stays small.
const BATCH_BYTES: u64 = 64 << 20;

/// Host memory that a unit takes while it is written: an encoded row group, and two batches of whole rows.
const BYTES_PER_WRITER: u64 = 512 << 20;

/// Samples and kept samples, by label.
pub type Labels = BTreeMap<Option<String>, (u64, u64)>;

/// The parts of a selection, staged.
#[derive(Debug, Default)]
pub struct Staged {
    /// Files of `data/`, by their final name.
    pub data: Vec<Part>,
    /// Files of `dropped/` that belong to the selection, below the run directory.
    pub dropped: Vec<Part>,
    /// The records of input files that cannot be opened, if any.
    pub quarantined_files: Option<Part>,
    /// What became of the measured rows and windows.
    pub fates: Fates,
    /// What is kept, by the label of `output.report_by`.
    pub labels: Labels,
}

/// What a unit adds to them.
struct StagedUnit {
    data: Option<Part>,
    dropped: Option<Part>,
    fates: Fates,
    labels: Labels,
}

impl Staged {
    fn add(&mut self, unit: StagedUnit) {
        self.data.extend(unit.data);
        self.dropped.extend(unit.dropped);
        self.fates.add(unit.fates);
        for (label, (samples, kept)) in unit.labels {
            let counts = self.labels.entry(label).or_default();
            *counts = (counts.0 + samples, counts.1 + kept);
        }
    }
}

/// What became of measured rows and windows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Fates {
    /// Rows with at least one kept sample.
    pub rows_kept: u64,
    /// Rows of which nothing is kept.
    pub rows_not_selected: u64,
    /// Samples kept.
    pub kept: u64,
    /// Windows of kept samples.
    pub windows_kept: u64,
    /// Windows that are not kept.
    pub windows_not_selected: u64,
}

impl Fates {
    fn add(&mut self, other: Self) {
        self.rows_kept += other.rows_kept;
        self.rows_not_selected += other.rows_not_selected;
        self.kept += other.kept;
        self.windows_kept += other.windows_kept;
        self.windows_not_selected += other.windows_not_selected;
    }

    /// That these are all rows and windows that a unit measured, and that what is kept was written. A violation is a
    /// bug.
    fn check(&self, counts: &Counts, written: u64) -> std::result::Result<(), String> {
        for (what, kept, rest, all) in [
            ("rows", self.rows_kept, self.rows_not_selected, counts.rows_scored),
            ("windows", self.windows_kept, self.windows_not_selected, counts.windows),
        ] {
            if kept + rest != all {
                return Err(format!(
                    "{all} {what} were measured, but {kept} are kept and {rest} not selected"
                ));
            }
        }
        if self.kept != written {
            return Err(format!("{} samples are kept, {written} were written", self.kept));
        }
        Ok(())
    }
}

/// The measured windows of a unit, by row.
type Windows = BTreeMap<u64, Vec<ScoredWindow>>;

/// What the write phase works with.
pub struct Writer<'a> {
    /// The plan.
    pub plan: &'a Plan,
    /// Where the score tables are.
    pub scores: &'a RunDirectory,
    /// One record per unit.
    pub records: &'a [UnitRecord],
    /// What is kept.
    pub selection: &'a Selection,
    /// Whether to stop.
    pub stop: &'a Stop,
}

impl Writer<'_> {
    /// Writes the parts of the selection into `folder`: `data/` and `dropped/` in it. Parts that an interrupted run
    /// has already staged there are written again: they are the same bytes.
    pub fn stage(&self, folder: &Path, each: impl Fn(&WorkUnit) + Sync) -> Result<Staged> {
        let with_output: Vec<usize> =
            (0..self.records.len()).filter(|&unit| self.selection.keeps_any(unit)).collect();
        let parts = with_output.len().max(1);
        let name = |part: usize| format!("train-{part:05}-of-{parts:05}.parquet");
        let schema = schema(self.plan);
        let units = parallel::in_order(self.records.len(), self.writers(), |index| {
            self.stop.check()?;
            let name = with_output.binary_search(&index).ok().map(name);
            let unit = self.stage_unit(index, name, &schema, folder)?;
            each(&self.plan.units[index]);
            Ok(unit)
        })?;
        let mut staged = Staged::default();
        for unit in units {
            staged.add(unit);
        }
        staged.quarantined_files =
            quarantine::write_files(&folder.join(quarantine::FILES), self.plan)?;
        if with_output.is_empty() {
            let writer = self.part(&folder.join("data").join(name(0)), &schema)?;
            staged.data.push(Part::new(name(0), &writer.finish()?));
        }
        Ok(staged)
    }

    /// How many units are written at a time.
    fn writers(&self) -> usize {
        let fit = self.plan.spec.pipeline.input.memory_limit_bytes / BYTES_PER_WRITER;
        let threads = self.plan.options.threads.unwrap_or_else(rayon::current_num_threads);
        threads.min(usize::try_from(fit).unwrap_or(usize::MAX)).max(1)
    }

    /// Writes what is kept of a unit to the part `name`, if it has one, and the rest to its list of dropped samples.
    fn stage_unit(
        &self,
        index: usize,
        name: Option<String>,
        schema: &SchemaRef,
        folder: &Path,
    ) -> Result<StagedUnit> {
        let unit = &self.plan.units[index];
        let windows = self.windows(index)?;
        let samples = self.selection.of_unit(self.plan, index, &windows)?;
        let data = match name {
            Some(name) => {
                let mut writer = self.part(&folder.join("data").join(&name), schema)?;
                self.write_kept(unit, &samples, &windows, schema, &mut writer)?;
                Some(Part::new(name, &writer.finish()?))
            }
            None => None,
        };
        let fates = fates(&samples, &windows);
        let written = data.as_ref().map_or(0, |part| part.rows);
        fates.check(&self.records[index].counts, written).map_err(|violation| {
            Diagnostic::error(Blame::Bug, format!("{}: {violation}", unit.file_path))
        })?;
        let dropped = write_dropped(unit, &samples, &windows, folder)?;
        Ok(StagedUnit { data, dropped, fates, labels: self.labels(index, &samples)? })
    }

    fn part(&self, path: &Path, schema: &SchemaRef) -> Result<PartWriter> {
        let added: Vec<Field> = schema
            .fields()
            .iter()
            .rev()
            .take(COLUMNS.len())
            .rev()
            .map(|field| field.as_ref().clone())
            .collect();
        let metadata = output_metadata(&self.plan.dataset.metadata, &added);
        Ok(PartWriter::create(path, schema, &metadata, self.plan.spec.pipeline.output.compression)?)
    }

    /// The measured windows of a unit, by row.
    fn windows(&self, index: usize) -> Result<Windows> {
        let mut windows = Windows::new();
        if self.records[index].counts.windows > 0 {
            scores::read(&self.scores.root.join(&self.records[index].scores.path), |window| {
                windows.entry(window.input_row).or_default().push(window);
                Ok(())
            })?;
        }
        Ok(windows)
    }

    fn write_kept(
        &self,
        unit: &WorkUnit,
        samples: &[Sample],
        windows: &Windows,
        schema: &SchemaRef,
        writer: &mut PartWriter,
    ) -> Result<()> {
        let mut kept: HashMap<u64, Vec<&Sample>> = HashMap::new();
        let mut rows = Vec::new();
        for sample in samples.iter().filter(|sample| sample.keep) {
            if rows.last() != Some(&sample.row) {
                rows.push(sample.row);
            }
            kept.entry(sample.row).or_default().push(sample);
        }
        let batches = dataset::read_rows(&self.plan.dataset, unit, &rows, BATCH_ROWS)?;
        std::thread::scope(|scope| {
            // The next batch is read while this one is written; without room in the channel there are two at most.
            let (sender, read) = sync_channel(0);
            scope.spawn(move || {
                // A closed channel means that the writer has stopped.
                batches.into_iter().try_for_each(|batch| sender.send(batch))
            });
            for batch in read {
                self.stop.check()?;
                let (numbers, batch) = batch?;
                self.verify(unit, &numbers, &batch, windows)?;
                let samples: Vec<Kept<'_>> = numbers
                    .iter()
                    .enumerate()
                    .flat_map(|(position, row)| {
                        kept[row].iter().map(move |sample| (position, *sample))
                    })
                    .map(|(position, sample)| Kept::new(position, sample, &windows[&sample.row]))
                    .collect();
                let others = self.other_bytes(&batch)?;
                for some in by_bytes(&samples, &others) {
                    writer.write(&self.batch(unit, schema, &batch, some)?)?;
                }
            }
            Ok(())
        })
    }

    /// For each row, the bytes that every window of it comes with: all columns but the one windows are cut from.
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
        Ok(dataset::stored_row_bytes(&others, batch.num_rows())?)
    }

    /// The documents are still those that were scored.
    fn verify(
        &self,
        unit: &WorkUnit,
        rows: &[u64],
        batch: &RecordBatch,
        windows: &Windows,
    ) -> Result<()> {
        let contents = document_contents(&self.plan.dataset, batch, &self.plan.columns)?;
        for (row, content) in rows.iter().zip(contents) {
            let same =
                content.is_ok_and(|content| content_hash(&content) == windows[row][0].content_hash);
            if !same {
                return Err(Diagnostic::error(
                    Blame::Data,
                    format!(
                        "{}, row {row}: the document is not the one that was scored",
                        unit.file_path
                    ),
                )
                .hint(
                    "the file was changed between scoring and writing; run again to score it anew, with `--fresh` if its size and time did not change",
                )
                .into());
            }
        }
        Ok(())
    }

    /// The output rows of some kept samples of one input batch.
    fn batch(
        &self,
        unit: &WorkUnit,
        schema: &SchemaRef,
        input: &RecordBatch,
        samples: &[Kept<'_>],
    ) -> Result<RecordBatch> {
        let bug = |error: arrow::error::ArrowError| {
            Diagnostic::error(Blame::Bug, format!("{}: {error}", unit.file_path))
        };
        let positions =
            UInt32Array::from_iter_values(samples.iter().map(|kept| kept.position as u32));
        let content = self.plan.content_column();
        let in_windows = self.plan.spec.pipeline.output.samples == Samples::Windows;
        let mut columns = Vec::with_capacity(schema.fields().len());
        for (column, (field, target)) in
            input.columns().iter().zip(input.schema().fields().iter().zip(schema.fields()))
        {
            columns.push(if in_windows && field.name() == content {
                slices(column, target.data_type(), samples).map_err(bug)?
            } else {
                take(column, &positions, None).map_err(bug)?
            });
        }
        columns.extend(self.longsift_columns(unit, samples));
        Ok(RecordBatch::try_new(Arc::clone(schema), columns).map_err(bug)?)
    }

    fn longsift_columns(&self, unit: &WorkUnit, samples: &[Kept<'_>]) -> Vec<ArrayRef> {
        let int32 = |value: &dyn Fn(&ScoredWindow) -> u32| -> ArrayRef {
            Arc::new(
                samples
                    .iter()
                    .map(|kept| kept.window.map(|window| value(window) as i32))
                    .collect::<Int32Array>(),
            )
        };
        let int64 = |value: &dyn Fn(&ScoredWindow) -> Option<u64>| -> ArrayRef {
            let values =
                samples.iter().map(|kept| kept.window.and_then(value).map(|value| value as i64));
            Arc::new(values.collect::<Int64Array>())
        };
        let float = |value: &dyn Fn(&Sample) -> f64| -> ArrayRef {
            Arc::new(samples.iter().map(|kept| Some(value(kept.sample))).collect::<Float64Array>())
        };
        let ids = samples.iter().map(|kept| self.sample_id(unit, kept));
        vec![
            Arc::new(StringArray::from_iter_values(ids)),
            float(&|sample| sample.score),
            float(&|sample| sample.dependency_strength),
            float(&|sample| sample.far_variance),
            int32(&|window| window.window),
            int32(&|window| window.windows),
            int64(&|window| Some(window.tokens.0)),
            int64(&|window| Some(window.tokens.1)),
            int64(&|window| window.bytes.map(|bytes| bytes.0)),
            int64(&|window| window.bytes.map(|bytes| bytes.1)),
            Arc::new(
                samples
                    .iter()
                    .map(|kept| Some(kept.first.tokens_total as i64))
                    .collect::<Int64Array>(),
            ),
        ]
    }

    /// `<id>#<window>`; file and row tell documents of the same id apart.
    fn sample_id(&self, unit: &WorkUnit, kept: &Kept<'_>) -> String {
        let mut id = kept.first.id.clone();
        if self.selection.is_repeated(&id) {
            id = format!("{id}@{}:{}", unit.file_path, kept.sample.row);
        }
        match kept.window {
            Some(window) => format!("{id}#{}", window.window),
            None => id,
        }
    }

    /// What is kept of a unit, by label; nothing without `output.report_by`.
    fn labels(&self, index: usize, samples: &[Sample]) -> Result<Labels> {
        let (plan, mut labels) = (self.plan, Labels::new());
        let Some(column) = &plan.spec.pipeline.output.report_by else { return Ok(labels) };
        if samples.is_empty() {
            return Ok(labels);
        }
        let (unit, unreadable) = (&plan.units[index], self.records[index].unreadable_rows());
        let of_rows = dataset::read_labels(&plan.dataset, unit, column, &unreadable)?;
        for sample in samples {
            let label = of_rows[(sample.row - unit.first_row) as usize].clone();
            let (all, kept) = labels.entry(label).or_default();
            *all += 1;
            *kept += u64::from(sample.keep);
        }
        Ok(labels)
    }
}

fn fates(samples: &[Sample], windows: &Windows) -> Fates {
    let mut fates = Fates::default();
    for samples in samples.chunk_by(|a, b| a.row == b.row) {
        let kept = samples.iter().filter(|sample| sample.keep).count() as u64;
        let of_row = windows[&samples[0].row].len() as u64;
        let windows_kept = if samples[0].window.is_some() { kept } else { kept * of_row };
        fates.add(Fates {
            rows_kept: u64::from(kept > 0),
            rows_not_selected: u64::from(kept == 0),
            kept,
            windows_kept,
            windows_not_selected: of_row - windows_kept,
        });
    }
    fates
}

fn write_dropped(
    unit: &WorkUnit,
    samples: &[Sample],
    windows: &Windows,
    folder: &Path,
) -> Result<Option<Part>> {
    let rows: Vec<DroppedRow> = samples
        .iter()
        .filter(|sample| !sample.keep)
        .map(|sample| DroppedRow {
            input_row: sample.row,
            id: windows[&sample.row][0].id.clone(),
            window: sample.window,
            reason: "not_selected",
            score: Some(sample.score),
        })
        .collect();
    let path = format!("dropped/select-{}.parquet", unit.name());
    dropped::write_at(&folder.join(&path), path, &unit.file_path, &rows)
}

/// A kept sample beside its row in the input batch and what was measured.
struct Kept<'a> {
    position: usize,
    sample: &'a Sample,
    /// The first window of the document: what all its windows share.
    first: &'a ScoredWindow,
    /// The window; none for a document.
    window: Option<&'a ScoredWindow>,
}

impl<'a> Kept<'a> {
    fn new(position: usize, sample: &'a Sample, windows: &'a [ScoredWindow]) -> Self {
        let window =
            sample.window.and_then(|index| windows.iter().find(|window| window.window == index));
        Self { position, sample, first: &windows[0], window }
    }

    /// Bytes of the window's text; of its tokens, eight each.
    fn content_bytes(&self) -> u64 {
        self.window.map_or(0, |window| match window.bytes {
            Some((start, end)) => end - start,
            None => 8 * (window.tokens.1 - window.tokens.0),
        })
    }
}

/// Cuts samples into runs of at most [`BATCH_BYTES`], at least one sample each. `others`: bytes of the other columns,
/// by row of the batch; each window has a copy of them.
fn by_bytes<'a, 'b>(samples: &'b [Kept<'a>], others: &[u64]) -> Vec<&'b [Kept<'a>]> {
    let mut runs = Vec::new();
    let (mut start, mut bytes) = (0, 0);
    for (index, kept) in samples.iter().enumerate() {
        let more = kept.content_bytes() + others[kept.position];
        if index > start && bytes + more > BATCH_BYTES {
            runs.push(&samples[start..index]);
            (start, bytes) = (index, 0);
        }
        bytes += more;
    }
    if start < samples.len() {
        runs.push(&samples[start..]);
    }
    runs
}

/// The schema of the output: the input's columns, the text as plain strings where windows are cut from it, and ours.
pub fn schema(plan: &Plan) -> SchemaRef {
    let in_windows = plan.spec.pipeline.output.samples == Samples::Windows;
    let mut fields: Vec<Arc<Field>> = plan
        .dataset
        .schema
        .fields()
        .iter()
        .map(|field| {
            if in_windows && field.name() == plan.content_column() {
                Arc::new(field.as_ref().clone().with_data_type(sliced(field.data_type())))
            } else {
                Arc::clone(field)
            }
        })
        .collect();
    let types = [
        (DataType::Utf8, false),
        (DataType::Float64, false),
        (DataType::Float64, false),
        (DataType::Float64, false),
        (DataType::Int32, true),
        (DataType::Int32, true),
        (DataType::Int64, true),
        (DataType::Int64, true),
        (DataType::Int64, true),
        (DataType::Int64, true),
        (DataType::Int64, false),
    ];
    for (name, (kind, nullable)) in COLUMNS.into_iter().zip(types) {
        fields.push(Arc::new(Field::new(name, kind, nullable)));
    }
    Arc::new(Schema::new(fields))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_a_window_or_a_sample_that_went_nowhere_is_noticed() {
        let counts = Counts { rows_scored: 3, windows: 7, ..Counts::default() };
        let fates = Fates {
            rows_kept: 1,
            rows_not_selected: 2,
            kept: 2,
            windows_kept: 2,
            windows_not_selected: 5,
        };
        assert_eq!(fates.check(&counts, 2), Ok(()));
        assert!(fates.check(&counts, 1).unwrap_err().contains("1 were written"));
        let row = Fates { rows_kept: 0, ..fates };
        assert!(row.check(&counts, 2).unwrap_err().contains("3 rows were measured"));
        let window = Fates { windows_not_selected: 4, ..fates };
        assert!(window.check(&counts, 2).unwrap_err().contains("7 windows were measured"));
    }
}
