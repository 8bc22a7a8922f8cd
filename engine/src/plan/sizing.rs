//! Estimates a pipeline's needs on GPUs that this machine does not have: placement, memory, and a lower bound of the
//! time.
//!
//! The bound is a roofline. A window of `S` tokens has `P = S(S+1)/2` pairs per query head (`S²` unmasked; for sampled
//! rows, their share). With `H` query heads of width `d` it takes at least
//!
//! ```text
//! max( 2·d·H·P / operations per second,      products of queries and keys
//!      H·P / exponentials per second,        the softmax
//!      bytes / bytes per second )            rows of the table, rotated queries and keys written and read again
//! ```
//!
//! according to the GPU's data sheet. The same three limits bound a whole model: its products, the exponentials of its
//! attention and losses, and its hidden states. Real kernels are slower.

use std::fmt;

use longsift_kernels::Kernel;
use longsift_kernels::cuda;
use longsift_stages::first_layer_attention::{Mask, Rows};
use longsift_stages::load_partial_model::Precision;
use longsift_stages::measures::language_model::ProductPrecision;
use longsift_stages::model::{AttentionSpec, ForwardOperations};
use longsift_stages::shard_across_devices::{ShardAcrossDevices, WorkersPerDevice};
use serde::Serialize;

use crate::base::diagnostic::Diagnostic;
use crate::base::error::{Failure, Result};
use crate::base::text::{bytes, count};
use crate::devices::catalogue::{GpuModel, PeakRates};
use crate::plan::Plan;
use crate::plan::attention::Attention;
use crate::plan::whole_models::WholeModelPlan;

#[derive(Clone, Debug, Serialize)]
pub struct Sizing {
    pub cards: Vec<GpuPlacement>,
    pub windows: u64,
    pub whole_models: Vec<WholeModelTime>,
    /// Minimum seconds for all windows; null if a GPU's speed is unknown, nothing fits, or GPUs do not compute a model.
    pub least_seconds: Option<f64>,
    pub least_gpu_hours: Option<f64>,
    /// Whole models that some of the GPUs cannot run.
    #[serde(skip)]
    pub warnings: Vec<Diagnostic>,
}

#[derive(Clone, Debug, Serialize)]
pub struct WholeModelTime {
    pub measure: String,
    /// Windows that it measures if guards reject none (approximate).
    pub windows: u64,
    pub precision: ProductPrecision,
    /// Work of a window; null if GPUs do not compute the model.
    pub operations: Option<ForwardOperations>,
    /// Memory that a window takes; null if GPUs do not compute the model.
    pub window_bytes: Option<u64>,
    pub least_seconds: Option<f64>,
    pub bound_by: Option<&'static str>,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct GpuPlacement {
    pub card: String,
    pub memory_bytes: u64,
    pub headroom_bytes: u64,
    pub table_bytes: u64,
    /// Number of windows at a time; 0 if not even one head fits.
    pub windows_in_flight: usize,
    pub key_heads: usize,
    pub window_bytes: u64,
    /// Minimum milliseconds per window; null if the GPU's speed is unknown.
    pub least_window_milliseconds: Option<f64>,
    pub bound_by: Option<&'static str>,
}

