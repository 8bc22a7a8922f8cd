//! Compares the selection with one in memory: all statistics, bounds, scores and decisions.

use std::collections::BTreeMap;

use longsift_stages::Filter;
use longsift_stages::contract::Merge;
use longsift_stages::filter::guards::{Bounds, Guard, Verdict};
use longsift_stages::score::SELECTION_VERSION;
use longsift_stages::score::terms::{Combine, Scale, Scorer, Standardise, Term};
use proptest::prelude::*;

use super::calibration;
use super::criteria::{Criteria, SelectionStatistic};
use super::decided::Rule;
use super::drift;
use super::gather::{GatheredSamples, Gathering, GroupTotals, UnitSamples, add_to_group};
use super::mapped_words::MappedWords;
use super::rank::{GroupDecision, RankedGroup, Ranking};
use crate::base::stop::Stop;
use crate::plan::cascade::Cascade;
use crate::run_directory::calibration::CalibratedGroup;
use crate::run_directory::layout::RunDirectory;
use crate::spec::pipeline::Samples;

/// Sample: its group, its tokens, its values of three statistics.
type Drawn = (u8, u64, [f64; 3]);

const GROUPS: [Option<&str>; 3] = [None, Some("a"), Some("b")];

/// Returns two terms, of the first two statistics, and guards on any of the three.
fn criteria(standardise: Standardise, combine: Combine, filter: &str) -> Criteria {
    let filter: Filter = serde_json::from_str(filter).unwrap();
    let term = |statistic: &str, weight| Term {
        statistic: statistic.to_owned(),
        weight,
        offset: 0.0,
        standardise: None,
        optional: false,
    };
    let statistic = |name: &str| SelectionStatistic {
        name: name.to_owned(),
        merge: Merge::Mean,
        ratio: None,
        column: 0,
        error: None,
        measure: 0,
        sample: None,
    };
    let statistics = ["0", "1", "2"].map(statistic).to_vec();
    let index = |guard: &Guard| guard.statistic.parse().unwrap();
    let guards: Vec<_> = filter.guards.iter().map(|guard| (guard.clone(), index(guard))).collect();
    Criteria {
        skipped: Vec::new(),
        written: Vec::new(),
        cascade: Cascade::default(),
        statistics,
        columns: Vec::new(),
        selects_by: 0,
        terms: vec![term("0", 1.0), term("1", -0.5)],
        combine,
        standardise,
        guards,
        filter,
        samples: Samples::Windows,
        random: None,
    }
}

/// Gathers the samples in units of at most `unit` samples.
fn gathered(criteria: &Criteria, samples: &[Drawn], unit: usize) -> GatheredSamples {
    let folder = tempfile::tempdir().unwrap();
    let directory = RunDirectory::for_output(&folder.path().join("out"));
    let mut gathering = Gathering::new(&directory, criteria).unwrap();
    for samples in samples.chunks(unit) {
        let mut unit = UnitSamples::default();
        for (group, tokens, values) in samples {
            let label = GROUPS[usize::from(*group)].map(str::to_owned);
            let one = GroupTotals { samples: 1, lengths: (1, 1) };
            let own = add_to_group(&mut unit.groups, &mut unit.group_totals, label, &one);
            unit.samples.push((own, *tokens));
            unit.values.extend(values);
        }
        gathering.add(&unit).unwrap();
    }
    gathering.finish(&Stop::default()).unwrap()
}

/// Returns the decision on every group, by its value, and the kept samples of every unit.
fn ranked<'g>(
    criteria: &Criteria,
    gathered: &'g GatheredSamples,
) -> (BTreeMap<Option<&'g str>, GroupDecision>, MappedWords, Vec<u64>) {
    let folder = tempfile::tempdir().unwrap();
    let directory = RunDirectory::for_output(&folder.path().join("out"));
    let stop = Stop::default();
    let ranking = Ranking::new(criteria, gathered, &directory, &stop).unwrap();
    let ranked = ranking.each_group(RankedGroup::by_own_statistics).unwrap();
    let (kept, file) = ranking.finish().unwrap();
    let values = gathered.groups.keys().map(Option::as_deref);
    (values.zip(ranked).collect(), file, kept)
}

/// Selection of one group in memory.
struct InMemory {
    /// By statistic, over the samples that pass; `None` if no sample has it.
    scales: Vec<Option<Scale>>,
    bounds: Vec<Bounds>,
    scores: Vec<f64>,
    passes: Vec<bool>,
    keep: Vec<bool>,
    threshold: Option<f64>,
}

