//! Numbers and ticks of pages.

use crate::base::text::count;

const MAX_TICKS: usize = 6;

/// Formats a value with few digits; a value that rounds to zero has no sign.
pub(crate) fn number(value: f64) -> String {
    let magnitude = value.abs();
    if value == 0.0 {
        "0".to_owned()
    } else if !(1e-4..1e7).contains(&magnitude) {
        format!("{value:.2e}")
    } else if magnitude >= 1000.0 {
        let sign = if value < 0.0 { "-" } else { "" };
        format!("{sign}{}", count(magnitude.round() as u64))
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

/// Formats a value; a missing one becomes a dash.
pub(crate) fn or_dash<T>(value: Option<T>, text: impl FnOnce(T) -> String) -> String {
    value.map_or_else(|| "–".to_owned(), text)
}

/// Formats a count for the ticks of an axis: `12,000`, `1.5 M`.
pub(crate) fn short_count(value: f64) -> String {
    match value.abs() {
        1e9.. => format!("{} G", number(value / 1e9)),
        1e6.. => format!("{} M", number(value / 1e6)),
        _ => number(value),
    }
}

pub(crate) fn percent(fraction: f64) -> String {
    format!("{:.1} %", 100.0 * fraction)
}

pub(crate) fn share(part: u64, all: u64) -> String {
    percent(part as f64 / all.max(1) as f64)
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Axis {
    from: f64,
    to: f64,
    logarithmic: bool,
}

impl Axis {
    pub(crate) fn linear(from: f64, to: f64) -> Self {
        Self { from, to, logarithmic: false }
    }

    /// Creates a logarithmic axis; a linear one if a bound is not positive.
    pub(crate) fn logarithmic(from: f64, to: f64) -> Self {
        Self { from, to, logarithmic: from > 0.0 && to > 0.0 }
    }

    /// Returns the position of a value on the axis, from 0 to 1.
    pub(crate) fn position(&self, value: f64) -> f64 {
        let scaled = |value: f64| if self.logarithmic { value.ln() } else { value };
        let (from, to) = (scaled(self.from), scaled(self.to));
        // Halves keep the width of the largest range finite.
        let part = (scaled(value) / 2.0 - from / 2.0) / (to / 2.0 - from / 2.0);
        if part.is_finite() { part.clamp(0.0, 1.0) } else { 0.5 }
    }

    /// Returns round values on the axis.
    pub(crate) fn ticks(&self) -> Vec<f64> {
        let is_inside = |value: &f64| (self.from..=self.to).contains(value);
        if self.logarithmic && self.to.is_finite() {
            let powers = self.from.log10().floor() as i32..=self.to.log10().ceil() as i32;
            for digits in [&[1.0, 2.0, 5.0][..], &[1.0, 3.0], &[1.0]] {
                let all = powers
                    .clone()
                    .flat_map(|power| digits.iter().map(move |digit| digit * 10.0_f64.powi(power)));
                let ticks: Vec<f64> = all.filter(is_inside).collect();
                if (2..=MAX_TICKS).contains(&ticks.len()) {
                    return ticks;
                }
            }
        }
        let span = self.to - self.from;
        if !span.is_finite() || span <= 0.0 {
            return vec![self.from];
        }
        let power = 10.0_f64.powf((span / 4.0).log10().floor());
        let steps = [1.0, 2.0, 5.0, 10.0].map(|digit| digit * power);
        let step = steps.into_iter().find(|step| span / step <= 5.0).unwrap_or(span);
        let first = (self.from / step).ceil();
        // Bounds the number of ticks if rounding goes wrong.
        let ticks = (0..8).map(|index| (first + f64::from(index)) * step);
        ticks.filter(|value| value.is_finite() && *value <= self.to + step * 1e-9).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_short_and_zero_has_no_sign() {
        assert_eq!(
            [0.0, -0.0, 0.25, 12.3456, 1e-9, 1e5, -1234.5].map(number),
            ["0", "0", "0.25", "12.35", "1.00e-9", "100,000", "-1,235"].map(str::to_owned)
        );
        assert_eq!([2e3, 1.5e6, 4e9].map(short_count), ["2,000", "1.5 M", "4 G"]);
    }

    #[test]
    fn ticks_are_few_and_round() {
        assert_eq!(Axis::linear(0.0, 1.0).ticks(), [0.0, 0.2, 0.4, 3.0 * 0.2, 0.8, 1.0]);
        assert_eq!(Axis::linear(0.0, 1100.0).ticks(), [0.0, 500.0, 1000.0]);
        assert_eq!(Axis::linear(1.0, 1.0).ticks(), [1.0]);
        assert_eq!(Axis::linear(f64::MIN, f64::MAX).ticks(), [f64::MIN]);
        assert!(Axis::linear(-3e300, 4e300).ticks().len() <= 8);
        for (from, to) in [(1.2, 9.0), (0.013, 8.0e7), (4e8, 5e8), (3.0, 3.0)] {
            let ticks = Axis::logarithmic(from, to).ticks();
            assert!((1..=2 * MAX_TICKS).contains(&ticks.len()), "{from} {to}: {ticks:?}");
        }
        assert_eq!(Axis::logarithmic(1.0, f64::INFINITY).ticks(), [1.0]);
    }

    #[test]
    fn positions_stay_on_the_axis() {
        let axis = Axis::linear(f64::MIN, f64::MAX);
        let percent = |axis: Axis, value: f64| (100.0 * axis.position(value)) as u32;
        assert_eq!([f64::MIN, 0.0, f64::MAX].map(|value| percent(axis, value)), [0, 50, 100]);
        assert_eq!(percent(Axis::linear(2.0, 2.0), 2.0), 50);
        let powers = Axis::logarithmic(1.0, 16.0);
        assert!((powers.position(4.0) - 0.5).abs() < 1e-12);
    }
}
