//! Heat maps: tables of coloured cells, with numbers if they fit.

use std::iter;

use super::drawing::Swatch;
use super::numbers::{number, or_dash};

/// Maximum number of columns whose cells show numbers, on a wide screen and on a phone.
const MAX_NUMBERED_COLUMNS: usize = 16;
const MAX_NUMBERED_ON_A_PHONE: usize = 7;
/// Maximum number of names of the rows, or of the columns, of a map without numbers.
const MAX_NAMES: usize = 16;
/// Light grey that is visible in light and dark mode, and the blue and the orange of the palette.
const LIGHT: [f64; 3] = [238.0, 240.0, 243.0];
const BLUE: [f64; 3] = [0.0, 114.0, 178.0];
const DARK_BLUE: [f64; 3] = [0.0, 46.0, 84.0];
const ORANGE: [f64; 3] = [230.0, 159.0, 0.0];
/// Lift with the strongest colour; its reciprocal has the strongest colour below 1.
const MAX_LIFT: f64 = 8.0;

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum ColourScale {
    /// From 0 to the largest share. The colour follows the square root, so that small shares are distinguishable.
    Shares { largest: f64 },
    /// Lift over even attention: orange below 1, blue above, logarithmic up to a factor of eight.
    Lift,
    /// Orange at the low end, blue at the high end.
    Diverging { low: f64, high: f64 },
}

/// A heat map. Missing cells stay empty.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct HeatMap {
    /// Names of the rows and of the columns, above the first column.
    pub(crate) corner: String,
    pub(crate) columns: Vec<String>,
    pub(crate) rows: Vec<(String, Vec<Option<f64>>)>,
    pub(crate) scale: ColourScale,
}

pub(crate) struct HeatCell {
    pub(crate) fill: String,
    /// Whether its text is white.
    pub(crate) dark: bool,
    pub(crate) title: String,
    pub(crate) text: String,
}

impl ColourScale {
    pub(crate) fn shares(shares: impl Iterator<Item = f64>) -> Self {
        Self::Shares { largest: shares.fold(0.0, f64::max) }
    }

    pub(crate) fn rgb(self, value: f64) -> [u8; 3] {
        let mix = |from: [f64; 3], to: [f64; 3], part: f64| {
            [0, 1, 2].map(|index| (from[index] + (to[index] - from[index]) * part).round() as u8)
        };
        let diverging =
            |part: f64| mix(LIGHT, if part < 0.0 { ORANGE } else { BLUE }, part.abs().min(1.0));
        match self {
            Self::Shares { largest } => {
                let part = (value / largest.max(f64::MIN_POSITIVE)).clamp(0.0, 1.0).sqrt();
                if part < 0.6 {
                    mix(LIGHT, BLUE, part / 0.6)
                } else {
                    mix(BLUE, DARK_BLUE, (part - 0.6) / 0.4)
                }
            }
            Self::Lift => diverging(value.log2() / MAX_LIFT.log2()),
            Self::Diverging { low, high } => diverging(2.0 * (value - low) / (high - low) - 1.0),
        }
    }

    fn ticks(self) -> Vec<f64> {
        match self {
            Self::Shares { largest } => {
                [0.0, 0.0625, 0.25, 0.5625, 1.0].map(|part| part * largest).to_vec()
            }
            Self::Lift => vec![0.125, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0],
            Self::Diverging { low, high } => {
                (0..5).map(|quarter| low + (high - low) * f64::from(quarter) / 4.0).collect()
            }
        }
    }

    fn shown(self, value: f64) -> String {
        match self {
            Self::Shares { .. } if value > 0.0 && value < 0.001 => format!("{value:.0e}"),
            Self::Shares { .. } => format!("{value:.3}"),
            Self::Lift if value >= 10.0 => format!("{value:.0}"),
            Self::Lift | Self::Diverging { .. } => {
                format!("{:.2}", value + 0.0).replace("-0.00", "0.00")
            }
        }
    }
}

impl HeatMap {
    /// Returns the values as header and rows of a table.
    pub(crate) fn table(&self) -> (Vec<String>, Vec<Vec<String>>) {
        let shown = |value: &Option<f64>| or_dash(*value, |value| self.scale.shown(value));
        let row = |(name, values): &(String, Vec<Option<f64>>)| {
            iter::once(name.clone()).chain(values.iter().map(shown)).collect()
        };
        let header = iter::once(&self.corner).chain(&self.columns).cloned();
        (header.collect(), self.rows.iter().map(row).collect())
    }

    pub(crate) fn legend(&self) -> Vec<Swatch> {
        let swatch = |value: f64| Swatch::new(number(value), hexadecimal(self.scale.rgb(value)));
        self.scale.ticks().into_iter().map(swatch).collect()
    }

