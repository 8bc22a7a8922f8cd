//! `longsift evaluate`: results on the shared corpora to nine digits, and what changes them.

use std::path::Path;

use arrow_array::RecordBatch;
use serde_json::{Value, json};

use crate::support::pages;
use crate::support::tables::{read_parquet, strings, table, texts, write_parquet};
use crate::support::{Random, Workspace, demo_model, shared};

/// The shared corpora as one table: id, text, category.
fn shared_corpora() -> RecordBatch {
    let (mut ids, mut contents, mut categories) = (Vec::new(), Vec::new(), Vec::new());
    for (corpus, id) in [("books", "data_id"), ("code", "data_id"), ("papers", "data_id")] {
        let read = read_parquet(&shared(&format!("corpora/{corpus}.parquet")));
        ids.extend(texts(&read, id));
        contents.extend(texts(&read, "text"));
        categories.extend(match corpus {
            "books" => texts(&read, id).iter().map(|id| format!("books:{}", &id[6..8])).collect(),
            _ => texts(&read, "source"),
        });
    }
    table(&[("id", strings(ids)), ("text", strings(contents)), ("category", strings(categories))])
}

pub(crate) fn pipeline(measures: &str, score: &str, filter: &str) -> String {
    format!(
        "version: 1\nname: corpora\ninput: {{path: input, id_column: id, text_column: text}}\nstages:\n{measures}  \
         - {{stage: score, within: category, {score}}}\n  - {{stage: filter, {filter}}}\noutput: {{path: out}}\n"
    )
}

const BALANCED: &str = "  - {stage: tokenize, tokenizer: model, window_tokens: 2048}\n  - {stage: recurrence}\n  \
                        - {stage: compression}\n  - {stage: lexical}\n";

/// Components of an earlier `balanced-recurrence`, which the reference results are for.
const OLD_BALANCED_RECURRENCE: &str = "standardise: percentile, combine: least, terms: [{statistic: far_recurrence}, \
                                       {statistic: link_coverage}, {statistic: near_recurrence, offset: 0.2}, \
                                       {statistic: copy_share, weight: -1, offset: 1.2}]";

fn close(got: &Value, expected: &Value, within: f64, what: &str) {
    match (got, expected) {
        (Value::Array(got), Value::Array(expected)) => {
            assert_eq!(got.len(), expected.len(), "{what}");
            for (got, expected) in got.iter().zip(expected) {
                close(got, expected, within, what);
            }
        }
        (Value::Object(_), Value::Object(expected)) => {
            for (key, expected) in expected {
                close(&got[key], expected, within, &format!("{what}.{key}"));
            }
        }
        _ => {
            let numbers = got.as_f64().zip(expected.as_f64());
            assert!(
                numbers.is_some_and(|(got, expected)| (got - expected).abs() <= within),
                "{what}: {got}, expected {expected}"
            );
        }
    }
}

/// Checks one length against the expected file. `names`: of the statistics there and in the product, with the
/// tolerances of their values and of `explained` and `agreement`.
fn check(got: &Value, length: &str, names: &[(&str, &str, f64, f64)]) {
    let file = std::fs::read(shared("conformance/evaluate_expected.json")).unwrap();
    let file: Value = serde_json::from_slice(&file).unwrap();
    let (expected, got) = (&file[length], &got[length]);
    assert_eq!(got["documents"], expected["documents"]);
    for (kind, reference) in expected["kinds"].as_object().unwrap() {
        assert_eq!(got["kinds"][kind]["windows"], reference["windows"], "{kind}");
        assert_eq!(got["kinds"][kind]["sha256"], reference["sha256"], "{kind}");
    }
    for (name, own, within, loosely) in names {
        let report = &got["reports"][own];
        let expected_report = &expected["reports"][name];
        for part in ["ladder", "pieces_8_by_category", "paired", "top_fifth_real_share"] {
            let what = format!("{length}.{name}.{part}");
            close(&report[part], &expected_report[part], *within, &what);
        }
        let what = format!("{length}.{name}.explained");
        close(&report["explained"], &expected_report["explained"], *loosely, &what);
        if *within < 1e-6 {
            let quantiles = &expected["quantiles_of_whole"][name];
            close(
                &got["quantiles_of_whole"][own],
                quantiles,
                *within,
                &format!("{name}.quantiles"),
            );
        }
        for (other, own_other, _, loosely_other) in names {
            let what = format!("{length}.agreement.{name}.{other}");
            let expected = &expected["agreement"][name][other];
            if !expected.is_null() {
                close(
                    &got["agreement"][own][own_other],
                    expected,
                    loosely.max(*loosely_other),
                    &what,
                );
            }
        }
    }
}

