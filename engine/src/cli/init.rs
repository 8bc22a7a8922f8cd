//! `longsift init`: writes a starter pipeline, or one that runs over the given input.

use std::path::Path;

use super::answer::{print_line, report, terminal_text};
use crate::base::diagnostic::Diagnostic;
use crate::base::error::Result;
use crate::base::text::{quoted, shell_word};
use crate::cli::Cli;
use crate::spec::init::Starter;
use crate::storage::marked::{self, Mark};
use crate::storage::{atomic, files};
use crate::tools::reference;
use crate::tools::starter::{self, StarterOptions, problem};

const SCHEMA: &str = "pipeline.schema.json";
const SCHEMA_MARK: Mark = Mark::Contains("\"description\": \"A longsift pipeline: ");

pub(super) fn init(cli: &Cli, options: &StarterOptions) -> Result<u8> {
    let StarterOptions { inputs, column, output, tokenizer, model } = options;
    if let [input] = &inputs[..]
        && input.extension().is_some_and(|ending| ending == "yaml" || ending == "yml")
    {
        let message = format!("expected inputs, got the name of a pipeline: {}", shown(input));
        let hint = format!("use `--output {}`", shell_word(&input.display().to_string()));
        return Err(problem(message).hint(hint).into());
    }
    let schema = output.with_file_name(SCHEMA);
    marked::check(&schema, SCHEMA_MARK)?;
    if files::size(output)?.is_some() {
        return Err(exists(output).into());
    }
    let starter = if inputs.is_empty() {
        for (option, value) in [("--column", column), ("--tokenizer", tokenizer)] {
            if value.is_some() {
                let message = format!("`{option}` requires an input");
                return Err(problem(message).hint("name files, a folder or a glob").into());
            }
        }
        Starter::example(model.as_deref())
    } else {
        let (starter, warning) = starter::detect(options)?;
        report(cli, warning.as_slice());
        starter
    };
    if !atomic::write_new(output, starter.yaml().as_bytes())? {
        return Err(exists(output).into());
    }
    let pipeline = reference::schemas().into_iter().find(|(name, _)| *name == "pipeline");
    let (_, text) = pipeline.expect("a pipeline has a schema");
    marked::write(&schema, SCHEMA_MARK, reference::schema_text(&text).as_bytes())?;
    let edit = if inputs.is_empty() { "edit it, then " } else { "" };
    let next = shell_word(&output.display().to_string());
    print_line(&terminal_text(&format!(
        "wrote `{}` and `{}`; next: {edit}`longsift plan {next}`",
        output.display(),
        schema.display()
    )))
}

fn exists(output: &Path) -> Diagnostic {
    problem(format!("{} already exists", shown(output)))
        .hint("choose another name with `--output NAME.yaml`")
}

fn shown(path: &Path) -> String {
    quoted(&path.display().to_string())
}
