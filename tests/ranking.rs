//! The kept samples, recomputed from the raw statistics by independent code: the definition, in plain double
//! precision.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use arrow_array::{ArrayRef, BinaryArray};

use crate::support::tables::{
    corpus, floats, integers, labels, optional_texts, read_parquet, read_scores, strings, table,
    texts, write_parquet,
};
use crate::support::{Pipeline, Tiny, Workspace, read_json};

/// Sample: its document, window, group, tokens and raw statistics.
#[derive(Clone, Debug)]
struct Sample {
    id: String,
    group: Option<String>,
    tokens: u64,
    strength: f64,
    variance: f64,
}

type Standardise = fn(&[f64]) -> Vec<f64>;

const GROUPS: [Option<&str>; 7] =
    [Some("a"), Some("b"), None, Some("a"), Some(""), Some("b"), Some("alone")];

/// Fifteen documents in three groups, one of rows without a group and one with a single document; two documents are
/// equal.
fn workspace() -> Workspace {
    let workspace = Workspace::new();
    Tiny::new().write(&workspace.path("model"));
    let lengths = [130, 64, 200, 64, 64, 330, 64, 128, 70, 260, 64, 128, 64];
    let plain = corpus("x", &lengths);
    let twins = corpus("twin", &[192]);
    let some =
        arrow_select::concat::concat_batches(&plain.schema(), [&plain, &twins, &twins]).unwrap();
    let groups: Vec<Option<&str>> = (0..some.num_rows())
        .map(|row| {
            if row > 12 {
                Some("a")
            } else if row == 6 {
                Some("alone")
            } else {
                GROUPS[row % 6]
            }
        })
        .collect();
    let ids = (0..some.num_rows()).map(|row| format!("{row:02}"));
    let input = table(&[
        ("id", strings(ids)),
        ("tokens", Arc::clone(some.column(1))),
        ("group", labels(&groups)),
    ]);
    write_parquet(&workspace.path("input/a.parquet"), &input, 4);
    workspace
}

/// All windows of the last run, in input order.
fn samples(workspace: &Workspace, within: bool) -> Vec<Sample> {
    let input = read_parquet(&workspace.path("input"));
    let groups: BTreeMap<String, Option<String>> =
        texts(&input, "id").into_iter().zip(optional_texts(&input, "group")).collect();
    let scores = read_scores(&workspace.path("out.run"));
    let ids = texts(&scores, "id");
    let (starts, ends) = (integers(&scores, "token_start"), integers(&scores, "token_end"));
    let strengths = floats(&scores, "dependency_strength");
    let variances = floats(&scores, "far_variance");
    (0..ids.len())
        .map(|row| Sample {
            id: ids[row].clone(),
            group: groups[&ids[row]].clone().filter(|_| within),
            tokens: (ends[row] - starts[row]) as u64,
            strength: strengths[row],
            variance: variances[row],
        })
        .collect()
}

fn z_scores(values: &[f64]) -> Vec<f64> {
    let n = values.len() as f64;
    let mean = values.iter().sum::<f64>() / n;
    let deviation = (values.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / (n - 1.0)).sqrt();
    let equal = values.iter().all(|value| value.to_bits() == values[0].to_bits());
    values.iter().map(|value| if equal { 0.0 } else { (value - mean) / deviation }).collect()
}

fn min_max(values: &[f64]) -> Vec<f64> {
    let min = values.iter().copied().fold(f64::INFINITY, f64::min);
    let max = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    values.iter().map(|v| if max > min { (v - min) / (max - min) } else { 0.5 }).collect()
}

/// The score of every sample.
fn scores(samples: &[Sample], standardise: Standardise, alpha: f64) -> Vec<f64> {
    let mut scores = vec![f64::NAN; samples.len()];
    for members in groups(samples).values() {
        let values = |value: fn(&Sample) -> f64| -> Vec<f64> {
            members.iter().map(|index| value(&samples[*index])).collect()
        };
        let strengths = standardise(&values(|sample| sample.strength));
        let variances = standardise(&values(|sample| sample.variance));
        for (position, index) in members.iter().enumerate() {
            scores[*index] = strengths[position] - alpha * variances[position];
        }
    }
    scores
}

