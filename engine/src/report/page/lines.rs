//! Charts of measurements: lines over a varied quantity, and bars for single values.

use super::drawing::{Drawing, colour};

/// Width of a chart in pixels, which fits on a phone screen.
pub(crate) const WIDTH: u32 = 340;
/// Pixels left of the lines, above them, of the lines, and below them.
const LEFT: f64 = 100.0;
const ABOVE: f64 = 8.0;
const TALL: f64 = 150.0;
const BELOW: f64 = 40.0;
/// Height of a line of names, and of a bar with its name.
const NAME: f64 = 18.0;
const BAR: f64 = 34.0;
/// Maximum number of ticks of an axis.
const MAX_TICKS: usize = 6;
/// Colours of lines, in order.
const COLOURS: [&str; 6] =
    [colour::BLUE, colour::VERMILLION, colour::GREEN, colour::ORANGE, colour::PURPLE, colour::GREY];

/// A line through points `(x, y)`.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Line {
    pub(crate) name: String,
    pub(crate) points: Vec<(f64, f64)>,
}

/// A line chart. The x axis is logarithmic; the y axis is linear from 0, or logarithmic, so that a power law is a
/// straight line.
pub(crate) struct Plot<'a> {
    /// Title, for screen readers.
    pub(crate) label: String,
    /// Label of the x axis.
    pub(crate) across: String,
    pub(crate) powers: bool,
    pub(crate) lines: Vec<Line>,
    /// Formats of y and x values.
    pub(crate) shown: &'a dyn Fn(f64) -> String,
    pub(crate) at: &'a dyn Fn(f64) -> String,
}

/// A linear or logarithmic axis.
struct Axis {
    from: f64,
    to: f64,
    powers: bool,
}

impl Axis {
    /// Returns the position of a value on the axis, from 0 to 1.
    fn share(&self, value: f64) -> f64 {
        let of = |value: f64| if self.powers { value.ln() } else { value };
        let (from, to) = (of(self.from), of(self.to));
        if to > from { (of(value) - from) / (to - from) } else { 0.5 }
    }

    /// Returns round values on the axis.
    fn ticks(&self) -> Vec<f64> {
        let inside = |value: &f64| (self.from..=self.to).contains(value);
        if self.powers {
            let decades = self.from.log10().floor() as i32..=self.to.log10().ceil() as i32;
            for digits in [&[1.0, 2.0, 5.0][..], &[1.0, 3.0], &[1.0]] {
                let all = decades
                    .clone()
                    .flat_map(|power| digits.iter().map(move |digit| digit * 10.0_f64.powi(power)));
                let ticks: Vec<f64> = all.filter(inside).collect();
                if (2..=MAX_TICKS).contains(&ticks.len()) {
                    return ticks;
                }
            }
            return vec![self.from, self.to];
        }
        let rough = (self.to - self.from) / (MAX_TICKS - 1) as f64;
        let decade = 10.0_f64.powf(rough.log10().floor());
        let step = [1.0, 2.0, 5.0, 10.0].map(|digit| digit * decade);
        let step = step.into_iter().find(|step| *step >= rough).unwrap_or(rough);
        (0..MAX_TICKS).map(|tick| self.from + step * tick as f64).filter(inside).collect()
    }
}

impl Plot<'_> {
    /// Renders the chart on its own.
    pub(crate) fn drawing(&self) -> Drawing {
        let mut drawing = Drawing::new(WIDTH, self.height() as u32, &self.label);
        self.draw(&mut drawing, (0.0, 0.0));
        drawing
    }

    /// Returns the height in pixels.
    pub(crate) fn height(&self) -> f64 {
        ABOVE + TALL + BELOW + NAME * self.lines.len() as f64
    }

    /// Draws the chart with this top left corner.
    pub(crate) fn draw(&self, drawing: &mut Drawing, (left, top): (f64, f64)) {
        let (x, y) = self.axes();
        let (wide, bottom) = (f64::from(WIDTH) - LEFT - 18.0, top + ABOVE + TALL);
        let across = |value: f64| left + LEFT + wide * x.share(value);
        let up = |value: f64| bottom - TALL * y.share(value);
        for tick in y.ticks() {
            drawing.line((left + LEFT - 4.0, up(tick)), (left + LEFT, up(tick)), colour::GREY);
            drawing.text((left + LEFT - 8.0, up(tick) + 4.0), "end", (self.shown)(tick));
        }
        let mut free = f64::NEG_INFINITY;
        for tick in self.x_values() {
            drawing.line((across(tick), bottom), (across(tick), bottom + 4.0), colour::GREY);
            let text = (self.at)(tick);
            let half = 3.6 * text.chars().count() as f64;
            if across(tick) - half > free {
                drawing.text((across(tick), bottom + 17.0), "middle", text);
                free = across(tick) + half;
            }
        }
        drawing.line((left + LEFT, bottom), (left + LEFT + wide, bottom), colour::GREY);
        drawing.line((left + LEFT, top + ABOVE), (left + LEFT, bottom), colour::GREY);
        drawing.text((left + LEFT + wide / 2.0, bottom + 33.0), "middle", &self.across);
        for (index, line) in self.lines.iter().enumerate() {
            let stroke = COLOURS[index % COLOURS.len()];
            let points: Vec<(f64, f64)> =
                line.points.iter().map(|(at, value)| (across(*at), up(*value))).collect();
            drawing.polyline(&points, stroke, &line.name);
            for ((at, value), point) in line.points.iter().zip(&points) {
                let said = format!("{}, {}: {}", line.name, (self.at)(*at), (self.shown)(*value));
                drawing.dot(*point, stroke, said);
            }
            let name = bottom + BELOW + NAME * index as f64;
            drawing.rect((left + 4.0, name), (10.0, 10.0), stroke, "");
            drawing.text((left + 20.0, name + 9.0), "start", &line.name);
        }
    }

    fn axes(&self) -> (Axis, Axis) {
        let range = |of: fn(&(f64, f64)) -> f64| {
            let values = self.lines.iter().flat_map(|line| &line.points).map(of);
            values.fold((f64::INFINITY, f64::NEG_INFINITY), |(least, most), value| {
                (least.min(value), most.max(value))
            })
        };
        let ((from, to), (least, most)) = (range(|point| point.0), range(|point| point.1));
        let x = Axis { from, to, powers: from > 0.0 };
        let y = if self.powers && least > 0.0 {
            Axis { from: least / 1.5, to: most * 1.5, powers: true }
        } else {
            Axis {
                from: least.min(0.0),
                to: if most > 0.0 { 1.1 * most } else { 1.0 },
                powers: false,
            }
        };
        (x, y)
    }

    /// Returns all x values, ascending.
    fn x_values(&self) -> Vec<f64> {
        let points = self.lines.iter().flat_map(|line| &line.points);
        let mut x_values: Vec<f64> = points.map(|point| point.0).collect();
        x_values.sort_by(f64::total_cmp);
        x_values.dedup();
        x_values
    }
}

