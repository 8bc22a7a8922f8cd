//! Detection of the document column and window length of an input, for `longsift init`.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use arrow_schema::DataType;
use longsift_stages::contract::{Address, location};

use super::lengths;
use crate::base::diagnostic::{Blame, Diagnostic, DiagnosticLocation};
use crate::base::error::Result;
use crate::base::secrets;
use crate::base::text::quoted;
use crate::dataset::formats::type_names;
use crate::dataset::input::Dataset;
use crate::plan::options::PlanOptions;
use crate::plan::{Plan, fetch};
use crate::spec::init::{Content, Starter};
use crate::spec::{Overrides, Spec};

/// Usual names of columns with the text of documents, token ids, and document ids, the most likely first.
const TEXT_COLUMNS: [&str; 8] =
    ["text", "content", "raw_content", "document", "body", "markdown", "code", "article"];
const TOKENS_COLUMNS: [&str; 4] = ["input_ids", "tokens", "token_ids", "ids"];
const ID_COLUMNS: [&str; 6] = ["id", "doc_id", "document_id", "_id", "uuid", "url"];

/// Minimum window proposed: shorter documents have no long range.
const MIN_WINDOW_TOKENS: u32 = 1024;

/// Input of a new pipeline.
#[derive(Clone, Debug, clap::Args)]
pub struct StarterOptions {
    /// Input: files of one folder, a folder, or a glob in quotes. The window length is set so that at least half of the
    /// documents fill a window.
    pub inputs: Vec<PathBuf>,
    /// Column with the documents, text or token ids; by default detected by its name.
    #[arg(long, value_name = "COLUMN")]
    pub column: Option<String>,
    /// Pipeline file to write; fails if it exists. `pipeline.schema.json`, for editors, is written to the same folder.
    #[arg(long, value_name = "FILE", default_value = "pipeline.yaml")]
    pub output: PathBuf,
    /// Tokenizer: a folder with tokenizer.json, or a GGUF file; by default the model's.
    #[arg(long, value_name = "FOLDER")]
    pub tokenizer: Option<String>,
    /// Model folder; the pipeline then also measures first-layer attention.
    #[arg(long, value_name = "FOLDER")]
    pub model: Option<String>,
}

pub(crate) fn problem(message: String) -> Diagnostic {
    Diagnostic::error(Blame::Pipeline, message)
}

/// Creates a pipeline with the columns of the input and windows that half of the documents fill. Returns a warning if
/// documents are short. Fails if anything prevents a run of the pipeline.
pub fn detect(wanted: &StarterOptions) -> Result<(Starter, Option<Diagnostic>)> {
    let StarterOptions { inputs, column, output, tokenizer, model } = wanted;
    let input = input_path(inputs)?;
    tokenizer.iter().chain(model).try_for_each(|address| check_address(address))?;
    let dataset = fetch::open_dataset(&input)?;
    if dataset.files.is_empty() {
        let hint =
            "name files, a folder, or one glob in quotes: `longsift init 'corpus/*.jsonl' …`";
        return Err(problem(format!("no file matches {}", quoted(&input))).hint(hint).into());
    }
    let content = content(&dataset, column.as_deref())?;
    if matches!(content, Content::Text(_)) && tokenizer.is_none() && model.is_none() {
        let message = "text input requires a tokenizer".to_owned();
        let hint = "add `--tokenizer FOLDER`, a folder with tokenizer.json (or a GGUF file), or `--model FOLDER`";
        return Err(problem(message).hint(hint).into());
    }
    let columns = dataset.schema.fields().iter();
    let folder = output.parent().unwrap_or(Path::new(""));
    let place = |path: &str| from_folder(folder, path);
    let mut starter = Starter {
        name: name(&input),
        columns: columns
            .map(|field| (field.name().clone(), type_names::name(field.data_type())))
            .collect(),
        id: id_column(&dataset),
        content,
        input: place(&input)?,
        tokenizer: tokenizer.as_deref().map(place).transpose()?,
        model: model.as_deref().map(place).transpose()?,
        window_tokens: MIN_WINDOW_TOKENS,
        is_short: true,
    };
    let not_written = format!("{} (not written)", output.display());
    let (spec, warnings) = Spec::parse(&not_written, &starter.yaml(), &Overrides::default())?;
    let plan = Plan::new(spec, PlanOptions::default(), warnings)?;
    let sample = lengths::sample(&plan);
    starter.window_tokens = sample.window_tokens().unwrap_or(MIN_WINDOW_TOKENS);
    starter.is_short = sample.window_tokens().is_none();
    let mut warning = sample.dropped_warning(&plan).filter(|_| starter.is_short);
    if let Some(DiagnosticLocation::Text(line)) =
        warning.as_mut().and_then(|warning| warning.location.as_mut())
    {
        line.name = output.display().to_string();
    }
    Ok((starter, warning))
}

/// Refuses an address with one slash, and one with secret parts, which would be written into the pipeline.
fn check_address(address: &str) -> Result<()> {
    if let Some(scheme) = location::scheme_with_one_slash(address) {
        let message = format!("an address has one slash after `{}:`", scheme.name());
        return Err(problem(message).hint(format!("it begins with `{scheme}`")).into());
    }
    if location::split(address).is_none() || secrets::split(address).1.is_empty() {
        return Ok(());
    }
    let message = format!(
        "the address {} has a user, a password or a query, which `init` does not write into a pipeline",
        quoted(&secrets::shown(address))
    );
    Err(problem(message)
        .hint("name a file of this machine with the same columns, and run the pipeline with `--set input.path=ADDRESS`")
        .into())
}

