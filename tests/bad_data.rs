//! A bad value loses its row, damage its row group, an unreadable file its rows, and nothing else.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::types::IntervalMonthDayNano;
use arrow_array::{ArrayRef, BinaryArray, IntervalMonthDayNanoArray, RecordBatch};
use arrow_cast::cast;
use arrow_ipc::writer::FileWriter;
use arrow_schema::{DataType, Field, Schema};
use parquet::basic::Compression;
use serde_json::json;

use crate::support::damage::{Raw, add_checksums, claim_rows, edit_column_chunk, split, write_raw};
use crate::support::tables::{
    corpus, integers, optional_integers, optional_texts, read_parquet, read_scores, strings, table,
    texts, write_parquet,
};
use crate::support::{Answer, Pipeline, Tiny, Workspace, count, demo_model, files_below};

const WORDS: [&str; 8] = ["amber", "birch", "cedar", "damson", "elder", "fir", "gorse", "hazel"];

fn text_of(row: usize) -> String {
    format!("The {} box number {row} stood behind the door. ", WORDS[row % 8]).repeat(30)
}

/// Texts as bytes; those of `bad` rows have an invalid UTF-8 byte in the middle.
fn texts_with(rows: usize, bad: &[usize]) -> Vec<Vec<u8>> {
    let mut texts: Vec<Vec<u8>> = (0..rows).map(|row| text_of(row).into_bytes()).collect();
    for row in bad {
        texts[*row][300] = 0xff;
    }
    texts
}

fn slices(values: &[Vec<u8>]) -> Vec<&[u8]> {
    values.iter().map(Vec::as_slice).collect()
}

fn pipeline() -> Pipeline {
    Pipeline::text("model", 64).input("max_quarantined_fraction: 1").filter("keep_fraction: 1")
}

fn text_workspace() -> Workspace {
    let workspace = Workspace::new();
    workspace.link("model", &demo_model());
    workspace
}

/// Reason codes by row, from the quarantine.
fn quarantined(workspace: &Workspace) -> BTreeMap<i64, String> {
    let table = read_parquet(&workspace.path("out.run/quarantine"));
    let rows = optional_integers(&table, "longsift_row");
    let known = rows.into_iter().zip(texts(&table, "longsift_code"));
    known.filter_map(|(row, code)| Some((row?, code))).collect()
}

fn failure(workspace: &Workspace, pipeline: &Pipeline, code: i32) -> Answer {
    workspace.write("pipeline.yaml", pipeline.to_string());
    workspace.longsift(&["run", "pipeline.yaml", "-q"]).expect(code)
}

/// Values of the score table by row.
fn scores_by_row(workspace: &Workspace) -> BTreeMap<i64, Vec<u64>> {
    let scores = read_scores(&workspace.path("out.run"));
    let mut of_rows: BTreeMap<i64, Vec<u64>> = BTreeMap::new();
    let values = crate::support::tables::floats(&scores, "dependency_strength");
    for (row, value) in integers(&scores, "input_row").into_iter().zip(values) {
        of_rows.entry(row).or_default().push(value.to_bits());
    }
    of_rows
}

