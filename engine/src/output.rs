//! The write phase: a second read of the input, only kept rows, all columns, byte-exact slices of the text.
//!
//! Every part is staged in the run directory; [`crate::commit`] moves them into place together.

mod slices;
mod staged;
mod written;

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::sync_channel;

use arrow::array::{
    ArrayRef, Float64Array, Int32Array, Int64Array, RecordBatch, StringArray, UInt32Array,
};
use arrow::compute::take;
use arrow::datatypes::{DataType, Field, Schema, SchemaRef};

use crate::dataset::{self, PartWriter, WorkUnit, document_contents, output_metadata};
use crate::diagnostic::{Blame, Diagnostic};
use crate::dropped::{self, DroppedRow};
use crate::error::Result;
use crate::execute::content_hash;
use crate::files;
use crate::parallel;
use crate::plan::Plan;
use crate::quarantine;
use crate::report::LabelShares;
use crate::run_directory::RunDirectory;
use crate::scores::{self, ScoredWindow};
use crate::select::{Sample, Selection};
use crate::spec::pipeline::Samples;
use crate::stop::Stop;
use crate::units::{Part, UnitRecord};

use slices::{sliced, slices};
use staged::StagedUnit;
pub use staged::{Fates, Staged};

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
    /// Where shards of the write phase put their parts of this selection.
    pub written: PathBuf,
    /// Whether to stop.
    pub stop: &'a Stop,
}

impl Writer<'_> {
    /// Writes the parts of the selection into `folder`: `data/` and `dropped/` in it. Parts that an interrupted run
    /// has already staged there are written again: they are the same bytes.
    pub fn stage(&self, folder: &Path, each: impl Fn(&WorkUnit) + Sync) -> Result<Staged> {
        let names = self.names();
        let schema = schema(self.plan);
        let by_shards = files::is_folder(&self.written)?;
        let units = parallel::in_order(self.records.len(), self.writers(), |index| {
            self.stop.check()?;
            let name = names.of(index);
            let before =
                if by_shards { self.written_before(index, name.as_deref())? } else { None };
            let unit = match before {
                Some(unit) => (unit, self.written.as_path()),
                None => (self.stage_unit(index, name, &schema, folder)?, folder),
            };
            each(&self.plan.units[index]);
            Ok(unit)
        })?;
        let directory = &self.plan.directory;
        let mut staged = Staged::default();
        for (unit, folder) in units {
            staged.add(unit, folder, directory);
        }
        if let Some(part) = quarantine::write_files(&folder.join(quarantine::FILES), self.plan)? {
            staged.moves.push((folder.join(&part.path), directory.root.join(&part.path)));
            staged.quarantined_files = Some(part);
        }
        if staged.data.is_empty() {
            let name = names.only();
            let writer = self.part(&folder.join("data").join(&name), &schema)?;
            staged.add_data(Part::new(name, &writer.finish()?), folder, directory);
        }
        Ok(staged)
    }

    fn names(&self) -> PartNames {
        let kept = |&unit: &usize| self.selection.keeps_any(unit);
        PartNames { with_output: (0..self.records.len()).filter(kept).collect() }
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
        let fates = Fates::of(&samples, |row| windows[&row].len() as u64);
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

    /// By label of `output.report_by`, the samples of a unit and how many of them are kept.
    fn labels(&self, index: usize, samples: &[Sample]) -> Result<LabelShares> {
        let plan = self.plan;
        let Some(column) = &plan.spec.pipeline.output.report_by else { return Ok(Vec::new()) };
        if samples.is_empty() {
            return Ok(Vec::new());
        }
        let (unit, unreadable) = (&plan.units[index], self.records[index].unreadable_rows());
        let of_rows = dataset::read_labels(&plan.dataset, unit, column, &unreadable)?;
        let mut labels = staged::Labels::new();
        for sample in samples {
            let label = of_rows[(sample.row - unit.first_row) as usize].clone();
            staged::count(&mut labels, label, 1, u64::from(sample.keep));
        }
        Ok(staged::shares(labels))
    }
}

/// The names of the files of `data/`: those of the units of which something is kept are numbered.
struct PartNames {
    /// These units, ascending.
    with_output: Vec<usize>,
}

impl PartNames {
    /// The name of a unit's part; none where nothing of it is kept.
    fn of(&self, unit: usize) -> Option<String> {
        self.with_output.binary_search(&unit).ok().map(|part| self.name(part))
    }

    /// The name of the one part without rows of an output that keeps nothing.
    fn only(&self) -> String {
        self.name(0)
    }

    fn name(&self, part: usize) -> String {
        format!("train-{part:05}-of-{:05}.parquet", self.with_output.len().max(1))
    }
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
