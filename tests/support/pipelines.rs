//! Pipeline files of tests.

use std::fmt;

/// A pipeline, its sections as the inside of YAML flow mappings.
#[derive(Clone, Debug)]
pub(crate) struct Pipeline {
    /// The input.
    pub(crate) input: String,
    /// `load-partial-model`.
    pub(crate) model: String,
    /// `tokenize`.
    pub(crate) tokenize: String,
    /// `shard-across-devices`; left out where empty.
    pub(crate) devices: String,
    /// `first-layer-attention`.
    pub(crate) attention: String,
    /// `score`.
    pub(crate) score: String,
    /// `filter`.
    pub(crate) filter: String,
    /// The output.
    pub(crate) output: String,
}

impl Pipeline {
    /// Pre-tokenised documents of the folder `input`, windows of `window_tokens`, half of them kept.
    pub(crate) fn tokens(model: &str, window_tokens: usize) -> Self {
        Self {
            input: "path: input, id_column: id, tokens_column: tokens".to_owned(),
            model: format!("model: {model}"),
            tokenize: format!("window_tokens: {window_tokens}, bos: 0"),
            devices: String::new(),
            attention: String::new(),
            score: String::new(),
            filter: "keep_fraction: 0.5".to_owned(),
            output: "path: out".to_owned(),
        }
    }

    /// The same for texts, by the tokenizer of the model folder.
    pub(crate) fn text(model: &str, window_tokens: usize) -> Self {
        Self {
            input: "path: input, id_column: id, text_column: text".to_owned(),
            ..Self::tokens(model, window_tokens)
        }
    }

    /// With more settings of the input.
    #[must_use]
    pub(crate) fn input(mut self, more: &str) -> Self {
        add(&mut self.input, more);
        self
    }

    /// With another column of ids.
    #[must_use]
    pub(crate) fn with_ids(mut self, column: &str) -> Self {
        self.input = self.input.replace("id_column: id", &format!("id_column: {column}"));
        self
    }

    /// With more settings of `tokenize`.
    #[must_use]
    pub(crate) fn tokenize(mut self, more: &str) -> Self {
        add(&mut self.tokenize, more);
        self
    }

    /// With more settings of `shard-across-devices`.
    #[must_use]
    pub(crate) fn devices(mut self, more: &str) -> Self {
        add(&mut self.devices, more);
        self
    }

    /// With more settings of `first-layer-attention`.
    #[must_use]
    pub(crate) fn attention(mut self, more: &str) -> Self {
        add(&mut self.attention, more);
        self
    }

    /// With more settings of `score`.
    #[must_use]
    pub(crate) fn score(mut self, more: &str) -> Self {
        add(&mut self.score, more);
        self
    }

    /// With another filter.
    #[must_use]
    pub(crate) fn filter(mut self, filter: &str) -> Self {
        filter.clone_into(&mut self.filter);
        self
    }

    /// With more settings of the output.
    #[must_use]
    pub(crate) fn output(mut self, more: &str) -> Self {
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
        for (stage, settings) in [
            ("load-partial-model", &self.model),
            ("tokenize", &self.tokenize),
            ("shard-across-devices", &self.devices),
            ("first-layer-attention", &self.attention),
            ("score", &self.score),
            ("filter", &self.filter),
        ] {
            if stage == "shard-across-devices" && settings.is_empty() {
                continue;
            }
            let separator = if settings.is_empty() { "" } else { ", " };
            writeln!(f, "  - {{stage: {stage}{separator}{settings}}}")?;
        }
        writeln!(f, "output: {{{}}}", self.output)
    }
}