#[test]
fn a_text_that_is_not_utf8_loses_only_its_row() {
    let ids: Vec<Vec<u8>> = (0..12).map(|row| format!("id {row}").into_bytes()).collect();
    let clean = text_workspace();
    let good = texts_with(12, &[]);
    let columns = [("id", slices(&ids)), ("text", slices(&good))];
    write_raw(&clean.path("input/a.parquet"), &columns, Raw::plain());
    clean.run(&pipeline());
    let expected = scores_by_row(&clean);
    for dictionary in [false, true] {
        for compression in [Compression::UNCOMPRESSED, Compression::SNAPPY] {
            let workspace = text_workspace();
            let raw = Raw { group_rows: 5, page_rows: 2, dictionary, compression };
            let bad = texts_with(12, &[1, 7]);
            // An id and a column that only passes through may be bad as well.
            let mut ids = ids.clone();
            ids[3] = b"id \xc3".to_vec();
            let mut notes: Vec<Vec<u8>> = vec![b"a note".to_vec(); 12];
            notes[9] = b"\x80".to_vec();
            let columns = [("id", slices(&ids)), ("text", slices(&bad)), ("note", slices(&notes))];
            write_raw(&workspace.path("input/a.parquet"), &columns, raw);
            let summary = workspace.run(&pipeline());
            assert_eq!((count(&summary, "rows_in"), count(&summary, "quarantined")), (12, 4));
            let codes = quarantined(&workspace);
            assert_eq!(codes.keys().copied().collect::<Vec<_>>(), [1, 3, 7, 9]);
            assert!(codes.values().all(|code| code == "invalid_utf8"));
            let mut expected = expected.clone();
            expected.retain(|row, _| !codes.contains_key(row));
            assert_eq!(scores_by_row(&workspace), expected, "other rows are still scored");
            // The rest of the row is kept; the invalid text is null.
            let table = read_parquet(&workspace.path("out.run/quarantine"));
            assert_eq!(optional_texts(&table, "id")[0].as_deref(), Some("id 1"));
            assert_eq!(optional_texts(&table, "text")[0], None);
            assert_eq!(optional_texts(&table, "text")[1], Some(text_of(3)));
            assert_eq!(optional_texts(&table, "note")[3], None);
            let messages = texts(&table, "longsift_message");
            assert_eq!(messages[3], "column `note` contains invalid UTF-8");
        }
    }
}

#[test]
fn a_text_in_an_arrow_file_that_is_not_utf8_loses_only_its_row() {
    for (bytes, text) in [
        (DataType::Binary, DataType::Utf8),
        (DataType::LargeBinary, DataType::LargeUtf8),
        (DataType::BinaryView, DataType::Utf8View),
        (dictionary_of(DataType::Binary), dictionary_of(DataType::Utf8)),
    ] {
        let workspace = text_workspace();
        let values = BinaryArray::from_iter_values(texts_with(12, &[1, 7]));
        let ids = strings((0..12).map(|row| row.to_string()));
        let texts = cast(&(Arc::new(values) as ArrayRef), &bytes).unwrap();
        let batch = table(&[("id", Arc::clone(&ids)), ("text", texts)]);
        // The schema of the file claims texts.
        let fields = [Field::new("id", DataType::Utf8, true), Field::new("text", text, true)];
        let mut file = FileWriter::try_new(Vec::new(), &Schema::new(fields.to_vec())).unwrap();
        file.write(&batch).unwrap();
        workspace.write("input/a.arrow", file.into_inner().unwrap());
        let summary = workspace.run(&pipeline());
        assert_eq!((count(&summary, "rows_in"), count(&summary, "quarantined")), (12, 2));
        let codes = [1, 7].map(|row| (row, "invalid_utf8".to_owned()));
        assert_eq!(quarantined(&workspace), BTreeMap::from(codes), "{bytes}");
    }
}

#[test]
fn rows_with_columns_that_parquet_cannot_hold_are_quarantined_without_them() {
    let workspace = text_workspace();
    let lengths = IntervalMonthDayNanoArray::from(vec![IntervalMonthDayNano::new(1, 2, 3); 12]);
    let bytes = BinaryArray::from_iter_values(texts_with(12, &[1, 7]));
    let texts = cast(&(Arc::new(bytes) as ArrayRef), &DataType::Binary).unwrap();
    let ids = strings((0..12).map(|row| row.to_string()));
    let batch = table(&[("id", ids), ("length", Arc::new(lengths)), ("text", texts)]);
    let mut file = FileWriter::try_new(Vec::new(), &batch.schema()).unwrap();
    file.write(&batch).unwrap();
    workspace.write("input/a.arrow", file.into_inner().unwrap());
    workspace.write("pipeline.yaml", pipeline().output("format: jsonl-zst").to_string());
    let summary = workspace.longsift(&["run", "pipeline.yaml", "-q"]).success().summary();
    assert_eq!((count(&summary, "rows_in"), count(&summary, "quarantined")), (12, 2));
    let codes = [1, 7].map(|row| (row, "invalid_utf8".to_owned()));
    assert_eq!(quarantined(&workspace), BTreeMap::from(codes));
    let table = read_parquet(&workspace.path("out.run/quarantine"));
    assert!(table.column_by_name("length").is_none() && table.column_by_name("text").is_some());
    workspace.longsift(&["verify", "out.run"]).success();
}