fn groups(samples: &[Sample]) -> BTreeMap<Option<String>, Vec<usize>> {
    let mut groups: BTreeMap<Option<String>, Vec<usize>> = BTreeMap::new();
    for (index, sample) in samples.iter().enumerate() {
        groups.entry(sample.group.clone()).or_default().push(index);
    }
    groups
}

/// The samples kept, in input order: `how_many` of each group's ranking.
fn kept(
    samples: &[Sample],
    scores: &[f64],
    how_many: impl Fn(Option<&str>, &[usize]) -> usize,
) -> Vec<usize> {
    let mut kept = BTreeSet::new();
    for (group, mut members) in groups(samples) {
        members.sort_by(|a, b| scores[*b].partial_cmp(&scores[*a]).unwrap());
        kept.extend(members[..how_many(group.as_deref(), &members)].iter().copied());
    }
    kept.into_iter().collect()
}

/// Checks that the output of the last run holds exactly these samples, in this order, with these scores.
fn check(workspace: &Workspace, samples: &[Sample], scores: &[f64], kept: &[usize]) {
    let output = read_parquet(&workspace.path("out/data"));
    let found = texts(&output, "id");
    assert_eq!(found, kept.iter().map(|index| samples[*index].id.clone()).collect::<Vec<_>>());
    for (index, got) in kept.iter().zip(floats(&output, "longsift_score")) {
        assert!((got - scores[*index]).abs() < 1e-9, "{got} for {}", scores[*index]);
    }
    let strengths = floats(&output, "longsift_dependency_strength");
    for (index, got) in kept.iter().zip(strengths) {
        assert!((got - samples[*index].strength).abs() < 1e-15);
    }
}

/// In a group of one, z-scores have no deviation: the sample is the mean.
#[test]
fn groups_of_different_bytes_have_different_names() {
    let workspace = Workspace::new();
    Tiny::new().write(&workspace.path("model"));
    let documents = corpus("x", &[192; 12]);
    let values: [&[u8]; 6] = [b"ff", &[0xff], b"\\xff", b"de", b"\\xi", "\u{fc}".as_bytes()];
    let groups = BinaryArray::from_iter_values(values.iter().cycle().take(12));
    let columns = [
        ("id", Arc::clone(documents.column(0))),
        ("tokens", Arc::clone(documents.column(1))),
        ("group", Arc::new(groups) as ArrayRef),
    ];
    write_parquet(&workspace.path("input/a.parquet"), &table(&columns), 4);
    let within = || Pipeline::tokens("model", 64).score("within: group");
    workspace.run(&within());
    let names = |run: &str| -> Vec<String> {
        let groups = read_json(&workspace.path(run).join("calibration.json"))["groups"].take();
        let groups = groups.as_array().unwrap().iter();
        groups.map(|group| group["value"].as_str().unwrap().to_owned()).collect()
    };
    let expected = ["\\x5c786666", "\\xff", "\\xi", "de", "ff", "\u{fc}"];
    assert_eq!(names("out.run"), expected);
    let selection = read_parquet(&workspace.path("out.run/selection"));
    let selected: BTreeSet<String> = texts(&selection, "group").into_iter().collect();
    assert_eq!(selected, expected.map(str::to_owned).into());
    // The calibration is looked up by the same names.
    let mut again = within().score("calibration: out.run/calibration.json");
    again.output = "path: again".to_owned();
    workspace.run(&again);
    assert_eq!(names("again.run"), expected);
}

#[test]
fn a_fraction_of_every_group_is_kept_by_z_score_and_by_min_max() {
    let workspace = workspace();
    let standardised: [(&str, Standardise); 2] = [("z-score", z_scores), ("min-max", min_max)];
    for (name, standardise) in standardised {
        for (alpha, fraction, percent) in [(0.5, "0.29", 29), (0.0, "0.7", 70), (3.0, "1.0", 100)] {
            for within in [true, false] {
                let mut pipeline = Pipeline::tokens("model", 64)
                    .score(&format!("alpha: {alpha}, standardise: {name}"))
                    .filter(&format!("keep_fraction: {fraction}"));
                if within {
                    pipeline = pipeline.score("within: group");
                }
                workspace.run(&pipeline);
                let samples = samples(&workspace, within);
                assert_eq!(samples.len(), 31);
                let scores = scores(&samples, standardise, alpha);
                let floor = |_: Option<&str>, members: &[usize]| members.len() * percent / 100;
                check(&workspace, &samples, &scores, &kept(&samples, &scores, floor));
            }
        }
    }
}

