//! Evaluation of one statistic on natural windows of labelled classes.
//!
//! A window of a good class has the weight ½ / (good classes · windows of its class), any other ½ / (other classes ·
//! windows of its class): classes on the same side have equal total weight, and chance is ½.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::Serialize;

use crate::tools::evaluate::estimates::bootstrap::Bootstrap;
use crate::tools::evaluate::estimates::{DocumentCounts, IntervalEstimate, Values, same_rank};
use crate::tools::evaluate::statistics::MeasuredWindows;

/// Fractions of the total weight that are kept.
pub(crate) const FRACTIONS: [f64; 3] = [0.1, 0.25, 0.5];

/// Windows of one length, with their class as category.
pub(crate) struct LabelledWindows<'a> {
    pub(crate) measured: &'a MeasuredWindows,
    /// By class, whether it is good. Every class has a window, and there are good and other classes.
    pub(crate) good: &'a [bool],
    /// By window, whether it passes the guards; `None` without guards.
    pub(crate) passes: Option<&'a [bool]>,
    pub(crate) bootstrap: &'a Bootstrap,
}

/// Selection of one fraction of the total weight.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub(crate) struct KeptShare {
    pub(crate) fraction: f64,
    /// Kept weight: below the fraction if guards leave less.
    pub(crate) taken: f64,
    /// Share of good classes in the kept weight; 0.5 is chance.
    pub(crate) real_share: IntervalEstimate,
    /// Kept share of the windows of each class.
    pub(crate) by_class: BTreeMap<String, f64>,
}

/// Returns the windows with values, by descending value and grouped by equal values.
fn ranked(values: &Values) -> Vec<Vec<usize>> {
    let known = values.iter().enumerate().filter_map(|(window, value)| Some((window, (*value)?)));
    let mut known: Vec<(usize, f64)> = known.collect();
    known.sort_by(|(_, a), (_, b)| b.total_cmp(a));
    let equal = known.chunk_by(|(_, a), (_, b)| same_rank(*a, *b));
    // Sorted by index: 0 and -0 have one rank, and sums have a fixed order.
    let numbers = |group: &[(usize, f64)]| {
        let mut windows: Vec<usize> = group.iter().map(|(window, _)| *window).collect();
        windows.sort_unstable();
        windows
    };
    equal.map(numbers).collect()
}