fn dictionary_of(values: DataType) -> DataType {
    DataType::Dictionary(Box::new(DataType::Int32), Box::new(values))
}

#[test]
fn a_column_of_bytes_is_scored_as_text_and_stays_bytes() {
    let strings_run = text_workspace();
    let all: Vec<String> = (0..4).map(text_of).collect();
    let input = table(&[("id", strings(["0", "1", "2", "3"])), ("text", strings(&all))]);
    write_parquet(&strings_run.path("input/a.parquet"), &input, 2);
    strings_run.run(&pipeline());
    let expected = texts(&read_parquet(&strings_run.path("out/data")), "text");
    for kind in [DataType::Binary, DataType::LargeBinary, DataType::BinaryView] {
        for samples in ["windows", "documents"] {
            let workspace = text_workspace();
            let mut values: Vec<Option<&[u8]>> =
                all.iter().map(|text| Some(text.as_bytes())).collect();
            values.extend([Some(&b"\xff is not text"[..]), None]);
            let bytes = cast(&(Arc::new(BinaryArray::from(values)) as ArrayRef), &kind).unwrap();
            let ids = strings((0..6).map(|row| row.to_string()));
            let input = table(&[("id", ids), ("text", bytes)]);
            write_parquet(&workspace.path("input/a.parquet"), &input, 4);
            workspace.run(&pipeline().output(&format!("samples: {samples}")));
            let codes = quarantined(&workspace);
            assert_eq!(
                codes,
                BTreeMap::from([(4, "invalid_utf8".to_owned()), (5, "null_text".to_owned())])
            );
            let data = read_parquet(&workspace.path("out/data"));
            assert_eq!(data.column_by_name("text").unwrap().data_type(), &kind);
            assert_eq!(scores_by_row(&workspace), scores_by_row(&strings_run));
            let found = texts(&data, "text");
            assert_eq!(found, if samples == "windows" { &expected } else { &all }.clone());
        }
    }
}

#[test]
fn a_bad_text_stops_the_run_with_on_bad_row_fail() {
    let workspace = text_workspace();
    let bad = texts_with(4, &[2]);
    write_raw(&workspace.path("input/a.parquet"), &[("text", slices(&bad))], Raw::plain());
    let mut pipeline = pipeline();
    pipeline.input = "path: input, on_bad_row: fail".to_owned();
    let answer = failure(&workspace, &pipeline, 3);
    assert!(
        answer.stderr.contains("a.parquet, row 2: column `text` contains invalid UTF-8"),
        "{}",
        answer.stderr
    );
    // A row quarantined by an earlier run gets the same message.
    pipeline.input = "path: input, max_quarantined_fraction: 1".to_owned();
    workspace.run(&pipeline);
    pipeline.input = "path: input, on_bad_row: fail".to_owned();
    let answer = failure(&workspace, &pipeline, 3);
    assert!(answer.stderr.contains("1 of 4 rows were quarantined"), "{}", answer.stderr);
}

/// Documents in two row groups, the first of `group_rows` rows, in pages of five; pages of the first have checksums.
/// Changes a letter of `row`, which only a checksum detects.
fn flipped(workspace: &Workspace, rows: usize, group_rows: usize, row: usize) {
    let path = workspace.path("input/a.parquet");
    whole(workspace, rows, group_rows);
    let mut bytes = fs::read(&path).unwrap();
    let text = format!("number {row} ");
    let start = bytes.windows(text.len()).position(|window| window == text.as_bytes()).unwrap();
    bytes[start] ^= 1;
    fs::write(&path, bytes).unwrap();
}