/// Combines the inputs into one path: a single one unchanged, several files as a glob that matches no other file.
fn input_path(inputs: &[PathBuf]) -> Result<String> {
    let text = |path: &Path| -> Result<String> {
        let not_text =
            || problem(format!("{} is not valid UTF-8", quoted(&path.to_string_lossy())));
        Ok(path.to_str().map(str::to_owned).ok_or_else(not_text)?)
    };
    let texts = inputs.iter().map(|path| text(path)).collect::<Result<Vec<_>>>()?;
    if let Some(parameter) = texts.iter().find(|text| text.contains("${")) {
        let message =
            format!("the input {} contains `${{`, the start of a parameter", quoted(parameter));
        return Err(problem(message)
            .hint("name files that exist; then declare the parameter in `params` of the pipeline and use it in `input.path`")
            .into());
    }
    let is_other =
        |text: &&String| location::split(text).is_some() && Address::parse(text).is_none();
    if let Some(other) = texts.iter().find(is_other) {
        let message = format!("the input cannot be the address {}", quoted(&secrets::shown(other)));
        return Err(problem(message)
            .hint("name files of this machine, or an address that `input.path` accepts")
            .into());
    }
    texts.iter().try_for_each(|text| check_address(text))?;
    if let [input] = &texts[..] {
        return Ok(input.clone());
    }
    let folder = inputs[0].parent().unwrap_or(Path::new(""));
    let ending = |path: &Path| {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        name.split_once('.').map_or(String::new(), |(_, ending)| format!(".{ending}"))
    };
    let glob = text(&folder.join(format!("*{}", ending(&inputs[0]))))?;
    let matched = fetch::open_dataset(&glob)?;
    let all: BTreeSet<PathBuf> =
        matched.files.iter().map(|file| matched.root.join(&file.path)).collect();
    let canonical = |path: &PathBuf| fs::canonicalize(path).unwrap_or_else(|_| path.clone());
    let given = inputs.iter().map(canonical).collect::<BTreeSet<_>>();
    if all.iter().map(canonical).collect::<BTreeSet<_>>() == given {
        return Ok(glob);
    }
    let message = format!(
        "expected all files of one folder with the same extension, got {} inputs",
        inputs.len()
    );
    Err(problem(message)
        .hint("name one folder, or one glob in quotes: `longsift init 'corpus/*.jsonl' …`")
        .into())
}

/// Returns a path for a pipeline in `folder`: relative to it, or absolute if the folder is not the current one.
fn from_folder(folder: &Path, path: &str) -> Result<String> {
    let is_here = folder.as_os_str().is_empty() || folder == Path::new(".");
    if is_here || Address::parse(path).is_some() || Path::new(path).is_absolute() {
        return Ok(path.to_owned());
    }
    let here = std::env::current_dir().map_err(|error| {
        Diagnostic::error(Blame::Machine, format!("cannot determine the current folder: {error}"))
    })?;
    Ok(here.join(path).display().to_string())
}

/// Derives the name of the pipeline from the file or folder of its input.
fn name(input: &str) -> String {
    let words = |text: &str| -> String {
        let letters =
            text.chars().map(|letter| if letter.is_alphanumeric() { letter } else { '-' });
        letters.collect::<String>().trim_matches('-').to_owned()
    };
    let parts = Path::new(input).iter().rev().map(|part| part.to_string_lossy());
    let plain = parts.filter(|part| !part.contains(['*', '?', '[']));
    let stems = plain.map(|part| words(part.split('.').next().unwrap_or_default()));
    stems.into_iter().find(|stem| !stem.is_empty()).unwrap_or_else(|| "my-corpus".to_owned())
}

/// Returns the document column: `wanted`, or one with a usual name, or the only one of its type.
fn content(dataset: &Dataset, wanted: Option<&str>) -> Result<Content> {
    if let Some(name) = wanted {
        if dataset.check_tokens_column(name).is_ok() {
            return Ok(Content::Tokens(name.to_owned()));
        }
        dataset.check_text_column(name).map_err(Diagnostic::from)?;
        return Ok(Content::Text(name.to_owned()));
    }
    let named = |names: &[&str], fits: &dyn Fn(&str) -> bool| {
        let known = names.iter().find(|name| dataset.column(name).is_some() && fits(name));
        known.map(|name| (*name).to_owned())
    };
    let is_text = |name: &str| dataset.check_text_column(name).is_ok();
    let is_tokens = |name: &str| dataset.check_tokens_column(name).is_ok();
    let only = |fits: &dyn Fn(&str) -> bool| {
        let mut all = dataset
            .column_names()
            .into_iter()
            .filter(|name| fits(name) && !ID_COLUMNS.contains(name));
        let first = all.next()?.to_owned();
        all.next().is_none().then_some(first)
    };
    let found = named(&TEXT_COLUMNS, &is_text)
        .map(Content::Text)
        .or_else(|| named(&TOKENS_COLUMNS, &is_tokens).map(Content::Tokens))
        .or_else(|| only(&is_text).map(Content::Text))
        .or_else(|| only(&is_tokens).map(Content::Tokens));
    Ok(found.ok_or_else(|| {
        let names = dataset.column_names().join(", ");
        problem(format!("cannot detect the document column; the input has: {names}"))
            .hint("name it with `--column NAME`")
    })?)
}

fn id_column(dataset: &Dataset) -> Option<String> {
    let fits = |name: &&&str| {
        let kind = dataset.column(name).map(|field| field.data_type().clone());
        kind.is_some_and(|kind| kind != DataType::Boolean && !kind.is_floating())
            && dataset.check_id_column(name).is_ok()
    };
    ID_COLUMNS.iter().find(fits).map(|name| (*name).to_owned())
}
