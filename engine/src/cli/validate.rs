//! `longsift validate`: reports the mistakes of a pipeline file, for people or for programs.

use serde_json::json;

use super::answer::{print, print_line, report};
use crate::base::diagnostic::{Diagnostic, DiagnosticLocation};
use crate::base::error::{DONE, Failure, Result};
use crate::base::text::{json_safe, line_safe, quoted};
use crate::cli::{Cli, PipelineArguments, ValidateFormat};
use crate::plan::Plan;
use crate::spec::Spec;

/// Checks a pipeline file. As text, mistakes are a failure of the command; in the other formats they are its answer.
pub(super) fn validate(
    cli: &Cli,
    arguments: &PipelineArguments,
    format: ValidateFormat,
) -> Result<u8> {
    let read = Spec::read(&arguments.pipeline, &arguments.overrides);
    let read = read.and_then(|(spec, warnings)| match Plan::check_measures(&spec) {
        problems if problems.is_empty() => Ok((spec, warnings)),
        problems => Err(problems),
    });
    if format == ValidateFormat::Text {
        let (spec, warnings) = read?;
        report(cli, &warnings);
        return print_line(&format!(
            "{} is a valid pipeline: {}",
            quoted(&arguments.pipeline.display().to_string()),
            line_safe(&spec.pipeline.name)
        ));
    }
    let (name, problems, code) = match read {
        Ok((spec, warnings)) => (Some(spec.pipeline.name), warnings, DONE),
        Err(problems) => {
            let failure = Failure::from(problems.clone());
            (None, problems, failure.exit_code())
        }
    };
    if format == ValidateFormat::Github {
        print(&problems.iter().map(annotation).collect::<String>())?;
    } else {
        let file = arguments.pipeline.display().to_string();
        let answer =
            json!({ "valid": code == DONE, "file": file, "name": name, "problems": problems });
        print_line(&json_safe(&format!("{answer:#}")))?;
    }
    Ok(code)
}

/// Formats a problem as a workflow command of GitHub Actions, including notes and hint: `::error file=…,line=…,col=…::message`.
/// `%`, line breaks and, in properties, `:` and `,` are percent-encoded, as GitHub's documentation requires.
fn annotation(problem: &Diagnostic) -> String {
    let kind = if problem.is_error() { "error" } else { "warning" };
    let location = match &problem.location {
        Some(DiagnosticLocation::Text(location)) => {
            // Mistakes on the command line have no line in a file.
            location.line.map_or_else(String::new, |line| {
                let (column, end) = (location.column, location.column + location.length.max(1) - 1);
                format!(
                    " file={},line={line},col={column},endColumn={end}",
                    property(&location.name)
                )
            })
        }
        Some(DiagnosticLocation::Data(_)) | None => String::new(),
    };
    let mut text = line_safe(&problem.message);
    let more = problem.label.iter().chain(&problem.notes).map(|text| line_safe(text));
    let hint = problem.hint.iter().map(|hint| format!("hint: {}", line_safe(hint)));
    for line in more.chain(hint) {
        text.push('\n');
        text.push_str(&line);
    }
    format!("::{kind}{location}::{}\n", data(&text))
}

fn data(text: &str) -> String {
    text.replace('%', "%25").replace('\r', "%0D").replace('\n', "%0A")
}

fn property(text: &str) -> String {
    data(text).replace(':', "%3A").replace(',', "%2C")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::diagnostic::{Blame, TextLocation};

    #[test]
    fn annotations_are_one_line_with_their_location() {
        let location = TextLocation {
            name: "a,b:c.yaml".into(),
            line: Some(7),
            column: 3,
            length: 4,
            text: "  beta".into(),
        };
        let problem = Diagnostic::error(Blame::Pipeline, "100 % wrong")
            .at(DiagnosticLocation::Text(location))
            .label("wrong value")
            .hint("do\nthis");
        assert_eq!(
            annotation(&problem),
            "::error file=a%2Cb%3Ac.yaml,line=7,col=3,endColumn=6::100 %25 wrong%0Awrong value%0Ahint: do\\u{a}this\n"
        );
        let unplaced = Diagnostic::warning(Blame::Pipeline, "odd");
        assert_eq!(annotation(&unplaced), "::warning::odd\n");
    }
}
