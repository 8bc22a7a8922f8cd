//! Square heat maps of attention, with numbers in the cells if they fit.

use super::drawing::{Drawing, colour};

/// Maximum number of rows for which cells show numbers.
const MAX_NUMBERED_ROWS: usize = 16;
/// Width in pixels of a map without numbers.
const SIDE: f64 = 560.0;
/// Approximate width of a character in pixels.
const LETTER: f64 = 6.6;
/// Light grey that is visible in light and dark mode, and the blue and the orange of the palette.
const LIGHT: [f64; 3] = [238.0, 240.0, 243.0];
const BLUE: [f64; 3] = [0.0, 114.0, 178.0];
const DARK_BLUE: [f64; 3] = [0.0, 46.0, 84.0];
const ORANGE: [f64; 3] = [230.0, 159.0, 0.0];
/// Lift with the strongest colour; its reciprocal has the strongest colour below 1.
const MAX_LIFT: f64 = 8.0;

/// Meaning of colours.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum ColourScale {
    /// From 0 to the largest share. The colour follows the square root, so that small shares are distinguishable.
    Shares { most: f64 },
    /// Lift over even attention: orange below 1, blue above, logarithmic up to a factor of eight.
    Lift,
}

impl ColourScale {
    /// Returns the scale of these shares.
    pub(crate) fn shares(shares: impl Iterator<Item = f64>) -> Self {
        Self::Shares { most: shares.fold(0.0, f64::max) }
    }

    /// Returns the colour of a value.
    pub(crate) fn rgb(self, value: f64) -> [u8; 3] {
        let mix = |from: [f64; 3], to: [f64; 3], part: f64| {
            [0, 1, 2].map(|index| (from[index] + (to[index] - from[index]) * part).round() as u8)
        };
        match self {
            Self::Shares { most } => {
                let part = (value / most.max(f64::MIN_POSITIVE)).clamp(0.0, 1.0).sqrt();
                if part < 0.6 {
                    mix(LIGHT, BLUE, part / 0.6)
                } else {
                    mix(BLUE, DARK_BLUE, (part - 0.6) / 0.4)
                }
            }
            Self::Lift => {
                let part = (value.log2() / MAX_LIFT.log2()).clamp(-1.0, 1.0);
                mix(LIGHT, if part < 0.0 { ORANGE } else { BLUE }, part.abs())
            }
        }
    }

    /// Returns the values in the legend.
    fn ticks(self) -> Vec<f64> {
        match self {
            Self::Shares { most } => {
                [0.0, 0.0625, 0.25, 0.5625, 1.0].map(|part| part * most).to_vec()
            }
            Self::Lift => vec![0.125, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0],
        }
    }

    fn shown(self, value: f64) -> String {
        match self {
            Self::Shares { .. } if value > 0.0 && value < 0.001 => format!("{value:.0e}"),
            Self::Shares { .. } => format!("{value:.3}"),
            Self::Lift if value >= 10.0 => format!("{value:.0}"),
            Self::Lift => format!("{value:.2}"),
        }
    }
}

