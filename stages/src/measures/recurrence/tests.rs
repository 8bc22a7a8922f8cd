//! Compares the measure with a slow, literal implementation of its definition, and tests the settings.

use proptest::prelude::*;

use super::*;

/// Computes the definition of `tests/recurrence_cases.json`, sentence by sentence. Cost: quadratic.
fn by_definition(ids: &[u32], k: usize) -> (RecurrenceCounts, Vec<u32>, Vec<bool>) {
    let tokens = ids.len();
    let last_earlier = |end: usize, length: usize| {
        let gram = |end: usize| &ids[end + 1 - length..=end];
        (end + 1 >= length).then(|| (length - 1..end).rev().find(|&p| gram(p) == gram(end)))?
    };
    let d: Vec<usize> =
        (0..tokens).map(|t| last_earlier(t, 3).map_or(0, |earlier| t - earlier)).collect();
    let copied = |t: usize| {
        (t.max(7)..=(t + 7).min(tokens - 1))
            .any(|e| last_earlier(e, 8).is_some_and(|earlier| 16 * (e - earlier) >= tokens))
    };
    let c: Vec<bool> = (0..tokens).map(copied).collect();
    let mut r = vec![0; tokens];
    for t in 0..tokens {
        r[t] = match d[t] {
            0 => 0,
            distance if t > 0 && d[t - 1] == distance => r[t - 1] + 1,
            _ => 1,
        };
    }
    let scored: Vec<usize> = (0..tokens).filter(|t| 2 * t >= tokens).collect();
    let count = |which: &dyn Fn(usize) -> bool| scored.iter().filter(|t| which(**t)).count() as u64;
    let bit_length = |number: usize| (usize::BITS - number.leading_zeros()) as usize;
    let bins = |which: &dyn Fn(usize) -> bool| {
        let mut bins = vec![0; 1 + bit_length(tokens.saturating_sub(1))];
        scored.iter().filter(|t| which(**t)).for_each(|&t| bins[bit_length(d[t])] += 1);
        bins
    };
    let chunk = |t: usize| 32 * t / tokens;
    let mut links: Vec<(usize, usize)> = scored
        .iter()
        .filter(|&&t| d[t] >= k && !c[t])
        .map(|&t| (chunk(t - d[t]), chunk(t)))
        .collect();
    links.sort_unstable();
    links.dedup();
    let positions = |wanted: usize| {
        let mut positions = (0..tokens).filter(|t| chunk(*t) == wanted);
        positions.next().map(|first| (first, positions.next_back().unwrap_or(first)))
    };
    let chunks: Vec<(usize, usize)> = (0..32).filter_map(positions).collect();
    let possible = chunks.iter().flat_map(|(first, _)| {
        chunks.iter().filter(move |(_, last)| last >= &(first + k) && 2 * last >= tokens)
    });
    let counts = RecurrenceCounts {
        tokens: tokens as u64,
        scored: scored.len() as u64,
        min_distance: k as u64,
        copy_distance: tokens.div_ceil(16) as u64,
        far: count(&|t| d[t] >= k && !c[t]),
        far_with_copies: count(&|t| d[t] >= k),
        far_first4: count(&|t| d[t] >= k && r[t] <= 4),
        copied: count(&|t| c[t]),
        near: count(&|t| d[t] > 0 && 16 * d[t] < tokens && !c[t]),
        bins: bins(&|_| true),
        bins_new: bins(&|t| !c[t]),
        bins_first4: bins(&|t| r[t] <= 4),
        linked_pairs: links.len() as u64,
        possible_pairs: possible.count() as u64,
    };
    (counts, d.iter().map(|&distance| distance as u32).collect(), c)
}

/// Computes the statistics over the whole window by their definition. Cost: cubic.
fn window_counts_by_definition(ids: &[u32]) -> WindowCounts {
    let tokens = ids.len();
    let gram = |end: usize, length: usize| &ids[end + 1 - length..=end];
    let distance = |t: usize| {
        let earlier = (2..t).rev().find(|&p| gram(p, 3) == gram(t, 3));
        earlier.map(|p| t - p)
    };
    let distances: Vec<_> = (0..tokens).filter_map(distance).collect();
    let of_period = |p: usize| distances.iter().filter(|d| **d == p).count() as u64;
    let hit: Vec<bool> =
        (0..tokens).map(|e| e >= 7 && (7..e).any(|p| gram(p, 8) == gram(e, 8))).collect();
    let mut repeated = vec![false; tokens];
    for a in (0..tokens).filter(|&a| hit[a] && !hit[a - 1]) {
        let b = (a..tokens).find(|&b| !hit[b]).unwrap_or(tokens);
        if b - a >= 9 {
            repeated[a - 7..b].fill(true);
        }
    }
    let count = |id: u32| ids.iter().filter(|other| **other == id).count();
    let pairs = (0..tokens).flat_map(|one| (one + 1..tokens).map(move |other| (one, other)));
    let pairs: Vec<usize> = pairs
        .filter(|&(one, other)| ids[one] == ids[other] && (2..=6).contains(&count(ids[one])))
        .map(|(one, other)| other - one)
        .collect();
    WindowCounts {
        tokens: tokens as u64,
        periodic: (2..tokens).map(of_period).max().unwrap_or(0),
        repeated: repeated.iter().filter(|is| **is).count() as u64,
        frequent: ids.iter().filter(|id| count(**id) >= 2.max(tokens / 128)).count() as u64,
        midrange_pairs: pairs.len() as u64,
        midrange_hits: pairs.iter().filter(|&g| 32 * g >= tokens && 8 * g < tokens).count() as u64,
    }
}

