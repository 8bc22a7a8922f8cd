//! A pipeline file, parsed with positions.
//!
//! [`Spec::read`] opens only the pipeline file: it parses the YAML, applies the overrides of the command line and checks
//! everything that does not need the input or the model. The plan checks the rest, and uses [`Spec::locate`] to report at the
//! location of a setting.

pub(crate) mod assertions;
pub(crate) mod check;
pub mod init;
pub(crate) mod locations;
pub(crate) mod node;
pub(crate) mod overrides;
pub(crate) mod params;
pub(crate) mod pipeline;
#[cfg(test)]
mod pipeline_tests;
pub(crate) mod rules;
pub(crate) mod scalar;
pub(crate) mod schema;
pub(crate) mod source;
pub(crate) mod yaml;

use std::collections::BTreeMap;
use std::convert::identity;
use std::fs::File;
use std::io::{ErrorKind, Read};
use std::path::{Path, PathBuf};

use longsift_stages::contract::Location;
use longsift_stages::{
    External, Filter, FirstLayerAttention, LanguageModel, Lexical, LoadPartialModel, Role, Score,
    ShardAcrossDevices, StageSettings, Tokenize,
};
use serde_json::Value;

use crate::base::diagnostic::{Blame, Diagnostic, DiagnosticLocation, TextLocation};
use crate::base::secrets;
use crate::base::text::quoted;
use node::Node;
use pipeline::Pipeline;
use source::{Problems, Sources, Span};
use yaml::Origin;

/// Changes of the command line to a pipeline. The last one for a path or a name counts.
#[derive(Clone, Debug, Default, PartialEq, Eq, clap::Args)]
pub struct Overrides {
    /// Change a setting by its path: `--set stages.filter.keep_fraction=0.25`.
    #[arg(long, value_name = "PATH=VALUE")]
    pub set: Vec<String>,
    /// Set a parameter that the pipeline declares: `--param date=2026-11-20`.
    #[arg(long, value_name = "NAME=VALUE")]
    pub param: Vec<String>,
}

/// A pipeline that passed all checks of its file.
#[derive(Clone, Debug)]
pub struct Spec {
    /// Settings. Contains every required stage, in order; `shard-across-devices` is added with its defaults if a measure needs
    /// devices.
    pub pipeline: Pipeline,
    /// `--set` as given, without secret parts of addresses.
    pub overrides: Vec<String>,
    pub params: BTreeMap<String, String>,
    pub name: String,
    /// Folder of the pipeline file, as given; relative paths in the pipeline are relative to it. Empty for a file in the
    /// current folder.
    pub folder: PathBuf,
    sources: Sources,
    root: Node,
}

/// A pipeline with its warnings, or all its errors and warnings in the order of the file.
pub type CheckedPipeline = Result<(Spec, Vec<Diagnostic>), Vec<Diagnostic>>;

impl Spec {
    /// Reads a pipeline file and checks everything that does not need other files.
    pub fn read(path: &Path, overrides: &Overrides) -> CheckedPipeline {
        let name = path.display().to_string();
        let mut bytes = Vec::new();
        let limit = yaml::MAX_FILE_BYTES as u64 + 1;
        let reading = File::open(path).and_then(|file| file.take(limit).read_to_end(&mut bytes));
        if let Err(error) = reading {
            return Err(vec![unreadable(&name, &error)]);
        }
        match String::from_utf8(bytes) {
            Ok(text) => Self::parse(&name, &text, overrides),
            Err(error) => {
                Err(vec![not_utf8(&name, error.as_bytes(), error.utf8_error().valid_up_to())])
            }
        }
    }