const EXACT: f64 = 1e-9;

fn text_scores(score: &'static str) -> Vec<(&'static str, &'static str, f64, f64)> {
    [
        ("far_recurrence", "far_recurrence"),
        ("near_recurrence", "near_recurrence"),
        ("link_coverage", "link_coverage"),
        ("copy_share", "copy_share"),
        ("far_with_copies_share", "far_with_copies_share"),
        ("far_first4_share", "far_first4_share"),
        ("unique_token_ratio_negated", "unique_token_share_negated"),
        ("zlib_gain", "deflate_gain"),
        ("gzip_ratio_negated", "gzip_ratio_negated"),
        (score, "score"),
    ]
    .map(|(name, own)| (name, own, EXACT, EXACT))
    .to_vec()
}

pub(crate) fn corpora() -> Workspace {
    let workspace = Workspace::new();
    workspace.link("model", &shared("models/mini"));
    write_parquet(&workspace.path("input/all.parquet"), &shared_corpora(), 16);
    workspace
}

pub(crate) fn evaluated(workspace: &Workspace, pipeline: &str, arguments: &[&str]) -> Value {
    workspace.write("pipeline.yaml", pipeline);
    let all = [&["evaluate", "pipeline.yaml", "-q", "--format", "json"], arguments].concat();
    serde_json::from_str(&workspace.longsift(&all).success().stdout).unwrap()
}

#[test]
#[cfg_attr(not(longsift_shared), ignore = "needs ../shared, a sibling of the repository")]
fn shared_corpora_match_the_reference() {
    let workspace = corpora();
    let yaml = pipeline(BALANCED, OLD_BALANCED_RECURRENCE, "keep_fraction: 0.2");
    let got = evaluated(&workspace, &yaml, &["--windows", "2048"]);
    check(&got, "S2048", &text_scores("balanced_recurrence"));
}

#[test]
#[ignore = "takes minutes: .ci/nightly runs it"]
fn shared_corpora_match_the_reference_at_both_lengths_with_attention() {
    let workspace = corpora();
    let yaml = pipeline(BALANCED, OLD_BALANCED_RECURRENCE, "keep_fraction: 0.2");
    let got = evaluated(&workspace, &yaml, &["--windows", "8192,2048"]);
    check(&got, "S2048", &text_scores("balanced_recurrence"));
    check(&got, "S8192", &text_scores("balanced_recurrence"));

    let measures = "  - {stage: load-partial-model, model: model}\n  - {stage: tokenize, window_tokens: 2048}\n  \
                    - {stage: recurrence}\n  - {stage: first-layer-attention}\n";
    let yaml = pipeline(measures, "formula: longattn", "keep_fraction: 0.2");
    let got = evaluated(&workspace, &yaml, &["--windows", "2048", "--out", "attention"]);
    let attention = [
        ("longattn_lds", "score", 0.005, 0.02),
        ("longattn_dst", "dependency_strength", 0.005, 0.02),
        ("far_recurrence", "far_recurrence", EXACT, EXACT),
    ];
    check(&got, "S2048", &attention);
}

/// Texts of forty recurring words, in two categories.
fn small() -> RecordBatch {
    let mut random = Random(7);
    let word = |random: &mut Random| format!("w{}", random.below(300));
    let documents = 0..18;
    let text = |_| (0..400).map(|_| word(&mut random)).collect::<Vec<_>>().join(" ");
    let contents: Vec<String> = documents.clone().map(text).collect();
    table(&[
        ("id", strings(documents.clone().map(|document| format!("d{document}")))),
        ("text", strings(contents)),
        ("category", strings(documents.map(|document| if document < 15 { "a" } else { "b" }))),
    ])
}

