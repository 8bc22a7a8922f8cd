//! A pipeline proven runnable: every name resolved, every column typed, the model's first layer understood, memory
//! and disk estimated, work units cut. Opens footers, headers and the tokenizer; reads no weights and no documents.

pub mod absent;
mod checks;
pub mod estimate;
pub mod explain;
pub mod identity;
pub mod shard;
mod since;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use longsift_kernels::Kernel;
use longsift_stages::model::{LayerZeroTable, ModelFolder, ModelProblem, OpenedTable};
use longsift_stages::tokenize::encoder::Encoder;

use crate::dataset::{Content, Dataset, DocumentColumns, Faults, WorkUnit};
use crate::device::Devices;
use crate::diagnostic::{Blame, Diagnostic};
use crate::error::{Failure, Result};
use crate::files;
use crate::hub::{HubOptions, Reference};
use crate::lock::Lock;
use crate::remote_model::RemoteModels;
use crate::run_directory::RunDirectory;
use crate::schedule::dispatch::Policy;
use crate::spec::Spec;
use crate::stop::Stop;

use absent::Absent;
pub use estimate::Estimate;
pub use shard::Shard;
pub use since::KnownFile;

/// Bytes of memory that a text takes while it is tokenised and scored, for each of its bytes: eight for each token and
/// the text itself, where every byte is a token of its own; 3 as measured on English books.
const TEXT_BYTES_PER_BYTE: u64 = 8;

/// Pairs of a piece below which a window is not shared out by heads: a GPU measures so many in a fraction of a
/// millisecond, and starting a piece takes a tenth of that.
const SMALLEST_PIECE: u64 = 1 << 28;

/// What the command line adds to a pipeline.
#[derive(Clone, Debug, Default)]
pub struct PlanOptions {
    /// Only the first rows of the input.
    pub limit_rows: Option<u64>,
    /// Threads; by default as many as the process may use.
    pub threads: Option<usize>,
    /// The kernel, by name; by default the fastest that this machine has for the table's precision.
    pub kernel: Option<String>,
    /// Scores of another run of the same score settings are selected from.
    pub scores_from: Option<PathBuf>,
    /// Only the work units of this shard.
    pub shard: Option<Shard>,
    /// The pipeline is planned for devices that are not here; what it says of devices is not looked for.
    pub devices_absent: bool,
    /// What is not on this machine is not fetched.
    pub offline: bool,
    /// Commits of the hub that a lock names; those of the run directory count otherwise.
    pub pins: BTreeMap<String, String>,
    /// Nothing that an earlier run of this directory meant counts.
    pub fresh: bool,
    /// Ends a download.
    pub stop: Stop,
}

/// The BOS tokens before each window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bos {
    /// How many.
    pub count: u8,
    /// Which token.
    pub id: u32,
}

impl Bos {
    /// The scored sequence of a text window.
    pub fn before(self, tokens: &[u32]) -> Vec<u32> {
        let mut ids = vec![self.id; usize::from(self.count)];
        ids.extend_from_slice(tokens);
        ids
    }
}

/// What all shards of a plan have together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Whole {
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
    pub whole: Whole,
    /// The columns a document is made of.
    pub columns: DocumentColumns,
    /// The checkpoint.
    pub model: ModelFolder,
    /// The commits that branches of the hub meant, by `hf://owner/name@branch`.
    pub pins: BTreeMap<String, String>,
    /// The tokenizer; none for pre-tokenised documents.
    pub encoder: Option<Encoder>,
    /// The BOS tokens before each window.
    pub bos: Bos,
    /// Where windows are measured.
    pub devices: Devices,
    /// Where built tables are kept.
    pub cache_folder: PathBuf,
    /// The run directory and the output.
    pub directory: RunDirectory,
    /// What it will take.
    pub estimate: Estimate,
    /// The same on devices that are not here, if that was asked for.
    pub absent: Option<Absent>,
    /// What a user should know, but need not change.
    pub warnings: Vec<Diagnostic>,
}