impl Sizing {
    pub fn new(plan: &Plan, cards: &[GpuModel]) -> Result<Self> {
        let attention = match &plan.attention {
            None if !plan.whole_models.is_empty() => None,
            _ => Some(plan.needed_attention()?),
        };
        if attention.is_some_and(|of| of.reading.precision == Precision::Int16) {
            let message = "GPUs have no kernel for `precision: int16`";
            let hint = "plan with `--set stages.load-partial-model.precision=f32`, or bf16";
            let setting = "stages.load-partial-model.precision";
            return Err(plan.spec.error(setting, message).hint(hint).into());
        }
        let place = |attention| {
            let place = move |(number, card)| place(plan, attention, card, number);
            cards.iter().enumerate().map(place).collect::<Vec<GpuPlacement>>()
        };
        let placed = attention.map_or_else(Vec::new, place);
        let rate = |placed: &GpuPlacement| {
            let fits = placed.windows_in_flight > 0;
            Some(if fits { 1e3 / placed.least_window_milliseconds? } else { 0.0 })
        };
        let rates: Option<Vec<f64>> = placed.iter().map(rate).collect();
        let together = rates.map(|rates| rates.iter().sum::<f64>()).filter(|rate| *rate > 0.0);
        let windows = plan.estimate.windows;
        let whole_models: Vec<WholeModelTime> = plan
            .whole_models
            .iter()
            .map(|(index, whole)| WholeModelTime::new(plan, *index, whole, cards))
            .collect();
        let (refused, warnings) = shortages(plan, &whole_models, cards);
        if !refused.is_empty() {
            return Err(Failure::Problems(refused));
        }
        let first_layer = attention.map(|_| together.map(|rate| windows as f64 / rate));
        let times = whole_models.iter().map(|whole| whole.least_seconds).chain(first_layer);
        let least_seconds = times.sum::<Option<f64>>();
        let least_gpu_hours = least_seconds.map(|seconds| seconds * cards.len() as f64 / 3600.0);
        Ok(Self { cards: placed, windows, whole_models, least_seconds, least_gpu_hours, warnings })
    }

    /// Returns the placement lines of a plan, with equal GPUs combined.
    pub fn placement(&self) -> Vec<String> {
        let mut lines: Vec<(usize, &GpuPlacement)> = Vec::new();
        for placed in &self.cards {
            match lines.iter_mut().find(|(_, other)| *other == placed) {
                Some((number, _)) => *number += 1,
                None => lines.push((1, placed)),
            }
        }
        lines.into_iter().map(|(number, placed)| format!("{number} × {placed}")).collect()
    }

    pub fn time(&self) -> String {
        let windows = count(self.windows);
        let linear = self.whole_models.iter().find(|whole| whole.operations.is_none());
        match (self.least_seconds.zip(self.least_gpu_hours), linear) {
            (Some((seconds, hours)), _) => {
                let each = self.whole_models.iter().map(WholeModelTime::in_words);
                format!(
                    "at least {} ({} of GPU time) for about {windows} windows{}: a roofline bound from data sheets, which no kernel reaches",
                    duration(seconds),
                    duration(3600.0 * hours),
                    each.collect::<String>()
                )
            }
            (None, Some(whole)) => format!(
                "not estimated for about {windows} windows: GPUs do not compute the gated linear attention of `{}`",
                whole.measure
            ),
            (None, None) => format!(
                "not estimated for about {windows} windows: a GPU's speed is unknown, or nothing fits"
            ),
        }
    }
}

