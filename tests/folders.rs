//! Folders as input: extensions in any case, ignored files, table formats, folders named `key=value`.

use std::fs;
use std::os::unix::fs::symlink;

use serde_json::{Value, json};

use crate::support::tables::{
    footer_value, optional_texts, read_parquet, strings, table, texts, write_parquet,
    write_parquet_with,
};
use crate::support::{Pipeline, Workspace, count, demo_model, files_below};

fn workspace() -> Workspace {
    let workspace = Workspace::new();
    let tokenizer = fs::read(demo_model().join("tokenizer.json")).unwrap();
    workspace.write("tokenizer/tokenizer.json", tokenizer);
    workspace
}

fn pipeline() -> Pipeline {
    Pipeline::text("", 64)
        .without_model(Some("tokenizer"))
        .measure("recurrence")
        .score("formula: far-recurrence")
        .filter("keep_fraction: 1")
}

/// Writes a Parquet file of one document.
fn document(workspace: &Workspace, path: &str) {
    let sentence = |at: usize| format!("The {} box of {path} is {at}. ", at * at % 7);
    let text: String = (0..30).map(sentence).collect();
    let path = workspace.path(path);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    let id = path.file_name().unwrap().to_str().unwrap();
    write_parquet(&path, &table(&[("id", strings([id])), ("text", strings([text]))]), 1);
}

#[test]
fn extensions_match_in_any_case_and_ignored_files_are_reported() {
    let workspace = workspace();
    for name in ["a.parquet", "b.PARQUET", "c.Pq"] {
        document(&workspace, &format!("input/{name}"));
    }
    for name in ["d.csv", "e.jsonl.xz", "f.PARQUET.tmp", "README.md"] {
        workspace.write(&format!("input/{name}"), "x");
    }
    workspace.write("pipeline.yaml", pipeline().to_string());
    let answer = workspace.longsift(&["run", "pipeline.yaml", "-q"]).success();
    assert_eq!(count(&answer.summary(), "rows_in"), 3);
    let warning = "look like data and are not read: `d.csv`, `e.jsonl.xz`, `f.PARQUET.tmp`";
    assert!(answer.stderr.contains(warning), "{}", answer.stderr);
    for name in ["a.parquet", "b.PARQUET", "c.Pq"] {
        fs::remove_file(workspace.path(&format!("input/{name}"))).unwrap();
    }
    let refused = workspace.longsift(&["run", "pipeline.yaml", "-q"]).expect(2);
    assert!(refused.stderr.contains(warning), "{}", refused.stderr);
}

#[test]
fn a_table_format_is_named_and_refused() {
    for (mark, name) in [
        ("_delta_log/00000000000000000000.json", "Delta"),
        (".hoodie/hoodie.properties", "Hudi"),
        ("metadata/v1.metadata.json", "Iceberg"),
        ("schema/schema-0", "Paimon"),
    ] {
        let workspace = workspace();
        document(&workspace, "input/tables/data/day=1/a.parquet");
        workspace.write(&format!("input/tables/{mark}"), "{}");
        for path in ["input", "input/tables", "input/tables/data", "input/tables/data/day=1"] {
            let pipeline = pipeline().to_string().replace("path: input", &format!("path: {path}"));
            workspace.write("pipeline.yaml", pipeline);
            let refused = workspace.longsift(&["run", "pipeline.yaml", "-q"]).expect(2);
            let is_told = refused.stderr.contains(&format!(" {name} table: its files"));
            assert!(is_told && refused.stderr.contains("export the version"), "{}", refused.stderr);
        }
        let glob =
            pipeline().to_string().replace("path: input", "path: input/tables/data/*/*.parquet");
        workspace.write("pipeline.yaml", glob);
        let answer = workspace.longsift(&["run", "pipeline.yaml", "-q"]).success();
        assert!(answer.stderr.contains("whose log is not read"), "{}", answer.stderr);
    }
    let workspace = workspace();
    document(&workspace, "input/2026/en/a.parquet");
    workspace.write("input/2026/en/.hoodie_partition_metadata", "");
    workspace.write("pipeline.yaml", pipeline().to_string());
    let refused = workspace.longsift(&["run", "pipeline.yaml", "-q"]).expect(2).stderr;
    assert!(refused.contains("`input/2026/en` is a Hudi table"), "{refused}");
}

