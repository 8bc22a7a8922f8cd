//! Rows that cannot be scored are quarantined with a code, and every row is accounted for.

use std::collections::BTreeMap;
use std::sync::Arc;

use arrow_array::builder::{Int64Builder, ListBuilder};
use arrow_array::{Array, ArrayRef, Date64Array, RecordBatch, TimestampSecondArray};
use serde_json::json;

use crate::support::tables::{
    document, integers, labels, optional_texts, read_parquet, strings, table, texts, token_ids,
    token_lists, write_parquet,
};
use crate::support::{Pipeline, Tiny, Workspace, count, demo_model, files_below};

/// Rows (of the file) by code, from the quarantine table.
fn quarantined(table: &RecordBatch) -> BTreeMap<String, Vec<i64>> {
    let mut rows: BTreeMap<String, Vec<i64>> = BTreeMap::new();
    for (code, row) in
        texts(table, "longsift_code").into_iter().zip(integers(table, "longsift_row"))
    {
        rows.entry(code).or_default().push(row);
    }
    rows
}

fn codes(expected: &[(&str, &[i64])]) -> BTreeMap<String, Vec<i64>> {
    expected.iter().map(|(code, rows)| ((*code).to_owned(), rows.to_vec())).collect()
}

/// Token lists with every possible defect.
fn bad_token_lists() -> ArrayRef {
    let mut builder = ListBuilder::new(Int64Builder::new());
    let good: Vec<Option<i64>> =
        document(1, 64).into_iter().map(|id| Some(i64::from(id))).collect();
    let with_value = |value: Option<i64>| {
        let mut list = good.clone();
        list[40] = value;
        list
    };
    builder.append_value(good.clone());
    builder.append_null();
    builder.append_value(with_value(None));
    builder.append_value(with_value(Some(-1)));
    builder.append_value(with_value(Some(97)));
    builder.append_value(with_value(Some(1 << 40)));
    builder.append_value([]);
    builder.append_value(good[..10].to_vec());
    builder.append_value(good.clone());
    Arc::new(builder.finish())
}

#[test]
fn bad_token_lists_are_quarantined_by_code() {
    let workspace = Workspace::new();
    Tiny::new().write(&workspace.path("model"));
    let notes: Vec<String> = (0..9).map(|row| format!("note {row}")).collect();
    let input = table(&[
        ("id", strings((0..9).map(|row| row.to_string()))),
        ("note", strings(&notes)),
        ("tokens", bad_token_lists()),
    ]);
    write_parquet(&workspace.path("input/a.parquet"), &input, 4);
    let pipeline = Pipeline::tokens("model", 64)
        .input("max_quarantined_fraction: 0.7")
        .filter("keep_fraction: 1");
    let summary = workspace.run(&pipeline);
    let table = read_parquet(&workspace.path("out.run/quarantine"));
    let found = quarantined(&table);
    insta::assert_snapshot!(messages(&table));
    assert_eq!(found.values().flatten().count(), 6);
    assert_eq!(count(&summary, "quarantined"), 6);
    assert_eq!(summary["rows_dropped"], json!({ "short_document": 1 }));
    assert_eq!((count(&summary, "rows_in"), count(&summary, "kept")), (9, 2));
    for (row, note) in integers(&table, "longsift_row").iter().zip(texts(&table, "note")) {
        assert_eq!(note, format!("note {row}"), "the quarantine has the original row");
    }
    assert!(texts(&table, "longsift_file").iter().all(|file| file == "a.parquet"));
    let groups = integers(&table, "longsift_row_group");
    let rows = integers(&table, "longsift_row");
    assert!(groups.iter().zip(rows).all(|(group, row)| *group == row / 4));
    assert_eq!(texts(&read_parquet(&workspace.path("out/data")), "id"), ["0", "8"]);
    let dropped = read_parquet(&workspace.path("out.run/dropped"));
    assert_eq!(texts(&dropped, "reason"), ["short_document"]);
    assert_eq!(integers(&dropped, "input_row"), [7]);
}

/// Row, code and message, a line each.
fn messages(table: &RecordBatch) -> String {
    let rows = integers(table, "longsift_row").into_iter();
    let stages = texts(table, "longsift_stage");
    let reasons = texts(table, "longsift_code").into_iter().zip(texts(table, "longsift_message"));
    rows.zip(stages)
        .zip(reasons)
        .map(|((row, stage), (code, message))| format!("{row} {stage} {code}: {message}"))
        .collect::<Vec<String>>()
        .join("\n")
}

