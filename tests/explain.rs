//! `longsift explain`: the origin of one window's statistics.

use std::fs;

use arrow_array::Array;
use arrow_array::cast::AsArray;
use arrow_array::types::{Float64Type, Int64Type};
use serde_json::{Value, json};

use crate::support::pages::{beyond_a_screen, check_harmless, check_opened, hostile};
use crate::support::tables::{floats, read_parquet, read_scores, strings, table, write_parquet};
use crate::support::{Pipeline, Tiny, Workspace, copy_folder, demo_model, numbers};

fn explain(workspace: &Workspace, arguments: &[&str]) -> Value {
    let all = [&["explain"][..], arguments, &["--format", "json"]].concat();
    serde_json::from_str(&workspace.longsift(&all).success().stdout).unwrap()
}

fn pipeline(score: &str) -> Pipeline {
    let model = demo_model();
    Pipeline::text(model.to_str().unwrap(), 128)
        .measure("recurrence")
        .score(score)
        .filter("keep_fraction: 0.5")
}

/// A finished run over these texts.
fn run(texts: &[String]) -> Workspace {
    run_scored(texts, "formula: longattn, within: group")
}

fn run_scored(texts: &[String], score: &str) -> Workspace {
    let workspace = Workspace::new();
    let input = table(&[
        ("id", strings((0..texts.len()).map(|row| format!("d#{row}")))),
        ("group", strings((0..texts.len()).map(|row| ["one", "two"][row % 2]))),
        ("text", strings(texts)),
    ]);
    write_parquet(&workspace.path("input/a.parquet"), &input, 3);
    workspace.run(&pipeline(score));
    workspace
}

fn texts() -> Vec<String> {
    let sentence = |row: usize, index: usize| {
        let names = ["harbour", "keeper", "winter", "storm", "ledger", "mast", "lamp"];
        format!(
            "In year {} the {} wrote of the {}. ",
            index % (3 + row),
            names[(index + row) % 7],
            names[index * row % 7]
        )
    };
    (0..8).map(|row| (0..60).map(|index| sentence(row, index)).collect()).collect()
}

#[test]
fn statistics_equal_the_score_table_bit_for_bit() {
    let workspace = run(&texts());
    let scores = read_scores(&workspace.path("out.run"));
    let ids: Vec<String> = crate::support::tables::texts(&scores, "id");
    let windows = crate::support::tables::integers(&scores, "window");
    for row in [0, scores.num_rows() / 2, scores.num_rows() - 1] {
        let sample = format!("{}#{}", ids[row], windows[row]);
        let found = explain(&workspace, &["out.run", &sample]);
        assert_eq!(found["notes"], json!([]), "{sample}");
        let mut compared = 0;
        for statistic in found["figures"].as_array().unwrap() {
            assert_eq!(statistic["now"], statistic["recorded"], "{statistic}");
            let column = scores.column_by_name(statistic["statistic"].as_str().unwrap()).unwrap();
            if column.is_null(row) {
                assert!(statistic["now"].is_null(), "{statistic}");
            } else if let Some(column) = column.as_primitive_opt::<Float64Type>() {
                assert_eq!(
                    statistic["now"].as_f64().unwrap().to_bits(),
                    column.value(row).to_bits()
                );
            } else if let Some(column) = column.as_primitive_opt::<Int64Type>() {
                assert_eq!(statistic["now"].as_i64().unwrap(), column.value(row));
            } else {
                let list = column.as_list::<i32>().value(row);
                assert_eq!(
                    numbers(&statistic["now"]),
                    list.as_primitive::<Float64Type>().values().to_vec()
                );
            }
            compared += 1;
        }
        assert!(compared >= 12, "{compared}");
        // The values shown by token add up to the statistics.
        let statistic = |name: &str| {
            let statistics = found["figures"].as_array().unwrap();
            let statistic =
                statistics.iter().find(|statistic| statistic["statistic"] == name).unwrap();
            statistic["now"].as_f64().unwrap()
        };
        let masses = numbers(&found["far_mass"]);
        assert_eq!(masses.len(), 128);
        let mean = masses.iter().sum::<f64>() / 128.0;
        assert!((mean - statistic("dependency_strength")).abs() < 1e-12, "{mean}");
        let links = found["links"].as_array().unwrap();
        let far = links.iter().filter(|link| link["far"] == true).count();
        assert!((far as f64 / 64.0 - statistic("far_recurrence")).abs() < 1e-15);
        let copied = links.iter().filter(|link| link["copied"] == true).count();
        assert!(copied as f64 / 64.0 <= statistic("copy_share") + 1e-15);
    }
}