impl LabelledWindows<'_> {
    /// Keeps each of [`FRACTIONS`] by `values`, among the windows that `passes` admits.
    pub(crate) fn kept(&self, values: &Values, passes: Option<&[bool]>) -> Vec<KeptShare> {
        let ranking = ranked(values);
        let selected = |counts: &DocumentCounts| {
            let (windows, weights) = self.weights(counts);
            let taken = self.taken(&ranking, passes, counts, &weights);
            (windows, weights, taken)
        };
        let estimates = self.bootstrap.estimates(|counts| {
            let (_, weights, taken) = selected(counts);
            taken.iter().map(|kept| self.real_share(kept, &weights)).collect()
        });
        let (all, weights, taken) = selected(&self.bootstrap.once);
        let kept =
            taken.iter().zip(estimates).zip(FRACTIONS).map(|((windows, real_share), fraction)| {
                let shares = windows.iter().zip(&all).map(|(kept, all)| kept / *all as f64);
                KeptShare {
                    fraction,
                    taken: windows.iter().zip(&weights).map(|(kept, weight)| kept * weight).sum(),
                    real_share,
                    by_class: self.measured.categories.iter().cloned().zip(shares).collect(),
                }
            });
        kept.collect()
    }

    /// Returns by class the AUROC of the good classes' windows against its own; `None` for good ones, and without values.
    pub(crate) fn auroc(&self, values: &Values) -> Vec<Option<IntervalEstimate>> {
        let ranking = ranked(values);
        let estimates = self.bootstrap.estimates(|counts| self.aurocs(&ranking, counts));
        let estimates = estimates.into_iter().zip(self.good);
        estimates
            .map(|(estimate, good)| (!good && estimate.value.is_some()).then_some(estimate))
            .collect()
    }

    /// Returns by class its windows, weighted by their documents' counts, and the weight of one window.
    fn weights(&self, counts: &DocumentCounts) -> (Vec<u64>, Vec<f64>) {
        let mut windows = vec![0; self.good.len()];
        for origin in &self.measured.origins {
            windows[origin.category] += counts.count(origin);
        }
        let classes = |good: bool| self.good.iter().filter(|class| **class == good).count() as f64;
        let weight = |(windows, good): (&u64, &bool)| match windows {
            0 => 0.0,
            _ => 0.5 / (classes(*good) * *windows as f64),
        };
        let weights = windows.iter().zip(self.good).map(weight).collect();
        (windows, weights)
    }

    /// Returns by fraction and class the windows taken from the top; those of equal value at the edge are taken in equal parts.
    fn taken(
        &self,
        ranking: &[Vec<usize>],
        passes: Option<&[bool]>,
        counts: &DocumentCounts,
        weights: &[f64],
    ) -> Vec<Vec<f64>> {
        let mut taken = FRACTIONS.map(|_| (0.0, vec![0.0; self.good.len()]));
        for equal in ranking {
            let entering = || {
                let passing = equal.iter().filter(|window| passes.is_none_or(|of| of[**window]));
                passing.map(|window| {
                    let origin = &self.measured.origins[*window];
                    (origin.category, counts.count(origin) as f64)
                })
            };
            let here: f64 = entering().map(|(class, count)| count * weights[class]).sum();
            if here == 0.0 {
                continue;
            }
            let mut is_full = true;
            for (fraction, (sum, windows)) in FRACTIONS.iter().zip(&mut taken) {
                let part = ((fraction - *sum) / here).min(1.0);
                if part > 0.0 {
                    entering().for_each(|(class, count)| windows[class] += part * count);
                    *sum += part * here;
                    is_full = false;
                }
            }
            if is_full {
                break;
            }
        }
        taken.into_iter().map(|(_, windows)| windows).collect()
    }

    fn real_share(&self, taken: &[f64], weights: &[f64]) -> Option<f64> {
        let of_class = taken.iter().zip(weights).zip(self.good);
        let (real, all) = of_class.fold((0.0, 0.0), |(real, all), ((windows, weight), good)| {
            let weight = windows * weight;
            (real + if *good { weight } else { 0.0 }, all + weight)
        });
        (all > 0.0).then(|| real / all)
    }

    fn aurocs(&self, ranking: &[Vec<usize>], counts: &DocumentCounts) -> Vec<Option<f64>> {
        let (_, weights) = self.weights(counts);
        let classes = self.good.len();
        let (mut wins, mut windows) = (vec![0.0; classes], vec![0_u64; classes]);
        let mut good_above = 0.0;
        for equal in ranking {
            let origins = || equal.iter().map(|window| &self.measured.origins[*window]);
            let good = origins().filter(|origin| self.good[origin.category]);
            let here: f64 =
                good.map(|origin| counts.count(origin) as f64 * weights[origin.category]).sum();
            for origin in origins().filter(|origin| !self.good[origin.category]) {
                let count = counts.count(origin);
                wins[origin.category] += count as f64 * (good_above + here / 2.0);
                windows[origin.category] += count;
            }
            good_above += here;
        }
        let auroc = |(wins, windows): (f64, u64)| {
            (windows > 0 && good_above > 0.0).then(|| wins / (windows as f64 * good_above))
        };
        wins.into_iter().zip(windows).map(auroc).collect()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::tools::evaluate::windows::WindowOrigin;

    /// Class, document, value, and whether the guards pass.
    type Rows = Vec<(usize, usize, Option<u8>, bool)>;

    const GOOD: [bool; 4] = [true, false, true, false];

    fn labelled<'a>(
        measured: &'a MeasuredWindows,
        bootstrap: &'a Bootstrap,
    ) -> LabelledWindows<'a> {
        LabelledWindows { measured, good: &GOOD, passes: None, bootstrap }
    }

    fn measured(rows: &Rows) -> MeasuredWindows {
        let origin = |(class, document, ..): &(usize, usize, Option<u8>, bool)| WindowOrigin {
            category: *class,
            document: *document,
            start: 0,
            kind: 0,
        };
        let mut measured = MeasuredWindows::default();
        measured.origins = rows.iter().map(origin).collect();
        measured.categories = ["a", "b", "c", "d"].map(str::to_owned).to_vec();
        measured
    }

    /// Computes the share by its definition, window by window.
    fn real_share(rows: &Rows, fraction: f64, guarded: bool) -> Option<f64> {
        let of_class = |class: usize| rows.iter().filter(|row| row.0 == class).count() as f64;
        let weight = |class: usize| 0.25 / of_class(class);
        let mut values: Vec<u8> = rows.iter().filter_map(|row| row.2).collect();
        values.sort_unstable();
        values.dedup();
        let (mut real, mut all) = (0.0, 0.0);
        for value in values.into_iter().rev() {
            let here = rows.iter().filter(|row| row.2 == Some(value) && (!guarded || row.3));
            let sum: f64 = here.clone().map(|row| weight(row.0)).sum();
            let part = if sum > 0.0 { ((fraction - all) / sum).clamp(0.0, 1.0) } else { 0.0 };
            real += part * here.filter(|row| GOOD[row.0]).map(|row| weight(row.0)).sum::<f64>();
            all += part * sum;
        }
        (all > 0.0).then(|| real / all)
    }

    fn auroc(rows: &Rows, class: usize) -> Option<f64> {
        let of_class = |class: usize| rows.iter().filter(|row| row.0 == class).count() as f64;
        let (mut wins, mut pairs) = (0.0, 0.0);
        for good in rows.iter().filter(|row| GOOD[row.0]) {
            for other in rows.iter().filter(|row| row.0 == class) {
                if let (Some(a), Some(b)) = (good.2, other.2) {
                    let weight = 1.0 / of_class(good.0);
                    pairs += weight;
                    wins +=
                        weight * (f64::from(u8::from(a > b)) + f64::from(u8::from(a >= b))) / 2.0;
                }
            }
        }
        (pairs > 0.0).then(|| wins / pairs)
    }

    fn close(got: Option<f64>, expected: Option<f64>) -> bool {
        match (got, expected) {
            (Some(got), Some(expected)) => (got - expected).abs() < 1e-9,
            (got, expected) => got == expected,
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(24))]
        #[test]
        fn results_match_the_definition(
            more in prop::collection::vec((0_usize..4, 0_usize..3, prop::option::of(0_u8..6), any::<bool>()), 0..40),
        ) {
            let mut rows: Rows = (0..4).map(|class| (class, 0, Some(3), true)).collect();
            rows.extend(more);
            let measured = measured(&rows);
            let bootstrap = Bootstrap::new(1, &[3; 4]);
            let labelled = labelled(&measured, &bootstrap);
            let values: Vec<Option<f64>> = rows.iter().map(|row| row.2.map(f64::from)).collect();
            let passes: Vec<bool> = rows.iter().map(|row| row.3).collect();
            // Documents without windows have no weight, so a replicate may lack a class.
            for guarded in [false, true] {
                let kept = labelled.kept(&values, guarded.then_some(&passes[..]));
                for (kept, fraction) in kept.iter().zip(FRACTIONS) {
                    let expected = real_share(&rows, fraction, guarded);
                    prop_assert!(close(kept.real_share.value, expected), "{kept:?} {expected:?}");
                    prop_assert!(kept.taken <= fraction + 1e-9);
                    prop_assert!(kept.by_class.values().all(|share| (0.0..=1.0 + 1e-9).contains(share)));
                }
            }
            for (class, estimate) in labelled.auroc(&values).into_iter().enumerate() {
                let expected = if GOOD[class] { None } else { auroc(&rows, class) };
                prop_assert!(close(estimate.and_then(|estimate| estimate.value), expected));
            }
        }
    }

    #[test]
    fn guards_reduce_the_kept_weight_and_nulls_are_never_kept() {
        let rows: Rows = vec![
            (0, 0, Some(9), true),
            (1, 0, Some(8), false),
            (2, 0, None, true),
            (3, 0, Some(1), true),
        ];
        let measured = measured(&rows);
        let bootstrap = Bootstrap::new(1, &[1; 4]);
        let labelled = labelled(&measured, &bootstrap);
        let values: Vec<Option<f64>> = rows.iter().map(|row| row.2.map(f64::from)).collect();
        let passes: Vec<bool> = rows.iter().map(|row| row.3).collect();
        let kept = labelled.kept(&values, Some(&passes));
        let by_class = |kept: &KeptShare| kept.by_class.values().copied().collect::<Vec<_>>();
        assert_eq!(by_class(&kept[0]), [0.4, 0.0, 0.0, 0.0]);
        assert_eq!(by_class(&kept[2]), [1.0, 0.0, 0.0, 1.0]);
        assert_eq!((kept[2].taken, kept[2].real_share.value), (0.5, Some(0.5)));
        let guards: Vec<bool> = vec![true, false, false, false];
        let kept = labelled.kept(&values, Some(&guards));
        assert_eq!((kept[2].taken, kept[2].real_share.value), (0.25, Some(1.0)));
    }
}