/// Number of samples of a ranking within the budget.
fn within_budget(samples: &[Sample], ranking: &[usize], budget: u64) -> usize {
    let mut spent = 0;
    ranking
        .iter()
        .take_while(|index| {
            spent += samples[**index].tokens;
            spent <= budget
        })
        .count()
}

#[test]
fn a_token_budget_stops_before_the_first_sample_beyond_it() {
    let workspace = workspace();
    let base =
        || Pipeline::tokens("model", 64).tokenize("short_documents: score").score("within: group");
    for (filter, budget_of) in [
        ("keep_tokens: 300", (|_| 300) as fn(Option<&str>) -> u64),
        ("keep_tokens: {a: 200, b: 64, missing: 1000}", |group| match group {
            Some("a") => 200,
            Some("b") => 64,
            _ => 0,
        }),
    ] {
        workspace.run(&base().filter(filter));
        let samples = samples(&workspace, true);
        let scores = scores(&samples, z_scores, 0.5);
        let kept = kept(&samples, &scores, |group, ranking| {
            within_budget(&samples, ranking, budget_of(group))
        });
        assert!(!kept.is_empty());
        check(&workspace, &samples, &scores, &kept);
    }
    // Groups without kept samples are named.
    let answer = workspace.longsift(&["run", "pipeline.yaml", "--set", "stages.score.alpha=1"]);
    let stderr = answer.success().stderr;
    assert!(stderr.contains("nothing was kept of group"), "{stderr}");
    assert!(stderr.contains("(null)") && stderr.contains("`alone`"), "{stderr}");
}

#[test]
fn min_score_is_inclusive() {
    let workspace = workspace();
    workspace.run(&Pipeline::tokens("model", 64).filter("min_score: 0.0"));
    let samples = samples(&workspace, false);
    let scores = scores(&samples, z_scores, 0.5);
    let above: Vec<usize> = (0..scores.len()).filter(|index| scores[*index] >= 0.0).collect();
    assert!(above.len() > 5 && above.len() < samples.len());
    check(&workspace, &samples, &scores, &above);
}

#[test]
fn whole_documents_are_scored_by_the_mean_or_the_maximum_of_their_windows() {
    let workspace = workspace();
    let mean = |values: &[f64]| values.iter().sum::<f64>() / values.len() as f64;
    let max = |values: &[f64]| values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    for (name, aggregate) in
        [("mean", mean as fn(&[f64]) -> f64), ("max", max as fn(&[f64]) -> f64)]
    {
        let pipeline = Pipeline::tokens("model", 64)
            .score(&format!("within: group, document_score: {name}"))
            .filter("keep_fraction: 0.5")
            .output("samples: documents");
        let summary = workspace.run(&pipeline);
        let windows = samples(&workspace, true);
        let mut documents: Vec<Sample> = Vec::new();
        for windows_of in windows.chunk_by(|a, b| a.id == b.id) {
            let aggregated = |value: fn(&Sample) -> f64| -> f64 {
                aggregate(&windows_of.iter().map(value).collect::<Vec<f64>>())
            };
            let (strength, variance) =
                (aggregated(|one| one.strength), aggregated(|one| one.variance));
            documents.push(Sample { strength, variance, ..windows_of[0].clone() });
        }
        assert_eq!(documents.len(), 15);
        let scores = scores(&documents, z_scores, 0.5);
        let kept = kept(&documents, &scores, |_, members| members.len() / 2);
        check(&workspace, &documents, &scores, &kept);
        assert_eq!(summary["kept"], summary["rows_kept"]);
        let output = read_parquet(&workspace.path("out/data"));
        let input = read_parquet(&workspace.path("input"));
        let rows: Vec<usize> =
            kept.iter().map(|index| documents[*index].id.parse().unwrap()).collect();
        for (output_row, row) in rows.into_iter().enumerate() {
            let tokens = [(&output, output_row), (&input, row)]
                .map(|(table, row)| table.column_by_name("tokens").unwrap().slice(row, 1));
            assert_eq!(tokens[0].to_data(), tokens[1].to_data(), "the whole document");
        }
        assert_eq!(output.column_by_name("longsift_window").unwrap().null_count(), kept.len());
    }
}