impl WholeModelTime {
    fn new(plan: &Plan, index: u16, whole: &WholeModelPlan, cards: &[GpuModel]) -> Self {
        let share = plan.measure(index).sample().map_or(1.0, |sample| sample.fraction.0);
        let windows = (plan.estimate.windows as f64 * share).round() as u64;
        let tokens = u64::from(plan.spec.tokenize().window_tokens);
        let operations = whole.model.operations(&whole.request, tokens);
        let precision = whole.model.precision();
        let window_bytes = whole.model.gpu_memory(&whole.request, tokens, 1);
        let window_bytes = window_bytes.map(|memory| memory.peak_bytes);
        let of_card = |card: &GpuModel| {
            let (speed, ForwardOperations { products, exponentials, bytes }) =
                card.speed.zip(operations)?;
            // Numbers rounded to bf16 are multiplied in TF32, half as fast as in bf16.
            let bf16 = precision == ProductPrecision::Bf16;
            let rate = if bf16 { speed.bf16 / 2.0 } else { speed.f32 };
            Some(longest([products / rate, exponentials / speed.exponentials, bytes / speed.bytes]))
        };
        let fits = |card: &&GpuModel| window_bytes.is_none_or(|bytes| bytes <= room(plan, card));
        let of_cards = cards.iter().filter(fits).map(of_card);
        let of_cards: Option<Vec<(f64, &'static str)>> = of_cards.collect();
        let rate = |of: &Vec<(f64, &str)>| of.iter().map(|(seconds, _)| 1.0 / seconds).sum::<f64>();
        Self {
            measure: whole.measure.clone(),
            windows,
            precision,
            operations,
            window_bytes,
            least_seconds: of_cards.as_ref().map(|of| windows as f64 / rate(of)),
            bound_by: of_cards.and_then(|of| Some(of.first()?.1)),
        }
    }

    /// Describes the time of this model as a share of the whole time, with its limit and precision.
    fn in_words(&self) -> String {
        let Self { measure, windows, precision, .. } = self;
        let (Some(seconds), Some(by)) = (self.least_seconds, self.bound_by) else {
            return String::new();
        };
        let precision = precision.name();
        format!(
            ", of which {} for `{measure}` if guards reject none of its {} ({by}, {precision})",
            duration(seconds),
            count(*windows)
        )
    }
}

fn headroom_bytes(card: &GpuModel, settings: &ShardAcrossDevices) -> u64 {
    (card.memory_bytes as f64 * settings.headroom_fraction.0) as u64
}

fn room(plan: &Plan, card: &GpuModel) -> u64 {
    let settings = plan.spec.shard_across_devices().cloned().unwrap_or_default();
    card.memory_bytes - headroom_bytes(card, &settings)
}

/// Returns errors for whole models that no GPU has the memory to run, and warnings for those that only some have.
fn shortages(
    plan: &Plan,
    models: &[WholeModelTime],
    cards: &[GpuModel],
) -> (Vec<Diagnostic>, Vec<Diagnostic>) {
    let (mut refused, mut warnings) = (Vec::new(), Vec::new());
    for (time, whole) in models.iter().zip(plan.whole_models.values()) {
        let Some(wanted) = time.window_bytes else { continue };
        let lacking = || cards.iter().filter(|card| room(plan, card) < wanted);
        let Some(largest) = lacking().map(|card| room(plan, card)).max() else { continue };
        let mut names: Vec<&str> = lacking().map(|card| &*card.name).collect();
        let all = names.len() == cards.len();
        names.dedup();
        let message = whole.shortage_on(&names, wanted, largest);
        let stage = format!("stages.{}", whole.measure);
        let hint = "lower `window_tokens`, use a smaller model, or name GPUs with more memory";
        if all {
            refused.push(plan.spec.error(&stage, message).hint(hint));
        } else {
            warnings.push(plan.spec.warning(&stage, message).hint(hint));
        }
    }
    (refused, warnings)
}

/// Returns the longest of the times of products, exponentials and memory, with its name.
fn longest(seconds: [f64; 3]) -> (f64, &'static str) {
    let named = seconds.into_iter().zip(["products", "exponentials", "memory"]);
    named.max_by(|one, other| one.0.total_cmp(&other.0)).expect("three limits")
}

fn place(plan: &Plan, attention: &Attention, card: &GpuModel, number: usize) -> GpuPlacement {
    let (settings, layer) = (&attention.sharing, attention.model.spec());
    let tokens = plan.spec.tokenize().window_tokens as usize;
    let number_bytes = attention.reading.precision.bytes();
    let headroom_bytes = headroom_bytes(card, settings);
    let table_bytes = plan.estimate.table_bytes;
    let available = card.memory_bytes.saturating_sub(headroom_bytes + table_bytes);
    let workers = match &settings.workers_per_device {
        None => 1,
        Some(WorkersPerDevice::Same(workers)) => *workers,
        Some(WorkersPerDevice::Each(each)) => each.get(number).copied().unwrap_or(1),
    };
    let all = layer.key_heads as usize;
    let max = settings.key_heads_at_once.map_or(all, |heads| all.min(heads as usize));
    let window = window_bytes(layer, number_bytes, tokens);
    let key_heads = (1..=max).rev().find(|heads| window(*heads) <= available).unwrap_or(0);
    let window_bytes = window(key_heads.max(1));
    let fitting = usize::try_from(available / window_bytes.max(1)).unwrap_or(usize::MAX);
    let floor = card.speed.map(|speed| min_window_seconds(attention, tokens, speed, number_bytes));
    GpuPlacement {
        card: card.name.clone(),
        memory_bytes: card.memory_bytes,
        headroom_bytes,
        table_bytes,
        windows_in_flight: fitting.min(workers as usize),
        key_heads,
        window_bytes,
        least_window_milliseconds: floor.map(|(seconds, _)| seconds * 1e3),
        bound_by: floor.map(|(_, by)| by),
    }
}

/// Returns the memory of a window as a function of the key heads measured at a time; `u64::MAX` if no kernel fits.
fn window_bytes(
    layer: &AttentionSpec,
    number_bytes: u64,
    tokens: usize,
) -> impl Fn(usize) -> u64 + use<> {
    let (shape, sizes) = layer.device_window(tokens);
    let rounding = (number_bytes == 2).then_some(Kernel::CudaV1Bf16);
    let mut kernels = rounding.into_iter().chain([Kernel::CudaF32]);
    let kernel = kernels.find(|kernel| cuda::unsupported_reason(*kernel, &shape).is_none());
    move |heads| {
        kernel.map_or(u64::MAX, |kernel| cuda::window_bytes(kernel, &shape, &sizes, &(0..heads)))
    }
}

fn min_window_seconds(
    attention: &Attention,
    window_tokens: usize,
    speed: PeakRates,
    number_bytes: u64,
) -> (f64, &'static str) {
    let tokens = window_tokens as f64;
    let all = match attention.measure.mask {
        Mask::Causal => tokens * (tokens + 1.0) / 2.0,
        Mask::Unmasked => tokens * tokens,
    };
    let share = match attention.measure.rows {
        Rows::All(_) => 1.0,
        Rows::Sampled(rows) => (f64::from(rows.per_window) / tokens).min(1.0),
    };
    let shape = attention.model.spec().attention_shape(window_tokens);
    let (heads, head_dim) = (shape.query_heads as f64, shape.head_dim as f64);
    let pairs = heads * all * share;
    let operations = if number_bytes == 2 { speed.bf16 } else { speed.f32 };
    let rows = tokens * (heads + shape.key_heads as f64) * head_dim * number_bytes as f64;
    longest([
        2.0 * head_dim * pairs / operations,
        pairs / speed.exponentials,
        3.0 * rows / speed.bytes,
    ])
}

impl fmt::Display for GpuPlacement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { card, windows_in_flight, key_heads, .. } = self;
        let taken = self.table_bytes + *windows_in_flight as u64 * self.window_bytes;
        let rest = self.memory_bytes.saturating_sub(self.headroom_bytes + taken);
        if *windows_in_flight == 0 {
            return write!(
                f,
                "{card}: does not fit: {} table + {} for one key head of a window > {} − {} headroom",
                bytes(self.table_bytes),
                bytes(self.window_bytes),
                bytes(self.memory_bytes),
                bytes(self.headroom_bytes)
            );
        }
        write!(
            f,
            "{card}: {} table + {windows_in_flight} × {} for {key_heads} key heads of a window + {} headroom + {} left = {}",
            bytes(self.table_bytes),
            bytes(self.window_bytes),
            bytes(self.headroom_bytes),
            bytes(rest),
            bytes(self.memory_bytes)
        )?;
        if let (Some(min), Some(by)) = (self.least_window_milliseconds, self.bound_by) {
            write!(f, "; at least {} a window ({by})", duration(min / 1e3))?;
        }
        Ok(())
    }
}

fn duration(seconds: f64) -> String {
    match seconds {
        s if s < 1.0 => format!("{:.2} ms", s * 1e3),
        s if s < 120.0 => format!("{s:.1} s"),
        s if s < 7200.0 => format!("{:.0} min", s / 60.0),
        s => format!("{:.1} h", s / 3600.0),
    }
}
