//! Charts of statistics: intervals and grids of cells.

use super::drawing::{Drawing, colour};

/// Height of a row in pixels.
const ROW: f64 = 24.0;
/// Approximate width of a character in pixels.
const LETTER: f64 = 6.6;

/// A statistic from 0 to 1 with its 95 % bootstrap interval.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Interval {
    pub(crate) value: f64,
    pub(crate) from_to: Option<[f64; 2]>,
}

/// One row of [`intervals`]: its name, and a statistic for each series.
pub(crate) struct IntervalRow {
    pub(crate) name: String,
    pub(crate) figures: Vec<Option<Interval>>,
}

/// Draws statistics from 0 to 1 with their intervals, one row each. `series` labels the colours; a dashed line marks
/// `chance`.
pub(crate) fn intervals(
    label: &str,
    series: &[&str],
    rows: &[IntervalRow],
    chance: f64,
) -> Drawing {
    const COLOURS: [&str; 4] = [colour::BLUE, colour::GREEN, colour::ORANGE, colour::PURPLE];
    let left = names_width(rows.iter().map(|row| row.name.as_str()));
    let (scale, top) = (420.0, 26.0);
    let each = ROW.max(13.0 * series.len() as f64);
    let height = top + each * rows.len() as f64 + 26.0;
    let width = left + scale + 40.0;
    let mut drawing = Drawing::new(width as u32, height as u32, label);
    let x = |value: f64| left + scale * value.clamp(0.0, 1.0);
    let mut key = left;
    for (name, colour) in series.iter().zip(COLOURS) {
        drawing.rect((key, 4.0), (10.0, 10.0), colour, "");
        drawing.text((key + 15.0, 13.0), "start", *name);
        key += 30.0 + LETTER * name.chars().count() as f64;
    }
    let bottom = height - 22.0;
    for tick in [0.0, 0.25, 0.5, 0.75, 1.0] {
        drawing.line((x(tick), bottom), (x(tick), bottom + 4.0), colour::GREY);
        drawing.text((x(tick), bottom + 17.0), "middle", format!("{tick}"));
    }
    drawing.line((x(0.0), bottom), (x(1.0), bottom), colour::GREY);
    drawing.dashed((x(chance), top - 4.0), (x(chance), bottom), colour::VERMILLION);
    for (index, row) in rows.iter().enumerate() {
        let middle = top + each * (index as f64 + 0.5);
        drawing.text((left - 10.0, middle + 4.0), "end", &row.name);
        let step = each / (series.len() as f64 + 1.0);
        for (index, (figure, colour)) in row.figures.iter().zip(COLOURS).enumerate() {
            let Some(figure) = figure else { continue };
            let y = middle - each / 2.0 + step * (index as f64 + 1.0);
            let title = shown(&row.name, series.get(index).copied().unwrap_or_default(), figure);
            if let Some([low, high]) = figure.from_to {
                drawing.line((x(low), y), (x(high), y), colour);
            }
            drawing.dot((x(figure.value), y), colour, title);
        }
    }
    drawing
}

fn shown(row: &str, series: &str, figure: &Interval) -> String {
    let interval =
        figure.from_to.map_or_else(String::new, |[low, high]| format!(", {low:.3} to {high:.3}"));
    format!("{row}, {series}: {:.3}{interval}", figure.value)
}

/// Draws a grid of values between `low` and `high` on a diverging scale: blue above the middle, orange below.
pub(crate) fn grid(
    label: &str,
    columns: &[String],
    rows: &[(String, Vec<Option<f64>>)],
    (low, high): (f64, f64),
) -> Drawing {
    let left = names_width(rows.iter().map(|(name, _)| name.as_str()));
    let cell =
        columns.iter().map(|name| LETTER * name.chars().count() as f64 + 8.0).fold(46.0, f64::max);
    let top = 24.0;
    let width = left + cell * columns.len() as f64 + 4.0;
    let height = top + ROW * rows.len() as f64 + 4.0;
    let mut drawing = Drawing::new(width as u32, height as u32, label);
    for (index, name) in columns.iter().enumerate() {
        drawing.text((left + cell * (index as f64 + 0.5), top - 8.0), "middle", name);
    }
    for (row, (name, cells)) in rows.iter().enumerate() {
        let y = top + ROW * row as f64;
        drawing.text((left - 10.0, y + 16.0), "end", name);
        for (index, value) in cells.iter().enumerate() {
            let x = left + cell * index as f64;
            let Some(value) = value else {
                drawing.text((x + cell / 2.0, y + 16.0), "middle", "–");
                continue;
            };
            let (fill, dark) = diverging((value - low) / (high - low));
            let title = format!("{name}, {}: {value:.3}", columns[index]);
            drawing.rect((x + 1.0, y + 1.0), (cell - 2.0, ROW - 2.0), fill, title);
            let text = if dark { "#ffffff" } else { "#1f2328" };
            drawing.text_on((x + cell / 2.0, y + 16.0), "middle", text, format!("{value:.2}"));
        }
    }
    drawing
}

/// Returns the colour of a share (orange at 0, light grey at ½, blue at 1), and whether light text is legible on it.
fn diverging(share: f64) -> (String, bool) {
    const ENDS: [(f64, f64, f64); 3] =
        [(230.0, 159.0, 0.0), (238.0, 240.0, 243.0), (0.0, 114.0, 178.0)];
    let share = share.clamp(0.0, 1.0);
    let (from, to, part) = if share < 0.5 {
        (ENDS[0], ENDS[1], 2.0 * share)
    } else {
        (ENDS[1], ENDS[2], 2.0 * share - 1.0)
    };
    let mix = |a: f64, b: f64| (a + (b - a) * part).round() as u8;
    let colour = (mix(from.0, to.0), mix(from.1, to.1), mix(from.2, to.2));
    (format!("#{:02x}{:02x}{:02x}", colour.0, colour.1, colour.2), share > 0.8)
}

/// Returns the width of the longest name.
fn names_width<'a>(names: impl Iterator<Item = &'a str>) -> f64 {
    names.map(|name| LETTER * name.chars().count() as f64).fold(40.0, f64::max) + 18.0
}

#[cfg(test)]
mod tests {
    use askama::Template;

    use super::*;

    #[test]
    fn names_are_escaped_and_lengths_are_short() {
        let rows = [IntervalRow {
            name: "<script>&\"".to_owned(),
            figures: vec![Some(Interval { value: 0.25, from_to: Some([0.2, 0.31]) })],
        }];
        let svg = intervals("label", &["a"], &rows, 0.5).render().unwrap();
        assert!(!svg.contains("<script>"), "{svg}");
        assert!(svg.contains("&#60;script&#62;&#38;&#34;"), "{svg}");
        assert!(!svg.contains(".0\""), "{svg}");
    }

    #[test]
    fn cells_are_blue_above_the_middle_and_orange_below() {
        assert_eq!(diverging(0.0).0, "#e69f00");
        assert_eq!(diverging(0.5).0, "#eef0f3");
        assert_eq!(diverging(1.0), ("#0072b2".to_owned(), true));
        assert_eq!(diverging(-3.0), diverging(0.0));
    }

    #[test]
    fn missing_values_leave_empty_cells() {
        let rows = [("a".to_owned(), vec![None, Some(1.0)])];
        let svg = grid("label", &["x".into(), "y".into()], &rows, (0.0, 1.0)).render().unwrap();
        assert_eq!(svg.matches("<rect").count(), 1);
        assert_eq!(svg.matches('–').count(), 1);
    }
}
