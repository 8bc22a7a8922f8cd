//! Estimates the memory, disk and windows of a run. Values are upper bounds where possible, otherwise approximate.

use std::collections::BTreeMap;
use std::path::Path;

use longsift_stages::contract::Kind;
use longsift_stages::model::known_digest;
use longsift_stages::tokenize::{ShortDocuments, Windows};
use serde::Serialize;

use crate::dataset::documents::DocumentColumns;
use crate::dataset::input::Dataset;
use crate::dataset::units::WorkUnit;
use crate::plan::attention::Attention;
use crate::plan::whole_models::WholeModelPlan;
use crate::run_directory::scores::MeasureColumns;
use crate::spec::Spec;

/// Approximate bytes of text per token: English text has 3.5 to 4.5 with a vocabulary of 32,000 to 150,000.
pub const BYTES_PER_TOKEN: u64 = 4;

/// Factor by which the text of an output is at least compressed.
const MIN_COMPRESSION: u64 = 2;

/// Bytes of a row of a score table before the columns of measures: names, positions and a hash.
const WINDOW_ROW_BYTES: u64 = 256;
/// Bytes of a score table without rows: mostly the descriptions of its columns.
const SCORE_TABLE_BYTES: u64 = 14 << 10;

#[derive(Clone, Debug, Default, Serialize)]
pub struct Estimate {
    /// Tokens of the input (approximate).
    pub tokens: u64,
    /// Windows to measure (approximate).
    pub windows: u64,
    /// Bytes of the layer-zero table, memory-mapped. This and the next five fields are 0 if no measure needs a table.
    pub table_bytes: u64,
    /// Bytes per row of the table. Only rows of ids that occur are loaded into memory.
    pub table_row_bytes: u64,
    /// Bytes of projections in memory in addition to the table; 0 for models whose table holds the heads themselves.
    pub packed_bytes: u64,
    pub table_cached: bool,
    pub window_bytes: u64,
    pub windows_in_flight: usize,
    /// Maximum bytes of memory in addition to the mapped table.
    pub memory_bytes: u64,
    /// Bytes of `memory_bytes` for whole models, one at a time; 0 if no measure needs one.
    pub whole_model_bytes: u64,
    /// Bytes that the table will add to the cache folder.
    pub cache_bytes: u64,
    pub scores_bytes: u64,
    pub output_bytes: u64,
}

impl Estimate {
    pub(super) fn new(
        spec: &Spec,
        dataset: &Dataset,
        units: &[WorkUnit],
        columns: &DocumentColumns,
        measures: &[MeasureColumns],
        (attention, whole_models): (Option<&Attention>, &BTreeMap<u16, WholeModelPlan>),
        cache_folder: &Path,
    ) -> Self {
        let settings = spec.tokenize();
        let window = u64::from(settings.window_tokens);
        let limit = spec.pipeline.input.memory_limit_bytes;
        let rows = units.iter().map(|unit| unit.rows).sum::<u64>();
        let share = rows as f64 / dataset.rows().max(1) as f64;
        let content_bytes = dataset.column_bytes(columns.content.name());
        let tokens = (content_bytes as f64 * share) as u64 / BYTES_PER_TOKEN;
        let windows = match (settings.windows, settings.short_documents) {
            (Windows::WholeDocument, _) => rows,
            (_, ShortDocuments::Drop) => tokens / window,
            (_, ShortDocuments::Score) => tokens / window + rows,
        };
        let (device, host_bytes) = attention
            .map(|attention| Self::for_devices(attention, window, cache_folder))
            .unwrap_or_default();
        let passes = whole_models.values().map(|whole| whole.memory.peak_bytes);
        let whole_model_bytes = passes.max().unwrap_or(0);
        let input_bytes: u64 = dataset.files.iter().map(|file| file.stamp.size).sum();
        let overlap = if settings.windows == Windows::BothEnds { 2.0 } else { 1.0 };
        let filter = spec.filter();
        let kept = filter.keep_fraction.filter(|_| !filter.mark_only).map_or(1.0, |kept| kept.0);
        let window_bytes = statistics_bytes(measures, attention, whole_models, window);
        // Single windows compress less well than whole documents.
        let text_bytes = input_bytes.max(content_bytes / MIN_COMPRESSION);
        let output_bytes = text_bytes as f64 * share * overlap + (windows * window_bytes) as f64;
        Self {
            tokens,
            windows,
            memory_bytes: device.packed_bytes + limit.max(host_bytes) + whole_model_bytes,
            whole_model_bytes,
            scores_bytes: windows * (WINDOW_ROW_BYTES + window_bytes)
                + units.len() as u64 * SCORE_TABLE_BYTES,
            output_bytes: (output_bytes * kept) as u64,
            ..device
        }
    }

    /// Estimates the resources of devices. Also returns the bytes of this machine's memory for windows in flight.
    fn for_devices(attention: &Attention, window_tokens: u64, cache_folder: &Path) -> (Self, u64) {
        let Attention { model, devices, reading, .. } = attention;
        let (spec, config) = (model.spec(), model.config());
        let key_heads = 0..spec.key_heads as usize;
        let window_bytes = devices.list.iter().map(|device| {
            device.compute.window_bytes(spec, window_tokens as usize, key_heads.clone())
        });
        let window_bytes = window_bytes.max().unwrap_or(0);
        let table_bytes = config.table_bytes(reading.precision);
        let windows_in_flight = devices.list.iter().map(|device| {
            let resident = device.compute.resident_bytes(spec, table_bytes);
            device.fitting_windows(window_bytes, resident)
        });
        let windows_in_flight: usize = windows_in_flight.sum();
        let of_windows = window_bytes * windows_in_flight as u64;
        let table_cached = known_digest(model, cache_folder).is_some();
        let estimate = Self {
            table_bytes,
            table_row_bytes: config.row_bytes(reading.precision),
            packed_bytes: config.packed_bytes(),
            table_cached,
            window_bytes,
            windows_in_flight,
            cache_bytes: if table_cached { 0 } else { table_bytes },
            ..Self::default()
        };
        (estimate, if devices.is_cpu() { of_windows } else { 0 })
    }

    /// Returns the approximate bytes that a run will write, given the bytes of existing scores.
    pub fn bytes_to_write(&self, existing_scores: u64) -> u64 {
        self.scores_bytes.saturating_sub(existing_scores) + self.output_bytes
    }
}

/// Returns the bytes of the statistics of a window: 8 per number. Lists have an entry per head or per power of two.
fn statistics_bytes(
    measures: &[MeasureColumns],
    attention: Option<&Attention>,
    whole_models: &BTreeMap<u16, WholeModelPlan>,
    window_tokens: u64,
) -> u64 {
    let heads = attention.map_or(0, |attention| attention.model.spec().query_heads);
    let of_whole = whole_models.values().map(|whole| {
        let layers = whole.request.attention.as_ref().map_or(0, |request| request.layers.len());
        whole.model.spec().query_heads * layers as u64
    });
    let heads = heads.max(of_whole.max().unwrap_or(0));
    let numbers = heads.max(u64::from(window_tokens.max(1).ilog2()) + 2);
    let columns = measures.iter().flat_map(|measure| &measure.columns);
    let bytes = columns.map(|column| match column.kind {
        Kind::Number | Kind::Count => 8,
        Kind::Numbers => 8 * numbers,
    });
    bytes.sum()
}
