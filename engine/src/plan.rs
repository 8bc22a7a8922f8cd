//! Plans a pipeline: resolves names, checks column types, opens the model's first layer if needed, estimates memory and
//! disk, and splits the input into work units. Opens footers, headers and the tokenizer, but reads neither weights nor
//! documents; `longsift plan` adds a sample of documents.

pub mod attention;
pub mod calibrated_groups;
pub mod cascade;
pub(crate) mod checks;
pub(crate) mod columns;
pub(crate) mod document_sample;
pub(crate) mod estimate;
pub(crate) mod explain;
pub(crate) mod fetch;
mod findings;
pub mod identity;
pub mod lock;
pub mod measures;
mod open_models;
pub mod options;
pub(crate) mod output_names;
mod preset;
pub mod programs;
mod prove;
pub(crate) mod read;
mod reading;
pub mod sampling;
pub(crate) mod shard;
pub(crate) mod since;
pub(crate) mod sizing;
pub mod whole_models;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use longsift_stages::contract::{Measure, RowError};
use longsift_stages::tokenize::encoder::{EncodedText, Encoder};

use crate::base::diagnostic::{Blame, Diagnostic, DiagnosticLocation};
use crate::base::error::{Failure, Result};
use crate::dataset::documents::DocumentColumns;
use crate::dataset::input::Dataset;
use crate::dataset::lost_row_groups::LostRowGroups;
use crate::dataset::read::{ReadError, RowGroupError};
use crate::dataset::units::WorkUnit;
use crate::run_directory::layout::{self, RunDirectory};
use crate::run_directory::manifest::KnownFile;
use crate::run_directory::summary::Summary;
use crate::spec::Spec;
use crate::spec::pipeline::{OnBadFile, Samples};
use attention::Attention;
use cascade::Cascade;
use estimate::Estimate;
use measures::Measures;
use options::{Bos, PlanOptions};
use programs::Program;
use whole_models::WholeModelPlan;

/// Validated pipeline that is ready to run.
pub struct Plan {
    pub spec: Spec,
    pub options: PlanOptions,
    pub dataset: Dataset,
    /// Files filtered by earlier runs, which `input.since` excludes from the input.
    pub input_before: Vec<KnownFile>,
    /// Work units in input order; of a shard, only its own.
    pub units: Vec<WorkUnit>,
    /// Number of units of all shards.
    pub whole_units: u64,
    /// Rows of all shards.
    pub whole_rows: u64,
    pub columns: DocumentColumns,
    /// Model and devices; `None` if no measure needs them.
    pub attention: Option<Attention>,
    /// Whole models, by the index of the measure that needs them.
    pub whole_models: BTreeMap<u16, WholeModelPlan>,
    /// Commits of hub branches, by `hf://owner/name@branch`.
    pub pins: BTreeMap<String, String>,
    /// Tokenizer; `None` for tokenized documents.
    pub encoder: Option<Encoder>,
    pub measures: Measures,
    /// Programs of the `external` stages, in pipeline order.
    pub programs: Vec<Program>,
    pub cascade: Cascade,
    pub bos: Bos,
    pub cache_folder: PathBuf,
    pub directory: RunDirectory,
    pub estimate: Estimate,
    pub warnings: Vec<Diagnostic>,
}

impl Plan {
    /// Returns the run directory of `--scores-from`, unless it is the pipeline's own.
    pub fn other_scores(&self) -> Option<&Path> {
        let other = self.options.scores_from.as_deref()?;
        (layout::absolute(other) != self.directory.absolute()).then_some(other)
    }

    /// Returns the model and the devices for a command that requires them.
    pub fn needed_attention(&self) -> Result<&Attention> {
        let none = || {
            let message = format!(
                "no measure of {} needs a model or a device",
                crate::base::text::quoted(&self.spec.name)
            );
            let hint = "use a pipeline with the stage `first-layer-attention`";
            Failure::from(Diagnostic::error(Blame::Pipeline, message).hint(hint))
        };
        self.attention.as_ref().ok_or_else(none)
    }

    /// Returns the digests of the files that the answers of external programs depend on, by `external` stage.
    pub fn program_digests(&self) -> Result<BTreeMap<String, BTreeMap<String, String>>> {
        let of = |program: &Program| Ok((program.settings.name.clone(), program.digests()?));
        self.programs.iter().map(of).collect()
    }

    /// Returns the smallest vocabulary size of the models; `None` without a model.
    pub fn vocabulary_size(&self) -> Option<u64> {
        let first = self.attention.iter().map(|attention| attention.model.spec().vocabulary_size);
        let whole = self.whole_models.values().map(|whole| whole.model.spec().vocabulary_size);
        first.chain(whole).min()
    }

    pub fn measures(&self) -> impl Iterator<Item = (u16, &dyn Measure)> {
        self.measures.indices().map(|index| (index, self.measure(index)))
    }

