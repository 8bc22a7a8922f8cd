//! Measures compared with results from other implementations: handmade cases that define recurrence, and windows of the
//! shared corpora.

#[path = "measures/corpora.rs"]
mod corpora;

use std::collections::BTreeMap;
use std::error::Error;
use std::fs;

use corpora::{shared, texts, token_bytes, tokenizer};
use longsift_kernels::recurrence::{RecurrenceCounts, RecurrenceScan, WindowCounts};
use longsift_stages::contract::{
    Decimal, FarDistance, Kind, Measure, StatisticValues, Value, Window, hex,
};
use longsift_stages::first_layer_attention::FirstLayerAttention;
use longsift_stages::measures::lexical::TextCounts;
use longsift_stages::measures::recurrence::Recurrence;
use longsift_stages::measures::{Compression, Lexical};
use longsift_stages::score::terms::{Combine, Scale, Scorer, Standardise, Term};
use serde::Deserialize;
use sha2::{Digest, Sha256};

type Outcome<T> = Result<T, Box<dyn Error>>;

/// A file of cases that define recurrence.
#[derive(Deserialize)]
struct Reference {
    definition: String,
    cases: Vec<Case>,
    #[serde(default)]
    windows: Vec<CorpusWindow>,
}

#[derive(Deserialize)]
struct Case {
    name: String,
    ids: Vec<u32>,
    min_distance_tokens: Option<u32>,
    expected: Expected,
}