#[test]
fn a_link_in_the_input_to_the_output_is_refused() {
    let workspace = workspace();
    document(&workspace, "input/a.parquet");
    symlink("../out/data", workspace.path("input/z")).unwrap();
    workspace.run(&pipeline());
    let refused = workspace.longsift(&["run", "pipeline.yaml", "-q"]).expect(2);
    let message = "it is a file of the output of this pipeline";
    assert!(refused.stderr.contains(message), "{}", refused.stderr);
    assert!(refused.stderr.contains("z/train-00000-of-00001.parquet"), "{}", refused.stderr);
}

#[test]
fn files_and_outputs_in_the_folders_of_a_result_are_refused() {
    let workspace = workspace();
    document(&workspace, "input/a.parquet");
    workspace.run(&pipeline());
    for path in ["out/data", "out/data/x", "out.run/x", "new.run/x", "new/other.run/x/y"] {
        let set = format!("output.path={path}");
        let refused = workspace.longsift(&["run", "pipeline.yaml", "--set", &set]).expect(2);
        let message = "which holds only the files of another result";
        assert!(refused.stderr.contains(message), "{path}: {}", refused.stderr);
    }
    for path in ["out/data/x.html", "out.run/x.html"] {
        let refused = workspace.longsift(&["report", "out.run", "--html", path]).expect(2);
        let message = "which holds the files of a result only";
        assert!(refused.stderr.contains(message), "{path}: {}", refused.stderr);
    }
    for folder in ["out/data", "out.run"] {
        workspace.longsift(&["manual", folder, "--format", "markdown"]).expect(2);
    }
    workspace.longsift(&["verify", "out.run"]).success();
}

#[test]
fn folders_named_key_and_value_become_columns() {
    let workspace = workspace();
    document(&workspace, "input/lang=en/day=a%2Fb/a key=1/1.parquet");
    document(&workspace, "input/lang=en/day=__HIVE_DEFAULT_PARTITION__/2.parquet");
    document(&workspace, "input/3.parquet");
    let sentences: Vec<String> =
        (0..40).map(|at| format!("The {} box is {at}. ", at * at % 7)).collect();
    let sentence = sentences.concat();
    let line = json!({ "id": "4", "text": sentence });
    workspace.write("lines/lang=de/4.jsonl", format!("{line}\n"));
    let kept = |data: &arrow_array::RecordBatch| {
        let columns = texts(data, "id").into_iter().zip(optional_texts(data, "lang"));
        let days = data.column_by_name("day").map(|_| optional_texts(data, "day"));
        let days = days.unwrap_or_else(|| vec![None; data.num_rows()]);
        let mut rows: Vec<_> = columns.zip(days).collect();
        rows.sort();
        rows.dedup();
        rows.into_iter()
            .map(|((id, lang), day)| format!("{id} {lang:?} {day:?}"))
            .collect::<Vec<_>>()
    };
    let by = pipeline().score("within: lang");
    workspace.run(&by);
    assert_eq!(
        kept(&read_parquet(&workspace.path("out/data"))),
        [
            "1.parquet Some(\"en\") Some(\"a/b\")",
            "2.parquet Some(\"en\") None",
            "3.parquet None None"
        ]
    );
    let by_key = pipeline().score("within: a key").to_string().replace("path: out", "path: out3");
    workspace.write("pipeline.yaml", by_key);
    workspace.longsift(&["run", "pipeline.yaml", "-q"]).success();
    let keys = optional_texts(&read_parquet(&workspace.path("out3/data")), "a key");
    assert!(keys.contains(&Some("1".to_owned())) && keys.contains(&None), "{keys:?}");
    let of_lines =
        by.to_string().replace("path: input", "path: lines").replace("path: out", "path: out2");
    workspace.write("pipeline.yaml", of_lines);
    workspace.longsift(&["run", "pipeline.yaml", "-q"]).success();
    assert_eq!(kept(&read_parquet(&workspace.path("out2/data"))), ["4 Some(\"de\") None"]);
    // A schema may name the column of the folders.
    let named = |schema: &str| {
        let pipeline =
            by.to_string().replace("path: input", &format!("path: lines, schema: {schema}"));
        workspace.write("pipeline.yaml", pipeline.replace("path: out", "path: out4"));
        workspace.longsift(&["run", "pipeline.yaml", "-q"])
    };
    let answer = named("{id: string, text: string, lang: string}").success();
    assert!(!answer.stderr.contains("may be null"), "{}", answer.stderr);
    assert_eq!(kept(&read_parquet(&workspace.path("out4/data"))), ["4 Some(\"de\") None"]);
    let refused = named("{id: string, text: string, lang: int64}").expect(2).stderr;
    assert!(refused.contains("the folder `lang=de` does not fit its column, int64"), "{refused}");
    let line = |id: &str, lang: serde_json::Value| {
        let line = json!({ "id": id, "text": sentence, "lang": lang });
        format!("{line}\n")
    };
    workspace.write("lines/lang=de/0.jsonl", line("4", json!(null)));
    let refused = named("{id: string, text: string, lang: int64}").expect(2).stderr;
    assert!(refused.contains("the folder `lang=de` does not fit its column, int64"), "{refused}");
    // Values of lines take precedence, also late ones.
    workspace.write("lines/lang=de/0.jsonl", "");
    let late = [line("5", json!(null)), "{}\n".repeat(1001), line("6", json!("fr"))].concat();
    workspace.write("lines/lang=en/5.jsonl", late);
    for schema in ["{id: string, text: string, lang: string}", "null"] {
        fs::remove_dir_all(workspace.path("out4.run")).unwrap();
        fs::remove_dir_all(workspace.path("out4")).unwrap();
        let schema = format!("{schema}, max_quarantined_fraction: 1");
        named(&schema).success();
        let rows = kept(&read_parquet(&workspace.path("out4/data")));
        assert_eq!(rows, ["4 Some(\"de\") None", "5 Some(\"en\") None", "6 Some(\"fr\") None"]);
    }
}

