//! `longsift evaluate --labels`: every value equals the written-out definition, and labels that cannot be compared
//! are rejected.

use std::collections::{BTreeMap, BTreeSet};

use arrow_array::{ArrayRef, RecordBatch};
use serde_json::{Value, json};

use crate::evaluate::evaluated;
use crate::support::tables::{labels, strings, table, token_lists, write_parquet};
use crate::support::{Random, Workspace};

const TOKENS: usize = 64;
const FRACTIONS: [f64; 3] = [0.1, 0.25, 0.5];
const GUARD: f64 = 0.72;
const GOOD: [&str; 2] = ["books", "papers"];

/// Predicate for eligible windows.
type May<'m> = &'m dyn Fn(&Window<'_>) -> bool;

struct Row {
    id: String,
    class: Option<&'static str>,
    source: Option<&'static str>,
    ids: Vec<u32>,
}

/// Documents of six classes, one without a document of 64 tokens and one with few; some have no label.
fn rows() -> Vec<Row> {
    let mut random = Random(11);
    let classes = [
        (Some("books"), 14, 30),
        (Some("papers"), 11, 45),
        (Some("logs"), 13, 90),
        (Some("tables, \u{1b}[31mred"), 12, 25),
        (Some("few"), 4, 60),
        (Some("short"), 9, 60),
        (None, 5, 60),
    ];
    let mut rows = Vec::new();
    for (class, documents, vocabulary) in classes {
        for document in 0..documents {
            let max_tokens = if class == Some("short") { 60 } else { 700 };
            let tokens = 10 + random.below(max_tokens - 10);
            let spread = vocabulary + random.below(40);
            rows.push(Row {
                id: format!("{}{document}", class.map_or("none", |class| &class[..3])),
                class,
                source: [Some("web"), Some("shelf"), None][random.below(3) as usize],
                ids: (0..tokens).map(|_| random.below(spread) as u32).collect(),
            });
        }
    }
    rows
}

fn batch(rows: &[Row]) -> RecordBatch {
    let column = |value: fn(&Row) -> Option<&'static str>| -> ArrayRef {
        labels(&rows.iter().map(value).collect::<Vec<_>>())
    };
    table(&[
        ("id", strings(rows.iter().map(|row| row.id.as_str()))),
        ("kind", column(|row| row.class)),
        ("source", column(|row| row.source)),
        ("tokens", token_lists(&rows.iter().map(|row| row.ids.clone()).collect::<Vec<_>>())),
    ])
}

fn pipeline(within: &str, guards: &str) -> String {
    format!(
        "version: 1\nname: labelled\ninput: {{path: input, id_column: id, tokens_column: tokens}}\nstages:\n  \
         - {{stage: tokenize, window_tokens: {TOKENS}}}\n  - {{stage: lexical}}\n  \
         - {{stage: score, {within}terms: [{{statistic: unique_token_share, weight: -1, standardise: percentile}}]}}\n  \
         - {{stage: filter, {guards}keep_fraction: 0.25}}\noutput: {{path: out}}\n"
    )
}

fn guarded(within: &str) -> String {
    pipeline(within, &format!("guards: [{{statistic: unique_token_share, max: {GUARD}}}], "))
}

fn workspace(rows: &[Row]) -> Workspace {
    let workspace = Workspace::new();
    write_parquet(&workspace.path("input/all.parquet"), &batch(rows), 7);
    workspace
}

const LABELS: [&str; 5] = ["--labels", "kind", "--good", "books", "papers"];

// The definition, written out.

fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

fn key(seed: u64, parts: &[&str]) -> u64 {
    let mut bytes = seed.to_le_bytes().to_vec();
    for part in parts {
        bytes.push(0x1F);
        bytes.extend(part.bytes());
    }
    bytes.iter().fold(0xCBF2_9CE4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01B3)
    })
}

/// `below(n)` of the stream whose state is `state`.
fn below(state: &mut u64, n: usize) -> usize {
    *state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
    ((u128::from(mix(*state)) * n as u128) >> 64) as usize
}

struct Window<'a> {
    class: &'static str,
    document: usize,
    row: &'a Row,
    start: usize,
    share: f64,
}

