//! Columns that no stage reads pass through unchanged, with the metadata that readers rely on.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::path::Path;
use std::sync::Arc;

use arrow_array::builder::{Int32Builder, ListBuilder, MapBuilder, StringBuilder};
use arrow_array::cast::AsArray;
use arrow_array::types::Int32Type;
use arrow_array::{
    Array, ArrayRef, BinaryArray, BooleanArray, Date32Array, Decimal128Array, DictionaryArray,
    FixedSizeBinaryArray, Float32Array, Int8Array, Int32Array, Int64Array, LargeStringArray,
    ListArray, NullArray, RecordBatch, StringArray, StringViewArray, StructArray,
    TimestampMicrosecondArray, UInt32Array, UInt64Array,
};
use arrow_buffer::{NullBuffer, OffsetBuffer};
use arrow_cast::cast;
use arrow_schema::{DataType, Field, Fields};
use arrow_select::concat::concat_batches;
use arrow_select::take::take;
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
use parquet::basic::{LogicalType, Repetition};
use parquet::data_type::{ByteArray, ByteArrayType, Int96, Int96Type};
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::parser::parse_message_type;
use parquet::schema::types::Type;
use serde_json::{Value, json};

use crate::support::tables::{
    document, footer_value, integers, read_parquet, strings, table, texts, token_ids, token_lists,
    write_parquet, write_parquet_with,
};
use crate::support::{Pipeline, Tiny, Workspace, demo_model, files_below, read_json, shared};

const ROWS: usize = 24;

/// A value for most rows, null for every fifth.
fn some<T>(value: impl Fn(usize) -> T) -> Vec<Option<T>> {
    (0..ROWS).map(|row| (row % 5 != 3).then(|| value(row))).collect()
}

/// Lists of structs of lists, with nulls at every level.
fn nested() -> ArrayRef {
    let mut words = ListBuilder::new(StringBuilder::new());
    let mut offsets = vec![0i32];
    for row in 0..ROWS {
        for item in 0..row % 4 {
            match item {
                1 => words.append_null(),
                _ => words.append_value([Some(format!("w{row}")), None, Some(String::new())]),
            }
        }
        offsets.push(offsets[row] + (row % 4) as i32);
    }
    let items = *offsets.last().unwrap() as usize;
    let words = words.finish();
    let fields = Fields::from(vec![
        Field::new("words", words.data_type().clone(), true),
        Field::new("count", DataType::Int8, true),
    ]);
    let counts: Int8Array = (0..items).map(|item| (item % 3 > 0).then_some(item as i8)).collect();
    let structs = StructArray::new(
        fields.clone(),
        vec![Arc::new(words), Arc::new(counts)],
        Some((0..items).map(|item| item % 7 != 6).collect::<NullBuffer>()),
    );
    let field = Arc::new(Field::new("element", DataType::Struct(fields), true));
    let nulls: NullBuffer = (0..ROWS).map(|row| row % 6 != 4).collect();
    Arc::new(ListArray::new(
        field,
        OffsetBuffer::new(offsets.into()),
        Arc::new(structs),
        Some(nulls),
    ))
}

fn map() -> ArrayRef {
    let mut builder = MapBuilder::new(None, StringBuilder::new(), Int32Builder::new());
    for row in 0..ROWS {
        for entry in 0..row % 3 {
            builder.keys().append_value(format!("k{entry}"));
            builder.values().append_option((entry > 0).then_some(row as i32));
        }
        builder.append(row % 5 != 2).unwrap();
    }
    Arc::new(builder.finish())
}

