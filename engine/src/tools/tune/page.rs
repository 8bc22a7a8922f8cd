//! Results of `longsift tune` as sections of a page, which are also its text.

use super::{Point, TuneResult};
use crate::base::text::{bytes, count, line_safe};
use crate::report::page::chart::{LineChart, Polyline};
use crate::report::page::numbers::{number, short_count};
use crate::report::page::{Block, CaptionedChart, KeyNumber, Page, Section};

impl TuneResult {
    /// Returns the sections: both curves, and the best settings.
    pub(super) fn sections(&self) -> Vec<Section> {
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

    /// Renders the results as one HTML file. `command` is shown as the command that repeats it.
    pub(crate) fn page(&self, command: &str) -> String {
        let all = self.in_flight.iter().chain(&self.heads);
        let fastest = all.map(|point| point.tokens_per_second).fold(0.0, f64::max);
        let mut sections = self.sections();
        sections.push(Section::command(command));
        let page = Page {
            title: format!("Tuned: {}", line_safe(&self.devices)),
            kicker: format!("longsift tune · longsift {}", env!("CARGO_PKG_VERSION")),
            lead: "A larger number is chosen if it is at least 3 % faster; smaller differences are noise."
                .to_owned(),
            tiles: vec![
                KeyNumber::new(count(fastest as u64), "tokens/s at best"),
                KeyNumber::new(count(self.window_tokens as u64), "tokens per window"),
            ],
            sections,
        };
        page.html()
    }
}

/// Renders speed and reserved memory over one of the two settings, as charts and a table.
fn curve(across: &str, with: &str, points: &[Point], setting: fn(&Point) -> usize) -> Vec<Block> {
    let memory = |value: f64| bytes(value as u64);
    let figure = |name: &str, of: fn(&Point) -> f64, shown: &dyn Fn(f64) -> String| {
        let points = points.iter().map(|point| (setting(point) as f64, of(point))).collect();
        let lines = LineChart {
            label: format!("{name} by {across}"),
            x_name: across.to_owned(),
            lines: vec![Polyline { name: name.to_owned(), points }],
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
        Block::Figures(vec![
            figure("tokens/s", |point| point.tokens_per_second, &short_count),
            figure("bytes reserved", |point| point.reserved_bytes as f64, &memory),
        ]),
        Block::table([across, "tokens/s", "peak reserved", "windows measured"], rows.collect()),
    ]
}
