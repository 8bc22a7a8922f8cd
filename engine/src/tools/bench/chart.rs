//! Charts of benchmark results, as one SVG or on a page with a table of all values.

use std::collections::{BTreeMap, BTreeSet};

use askama::Template;

use super::measurements::{Measurement, shown};
use crate::base::text::{count, line_safe};
use crate::report::page::chart::{Chart, LineChart, Polyline};
use crate::report::page::drawing::{Swatch, colour};
use crate::report::page::numbers::number;
use crate::report::page::{Bar, Bars, Block, CaptionedChart, KeyNumber, Page, Section};
use crate::tools::bench::Bench;

/// Maximum number of lines of a chart, limited by distinguishable colours.
const MAX_LINES: usize = 4;

/// Measurements of one group, unit and axis.
struct ChartPanel<'a>(Vec<&'a Measurement>);

#[derive(Template)]
#[template(path = "charts.svg", escape = "html")]
struct Charts {
    charts: Vec<PlacedChart>,
    height: u32,
}

/// A chart with its title, its distance from the top, and the height of its legend.
struct PlacedChart {
    title: String,
    top: u32,
    chart: Chart,
}

impl PlacedChart {
    /// Returns the legend, each line with its distance from the top.
    fn legend(&self) -> impl Iterator<Item = (u32, &Swatch)> {
        (1..).map(|line| 20 * line).zip(&self.chart.legend)
    }

    fn plot_top(&self) -> u32 {
        20 * self.chart.legend.len() as u32 + 16
    }
}

/// Draws every group with more than one point per line as one SVG.
pub(crate) fn draw(bench: &Bench) -> String {
    let mut height = 32;
    let panels = panels(bench).into_iter().filter(ChartPanel::has_lines);
    let charts = panels.map(|panel| {
        let placed = PlacedChart { title: panel.title(), top: height, chart: panel.chart() };
        height += placed.plot_top() + placed.chart.height() + 32;
        placed
    });
    let charts = charts.collect();
    Charts { charts, height }.render().expect("templates write to memory") + "\n<!-- longsift -->\n"
}

pub(crate) fn page(bench: &Bench) -> Page {
    let processor = line_safe(bench.processor.as_deref().unwrap_or("unknown processor"));
    let mut groups: Vec<(&str, Vec<CaptionedChart>)> = Vec::new();
    for panel in panels(bench) {
        // `kernel` and `kernel, 32 heads` share a section.
        let name = panel.0[0].group.split(',').next().unwrap_or_default();
        match groups.iter_mut().find(|(known, _)| *known == name) {
            Some((_, charts)) => charts.push(panel.captioned()),
            None => groups.push((name, vec![panel.captioned()])),
        }
    }
    let mut sections: Vec<Section> = groups
        .into_iter()
        .map(|(name, charts)| {
            let id: String = name.chars().filter(char::is_ascii_alphanumeric).collect();
            Section::new(&id, name, "", vec![Block::Charts(charts)])
        })
        .collect();
    let row = |measurement: &Measurement| {
        let at = format!("{} {}", count(measurement.at as u64), measurement.at_unit);
        vec![
            measurement.group.into(),
            line_safe(&measurement.series),
            at,
            shown(measurement.value, measurement.unit),
        ]
    };
    let rows = bench.measurements.iter().map(row).collect();
    let mut all = vec![Block::table(["group", "series", "at", "value"], rows)];
    if !bench.left_out.is_empty() {
        all.push(Block::Note("Skipped because they take too long:".to_owned()));
        all.push(Block::List(bench.left_out.clone()));
    }
    sections.push(Section::new("figures", "All results", "", all));
    Page {
        title: format!("Benchmark of {processor}"),
        kicker: format!("longsift bench · {} · longsift {}", bench.measured, bench.longsift),
        lead: format!(
            "Each value is the median of up to {} measurements, fewer for long windows. Line charts have logarithmic axes.",
            bench.repeats
        ),
        tiles: vec![
            KeyNumber::new(bench.threads.to_string(), "threads"),
            KeyNumber::new(count(bench.measurements.len() as u64), "results"),
        ],
        sections,
    }
}

