//! `longsift inspect MODEL --forward IDS`: runs the whole model on one window, for comparison with a reference
//! implementation.

use std::fmt;
use std::path::Path;

use longsift_stages::measures::language_model::ProductPrecision;
use longsift_stages::model::{BackendName, ForwardMemory, WholeModel, has_gpu};
use serde::Serialize;

use crate::base::diagnostic::{Blame, Diagnostic};
use crate::base::error::Result;
use crate::base::machine::take_peak_bytes;
use crate::base::text::{bytes, count};

/// Maximum tokens of a window: a limit for input files, not of the model.
const MAX_TOKENS: usize = 1 << 20;

/// Losses and hidden states of one window.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct ForwardAnswer {
    /// `[tokens - 1]`: loss of each token but the first, in nats.
    losses: Vec<f64>,
    mean_loss: Option<f64>,
    /// `[layers + 2]`: root mean square of the input of the first layer, of each layer's residual stream, and of the
    /// input of the head.
    hidden_rms: Vec<f64>,
    /// Logits after the last token, over the whole vocabulary.
    last_logits: Vec<f32>,
    #[serde(skip)]
    model_type: String,
    #[serde(skip)]
    memory: ForwardMemory,
    /// Peak resident memory during the pass, and resident memory before weights were read, if the system reports it.
    #[serde(skip)]
    held: Option<(u64, u64)>,
}

/// Reads a JSON list of 1 to 2^20 token ids. `location` is the file name for messages.
pub(crate) fn token_ids(location: &Path, text: &[u8]) -> Result<Vec<u32>> {
    let wrong = |why: String| {
        let message = format!("`{}` is not a JSON list of token ids: {why}", location.display());
        Diagnostic::error(Blame::Pipeline, message).hint("expected a list like [1, 15043, 3186]")
    };
    let ids: Vec<u32> = serde_json::from_slice(text).map_err(|error| wrong(error.to_string()))?;
    if ids.is_empty() || ids.len() > MAX_TOKENS {
        let [max, got] = [MAX_TOKENS, ids.len()].map(|number| count(number as u64));
        return Err(wrong(format!("expected 1 to {max} ids, got {got}")).into());
    }
    Ok(ids)
}

/// Runs the model at `path` on a window, without prepending BOS.
pub(crate) fn forward(
    path: &Path,
    ids: &[u32],
    backend: Option<BackendName>,
) -> Result<ForwardAnswer> {
    let model = WholeModel::open(path)?.with_backend(backend, ProductPrecision::F32, has_gpu())?;
    // Each call resets the peak, so the second one returns the current resident memory.
    let before = take_peak_bytes().and_then(|_| take_peak_bytes());
    let mut windows = model.forward(&[ids])?;
    let held = take_peak_bytes().zip(before);
    let window = windows.remove(0);
    let mean = window.losses.iter().sum::<f64>() / window.losses.len() as f64;
    Ok(ForwardAnswer {
        mean_loss: (!window.losses.is_empty()).then_some(mean),
        losses: window.losses,
        hidden_rms: window.hidden_rms,
        last_logits: window.last_logits,
        memory: model.memory(ids.len() as u64, rayon::current_num_threads() as u64),
        model_type: model.spec().model_type.clone(),
        held,
    })
}

impl fmt::Display for ForwardAnswer {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let tokens = count(self.losses.len() as u64 + 1);
        let (kind, layers) = (&self.model_type, self.hidden_rms.len() - 2);
        writeln!(formatter, "{kind}, {layers} layers, a window of {tokens} tokens")?;
        match self.mean_loss {
            Some(mean) => {
                writeln!(formatter, "  mean loss    {mean:.6} nats, perplexity {:.3}", mean.exp())?;
            }
            None => writeln!(formatter, "  mean loss    none: the first token has no loss")?,
        }
        let shown: Vec<String> = self.hidden_rms.iter().map(|rms| format!("{rms:.4}")).collect();
        writeln!(formatter, "  residual     {}", shown.join(" "))?;
        let memory = &self.memory;
        let parts = [
            ("hidden states", memory.window_bytes),
            ("keys and values", memory.keys_and_values_bytes),
            ("one layer's weights", memory.layer_bytes),
            ("threads", memory.threads_bytes),
        ];
        let parts = parts.map(|(what, size)| format!("{what} {}", bytes(size))).join(", ");
        let held = self.held.map_or(String::new(), |(max, before)| {
            let window = max.saturating_sub(before);
            format!("; used {} in addition to the {} of the program", bytes(window), bytes(before))
        });
        let peak = bytes(memory.peak_bytes);
        writeln!(formatter, "  memory       {peak} estimated ({parts}){held}")?;
        writeln!(formatter, "  `--format json` lists every loss and the last logits")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_lists_of_token_ids_are_accepted() {
        let location = Path::new("ids.json");
        assert_eq!(token_ids(location, b"[1, 2, 4294967295]").unwrap(), [1, 2, u32::MAX]);
        for wrong in ["", "[]", "{}", "[1, -2]", "[1.5]", "[4294967296]", "[1] 2", "[\"1\"]"] {
            let message = token_ids(location, wrong.as_bytes()).unwrap_err().to_string();
            assert!(message.contains("`ids.json` is not a JSON list of token ids"), "{message}");
        }
    }
}
