//! `longsift test`: runs a pipeline over its own test rows and checks the outcome of each.

use std::fmt::Write;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::answer::answer_with;
use crate::base::diagnostic::{Blame, Diagnostic};
use crate::base::error::{DONE, Failure, Result};
use crate::base::progress::Progress;
use crate::base::stop::Stop;
use crate::base::text::line_safe;
use crate::cli::TestArguments;
use crate::plan::options::PlanOptions;
use crate::report::documents::{self, DocumentOutcome};
use crate::run::RunOptions;
use crate::run_directory::manifest::Manifest;
use crate::spec::check::head;
use crate::spec::node::Node;
use crate::spec::source::{Problems, Sources, Span};
use crate::spec::yaml::{self, Origin};
use crate::spec::{Overrides, Spec};
use crate::storage::{atomic, files};

const MAX_TEXT_BYTES: u64 = 256 << 20;

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Test {
    name: String,
    /// Settings for this test, in the syntax of `--set`.
    #[serde(default)]
    set: Vec<String>,
    rows: Vec<TestRow>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct TestRow {
    document: Map<String, Value>,
    /// File with the value of the text column, relative to the tests file.
    #[serde(default)]
    text_file: Option<PathBuf>,
    /// Expected outcome: `kept`, `not kept`, `quarantined`, a reason (`not_selected`, `guard_copy_share`,
    /// `short_document`) or a code (`quarantined: null_text`).
    fate: String,
    #[serde(default)]
    kept: Option<u64>,
}

#[derive(Clone, Debug, Serialize)]
struct TestResult {
    name: String,
    passed: bool,
    rows: usize,
    different: Vec<UnexpectedRow>,
}

#[derive(Clone, Debug, Serialize)]
struct UnexpectedRow {
    row: usize,
    expected: String,
    found: String,
}

/// Runs each test of a pipeline in a temporary folder, and reports the rows with unexpected outcomes.
pub(super) fn test(arguments: &TestArguments) -> Result<u8> {
    let pipeline = &arguments.pipeline.pipeline;
    let overrides = &arguments.pipeline.overrides;
    let (spec, _) = Spec::read(pipeline, overrides)?;
    let path = arguments.tests.clone().unwrap_or_else(|| pipeline.with_extension("tests.yaml"));
    let tests = read(&path)?;
    let stop = Stop::on_signals()?;
    let mut found = Vec::new();
    for (test, location) in &tests {
        let tested = run(pipeline, &spec, overrides, test, &path, &stop);
        let note = format!("in the test `{}`, {location}", test.name);
        let with_note = |problem: Diagnostic| problem.note(note.clone());
        found.push(tested.map_err(|failure| failure.map(with_note))?);
    }
    let passed = found.iter().all(|test| test.passed);
    let json = json!({ "passed": passed, "tests": found });
    answer_with(arguments.format, || text(&found), &json)?;
    Ok(if passed { DONE } else { Blame::Check.exit_code() })
}

/// Reads a tests file. Returns the tests, each with its location for messages.
fn read(path: &Path) -> Result<Vec<(Test, String)>> {
    let name = path.display().to_string();
    let bytes = files::read_if_present(path)?.ok_or_else(|| {
        Diagnostic::error(Blame::Pipeline, format!("tests file `{name}` not found"))
            .hint("create it, or name another file with `--tests`; it lists tests under `tests`, each with `name` and `rows`")
    })?;
    let text = String::from_utf8(bytes)
        .map_err(|_| Diagnostic::error(Blame::Pipeline, format!("`{name}` is not UTF-8")))?;
    let mut sources = Sources::default();
    let source = sources.add(Some(&name), &text);
    let mut problems = Problems::new(&sources);
    let root = yaml::read(&text, Origin { source, column: 1 }, &mut problems);
    let entries = root.as_ref().map_or(&[][..], Node::entries);
    let unknown = entries.iter().find(|entry| entry.key != "tests");
    let items = root.as_ref().and_then(|root| root.get("tests")).map_or(&[][..], Node::items);
    if let Some(entry) = unknown {
        problems.error(entry.span, format!("unknown key `{}`", entry.key)).hint("expected `tests`");
    } else if items.is_empty() && !problems.has_errors() {
        let start = Span { source, line: 1, column: 1, length: 0 };
        problems.error(start, "no tests found").hint("list tests under `tests`");
    }
    let mut tests = Vec::new();
    for item in items {
        match serde_json::from_value::<Test>(item.to_json()) {
            Ok(test) => tests.push((test, sources.in_words(head(item)))),
            Err(error) => {
                let hint = "a test has `name`, `rows` and optionally `set`; a row has `document`, `fate`, and optionally `text_file` and `kept`";
                problems.error(head(item), error.to_string()).hint(hint);
            }
        }
    }
    if problems.has_errors() {
        return Err(Failure::Problems(problems.into_diagnostics()));
    }
    Ok(tests)
}

fn run(
    pipeline: &Path,
    spec: &Spec,
    overrides: &Overrides,
    test: &Test,
    path: &Path,
    stop: &Stop,
) -> Result<TestResult> {
    let folder = tempfile::tempdir().map_err(|error| {
        Diagnostic::error(Blame::Machine, format!("cannot create a temporary folder: {error}"))
    })?;
    let input = folder.path().join("rows.jsonl");
    atomic::write_atomic(&input, lines(spec, test, path)?.as_bytes())?;
    let mut overrides = overrides.clone();
    overrides.set.extend(test.set.iter().cloned());
    let quoted = |path: &Path| Value::from(path.display().to_string());
    overrides.set.extend([
        format!("input.path={}", quoted(&input)),
        "input.format=jsonl".to_owned(),
        "input.since=null".to_owned(),
        "input.on_bad_row=quarantine".to_owned(),
        "input.max_quarantined_fraction=1".to_owned(),
        format!("output.path={}", quoted(&folder.path().join("out"))),
        "output.report=false".to_owned(),
        "checks=[]".to_owned(),
    ]);
    let options = PlanOptions { stop: stop.clone(), ..PlanOptions::default() };
    let plan = crate::plan(pipeline, &overrides, options)?;
    let done = crate::run::run(&plan, &RunOptions::default(), &Progress::new(false), stop)?;
    done.refused.map_or(Ok(()), Err)?;
    let outcomes =
        documents::document_outcomes(&plan.directory, &Manifest::read_finished(&plan.directory)?)?;
    let different = test.rows.iter().enumerate().filter_map(|(row, expected)| {
        let found = outcomes.get(&(row as i64));
        let same = found.is_some_and(|found| expected.matches(found));
        let found = found.map_or_else(|| "missing".to_owned(), DocumentOutcome::in_words);
        (!same).then(|| UnexpectedRow { row, expected: expected.in_words(), found })
    });
    let different: Vec<UnexpectedRow> = different.collect();
    let (name, rows) = (test.name.clone(), test.rows.len());
    Ok(TestResult { name, passed: different.is_empty(), rows, different })
}

fn lines(spec: &Spec, test: &Test, path: &Path) -> Result<String> {
    let column = spec.pipeline.input.text_column.as_deref().unwrap_or("text");
    let mut lines = String::new();
    for row in &test.rows {
        let mut document = row.document.clone();
        if let Some(file) = &row.text_file {
            let file = path.parent().unwrap_or(Path::new("")).join(file);
            let text = files::read_limited(&file, MAX_TEXT_BYTES)?;
            document.insert(column.to_owned(), String::from_utf8_lossy(&text).into());
        }
        lines.push_str(&Value::Object(document).to_string());
        lines.push('\n');
    }
    Ok(lines)
}

impl TestRow {
    fn matches(&self, found: &DocumentOutcome) -> bool {
        let fate = match self.fate.as_str() {
            "not kept" => found.fate != "kept",
            "quarantined" => found.fate.starts_with("quarantined"),
            fate => found.fate == fate,
        };
        fate && self.kept.is_none_or(|kept| found.kept == kept)
    }

    fn in_words(&self) -> String {
        let kept = self.kept.map_or_else(String::new, |kept| match kept {
            1 => ", 1 sample kept".to_owned(),
            kept => format!(", {kept} samples kept"),
        });
        format!("{}{kept}", self.fate)
    }
}

fn text(tests: &[TestResult]) -> String {
    let mut text = String::new();
    for test in tests {
        let word = if test.passed { "ok    " } else { "FAILED" };
        let _ = writeln!(text, "{word}  {}", line_safe(&test.name));
        for UnexpectedRow { row, expected, found } in &test.different {
            let line = format!("row {row}: expected {expected}, got {found}");
            let _ = writeln!(text, "        {}", line_safe(&line));
        }
    }
    let passed = tests.iter().filter(|test| test.passed).count();
    let _ = writeln!(text, "{passed} passed, {} failed", tests.len() - passed);
    text
}
