//! Scales over the samples that pass the guards, recomputed from the raw statistics by independent code.

use std::collections::BTreeMap;
use std::fs;

use arrow_array::cast::AsArray;
use arrow_array::types::Float64Type;
use arrow_array::{Array, RecordBatch};
use serde_json::{Value, json};

use crate::support::tables::{
    document, floats, labels, optional_integers, optional_texts, read_parquet, read_scores,
    strings, table, texts, token_ids, token_lists, write_parquet,
};
use crate::support::{Pipeline, Workspace, numbers, read_json};

const GROUPS: [Option<&str>; 3] = [Some("books"), None, Some("code")];
const STATISTICS: [&str; 2] = ["unique_token_share", "copy_share"];

/// Forty documents of one to three windows in three groups; half of them repeat themselves, more or less.
fn workspace() -> Workspace {
    let workspace = Workspace::new();
    for (file, rows) in [("a", 0..17_u64), ("b", 17..40)] {
        let documents: Vec<Vec<u32>> = rows
            .clone()
            .map(|row| {
                let mut tokens = document(row, 64 + row as usize % 3 * 64);
                let copied = (row % 2) as usize * (row as usize % 9) * 7;
                for start in (0..tokens.len()).step_by(64) {
                    (start + 24..(start + 24 + copied).min(start + 64))
                        .for_each(|at| tokens[at] = tokens[at - 24]);
                }
                tokens
            })
            .collect();
        let groups: Vec<Option<&str>> = rows.clone().map(|row| GROUPS[row as usize % 3]).collect();
        let input = table(&[
            ("id", strings(rows.map(|row| format!("{row:02}")))),
            ("group", labels(&groups)),
            ("tokens", token_lists(&documents)),
        ]);
        write_parquet(&workspace.path(&format!("input/{file}.parquet")), &input, 4);
    }
    workspace
}

fn pipeline(guards: &str) -> Pipeline {
    Pipeline::tokens("", 64)
        .without_model(None)
        .input("unit_bytes: 1024")
        .measure("recurrence, min_distance_tokens: 8")
        .measure("lexical")
        .filter(&format!("keep_fraction: 0.4, guards: [{guards}]"))
}

fn optional(table: &RecordBatch, name: &str) -> Vec<Option<f64>> {
    let column = table.column_by_name(name).unwrap().as_primitive::<Float64Type>();
    (0..column.len()).map(|row| column.is_valid(row).then(|| column.value(row))).collect()
}

/// Sample with its statistics from the score tables.
#[derive(Clone, Debug)]
struct Sample {
    id: String,
    window: Option<i64>,
    group: Option<String>,
    /// Values of [`STATISTICS`].
    values: [f64; 2],
}

/// All samples of the last run.
fn samples(workspace: &Workspace, documents: bool, within: bool) -> Vec<Sample> {
    let input = read_parquet(&workspace.path("input"));
    let groups: BTreeMap<String, Option<String>> =
        texts(&input, "id").into_iter().zip(optional_texts(&input, "group")).collect();
    let scores = read_scores(&workspace.path("out.run"));
    let columns = STATISTICS.map(|name| floats(&scores, name));
    let windows = optional_integers(&scores, "window");
    let mut windows: Vec<Sample> = (texts(&scores, "id").into_iter().zip(windows).enumerate())
        .map(|(row, (id, window))| Sample {
            group: groups[&id].clone().filter(|_| within),
            id,
            window,
            values: [columns[0][row], columns[1][row]],
        })
        .collect();
    // Input order, which breaks ties between scores.
    windows.sort_by(|one, other| (&one.id, one.window).cmp(&(&other.id, other.window)));
    if !documents {
        return windows;
    }
    let mean = |windows: &[Sample]| {
        let values = [0, 1].map(|statistic| {
            windows.iter().map(|sample| sample.values[statistic]).sum::<f64>()
                / windows.len() as f64
        });
        Sample { values, window: None, ..windows[0].clone() }
    };
    windows.chunk_by(|one, other| one.id == other.id).map(mean).collect()
}

/// Bounds of a guard on a statistic, as numbers or as quantiles.
#[derive(Clone, Copy)]
struct Bound {
    statistic: usize,
    low: Option<f64>,
    high: Option<f64>,
    quantile: bool,
}

