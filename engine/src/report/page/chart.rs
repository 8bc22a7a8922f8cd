//! Charts with axes: columns over a range or an index, and lines.

use askama::Template;
use serde::Serialize;

use super::drawing::{Drawing, Swatch, colour, px};
use super::numbers::{Axis, number};
use crate::base::text::count;

/// Approximate width of a character in pixels.
const LETTER: f64 = 6.6;
/// Height of the columns or lines in pixels, and of a line of text above them.
const HEIGHT: u32 = 110;
const TEXT_HEIGHT: u32 = 14;
/// A column is cut if it is more than this many times as high as all columns but one.
const MAX_RATIO: f64 = 3.0;
/// Maximum number of names below a chart, and minimum distance between two of them as a share of its width.
const MAX_NAMES: usize = 6;
const MIN_DISTANCE: f64 = 0.1;

#[derive(Clone, Debug, PartialEq, Template)]
#[template(path = "chart.svg", escape = "html")]
pub(crate) struct Chart {
    /// Description for screen readers.
    label: String,
    pub(crate) legend: Vec<Swatch>,
    x_ticks: Vec<Tick>,
    y_ticks: Vec<Tick>,
    /// Label of the x axis; may be empty.
    x_name: String,
    /// Lines of text above the chart, each at the position that it describes.
    notes: Vec<Tick>,
    layer: Drawing,
}

/// A text at a position, from 0 to 1.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Tick {
    pub(crate) at: f64,
    pub(crate) text: String,
    pub(crate) fill: &'static str,
}

impl Tick {
    pub(crate) fn new(at: f64, text: impl Into<String>) -> Self {
        Self { at, text: text.into(), fill: "currentColor" }
    }

    /// Returns the alignment with which the text stays inside the chart.
    fn anchor(&self) -> &'static str {
        match self.at {
            ..0.1 => "start",
            0.9.. => "end",
            _ => "middle",
        }
    }

    /// Returns the horizontal position in percent.
    fn across(&self) -> String {
        px(100.0 * self.at)
    }
}

/// Columns, one for each bin; each has a part for every series.
pub(crate) struct ColumnChart<'a> {
    pub(crate) label: String,
    pub(crate) series: &'a [(&'a str, &'a str)],
    /// Values by bin and series.
    pub(crate) bins: Vec<Vec<f64>>,
    /// Whether the parts of a bin are stacked; otherwise they stand side by side.
    pub(crate) stacked: bool,
    pub(crate) shown: &'a dyn Fn(f64) -> String,
    pub(crate) x_ticks: Vec<Tick>,
    /// Positions of dashed lines, with their texts.
    pub(crate) marks: Vec<Tick>,
}

/// Name of a line, and its points `(x, y)`.
pub(crate) type Polyline = (String, Vec<(f64, f64)>);

pub(crate) struct LineChart<'a> {
    pub(crate) label: String,
    pub(crate) x_name: String,
    pub(crate) lines: Vec<Polyline>,
    /// Whether both axes are logarithmic, so that a power law is a straight line.
    pub(crate) logarithmic: bool,
    /// Formats of y and x values.
    pub(crate) shown: &'a dyn Fn(f64) -> String,
    pub(crate) shown_x: &'a dyn Fn(f64) -> String,
}

/// Returns ticks at the indices of a list, at most [`MAX_NAMES`] of them.
fn index_ticks(length: usize, name: impl Fn(usize) -> String) -> Vec<Tick> {
    let every = length.div_ceil(MAX_NAMES).max(1);
    let middle = |index: usize| (index as f64 + 0.5) / length as f64;
    (0..length).step_by(every).map(|index| Tick::new(middle(index), name(index))).collect()
}

/// End of the name of a list by position, in bands that begin at 1, 2, 4, … times a length.
pub(crate) const BY_POSITION: &str = "_by_position";

/// Draws statistic `name`, a list of numbers, for each series: lines over positions, otherwise columns.
pub(crate) fn list(name: &str, series: &[(&str, &str)], lists: &[&[f64]]) -> Chart {
    if name.ends_with(BY_POSITION) {
        let line = |((name, _), list): (&(&str, &str), &&[f64])| {
            ((*name).to_owned(), (0_u32..).map(f64::from).zip(list.iter().copied()).collect())
        };
        return LineChart {
            label: name.to_owned(),
            x_name: "start of the band, in multiples of the short context".to_owned(),
            lines: series.iter().zip(lists).map(line).collect(),
            logarithmic: false,
            shown: &number,
            shown_x: &|band| number(band.exp2()),
        }
        .chart();
    }
    let by_distance = name.ends_with("histogram");
    // Bin 0 is distance 0, bin b begins at 2^(b-1).
    let index_name = |index: usize| match index {
        1.. if by_distance => count(1 << (index - 1).min(62)),
        _ => index.to_string(),
    };
    let length = lists.iter().map(|list| list.len()).max().unwrap_or(0);
    let value = |list: &&[f64], index: usize| list.get(index).copied().unwrap_or(0.0);
    let bin = |index: usize| lists.iter().map(|list| value(list, index)).collect();
    let columns = ColumnChart {
        label: name.to_owned(),
        series,
        bins: (0..length).map(bin).collect(),
        stacked: false,
        shown: &number,
        x_ticks: index_ticks(length, index_name),
        marks: Vec::new(),
    };
    columns.chart()
}