#[test]
fn a_whole_model_shows_the_gain_of_each_token_and_the_blocks_of_any_layer() {
    let workspace = Workspace::new();
    let input = table(&[
        ("id", strings((0..8).map(|row| format!("d#{row}")))),
        ("group", strings((0..8).map(|row| ["one", "two"][row % 2]))),
        ("text", strings(texts())),
    ]);
    write_parquet(&workspace.path("input/a.parquet"), &input, 3);
    let model = demo_model();
    workspace.run(
        &pipeline("terms: [{statistic: long_gain}]").measure(&format!(
            "language-model, short_context_tokens: 32, model: {}",
            model.display()
        )),
    );
    let found = explain(&workspace, &["out.run", "d#3#0", "--html", "page.html"]);
    let statistic = |name: &str| {
        let own = |own: &&Value| own["statistic"] == name;
        found["figures"].as_array().unwrap().iter().find(own).unwrap().clone()
    };
    for own in found["figures"].as_array().unwrap() {
        assert_eq!(own["now"], own["recorded"], "{own}");
    }
    let losses = numbers(&found["token_losses"]);
    assert_eq!(losses.len(), 127);
    let sum = statistic("loss_sum")["now"].as_f64().unwrap();
    assert_eq!(losses.iter().sum::<f64>().to_bits(), sum.to_bits());
    let gains: Vec<Option<f64>> =
        found["token_gains"].as_array().unwrap().iter().map(Value::as_f64).collect();
    assert_eq!((gains.len(), gains.iter().position(Option::is_some)), (128, Some(32)));
    let sum: f64 = gains.iter().flatten().sum();
    let recorded = statistic("gain_sum")["recorded"].as_f64().unwrap();
    assert!((sum - recorded).abs() < 1e-12, "{sum} {recorded}");
    let page = fs::read_to_string(workspace.path("page.html")).unwrap();
    assert!(page.contains("Gain from the long context") && page.contains(" nats"));
    let stdout = workspace.longsift(&["explain", "out.run", "d#3#0"]).success().stdout;
    assert!(stdout.contains("Passages with the highest gain from the long context"), "{stdout}");

    assert_eq!(found["layer"], 0);
    let of_layer = explain(&workspace, &["out.run", "d#3#0", "--layer", "1"]);
    assert_eq!(of_layer["layer"], 1);
    assert_eq!(of_layer["block_boundaries"], found["block_boundaries"]);
    assert_ne!(of_layer["block_attention"], found["block_attention"]);
    let first_again = explain(&workspace, &["out.run", "d#3#0", "--layer", "0"]);
    for (row, again) in [("block_attention", &first_again)] {
        let (one, other) = (&found[row], &again[row]);
        for (one, other) in one.as_array().unwrap().iter().zip(other.as_array().unwrap()) {
            for (one, other) in one.as_array().unwrap().iter().zip(other.as_array().unwrap()) {
                let apart = one.as_f64().unwrap_or(0.0) - other.as_f64().unwrap_or(0.0);
                assert!(apart.abs() < 1e-5, "{one} {other}");
            }
        }
    }
    let refused = workspace.longsift(&["explain", "out.run", "d#3#0", "--layer", "7"]).expect(2);
    assert!(
        refused.stderr.contains("layer 7 does not exist: the model has 2 layers"),
        "{}",
        refused.stderr
    );
}

