//! `filter.mark_only`: the whole corpus, with the filter's decision for each sample.

use std::collections::BTreeMap;

use arrow_array::Array;
use arrow_array::cast::AsArray;
use serde_json::Value;

use crate::support::tables::{
    floats, optional_texts, read_parquet, strings, table, texts, token_ids, token_lists,
    write_parquet,
};
use crate::support::{Pipeline, Tiny, Workspace, check_accounting, read_json};

/// Tokens of a document: the first half of a window repeated, or nothing twice.
fn tokens(document: usize, length: usize) -> Vec<u32> {
    let repeated =
        |position: usize| if document.is_multiple_of(3) { position % 32 } else { position };
    (0..length).map(|position| ((repeated(position) * 7 + document * 13) % 60 + 2) as u32).collect()
}

/// Two files of documents; two documents are too short.
fn workspace() -> Workspace {
    let workspace = Workspace::new();
    Tiny::new().write(&workspace.path("model"));
    for (file, first) in [("a", 0), ("b", 5)] {
        let documents: Vec<usize> = (first..first + 5).collect();
        let lengths = documents.iter().map(|document| if document % 5 == 2 { 20 } else { 150 });
        let lists: Vec<Vec<u32>> = documents
            .iter()
            .zip(lengths)
            .map(|(document, length)| tokens(*document, length))
            .collect();
        let columns = [
            ("id", strings(documents.iter().map(|document| format!("document-{document}")))),
            ("tokens", token_lists(&lists)),
        ];
        write_parquet(&workspace.path(&format!("input/{file}.parquet")), &table(&columns), 2);
    }
    workspace
}

fn pipeline(samples: &str, mark_only: bool) -> Pipeline {
    let filter = "keep_fraction: 0.5, guards: [{statistic: copy_share, max: 0.3}]";
    Pipeline::tokens("model", 64)
        .input("unit_bytes: 1024")
        .measure("recurrence")
        .filter(&format!("{filter}, mark_only: {mark_only}"))
        .output(&format!("samples: {samples}"))
}

fn counts(summary: &Value) -> Value {
    ["kept", "rows_kept", "rows_dropped", "windows_dropped", "windows_kept"]
        .map(|name| summary[name].clone())
        .to_vec()
        .into()
}

#[test]
fn a_marked_output_has_every_sample_with_its_decision() {
    for samples in ["windows", "documents"] {
        let (filtered, marked) = (workspace(), workspace());
        let plain = filtered.run(&pipeline(samples, false));
        marked.write("pipeline.yaml", pipeline(samples, true).to_string());
        let summary = marked.longsift(&["run", "pipeline.yaml", "-q"]).success().summary();
        check_accounting(&summary);
        assert_eq!(counts(&summary), counts(&plain));
        assert!(summary["windows_dropped"]["guard_copy_share"].as_u64().unwrap() > 0);
        for file in ["dropped", "calibration.json"] {
            let root = |workspace: &Workspace| workspace.path(&format!("out.run/{file}"));
            if file == "dropped" {
                let hashes = [&filtered, &marked].map(|run| run.hashes(&["out.run/dropped"]));
                assert_eq!(hashes[0], hashes[1]);
            } else {
                let groups =
                    [&filtered, &marked].map(|run| read_json(&root(run))["groups"].clone());
                assert_eq!(groups[0], groups[1]);
            }
        }

        let output = read_parquet(&marked.path("out/data"));
        let kept = output.column_by_name("longsift_kept").unwrap().as_boolean().clone();
        let reasons = optional_texts(&output, "longsift_reason");
        let mut by_reason: BTreeMap<&str, u64> = BTreeMap::new();
        for (row, reason) in reasons.iter().enumerate() {
            assert_eq!(kept.value(row), reason.is_none());
            *by_reason.entry(reason.as_deref().unwrap_or("kept")).or_default() += 1;
        }
        let dropped = if samples == "windows" { "windows_dropped" } else { "rows_dropped" };
        assert_eq!(by_reason["kept"], summary["kept"].as_u64().unwrap());
        for reason in ["guard_copy_share", "not_selected"] {
            let marked = by_reason.get(reason).copied().unwrap_or(0);
            assert_eq!(marked, summary[dropped][reason].as_u64().unwrap_or(0), "{reason}");
        }
        assert_eq!(by_reason["short_document"], 2, "{by_reason:?}");

        // Without a sample the score is null, and the document is complete.
        let score = output.column_by_name("longsift_score").unwrap();
        let ids = texts(&output, "id");
        let texts_of = token_ids(&output, "tokens");
        for (row, reason) in reasons.iter().enumerate() {
            let short = reason.as_deref() == Some("short_document");
            assert_eq!(score.is_null(row), short);
            if short {
                let document = ids[row].strip_prefix("document-").unwrap().parse().unwrap();
                assert_eq!(texts_of[row], tokens(document, 20));
            }
        }
        // In input order.
        let number = |id: &String| id.strip_prefix("document-").unwrap().parse::<u64>().unwrap();
        assert!(ids.iter().map(number).is_sorted());

        // The kept rows equal the output without marks.
        let plain = read_parquet(&filtered.path("out/data"));
        let kept: Vec<usize> = (0..reasons.len()).filter(|row| reasons[*row].is_none()).collect();
        let names = texts(&output, "longsift_sample_id");
        let names: Vec<&String> = kept.iter().map(|row| &names[*row]).collect();
        assert_eq!(names, texts(&plain, "longsift_sample_id").iter().collect::<Vec<_>>());
        assert_eq!(plain.column_by_name("longsift_kept"), None);
        assert!(floats(&plain, "longsift_score").iter().all(|score| score.is_finite()));

        assert_eq!(read_json(&marked.path("out.run/manifest.json"))["mark_only"], true);
        for run in [&filtered, &marked] {
            run.longsift(&["verify", "out.run"]).success();
        }
        let run = marked.path("out.run").display().to_string();
        let answer = filtered.longsift(&["diff", "out.run", &run]).expect(5).stdout;
        assert!(answer.contains("mark_only"), "{answer}");
        assert!(answer.contains("10 unchanged"), "{answer}");
    }
}

#[test]
fn rows_without_a_sample_share_no_id_with_others() {
    for samples in ["windows", "documents"] {
        let workspace = workspace();
        let lengths = [20, 20, 150, 20, 20, 150, 150];
        let lists: Vec<Vec<u32>> = lengths
            .iter()
            .enumerate()
            .map(|(document, length)| tokens(document, *length))
            .collect();
        let ids = ["a", "a", "a", "b", "b", "c", "d"].map(str::to_owned);
        let columns = [("id", strings(ids)), ("tokens", token_lists(&lists))];
        write_parquet(&workspace.path("input/c.parquet"), &table(&columns), 3);
        let pipeline = pipeline(samples, true).output("card: true");
        workspace.write("pipeline.yaml", pipeline.to_string());
        let summary = workspace.longsift(&["run", "pipeline.yaml", "-q"]).success().summary();
        let output = read_parquet(&workspace.path("out/data"));
        let mut ids = texts(&output, "longsift_sample_id");
        ids.sort_unstable();
        let rows = ids.len();
        ids.dedup();
        assert_eq!(ids.len(), rows, "{samples}: {ids:?}");
        assert!(ids.contains(&"a@c.parquet:0".to_owned()), "{samples}: {ids:?}");
        assert!(summary["kept"].as_u64().unwrap() < rows as u64);
        let card = std::fs::read_to_string(workspace.path("out/README.md")).unwrap();
        assert!(card.contains(&format!("The data has {rows} rows")), "{card}");
        workspace.longsift(&["verify", "out.run"]).success();
    }
}