/// Selects by the definition: bounds over all samples, then scales over those within all bounds, then scores of all.
fn in_memory(criteria: &Criteria, group: Option<&str>, samples: &[&Drawn]) -> InMemory {
    let column =
        |index: usize| -> Vec<f64> { samples.iter().map(|(_, _, values)| values[index]).collect() };
    let tokens: Vec<u64> = samples.iter().map(|(_, tokens, _)| *tokens).collect();
    let bounds: Vec<Bounds> = criteria
        .guards
        .iter()
        .map(|(guard, statistic)| guard.bounds_of(&column(*statistic), &tokens))
        .collect();
    let passes: Vec<bool> = samples
        .iter()
        .map(|(_, _, values)| {
            let guards = criteria.guards.iter().zip(&bounds);
            let mut verdicts = guards.map(|((_, index), bounds)| bounds.judge(values[*index]));
            verdicts.all(|verdict| verdict == Verdict::Passes)
        })
        .collect();
    let scale = |index: usize| {
        let passing = column(index).into_iter().zip(&passes).filter(|(_, passes)| **passes);
        let passing: Vec<f64> = passing.map(|(value, _)| value).collect();
        let any = passing.iter().any(|value| value.is_finite());
        any.then(|| Scale::new(&passing, criteria.standardise))
    };
    let scales: Vec<Option<Scale>> = (0..3).map(scale).collect();
    let of_terms: Option<Vec<Scale>> = scales[..2].iter().cloned().collect();
    let scorer = of_terms.map(|scales| {
        Scorer::new(&criteria.terms, criteria.combine, criteria.standardise, &scales).unwrap()
    });
    let score = |(_, _, values): &&Drawn| match &scorer {
        Some(scorer) if values.iter().all(|value| value.is_finite()) => scorer.score(&values[..2]),
        _ => f64::NAN,
    };
    let scores: Vec<f64> = samples.iter().map(score).collect();
    let keep = criteria.filter.keep(&scores, &passes, &tokens, group);
    let kept = scores.iter().zip(&keep).filter(|(_, keep)| **keep).map(|(score, _)| *score);
    let threshold = criteria.filter.min_score.or(kept.reduce(f64::min));
    InMemory { scales, bounds, scores, passes, keep, threshold }
}

fn bits(numbers: &[f64]) -> Vec<u64> {
    numbers.iter().map(|number| number.to_bits()).collect()
}