    fn is_numbered(&self) -> bool {
        self.columns.len() <= MAX_NUMBERED_COLUMNS
    }

    pub(crate) fn class(&self) -> &'static str {
        if !self.is_numbered() {
            "heat fine"
        } else if self.columns.len() > MAX_NUMBERED_ON_A_PHONE {
            "heat many"
        } else {
            "heat"
        }
    }

    /// Returns the size of a cell of a map without numbers in pixels.
    pub(crate) fn cell_pixels(&self) -> usize {
        (640 / self.columns.len().max(1)).clamp(10, 24)
    }

    /// Returns how many neighbouring columns, and rows, share a name.
    pub(crate) fn spans(&self) -> [usize; 2] {
        let span = |names: usize| {
            if self.is_numbered() { 1 } else { names.div_ceil(MAX_NAMES).max(1) }
        };
        [span(self.columns.len()), span(self.rows.len())]
    }

    /// Returns the names of the columns, each with the number of columns that it spans.
    pub(crate) fn heads(&self) -> impl Iterator<Item = (usize, &String)> {
        self.columns.chunks(self.spans()[0]).filter_map(|names| Some((names.len(), names.first()?)))
    }

    pub(crate) fn cells(&self, row: &str, values: &[Option<f64>]) -> Vec<Option<HeatCell>> {
        let cell = |(column, value): (&String, &Option<f64>)| {
            let value = (*value)?;
            let rgb = self.scale.rgb(value);
            let shown = self.scale.shown(value);
            Some(HeatCell {
                fill: hexadecimal(rgb),
                dark: is_dark(rgb),
                title: format!("{row}, {column}: {shown}"),
                text: if self.is_numbered() { shown } else { String::new() },
            })
        };
        self.columns.iter().zip(values).map(cell).collect()
    }
}

fn hexadecimal([red, green, blue]: [u8; 3]) -> String {
    format!("#{red:02x}{green:02x}{blue:02x}")
}

/// Returns whether white text is legible on a colour, by its brightness (ITU-R BT.601).
fn is_dark([red, green, blue]: [u8; 3]) -> bool {
    0.299 * f64::from(red) + 0.587 * f64::from(green) + 0.114 * f64::from(blue) < 140.0
}

#[cfg(test)]
mod tests {
    use askama::Template;

    use super::*;
    use crate::report::page::Block;

    #[test]
    fn colours_follow_the_values_and_text_stays_legible() {
        let shares = ColourScale::shares([0.1, 0.4].into_iter());
        assert_eq!(shares, ColourScale::Shares { largest: 0.4 });
        assert_eq!((shares.rgb(0.0), shares.rgb(0.4)), ([238, 240, 243], [0, 46, 84]));
        assert_eq!(ColourScale::shares(std::iter::empty()).rgb(0.0), [238, 240, 243]);
        let orange_to_blue = [[230, 159, 0], [238, 240, 243], [0, 114, 178]];
        assert_eq!([0.0, 1.0, 64.0].map(|lift| ColourScale::Lift.rgb(lift)), orange_to_blue);
        let diverging = ColourScale::Diverging { low: -1.0, high: 1.0 };
        assert_eq!([-3.0, 0.0, 1.0].map(|value| diverging.rgb(value)), orange_to_blue);
        assert_eq!(diverging.shown(-0.000_1), "0.00");
        assert!(is_dark([0, 46, 84]) && !is_dark([238, 240, 243]));
    }

    fn html(number: usize) -> String {
        let names: Vec<String> = (0..number).map(|name| name.to_string()).collect();
        let mut cells = vec![vec![Some(0.25); number]; number];
        cells.iter_mut().take(1).for_each(|row| row[number - 1] = None);
        let rows = names.iter().cloned().zip(cells).collect();
        let corner = "from".to_owned();
        Block::Heat(HeatMap { corner, columns: names, rows, scale: ColourScale::Lift })
            .render()
            .unwrap()
    }

    #[test]
    fn small_maps_have_numbers_and_large_maps_tooltips() {
        assert_eq!(html(3).matches(">0.25</td>").count(), 8);
        let large = html(64);
        assert_eq!(large.matches("title=").count(), 64 * 64 - 1);
        assert_eq!(large.matches("rowspan=\"4\"").count(), 16, "names take four rows each");
        assert!(large.len() < 500_000 && !large.contains(">0.25</td>"), "{}", large.len());
        for map in [html(3), large, html(0)] {
            assert!(map.contains("class=\"legend\"") && map.contains("0.125"), "{map}");
        }
    }
}
