//! Whole model of a measure, with its memory plan.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use longsift_stages::contract::ForwardRequest;
use longsift_stages::contract::compute::ForwardPass;
use longsift_stages::model::{ForwardMemory, WholeModel};

use crate::base::text::{bytes, count};
use crate::devices::device::{Device, Devices};

pub struct WholeModelPlan {
    pub measure: String,
    pub path: PathBuf,
    pub model: Arc<WholeModel>,
    /// Devices that run it, one pass at a time on each.
    pub devices: Devices,
    pub memory_wait: Duration,
    pub request: ForwardRequest,
    pub window_tokens: u64,
    /// Number of full windows that share a read of the weights.
    pub windows_at_once: u64,
    pub memory: ForwardMemory,
    pub threads: u64,
}

impl WholeModelPlan {
    /// Returns the memory of a pass as a function of the tokens of its longest window and the number of its windows.
    pub fn memory_of(&self) -> impl Fn(usize, usize) -> ForwardMemory + Send + Sync + use<> {
        let (model, request, threads) =
            (Arc::clone(&self.model), self.request.clone(), self.threads);
        move |tokens, windows| {
            model.measuring_memory(&request, tokens as u64, windows as u64, threads)
        }
    }

    /// Returns the pass of some windows, of which the longest has `tokens` tokens.
    pub fn pass<'a>(
        &'a self,
        windows: &'a [&'a [u32]],
        tokens: usize,
        should_continue: &'a (dyn Fn() -> bool + Sync),
    ) -> ForwardPass<'a> {
        let bytes = (self.memory_of())(tokens, windows.len()).peak_bytes;
        ForwardPass { model: &self.model, request: &self.request, windows, bytes, should_continue }
    }

    /// Describes which devices a window never fits, with the memory that it takes; and whether it fits another device.
    pub fn shortage(&self) -> Option<(String, bool)> {
        let wanted = self.memory_of()(self.window_tokens as usize, 1).peak_bytes;
        let ceiling = |device: &Device| match device.ledger.memory_state() {
            // The processor computes a window that exceeds its share.
            Ok(state) if self.devices.is_cpu() => state.total,
            _ => device.ledger.ceiling(0).unwrap_or(0),
        };
        let lacking = |device: &&Device| ceiling(device) < wanted;
        let lacking: Vec<&Device> = self.devices.list.iter().filter(lacking).collect();
        let largest = lacking.iter().map(|device| ceiling(device)).max()?;
        let names: Vec<&str> = lacking.iter().map(|device| device.compute.name()).collect();
        let message = self.shortage_on(&names, wanted, largest);
        Some((message, self.devices.is_cpu() || lacking.len() < self.devices.list.len()))
    }

    /// Describes that a window takes `wanted` bytes on devices that have at most `available` for it.
    pub fn shortage_on(&self, names: &[&str], wanted: u64, available: u64) -> String {
        format!(
            "a window of {} tokens takes {} in `{}`, but {} has only {} for it",
            count(self.window_tokens),
            bytes(wanted),
            self.measure,
            names.join(", "),
            bytes(available)
        )
    }

    pub fn remedy(&self) -> &'static str {
        if self.devices.is_cpu() {
            "raise `memory_limit_bytes`, lower `window_tokens`, or use a smaller model"
        } else {
            "lower `window_tokens` or `headroom_fraction`, use a smaller model, or leave these devices out of `devices`"
        }
    }

    /// Describes the model: `llama, 30 layers of 576 by avx512-f32, 269 MB of weights read for 32 windows at a time, at most 612 MB
    /// of memory`.
    pub fn in_words(&self) -> String {
        let spec = self.model.spec();
        let all = count(spec.layers);
        let layers = if self.request.losses {
            format!("{all} layers")
        } else {
            format!("{} of {all} layers", count(self.request.depth(spec.layers)))
        };
        let on = if self.devices.is_cpu() {
            String::new()
        } else {
            format!(" on {}", self.devices.names())
        };
        format!(
            "{}, {layers} of {} by {}{on}, {} of weights read for {} windows at a time, at most {} of memory",
            spec.model_type,
            count(spec.hidden_size),
            self.model.backend_name(),
            bytes(self.model.weights_bytes()),
            count(self.windows_at_once),
            bytes(self.memory.peak_bytes)
        )
    }
}
