//! Language model measure: losses of a whole model, the gain from a long context, and attention of any layer.

mod columns;
mod ladm;
mod losses;
mod settings;
#[cfg(test)]
mod tests;

use serde_json::json;

pub use ladm::Ladm;
pub use losses::LossSums;
pub use settings::{AttentionLayer, LanguageModel, LayerHeads, ProductPrecision};

use crate::contract::{
    Column, Evidence, Measure, Needs, Request, RowError, StatisticValues, Window, WindowSample,
};

impl Measure for LanguageModel {
    fn name(&self) -> Option<&str> {
        self.name.as_deref()
    }

    fn columns(&self) -> Vec<Column> {
        columns::declare(self)
    }

    fn needs(&self) -> Needs {
        Needs { evidence: vec![Request::Forward(self.request())], ..Needs::default() }
    }

    fn version(&self) -> u32 {
        2
    }

    fn facts(&self) -> serde_json::Value {
        let Self {
            // Only changes the names of the statistics.
            name: _,
            // The engine adds the digest of the model's content; its path does not matter.
            model: _,
            losses,
            short_context_tokens: _,
            attention_layers,
            sink_tokens: _,
            min_distance_fraction: _,
            min_distance_tokens: _,
            ladm: _,
            // Selects the windows, see below.
            sample_fraction: _,
            sample_seed: _,
            // Decides whether such windows are rejected; the statistics of the others are the same.
            strict_positions: _,
            precision,
        } = self;
        let attention = self.request().attention;
        let mut facts = json!({
            "losses": losses,
            "short_context": self.short_context(),
            "attention_layers": attention_layers,
            "min_distance": attention.as_ref().map(|attention| attention.distance),
            "sink_tokens": attention.as_ref().map(|attention| attention.sink_tokens),
            "ladm": self.ladm,
        });
        if *precision != ProductPrecision::F32 {
            facts["precision"] = json!(precision);
        }
        // A run has no statistics of windows outside its sample, so another sample measures all windows again: that
        // is expensive enough to require a changed setting.
        if let Some(WindowSample { fraction, seed }) = self.sample() {
            facts["sample_fraction"] = json!(fraction);
            facts["sample_seed"] = json!(seed);
        }
        facts
    }

    fn sample(&self) -> Option<WindowSample> {
        let fraction = self.sample_fraction.filter(|fraction| fraction.0 < 1.0)?;
        Some(WindowSample { fraction, seed: self.sample_seed.unwrap_or_default() })
    }

    fn statistics(&self, window: &Window<'_>) -> Result<StatisticValues, RowError> {
        let [Evidence::Forward(evidence)] = window.evidence else {
            unreachable!("the measure requests only a forward pass")
        };
        let mut values = Vec::new();
        if self.losses {
            values.extend(LossSums::new(evidence).values(self.short_context().is_some()));
            if self.short_context().is_some() {
                values.push(columns::list(losses::gain_by_position(evidence)));
            }
        }
        if !self.attention_layers.is_empty() {
            columns::attention(self, evidence, window.ids.len(), &mut values)?;
        }
        assert_eq!(values.len(), self.columns().len(), "a value for each column");
        Ok(StatisticValues(values))
    }
}