/// Files without the change.
fn whole(workspace: &Workspace, rows: usize, group_rows: usize) {
    let path = workspace.path("input/a.parquet");
    let texts = texts_with(rows, &[]);
    let raw = Raw { page_rows: 5, group_rows, ..Raw::plain() };
    write_raw(&path, &[("text", slices(&texts))], raw);
    add_checksums(&path);
}

fn without_ids(more: &str) -> Pipeline {
    let mut pipeline = pipeline();
    pipeline.input = format!("path: input, max_quarantined_fraction: 1{more}");
    pipeline
}

#[test]
fn a_flipped_bit_under_a_checksum_stops_the_run_and_is_located() {
    let workspace = text_workspace();
    flipped(&workspace, 40, 25, 17);
    let answer = failure(&workspace, &without_ids(""), 3);
    insta::assert_snapshot!(workspace.filtered(&answer.stderr));
    assert!(files_below(&workspace.path("out/data")).is_empty());
}

#[test]
fn a_damaged_page_costs_its_row_group() {
    let workspace = text_workspace();
    flipped(&workspace, 40, 25, 17);
    let summary = workspace.run(&without_ids(", on_bad_file: quarantine"));
    assert_eq!(summary["quarantined"], 25);
    let rows: Vec<i64> = quarantined(&workspace).into_keys().collect();
    assert_eq!(rows, (0..25).collect::<Vec<_>>());
    let table = read_parquet(&workspace.path("out.run/quarantine"));
    assert!(texts(&table, "longsift_code").iter().all(|code| code == "unreadable"));
    insta::assert_snapshot!(texts(&table, "longsift_message")[0]);
    let kept = read_parquet(&workspace.path("out/data"));
    assert!(texts(&kept, "longsift_sample_id").contains(&"a.parquet:25#0".to_owned()));
    assert_eq!(workspace.run(&without_ids(", on_bad_file: quarantine"))["status"], "nothing_to_do");
}

/// Documents before the damage are being scored when it is detected.
#[test]
fn documents_read_before_damage_are_withdrawn() {
    let small = ", memory_limit_bytes: 67108864, max_document_bytes: 4194304";
    let (rows, group_rows) = (240, 220);
    let clean = text_workspace();
    whole(&clean, rows, group_rows);
    clean.run(&without_ids(small));
    let mut expected = scores_by_row(&clean);
    assert_eq!(expected.len(), rows);
    expected.retain(|row, _| *row >= group_rows as i64);
    let workspace = text_workspace();
    flipped(&workspace, rows, group_rows, 216);
    let pipeline = without_ids(&format!("{small}, on_bad_file: quarantine"));
    let summary = workspace.run(&pipeline);
    assert_eq!((count(&summary, "rows_in"), count(&summary, "quarantined")), (240, 220));
    assert_eq!(quarantined(&workspace).len(), group_rows);
    assert_eq!(scores_by_row(&workspace), expected);
    let read = workspace.longsift(&["tokens", "pipeline.yaml", "-q"]).expect(0);
    let lost = read.stdout.lines().filter(|line| line.contains("\"quarantined\":\"unreadable\""));
    assert_eq!(lost.count(), group_rows);
}