fn panels(bench: &Bench) -> Vec<ChartPanel<'_>> {
    let mut panels: Vec<ChartPanel<'_>> = Vec::new();
    for measurement in &bench.measurements {
        let axes = |of: &Measurement| (of.group, of.unit, of.at_unit);
        match panels.iter_mut().find(|panel| axes(panel.0[0]) == axes(measurement)) {
            Some(panel) => panel.0.push(measurement),
            None => panels.push(ChartPanel(vec![measurement])),
        }
    }
    panels.into_iter().flat_map(ChartPanel::split).collect()
}

impl ChartPanel<'_> {
    /// Splits into panels of at most [`MAX_LINES`] lines.
    fn split(self) -> Vec<Self> {
        let series: BTreeSet<&str> = self.0.iter().map(|of| of.series.as_str()).collect();
        let series: Vec<&str> = series.into_iter().collect();
        let of = |some: &[&str]| {
            Self(self.0.iter().copied().filter(|of| some.contains(&of.series.as_str())).collect())
        };
        series.chunks(MAX_LINES).map(of).collect()
    }

    fn title(&self) -> String {
        format!("{}, {}", self.0[0].group, self.0[0].unit)
    }

    fn lines(&self) -> Vec<Polyline> {
        let mut lines: BTreeMap<&str, Vec<(f64, f64)>> = BTreeMap::new();
        for measurement in &self.0 {
            lines.entry(&measurement.series).or_default().push((measurement.at, measurement.value));
        }
        lines.into_iter().map(|(name, points)| (line_safe(name), points)).collect()
    }

    fn has_lines(&self) -> bool {
        self.lines().iter().any(|(_, points)| points.len() > 1)
    }

    fn chart(&self) -> Chart {
        let lines = LineChart {
            label: self.title(),
            x_name: self.0[0].at_unit.to_owned(),
            lines: self.lines(),
            logarithmic: true,
            shown: &|value| shown(value, self.0[0].unit),
            shown_x: &number,
        };
        lines.chart()
    }

    fn captioned(&self) -> CaptionedChart {
        if self.has_lines() {
            return CaptionedChart::new(self.title(), "", Block::Chart(self.chart()));
        }
        let values = self.0.iter().map(|measurement| measurement.value);
        let largest = values.fold(f64::MIN_POSITIVE, f64::max);
        let bar = |measurement: &&Measurement| {
            let at = format!("{} {}", count(measurement.at as u64), measurement.at_unit);
            let name = format!("{}, {at}", line_safe(&measurement.series));
            let value = shown(measurement.value, measurement.unit);
            Bar::new(name, value, colour::BLUE, (0.0, measurement.value / largest))
        };
        let rows = self.0.iter().map(bar).collect();
        CaptionedChart::new(self.title(), "", Block::Bars(Bars { rows, ..Bars::default() }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn page_shows_every_result_as_a_line_or_a_bar() {
        let measurement = |group, series: &str, at: f64, value| {
            let (at_unit, unit) = ("tokens", "pairs/s");
            Measurement { group, series: series.to_owned(), at, at_unit, value, unit }
        };
        let measurements = vec![
            measurement("kernel", "<b>", 4096.0, 1.5e9),
            measurement("kernel", "<b>", 8192.0, 1.25e9),
            measurement("table", "read", 500.0, 0.0),
        ];
        let bench = Bench {
            processor: Some("a processor\u{202e}".to_owned()),
            threads: 2,
            longsift: "0",
            measured: "today".to_owned(),
            repeats: 3,
            measurements,
            left_out: vec!["1,048,576 tokens".to_owned()],
        };
        let page = page(&bench).html();
        for text in [
            "id=\"kernel\"",
            "id=\"table\"",
            "id=\"figures\"",
            "1.50 Gpairs/s",
            "&#60;b&#62;, 8,192: 1.25",
        ] {
            assert!(page.contains(text), "{text}: {page}");
        }
        assert!(!page.contains("<script") && !page.contains("<b>,") && !page.contains('\u{202e}'));
        assert_eq!(page.matches("stroke-width=\"7\"").count(), 2, "a dot for each point");
        let svg = draw(&bench);
        assert!(svg.contains("kernel, pairs/s") && !svg.contains("table"), "{svg}");
    }
}