/// The sampled documents of each class, in sample order.
fn sample(rows: &[Row], seed: u64, most: usize) -> BTreeMap<&'static str, Vec<&Row>> {
    let mut classes: BTreeMap<&str, Vec<&Row>> = BTreeMap::new();
    for row in rows.iter().filter(|row| row.ids.len() >= TOKENS) {
        if let Some(class) = row.class {
            classes.entry(class).or_default().push(row);
        }
    }
    for documents in classes.values_mut() {
        documents.sort_by_key(|row| (mix(key(seed, &["document", &row.id])), row.id.clone()));
        documents.truncate(most);
    }
    classes
}

fn windows<'a>(classes: &BTreeMap<&'static str, Vec<&'a Row>>) -> Vec<Window<'a>> {
    let mut windows = Vec::new();
    for (class, documents) in classes {
        for (document, row) in documents.iter().enumerate() {
            let whole = row.ids.len() / TOKENS;
            let number = whole.min(8);
            for window in 0..number {
                let start = window * whole / number * TOKENS;
                let ids: BTreeSet<u32> = row.ids[start..start + TOKENS].iter().copied().collect();
                let share = ids.len() as f64 / TOKENS as f64;
                windows.push(Window { class, document, row, start, share });
            }
        }
    }
    windows
}

/// The score of every window, on the scale of the counted windows of its group.
fn scores(windows: &[Window<'_>], within: bool, counted: impl Fn(&Window<'_>) -> bool) -> Vec<f64> {
    let score = |window: &Window<'_>| {
        let same = |other: &&Window<'_>| !within || other.row.source == window.row.source;
        let values: Vec<f64> = windows
            .iter()
            .filter(same)
            .filter(|window| counted(window))
            .map(|window| window.share)
            .collect();
        let low = values.iter().copied().fold(f64::INFINITY, f64::min);
        let high = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let bin = |value: f64| (((value - low) / (high - low) * 4096.0) as usize).min(4095);
        let own = bin(window.share);
        let lower = values.iter().filter(|value| bin(**value) < own).count() as f64;
        let equal = values.iter().filter(|value| bin(**value) == own).count() as f64;
        match window.share {
            share if share < low => 0.0,
            share if share > high => -1.0,
            _ => -(lower + equal / 2.0) / values.len() as f64,
        }
    };
    windows.iter().map(score).collect()
}

/// Weight of each document, by class.
type Counts = BTreeMap<&'static str, Vec<f64>>;

struct SlowReference<'a> {
    windows: &'a [Window<'a>],
    counts: Counts,
    /// Windows of each class, weighted like their documents.
    sizes: BTreeMap<&'static str, f64>,
}

impl<'a> SlowReference<'a> {
    fn new(windows: &'a [Window<'a>], counts: Counts) -> Self {
        let mut sizes = BTreeMap::new();
        for window in windows {
            *sizes.entry(window.class).or_insert(0.0) += counts[window.class][window.document];
        }
        Self { windows, counts, sizes }
    }

    fn count(&self, window: &Window<'_>) -> f64 {
        self.counts[window.class][window.document]
    }

    fn weight(&self, window: &Window<'_>) -> f64 {
        let is_good = GOOD.contains(&window.class);
        let side = self.counts.keys().filter(|class| GOOD.contains(class) == is_good).count();
        self.count(window) * 0.5 / (side as f64 * self.sizes[window.class])
    }

    /// The share of every window selected for a fraction.
    fn taken(&self, values: &[f64], fraction: f64, may: &dyn Fn(&Window<'_>) -> bool) -> Vec<f64> {
        let mut parts = vec![0.0; values.len()];
        let mut order: Vec<usize> =
            (0..values.len()).filter(|index| may(&self.windows[*index])).collect();
        order.sort_by(|a, b| values[*b].total_cmp(&values[*a]));
        let weights: Vec<f64> = self.windows.iter().map(|window| self.weight(window)).collect();
        let mut left = fraction;
        for equal in order.chunk_by(|a, b| values[*a].total_cmp(&values[*b]).is_eq()) {
            let weight: f64 = equal.iter().map(|index| weights[*index]).sum();
            let part = if weight > 0.0 { (left / weight).clamp(0.0, 1.0) } else { 0.0 };
            for index in equal {
                parts[*index] = part;
            }
            left -= part * weight;
        }
        parts
    }

    fn real_share(&self, parts: &[f64]) -> f64 {
        let sum = |counts: &dyn Fn(&Window<'_>) -> bool| -> f64 {
            let windows = self.windows.iter().zip(parts).filter(|(window, _)| counts(window));
            windows.map(|(window, part)| part * self.weight(window)).sum()
        };
        sum(&|window| GOOD.contains(&window.class)) / sum(&|_| true)
    }

    fn auroc(&self, values: &[f64], class: &str) -> f64 {
        let all = || self.windows.iter().zip(values);
        let (mut wins, mut pairs) = (0.0, 0.0);
        let good: Vec<(f64, f64)> = all()
            .filter(|(window, _)| GOOD.contains(&window.class))
            .map(|(window, value)| (self.weight(window), *value))
            .collect();
        for (other, theirs) in all().filter(|(window, _)| window.class == class) {
            for (weight, ours) in &good {
                let weight = weight * self.count(other);
                pairs += weight;
                wins += if ours > theirs {
                    weight
                } else if ours.total_cmp(theirs).is_eq() {
                    weight / 2.0
                } else {
                    0.0
                };
            }
        }
        wins / pairs
    }
}

