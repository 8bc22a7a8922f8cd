//! What a plan has where a measure needs attention, and no other plan has: a model, and devices to measure windows on.

use std::path::Path;
use std::time::Duration;

use longsift_kernels::Kernel;
use longsift_stages::model::{LayerZeroTable, ModelFolder, OpenedTable};
use longsift_stages::{FirstLayerAttention, LoadPartialModel, ShardAcrossDevices};

use crate::base::error::Result;
use crate::devices::device::Devices;
use crate::devices::dispatch::terms::Policy;

/// Pairs of a piece below which a window is not shared out by heads: a GPU measures so many in a fraction of a
/// millisecond, and starting a piece takes a tenth of that.
const SMALLEST_PIECE: u64 = 1 << 28;

/// A model, devices, and the settings of both.
pub struct Attention {
    /// The checkpoint.
    pub model: ModelFolder,
    /// Where windows are measured.
    pub devices: Devices,
    /// How the checkpoint is read.
    pub reading: LoadPartialModel,
    /// How much of the devices is used.
    pub sharing: ShardAcrossDevices,
    /// What is measured.
    pub measure: FirstLayerAttention,
}

impl Attention {
    /// Opens the layer-zero table, or builds it in `cache_folder`; warns of damaged cache files that were replaced.
    pub fn open_table(
        &self,
        cache_folder: &Path,
        progress: &dyn Fn(u64, u64),
    ) -> Result<OpenedTable> {
        let opened = LayerZeroTable::open_or_build(
            &self.model,
            self.kernel(),
            self.reading.precision,
            cache_folder,
            progress,
        )?;
        for warning in &opened.warnings {
            tracing::warn!("{warning}");
        }
        Ok(opened)
    }

    /// The kernel that measures windows.
    pub fn kernel(&self) -> Kernel {
        self.devices.kernel
    }

    /// The rules by which windows are handed to devices.
    pub fn policy(&self) -> Policy {
        let settings = &self.sharing;
        Policy {
            by: settings.by,
            memory_wait: Duration::from_secs(u64::from(settings.memory_wait_seconds)),
            key_heads_at_once: settings.key_heads_at_once.map(|heads| heads as usize),
            smallest_piece: SMALLEST_PIECE,
        }
    }
}
