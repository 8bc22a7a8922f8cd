//! Checks a pipeline against its schema: keys, types, ranges and names. Reports all mistakes at once.

mod hints;

use serde_json::Value as Json;

use super::node::{Node, YamlValue};
use super::schema::{self, ValueKind, words};
use super::source::{Problems, Span};
use crate::base::text::{quoted, suggest};
use hints::{first_sentence, home_of, type_hint};

/// Keys of earlier versions with their replacements.
const REPLACED: [(&str, &str); 1] = [("max_variance_error", "max_relative_error")];

/// Reports every mismatch between `node` and the schema of a pipeline.
pub(crate) fn check(node: &Node, problems: &mut Problems) {
    let root = schema::pipeline();
    let owner = Owner { key: "", words: "the pipeline".to_string(), span: head(node) };
    Checker { root, problems }.value(node, root, &owner);
}

/// Returns the position of a value, or of the first key of a mapping.
pub(crate) fn head(node: &Node) -> Span {
    node.entries().first().map_or(node.span, |entry| entry.span)
}

/// Key that a value belongs to.
struct Owner<'a> {
    /// Key as written: `window_tokens`.
    key: &'a str,
    /// Description of a mapping in messages: `` stage `tokenize` ``.
    words: String,
    /// Position for missing keys.
    span: Span,
}

struct Checker<'p, 's> {
    root: &'static Json,
    problems: &'p mut Problems<'s>,
}

impl Checker<'_, '_> {
    fn value(&mut self, node: &Node, schema: &Json, owner: &Owner) {
        let kinds = schema::kinds(self.root, schema);
        for kind in &kinds {
            match (kind, &node.value) {
                (ValueKind::Null, YamlValue::Null) => return,
                (ValueKind::Boolean, YamlValue::Boolean(_)) => return self.boolean(node, owner),
                (
                    ValueKind::Integer { minimum, maximum },
                    YamlValue::Integer(_) | YamlValue::Float(_),
                ) => {
                    if let Some(integer) = node.as_integer() {
                        let why = outside(&integer, (minimum, maximum), |end| words::grouped(*end));
                        return self.check_range(node, why, schema, owner);
                    }
                }
                (
                    ValueKind::Number { minimum, maximum },
                    YamlValue::Integer(_) | YamlValue::Float(_),
                ) => {
                    let number = node.as_number().expect("an integer or a float");
                    if number.is_finite() {
                        let why = outside(&number, (minimum, maximum), f64::to_string);
                        return self.check_range(node, why, schema, owner);
                    }
                    let label = self.takes(schema, owner);
                    let message = format!("{} is not a finite number", quoted(&node.text));
                    self.problems.error(node.span, message).label(label);
                    return;
                }
                (ValueKind::String, YamlValue::String(text)) => {
                    return self.string(node, text, owner);
                }
                (ValueKind::Names(names), YamlValue::String(text)) => {
                    return self.name(node, text, names, &kinds, owner);
                }
                (ValueKind::List { items, minimum }, YamlValue::List(values)) => {
                    return self.list(node, values, items, *minimum, owner);
                }
                (ValueKind::Mapping(mapping), YamlValue::Mapping(_)) => {
                    return self.mapping(node, mapping, owner);
                }
                (ValueKind::Stage(stages), YamlValue::Mapping(_)) => {
                    return self.stage(node, stages);
                }
                _ => {}
            }
        }
        self.wrong_type(node, &kinds, schema, owner);
    }

    fn boolean(&mut self, node: &Node, owner: &Owner) {
        let lower = node.text.to_lowercase();
        if node.text != lower {
            let message = format!("expected `{lower}`, got {}", quoted(&node.text));
            let label = format!("{} takes `true` or `false`", quoted(owner.key));
            self.problems.error(node.span, message).label(label).hint(format!("write `{lower}`"));
        }
    }

    fn check_range(&mut self, node: &Node, why: Option<String>, schema: &Json, owner: &Owner) {
        let Some(why) = why else { return };
        let label = self.takes(schema, owner);
        let message = format!("{} is {}, {why}", quoted(owner.key), shown(&node.text));
        let problem = self.problems.error(node.span, message).label(label);
        let percent = node.as_number().filter(|number| (2.0..=100.0).contains(number));
        if let Some(percent) = percent.filter(|_| owner.key.ends_with("_fraction")) {
            let (text, fraction) = (shown(&node.text), percent / 100.0);
            problem.hint(format!("a fraction, not a percentage: for {text} % write {fraction}"));
        }
    }

