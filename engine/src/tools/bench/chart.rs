//! The figures as an SVG: a panel per group, both axes logarithmic, so that a power law is a line.

use std::collections::BTreeMap;

use plotters::prelude::*;

use super::figures::{Figure, shown};
use crate::tools::bench::Bench;

const PANEL: (u32, u32) = (560, 360);
const COLUMNS: u32 = 2;

/// A panel: figures of one group in one unit.
type Panel<'a> = Vec<&'a Figure>;

/// Draws every group that has more than one point on a line.
///
/// # Errors
/// The drawing library's reason.
pub fn draw(bench: &Bench) -> Result<String, String> {
    let panels = panels(bench);
    let rows = (panels.len() as u32).div_ceil(COLUMNS).max(1);
    let mut svg = String::new();
    {
        let size = (PANEL.0 * COLUMNS, PANEL.1 * rows);
        let area = SVGBackend::with_string(&mut svg, size).into_drawing_area();
        area.fill(&WHITE).map_err(|error| error.to_string())?;
        let cells = area.split_evenly((rows as usize, COLUMNS as usize));
        for (panel, cell) in panels.iter().zip(&cells) {
            draw_panel(panel, cell).map_err(|error| error.to_string())?;
        }
        area.present().map_err(|error| error.to_string())?;
    }
    Ok(svg)
}

fn panels(bench: &Bench) -> Vec<Panel<'_>> {
    let mut panels: Vec<Panel<'_>> = Vec::new();
    for figure in &bench.figures {
        let fits =
            |panel: &&mut Panel<'_>| panel[0].group == figure.group && panel[0].unit == figure.unit;
        match panels.iter_mut().find(fits) {
            Some(panel) => panel.push(figure),
            None => panels.push(vec![figure]),
        }
    }
    panels.retain(|panel| lines(panel).values().any(|line| line.len() > 1));
    panels
}

fn lines<'a>(panel: &[&'a Figure]) -> BTreeMap<&'a str, Vec<(f64, f64)>> {
    let mut lines: BTreeMap<&str, Vec<(f64, f64)>> = BTreeMap::new();
    for figure in panel {
        lines.entry(&figure.series).or_default().push((figure.at, figure.value));
    }
    lines
}

fn draw_panel(
    panel: &[&Figure],
    cell: &DrawingArea<SVGBackend<'_>, plotters::coord::Shift>,
) -> Result<(), Box<dyn std::error::Error>> {
    let (group, unit, at_unit) = (panel[0].group, panel[0].unit, panel[0].at_unit);
    let range = |values: &dyn Fn(&Figure) -> f64| {
        let (least, most) = panel
            .iter()
            .map(|figure| values(figure))
            .fold((f64::INFINITY, 0.0_f64), |(least, most), value| {
                (least.min(value), most.max(value))
            });
        least / 1.5..most * 1.5
    };
    let mut chart = ChartBuilder::on(cell)
        .caption(format!("{group}, {unit}"), ("sans-serif", 18))
        .margin(12)
        .x_label_area_size(36)
        .y_label_area_size(84)
        .build_cartesian_2d(
            range(&|figure| figure.at).log_scale(),
            range(&|figure| figure.value).log_scale(),
        )?;
    chart
        .configure_mesh()
        .x_desc(at_unit)
        .y_label_formatter(&|value| shown(*value, unit))
        .x_label_formatter(&|value| crate::base::text::count(*value as u64))
        .draw()?;
    for (index, (series, points)) in lines(panel).into_iter().enumerate() {
        let color = Palette99::pick(index).to_rgba();
        chart
            .draw_series(
                LineSeries::new(points.iter().copied(), color.stroke_width(2)).point_size(3),
            )?
            .label(series)
            .legend(move |(x, y)| PathElement::new(vec![(x, y), (x + 16, y)], color));
    }
    chart
        .configure_series_labels()
        .background_style(WHITE.mix(0.8))
        .border_style(BLACK.mix(0.3))
        .draw()?;
    Ok(())
}
