//! Input other than Parquet: JSON Lines, compressed or not, tables with JSON in their second column, Arrow IPC.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use arrow_array::builder::{Int64Builder, ListBuilder, MapBuilder, StringBuilder};
use arrow_array::types::Int32Type;
use arrow_array::{
    ArrayRef, FixedSizeBinaryArray, Int32Array, IntervalMonthDayNanoArray, LargeListViewArray,
    ListArray, ListViewArray, RecordBatch,
};
use arrow_cast::cast;
use arrow_cast::display::array_value_to_string;
use arrow_ipc::CompressionType;
use arrow_ipc::writer::{FileWriter, IpcWriteOptions, StreamWriter};
use arrow_json::LineDelimitedWriter;
use arrow_schema::{DataType, Field};
use serde_json::{Value, json};

use crate::support::tables::{
    floats, integers, optional_texts, read_parquet, read_scores, strings, table, texts,
    write_parquet,
};
use crate::support::{
    Answer, Pipeline, Workspace, count, demo_model, files_below, read_json, repository,
};

/// The demo corpus.
fn corpus() -> RecordBatch {
    read_parquet(&repository().join("datasets/demo/corpus.parquet"))
}

/// Rows as JSON lines.
fn lines(rows: &RecordBatch) -> Vec<u8> {
    let mut writer = LineDelimitedWriter::new(Vec::new());
    writer.write(rows).unwrap();
    writer.finish().unwrap();
    writer.into_inner()
}

fn gzipped(bytes: &[u8]) -> Vec<u8> {
    let mut writer = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    writer.write_all(bytes).unwrap();
    writer.finish().unwrap()
}

