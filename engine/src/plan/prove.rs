//! Opens everything that a pipeline names and validates it.

use std::path::{Path, PathBuf};

use longsift_stages::contract::Scheme;
use longsift_stages::model::{LayerZeroTable, ModelFolder, OpenedTable};
use longsift_stages::tokenize::encoder::Encoder;

use super::attention::Attention;
use super::cascade::{self, Cascade};
use super::checks::MODEL;
use super::columns::is_output_column;
use super::estimate::Estimate;
use super::fetch::RemoteModels;
use super::fetch::stores::FetchKind;
use super::findings::Findings;
use super::measures::Measures;
use super::options::PlanOptions;
use super::{checks, measures, open_models, output_names, preset, programs, reading, since};
use crate::base::diagnostic::{Blame, Diagnostic};
use crate::base::error::{Failure, Result};
use crate::base::text::quoted;
use crate::dataset::documents::{ContentColumn, DocumentColumns};
use crate::dataset::formats::compression;
use crate::dataset::input::Dataset;
use crate::devices::device::Devices;
use crate::plan::Plan;
use crate::run_directory::layout::RunDirectory;
use crate::run_directory::pipeline_lock::PipelineLock;
use crate::spec::Spec;
use crate::storage::files;
use crate::storage::hub::HubOptions;
use crate::storage::ranges::BlockCache;

/// Divisor of `memory_limit_bytes` for the memory of all tokenization caches.
const CACHE_SHARE: u64 = 4;

impl Plan {
    pub fn new(
        mut spec: Spec,
        options: PlanOptions,
        mut warnings: Vec<Diagnostic>,
    ) -> Result<Self> {
        warnings.extend(checks::fit_memory(&mut spec));
        let mut found = Findings::new(&spec, warnings);
        checks::stores(&mut found);
        BlockCache::limit(spec.pipeline.input.memory_limit_bytes);
        compression::limit_windows(spec.pipeline.input.memory_limit_bytes);
        let columns = columns(&spec);
        let reading = spec.load_partial_model();
        let directory = options.directory.clone().unwrap_or_else(|| {
            let output = spec.resolve(&spec.pipeline.output.path).to_path_buf();
            RunDirectory::for_output(&output).with_row_limit(options.limit_rows)
        });
        checks::output_paths(&directory, &mut found);
        let cache_folder = match reading.and_then(|settings| settings.cache_folder.as_ref()) {
            Some(folder) => spec.resolve(folder).to_path_buf(),
            None => files::user_cache_folder()?,
        };
        let remote = RemoteModels::new(&cache_folder, hub_options(&options, &directory));
        let dataset = open_input(&remote, &cache_folder, options.footers.as_deref(), &mut found);
        options.stop.check()?;
        // Do not fetch gigabytes for an unreadable input.
        if reading.is_some_and(|settings| settings.model.is_address()) {
            found.check()?;
        }
        let folder = reading.and_then(|settings| {
            let folder = remote.locate(spec.resolve(&settings.model), FetchKind::Model);
            found.value(MODEL, folder)
        });
        options.stop.check()?;
        let model = reading.zip(folder.as_ref()).and_then(|(settings, folder)| {
            found.value(MODEL, ModelFolder::open(folder, settings.rope_theta))
        });
        let measures = Measures::new(&spec.pipeline.stages);
        let devices = checks::devices(model.as_ref(), &options, &mut found);
        let whole_models =
            open_models::open(&measures, folder.as_deref(), devices.as_ref(), &options, &mut found);
        if spec.first_layer_attention().is_none() && whole_models.is_empty() {
            found.add(checks::unknown_kernel(&options));
        }
        // Provides tokenizer and BOS token without `load-partial-model`.
        let mut of_stages = whole_models.values().filter(|whole| whole.request.model.is_some());
        let whole = if reading.is_none() { of_stages.next() } else { None };
        let vocabulary = folder.as_deref().or(whole.map(|whole| &*whole.path));
        let (tokenizer, encoder) = open_encoder(&columns, &remote, vocabulary, &mut found);
        let size = model.as_ref().map(|model| model.spec().vocabulary_size);
        open_models::check_vocabularies(
            &whole_models,
            encoder.as_ref(),
            tokenizer.as_deref().or(vocabulary),
            size,
            &mut found,
        );
        if let Some(dataset) = &dataset {
            let statistics = measures.statistics();
            checks::columns(&columns, &options.subject, &statistics, dataset, &mut found);
            checks::output_format(dataset, &mut found);
        }
        check_measures(&measures, &columns.content, &mut found);
        let find = |settings| programs::find(&columns.content, settings, &mut found);
        let programs = spec.externals().filter_map(find).collect();
        let cascade = Cascade::new(&spec, &measures);
        preset::incomplete_preset(&measures, &mut found);
        preset::window_length(&measures, &mut found);
        let bos = checks::tokens(model.as_ref(), whole, encoder.as_ref(), &options, &mut found);
        let attention = attention(&spec, model, devices);
        found.check()?;
        let mut dataset = dataset.expect("an input that cannot be opened is reported");
        checks::random_without_ids(&mut found);
        checks::replaced_amount(&mut found);
        programs::secrets(&mut found);
        checks::budgets_without_windows(bos.count, &mut found);
        checks::tokenizer(encoder.as_ref(), &mut found);
        let input_before = since::exclude(&directory, options.fresh, &mut dataset, &mut found)?;
        output_names::check(&directory, &dataset, &mut found);
        found.check()?;
        checks::calibration(&spec)?;
        checks::maps(&dataset, &mut found);
        checks::unseen_columns(&dataset, &mut found);
        checks::model_folders(attention.as_ref(), &whole_models, &dataset, &mut found);
        checks::bad_files(&dataset, &mut found);
        let mut units = dataset.units(spec.pipeline.input.unit_bytes, options.limit_rows);
        let whole_units = units.len() as u64;
        let whole_rows = units.iter().map(|unit| unit.rows).sum();
        if let Some(shard) = options.shard {
            units = shard.cut(units);
        }
        let estimate = Estimate::new(
            &spec,
            &dataset,
            &units,
            &columns,
            &measures.columns,
            (attention.as_ref(), &whole_models),
            &cache_folder,
        );
        let warnings = found.into_inner();
        Ok(Self {
            spec,
            options,
            dataset,
            input_before,
            units,
            whole_units,
            whole_rows,
            columns,
            attention,
            whole_models,
            pins: remote.hub.pins(),
            encoder,
            measures,
            programs,
            cascade,
            bos,
            cache_folder,
            directory,
            estimate,
            warnings,
        })
    }

