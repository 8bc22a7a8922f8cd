//! How far the scores of an increment have moved from those of the corpus its calibration was made on.

use longsift_stages::score::{ColumnFigures, GroupFigures};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::CalibratedGroup;

/// From here on a shift is worth a warning. The bounds 0.1 (some) and 0.25 (much) are those of credit scoring, where the
/// index comes from (Siddiqi 2006).
pub(super) const MUCH: f64 = 0.25;

/// What the scores of one group look like beside those of the calibration.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct GroupDrift {
    /// Value of the `within` column.
    pub value: Option<String>,
    /// Samples with a score in this run.
    pub count: u64,
    /// The share that was kept now.
    pub kept_fraction: f64,
    /// The share that was kept when the calibration was made; null for a calibration that does not say.
    pub calibrated_kept_fraction: Option<f64>,
    /// By how many of the calibration's standard deviations the mean dependency strength has moved.
    pub dependency_strength_shift: f64,
    /// The same for the far variance.
    pub far_variance_shift: f64,
    /// Population stability index over the calibration's ten deciles of the score: Σ (now - 0.1) · ln(now / 0.1). 0 where
    /// nothing has moved, 0.1 some, 0.25 much. Null for a calibration without deciles.
    pub stability_index: Option<f64>,
}

impl GroupDrift {
    /// Compares the scores of a group with its calibration. `now`: figures of this run's raw statistics.
    pub(super) fn of(
        calibrated: &CalibratedGroup,
        now: &GroupFigures,
        scores: &[f64],
        keep: &[bool],
    ) -> Self {
        let count = scores.iter().filter(|score| !score.is_nan()).count() as u64;
        let kept = keep.iter().filter(|&&keep| keep).count();
        let before = &calibrated.figures;
        Self {
            value: calibrated.value.clone(),
            count,
            kept_fraction: kept as f64 / count.max(1) as f64,
            calibrated_kept_fraction: calibrated
                .kept
                .map(|kept| kept as f64 / before.count.max(1) as f64),
            dependency_strength_shift: shift(&before.dependency_strength, &now.dependency_strength),
            far_variance_shift: shift(&before.far_variance, &now.far_variance),
            stability_index: stability_index(&calibrated.score_deciles, scores),
        }
    }
}

/// By how many deviations of `before` the mean has moved; 0 for a column without spread.
fn shift(before: &ColumnFigures, now: &ColumnFigures) -> f64 {
    if before.standard_deviation > 0.0 {
        (now.mean - before.mean) / before.standard_deviation
    } else {
        0.0
    }
}

/// The nine scores that cut a group into ten parts of equal size; none for a group without scores. `NaN` is left out.
pub(super) fn deciles(scores: &[f64]) -> Vec<f64> {
    let mut sorted: Vec<f64> = scores.iter().copied().filter(|score| !score.is_nan()).collect();
    sorted.sort_unstable_by(f64::total_cmp);
    if sorted.is_empty() {
        return Vec::new();
    }
    (1..10).map(|tenth| sorted[tenth * sorted.len() / 10]).collect()
}

/// A score belongs to the part above the last decile that is not above it. Half a sample is added to every part, so that
/// an empty one is no infinity.
fn stability_index(deciles: &[f64], scores: &[f64]) -> Option<f64> {
    if deciles.len() != 9 {
        return None;
    }
    let mut parts = [0.5_f64; 10];
    for score in scores.iter().filter(|score| !score.is_nan()) {
        parts[deciles.partition_point(|decile| decile <= score)] += 1.0;
    }
    let all: f64 = parts.iter().sum();
    Some(parts.iter().map(|part| (part / all - 0.1) * (part / all / 0.1).ln()).sum())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(from: i32, count: i32) -> Vec<f64> {
        (from..from + count).map(f64::from).collect()
    }

    #[test]
    fn the_same_scores_have_not_moved() {
        let scores = line(0, 1000);
        let deciles = deciles(&scores);
        assert_eq!(deciles, [100.0, 200.0, 300.0, 400.0, 500.0, 600.0, 700.0, 800.0, 900.0]);
        assert!(stability_index(&deciles, &scores).unwrap().abs() < 1e-9);
    }

    #[test]
    fn the_index_grows_with_the_shift() {
        let deciles = deciles(&line(0, 1000));
        let index = |from| stability_index(&deciles, &line(from, 1000)).unwrap();
        assert!(index(20) < 0.1, "{}", index(20));
        assert!(index(100) > 0.1, "{}", index(100));
        assert!(index(300) > MUCH, "{}", index(300));
        // A tenth of the samples has left the lowest part for the highest: by hand, with 0.5 added to each.
        let expected = {
            let part = |count: f64| {
                let share = (count + 0.5) / 1005.0;
                (share - 0.1) * (share / 0.1).ln()
            };
            part(0.0) + 8.0 * part(100.0) + part(200.0)
        };
        assert!((index(100) - expected).abs() < 1e-12);
    }

    #[test]
    fn a_calibration_without_deciles_has_no_index() {
        assert_eq!(stability_index(&[], &line(0, 10)), None);
        assert_eq!(deciles(&[f64::NAN]), Vec::<f64>::new());
    }
}