impl Bound {
    fn guard(&self) -> String {
        let name = STATISTICS[self.statistic];
        let suffix = if self.quantile { "_quantile" } else { "" };
        let end = |key: &str, value: Option<f64>| {
            value.map_or(String::new(), |value| format!(", {key}{suffix}: {value}"))
        };
        format!("{{statistic: {name}{}{}}}", end("min", self.low), end("max", self.high))
    }

    /// Returns whether each value of a group passes.
    fn passes(&self, values: &[f64]) -> Vec<bool> {
        let mut sorted = values.to_vec();
        sorted.sort_by(f64::total_cmp);
        let bound = |limit: Option<f64>| {
            let quantile = |q: f64| sorted[((q * sorted.len() as f64).ceil() as usize).max(1) - 1];
            limit.map(|limit| if self.quantile { quantile(limit) } else { limit })
        };
        let (low, high) = (bound(self.low), bound(self.high));
        let inside = |value: &f64| {
            low.is_none_or(|low| *value >= low) && high.is_none_or(|high| *value <= high)
        };
        values.iter().map(inside).collect()
    }
}

/// Standardises a value on the scale of those that pass.
fn standardised(how: &str, passing: &[f64], value: f64) -> f64 {
    let count = passing.len() as f64;
    let (low, high) =
        passing.iter().fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), value| {
            (low.min(*value), high.max(*value))
        });
    let mean = passing.iter().sum::<f64>() / count;
    let squares = passing.iter().map(|value| (value - mean).powi(2)).sum::<f64>();
    let bin = |value: f64| (((value - low) / (high - low) * 4096.0) as usize).min(4095);
    match how {
        _ if high <= low => {
            if how == "z-score" {
                0.0
            } else {
                0.5
            }
        }
        "z-score" => (value - mean) / (squares / (count - 1.0)).sqrt(),
        "min-max" => (value - low) / (high - low),
        _ if value < low => 0.0,
        _ if value > high => 1.0,
        _ => {
            let below = passing.iter().filter(|other| bin(**other) < bin(value)).count() as f64;
            let own = passing.iter().filter(|other| bin(**other) == bin(value)).count() as f64;
            (below + own / 2.0) / count
        }
    }
}

/// Score, percentile and reason of a sample.
type Decided = (Option<f64>, Option<f64>, Option<String>);

/// Computes score, percentile and outcome of every sample by the definition.
fn expected(
    samples: &[Sample],
    bounds: &[Bound],
    how: &str,
) -> BTreeMap<(String, Option<i64>), Decided> {
    let mut groups: BTreeMap<Option<String>, Vec<&Sample>> = BTreeMap::new();
    for sample in samples {
        groups.entry(sample.group.clone()).or_default().push(sample);
    }
    let mut found = BTreeMap::new();
    for members in groups.values() {
        let column = |statistic: usize| -> Vec<f64> {
            members.iter().map(|sample| sample.values[statistic]).collect()
        };
        let verdicts: Vec<Vec<bool>> =
            bounds.iter().map(|bound| bound.passes(&column(bound.statistic))).collect();
        let refused = |member: usize| verdicts.iter().position(|passes| !passes[member]);
        let passing: Vec<usize> =
            (0..members.len()).filter(|member| refused(*member).is_none()).collect();
        let scale = |statistic: usize| -> Vec<f64> {
            passing.iter().map(|member| members[*member].values[statistic]).collect()
        };
        let scales = [scale(0), scale(1)];
        let score = |member: &usize| {
            let [one, other] = [0, 1].map(|statistic| {
                standardised(how, &scales[statistic], members[*member].values[statistic])
            });
            one - 0.5 * other
        };
        let mut ranking = passing.clone();
        ranking.sort_by(|one, other| score(other).total_cmp(&score(one)));
        let kept = &ranking[..(members.len() * 2 / 5).min(ranking.len())];
        let scores: Vec<f64> = passing.iter().map(score).collect();
        let (low, high) =
            scores.iter().fold((f64::INFINITY, f64::NEG_INFINITY), |(l, h), score| {
                (l.min(*score), h.max(*score))
            });
        let bin = |score: f64| (((score - low) / (high - low) * 65536.0) as usize).min(65535);
        for (member, sample) in members.iter().enumerate() {
            let own = (!passing.is_empty()).then(|| score(&member));
            let percentile = own.filter(|_| refused(member).is_none()).map(|own| {
                let below = scores.iter().filter(|other| bin(**other) < bin(own)).count() as f64;
                let equal = scores.iter().filter(|other| bin(**other) == bin(own)).count() as f64;
                (below + equal / 2.0) / scores.len() as f64
            });
            let reason = match refused(member) {
                Some(guard) => Some(format!("guard_{}", STATISTICS[bounds[guard].statistic])),
                None if kept.contains(&member) => None,
                None => Some("not_selected".to_owned()),
            };
            found.insert((sample.id.clone(), sample.window), (own, percentile, reason));
        }
    }
    found
}

