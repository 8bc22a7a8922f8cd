//! Outputs of other formats than Parquet: the same samples, through the same commit.

use std::collections::BTreeMap;
use std::fs;
use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::{BinaryArray, Float64Array, RecordBatch, TimestampMillisecondArray};
use serde_json::{Value, json};

use crate::support::tables::{
    floats, integers, read_parquet, strings, table, texts, token_lists, write_parquet,
};
use crate::support::{Workspace, count, demo_model, files_below};

/// Two files of six documents, each a unit of its own, and a tokenizer.
fn workspace() -> Workspace {
    let workspace = Workspace::new();
    let tokenizer = fs::read(demo_model().join("tokenizer.json")).unwrap();
    workspace.write("tokenizer/tokenizer.json", tokenizer);
    for (file, first) in [("a", 0), ("b", 6)] {
        write_parquet(&workspace.path(&format!("input/{file}.parquet")), &documents(first), 2);
    }
    workspace
}

fn documents(first: usize) -> RecordBatch {
    let rows = first..first + 6;
    let text = |row: usize| {
        let sentence =
            |at: usize| format!("The {} box \"holds\" {} things.\n", at * at % 7, row * at);
        (0..9 + 3 * row).map(sentence).collect::<String>()
    };
    let times = rows.clone().map(|row| (row % 3 > 0).then_some(1_700_000_000_123 + row as i64));
    let times = times.collect::<TimestampMillisecondArray>().with_timezone("Europe/Paris");
    let bytes: Vec<Vec<u8>> = rows.clone().map(|row| vec![row as u8, 0xff]).collect();
    let numbers = rows.clone().map(|row| if row == 2 { f64::NAN } else { row as f64 / 3.0 });
    table(&[
        ("id", strings(rows.clone().map(|row| format!("document-{row}")))),
        ("text", strings(rows.map(text))),
        ("time", Arc::new(times)),
        ("bytes", Arc::new(BinaryArray::from_iter_values(bytes))),
        ("number", Arc::new(Float64Array::from_iter_values(numbers))),
    ])
}

/// A pipeline with this output and filter.
fn pipeline(output: &str, filter: &str) -> String {
    format!(
        "version: 1\nname: test\ninput: {{path: input, id_column: id, unit_bytes: 1024}}\nstages:\n  - {{stage: tokenize, \
         tokenizer: tokenizer, window_tokens: 48}}\n  - {{stage: lexical}}\n  - {{stage: score, terms: [{{statistic: \
         unique_token_share}}]}}\n  - {{stage: filter, {filter}}}\noutput: {{path: out, {output}}}\n"
    )
}

const HALF: &str = "keep_fraction: 0.5";

fn run(workspace: &Workspace, output: &str, filter: &str) -> Value {
    workspace.write("pipeline.yaml", pipeline(output, filter));
    workspace.longsift(&["run", "pipeline.yaml", "-q"]).success().summary()
}

