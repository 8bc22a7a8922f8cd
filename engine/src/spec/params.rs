//! Parameters: `${date}` in the strings of a pipeline, set by `--param date=2026-11-20`. The environment is never read.

use std::collections::BTreeMap;

use super::node::{Node, YamlValue};
use super::overrides::PARAM;
use super::source::{Problems, Sources, Span};
use super::yaml::MAX_FILE_BYTES;
use crate::base::text::{count, quoted, suggest};

/// Replaces every `${name}` below `root` by its value, and `$${` by a literal `${`. Returns the values of declared parameters.
pub(crate) fn apply(
    root: &mut Node,
    arguments: &[(usize, String)],
    problems: &mut Problems,
) -> BTreeMap<String, String> {
    let mut parameters = declared(root, problems);
    for (source, argument) in arguments {
        set(argument, *source, &mut parameters, problems);
    }
    if let YamlValue::Mapping(entries) = &mut root.value {
        let mut replacer = Replacer { parameters: &mut parameters, bytes: 0, problems };
        for entry in entries.iter_mut().filter(|entry| entry.key != "params") {
            replacer.node(&mut entry.value);
        }
    }
    for (name, Parameter { span, value, used }) in &parameters {
        if value.is_none() {
            let hint = format!("set it with `--param {name}=VALUE`, or give it a default");
            problems.error(*span, format!("parameter {} has no value", quoted(name))).hint(hint);
        } else if !used {
            let hint = format!("use it as `${{{name}}}`, or remove it");
            problems.warning(*span, format!("parameter {} is never used", quoted(name))).hint(hint);
        }
    }
    let values = parameters.into_iter();
    values.filter_map(|(name, parameter)| Some((name, parameter.value?))).collect()
}

struct Parameter {
    span: Span,
    /// Value of the command line, else the default.
    value: Option<String>,
    used: bool,
}

type Parameters = BTreeMap<String, Parameter>;

fn declared(root: &Node, problems: &mut Problems) -> Parameters {
    let mut declared = Parameters::new();
    for entry in root.entry("params").map_or(&[][..], |params| params.value.entries()) {
        if !is_name(&entry.key) {
            let hint = "use letters, digits and `_`, and begin with a letter";
            problems
                .error(entry.span, format!("{} is not a parameter name", quoted(&entry.key)))
                .hint(hint);
            continue;
        }
        let default = entry.value.get("default");
        if let Some(value) = default
            && value.as_str().is_some_and(|text| text.contains("${"))
        {
            let message =
                format!("the default of parameter {} uses a parameter", quoted(&entry.key));
            problems.error(value.span, message).hint("write the value out");
        }
        // A default of another type is reported by the checker; here it counts as given.
        let value = default.map(|value| value.text.clone());
        declared.insert(entry.key.clone(), Parameter { span: entry.span, value, used: false });
    }
    declared
}

fn is_name(text: &str) -> bool {
    text.starts_with(|first: char| first.is_ascii_alphabetic() || first == '_')
        && text.chars().all(|character| character.is_ascii_alphanumeric() || character == '_')
}

fn set(argument: &str, source: usize, parameters: &mut Parameters, problems: &mut Problems) {
    let column = PARAM.len() + 1;
    let span = |text: &str| Span { source, line: 1, column, length: text.chars().count() };
    let Some((name, value)) = argument.split_once('=') else {
        let hint = "write `--param NAME=VALUE`";
        problems.error(span(argument), format!("{} has no `=`", quoted(argument))).hint(hint);
        return;
    };
    match parameters.get_mut(name) {
        Some(parameter) => parameter.value = Some(value.to_owned()),
        None => undeclared(span(name), name, parameters, problems),
    }
}

