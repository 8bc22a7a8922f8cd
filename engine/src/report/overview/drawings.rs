//! Charts of a report.

use super::bins::ReportHistogram;
use super::gather::OUTCOMES;
use super::machine::DevicePoll;
use crate::base::text::{bytes, count, line_safe};
use crate::report::page::chart::{Chart, ColumnChart, Tick, over_time};
use crate::report::page::drawing::{Drawing, Swatch, colour};
use crate::report::page::numbers::{Axis, number, share, short_count};
use crate::report::page::{Bar, Bars, Block};

/// Colours of kept, not selected and rejected samples.
pub(super) const COLOURS: [&str; OUTCOMES] = [colour::BLUE, colour::PALE, colour::ORANGE];

const NAMES: [&str; OUTCOMES] = ["kept", "below the threshold", "rejected or without a score"];

pub(super) fn legend() -> Block {
    let swatches = NAMES.into_iter().zip(COLOURS).map(|(name, fill)| Swatch::new(name, fill));
    let dashed = Swatch::dashed("threshold or bound of a guard");
    Block::Legend(swatches.chain([dashed]).collect())
}

/// Name, amount and colour.
pub(super) type WaterfallStep = (String, u64, &'static str);

/// Draws the total, the amounts lost, each of which begins where the previous one ended, and the remainder.
pub(super) fn waterfall(label: &str, all: u64, steps: &[WaterfallStep]) -> Bars {
    let bar = |name: &str, number: u64, right: u64, fill: &str| {
        let part = |number: u64| number as f64 / all.max(1) as f64;
        let value = format!("{} · {}", count(number), share(number, all));
        Bar::new(line_safe(name), value, fill, (part(right) - part(number), part(right)))
    };
    let mut rows = vec![bar(label, all, all, colour::PALE)];
    let mut right = all;
    for (index, (name, number, fill)) in steps.iter().enumerate() {
        let is_last = index + 1 == steps.len();
        rows.push(bar(name, *number, if is_last { *number } else { right }, fill));
        right = right.saturating_sub(*number);
    }
    Bars { rows, ..Bars::default() }
}

/// Draws a stacked histogram of kept, not selected and rejected samples, with dashed lines at the given values.
pub(super) fn histogram(label: &str, of: &ReportHistogram, lines: &[(f64, &'static str)]) -> Chart {
    let axis = Axis::linear(of.from, of.from + of.counts.len() as f64 * of.width);
    let tick = |value: f64| Tick::new(axis.position(value), number(value));
    let lines = lines.iter().filter(|(value, _)| value.is_finite());
    let mark = |(value, name): &(f64, &str)| Tick {
        text: format!("{name} {}", number(*value)),
        ..tick(*value)
    };
    let series: Vec<(&str, &str)> = NAMES.into_iter().zip(COLOURS).collect();
    let bins = of.counts.iter().map(|kinds| kinds.iter().map(|count| *count as f64).collect());
    let columns = ColumnChart {
        label: line_safe(label),
        series: &series,
        bins: bins.collect(),
        stacked: true,
        shown: &short_count,
        x_ticks: axis.ticks().into_iter().map(tick).collect(),
        marks: lines.map(mark).collect(),
    };
    let mut chart = columns.chart();
    // The section has one legend for all its histograms.
    chart.legend.clear();
    chart
}

/// Draws stacked shares, one bar for each row, with a legend of the components.
pub(super) fn stacked(components: &[&str], rows: &[(&str, Vec<u64>)]) -> Bars {
    let colours = || colour::SERIES.into_iter().cycle();
    let bar = |(name, parts): &(&str, Vec<u64>)| {
        let all: u64 = parts.iter().sum();
        let (mut layer, mut from) = (Drawing::new(16), 0.0);
        for (part, (component, fill)) in parts.iter().zip(components.iter().zip(colours())) {
            let to = from + *part as f64 / all.max(1) as f64;
            let title = format!("{component}: {}", share(*part, all));
            layer.bar((from, to), (0.0, 16.0), fill, title);
            from = to;
        }
        Bar { name: (*name).to_owned(), values: vec![count(all)], layer }
    };
    let swatch = |(index, (component, fill)): (usize, (&&str, &str))| {
        let shares = rows.iter().map(|(_, parts)| share(parts[index], parts.iter().sum()));
        let shares: Vec<String> = shares.collect();
        Swatch::new(format!("{} ({})", line_safe(component), shares.join(", ")), fill)
    };
    let legend = components.iter().zip(colours()).enumerate().map(swatch).collect();
    Bars { legend, rows: rows.iter().map(bar).collect(), ..Bars::default() }
}

/// Draws the kept share of each row, and the overall share as a dashed line.
pub(super) fn shares(rows: &[(String, [u64; 2])], overall: f64) -> Bars {
    let part = |[all, kept]: [u64; 2]| kept as f64 / all.max(1) as f64;
    let largest = rows.iter().map(|(_, counts)| part(*counts)).fold(overall, f64::max).max(1e-9);
    let bar = |(name, [all, kept]): &(String, [u64; 2])| {
        let value = format!("{} of {} · {}", count(*kept), count(*all), share(*kept, *all));
        let end = part([*all, *kept]) / largest;
        let mut bar = Bar::new(line_safe(name), value, colour::BLUE, (0.0, end));
        bar.layer.mark(overall / largest);
        bar
    };
    let legend = vec![
        Swatch::new("kept share", colour::BLUE),
        Swatch::dashed(format!("overall {:.1} %", 100.0 * overall)),
    ];
    Bars { legend, rows: rows.iter().map(bar).collect(), ..Bars::default() }
}

/// Name of a series, and its value in a poll.
type Series = (&'static str, fn(&DevicePoll) -> u64);

pub(super) fn memory(device: &str, polls: &[DevicePoll]) -> Chart {
    let series: [Series; 3] = [
        ("held by the run", |poll| poll.held_bytes),
        ("reserved", |poll| poll.reserved_bytes),
        ("other programs", |poll| poll.others_bytes),
    ];
    let series = series.map(|(name, of)| (name, polls.iter().map(of).collect()));
    let times: Vec<String> = polls.iter().map(|poll| line_safe(&poll.time)).collect();
    let times: Vec<&str> = times.iter().map(String::as_str).collect();
    over_time(&format!("memory of {}", line_safe(device)), &times, series.to_vec(), bytes)
}

#[cfg(test)]
mod tests {
    use askama::Template;

    use super::*;

    #[test]
    fn the_last_waterfall_step_is_the_remainder() {
        let steps = [("<b>", 3, colour::ORANGE), ("kept", 1, colour::BLUE)];
        let steps = steps.map(|(name, number, fill)| (name.to_owned(), number, fill));
        let html = Block::Bars(waterfall("rows", 4, &steps)).render().unwrap();
        assert!(html.contains("3 · 75.0 %") && !html.contains("<b>"), "{html}");
        assert!(html.contains(r#"<rect x="250" y="0" width="750""#), "{html}");
        assert!(html.contains(r#"<rect x="0" y="0" width="250""#), "{html}");
    }

    #[test]
    fn shares_have_names_values_and_a_legend() {
        let html = Block::Bars(shares(&[("n".repeat(400), [200, 30])], 0.1)).render().unwrap();
        assert!(html.contains("30 of 200 · 15.0 %") && html.contains("overall 10.0 %"), "{html}");
    }

    #[test]
    fn histograms_have_a_y_axis_and_round_ticks_for_any_range() {
        let counts = (0..40).map(|bin| vec![bin, 2 * bin, 3]).collect();
        let svg = histogram(
            "a",
            &ReportHistogram { from: -0.03, width: 0.03, counts },
            &[(0.5, "bound")],
        );
        let svg = svg.render().unwrap();
        for text in [">0</text>", ">100</text>", ">0.5</text>", ">bound 0.5</text>"] {
            assert!(svg.contains(text), "{text}: {svg}");
        }
        for (from, width) in [(0.0, 1e-300), (-1e300, 1e299), (0.3, 1e-18)] {
            let of = ReportHistogram { from, width, counts: vec![vec![1, 2, 3]] };
            let svg = histogram("a", &of, &[(from, "threshold")]).render().unwrap();
            assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
        }
    }
}
