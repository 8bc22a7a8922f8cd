//! Whole model of a measure, with its memory plan.

use std::path::PathBuf;

use longsift_stages::contract::ForwardRequest;
use longsift_stages::model::{ForwardMemory, WholeModel};

use crate::base::text::{bytes, count};

/// Whole model of a measure, with its memory plan.
pub struct WholeModelPlan {
    /// Name of the measure.
    pub measure: String,
    pub path: PathBuf,
    pub model: WholeModel,
    /// Request of the measure.
    pub request: ForwardRequest,
    /// Number of full windows that share a read of the weights.
    pub windows_at_once: u64,
    /// Memory for these windows.
    pub memory: ForwardMemory,
}

impl WholeModelPlan {
    /// Describes the model: `llama, 30 layers of 576 by avx512-f32, 269 MB of weights read for 32 windows at a time, at most 612 MB
    /// of memory`.
    pub fn in_words(&self) -> String {
        let spec = self.model.spec();
        let layers = match &self.request.losses {
            Some(_) => format!("{} layers", count(spec.layers)),
            None => {
                format!(
                    "{} of {} layers",
                    count(self.request.depth(spec.layers)),
                    count(spec.layers)
                )
            }
        };
        format!(
            "{}, {layers} of {} by {}, {} of weights read for {} windows at a time, at most {} of memory",
            spec.model_type,
            count(spec.hidden_size),
            self.model.backend_name(),
            bytes(self.model.weights_bytes()),
            count(self.windows_at_once),
            bytes(self.memory.peak_bytes)
        )
    }
}
