//! Model and devices of a plan, for measures that need attention.

use std::time::Duration;

use longsift_kernels::Kernel;
use longsift_stages::first_layer_attention::FirstLayer;
use longsift_stages::model::{LayerZeroTable, ModelFolder};
use longsift_stages::{FirstLayerAttention, LoadPartialModel, ShardAcrossDevices};

use crate::devices::device::Devices;
use crate::devices::dispatch::terms::{Policy, Unit};

/// Minimum pairs of a piece of a window: a GPU measures them ten times as long as it takes to start a piece.
const MIN_PIECE_PAIRS: u64 = 1 << 28;

pub struct Attention {
    pub model: ModelFolder,
    pub devices: Devices,
    pub reading: LoadPartialModel,
    pub sharing: ShardAcrossDevices,
    pub measure: FirstLayerAttention,
}

impl Attention {
    /// Returns the first layer with its `table`, for windows of at most `tokens`.
    pub fn first_layer(&self, table: LayerZeroTable, tokens: usize) -> FirstLayer {
        FirstLayer::new(self.model.spec().clone(), table, self.measure.mask, tokens)
    }

    pub fn kernel(&self) -> Kernel {
        self.devices.kernel
    }

    pub fn policy(&self) -> Policy {
        let settings = &self.sharing;
        Policy {
            by: settings.by,
            memory_wait: Duration::from_secs(u64::from(settings.memory_wait_seconds)),
            key_heads_at_once: settings.key_heads_at_once.map(|heads| heads as usize),
            min_piece_cost: MIN_PIECE_PAIRS,
            unit: Unit::KeyHead,
        }
    }
}