pub(crate) fn small_workspace() -> Workspace {
    let workspace = Workspace::new();
    workspace.link("model", &demo_model());
    write_parquet(&workspace.path("input/all.parquet"), &small(), 5);
    workspace
}

fn small_pipeline() -> String {
    pipeline(
        &BALANCED.replace("2048", "256"),
        "formula: balanced-recurrence",
        "keep_fraction: 0.2, guards: [{statistic: copy_share, max: 0.4}]",
    )
}

#[test]
fn results_depend_on_the_seed_but_not_on_partition_or_threads() {
    let one = small_workspace();
    let first = evaluated(&one, &small_pipeline(), &[]);
    let other = Workspace::new();
    other.link("model", &demo_model());
    let whole = small();
    for (file, first, rows) in [("z/1", 0, 4), ("a", 4, 1), ("m/2", 5, 13)] {
        let path = other.path(&format!("input/{file}.parquet"));
        write_parquet(&path, &whole.slice(first, rows), 3);
    }
    assert_eq!(evaluated(&other, &small_pipeline(), &["--threads", "1"]), first);
    let seed = evaluated(&one, &small_pipeline(), &["--seed", "2"]);
    assert_ne!(seed["S256"]["kinds"]["pieces_2"], first["S256"]["kinds"]["pieces_2"]);
    assert_eq!(first["S64"]["S"], json!(64), "a quarter of the pipeline's length");
}

#[test]
fn a_repeated_evaluation_measures_nothing() {
    let workspace = small_workspace();
    let first = evaluated(&workspace, &small_pipeline(), &[]);
    let journal = workspace.path("out.evaluate/figures.journal");
    let written = std::fs::read(&journal).unwrap();
    assert_eq!(evaluated(&workspace, &small_pipeline(), &[]), first);
    assert_eq!(std::fs::read(&journal).unwrap(), written, "nothing was measured");

    let arguments = ["--only", "pieces_2,dup", "--html", "part.html"];
    let part = evaluated(&workspace, &small_pipeline(), &arguments);
    let page = std::fs::read_to_string(workspace.path("part.html")).unwrap();
    assert!(
        page.contains("constructed from them in 3 ways") && !page.contains("pieces_8: "),
        "{page}"
    );
    assert_eq!(std::fs::read(&journal).unwrap(), written, "nothing was measured");
    let kinds: Vec<&String> = part["S256"]["kinds"].as_object().unwrap().keys().collect();
    assert_eq!(kinds, ["dup", "pieces_2", "whole"]);
    let ladder = |evaluation: &Value| {
        evaluation["S256"]["reports"]["far_recurrence"]["ladder"]["pieces_2"].clone()
    };
    assert_eq!(ladder(&part), ladder(&first));
    assert_eq!(part["S256"]["reports"]["score"]["ladder"]["pieces_4"], Value::Null);
    assert!(workspace.path("out.evaluate/evaluation.json").exists());
    // A file of the user with the journal's name is kept.
    let foreign = workspace.write("notes/figures.journal", "my figures");
    let refused = workspace.longsift(&["evaluate", "pipeline.yaml", "--out", "notes"]).expect(2);
    assert!(refused.stderr.contains("was not written by longsift"), "{}", refused.stderr);
    assert_eq!(std::fs::read_to_string(foreign).unwrap(), "my figures");
}