/// Returns the highest value of the y axis: less than the highest column if it would make all others flat.
fn axis_end(heights: &[f64]) -> f64 {
    let mut sorted: Vec<f64> = heights.iter().copied().filter(|height| *height > 0.0).collect();
    sorted.sort_by(|one, other| other.total_cmp(one));
    let crushed = (1..3)
        .find(|index| sorted.get(*index).is_some_and(|next| sorted[index - 1] > MAX_RATIO * next));
    match crushed {
        Some(index) => 1.3 * sorted[index],
        None => sorted.first().copied().unwrap_or(1.0),
    }
}

impl ColumnChart<'_> {
    pub(crate) fn chart(mut self) -> Chart {
        let height = f64::from(HEIGHT);
        for value in self.bins.iter_mut().flatten() {
            *value = if value.is_finite() { value.max(0.0) } else { 0.0 };
        }
        let total = |bin: &Vec<f64>| -> f64 {
            if self.stacked { bin.iter().sum() } else { bin.iter().copied().fold(0.0, f64::max) }
        };
        let totals: Vec<f64> = self.bins.iter().map(total).collect();
        let end = axis_end(&totals);
        let y = Axis::linear(0.0, end);
        let mut layer = Drawing::new(HEIGHT);
        let each = if self.stacked { 1 } else { self.series.len().max(1) };
        for (series, (name, fill)) in self.series.iter().enumerate() {
            let mut heights = Vec::with_capacity(each * self.bins.len());
            for bin in &self.bins {
                let below: f64 = if self.stacked { bin[..series].iter().sum() } else { 0.0 };
                let column = (height * y.position(below), height * y.position(below + bin[series]));
                heights.extend((0..each).map(|index| {
                    if self.stacked || index == series { column } else { (0.0, 0.0) }
                }));
            }
            layer.columns(&heights, fill, *name);
        }
        let width = 1.0 / self.bins.len().max(1) as f64;
        let mut notes = Vec::new();
        for (bin, total) in totals.iter().enumerate().filter(|(_, total)| **total > end) {
            let from = width * bin as f64;
            // A gap marks a cut column.
            layer.bar((from, from + width), (10.0, 4.0), "Canvas", "");
            notes.push(Tick::new(from + width / 2.0, format!("↑ {}", (self.shown)(*total))));
        }
        for mark in self.marks {
            layer.mark(mark.at);
            notes.push(Tick { fill: colour::VERMILLION, ..mark });
        }
        let swatch = |(name, fill): &(&str, &str)| Swatch::new(*name, *fill);
        let legend = self.series.iter().filter(|_| self.series.len() > 1).map(swatch);
        Chart {
            label: self.label,
            legend: legend.collect(),
            x_ticks: self.x_ticks,
            y_ticks: y_ticks(&y, self.shown),
            x_name: String::new(),
            notes,
            layer,
        }
    }
}