#[derive(Deserialize)]
struct CorpusWindow {
    data_id: String,
    file: String,
    tokenizer: String,
    token_start: usize,
    window_tokens: usize,
    ids_sha256: String,
    first_ids: Vec<u32>,
    expected: Expected,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Expected {
    tokens: u64,
    scored: u64,
    min_distance: u64,
    copy_distance: u64,
    far: u64,
    far_with_copies: u64,
    far_first4: u64,
    copied: u64,
    near: u64,
    bins: Vec<u64>,
    bins_new: Vec<u64>,
    bins_first4: Vec<u64>,
    linked_pairs: u64,
    possible_pairs: u64,
    far_recurrence: Option<f64>,
    near_recurrence: Option<f64>,
    link_coverage: Option<f64>,
    copy_share: Option<f64>,
    far_first4_share: Option<f64>,
    far_with_copies_share: Option<f64>,
    d: Option<Vec<u32>>,
    c: Option<Vec<u8>>,
    r: Option<Vec<u32>>,
}

/// Compares every whole number exactly, and every share bit for bit.
fn check(
    name: &str,
    ids: &[u32],
    min_distance_tokens: Option<u32>,
    expected: Expected,
) -> Outcome<()> {
    let settings = Recurrence { min_distance_tokens, ..Recurrence::default() };
    let mut scan = RecurrenceScan::default();
    let counts = settings.counts(ids, &mut scan);
    assert_eq!(
        counts,
        RecurrenceCounts {
            tokens: expected.tokens,
            scored: expected.scored,
            min_distance: expected.min_distance,
            copy_distance: expected.copy_distance,
            far: expected.far,
            far_with_copies: expected.far_with_copies,
            far_first4: expected.far_first4,
            copied: expected.copied,
            near: expected.near,
            bins: expected.bins.clone(),
            bins_new: expected.bins_new,
            bins_first4: expected.bins_first4,
            linked_pairs: expected.linked_pairs,
            possible_pairs: expected.possible_pairs,
        },
        "{name}"
    );
    if let (Some(d), Some(c), Some(r)) = (expected.d, expected.c, expected.r) {
        scan.window(ids, counts.copy_distance as usize, 0);
        let copied = |token: usize| u8::from(scan.is_copied(token));
        assert_eq!(scan.distances(), d, "{name}");
        assert_eq!((0..ids.len()).map(copied).collect::<Vec<_>>(), c, "{name}");
        let runs = d.iter().zip(&r).enumerate().all(|(t, (&distance, &run))| {
            let goes_on = t > 0 && d[t - 1] == distance;
            run == if distance == 0 { 0 } else { 1 + u32::from(goes_on) * r[t - 1] }
        });
        assert!(runs, "{name}: the runs that `bins_first4` counts");
    }
    let values = values(&settings, ids, None)?;
    let bits = |share: Option<f64>| share.map(f64::to_bits);
    let shares = [
        expected.far_recurrence,
        expected.near_recurrence,
        expected.link_coverage,
        expected.copy_share,
        expected.far_first4_share,
        expected.far_with_copies_share,
    ];
    for ((column, value), share) in settings.columns().iter().zip(&values).zip(shares) {
        assert_eq!(bits(value.finite()), bits(share), "{name}: {}", column.name);
    }
    let bins = expected.bins.iter().map(|&tokens| tokens as f64).collect();
    assert_eq!(values[6..8], [Value::Numbers(bins), Value::Count(expected.min_distance)], "{name}");
    Ok(())
}

/// `text` is the bytes, and the start of the second half.
fn values(measure: &dyn Measure, ids: &[u32], text: Option<(&[u8], usize)>) -> Outcome<Vec<Value>> {
    let (text, text_half) = text.unzip();
    Ok(measure.statistics(&Window { ids, text, text_half, document: &[], evidence: &[] })?.0)
}

fn own_reference() -> Outcome<Reference> {
    Ok(serde_json::from_str(include_str!("recurrence_cases.json"))?)
}

fn shared_reference() -> Outcome<Reference> {
    let cases = fs::read(shared("conformance/far_recurrence_cases.json"))?;
    Ok(serde_json::from_slice(&cases)?)
}

#[test]
fn statistics_match_their_column_declarations() -> Outcome<()> {
    let (ids, text): (Vec<u32>, _) =
        ((0..900).map(|id| id * id % 397).collect(), b"a b a b".repeat(99));
    let measures: [&dyn Measure; 3] =
        [&Recurrence::default(), &Compression::default(), &Lexical::default()];
    for measure in measures {
        let (columns, values) = (measure.columns(), values(measure, &ids, Some((&text, 300)))?);
        let kind = |value: &Value| match value {
            Value::Null => None,
            Value::Number(_) => Some(Kind::Number),
            Value::Count(_) => Some(Kind::Count),
            Value::Numbers(_) => Some(Kind::Numbers),
        };
        let declared: Vec<_> = columns.iter().map(|column| Some(column.kind)).collect();
        assert_eq!(values.iter().map(kind).collect::<Vec<_>>(), declared, "{measure:?}");
        let mut bytes = Vec::new();
        StatisticValues(values.clone()).encode(&mut bytes);
        assert_eq!(
            StatisticValues::decode(&bytes, &columns),
            Some(StatisticValues(values)),
            "{measure:?}"
        );
    }
    Ok(())
}

#[test]
fn statistic_names_are_unique() {
    let measures: [&dyn Measure; 4] = [
        &FirstLayerAttention::default(),
        &Recurrence::default(),
        &Compression::default(),
        &Lexical::default(),
    ];
    let mut names: Vec<_> =
        measures.iter().flat_map(|measure| measure.columns()).map(|column| column.name).collect();
    let is_plain = |name: &str| name.bytes().all(|b| matches!(b, b'a'..=b'z' | b'0'..=b'9' | b'_'));
    assert!(names.iter().all(|name| is_plain(name)), "{names:?}");
    let written = names.len();
    names.sort_unstable();
    names.dedup();
    assert_eq!((names.len(), written), (25, 25));
}

#[test]
fn recurrence_matches_the_handmade_cases() -> Outcome<()> {
    let cases = own_reference()?.cases;
    assert_eq!(cases.len(), 59);
    for Case { name, ids, min_distance_tokens, expected } in cases {
        check(&name, &ids, min_distance_tokens, expected)?;
    }
    Ok(())
}

#[test]
fn a_distance_in_tokens_equals_the_same_fraction() -> Outcome<()> {
    for Case { name, ids, min_distance_tokens, expected } in own_reference()?.cases {
        if min_distance_tokens.is_none() {
            let tokens = ids.len() as u64;
            let count = |distance: FarDistance| {
                RecurrenceCounts::new(
                    &ids,
                    distance.in_window(tokens),
                    &mut RecurrenceScan::default(),
                )
            };
            let fraction = FarDistance::Fraction(Decimal(0.125));
            let tokens = FarDistance::Tokens(u32::try_from(expected.min_distance)?);
            assert_eq!(count(tokens), count(fraction), "{name}");
        }
    }
    Ok(())
}

#[test]
#[cfg_attr(not(longsift_shared), ignore = "needs ../shared, a sibling of the repository")]
fn recurrence_matches_the_shared_cases() -> Outcome<()> {
    let shared = shared_reference()?;
    assert_eq!(shared.definition, own_reference()?.definition, "the repository copies another one");
    for Case { name, ids, min_distance_tokens, expected } in shared.cases {
        check(&name, &ids, min_distance_tokens, expected)?;
    }
    Ok(())
}

#[test]
#[cfg_attr(not(longsift_shared), ignore = "needs ../shared, a sibling of the repository")]
fn recurrence_matches_windows_of_the_shared_corpora() -> Outcome<()> {
    let windows = shared_reference()?.windows;
    assert_eq!(windows.len(), 10);
    for window in windows {
        let texts = texts(&window.file)?;
        let tokenizer = tokenizer(window.tokenizer.trim_start_matches("shared/"))?;
        let ids = tokenizer.encode(&texts[&window.data_id], usize::MAX)?.ids;
        let ids = &ids[window.token_start..][..window.window_tokens];
        assert_eq!(ids[..8], window.first_ids, "{}", window.data_id);
        let bytes: Vec<u8> = ids.iter().flat_map(|id| id.to_le_bytes()).collect();
        assert_eq!(hex(&Sha256::digest(bytes)), window.ids_sha256, "{}", window.data_id);
        check(&window.data_id, ids, None, window.expected)?;
    }
    Ok(())
}

/// Cases of the statistics that selections use.
#[derive(Deserialize)]
struct SelectionCases {
    definition: String,
    ids: Vec<IdsCase>,
    bytes: Vec<BytesCase>,
}

#[derive(Deserialize)]
struct IdsCase {
    name: String,
    ids: Vec<u32>,
    tokens: u64,
    periodic: u64,
    repeated: u64,
    frequent: u64,
    midrange_pairs: u64,
    midrange_hits: u64,
}

#[derive(Deserialize)]
struct BytesCase {
    name: String,
    bytes_hex: String,
    digit: usize,
    above_blank: usize,
    unbroken: usize,
    bytes: usize,
}

impl SelectionCases {
    fn own() -> Outcome<Self> {
        Ok(serde_json::from_str(include_str!("selection_statistics.json"))?)
    }