    /// Reads a pipeline from text; `name` is its path, for messages and for the folder that its paths are relative to.
    ///
    /// ```
    /// use longsift_engine::base::render::render;
    /// use longsift_engine::spec::{Overrides, Spec, init};
    ///
    /// let set = |argument: &str| Overrides { set: vec![argument.to_string()], param: Vec::new() };
    /// let starter = init::Starter::example(Some("model")).yaml();
    /// let (spec, _) = Spec::parse("p.yaml", &starter, &set("stages.tokenize.bos=2")).expect("a right pipeline");
    /// assert_eq!(spec.tokenize().bos, Some(2));
    ///
    /// let mistakes = Spec::parse("p.yaml", &starter, &set("stages.tokenize.bos=3")).expect_err("a wrong one");
    /// assert!(render(&mistakes, false).starts_with("error: `bos` is 3, above its maximum 2"));
    /// ```
    pub fn parse(name: &str, text: &str, overrides: &Overrides) -> CheckedPipeline {
        if text.len() > yaml::MAX_FILE_BYTES {
            let message = format!(
                "pipeline file {} is larger than {} bytes",
                quoted(name),
                yaml::MAX_FILE_BYTES
            );
            let hint = "is it the right file? a pipeline has about a hundred lines";
            return Err(vec![Diagnostic::error(Blame::Pipeline, message).hint(hint)]);
        }
        let mut sources = Sources::default();
        let file = sources.add(Some(name), text);
        let set: Vec<usize> = overrides
            .set
            .iter()
            .map(|argument| sources.add(None, &format!("{}{argument}", overrides::SET)))
            .collect();
        let param: Vec<(usize, String)> = (overrides.param.iter())
            .map(|argument| {
                // Values may be secret, and no message is about a part of one.
                let name = argument.split_once('=').map(|(name, _)| format!("{name}=…"));
                let name = name.as_ref().unwrap_or(argument);
                (sources.add(None, &format!("{}{name}", overrides::PARAM)), argument.clone())
            })
            .collect();

        let mut problems = Problems::new(&sources);
        let read = yaml::read(text, Origin { source: file, column: 1 }, &mut problems);
        let Some(mut root) = read.filter(|root| !root.is_null()) else {
            if !problems.has_errors() {
                let start = Span { source: file, line: 1, column: 1, length: 0 };
                problems
                    .error(start, "the pipeline is empty")
                    .hint("`longsift init` writes one to start from");
            }
            return Err(problems.into_diagnostics());
        };
        for (source, argument) in set.into_iter().zip(&overrides.set) {
            overrides::apply(&mut root, argument, source, &mut problems);
        }
        let mut params = params::apply(&mut root, &param, &mut problems);
        let folder = Path::new(name).parent().map_or_else(PathBuf::new, Path::to_path_buf);
        let secrets = locations::take_secrets(&mut root, &mut problems);
        for value in params.values_mut() {
            *value = secrets::shown(value).into_owned();
            if secrets.iter().any(|secrets| secrets.overlap(value)) {
                secrets::hide(&std::mem::replace(value, secrets::HIDDEN.to_owned()));
            }
        }
        locations::check_names(&root, &mut problems);
        locations::anchor(&mut root, &mut problems);
        check::check(&root, &mut problems);
        rules::check(&root, &mut problems);
        locations::check(&root, &folder, &mut problems);
        let pipeline = if problems.has_errors() { None } else { resolve(&root, &mut problems) };
        let failed = problems.has_errors();
        let diagnostics = problems.into_diagnostics();
        let Some(pipeline) = pipeline.filter(|_| !failed) else { return Err(diagnostics) };
        let public = |text: &String| secrets::shown(text).into_owned();
        let (name, overrides) = (name.to_owned(), overrides.set.iter().map(public).collect());
        let spec = Self { pipeline, overrides, params, name, folder, sources, root };
        Ok((spec, diagnostics))
    }

    /// Restores the pipeline `pipeline` from a run directory, with its resolved settings.
    pub fn recorded(pipeline: &str, settings: &Value, overrides: &Overrides) -> CheckedPipeline {
        // JSON is a subset of YAML.
        let text = serde_json::to_string_pretty(settings).expect("settings are plain data");
        let name = format!("{pipeline} (as recorded)");
        let (spec, warnings) = Self::parse(&name, &text, overrides)?;
        Ok((Self { name: pipeline.to_owned(), ..spec }, warnings))
    }

    /// Resolves a location of the pipeline (`output.path`, `model`) so that it can be opened. Paths of the command line are
    /// already absolute in the settings. An address stays unchanged.
    pub fn resolve(&self, location: &Location) -> Location {
        match location {
            Location::Path(path) => Location::Path(join_shorter(&self.folder, path)),
            Location::Address(address) => Location::Address(address.clone()),
        }
    }

