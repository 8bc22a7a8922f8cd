//! Malicious Parquet and JSON Lines: small on disk and large in memory.

use std::fs::{self, File};
use std::io::Write;
use std::path::Path;
use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::{ArrayRef, RecordBatch, StringArray};
use parquet::arrow::ArrowWriter;
use parquet::basic::{BrotliLevel, Compression, GzipLevel, ZstdLevel};
use parquet::file::properties::{EnabledStatistics, WriterProperties};
use serde_json::{Map, Value, json};

use super::{bounded, within};
use crate::support::damage::{Raw, edit_column_chunk, split, write_raw};
use crate::support::tables::{integers, read_parquet, strings, table, texts, write_parquet};
use crate::support::{Pipeline, Workspace, count, demo_model};

/// The minimum memory limit, and a bound for the command: twice the limit, to allow for uncounted memory.
const LIMIT: &str =
    "memory_limit_bytes: 67108864, max_document_bytes: 4194304, max_quarantined_fraction: 0.9";
const MAX_KIB: u32 = 300 << 10;

fn workspace() -> Workspace {
    let workspace = Workspace::new();
    workspace.link("model", &demo_model());
    workspace.write("p.yaml", Pipeline::text("model", 64).input(LIMIT).to_string());
    fs::create_dir(workspace.path("input")).unwrap();
    workspace
}

fn prose(row: usize) -> String {
    format!("The keeper of lamp {row} wrote a letter every evening. ").repeat(20)
}

fn write_compressed(
    path: &Path,
    input: &RecordBatch,
    compression: Compression,
    dictionary: bool,
    group_rows: Option<usize>,
) {
    let properties = WriterProperties::builder()
        .set_compression(compression)
        .set_dictionary_enabled(dictionary)
        .set_statistics_enabled(EnabledStatistics::None)
        .set_dictionary_page_size_limit(1 << 30)
        .set_max_row_group_row_count(group_rows)
        .build();
    let mut writer =
        ArrowWriter::try_new(File::create(path).unwrap(), input.schema(), Some(properties))
            .unwrap();
    writer.write(input).unwrap();
    writer.close().unwrap();
}

fn codecs() -> Vec<(&'static str, Compression)> {
    vec![
        ("snappy", Compression::SNAPPY),
        ("gzip", Compression::GZIP(GzipLevel::try_new(6).unwrap())),
        ("brotli", Compression::BROTLI(BrotliLevel::try_new(1).unwrap())),
        ("lz4", Compression::LZ4),
        ("lz4 raw", Compression::LZ4_RAW),
        ("zstd", Compression::ZSTD(ZstdLevel::try_new(3).unwrap())),
    ]
}

#[test]
fn pages_beyond_the_memory_limit_are_not_read() {
    let long = "a".repeat(64 << 20);
    for (name, codec) in codecs() {
        let workspace = workspace();
        let input = table(&[("id", strings(["0", "1"])), ("text", strings([&long, &prose(1)]))]);
        let path = workspace.path("input/a.parquet");
        write_compressed(&path, &input, codec, false, Some(1));
        assert!(fs::metadata(&path).unwrap().len() < 4 << 20, "{name} compresses");
        let answer = within(&workspace, name, &["run", "p.yaml", "-q"], 3, MAX_KIB);
        assert!(answer.stderr.contains("would decompress from"), "{name}: {}", answer.stderr);
        assert!(answer.stderr.contains("a.parquet, row group 0"), "{name}: {}", answer.stderr);
        assert!(answer.stderr.contains("set `input.max_document_bytes` to at least"), "{name}");
        if matches!(name, "snappy" | "gzip") {
            // Exceeding the limit loses the row group like damage, with its own reason.
            let lenient = Pipeline::text("model", 64).input(LIMIT).input("on_bad_file: quarantine");
            workspace.write("p.yaml", lenient.to_string());
            within(&workspace, name, &["run", "p.yaml", "-q"], 0, MAX_KIB);
            let table = read_parquet(&workspace.path("out.run/quarantine"));
            assert_eq!(texts(&table, "longsift_code"), ["page_too_large"]);
            assert_eq!(integers(&table, "longsift_row"), [0]);
        }
    }
}