/// A column of each kind that corpora have.
fn columns() -> Vec<(&'static str, ArrayRef)> {
    let text = |row: usize| format!("naïve {row} 🚒");
    let texts = some(text);
    let words = some(|row| ["red", "green", "blue"][row % 3]);
    let dictionary: DictionaryArray<Int32Type> = words.into_iter().collect();
    let instants: TimestampMicrosecondArray = some(|row| 1_763_600_000_000_000 + row as i64).into();
    let decimals: Decimal128Array = some(|row| 10_i128.pow(18) * row as i128 - 7).into();
    let digests = some(|row| [row as u8; 4]).into_iter();
    let digests = FixedSizeBinaryArray::try_from_sparse_iter_with_size(digests, 4).unwrap();
    vec![
        ("string", Arc::new(StringArray::from(texts.clone()))),
        ("large_string", Arc::new(LargeStringArray::from(texts.clone()))),
        ("string_view", Arc::new(StringViewArray::from_iter(texts))),
        ("dictionary", Arc::new(dictionary)),
        ("int32", Arc::new(Int32Array::from(some(|row| -(row as i32))))),
        ("int64", Arc::new(Int64Array::from(some(|row| i64::MIN + row as i64)))),
        ("uint64", Arc::new(UInt64Array::from(some(|row| u64::MAX - row as u64)))),
        ("float32", Arc::new(Float32Array::from(some(|row| row as f32 / 3.0)))),
        ("boolean", Arc::new(BooleanArray::from(some(|row| row % 2 == 0)))),
        ("date", Arc::new(Date32Array::from(some(|row| 20_000 - row as i32)))),
        ("instant", Arc::new(instants.with_timezone("UTC"))),
        ("decimal", Arc::new(decimals.with_precision_and_scale(30, 6).unwrap())),
        ("binary", Arc::new(BinaryArray::from_iter(some(|row| vec![0xff, row as u8])))),
        ("digest", Arc::new(digests)),
        ("nested", nested()),
        ("map", map()),
    ]
}

fn input() -> RecordBatch {
    let ids = (0..ROWS).map(|row| row.to_string());
    let documents: Vec<Vec<u32>> = (0..ROWS).map(|row| document(row as u64, 40 + row)).collect();
    let mut all = vec![("id", strings(ids))];
    all.extend(columns());
    all.push(("tokens", token_lists(&documents)));
    table(&all)
}

/// Checks that every column except `except` equals that of its source row.
fn check_columns(output: &RecordBatch, input: &RecordBatch, rows: &[usize], except: &str) {
    assert_eq!(output.num_rows(), rows.len());
    assert!(output.num_rows() > 3);
    let rows: UInt32Array = rows.iter().map(|row| Some(*row as u32)).collect();
    for (index, field) in input.schema().fields().iter().enumerate() {
        assert_eq!(output.schema().field(index).name(), field.name(), "in their order");
        if field.name() == except {
            continue;
        }
        let expected = take(input.column(index), &rows, None).unwrap();
        let expected = cast(&expected, output.column(index).data_type()).unwrap();
        assert_eq!(output.column(index).to_data(), expected.to_data(), "{}", field.name());
    }
}

fn rows_by_id(output: &RecordBatch) -> Vec<usize> {
    texts(output, "id").iter().map(|id| id.parse().unwrap()).collect()
}

#[test]
fn columns_of_every_type_pass_through_unchanged() {
    let workspace = Workspace::new();
    Tiny::new().write(&workspace.path("model"));
    let input = input();
    write_parquet(&workspace.path("input/a.parquet"), &input, 7);
    workspace.run(&Pipeline::tokens("model", 16).filter("keep_fraction: 0.4"));
    let output = read_parquet(&workspace.path("out/data"));
    check_columns(&output, &input, &rows_by_id(&output), "tokens");
    for (index, field) in input.schema().fields().iter().enumerate() {
        assert_eq!(output.schema().field(index).data_type(), field.data_type(), "{}", field.name());
    }
    let documents = token_ids(&input, "tokens");
    let (starts, ends) =
        (integers(&output, "longsift_token_start"), integers(&output, "longsift_token_end"));
    for (index, window) in token_ids(&output, "tokens").into_iter().enumerate() {
        let document = &documents[rows_by_id(&output)[index]];
        assert_eq!(window, document[starts[index] as usize..ends[index] as usize]);
    }
    // Whole documents keep their tokens as well.
    workspace.run(&Pipeline::tokens("model", 16).output("samples: documents"));
    let output = read_parquet(&workspace.path("out/data"));
    check_columns(&output, &input, &rows_by_id(&output), "");
}

/// A type with 64-bit offsets at every level, as Polars writes it.
fn wide(data_type: &DataType) -> DataType {
    let field = |field: &Field| field.clone().with_data_type(wide(field.data_type()));
    match data_type {
        DataType::Utf8 => DataType::LargeUtf8,
        DataType::List(item) => DataType::LargeList(Arc::new(field(item))),
        DataType::Struct(fields) => DataType::Struct(fields.iter().map(|one| field(one)).collect()),
        other => other.clone(),
    }
}