#[test]
fn a_lost_column_leaves_the_others_in_the_quarantine() {
    for within in ["", "within: note"] {
        let workspace = text_workspace();
        let path = workspace.path("input/a.parquet");
        let texts_in = texts_with(20, &[]);
        let notes: Vec<Vec<u8>> = (0..20).map(|row| format!("n{}", row % 2).into_bytes()).collect();
        let columns = [("note", slices(&notes)), ("text", slices(&texts_in))];
        write_raw(&path, &columns, Raw { group_rows: 10, ..Raw::plain() });
        // The header of the only page of `note` in the first row group.
        let (_, footer) = split(&path);
        let (start, _) = footer.row_group(0).column(0).byte_range();
        let mut bytes = fs::read(&path).unwrap();
        bytes[start as usize..start as usize + 4].fill(0xff);
        fs::write(&path, bytes).unwrap();
        let summary = workspace.run(&without_ids(", on_bad_file: quarantine").score(within));
        assert_eq!(summary["quarantined"], 10, "the row group without its notes");
        let table = read_parquet(&workspace.path("out.run/quarantine"));
        assert_eq!(integers(&table, "longsift_row"), (0..10).collect::<Vec<_>>());
        assert_eq!(texts(&table, "text"), (0..10).map(text_of).collect::<Vec<_>>());
        assert!(optional_texts(&table, "note").iter().all(Option::is_none));
        let groups = integers(&table, "longsift_row_group");
        assert!(groups.iter().all(|group| *group == 0));
    }
}