#[test]
fn scores_and_kinds_form_one_matrix_with_small_categories() {
    let workspace = small_workspace();
    let evaluation = evaluated(&workspace, &small_pipeline(), &["--windows", "256"]);
    let evaluation = &evaluation["S256"];
    assert_eq!(evaluation["documents"], json!({ "a": 15, "b": 3 }));
    // Too few for eight pieces, so no pair and no value.
    assert_eq!(evaluation["reports"]["score"]["pieces_8_by_category"]["b"], Value::Null);
    let score = evaluation["matrix"]["score"].as_object().unwrap();
    assert!(!score.contains_key("chunk_shuffle"), "this kind is informational only");
    for (kind, cell) in score {
        let report = &evaluation["reports"]["score"];
        let ladder = &report["ladder"][kind];
        let value = if ladder.is_null() { &report["paired"][kind] } else { ladder };
        assert_eq!(cell["figure"], *value, "{kind}");
        let [low, high] = [1, 2].map(|end| value[end].as_f64().unwrap());
        let expected = if low > 0.5 {
            "pass"
        } else if high < 0.5 {
            "fail"
        } else {
            "weak"
        };
        assert_eq!(cell["outcome"], json!(expected), "{kind}");
    }
    assert!(score.contains_key("pieces_8") && score.contains_key("dup_indel"), "{score:?}");
    let sentence = evaluation["sentence"].as_str().unwrap();
    assert!(
        sentence.contains(&format!("of {} kinds of constructed windows", score.len())),
        "{sentence}"
    );
    assert!(!sentence.contains("real text"), "without labels, no text counts as real: {sentence}");
    let dup = &evaluation["guards"][0]["kinds"]["dup"];
    assert_eq!(evaluation["guards"][0]["guard"], "copy_share");
    assert!(
        dup["rejected"].as_u64() > Some(0)
            && dup["windows"] == evaluation["kinds"]["dup"]["windows"]
    );

    let sample = ["--windows", "256", "--documents-per-category", "3"];
    let evaluation = evaluated(&workspace, &small_pipeline(), &sample);
    assert_eq!(evaluation["S256"]["matrix"], json!({}));
    let notes = evaluation["S256"]["notes"].to_string();
    assert!(notes.contains("no matrix: 6 documents are long enough, 8 are required"), "{notes}");
}

#[test]
fn details_are_printed_on_request() {
    let workspace = small_workspace();
    workspace.write("pipeline.yaml", small_pipeline());
    let arguments = ["evaluate", "pipeline.yaml", "-q", "--windows", "256"];
    let text = workspace.longsift(&arguments).success().stdout;
    assert!(text.contains("\nthe score passes "), "{text}");
    assert!(text.contains("Whole windows against constructed windows"), "{text}");
    assert!(text.lines().count() < 60, "{text}");
    let details = workspace.longsift(&[&arguments[..], &["--details"]].concat()).success().stdout;
    for title in [
        "Whole windows against joined pieces",
        "Junk: ",
        "Real windows in the top fifth",
        "Copies and boilerplate at varying distances",
        "Rejected by guards",
        "Agreement",
    ] {
        assert!(details.contains(title) && !text.contains(title), "{title}");
    }
}

/// A score that two scales rank differently: most copies are in windows that a guard on them rejects.
#[test]
fn scales_are_over_passing_windows() {
    let workspace = small_workspace();
    let score = "terms: [{statistic: far_recurrence}, {statistic: unique_token_share}]";
    let measures = BALANCED.replace("2048", "256");
    let with_guards = |guards: &str| {
        let filter = format!("keep_fraction: 0.2{guards}");
        evaluated(&workspace, &pipeline(&measures, score, &filter), &["--windows", "256"])
    };
    let (free, guarded) = (
        with_guards(""),
        with_guards(", guards: [{statistic: unique_token_share, max_quantile: 0.5}]"),
    );
    let (free, guarded) = (&free["S256"]["reports"]["score"], &guarded["S256"]["reports"]["score"]);
    for pool in ["top_fifth_real_share", "top_fifth_jittered_real_share"] {
        assert_eq!(free[pool]["plain"], guarded[pool]["plain"], "columns without guards");
        assert_eq!(free[pool]["copy_cap"], guarded[pool]["copy_cap"]);
        assert!(free[pool]["guarded"].is_null() && guarded[pool]["guarded"][0].is_number());
    }
    assert_ne!(free["ladder"], guarded["ladder"], "another scale, another ranking");
}