fn check(criteria: &Criteria, samples: &[Drawn], unit: usize) {
    let gathered = gathered(criteria, samples, unit);
    let (ranked, file, kept_of_units) = ranked(criteria, &gathered);
    let mut expected_of_units = vec![0; samples.len().div_ceil(unit)];
    for (index, name) in GROUPS.into_iter().enumerate() {
        let in_group: Vec<(usize, &Drawn)> = samples
            .iter()
            .enumerate()
            .filter(|(_, (own, ..))| usize::from(*own) == index)
            .collect();
        let Some(ranked) = ranked.get(&name) else {
            assert!(in_group.is_empty());
            continue;
        };
        let of_group: Vec<&Drawn> = in_group.iter().map(|(_, sample)| *sample).collect();
        let expected = in_memory(criteria, name, &of_group);
        let summaries = expected.scales.iter().map(|scale| scale.as_ref().map(|of| of.summary));
        assert_eq!(ranked.summaries, summaries.collect::<Vec<_>>());
        let rule = ranked.rule(criteria, &file);
        assert_eq!(rule.bounds, expected.bounds);
        let numbers = in_group.iter().map(|(number, _)| *number as u64);
        let decided: Vec<(f64, bool)> = numbers
            .zip(&of_group)
            .map(|(number, (_, tokens, values))| {
                let sample_state = rule.sample_state(criteria, values);
                let keep = rule.keeps(criteria, sample_state, *tokens, number);
                (sample_state.score(), keep)
            })
            .collect();
        let (scores, keep): (Vec<f64>, Vec<bool>) = decided.into_iter().unzip();
        let known = |scores: &[f64]| scores.iter().map(|score| score + 0.0).collect::<Vec<_>>();
        assert_eq!(bits(&known(&scores)), bits(&known(&expected.scores)));
        assert_eq!(keep, expected.keep);
        let lowest =
            ranked.samples.totals.thresholds.iter().filter_map(|threshold| threshold.score);
        assert_eq!(lowest.reduce(f64::min), expected.threshold);
        let passing = scores.iter().zip(&expected.passes).filter(|(_, passes)| **passes);
        let mut sorted: Vec<f64> =
            passing.map(|(score, _)| *score).filter(|score| !score.is_nan()).collect();
        sorted.sort_by(f64::total_cmp);
        let tenths = (1..10).filter(|_| !sorted.is_empty());
        let deciles: Vec<f64> = tenths.map(|tenth| sorted[tenth * sorted.len() / 10]).collect();
        assert_eq!(ranked.samples.deciles, deciles);
        assert_eq!(ranked.samples.totals.scored, sorted.len() as u64);
        let is_outside = |(guard, bounds): (&(Guard, usize), &Bounds), (_, _, values): &Drawn| {
            bounds.judge(values[guard.1]) == Verdict::Refused
        };
        for (guard, rejected) in ranked.samples.totals.rejected.iter().enumerate() {
            let of = (&criteria.guards[guard], &expected.bounds[guard]);
            let outside = of_group.iter().filter(|sample| is_outside(of, sample)).count();
            assert_eq!(*rejected, outside as u64);
        }
        let part = |score: &f64| deciles.iter().filter(|decile| *decile <= score).count();
        for (index, count) in ranked.samples.totals.parts.iter().enumerate() {
            assert_eq!(*count, sorted.iter().filter(|score| part(score) == index).count() as u64);
        }
        check_calibrated(criteria, &gathered, name, ranked, &file);
        for ((number, _), _) in in_group.iter().zip(&keep).filter(|(_, keep)| **keep) {
            expected_of_units[number / unit] += 1;
        }
    }
    assert_eq!(kept_of_units, expected_of_units);
}

/// Checks that a calibration keeps the same samples that it was made from, without drift.
fn check_calibrated(
    criteria: &Criteria,
    gathered: &GatheredSamples,
    name: Option<&str>,
    ranked: &GroupDecision,
    file: &MappedWords,
) {
    let value = name.map(str::to_owned);
    let mut groups = calibration::calibrate_groups(criteria, [(&value, ranked)].into_iter(), file);
    let text = serde_json::to_string(&groups.remove(0)).unwrap();
    let known: CalibratedGroup = serde_json::from_str(&text).unwrap();
    let cutoffs = known.thresholds.len();
    assert_eq!(calibration::contradiction(criteria, &known, cutoffs), None);
    let scorer = known.scorer(&criteria.terms, criteria.combine, criteria.standardise);
    let folder = tempfile::tempdir().unwrap();
    let directory = RunDirectory::for_output(&folder.path().join("out"));
    let stop = Stop::default();
    let ranking = Ranking::new(criteria, gathered, &directory, &stop).unwrap();
    let decided = ranking.each_group(|group| {
        let (scorer, bounds) = (scorer.clone(), known.guards.clone());
        let decided = (*group.value == value)
            .then(|| group.by_calibration(scorer, bounds, &known.thresholds, &known.score_deciles));
        decided.transpose()
    });
    let (rule, totals, sums) = decided.unwrap().into_iter().flatten().next().unwrap();
    assert_eq!(
        (totals.scored, totals.counted, totals.kept, totals.parts),
        (known.count, known.samples, known.kept, ranked.samples.totals.parts)
    );
    for (sums, summary) in sums.iter().zip(&ranked.summaries) {
        let mean = summary.as_ref().map(|summary| summary.mean);
        assert_eq!((sums.count > 0).then(|| sums.mean()), mean);
    }
    let (own, mut numbers) = (ranked.rule(criteria, file), Vec::new());
    gathered
        .visit(gathered.groups[&value], &stop, |sample| {
            let keeps = |rule: &Rule| {
                let sample_state = rule.sample_state(criteria, sample.values);
                rule.keeps(criteria, sample_state, sample.tokens, sample.number)
            };
            numbers.push((keeps(&own), keeps(&rule)));
            Ok(())
        })
        .unwrap();
    assert!(numbers.iter().all(|(before, now)| before == now));
    let moved = drift::compare_group(&known, std::iter::empty(), &totals);
    assert!(moved.stability_index.is_none_or(|index| index == 0.0));
}