#[test]
fn a_page_beyond_the_limit_in_another_column_is_named() {
    let notes = ["n".repeat(1_000_000), "short".to_owned(), "short".to_owned()];
    let texts_in: Vec<String> = (0..3).map(prose).collect();
    let ids = strings(["0", "1", "2"]);
    let input = table(&[("id", ids), ("text", strings(&texts_in)), ("note", strings(&notes))]);
    let workspace = workspace();
    write_compressed(
        &workspace.path("input/a.parquet"),
        &input,
        Compression::SNAPPY,
        false,
        Some(1),
    );
    let with = |more: &str| {
        let pipeline = Pipeline::text("model", 64).input(more).filter("keep_fraction: 1");
        workspace.write("p.yaml", pipeline.to_string());
        ["run", "p.yaml", "-q", "--fresh"]
    };
    let small = "max_document_bytes: 65536";
    let stderr = workspace.longsift(&with(small)).expect(3).stderr;
    assert!(stderr.contains("a.parquet, row group 0"), "{stderr}");
    assert!(stderr.contains("the limit is 262144 (four times `max_document_bytes`)"), "{stderr}");
    let (_, least) = stderr.split_once("set `input.max_document_bytes` to at least ").unwrap();
    let least = least.split(',').next().unwrap();
    let lenient = "on_bad_file: quarantine, max_quarantined_fraction: 0.4";
    workspace.longsift(&with(&format!("{small}, {lenient}"))).success();
    let bad = read_parquet(&workspace.path("out.run/quarantine"));
    assert_eq!(texts(&bad, "longsift_code"), ["page_too_large"]);
    assert_eq!(integers(&bad, "longsift_row"), [0]);
    workspace.longsift(&with(&format!("max_document_bytes: {least}"))).success();
    let data = read_parquet(&workspace.path("out/data"));
    let mut whole = texts(&data, "id").into_iter().zip(texts(&data, "note"));
    assert!(whole.any(|(id, note)| id == "0" && note == notes[0]));
}

/// Names of fields that are data: with a column for each, memory would grow with rows times names.
#[test]
fn rows_with_unique_keys_take_bounded_memory() {
    let keys = |row: usize| (0..50).map(move |at| (format!("url{row}_{at}"), json!(at)));
    let line = |row: usize, own: Map<String, Value>, inside: bool| {
        let mut line = json!({ "id": row.to_string(), "text": &prose(row)[..400] });
        let fields = line.as_object_mut().expect("an object");
        if inside {
            fields.insert("meta".to_owned(), own.into());
        } else {
            fields.extend(own);
        }
        format!("{line}\n")
    };
    let lines = |inside: bool| -> String {
        (0..1000).map(|row| line(row, keys(row).collect(), inside)).collect()
    };
    let workspace = workspace();
    let pipeline = Pipeline::text("", 64)
        .without_model(Some("model"))
        .measure("recurrence")
        .score("formula: far-recurrence")
        .input(LIMIT)
        .filter("keep_fraction: 1");
    workspace.write("p.yaml", pipeline.to_string());
    let run = ["run", "p.yaml", "-q", "--fresh"];
    workspace.write("input/a.jsonl", lines(true));
    let summary = within(&workspace, "keys of an object", &run, 0, MAX_KIB).summary();
    assert_eq!((count(&summary, "rows_in"), count(&summary, "quarantined")), (1000, 0));
    let data = read_parquet(&workspace.path("out/data"));
    let meta = data.column_by_name("meta").unwrap().as_map();
    for (at, id) in texts(&data, "id").iter().enumerate() {
        let entries = meta.value(at);
        let names: Vec<String> = keys(id.parse().unwrap()).map(|(name, _)| name).collect();
        let entries = RecordBatch::from(entries);
        let found: Vec<(String, i64)> =
            texts(&entries, "key").into_iter().zip(integers(&entries, "value")).collect();
        assert_eq!(found, names.into_iter().zip(0..).collect::<Vec<_>>(), "{id}");
    }
    // Columns themselves cannot become a map.
    workspace.write("input/a.jsonl", lines(false));
    let stderr = within(&workspace, "keys of rows", &run, 2, MAX_KIB).stderr;
    assert!(stderr.contains("too many fields to infer columns"), "{stderr}");
    let (_, advice) =
        stderr.split_once("list the columns that you need in `input.schema`").unwrap();
    let schema = advice.split('`').nth(1).unwrap();
    assert_eq!(schema, "{id: string, text: string}");
    workspace.write("p.yaml", pipeline.input(&format!("schema: {schema}")).to_string());
    let summary = within(&workspace, "with a schema", &run, 0, MAX_KIB).summary();
    assert_eq!((count(&summary, "rows_in"), count(&summary, "quarantined")), (1000, 0));
}