/// Checks the table of the selection against the definition. Returns the number of samples rejected with a score.
fn check(workspace: &Workspace, samples: &[Sample], bounds: &[Bound], how: &str) -> usize {
    let mut expected = expected(samples, bounds, how);
    let table = read_parquet(&workspace.path("out.run/selection"));
    let keys = texts(&table, "id").into_iter().zip(optional_integers(&table, "window"));
    let found = optional(&table, "score").into_iter().zip(optional(&table, "percentile"));
    let found = found.zip(optional_texts(&table, "reason"));
    let close = |one: Option<f64>, other: Option<f64>| match (one, other) {
        (Some(one), Some(other)) => (one - other).abs() < 1e-9,
        (one, other) => one.is_none() && other.is_none(),
    };
    let mut rejected = 0;
    for (key, ((score, percentile), reason)) in keys.zip(found) {
        let outcome = expected.remove(&key).unwrap();
        assert!(
            close(score, outcome.0),
            "{how} {key:?}: score {score:?}, expected {:?}",
            outcome.0
        );
        assert!(
            close(percentile, outcome.1),
            "{how} {key:?}: {percentile:?}, expected {:?}",
            outcome.1
        );
        assert_eq!(reason, outcome.2, "{how} {key:?}");
        let is_rejected = reason.is_some_and(|reason| reason.starts_with("guard_"));
        rejected += usize::from(is_rejected && score.is_some());
    }
    assert!(expected.is_empty(), "{expected:?}");
    rejected
}

const TERMS: &str =
    "terms: [{statistic: unique_token_share}, {statistic: copy_share, weight: -0.5}]";

#[test]
fn scores_of_windows_and_documents_match_the_definition() {
    let workspace = workspace();
    let bound = |statistic, low, high, quantile| Bound { statistic, low, high, quantile };
    let sets = [
        vec![bound(1, None, Some(0.2), false)],
        vec![bound(0, Some(0.25), Some(0.75), true)],
        vec![bound(1, None, Some(0.3), false), bound(0, Some(0.3), None, true)],
        // Nothing passes.
        vec![bound(1, Some(2.0), None, false)],
    ];
    for (index, bounds) in sets.iter().enumerate() {
        let guards: Vec<String> = bounds.iter().map(Bound::guard).collect();
        for (documents, within) in [(false, true), (true, true), (false, false)] {
            for how in ["z-score", "min-max", "percentile"] {
                let mut pipeline = pipeline(&guards.join(", "))
                    .score(&format!("{TERMS}, standardise: {how}"))
                    .output(if documents { "samples: documents" } else { "samples: windows" });
                if within {
                    pipeline = pipeline.score("within: group");
                }
                workspace.run(&pipeline);
                let samples = samples(&workspace, documents, within);
                let rejected = check(&workspace, &samples, bounds, how);
                assert_eq!(rejected > 0, index < 3, "{guards:?}");
            }
        }
    }
}

const GUARD: &str = "{statistic: copy_share, max: 0.2}";

