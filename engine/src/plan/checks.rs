//! Checks of a pipeline whose input, model and tokenizer are open.

use std::collections::BTreeSet;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use longsift_kernels::{ElementType, Kernel};
use longsift_stages::contract::Column;
use longsift_stages::load_partial_model::Precision;
use longsift_stages::model::{ModelConfig, ModelFolder};
use longsift_stages::score::presets::Formula;
use longsift_stages::shard_across_devices::{DeviceKind, DeviceSettings};
use longsift_stages::tokenize::encoder::Encoder;
use longsift_stages::{LoadPartialModel, ShardAcrossDevices};
use serde_json::json;

use super::columns::{self, COLUMNS, MARKS};
use super::options::{Bos, PlanOptions, Subject};
use crate::base::diagnostic::{Blame, Diagnostic};
use crate::base::error;
use crate::base::machine;
use crate::base::text::{bytes, counted, quoted};
use crate::dataset::documents::{ContentColumn, DocumentColumns};
use crate::dataset::input::Dataset;
use crate::dataset::problem::DataProblem;
use crate::dataset::{part, part_lines};
use crate::devices::choose;
use crate::devices::device::{DeviceCriteria, Devices, NoDevices};
use crate::run_directory::calibration as saved;
use crate::run_directory::layout::RunDirectory;
use crate::run_directory::quarantine;
use crate::spec::Spec;
use crate::spec::pipeline::{OutputFormat, Samples};
use crate::storage::error::ErrorKind;
use crate::storage::{files, store};

/// Settings of an adapter, as the PEFT library saves it.
const ADAPTER: &str = "adapter_config.json";
/// Maximum number of unreadable files that are listed one by one.
const MAX_LISTED_FILES: usize = 5;

/// Returns the value, or adds its problems with the location `setting`.
pub(super) fn collect<T, P: Into<Diagnostic>>(
    opened: Result<T, Vec<P>>,
    spec: &Spec,
    setting: &str,
    problems: &mut Vec<Diagnostic>,
) -> Option<T> {
    match opened {
        Ok(value) => Some(value),
        Err(found) => {
            problems.extend(
                found.into_iter().map(|problem| problem.into().or_at(spec.locate(setting))),
            );
            None
        }
    }
}

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

/// Reports settings with object store addresses if this build does not support stores; reading the input reports its
/// own.
pub(super) fn stores(spec: &Spec) -> Vec<Diagnostic> {
    let pipeline = &spec.pipeline;
    let settings = [
        (Some(&pipeline.output.path), "output.path"),
        (pipeline.input.since.as_ref(), "input.since"),
        (spec.score().calibration.as_ref(), "stages.score.calibration"),
    ];
    let absent = settings.into_iter().filter_map(|(path, setting)| {
        let path = path.filter(|path| path.is_address())?;
        let message = format!("`{path}` is in an object store, which this build does not support");
        Some(spec.error(setting, message).hint("build with `--features cloud`"))
    });
    if cfg!(feature = "cloud") { Vec::new() } else { absent.collect() }
}

/// Checks that the calibration in the pipeline is valid. Whether it matches is checked later, with the digests of a
/// run.
pub(super) fn calibration(spec: &Spec) -> error::Result<()> {
    let Some(path) = &spec.score().calibration else { return Ok(()) };
    let (file, setting) =
        (spec.resolve(path).to_path_buf(), spec.locate("stages.score.calibration"));
    if files::size(&file)?.is_none() {
        let problem = Diagnostic::error(Blame::Pipeline, format!("calibration `{path}` not found"));
        let hint = "use the `calibration.json` of a finished run directory";
        return Err(problem.at(setting).hint(hint).into());
    }
    let bytes = saved::bytes(&file).map_err(|failure| failure.or_at(&setting))?;
    saved::check_unchanged(&file, &bytes).map_err(|failure| failure.or_at(&setting))?;
    saved::parse(&path.to_string(), setting, &bytes).map(drop)
}

