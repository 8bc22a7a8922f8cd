//! Drift: how far the scores of an increment have moved from those of the corpus that its calibration was made on.

use longsift_stages::score::SummaryStatistics;

use super::rank::Totals;
use crate::run_directory::calibration::{CalibratedGroup, GroupDrift};

/// Stability index that causes a warning; 0.1 (some) and 0.25 (much) are usual in credit scoring (Siddiqi 2006).
pub(super) const WARNING_INDEX: f64 = 0.25;

/// Compares a group with its calibration. `means`: means of this run's raw statistics, by name, over the samples that pass.
pub(super) fn compare_group<'a>(
    calibrated: &CalibratedGroup,
    means: impl Iterator<Item = (&'a str, f64)>,
    now: &Totals,
) -> GroupDrift {
    let moved = |(name, mean): (&str, f64)| {
        Some((name.to_owned(), shift(calibrated.summaries.get(name)?, mean)))
    };
    GroupDrift {
        value: calibrated.value.clone(),
        count: now.scored,
        samples: now.counted,
        kept_fraction: now.kept as f64 / now.scored.max(1) as f64,
        calibrated_kept_fraction: calibrated.kept as f64 / calibrated.count.max(1) as f64,
        shifts: means.filter_map(moved).collect(),
        stability_index: stability_index(&calibrated.score_parts, &now.parts),
    }
}

/// Shift of the mean in standard deviations of `before`, clamped to finite floats; 0 for a column without spread.
fn shift(before: &SummaryStatistics, now: f64) -> f64 {
    if before.standard_deviation > 0.0 {
        ((now - before.mean) / before.standard_deviation).clamp(f64::MIN, f64::MAX)
    } else {
        0.0
    }
}

/// Compares the shares of samples in ten ranges of scores, with half a sample more in each, so that none is empty.
fn stability_index(then: &[u64], now: &[u64; 10]) -> Option<f64> {
    let shares = |parts: &[u64]| -> Vec<f64> {
        let all: f64 = parts.iter().map(|count| *count as f64 + 0.5).sum();
        parts.iter().map(|count| (*count as f64 + 0.5) / all).collect()
    };
    if then.len() != now.len() || then.iter().all(|count| *count == 0) {
        return None;
    }
    let both = shares(then).into_iter().zip(shares(now));
    Some(both.map(|(then, now)| (now - then) * (now / then).ln()).sum())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Splits a thousand consecutive scores, starting at `from`, into ten parts by the deciles of the first thousand.
    fn parts(from: u64) -> [u64; 10] {
        let mut parts = [0; 10];
        for score in from..from + 1000 {
            parts[(score / 100).min(9) as usize] += 1;
        }
        parts
    }

    fn index(from: u64) -> f64 {
        stability_index(&parts(0), &parts(from)).unwrap()
    }

    #[test]
    fn equal_scores_have_no_drift() {
        assert_eq!(index(0).to_bits(), 0.0_f64.to_bits());
        // This holds as well if nearly all scores are equal, so that the ranges differ greatly in size.
        let equal = [0, 0, 0, 0, 0, 0, 0, 0, 3, 8478];
        assert_eq!(stability_index(&equal, &equal).map(f64::to_bits), Some(0.0_f64.to_bits()));
    }

    #[test]
    fn the_index_grows_with_the_shift() {
        assert!(index(20) < 0.1, "{}", index(20));
        assert!(index(100) > 0.1, "{}", index(100));
        assert!(index(300) > WARNING_INDEX, "{}", index(300));
        // A tenth of the samples has moved from the lowest part to the highest: computed by hand, with 0.5 added to each.
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
    fn a_calibration_without_scores_has_no_index() {
        assert_eq!(stability_index(&[0; 10], &[1; 10]), None);
        assert_eq!(stability_index(&[], &[1; 10]), None);
    }
}