/// Windows with something to find: few different ids, copies at any distance, runs and periods.
fn window() -> impl Strategy<Value = Vec<u32>> {
    let fresh = (1_u32..40).prop_flat_map(|ids| prop::collection::vec(0..ids, 0..60));
    let wide = prop::collection::vec(prop_oneof![any::<u32>(), Just(u32::MAX)], 0..60);
    let copy = (any::<prop::sample::Index>(), 1_usize..30, 1_usize..5);
    let pieces = prop::collection::vec((prop_oneof![fresh, wide], copy), 0..6);
    pieces.prop_map(|pieces| {
        let mut ids = Vec::new();
        for (fresh, (start, length, times)) in pieces {
            ids.extend(fresh);
            if !ids.is_empty() {
                let start = start.index(ids.len());
                let copied = ids[start..ids.len().min(start + length)].to_vec();
                (0..times).for_each(|_| ids.extend(&copied));
            }
        }
        ids
    })
}

fn distance() -> impl Strategy<Value = FarDistance> {
    prop_oneof![
        3 => Just(FarDistance::Fraction(Decimal(0.125))),
        1 => (1_u32..1000).prop_map(|thousandths| FarDistance::Fraction(Decimal(f64::from(thousandths) / 1e3))),
        1 => (1_u32..300).prop_map(FarDistance::Tokens),
    ]
}

fn copied_tokens(scan: &RecurrenceScan, tokens: usize) -> Vec<bool> {
    (0..tokens).map(|token| scan.is_copied(token)).collect()
}

proptest! {
    #[test]
    fn counts_match_the_definition(windows in prop::collection::vec(window(), 1..4), distance in distance()) {
        let mut scan = RecurrenceScan::default();
        for ids in windows {
            let far = distance.in_window(ids.len() as u64);
            let got = RecurrenceCounts::new(&ids, far, &mut scan);
            let (expected, distances, copied) = by_definition(&ids, far as usize);
            prop_assert_eq!(&got, &expected, "{:?}", ids);
            let (got, of_window) = RecurrenceCounts::with_window(&ids, far, &mut scan);
            prop_assert_eq!(&got, &expected, "{:?}", ids);
            prop_assert_eq!(of_window, window_counts_by_definition(&ids), "{:?}", ids);
            prop_assert_eq!(scan.distances(), &distances);
            // The copies of a scored token do not depend on the other tokens.
            let known = |scan: &RecurrenceScan| copied_tokens(scan, ids.len());
            let first = ids.len().div_ceil(2);
            prop_assert_eq!(&known(&scan)[first..], &copied[first..]);
            scan.window(&ids, ids.len().div_ceil(16), 0);
            prop_assert_eq!(known(&scan), copied);
        }
    }

    #[test]
    fn renaming_tokens_changes_nothing(ids in window(), distance in distance()) {
        // Odd multipliers are bijections of 32 bits.
        let renamed: Vec<u32> = ids.iter().map(|id| id.wrapping_mul(0x9e37_79b1)).collect();
        let far = distance.in_window(ids.len() as u64);
        let counts = |ids: &[u32]| RecurrenceCounts::with_window(ids, far, &mut RecurrenceScan::default());
        prop_assert_eq!(counts(&ids), counts(&renamed));
    }
}

fn values(settings: &Recurrence, ids: &[u32]) -> Vec<Value> {
    let window = Window { ids, text: None, text_half: None, document: &[], evidence: &[] };
    settings.statistics(&window).unwrap().0
}