#[test]
fn a_calibration_keeps_its_scales() {
    let workspace = workspace();
    let calibrated = pipeline(GUARD).score(&format!("{TERMS}, within: group"));
    let summary = workspace.run(&calibrated);
    let saved = read_json(&workspace.path("out.run/calibration.json"));
    assert_eq!(saved["version"], 4);
    let table = read_parquet(&workspace.path("out.run/selection"));
    let (groups, reasons) = (optional_texts(&table, "group"), optional_texts(&table, "reason"));
    for group in saved["groups"].as_array().unwrap() {
        let value = group["value"].as_str().map(str::to_owned);
        let of_group = || groups.iter().zip(&reasons).filter(|(own, _)| **own == value);
        let is_rejected = |reason: &Option<String>| {
            reason.as_deref().is_some_and(|reason| reason.starts_with("guard_"))
        };
        let passing = of_group().filter(|(_, reason)| !is_rejected(reason)).count();
        assert_eq!(group["count"], passing);
        assert_eq!(group["samples"], of_group().count());
        assert_eq!(group["thresholds"][0]["score"].is_number(), group["kept"] != 0, "{group}");
        let parts: f64 = numbers(&group["score_parts"]).iter().sum();
        assert!((parts - passing as f64).abs() < 0.5);
    }
    fs::copy(workspace.path("out.run/calibration.json"), workspace.path("saved.json")).unwrap();
    let before = workspace.hashes(&["out/data", "out.run/selection"]);
    let again = workspace.run(&calibrated.score("calibration: saved.json"));
    assert_eq!(again["kept"], summary["kept"]);
    assert_eq!(workspace.hashes(&["out/data", "out.run/selection"]), before);
    for group in again["drift"].as_array().unwrap() {
        let moved = if group["count"] == 0 { Value::Null } else { json!(0.0) };
        assert_eq!(group["stability_index"], moved, "{group}");
        assert!(group["count"].as_u64() <= group["samples"].as_u64());
        assert!(group["shifts"].as_object().unwrap().values().all(|shift| *shift == 0.0));
    }
    // A calibration in the previous format is rejected by name.
    let older = Value::Object(saved.as_object().unwrap().clone().into_iter().collect());
    let older = {
        let mut older = older;
        older["version"] = json!(3);
        older
    };
    workspace.write("saved.json", older.to_string());
    let refused = workspace.longsift(&["plan", "pipeline.yaml"]).expect(2).to_text();
    assert!(
        refused.contains("has format 3, expected 4") && refused.contains("calibrate again"),
        "{refused}"
    );
}

#[test]
fn budgets_of_a_calibration_are_matched_by_scope() {
    let workspace = workspace();
    let (long, short) =
        ("{min_tokens: 128, keep_tokens: 700}", "{max_tokens: 127, keep_tokens: 300}");
    let calibrated = |budgets: &str, calibration: &str| {
        let all = Pipeline::tokens("", 64)
            .without_model(None)
            .measure("lexical")
            .score("terms: [{statistic: unique_token_share}]")
            .output("samples: documents")
            .filter(&format!("budgets: [{budgets}]"));
        if calibration.is_empty() { all } else { all.score(&format!("calibration: {calibration}")) }
    };
    workspace.run(&calibrated(&format!("{long}, {short}"), ""));
    fs::copy(workspace.path("out.run/calibration.json"), workspace.path("saved.json")).unwrap();
    let before = workspace.hashes(&["out/data"]);
    workspace.run(&calibrated(&format!("{short}, {long}"), "saved.json"));
    assert_eq!(workspace.hashes(&["out/data"]), before, "the order of budgets has no effect");
    let refuses = |budgets: &str, calibration: &str, why: &str| {
        workspace.write("wrong.yaml", calibrated(budgets, calibration).to_string());
        let message = workspace.longsift(&["plan", "wrong.yaml"]).expect(2).to_text();
        assert!(message.contains("made with other settings"), "{message}");
        assert!(message.contains(why), "{why}: {message}");
    };
    let longer = long.replace("128", "192");
    refuses(
        &format!("{longer}, {short}"),
        "saved.json",
        "it has no budget for any group, 192 tokens or more",
    );
    refuses(short, "saved.json", "the filter has no budget for any group, 128 tokens or more");
    // Samples that match both budgets belong to the first.
    let (wide, most) =
        ("{max_tokens: 128, keep_tokens: 500}", "{min_tokens: 64, keep_tokens: 700}");
    workspace.run(&calibrated(&format!("{wide}, {most}"), ""));
    fs::copy(workspace.path("out.run/calibration.json"), workspace.path("wide.json")).unwrap();
    refuses(&format!("{most}, {wide}"), "wide.json", "a sample can match both");
    // A calibration for a fraction cannot be used for a budget.
    workspace.run(&calibrated(long, "").filter("keep_fraction: 0.5"));
    fs::copy(workspace.path("out.run/calibration.json"), workspace.path("fraction.json")).unwrap();
    refuses(long, "fraction.json", "it has no budget for any group, 128 tokens or more");
    // Nor for documents merged in another way.
    let mut merged = read_json(&workspace.path("saved.json"));
    assert_eq!(merged["merge"], json!({ "unique_token_share": "mean" }));
    merged["merge"]["unique_token_share"] = json!("max");
    workspace.write("merged.json", merged.to_string());
    refuses(
        &format!("{long}, {short}"),
        "merged.json",
        "`unique_token_share` of a document is now the mean of its windows; in the calibration it is the max",
    );
}