/// The objects of all lines of an output.
fn lines(workspace: &Workspace) -> Vec<Value> {
    let files = files_below(&workspace.path("out/data"));
    assert!(files.iter().all(|file| file.to_str().unwrap().ends_with(".jsonl.zst")), "{files:?}");
    let text = files.iter().map(|file| zstd::decode_all(&fs::read(file).unwrap()[..]).unwrap());
    let text = String::from_utf8(text.collect::<Vec<_>>().concat()).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn json_lines_equal_parquet() {
    let parquet = workspace();
    run(&parquet, "part_bytes: 0", HALF);
    let table = read_parquet(&parquet.path("out/data"));
    let jsonl = workspace();
    let summary = run(&jsonl, "part_bytes: 0, format: jsonl-zst", HALF);
    let lines = lines(&jsonl);
    assert_eq!((lines.len(), lines.len() as u64), (table.num_rows(), count(&summary, "kept")));
    let schema = table.schema();
    let names: Vec<&str> = schema.fields().iter().map(|field| field.name().as_str()).collect();
    for line in &lines {
        let keys: Vec<&str> = line.as_object().unwrap().keys().map(String::as_str).collect();
        assert_eq!(keys, names, "every line has every column");
    }
    for column in ["id", "text", "longsift_sample_id"] {
        let found: Vec<&str> = lines.iter().map(|line| line[column].as_str().unwrap()).collect();
        assert_eq!(found, texts(&table, column), "{column}");
    }
    let scores: Vec<u64> =
        lines.iter().map(|line| line["longsift_score"].as_f64().unwrap().to_bits()).collect();
    let expected: Vec<u64> =
        floats(&table, "longsift_score").into_iter().map(f64::to_bits).collect();
    assert_eq!(scores, expected, "numbers round-trip bit for bit");
    for line in &lines {
        let row: usize = line["id"].as_str().unwrap().rsplit_once('-').unwrap().1.parse().unwrap();
        assert_eq!(line["number"].is_null(), row == 2, "JSON has no NaN");
        assert_eq!(line["bytes"], json!(format!("{row:02x}ff")));
        match line["time"].as_str() {
            Some(time) => {
                assert!(time.starts_with("2023-11-14T22:13:20.1") && time.ends_with('Z'), "{time}");
            }
            None => assert_eq!(row % 3, 0),
        }
    }
    jsonl.longsift(&["verify", "out.run"]).success();
    assert_eq!(
        jsonl.longsift(&["run", "pipeline.yaml", "-q"]).summary()["status"],
        "nothing_to_do"
    );
    // The output is valid input.
    jsonl.write(
        "again.yaml",
        pipeline("", "keep_fraction: 1")
            .replace("path: input,", "path: out/data, schema: {id: string, text: string},")
            .replace("path: out,", "path: again,"),
    );
    let again = jsonl.longsift(&["run", "again.yaml", "-q"]).success().summary();
    assert_eq!((count(&again, "rows_in"), count(&again, "quarantined")), (lines.len() as u64, 0));
}

/// The sequences of an output, and the ends of their pieces.
fn sequences(workspace: &Workspace) -> Vec<(Vec<u32>, Vec<i32>)> {
    let mut all = Vec::new();
    for index in files_below(&workspace.path("out/data")) {
        if index.extension().is_none_or(|extension| extension != "idx") {
            continue;
        }
        let bytes = fs::read(index.with_extension("bin")).unwrap();
        let ids: Vec<u32> =
            bytes.as_chunks().0.iter().map(|id| u32::from(u16::from_le_bytes(*id))).collect();
        let array = fs::read(index.with_extension("cu_seqlens.npy")).unwrap_or_default();
        let ends = array.get(128..).unwrap_or_default().as_chunks().0.iter();
        let ends: Vec<i32> = ends.map(|end| i32::from_le_bytes(*end)).collect();
        let mut ends = ends.split(|end| *end == 0).skip(1).map(<[i32]>::to_vec);
        let index = fs::read(index).unwrap();
        assert_eq!((&index[..9], index[17]), (&b"MMIDIDX\0\0"[..], 8));
        let count = u64::from_le_bytes(index[18..26].try_into().unwrap()) as usize;
        let mut start = 0;
        for length in index[34..34 + 4 * count].as_chunks().0 {
            let end = start + i32::from_le_bytes(*length) as usize;
            all.push((ids[start..end].to_vec(), ends.next().unwrap_or_default()));
            start = end;
        }
        assert_eq!(start, ids.len());
    }
    all
}

/// Token ids of the kept samples, in the order of a Parquet output.
fn kept_ids(workspace: &Workspace, whole: bool) -> Vec<Vec<u32>> {
    let printed =
        workspace.longsift(&["tokens", "pipeline.yaml", "--ids", "-q"]).success().json_lines();
    let mut ids: BTreeMap<String, Vec<u32>> = BTreeMap::new();
    for line in printed {
        let window = line["ids"].as_array().unwrap().iter().map(|id| id.as_u64().unwrap() as u32);
        let id = line["id"].as_str().unwrap();
        let key = if whole { id.to_owned() } else { format!("{id}#{}", line["window"]) };
        ids.entry(key).or_default().extend(window);
    }
    let samples = texts(&read_parquet(&workspace.path("out/data")), "longsift_sample_id");
    samples.iter().map(|sample| ids[sample].clone()).collect()
}

/// The kept samples in `selection/`, in the documented order of the output.
fn kept_by_selection(workspace: &Workspace) -> Vec<String> {
    let selection = read_parquet(&workspace.path("out.run/selection"));
    let kept = selection.column_by_name("kept").unwrap().as_boolean();
    let (files, ids) = (texts(&selection, "input_file"), texts(&selection, "id"));
    let (rows, windows) = (integers(&selection, "input_row"), integers(&selection, "window"));
    let kept = (0..selection.num_rows()).filter(|sample| kept.value(*sample));
    let mut kept: Vec<usize> = kept.collect();
    kept.sort_by_key(|sample| (&files[*sample], rows[*sample], windows[*sample]));
    kept.into_iter().map(|sample| format!("{}#{}", ids[sample], windows[sample])).collect()
}

#[test]
fn megatron_has_the_token_ids_of_every_sample() {
    let parquet = workspace();
    run(&parquet, "part_bytes: 0", HALF);
    let megatron = workspace();
    let summary = run(&megatron, "part_bytes: 0, format: megatron", HALF);
    let expected = kept_ids(&parquet, false);
    assert_eq!(expected.len() as u64, count(&summary, "kept"));
    let found: Vec<Vec<u32>> = sequences(&megatron).into_iter().map(|(ids, _)| ids).collect();
    assert_eq!(found, expected, "the token ids of the kept windows, in the order of the output");
    let samples = texts(&read_parquet(&parquet.path("out/data")), "longsift_sample_id");
    assert_eq!(kept_by_selection(&megatron), samples, "sequences are in the order of the samples");
    let ended = workspace();
    run(&ended, "part_bytes: 0, format: megatron, end_token: 3", HALF);
    let with_end = expected.iter().map(|ids| [&ids[..], &[3]].concat());
    let found: Vec<Vec<u32>> = sequences(&ended).into_iter().map(|(ids, _)| ids).collect();
    assert_eq!(found, with_end.collect::<Vec<_>>());
    megatron.longsift(&["verify", "out.run"]).success();
    let stderr = megatron.longsift(&["diff", "out.run", "out.run"]);
    assert!(!stderr.stderr.contains("panicked"), "{}", stderr.stderr);
}

#[test]
fn samples_are_packed_with_their_boundaries() {
    let parquet = workspace();
    run(&parquet, "", HALF);
    let packed = workspace();
    run(&packed, "format: megatron, sequence_tokens: 100", HALF);
    let mut pieces = Vec::new();
    let sequences = sequences(&packed);
    for (ids, ends) in &sequences {
        assert!(ids.len() <= 100 && ends.last().copied() == Some(ids.len() as i32));
        let starts = [&[0][..], &ends[..ends.len() - 1]].concat();
        pieces.extend(
            starts
                .iter()
                .zip(ends)
                .map(|(start, end)| ids[*start as usize..*end as usize].to_vec()),
        );
    }
    let mut expected = kept_ids(&parquet, false);
    assert_eq!(sequences.len(), expected.len().div_ceil(2), "two windows of 48 tokens in 100");
    pieces.sort();
    expected.sort();
    assert_eq!(pieces, expected);
}

#[test]
fn tokenised_documents_are_written_unchanged() {
    let workspace = Workspace::new();
    let documents: Vec<Vec<u32>> =
        (0..4).map(|row| (0..50 + row).map(|at| 60_000 + at % 7).collect()).collect();
    let columns = [
        ("id", strings((0..4).map(|row| format!("t-{row}")))),
        ("tokens", token_lists(&documents)),
    ];
    write_parquet(&workspace.path("input/a.parquet"), &table(&columns), 4);
    let of_tokens = pipeline("format: megatron, samples: documents", "keep_fraction: 1")
        .replace("id_column: id,", "id_column: id, tokens_column: tokens,")
        .replace("tokenizer: tokenizer, ", "");
    workspace.write("pipeline.yaml", of_tokens);
    workspace.longsift(&["run", "pipeline.yaml", "-q"]).success();
    let bytes = fs::read(workspace.path("out/data/train-00000-of-00001.bin")).unwrap();
    let ids: Vec<u32> =
        bytes.as_chunks().0.iter().map(|id| i32::from_le_bytes(*id) as u32).collect();
    assert_eq!(ids, documents.concat(), "four bytes per id if the vocabulary is unknown");
}

#[test]
fn any_number_of_shards_writes_the_same_bytes() {
    for output in ["format: jsonl-zst", "format: megatron, sequence_tokens: 100"] {
        for part_bytes in ["part_bytes: 0", "part_bytes: 3000"] {
            let output = format!("{part_bytes}, {output}");
            let whole = workspace();
            run(&whole, &output, HALF);
            let shards = workspace();
            shards.write("pipeline.yaml", pipeline(&output, HALF));
            for phase in ["score", "write"] {
                for shard in ["0/3", "1/3", "2/3"] {
                    let arguments =
                        ["run", "pipeline.yaml", "-q", "--phase", phase, "--shard", shard];
                    shards.longsift(&arguments).success();
                }
            }
            shards.longsift(&["run", "pipeline.yaml", "-q", "--phase", "select"]).success();
            assert_eq!(shards.results(), whole.results(), "{output}");
            let threads = workspace();
            threads.write("pipeline.yaml", pipeline(&output, HALF));
            threads.longsift(&["run", "pipeline.yaml", "-q", "--threads", "1"]).success();
            assert_eq!(threads.results(), whole.results(), "{output}");
        }
    }
}

#[test]
fn another_format_replaces_the_output_without_measuring() {
    let workspace = workspace();
    let outputs =
        ["format: megatron, sequence_tokens: 100", "format: jsonl-zst", "", "format: megatron"];
    for output in outputs {
        let summary = run(&workspace, output, HALF);
        let fresh = self::workspace();
        run(&fresh, output, HALF);
        assert_eq!(workspace.results(), fresh.results(), "{output}");
        assert!(output == outputs[0] || summary["windows_scored"] == 0, "{summary}");
        workspace.longsift(&["verify", "out.run"]).success();
    }
}

#[test]
fn an_empty_output_has_its_files() {
    for (output, names) in [
        ("format: jsonl-zst", &["train-00000-of-00001.jsonl.zst"][..]),
        ("format: megatron", &["train-00000-of-00001.bin", "train-00000-of-00001.idx"]),
    ] {
        let workspace = workspace();
        let summary = run(&workspace, output, "min_score: 1000");
        assert_eq!(summary["kept"], 0);
        let files = files_below(&workspace.path("out/data"));
        let found: Vec<&str> =
            files.iter().map(|file| file.file_name().unwrap().to_str().unwrap()).collect();
        assert_eq!(found, names);
        workspace.longsift(&["verify", "out.run"]).success();
    }
}

#[test]
fn a_damaged_file_of_any_format_is_found() {
    for (output, file) in [
        ("format: jsonl-zst", "train-00000-of-00001.jsonl.zst"),
        ("format: megatron, sequence_tokens: 64", "train-00000-of-00001.cu_seqlens.npy"),
    ] {
        let workspace = workspace();
        run(&workspace, output, HALF);
        let path = workspace.path(&format!("out/data/{file}"));
        let mut bytes = fs::read(&path).unwrap();
        bytes[30] ^= 1;
        fs::write(&path, bytes).unwrap();
        let stdout = workspace.longsift(&["verify", "out.run"]).expect(3).to_text();
        assert!(stdout.contains(file) && stdout.contains("SHA-256"), "{stdout}");
    }
}

#[test]
fn settings_of_one_format_are_refused_with_another() {
    let workspace = workspace();
    for (output, filter, expected) in [
        ("sequence_tokens: 100", HALF, "`sequence_tokens` does not apply to `format: parquet`"),
        (
            "format: jsonl-zst, end_token: 3",
            HALF,
            "`end_token` does not apply to `format: jsonl-zst`",
        ),
        (
            "format: megatron, compression: snappy",
            HALF,
            "`compression` does not apply to `format: megatron`",
        ),
        (
            "format: megatron",
            "keep_fraction: 0.5, mark_only: true",
            "has no column for the marks of `mark_only`",
        ),
    ] {
        workspace.write("pipeline.yaml", pipeline(output, filter));
        let stderr = workspace.longsift(&["validate", "pipeline.yaml"]).expect(2).stderr;
        assert!(stderr.contains(expected), "{stderr}");
    }
}

#[test]
fn an_end_token_that_the_tokenizer_lacks_is_a_warning() {
    let workspace = workspace();
    for (id, warned) in [(3, false), (1_000_000, true)] {
        let output = format!("format: megatron, end_token: {id}");
        workspace.write("pipeline.yaml", pipeline(&output, HALF));
        let stderr = workspace.longsift(&["plan", "pipeline.yaml"]).success().stderr;
        let warning = "`end_token` is 1000000, but the tokenizer has ids up to";
        assert_eq!(stderr.contains(warning), warned, "{stderr}");
    }
}

#[test]
fn an_edited_card_stays_and_the_new_one_is_written_next_to_it() {
    let workspace = workspace();
    run(&workspace, "card: true", HALF);
    let [path, next] = ["out/README.md", "out/README.longsift.md"].map(|name| workspace.path(name));
    let edited = fs::read_to_string(&path).unwrap().replace("# test", "# Letters of the valley");
    fs::write(&path, &edited).unwrap();
    let again = |filter: &str| {
        workspace.write("pipeline.yaml", pipeline("card: true", filter));
        workspace.longsift(&["run", "pipeline.yaml", "-q"]).success()
    };
    for filter in [HALF, "keep_fraction: 0.25"] {
        let answer = again(filter);
        assert_eq!(fs::read_to_string(&path).unwrap(), edited, "{filter}");
        let card = fs::read_to_string(&next).unwrap();
        let kept = format!("| kept | {} |", answer.summary()["rows_kept"]);
        assert!(card.contains("# test") && card.contains(&kept), "{card}");
        let warning = "README.md` was edited after longsift wrote it";
        assert!(answer.stderr.contains(warning), "{}", answer.stderr);
        assert!(answer.stderr.contains("the new card is `out/README.longsift.md`"));
        workspace.longsift(&["verify", "out.run"]).success();
        assert_eq!(again(filter).summary()["status"], "nothing_to_do");
    }
    // Both are edited: nothing may be replaced, and nothing is scored.
    fs::write(&next, "# test").unwrap();
    workspace.write("pipeline.yaml", pipeline("card: true", HALF));
    let stderr = workspace.longsift(&["plan", "pipeline.yaml"]).expect(2).stderr;
    assert!(stderr.contains("README.longsift.md` was not written by longsift"), "{stderr}");
    fs::remove_file(&next).unwrap();
    fs::remove_file(&path).unwrap();
    let answer = again(HALF);
    assert!(path.exists() && !next.exists(), "{}", answer.stderr);
    assert!(!answer.stderr.contains("edited"), "{}", answer.stderr);
}

#[test]
fn a_report_never_replaces_a_foreign_file() {
    let workspace = workspace();
    run(&workspace, "", HALF);
    for name in ["out.run/report.html", "out.run/report.json", "out.run/missing.json"] {
        workspace.write(name, "{\"my\": \"own\"}");
        for output in ["report: true", ""] {
            if output.ends_with("true") && name.ends_with("missing.json") {
                continue;
            }
            workspace.write("pipeline.yaml", pipeline(output, HALF));
            let answer = workspace.longsift(&["run", "pipeline.yaml", "-q", "--fresh"]);
            if output.is_empty() {
                answer.success();
            } else {
                let stderr = answer.expect(2).stderr;
                assert!(
                    stderr.contains(&format!("{name}` was not written by longsift")),
                    "{stderr}"
                );
            }
            assert_eq!(fs::read_to_string(workspace.path(name)).unwrap(), "{\"my\": \"own\"}");
        }
        fs::remove_file(workspace.path(name)).unwrap();
    }
    let is_there =
        || ["html", "json"].map(|end| workspace.path(&format!("out.run/report.{end}")).exists());
    run(&workspace, "report: true", HALF);
    assert_eq!(is_there(), [true; 2]);
    run(&workspace, "report: true", "keep_fraction: 0.25");
    workspace.longsift(&["verify", "out.run"]).success();
    run(&workspace, "", HALF);
    assert_eq!(is_there(), [false; 2], "the report of another selection");
}

#[test]
fn a_dataset_card_follows_its_selection_and_never_replaces_a_foreign_one() {
    let workspace = workspace();
    let summary = run(&workspace, "card: true", HALF);
    let path = workspace.path("out/README.md");
    let card = fs::read_to_string(&path).unwrap();
    assert!(
        card.starts_with("---\npretty_name: \"test\"\nconfigs:\n- config_name: default\n"),
        "{card}"
    );
    assert!(card.contains("path: data/train-*.parquet\nsize_categories:\n- n<1K\n"), "{card}");
    assert!(
        card.contains(&format!(
            "| kept | {} | {} |",
            summary["rows_kept"], summary["windows_kept"]
        ))
    );
    workspace.longsift(&["verify", "out.run"]).success();
    let again = self::workspace();
    run(&again, "card: true", HALF);
    assert_eq!(fs::read_to_string(again.path("out/README.md")).unwrap(), card);
    run(&workspace, "card: true", "keep_fraction: 0.25");
    assert_ne!(fs::read_to_string(&path).unwrap(), card);
    let now = fs::read_to_string(&path).unwrap();
    fs::write(&path, format!("{now} ")).unwrap();
    workspace.longsift(&["verify", "out.run"]).expect(3);
    fs::write(&path, now).unwrap();
    run(&workspace, "", HALF);
    assert!(!path.exists(), "the card of another selection");
    fs::write(&path, "my own words").unwrap();
    run(&workspace, "", "keep_fraction: 0.25");
    workspace.write("pipeline.yaml", pipeline("card: true", HALF));
    let stderr = workspace.longsift(&["run", "pipeline.yaml", "-q"]).expect(2).stderr;
    assert!(stderr.contains("README.md` was not written by longsift"), "{stderr}");
    assert_eq!(fs::read_to_string(&path).unwrap(), "my own words");
}