#[test]
fn columns_of_folders_are_in_the_schema_of_spark() {
    const KEY: &str = "org.apache.spark.sql.parquet.row.metadata";
    let field =
        |name: &str| json!({"name": name, "type": "string", "nullable": true, "metadata": {}});
    let schema = json!({"type": "struct", "fields": [field("id"), field("text")]}).to_string();
    let workspace = workspace();
    for path in ["input/lang=en/a.parquet", "input/lang=de/b.parquet"] {
        document(&workspace, path);
        let rows = read_parquet(&workspace.path(path));
        write_parquet_with(&workspace.path(path), &rows, 1, &[(KEY, &schema)]);
    }
    workspace.run(&pipeline());
    let file = files_below(&workspace.path("out/data")).remove(0);
    let written: Value = serde_json::from_str(&footer_value(&file, KEY).unwrap()).unwrap();
    let names =
        written["fields"].as_array().unwrap().iter().map(|field| field["name"].as_str().unwrap());
    let output = read_parquet(&file);
    let columns: Vec<&String> =
        output.schema_ref().fields().iter().map(|field| field.name()).collect();
    assert_eq!(names.collect::<Vec<_>>(), columns);
    assert!(columns.iter().any(|name| *name == "lang"));
}

#[test]
fn a_path_with_two_values_of_one_key_is_refused() {
    let workspace = workspace();
    document(&workspace, "input/lang=en/day=1/lang=en/1.parquet");
    document(&workspace, "input/lang=en/day=1/lang=de/2.parquet");
    workspace.write("pipeline.yaml", pipeline().to_string());
    let refused = workspace.longsift(&["plan", "pipeline.yaml"]).expect(2).stderr;
    let message = "lang=en/day=1/lang=de/2.parquet: two of its folders have different values of `lang`: `lang=en` and `lang=de`";
    assert!(refused.contains(message) && !refused.contains("1.parquet"), "{refused}");
    document(&workspace, "input/Lang=en/3.parquet");
    let refused = workspace.longsift(&["plan", "pipeline.yaml"]).expect(2).stderr;
    let message = "named `lang=…`, which differs only in case from `Lang`";
    assert!(refused.contains(message), "{refused}");
    fs::rename(workspace.path("input/Lang=en"), workspace.path("input/Text=en")).unwrap();
    let refused = workspace.longsift(&["plan", "pipeline.yaml"]).expect(2).stderr;
    let message = "named `Text=…`, which differs only in case from `text`";
    assert!(refused.contains(message), "{refused}");
    fs::remove_dir_all(workspace.path("input/Text=en")).unwrap();
    fs::remove_file(workspace.path("input/lang=en/day=1/lang=de/2.parquet")).unwrap();
    workspace.run(&pipeline());
    let data = read_parquet(&workspace.path("out/data"));
    assert_eq!(optional_texts(&data, "lang")[0].as_deref(), Some("en"));
}