    /// Compares every whole number, and every statistic derived from them.
    fn check(self) -> Outcome<()> {
        let number = |is_defined: bool, count: u64, total: u64| {
            if is_defined { Value::Number(count as f64 / total as f64) } else { Value::Null }
        };
        for case in self.ids {
            let IdsCase { name, ids, tokens, periodic, repeated, frequent, .. } = case;
            let (midrange_pairs, midrange_hits) = (case.midrange_pairs, case.midrange_hits);
            let (_, counts) =
                Recurrence::default().all_counts(&ids, &mut RecurrenceScan::default());
            let expected = WindowCounts {
                tokens,
                periodic,
                repeated,
                frequent,
                midrange_pairs,
                midrange_hits,
            };
            assert_eq!(counts, expected, "{name}");
            let share = |count| number(tokens > 0, count, tokens);
            let midrange = number(midrange_pairs >= 30, midrange_hits, midrange_pairs);
            let values = values(&Recurrence::default(), &ids, None)?;
            let expected = [share(periodic), share(repeated), midrange, share(frequent)];
            assert_eq!(values[8..], expected, "{name}");
        }
        for BytesCase { name, bytes_hex, digit, above_blank, unbroken, bytes } in self.bytes {
            let byte = |at: usize| u8::from_str_radix(&bytes_hex[at..at + 2], 16);
            let text = (0..bytes_hex.len()).step_by(2).map(byte).collect::<Result<Vec<_>, _>>()?;
            assert_eq!(text.len(), bytes, "{name}");
            let expected = TextCounts { digits: digit, above_blank, unbroken };
            assert_eq!(TextCounts::new(&text), expected, "{name}");
            let share = |count: usize, total: usize| number(total > 0, count as u64, total as u64);
            let values = values(&Lexical::default(), &[], Some((&text, 0)))?;
            assert_eq!(values[1..], [share(digit, above_blank), share(unbroken, bytes)], "{name}");
        }
        Ok(())
    }
}

#[test]
fn selection_statistics_match_the_cases() -> Outcome<()> {
    let cases = SelectionCases::own()?;
    assert_eq!((cases.ids.len(), cases.bytes.len()), (19, 12));
    cases.check()
}

#[test]
#[cfg_attr(not(longsift_shared), ignore = "needs ../shared, a sibling of the repository")]
fn selection_statistics_match_the_shared_cases() -> Outcome<()> {
    let cases = fs::read(shared("conformance/selection_statistics.json"))?;
    let cases: SelectionCases = serde_json::from_slice(&cases)?;
    assert_eq!(
        cases.definition,
        SelectionCases::own()?.definition,
        "the repository copies another one"
    );
    assert_eq!((cases.ids.len(), cases.bytes.len()), (27, 18));
    cases.check()
}

/// Expected results of the evaluation protocol for whole windows of 2,048 tokens.
#[derive(Deserialize)]
struct Protocol {
    documents: Vec<Document>,
    #[serde(rename = "S2048")]
    windows: ProtocolWindows,
}

#[derive(Deserialize)]
struct Document {
    id: String,
    category: String,
    tokens: usize,
}

#[derive(Deserialize)]
struct ProtocolWindows {
    quantiles_of_whole: BTreeMap<String, [f64; 3]>,
}

/// Terms of an earlier `balanced-recurrence`, whose scores the shared results contain.
fn old_balanced_recurrence() -> Outcome<Vec<Term>> {
    let terms = r#"[
        {"statistic": "far_recurrence", "standardise": "percentile"},
        {"statistic": "link_coverage", "standardise": "percentile"},
        {"statistic": "near_recurrence", "offset": 0.2, "standardise": "percentile"},
        {"statistic": "copy_share", "weight": -1, "offset": 1.2, "standardise": "percentile"}
    ]"#;
    Ok(serde_json::from_str(terms)?)
}