/// A page whose header claims a small size.
#[test]
fn pages_larger_than_their_header_claims_are_not_read() {
    for (name, codec) in codecs() {
        let workspace = workspace();
        let path = workspace.path("input/a.parquet");
        let text = "a".repeat(48 << 20).into_bytes();
        let raw = Raw { compression: codec, ..Raw::plain() };
        write_raw(&path, &[("id", vec![b"0"]), ("text", vec![&text])], raw);
        let (_, footer) = split(&path);
        let (start, _) = footer.row_group(0).column(1).byte_range();
        let mut bytes = fs::read(&path).unwrap();
        // Field 2 of the page header is its size, a variable-length number after one byte each for field 1 and its
        // value.
        let size = start as usize + 3;
        let length = bytes[size..].iter().position(|byte| byte & 0x80 == 0).unwrap() + 1;
        bytes[size..size + length - 1].fill(0x80);
        bytes[size] = 0xf0;
        bytes[size + length - 1] = 0;
        fs::write(&path, bytes).unwrap();
        let answer = within(&workspace, name, &["run", "p.yaml", "-q"], 3, MAX_KIB);
        assert!(answer.stderr.contains("a.parquet, row group 0"), "{name}: {}", answer.stderr);
    }
}

/// One long value that many rows refer to: the file has it once.
#[test]
fn shared_dictionary_values_take_bounded_memory() {
    let workspace = workspace();
    let long = "the same words again ".repeat(205_000);
    let rows = 64;
    let values: StringArray = std::iter::repeat_n(Some(long.as_str()), 4).collect();
    let ids = strings((0..rows).map(|row| row.to_string()));
    let keys = arrow_array::Int32Array::from_iter_values((0..rows).map(|_| 0));
    let one = Arc::new(values.slice(0, 1)) as ArrayRef;
    let column = arrow_array::DictionaryArray::new(keys, one);
    let input = table(&[("id", ids), ("text", Arc::new(column))]);
    let path = workspace.path("input/a.parquet");
    write_compressed(&path, &input, Compression::SNAPPY, true, None);
    assert!(fs::metadata(&path).unwrap().len() < 16 << 20);
    edit_column_chunk(&path, |column| column.set_unencoded_byte_array_data_bytes(Some(0)));
    // Each of these texts is longer than this limit allows to score.
    let answer = bounded(&workspace, "a dictionary", &["run", "p.yaml", "-q"], 3);
    assert!(answer.stderr.contains("document_too_large"), "{}", answer.stderr);
}

#[test]
fn a_document_of_200_megabytes_loses_only_its_row() {
    let workspace = Workspace::new();
    workspace.link("model", &demo_model());
    let long = "The keeper of the lamp wrote a letter every evening. ".repeat(4_000_000);
    assert!(long.len() > 200_000_000);
    let texts_in = [prose(0), long, prose(2)];
    let input = table(&[("id", strings(["0", "1", "2"])), ("text", strings(&texts_in))]);
    write_parquet(&workspace.path("input/a.parquet"), &input, 1);
    let pipeline = Pipeline::text("model", 64)
        .input("max_document_bytes: 134217728, max_quarantined_fraction: 0.4")
        .filter("keep_fraction: 1");
    let summary = workspace.run(&pipeline);
    assert_eq!((count(&summary, "rows_in"), count(&summary, "quarantined")), (3, 1));
    let table = read_parquet(&workspace.path("out.run/quarantine"));
    assert_eq!(integers(&table, "longsift_row"), [1]);
    assert_eq!(texts(&table, "longsift_code"), ["document_too_large"]);
    assert_eq!(
        table.column_by_name("text").unwrap().as_string::<i32>().value(0).len(),
        texts_in[1].len()
    );
    let kept = read_parquet(&workspace.path("out/data"));
    assert!(texts(&kept, "id").iter().all(|id| id != "1"));
}

/// Footers that are small in the file and large when decoded.
#[test]
fn footers_that_claim_long_lists_are_rejected_before_decoding() {
    let workspace = workspace();
    for (what, footer) in [
        (
            "a list of two billion columns",
            &[0x15, 0x02, 0x19, 0xfc, 0xff, 0xff, 0xff, 0xff, 0x07][..],
        ),
        (
            "a list of two billion row groups",
            &[0x15, 0x02, 0x29, 0xfc, 0xff, 0xff, 0xff, 0xff, 0x07],
        ),
        ("a text of two gigabytes", &[0x15, 0x02, 0x58, 0xff, 0xff, 0xff, 0xff, 0x07]),
        ("structures in structures", &vec![0x1c; 100_000]),
        ("lists in lists", &vec![0x19; 100_000]),
        (
            "a number without an end",
            &[0x15, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff],
        ),
        ("nothing", &[]),
    ] {
        let mut file = File::create(workspace.path("input/a.parquet")).unwrap();
        file.write_all(b"PAR1").unwrap();
        file.write_all(footer).unwrap();
        file.write_all(&(footer.len() as u32).to_le_bytes()).unwrap();
        file.write_all(b"PAR1").unwrap();
        for command in ["plan", "run"] {
            let answer = bounded(&workspace, what, &[command, "p.yaml", "-q"], 3);
            assert!(answer.stderr.contains("a.parquet"), "{what}: {}", answer.stderr);
        }
    }
}