fn undeclared(span: Span, name: &str, declared: &Parameters, problems: &mut Problems) {
    let problem = problems.error(span, format!("parameter {} is not declared", quoted(name)));
    let names = declared.keys().map(String::as_str).collect::<Vec<_>>().join(", ");
    let problem = problem.label(if names.is_empty() {
        "none is declared".to_string()
    } else {
        format!("declared: {names}")
    });
    match suggest(name, declared.keys().map(String::as_str)) {
        Some(meant) => problem.hint(format!("did you mean `{meant}`?")),
        None if is_name(name) => {
            problem.hint(format!("declare it: `params: {{{name}: {{default: VALUE}}}}`"))
        }
        None => problem.hint("a name has letters, digits and `_`; write a literal `${` as `$${`"),
    };
}

struct Replacer<'a, 'p, 's> {
    parameters: &'a mut Parameters,
    /// Bytes of the values inserted so far.
    bytes: usize,
    problems: &'p mut Problems<'s>,
}

impl Replacer<'_, '_, '_> {
    fn node(&mut self, node: &mut Node) {
        match &mut node.value {
            YamlValue::List(items) => {
                for item in items {
                    self.node(item);
                }
            }
            YamlValue::Mapping(entries) => {
                for entry in entries {
                    self.node(&mut entry.value);
                }
            }
            YamlValue::String(text) if text.contains("${") => {
                let text = text.clone();
                let replaced = self.replaced(&text, node.span);
                node.text.clone_from(&replaced);
                node.value = YamlValue::String(replaced);
            }
            _ => {}
        }
    }

    fn replaced(&mut self, text: &str, span: Span) -> String {
        let mut out = String::new();
        let mut rest = text;
        let mut seen = 0;
        while let Some(at) = rest.find("${") {
            if self.problems.is_full() {
                return out + rest;
            }
            let (before, after) = (&rest[..at], &rest[at + 2..]);
            let dollars = seen + before.matches('$').count();
            seen = dollars + 1;
            if let Some(escaped) = before.strip_suffix('$') {
                out.push_str(escaped);
                out.push_str("${");
                rest = after;
                continue;
            }
            out.push_str(before);
            let location =
                |length| position_of_dollar(self.problems.sources, span, dollars, length);
            let Some(end) = after.find('}') else {
                let problem = self.problems.error(location(2), "`${` without a closing `}`");
                problem.hint("close it; write a literal `${` as `$${`");
                return out + &rest[at..];
            };
            let name = &after[..end];
            let parameter = self.parameters.get_mut(name);
            let is_declared = parameter.is_some();
            if let Some(Parameter { value: Some(value), used, .. }) = parameter {
                self.bytes = self.bytes.saturating_add(value.len());
                if self.bytes > MAX_FILE_BYTES {
                    let message = format!(
                        "parameters add more than {} bytes to the pipeline",
                        count(MAX_FILE_BYTES as u64)
                    );
                    let problem = self.problems.error(location(name.chars().count() + 3), message);
                    problem.hint(
                        "check the values of `--param`: a parameter is usually a date or a path",
                    );
                    return out + &rest[at..];
                }
                out.push_str(value);
                *used = true;
            } else if !is_declared {
                undeclared(
                    location(name.chars().count() + 3),
                    name,
                    self.parameters,
                    self.problems,
                );
            }
            seen += name.matches('$').count();
            rest = &after[end + 1..];
        }
        out + rest
    }
}

/// Position of the dollar sign number `index` (from 0) of a string in its source; the string's own position if the source has
/// fewer dollar signs, because one was written as an escape.
fn position_of_dollar(sources: &Sources, span: Span, index: usize, length: usize) -> Span {
    let lines = if span.length == usize::MAX { 1000 } else { 1 };
    let characters = (span.line..span.line + lines).flat_map(|line| {
        let is_first = line == span.line;
        let (skipped, length) =
            if is_first { (span.column - 1, span.length) } else { (0, usize::MAX) };
        let characters = sources.line(span.source, line).chars().zip(1..);
        characters
            .skip(skipped)
            .take(length)
            .map(move |(character, column)| (character, line, column))
    });
    let mut dollars = characters.filter(|(character, ..)| *character == '$');
    dollars.nth(index).map_or(span, |(_, line, column)| Span { line, column, length, ..span })
}