    pub fn measure(&self, index: u16) -> &dyn Measure {
        self.measures.get(&self.spec.pipeline.stages, index)
    }

    /// Returns the program of a measure that runs child processes.
    pub fn program(&self, index: u16) -> &Program {
        let name = &self.measures.columns[usize::from(index)].measure;
        let mut found = self.programs.iter().filter(|program| program.settings.name == *name);
        found.next().expect("a plan has a program for every `external` measure")
    }

    /// Returns the index of a program's measure; `None` if it has no statistics.
    pub fn measure_index(&self, program: &Program) -> Option<u16> {
        let mut all = self.measures.columns.iter().zip(self.measures.indices());
        let own = all.find(|(columns, _)| columns.measure == program.settings.name);
        own.map(|(_, index)| index)
    }

    /// Returns the work units of all shards, in input order.
    pub fn units_of_all_shards(&self) -> Vec<WorkUnit> {
        self.dataset.units(self.spec.pipeline.input.unit_bytes, self.options.limit_rows)
    }

    /// Returns the rows that the run (or the shard) processes.
    pub fn rows(&self) -> u64 {
        self.units.iter().map(|unit| unit.rows).sum()
    }

    pub fn rows_written(&self, summary: &Summary) -> u64 {
        let documents = self.spec.pipeline.output.samples == Samples::Documents;
        summary.rows_written(documents, self.spec.filter().mark_only)
    }

    /// Returns the bytes of documents per batch: three batches are in memory at once, one of them being tokenized.
    pub fn batch_bytes(&self) -> u64 {
        (self.spec.pipeline.input.memory_limit_bytes / 1024).clamp(256 << 10, 16 << 20)
    }

    /// Returns the row groups of a unit that a run would quarantine; empty if the run would fail instead.
    pub fn lost_row_groups(&self, unit: &WorkUnit) -> Result<LostRowGroups> {
        let none = LostRowGroups::default();
        match self.spec.pipeline.input.on_bad_file {
            OnBadFile::Fail => Ok(none),
            OnBadFile::Quarantine => {
                none.with_others(&self.dataset, unit, None, &self.options.stop)
            }
        }
    }

    /// Returns the row groups of a unit to skip, after a reader that skipped `known` failed in another.
    ///
    /// # Errors
    /// The pipeline does not quarantine row groups: the error names the column.
    pub fn more_lost_row_groups(
        &self,
        unit: &WorkUnit,
        known: LostRowGroups,
        failed: RowGroupError,
    ) -> Result<LostRowGroups> {
        let (dataset, stop) = (&self.dataset, &self.options.stop);
        match self.spec.pipeline.input.on_bad_file {
            OnBadFile::Fail => Err(failed.with_column(dataset, unit, stop)?.problem().into()),
            OnBadFile::Quarantine => known.with_others(dataset, unit, Some(&failed), stop),
        }
    }

    /// Reads from a unit, and again without lost row groups if it has any.
    pub fn read_usable<T>(
        &self,
        unit: &WorkUnit,
        read: impl Fn(&LostRowGroups) -> std::result::Result<T, ReadError>,
    ) -> Result<T> {
        let mut lost = LostRowGroups::default();
        loop {
            match read(&lost) {
                Ok(found) => return Ok(found),
                Err(ReadError::File(problem)) => return Err(problem.into()),
                Err(ReadError::RowGroup(failed)) => {
                    lost = self.more_lost_row_groups(unit, lost, *failed)?;
                }
            }
        }
    }

    /// Tokenizes a whole text; `location` is its location in messages. The inner error quarantines the row.
    ///
    /// # Errors
    /// Tokenizing exceeds the time limit, which is generous for all published tokenizers. Another machine might finish.
    pub(crate) fn tokenize(
        &self,
        location: String,
        text: &str,
    ) -> Result<std::result::Result<EncodedText, RowError>> {
        let largest = self.spec.pipeline.input.max_document_bytes;
        if text.len() as u64 > largest {
            let message = format!(
                "the text has {} bytes, more than the {largest} of `max_document_bytes`",
                text.len()
            );
            return Ok(Err(RowError::new("document_too_large", message)));
        }
        let encoder = self.encoder.as_ref().expect("the plan opens a tokenizer for text");
        match encoder.encode(text, Encoder::MAX_PART_BYTES) {
            Err(problem) if problem.is_tokenizer_fault() => {
                Err(Diagnostic::error(Blame::Pipeline, problem.to_string())
                    .at(DiagnosticLocation::Data(location))
                    .hint("use another tokenizer, or remove this row from the input")
                    .into())
            }
            encoded => {
                Ok(encoded.map_err(|problem| RowError::new(problem.code(), problem.to_string())))
            }
        }
    }

    pub fn content_column(&self) -> &str {
        self.columns.content.name()
    }
}