#[test]
fn files_of_different_writers_are_one_input() {
    let lists = |batch: &RecordBatch| {
        let keep = ["id", "nested", "tokens"].map(|name| (name, batch[name].clone()));
        table(&keep)
    };
    let narrow = lists(&input());
    let types = narrow.schema();
    let columns = types.fields().iter().zip(narrow.columns());
    let columns: Vec<(&str, ArrayRef)> = columns
        .map(|(field, column)| {
            (field.name().as_str(), cast(column, &wide(field.data_type())).unwrap())
        })
        .collect();
    let wide = table(&columns);
    let nulls: ArrayRef = Arc::new(NullArray::new(ROWS));
    let nulls = table(&[
        ("id", narrow["id"].clone()),
        ("nested", nulls),
        ("tokens", narrow["tokens"].clone()),
    ]);
    for files in [[&narrow, &wide, &nulls], [&nulls, &wide, &narrow]] {
        let workspace = Workspace::new();
        Tiny::new().write(&workspace.path("model"));
        write_parquet(&workspace.path("input/a.parquet"), files[0], 7);
        write_arrow(&workspace.path("input/b.arrow"), files[1]);
        write_parquet(&workspace.path("input/c.parquet"), files[2], 7);
        let pipeline = Pipeline::tokens("model", 16).filter("keep_fraction: 1");
        workspace.write("pipeline.yaml", pipeline.to_string());
        let both = ["run", "pipeline.yaml", "-q", "--set", "input.path=input/*"];
        workspace.longsift(&both).success();
        let output = read_parquet(&workspace.path("out/data"));
        assert_eq!(output.schema().field(1).data_type(), wide["nested"].data_type());
        let ids = rows_by_id(&output);
        // Each file has as many windows.
        let windows = ids.len() / files.len();
        for (file, rows) in files.into_iter().zip(0..) {
            let start = rows * windows;
            let source =
                if file["nested"].data_type() == &DataType::Null { &nulls } else { &narrow };
            let rows = &ids[start..start + windows];
            check_columns(&output.slice(start, windows), source, rows, "tokens");
        }
    }
}

#[test]
fn second_schemas_of_files_with_a_column_without_values_are_left_out() {
    let workspace = Workspace::new();
    Tiny::new().write(&workspace.path("model"));
    let rows = input();
    let column = |nested: ArrayRef| {
        table(&[("id", rows["id"].clone()), ("nested", nested), ("tokens", rows["tokens"].clone())])
    };
    let features = |kind: &str| {
        let value = json!({ "dtype": kind, "_type": "Value" });
        json!({ "info": { "features": { "nested": value } } }).to_string()
    };
    for (name, nested, kind) in [
        ("a", Arc::new(NullArray::new(ROWS)) as ArrayRef, "null"),
        ("b", rows["string"].clone(), "string"),
    ] {
        let metadata = [("huggingface", features(kind)), ("of", name.to_owned())];
        let metadata = metadata.iter().map(|(key, value)| (*key, &**value)).collect::<Vec<_>>();
        write_parquet_with(
            &workspace.path(&format!("input/{name}.parquet")),
            &column(nested),
            7,
            &metadata,
        );
    }
    let kind_of_output = || {
        let file = &files_below(&workspace.path("out/data"))[0];
        assert_eq!(footer_value(file, "of").unwrap(), "a");
        let value: Value = serde_json::from_str(&footer_value(file, "huggingface")?).unwrap();
        Some(value["info"]["features"]["nested"]["dtype"].as_str().unwrap().to_owned())
    };
    workspace.run(&Pipeline::tokens("model", 16));
    assert_eq!(kind_of_output().as_deref(), Some("string"));
    fs::rename(workspace.path("input/b.parquet"), workspace.path("b.parquet")).unwrap();
    workspace.run(&Pipeline::tokens("model", 16));
    assert_eq!(kind_of_output().as_deref(), Some("null"), "no other file has values");
}