/// Draws a bar from 0 for each value, with its name above it.
pub(crate) fn bars(label: &str, bars: &[(String, f64)], shown: &dyn Fn(f64) -> String) -> Drawing {
    let mut drawing = Drawing::new(WIDTH, (BAR * bars.len() as f64) as u32 + 4, label);
    let most = bars.iter().map(|bar| bar.1).fold(0.0, f64::max);
    for (index, (name, value)) in bars.iter().enumerate() {
        let top = BAR * index as f64;
        let width = f64::from(WIDTH - 100) * value.max(0.0) / if most > 0.0 { most } else { 1.0 };
        drawing.text((0.0, top + 12.0), "start", name);
        drawing.rect((0.0, top + 16.0), (width.max(1.0), 12.0), colour::BLUE, name);
        drawing.text((width + 8.0, top + 26.0), "start", shown(*value));
    }
    drawing
}

#[cfg(test)]
mod tests {
    use askama::Template;

    use super::*;

    fn plot(powers: bool, points: &[(f64, f64)]) -> Plot<'static> {
        let lines = vec![Line { name: "<a>".to_owned(), points: points.to_vec() }];
        let (label, across) = ("label".to_owned(), "tokens".to_owned());
        Plot { label, across, powers, lines, shown: &|v| format!("{v}"), at: &|v| format!("{v}") }
    }

    #[test]
    fn a_power_law_is_a_straight_line_on_scales_of_powers() {
        let points: Vec<(f64, f64)> = (0..6).map(|n| 2.0_f64.powi(n)).map(|n| (n, n * n)).collect();
        let plot = plot(true, &points);
        let (x, y) = plot.axes();
        let x_values: Vec<(f64, f64)> =
            points.iter().map(|(at, value)| (x.share(*at), y.share(*value))).collect();
        let slope = |a: (f64, f64), b: (f64, f64)| (b.1 - a.1) / (b.0 - a.0);
        for pair in x_values.windows(2) {
            assert!((slope(pair[0], pair[1]) - slope(x_values[0], x_values[5])).abs() < 1e-9);
        }
        assert!(x_values.iter().all(|point| (0.0..=1.0).contains(&point.1)));
    }

    #[test]
    fn ticks_are_few_and_round() {
        for (from, to) in [(1.2, 9.0), (0.013, 8.0e7), (4e8, 5e8), (3.0, 3.0)] {
            let ticks = Axis { from, to, powers: true }.ticks();
            assert!((1..=2 * MAX_TICKS).contains(&ticks.len()), "{from} {to}: {ticks:?}");
        }
        let ticks = Axis { from: 0.0, to: 1100.0, powers: false }.ticks();
        assert_eq!(ticks, [0.0, 500.0, 1000.0]);
    }

    #[test]
    fn single_points_zero_values_and_unsafe_names_are_drawn() {
        let svg = plot(false, &[(4.0, 0.0)]).drawing().render().unwrap();
        assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
        assert!(svg.contains("&#60;a&#62;, 4: 0") && !svg.contains("<a>"), "{svg}");
        let svg =
            bars("label", &[("none".to_owned(), 0.0)], &|v| format!("{v} s")).render().unwrap();
        assert!(svg.contains("0 s") && !svg.contains("NaN"), "{svg}");
    }
}
