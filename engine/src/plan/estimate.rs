//! What a run will take: memory, disk, windows. Upper bounds where a bound is possible, else said to be about.

use std::path::Path;

use longsift_stages::model::{ModelFolder, known_digest};
use longsift_stages::tokenize::{ShortDocuments, Windows};
use serde::Serialize;

use crate::dataset::{Content, Dataset, DocumentColumns, WorkUnit};
use crate::device::Devices;
use crate::spec::Spec;

/// Bytes of text behind one token, where only bytes are known: English text with a vocabulary of 32,000 to 150,000
/// has 3.5 to 4.5.
const BYTES_PER_TOKEN: u64 = 4;

/// What a run will take.
#[derive(Clone, Debug, Serialize)]
pub struct Estimate {
    /// Tokens of the input, about.
    pub tokens: u64,
    /// Windows to measure, about.
    pub windows: u64,
    /// Bytes of the layer-zero table, memory-mapped.
    pub table_bytes: u64,
    /// Bytes of one row of it. Only rows whose ids occur are ever in memory.
    pub table_row_bytes: u64,
    /// Bytes of projections in memory beside the table; 0 for models whose table holds the heads themselves.
    pub packed_bytes: u64,
    /// Whether the table is in the cache.
    pub table_cached: bool,
    /// Bytes of memory that one window in flight needs at most.
    pub window_bytes: u64,
    /// Windows in flight at most.
    pub windows_in_flight: usize,
    /// Bytes of memory besides the mapped table, at most.
    pub memory_bytes: u64,
    /// Bytes that the table will take in the cache folder, if it is not there yet.
    pub cache_bytes: u64,
    /// Bytes of the score tables, about.
    pub scores_bytes: u64,
    /// Bytes of the output, about.
    pub output_bytes: u64,
}

impl Estimate {
    /// Estimates a run.
    pub(super) fn of(
        spec: &Spec,
        dataset: &Dataset,
        units: &[WorkUnit],
        columns: &DocumentColumns,
        model: &ModelFolder,
        devices: &Devices,
        cache_folder: &Path,
    ) -> Self {
        let settings = spec.tokenize();
        let window = u64::from(settings.window_tokens);
        let limit = spec.pipeline.input.memory_limit_bytes;
        let key_heads = 0..model.spec().key_heads as usize;
        let window_bytes = devices.list.iter().map(|device| {
            device.compute.window_bytes(model.spec(), window as usize, key_heads.clone())
        });
        let window_bytes = window_bytes.max().unwrap_or(0);
        let share =
            units.iter().map(|unit| unit.rows).sum::<u64>() as f64 / dataset.rows().max(1) as f64;
        let content_bytes = match &columns.content {
            Content::Text(column) | Content::Tokens(column) => dataset.column_bytes(column).0,
        };
        let tokens = (content_bytes as f64 * share) as u64 / BYTES_PER_TOKEN;
        let rows = units.iter().map(|unit| unit.rows).sum::<u64>();
        let windows = match (settings.windows, settings.short_documents) {
            (Windows::WholeDocument, _) => rows,
            (_, ShortDocuments::Drop) => tokens / window,
            (_, ShortDocuments::Score) => tokens / window + rows,
        };
        let heads = model.spec().query_heads;
        let precision = spec.load_partial_model().precision;
        let table_bytes = model.table_bytes(precision);
        let windows_in_flight = devices.list.iter().map(|device| {
            let resident = device.compute.resident_bytes(model.spec(), table_bytes);
            device.windows_that_fit(window_bytes, resident)
        });
        let windows_in_flight: usize = windows_in_flight.sum();
        let packed_bytes = model.config().packed_bytes();
        let table_cached = known_digest(model, cache_folder).is_some();
        let input_bytes: u64 = dataset.files.iter().map(|file| file.size).sum();
        let overlap = if settings.windows == Windows::BothEnds { 2.0 } else { 1.0 };
        let kept = spec.filter().keep_fraction.map_or(1.0, |fraction| fraction.0);
        Self {
            tokens,
            windows,
            table_bytes,
            table_row_bytes: model.config().row_bytes(precision),
            packed_bytes,
            table_cached,
            window_bytes,
            windows_in_flight,
            memory_bytes: packed_bytes
                + if devices.is_cpu() {
                    limit.max(window_bytes * windows_in_flight as u64)
                } else {
                    limit
                },
            cache_bytes: if table_cached { 0 } else { table_bytes },
            scores_bytes: windows * (16 * heads + 256),
            output_bytes: (input_bytes as f64 * share * kept * overlap) as u64,
        }
    }

    /// Bytes that the run directory and the output will take, about.
    pub fn disk_bytes(&self) -> u64 {
        self.scores_bytes + self.output_bytes
    }
}
