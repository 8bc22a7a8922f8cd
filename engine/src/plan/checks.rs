//! Checks of a pipeline whose input, model and tokenizer are open.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use longsift_kernels::{ElementType, Kernel};
use longsift_stages::contract::Column;
use longsift_stages::load_partial_model::Precision;
use longsift_stages::model::{AttentionSpec, ModelConfig, ModelFolder};
use longsift_stages::score::presets::Formula;
use longsift_stages::shard_across_devices::{DeviceKind, DeviceSettings};
use longsift_stages::tokenize::encoder::Encoder;

use super::attention::Attention;
use super::columns::{self, COLUMNS, MARKS};
use super::findings::Findings;
use super::options::{Bos, PlanOptions, Subject};
use super::whole_models::WholeModelPlan;
use crate::base::diagnostic::{Blame, Diagnostic};
use crate::base::error;
use crate::base::machine;
use crate::base::text::{bytes, counted, quoted};
use crate::dataset::documents::{ContentColumn, DocumentColumns};
use crate::dataset::input::Dataset;
use crate::dataset::{part, part_lines};
use crate::devices::choose;
use crate::devices::device::{DeviceCriteria, Devices};
use crate::run_directory::calibration as saved;
use crate::run_directory::layout::RunDirectory;
use crate::run_directory::quarantine;
use crate::spec::Spec;
use crate::spec::pipeline::{OutputFormat, Samples};
use crate::storage::error::ErrorKind;
use crate::storage::{files, store};

pub(super) const MODEL: &str = "stages.load-partial-model.model";
/// Settings of an adapter, as the PEFT library saves it.
const ADAPTER: &str = "adapter_config.json";
/// Maximum number of unreadable files that are listed one by one.
const MAX_LISTED_FILES: usize = 5;

/// Reciprocal of the share of a limit's memory that is reserved for binaries, threads and page tables.
const LIMIT_RESERVE: u64 = 4;

/// Lowers `memory_limit_bytes` to fit the limits of this process. Returns a warning if it does.
pub(super) fn fit_memory(spec: &mut Spec) -> Option<Diagnostic> {
    let group = machine::control_group_bytes().map(|room| {
        (room, "the control group of this process allows", "the limit of the container")
    });
    let space = machine::address_space_bytes()
        .map(|room| (room, "the remaining address space of this process is", "`ulimit -v`"));
    let (room, is, setting) = group.into_iter().chain(space).min_by_key(|(room, ..)| *room)?;
    let limit = spec.pipeline.input.memory_limit_bytes;
    let fitting = (room - room / LIMIT_RESERVE).max(64 << 20);
    if limit <= fitting {
        return None;
    }
    spec.pipeline.input.memory_limit_bytes = fitting;
    let message = format!(
        "`memory_limit_bytes` is {}, but {is} {}: the limit is lowered to {}",
        bytes(limit),
        bytes(room),
        bytes(fitting)
    );
    let warning = spec.warning("input.memory_limit_bytes", message);
    Some(warning.hint(format!("raise {setting}, or lower `memory_limit_bytes`")))
}

/// Reports object store addresses that this build does not support, except that of the input.
pub(super) fn stores(found: &mut Findings<'_>) {
    let pipeline = &found.spec.pipeline;
    let settings = [
        (Some(&pipeline.output.path), "output.path"),
        (pipeline.input.since.as_ref(), "input.since"),
        (found.spec.score().calibration.as_ref(), "stages.score.calibration"),
    ];
    for (path, setting) in settings {
        if let Some(path) = path.filter(|path| path.is_address() && !cfg!(feature = "cloud")) {
            let message =
                format!("`{path}` is in an object store, which this build does not support");
            found.error(setting, message, "build with `--features cloud`");
        }
    }
}

