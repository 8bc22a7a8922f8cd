//! Parameters: `${date}` in the strings of a pipeline, set by `--param date=2026-11-20`. The environment is never read.

use std::collections::{BTreeMap, BTreeSet};

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
    let declared = declared(root, problems);
    let mut values: BTreeMap<String, String> = declared
        .iter()
        .filter_map(|(name, (_, default))| Some((name.clone(), default.clone()?)))
        .collect();
    let mut set = BTreeSet::new();
    for (source, argument) in arguments {
        if let Some((name, value)) = read_argument(argument, *source, &declared, problems) {
            set.insert(name.to_string());
            values.insert(name.to_string(), value.to_string());
        }
    }
    let mut used = BTreeSet::new();
    if let YamlValue::Mapping(entries) = &mut root.value {
        let mut replacer =
            Replacer { values: &values, declared: &declared, used: &mut used, bytes: 0, problems };
        for entry in entries.iter_mut().filter(|entry| entry.key != "params") {
            replacer.node(&mut entry.value);
        }
    }
    for (name, (span, default)) in &declared {
        if default.is_none() && !set.contains(name) {
            let hint = format!("set it with `--param {name}=VALUE`, or give it a default");
            problems.error(*span, format!("parameter {} has no value", quoted(name))).hint(hint);
        } else if !used.contains(name) {
            let hint = format!("use it as `${{{name}}}`, or remove it");
            problems.warning(*span, format!("parameter {} is never used", quoted(name))).hint(hint);
        }
    }
    values
}

/// Position and default of each declared parameter.
type Declared = BTreeMap<String, (Span, Option<String>)>;

fn declared(root: &Node, problems: &mut Problems) -> Declared {
    let mut declared = Declared::new();
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
        declared.insert(entry.key.clone(), (entry.span, default.map(|value| value.text.clone())));
    }
    declared
}

fn is_name(text: &str) -> bool {
    text.starts_with(|first: char| first.is_ascii_alphabetic() || first == '_')
        && text.chars().all(|character| character.is_ascii_alphanumeric() || character == '_')
}

/// Parses the `name=value` of a `--param`.
fn read_argument<'a>(
    argument: &'a str,
    source: usize,
    declared: &Declared,
    problems: &mut Problems,
) -> Option<(&'a str, &'a str)> {
    let span = |text: &str| Span {
        source,
        line: 1,
        column: PARAM.len() + 1,
        length: text.chars().count(),
    };
    let Some((name, value)) = argument.split_once('=') else {
        let hint = "write `--param NAME=VALUE`";
        problems.error(span(argument), format!("{} has no `=`", quoted(argument))).hint(hint);
        return None;
    };
    if !declared.contains_key(name) {
        undeclared(span(name), name, declared, problems);
        return None;
    }
    Some((name, value))
}

fn undeclared(span: Span, name: &str, declared: &Declared, problems: &mut Problems) {
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
    values: &'a BTreeMap<String, String>,
    declared: &'a Declared,
    used: &'a mut BTreeSet<String>,
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
            let place = |length| position_of_dollar(self.problems.sources, span, dollars, length);
            let Some(end) = after.find('}') else {
                let problem = self.problems.error(place(2), "`${` without a closing `}`");
                problem.hint("close it; write a literal `${` as `$${`");
                return out + &rest[at..];
            };
            let name = &after[..end];
            if let Some(value) = self.values.get(name) {
                self.bytes = self.bytes.saturating_add(value.len());
                if self.bytes > MAX_FILE_BYTES {
                    let message = format!(
                        "parameters add more than {} bytes to the pipeline",
                        count(MAX_FILE_BYTES as u64)
                    );
                    let problem = self.problems.error(place(name.chars().count() + 3), message);
                    problem.hint(
                        "check the values of `--param`: a parameter is usually a date or a path",
                    );
                    return out + &rest[at..];
                }
                out.push_str(value);
            } else if !self.declared.contains_key(name) {
                undeclared(place(name.chars().count() + 3), name, self.declared, self.problems);
            }
            seen += name.matches('$').count();
            self.used.insert(name.to_string());
            rest = &after[end + 1..];
        }
        out + rest
    }
}

/// Position of the dollar sign number `index` (from 0) of a string in its source; the string's own position if the source has
/// fewer dollar signs, because one was written as an escape.
fn position_of_dollar(sources: &Sources, span: Span, index: usize, length: usize) -> Span {
    let mut left = index;
    for line in span.line..span.line + 1000 {
        let skipped = if line == span.line { span.column - 1 } else { 0 };
        for (column, character) in sources.line(span.source, line).chars().enumerate().skip(skipped)
        {
            if line == span.line && column >= skipped.saturating_add(span.length) {
                return span;
            }
            if character == '$' {
                if left == 0 {
                    return Span { line, column: column + 1, length, ..span };
                }
                left -= 1;
            }
        }
        if span.length != usize::MAX {
            return span;
        }
    }
    span
}
