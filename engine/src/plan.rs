//! A pipeline proven runnable: every name resolved, every column typed, the model's first layer understood where one is needed, memory
//! and disk estimated, work units cut. Opens footers, headers and the tokenizer; reads no weights and no documents; `longsift plan` adds a sample of them.

pub mod attention;
pub mod cascade;
pub(crate) mod checks;
pub(crate) mod columns;
pub(crate) mod document_sample;
pub(crate) mod encoded;
pub(crate) mod estimate;
pub(crate) mod explain;
pub(crate) mod fetch;
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
use std::path::PathBuf;

use longsift_kernels::Kernel;
use longsift_stages::contract::Measure;
use longsift_stages::tokenize::encoder::Encoder;

use crate::base::diagnostic::{Blame, Diagnostic};
use crate::base::error::{Failure, Result};
use crate::dataset::documents::{Content, DocumentColumns};
use crate::dataset::input::Dataset;
use crate::dataset::lost_row_groups::LostRowGroups;
use crate::dataset::read::{ReadError, RowGroupError};
use crate::dataset::units::WorkUnit;
use crate::run_directory::layout::RunDirectory;
use crate::run_directory::manifest::KnownFile;
use crate::spec::Spec;
use crate::spec::pipeline::OnBadFile;
use attention::Attention;
use cascade::Cascade;
use estimate::Estimate;
use measures::Measures;
use options::{Bos, PlanOptions};
use programs::Program;
use whole_models::WholeModelPlan;

/// What all shards of a plan have together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Work units.
    pub units: u64,
    /// Rows.
    pub rows: u64,
}

/// A pipeline proven runnable.
pub struct Plan {
    /// The pipeline as written.
    pub spec: Spec,
    /// What the command line added.
    pub options: PlanOptions,
    /// The input.
    pub dataset: Dataset,
    /// Files that earlier runs have filtered, which `input.since` leaves out of the input.
    pub input_before: Vec<KnownFile>,
    /// The input, cut into work units, in input order; of a shard, its own.
    pub units: Vec<WorkUnit>,
    /// Units and rows of all shards.
    pub whole: Totals,
    /// The columns a document is made of.
    pub columns: DocumentColumns,
    /// The model and the devices, where a measure needs them.
    pub attention: Option<Attention>,
    /// The whole models, by the place of the measure that needs each.
    pub whole_models: BTreeMap<u16, WholeModelPlan>,
    /// The commits that branches of the hub meant, by `hf://owner/name@branch`.
    pub pins: BTreeMap<String, String>,
    /// The tokenizer; none for pre-tokenised documents.
    pub encoder: Option<Encoder>,
    /// The measures of windows.
    pub measures: Measures,
    /// The programs of the stages `external`, in the order of the pipeline.
    pub programs: Vec<Program>,
    /// Which guards are looked at before which of them.
    pub cascade: Cascade,
    /// The BOS tokens before each window.
    pub bos: Bos,
    /// Where built tables are kept.
    pub cache_folder: PathBuf,
    /// The run directory and the output.
    pub directory: RunDirectory,
    /// What it will take.
    pub estimate: Estimate,
    /// What a user should know, but need not change.
    pub warnings: Vec<Diagnostic>,
}

impl Plan {
    /// The model and the devices, for a command that is of no use without.
    ///
    /// # Errors
    /// No measure of the pipeline needs any.
    pub fn needed_attention(&self) -> Result<&Attention> {
        let none = || {
            let message = format!(
                "no measure of {} needs a model or a device",
                crate::base::text::quoted(self.spec.name())
            );
            let hint = "name a pipeline with the stage `first-layer-attention`";
            Failure::from(Diagnostic::error(Blame::Pipeline, message).hint(hint))
        };
        self.attention.as_ref().ok_or_else(none)
    }

    /// The kernel that decides the bits of what is measured; `None` where no measure multiplies.
    pub fn kernel(&self) -> Option<Kernel> {
        let first = self.attention.as_ref().map(Attention::kernel);
        first.or_else(|| self.whole_models.values().next().map(|whole| whole.model.kernel()))
    }

    /// By stage `external`, the digests of the files that the answers of its program depend on.
    ///
    /// # Errors
    /// A file cannot be read.
    pub fn program_digests(&self) -> Result<BTreeMap<String, BTreeMap<String, String>>> {
        let of = |program: &Program| Ok((program.settings.name.clone(), program.digests()?));
        self.programs.iter().map(of).collect()
    }

    /// Token ids from this on are in no vocabulary of the models; none where there is no model.
    pub fn vocabulary_size(&self) -> Option<u64> {
        let first = self.attention.iter().map(|attention| attention.model.spec().vocabulary_size);
        let whole = self.whole_models.values().map(|whole| whole.model.spec().vocabulary_size);
        first.chain(whole).min()
    }

    /// The measures in the order of the pipeline, with their places.
    pub fn measures(&self) -> impl Iterator<Item = (u16, &dyn Measure)> {
        self.measures.places().map(|place| (place, self.measure(place)))
    }

    /// The measure at a place.
    pub fn measure(&self, place: u16) -> &dyn Measure {
        self.measures.at(&self.spec.pipeline.stages, place)
    }

    /// The program of a measure of child processes.
    pub fn program(&self, place: u16) -> &Program {
        let name = &self.measures.columns[usize::from(place)].measure;
        let mut found = self.programs.iter().filter(|program| program.settings.name == *name);
        found.next().expect("a plan has the program of every stage that asks one")
    }

    /// The place of a program among the measures; none where it answers no statistic.
    pub fn place_of(&self, program: &Program) -> Option<u16> {
        let mut all = self.measures.columns.iter().zip(self.measures.places());
        let own = all.find(|(columns, _)| columns.measure == program.settings.name);
        own.map(|(_, place)| place)
    }

    /// Rows that the run (or the shard) accounts for.
    pub fn rows(&self) -> u64 {
        self.units.iter().map(|unit| unit.rows).sum()
    }

    /// Bytes of documents that are read at a time: three batches are held at once, one of them being tokenised.
    pub fn batch_bytes(&self) -> u64 {
        (self.spec.pipeline.input.memory_limit_bytes / 1024).clamp(256 << 10, 16 << 20)
    }

    /// Row groups of a unit that a run would quarantine; empty if a run would fail at the first.
    pub fn lost_row_groups(&self, unit: &WorkUnit) -> Result<LostRowGroups> {
        match self.spec.pipeline.input.on_bad_file {
            OnBadFile::Fail => Ok(LostRowGroups::default()),
            OnBadFile::Quarantine => {
                let none = LostRowGroups::default();
                none.with_others(&self.dataset, unit, None, &self.options.stop)
            }
        }
    }

    /// Row groups of a unit to do without, after a reader that did without `known` failed at another.
    ///
    /// # Errors
    /// The pipeline does not do without row groups: the error names the column.
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

    /// Reads from a unit, a second time without the row groups that cannot be used if it has any.
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

    /// The name of the column that holds text or tokens.
    pub fn content_column(&self) -> &str {
        match &self.columns.content {
            Content::Text(column) | Content::Tokens(column) => column,
        }
    }
}
