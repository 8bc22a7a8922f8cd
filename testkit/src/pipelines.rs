//! Pipeline files of tests.

use std::fmt;

/// Pipeline; its sections are the content of YAML flow mappings.
#[derive(Clone, Debug)]
pub struct Pipeline {
    pub input: String,
    /// `load-partial-model`; if empty, the pipeline has neither a model nor `first-layer-attention`.
    pub model: String,
    pub tokenize: String,
    /// `shard-across-devices`; omitted if empty.
    pub devices: String,
    pub attention: String,
    /// Further measures, each with its `stage`.
    pub measures: Vec<String>,
    pub score: String,
    pub filter: String,
    pub output: String,
}

impl Pipeline {
    /// Pipeline over pre-tokenized documents of the folder `input`, with windows of `window_tokens`, that keeps half
    /// of them.
    pub fn tokens(model: &str, window_tokens: usize) -> Self {
        Self {
            input: "path: input, id_column: id, tokens_column: tokens".to_owned(),
            model: format!("model: {model}"),
            tokenize: format!("window_tokens: {window_tokens}, bos: 0"),
            devices: String::new(),
            attention: String::new(),
            measures: Vec::new(),
            score: String::new(),
            filter: "keep_fraction: 0.5".to_owned(),
            // A file for each unit, so that more can fail.
            output: "path: out, part_bytes: 0".to_owned(),
        }
    }

    /// Like [`Pipeline::tokens`] for texts, with the tokenizer of the model folder.
    pub fn text(model: &str, window_tokens: usize) -> Self {
        Self {
            input: "path: input, id_column: id, text_column: text".to_owned(),
            ..Self::tokens(model, window_tokens)
        }
    }

    /// Adds settings of the input.
    #[must_use]
    pub fn input(mut self, more: &str) -> Self {
        add(&mut self.input, more);
        self
    }

    /// Sets the id column.
    #[must_use]
    pub fn with_ids(mut self, column: &str) -> Self {
        self.input = self.input.replace("id_column: id", &format!("id_column: {column}"));
        self
    }

    /// Adds settings of `tokenize`.
    #[must_use]
    pub fn tokenize(mut self, more: &str) -> Self {
        add(&mut self.tokenize, more);
        self
    }

    /// Adds settings of `shard-across-devices`.
    #[must_use]
    pub fn devices(mut self, more: &str) -> Self {
        add(&mut self.devices, more);
        self
    }

    /// Adds settings of `first-layer-attention`.
    #[must_use]
    pub fn attention(mut self, more: &str) -> Self {
        add(&mut self.attention, more);
        self
    }

    /// Adds a measure: `recurrence, min_distance_tokens: 3`.
    #[must_use]
    pub fn measure(mut self, stage: &str) -> Self {
        self.measures.push(stage.to_owned());
        self
    }

    /// Removes the model; `tokenizer` is needed for texts only.
    #[must_use]
    pub fn without_model(mut self, tokenizer: Option<&str>) -> Self {
        self.model.clear();
        match tokenizer {
            Some(tokenizer) => self.tokenize(&format!("tokenizer: {tokenizer}")),
            None => self,
        }
    }

    /// Adds settings of `score`.
    #[must_use]
    pub fn score(mut self, more: &str) -> Self {
        add(&mut self.score, more);
        self
    }

    #[must_use]
    pub fn filter(mut self, filter: &str) -> Self {
        filter.clone_into(&mut self.filter);
        self
    }

    /// Adds settings of the output.
    #[must_use]
    pub fn output(mut self, more: &str) -> Self {
        add(&mut self.output, more);
        self
    }
}

fn add(section: &mut String, more: &str) {
    if !section.is_empty() {
        section.push_str(", ");
    }
    section.push_str(more);
}

impl fmt::Display for Pipeline {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "version: 1\nname: test\ninput: {{{}}}\nstages:", self.input)?;
        let has_model = !self.model.is_empty();
        let stages = [
            ("load-partial-model", &self.model, has_model),
            ("tokenize", &self.tokenize, true),
            ("shard-across-devices", &self.devices, !self.devices.is_empty()),
            ("first-layer-attention", &self.attention, has_model),
        ];
        let last = [("score", &self.score, true), ("filter", &self.filter, true)];
        let mut stage = |(stage, settings, is_present): (&str, &String, bool)| {
            let separator = if settings.is_empty() { "" } else { ", " };
            if is_present {
                writeln!(f, "  - {{stage: {stage}{separator}{settings}}}")
            } else {
                Ok(())
            }
        };
        stages.into_iter().try_for_each(&mut stage)?;
        let empty = String::new();
        self.measures.iter().try_for_each(|measure| stage((measure, &empty, true)))?;
        last.into_iter().try_for_each(&mut stage)?;
        writeln!(f, "output: {{{}}}", self.output)
    }
}
