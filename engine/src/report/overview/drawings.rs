//! Charts of a report, no wider than a phone screen.

use super::bins::Histogram;
use super::gather::{OUTCOMES, SampleOutcome};
use super::machine::DevicePoll;
use crate::base::text::{bytes, count, line_safe};
use crate::report::page::drawing::{Drawing, colour};

/// Width of a chart in pixels.
const WIDTH: f64 = 340.0;

/// Light grey that is visible in light and dark mode.
const PALE: &str = "#C3CAD5";

/// Colours of kept, not selected and rejected samples.
pub(super) const COLOURS: [&str; OUTCOMES] = [colour::BLUE, PALE, colour::ORANGE];

/// Colours of score components, repeated if there are more.
const COMPONENT_COLOURS: [&str; 8] = [
    colour::BLUE,
    colour::ORANGE,
    colour::GREEN,
    colour::PURPLE,
    "#56B4E9",
    colour::VERMILLION,
    "#F0E442",
    colour::GREY,
];

/// A step of [`waterfall`].
pub(super) struct WaterfallStep {
    pub(super) name: String,
    pub(super) number: u64,
    pub(super) fill: &'static str,
}

fn drawing(height: f64, label: &str) -> Drawing {
    Drawing::new(WIDTH as u32, height.ceil() as u32, line_safe(label))
}

/// Formats a part as a percentage of the whole: `12.3 %`.
pub(super) fn share(part: u64, all: u64) -> String {
    format!("{:.1} %", 100.0 * part as f64 / all.max(1) as f64)
}

/// Draws a waterfall chart: the total, the amounts lost by reason and the remainder, each with a line of text and a
/// bar. The last step is the remainder; each of the others begins where the previous one ended.
pub(super) fn waterfall(label: &str, all: u64, steps: &[WaterfallStep]) -> Drawing {
    let row = 36.0;
    let mut drawing = drawing(row * (steps.len() + 1) as f64 + 4.0, label);
    let x = |number: u64| (WIDTH - 2.0) * number as f64 / all.max(1) as f64;
    let mut bar = |index: usize, name: &str, number: u64, right: u64, fill: &str| {
        let y = row * index as f64;
        let said = format!("{} · {} · {}", line_safe(name), count(number), share(number, all));
        drawing.text((0.0, y + 13.0), "start", said);
        let width = x(number).max(if number > 0 { 1.0 } else { 0.0 });
        drawing.rect((x(right) - x(number), y + 18.0), (width, 12.0), fill, "");
    };
    bar(0, label, all, all, PALE);
    let mut right = all;
    for (index, step) in steps.iter().enumerate() {
        let last = index + 1 == steps.len();
        bar(index + 1, &step.name, step.number, if last { step.number } else { right }, step.fill);
        right = right.saturating_sub(step.number);
    }
    drawing
}