/// Checks that the calibration is valid. Whether it matches is checked later, with the digests of a run.
pub(super) fn calibration(spec: &Spec) -> error::Result<()> {
    let Some(path) = &spec.score().calibration else { return Ok(()) };
    let (file, setting) = (spec.resolve(path).to_path_buf(), "stages.score.calibration");
    if files::size(&file)?.is_none() {
        let problem = spec.error(setting, format!("calibration `{path}` not found"));
        return Err(problem.hint("use the `calibration.json` of a finished run directory").into());
    }
    let setting = spec.locate(setting);
    let bytes = saved::bytes(&file).map_err(|failure| failure.or_at(&setting))?;
    saved::check_unchanged(&file, &bytes).map_err(|failure| failure.or_at(&setting))?;
    saved::parse(&path.to_string(), setting, &bytes).map(drop)
}

/// Checks before scoring that the run can commit: no file in place of a folder, no folder on another file system than its
/// parent, which would prevent atomic renames, and no run directory of another output.
pub(super) fn output_paths(directory: &RunDirectory, found: &mut Findings<'_>) {
    if store::is_address(&directory.output) {
        return;
    }
    let status = |path: &Path| std::fs::metadata(path).ok();
    let spec = found.spec;
    let problem = |message: String, hint: &str| spec.error("output.path", message).hint(hint);
    let mut problems = Vec::new();
    let root = &directory.root;
    let mut folders = vec![(&directory.output, directory.data())];
    folders.extend(directory.committed_folders().map(|folder| (root, folder)));
    if let Some(result) = RunDirectory::result_folder(&directory.output) {
        let result = quoted(&result.display().to_string());
        let message =
            format!("the output is in {result}, which holds only the files of another result");
        problems.push(problem(message, "choose another folder"));
    }
    if let Some(other) = directory.linked_to_other() {
        let [link, other] = [root, &other].map(|path| quoted(&path.display().to_string()));
        let message = format!("{link} is a link to {other}, the run directory of another output");
        problems.push(problem(message, "remove the link, or choose another `output.path`"));
    }
    for (around, folder) in folders {
        for path in [around, &folder] {
            if status(path).is_some_and(|status| !status.is_dir()) {
                let message = format!("`{}` is a file, but must be a folder", path.display());
                problems.push(problem(message, "move it away, or choose another `output.path`"));
            }
        }
        if files::mount(around)
            .zip(files::mount(&folder))
            .is_some_and(|(outer, inner)| outer != inner)
        {
            let name = folder.file_name().unwrap_or_default().to_string_lossy();
            let message = format!(
                "`{}` is on a different file system or mount from its parent",
                folder.display()
            );
            let hint = format!("link or mount its parent instead of `{name}`");
            problems.push(problem(message, &hint));
        }
    }
    problems.dedup_by(|one, other| one.message == other.message);
    found.add(problems);
}

/// Checks before scoring that files can be created in the folders of the run, or in the nearest existing folder above.
pub(super) fn writable_folders(spec: &Spec, directory: &RunDirectory) -> error::Result<()> {
    if store::is_address(&directory.output) {
        return Ok(());
    }
    let own = [directory.output.clone(), directory.data(), directory.root.clone()];
    let folders: BTreeSet<PathBuf> = own
        .into_iter()
        .chain(directory.committed_folders())
        .map(|folder| files::nearest_existing(&folder).to_owned())
        .collect();
    let problem = |folder: &PathBuf| {
        let error = files::check_writable(folder).err()?;
        let message =
            format!("the run cannot create files in `{}`: {}", folder.display(), error.source);
        let hint = match error.kind {
            ErrorKind::Denied => None,
            _ => error.hint(),
        };
        let hint = hint.unwrap_or_else(|| {
            "make the folder writable (its mode, its owner, or how its disk is mounted), or choose another `output.path`"
                .to_owned()
        });
        let problem = Diagnostic::error(Blame::Machine, message).hint(hint);
        Some(problem.at(spec.locate("output.path")))
    };
    let problems: Vec<Diagnostic> = folders.iter().filter_map(problem).collect();
    if problems.is_empty() { Ok(()) } else { Err(problems.into()) }
}