/// Weights of one for all documents, and those of every replicate.
fn resampled(seed: u64, documents: &BTreeMap<&'static str, usize>) -> (Counts, Vec<Counts>) {
    let replicate = |index: usize| {
        let mut state = key(seed, &["bootstrap", &index.to_string()]);
        let mut counts = Counts::new();
        for (class, documents) in documents {
            let mut drawn = vec![0.0; *documents];
            (0..*documents).for_each(|_| drawn[below(&mut state, *documents)] += 1.0);
            counts.insert(class, drawn);
        }
        counts
    };
    let once = documents.iter().map(|(class, documents)| (*class, vec![1.0; *documents]));
    (once.collect(), (0..500).map(replicate).collect())
}

fn close(got: &Value, expected: f64, what: &str) {
    let got = got.as_f64().unwrap_or_else(|| panic!("{what}: {got} is not a number"));
    assert!((got - expected).abs() < 1e-9, "{what}: {got}, expected {expected}");
}

/// Checks a value and its interval.
fn check(got: &Value, once: f64, mut replicates: Vec<f64>, what: &str) {
    replicates.sort_by(f64::total_cmp);
    let edge = replicates.len() / 40;
    let expected = [once, replicates[edge], replicates[replicates.len() - 1 - edge]];
    for (index, expected) in expected.into_iter().enumerate() {
        close(&got[index], expected, &format!("{what}[{index}]"));
    }
}