#[test]
fn row_counts_of_pandas_are_not_compared() {
    let workspace = Workspace::new();
    Tiny::new().write(&workspace.path("model"));
    let pandas = |rows: usize, name: &str| json!({ "index_columns": [{ "kind": "range", "stop": rows }], "columns": [{ "name": name }] });
    let warns = |second: Value| {
        for (name, pandas) in [("a", pandas(ROWS, "id")), ("b", second)] {
            let path = workspace.path(&format!("input/{name}.parquet"));
            write_parquet_with(&path, &input(), 7, &[("pandas", &pandas.to_string())]);
        }
        workspace.write("pipeline.yaml", Pipeline::tokens("model", 16).to_string());
        let plan = workspace.longsift(&["plan", "pipeline.yaml"]).success();
        plan.stderr.contains("metadata `pandas` of `b.parquet` differs")
    };
    assert!(!warns(pandas(ROWS - 1, "id")));
    assert!(warns(pandas(ROWS, "other")));
}

fn write_arrow(path: &Path, batch: &RecordBatch) {
    let mut file =
        arrow_ipc::writer::FileWriter::try_new(File::create(path).unwrap(), &batch.schema())
            .unwrap();
    file.write(batch).unwrap();
    file.finish().unwrap();
}

#[test]
fn every_layout_of_text_and_tokens_is_read_and_kept() {
    let long: Vec<String> = (0..6)
        .map(|row| format!("Entry {row}: the keeper of the lamp wrote it all down. ").repeat(30))
        .collect();
    let plain: ArrayRef = strings(&long);
    let dictionary = DataType::Dictionary(Box::new(DataType::Int16), Box::new(DataType::LargeUtf8));
    let mut samples = Vec::new();
    for layout in [DataType::Utf8, DataType::LargeUtf8, DataType::Utf8View, dictionary] {
        let workspace = Workspace::new();
        workspace.link("model", &demo_model());
        let ids = strings((0..6).map(|row| row.to_string()));
        let text = cast(&plain, &layout).unwrap();
        write_parquet(
            &workspace.path("input/a.parquet"),
            &table(&[("id", ids), ("text", text)]),
            2,
        );
        workspace.run(&Pipeline::text("model", 64).filter("keep_fraction: 0.5"));
        let output = read_parquet(&workspace.path("out/data"));
        samples.push((texts(&output, "text"), texts(&output, "longsift_sample_id")));
    }
    assert!(samples.windows(2).all(|pair| pair[0] == pair[1]), "the layout changes nothing");
    assert!(samples[0].0.len() > 5);
    let lists = token_lists(&[document(1, 64), document(2, 80)]);
    for item in [DataType::Int32, DataType::UInt32, DataType::Int64] {
        let workspace = Workspace::new();
        Tiny::new().write(&workspace.path("model"));
        let layout = DataType::List(Arc::new(Field::new("item", item, true)));
        let tokens = cast(&lists, &layout).unwrap();
        let input = table(&[("id", strings(["0", "1"])), ("tokens", tokens)]);
        write_parquet(&workspace.path("input/a.parquet"), &input, 2);
        workspace.run(&Pipeline::tokens("model", 32).filter("keep_fraction: 1"));
        let output = read_parquet(&workspace.path("out/data"));
        assert_eq!(output.column_by_name("tokens").unwrap().data_type(), &layout);
        assert_eq!(token_ids(&output, "tokens")[3], document(2, 80)[32..64]);
    }
}

#[test]
fn metadata_is_kept_and_that_of_hugging_face_extended() {
    let workspace = Workspace::new();
    Tiny::new().write(&workspace.path("model"));
    let features = json!({ "info": { "features": { "id": { "dtype": "string", "_type": "Value" } },
        "license": "mit" } });
    let metadata = [("huggingface", features.to_string()), ("origin", "a shelf".to_owned())];
    let metadata: Vec<(&str, &str)> =
        metadata.iter().map(|(key, value)| (*key, value.as_str())).collect();
    write_parquet_with(&workspace.path("input/a.parquet"), &input(), 7, &metadata);
    workspace.run(&Pipeline::tokens("model", 16));
    let all = |workspace: &Workspace| {
        let first = &files_below(&workspace.path("out/data"))[0];
        ["origin", "huggingface"].map(|key| footer_value(first, key).unwrap())
    };
    let of_arrow = Workspace::new();
    Tiny::new().write(&of_arrow.path("model"));
    fs::create_dir(of_arrow.path("input")).unwrap();
    let pairs = metadata.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
    let schema = input().schema().as_ref().clone().with_metadata(pairs.collect::<BTreeMap<_, _>>());
    let rows = input().with_schema(Arc::new(schema)).unwrap();
    write_arrow(&of_arrow.path("input/a.arrow"), &rows);
    of_arrow.run(&Pipeline::tokens("model", 16));
    assert_eq!(all(&of_arrow), all(&workspace));
    for file in files_below(&workspace.path("out/data")) {
        assert_eq!(footer_value(&file, "origin").unwrap(), "a shelf");
        let value: Value =
            serde_json::from_str(&footer_value(&file, "huggingface").unwrap()).unwrap();
        assert_eq!(value["info"]["license"], "mit");
        let features = value["info"]["features"].as_object().unwrap();
        assert_eq!(features["id"], json!({ "dtype": "string", "_type": "Value" }));
        assert_eq!(features["longsift_score"]["dtype"], "float64");
        assert_eq!(features["longsift_sample_id"]["dtype"], "string");
        let added = features.keys().filter(|name| name.starts_with("longsift_")).count();
        assert_eq!(added, 11);
    }
}