#[test]
fn another_guard_selects_like_a_fresh_run_and_whatif() {
    let workspace = workspace();
    let score = format!("{TERMS}, within: group, standardise: percentile");
    workspace.run(&pipeline(GUARD).score(&score));
    let guards = "stages.filter.guards=[{statistic: copy_share, max: 0.1}]";
    let answer =
        workspace.longsift(&["whatif", "out.run", "--set", guards, "--format", "json"]).success();
    let found: Value = serde_json::from_str(&answer.stdout).unwrap();
    let other = pipeline("{statistic: copy_share, max: 0.1}").score(&score);
    let summary = workspace.run(&other);
    assert_eq!(summary["windows_scored"], 0, "nothing is measured again");
    assert_eq!(found["total"]["then"]["samples"], summary["kept"]);
    let reused = workspace.hashes(&["out/data", "out.run/selection"]);
    // The same in two shards and in other units.
    let sharded = self::workspace();
    sharded.write("pipeline.yaml", other.to_string());
    for shard in ["0/2", "1/2"] {
        let arguments = ["run", "pipeline.yaml", "-q", "--phase", "score", "--shard", shard];
        sharded.longsift(&arguments).success();
    }
    sharded.longsift(&["run", "pipeline.yaml", "-q", "--phase", "select"]).success();
    assert_eq!(sharded.hashes(&["out/data", "out.run/selection"]), reused);
    // Without guards, scales are over all samples, also for a compared score.
    let bound = Bound { statistic: 1, low: None, high: Some(0.1), quantile: false };
    check(&workspace, &samples(&workspace, false, true), &[bound], "percentile");
    workspace.run(&pipeline("").score(&score));
    check(&workspace, &samples(&workspace, false, true), &[], "percentile");
}

#[test]
fn a_guard_that_rejects_most_of_a_group_is_a_warning() {
    let workspace = workspace();
    let strict =
        pipeline("{statistic: copy_share, max: 1}, {statistic: unique_token_share, max: 0.1}")
            .score(&format!("{TERMS}, within: group"))
            .output("report: true");
    workspace.write("pipeline.yaml", strict.to_string());
    let answer = workspace.longsift(&["run", "pipeline.yaml"]).success();
    let summary = answer.summary();
    let guards = summary["guards"].as_array().unwrap();
    let counts =
        |guard: &Value| (guard["rejected"].as_u64().unwrap(), guard["samples"].as_u64().unwrap());
    let ((few, _), (most, all)) = (counts(&guards[0]), counts(&guards[1]));
    assert!(few == 0 && 2 * most > all, "{summary}");
    assert_eq!(guards[1]["setting"], "stages.filter.guards.1");
    let groups = guards[1]["groups"].as_array().unwrap();
    let rejected: u64 = groups.iter().map(|group| counts(group).0).sum();
    assert!(groups.len() == 3 && rejected == most, "{summary}");
    let warning = format!("`unique_token_share` at most 0.1 rejects {most} of {all}");
    assert!(answer.stderr.contains(&warning), "{}", answer.stderr);
    assert!(answer.stderr.contains("stages.filter.guards.1"), "{}", answer.stderr);
    assert!(!answer.stderr.contains("`copy_share` at most 1 rejects"), "{}", answer.stderr);
    let page = fs::read_to_string(workspace.path("out.run/report.html")).unwrap();
    assert!(page.contains("unique_token_share at most 0.1"), "the page lists the guard");
    let report = read_json(&workspace.path("out.run/report.json"));
    assert_eq!(report["summary"]["guards"], summary["guards"]);
    // Of each group, fewer windows pass than the fraction asks for.
    let strict = pipeline("{statistic: unique_token_share, min_quantile: 0.6}");
    workspace.write("pipeline.yaml", strict.score(&format!("{TERMS}, within: group")).to_string());
    let run = |fraction: &str| {
        let fraction = format!("stages.filter.keep_fraction={fraction}");
        workspace.longsift(&["run", "pipeline.yaml", "--set", &fraction]).success()
    };
    let unfilled = "fewer windows were kept than `keep_fraction` asks for";
    let answer = run("0.99");
    assert!(answer.stderr.contains(unfilled), "{}", answer.stderr);
    let summary = answer.summary();
    let groups = summary["guards"][0]["groups"].as_array().unwrap();
    for group in groups {
        let (rejected, samples) = counts(group);
        let (kept, wanted) = (samples - rejected, samples * 99 / 100);
        let expected = format!("{kept} of {wanted} of group ");
        assert!(answer.stderr.contains(&expected), "{expected}: {}", answer.stderr);
    }
    for fraction in ["0.01", "1"] {
        assert!(!run(fraction).stderr.contains(unfilled), "{fraction}");
    }
}