    /// Returns the problems of a pipeline's measures and statistics that do not depend on the input.
    pub fn check_measures(spec: &Spec) -> Vec<Diagnostic> {
        let mut found = Findings::new(spec, Vec::new());
        let measures = Measures::new(&spec.pipeline.stages);
        check_measures(&measures, &columns(spec).content, &mut found);
        found.into_inner()
    }

    /// Checks that the run can create files in its folders and will not fill the disk. Not part of validation, because some
    /// commands write nothing.
    pub(crate) fn check_output(&self) -> Result<()> {
        checks::writable_folders(&self.spec, &self.directory)?;
        let root = &self.directory.root;
        let to_write = match &self.options.scores_from {
            Some(_) => self.estimate.bytes_to_write(u64::MAX),
            // Existing scores stay until the new ones are complete.
            None if self.options.fresh => self.estimate.bytes_to_write(0),
            // The size of existing scores is read only if it decides: a corpus has tens of thousands of score tables.
            None if self.estimate.bytes_to_write(0) <= files::free_bytes(root)? => 0,
            None => self.estimate.bytes_to_write(self.directory.scores_bytes()?),
        };
        let output =
            self.space_problem("the scores and the output", root, to_write, "output.path")?;
        let problems: Vec<Diagnostic> =
            self.table_space_problem()?.into_iter().chain(output).collect();
        if problems.is_empty() { Ok(()) } else { Err(Failure::Problems(problems)) }
    }

    /// Opens the table of an attention measure, or builds it if the cache has enough space.
    pub fn open_table(
        &self,
        attention: &Attention,
        progress: &dyn Fn(u64, u64),
    ) -> Result<OpenedTable> {
        if let Some(problem) = self.table_space_problem()? {
            return Err(problem.into());
        }
        let Attention { model, reading, .. } = attention;
        let (kernel, folder) = (attention.kernel(), &self.cache_folder);
        let opened =
            LayerZeroTable::open_or_build(model, kernel, reading.precision, folder, progress)?;
        for warning in &opened.warnings {
            tracing::warn!("{warning}");
        }
        Ok(opened)
    }

    fn table_space_problem(&self) -> Result<Option<Diagnostic>> {
        self.space_problem("the table cache", &self.cache_folder, self.estimate.cache_bytes, MODEL)
    }

