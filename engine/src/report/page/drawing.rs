//! Shapes that stretch to the width of their container, as SVG with attributes only, so that they remain legible where a
//! content security policy forbids styles. Tooltips are titles, and text follows the colour of the page in light and dark mode.

use std::fmt::Write;

use askama::Template;

/// Colour-blind safe palette (Okabe and Ito, 2008), legible in light and dark mode.
pub(crate) mod colour {
    pub(crate) const BLUE: &str = "#0072B2";
    pub(crate) const GREEN: &str = "#009E73";
    pub(crate) const ORANGE: &str = "#E69F00";
    pub(crate) const VERMILLION: &str = "#D55E00";
    pub(crate) const PURPLE: &str = "#CC79A7";
    pub(crate) const GREY: &str = "#98A2B3";
    pub(crate) const SERIES: [&str; 8] =
        [BLUE, ORANGE, GREEN, PURPLE, "#56B4E9", VERMILLION, "#F0E442", GREY];
    pub(crate) const PALE: &str = "#C3CAD5";
}

/// Shapes, the last on top. Horizontal positions are fractions of the width, vertical ones pixels from the top.
#[derive(Clone, Debug, PartialEq, Template)]
#[template(path = "layer.svg", escape = "html")]
pub(crate) struct Drawing {
    pub(crate) height: u32,
    shapes: Vec<Shape>,
}

/// A shape with formatted lengths; `x` counts thousandths of the width.
#[derive(Clone, Debug, PartialEq)]
enum Shape {
    Rect { x: String, y: String, width: String, height: String, fill: String, title: String },
    Area { d: String, fill: String, title: String },
    Line { d: String, stroke: &'static str, width: &'static str, dashed: bool, title: String },
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Swatch {
    pub(crate) name: String,
    pub(crate) fill: String,
    /// Whether it is the colour of a dashed line.
    pub(crate) dashed: bool,
}

impl Swatch {
    pub(crate) fn new(name: impl Into<String>, fill: impl Into<String>) -> Self {
        Self { name: name.into(), fill: fill.into(), dashed: false }
    }

    pub(crate) fn dashed(name: impl Into<String>) -> Self {
        Self { name: name.into(), fill: colour::VERMILLION.to_owned(), dashed: true }
    }
}

/// Formats a length with one decimal, without a trailing `.0`.
pub(super) fn px(length: f64) -> String {
    let text = format!("{length:.1}");
    text.strip_suffix(".0").map_or(text.clone(), str::to_owned)
}

/// Width of a drawing in its own units.
const UNITS: f64 = 1000.0;
/// Minimum width of a visible amount in these units.
const MIN_WIDTH: f64 = 2.0;

impl Drawing {
    pub(crate) fn new(height: u32) -> Self {
        Self { height, shapes: Vec::new() }
    }

    /// Adds a bar. An empty range is left out; a short one is drawn wide enough to be seen.
    pub(crate) fn bar(
        &mut self,
        (from, to): (f64, f64),
        (y, height): (f64, f64),
        fill: &str,
        title: impl Into<String>,
    ) {
        if to > from {
            let width = (UNITS * (to - from)).max(MIN_WIDTH);
            let x = (UNITS * from).min(UNITS - width).max(0.0);
            let [x, y, width, height] = [x, y, width, height].map(px);
            let (fill, title) = (fill.to_owned(), title.into());
            self.shapes.push(Shape::Rect { x, y, width, height, fill, title });
        }
    }

    /// Adds columns of equal width; `heights` are the lower and upper end of each in pixels above the bottom.
    pub(crate) fn columns(&mut self, heights: &[(f64, f64)], fill: &str, title: impl Into<String>) {
        let (each, bottom) = (UNITS / heights.len().max(1) as f64, f64::from(self.height));
        let gap = (each * 0.2).min(3.0);
        let mut d = String::new();
        for (index, (from, to)) in heights.iter().enumerate().filter(|(_, (from, to))| to > from) {
            let (left, top) = (each * index as f64, bottom - to);
            let (width, tall) = (each - gap, to - from);
            let _ = write!(d, "M{left:.1} {top:.1}h{width:.1}v{tall:.1}h-{width:.1}z");
        }
        if !d.is_empty() {
            self.shapes.push(Shape::Area { d, fill: fill.to_owned(), title: title.into() });
        }
    }

    pub(crate) fn line(&mut self, points: &[(f64, f64)], stroke: &'static str, title: String) {
        let mut d = String::new();
        for (index, (x, y)) in points.iter().enumerate() {
            let command = if index == 0 { 'M' } else { 'L' };
            let _ = write!(d, "{command}{:.1} {y:.1}", UNITS * x);
        }
        self.stroke(d, stroke, "1.5", title);
    }

    /// Adds a dot, which keeps its shape when the drawing is stretched.
    pub(crate) fn dot(&mut self, (x, y): (f64, f64), stroke: &'static str, title: String) {
        self.stroke(format!("M{:.1} {y:.1}h0", UNITS * x), stroke, "7", title);
    }

    /// Adds an arc between two points of the bottom; its height is proportional to its width.
    pub(crate) fn arc(&mut self, from: f64, to: f64, stroke: &'static str, title: String) {
        let bottom = f64::from(self.height);
        // The highest point of the curve is half as far away as its control point.
        let top = bottom - 2.0 * (bottom - 4.0) * (to - from).abs();
        let middle = UNITS * f64::midpoint(from, to);
        let (from, to) = (UNITS * from, UNITS * to);
        let d = format!("M{from:.1} {bottom}Q{middle:.1} {top:.1} {to:.1} {bottom}");
        self.stroke(d, stroke, "1.2", title);
    }

    /// Adds a dashed line from top to bottom.
    pub(crate) fn mark(&mut self, x: f64) {
        let d = format!("M{:.1} 0v{}", UNITS * x, self.height);
        let (stroke, title) = (colour::VERMILLION, String::new());
        self.shapes.push(Shape::Line { d, stroke, width: "1.5", dashed: true, title });
    }

    fn stroke(&mut self, d: String, stroke: &'static str, width: &'static str, title: String) {
        self.shapes.push(Shape::Line { d, stroke, width, dashed: false, title });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_are_visible_and_titles_are_escaped() {
        let mut layer = Drawing::new(10);
        layer.bar((0.0, 0.0), (0.0, 10.0), colour::BLUE, "nothing");
        layer.bar((1.0, 1.000_1), (0.0, 10.0), colour::BLUE, "<b>\"");
        let svg = layer.render().unwrap();
        assert_eq!(svg.matches("<rect").count(), 1);
        assert!(svg.contains("x=\"998\" y=\"0\" width=\"2\"") && !svg.contains("<b>"), "{svg}");
    }
}