/// Reports columns that the output format cannot represent, by writing a row without values.
pub(super) fn output_format(dataset: &Dataset, found: &mut Findings<'_>) {
    let (columns, other) = match found.spec.pipeline.output.format {
        OutputFormat::Parquet => (part::unsupported_columns(&dataset.schema), "jsonl-zst"),
        OutputFormat::JsonlZst => (part_lines::unsupported_columns(&dataset.schema), "parquet"),
        OutputFormat::Megatron => return,
    };
    for column in columns {
        let hint = format!("write `format: {other}`, or remove the column from the input");
        found.error("output.format", format!("column {column}"), hint);
    }
}

/// Warns about maps in JSON output: a map with a key twice cannot be written. JSON input is checked when it is read.
pub(super) fn maps(dataset: &Dataset, found: &mut Findings<'_>) {
    let is_json = found.spec.pipeline.output.format == OutputFormat::JsonlZst;
    let columns = part_lines::map_columns(&dataset.schema);
    if !is_json || columns.is_empty() || dataset.lines.is_some() {
        return;
    }
    let message = format!(
        "maps ({}): if a map of a kept row has a key twice, the run fails when it writes JSON, after scoring",
        columns.join(", ")
    );
    found.warning("output.format", message, "`format: parquet` writes such rows as they are");
}

/// Warns about columns and fields of `input.schema` that none of the first lines has.
pub(super) fn unseen_columns(dataset: &Dataset, found: &mut Findings<'_>) {
    for (path, like) in dataset.lines.iter().flat_map(|lines| &lines.unseen) {
        let message = format!(
            "none of the first 1,000 lines of any file has {}: it may be null in all rows",
            quoted(path)
        );
        let hint = match like {
            Some(like) => format!("did you mean {}? names are compared exactly", quoted(like)),
            None => "correct the name, or remove it".to_owned(),
        };
        found.warning("input.schema", message, hint);
    }
}

/// Warns about adapters next to weights, and adds the notes of the input and of the first-layer model.
pub(super) fn model_folders(
    attention: Option<&Attention>,
    whole_models: &BTreeMap<u16, WholeModelPlan>,
    dataset: &Dataset,
    found: &mut Findings<'_>,
) {
    let first = attention.iter().map(|attention| attention.model.config().folder());
    let folders = first.chain(whole_models.values().map(|whole| &*whole.path));
    let files: BTreeSet<PathBuf> = folders.map(|folder| folder.join(ADAPTER)).collect();
    found.add(files.into_iter().filter(|file| file.is_file()).map(|file| {
        let message = format!(
            "{} is ignored: scores are those of the model without this adapter",
            quoted(&file.display().to_string())
        );
        Diagnostic::warning(Blame::Data, message).hint(
            "the transformers library applies it; to score with it, merge it into the weights (`merge_and_unload`) and save them in another folder",
        )
    }));
    let of_model = attention.iter().flat_map(|attention| attention.model.warnings());
    let notes = dataset.notes.iter().chain(of_model);
    found.add(notes.map(|note| Diagnostic::warning(Blame::Data, note)));
}