#[test]
fn rows_with_one_id_form_one_document_in_any_order() {
    let twice = |second_first: bool| {
        let workspace = Workspace::new();
        workspace.link("model", &demo_model());
        let whole = small();
        let mut ids = texts(&whole, "id");
        ids[1] = ids[0].clone();
        let renamed = table(&[
            ("id", strings(ids)),
            ("text", strings(texts(&whole, "text"))),
            ("category", strings(texts(&whole, "category"))),
        ]);
        let parts = [renamed.slice(0, 1), renamed.slice(1, 17)];
        for (file, part) in
            [usize::from(second_first), usize::from(!second_first)].into_iter().enumerate()
        {
            write_parquet(&workspace.path(&format!("input/{file}.parquet")), &parts[part], 4);
        }
        evaluated(&workspace, &small_pipeline(), &["--windows", "256"])
    };
    let one = twice(false);
    assert_eq!(one["equal_ids_left_out"], json!(1));
    assert_eq!(one["S256"]["documents"]["a"], json!(14));
    assert_eq!(twice(true), one);
}

#[test]
fn documents_without_ids_are_identified_by_content() {
    let workspace = small_workspace();
    let nameless = small_pipeline().replace("id_column: id, ", "");
    let first = evaluated(&workspace, &nameless, &["--windows", "256"]);
    let backwards = Workspace::new();
    backwards.link("model", &demo_model());
    let whole = small();
    for row in 0..whole.num_rows() {
        let path = backwards.path(&format!("input/{:02}.parquet", 17 - row));
        write_parquet(&path, &whole.slice(row, 1), 1);
    }
    assert_eq!(evaluated(&backwards, &nameless, &["--windows", "256"]), first);
}

#[test]
fn scores_of_other_tools_are_compared() {
    let workspace = small_workspace();
    let whole = small();
    let quality = strings(texts(&whole, "id").iter().map(|id| id[1..].to_owned()));
    let quality = arrow_cast_to_floats(&quality);
    let mut columns: Vec<(&str, arrow_array::ArrayRef)> = vec![("quality", quality)];
    for name in ["id", "text", "category"] {
        columns.push((name, whole.column_by_name(name).unwrap().clone()));
    }
    write_parquet(&workspace.path("input/all.parquet"), &table(&columns), 5);
    let evaluation =
        evaluated(&workspace, &small_pipeline(), &["--windows", "256", "--scores", "quality"]);
    let evaluation = &evaluation["S256"];
    assert!(evaluation["agreement"]["quality"]["score"].is_number());
    assert!(evaluation["reports"]["quality"]["explained"]["length_spearman"].is_number());
    assert_eq!(evaluation["reports"]["quality"]["ladder"], json!({}));
    assert!(evaluation["notes"].to_string().contains("`quality` is a column of the input"));

    let refused = workspace.longsift(&["evaluate", "pipeline.yaml", "--scores", "qualty"]);
    let refused = refused.expect(3);
    assert!(refused.stderr.contains("the input has no column `qualty`"), "{}", refused.stderr);
    assert!(refused.stderr.contains("did you mean `quality`?"), "{}", refused.stderr);
}

fn arrow_cast_to_floats(column: &arrow_array::ArrayRef) -> arrow_array::ArrayRef {
    use arrow_array::cast::AsArray;
    let numbers = column.as_string::<i32>().iter().map(|text| text.unwrap().parse::<f64>().ok());
    std::sync::Arc::new(numbers.collect::<arrow_array::Float64Array>())
}

#[test]
fn meaningless_requests_are_rejected() {
    let workspace = small_workspace();
    workspace.write("pipeline.yaml", small_pipeline());
    let refused = |arguments: &[&str], code: i32| {
        let all = [&["evaluate", "pipeline.yaml"], arguments].concat();
        workspace.longsift(&all).expect(code).stderr
    };
    let unknown = refused(&["--only", "pieces_9"], 2);
    assert!(unknown.contains("unknown kind of window `pieces_9`"), "{unknown}");
    assert!(unknown.contains("did you mean `pieces_"), "{unknown}");
    let idle = refused(&["--scores-from", "out.run", "--shard", "0/2"], 2);
    for option in ["--scores-from", "--shard"] {
        assert!(idle.contains(&format!("`{option}` has no effect on an evaluation")), "{idle}");
    }
    let long = refused(&["--windows", "1000000"], 3);
    assert!(long.contains("no document of the input has 1,000,000 tokens"), "{long}");
    assert!(!Path::new(&workspace.path("out.run")).exists(), "an evaluation writes no run");
}