fn check_against_definition(within: bool, seed: u64, most: usize) {
    let rows = rows();
    let workspace = workspace(&rows);
    let (seed_text, most_text) = (seed.to_string(), most.to_string());
    let more = ["--windows", "64", "--seed", &seed_text, "--documents-per-category", &most_text];
    let setting = if within { "within: source, " } else { "" };
    let got = evaluated(&workspace, &guarded(setting), &[&LABELS[..], &more].concat());
    assert_eq!(got["labels"]["rows_without_label"], json!(5));
    assert_eq!(got.get("S64"), None, "no windows are constructed");
    let got = &got["labels"]["S64"];
    assert_eq!(got["classes_without_windows"], json!(["short"]));

    let classes = sample(&rows, seed, most);
    let windows = windows(&classes);
    let passes = |window: &Window<'_>| window.share <= GUARD;
    let documents = classes.iter().map(|(class, documents)| (*class, documents.len())).collect();
    let (once, replicates) = resampled(seed, &documents);
    let reference = |counts: Counts| SlowReference::new(&windows, counts);
    let once = reference(once);
    let replicates: Vec<SlowReference<'_>> = replicates.into_iter().map(reference).collect();
    for (class, documents) in &classes {
        let size = &got["classes"][class];
        assert_eq!(size["documents"], json!(documents.len()));
        assert_eq!(size["windows"], json!(once.sizes[class] as u64));
        assert_eq!(size["good"], json!(GOOD.contains(class)));
        let rejected =
            windows.iter().filter(|window| window.class == *class && !passes(window)).count();
        let expected = json!({"windows": size["windows"], "rejected": rejected, "missing": 0});
        assert_eq!(got["guards"][0]["kinds"][class], expected);
    }
    let random = |window: &Window<'_>| {
        let hash = mix(key(1, &["random", &window.row.id, &(window.start / TOKENS).to_string()]));
        (hash >> 11) as f64 / (1_u64 << 53) as f64
    };
    let negated: Vec<f64> = windows.iter().map(|window| -window.share).collect();
    let random_scores: Vec<f64> = windows.iter().map(random).collect();
    let score = scores(&windows, within, passes);
    let statistics = [
        ("unique_token_share_negated", negated.clone(), negated),
        ("random", random_scores.clone(), random_scores),
        ("score", score.clone(), scores(&windows, within, |_| true)),
    ];
    assert_eq!(got["reports"].as_object().unwrap().len(), statistics.len());
    for (name, values, free) in &statistics {
        let report = &got["reports"][name];
        assert_eq!(report["missing"], json!(0));
        let all = |_: &Window<'_>| true;
        let variants: [(&str, &[f64], May<'_>); 2] =
            [("guarded", values, &passes), ("unguarded", free, &all)];
        for (variant, values, may) in variants {
            for (index, fraction) in FRACTIONS.into_iter().enumerate() {
                let kept = &report[variant][index];
                let what = format!("{name}, {variant}, {fraction}");
                close(&kept["fraction"], fraction, &what);
                let parts = once.taken(values, fraction, may);
                let share = |reference: &SlowReference<'_>| {
                    reference.real_share(&reference.taken(values, fraction, may))
                };
                let shares = replicates.iter().map(share).collect();
                check(&kept["real_share"], once.real_share(&parts), shares, &what);
                let weights =
                    windows.iter().zip(&parts).map(|(window, part)| part * once.weight(window));
                close(&kept["taken"], weights.sum(), &what);
                for class in classes.keys() {
                    let class_parts =
                        windows.iter().zip(&parts).filter(|(window, _)| window.class == *class);
                    let taken: f64 = class_parts.map(|(_, part)| part).sum();
                    close(&kept["by_class"][class], taken / once.sizes[class], &what);
                }
            }
        }
        for class in classes.keys().filter(|class| !GOOD.contains(class)) {
            let aurocs =
                replicates.iter().map(|replicate| replicate.auroc(values, class)).collect();
            let what = format!("{name} against {class}");
            check(&report["auroc"][class], once.auroc(values, class), aurocs, &what);
        }
        assert_eq!(report["auroc"].get("books"), None);
    }
    let best: Vec<&Value> = got["best"].as_array().unwrap().iter().collect();
    assert_eq!(best.len(), 20);
    let mut passing: Vec<usize> =
        (0..windows.len()).filter(|index| passes(&windows[*index])).collect();
    passing.sort_by(|a, b| score[*b].total_cmp(&score[*a]));
    for (got, window) in best.iter().zip(passing) {
        let Window { class, row, start, .. } = &windows[window];
        assert_eq!((&got["class"], &got["id"]), (&json!(class), &json!(row.id)));
        assert_eq!(got["start"], json!(start));
    }
    // `few` has fewer than eight documents; the other cells have an interval.
    let cells = got["matrix"]["score"].as_object().unwrap();
    assert_eq!(cells.keys().collect::<Vec<_>>(), ["logs", "tables, \u{1b}[31mred"]);
    for cell in cells.values() {
        let [low, high] = [1, 2].map(|end| cell["figure"][end].as_f64().unwrap());
        let expected = if low > 0.5 {
            "pass"
        } else if high < 0.5 {
            "fail"
        } else {
            "weak"
        };
        assert_eq!(cell["outcome"], json!(expected));
    }
}

#[test]
fn results_by_label_match_the_definition() {
    check_against_definition(false, 1, 64);
}

#[test]
fn results_by_label_within_groups_match_the_definition() {
    check_against_definition(true, 3, 9);
}

