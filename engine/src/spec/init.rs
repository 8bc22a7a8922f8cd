//! Generates the pipeline of `longsift init`.

use serde_json::Value;

/// First characters of template lines that apply only if, respectively, a model is given, the tokenizer is named, or documents
/// are text.
const MARKS: [char; 3] = ['@', '!', '%'];

/// Maximum columns of the input listed in a comment.
const MAX_COLUMNS: usize = 20;

/// Contents of a starter pipeline: paths and names as written in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Starter {
    /// Name of the pipeline and of its output.
    pub name: String,
    /// `input.path`.
    pub input: String,
    /// Columns of the input with their types; empty for an example.
    pub columns: Vec<(String, String)>,
    /// `input.id_column`.
    pub id: Option<String>,
    /// `input.text_column`, or `input.tokens_column`.
    pub content: Content,
    /// `tokenize.tokenizer`; `None` to use that of the model.
    pub tokenizer: Option<String>,
    /// Model; if set, its first-layer attention is measured as well.
    pub model: Option<String>,
    /// `tokenize.window_tokens`.
    pub window_tokens: u32,
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
        }
    }

    /// Formats the pipeline with comments.
    pub fn yaml(&self) -> String {
        let has_text = matches!(self.content, Content::Text(_));
        let applies = [self.model.is_some(), has_text && self.tokenizer.is_some(), has_text];
        let lines = include_str!("starter.template").lines().filter_map(|line| {
            let mark = MARKS.iter().position(|mark| line.starts_with(*mark));
            match mark {
                // The mark replaces a space.
                Some(mark) => {
                    applies[mark].then(|| format!(" {}", &line[1..]).trim_end().to_owned())
                }
                None => Some(line.to_owned()),
            }
        });
        lines.filter_map(|line| self.filled(line)).map(|line| line + "\n").collect()
    }

    /// Replaces the placeholder of a line; `None` if the line is omitted.
    fn filled(&self, line: String) -> Option<String> {
        let Some((before, rest)) = line.split_once('{') else { return Some(line) };
        let Some((name, "")) = rest.split_once('}') else { return Some(line) };
        let setting = |setting: &str, comment: &str| {
            format!("{before}{setting:<w$} # {comment}", w = 35 - before.len())
        };
        let filled = match name {
            "NAME" => format!("{before}{}", scalar(&self.name)),
            "COLUMNS" => return (!self.columns.is_empty()).then(|| self.columns_found(before)),
            "INPUT" => setting(
                &format!("path: {}", scalar(&self.input)),
                "a file, a folder or a glob; relative to this file's folder",
            ),
            "ID" => setting(
                &match &self.id {
                    Some(column) => format!("id_column: {}", scalar(column)),
                    None => "# id_column: id".to_owned(),
                },
                "id of a document; default: its file and row",
            ),
            "CONTENT" => match &self.content {
                Content::Text(column) => setting(
                    &format!("text_column: {}", scalar(column)),
                    "or tokens_column, for documents that are token ids already",
                ),
                Content::Tokens(column) => setting(
                    &format!("tokens_column: {}", scalar(column)),
                    "or text_column, with a tokenizer",
                ),
            },
            "MODEL" => format!("{before}{}", scalar(self.model.as_deref()?)),
            "TOKENIZER" => setting(
                &format!("tokenizer: {}", scalar(self.tokenizer.as_deref()?)),
                "a folder with tokenizer.json; no model is needed",
            ),
            "WINDOW" if self.columns.is_empty() => {
                format!("{before}window_tokens: {}", self.window_tokens)
            }
            "WINDOW" => setting(
                &format!("window_tokens: {}", self.window_tokens),
                "a length that half of the documents reach, and at least 1,024",
            ),
            "OUTPUT" => setting(
                &format!("path: {}", scalar(&format!("out/{}", self.name))),
                &format!("Parquet in out/{0}/data, the rest in out/{0}.run", self.name),
            ),
            // Braces of a guard's mapping, not a placeholder.
            _ => return Some(line),
        };
        Some(filled)
    }

    fn columns_found(&self, before: &str) -> String {
        let named = self.columns.iter().take(MAX_COLUMNS);
        let mut lines = vec![format!("{before}# Columns:")];
        lines.extend(named.map(|(name, kind)| format!("{before}#   {}: {kind}", scalar(name))));
        let more = self.columns.len().saturating_sub(MAX_COLUMNS);
        if more > 0 {
            lines.push(format!("{before}#   and {more} more"));
        }
        lines.join("\n")
    }
}

/// Formats text as a YAML scalar, plain if that is safe, otherwise quoted as in JSON, so that any path round-trips.
fn scalar(text: &str) -> String {
    let plain = |character: char| character.is_ascii_alphanumeric() || "/._-*".contains(character);
    let is_text = text
        .starts_with(|first: char| first.is_ascii_alphabetic() || "/.".contains(first))
        && !["true", "false", "null", "yes", "no", "on", "off"]
            .contains(&text.to_lowercase().as_str())
        && text.parse::<f64>().is_err();
    if is_text && text.chars().all(plain) { text.to_owned() } else { Value::from(text).to_string() }
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
            columns: (0..30).map(|column| (format!("a: b{column}"), "string".to_owned())).collect(),
            id: Some("null".to_owned()),
            content: Content::Tokens("input ids #".to_owned()),
            tokenizer: None,
            model: None,
            window_tokens: 2048,
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
