//! JSON Schemas and reference pages, generated from the doc comments of the settings.

use std::fmt::Write as _;

use longsift_stages::contract::{self as columns, Column};
use longsift_stages::{Role, StageSettings};
use schemars::schema_for;
use serde_json::Value;
use unicode_width::UnicodeWidthStr;

use crate::run_directory::calibration::Calibration;
use crate::run_directory::manifest::Manifest;
use crate::run_directory::pipeline_lock::PipelineLock;
use crate::run_directory::summary::Summary;
use crate::spec::rules::contract;
use crate::spec::schema::{self, ValueKind, words};
use crate::tools::evaluate::Evaluation;

/// Returns the published JSON Schemas by name (`pipeline` is `schemas/pipeline.schema.json`). To publish another one,
/// add a line here with [`schema::polished`], and rewrite the files.
pub fn schemas() -> Vec<(&'static str, Value)> {
    vec![
        ("pipeline", schema::pipeline().clone()),
        ("summary", schema::polished(&schema_for!(Summary))),
        ("manifest", schema::polished(&schema_for!(Manifest))),
        ("calibration", schema::polished(&schema_for!(Calibration))),
        ("lock", schema::polished(&schema_for!(PipelineLock))),
        ("evaluation", schema::polished(&schema_for!(Evaluation))),
    ]
}

pub fn schema_text(schema: &Value) -> String {
    format!("{schema:#}\n")
}

/// Returns the names that have a reference page: all stages, and the sections around them.
pub fn page_names() -> Vec<&'static str> {
    [schema::stage_names(), &["input", "output", "checks"]].concat()
}

/// Returns the reference page of a stage or section, or without a name the list of all; `None` for an unknown name.
pub fn stage_page(name: Option<&str>, width: usize, color: bool) -> Option<String> {
    let page = PageWriter { width: width.clamp(40, 200), color };
    let Some(name) = name else { return Some(page.list()) };
    page_names().contains(&name).then(|| page.settings(name))
}

/// A setting as reference pages describe it.
pub(super) struct SettingText {
    pub(super) key: &'static str,
    /// Accepted values and the default.
    pub(super) takes: String,
    pub(super) doc: &'static str,
    /// Named values with their meanings.
    pub(super) names: Vec<(&'static str, &'static str)>,
    /// Settings of an item of a list.
    pub(super) items: Vec<Self>,
}

pub(super) fn settings_of(name: &str) -> Vec<SettingText> {
    let root = schema::pipeline();
    let section = schema::sections(root).find(|(section, _)| *section == name);
    described(section.map_or(&root["properties"]["checks"]["items"], |(_, settings)| settings))
}

fn described(mapping: &'static Value) -> Vec<SettingText> {
    let root = schema::pipeline();
    let mapping = schema::resolved(root, mapping);
    let setting = |(key, setting)| {
        let (mut names, mut items) = (Vec::new(), Vec::new());
        for kind in schema::kinds(root, setting) {
            match kind {
                ValueKind::Names(of) => names.extend(of),
                ValueKind::List { items: of, .. } => items.extend(described(of)),
                _ => {}
            }
        }
        let takes = words::in_words(root, setting) + &default_in_words(mapping, key, setting);
        SettingText { key, takes, doc: schema::description(setting), names, items }
    };
    schema::properties(mapping).filter(|(key, _)| *key != "stage").map(setting).collect()
}

/// Returns the full description of a stage or section: the doc comment of its settings.
pub(super) fn about(name: &str) -> String {
    let schema = match name {
        "load-partial-model" => schema_for!(longsift_stages::LoadPartialModel),
        "tokenize" => schema_for!(longsift_stages::Tokenize),
        "shard-across-devices" => schema_for!(longsift_stages::ShardAcrossDevices),
        "first-layer-attention" => schema_for!(longsift_stages::FirstLayerAttention),
        "recurrence" => schema_for!(longsift_stages::Recurrence),
        "compression" => schema_for!(longsift_stages::Compression),
        "lexical" => schema_for!(longsift_stages::Lexical),
        "external" => schema_for!(longsift_stages::External),
        "language-model" => schema_for!(longsift_stages::LanguageModel),
        "score" => schema_for!(longsift_stages::Score),
        "filter" => schema_for!(longsift_stages::Filter),
        "input" => schema_for!(crate::spec::pipeline::Input),
        "checks" => schema_for!(crate::spec::assertions::Check),
        _ => schema_for!(crate::spec::pipeline::Output),
    };
    schema::description(&schema::polished(&schema)).to_string()
}

struct PageWriter {
    width: usize,
    color: bool,
}

impl PageWriter {
    fn list(&self) -> String {
        let names = page_names();
        let column = names.iter().map(|name| name.width()).max().unwrap_or(0) + 2;
        let mut out = String::new();
        for name in names {
            if name == "input" {
                out.push_str("\nSections around the stages:\n");
            }
            let mut stages = schema::stages(schema::pipeline()).into_iter();
            let stage = stages.find(|(stage, _)| *stage == name);
            let doc = stage.map(|(_, settings)| schema::description(settings).to_owned());
            let doc = doc.unwrap_or_else(|| about(name));
            let text = wrapped(&doc, self.width.saturating_sub(column), column);
            let _ = writeln!(
                out,
                "{}{}{}",
                self.strong(name),
                " ".repeat(column - name.width()),
                text.trim_start()
            );
        }
        out.push_str("\n`longsift stages NAME` shows the settings of a stage.\n");
        out
    }