impl Plan {
    /// Proves `spec` runnable, or says everything that stands against it.
    pub fn new(spec: Spec, options: PlanOptions, mut warnings: Vec<Diagnostic>) -> Result<Self> {
        let mut problems = checks::stores(&spec);
        let columns = columns(&spec);
        let settings = spec.load_partial_model();
        let directory = RunDirectory::of_output(&spec.resolve(&spec.pipeline.output.path));
        let cache_folder = match &settings.cache_folder {
            Some(folder) => spec.resolve(folder),
            None => files::user_cache_folder()?,
        };
        let remote = RemoteModels::new(&cache_folder, hub_options(&options, &directory));
        let dataset = open_input(&spec, &remote, &mut problems);
        options.stop.check()?;
        // Gigabytes are not fetched for an input that cannot be read.
        if RemoteModels::is(&settings.model) && !problems.is_empty() {
            return Err(Failure::Problems(problems));
        }
        let place = "stages.load-partial-model.model";
        let folder = locate(&remote, &spec, &settings.model, RemoteModels::model);
        let folder = checks::collect(folder, &spec, place, &mut problems);
        options.stop.check()?;
        let model = folder.as_ref().and_then(|folder| {
            let model = ModelFolder::open(folder, settings.rope_theta);
            checks::collect(model, &spec, place, &mut problems)
        });
        let encoder = open_encoder(&spec, &columns, &remote, folder.as_deref(), &mut problems);
        let devices = checks::devices(&spec, model.as_ref(), &options, &mut problems);
        if let Some(dataset) = dataset.as_ref().filter(|dataset| !dataset.files.is_empty()) {
            checks::columns(&spec, &columns, dataset, &mut problems);
        }
        let bos = model.as_ref().and_then(|model| checks::bos(&spec, model, &mut problems));
        if let Some(model) = &model {
            checks::tokens(&spec, model, encoder.as_ref().and_then(Option::as_ref), &mut problems);
            checks::distance(&spec, model, &mut problems, &mut warnings);
        }
        let (Some(mut dataset), Some(model), Some(encoder), Some(devices), Some(bos)) =
            (dataset, model, encoder, devices, bos)
        else {
            return Err(Failure::Problems(problems));
        };
        if !problems.is_empty() {
            return Err(Failure::Problems(problems));
        }
        let input_before = since::leave_out(&spec, &directory, &mut dataset, &mut warnings)?;
        let notes = dataset.notes.iter().chain(model.warnings());
        warnings.extend(notes.map(|note| Diagnostic::warning(Blame::Data, note)));
        warnings.extend(checks::bad_files(&dataset));
        let mut units = dataset.units(spec.pipeline.input.unit_bytes, options.limit_rows);
        let rows = units.iter().map(|unit| unit.rows).sum();
        let whole = Whole { units: units.len() as u64, rows };
        if let Some(shard) = options.shard {
            units = shard.cut(units);
        }
        let estimate =
            Estimate::of(&spec, &dataset, &units, &columns, &model, &devices, &cache_folder);
        let plan = Self {
            spec,
            options,
            dataset,
            input_before,
            units,
            whole,
            columns,
            model,
            pins: remote.hub.pins(),
            encoder,
            bos,
            devices,
            cache_folder,
            directory,
            estimate,
            absent: None,
            warnings,
        };
        plan.check_space()?;
        Ok(plan)
    }

    /// Opens the layer-zero table, or builds it; warns of damaged cache files that were replaced.
    pub fn open_table(&self) -> Result<OpenedTable> {
        let precision = self.spec.load_partial_model().precision;
        let opened = LayerZeroTable::open_or_build(
            &self.model,
            self.kernel(),
            precision,
            &self.cache_folder,
            &|_, _| {},
        )?;
        for warning in &opened.warnings {
            tracing::warn!("{warning}");
        }
        Ok(opened)
    }

    /// Rows that the run (or the shard) accounts for.
    pub fn rows(&self) -> u64 {
        self.units.iter().map(|unit| unit.rows).sum()
    }

    /// The rules by which windows are handed to devices.
    pub fn policy(&self) -> Policy {
        let settings = self.spec.shard_across_devices();
        Policy {
            by: settings.by,
            memory_wait: Duration::from_secs(u64::from(settings.memory_wait_seconds)),
            key_heads_at_once: settings.key_heads_at_once.map(|heads| heads as usize),
            smallest_piece: SMALLEST_PIECE,
        }
    }

    /// The kernel that measures windows.
    pub fn kernel(&self) -> Kernel {
        self.devices.kernel
    }

    /// Bytes of documents that are read at a time: three batches are held at once, one of them being tokenised.
    pub fn batch_bytes(&self) -> u64 {
        (self.spec.pipeline.input.memory_limit_bytes / 1024).clamp(256 << 10, 16 << 20)
    }

    /// The largest page that is decompressed: its compressed bytes, its values and a copy of those are held at once.
    pub fn largest_page_bytes(&self) -> u64 {
        self.spec.pipeline.input.memory_limit_bytes / 4
    }

    /// What of a unit cannot be used.
    pub fn faults(&self, unit: &WorkUnit) -> Result<Faults> {
        let on_bad_file = self.spec.pipeline.input.on_bad_file;
        Ok(Faults::find(&self.dataset, unit, on_bad_file, self.largest_page_bytes())?)
    }

    /// The largest text that can be scored within half the memory limit.
    pub fn largest_text_bytes(&self) -> u64 {
        self.spec.pipeline.input.memory_limit_bytes / (2 * TEXT_BYTES_PER_BYTE)
    }