/// Checks before scoring that the run can commit: no file in place of a folder, no folder on another file system than its
/// parent, which would prevent atomic renames, and no run directory of another output.
pub(super) fn output_paths(spec: &Spec, directory: &RunDirectory) -> Vec<Diagnostic> {
    if store::is_address(&directory.output) {
        return Vec::new();
    }
    let status = |path: &Path| std::fs::metadata(path).ok();
    let problem = |message: String, hint: &str| spec.error("output.path", message).hint(hint);
    let (data, root) = (directory.data(), &directory.root);
    let mut folders = vec![(&directory.output, data)];
    folders.extend(directory.committed_folders().map(|folder| (root, folder)));
    let mut problems = Vec::new();
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
            let message = || format!("`{}` is a file, but must be a folder", path.display());
            if status(path).is_some_and(|status| !status.is_dir()) {
                problems.push(problem(message(), "move it away, or choose another `output.path`"));
            }
        }
        let device = |folder: &Path| status(folder).map(|status| status.dev());
        if let (Some(outer), Some(inner)) = (device(around), device(&folder))
            && outer != inner
        {
            let name = folder.file_name().unwrap_or_default().to_string_lossy();
            let message =
                format!("`{}` is on a different file system from its parent", folder.display());
            let hint = format!("link or mount its parent instead of `{name}`");
            problems.push(problem(message, &hint));
        }
    }
    problems.dedup_by(|one, other| one.message == other.message);
    problems
}

/// Checks before scoring that files can be created in the folders that a run writes to: in each that exists, and in the
/// nearest existing folder above each that does not.
///
/// # Errors
/// One problem per folder that is not writable.
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
pub(super) fn output_format(spec: &Spec, dataset: &Dataset, problems: &mut Vec<Diagnostic>) {
    let (columns, other) = match spec.pipeline.output.format {
        OutputFormat::Parquet => {
            (part::unsupported_columns(&dataset.schema), OutputFormat::JsonlZst)
        }
        OutputFormat::JsonlZst => {
            (part_lines::unsupported_columns(&dataset.schema), OutputFormat::Parquet)
        }
        OutputFormat::Megatron => return,
    };
    for column in columns {
        let hint = format!(
            "write `format: {}`, or remove the column from the input",
            json!(other).as_str().unwrap_or_default()
        );
        problems.push(spec.error("output.format", format!("column {column}")).hint(hint));
    }
}

/// Warns about maps in JSON output: a row whose map has a key twice cannot be written, since readers of JSON would lose a value.
/// Input lines of JSON are checked when they are read.
pub(super) fn maps(spec: &Spec, dataset: &Dataset) -> Option<Diagnostic> {
    let is_json = spec.pipeline.output.format == OutputFormat::JsonlZst;
    let columns = part_lines::map_columns(&dataset.schema);
    if !is_json || columns.is_empty() || dataset.lines.is_some() {
        return None;
    }
    let message = format!(
        "maps ({}): if a map of a kept row has a key twice, the run fails when it writes JSON, after scoring",
        columns.join(", ")
    );
    Some(
        spec.warning("output.format", message)
            .hint("`format: parquet` writes such rows as they are"),
    )
}

/// Warns about adapters next to weights: the transformers library applies them.
pub(super) fn adapters<'a>(folders: impl Iterator<Item = &'a Path>) -> Vec<Diagnostic> {
    let files: BTreeSet<PathBuf> = folders.map(|folder| folder.join(ADAPTER)).collect();
    let there = files.into_iter().filter(|file| file.is_file());
    let warning = |file: PathBuf| {
        let message = format!(
            "{} is ignored: scores are those of the model without this adapter",
            quoted(&file.display().to_string())
        );
        Diagnostic::warning(Blame::Data, message).hint(
            "the transformers library applies it; to score with it, merge it into the weights (`merge_and_unload`) and save them in another folder",
        )
    };
    there.map(warning).collect()
}

pub(super) fn devices(
    spec: &Spec,
    reading: &LoadPartialModel,
    sharing: &ShardAcrossDevices,
    model: Option<&ModelFolder>,
    options: &PlanOptions,
    problems: &mut Vec<Diagnostic>,
) -> Option<Devices> {
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
            Some(wanted.named(name, options.devices_absent, problems)?)
        }
    };
    let detected = Kernel::detect(table.element_type());
    if named.is_none() && !options.devices_absent && detected == Kernel::PortableInt16 {
        problems.push(integers_without_vectors(spec));
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
        element_type: table.element_type(),
        threads: options.threads.unwrap_or_else(rayon::current_num_threads),
        window_memory_bytes: spec.pipeline.input.memory_limit_bytes / 2,
        number_bytes: table.bytes(),
    });
    match chosen {
        Ok(devices) if options.devices_absent => {
            let kernel = named.unwrap_or(devices.kernel);
            Some(Devices { kernel, ..devices })
        }
        Ok(devices) => Some(devices),
        Err(none) => {
            problems.push(no_devices(spec, none));
            None
        }
    }
}

pub(super) fn no_devices(spec: &Spec, none: NoDevices) -> Diagnostic {
    let setting = format!("stages.shard-across-devices.{}", none.key);
    spec.error(&setting, none.message).hint(none.hint)
}