/// The smallest documents of a file of the corpora, few enough for a debug build.
fn small_documents(file: &Path) -> RecordBatch {
    let reader = ParquetRecordBatchReaderBuilder::try_new(File::open(file).unwrap()).unwrap();
    let schema = Arc::clone(reader.schema());
    let batches: Vec<RecordBatch> = reader.build().unwrap().map(Result::unwrap).collect();
    let whole = concat_batches(&schema, &batches).unwrap();
    let lengths: Vec<usize> = texts(&whole, "text").iter().map(String::len).collect();
    let mut order: Vec<usize> = (0..lengths.len()).collect();
    order.sort_by_key(|row| lengths[*row]);
    order.truncate(3);
    let rows: UInt32Array = order.iter().map(|row| Some(*row as u32)).collect();
    arrow_select::take::take_record_batch(&whole, &rows).unwrap()
}

#[test]
#[cfg_attr(not(longsift_shared), ignore = "needs ../shared, a sibling of the repository")]
fn nested_columns_of_real_corpora_pass_through_unchanged() {
    let corpora = shared("corpora");
    let workspace = Workspace::new();
    workspace.link("model", &demo_model());
    let mut inputs: BTreeMap<String, RecordBatch> = BTreeMap::new();
    for name in ["books", "code", "mixed_short", "papers"] {
        let name = format!("{name}.parquet");
        let rows = small_documents(&corpora.join(&name));
        write_parquet(&workspace.path("input").join(&name), &rows, 2);
        inputs.insert(name, rows);
    }
    let pipeline = Pipeline::text("model", 1024)
        .with_ids("data_id")
        .score("within: source")
        .filter("keep_fraction: 0.5");
    workspace.run(&pipeline);
    let output = read_parquet(&workspace.path("out/data"));
    let nested =
        output.schema().fields().iter().filter(|field| field.data_type().is_nested()).count();
    assert!(nested > 0, "{:?}", output.schema());
    let manifest = read_json(&workspace.path("out.run/manifest.json"));
    assert_eq!(manifest["input"].as_array().unwrap().len(), 4);
    let ids = texts(&output, "data_id");
    for input in inputs.values() {
        let known = texts(input, "data_id");
        let places: UInt32Array = (0..ids.len())
            .filter(|row| known.contains(&ids[*row]))
            .map(|row| Some(row as u32))
            .collect();
        let some = arrow_select::take::take_record_batch(&output, &places).unwrap();
        let rows: Vec<usize> = texts(&some, "data_id")
            .iter()
            .map(|id| known.iter().position(|other| other == id).unwrap())
            .collect();
        check_columns(&some, input, &rows, "text");
        check_slices(&some, input, &rows);
    }
}

/// Checks that the text of every window is its slice of the document.
fn check_slices(output: &RecordBatch, input: &RecordBatch, rows: &[usize]) {
    let documents = texts(input, "text");
    let (starts, ends) =
        (integers(output, "longsift_byte_start"), integers(output, "longsift_byte_end"));
    for (index, window) in texts(output, "text").into_iter().enumerate() {
        let bytes = starts[index] as usize..ends[index] as usize;
        assert_eq!(documents[rows[index]][bytes], window);
    }
    assert!(
        output
            .column_by_name("longsift_score")
            .unwrap()
            .as_primitive_opt::<arrow_array::types::Float64Type>()
            .is_some()
    );
}