    /// The largest part of a text that can be tokenised at once within half the memory limit: a word, as a rule.
    pub fn largest_part_bytes(&self) -> u64 {
        self.spec.pipeline.input.memory_limit_bytes / (2 * Encoder::BYTES_PER_PART_BYTE)
    }

    /// The name of the column that holds text or tokens.
    pub fn content_column(&self) -> &str {
        match &self.columns.content {
            Content::Text(column) | Content::Tokens(column) => column,
        }
    }

    fn check_space(&self) -> Result<()> {
        let mut problems = Vec::new();
        for (what, folder, bytes, place) in [
            (
                "the table cache",
                &self.cache_folder,
                self.estimate.cache_bytes,
                "stages.load-partial-model.model",
            ),
            (
                "the scores and the output",
                &self.directory.root,
                self.estimate.disk_bytes(),
                "output.path",
            ),
        ] {
            let free = files::free_bytes(nearest_folder(folder))?;
            if bytes > free {
                problems.push(
                    Diagnostic::error(Blame::Machine, format!(
                        "{what} in `{}` may take {}, but only {} are free",
                        folder.display(),
                        crate::report::bytes(bytes),
                        crate::report::bytes(free)
                    ))
                    .at(self.spec.at(place))
                    .hint("free some space, or put it on another disk (`cache_folder`, `output.path`)"),
                );
            }
        }
        if problems.is_empty() { Ok(()) } else { Err(Failure::Problems(problems)) }
    }
}

/// The columns a document is made of.
fn columns(spec: &Spec) -> DocumentColumns {
    let input = &spec.pipeline.input;
    let content = match &input.tokens_column {
        Some(column) => Content::Tokens(column.clone()),
        None => Content::Text(input.text_column.clone().unwrap_or_else(|| "text".to_owned())),
    };
    DocumentColumns { id: input.id_column.clone(), content }
}

/// The input, by its footers.
fn open_input(
    spec: &Spec,
    remote: &RemoteModels,
    problems: &mut Vec<Diagnostic>,
) -> Option<Dataset> {
    let (input, place) = (&spec.pipeline.input, "input.path");
    let dataset = if Reference::is(&input.path) {
        let tree = checks::collect(remote.hub.dataset(&input.path), spec, place, problems)?;
        Dataset::open_of_hub(&tree, input.on_bad_file)
    } else {
        Dataset::open_with(&spec.resolve(&input.path), input.on_bad_file)
    };
    checks::collect(dataset, spec, place, problems)
}

/// `Some(None)` for pre-tokenised documents, `None` if there is a problem.
#[expect(
    clippy::option_option,
    reason = "no tokenizer needed and no tokenizer found are different answers"
)]
fn open_encoder(
    spec: &Spec,
    columns: &DocumentColumns,
    remote: &RemoteModels,
    model: Option<&Path>,
    problems: &mut Vec<Diagnostic>,
) -> Option<Option<Encoder>> {
    if matches!(columns.content, Content::Tokens(_)) {
        return Some(None);
    }
    let settings = spec.tokenize();
    let (path, place) = match &settings.tokenizer {
        Some(path) => {
            let place = "stages.tokenize.tokenizer";
            let path = locate(remote, spec, path, RemoteModels::tokenizer);
            (checks::collect(path, spec, place, problems)?, place)
        }
        None => (model?.to_owned(), "stages.load-partial-model.model"),
    };
    match Encoder::open(&path, settings.special_tokens_in_text) {
        Ok(encoder) => Some(Some(encoder)),
        Err(problem) => {
            problems.push(Diagnostic::from(problem).at(spec.at(place)));
            None
        }
    }
}

/// Where a path of the pipeline lies on this machine; what is elsewhere is fetched.
fn locate(
    remote: &RemoteModels,
    spec: &Spec,
    path: &str,
    fetch: impl FnOnce(&RemoteModels, &str) -> std::result::Result<PathBuf, Vec<ModelProblem>>,
) -> std::result::Result<PathBuf, Vec<ModelProblem>> {
    if RemoteModels::is(path) { fetch(remote, path) } else { Ok(spec.resolve(path)) }
}

/// A run that was begun carries on with the commits that it began with.
fn hub_options(options: &PlanOptions, directory: &RunDirectory) -> HubOptions {
    let begun =
        if options.fresh { None } else { Lock::read(&directory.lock_file()).ok().flatten() };
    let mut pins = begun.map(|lock| lock.hub_commits).unwrap_or_default();
    pins.extend(options.pins.clone());
    HubOptions { offline: options.offline, pins, stop: options.stop.clone() }
}

/// The folder itself, or the nearest one above it that exists.
fn nearest_folder(folder: &Path) -> &Path {
    folder.ancestors().find(|folder| folder.is_dir()).unwrap_or(Path::new("/"))
}