#[test]
fn times_that_the_output_cannot_hold_are_quarantined() {
    let workspace = Workspace::new();
    Tiny::new().write(&workspace.path("model"));
    let documents: Vec<Vec<u32>> = (0..6).map(|seed| document(seed, 64)).collect();
    let day = 86_400_000;
    let seconds = vec![Some(1), Some(i64::MAX), None, Some(-1), Some(i64::MIN), Some(9)];
    let seen: ArrayRef = Arc::new(TimestampSecondArray::from(seconds));
    let born: ArrayRef =
        Arc::new(Date64Array::from(vec![day, 0, 1, -day, 7 * day, (1 << 31) * day]));
    let ids = strings((0..6).map(|row| row.to_string()));
    let input =
        table(&[("id", ids), ("seen", seen), ("born", born), ("tokens", token_lists(&documents))]);
    write_parquet(&workspace.path("input/a.parquet"), &input, 4);
    let pipeline = Pipeline::tokens("model", 64)
        .input("max_quarantined_fraction: 0.7")
        .filter("keep_fraction: 1");
    let summary = workspace.run(&pipeline);
    assert_eq!((count(&summary, "quarantined"), count(&summary, "kept")), (4, 2));
    let quarantine = read_parquet(&workspace.path("out.run/quarantine"));
    let expected = [
        "1 input time_out_of_range: column `seen`: 9223372036854775807 s does not fit in milliseconds",
        "2 input time_out_of_range: column `born`: 1 ms is not a date in days",
        "4 input time_out_of_range: column `seen`: -9223372036854775808 s does not fit in milliseconds",
        "5 input time_out_of_range: column `born`: 185542587187200000 ms is not a date in days",
    ];
    assert_eq!(messages(&quarantine), expected.join("\n"));
    // Other values of a bad row are kept.
    let born = quarantine.column_by_name("born").unwrap();
    assert!(born.is_valid(0) && born.is_null(1));
    let data = read_parquet(&workspace.path("out/data"));
    assert_eq!(texts(&data, "id"), ["0", "3"]);
    assert_eq!(data.column_by_name("seen").unwrap().null_count(), 0);
    workspace.write("pipeline.yaml", pipeline.input("on_bad_row: fail").to_string());
    let stderr = workspace.longsift(&["run", "pipeline.yaml", "-q"]).expect(3).stderr;
    assert!(stderr.contains("9223372036854775807 s does not fit"), "{stderr}");
}

fn texts_workspace() -> Workspace {
    let workspace = Workspace::new();
    workspace.link("model", &demo_model());
    let long = "The archive of the valley keeps every letter. ".repeat(40);
    let input = table(&[
        ("id", labels(&[Some("a"), None, Some("c"), Some("d"), Some("e"), Some("f")])),
        (
            "text",
            labels(&[Some(&long), Some(&long[3..]), None, Some(""), Some("short"), Some(&long)]),
        ),
    ]);
    write_parquet(&workspace.path("input/a.parquet"), &input, 3);
    workspace
}

#[test]
fn null_and_empty_texts_are_quarantined() {
    let workspace = texts_workspace();
    let pipeline = Pipeline::text("model", 128)
        .input("max_quarantined_fraction: 0.5")
        .filter("keep_fraction: 1");
    let summary = workspace.run(&pipeline);
    let table = read_parquet(&workspace.path("out.run/quarantine"));
    assert_eq!(quarantined(&table), codes(&[("empty_text", &[3]), ("null_text", &[2])]));
    assert_eq!(optional_texts(&table, "id"), [Some("c".to_owned()), Some("d".to_owned())]);
    assert_eq!(optional_texts(&table, "text"), [None, Some(String::new())]);
    assert_eq!(summary["rows_dropped"], json!({ "short_document": 1 }));
    let kept = read_parquet(&workspace.path("out/data"));
    let samples = texts(&kept, "longsift_sample_id");
    assert!(samples.contains(&"a#0".to_owned()), "{samples:?}");
    assert!(
        samples.contains(&"a.parquet:1#0".to_owned()),
        "a null id is file and row: {samples:?}"
    );
}

#[test]
fn a_document_longer_than_the_whole_document_limit_is_quarantined() {
    let workspace = Workspace::new();
    Tiny::new().write(&workspace.path("model"));
    let documents: Vec<Vec<u32>> = [31, 32, 33, 1, 2].map(|length| document(5, length)).to_vec();
    let ids = (0..documents.len()).map(|row| row.to_string());
    let input = table(&[("id", strings(ids)), ("tokens", token_lists(&documents))]);
    write_parquet(&workspace.path("input/a.parquet"), &input, 8);
    let pipeline = Pipeline::tokens("model", 32)
        .input("max_quarantined_fraction: 0.5")
        .tokenize("windows: whole-document")
        .filter("keep_fraction: 1");
    let summary = workspace.run(&pipeline);
    let table = read_parquet(&workspace.path("out.run/quarantine"));
    assert_eq!(quarantined(&table), codes(&[("document_too_long", &[2])]));
    assert_eq!(token_ids(&table, "tokens"), [documents[2].clone()]);
    assert_eq!(summary["rows_dropped"]["too_short"], 2, "{summary}");
    let kept = read_parquet(&workspace.path("out/data"));
    assert_eq!(token_ids(&kept, "tokens"), documents[..2]);
    // With a BOS token, one more document is too long.
    let mut with_bos = pipeline;
    with_bos.tokenize = "window_tokens: 32, bos: 1, windows: whole-document".to_owned();
    workspace.run_with(&with_bos, &["--fresh"]);
    let table = read_parquet(&workspace.path("out.run/quarantine"));
    assert_eq!(quarantined(&table), codes(&[("document_too_long", &[1, 2])]));
}

