//! Merging of the values of a document's windows.

use super::summary::mean;
use crate::contract::Merge;

impl Merge {
    /// Merges the values of a document's windows, in window order. Windows without a value (`NaN`) are left out, but
    /// [`Merge::First`] takes the first window. `NaN` if no window has a value, for [`Merge::Never`], and for
    /// [`Merge::Ratio`], which needs [`Merge::ratio`].
    pub fn merge_windows(&self, windows: &[f64]) -> f64 {
        let present = || windows.iter().copied().filter(|value| !value.is_nan());
        match self {
            Self::Mean => mean(&present().collect::<Vec<_>>()),
            Self::Max => present().reduce(f64::max).unwrap_or(f64::NAN),
            Self::First => windows.first().copied().unwrap_or(f64::NAN),
            Self::Sum => present().reduce(|a, b| a + b).unwrap_or(f64::NAN),
            Self::Ratio { .. } | Self::Never => f64::NAN,
        }
    }

    /// Merges the two statistics of a [`Merge::Ratio`], without windows that lack one of them; `NaN` if no window has both or
    /// the denominators sum to 0.
    pub fn ratio(numerators: &[f64], denominators: &[f64], exponential: bool) -> f64 {
        let pairs = numerators.iter().zip(denominators);
        let pairs = pairs.filter(|(above, below)| !above.is_nan() && !below.is_nan());
        let (above, below) =
            pairs.fold((0.0, 0.0), |(above, below), (more, under)| (above + more, below + under));
        match (below > 0.0, exponential) {
            (false, _) => f64::NAN,
            (true, false) => above / below,
            (true, true) => libm::exp(above / below),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_merge_by_the_declared_rule() {
        let windows = [1.0, 4.0, 1.0];
        assert!((Merge::Mean.merge_windows(&windows) - 2.0).abs() < f64::EPSILON);
        assert!((Merge::Max.merge_windows(&windows) - 4.0).abs() < f64::EPSILON);
        assert!((Merge::First.merge_windows(&windows) - 1.0).abs() < f64::EPSILON);
        assert!(Merge::Never.merge_windows(&windows).is_nan());
    }

    #[test]
    fn windows_without_a_value_are_left_out() {
        let windows = [f64::NAN, 1.0, f64::NAN, 2.0];
        for (merge, expected) in [(Merge::Mean, 1.5), (Merge::Max, 2.0), (Merge::Sum, 3.0)] {
            assert!(merge.merge_windows(&[]).is_nan());
            assert!(merge.merge_windows(&[f64::NAN]).is_nan());
            assert!((merge.merge_windows(&windows) - expected).abs() < f64::EPSILON);
        }
        assert!(Merge::First.merge_windows(&windows).is_nan(), "a value of the whole document");
        let ratio = Merge::ratio(&[1.0, f64::NAN, 3.0], &[2.0, 5.0, 2.0], false);
        assert!((ratio - 1.0).abs() < f64::EPSILON);
        assert!(Merge::ratio(&[f64::NAN], &[1.0], false).is_nan());
    }
}