#[test]
fn values_are_in_the_order_of_the_columns() {
    let settings = Recurrence::default();
    // Sixteen tokens that recur at 64 of 128, then a trigram that recurs at 40.
    let mut ids: Vec<u32> = (0..128).collect();
    ids.copy_within(16..32, 80);
    ids.copy_within(60..63, 100);
    let values = values(&settings, &ids);
    let named: Vec<_> =
        settings.columns().iter().map(|column| column.name.to_string()).zip(values).collect();
    let share = |name: &str, tokens: f64| (name.to_owned(), Value::Number(tokens / 64.0));
    assert_eq!(
        named[..6],
        [
            share("far_recurrence", 1.0),
            share("near_recurrence", 0.0),
            ("link_coverage".to_owned(), Value::Number(1.0 / 328.0)),
            share("copy_share", 16.0),
            share("far_first4_share", 5.0),
            share("far_with_copies_share", 15.0),
        ]
    );
    let histogram = vec![49.0, 0.0, 0.0, 0.0, 0.0, 0.0, 1.0, 14.0];
    assert_eq!(named[6], ("recurrence_histogram".to_owned(), Value::Numbers(histogram)));
    assert_eq!(named[7], ("recurrence_distance".to_owned(), Value::Count(16)));
    let of_window = |name: &str, share: f64| (name.to_owned(), Value::Number(share));
    assert_eq!(
        named[8..],
        [
            of_window("periodic_share", 14.0 / 128.0),
            of_window("repeated_share", 16.0 / 128.0),
            ("midrange_share".to_owned(), Value::Null),
            of_window("frequent_token_share", 38.0 / 128.0),
        ]
    );
}

#[test]
fn definitions_at_their_bounds() {
    let value = |ids: &[u32], name: &str| {
        let settings = Recurrence::default();
        let index = settings.columns().iter().position(|column| column.name == name).unwrap();
        values(&settings, ids)[index].clone()
    };
    // Eight tokens that occur far back, and last 16 or 15 of 256 tokens back.
    for (last, copied) in [(16, 8.0), (15, 0.0)] {
        let mut ids: Vec<u32> = (0..256).collect();
        ids.copy_within(0..8, 140 - last);
        ids.copy_within(0..8, 140);
        let second_half = (140 - last..148 - last).filter(|at| *at >= 128).count() as f64;
        let expected = Value::Number((copied + second_half) / 128.0);
        assert_eq!(value(&ids, "copy_share"), expected, "{last}");
    }
    // An id counts from two of 383 tokens, and from three of 384.
    for (tokens, counted) in [(383, 2.0), (384, 0.0)] {
        let mut ids: Vec<u32> = (0..tokens).collect();
        ids[200] = 0;
        let expected = Value::Number(counted / f64::from(tokens));
        assert_eq!(value(&ids, "frequent_token_share"), expected, "{tokens}");
    }
}

#[test]
fn a_window_without_a_second_half_has_nulls() {
    for ids in [&[][..], &[7]] {
        let values = values(&Recurrence::default(), ids);
        assert!(values[..6].iter().all(|value| *value == Value::Null), "{values:?}");
        assert_eq!(values[6..8], [Value::Numbers(vec![0.0]), Value::Count(ids.len() as u64)]);
    }
    // Three tokens are the minimum for a trigram, sixteen for a repeated 8-gram.
    let of_window = |ids: &[u32]| values(&Recurrence::default(), ids)[8..].to_vec();
    let [zero, one] = [0.0, 1.0].map(Value::Number);
    assert_eq!(of_window(&[]), [Value::Null, Value::Null, Value::Null, Value::Null]);
    assert_eq!(of_window(&[7, 7]), [zero.clone(), zero.clone(), Value::Null, one]);
    assert_eq!(of_window(&[7; 15])[1], zero);
    assert_eq!(of_window(&[7; 17])[1], Value::Number(16.0 / 17.0));
}

#[test]
fn thirty_pairs_have_a_midrange_share() {
    // Thirty ids that occur twice, at a distance of 40 in 1,024 tokens; then 29.
    let window = |paired: u32| {
        let mut ids: Vec<u32> = (0..1024).collect();
        ids.copy_within(0..paired as usize, 40);
        values(&Recurrence::default(), &ids)[10].clone()
    };
    assert_eq!((window(30), window(29)), (Value::Number(1.0), Value::Null));
}

#[test]
fn a_distance_of_the_whole_window_has_no_links() {
    let settings = Recurrence { min_distance_tokens: Some(64), ..Recurrence::default() };
    assert_eq!(
        settings.min_tokens(),
        65,
        "the engine drops shorter windows; an evaluation refuses them"
    );
    let values = values(&settings, &[7; 64]);
    assert_eq!((&values[0], &values[2]), (&Value::Number(0.0), &Value::Null));
}

#[test]
fn equivalent_settings_have_the_same_identity() {
    let settings = |text| serde_json::from_str::<Recurrence>(text).unwrap();
    let default = settings("{}");
    assert_eq!(
        default.facts(),
        settings(r#"{"min_distance_fraction": 0.125, "name": "near"}"#).facts()
    );
    assert_eq!(settings(r#"{"name": "near"}"#).name(), Some("near"));
    for other in [r#"{"min_distance_fraction": 0.25}"#, r#"{"min_distance_tokens": 1024}"#] {
        assert_ne!(default.facts(), settings(other).facts());
    }
    assert!(serde_json::from_str::<Recurrence>(r#"{"min_distance": 4}"#).is_err());
}
