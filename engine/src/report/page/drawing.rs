//! SVG drawings that use attributes only, so that they remain legible where a policy forbids styles.
//!
//! Rendered by a template instead of a drawing library: bars have tooltips, and text follows the colour of the page in
//! light and dark mode.

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
    /// Colour of the page's text.
    pub(crate) const TEXT: &str = "currentColor";
}

/// A drawing: its size in pixels, a description for screen readers, and its shapes, the last on top.
#[derive(Clone, Debug, PartialEq, Template)]
#[template(path = "drawing.svg", escape = "html")]
pub(crate) struct Drawing {
    pub(crate) width: u32,
    pub(crate) height: u32,
    pub(crate) label: String,
    pub(crate) shapes: Vec<Shape>,
}

/// A shape; coordinates are pixels from the top left.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Shape {
    /// A bar or a cell; `title` is its tooltip.
    Rect { x: f64, y: f64, width: f64, height: f64, fill: String, title: String },
    /// An area, or a line if `stroke` is not empty; `d` is an SVG path.
    Path { d: String, fill: &'static str, stroke: &'static str, title: String },
    /// A line segment.
    Line { from: (f64, f64), to: (f64, f64), stroke: &'static str, width: f64, dashed: bool },
    /// A filled circle; `title` is its tooltip.
    Dot { x: f64, y: f64, radius: f64, fill: &'static str, title: String },
    /// A line of text; `y` is its baseline.
    Text {
        x: f64,
        y: f64,
        anchor: &'static str,
        fill: &'static str,
        size: u32,
        bold: bool,
        text: String,
    },
}

/// Filters of the templates.
mod filters {
    #![expect(
        clippy::trivially_copy_pass_by_ref,
        clippy::unnecessary_wraps,
        reason = "what a template calls"
    )]

    /// Formats a length with one decimal, without a trailing `.0`.
    pub(super) fn px(length: &f64, _: &dyn askama::Values) -> askama::Result<String> {
        let text = format!("{length:.1}");
        Ok(text.strip_suffix(".0").map_or(text.clone(), str::to_owned))
    }
}

impl Drawing {
    pub(crate) fn new(width: u32, height: u32, label: impl Into<String>) -> Self {
        Self { width, height, label: label.into(), shapes: Vec::new() }
    }

    pub(crate) fn rect(
        &mut self,
        (x, y): (f64, f64),
        (width, height): (f64, f64),
        fill: impl Into<String>,
        title: impl Into<String>,
    ) {
        let (fill, title) = (fill.into(), title.into());
        self.shapes.push(Shape::Rect { x, y, width, height, fill, title });
    }

    /// Adds bars of equal width from `x`; `heights` are the lower and upper end of each above `bottom`.
    pub(crate) fn steps(
        &mut self,
        (x, bottom): (f64, f64),
        width: f64,
        heights: &[(f64, f64)],
        fill: &'static str,
        title: impl Into<String>,
    ) {
        let mut d = String::new();
        for (step, (from, to)) in heights.iter().enumerate().filter(|(_, (from, to))| to > from) {
            let (left, top) = (x + width * step as f64, bottom - to);
            let _ = write!(
                d,
                "M{left:.1} {top:.1}h{:.1}v{:.1}h-{:.1}z",
                width - 0.6,
                to - from,
                width - 0.6
            );
        }
        if !d.is_empty() {
            self.shapes.push(Shape::Path { d, fill, stroke: "none", title: title.into() });
        }
    }

    /// Adds a line through points.
    pub(crate) fn polyline(
        &mut self,
        points: &[(f64, f64)],
        stroke: &'static str,
        title: impl Into<String>,
    ) {
        let mut d = String::new();
        for (index, (x, y)) in points.iter().enumerate() {
            let _ = write!(d, "{}{x:.1} {y:.1}", if index == 0 { 'M' } else { 'L' });
        }
        self.shapes.push(Shape::Path { d, fill: "none", stroke, title: title.into() });
    }

    pub(crate) fn line(&mut self, from: (f64, f64), to: (f64, f64), stroke: &'static str) {
        self.shapes.push(Shape::Line { from, to, stroke, width: 1.5, dashed: false });
    }

    pub(crate) fn dashed(&mut self, from: (f64, f64), to: (f64, f64), stroke: &'static str) {
        self.shapes.push(Shape::Line { from, to, stroke, width: 1.5, dashed: true });
    }

    pub(crate) fn dot(&mut self, (x, y): (f64, f64), fill: &'static str, title: impl Into<String>) {
        self.shapes.push(Shape::Dot { x, y, radius: 4.0, fill, title: title.into() });
    }

    /// Adds text that is aligned to `x` by `anchor`: `start`, `middle` or `end`.
    pub(crate) fn text(
        &mut self,
        (x, y): (f64, f64),
        anchor: &'static str,
        text: impl Into<String>,
    ) {
        let (fill, text) = (colour::TEXT, text.into());
        self.shapes.push(Shape::Text { x, y, anchor, fill, size: 12, bold: false, text });
    }

    /// Adds text in a given colour.
    pub(crate) fn text_on(
        &mut self,
        (x, y): (f64, f64),
        anchor: &'static str,
        fill: &'static str,
        text: impl Into<String>,
    ) {
        let text = text.into();
        self.shapes.push(Shape::Text { x, y, anchor, fill, size: 12, bold: false, text });
    }
}
