//! Output of commands: answers on standard output, failures and warnings on standard error.

use std::fmt::Display;
use std::io::{self, ErrorKind, IsTerminal, Write};
use std::path::Path;
use std::time::Duration;

use clap::ColorChoice;
use serde::Serialize;

use crate::base::diagnostic::{Blame, Diagnostic};
use crate::base::error::{BUG, DONE, Failure, Result};
use crate::base::render::render;
use crate::base::secrets::shown;
use crate::base::stop::Stop;
use crate::base::text::{json_safe, line_safe, quoted, shell_word};
use crate::cli::{AnswerFormat, Cli, LogFormat};
use crate::report::page::{Block, Page, Section};
use crate::run_directory::layout::RunDirectory;
use crate::storage::marked::{self, Mark};

pub(super) fn answer<T: Display + Serialize>(format: AnswerFormat, value: &T) -> Result<u8> {
    answer_with(format, || value.to_string(), value)
}

/// Prints an answer whose text output is not the `Display` of its value.
pub(super) fn answer_with(
    format: AnswerFormat,
    text: impl FnOnce() -> String,
    value: &impl Serialize,
) -> Result<u8> {
    match format {
        AnswerFormat::Text => print(&terminal_text(&text())),
        AnswerFormat::Json => {
            let json = serde_json::to_value(value).expect("plain data");
            print_line(&json_safe(&format!("{json:#}")))
        }
    }
}

/// Refuses output paths in the folders of a result, and files that longsift did not write; reports all of them.
pub(super) fn check_output_paths<const N: usize>(paths: [(Option<&Path>, Mark); N]) -> Result<()> {
    let mut problems = Vec::new();
    let mut taken: Vec<&Path> = Vec::new();
    for path in paths.iter().filter_map(|(path, _)| *path) {
        if taken.contains(&path) {
            let message = format!("{} is named twice", quoted(&path.display().to_string()));
            let problem = Diagnostic::error(Blame::Pipeline, message);
            problems.push(problem.hint("name a file of its own for each output"));
        }
        taken.push(path);
    }
    for (path, mark) in paths {
        let check = |path| refuse_result_folder(path).and_then(|()| marked::check(path, mark));
        match path.map_or(Ok(()), check) {
            Ok(()) => {}
            Err(Failure::Problems(found)) => problems.extend(found),
            Err(failure) => return Err(failure),
        }
    }
    if problems.is_empty() { Ok(()) } else { Err(Failure::Problems(problems)) }
}

/// Refuses a file in the folders of a result, whose files are all listed in its records.
pub(super) fn refuse_result_folder(path: &Path) -> Result<()> {
    let Some(result) = RunDirectory::result_folder(path) else { return Ok(()) };
    let [path, result] = [path, &result].map(|path| quoted(&path.display().to_string()));
    let message = format!("{path} is in {result}, which holds the files of a result only");
    Err(Diagnostic::error(Blame::Pipeline, message).hint("name a file in another folder").into())
}

pub(super) fn color(cli: &Cli, terminal: bool) -> bool {
    match cli.color {
        ColorChoice::Always => true,
        ColorChoice::Never => false,
        ColorChoice::Auto => {
            terminal && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
        }
    }
}

pub(super) fn report_failure(cli: &Cli, failure: &Failure) {
    let Failure::Problems(problems) = failure else {
        tracing::warn!("{failure}");
        return;
    };
    report(cli, problems);
    if failure.exit_code() == BUG {
        eprint(
            "this is a bug in longsift; please report it with the pipeline file and the command\n",
        );
    }
}

pub(super) fn report(cli: &Cli, diagnostics: &[Diagnostic]) {
    if diagnostics.is_empty() {
        return;
    }
    match cli.log_format {
        LogFormat::Text => {
            eprint(&render(diagnostics, color(cli, std::io::stderr().is_terminal())));
        }
        LogFormat::Json => {
            for diagnostic in diagnostics {
                let text = render(std::slice::from_ref(diagnostic), false);
                if diagnostic.is_error() {
                    tracing::error!(message = diagnostic.message, diagnostic = text);
                } else {
                    tracing::warn!(message = diagnostic.message, diagnostic = text);
                }
            }
        }
    }
}

/// Writes a requested file; mostly called last, so that the answer is printed even if the file cannot be written.
pub(super) fn write_requested(
    path: Option<&Path>,
    mark: Mark,
    content: impl FnOnce() -> Vec<u8>,
) -> Result<()> {
    path.map_or(Ok(()), |path| marked::write(path, mark, &content()))
}

pub(super) fn write_page(path: Option<&Path>, page: impl FnOnce() -> Page) -> Result<()> {
    write_requested(path, Mark::PAGE, || {
        let mut page = page();
        // Quoted for a shell, without the secret parts of addresses.
        let quoted = |argument: std::ffi::OsString| shell_word(&shown(&argument.to_string_lossy()));
        let command = std::env::args_os().map(quoted).collect::<Vec<_>>().join(" ");
        page.sections.push(Section::new("repeat", "Command", "", vec![Block::Code(command)]));
        page.html().into_bytes()
    })
}

pub(super) fn unknown_name(what: &str, name: &str, known: &[&str]) -> Failure {
    Diagnostic::error(Blame::Pipeline, format!("unknown {what} `{name}`"))
        .hint(format!("expected one of: {}", known.join(", ")))
        .into()
}

/// Escapes all characters that a terminal would interpret, except line breaks.
pub(super) fn terminal_text(text: &str) -> String {
    text.split('\n').map(line_safe).collect::<Vec<_>>().join("\n")
}

/// Prints text, and returns the exit code of success. A closed pipe is not an error.
pub(super) fn print(text: &str) -> Result<u8> {
    is_printed(text).map(|_| DONE)
}

pub(super) fn print_line(text: &str) -> Result<u8> {
    print(&format!("{text}\n"))
}

/// Prints the text that `refresh` returns, every few seconds, until it returns `true`, `count` is reached, or a signal arrives.
pub(super) fn watch(
    seconds: u32,
    count: Option<u32>,
    mut refresh: impl FnMut() -> Result<(String, bool)>,
) -> Result<u8> {
    let stop = Stop::on_signals()?;
    let mut refreshes = 0;
    loop {
        let (text, is_last) = refresh()?;
        refreshes += 1;
        if !is_printed(&text)?
            || is_last
            || count.is_some_and(|max| refreshes >= max)
            || !stop.sleep_unless_stopped(Duration::from_secs(seconds.into()))
        {
            return Ok(DONE);
        }
    }
}

/// Prints text, and returns whether standard output still has a reader.
pub(super) fn is_printed(text: &str) -> Result<bool> {
    let mut out = io::stdout();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(false),
        Err(error) => {
            let message = format!("cannot write to standard output: {error}");
            Err(Diagnostic::error(Blame::Machine, message)
                .hint("free space at the target of the redirection; committed results are kept")
                .into())
        }
    }
}

pub(super) fn eprint(text: &str) {
    let _ = io::stderr().write_all(text.as_bytes());
}