impl LineChart<'_> {
    pub(crate) fn chart(self) -> Chart {
        let height = f64::from(HEIGHT);
        let (x, y) = self.axes();
        let mut layer = Drawing::new(HEIGHT);
        let with_dots = self.lines.iter().all(|(_, points)| points.len() <= 40);
        for ((name, line), stroke) in self.lines.iter().zip(colour::SERIES.into_iter().cycle()) {
            let position =
                |(at, value): &(f64, f64)| (x.position(*at), height * (1.0 - y.position(*value)));
            let points: Vec<(f64, f64)> = line.iter().map(position).collect();
            layer.line(&points, stroke, name.clone());
            for ((at, value), point) in line.iter().zip(points).filter(|_| with_dots) {
                let (at, value) = ((self.shown_x)(*at), (self.shown)(*value));
                layer.dot(point, stroke, format!("{name}, {at}: {value}"));
            }
        }
        let swatches = self.lines.iter().zip(colour::SERIES.into_iter().cycle());
        let mut x_ticks: Vec<Tick> = Vec::new();
        for value in self.x_values().unwrap_or_else(|| x.ticks()) {
            let tick = Tick::new(x.position(value), (self.shown_x)(value));
            if x_ticks.last().is_none_or(|last| tick.at - last.at > MIN_DISTANCE) {
                x_ticks.push(tick);
            }
        }
        Chart {
            label: self.label,
            legend: swatches.map(|((name, _), stroke)| Swatch::new(name, stroke)).collect(),
            x_ticks,
            y_ticks: y_ticks(&y, self.shown),
            x_name: self.x_name,
            notes: Vec::new(),
            layer,
        }
    }

    /// Returns the x values of all points if they are few.
    fn x_values(&self) -> Option<Vec<f64>> {
        let points = self.lines.iter().flat_map(|(_, points)| points);
        let mut values: Vec<f64> = points.map(|point| point.0).collect();
        values.sort_by(f64::total_cmp);
        values.dedup();
        (values.len() <= MAX_NAMES).then_some(values)
    }

    fn axes(&self) -> (Axis, Axis) {
        let range = |coordinate: fn(&(f64, f64)) -> f64| {
            let values = self.lines.iter().flat_map(|(_, points)| points).map(coordinate);
            values.fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), value| {
                (low.min(value), high.max(value))
            })
        };
        let bounded = |(low, high): (f64, f64)| {
            if low <= high { (low, high) } else { (0.0, 0.0) }
        };
        let (from, to) = bounded(range(|point| point.0));
        let (low, high) = bounded(range(|point| point.1));
        if self.logarithmic && low > 0.0 {
            return (
                Axis::logarithmic(from, to),
                Axis::logarithmic(low / 1.5, (high * 1.5).min(f64::MAX)),
            );
        }
        let end = match (low < 0.0, high > 0.0) {
            (_, true) => (1.05 * high).min(f64::MAX),
            (true, false) => 0.0,
            (false, false) => 1.0,
        };
        let x = if self.logarithmic { Axis::logarithmic(from, to) } else { Axis::linear(from, to) };
        (x, Axis::linear(low.min(0.0), end))
    }
}

fn y_ticks(axis: &Axis, shown: &dyn Fn(f64) -> String) -> Vec<Tick> {
    let tick = |value: f64| Tick::new(axis.position(value), shown(value));
    let mut ticks: Vec<Tick> = axis.ticks().into_iter().map(tick).collect();
    // Counts are written as integers.
    ticks.dedup_by(|tick, before| tick.text == before.text);
    ticks
}

const MAX_POLLS: usize = 240;

/// Polls of devices, of which every second one is dropped at [`MAX_POLLS`], so that the size of a page is bounded.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(transparent)]
pub(crate) struct Polls<T> {
    pub(crate) kept: Vec<T>,
    #[serde(skip)]
    pub(crate) seen: u64,
    #[serde(skip)]
    halvings: u32,
}

impl<T> Polls<T> {
    pub(crate) fn add(&mut self, poll: T) {
        if self.seen.is_multiple_of(1 << self.halvings) {
            self.kept.push(poll);
        }
        self.seen += 1;
        if self.kept.len() == MAX_POLLS {
            self.kept = std::mem::take(&mut self.kept).into_iter().step_by(2).collect();
            self.halvings += 1;
        }
    }
}

/// Draws series over the polls of a device, from the first to the last. `times`: UTC, with the date.
pub(crate) fn over_time(
    label: &str,
    times: &[&str],
    series: Vec<(&str, Vec<u64>)>,
    shown: fn(u64) -> String,
) -> Chart {
    let line = |(name, values): (&str, Vec<u64>)| {
        let points = (0_u32..).map(f64::from).zip(values.into_iter().map(|value| value as f64));
        (name.to_owned(), points.collect())
    };
    let lines = LineChart {
        label: label.to_owned(),
        x_name: String::new(),
        lines: series.into_iter().map(line).collect(),
        logarithmic: false,
        shown: &|value| shown(value as u64),
        shown_x: &number,
    };
    let mut chart = lines.chart();
    let last = times.len().saturating_sub(1);
    let ends = [(0.0, times.first()), (1.0, times.last().filter(|_| last > 0))];
    let tick = |(at, time): (f64, Option<&&str>)| {
        let clock = time?.split_once('T').map_or(*time?, |(_, clock)| clock);
        Some(Tick::new(at, clock.trim_end_matches('Z')))
    };
    chart.x_ticks = ends.into_iter().filter_map(tick).collect();
    chart
}