/// Chooses the devices of the first layer; `None` if no measure needs them, and after a problem.
pub(super) fn devices(
    model: Option<&ModelFolder>,
    options: &PlanOptions,
    found: &mut Findings<'_>,
) -> Option<Devices> {
    let spec = found.spec;
    spec.first_layer_attention()?;
    let (reading, sharing) = spec.load_partial_model().zip(spec.shard_across_devices())?;
    let table = reading.precision;
    let named = match &options.kernel {
        None => None,
        Some(name) => {
            let wanted = WantedKernel {
                table,
                reason: format!("`precision` is {}", table.name()),
                context: format!("with `precision: {}`", table.name()),
                on_gpus: true,
            };
            Some(wanted.named(name, options.devices_absent, found)?)
        }
    };
    let detected = Kernel::detect(table.element_type());
    if named.is_none() && !options.devices_absent && detected == Kernel::PortableInt16 {
        let reason = Kernel::Avx2Int16.unsupported_reason().unwrap_or("it is not detected");
        found.error(
            "stages.load-partial-model.precision",
            format!("`precision: int16` requires an x86_64 processor with AVX2: {reason}"),
            "write `precision: f32` or `bf16`; `--kernel portable-int16` computes the same scores as other machines, slowly",
        );
        return None;
    }
    let mut settings = sharing.clone();
    if options.devices_absent {
        settings.devices = DeviceSettings::Kind(DeviceKind::Cpu);
        settings.workers_per_device = None;
    }
    let tokens = spec.tokenize().window_tokens as usize;
    let shape = model.map(|model| model.spec().device_window(tokens).0);
    let of_processor =
        named.filter(|kernel| !kernel.is_cuda() && kernel.unsupported_reason().is_none());
    let chosen = choose::choose(DeviceCriteria {
        settings: &settings,
        kernel: of_processor.unwrap_or(detected),
        named: named.filter(|_| !options.devices_absent),
        shape: shape.as_ref(),
        precision: table,
        threads: options.threads.unwrap_or_else(rayon::current_num_threads),
        window_memory_bytes: spec.pipeline.input.memory_limit_bytes / 2,
    });
    match chosen {
        Ok(devices) => {
            let kernel = named.filter(|_| options.devices_absent).unwrap_or(devices.kernel);
            Some(Devices { kernel, ..devices })
        }
        Err(none) => {
            found.broken_rules("stages.shard-across-devices", vec![none]);
            None
        }
    }
}

/// Returns the kernel of whole models: the one named by `--kernel`, or the kernel for weights that goes with it if a
/// first layer is measured by a kernel that rounds or runs on GPUs.
pub(super) fn whole_model_kernel(
    measure: &str,
    options: &PlanOptions,
    found: &mut Findings<'_>,
) -> Kernel {
    let fastest = Kernel::detect(ElementType::F32);
    let Some(name) = &options.kernel else { return fastest };
    let named = if found.spec.load_partial_model().is_some() {
        // The check of the first layer's kernel reports invalid names.
        Kernel::from_name(name).map(Kernel::for_weights)
    } else {
        let wanted = WantedKernel {
            table: Precision::F32,
            reason: format!("`{measure}` computes float32 numbers on processors"),
            context: format!("for `{measure}`"),
            on_gpus: false,
        };
        wanted.named(name, options.devices_absent, found)
    };
    named.filter(|kernel| kernel.is_supported() && !kernel.is_cuda()).unwrap_or(fastest)
}

/// Requirements for a kernel named on the command line.
struct WantedKernel {
    table: Precision,
    /// Reason for rejecting kernels of other number types.
    reason: String,
    /// Setting or measure that the listed kernels are for, with its preposition.
    context: String,
    on_gpus: bool,
}

impl WantedKernel {
    fn fits(&self, kernel: Kernel) -> bool {
        kernel.is_for(self.table.element_type()) && (self.on_gpus || !kernel.is_cuda())
    }

    /// Returns the kernel called `name` if it fits and this processor supports it. GPUs are checked when devices are chosen.
    fn named(&self, name: &str, elsewhere: bool, found: &mut Findings<'_>) -> Option<Kernel> {
        let named = Kernel::from_name(name);
        let missing = |kernel: Kernel| {
            if kernel.is_cuda() || elsewhere { None } else { kernel.unsupported_reason() }
        };
        let message = match named.map(|kernel| (kernel, missing(kernel))) {
            Some((kernel, None)) if self.fits(kernel) => return named,
            Some((_, Some(why))) => {
                format!("this machine cannot run the kernel `{name}`: {why}")
            }
            Some((kernel, None)) => {
                let numbers = match kernel.element_type() {
                    ElementType::F32 if kernel.is_cuda() => "runs on GPUs",
                    ElementType::F32 => "multiplies float32 numbers",
                    ElementType::Bf16 => "rounds queries and keys to 16-bit floats",
                    ElementType::Int16 => "rounds queries and keys to 16-bit integers",
                };
                format!("the kernel `{name}` {numbers}, but {}", self.reason)
            }
            None => match Kernel::replacement_of(name) {
                Some(replacement) => {
                    format!("the kernel `{name}` was removed: `{}` replaces it", replacement.name())
                }
                None => format!("unknown kernel `{name}`"),
            },
        };
        let (mut has, mut lacks) = (Vec::new(), Vec::new());
        for kernel in Kernel::ALL.iter().filter(|kernel| self.fits(**kernel) && !kernel.is_cuda()) {
            match kernel.unsupported_reason() {
                None => has.push(kernel.name()),
                Some(reason) => lacks.push(format!("{} ({reason})", kernel.name())),
            }
        }
        let lacks = match &lacks[..] {
            [] => String::new(),
            lacks => format!("; not supported: {}", lacks.join(", ")),
        };
        let hint = format!("{} this machine has {}{lacks}", self.context, has.join(", "));
        found.add([Diagnostic::error(Blame::Pipeline, message).hint(hint)]);
        None
    }
}