    pub fn error(&self, path: &str, message: impl Into<String>) -> Diagnostic {
        Diagnostic::error(Blame::Pipeline, message).at(self.locate(path))
    }

    pub fn warning(&self, path: &str, message: impl Into<String>) -> Diagnostic {
        Diagnostic::warning(Blame::Pipeline, message).at(self.locate(path))
    }

    /// Location of a setting: `stages.tokenize.window_tokens`, `input.text_column`, `output`. A setting of the command line is
    /// located there, one that is not set at the nearest enclosing item.
    pub fn locate(&self, path: &str) -> DiagnosticLocation {
        let mut node = &self.root;
        let mut span = check::head(node);
        let mut in_stages = false;
        for step in path.split('.') {
            if in_stages {
                let Some(stage) = rules::stage(node, step) else { break };
                node = stage;
                span = stage.get("stage").map_or(span, |name| name.span);
            } else if let Some(entry) = node.entry(step) {
                node = &entry.value;
                span =
                    if node.entries().is_empty() && node.items().is_empty() && node.span.length > 0
                    {
                        node.span
                    } else {
                        entry.span
                    };
            } else if let Some(item) =
                step.parse().ok().and_then(|index: usize| node.items().get(index))
            {
                node = item;
                span = check::head(item);
            } else {
                break;
            }
            in_stages = step == "stages" && !in_stages;
        }
        self.sources.location(span)
    }

    /// Settings with all defaults filled in, for the lock and for fingerprints, with keys in the order of the manual.
    /// Parameters are replaced by their values. Equivalent to the original pipeline.
    pub fn resolved_json(&self) -> serde_json::Value {
        let settings = Pipeline { params: BTreeMap::new(), ..self.pipeline.clone() };
        let mut json =
            serde_json::to_value(&settings).expect("settings have string keys and finite numbers");
        if self.pipeline.input.tokens_column.is_some() {
            // This default applies only to texts, not to documents that arrive as tokens.
            for stage in json["stages"].as_array_mut().into_iter().flatten() {
                let stage = stage.as_object_mut().expect("a stage is an object");
                stage.shift_remove("special_tokens_in_text");
            }
        }
        json
    }
}

/// Typed access to the settings of stages; `None` if no measure needs the stage.
macro_rules! stage_access {
    ($($function:ident, $stage:ident, $returns:ty, $found:expr;)*) => {
        impl Spec {
            $(
                pub fn $function(&self) -> $returns {
                    $found(self.pipeline.stages.iter().find_map(|stage| match stage {
                        StageSettings::$stage(settings) => Some(settings),
                        _ => None,
                    }))
                }
            )*
        }
    };
}

stage_access! {
    tokenize, Tokenize, &Tokenize, required;
    score, Score, &Score, required;
    filter, Filter, &Filter, required;
    load_partial_model, LoadPartialModel, Option<&LoadPartialModel>, identity;
    shard_across_devices, ShardAcrossDevices, Option<&ShardAcrossDevices>, identity;
    first_layer_attention, FirstLayerAttention, Option<&FirstLayerAttention>, identity;
    language_model, LanguageModel, Option<&LanguageModel>, identity;
    lexical, Lexical, Option<&Lexical>, identity;
}

fn required<T>(settings: Option<&T>) -> &T {
    settings.expect("a spec has every required stage")
}

impl Spec {
    /// Settings of the `external` stages, in pipeline order.
    pub fn externals(&self) -> impl Iterator<Item = &External> {
        self.pipeline.stages.iter().filter_map(|stage| match stage {
            StageSettings::External(settings) => Some(settings),
            _ => None,
        })
    }
}