/// Statistics, bounds, scores and decisions of fixed samples, for every standardisation and every kind of amount.
#[test]
fn a_changed_selection_has_a_new_version() {
    let mut state = 7_u32;
    let mut next = |below: u32| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) % below
    };
    let samples: Vec<Drawn> = (0..400)
        .map(|_| {
            let values = [next(1000), next(1000), next(1000)].map(|value| f64::from(value) / 700.0);
            (next(3) as u8, u64::from(next(30)), values)
        })
        .collect();
    let guards = r#""guards": [{"statistic": "2", "max": 1.2}, {"statistic": "1", "min_quantile": 0.1, "weigh": "tokens"}]"#;
    let amounts = [
        r#""keep_fraction": 0.3"#,
        r#""keep_tokens": 900"#,
        r#""min_score": 0.1"#,
        r#""budgets": [{"group": "a", "max_tokens": 9, "keep_tokens": 90}, {"min_tokens": 5, "keep_tokens": 300}]"#,
    ];
    let mut numbers = Vec::new();
    for standardise in [Standardise::ZScore, Standardise::MinMax, Standardise::Percentile] {
        for (amount, combine) in amounts.into_iter().zip([Combine::Sum, Combine::Least].repeat(2)) {
            let criteria = criteria(standardise, combine, &format!("{{{guards}, {amount}}}"));
            let gathered = gathered(&criteria, &samples, 64);
            let (ranked, file, _) = ranked(&criteria, &gathered);
            for (name, ranked) in &ranked {
                let rule = ranked.rule(&criteria, &file);
                numbers.extend(bits(&ranked.samples.deciles));
                let bounds = rule.bounds.iter().flat_map(|bounds| [bounds.low, bounds.high]);
                numbers.extend(bits(&bounds.flatten().collect::<Vec<_>>()));
                let visited = gathered.visit(
                    gathered.groups[&name.map(str::to_owned)],
                    &Stop::default(),
                    |sample| {
                        let sample_state = rule.sample_state(&criteria, sample.values);
                        let keep =
                            rule.keeps(&criteria, sample_state, sample.tokens, sample.number);
                        numbers.extend([sample_state.score().to_bits(), u64::from(keep)]);
                        Ok(())
                    },
                );
                visited.unwrap();
            }
        }
    }
    let fold = |digest: u64, bits: u64| (digest ^ bits).wrapping_mul(0x0100_0000_01B3);
    let digest = numbers.into_iter().fold(0xCBF2_9CE4_8422_2325, fold);
    let hint = "raise SELECTION_VERSION: the same statistics are selected differently than before";
    assert_eq!((SELECTION_VERSION, digest), (2, 13_852_370_210_509_888_314), "{hint}");
}

/// Few different numbers, so that many are equal, and some that are not finite.
fn any_value() -> impl Strategy<Value = f64> {
    prop_oneof![
        8 => (-3_i8..4).prop_map(|value| f64::from(value) / 7.0),
        4 => -1.0_f64..1.0,
        1 => prop::sample::select(vec![f64::NAN, f64::INFINITY, f64::NEG_INFINITY, -0.0]),
    ]
}

fn any_samples(max: usize) -> impl Strategy<Value = Vec<Drawn>> {
    prop::collection::vec((0_u8..3, 0_u64..30, prop::array::uniform3(any_value())), 0..max)
}

fn any_guards() -> impl Strategy<Value = String> {
    prop::sample::select(vec![
        "",
        r#"{"statistic": "2", "max": 0.2}"#,
        r#"{"statistic": "2", "max": -9}"#,
        r#"{"statistic": "0", "max": 0}, {"statistic": "2", "min": -0.2}"#,
        r#"{"statistic": "0", "min_quantile": 0.2, "max_quantile": 0.8}"#,
        r#"{"statistic": "2", "min_quantile": 0, "max_quantile": 1},
           {"statistic": "1", "min": -0.3, "max_quantile": 0.5, "weigh": "tokens"}"#,
    ])
    .prop_map(str::to_owned)
}