/// Returns the error for an unknown name of a kernel in a run that uses none.
pub(super) fn unknown_kernel(options: &PlanOptions) -> Option<Diagnostic> {
    let name = options.kernel.as_ref().filter(|name| Kernel::from_name(name).is_none())?;
    let problem = Diagnostic::error(Blame::Pipeline, format!("unknown kernel {}", quoted(name)));
    Some(problem.hint("leave `--kernel` out: no stage of this pipeline uses a kernel"))
}

/// Warns about the files that the run skips: individually for the first few.
pub(super) fn bad_files(dataset: &Dataset, found: &mut Findings<'_>) {
    let bad = &dataset.bad_files;
    let each = bad.iter().take(MAX_LISTED_FILES);
    let each = each.map(|file| format!("{}; the run continues without this file", file.problem));
    let all = format!("{} files cannot be opened, including those above", bad.len());
    let all = (bad.len() > MAX_LISTED_FILES).then_some(all);
    found.add(each.chain(all).map(|message| Diagnostic::warning(Blame::Data, message)));
}

/// Checks that the column of text, tokens or messages exists and has a readable type.
fn content(
    columns: &DocumentColumns,
    subject: &Subject,
    dataset: &Dataset,
    found: &mut Findings<'_>,
) {
    let (column, setting) = match (&columns.content, subject) {
        (ContentColumn::Text(_), Subject::Conversation(column)) => {
            (dataset.check_messages_column(column), "input.path")
        }
        (ContentColumn::Text(column), _) => {
            (dataset.check_text_column(column), "input.text_column")
        }
        (ContentColumn::Tokens(_), Subject::Conversation(column)) => {
            let message = format!(
                "the message column {} is text, but the pipeline reads token ids and has no tokenizer",
                quoted(column)
            );
            let hint = "use a pipeline with a tokenizer, or omit the messages";
            return found.error("input.tokens_column", message, hint);
        }
        (ContentColumn::Tokens(column), _) => {
            (dataset.check_tokens_column(column), "input.tokens_column")
        }
    };
    if let Err(problem) = column {
        found.problem(setting, problem);
    }
}

/// Warns if random scores depend on file names and row numbers for lack of an id column.
pub(super) fn random_without_ids(found: &mut Findings<'_>) {
    let pipeline = &found.spec.pipeline;
    let is_compared = pipeline.output.compare.contains(&Formula::Random);
    let setting = match found.spec.score().random_seed() {
        _ if pipeline.input.id_column.is_some() => return,
        Some(_) => "stages.score.formula",
        None if is_compared => "output.compare",
        None => return,
    };
    let message = "random scores depend on the files: without `input.id_column` they are derived from each file's path and row";
    let hint = "set `input.id_column`: scores then do not depend on order, files or shards";
    found.warning(setting, message, hint);
}

/// Warns about an amount that the threshold of a calibration replaces.
pub(super) fn replaced_amount(found: &mut Findings<'_>) {
    let filter = found.spec.filter();
    let amounts = [
        ("keep_fraction", filter.keep_fraction.is_some()),
        ("keep_tokens", filter.keep_tokens.is_some()),
        ("min_score", filter.min_score.is_some()),
    ];
    if found.spec.score().calibration.is_some()
        && let Some((name, _)) = amounts.into_iter().find(|(_, is_set)| *is_set)
    {
        let message =
            format!("`{name}` has no effect: the threshold in `score.calibration` decides");
        let hint = "remove it, or remove `score.calibration` to rank only the samples of this run";
        found.warning(&format!("stages.filter.{name}"), message, hint);
    }
}

