//! `longsift tune`: measures the best number of windows in flight and of heads at a time.
//!
//! Windows have the pipeline's length and random token ids, because time and memory depend only on the length.

use std::fmt::{self, Write};
use std::time::{Duration, Instant};

use longsift_stages::first_layer_attention::{FirstLayer, WindowTokens};
use longsift_stages::shard_across_devices::ShardAcrossDevices;
use serde::Serialize;

use crate::base::diagnostic::{Blame, Diagnostic};
use crate::base::error::Result;
use crate::base::random::Rng;
use crate::base::stop::Stop;
use crate::base::text::{bytes, count, line_safe};
use crate::devices::device::Device;
use crate::devices::dispatch::terms::Policy;
use crate::devices::scheduler::{Scheduler, SchedulerMessage};
use crate::plan::Plan;
use crate::plan::attention::Attention;
use crate::report::page::chart::LineChart;
use crate::report::page::numbers::{number, short_count};
use crate::report::page::{Block, CaptionedChart, KeyNumber, Page, Section, text};

/// Factor by which a larger number must be faster to be chosen; smaller differences are noise.
const MIN_SPEEDUP: f64 = 1.03;
const MAX_IN_FLIGHT: usize = 64;
const MAX_WINDOWS: usize = 512;

#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Point {
    pub windows_in_flight: usize,
    pub key_heads: usize,
    pub windows: usize,
    /// Tokens per second of all devices combined.
    pub tokens_per_second: f64,
    pub reserved_bytes: u64,
}

#[derive(Clone, Debug, Serialize)]
pub struct TuneResult {
    pub devices: String,
    pub window_tokens: usize,
    /// Results for increasing windows in flight, with all heads at a time.
    pub in_flight: Vec<Point>,
    /// Results for decreasing heads at a time, with the best number of windows.
    pub heads: Vec<Point>,
    pub stage: ShardAcrossDevices,
    pub yaml: String,
}

/// Measures the devices of `plan`, `seconds` for each setting.
pub fn tune(plan: &Plan, seconds: f64) -> Result<TuneResult> {
    let attention = plan.needed_attention()?;
    let opened = plan.open_table(attention, &|_, _| {})?;
    let settings = &attention.measure;
    let tokens = plan.spec.tokenize().window_tokens as usize;
    let layer = attention.first_layer(opened.table, tokens);
    let mut random = Rng::new(1);
    let mut window = || {
        let vocabulary = layer.spec().vocabulary_size;
        settings
            .request()
            .window_tokens((0..tokens).map(|_| (random.next() % vocabulary) as u32).collect())
    };
    let bench = TuneBench { attention, layer: &layer, tokens, stop: &plan.options.stop };
    let all = layer.spec().key_heads as usize;
    // The first window fills caches and shows how long one takes.
    let first = bench.measure(1, all, vec![window()])?;
    let one = tokens as f64 / first.tokens_per_second;
    let devices = attention.devices.list.len();
    let mut windows = |in_flight: usize| -> Vec<WindowTokens> {
        let fitting = (seconds / one.max(1e-6) * devices as f64) as usize;
        let number = fitting.min(MAX_WINDOWS).max(2 * in_flight * devices);
        (0..number).map(|_| window()).collect()
    };
    let mut in_flight = Vec::new();
    for number in
        (0..).map(|power| 1 << power).take_while(|number| *number <= bench.max_in_flight())
    {
        in_flight.push(bench.measure(number, all, windows(number))?);
    }
    let best = best(&in_flight);
    let mut heads = vec![best];
    let mut at_a_time = all;
    while at_a_time > 1 {
        at_a_time = at_a_time.div_ceil(2);
        let number = best.windows_in_flight;
        heads.push(bench.measure(number, at_a_time, windows(number))?);
    }
    let chosen = self::best(&heads);
    let mut stage = attention.sharing.clone();
    stage.workers_per_device = Some(longsift_stages::shard_across_devices::WorkersPerDevice::Same(
        chosen.windows_in_flight as u32,
    ));
    stage.key_heads_at_once = (chosen.key_heads < all).then_some(chosen.key_heads as u32);
    let yaml = yaml(&stage);
    let devices = attention.devices.names();
    Ok(TuneResult { devices, window_tokens: tokens, in_flight, heads, stage, yaml })
}

