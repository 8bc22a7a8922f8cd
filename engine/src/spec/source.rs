//! Sources of a pipeline, positions in them, and the problems found there.

use crate::base::diagnostic::{Blame, Diagnostic, DiagnosticLocation, TextLocation};
use crate::base::secrets::masked;
use crate::base::text;

/// Range in a source: start and length in characters. Ordered by source, then position.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Span {
    pub(crate) source: usize,
    pub(crate) line: usize,
    pub(crate) column: usize,
    /// Length in characters; those beyond the end of the line are not shown.
    pub(crate) length: usize,
}

/// The pipeline file, and one source for each override of the command line.
#[derive(Clone, Debug, Default)]
pub(crate) struct Sources(Vec<Source>);

#[derive(Clone, Debug)]
struct Source {
    /// Path of the pipeline file; `None` for the command line, whose positions have no line.
    path: Option<String>,
    lines: Vec<String>,
}

impl Sources {
    /// Adds a pipeline file, or an argument of the command line, and returns its index.
    pub(crate) fn add(&mut self, path: Option<&str>, text: &str) -> usize {
        let lines = text
            .replace("\r\n", "\n")
            .split(['\n', '\r'])
            .map(|line| masked(line).into_owned())
            .collect();
        self.0.push(Source { path: path.map(str::to_owned), lines });
        self.0.len() - 1
    }

    /// Returns one line of a source, from 1; empty if it does not exist.
    pub(crate) fn line(&self, source: usize, line: usize) -> &str {
        self.0
            .get(source)
            .and_then(|source| source.lines.get(line.checked_sub(1)?))
            .map_or("", String::as_str)
    }

    pub(crate) fn text(&self, span: Span) -> String {
        self.line(span.source, span.line)
            .chars()
            .skip(span.column.saturating_sub(1))
            .take(span.length)
            .collect()
    }

    /// Whether a span is in the pipeline file, not on the command line.
    pub(crate) fn is_file(&self, span: Span) -> bool {
        self.path(span).is_some()
    }

    fn path(&self, span: Span) -> Option<&str> {
        self.0.get(span.source)?.path.as_deref()
    }

    pub(crate) fn location(&self, span: Span) -> DiagnosticLocation {
        let text = self.line(span.source, span.line).to_string();
        let rest_length = (text.chars().count() + 1).saturating_sub(span.column);
        DiagnosticLocation::Text(TextLocation {
            name: self.path(span).unwrap_or("command line").to_owned(),
            line: self.is_file(span).then_some(span.line),
            column: span.column,
            length: span.length.min(rest_length),
            text,
        })
    }

    /// Describes a position for a message about another one: `on line 12`, `on the command line`.
    pub(crate) fn in_words(&self, span: Span) -> String {
        if self.is_file(span) {
            format!("on line {}", span.line)
        } else {
            "on the command line".to_string()
        }
    }
}

pub(crate) struct Problems<'s> {
    pub(crate) sources: &'s Sources,
    found: Vec<(Span, Diagnostic)>,
}

pub(crate) struct DiagnosticMut<'p>(&'p mut Diagnostic);

impl DiagnosticMut<'_> {
    pub(crate) fn label(self, label: impl Into<String>) -> Self {
        *self.0 = self.0.clone().label(label);
        self
    }

    pub(crate) fn hint(self, hint: impl Into<String>) -> Self {
        *self.0 = self.0.clone().hint(hint);
        self
    }
}

/// Maximum problems that are listed; a file with more is not a pipeline.
const MAX_PROBLEMS: usize = 100;

impl<'s> Problems<'s> {
    pub(crate) fn new(sources: &'s Sources) -> Self {
        Self { sources, found: Vec::new() }
    }

    /// Adds an error; label and hint can be set on the result.
    pub(crate) fn error(&mut self, span: Span, message: impl Into<String>) -> DiagnosticMut<'_> {
        self.push(span, Diagnostic::error(Blame::Pipeline, message))
    }

    pub(crate) fn warning(&mut self, span: Span, message: impl Into<String>) -> DiagnosticMut<'_> {
        self.push(span, Diagnostic::warning(Blame::Pipeline, message))
    }

    fn push(&mut self, span: Span, diagnostic: Diagnostic) -> DiagnosticMut<'_> {
        self.found.push((span, diagnostic));
        DiagnosticMut(&mut self.found.last_mut().expect("just pushed").1)
    }

    /// Whether more problems were found than are listed, so that a check of many items can stop.
    pub(crate) fn is_full(&self) -> bool {
        self.found.len() > MAX_PROBLEMS
    }

    pub(crate) fn error_count(&self) -> usize {
        self.found.iter().filter(|(_, diagnostic)| diagnostic.is_error()).count()
    }

    pub(crate) fn has_errors(&self) -> bool {
        self.error_count() > 0
    }

    /// Returns all problems in the order of the file, then those of the command line.
    pub(crate) fn into_diagnostics(mut self) -> Vec<Diagnostic> {
        self.found.sort_by_key(|(span, _)| *span);
        let more = self.found.len().saturating_sub(MAX_PROBLEMS);
        self.found.truncate(MAX_PROBLEMS);
        let sources = self.sources;
        let mut all: Vec<Diagnostic> = self
            .found
            .into_iter()
            .map(|(span, diagnostic)| diagnostic.at(sources.location(span)))
            .collect();
        if more > 0 {
            all.push(Diagnostic::error(
                Blame::Pipeline,
                format!("not shown: {}", text::counted(more as u64, "more mistake")),
            ));
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mistakes_come_in_file_order_and_the_command_line_last() {
        let mut sources = Sources::default();
        let file = sources.add(Some("p.yaml"), "a: b\r\nc: d");
        let argument = sources.add(None, "--set a=b");
        let mut problems = Problems::new(&sources);
        problems.error(Span { source: argument, line: 1, column: 7, length: 1 }, "third");
        problems.error(Span { source: file, line: 2, column: 1, length: 1 }, "second");
        problems.error(Span { source: file, line: 1, column: 4, length: 1 }, "first");
        let all = problems.into_diagnostics();
        let messages: Vec<&str> = all.iter().map(|one| one.message.as_str()).collect();
        assert_eq!(messages, ["first", "second", "third"]);
        let Some(DiagnosticLocation::Text(location)) = &all[0].location else {
            panic!("a location")
        };
        assert_eq!((location.text.as_str(), location.line), ("a: b", Some(1)));
    }

    #[test]
    fn secrets_of_addresses_are_shown_nowhere() {
        let sources = Sources::default();
        let mut problems = Problems::new(&sources);
        let address = "https://bob:hunter2@host/x?token=abc";
        problems.error(Span::default(), address).label(address).hint(address);
        let shown = format!("{:?}", problems.into_diagnostics());
        assert!(!shown.contains("hunter2") && !shown.contains("abc"), "{shown}");
    }

    #[test]
    fn a_flood_of_mistakes_is_cut() {
        let sources = Sources::default();
        let mut problems = Problems::new(&sources);
        for _ in 0..1000 {
            problems.error(Span::default(), "again");
        }
        let all = problems.into_diagnostics();
        assert_eq!(all.len(), MAX_PROBLEMS + 1);
        assert_eq!(all[MAX_PROBLEMS].message, "not shown: 900 more mistakes");
    }
}
