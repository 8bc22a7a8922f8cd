//! Merging of the values of a document's windows.

use super::DocumentScore;
use crate::contract::Merge;

impl Merge {
    /// Merges the values of a document's windows, in window order. `NaN` without windows, if a window has no value
    /// (`NaN`), for [`Merge::Never`], and for [`Merge::Ratio`], which needs [`Merge::ratio`].
    pub fn merge_windows(&self, windows: &[f64]) -> f64 {
        match self {
            Self::Mean => DocumentScore::Mean.merge_windows(windows),
            Self::Max => DocumentScore::Max.merge_windows(windows),
            Self::First => windows.first().copied().unwrap_or(f64::NAN),
            Self::Sum => {
                if windows.is_empty() {
                    f64::NAN
                } else {
                    windows.iter().sum()
                }
            }
            Self::Ratio { .. } | Self::Never => f64::NAN,
        }
    }

    /// Merges the two statistics of a [`Merge::Ratio`]; `NaN` as in [`Merge::merge_windows`], and if the denominators sum to 0.
    pub fn ratio(numerators: &[f64], denominators: &[f64], exponential: bool) -> f64 {
        let (above, below) =
            (Self::Sum.merge_windows(numerators), Self::Sum.merge_windows(denominators));
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
    fn a_window_without_a_value_makes_the_document_nan() {
        for merge in [Merge::Mean, Merge::Max, Merge::First] {
            assert!(merge.merge_windows(&[]).is_nan());
            assert!(merge.merge_windows(&[f64::NAN, 1.0]).is_nan());
        }
        assert!(Merge::Mean.merge_windows(&[1.0, f64::NAN]).is_nan());
        assert!(Merge::Max.merge_windows(&[1.0, f64::NAN, 2.0]).is_nan());
    }
}