#[test]
fn the_rank_is_within_the_group() {
    let workspace = run(&texts());
    let scores = read_scores(&workspace.path("out.run"));
    let ids = crate::support::tables::texts(&scores, "id");
    let windows = crate::support::tables::integers(&scores, "window");
    let mut ranks: Vec<(String, u64, u64, f64, bool)> = Vec::new();
    for (id, window) in ids.iter().zip(windows) {
        let found = explain(&workspace, &["out.run", &format!("{id}#{window}")]);
        let own = &found["selected"];
        let group = own["group"].as_str().unwrap().to_owned();
        let numbers = (own["rank"].as_u64().unwrap(), own["of"].as_u64().unwrap());
        ranks.push((
            group,
            numbers.0,
            numbers.1,
            own["score"].as_f64().unwrap(),
            own["reason"].is_null(),
        ));
    }
    for group in ["one", "two"] {
        let mut own: Vec<_> = ranks.iter().filter(|(name, ..)| name == group).collect();
        own.sort_by_key(|(_, rank, ..)| *rank);
        assert!(own.iter().all(|(_, _, group_size, ..)| *group_size == own.len() as u64));
        assert!(own.windows(2).all(|pair| pair[0].3 >= pair[1].3 && (pair[0].4 || !pair[1].4)));
        assert_eq!(own[0].1, 1);
    }
    let text = workspace.longsift(&["explain", "out.run", "d#0#0"]).success().stdout;
    assert!(
        text.contains("samples of `one`") && text.contains("Passages with the most attention"),
        "{text}"
    );
}

#[test]
fn guards_of_a_document_are_judged_by_its_own_statistics() {
    let workspace = run(&texts());
    let guard = "guards: [{statistic: far_recurrence, max_quantile: 0.5}]";
    let documents = pipeline("formula: longattn").filter(&format!("keep_fraction: 0.5, {guard}"));
    let documents = documents.output("samples: documents").to_string();
    workspace.write("pipeline.yaml", documents.replace("path: out,", "path: whole,"));
    workspace.longsift(&["run", "pipeline.yaml", "-q"]).success();
    let selection = read_parquet(&workspace.path("whole.run/selection"));
    let (ids, values) =
        (crate::support::tables::texts(&selection, "id"), floats(&selection, "far_recurrence"));
    let mut rejected = 0;
    for (id, value) in ids.iter().zip(values) {
        for window in 0..2 {
            let found = explain(&workspace, &["whole.run", &format!("{id}#{window}")]);
            let guard = &found["guards"][0];
            assert_eq!(guard["value"].as_f64().unwrap().to_bits(), value.to_bits(), "{found:#}");
            let is_rejected = found["selected"]["reason"] == "guard_far_recurrence";
            assert_eq!(guard["rejects"], is_rejected, "{found:#}");
            rejected += u32::from(is_rejected);
        }
    }
    assert!(rejected > 0);
}

#[test]
fn the_weakest_component_of_a_minimum_is_named() {
    let components = "combine: least, terms: [{statistic: far_recurrence}, {statistic: dependency_strength}], \
                 within: group";
    let workspace = run_scored(&texts(), components);
    let scores = read_scores(&workspace.path("out.run"));
    let ids = crate::support::tables::texts(&scores, "id");
    let windows = crate::support::tables::integers(&scores, "window");
    let mut weakest = std::collections::BTreeSet::new();
    for (id, window) in ids.iter().zip(windows) {
        let found = explain(&workspace, &["out.run", &format!("{id}#{window}")]);
        let own = &found["selected"];
        let terms = own["terms"].as_array().unwrap();
        assert_eq!(terms.len(), 2);
        // The score equals the named term, and no other term is less.
        let value_of = |name: &Value| {
            terms.iter().find(|term| term["statistic"] == *name).unwrap()["value"].as_f64().unwrap()
        };
        assert_eq!(value_of(&own["weakest"]).to_bits(), own["score"].as_f64().unwrap().to_bits());
        assert!(terms.iter().all(|term| term["value"].as_f64() >= own["score"].as_f64()));
        weakest.insert(own["weakest"].as_str().unwrap().to_owned());
    }
    assert_eq!(weakest.len(), 2, "each component is the weakest of some window: {weakest:?}");
    let text = workspace.longsift(&["explain", "out.run", "d#0#0"]).success().stdout;
    assert!(text.contains("score limited by "), "{text}");
    workspace.longsift(&["explain", "out.run", "d#0#0", "--html", "page.html"]).success();
    let page = fs::read_to_string(workspace.path("page.html")).unwrap();
    assert_eq!(page.matches("limits the score").count(), 1);
    // A component has its value in the score, and elsewhere the value of its statistic.
    let found = explain(&workspace, &["out.run", "d#0#0"]);
    let (above, below) = page.split_once("All statistics").unwrap();
    assert!(above.contains("<th>component</th><th>value in the score</th>"));
    assert!(below.contains("<th>statistic</th><th>now</th><th>recorded</th>"));
    for term in found["selected"]["terms"].as_array().unwrap() {
        let (name, value) = (term["statistic"].as_str().unwrap(), term["value"].as_f64().unwrap());
        assert!(above.contains(&format!("<td>{name}</td><td>{value:.6}</td>")), "{term}");
        let (_, row) = below.split_once(&format!("<td>{name}</td><td>")).unwrap();
        let shown: f64 = row.split_once('<').unwrap().0.parse().unwrap();
        let figures = found["figures"].as_array().unwrap();
        let figure = figures.iter().find(|own| own["statistic"] == name).unwrap();
        let measured = figure["recorded"].as_f64().unwrap();
        assert!((shown - measured).abs() < 1e-5, "{shown} {figure}");
        assert!((value - measured).abs() > 1e-3, "the score has a percentile: {term} {figure}");
    }
}