/// Converts the checked tree to settings and fills in defaults that depend on other settings.
fn resolve(root: &Node, problems: &mut Problems) -> Option<Pipeline> {
    let mut pipeline: Pipeline = match serde_json::from_value(root.to_json()) {
        Ok(pipeline) => pipeline,
        Err(error) => {
            // Cannot happen: the schema that accepted the tree is generated from the same types.
            problems.error(check::head(root), error.to_string());
            return None;
        }
    };
    if pipeline.input.text_column.is_none() && pipeline.input.tokens_column.is_none() {
        pipeline.input.text_column = Some("text".to_string());
    }
    let is_shard = |stage: &StageSettings| matches!(stage.role(), Role::Devices(_));
    let needs_devices = |stage: &StageSettings| match stage.role() {
        Role::Measure(measure) => measure.needs().attention().is_some(),
        _ => false,
    };
    if let Some(index) = pipeline.stages.iter().position(needs_devices)
        && !pipeline.stages.iter().any(is_shard)
    {
        let stage = StageSettings::ShardAcrossDevices(ShardAcrossDevices::default());
        pipeline.stages.insert(index, stage);
    }
    for stage in &mut pipeline.stages {
        match stage {
            StageSettings::Score(score) => score.fill_in_defaults(),
            StageSettings::Lexical(lexical) => {
                lexical.text.get_or_insert(pipeline.input.tokens_column.is_none());
            }
            _ => {}
        }
    }
    Some(pipeline)
}

fn unreadable(name: &str, error: &std::io::Error) -> Diagnostic {
    let file = quoted(name);
    let message = format!("pipeline file {file} cannot be read: {error}");
    let (message, hint) = match error.kind() {
        ErrorKind::NotFound => (
            format!("pipeline file {file} does not exist"),
            "check the path; `longsift init` writes a pipeline to start from",
        ),
        ErrorKind::IsADirectory => (format!("{file} is a folder"), "name the pipeline file in it"),
        ErrorKind::PermissionDenied | ErrorKind::NotADirectory | ErrorKind::InvalidInput => {
            (message, "check the path and its permissions")
        }
        _ => return Diagnostic::error(Blame::Machine, message),
    };
    Diagnostic::error(Blame::Pipeline, message).hint(hint)
}

/// Error at the first byte that is not UTF-8.
fn not_utf8(name: &str, bytes: &[u8], valid: usize) -> Diagnostic {
    let line_start = bytes[..valid].iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
    let line = bytes[..valid].split(|byte| *byte == b'\n').count();
    let line_end =
        bytes[valid..].iter().position(|byte| *byte == b'\n').map_or(bytes.len(), |at| valid + at);
    let text = String::from_utf8_lossy(&bytes[line_start..line_end]).into_owned();
    let column = String::from_utf8_lossy(&bytes[line_start..valid]).chars().count() + 1;
    let location =
        TextLocation { name: name.to_string(), line: Some(line), column, length: 1, text };
    Diagnostic::error(Blame::Pipeline, format!("byte 0x{:02x} is not UTF-8", bytes[valid]))
        .at(DiagnosticLocation::Text(location))
        .hint("save the pipeline file as UTF-8")
}

/// Joins a folder and a relative path. A `..` at the start of the path removes the last component of the folder, unless that is
/// a link.
fn join_shorter(folder: &Path, path: &Path) -> PathBuf {
    match (path.strip_prefix(".."), folder.parent()) {
        (Ok(rest), Some(parent)) if folder.file_name().is_some() && !folder.is_symlink() => {
            let shorter = join_shorter(parent, rest);
            if shorter.as_os_str().is_empty() { folder.join(path) } else { shorter }
        }
        _ => folder.join(path),
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::join_shorter;

    #[test]
    fn a_joined_path_has_no_avoidable_parent() {
        for (folder, path, expected) in [
            ("pipelines", "../out/demo", "out/demo"),
            ("a/b", "../../out", "out"),
            ("a", "../../out", "../out"),
            ("a", "..", "a/.."),
            ("..", "../out", "../../out"),
            ("", "../out", "../out"),
            ("a", "out/../x", "a/out/../x"),
            ("/a", "../out", "/out"),
            ("a", "/out", "/out"),
        ] {
            assert_eq!(
                join_shorter(Path::new(folder), Path::new(path)),
                Path::new(expected),
                "{folder} + {path}"
            );
        }
    }

    #[cfg(unix)]
    #[test]
    fn a_link_keeps_its_parent() {
        let folder = tempfile::tempdir().unwrap();
        let link = folder.path().join("link");
        std::os::unix::fs::symlink("/", &link).unwrap();
        assert_eq!(join_shorter(&link, Path::new("../out")), link.join("../out"));
    }
}