/// Returns the first point that no later one beats by [`MIN_SPEEDUP`].
fn best(points: &[Point]) -> Point {
    let mut best = points[0];
    for point in points {
        if point.tokens_per_second > MIN_SPEEDUP * best.tokens_per_second {
            best = *point;
        }
    }
    best
}

struct TuneBench<'a> {
    attention: &'a Attention,
    layer: &'a FirstLayer,
    tokens: usize,
    stop: &'a Stop,
}

impl TuneBench<'_> {
    /// Returns the number of windows that fit into the memory of the smallest device.
    fn max_in_flight(&self) -> usize {
        let spec = self.layer.spec();
        let table_bytes = self.layer.table().bytes();
        let fitting = self.attention.devices.list.iter().map(|device| {
            let window = device.compute.window_bytes(spec, self.tokens, 0..spec.key_heads as usize);
            let resident = device.compute.resident_bytes(spec, table_bytes);
            let many = Device { workers: MAX_IN_FLIGHT, ..device.clone() };
            many.fitting_windows(window, resident)
        });
        let limit = if self.attention.devices.is_cpu() {
            2 * self.attention.devices.threads
        } else {
            MAX_IN_FLIGHT
        };
        fitting.min().unwrap_or(1).min(limit)
    }

    fn measure(
        &self,
        windows_in_flight: usize,
        key_heads: usize,
        windows: Vec<WindowTokens>,
    ) -> Result<Point> {
        let one = |device: &Device| Device { workers: windows_in_flight, ..device.clone() };
        let devices: Vec<Device> = self.attention.devices.list.iter().map(one).collect();
        let policy = Policy { key_heads_at_once: Some(key_heads), ..self.attention.policy() };
        let number = windows.len();
        let warm_up: Vec<WindowTokens> = windows.iter().take(devices.len()).cloned().collect();
        let taken = Scheduler::run(&devices, self.layer, policy, |scheduler| -> Result<_> {
            // Measures one window per device first, so that tables are loaded before the clock starts.
            self.pass(scheduler, &devices, warm_up)?;
            let started = Instant::now();
            let reserved = self.pass(scheduler, &devices, windows)?;
            Ok((started.elapsed(), reserved))
        });
        let (time, reserved_bytes) = taken?;
        let tokens_per_second = (number * self.tokens) as f64 / time.as_secs_f64().max(1e-9);
        Ok(Point {
            windows_in_flight,
            key_heads,
            windows: number,
            tokens_per_second,
            reserved_bytes,
        })
    }

    fn pass(
        &self,
        scheduler: &Scheduler<'_>,
        devices: &[Device],
        windows: Vec<WindowTokens>,
    ) -> Result<u64> {
        let (mut left, mut reserved) = (windows.len(), 0);
        for window in windows {
            scheduler.submit(window);
        }
        while left > 0 {
            self.stop.check()?;
            let message = scheduler.wait(Duration::from_millis(20));
            let states = devices.iter().filter_map(|device| device.ledger.memory_state().ok());
            reserved = states.map(|state| state.reserved).fold(reserved, u64::max);
            match message {
                Some(SchedulerMessage::Window { result: Ok(_), .. }) => left -= 1,
                Some(SchedulerMessage::Window { result: Err(why), .. }) => {
                    return Err(Diagnostic::error(Blame::Machine, why.message).into());
                }
                Some(SchedulerMessage::Failed(blame, why)) => {
                    return Err(Diagnostic::error(blame, why).into());
                }
                Some(SchedulerMessage::Step(step)) if step.is_warning() => {
                    let on = step.device.map_or("all devices", |at| devices[at].compute.name());
                    tracing::warn!("{on}: {step}");
                }
                Some(SchedulerMessage::Step(_)) | None => {}
            }
        }
        Ok(reserved)
    }
}

