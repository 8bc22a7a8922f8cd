//! Windows of documents: the published slicer's cases, and the exact bytes of a text's windows.

use std::collections::BTreeSet;

use serde_json::Value;

use crate::support::tables::{
    integers, optional_integers, read_parquet, read_scores, strings, table, texts, token_lists,
    write_parquet,
};
use crate::support::{Pipeline, Tiny, Workspace, demo_model, read_json, shared};

/// The windows of documents of the given lengths, as `longsift tokens` prints them: a set per document.
fn windows_of(lengths: &[usize], tokenize: &str, window_tokens: usize) -> Vec<BTreeSet<[u64; 2]>> {
    let workspace = Workspace::new();
    Tiny::new().write(&workspace.path("model"));
    let documents: Vec<Vec<u32>> = lengths.iter().map(|length| vec![3; *length]).collect();
    let ids = (0..lengths.len()).map(|index| index.to_string());
    let input = table(&[("id", strings(ids)), ("tokens", token_lists(&documents))]);
    write_parquet(&workspace.path("input/a.parquet"), &input, 64);
    let pipeline = Pipeline::tokens("model", window_tokens).tokenize(tokenize);
    workspace.write("pipeline.yaml", pipeline.to_string());
    let mut windows = vec![BTreeSet::new(); lengths.len()];
    for line in workspace.longsift(&["tokens", "pipeline.yaml", "-q"]).success().json_lines() {
        let document: usize = line["id"].as_str().unwrap().parse().unwrap();
        if let Some(start) = line["token_start"].as_u64() {
            let window = [start, line["token_end"].as_u64().unwrap()];
            assert_eq!(line["window"], windows[document].len(), "numbered in order: {line}");
            assert!(windows[document].last().is_none_or(|last| *last < window), "{line}");
            windows[document].insert(window);
        }
    }
    windows
}

#[test]
#[cfg_attr(not(longsift_shared), ignore = "needs ../shared, a sibling of the repository")]
fn both_ends_matches_the_published_slicer_except_for_one_window() {
    let cases = read_json(&shared("conformance/slice_window_cases.json"));
    let cases: Vec<&Value> = cases["cases"].as_array().unwrap().iter().collect();
    let number = |case: &Value, key: &str| case[key].as_u64().unwrap() as usize;
    let sizes: BTreeSet<usize> = cases.iter().map(|case| number(case, "window")).collect();
    let mut seen = 0;
    for size in sizes {
        let of_size: Vec<&&Value> =
            cases.iter().filter(|case| number(case, "window") == size).collect();
        let lengths: Vec<usize> = of_size.iter().map(|case| number(case, "n")).collect();
        let found = windows_of(&lengths, "windows: both-ends", size);
        for (case, found) in of_size.iter().zip(found) {
            let expected: BTreeSet<[u64; 2]> = if number(case, "n") == size {
                assert_eq!(case["segments"].as_array().unwrap().len(), 0, "the one difference");
                BTreeSet::from([[0, size as u64]])
            } else {
                serde_json::from_value::<Vec<[u64; 2]>>(case["segments"].clone())
                    .unwrap()
                    .into_iter()
                    .collect()
            };
            assert_eq!(found, expected, "n {}, window {size}", case["n"]);
            seen += 1;
        }
    }
    assert_eq!(seen, cases.len());
    assert!(seen > 100, "{seen}");
}

#[test]
fn disjoint_windows_drop_or_score_the_tail() {
    let lengths = [0, 1, 7, 8, 9, 16, 20];
    let drop = windows_of(&lengths, "windows: disjoint", 8);
    let counts: Vec<usize> = drop.iter().map(BTreeSet::len).collect();
    assert_eq!(counts, [0, 0, 0, 1, 1, 2, 2]);
    let score = windows_of(&lengths, "windows: disjoint, short_documents: score", 8);
    let last: Vec<Option<[u64; 2]>> = score.iter().map(|windows| windows.last().copied()).collect();
    // A single token has no far token: it is too short for any setting.
    let expected = [None, None, Some([0, 7]), Some([0, 8]), Some([0, 8]), Some([8, 16])];
    assert_eq!(last[..6], expected);
    assert_eq!(last[6], Some([16, 20]));
}