fn any_amount() -> impl Strategy<Value = String> {
    prop_oneof![
        Just(String::new()),
        (0_u32..=20).prop_map(|share| format!(r#", "keep_fraction": {}"#, f64::from(share) / 20.0)),
        (0_u64..400).prop_map(|tokens| format!(r#", "keep_tokens": {tokens}"#)),
        Just(r#", "keep_tokens": {"a": 40, "b": 18446744073709551615}"#.to_owned()),
        Just(r#", "min_score": 0.1"#.to_owned()),
        (0_u64..200).prop_map(|tokens| format!(
            r#", "budgets": [{{"group": "a", "max_tokens": 9, "keep_tokens": {tokens}}},
                             {{"min_tokens": 5, "max_tokens": 20, "keep_tokens": 60}}]"#
        )),
    ]
}

fn any_standardise() -> impl Strategy<Value = (Standardise, Combine)> {
    let standardise = [Standardise::ZScore, Standardise::MinMax, Standardise::Percentile];
    let combine = prop::sample::select(vec![Combine::Sum, Combine::Least]);
    (prop::sample::select(standardise.to_vec()), combine)
}

proptest! {
    #[test]
    fn selection_through_files_equals_the_one_in_memory(
        samples in any_samples(120), unit in 1_usize..40, guards in any_guards(), amount in any_amount(),
        (standardise, combine) in any_standardise(),
    ) {
        let filter = format!(r#"{{"guards": [{guards}]{amount}}}"#);
        check(&criteria(standardise, combine, &filter), &samples, unit);
    }
}

proptest! {
    // Groups with more samples than are sorted in memory.
    #![proptest_config(ProptestConfig::with_cases(6))]

    #[test]
    fn selection_of_many_samples_equals_the_one_in_memory(
        drawn in any_samples(40), seed in any::<u64>(), guards in any_guards(), amount in any_amount(),
        (standardise, combine) in any_standardise(),
    ) {
        prop_assume!(!drawn.is_empty());
        let filter = format!(r#"{{"guards": [{guards}]{amount}}}"#);
        let mut state = seed;
        let samples: Vec<Drawn> = (0..15_000)
            .map(|_| {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                let (group, tokens, mut values) = drawn[(state >> 33) as usize % drawn.len()];
                values[(state >> 60) as usize % 3] += f64::from((state >> 40) as u16 >> 4);
                (group, tokens, values)
            })
            .collect();
        check(&criteria(standardise, combine, &filter), &samples, 1000);
    }
}

#[test]
fn skipped_samples_count_for_keep_fraction() {
    let guard = r#"{"statistic": "2", "max": 0.5, "before": "expensive"}"#;
    let filter = format!(r#"{{"guards": [{guard}], "keep_fraction": 0.5}}"#);
    let criteria = criteria(Standardise::MinMax, Combine::Sum, &filter);
    // The second statistic is skipped for the first two; the third lacks it for another reason.
    let skipped = |far| (0, 1, [far, f64::NAN, 0.9]);
    let samples = [
        skipped(9.0),
        skipped(8.0),
        (0, 1, [7.0, f64::NAN, 0.1]),
        (0, 1, [6.0, 0.0, 0.1]),
        (0, 1, [5.0, 0.0, 0.1]),
    ];
    let gathered = gathered(&criteria, &samples, 5);
    let (ranked, _, kept) = ranked(&criteria, &gathered);
    assert_eq!(kept, [2], "half of four");
    assert_eq!((ranked[&None].samples.totals.scored, ranked[&None].samples.totals.counted), (2, 4));
    let summary = ranked[&None].summaries[0].unwrap();
    assert_eq!((summary.min, summary.max), (5.0, 7.0), "the third passes and has this statistic");
}

/// Returns the score of each sample of one group.
fn scores(standardise: Standardise, filter: &str, samples: &[Drawn]) -> Vec<f64> {
    let criteria = criteria(standardise, Combine::Sum, filter);
    let gathered = gathered(&criteria, samples, 5);
    let (ranked, file, _) = ranked(&criteria, &gathered);
    let rule = ranked[&None].rule(&criteria, &file);
    let score = |(_, _, values): &Drawn| rule.sample_state(&criteria, values).score();
    samples.iter().map(score).collect()
}

#[test]
fn a_rejected_sample_is_scored_on_the_scale_of_those_that_pass() {
    let filter = r#"{"guards": [{"statistic": "2", "max": 0.5}]}"#;
    // The second statistic is constant; the last two samples are rejected.
    let samples = [
        (0, 1, [1.0, 0.0, 0.0]),
        (0, 1, [3.0, 0.0, 0.5]),
        (0, 1, [5.0, 0.0, 0.9]),
        (0, 1, [-9.0, 0.0, 0.9]),
    ];
    let is = |standardise, expected: [f64; 4]| {
        let found = scores(standardise, filter, &samples);
        for (found, expected) in found.iter().zip(expected) {
            assert!((found - expected).abs() < 1e-12, "{standardise:?}: {found} {expected}");
        }
    };
    is(Standardise::Percentile, [0.0, 0.5, 0.75, -0.25]);
    is(Standardise::MinMax, [-0.25, 0.75, 1.75, -5.25]);
    let deviation = 2.0_f64.sqrt();
    is(Standardise::ZScore, [-1.0, 1.0, 3.0, -11.0].map(|of| of / deviation));
    // If no sample passes, there is no scale.
    let filter = filter.replace("0.5", "-1");
    let found = scores(Standardise::ZScore, &filter, &samples);
    assert!(found.iter().all(|score| score.is_nan()), "{found:?}");
}

#[test]
fn a_guard_before_a_measure_does_not_affect_scores_without_that_measure() {
    let guard = r#"{"statistic": "2", "max": 0.5, "before": "expensive"}"#;
    let filter = format!(r#"{{"guards": [{guard}]}}"#);
    let samples = [
        (0, 1, [1.0, 0.0, 0.0]),
        (0, 1, [3.0, 0.0, 0.5]),
        (0, 1, [2.0, 0.0, 0.9]),
        (0, 1, [2.0, f64::NAN, 0.9]),
    ];
    let found = scores(Standardise::MinMax, &filter, &samples);
    assert!((found[2] - 0.25).abs() < 1e-12, "no statistic of the score is missing: {found:?}");
    assert!(found[3].is_nan(), "one of them was not measured");
}

#[test]
fn sample_without_a_guard_statistic_does_not_affect_scales() {
    let filter = r#"{"guards": [{"statistic": "2", "max": 0.5}]}"#;
    let samples = [(0, 1, [1.0, 0.0, 0.0]), (0, 1, [3.0, 0.0, 0.5]), (0, 1, [99.0, 0.0, f64::NAN])];
    let found = scores(Standardise::MinMax, filter, &samples);
    assert_eq!(bits(&found[..2]), bits(&[-0.25, 0.75]));
    assert!(found[2].is_nan());
}

#[test]
fn a_signal_ends_a_selection_between_two_samples() {
    let criteria = criteria(Standardise::ZScore, Combine::Sum, r#"{"keep_fraction": 0.5}"#);
    let gathered = gathered(&criteria, &[(0, 1, [0.0; 3]); 9], 3);
    let stopped = Stop::after(15);
    assert!(gathered.visit(0, &stopped, |_| panic!("a sample was visited")).is_err());
}

#[test]
fn optional_term_without_values_is_ignored() {
    let guard = r#"{"guards": [{"statistic": "2", "max": 0.5}]}"#;
    let mut criteria = criteria(Standardise::Percentile, Combine::Least, guard);
    criteria.terms[1].optional = true;
    let samples =
        [(0, 1, [1.0, f64::NAN, 0.0]), (0, 1, [3.0, f64::NAN, 0.5]), (0, 1, [3.0, f64::NAN, 0.9])];
    let gathered = gathered(&criteria, &samples, 5);
    let (ranked, file, _) = ranked(&criteria, &gathered);
    let ranked = &ranked[&None];
    assert!(ranked.summaries[1].is_none() && ranked.samples.totals.scored == 2);
    let rule = ranked.rule(&criteria, &file);
    let score = |(_, _, values): &Drawn| rule.sample_state(&criteria, values).score();
    assert_eq!(samples.iter().map(score).collect::<Vec<_>>(), [0.25, 0.75, 0.75]);
    check_calibrated(&criteria, &gathered, None, ranked, &file);
}

#[test]
fn a_calibration_with_samples_that_lack_an_optional_term_is_consistent() {
    let mut criteria = criteria(Standardise::Percentile, Combine::Least, "{}");
    criteria.terms[1].optional = true;
    let samples = [(0, 1, [1.0, f64::NAN, 0.0]), (0, 1, [3.0, 2.0, 0.5]), (0, 1, [4.0, 5.0, 0.9])];
    let gathered = gathered(&criteria, &samples, 5);
    let (ranked, file, _) = ranked(&criteria, &gathered);
    assert_eq!(ranked[&None].samples.totals.scored, 3);
    check_calibrated(&criteria, &gathered, None, &ranked[&None], &file);
}