impl Chart {
    /// Creates a chart of arcs below a length of tokens: from, to, colour and title of each.
    pub(crate) fn arcs(
        label: &str,
        legend: Vec<Swatch>,
        x_ticks: Vec<Tick>,
        arcs: impl Iterator<Item = (f64, f64, &'static str, String)>,
    ) -> Self {
        let mut layer = Drawing::new(180);
        arcs.for_each(|(from, to, stroke, title)| layer.arc(from, to, stroke, title));
        let (label, x_name) = (label.to_owned(), String::new());
        Self { label, legend, x_ticks, y_ticks: Vec::new(), x_name, notes: Vec::new(), layer }
    }

    /// Returns the width of the labels of the y axis in pixels.
    pub(crate) fn left(&self) -> u32 {
        let letters = self.y_ticks.iter().map(|tick| tick.text.chars().count()).max().unwrap_or(0);
        (LETTER * letters as f64) as u32 + 10
    }

    pub(crate) fn height(&self) -> u32 {
        self.bottom() + if self.x_name.is_empty() { 20 } else { 36 }
    }

    fn top(&self) -> u32 {
        TEXT_HEIGHT * self.notes.len() as u32 + 8
    }

    fn bottom(&self) -> u32 {
        self.top() + self.layer.height
    }

    /// Returns the vertical position of a tick of the y axis, moved down by some pixels.
    fn up(&self, tick: &Tick, lower: f64) -> String {
        px(f64::from(self.bottom()) - f64::from(self.layer.height) * tick.at + lower)
    }

    fn below(&self, pixels: u32) -> u32 {
        self.bottom() + pixels
    }

    /// Returns the notes, each with the vertical position of its line.
    fn rows(&self) -> impl Iterator<Item = (u32, &Tick)> {
        (1..).map(|row| TEXT_HEIGHT * row - 3).zip(&self.notes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn columns(bins: Vec<Vec<f64>>) -> Chart {
        let series = [("a", colour::BLUE), ("b", colour::GREY)];
        let (x_ticks, marks) = (index_ticks(bins.len(), |bin| bin.to_string()), Vec::new());
        let label = "label".to_owned();
        let shown = &number;
        ColumnChart { label, series: &series, bins, stacked: true, shown, x_ticks, marks }.chart()
    }

    fn lines(logarithmic: bool, points: &[(f64, f64)]) -> LineChart<'static> {
        let lines = vec![("<a>".to_owned(), points.to_vec())];
        let (label, x_name) = ("label".to_owned(), "tokens".to_owned());
        LineChart { label, x_name, lines, logarithmic, shown: &number, shown_x: &number }
    }

    #[test]
    fn one_high_column_is_cut_and_its_value_is_written() {
        let mut bins = vec![vec![9_000.0, 1_000.0]];
        bins.extend((1..20).map(|bin| vec![f64::from(bin), 1.0]));
        let chart = columns(bins);
        let texts: Vec<&str> = chart.y_ticks.iter().map(|tick| tick.text.as_str()).collect();
        assert_eq!(texts, ["0", "10", "20"], "the axis fits the other columns");
        let svg = chart.render().unwrap();
        assert!(svg.contains("↑ 10,000</text>"), "{svg}");
        // Columns of similar heights are not cut.
        let svg = columns(vec![vec![30.0, 0.0], vec![11.0, 0.0]]).render().unwrap();
        assert!(!svg.contains('↑') && svg.contains(">30</text>"), "{svg}");
        let ends = [&[5.0, 0.0, 0.0][..], &[]].map(|heights| axis_end(heights) as u32);
        assert_eq!(ends, [5, 1], "a column without others is not cut");
    }

    #[test]
    fn a_power_law_is_a_straight_line_on_logarithmic_axes() {
        let points: Vec<(f64, f64)> = (0..6).map(|n| 2.0_f64.powi(n)).map(|n| (n, n * n)).collect();
        let (x, y) = lines(true, &points).axes();
        let placed: Vec<(f64, f64)> =
            points.iter().map(|(at, value)| (x.position(*at), y.position(*value))).collect();
        let slope = |a: (f64, f64), b: (f64, f64)| (b.1 - a.1) / (b.0 - a.0);
        for pair in placed.windows(2) {
            assert!((slope(pair[0], pair[1]) - slope(placed[0], placed[5])).abs() < 1e-9);
        }
    }

    #[test]
    fn extreme_values_and_unsafe_names_are_drawn() {
        for points in [&[(4.0, 0.0)][..], &[(0.0, f64::MAX), (1.0, 1e-300)], &[]] {
            for logarithmic in [false, true] {
                let svg = lines(logarithmic, points).chart().render().unwrap();
                assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
            }
        }
        let svg = lines(false, &[(4.0, 0.0)]).chart().render().unwrap();
        assert!(svg.contains("&#60;a&#62;, 4: 0") && !svg.contains("<a>"), "{svg}");
        for bins in [vec![vec![1e-300, f64::NAN]], vec![vec![1e300, 1e300]; 3], Vec::new()] {
            let svg = columns(bins).render().unwrap();
            assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
        }
    }
}