#[test]
fn a_variant_is_named_because_its_declaration_is_lost() {
    let leaf = |name: &str| {
        let leaf = Type::primitive_type_builder(name, parquet::basic::Type::BYTE_ARRAY);
        Arc::new(leaf.with_repetition(Repetition::REQUIRED).build().unwrap())
    };
    let group = Type::group_type_builder("value")
        .with_repetition(Repetition::REQUIRED)
        .with_logical_type(Some(LogicalType::variant(None)))
        .with_fields(vec![leaf("metadata"), leaf("value")]);
    let text = Type::primitive_type_builder("text", parquet::basic::Type::BYTE_ARRAY)
        .with_logical_type(Some(LogicalType::String));
    let fields = vec![Arc::new(text.build().unwrap()), Arc::new(group.build().unwrap())];
    let schema = Arc::new(Type::group_type_builder("m").with_fields(fields).build().unwrap());
    let workspace = Workspace::new();
    workspace.link("model", &demo_model());
    fs::create_dir(workspace.path("input")).unwrap();
    let file = File::create(workspace.path("input/a.parquet")).unwrap();
    let mut file = SerializedFileWriter::new(file, schema, Arc::default()).unwrap();
    let mut group = file.next_row_group().unwrap();
    while let Some(mut column) = group.next_column().unwrap() {
        let levels =
            (column.typed::<ByteArrayType>().get_descriptor().max_def_level() > 0).then_some([1]);
        let levels = levels.as_ref().map(|levels| &levels[..]);
        column
            .typed::<ByteArrayType>()
            .write_batch(&["words of a document".into()], levels, None)
            .unwrap();
        column.close().unwrap();
    }
    group.close().unwrap();
    file.close().unwrap();
    workspace.write("pipeline.yaml", Pipeline::text("model", 64).with_ids("text").to_string());
    let stderr = workspace.longsift(&["plan", "pipeline.yaml"]).success().stderr;
    assert!(stderr.contains("column `value` is a VARIANT and is written as a struct"), "{stderr}");
}

/// Writes two rows with times as INT96: nanoseconds of a day, and a Julian day number.
fn write_int96(path: &Path, times: &[(u64, u32)]) {
    let schema = "message m { required binary id (UTF8); required binary text (UTF8); required int96 time; }";
    let schema = Arc::new(parse_message_type(schema).unwrap());
    let file = File::create(path).unwrap();
    let mut file = SerializedFileWriter::new(file, schema, Arc::default()).unwrap();
    let mut group = file.next_row_group().unwrap();
    let texts = |text: &str| -> Vec<ByteArray> {
        (0..times.len()).map(|row| format!("{text} {row}").as_str().into()).collect()
    };
    for text in ["id", "some text of row"] {
        let mut column = group.next_column().unwrap().unwrap();
        column.typed::<ByteArrayType>().write_batch(&texts(text), None, None).unwrap();
        column.close().unwrap();
    }
    let int96 = |&(nanoseconds, day): &(u64, u32)| {
        Int96::from(vec![nanoseconds as u32, (nanoseconds >> 32) as u32, day])
    };
    let times: Vec<Int96> = times.iter().map(int96).collect();
    let mut column = group.next_column().unwrap().unwrap();
    column.typed::<Int96Type>().write_batch(&times, None, None).unwrap();
    column.close().unwrap();
    group.close().unwrap();
    file.close().unwrap();
}

#[test]
fn old_times_of_any_year_are_kept() {
    let workspace = Workspace::new();
    fs::create_dir(workspace.path("input")).unwrap();
    // The years 9999, 1 and 1970.
    let times = [(0, 5_373_484), (3_600_000_000_000, 1_721_426), (1_000, 2_440_588)];
    write_int96(&workspace.path("input/a.parquet"), &times);
    let model = demo_model();
    let pipeline = Pipeline::text("", 4).without_model(Some(model.to_str().unwrap()));
    workspace.run(
        &pipeline.measure("recurrence").score("formula: far-recurrence").filter("keep_fraction: 1"),
    );
    let output = read_parquet(&files_below(&workspace.path("out/data"))[0]);
    let times = output.column_by_name("time").unwrap();
    let times: &TimestampMicrosecondArray = times.as_primitive();
    let mut times: Vec<i64> = times.values().to_vec();
    times.dedup();
    let day = 86_400_000_000;
    assert_eq!(times, [2_932_896 * day, -719_162 * day + 3_600_000_000, 1]);
}