#[test]
fn labels_that_cannot_be_compared_are_rejected_before_measuring() {
    let workspace = workspace(&rows());
    workspace.write("pipeline.yaml", guarded(""));
    let refused = |arguments: &[&str]| {
        let all = [&["evaluate", "pipeline.yaml", "-q"], arguments].concat();
        workspace.longsift(&all).expect(2).stderr
    };
    let unknown = refused(&["--labels", "kind", "--good", "boks", "papers", "nothing"]);
    assert!(unknown.contains("`boks` is not a value of the column `kind`"), "{unknown}");
    assert!(unknown.contains("did you mean `books`?"), "{unknown}");
    assert!(unknown.contains("`nothing` is not a value"), "{unknown}");
    assert!(unknown.contains("`books` (14), `few` (4), `logs` (13)"), "{unknown}");
    assert!(!unknown.contains("\u{1b}[31m"), "values are printed escaped: {unknown}");
    let ids = refused(&["--labels", "id", "--good", "boo1"]);
    assert!(ids.contains("has 68 values, more than 64: `boo0` (1)"), "{ids}");
    let all = refused(&["--labels", "source", "--good", "web", "shelf"]);
    assert!(all.contains("names all values of the column `source`"), "{all}");
    let absent = refused(&["--labels", "kinds", "--good", "books"]);
    assert!(absent.contains("kinds") && absent.contains("`kind`"), "{absent}");
    let nested = refused(&["--labels", "tokens", "--good", "books"]);
    assert!(nested.contains("tokens"), "{nested}");
    let incomplete = refused(&["--labels", "kind"]);
    assert!(incomplete.contains("--good"), "{incomplete}");
    assert!(!workspace.path("out.evaluate/figures.journal").exists(), "nothing was measured");

    for (label, message) in
        [(Some("a"), "has one value, `a` (3)"), (None, "has no labels: its 3 rows are null")]
    {
        let few: Vec<Row> =
            rows().into_iter().take(3).map(|row| Row { class: label, ..row }).collect();
        write_parquet(&workspace.path("input/all.parquet"), &batch(&few), 7);
        let refused = refused(&["--labels", "kind", "--good", "a"]);
        assert!(refused.contains(message), "{refused}");
    }
}

#[test]
fn a_sample_of_labels_does_not_depend_on_files() {
    let rows = rows();
    let first = evaluated(&workspace(&rows), &guarded("within: source, "), &LABELS);
    let other = Workspace::new();
    let whole = batch(&rows);
    for (file, first, number) in [("z", 0, 20), ("b/1", 20, 1), ("a", 21, rows.len() - 21)] {
        let part = whole.slice(first, number);
        write_parquet(&other.path(&format!("input/{file}.parquet")), &part, 3);
    }
    assert_eq!(evaluated(&other, &guarded("within: source, "), &LABELS), first);
    let schema = other.longsift(&["schema", "evaluation"]).success().stdout;
    let schema: Value = serde_json::from_str(&schema).unwrap();
    let problems: Vec<String> = jsonschema::validator_for(&schema)
        .unwrap()
        .iter_errors(&first)
        .map(|problem| problem.to_string())
        .collect();
    assert_eq!(problems, [""; 0]);
    let kept = &schema["$defs"]["LabelLength"]["properties"]["reports"];
    assert!(kept.is_object(), "{schema}");
}

#[test]
fn other_scores_and_constructed_windows_can_be_added_to_labels() {
    let rows = rows();
    let workspace = Workspace::new();
    let quality =
        |row: &Row| (row.class != Some("logs")).then(|| i64::from(row.class == Some("books")));
    let mut columns: Vec<(&str, ArrayRef)> = vec![(
        "quality",
        std::sync::Arc::new(rows.iter().map(quality).collect::<arrow_array::Int64Array>()),
    )];
    let whole = batch(&rows);
    for name in ["id", "kind", "source", "tokens"] {
        columns.push((name, whole.column_by_name(name).unwrap().clone()));
    }
    write_parquet(&workspace.path("input/all.parquet"), &table(&columns), 7);
    let more = ["--scores", "quality", "--only", "dup", "--windows", "64"];
    let got = evaluated(&workspace, &pipeline("", ""), &[&LABELS[..], &more].concat());
    let report = &got["labels"]["S64"]["reports"]["quality"];
    assert_eq!(report["missing"], got["labels"]["S64"]["classes"]["logs"]["windows"]);
    // Books have the value 1 and a quarter of the weight, so the best quarter is all of them.
    assert_eq!(report["unguarded"][1]["real_share"][0], json!(1.0));
    assert_eq!(report["guarded"], Value::Null, "the pipeline has no guards");
    assert_eq!(report["auroc"].get("logs"), None, "no value, no estimate");
    assert!(got["S64"]["reports"]["score"]["paired"]["dup"][0].is_number());
    let kinds: Vec<&String> = got["S64"]["kinds"].as_object().unwrap().keys().collect();
    assert_eq!(kinds, ["dup", "whole"]);
}

