//! What a run will take: memory, disk, windows. Upper bounds where a bound is possible, else said to be about.

use std::collections::BTreeMap;
use std::path::Path;

use longsift_stages::contract::Kind;
use longsift_stages::model::known_digest;
use longsift_stages::tokenize::{ShortDocuments, Windows};
use serde::Serialize;

use crate::dataset::documents::{Content, DocumentColumns};
use crate::dataset::input::Dataset;
use crate::dataset::units::WorkUnit;
use crate::plan::attention::Attention;
use crate::plan::whole_models::WholeModelPlan;
use crate::run_directory::scores::MeasureColumns;
use crate::spec::Spec;

/// Bytes of text behind one token, where only bytes are known: English text with a vocabulary of 32,000 to 150,000
/// has 3.5 to 4.5.
pub const BYTES_PER_TOKEN: u64 = 4;

/// Bytes of a row of a score table before the columns of measures: names, places and a hash.
const WINDOW_ROW_BYTES: u64 = 256;

/// What a run will take.
#[derive(Clone, Debug, Serialize)]
pub struct Estimate {
    /// Tokens of the input, about.
    pub tokens: u64,
    /// Windows to measure, about.
    pub windows: u64,
    /// Bytes of the layer-zero table, memory-mapped; 0 where no measure needs one, and so are the next five.
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
    /// Bytes of memory among it that whole models take, one at a time; 0 where no measure needs one.
    pub whole_model_bytes: u64,
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
        measures: &[MeasureColumns],
        (attention, whole_models): (Option<&Attention>, &BTreeMap<u16, WholeModelPlan>),
        cache_folder: &Path,
    ) -> Self {
        let settings = spec.tokenize();
        let window = u64::from(settings.window_tokens);
        let limit = spec.pipeline.input.memory_limit_bytes;
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
        let on_devices = attention
            .map(|attention| OnDevices::of(attention, window, cache_folder))
            .unwrap_or_default();
        let OnDevices { table_bytes, packed_bytes, table_cached, window_bytes, .. } = on_devices;
        let passes = whole_models.values().map(|whole| whole.memory.peak_bytes);
        let whole_model_bytes = passes.max().unwrap_or(0);
        let input_bytes: u64 = dataset.files.iter().map(|file| file.size).sum();
        let overlap = if settings.windows == Windows::BothEnds { 2.0 } else { 1.0 };
        let filter = spec.filter();
        let kept = filter.keep_fraction.filter(|_| !filter.mark_only).map_or(1.0, |kept| kept.0);
        Self {
            tokens,
            windows,
            table_bytes,
            table_row_bytes: on_devices.table_row_bytes,
            packed_bytes,
            table_cached,
            window_bytes,
            windows_in_flight: on_devices.windows_in_flight,
            memory_bytes: packed_bytes + limit.max(on_devices.host_bytes) + whole_model_bytes,
            whole_model_bytes,
            cache_bytes: if table_cached { 0 } else { table_bytes },
            scores_bytes: windows
                * (WINDOW_ROW_BYTES + figures_bytes(measures, attention, whole_models, window)),
            output_bytes: (input_bytes as f64 * share * kept * overlap) as u64,
        }
    }

    /// Bytes that a run will write into the run directory and the output, about, where there are so many of scores already.
    pub fn bytes_to_write(&self, of_scores: u64) -> u64 {
        self.scores_bytes.saturating_sub(of_scores) + self.output_bytes
    }
}

/// What devices will take.
#[derive(Clone, Copy, Default)]
struct OnDevices {
    table_bytes: u64,
    table_row_bytes: u64,
    packed_bytes: u64,
    table_cached: bool,
    window_bytes: u64,
    windows_in_flight: usize,
    /// Of this machine's memory, for windows in flight.
    host_bytes: u64,
}

impl OnDevices {
    fn of(attention: &Attention, window_tokens: u64, cache_folder: &Path) -> Self {
        let Attention { model, devices, reading, .. } = attention;
        let (spec, config) = (model.spec(), model.config());
        let key_heads = 0..spec.key_heads as usize;
        let window_bytes = devices.list.iter().map(|device| {
            device.compute.window_bytes(spec, window_tokens as usize, key_heads.clone())
        });
        let window_bytes = window_bytes.max().unwrap_or(0);
        let table_bytes = model.table_bytes(reading.precision);
        let windows_in_flight = devices.list.iter().map(|device| {
            let resident = device.compute.resident_bytes(spec, table_bytes);
            device.windows_that_fit(window_bytes, resident)
        });
        let windows_in_flight: usize = windows_in_flight.sum();
        let of_windows = window_bytes * windows_in_flight as u64;
        Self {
            table_bytes,
            table_row_bytes: config.row_bytes(reading.precision),
            packed_bytes: config.packed_bytes(),
            table_cached: known_digest(model, cache_folder).is_some(),
            window_bytes,
            windows_in_flight,
            host_bytes: if devices.is_cpu() { of_windows } else { 0 },
        }
    }
}

/// Bytes of the figures of one window: 8 for a number. Lists have an entry per head, or one per power of two up to the
/// window, whichever are more.
fn figures_bytes(
    measures: &[MeasureColumns],
    attention: Option<&Attention>,
    whole_models: &BTreeMap<u16, WholeModelPlan>,
    window_tokens: u64,
) -> u64 {
    let heads = attention.map_or(0, |attention| attention.model.spec().query_heads);
    let of_whole = whole_models.values().map(|whole| {
        let layers = whole.request.attention.as_ref().map_or(0, |asked| asked.layers.len());
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