    fn string(&mut self, node: &Node, text: &str, owner: &Owner) {
        let may_be_empty = matches!(owner.key, "default" | "description");
        let (why, hint) = if text.trim().is_empty() && !may_be_empty {
            let why = if text.is_empty() { "is empty" } else { "is blank" };
            (why, "give it a value, or remove the key if it has a default")
        } else if text.contains('\0') {
            ("contains a null character", "remove it: paths and column names cannot contain one")
        } else {
            return;
        };
        self.problems.error(node.span, format!("{} {why}", quoted(owner.key))).hint(hint);
    }

    fn name(
        &mut self,
        node: &Node,
        text: &str,
        names: &[(&str, &str)],
        kinds: &[ValueKind],
        owner: &Owner,
    ) {
        if names.iter().any(|(name, _)| *name == text) {
            return;
        }
        let known: Vec<&str> = names.iter().map(|(name, _)| *name).collect();
        let list = known.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ");
        let message = format!("{} is not a value of {}", quoted(text), quoted(owner.key));
        let takes_list = kinds.iter().any(|kind| matches!(kind, ValueKind::List { .. }));
        let problem =
            self.problems.error(node.span, message).label(format!("known values: {list}"));
        if let Some(name) = suggest(text, known) {
            problem.hint(format!("did you mean `{name}`?"));
        } else if takes_list {
            problem.hint(format!(
                "a list is written in brackets: `{}: [{}]`",
                owner.key,
                shown(text)
            ));
        }
    }

    fn list(&mut self, node: &Node, values: &[Node], items: &Json, minimum: u64, owner: &Owner) {
        if (values.len() as u64) < minimum {
            let message = format!("{} is an empty list", quoted(owner.key));
            let hint = match owner.key {
                "stages" => "begin each stage with `- stage: NAME`",
                _ => "name at least one, or remove the key if it has a default",
            };
            self.problems.error(node.span, message).hint(hint);
        }
        for value in values {
            let owner = Owner { key: owner.key, words: owner.words.clone(), span: head(value) };
            self.value(value, items, &owner);
        }
    }

    fn mapping(&mut self, node: &Node, mapping: &Json, owner: &Owner) {
        let mut meant = Vec::new();
        for entry in node.entries() {
            let key = entry.key.as_str();
            let words = match (owner.key, mapping.get("properties").is_some()) {
                ("params", false) => format!("parameter {}", quoted(key)),
                _ => quoted(key),
            };
            let owner_of_value = Owner { key, words, span: entry.span };
            if let Some(schema) = mapping["properties"].get(key) {
                self.value(&entry.value, schema, &owner_of_value);
            } else if mapping["additionalProperties"].is_object() {
                self.value(&entry.value, &mapping["additionalProperties"], &owner_of_value);
            } else {
                meant.extend(self.unknown_key(key, entry.span, mapping, owner));
            }
        }
        for (key, schema) in schema::properties(mapping) {
            if schema::is_required(mapping, key)
                && node.entry(key).is_none()
                && !meant.contains(&key)
            {
                self.missing_key(key, schema, owner);
            }
        }
    }