#[test]
fn a_random_score_is_the_control_of_the_same_seed() {
    let rows = rows();
    let workspace = workspace(&rows);
    let random = |seed: &str| {
        let (before, after) = pipeline("", "")
            .split_once("terms:")
            .map(|(a, b)| (a.to_owned(), b.to_owned()))
            .unwrap();
        let after = after.split_once("]}").unwrap().1;
        format!("{before}formula: random{seed}}}{after}")
    };
    let more = ["--only", "dup", "--windows", "64"];
    let arguments = [&LABELS[..], &more].concat();
    let first = evaluated(&workspace, &random(""), &arguments);
    let seventh = evaluated(&workspace, &random(", seed: 7"), &arguments);
    for got in [&first, &seventh] {
        let reports = &got["labels"]["S64"]["reports"];
        assert_eq!(reports["score"]["unguarded"], reports["random"]["unguarded"]);
        assert!(got["S64"]["reports"]["score"]["paired"]["dup"][0].is_number(), "{got}");
    }
    let kept = |got: &Value| got["labels"]["S64"]["reports"]["score"]["unguarded"].clone();
    assert_ne!(kept(&first), kept(&seventh));
    let with_another = evaluated(&workspace, &pipeline("", ""), &arguments);
    let control = &with_another["labels"]["S64"]["reports"]["random"]["unguarded"];
    assert_eq!(*control, kept(&first), "1 is the default");
}

#[test]
fn documents_without_ids_have_the_names_that_explain_accepts() {
    let workspace = workspace(&rows());
    workspace.write("pipeline.yaml", guarded("").replace("id_column: id, ", ""));
    let arguments = ["evaluate", "pipeline.yaml", "-q", "--windows", "64", "--format", "json"];
    let text = workspace.longsift(&[&arguments[..], &LABELS].concat()).success().stdout;
    let results: Value = serde_json::from_str(&text).unwrap();
    let best = &results["labels"]["S64"]["best"];
    let name = best[0]["id"].as_str().unwrap();
    assert!(name.starts_with("all.parquet:"), "{best:#}");
    workspace.longsift(&["explain", "pipeline.yaml", &format!("{name}#0")]).success();
}

#[test]
fn labels_are_shown_as_a_sentence_a_matrix_and_a_page() {
    let workspace = workspace(&rows());
    workspace.write("pipeline.yaml", guarded(""));
    let arguments = [
        &["evaluate", "pipeline.yaml", "-q", "--windows", "64", "--html", "page.html"],
        &LABELS[..],
    ]
    .concat();
    let text = workspace.longsift(&arguments).success().stdout;
    assert!(text.contains("labels: kind; good: books, papers"), "{text}");
    assert!(text.contains("left out: 5 rows without a label"), "{text}");
    assert!(text.contains("classes without a document of this length: short"), "{text}");
    assert!(text.contains("% of the best quarter is real text (with its guards"), "{text}");
    assert!(text.contains("; chance 50, a random score with the same guards "), "{text}");
    assert!(text.contains("Good classes against other classes"), "{text}");
    assert!(!text.contains('\u{1b}'), "{text}");
    assert!(!text.contains("Share of each class kept by random"), "{text}");
    let details = workspace.longsift(&[&arguments[..], &["--details"]].concat()).success().stdout;
    assert!(details.contains("Share of each class kept by random"), "{details}");
    let page = std::fs::read_to_string(workspace.path("page.html")).unwrap();
    crate::support::pages::check_harmless(&page, 0);
    for section in ["labels64", "kept64", "classes64", "best64", "repeat"] {
        assert!(page.contains(&format!("<h2 id=\"{section}\">")), "{section}");
    }
    let dry = [&arguments[..], &["--dry-run", "--format", "json"]].concat();
    let dry: Value = serde_json::from_str(&workspace.longsift(&dry).success().stdout).unwrap();
    let json = [&arguments[..], &["--format", "json"]].concat();
    let json: Value = serde_json::from_str(&workspace.longsift(&json).success().stdout).unwrap();
    let classes = json["labels"]["S64"]["classes"].as_object().unwrap().values();
    let windows: u64 = classes.map(|class| class["windows"].as_u64().unwrap()).sum();
    assert_eq!(dry["lengths"]["64"]["windows"], json!(windows));
}
