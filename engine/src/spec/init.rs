//! Generates the pipeline of `longsift init`.

use askama::Template;
use serde_json::Value;

use crate::base::text::json_safe;

/// Maximum columns of the input listed in a comment.
const MAX_COLUMNS: usize = 20;

/// Contents of a starter pipeline: paths and names as written in it.
#[derive(Clone, Debug, PartialEq, Eq, Template)]
#[template(path = "starter.yaml", escape = "none")]
pub struct Starter {
    pub name: String,
    pub input: String,
    /// Columns of the input with their types; empty for an example.
    pub columns: Vec<(String, String)>,
    pub id: Option<String>,
    /// `input.text_column`, or `input.tokens_column`.
    pub content: Content,
    /// `tokenize.tokenizer`; `None` to use that of the model.
    pub tokenizer: Option<String>,
    /// Model; if set, its first-layer attention is measured as well.
    pub model: Option<String>,
    pub window_tokens: u32,
    /// Whether most documents of the input are shorter than a window.
    pub is_short: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Content {
    Text(String),
    Tokens(String),
}

impl Starter {
    pub fn example(model: Option<&str>) -> Self {
        Self {
            name: "my-corpus".to_owned(),
            input: "corpus/*.parquet".to_owned(),
            columns: Vec::new(),
            id: None,
            content: Content::Text("text".to_owned()),
            tokenizer: model.is_none().then(|| "models/tokenizer".to_owned()),
            model: model.map(str::to_owned),
            window_tokens: 32_768,
            is_short: false,
        }
    }

    pub fn yaml(&self) -> String {
        self.render().expect("formatting into a string does not fail")
    }

    fn has_text(&self) -> bool {
        matches!(self.content, Content::Text(_))
    }
}

/// Formats a setting, padded for the comment after it.
fn setting(key: &str, value: &str, width: usize) -> String {
    format!("{:<width$}", format!("{key}: {}", scalar(value)))
}

/// Formats text as a YAML scalar, plain if that is safe, otherwise quoted as in JSON, so that any path round-trips. Characters
/// that YAML files may not contain are escaped, as is the start of a parameter.
fn scalar(text: &str) -> String {
    let plain = |character: char| character.is_ascii_alphanumeric() || "/._-*".contains(character);
    let is_text = text
        .starts_with(|first: char| first.is_ascii_alphabetic() || "/.".contains(first))
        && !["true", "false", "null", "yes", "no", "on", "off", ".inf", ".nan"]
            .contains(&text.to_lowercase().as_str())
        && text.parse::<f64>().is_err();
    if is_text && text.chars().all(plain) {
        return text.to_owned();
    }
    json_safe(&Value::from(text.replace("${", "$${")).to_string())
}

#[cfg(test)]
mod tests {
    use longsift_stages::StageSettings;
    use longsift_stages::score::presets::Formula;

    use super::*;
    use crate::spec::{Overrides, Spec};

    fn parsed(starter: &Starter) -> Spec {
        let (spec, warnings) = Spec::parse("p.yaml", &starter.yaml(), &Overrides::default())
            .unwrap_or_else(|problems| panic!("{problems:?}\n{}", starter.yaml()));
        assert!(warnings.is_empty(), "{warnings:?}");
        spec
    }

    fn stages(spec: &Spec) -> Vec<&str> {
        spec.pipeline.stages.iter().map(StageSettings::name).collect()
    }

    #[test]
    fn the_starter_passes_the_checker_without_a_warning() {
        for model in [None, Some("models/Llama-3.1-8B"), Some("a \"b\": c #\\d")] {
            let spec = parsed(&Starter::example(model));
            assert_eq!(spec.tokenize().window_tokens, 32768);
            assert_eq!(spec.score().formula, Some(Formula::BalancedRecurrence));
            assert_eq!(spec.first_layer_attention().is_some(), model.is_some());
            let written = spec.load_partial_model().map(|stage| stage.model.to_string());
            assert_eq!(written.as_deref(), model);
        }
        let without = parsed(&Starter::example(None));
        assert_eq!(stages(&without), ["tokenize", "recurrence", "lexical", "score", "filter"]);
    }

    #[test]
    fn any_name_round_trips_through_the_starter() {
        let found = Starter {
            name: "2026".to_owned(),
            input: "*.jsonl".to_owned(),
            columns: (0..30)
                .map(|column| (format!("a: b{column}\u{7f}\u{feff}"), "string".to_owned()))
                .collect(),
            id: Some("null".to_owned()),
            content: Content::Tokens("input ids #".to_owned()),
            tokenizer: None,
            model: None,
            window_tokens: 2048,
            is_short: false,
        };
        let spec = parsed(&found);
        let input = &spec.pipeline.input;
        assert_eq!(
            (spec.pipeline.name.as_str(), input.path.to_string().as_str()),
            ("2026", "*.jsonl")
        );
        assert_eq!(input.id_column.as_deref(), Some("null"));
        assert_eq!(
            (input.tokens_column.as_deref(), &input.text_column),
            (Some("input ids #"), &None)
        );
        assert_eq!(spec.pipeline.output.path.to_string(), "out/2026");
        assert_eq!(stages(&spec), ["tokenize", "recurrence", "score", "filter"]);
        assert!(found.yaml().contains("  #   and 10 more\n"), "{}", found.yaml());
        for name in [
            ".inf",
            ".NaN",
            "1e3",
            "~",
            "- a",
            "\u{feff}id",
            "a\u{7f}\u{85}\u{e0001}",
            "${x}",
            "\"$${'",
        ] {
            let id = Some(name.to_owned());
            let spec = parsed(&Starter { id, ..found.clone() });
            assert_eq!(spec.pipeline.input.id_column.as_deref(), Some(name));
        }
    }

    #[test]
    fn starter_lines_fit_a_terminal_and_explain_every_stage() {
        for model in [None, Some("models/Llama-3.1-8B")] {
            let text = Starter::example(model).yaml();
            assert!(text.lines().all(|line| line.chars().count() <= 100), "{text}");
            let lines: Vec<&str> = text.lines().collect();
            for (index, _) in lines.iter().enumerate().filter(|(_, line)| line.contains("- stage:"))
            {
                assert!(
                    lines[index - 2..index].iter().all(|line| line.starts_with("  # ")),
                    "{text}"
                );
            }
        }
    }
}