/// Warns about budgets whose `min_tokens` no window reaches. `bos`: number of added BOS tokens, which are not counted.
pub(super) fn budgets_without_windows(bos: u8, found: &mut Findings<'_>) {
    if found.spec.pipeline.output.samples == Samples::Documents {
        return;
    }
    let longest = found.spec.tokenize().text_tokens(bos);
    for (index, budget) in found.spec.filter().budgets.iter().flatten().enumerate() {
        if budget.min_tokens.is_some_and(|min| min > longest) {
            let path = format!("stages.filter.budgets.{index}.min_tokens");
            let message = format!("a window has at most {} without BOS", counted(longest, "token"));
            found.warning(&path, message, format!("lower `min_tokens` to {longest}"));
        }
    }
}

/// Checks that every column exists and has a readable type, and that output columns do not exist in the input.
pub(super) fn columns(
    columns: &DocumentColumns,
    subject: &Subject,
    statistics: &[Column],
    dataset: &Dataset,
    found: &mut Findings<'_>,
) {
    let spec = found.spec;
    let fields = dataset.schema.fields();
    if fields.is_empty() {
        return;
    }
    content(columns, subject, dataset, found);
    if let Some(column) = &columns.id
        && let Err(problem) = dataset.check_id_column(column)
    {
        found.problem("input.id_column", problem);
    }
    for (column, setting) in [
        (&spec.score().within, "stages.score.within"),
        (&spec.pipeline.output.report_by, "output.report_by"),
    ] {
        if let Some(Err(problem)) = column.as_ref().map(|name| dataset.check_label_column(name)) {
            found.problem(setting, problem);
        }
    }
    let statistics = columns::output_statistics(statistics).map(columns::statistic_column);
    let marks = MARKS.into_iter().filter(|_| spec.filter().mark_only);
    let added = COLUMNS.into_iter().chain(marks).chain(quarantine::COLUMNS).map(str::to_owned);
    // DuckDB, Spark and Hive ignore case in names: they would read the input's column instead of ours.
    let of_input =
        |name: &String| fields.iter().find(|field| field.name().eq_ignore_ascii_case(name));
    let taken: Vec<String> =
        added.chain(statistics).filter_map(|name| Some(of_input(&name)?.name().clone())).collect();
    if !taken.is_empty() {
        let message = format!("the input already has the columns `{}`", taken.join("`, `"));
        let hint = "it is the output or the quarantine of an earlier run; rename or drop these columns first";
        found.error("input.path", message, hint);
    }
}

/// Returns the BOS tokens before each window: as many as set, else one if the model has a BOS token.
fn bos(config: &ModelConfig, found: &mut Findings<'_>) -> Bos {
    let spec = found.spec;
    let wanted = spec.tokenize().bos;
    if wanted == Some(0) {
        return Bos::default();
    }
    // With token ids as input no tokenizer file is opened, so only config.json names the BOS token.
    let known = match spec.pipeline.input.tokens_column {
        Some(_) => config.stated_bos_token_id(),
        None => config.bos_token_id(),
    };
    let vocabulary = config.spec().vocabulary_size;
    let (message, hint) = match (wanted, known) {
        (_, Some(id)) if u64::from(id) >= vocabulary => (
            format!("the BOS token is {id}, but the model's vocabulary has {vocabulary} entries"),
            "set `bos: 0`, or use the tokenizer that came with this checkpoint",
        ),
        (None, None) => return Bos::default(),
        (wanted, Some(id)) => return Bos { count: wanted.unwrap_or(1), id },
        (Some(count), None) => {
            (format!("`bos` is {count}, but the model has no BOS token"), "set `bos: 0`")
        }
    };
    found.error("stages.tokenize.bos", message, hint);
    Bos::default()
}