/// Names and bytes.
type Files = Vec<(&'static str, Vec<u8>)>;

/// A workspace with the demo's tokenizer and the files of `input`.
fn workspace(input: &[(&str, Vec<u8>)]) -> Workspace {
    let workspace = Workspace::new();
    fs::create_dir(workspace.path("tokenizer")).unwrap();
    let json = demo_model().join("tokenizer.json");
    fs::copy(json, workspace.path("tokenizer/tokenizer.json")).unwrap();
    for (name, bytes) in input {
        workspace.write(&format!("input/{name}"), bytes);
    }
    workspace
}

fn pipeline() -> Pipeline {
    Pipeline::text("", 512)
        .without_model(Some("tokenizer"))
        .measure("recurrence")
        .score("formula: far-recurrence")
        .filter("keep_fraction: 0.25")
}

/// Kept samples: ids, windows, texts, scores.
fn kept(workspace: &Workspace) -> Vec<(String, i64, String, u64)> {
    let data = read_parquet(&workspace.path("out/data"));
    let scores = floats(&data, "longsift_score").into_iter().map(f64::to_bits);
    let windows = integers(&data, "longsift_window").into_iter().zip(texts(&data, "text"));
    let mut kept: Vec<_> = texts(&data, "id")
        .into_iter()
        .zip(windows)
        .zip(scores)
        .map(|((id, (window, text)), score)| (id, window, text, score))
        .collect();
    kept.sort();
    kept
}

/// Kept samples of the demo corpus as a local Parquet file.
fn kept_as_parquet() -> Vec<(String, i64, String, u64)> {
    let parquet = workspace(&[]);
    fs::create_dir(parquet.path("input")).unwrap();
    fs::copy(repository().join("datasets/demo/corpus.parquet"), parquet.path("input/c.parquet"))
        .unwrap();
    parquet.run(&pipeline());
    let expected = kept(&parquet);
    assert!(expected.len() > 100, "{}", expected.len());
    expected
}

/// The files of a corpus in every format other than Parquet.
fn formats(corpus: &RecordBatch) -> [(&'static str, Files); 8] {
    let plain = lines(corpus);
    let (first, second) =
        (lines(&corpus.slice(0, 100)), lines(&corpus.slice(100, corpus.num_rows() - 100)));
    let mut tsv = Vec::new();
    for (row, line) in plain.split_inclusive(|byte| *byte == b'\n').enumerate() {
        tsv.extend_from_slice(format!("key \"{row}\"\t").as_bytes());
        tsv.extend_from_slice(line);
    }
    let arrow = |compression| {
        let options = IpcWriteOptions::default().try_with_compression(compression).unwrap();
        let mut file =
            FileWriter::try_new_with_options(Vec::new(), &corpus.schema(), options).unwrap();
        (0..corpus.num_rows()).step_by(50).for_each(|row| {
            file.write(&corpus.slice(row, 50.min(corpus.num_rows() - row))).unwrap();
        });
        file.into_inner().unwrap()
    };
    let mut stream = StreamWriter::try_new(Vec::new(), &corpus.schema()).unwrap();
    stream.write(corpus).unwrap();
    let stream = stream.into_inner().unwrap();
    let twice_gzipped = [gzipped(&first), gzipped(&second)].concat();
    [
        ("Arrow", vec![("c.arrow", arrow(None))]),
        ("compressed Arrow", vec![("c.feather", arrow(Some(CompressionType::ZSTD)))]),
        ("a stream", vec![("c.arrow", stream)]),
        ("plain", vec![("c.jsonl", plain.clone())]),
        (
            "two files, one compressed",
            vec![("a.ndjson", first), ("b.jsonl.zst", zstd::encode_all(&second[..], 3).unwrap())],
        ),
        ("two members", vec![("c.json.gz", twice_gzipped)]),
        ("table", vec![("c.tsv", tsv.clone())]),
        ("compressed table", vec![("c.tsv.gz", gzipped(&tsv))]),
    ]
}

#[test]
fn a_corpus_of_lines_gives_the_results_of_parquet() {
    let (corpus, expected) = (corpus(), kept_as_parquet());
    for (name, input) in formats(&corpus) {
        let workspace = workspace(&input);
        let summary = workspace.run(&pipeline().input("unit_bytes: 200000"));
        assert_eq!(count(&summary, "rows_in"), corpus.num_rows() as u64, "{name}");
        assert_eq!(kept(&workspace), expected, "{name}");
        let data = read_parquet(&workspace.path("out/data"));
        for field in corpus.schema().fields() {
            let column = data.column_by_name(field.name()).expect(name);
            let same = |data_type: &DataType| {
                matches!(data_type, DataType::Struct(_))
                    == matches!(field.data_type(), DataType::Struct(_))
            };
            assert!(same(column.data_type()), "{name}: {} is {}", field.name(), column.data_type());
        }
        if name.contains("table") {
            assert!(texts(&data, "tsv_key").iter().all(|key| key.starts_with("key \"")));
        }
        workspace.longsift(&["verify", "out.run"]).success();
    }
}

/// In a store, every format is read by ranges, and a plain file in as many units as on a disk.
#[cfg(feature = "cloud")]
#[test]
fn a_corpus_in_a_store_gives_the_results_of_parquet_in_any_format() {
    use crate::support::bucket::Bucket;

    let (corpus, expected) = (corpus(), kept_as_parquet());
    for (name, input) in formats(&corpus) {
        let units = |workspace: &Workspace| files_below(&workspace.path("out.run/units")).len();
        let pipeline = pipeline().input("unit_bytes: 100000");
        let local = workspace(&input);
        local.run(&pipeline);
        let (bucket, remote) = (Bucket::new(), workspace(&[]));
        for (file, bytes) in &input {
            bucket.put(&format!("in/{file}"), bytes.clone());
        }
        let text = pipeline.to_string().replace("path: input", "path: 's3://bucket/in'");
        remote.write("pipeline.yaml", text);
        let summary = bucket.longsift(&remote, &["run", "pipeline.yaml", "-q"]).success().summary();
        assert_eq!(count(&summary, "rows_in"), corpus.num_rows() as u64, "{name}");
        assert_eq!(kept(&remote), expected, "{name}");
        assert_eq!(remote.results(), local.results(), "{name}");
        assert_eq!(units(&remote), units(&local), "{name}");
        assert!(!["plain", "table"].contains(&name) || units(&remote) > 4, "{name}");
        let asked = bucket.take_requests();
        // An object with exactly the given name would be the input: one request without a range.
        let is_of_file = |path: &str| path.contains("/in/") && !path.contains("list-type");
        let mut reads = asked.iter().filter(|asked| is_of_file(&asked.path));
        assert!(reads.all(|asked| asked.range_of(1 << 30).is_some()), "{name}: only ranges");
        let again = bucket.longsift(&remote, &["run", "pipeline.yaml", "-q"]).success().summary();
        assert_eq!(again["status"], "nothing_to_do", "{name}");
        // Lines are counted once: the count is reused without reading the file.
        if name == "plain" {
            let reads =
                bucket.take_requests().iter().filter_map(|asked| asked.range_of(1 << 30)).count();
            assert!(reads <= 2, "{reads} reads of an unchanged file");
        }
    }
}

/// A unit of a plain file of lines in a store is read from its start, without the rest of the file.
#[cfg(feature = "cloud")]
#[test]
fn a_unit_of_lines_in_a_store_reads_only_its_range() {
    use crate::support::bucket::Bucket;

    let rows = corpus();
    let plain: Vec<u8> = std::iter::repeat_n(lines(&rows), 8).flatten().collect();
    let (bucket, remote) = (Bucket::new(), workspace(&[]));
    bucket.put("in/c.jsonl", plain.clone());
    let text = pipeline().input("unit_bytes: 1000000").to_string();
    remote.write("pipeline.yaml", text.replace("path: input", "path: 's3://bucket/in'"));
    // The first shard counts the file's lines, for all of them.
    for shard in ["0/8", "2/8"] {
        bucket.take_requests();
        let one = ["run", "pipeline.yaml", "-q", "--phase", "score", "--shard", shard];
        bucket.longsift(&remote, &one).success();
    }
    let (length, asked) = (plain.len(), bucket.take_requests());
    let ranges = asked.iter().filter_map(|asked| asked.range_of(length));
    let bytes: usize = ranges.map(|(start, end)| end.min(length) - start).sum();
    assert!(bytes < length / 2, "{bytes} of {length} bytes were read for an eighth of the units");
}

#[test]
fn threads_units_and_shards_change_no_score_of_lines() {
    let corpus = corpus();
    let input = [
        ("a.jsonl", lines(&corpus.slice(0, 120))),
        ("b.jsonl.gz", gzipped(&lines(&corpus.slice(120, 40)))),
    ];
    let results = |more: &str, arguments: &[&str]| {
        let workspace = workspace(&input);
        workspace.run_with(&pipeline().input(more), arguments);
        let scores = read_scores(&workspace.path("out.run"));
        let scores: BTreeMap<(i64, String, i64), u64> = integers(&scores, "input_row")
            .into_iter()
            .zip(texts(&scores, "id"))
            .zip(integers(&scores, "window"))
            .zip(floats(&scores, "far_recurrence"))
            .map(|(((row, id), window), score)| ((row, id, window), score.to_bits()))
            .collect();
        (
            kept(&workspace),
            scores,
            files_below(&workspace.path("out.run/units")).len(),
            workspace.results(),
        )
    };
    let expected = results("unit_bytes: 100000", &["--threads", "1"]);
    assert!(expected.2 > 4, "{} units", expected.2);
    assert_eq!(results("unit_bytes: 100000", &["--threads", "4"]), expected);
    for unit_bytes in [1024, 30_000, 100_000_000] {
        let (kept, scores, units, _) = results(&format!("unit_bytes: {unit_bytes}"), &[]);
        assert_eq!((kept, scores), (expected.0.clone(), expected.1.clone()), "{unit_bytes}");
        assert!(if unit_bytes > 1_000_000 { units == 2 } else { units > 10 }, "{units}");
    }
    let sharded = workspace(&input);
    sharded.write("pipeline.yaml", pipeline().input("unit_bytes: 100000").to_string());
    for shard in ["0/3", "1/3", "2/3"] {
        let arguments = ["run", "pipeline.yaml", "-q", "--phase", "score", "--shard", shard];
        sharded.longsift(&arguments).success();
    }
    sharded.longsift(&["run", "pipeline.yaml", "-q"]).success();
    assert_eq!(sharded.results(), expected.3);
}

/// A document of `sentences` sentences.
fn text(seed: usize, sentences: usize) -> String {
    let sentence = |at: usize| format!("The {} box of {seed} is {}. ", at * at % 7, seed * at);
    (0..sentences).map(sentence).collect()
}

fn document(row: usize) -> Value {
    json!({ "id": format!("d{row}"), "text": text(row, 20 + row % 9), "number": row })
}

/// Documents as lines.
fn many(rows: usize) -> String {
    let lines: Vec<String> = (0..rows).map(|row| format!("{}\n", document(row))).collect();
    lines.concat()
}

fn short() -> Pipeline {
    Pipeline::text("", 64)
        .without_model(Some("tokenizer"))
        .measure("recurrence")
        .score("formula: far-recurrence")
}

#[test]
fn a_bad_line_is_quarantined_with_its_location() {
    let mut bytes = b"\xef\xbb\xbf".to_vec();
    let mut line = |text: &[u8]| {
        bytes.extend_from_slice(text);
        bytes.extend_from_slice(b"\r\n");
    };
    for row in 0..4 {
        line(document(row).to_string().as_bytes());
    }
    line(b"");
    line(br#"{"id": "d5", "text": "not closed"#);
    line(br#"{"id": "d6", "text": "two"} {"id": "d6b", "text": "of them"}"#);
    line(br#"["d7", "a list"]"#);
    line(b"{\"id\": \"d8\", \"text\": \"\xff\"}");
    line(br#"{"id": "d9", "text": "a text", "number": "ten"}"#);
    line(format!(r#"{{"id": "d10", "text": "{}", "other": 1}}"#, "a ".repeat(200)).as_bytes());
    line(format!(r#"{{"id": "d11", "text": "{}"}}"#, "a".repeat(40_000)).as_bytes());
    line(br#"{"id": "d12"}"#);
    line(b"  \t ");
    line(br#"{"id": "d13", "number": null, "text": ""}"#);
    bytes.extend_from_slice(document(14).to_string().as_bytes());
    let mut first = many(1100);
    let late = json!({ "id": "late", "text": text(3, 30), "late": true }).to_string();
    first.push_str(&late);
    let workspace =
        workspace(&[("a.jsonl", first.into_bytes()), ("b.jsonl", bytes), ("c.jsonl", Vec::new())]);
    let more = "max_document_bytes: 8192, schema: {id: string, text: string, number: int64}";
    let named = short().input(more).input("max_quarantined_fraction: 0.02");
    let summary = workspace.run(&named);
    let bad = read_parquet(&workspace.path("out.run/quarantine"));
    let quarantined: Vec<(i64, String, String)> = integers(&bad, "longsift_row")
        .into_iter()
        .zip(texts(&bad, "longsift_code"))
        .zip(texts(&bad, "longsift_message"))
        .map(|((row, code), message)| (row, code, message))
        .collect();
    let expected = [
        (4, "bad_line", "line 6, column 32: EOF while parsing a string"),
        (5, "bad_line", "line 7, column 29: trailing characters"),
        (6, "bad_line", "line 8, column 1: expected a JSON object"),
        (7, "invalid_utf8", "line 9, column 23: invalid UTF-8"),
        (8, "bad_line", "line 10, column 42: field `number`: int64 cannot hold `\"ten\"`"),
        (
            10,
            "line_too_long",
            "line 12 has 40026 bytes; the limit is 32768 (4 times `max_document_bytes`)",
        ),
        (11, "null_text", "the text is null"),
        (12, "empty_text", "the text is empty"),
    ];
    assert_eq!(
        quarantined,
        expected.map(|(row, code, message)| (row, code.to_owned(), message.to_owned()))
    );
    assert!(texts(&bad, "longsift_file").iter().all(|file| file == "b.jsonl"));
    let ids = optional_texts(&bad, "id");
    assert_eq!(
        ids[6].as_deref(),
        Some("d12"),
        "the readable values of the row are in the quarantine"
    );
    assert!(ids[..6].iter().all(Option::is_none), "{ids:?}");
    assert_eq!(count(&summary, "rows_in"), 1101 + 14);
    let scores = read_scores(&workspace.path("out.run"));
    let last = texts(&scores, "id").into_iter().zip(integers(&scores, "input_row")).rfind(|_| true);
    assert_eq!(last, Some(("d14".to_owned(), 13)), "rows are lines that are not blank");
    // Inferred columns never omit a field.
    let found = short()
        .input("max_document_bytes: 8192, max_quarantined_fraction: 0.02")
        .output("compression: none");
    workspace.write("found.yaml", found.to_string().replace("path: out", "path: found"));
    workspace.longsift(&["run", "found.yaml", "-q"]).success();
    let bad = read_parquet(&workspace.path("found.run/quarantine"));
    let files = texts(&bad, "longsift_file").into_iter().zip(texts(&bad, "longsift_message"));
    let is_first = |(file, _): &(String, String)| file == "a.jsonl";
    let (index, (_, message)) = files.enumerate().find(|(_, one)| is_first(one)).unwrap();
    assert_eq!(
        message,
        format!(
            "line 1101, column {}: field `late`: it has no column because it does not occur in the first lines of the files; list the columns in \
             `input.schema`",
            late.find("\"late\":").unwrap() + 1 + "\"late\":".len()
        )
    );
    assert_eq!(
        optional_texts(&bad, "id")[index].as_deref(),
        Some("late"),
        "values with a column are in the quarantine"
    );
}

/// Values that do not fit the type of their column: the decoder alone would silently convert each of them.
#[test]
fn a_value_of_another_type_makes_a_bad_line() {
    let values = [
        ("1.5", None),
        ("-1.99", None),
        ("9007199254740993.0", None),
        ("\" 8\"", None),
        ("1e3", None),
        ("8.0", Some(8)),
        ("9007199254740993", Some(9_007_199_254_740_993)),
    ];
    let line = |row: usize, number: &str| {
        format!("{{\"id\": \"v{row}\", \"number\": {number}, \"text\": \"{}\"}}\n", text(row, 20))
    };
    let late = values.iter().enumerate().map(|(row, (number, _))| line(row, number));
    let late: Vec<String> = late.collect();
    let first = many(1001);
    let table = |lines: &str| {
        let rows: Vec<String> = lines.lines().map(|line| format!("key\t{line}\n")).collect();
        rows.concat()
    };
    let inferred = format!("{first}{}", late.concat());
    let cases = [
        ("a.jsonl", inferred.clone(), "", 1001, 24),
        ("a.tsv", table(&inferred), "", 1001, 28),
        ("a.jsonl", late.concat(), "schema: {id: string, text: string, number: int64}", 0, 24),
    ];
    for (name, lines, schema, before, column) in cases {
        let workspace = workspace(&[(name, lines.into_bytes())]);
        let pipeline = short().input("max_quarantined_fraction: 0.9").filter("keep_fraction: 1.0");
        workspace.run(&if schema.is_empty() { pipeline } else { pipeline.input(schema) });
        let data = read_parquet(&workspace.path("out/data"));
        let numbers: BTreeMap<String, i64> =
            texts(&data, "id").into_iter().zip(integers(&data, "number")).collect();
        let bad = read_parquet(&workspace.path("out.run/quarantine"));
        let messages: BTreeMap<i64, String> = integers(&bad, "longsift_row")
            .into_iter()
            .zip(texts(&bad, "longsift_message"))
            .collect();
        assert_eq!(messages.len(), 5, "{name} {schema}: {messages:?}");
        for (row, (value, expected)) in values.into_iter().enumerate() {
            assert_eq!(
                numbers.get(&format!("v{row}")).copied(),
                expected,
                "{name} {schema} {value}"
            );
            if expected.is_none() {
                let message = format!(
                    "line {}, column {column}: field `number`: int64 cannot hold `{value}`",
                    before + row + 1
                );
                assert_eq!(messages[&((before + row) as i64)], message, "{name} {schema}");
            }
        }
    }
}

/// Token ids are integers, also after the lines from which the type was inferred.
#[test]
fn a_list_of_fractions_is_not_a_list_of_token_ids() {
    let line =
        |row: usize, ids: &Value| format!("{}\n", json!({ "id": format!("d{row}"), "ids": ids }));
    let whole = |row: usize| json!((0..80).map(|at| (at * row) % 50).collect::<Vec<_>>());
    let fractions = json!((0..80).map(|at| f64::from(at) + 0.9).collect::<Vec<_>>());
    let mut lines: String = (0..1001).map(|row| line(row, &whole(row))).collect();
    lines.push_str(&line(1001, &fractions));
    let workspace = workspace(&[("a.jsonl", lines.into_bytes())]);
    let mut pipeline = Pipeline::tokens("", 64).without_model(None).measure("recurrence");
    pipeline.input = "path: input, id_column: id, tokens_column: ids".to_owned();
    let summary = workspace.run(&pipeline.score("formula: far-recurrence"));
    assert_eq!((count(&summary, "rows_in"), count(&summary, "quarantined")), (1002, 1));
    let bad = read_parquet(&workspace.path("out.run/quarantine"));
    let expected = "line 1002, column 22: field `ids[0]`: int64 cannot hold `0.9`";
    assert_eq!(texts(&bad, "longsift_message"), [expected]);
}

/// Polars and DuckDB exchange lists as views, in any order and with gaps.
#[test]
fn views_of_lists_of_token_ids_are_read_like_lists() {
    let documents: Vec<Vec<i32>> =
        (0..12).map(|row| (0..90).map(|at| at * (row + 1) % (20 + row)).collect()).collect();
    let item = Arc::new(Field::new("item", DataType::Int32, true));
    let lists = ListArray::from_iter_primitive::<Int32Type, _, _>(
        documents.iter().map(|ids| Some(ids.iter().copied().map(Some).collect::<Vec<_>>())),
    );
    // Item 0 belongs to no document, and the last document comes first.
    let ids = std::iter::once(-1).chain(documents.iter().rev().flatten().copied());
    let ids: ArrayRef = Arc::new(Int32Array::from_iter_values(ids));
    let starts = (0..12).rev().map(|at| 1 + at * 90);
    let views = ListViewArray::new(
        Arc::clone(&item),
        starts.clone().collect::<Vec<i32>>().into(),
        vec![90; 12].into(),
        Arc::clone(&ids),
        None,
    );
    let large = LargeListViewArray::new(
        item,
        starts.map(i64::from).collect::<Vec<_>>().into(),
        vec![90; 12].into(),
        ids,
        None,
    );
    let columns: [ArrayRef; 3] = [Arc::new(lists), Arc::new(views), Arc::new(large)];
    let mut tags = ListBuilder::new(StringBuilder::new());
    (0..12).for_each(|row| tags.append_value([Some(format!("tag {row}")), None]));
    let tags = tags.finish();
    let text = Arc::new(Field::new("item", DataType::Utf8, true));
    let pipeline = Pipeline::tokens("", 64)
        .without_model(None)
        .measure("recurrence")
        .score("formula: far-recurrence");
    let results = columns.map(|tokens| {
        let kind = match tokens.data_type() {
            DataType::ListView(_) => DataType::ListView(Arc::clone(&text)),
            DataType::LargeListView(_) => DataType::LargeListView(Arc::clone(&text)),
            _ => DataType::List(Arc::clone(&text)),
        };
        let rows = table(&[
            ("id", strings((0..12).map(|row| row.to_string()))),
            ("tokens", Arc::clone(&tokens)),
            ("tags", cast(&tags, &kind).unwrap()),
        ]);
        let mut file = FileWriter::try_new(Vec::new(), &rows.schema()).unwrap();
        file.write(&rows).unwrap();
        let arrow = workspace(&[("a.arrow", file.into_inner().unwrap())]);
        let parquet = workspace(&[]);
        write_parquet(&parquet.path("input/a.parquet"), &rows, 5);
        [arrow, parquet].map(|workspace| {
            let summary = workspace.run(&pipeline);
            assert_eq!((count(&summary, "rows_in"), count(&summary, "quarantined")), (12, 0));
            let data = read_parquet(&workspace.path("out/data"));
            let scores = floats(&data, "longsift_score").into_iter().map(f64::to_bits);
            let written = |name: &str, row: usize| {
                array_value_to_string(data.column_by_name(name).unwrap(), row).unwrap()
            };
            let lists =
                (0..data.num_rows()).map(|row| [written("tokens", row), written("tags", row)]);
            let kept = texts(&data, "id").into_iter().zip(scores).zip(lists);
            kept.collect::<BTreeSet<_>>()
        })
    });
    let expected = &results[0][0];
    assert!(expected.len() > 4, "{expected:?}");
    assert!(results.iter().flatten().all(|kept| kept == expected), "{results:#?}");
}

#[test]
fn changed_columns_are_rejected_under_a_lock() {
    let line = |value: Value| format!("{value}\n").into_bytes();
    let all: Vec<u8> = (0..9).flat_map(|row| line(document(row))).collect();
    let workspace = workspace(&[("a.jsonl", all)]);
    workspace.write("pipeline.yaml", short().to_string());
    let plan = workspace.longsift(&["plan", "pipeline.yaml"]).success().stdout;
    let columns =
        "columns of jsonl, inferred from the first lines: id: string, text: string, number: int64";
    assert!(plan.contains(columns), "{plan}");
    workspace.run(&short());
    workspace.longsift(&["lock", "pipeline.yaml"]).success();
    let lock = read_json(&workspace.path("pipeline.lock"));
    let locked = "jsonl: id: string, text: string, number: int64";
    assert_eq!(lock["identity"]["windows"]["schema"], locked);
    // Declared columns are the same, except for their order.
    let named = short().input("schema: {id: string, number: int64, text: string}");
    let refused = |answer: Answer| {
        let answer = answer.expect(2).to_text();
        assert!(answer.contains("schema: "), "{answer}");
    };
    workspace.write("named.yaml", named.to_string());
    refused(workspace.longsift(&["run", "named.yaml", "-q"]));
    let mut other = document(9);
    other["extra"] = json!([1]);
    workspace.write("input/b.jsonl", line(other));
    refused(workspace.longsift(&["run", "pipeline.yaml", "-q"]));
    refused(workspace.longsift(&["run", "pipeline.yaml", "-q", "--locked", "--fresh"]));
    let summary = workspace.run_with(&short(), &["--fresh"]);
    assert_eq!(count(&summary, "rows_in"), 10);
    let unseen = short().input("schema: {id: string, text: string, numbr: int64}");
    workspace.write("unseen.yaml", unseen.to_string().replace("path: out,", "path: unseen,"));
    let plan = workspace.longsift(&["plan", "unseen.yaml"]).success().to_text();
    assert!(plan.contains("lines of any file has `numbr`: it may be null in all rows"), "{plan}");
    assert!(plan.contains("did you mean `number`?"), "{plan}");
    let wrong = short().input("schema: {text: strin, number: \"list<int8\"}");
    workspace.write("wrong.yaml", wrong.to_string());
    let message = workspace.longsift(&["plan", "wrong.yaml"]).expect(2).to_text();
    for why in ["`strin` is not a type", "expected `>`, got the end"] {
        assert!(message.contains(why), "{message}");
    }
}

#[test]
fn lines_are_counted_once_per_file_version() {
    let all = many(30);
    let more = format!("{}\n", document(30));
    // A blank line is not a row.
    let blank = format!("{:1$}\n", "", more.len() - 1);
    let workspace = workspace(&[("a.jsonl", (all.clone() + &blank).into_bytes())]);
    let file = workspace.path("input/a.jsonl");
    let long_ago = SystemTime::now() - Duration::from_secs(100);
    let touch = |time: SystemTime| {
        fs::File::options().write(true).open(&file).unwrap().set_modified(time).unwrap();
    };
    touch(long_ago);
    // The status change time is set by the system clock.
    std::thread::sleep(Duration::from_millis(2100));
    workspace.write("pipeline.yaml", short().to_string());
    let rows = || {
        let plan =
            workspace.longsift(&["plan", "pipeline.yaml", "--format", "json"]).success().stdout;
        serde_json::from_str::<Value>(&plan).unwrap()["input"]["rows"].as_u64().unwrap()
    };
    assert_eq!(rows(), 30);
    let kept = || {
        files_below(&workspace.path("cache"))
            .into_iter()
            .filter(|path| path.to_str().unwrap().contains("/lines/"))
            .collect::<Vec<_>>()
    };
    let [counted] = &kept()[..] else { panic!("{:?}", kept()) };
    // The cached count is trusted.
    let known = fs::read_to_string(counted).unwrap();
    assert!(known.contains("\"rows\":30"), "{known}");
    let other = known.split_once('\n').unwrap().1.replace("\"rows\":30", "\"rows\":29");
    write_survey(&workspace, counted, &other);
    assert_eq!(rows(), 29);
    // Without its digest, it is not.
    fs::write(counted, known.replace("\"rows\":30", "\"rows\":29")).unwrap();
    assert_eq!(rows(), 30);
    fs::write(counted, "torn").unwrap();
    assert_eq!(rows(), 30);
    // Other lines of the same size, inode and modification time.
    let before = fs::metadata(&file).unwrap();
    fs::write(&file, more + &all).unwrap();
    touch(long_ago);
    let after = fs::metadata(&file).unwrap();
    let seen = [&before, &after].map(|of| (of.len(), of.ino(), of.modified().unwrap()));
    assert_eq!(seen[0], seen[1]);
    std::thread::sleep(Duration::from_millis(2100));
    assert_eq!((rows(), kept().len()), (31, 2));
    let summary = workspace.run(&short().filter("keep_fraction: 1"));
    assert_eq!((count(&summary, "rows_in"), count(&summary, "quarantined")), (31, 0));
    let ids = texts(&read_scores(&workspace.path("out.run")), "id");
    assert_eq!(ids.first().map(String::as_str), Some("d30"));
    // The same bytes at another time.
    fs::write(&file, fs::read(&file).unwrap()).unwrap();
    touch(long_ago);
    assert_eq!((rows(), kept().len()), (31, 2));
    // A recently modified file may still be written to.
    touch(SystemTime::now());
    assert_eq!((rows(), kept().len()), (31, 2));
}

#[test]
fn a_damaged_record_batch_costs_its_rows() {
    let document = |row: usize| (format!("d{row}"), text(row, 20 + row % 9));
    let (ids, texts_): (Vec<_>, Vec<_>) = (0..40).map(document).unzip();
    let rows = table(&[("id", strings(ids)), ("text", strings(texts_))]);
    let options = IpcWriteOptions::default();
    let options = options.try_with_compression(Some(CompressionType::LZ4_FRAME)).unwrap();
    let mut file = FileWriter::try_new_with_options(Vec::new(), &rows.schema(), options).unwrap();
    (0..40).step_by(10).for_each(|row| file.write(&rows.slice(row, 10)).unwrap());
    let good = file.into_inner().unwrap();
    let with_file = |bytes: &[u8], more: &str| {
        let workspace = workspace(&[("a.arrow", bytes.to_vec())]);
        workspace.write("pipeline.yaml", short().input(more).to_string());
        workspace
    };
    // The magic number of the second batch's compressed texts.
    let magic = 0x184D_2204_u32.to_le_bytes();
    let frames: Vec<usize> = (0..good.len() - 4).filter(|at| good[*at..*at + 4] == magic).collect();
    assert_eq!(frames.len(), 4, "one for the texts of each batch: {frames:?}");
    let mut damaged = good.clone();
    damaged[frames[1]] ^= 0xff;
    let message =
        with_file(&damaged, "").longsift(&["run", "pipeline.yaml", "-q"]).expect(3).to_text();
    assert!(
        message.contains("a.arrow, row group 1, row 10: this and the following rows do not decode"),
        "{message}"
    );
    let workspace = with_file(&damaged, "");
    let more = "on_bad_file: quarantine, max_quarantined_fraction: 0.3";
    let summary = workspace.run(&short().input(more));
    assert_eq!((count(&summary, "rows_in"), count(&summary, "quarantined")), (40, 10));
    let bad = read_parquet(&workspace.path("out.run/quarantine"));
    assert_eq!(integers(&bad, "longsift_row"), (10..20).collect::<Vec<_>>());
    let expect = |bytes: &[u8], why: &str| {
        let message = with_file(bytes, "").longsift(&["plan", "pipeline.yaml"]).expect(3).to_text();
        assert!(message.contains(why), "{message}");
    };
    expect(&good[..good.len() / 2], "a.arrow: not a readable Arrow file: ");
    expect(b"ARROW1", "not a readable Arrow file: it is truncated");
    expect(b"{\"id\": 1, \"text\": \"a\"}", "not a readable Arrow file: ");
    // A buffer that claims to decompress to a petabyte.
    let mut bomb = good;
    bomb[frames[0] - 8..frames[0]].copy_from_slice(&(1_i64 << 50).to_le_bytes());
    let message =
        with_file(&bomb, "").longsift(&["run", "pipeline.yaml", "-q"]).expect(3).to_text();
    assert!(message.contains("a record batch decompresses to 1125"), "{message}");
}

#[test]
fn files_of_other_types_are_reported() {
    let line = |row: usize| format!("{}\n", document(row)).into_bytes();
    let expect = |input: &[(&str, Vec<u8>)], pipeline: &Pipeline, code: i32, why: &str| {
        let workspace = workspace(input);
        workspace.write("pipeline.yaml", pipeline.to_string());
        let message = workspace.longsift(&["plan", "pipeline.yaml"]).expect(code).to_text();
        assert!(message.contains(why), "{message}");
    };
    let cut = gzipped(&(0..99).flat_map(line).collect::<Vec<u8>>());
    expect(
        &[("a.jsonl.gz", cut[..cut.len() / 2].to_vec())],
        &short(),
        3,
        "a.jsonl.gz: it does not decompress: ",
    );
    expect(
        &[("a.jsonl.zst", line(1))],
        &short(),
        3,
        "a.jsonl.zst: it is plain text, not compressed with Zstandard",
    );
    expect(
        &[("a.jsonl", b"a,b\n1,2\n".to_vec())],
        &short(),
        3,
        "none of its first 2 lines is a JSON object",
    );
    let utf16: Vec<u8> =
        document(1).to_string().encode_utf16().flat_map(u16::to_le_bytes).collect();
    expect(&[("a.jsonl", utf16)], &short(), 3, "none of its first 1 lines is a JSON object");
    expect(
        &[("a.tsv", line(1))],
        &short(),
        3,
        "none of its first 1 lines is a key, a tab and a JSON object",
    );
    expect(&[("a.jsonl", Vec::new())], &short(), 2, "the input has no lines");
    for name in ["a.jsonl.gz", "a.jsonl.zst"] {
        let input = [(name, Vec::new()), ("b.jsonl", line(1))];
        expect(&input, &short(), 3, &format!("{name}: it does not decompress: the file is empty"));
    }
    expect(
        &[("a.jsonl", line(1)), ("b.tsv", line(1))],
        &short(),
        2,
        "has files of several formats: 1 of jsonl and 1 of tsv",
    );
    let schema = short().input("schema: {text: string}");
    expect(&[("a.txt", line(1))], &schema, 2, "matches no file");
}

#[test]
fn files_recognised_by_their_first_bytes_are_named_with_a_remedy() {
    let pointer = b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 7\n".to_vec();
    let html = b"<!DOCTYPE html>\n<html><body>Please sign in</body></html>\n".to_vec();
    let line = document(1).to_string();
    let utf16 = |order: fn(u16) -> [u8; 2]| -> Vec<u8> {
        std::iter::once(0xfeff).chain(line.encode_utf16()).flat_map(order).collect()
    };
    let feather = [&b"FEA1"[..], &[0; 60], b"FEA1"].concat();
    let zstd = zstd::encode_all(line.as_bytes(), 3).unwrap();
    let cases = [
        ("a.jsonl", pointer.clone(), "a Git LFS pointer, not lines of JSON", "`git lfs pull`"),
        ("a.parquet", pointer.clone(), "a Git LFS pointer, not a Parquet file", "`git lfs pull`"),
        ("a.jsonl.zst", pointer, "a Git LFS pointer, not compressed with Z", "`git lfs pull`"),
        ("a.jsonl", html.clone(), "an HTML page, not lines of JSON", "download the file itself"),
        ("a.parquet", html.clone(), "an HTML page, not a Parquet file", "download the file itself"),
        ("a.arrow", html, "an HTML page, not an Arrow file", "download the file itself"),
        (
            "a.jsonl",
            utf16(u16::to_le_bytes),
            "text in UTF-16, not lines of JSON",
            "`iconv -f UTF-16",
        ),
        ("a.tsv", utf16(u16::to_be_bytes), "text in UTF-16, not lines with a", "`iconv -f UTF-16"),
        (
            "a.jsonl.zst",
            gzipped(line.as_bytes()),
            "compressed with gzip, not compressed with Zstandard",
            "rename it with the matching extension",
        ),
        (
            "a.jsonl.gz",
            zstd,
            "compressed with Zstandard, not compressed with gzip",
            "rename it with the matching extension",
        ),
        ("a.feather", feather, "a Feather file of version 1, not an Arrow file", "`to_feather`"),
    ];
    for (name, bytes, found, remedy) in cases {
        let workspace = workspace(&[(name, bytes)]);
        workspace.write("pipeline.yaml", short().to_string());
        let message = workspace.longsift(&["plan", "pipeline.yaml"]).expect(3).stderr;
        assert!(message.contains(&format!("{name}: it is {found}")), "{message}");
        let hint = message.lines().find(|line| line.starts_with("hint: ")).unwrap_or_default();
        assert!(hint.contains(remedy), "{message}");
    }
}

#[test]
fn escaped_surrogate_pairs_are_decoded() {
    let points = [0x1_f600_u32, 0x2_0bb7, 0x2_f800, 0x3_0000, 0xe_0067, 0x10_fffd];
    let escaped = |point: u32| {
        let mut units = [0; 2];
        let character = char::from_u32(point).unwrap();
        let units = character.encode_utf16(&mut units);
        units.iter().map(|unit| format!("\\u{unit:04x}")).collect::<Vec<_>>().concat()
    };
    let line = |(row, point): (usize, &u32)| {
        let (pair, text) = (escaped(*point), text(row, 30));
        format!("{{\"id\": \"{pair}\", \"text\": \"{pair} {text}\", \"m\": {{\"{pair}\": 7}}}}\n")
    };
    let lines: String = points.iter().enumerate().map(line).collect();
    let workspace = workspace(&[("a.jsonl", lines.into_bytes())]);
    let more = "schema: {id: string, text: string, m: \"map<string, int64>\"}";
    workspace.run(&short().input(more).filter("keep_fraction: 1"));
    let data = read_parquet(&workspace.path("out/data"));
    let mut ids = texts(&data, "id");
    for (id, text) in ids.iter().zip(texts(&data, "text")) {
        let starts = text.starts_with(&format!("{id} "));
        assert!(starts || !text.contains(|c: char| u32::from(c) > 0xffff), "{id}: {text}");
    }
    ids.sort();
    ids.dedup();
    let mut expected = points.map(|point| char::from_u32(point).unwrap().to_string()).to_vec();
    expected.sort();
    assert_eq!(ids, expected);
    let maps = data.column_by_name("m").unwrap();
    let value = array_value_to_string(maps, 0).unwrap();
    assert!(ids.iter().any(|id| value == format!("{{{id}: 7}}")), "{value}");
}

#[test]
fn integers_in_a_column_of_fractions_are_not_rounded() {
    let large = |row: usize| (1_u64 << 60) + row as u64;
    let line = |row: usize| {
        let hash = if row == 7 { "0.5".to_owned() } else { large(row).to_string() };
        format!("{{\"id\": \"d{row}\", \"text\": \"{}\", \"hash\": {hash}}}\n", text(row, 20))
    };
    let lines: String = (0..40).map(line).collect();
    let workspace = workspace(&[("a.jsonl", lines.into_bytes())]);
    let tolerant = short().input("max_quarantined_fraction: 0.1").filter("keep_fraction: 1");
    let summary = workspace.run(&tolerant);
    assert_eq!(count(&summary, "quarantined"), 1);
    let data = read_parquet(&workspace.path("out/data"));
    for (id, hash) in texts(&data, "id").iter().zip(integers(&data, "hash")) {
        assert_eq!(hash as u64, large(id[1..].parse().unwrap()));
    }
    let bad = read_parquet(&workspace.path("out.run/quarantine"));
    let [message] = &texts(&bad, "longsift_message")[..] else { panic!() };
    assert!(message.ends_with("field `hash`: int64 cannot hold `0.5`"), "{message}");
}

/// Writes a cached survey with its digest.
fn write_survey(workspace: &Workspace, path: &Path, json: &str) {
    workspace.write("sealed/survey", json);
    let digest = workspace.hashes(&["sealed"])["sealed/survey"].clone();
    fs::write(path, format!("{digest}\n{json}")).expect("a folder of the cache");
}

#[test]
fn lines_that_moved_are_counted_again() {
    let lines = many(120);
    let workspace = workspace(&[("a.jsonl", lines.into_bytes())]);
    std::thread::sleep(Duration::from_millis(2100));
    let pipeline = short().input("unit_bytes: 20000");
    workspace.write("pipeline.yaml", pipeline.to_string());
    workspace.longsift(&["plan", "pipeline.yaml"]).success();
    let counted = files_below(&workspace.path("cache"));
    let counted = counted.iter().find(|path| path.to_str().unwrap().contains("/lines/")).unwrap();
    // Simulates a replaced file with an unchanged stamp.
    for wrong in ["between lines", "within a line", "before the last line"] {
        let text = fs::read_to_string(counted).unwrap();
        let mut survey: Value = serde_json::from_str(text.split_once('\n').unwrap().1).unwrap();
        let stretches = survey["stretches"].as_array_mut().unwrap();
        assert!(stretches.len() > 10);
        match wrong {
            "within a line" => {
                stretches[5]["start"] = (stretches[5]["start"].as_u64().unwrap() + 3).into();
            }
            // A file of fewer lines had the same size.
            "before the last line" => {
                survey["rows"] = stretches.pop().unwrap()["first_row"].clone();
            }
            _ => stretches[5]["start"] = stretches[6]["start"].clone(),
        }
        write_survey(&workspace, counted, &survey.to_string());
        let answer = workspace.longsift(&["run", "pipeline.yaml", "-q", "--fresh"]).expect(3);
        assert!(answer.stderr.contains("since they were counted"), "{wrong}: {}", answer.stderr);
        let summary = workspace.longsift(&["run", "pipeline.yaml", "-q", "--fresh"]).success();
        let summary = summary.summary();
        assert_eq!((count(&summary, "rows_in"), count(&summary, "quarantined")), (120, 0));
    }
}

#[test]
fn a_zstandard_window_beyond_the_memory_limit_is_rejected_with_a_sufficient_limit() {
    let mut encoder = zstd::stream::write::Encoder::new(Vec::new(), 1).unwrap();
    encoder.window_log(28).unwrap();
    encoder.write_all(&lines(&corpus().slice(0, 20))).unwrap();
    let workspace = workspace(&[("a.jsonl.zst", encoder.finish().unwrap())]);
    workspace.run(&pipeline());
    let small = pipeline().input("memory_limit_bytes: 67108864");
    workspace.write("pipeline.yaml", small.to_string());
    let message = workspace.longsift(&["plan", "pipeline.yaml"]).expect(2).stderr;
    assert!(message.contains("a.jsonl.zst: its zstd window of 268.44 MB"), "{message}");
    assert!(message.contains("set `memory_limit_bytes` to at least 536870912"), "{message}");
}

#[test]
fn a_column_that_no_output_supports_is_rejected_before_scoring() {
    let rows = corpus().slice(0, 20);
    let columns: [(&str, ArrayRef, &str); 2] = [
        ("period", Arc::new(IntervalMonthDayNanoArray::from(vec![None; 20])), "interval"),
        (
            "nothing",
            Arc::new(FixedSizeBinaryArray::try_from_iter(vec![[0_u8; 0]; 20].into_iter()).unwrap()),
            "binary",
        ),
    ];
    for (name, column, kind) in columns {
        let batch = table(&[
            ("id", Arc::clone(rows.column_by_name("id").unwrap())),
            ("text", Arc::clone(rows.column_by_name("text").unwrap())),
            (name, column),
        ]);
        let mut file = FileWriter::try_new(Vec::new(), &batch.schema()).unwrap();
        file.write(&batch).unwrap();
        let workspace = workspace(&[("a.arrow", file.into_inner().unwrap())]);
        workspace.write("pipeline.yaml", pipeline().to_string());
        let message = workspace.longsift(&["plan", "pipeline.yaml"]).expect(2).stderr;
        assert!(message.contains(&format!("column `{name}` of the type {kind}: ")), "{message}");
        assert!(message.contains("write `format: jsonl-zst`"), "{message}");
        let mut lines = pipeline();
        lines.output = "path: out, format: jsonl-zst".to_owned();
        workspace.write("pipeline.yaml", lines.to_string());
        workspace.longsift(&["run", "pipeline.yaml", "-q"]).success();
    }
}

#[test]
fn maps_that_json_may_not_hold_are_announced_before_scoring() {
    let rows = corpus().slice(0, 20);
    let mut map = MapBuilder::new(None, StringBuilder::new(), Int64Builder::new());
    for row in 0..20 {
        for key in ["a", if row < 19 { "b" } else { "a" }] {
            map.keys().append_value(key);
            map.values().append_value(1);
        }
        map.append(true).unwrap();
    }
    let batch = table(&[
        ("id", Arc::clone(rows.column_by_name("id").unwrap())),
        ("text", Arc::clone(rows.column_by_name("text").unwrap())),
        ("counts", Arc::new(map.finish())),
    ]);
    let mut file = FileWriter::try_new(Vec::new(), &batch.schema()).unwrap();
    file.write(&batch).unwrap();
    let workspace = workspace(&[("a.arrow", file.into_inner().unwrap())]);
    let warning = "maps (`counts`): if a map of a kept row has a key twice";
    for (output, announced, code) in
        [("path: out", false, 0), ("path: out2, format: jsonl-zst", true, 3)]
    {
        let mut pipeline = pipeline().filter("keep_fraction: 1");
        pipeline.output = output.to_owned();
        workspace.write("pipeline.yaml", pipeline.to_string());
        let planned = workspace.longsift(&["plan", "pipeline.yaml"]).success().stderr;
        assert_eq!(planned.contains(warning), announced, "{planned}");
        let ended = workspace.longsift(&["run", "pipeline.yaml", "-q"]).expect(code).stderr;
        assert_eq!(ended.contains("a map has the key `a` twice"), announced, "{ended}");
    }
}