/// Draws a stacked histogram of kept, not selected and rejected samples, with dashed lines at the given values.
pub(super) fn histogram(label: &str, of: &Histogram, lines: &[(f64, &'static str)]) -> Drawing {
    let (top, tall) = (18.0, 84.0);
    let bottom = top + tall;
    let mut drawing = drawing(bottom + 20.0, label);
    let bins = of.counts.len() as f64;
    let width = (WIDTH - 2.0) / bins;
    let most = of.counts.iter().map(|kinds| kinds.iter().sum::<u64>()).max().unwrap_or(1).max(1);
    let height = |number: u64| tall * number as f64 / most as f64;
    let mut below = vec![0_u64; of.counts.len()];
    for outcome in [SampleOutcome::Kept, SampleOutcome::Below, SampleOutcome::Refused] {
        let heights: Vec<(f64, f64)> = of
            .counts
            .iter()
            .zip(&mut below)
            .map(|(kinds, below)| {
                let from = *below;
                *below += kinds[outcome as usize];
                (height(from), height(*below))
            })
            .collect();
        drawing.steps(
            (1.0, bottom),
            width,
            &heights,
            COLOURS[outcome as usize],
            NAMES[outcome as usize],
        );
    }
    drawing.line((0.0, bottom), (WIDTH, bottom), colour::GREY);
    let end = of.from + bins * of.width;
    let x = |value: f64| (1.0 + (value - of.from) / of.width * width).clamp(1.0, WIDTH - 1.0);
    for value in ticks(of.from, end) {
        let anchor = anchor(x(value));
        drawing.line((x(value), bottom), (x(value), bottom + 4.0), colour::GREY);
        drawing.text((x(value), bottom + 16.0), anchor, number(value));
    }
    for (value, name) in lines.iter().filter(|(value, _)| value.is_finite()) {
        drawing.dashed((x(*value), top - 4.0), (x(*value), bottom), colour::VERMILLION);
        let said = format!("{name} {}", number(*value));
        drawing.text_on((x(*value), 11.0), anchor(x(*value)), colour::VERMILLION, said);
    }
    drawing
}

/// Legend of [`histogram`].
pub(super) const NAMES: [&str; OUTCOMES] =
    ["kept", "below the threshold", "rejected or without a score"];

fn anchor(x: f64) -> &'static str {
    if x < 40.0 {
        "start"
    } else if x > WIDTH - 40.0 {
        "end"
    } else {
        "middle"
    }
}

/// Returns three to six round values in a range.
fn ticks(from: f64, end: f64) -> Vec<f64> {
    let span = end - from;
    if !span.is_finite() || span <= 0.0 {
        return vec![from];
    }
    let power = 10.0_f64.powf((span / 4.0).log10().floor());
    let step = [1.0, 2.0, 5.0, 10.0].map(|of| of * power);
    let step = step.into_iter().find(|step| span / step <= 5.0).unwrap_or(span);
    let first = (from / step).ceil();
    // Bounds the number of ticks if rounding goes wrong.
    (0..8).map(|index| (first + f64::from(index)) * step).filter(|value| *value <= end).collect()
}

/// Formats a value with few digits.
pub(super) fn number(value: f64) -> String {
    let magnitude = value.abs();
    if value == 0.0 {
        "0".to_owned()
    } else if !(1e-4..1e7).contains(&magnitude) {
        format!("{value:.2e}")
    } else {
        let decimals = (3 - magnitude.log10().floor() as i32).clamp(0, 7) as usize;
        let text = format!("{value:.decimals$}");
        if text.contains('.') {
            text.trim_end_matches('0').trim_end_matches('.').to_owned()
        } else {
            text
        }
    }
}

/// Draws stacked shares, one bar for each row, with a legend from `components`.
pub(super) fn stacked(label: &str, components: &[&str], rows: &[(&str, Vec<u64>)]) -> Drawing {
    let row = 40.0;
    let height = row * rows.len() as f64 + 18.0 * components.len() as f64 + 8.0;
    let mut drawing = drawing(height, label);
    for (index, (name, parts)) in rows.iter().enumerate() {
        let y = row * index as f64;
        let all: u64 = parts.iter().sum();
        drawing.text((0.0, y + 13.0), "start", format!("{name} · {}", count(all)));
        let mut x = 0.0;
        for (part, (side, fill)) in
            parts.iter().zip(components.iter().zip(COMPONENT_COLOURS.iter().cycle()))
        {
            let width = (WIDTH - 2.0) * *part as f64 / all.max(1) as f64;
            let title = format!("{}: {}", line_safe(side), share(*part, all));
            drawing.rect((x, y + 18.0), (width, 16.0), *fill, title);
            x += width;
        }
    }
    for (index, (side, fill)) in components.iter().zip(COMPONENT_COLOURS.iter().cycle()).enumerate()
    {
        let y = row * rows.len() as f64 + 18.0 * index as f64 + 4.0;
        drawing.rect((0.0, y), (11.0, 11.0), *fill, "");
        let shares = rows.iter().map(|(_, parts)| share(parts[index], parts.iter().sum()));
        let said = format!("{} · {}", line_safe(side), shares.collect::<Vec<_>>().join(" / "));
        drawing.text((17.0, y + 10.0), "start", said);
    }
    drawing
}

/// Draws the kept share of each row, and the overall share as a dashed line. Names have their own line, because they
/// may be wider than the chart.
pub(super) fn shares(label: &str, rows: &[(String, [u64; 2])], overall: f64) -> Drawing {
    let row = 50.0;
    let most = rows.iter().map(|(_, [all, kept])| *kept as f64 / (*all).max(1) as f64);
    let scale = (WIDTH - 2.0) / most.fold(overall, f64::max).max(1e-9);
    let height = row * rows.len() as f64 + 20.0;
    let mut drawing = drawing(height, label);
    for (index, (name, [all, kept])) in rows.iter().enumerate() {
        let y = row * index as f64;
        let said = format!("{} of {} · {}", count(*kept), count(*all), share(*kept, *all));
        drawing.text((0.0, y + 13.0), "start", line_safe(name));
        drawing.text((0.0, y + 27.0), "start", said);
        let width = scale * *kept as f64 / (*all).max(1) as f64;
        drawing.rect((0.0, y + 32.0), (width, 12.0), colour::BLUE, "");
    }
    let x = scale * overall;
    drawing.dashed((x, 16.0), (x, height - 18.0), colour::VERMILLION);
    let all = format!("overall {:.1} %", 100.0 * overall);
    drawing.text_on((x, height - 5.0), anchor(x), colour::VERMILLION, all);
    drawing
}

/// Draws two lists of equal length side by side, kept in blue and the others in grey; `name` labels their indices.
pub(super) fn pairs(
    label: &str,
    [kept, others]: [&[f64]; 2],
    name: impl Fn(usize) -> String,
) -> Drawing {
    let (top, tall) = (14.0, 96.0);
    let bottom = top + tall;
    let mut drawing = drawing(bottom + 18.0, label);
    let bins = kept.len().max(others.len()).max(1);
    let most =
        kept.iter().chain(others).copied().filter(|value| value.is_finite()).fold(0.0, f64::max);
    let width = (WIDTH - 2.0) / bins as f64;
    let height = |value: Option<&f64>| {
        let value = value.copied().filter(|value| *value > 0.0 && most > 0.0).unwrap_or(0.0);
        tall * value / most
    };
    for (side, (list, fill)) in [(kept, COLOURS[0]), (others, COLOURS[1])].into_iter().enumerate() {
        let heights: Vec<(f64, f64)> = (0..bins * 2)
            .map(
                |half| {
                    if half % 2 == side { (0.0, height(list.get(half / 2))) } else { (0.0, 0.0) }
                },
            )
            .collect();
        let title = ["kept", "not kept"][side];
        drawing.steps((1.0, bottom), width / 2.0, &heights, fill, title);
    }
    drawing.line((0.0, bottom), (WIDTH, bottom), colour::GREY);
    drawing.text((0.0, 10.0), "start", format!("highest {}", number(most)));
    let every = bins.div_ceil(10);
    for bin in (0..bins).step_by(every) {
        let x = 1.0 + width * (bin as f64 + 0.5);
        drawing.text((x, bottom + 14.0), "middle", name(bin));
    }
    drawing
}

/// Draws the memory of a device over time: used by other programs, held by the run, and reserved.
pub(super) fn memory(device: &str, polls: &[DevicePoll]) -> Drawing {
    let (top, tall) = (34.0, 90.0);
    let bottom = top + tall;
    let mut drawing = drawing(bottom + 20.0, &format!("memory of {device}"));
    let most =
        polls.iter().flat_map(|poll| [poll.held_bytes, poll.reserved_bytes, poll.others_bytes]);
    let most = most.max().unwrap_or(0).max(1);
    let point = |index: usize, value: u64| {
        let x = (WIDTH - 2.0) * index as f64 / (polls.len().max(2) - 1) as f64;
        (1.0 + x, bottom - tall * value as f64 / most as f64)
    };
    let series =
        [("held", colour::BLUE), ("reserved", colour::GREEN), ("other programs", colour::ORANGE)];
    let bytes_of = |poll: &DevicePoll| [poll.held_bytes, poll.reserved_bytes, poll.others_bytes];
    let mut x = 0.0;
    for (series_index, (name, stroke)) in series.into_iter().enumerate() {
        let points: Vec<(f64, f64)> = polls
            .iter()
            .enumerate()
            .map(|(index, poll)| point(index, bytes_of(poll)[series_index]))
            .collect();
        drawing.polyline(&points, stroke, name);
        drawing.rect((x, 2.0), (10.0, 10.0), stroke, "");
        drawing.text((x + 14.0, 11.0), "start", name);
        x += 80.0;
    }
    drawing.text((0.0, 27.0), "start", format!("peak {}", bytes(most)));
    drawing.line((0.0, bottom), (WIDTH, bottom), colour::GREY);
    let time = |poll: Option<&DevicePoll>| poll.map_or(String::new(), |poll| line_safe(&poll.time));
    drawing.text((0.0, bottom + 15.0), "start", time(polls.first()));
    if polls.len() > 1 {
        drawing.text((WIDTH, bottom + 15.0), "end", time(polls.last()));
    }
    drawing
}

#[cfg(test)]
mod tests {
    use askama::Template;

    use super::*;

    #[test]
    fn values_and_ticks_are_short() {
        assert_eq!(
            ["0", "0.25", "12.35", "1.00e-9", "100000"].map(str::to_owned),
            [0.0, 0.25, 12.3456, 1e-9, 1e5].map(number)
        );
        assert_eq!(ticks(0.0, 1.0), [0.0, 0.2, 0.4, 3.0 * 0.2, 0.8, 1.0]);
        assert_eq!(ticks(1.0, 1.0), [1.0]);
        assert!(ticks(-3e300, 4e300).len() <= 8 && ticks(f64::MIN, f64::MAX) == [f64::MIN]);
    }

    #[test]
    fn the_last_waterfall_step_is_the_remainder() {
        let step = |name: &str, number, fill| WaterfallStep { name: name.to_owned(), number, fill };
        let steps = [step("<b>", 3, colour::ORANGE), step("kept", 1, colour::BLUE)];
        let svg = waterfall("rows", 4, &steps).render().unwrap();
        assert!(svg.contains("3 · 75.0 %") && !svg.contains("<b>"), "{svg}");
        assert!(svg.contains(r#"<rect x="84.5" y="54" width="253.5""#), "{svg}");
        assert!(svg.contains(r#"<rect x="0" y="90" width="84.5""#), "{svg}");
    }

    #[test]
    fn shares_are_legible_with_long_names() {
        let rows = [("n".repeat(400), [200, 30])];
        let svg = shares("Kept", &rows, 0.1).render().unwrap();
        assert!(svg.contains(">30 of 200 · 15.0 %</text>"), "{svg}");
    }

    #[test]
    fn a_histogram_of_one_value_and_one_of_huge_values_are_drawn() {
        for (from, width) in [(0.0, 1e-300), (-1e300, 1e299), (0.3, 1e-18)] {
            let of = Histogram { from, width, counts: vec![vec![1, 2, 3]] };
            let svg = histogram("a", &of, &[(from, "threshold")]).render().unwrap();
            assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
        }
    }
}