#[test]
fn a_dry_run_counts_windows_and_estimates_the_time() {
    let workspace = small_workspace();
    let dry_run = evaluated(&workspace, &small_pipeline(), &["--dry-run", "--windows", "256"]);
    let dry_run = &dry_run["lengths"]["256"];
    assert_eq!(dry_run["documents"], json!(18));
    let whole = evaluated(&workspace, &small_pipeline(), &["--windows", "256"]);
    let kinds = whole["S256"]["kinds"].as_object().unwrap();
    let windows: u64 = kinds.values().map(|kind| kind["windows"].as_u64().unwrap()).sum();
    assert!(dry_run["windows"].as_u64().unwrap() >= windows);
    assert!(dry_run["seconds"]["recurrence"].as_f64().unwrap() > 0.0);
}

#[test]
fn the_page_loads_nothing_and_escapes_names() {
    let workspace = Workspace::new();
    workspace.link("model", &demo_model());
    let whole = small();
    let hostile = "<script>alert(1)</script>\u{202e}\u{7}";
    let categories = texts(&whole, "category");
    let categories = categories.iter().map(|name| if name == "a" { hostile } else { "b&\"'" });
    let columns = [
        ("id", strings(texts(&whole, "id"))),
        ("text", strings(texts(&whole, "text"))),
        ("category", strings(categories)),
    ];
    write_parquet(&workspace.path("input/all.parquet"), &table(&columns), 5);
    evaluated(&workspace, &small_pipeline(), &["--html", "page.html"]);
    let page = std::fs::read_to_string(workspace.path("page.html")).unwrap();
    assert!(!page.contains("<script") && !page.contains('\u{202e}') && !page.contains('\u{7}'));
    assert!(page.contains("&#60;script&#62;alert(1)&#60;/script&#62;"));
    let content = page.replace("http://www.w3.org/2000/svg", "");
    for request in ["http:", "https:", "src=", "url(", "@import", "<link", "<img"] {
        assert!(!content.contains(request), "{request}");
    }
    for section in [
        "matrix256",
        "ladder64",
        "pairs256",
        "top64",
        "agreement256",
        "explained64",
        "selection256",
        "repeat",
    ] {
        assert!(page.contains(&format!("<h2 id=\"{section}\">")), "{section}");
    }
    assert!(page.len() < 400_000, "{}", page.len());
}

/// Documents whose category and id are a text of this kind.
fn hostile_page(texts: &[(&'static str, String)]) -> Workspace {
    let workspace = Workspace::new();
    workspace.link("model", &demo_model());
    let whole = small();
    let named = |row: usize| &texts[row % texts.len()].1;
    let short = |text: &String, letters: usize| text.chars().take(letters).collect::<String>();
    let rows = 0..whole.num_rows();
    let columns = [
        ("id", strings(rows.clone().map(|row| format!("{row} {}", short(named(row), 200))))),
        ("text", strings(self::texts(&whole, "text"))),
        ("category", strings(rows.map(|row| short(named(row), 4000)))),
    ];
    write_parquet(&workspace.path("input/all.parquet"), &table(&columns), 5);
    evaluated(&workspace, &small_pipeline(), &["--html", "page.html"]);
    workspace
}

#[test]
fn every_kind_of_hostile_category_is_shown_as_text() {
    for kind in pages::hostile() {
        let workspace = hostile_page(std::slice::from_ref(&kind));
        let page = std::fs::read_to_string(workspace.path("page.html")).unwrap();
        pages::check_harmless(&page, 0);
        assert!(page.len() < 400_000, "{}: {} bytes", kind.0, page.len());
    }
}

#[test]
#[cfg_attr(not(longsift_browser), ignore = "needs chromium: any machine with it runs it")]
fn the_page_opens_in_a_browser_without_network() {
    let workspace = hostile_page(&pages::hostile());
    let sections = ["matrix256", "ladder64", "pairs256"];
    let elements = pages::check_opened(&workspace.path("page.html"), &sections);
    assert!(elements.matches("<svg").count() >= 2, "{}", elements.matches("<svg").count());
}