/// Formats the stage for a pipeline; JSON values are YAML values.
fn yaml(stage: &ShardAcrossDevices) -> String {
    let mut text = "  - stage: shard-across-devices\n".to_owned();
    if let serde_json::Value::Object(settings) = serde_json::to_value(stage).expect("plain data") {
        for (key, value) in settings {
            let value = match value {
                serde_json::Value::String(word) => word,
                other => other.to_string(),
            };
            let _ = writeln!(text, "    {key}: {value}");
        }
    }
    text
}

impl fmt::Display for TuneResult {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}, windows of {} tokens", self.devices, count(self.window_tokens as u64))?;
        f.write_str(&text::text(&self.sections(), false))
    }
}

impl TuneResult {
    /// Returns the sections of the page, which are also its text: both curves, and the best settings.
    fn sections(&self) -> Vec<Section> {
        let [flight, heads] = [
            curve(
                "windows in flight on each device",
                "with all heads at a time",
                &self.in_flight,
                |point| point.windows_in_flight,
            ),
            curve(
                "key heads at a time",
                "with the best number of windows in flight",
                &self.heads,
                |point| point.key_heads,
            ),
        ];
        let stage = vec![Block::Code(self.yaml.trim_end().to_owned())];
        vec![
            Section::new("flight", "Windows in flight", "", flight),
            Section::new("heads", "Heads at a time", "", heads),
            Section::new("stage", "Stage settings", "", stage),
        ]
    }

    pub(crate) fn page(&self) -> Page {
        let all = self.in_flight.iter().chain(&self.heads);
        let fastest = all.map(|point| point.tokens_per_second).fold(0.0, f64::max);
        Page {
            title: format!("Tuned: {}", line_safe(&self.devices)),
            kicker: format!("longsift tune · longsift {}", env!("CARGO_PKG_VERSION")),
            lead: "A larger number is chosen if it is at least 3 % faster; smaller differences are noise."
                .to_owned(),
            tiles: vec![
                KeyNumber::new(count(fastest as u64), "tokens/s at best"),
                KeyNumber::new(count(self.window_tokens as u64), "tokens per window"),
            ],
            sections: self.sections(),
        }
    }
}

/// Renders speed and reserved memory over one of the two settings, as charts and a table.
fn curve(across: &str, with: &str, points: &[Point], setting: fn(&Point) -> usize) -> Vec<Block> {
    let memory = |value: f64| bytes(value as u64);
    let chart = |name: &str, of: fn(&Point) -> f64, shown: &dyn Fn(f64) -> String| {
        let points = points.iter().map(|point| (setting(point) as f64, of(point))).collect();
        let lines = LineChart {
            label: format!("{name} by {across}"),
            x_name: across.to_owned(),
            lines: vec![(name.to_owned(), points)],
            logarithmic: false,
            shown,
            shown_x: &number,
        };
        CaptionedChart::new(name, with, Block::Chart(lines.chart()))
    };
    let rows = points.iter().map(|point| {
        vec![
            count(setting(point) as u64),
            count(point.tokens_per_second as u64),
            bytes(point.reserved_bytes),
            count(point.windows as u64),
        ]
    });
    vec![
        Block::Charts(vec![
            chart("tokens/s", |point| point.tokens_per_second, &short_count),
            chart("bytes reserved", |point| point.reserved_bytes as f64, &memory),
        ]),
        Block::table([across, "tokens/s", "peak reserved", "windows measured"], rows.collect()),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn point(windows_in_flight: usize, tokens_per_second: f64) -> Point {
        Point { windows_in_flight, key_heads: 8, windows: 9, tokens_per_second, reserved_bytes: 1 }
    }

    #[test]
    fn larger_numbers_must_be_faster_by_the_minimum() {
        let points = [point(1, 100.0), point(2, 102.0), point(4, 104.0), point(8, 105.0)];
        assert_eq!(best(&points).windows_in_flight, 4);
        assert_eq!(best(&[point(1, 100.0), point(2, 90.0)]).windows_in_flight, 1);
    }
}