    fn settings(&self, name: &str) -> String {
        let mut out =
            format!("{}\n\n{}\n", self.strong(name), wrapped(&about(name), self.width, 0));
        for SettingText { key, takes, doc, names, items } in settings_of(name) {
            let heading = wrapped(&format!("{key}: {takes}"), self.width, 0);
            let _ = writeln!(out, "\n{}", heading.replacen(key, &self.strong(key), 1));
            let _ = writeln!(out, "{}", wrapped(doc, self.width - 4, 4));
            let column = names.iter().map(|(name, _)| name.width()).max().unwrap_or(0) + 8;
            for (name, meaning) in names {
                let text = wrapped(meaning, self.width.saturating_sub(column), column);
                let gap = " ".repeat(column - 6 - name.width());
                let _ = writeln!(out, "      {}{gap}{}", self.strong(name), text.trim_start());
            }
            for item in items {
                let _ = writeln!(out, "\n    - {}: {}", self.strong(item.key), item.takes);
                let _ = writeln!(out, "{}", wrapped(item.doc, self.width - 8, 8));
            }
        }
        self.statistics(name, &mut out);
        out
    }

    fn statistics(&self, name: &str, out: &mut String) {
        let stage = contract(name);
        let Some(Role::Measure(measure)) = stage.as_ref().map(StageSettings::role) else { return };
        out.push_str("\nStatistics of a window, as columns of `scores/`:\n");
        for Column { name, kind, unit, doc, .. } in measure.columns() {
            let kind = match kind {
                columns::Kind::Number => "a number",
                columns::Kind::Count => "a count",
                columns::Kind::Numbers => "a list of numbers",
            };
            let _ = writeln!(out, "\n{}: {kind}, {unit}", self.strong(&name));
            let _ = writeln!(out, "{}", wrapped(&doc, self.width - 4, 4));
        }
    }

    fn strong(&self, text: &str) -> String {
        if self.color { format!("\u{1b}[1m{text}\u{1b}[0m") } else { text.to_string() }
    }
}

/// Describes whether a setting is required, and its default.
fn default_in_words(settings: &Value, key: &str, setting: &Value) -> String {
    match setting.get("default") {
        _ if schema::is_required(settings, key) => ", required".to_string(),
        Some(Value::String(text)) => format!(", default `{text}`"),
        Some(Value::Number(number)) => match number.as_u64() {
            Some(integer) => format!(", default {}", words::grouped(integer.into())),
            None => format!(", default {number}"),
        },
        Some(Value::Bool(boolean)) => format!(", default `{boolean}`"),
        _ => ", optional".to_string(),
    }
}

/// Wraps text to lines of at most `width` columns, indented by `indent` spaces.
fn wrapped(text: &str, width: usize, indent: usize) -> String {
    let margin = " ".repeat(indent);
    let options = textwrap::Options::new(width + indent)
        .initial_indent(&margin)
        .subsequent_indent(&margin)
        .break_words(false)
        .word_splitter(textwrap::WordSplitter::NoHyphenation);
    let filled = |paragraph: &str| textwrap::fill(&paragraph.replace('\n', " "), &options);
    text.split("\n\n").map(filled).collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn schemas_in_the_repository_are_current() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../schemas");
        for (name, schema) in schemas() {
            let path = folder.join(format!("{name}.schema.json"));
            if std::env::var_os("UPDATE_SCHEMAS").is_some() {
                std::fs::write(&path, schema_text(&schema))
                    .expect("the folder `schemas` can be written");
            }
            let current =
                std::fs::read_to_string(&path).unwrap_or_default() == schema_text(&schema);
            assert!(
                current,
                "schemas/{name}.schema.json is stale; `UPDATE_SCHEMAS=1 cargo test -p longsift-engine schemas` rewrites it"
            );
        }
    }

    #[test]
    fn schemas_are_valid() {
        for (name, schema) in schemas() {
            assert!(jsonschema::meta::is_valid(&schema), "{name}");
            jsonschema::validator_for(&schema).expect(name);
        }
    }

    #[test]
    fn stage_page_lists_every_setting_with_type_range_and_default() {
        insta::assert_snapshot!(stage_page(Some("tokenize"), 80, false).expect("a page"));
    }

    #[test]
    fn filter_page_lists_settings_of_guards_and_budgets() {
        insta::assert_snapshot!(stage_page(Some("filter"), 80, false).expect("a page"));
    }

    #[test]
    fn list_contains_every_stage_and_section() {
        insta::assert_snapshot!(stage_page(None, 100, false).expect("a page"));
    }

    #[test]
    fn measure_pages_and_the_manual_list_all_statistics() {
        insta::assert_snapshot!(stage_page(Some("lexical"), 80, false).expect("a page"));
        let manual = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/statistics.md");
        let manual = std::fs::read_to_string(manual).expect("the page");
        for stage in schema::stage_names().iter().filter_map(|name| contract(name)) {
            let Role::Measure(measure) = stage.role() else { continue };
            assert!(manual.contains(&format!("\n## {}\n", stage.name())), "{}", stage.name());
            let page = stage_page(Some(stage.name()), 100, false).expect("a page");
            for Column { name, unit, .. } in measure.columns() {
                assert!(page.contains(&format!("\n{name}: ")), "{name}");
                assert!(manual.contains(&format!("\n| `{name}` | {unit} | ")), "{name}");
            }
        }
    }

    #[test]
    fn every_page_describes_every_setting() {
        for name in page_names() {
            let page = stage_page(Some(name), 100, false).expect("a page");
            assert!(page.lines().all(|line| line.width() <= 100), "{page}");
            assert!(!page.contains("\n    \n"), "a setting without a description: {page}");
        }
        assert_eq!(stage_page(Some("nothing"), 100, false), None);
    }
}