    fn space_problem(
        &self,
        what: &str,
        folder: &Path,
        bytes: u64,
        setting: &str,
    ) -> Result<Option<Diagnostic>> {
        let free = files::free_bytes(folder)?;
        let problem = || {
            let message = format!(
                "{what} in `{}` may take {}, but only {} are free",
                folder.display(),
                crate::base::text::bytes(bytes),
                crate::base::text::bytes(free)
            );
            let hint = "free some space, or put it on another disk (`cache_folder`, `output.path`)";
            Diagnostic::error(Blame::Machine, message).at(self.spec.locate(setting)).hint(hint)
        };
        Ok((bytes > free).then(problem))
    }
}

fn check_measures(measures: &Measures, content: &ContentColumn, found: &mut Findings<'_>) {
    measures::check(measures, content, is_output_column, found);
    cascade::check(measures, &Cascade::new(found.spec, measures), found);
}

/// Returns the model and devices of attention measures, if the pipeline needs them and they could be opened.
fn attention(
    spec: &Spec,
    model: Option<ModelFolder>,
    devices: Option<Devices>,
) -> Option<Attention> {
    Some(Attention {
        model: model?,
        devices: devices?,
        reading: spec.load_partial_model()?.clone(),
        sharing: spec.shard_across_devices()?.clone(),
        measure: spec.first_layer_attention()?.clone(),
    })
}

fn columns(spec: &Spec) -> DocumentColumns {
    let input = &spec.pipeline.input;
    let content = match &input.tokens_column {
        Some(column) => ContentColumn::Tokens(column.clone()),
        None => ContentColumn::Text(input.text_column.clone().unwrap_or_else(|| "text".to_owned())),
    };
    DocumentColumns { id: input.id_column.clone(), content }
}

fn open_input(
    remote: &RemoteModels,
    cache_folder: &Path,
    footers: Option<&Path>,
    found: &mut Findings<'_>,
) -> Option<Dataset> {
    let (input, setting) = (&found.spec.pipeline.input, "input.path");
    let reading = reading::reading(cache_folder, footers, found)?;
    let dataset = match input.path.address() {
        Some(address) if address.scheme == Scheme::Hub => {
            let tree = found.value(setting, remote.hub.dataset(&address.to_string()))?;
            Dataset::open_in_hub(&tree, &reading)
        }
        // Wildcard characters in the folder itself are literal, so the two are separate arguments.
        _ => Dataset::open_with(&found.spec.folder, &input.path.to_path_buf(), &reading),
    };
    let dataset = found.value(setting, dataset)?;
    if dataset.files.is_empty() && !input.allow_empty {
        found.error(
            setting,
            format!("{} matches no file", quoted(&input.path.to_string())),
            "a folder selects every `*.parquet` below it, or else all files of one other format; a glob is case-sensitive; `allow_empty: true` allows an empty input",
        );
    }
    reading::check(&dataset, found);
    Some(dataset)
}

/// Returns the folder of the tokenizer, and the tokenizer; `None` for tokenized documents and after a problem.
fn open_encoder(
    columns: &DocumentColumns,
    remote: &RemoteModels,
    model: Option<&Path>,
    found: &mut Findings<'_>,
) -> (Option<PathBuf>, Option<Encoder>) {
    if matches!(columns.content, ContentColumn::Tokens(_)) {
        return (None, None);
    }
    let spec = found.spec;
    let (settings, setting) = (spec.tokenize(), checks::tokenizer_setting(spec));
    let path = match &settings.tokenizer {
        Some(path) => found.value(setting, remote.locate(spec.resolve(path), FetchKind::Tokenizer)),
        None => model.map(Path::to_owned),
    };
    let encoder = path.as_ref().and_then(|path| {
        let opened = Encoder::open(path, settings.special_tokens_in_text);
        let mut encoder = found.value(setting, opened.map_err(|problem| vec![problem]))?;
        encoder.limit_caches(spec.pipeline.input.memory_limit_bytes / CACHE_SHARE);
        Some(encoder)
    });
    (path, encoder)
}

/// Returns the hub options. A resumed run uses the commits of its start.
fn hub_options(options: &PlanOptions, directory: &RunDirectory) -> HubOptions {
    let begun = || PipelineLock::read(&directory.lock_file()).ok().flatten();
    let begun = if options.fresh { None } else { begun() };
    let mut pins = begun.map(|lock| lock.hub_commits).unwrap_or_default();
    pins.extend(options.pins.clone());
    HubOptions { network: options.network, pins, stop: options.stop.clone() }
}