/// Returns the error for `precision: int16` on a processor without vector instructions for integers.
fn integers_without_vectors(spec: &Spec) -> Diagnostic {
    let reason = Kernel::Avx2Int16.unsupported_reason().unwrap_or("it is not detected");
    let message = format!("`precision: int16` requires an x86_64 processor with AVX2: {reason}");
    spec.error("stages.load-partial-model.precision", message).hint(
        "write `precision: f32` or `bf16`; `--kernel portable-int16` computes the same scores as other machines, slowly",
    )
}

/// Returns the kernel of whole models: the one named by `--kernel`, or the kernel for weights that goes with it if a
/// first layer is measured by a kernel that rounds or runs on GPUs.
pub(super) fn whole_model_kernel(
    spec: &Spec,
    measure: &str,
    options: &PlanOptions,
    problems: &mut Vec<Diagnostic>,
) -> Kernel {
    let fastest = Kernel::detect(ElementType::F32);
    let Some(name) = &options.kernel else { return fastest };
    let named = if spec.load_partial_model().is_some() {
        // The check of the first layer's kernel reports invalid names.
        Kernel::from_name(name).map(Kernel::for_weights)
    } else {
        let wanted = WantedKernel {
            table: Precision::F32,
            reason: format!("`{measure}` computes float32 numbers on processors"),
            context: format!("for `{measure}`"),
            on_gpus: false,
        };
        wanted.named(name, options.devices_absent, problems)
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

    /// Returns the kernel called `name` if it fits and this machine's processor supports it. GPUs are checked when
    /// devices are chosen.
    ///
    /// `elsewhere`: the kernel will run on another machine.
    fn named(&self, name: &str, elsewhere: bool, problems: &mut Vec<Diagnostic>) -> Option<Kernel> {
        let found = Kernel::from_name(name);
        let is_here = |kernel: Kernel| !(kernel.is_cuda() || elsewhere);
        let missing =
            |kernel: Kernel| if is_here(kernel) { kernel.unsupported_reason() } else { None };
        let message = match found.map(|kernel| (kernel, missing(kernel))) {
            Some((kernel, None)) if self.fits(kernel) => return found,
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
        let fits = |kernel: &&Kernel| self.fits(**kernel) && !kernel.is_cuda();
        let (has, lacks): (Vec<&Kernel>, Vec<&Kernel>) =
            Kernel::ALL.iter().filter(fits).partition(|kernel| kernel.is_supported());
        let has: Vec<&str> = has.into_iter().map(|kernel| kernel.name()).collect();
        let lacks: Vec<String> = lacks
            .into_iter()
            .filter_map(|kernel| {
                Some(format!("{} ({})", kernel.name(), kernel.unsupported_reason()?))
            })
            .collect();
        let lacks = match &lacks[..] {
            [] => String::new(),
            lacks => format!("; not supported: {}", lacks.join(", ")),
        };
        let hint = format!("{} this machine has {}{lacks}", self.context, has.join(", "));
        problems.push(Diagnostic::error(Blame::Pipeline, message).hint(hint));
        None
    }
}

/// Warns about the files that the run skips: individually for the first few.
pub(super) fn bad_files(dataset: &Dataset) -> Vec<Diagnostic> {
    let bad = &dataset.bad_files;
    let mut warnings: Vec<Diagnostic> = bad
        .iter()
        .take(MAX_LISTED_FILES)
        .map(|file| {
            let message = format!("{}; the run continues without this file", file.problem);
            Diagnostic::warning(Blame::Data, message)
        })
        .collect();
    if bad.len() > MAX_LISTED_FILES {
        let message = format!("{} files cannot be opened, including those above", bad.len());
        warnings.push(Diagnostic::warning(Blame::Data, message));
    }
    warnings
}

/// Checks that the column of text, tokens or messages exists and has a readable type.
pub(super) fn content(
    spec: &Spec,
    columns: &DocumentColumns,
    subject: &Subject,
    dataset: &Dataset,
    problems: &mut Vec<Diagnostic>,
) {
    let (found, setting) = match (&columns.content, subject) {
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
            let problem = spec.error("input.tokens_column", message);
            problems.push(problem.hint("use a pipeline with a tokenizer, or omit the messages"));
            return;
        }
        (ContentColumn::Tokens(column), _) => {
            (dataset.check_tokens_column(column), "input.tokens_column")
        }
    };
    collect(found.map_err(|problem| vec![problem]), spec, setting, problems);
}

/// Warns if random scores depend on file names and row numbers for lack of an id column.
pub(super) fn random_without_ids(spec: &Spec) -> Option<Diagnostic> {
    let pipeline = &spec.pipeline;
    let is_compared = pipeline.output.compare.contains(&Formula::Random);
    let setting = if spec.score().random_seed().is_some() {
        "stages.score.formula"
    } else if is_compared {
        "output.compare"
    } else {
        return None;
    };
    let message = "random scores depend on the files: without `input.id_column` they are derived from each file's path and row";
    let hint = "set `input.id_column`: scores then do not depend on order, files or shards";
    let warning = spec.warning(setting, message).hint(hint);
    pipeline.input.id_column.is_none().then_some(warning)
}

/// Warns about an amount that the threshold of a calibration replaces.
pub(super) fn replaced_amount(spec: &Spec) -> Option<Diagnostic> {
    spec.score().calibration.as_ref()?;
    let filter = spec.filter();
    let amounts = [
        ("keep_fraction", filter.keep_fraction.is_some()),
        ("keep_tokens", filter.keep_tokens.is_some()),
        ("min_score", filter.min_score.is_some()),
    ];
    let (name, _) = amounts.into_iter().find(|(_, is_set)| *is_set)?;
    let message = format!("`{name}` has no effect: the threshold in `score.calibration` decides");
    let hint = "remove it, or remove `score.calibration` to rank only the samples of this run";
    Some(spec.warning(&format!("stages.filter.{name}"), message).hint(hint))
}

/// Warns about budgets whose `min_tokens` no window reaches. `bos`: number of added BOS tokens, which are not counted.
pub(super) fn budgets_without_windows(spec: &Spec, bos: u8) -> Vec<Diagnostic> {
    if spec.pipeline.output.samples == Samples::Documents {
        return Vec::new();
    }
    let longest = spec.tokenize().text_tokens(bos);
    let budgets = spec.filter().budgets.iter().flatten().enumerate();
    let too_long = budgets.filter(|(_, budget)| budget.min_tokens.is_some_and(|min| min > longest));
    let warning = |(index, _)| {
        let path = format!("stages.filter.budgets.{index}.min_tokens");
        let message = format!("a window has at most {} without BOS", counted(longest, "token"));
        spec.warning(&path, message).hint(format!("lower `min_tokens` to {longest}"))
    };
    too_long.map(warning).collect()
}

/// Checks that every other column exists and has a readable type, and that output columns do not exist in the input.
pub(super) fn columns(
    spec: &Spec,
    columns: &DocumentColumns,
    statistics: &[Column],
    dataset: &Dataset,
    problems: &mut Vec<Diagnostic>,
) {
    let mut check = |found: Result<usize, DataProblem>, setting: &str| {
        collect(found.map_err(|problem| vec![problem]), spec, setting, problems);
    };
    if let Some(column) = &columns.id {
        check(dataset.check_id_column(column), "input.id_column");
    }
    if let Some(column) = &spec.score().within {
        check(dataset.check_label_column(column), "stages.score.within");
    }
    if let Some(column) = &spec.pipeline.output.report_by {
        check(dataset.check_label_column(column), "output.report_by");
    }
    let statistics = columns::output_statistics(statistics).map(columns::statistic_column);
    let marks = MARKS.into_iter().filter(|_| spec.filter().mark_only);
    let added = COLUMNS.into_iter().chain(marks).chain(quarantine::COLUMNS).map(str::to_owned);
    let mut taken: Vec<String> = added.chain(statistics).collect();
    // DuckDB, Spark and Hive ignore case in names: they would read the input's column instead of ours.
    let fields = dataset.schema.fields();
    let of_input =
        |name: &String| fields.iter().find(|field| field.name().eq_ignore_ascii_case(name));
    taken = taken.iter().filter_map(|name| Some(of_input(name)?.name().clone())).collect();
    if !taken.is_empty() {
        let message = format!("the input already has the columns `{}`", taken.join("`, `"));
        let hint = "it is the output or the quarantine of an earlier run; rename or drop these columns first";
        problems.push(spec.error("input.path", message).hint(hint));
    }
}

/// Returns the number of BOS tokens before each window: the setting, else one if the model has a BOS token.
pub(super) fn bos(
    spec: &Spec,
    config: &ModelConfig,
    problems: &mut Vec<Diagnostic>,
) -> Option<Bos> {
    let wanted = spec.tokenize().bos;
    if wanted == Some(0) {
        return Some(Bos { count: 0, id: 0 });
    }
    // With token ids as input no tokenizer file is opened, so only config.json names the BOS token.
    let known = match spec.pipeline.input.tokens_column {
        Some(_) => config.stated_bos_token_id(),
        None => config.bos_token_id(),
    };
    let vocabulary = config.spec().vocabulary_size;
    let mut refuse = |message: String, hint: &str| {
        problems.push(spec.error("stages.tokenize.bos", message).hint(hint));
        None
    };
    if let Some(id) = known.filter(|id| u64::from(*id) >= vocabulary) {
        let message =
            format!("the BOS token is {id}, but the model's vocabulary has {vocabulary} entries");
        return refuse(
            message,
            "set `bos: 0`, or use the tokenizer that came with this checkpoint",
        );
    }
    match (wanted, known) {
        (None, None) => Some(Bos { count: 0, id: 0 }),
        (None, Some(id)) => Some(Bos { count: 1, id }),
        (Some(count), Some(id)) => Some(Bos { count, id }),
        (Some(count), None) => {
            refuse(format!("`bos` is {count}, but the model has no BOS token"), "set `bos: 0`")
        }
    }
}

/// Checks that every token of the tokenizer has a row in the embedding.
pub(super) fn tokens(
    spec: &Spec,
    model: &ModelFolder,
    encoder: Option<&Encoder>,
    problems: &mut Vec<Diagnostic>,
) {
    let vocabulary = model.spec().vocabulary_size;
    let Some(encoder) = encoder else { return };
    let largest = u64::from(encoder.largest_id());
    if largest >= vocabulary {
        let message = format!(
            "the tokenizer has ids up to {largest}, but the model's embedding has only {vocabulary} rows"
        );
        let hint =
            "the tokenizer belongs to another model; use the one that came with this checkpoint";
        problems.push(spec.error(tokenizer_setting(spec), message).hint(hint));
    }
}

pub(super) fn tokenizer(spec: &Spec, encoder: Option<&Encoder>) -> Vec<Diagnostic> {
    let messages = encoder.map(Encoder::warnings).unwrap_or_default().into_iter();
    let warning = |message| {
        spec.warning(tokenizer_setting(spec), message).hint(
            "compare what `longsift tokens --ids` prints with the ids that the model was trained on",
        )
    };
    let largest = encoder.map(Encoder::largest_id);
    let unknown = spec.pipeline.output.end_token.zip(largest).filter(|(id, largest)| id > largest);
    let unknown = unknown.map(|(id, largest)| {
        let message = format!("`end_token` is {id}, but the tokenizer has ids up to {largest}");
        spec.warning("output.end_token", message)
            .hint("the model that is trained must have a row for it")
    });
    messages.map(warning).chain(unknown).collect()
}

pub(super) fn tokenizer_setting(spec: &Spec) -> &'static str {
    if spec.tokenize().tokenizer.is_some() {
        "stages.tokenize.tokenizer"
    } else if spec.load_partial_model().is_some() {
        "stages.load-partial-model.model"
    } else {
        "stages.language-model.model"
    }
}