#[test]
fn a_report_and_an_explanation_show_why_a_window_was_rejected() {
    let workspace = workspace();
    let guarded =
        pipeline(&format!("{GUARD}, {{statistic: unique_token_share, min_quantile: 0.1}}"))
            .score(&format!("{TERMS}, within: group"))
            .output("report: true");
    let summary = workspace.run(&guarded);
    let report = read_json(&workspace.path("out.run/report.json"));
    let guards = report["rejected"].as_array().unwrap();
    assert_eq!(guards.len(), 2);
    for (guard, counted) in guards.iter().zip(summary["guards"].as_array().unwrap()) {
        for key in ["setting", "statistic", "bounds", "rejected", "samples"] {
            assert_eq!(guard[key], counted[key]);
        }
        let of_groups = |key: &str| -> u64 {
            guard["groups"]
                .as_array()
                .unwrap()
                .iter()
                .map(|group| group[key].as_u64().unwrap())
                .sum()
        };
        assert_eq!(guard["groups"].as_array().unwrap().len(), 3);
        assert_eq!(of_groups("rejected"), guard["rejected"]);
        assert_eq!(of_groups("samples"), guard["samples"]);
    }
    let input = read_parquet(&workspace.path("input"));
    let tokens: BTreeMap<String, Vec<u32>> =
        texts(&input, "id").into_iter().zip(token_ids(&input, "tokens")).collect();
    let calibration = read_json(&workspace.path("out.run/calibration.json"));
    let groups = calibration["groups"].as_array().unwrap();
    let windows = guards[0]["windows"].as_array().unwrap();
    assert_eq!(windows.len(), 2);
    for window in windows {
        assert!(window["value"].as_f64().unwrap() > 0.2, "{window}");
        let (id, number) = (window["id"].as_str().unwrap(), window["window"].as_u64().unwrap());
        let first = &window["passages"][0];
        let range_field = |key: &str| first[key].as_u64().unwrap() as usize;
        assert!(range_field("counted") > 0 && first["unit"] == "tokens", "{first}");
        let start = number as usize * 64;
        let ids = &tokens[id][start + range_field("start")..start + range_field("end")];
        let text: Vec<String> = ids.iter().map(u32::to_string).collect();
        assert_eq!(first["text"], text.join(" "));
        let sample = format!("{id}#{number}");
        let answer = workspace.longsift(&["explain", "out.run", &sample, "--format", "json"]);
        let found: Value = serde_json::from_str(&answer.success().stdout).unwrap();
        assert_eq!(found["guards"][0]["rejects"], true);
        assert_eq!(found["guards"][0]["value"], window["value"]);
        assert_eq!(found["guards"][0]["passages"], window["passages"]);
        assert!(found["guards"][1]["low"].is_number(), "the quantile of its group: {found}");
        assert!(found["selected"]["rank"].is_null(), "{found}");
        let value = &found["selected"]["group"];
        let group = groups.iter().find(|group| group["value"] == *value).unwrap();
        assert_eq!(found["selected"]["score"].is_number(), group["count"] != 0, "{found}");
        let explanation = workspace.longsift(&["explain", "out.run", &sample]).success().to_text();
        assert!(
            explanation.contains("copy_share at most 0.2") && explanation.contains("rejected"),
            "{explanation}"
        );
    }
    let page = fs::read_to_string(workspace.path("out.run/report.html")).unwrap();
    assert!(page.contains("Rejected by guards"));
}
