//! First layer of a run.

use longsift_stages::first_layer_attention::FirstLayer;

use crate::run_directory::summary::TableUse;

/// First layer of the model, and the source of its table.
pub(super) struct OpenLayer {
    pub(super) layer: FirstLayer,
    pub(super) from_cache: bool,
    pub(super) checkpoint_bytes_read: u64,
}

impl OpenLayer {
    pub(super) fn table_use(&self, row_bytes: u64) -> TableUse {
        let rows_used = self.layer.rows_used();
        TableUse {
            from_cache: self.from_cache,
            checkpoint_bytes_read: self.checkpoint_bytes_read,
            bytes: self.layer.table().bytes(),
            row_bytes,
            rows_used,
            bytes_used: rows_used * row_bytes,
        }
    }
}
