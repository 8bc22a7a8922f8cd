//! Rank correlation, and the share of a statistic's variance that its category explains.

use super::{Values, by_category, same_rank};
use crate::tools::evaluate::windows::WindowOrigin;

/// Returns Spearman's correlation, with mean ranks for ties; 0 if one of the two is constant, `None` without pairs.
pub(crate) fn spearman(pairs: &[(f64, f64)]) -> Option<f64> {
    let (a, b): (Vec<f64>, Vec<f64>) = pairs.iter().copied().unzip();
    let (a, b) = (ranks(&a), ranks(&b));
    // The mean of the ranks 1..=n does not depend on ties.
    let mean = (pairs.len() + 1) as f64 / 2.0;
    let product = |a: &[f64], b: &[f64]| -> f64 {
        a.iter().zip(b).map(|(a, b)| (a - mean) * (b - mean)).sum()
    };
    let spread = (product(&a, &a) * product(&b, &b)).sqrt();
    (!pairs.is_empty()).then(|| if spread > 0.0 { product(&a, &b) / spread } else { 0.0 })
}

fn ranks(values: &[f64]) -> Vec<f64> {
    let mut order: Vec<usize> = (0..values.len()).collect();
    order.sort_by(|a, b| values[*a].total_cmp(&values[*b]));
    let mut ranks = vec![0.0; values.len()];
    let mut below = 0;
    for equal in order.chunk_by(|a, b| same_rank(values[*a], values[*b])) {
        let rank = below as f64 + (equal.len() + 1) as f64 / 2.0;
        for index in equal {
            ranks[*index] = rank;
        }
        below += equal.len();
    }
    ranks
}

/// Returns Spearman's correlation over whole windows inside categories, averaged by their windows; `None` without pairs.
pub(crate) fn inside_categories(
    origins: &[WindowOrigin],
    a: impl Fn(usize) -> Option<f64>,
    b: impl Fn(usize) -> Option<f64>,
) -> Option<f64> {
    let pairs = by_category(origins, |window, origin| {
        origin.is_whole().then(|| a(window).zip(b(window))).flatten()
    });
    let weighted = pairs.iter().filter_map(|pairs| Some(spearman(pairs)? * pairs.len() as f64));
    let windows: usize = pairs.iter().map(Vec::len).sum();
    let sum: f64 = weighted.sum();
    (windows > 0).then(|| sum / windows as f64)
}

/// Returns the share of the variance over whole windows that lies between categories; `None` if all values are equal.
pub(crate) fn category_variance(origins: &[WindowOrigin], values: &Values) -> Option<f64> {
    let by_category =
        by_category(origins, |window, origin| values[window].filter(|_| origin.is_whole()));
    let mean_of = |values: &[f64]| values.iter().sum::<f64>() / values.len() as f64;
    let values = by_category.concat();
    let mean = mean_of(&values);
    let square = |value: f64| (value - mean) * (value - mean);
    let all: f64 = values.iter().map(|value| square(*value)).sum();
    let between: f64 = by_category
        .iter()
        .filter(|values| !values.is_empty())
        .map(|values| values.len() as f64 * square(mean_of(values)))
        .sum();
    (all > 0.0).then(|| between / all)
}

/// Returns the 5, 50 and 95 % quantiles; `None` without values.
pub(crate) fn quantiles(values: impl Iterator<Item = f64>) -> Option<[f64; 3]> {
    let mut sorted: Vec<f64> = values.collect();
    sorted.sort_by(f64::total_cmp);
    let [low, middle, high] = [0.05, 0.5, 0.95].map(|q| quantile(&sorted, q));
    Some([low?, middle?, high?])
}

/// Returns the quantile `q` of sorted values by linear interpolation, as numpy does by default; `None` without values.
fn quantile(sorted: &[f64], q: f64) -> Option<f64> {
    let position = q * sorted.len().checked_sub(1)? as f64;
    let (low, high) = (sorted[position.floor() as usize], sorted[position.ceil() as usize]);
    Some(low + (high - low) * position.fract())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_values_share_their_rank() {
        assert_eq!(ranks(&[3.0, 1.0, 3.0, 2.0]), [3.5, 1.0, 3.5, 2.0]);
        assert_eq!(ranks(&[0.0, -0.0]), [1.5, 1.5]);
    }

    #[test]
    fn correlation_of_ranks() {
        let of = |a: &[f64], b: &[f64]| {
            spearman(&a.iter().copied().zip(b.iter().copied()).collect::<Vec<_>>())
        };
        assert_eq!(of(&[1.0, 2.0, 3.0], &[1.0, 10.0, 11.0]), Some(1.0));
        assert_eq!(of(&[1.0, 2.0, 3.0], &[5.0, 4.0, 3.0]), Some(-1.0));
        assert_eq!(
            of(&[1.0, 2.0, 3.0], &[7.0, 7.0, 7.0]),
            Some(0.0),
            "a constant has no correlation"
        );
        assert_eq!(of(&[], &[]), None);
        // scipy.stats.spearmanr([1, 2, 2, 4, 5], [2, 1, 3, 3, 9])
        let got = of(&[1.0, 2.0, 2.0, 4.0, 5.0], &[2.0, 1.0, 3.0, 3.0, 9.0]).unwrap();
        assert!((got - 0.763_157_894_736_842_1).abs() < 1e-12, "{got}");
    }

    #[test]
    fn quantiles_are_interpolated() {
        let values = [1.0, 2.0, 4.0];
        assert_eq!(
            [0.0, 0.25, 0.5, 0.75, 1.0].map(|q| quantile(&values, q)),
            [1.0, 1.5, 2.0, 3.0, 4.0].map(Some)
        );
        assert_eq!(quantile(&[], 0.5), None);
    }
}