/// Checks that the distance fits the window, that the attention of layer 0 reaches that far, and that the window fits
/// the trained positions.
pub(super) fn distance(
    spec: &Spec,
    model: &ModelFolder,
    problems: &mut Vec<Diagnostic>,
    warnings: &mut Vec<Diagnostic>,
) {
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
        problems.push(spec.error("stages.first-layer-attention", message).hint(hint));
    }
    if let Some(problem) = layer.distance_problem(distance) {
        problems.push(Diagnostic::from(problem).at(spec.locate("stages.load-partial-model.model")));
    }
    if let Some(problem) = layer.window_problem(window) {
        problems.push(Diagnostic::from(problem).at(spec.locate("stages.tokenize.window_tokens")));
        return;
    }
    if let Some(message) = layer.positions_warning(window) {
        positions(spec, message, reading.strict_positions, "scores", problems, warnings);
    }
}

/// Reports windows that are longer than the trained positions: as an error if `strict`, else as a warning about `results`.
pub(super) fn positions(
    spec: &Spec,
    message: String,
    strict: bool,
    results: &str,
    problems: &mut Vec<Diagnostic>,
    warnings: &mut Vec<Diagnostic>,
) {
    let setting = "stages.tokenize.window_tokens";
    if strict {
        problems.push(spec.error(setting, message).hint(
            "lower `window_tokens`, use a model with more positions, or set `strict_positions: false` to be warned only",
        ));
    } else {
        warnings.push(spec.warning(setting, message).hint(format!(
            "{results} beyond the trained positions are defined, but unreliable; `strict_positions: true` makes this an error"
        )));
    }
}