#[test]
fn too_many_bad_rows_end_the_run() {
    let workspace = texts_workspace();
    let pipeline = Pipeline::text("model", 128).input("max_quarantined_fraction: 0.2");
    workspace.write("pipeline.yaml", pipeline.to_string());
    let first = workspace.longsift(&["run", "pipeline.yaml", "-q"]).expect(3);
    insta::assert_snapshot!(workspace.filtered(&first.stderr));
    assert_eq!(first.summary()["status"], "failed");
    let again = workspace.longsift(&["run", "pipeline.yaml", "-q"]).expect(3);
    assert_eq!(again.stderr, first.stderr, "later attempts print the same message");
    let summary = again.summary();
    assert_eq!((count(&summary, "rows_in"), count(&summary, "quarantined")), (6, 2), "{summary}");
    let status = || workspace.longsift(&["status", "out.run"]).success().stdout;
    let reason = "unfinished\n  reason    2 of 6 rows were quarantined (empty_text: 1, null_text: 1), more than ";
    assert!(status().starts_with(reason), "{}", status());
    assert!(files_below(&workspace.path("out/data")).is_empty());
    let wider = Pipeline::text("model", 128).input("max_quarantined_fraction: 0.34");
    assert_eq!(workspace.run(&wider)["status"], "done");
    assert!(status().starts_with("finished\n  units "), "{}", status());
}

#[test]
fn a_run_that_ends_before_all_rows_are_read_counts_the_bad_rows_so_far() {
    let workspace = texts_workspace();
    std::fs::copy(workspace.path("input/a.parquet"), workspace.path("input/b.parquet")).unwrap();
    let pipeline = Pipeline::text("model", 128).input("max_quarantined_fraction: 0.1");
    workspace.write("pipeline.yaml", pipeline.to_string());
    let answer = workspace.longsift(&["run", "pipeline.yaml", "-q"]).expect(3);
    let message = "2 of 12 rows were quarantined so far (";
    assert!(answer.stderr.contains(message), "{}", answer.stderr);
    let summary = answer.summary();
    assert_eq!((count(&summary, "rows_in"), count(&summary, "quarantined")), (6, 2), "{summary}");
}

#[test]
fn a_bad_row_fails_the_run_with_on_bad_row_fail() {
    let workspace = texts_workspace();
    let pipeline =
        Pipeline::text("model", 128).input("on_bad_row: fail, max_quarantined_fraction: 1");
    workspace.write("pipeline.yaml", pipeline.to_string());
    let answer = workspace.longsift(&["run", "pipeline.yaml", "-q"]).expect(3);
    insta::assert_snapshot!(workspace.filtered(&answer.stderr));
}

#[test]
fn an_input_of_bad_rows_is_accounted_for() {
    let workspace = Workspace::new();
    Tiny::new().write(&workspace.path("model"));
    let input = table(&[("id", strings(["a", "b"])), ("tokens", token_lists(&[vec![], vec![]]))]);
    write_parquet(&workspace.path("input/a.parquet"), &input, 8);
    let summary =
        workspace.run(&Pipeline::tokens("model", 32).input("max_quarantined_fraction: 1"));
    assert_eq!((count(&summary, "rows_in"), count(&summary, "quarantined")), (2, 2));
    assert_eq!((count(&summary, "windows_total"), count(&summary, "kept")), (0, 0));
    let data = read_parquet(&workspace.path("out/data"));
    assert_eq!((data.num_rows(), data.num_columns()), (0, 13), "an empty file with the schema");
}

#[test]
fn a_plan_warns_of_more_bad_rows_than_a_run_accepts() {
    let workspace = Workspace::new();
    let tokenizer = demo_model().display().to_string();
    let text = "a long text of words ".repeat(400);
    let rows = (0..20).map(|row| match row % 5 {
        0 => "{\"text\": null}\n".to_owned(),
        _ => format!("{{\"text\": \"{text}{row}\"}}\n"),
    });
    workspace.write("corpus/a.jsonl", rows.collect::<String>());
    workspace.longsift(&["init", "corpus", "--tokenizer", &tokenizer]).success();
    let plan = workspace.longsift(&["plan", "pipeline.yaml"]).success();
    assert!(plan.stderr.contains("4 of 20 rows would be quarantined ("), "{}", plan.stderr);
    assert!(plan.stderr.contains("more than `max_quarantined_fraction` 0.01 allows"));
    assert!(plan.to_text().contains("all 20 read: 4 to be quarantined, 0 too short"));
    workspace.longsift(&["run", "pipeline.yaml", "-q"]).expect(3);
    let set = ["plan", "pipeline.yaml", "--set", "input.max_quarantined_fraction=0.2"];
    assert!(!workspace.longsift(&set).success().stderr.contains("would be quarantined"));
}