#[test]
fn bos_tokens_count_towards_the_window_only() {
    for bos in [0usize, 1, 2] {
        let workspace = Workspace::new();
        Tiny::new().write(&workspace.path("model"));
        let input = table(&[("id", strings(["a"])), ("tokens", token_lists(&[vec![5; 40]]))]);
        write_parquet(&workspace.path("input/a.parquet"), &input, 1);
        let mut pipeline = Pipeline::tokens("model", 10);
        pipeline.tokenize = format!("window_tokens: 10, bos: {bos}");
        workspace.write("pipeline.yaml", pipeline.to_string());
        let lines =
            workspace.longsift(&["tokens", "pipeline.yaml", "-q", "--ids"]).success().json_lines();
        assert_eq!(lines.len(), 40 / (10 - bos));
        for line in &lines {
            let ids: Vec<u64> = serde_json::from_value(line["ids"].clone()).unwrap();
            assert_eq!(ids, [vec![1; bos], vec![5; 10 - bos]].concat());
            assert_eq!(line["tokens_total"], 40);
        }
        workspace.run(&pipeline.filter("keep_fraction: 1"));
        let scores = read_scores(&workspace.path("out.run"));
        assert!(integers(&scores, "tokens_scored").iter().all(|scored| *scored == 10));
        let starts: Vec<i64> = (0..lines.len()).map(|index| (index * (10 - bos)) as i64).collect();
        assert_eq!(integers(&scores, "token_start"), starts);
        assert!(optional_integers(&scores, "byte_start").iter().all(Option::is_none));
        let kept = read_parquet(&workspace.path("out/data"));
        assert!(optional_integers(&kept, "longsift_byte_end").iter().all(Option::is_none));
    }
}

#[test]
fn windows_of_a_run_are_not_printed_after_a_document_has_changed() {
    let workspace = Workspace::new();
    Tiny::new().write(&workspace.path("model"));
    let write = |second: Vec<u32>| {
        let tokens = token_lists(&[vec![5; 40], second, vec![6; 3]]);
        let input = table(&[("id", strings(["a", "b", "short"])), ("tokens", tokens)]);
        write_parquet(&workspace.path("input/a.parquet"), &input, 2);
    };
    write(vec![7; 40]);
    workspace.run(&Pipeline::tokens("model", 10));
    let tokens = |arguments: &[&str]| workspace.longsift(&[&["tokens"][..], arguments].concat());
    let of_run = tokens(&["out.run", "-q"]).success().stdout;
    assert_eq!(of_run, tokens(&["pipeline.yaml", "-q"]).success().stdout);
    // Other settings do not change a document.
    tokens(&["out.run", "-q", "--limit", "1"]).success();
    tokens(&["out.run", "-q", "--set", "stages.tokenize.window_tokens=50"]).success();
    write(vec![8; 40]);
    let refused = tokens(&["out.run", "-q"]).expect(3).stderr;
    assert!(refused.contains("document `b` has changed since the run scored it"), "{refused}");
    tokens(&["out.run", "-q", "--limit", "1"]).success();
    tokens(&["pipeline.yaml", "-q"]).success();
}

/// Texts that a tokenizer cuts inside characters, and that a normaliser might change.
fn difficult_texts() -> Vec<String> {
    let pieces = [
        "The gauge at Brook End read 47 feet on 3 March 1931. ",
        "Größe, naïve, Ωμέγα, e\u{301}te\u{301}, \u{fb01}nal, \u{1F469}\u{200D}\u{1F692}, 👩🏽‍🚀! ",
        "𠀀𠮷野家で𩸽を食べる。古文書によれば、",
        "\r\n\t  \u{a0}\u{3000}tabs and spaces   \u{feff} ",
        "<bos> is spelled out, <pad> too; \u{0}\u{7f} ",
        "fn main() { println!(\"{:>8}\", 0xDEAD_BEEFu32); }\n",
    ];
    (0..4)
        .map(|start| {
            (0..60).map(|index| pieces[(start * index + index / 7) % pieces.len()]).collect()
        })
        .collect()
}

#[test]
fn adjacent_windows_of_a_text_tile_it_byte_by_byte() {
    let workspace = Workspace::new();
    let documents = difficult_texts();
    let ids = (0..documents.len()).map(|index| index.to_string());
    let input = table(&[("id", strings(ids)), ("text", strings(&documents))]);
    write_parquet(&workspace.path("input/a.parquet"), &input, 3);
    workspace.link("model", &demo_model());
    let pipeline = Pipeline::text("model", 16)
        .tokenize("short_documents: score")
        .attention("min_distance_tokens: 1")
        .filter("keep_fraction: 1");
    workspace.run(&pipeline);
    let kept = read_parquet(&workspace.path("out/data"));
    let (ids, windows) = (texts(&kept, "id"), texts(&kept, "text"));
    let (starts, ends) =
        (integers(&kept, "longsift_byte_start"), integers(&kept, "longsift_byte_end"));
    for (index, document) in documents.iter().enumerate() {
        let rows: Vec<usize> =
            (0..ids.len()).filter(|row| ids[*row] == index.to_string()).collect();
        let whole: String = rows.iter().map(|row| windows[*row].as_str()).collect();
        assert_eq!(whole, *document);
        assert!(rows.len() > 10);
        for row in rows {
            let bytes = starts[row] as usize..ends[row] as usize;
            assert_eq!(document[bytes], windows[row]);
        }
    }
    let numbers = integers(&kept, "longsift_window");
    assert!(numbers.windows(2).all(|pair| pair[1] == 0 || pair[1] == pair[0] + 1));
}