/// Checks the statistics of every measure over 420 windows, their percentiles and the minimum of the earlier components
/// against another implementation.
#[test]
#[cfg_attr(not(longsift_shared), ignore = "needs ../shared, a sibling of the repository")]
fn all_measures_have_the_quantiles_of_the_shared_corpora() -> Outcome<()> {
    const TOKENS: usize = 2048;
    let protocol = fs::read(shared("conformance/evaluate_expected.json"))?;
    let protocol: Protocol = serde_json::from_slice(&protocol)?;
    let (encoder, token_bytes) = (tokenizer("models/mini")?, token_bytes("models/mini")?);
    let mut texts_by_id = texts("books.parquet")?;
    texts_by_id.append(&mut texts("code.parquet")?);
    texts_by_id.append(&mut texts("papers.parquet")?);

    let measures: [&dyn Measure; 3] =
        [&Recurrence::default(), &Compression::default(), &Lexical::default()];
    let mut by_category: BTreeMap<String, Vec<BTreeMap<String, f64>>> = BTreeMap::new();
    for Document { id, category, tokens } in protocol.documents {
        let ids = encoder.encode(&texts_by_id[&id], usize::MAX)?.ids;
        assert_eq!(ids.len(), tokens, "{id}");
        let windows = (tokens / TOKENS).min(4);
        for start in (0..windows).map(|window| window * (tokens / TOKENS) / windows * TOKENS) {
            let ids = &ids[start..start + TOKENS];
            let bytes_of = |ids: &[u32]| -> Vec<u8> {
                ids.iter().flat_map(|id| &token_bytes[*id as usize]).copied().collect()
            };
            let (text, half) = (bytes_of(ids), bytes_of(&ids[..TOKENS / 2]).len());
            let mut named = BTreeMap::new();
            for measure in measures {
                let values = values(measure, ids, Some((&text, half)))?;
                let scalars = measure.columns().into_iter().zip(values);
                named.extend(scalars.filter_map(|(column, value)| {
                    Some((column.name.into_owned(), value.finite()?))
                }));
            }
            by_category.entry(category.clone()).or_default().push(named);
        }
    }
    let (terms, combine) = (old_balanced_recurrence()?, Combine::Least);
    for windows in by_category.values_mut() {
        let column = |name: &str| windows.iter().map(|window| window[name]).collect::<Vec<_>>();
        let scale = |name: &str| Scale::new(&column(name), Standardise::Percentile);
        let scales: Vec<Scale> = terms.iter().map(|term| scale(&term.statistic)).collect();
        let scorer =
            Scorer::new(&terms, combine, Standardise::ZScore, &scales).ok_or("no scale")?;
        for window in windows {
            let values: Vec<f64> = terms.iter().map(|term| window[&term.statistic]).collect();
            window.insert("balanced_recurrence".to_owned(), scorer.score(&values));
        }
    }
    let windows: Vec<_> = by_category.into_values().flatten().collect();
    assert_eq!(windows.len(), 420);
    // By name in the protocol: the statistic, and whether the protocol negates it.
    let statistics = [
        ("far_recurrence", "far_recurrence", false),
        ("near_recurrence", "near_recurrence", false),
        ("link_coverage", "link_coverage", false),
        ("copy_share", "copy_share", false),
        ("far_first4_share", "far_first4_share", false),
        ("far_with_copies_share", "far_with_copies_share", false),
        ("unique_token_ratio_negated", "unique_token_share", true),
        ("gzip_ratio_negated", "gzip_ratio", true),
        ("zlib_gain", "deflate_gain", false),
        ("balanced_recurrence", "balanced_recurrence", false),
    ];
    for (expected, name, negated) in statistics {
        let sign = if negated { -1.0 } else { 1.0 };
        let mut values: Vec<f64> = windows.iter().map(|window| sign * window[name]).collect();
        values.sort_by(f64::total_cmp);
        for (quantile, expected) in
            [0.05, 0.5, 0.95].into_iter().zip(protocol.windows.quantiles_of_whole[expected])
        {
            let position = quantile * (values.len() - 1) as f64;
            let (below, share) = (values[position as usize], position.fract());
            let got = below + share * (values[position as usize + 1] - below);
            // The file has ten decimals.
            assert!((got - expected).abs() < 1e-9, "{name}, {quantile}: {got}, not {expected}");
        }
    }
    Ok(())
}