/// Checks tokens and distances of the first-layer model, and returns the BOS tokens: its own, or those of the whole model.
pub(super) fn tokens(
    model: Option<&ModelFolder>,
    whole: Option<&WholeModelPlan>,
    encoder: Option<&Encoder>,
    options: &PlanOptions,
    found: &mut Findings<'_>,
) -> Bos {
    if let (Some(model), Some(encoder)) = (model, encoder) {
        let vocabulary = model.spec().vocabulary_size;
        let largest = u64::from(encoder.largest_id());
        if largest >= vocabulary {
            let message = format!(
                "the tokenizer has ids up to {largest}, but the model's embedding has only {vocabulary} rows"
            );
            let hint = "the tokenizer belongs to another model; use the one that came with this checkpoint";
            found.error(tokenizer_setting(found.spec), message, hint);
        }
    }
    if let Some(model) = model.filter(|_| options.subject == Subject::Windows) {
        distance(model, found);
    }
    let config = model.map(ModelFolder::config).or(whole.map(|whole| whole.model.config()));
    config.map_or_else(Bos::default, |config| bos(config, found))
}

pub(super) fn tokenizer(encoder: Option<&Encoder>, found: &mut Findings<'_>) {
    let Some(encoder) = encoder else { return };
    for message in encoder.warnings() {
        let hint = "compare what `longsift tokens --ids` prints with the ids that the model was trained on";
        found.warning(tokenizer_setting(found.spec), message, hint);
    }
    let largest = encoder.largest_id();
    if let Some(id) = found.spec.pipeline.output.end_token.filter(|id| *id > largest) {
        let message = format!("`end_token` is {id}, but the tokenizer has ids up to {largest}");
        let hint = "the model that is trained must have a row for it";
        found.warning("output.end_token", message, hint);
    }
}

pub(super) fn tokenizer_setting(spec: &Spec) -> &'static str {
    if spec.tokenize().tokenizer.is_some() {
        "stages.tokenize.tokenizer"
    } else if spec.load_partial_model().is_some() {
        MODEL
    } else {
        "stages.language-model.model"
    }
}

/// Checks that the distance fits the window and the attention of layer 0, and that the window fits the trained positions.
fn distance(model: &ModelFolder, found: &mut Findings<'_>) {
    let spec = found.spec;
    let (Some(reading), Some(measure)) = (spec.load_partial_model(), spec.first_layer_attention())
    else {
        return;
    };
    let window = u64::from(spec.tokenize().window_tokens);
    let distance = measure.far_distance().in_window(window);
    let layer = model.spec();
    if distance >= window {
        let message = format!(
            "the far distance is {distance} tokens, but a window has at most {window}: no token is that far away"
        );
        let hint = "lower `min_distance_tokens` (or the fraction), or raise `window_tokens`";
        found.error("stages.first-layer-attention", message, hint);
    }
    if let Some(problem) = layer.distance_problem(distance) {
        found.problem(MODEL, problem);
    }
    positions(layer, window, reading.strict_positions, "scores", found);
}

/// Checks that windows have positions that the model supports, and whether it was trained with them: more are an error if
/// `strict`, else a warning about `results`. Returns whether the model supports them.
pub(super) fn positions(
    layer: &AttentionSpec,
    window_tokens: u64,
    strict: bool,
    results: &str,
    found: &mut Findings<'_>,
) -> bool {
    let setting = "stages.tokenize.window_tokens";
    if let Some(problem) = layer.window_problem(window_tokens) {
        found.problem(setting, problem);
        return false;
    }
    match layer.positions_warning(window_tokens) {
        None => {}
        Some(message) if strict => found.error(
            setting,
            message,
            "lower `window_tokens`, use a model with more positions, or set `strict_positions: false` to be warned only",
        ),
        Some(message) => found.warning(setting, message, format!(
            "{results} beyond the trained positions are defined, but unreliable; `strict_positions: true` makes this an error"
        )),
    }
    true
}