/// Draws a square map with row names and short column names. Missing cells are left out.
pub(crate) fn heat_map(
    label: &str,
    rows: &[String],
    columns: &[String],
    cells: &[Vec<Option<f64>>],
    scale: ColourScale,
) -> Drawing {
    let number = rows.len();
    let longest = rows.iter().map(|name| name.chars().count()).max().unwrap_or(0);
    let left = 18.0 + LETTER * longest.max(4) as f64;
    let numbered = number <= MAX_NUMBERED_ROWS;
    let (across, down) = if numbered {
        (48.0, 24.0)
    } else {
        let side = (SIDE / number as f64).floor().max(6.0);
        (side, side)
    };
    let (top, key) = (58.0, 46.0);
    let ticks = scale.ticks();
    let width = (left + across * number as f64 + 6.0).max(left + key * ticks.len() as f64 + 40.0);
    let mut drawing = Drawing::new(width as u32, (top + down * number as f64 + 6.0) as u32, label);
    for (index, value) in ticks.iter().enumerate() {
        let x = left + key * index as f64;
        drawing.rect((x, 2.0), (key, 10.0), hexadecimal(scale.rgb(*value)), "");
        drawing.text((x + key / 2.0, 26.0), "middle", scale.shown(*value));
    }
    // Names that would overlap are left out.
    let widest = columns.iter().map(|name| name.chars().count()).max().unwrap_or(1);
    let every_column = ((LETTER * widest as f64 + 6.0) / across).ceil() as usize;
    let every_row = (14.0 / down).ceil() as usize;
    for (column, name) in columns.iter().enumerate().step_by(every_column.max(1)) {
        drawing.text((left + across * (column as f64 + 0.5), top - 8.0), "middle", name);
    }
    for (row, (name, cells)) in rows.iter().zip(cells).enumerate() {
        let y = top + down * row as f64;
        if row.is_multiple_of(every_row.max(1)) {
            drawing.text((left - 10.0, y + down / 2.0 + 4.0), "end", name);
        }
        for (column, value) in cells.iter().enumerate() {
            let Some(value) = value else { continue };
            let x = left + across * column as f64;
            let rgb = scale.rgb(*value);
            let title = format!("{name} → {}: {}", rows[column], scale.shown(*value));
            let gap = if numbered { 1.0 } else { 0.5 };
            drawing.rect((x, y), (across - gap, down - gap), hexadecimal(rgb), title);
            if numbered {
                let position = (x + across / 2.0, y + 16.0);
                drawing.text_on(position, "middle", legible_on(rgb), scale.shown(*value));
            }
        }
    }
    if number == 0 {
        drawing.text_on((left, top), "start", colour::GREY, "nothing to show");
    }
    drawing
}

pub(crate) fn hexadecimal([red, green, blue]: [u8; 3]) -> String {
    format!("#{red:02x}{green:02x}{blue:02x}")
}

/// Returns white or nearly black, by the brightness of the background (ITU-R BT.601).
fn legible_on([red, green, blue]: [u8; 3]) -> &'static str {
    let bright = 0.299 * f64::from(red) + 0.587 * f64::from(green) + 0.114 * f64::from(blue);
    if bright < 140.0 { "#ffffff" } else { "#1f2328" }
}

#[cfg(test)]
mod tests {
    use askama::Template;

    use super::*;

    #[test]
    fn colours_follow_the_values_and_text_stays_legible() {
        let shares = ColourScale::shares([0.1, 0.4].into_iter());
        assert_eq!(shares, ColourScale::Shares { most: 0.4 });
        assert_eq!((shares.rgb(0.0), shares.rgb(0.4)), ([238, 240, 243], [0, 46, 84]));
        assert_eq!(
            (ColourScale::Lift.rgb(1.0), ColourScale::Lift.rgb(64.0)),
            ([238, 240, 243], [0, 114, 178])
        );
        assert_eq!(ColourScale::Lift.rgb(0.0), [230, 159, 0]);
        assert_eq!((legible_on([0, 46, 84]), legible_on([238, 240, 243])), ("#ffffff", "#1f2328"));
        assert_eq!(ColourScale::shares(std::iter::empty()).rgb(0.0), [238, 240, 243]);
    }

    #[test]
    fn small_maps_have_numbers_and_large_ones_titles() {
        let names = |number: usize| (0..number).map(|name| name.to_string()).collect::<Vec<_>>();
        let svg = |number: usize| {
            let mut cells = vec![vec![Some(0.25); number]; number];
            cells[0][1] = None;
            let drawing =
                heat_map("a map", &names(number), &names(number), &cells, ColourScale::Lift);
            drawing.render().unwrap()
        };
        assert_eq!(svg(3).matches(">0.25</text>").count(), 8 + 1);
        let large = svg(64);
        assert_eq!(large.matches("<title>").count(), 64 * 64 - 1);
        assert!(large.len() < 700_000, "{}", large.len());
        heat_map("none", &[], &[], &[], ColourScale::Lift);
    }
}