#[test]
fn missing_and_changed_inputs_are_reported() {
    let workspace = run(&texts());
    let refused = |arguments: &[&str], code: i32, part: &str| {
        let answer = workspace.longsift(&[&["explain"][..], arguments].concat());
        assert!(answer.code == code && answer.stderr.contains(part), "{}", answer.stderr);
    };
    refused(&["out.run", "d#0"], 2, "document `d` not found among the 8 documents of the input");
    refused(&["out.run", "nobody"], 2, "expected ID#WINDOW, got `nobody`");
    refused(&["out.run", "d#0#x"], 2, "expected ID#WINDOW");
    refused(&["out.run", "d#0#99"], 2, "has no window 99: its last window is");
    refused(&["out.run", "d#0#99999999999999"], 2, "expected ID#WINDOW");
    refused(&["out.run", "d#9#0"], 2, "document `d#9` not found");
    refused(&["elsewhere.run", "d#0#0"], 2, "elsewhere.run");
    // By index, and for a pipeline without a run.
    let of_pipeline = explain(&workspace, &["pipeline.yaml", "a.parquet:0#0"]);
    assert!(of_pipeline["selected"].is_null() && of_pipeline["figures"][0]["recorded"].is_null());
    // With measures that need no model.
    let without_model = Pipeline::text("", 128)
        .without_model(Some(demo_model().to_str().unwrap()))
        .measure("recurrence")
        .score("formula: far-recurrence");
    workspace.write("without.yaml", without_model.to_string());
    let found = explain(&workspace, &["without.yaml", "d#1#0", "--html", "without.html"]);
    assert!(found["far_distance"].is_null() && found["far_mass"] == json!([]));
    check_harmless(&fs::read_to_string(workspace.path("without.html")).unwrap(), 0);
    // The document has changed.
    let mut changed = texts();
    changed[0] = changed[0].replace("harbour", "airport");
    let other = run(&changed);
    fs::copy(other.path("input/a.parquet"), workspace.path("input/a.parquet")).unwrap();
    refused(&["out.run", "d#0#0"], 3, "has changed since the run scored it");
    fs::remove_file(workspace.path("input/a.parquet")).unwrap();
    refused(&["out.run", "d#0#0"], 2, "input");
}