/// Name of a kind of damage, and the function that causes it.
type Damage = (&'static str, fn(&Path));

/// All kinds of damage that prevent opening a file.
fn unreadable_files() -> Vec<Damage> {
    fn whole(path: &Path) {
        write_parquet(path, &corpus("bad", &[128, 128]), 8);
    }
    vec![
        ("of no bytes", |path| fs::write(path, []).unwrap()),
        ("shorter than a footer", |path| fs::write(path, "PAR1").unwrap()),
        ("cut off", |path| {
            whole(path);
            let length = fs::metadata(path).unwrap().len();
            File::options().write(true).open(path).unwrap().set_len(length / 2).unwrap();
        }),
        ("not Parquet", |path| fs::write(path, "id,text\n1,some text of a table\n").unwrap()),
        ("encrypted", |path| {
            whole(path);
            let mut bytes = fs::read(path).unwrap();
            let end = bytes.len() - 4;
            bytes[end..].copy_from_slice(b"PARE");
            fs::write(path, bytes).unwrap();
        }),
        ("with encrypted columns", |path| {
            whole(path);
            let mut bytes = fs::read(path).unwrap();
            let tail = bytes.len() - 8;
            // Field 8 of the footer names the cipher; it follows field 7, the last one written.
            let footer = [0x1c, 0x1c, 0, 0, 0];
            bytes.splice(tail - 1..tail, footer);
            let length = u32::from_le_bytes(bytes[tail + 4..tail + 8].try_into().unwrap()) + 4;
            bytes[tail + 4..tail + 8].copy_from_slice(&length.to_le_bytes());
            fs::write(path, bytes).unwrap();
        }),
        ("with a footer longer than the file", |path| {
            whole(path);
            let mut bytes = fs::read(path).unwrap();
            let end = bytes.len() - 8;
            bytes[end..end + 4].copy_from_slice(&1_000_000_u32.to_le_bytes());
            fs::write(path, bytes).unwrap();
        }),
        ("with a footer of two gigabytes", |path| {
            // A sparse file, which takes no space.
            let file = File::create(path).unwrap();
            file.write_all_at(b"PAR1", 0).unwrap();
            file.write_all_at(&0x7fff_ffff_u32.to_le_bytes(), 1 << 32).unwrap();
            file.write_all_at(b"PAR1", (1 << 32) + 4).unwrap();
        }),
        ("with a footer of noise", |path| {
            whole(path);
            let mut bytes = fs::read(path).unwrap();
            let end = bytes.len() - 8;
            bytes[end - 40..end].fill(0xee);
            fs::write(path, bytes).unwrap();
        }),
        ("that claims a column beyond its end", |path| {
            whole(path);
            edit_column_chunk(path, |column| column.set_total_compressed_size(1 << 40));
        }),
        ("that claims a column at a negative place", |path| {
            whole(path);
            edit_column_chunk(path, |column| {
                column.set_data_page_offset(-1).set_dictionary_page_offset(None)
            });
        }),
        ("that claims more values than rows", |path| {
            whole(path);
            edit_column_chunk(path, |column| column.set_num_values(1 << 40));
        }),
        ("that claims more rows than it has", |path| {
            whole(path);
            claim_rows(path, 1 << 50);
        }),
    ]
}

#[test]
fn a_file_that_cannot_be_opened_stops_the_run_and_is_named() {
    let workspace = Workspace::new();
    Tiny::new().write(&workspace.path("model"));
    write_parquet(&workspace.path("input/good.parquet"), &corpus("a", &[64, 128]), 8);
    let mut messages = String::new();
    for (what, make) in unreadable_files() {
        make(&workspace.path("input/bad.parquet"));
        let answer = failure(&workspace, &Pipeline::tokens("model", 64), 3);
        let line = answer.stderr.lines().next().unwrap();
        assert!(line.starts_with("error: bad.parquet"), "{what}: {}", answer.stderr);
        writeln!(messages, "{what}\n  {line}").unwrap();
    }
    insta::assert_snapshot!(messages);
}

#[test]
fn a_file_that_cannot_be_opened_costs_only_its_rows() {
    let clean = Workspace::new();
    Tiny::new().write(&clean.path("model"));
    write_parquet(&clean.path("input/good.parquet"), &corpus("a", &[64, 128]), 8);
    clean.run(&Pipeline::tokens("model", 64));
    let pipeline = Pipeline::tokens("model", 64).input("on_bad_file: quarantine");
    for (what, make) in unreadable_files() {
        let workspace = Workspace::new();
        Tiny::new().write(&workspace.path("model"));
        write_parquet(&workspace.path("input/good.parquet"), &corpus("a", &[64, 128]), 8);
        make(&workspace.path("input/bad.parquet"));
        let summary = workspace.run(&pipeline);
        assert_eq!(
            (&summary["files_quarantined"], &summary["rows_in"]),
            (&json!(1), &json!(2)),
            "{what}"
        );
        assert_eq!(workspace.hashes(&["out/data"]), clean.hashes(&["out/data"]), "{what}");
        let table = read_parquet(&workspace.path("out.run/quarantine/files.parquet"));
        assert_eq!(texts(&table, "longsift_file"), ["bad.parquet"]);
        assert_eq!(texts(&table, "longsift_code"), ["unreadable_file"]);
        assert_eq!(optional_integers(&table, "longsift_row"), [None]);
        assert_eq!(workspace.run(&pipeline)["status"], "nothing_to_do");
        // The run changes when the file is repaired, and again when it is removed.
        write_parquet(&workspace.path("input/bad.parquet"), &corpus("b", &[64]), 8);
        let mended = workspace.run(&pipeline);
        assert_eq!((count(&mended, "files_quarantined"), count(&mended, "rows_in")), (0, 3));
        assert!(!workspace.path("out.run/quarantine/files.parquet").exists());
        make(&workspace.path("input/bad.parquet"));
        assert_eq!(workspace.run(&pipeline)["files_quarantined"], 1);
        fs::remove_file(workspace.path("input/bad.parquet")).unwrap();
        assert_eq!(workspace.run(&pipeline)["files_quarantined"], 0);
    }
}

#[test]
fn an_input_of_unreadable_files_fails() {
    for empty_beside in [false, true] {
        let workspace = Workspace::new();
        Tiny::new().write(&workspace.path("model"));
        workspace.write("input/a.parquet", "");
        workspace.write("input/b.parquet", "noise");
        if empty_beside {
            write_parquet(&workspace.path("input/c.parquet"), &corpus("c", &[]), 8);
        }
        let pipeline = Pipeline::tokens("model", 64).input("on_bad_file: quarantine");
        let answer = failure(&workspace, &pipeline, 3);
        assert_eq!(answer.summary()["status"], "failed");
    }
}

#[test]
fn a_codec_that_is_not_built_in_costs_the_row_group() {
    for quarantine in [false, true] {
        let workspace = Workspace::new();
        Tiny::new().write(&workspace.path("model"));
        let path = workspace.path("input/a.parquet");
        write_parquet(&path, &corpus("a", &[64, 128, 64, 64]), 2);
        edit_column_chunk(&path, |column| column.set_compression(Compression::LZO));
        if quarantine {
            let pipeline = Pipeline::tokens("model", 64)
                .input("on_bad_file: quarantine, max_quarantined_fraction: 0.5");
            let summary = workspace.run(&pipeline);
            assert_eq!((count(&summary, "rows_in"), count(&summary, "quarantined")), (4, 2));
        } else {
            let answer = failure(&workspace, &Pipeline::tokens("model", 64), 3);
            assert!(answer.stderr.contains("a.parquet, row group 0, row 0"), "{}", answer.stderr);
            assert!(answer.stderr.contains("LZO"), "{}", answer.stderr);
        }
    }
}

#[test]
fn files_with_one_row_or_none_are_read_with_others() {
    let workspace = Workspace::new();
    Tiny::new().write(&workspace.path("model"));
    for (name, lengths) in [("a", &[][..]), ("b", &[64]), ("c", &[64, 128]), ("d", &[])] {
        write_parquet(&workspace.path(&format!("input/{name}.parquet")), &corpus(name, lengths), 8);
    }
    let summary = workspace.run(&Pipeline::tokens("model", 64).filter("keep_fraction: 1"));
    assert_eq!((count(&summary, "rows_in"), count(&summary, "kept")), (3, 4));
}

#[test]
fn a_schema_of_a_hundred_thousand_columns_is_read_or_refused_in_seconds() {
    let workspace = Workspace::new();
    Tiny::new().write(&workspace.path("model"));
    let narrow = corpus("a", &[64, 64]);
    let one: ArrayRef = Arc::new(arrow_array::Int8Array::from(vec![1, 2]));
    let names: Vec<String> = (0..100_000).map(|column| format!("c{column}")).collect();
    let mut columns: Vec<(&str, ArrayRef)> =
        vec![("id", Arc::clone(narrow.column(0))), ("tokens", Arc::clone(narrow.column(1)))];
    columns.extend(names.iter().map(|name| (name.as_str(), Arc::clone(&one))));
    write_parquet(&workspace.path("input/a.parquet"), &table(&columns), 8);
    workspace.write("pipeline.yaml", Pipeline::tokens("model", 64).to_string());
    // Seconds of processor time, which do not depend on other load.
    let mut plan =
        workspace.command_after("ulimit -t 60 && exec", &["plan", "pipeline.yaml", "-q"]);
    let answer = Answer::from_output(plan.output().unwrap());
    assert!([0, 3].contains(&answer.code), "{}", answer.to_text());
}

/// Quarantined rows keep every readable value, nested ones included.
#[test]
fn the_quarantine_has_the_original_rows() {
    let workspace = Workspace::new();
    Tiny::new().write(&workspace.path("model"));
    let plain = corpus("a", &[64, 64, 64]);
    let mut tokens = crate::support::tables::token_ids(&plain, "tokens");
    tokens[1][5] = 4000;
    let input: RecordBatch = table(&[
        ("id", Arc::clone(plain.column(0))),
        ("tokens", crate::support::tables::token_lists(&tokens)),
        ("tags", crate::support::tables::token_lists(&[vec![1], vec![2, 3], vec![]])),
    ]);
    write_parquet(&workspace.path("input/a.parquet"), &input, 8);
    workspace.run(&Pipeline::tokens("model", 64).input("max_quarantined_fraction: 1"));
    let table = read_parquet(&workspace.path("out.run/quarantine"));
    assert_eq!(crate::support::tables::token_ids(&table, "tokens"), [tokens[1].clone()]);
    assert_eq!(crate::support::tables::token_ids(&table, "tags"), [vec![2, 3]]);
    assert_eq!(texts(&table, "longsift_stage"), ["tokenize"]);
    assert_eq!(texts(&table, "longsift_code"), ["token_out_of_range"]);
    assert!(table.column_by_name("tokens").unwrap().as_list_opt::<i32>().is_some());
}