    /// Reports an unknown key. Returns the known key that was probably meant, so that it is not reported as missing.
    fn unknown_key<'m>(
        &mut self,
        key: &str,
        span: Span,
        mapping: &'m Json,
        owner: &Owner,
    ) -> Option<&'m str> {
        let known: Vec<&str> =
            schema::properties(mapping).map(|(key, _)| key).filter(|key| *key != "stage").collect();
        let home = home_of(self.root, key);
        let meant = suggest(key, known.iter().copied());
        let message = format!("unknown key {} in {}", quoted(key), owner.words);
        let problem =
            self.problems.error(span, message).label(format!("known keys: {}", known.join(", ")));
        if let Some((_, now)) = REPLACED.iter().find(|(before, _)| *before == key) {
            problem.hint(format!("`{now}` replaces it"));
        } else if let Some(meant) = meant {
            problem.hint(format!("did you mean `{meant}`?"));
        } else if let Some(home) = home {
            problem.hint(format!("`{key}` is a key of {home}"));
        }
        meant
    }

    fn missing_key(&mut self, key: &str, schema: &Json, owner: &Owner) {
        let takes = words::in_words(self.root, schema);
        let about = first_sentence(schema::description(schema));
        let problem =
            self.problems.error(owner.span, format!("{}: missing key `{key}`", owner.words));
        let hint =
            if about.is_empty() { format!("add `{key}`") } else { format!("add `{key}`: {about}") };
        problem.label(format!("`{key}` takes {takes}")).hint(hint);
    }

    fn stage(&mut self, node: &Node, stages: &[(&str, &Json)]) {
        let names: Vec<&str> = stages.iter().map(|(name, _)| *name).collect();
        let list = names.join(", ");
        let Some(entry) = node.entry("stage") else {
            let named = node.entries().first().filter(|entry| names.contains(&entry.key.as_str()));
            let hint = match named {
                Some(entry) => format!("write `- stage: {}`, and its settings below", entry.key),
                None => "begin it with `- stage: NAME`".to_string(),
            };
            let problem = self.problems.error(head(node), "a stage without a `stage` key");
            problem.label(format!("known stages: {list}")).hint(hint);
            return;
        };
        let Some(name) = entry.value.as_str() else {
            let message =
                format!("the name of a stage is {}, not a string", type_words(&entry.value));
            self.problems.error(entry.value.span, message).label(format!("known stages: {list}"));
            return;
        };
        let Some((_, mapping)) = stages.iter().find(|(known, _)| *known == name) else {
            return unknown_stage(name, entry.value.span, self.problems);
        };
        self.mapping(
            node,
            mapping,
            &Owner { key: "stage", words: format!("stage `{name}`"), span: entry.value.span },
        );
    }

    fn wrong_type(&mut self, node: &Node, kinds: &[ValueKind], schema: &Json, owner: &Owner) {
        let wanted = words::in_short(self.root, schema);
        let label = self.takes(schema, owner);
        if owner.key.is_empty() {
            let problem = self
                .problems
                .error(head(node), format!("the pipeline is {}, not {wanted}", type_words(node)));
            problem.hint(
                "a pipeline begins with `version: 1`; `longsift init` writes one to start from",
            );
            return;
        }
        let is_scalar =
            !matches!(node.value, YamlValue::List(_) | YamlValue::Mapping(_) | YamlValue::Null);
        let subject = if is_scalar { &node.text } else { owner.key };
        let message = format!("{} is {}, not {wanted}", quoted(subject), type_words(node));
        // An empty value in the file has no position of its own, but an empty argument of the command line has one.
        let is_invisible = node.span.length == 0 && node.span.source == owner.span.source;
        let span = if is_invisible { owner.span } else { head(node) };
        let is_replaced = self.problems.sources.text(node.span).contains("${");
        let problem = self.problems.error(span, message).label(label);
        if is_replaced && is_scalar {
            problem.hint("a parameter is text; `--set` can change a setting of any type");
        } else if let Some(hint) = type_hint(node, kinds, owner.key) {
            problem.hint(hint);
        }
    }

    fn takes(&self, schema: &Json, owner: &Owner) -> String {
        format!("{} takes {}", quoted(owner.key), words::in_words(self.root, schema))
    }
}

/// Describes how a value is out of bounds; `None` if it is not.
fn outside<T: PartialOrd>(
    value: &T,
    (minimum, maximum): (&T, &T),
    shown: impl Fn(&T) -> String,
) -> Option<String> {
    if value < minimum {
        Some(format!("below its minimum {}", shown(minimum)))
    } else if value > maximum {
        Some(format!("above its maximum {}", shown(maximum)))
    } else {
        None
    }
}

pub(super) fn unknown_stage(name: &str, span: Span, problems: &mut Problems) {
    let problem = problems.error(span, format!("unknown stage {}", quoted(name)));
    let problem = problem.label(format!("known stages: {}", schema::stage_names().join(", ")));
    if let Some(meant) = suggest(name, schema::stage_names().iter().copied()) {
        problem.hint(format!("did you mean `{meant}`?"));
    }
}

fn type_words(node: &Node) -> &'static str {
    match node.value {
        YamlValue::Null => "empty",
        YamlValue::Boolean(_) => "a boolean",
        YamlValue::Integer(_) => "an integer",
        YamlValue::Float(float) if float.is_finite() => "a number",
        YamlValue::Float(_) => "not a finite number",
        YamlValue::String(_) => "a string",
        YamlValue::List(_) => "a list",
        YamlValue::Mapping(_) => "a mapping",
    }
}

/// Escapes and shortens text of the user.
fn shown(text: &str) -> String {
    quoted(text).trim_matches('`').to_string()
}