#[test]
fn weights_that_changed_since_the_run_are_named() {
    let workspace = Workspace::with_three_groups();
    workspace.run(&Pipeline::tokens("model", 64));
    Tiny::new().seed(2).write(&workspace.path("model"));
    let found = explain(&workspace, &["out.run", "document-1#0"]);
    let notes: Vec<&str> =
        found["notes"].as_array().unwrap().iter().map(|note| note.as_str().unwrap()).collect();
    assert_eq!(notes.len(), 2, "{notes:?}");
    let different = notes[0].strip_prefix("values that differ from the recorded ones: ").unwrap();
    assert!(different.contains("dependency_strength"), "{different}");
    assert!(notes[1].starts_with("changed since the run: weights: "), "{notes:?}");

    // The last tensor of the file is the norm after the last layer.
    let workspace = Workspace::new();
    let input = table(&[("id", strings(["d"])), ("text", strings(&texts()[..1]))]);
    write_parquet(&workspace.path("input/a.parquet"), &input, 1);
    copy_folder(&demo_model(), &workspace.path("model"));
    let of_model = "language-model, short_context_tokens: 32";
    workspace.run(&Pipeline::text("model", 128).measure(of_model));
    let path = workspace.path("model/model.safetensors");
    let mut weights = fs::read(&path).unwrap();
    let low_byte = weights.len() - 2;
    weights[low_byte] ^= 0x40;
    fs::write(&path, weights).unwrap();
    let notes = explain(&workspace, &["out.run", "d#0"])["notes"].to_string();
    assert!(notes.contains("mean_loss") && !notes.contains("dependency_strength"), "{notes}");
    assert!(notes.contains("changed since the run: model_weights: "), "{notes}");
    assert!(!notes.contains("kernel") && !notes.contains("settings"), "{notes}");
}

#[test]
fn other_settings_are_not_called_a_changed_document() {
    let workspace = run(&texts());
    let found = explain(&workspace, &["out.run", "d#1#0", "--limit", "2"]);
    assert_eq!(found["notes"], json!([]));
    assert_eq!(found["selected"], explain(&workspace, &["out.run", "d#1#0"])["selected"]);
    let other = ["out.run", "d#1#0", "--set", "stages.tokenize.window_tokens=64"];
    let refused = workspace.longsift(&[&["explain"][..], &other].concat()).expect(3).stderr;
    assert!(
        refused.contains("the run did not score tokens 0 to 64 of document `d#1`"),
        "{refused}"
    );
    assert!(refused.contains("changed since the run: window_tokens: 64, was 128"), "{refused}");
    let guards = "stages.filter.guards=[{statistic: dependency_strength, max: 0.5}]";
    let refused = workspace.longsift(&["explain", "out.run", "d#1#0", "--set", guards]).expect(2);
    assert!(refused.stderr.contains("guards differ from those of the run"), "{}", refused.stderr);
    let kernel = ["out.run", "d#1#0", "--kernel", "portable-f32"];
    let notes = explain(&workspace, &kernel)["notes"].to_string();
    let named = notes.contains("changed since the run: kernel: portable-f32, was ");
    // Where the run used this kernel, nothing differs.
    assert!(notes == "[]" || named && !notes.contains("weights: "), "{notes}");
}

#[test]
fn every_kind_of_hostile_text_is_shown_as_text() {
    let kinds = hostile();
    let workspace = run(&kinds.iter().map(|(_, text)| text.clone()).collect::<Vec<_>>());
    for (row, (kind, _)) in kinds.iter().enumerate() {
        let sample = format!("d#{row}#0");
        explain(&workspace, &["out.run", &sample, "--html", "page.html"]);
        let page = fs::read_to_string(workspace.path("page.html")).unwrap();
        check_harmless(&page, 0);
        assert!(
            page.contains("class=\"shaded ") && page.len() < 1_500_000,
            "{kind}: {}",
            page.len()
        );
    }
}

#[test]
#[cfg_attr(not(longsift_browser), ignore = "needs chromium: any machine with it runs it")]
fn an_explanation_opens_in_a_browser_without_network() {
    let mut all = texts();
    all.extend(hostile().into_iter().take(6).map(|(_, text)| text));
    let workspace = run(&all);
    for sample in ["d#0#0", "d#8#0", "d#12#0"] {
        workspace.longsift(&["explain", "out.run", sample, "--html", "page.html"]).success();
        let sections = ["text", "along", "lists", "blocks", "figures", "repeat"];
        let elements = check_opened(&workspace.path("page.html"), &sections);
        assert!(elements.matches("<span").count() > 100 && !elements.contains("<script"));
        assert!(elements.contains("tokens cannot be shaded: no token lies "), "{sample}");
        let names = "main,summary,svg,table,.shaded,pre";
        let beyond = beyond_a_screen(&workspace.path("page.html"), 400, names);
        assert!(beyond.len() > "of 9:".len() && beyond.ends_with(':'), "{sample}: {beyond}");
    }
}
