//! Copies the key-values of Parquet footers and updates those that must list added columns.
//!
//! Hugging Face `datasets`, pandas and Spark each store a second schema there, which takes precedence over the real
//! one.

use std::collections::BTreeMap;

use arrow_schema::{DataType, Field, FieldRef, Schema};
use parquet::arrow::ARROW_SCHEMA_META_KEY;
use parquet::basic::LogicalType;
use serde_json::{Map, Value, json};

use super::input_file::{Contents, InputFile};
use super::types;

const HUGGING_FACE: &str = "huggingface";
const PANDAS: &str = "pandas";
const SPARK: &str = "org.apache.spark.sql.parquet.row.metadata";
/// Schemas whose readers would not see the new columns; without them, they use that of the file.
const OTHER_SCHEMAS: [&str; 3] = ["parquet.avro.schema", "avro.schema", "iceberg.schema"];

/// Returns the key-values of all files, in order of appearance, and notes about keys with other values than the first. Second
/// schemas of files that have a column without values are left out: they declare it as null. `schema`: columns of all files.
pub(super) fn union(files: &[InputFile], schema: &Schema) -> (Vec<(String, String)>, Vec<String>) {
    let mut kept: Vec<(String, String)> = Vec::new();
    let mut first_seen: BTreeMap<String, (usize, &str)> = BTreeMap::new();
    let mut differing: BTreeMap<String, (&str, Vec<&str>)> = BTreeMap::new();
    let has_null = |data_type| types::contains(data_type, DataType::is_null);
    for file in files {
        let is_widened = |(field, position): (&FieldRef, &usize)| {
            let own = file.schema.field(*position).data_type();
            has_null(own) && own != field.data_type()
        };
        let is_widened = schema.fields().iter().zip(&file.positions).any(is_widened);
        let mut pairs = key_values(file);
        pairs.retain(|(key, _)| !is_widened || ![HUGGING_FACE, PANDAS, SPARK].contains(&&**key));
        for (key, value) in pairs {
            match first_seen.get(&key) {
                None => {
                    first_seen.insert(key.clone(), (kept.len(), &file.path));
                    kept.push((key, value));
                }
                Some(&(index, first))
                    if first != file.path && differ_in_output(&key, &kept[index].1, &value) =>
                {
                    differing.entry(key).or_insert((first, Vec::new())).1.push(&file.path);
                }
                Some(_) => {}
            }
        }
    }
    let note = |(key, (first, others)): (String, (&str, Vec<&str>))| {
        let more = if others.len() > 1 {
            format!(" and {} more", others.len() - 1)
        } else {
            String::new()
        };
        format!("metadata `{key}` of `{}`{more} differs; the value of `{first}` is kept", others[0])
    };
    (kept, differing.into_iter().map(note).collect())
}

/// Whether two values of a key differ, apart from what the output lacks, such as counts of rows.
fn differ_in_output(key: &str, first: &str, second: &str) -> bool {
    let in_output = |value: &str| output_metadata(&[(key.to_owned(), value.to_owned())], &[]);
    first != second && in_output(first) != in_output(second)
}

/// Returns notes about columns whose declaration as Parquet's VARIANT the output cannot have.
pub(super) fn variant_notes(files: &[InputFile]) -> Vec<String> {
    let mut columns = BTreeMap::new();
    for file in files {
        let Contents::Parquet(footer, _) = &file.contents else { continue };
        for column in footer.metadata.file_metadata().schema().get_fields() {
            let info = column.get_basic_info();
            if matches!(info.logical_type_ref(), Some(LogicalType::Variant(_))) {
                columns.entry(info.name()).or_insert(&file.path);
            }
        }
    }
    let note = |(name, path)| {
        format!(
            "column `{name}` is a VARIANT and is written as a struct of its parts, for example in `{path}`: convert it to JSON text \
             if readers need its values"
        )
    };
    columns.into_iter().map(note).collect()
}

/// Returns the key-values of a file: those of its Parquet footer, then those that only its Arrow schema has.
fn key_values(file: &InputFile) -> Vec<(String, String)> {
    let footer = match &file.contents {
        Contents::Parquet(footer, _) => footer.metadata.file_metadata().key_value_metadata(),
        _ => None,
    };
    let footer = footer.into_iter().flatten();
    let footer = footer.map(|pair| (pair.key.clone(), pair.value.clone().unwrap_or_default()));
    let mut pairs: Vec<_> = footer.filter(|(key, _)| key != ARROW_SCHEMA_META_KEY).collect();
    let of_schema: BTreeMap<_, _> = file.schema.metadata().iter().collect();
    for (key, value) in of_schema {
        if key != ARROW_SCHEMA_META_KEY && pairs.iter().all(|(known, _)| known != key) {
            pairs.push((key.clone(), value.clone()));
        }
    }
    pairs
}

/// Returns the key-values of an output with the input's columns and `new_columns`, which are numbers, strings and booleans.
///
/// `huggingface`, `pandas` and Spark's schema get the new columns and lose counts of the input's rows and bytes;
/// everything else is copied, including values under these keys that are not valid JSON, but no schema of Avro or Iceberg.
pub fn output_metadata(input: &[(String, String)], new_columns: &[Field]) -> Vec<(String, String)> {
    let change = |(key, value): &(String, String)| {
        let changed = serde_json::from_str(value).ok().and_then(|parsed| match key.as_str() {
            HUGGING_FACE => hugging_face(parsed, new_columns),
            PANDAS => pandas(parsed, new_columns),
            SPARK => spark(parsed, new_columns),
            _ => None,
        });
        (key.clone(), changed.map_or_else(|| value.clone(), |changed| changed.to_string()))
    };
    let is_kept = |key: &str| key != ARROW_SCHEMA_META_KEY && !OTHER_SCHEMAS.contains(&key);
    input.iter().filter(|(key, _)| is_kept(key)).map(change).collect()
}

/// Updates `{"info": {"features": {name: feature}}, "fingerprint": …}`, as written by `datasets`.
fn hugging_face(mut value: Value, new_columns: &[Field]) -> Option<Value> {
    value.as_object_mut()?.shift_remove("fingerprint");
    let info = value.get_mut("info")?.as_object_mut()?;
    for stale in [
        "splits",
        "download_checksums",
        "download_size",
        "dataset_size",
        "size_in_bytes",
        "post_processing_size",
    ] {
        info.shift_remove(stale);
    }
    let features = info.get_mut("features")?.as_object_mut()?;
    // Version 4 of `datasets` renamed `Sequence` to `List` and reads both; older versions read only the old name.
    let list = if Value::Object(features.clone()).to_string().contains(r#""_type":"List""#) {
        "List"
    } else {
        "Sequence"
    };
    for field in new_columns {
        features.insert(field.name().clone(), feature(field.data_type(), list));
    }
    Some(value)
}

fn feature(data_type: &DataType, list: &str) -> Value {
    match types::list_item(data_type) {
        Some(item) => json!({"feature": feature(item.data_type(), list), "_type": list}),
        None => json!({"dtype": arrow_name(data_type), "_type": "Value"}),
    }
}

/// Returns the Arrow name of a type, as used by pandas and `datasets`.
fn arrow_name(data_type: &DataType) -> String {
    match data_type {
        DataType::Boolean => "bool".into(),
        DataType::Utf8 => "string".into(),
        other => other.to_string().to_lowercase(),
    }
}

/// Updates `{"index_columns": […], "columns": [{"name": …}, …], …}` of pandas: new columns precede the index.
fn pandas(mut value: Value, new_columns: &[Field]) -> Option<Value> {
    let object = value.as_object_mut()?;
    let mut index = Vec::new();
    if let Some(names) = object.get_mut("index_columns").and_then(Value::as_array_mut) {
        // A range index counts the rows of the input; without it pandas counts the rows it reads.
        names.retain(Value::is_string);
        index.extend(names.iter().filter_map(|name| name.as_str().map(str::to_string)));
    }
    let columns = object.get_mut("columns")?.as_array_mut()?;
    let name_of = |column: &Value| {
        column.get("field_name").or(column.get("name")).and_then(Value::as_str).map(str::to_string)
    };
    columns.retain(|column| {
        name_of(column).is_none_or(|name| new_columns.iter().all(|field| *field.name() != name))
    });
    // Dictionaries of the output have their values in order of appearance.
    let ordered = columns.iter_mut().filter_map(|column| column.pointer_mut("/metadata/ordered"));
    ordered.for_each(|ordered| *ordered = false.into());
    let is_index = |column: &Value| name_of(column).is_some_and(|name| index.contains(&name));
    let position = columns.iter().position(is_index).unwrap_or(columns.len());
    let new = new_columns.iter().map(|field| {
        let (pandas_type, numpy_type) = pandas_types(field);
        json!({
            "name": field.name(), "field_name": field.name(),
            "pandas_type": pandas_type, "numpy_type": numpy_type, "metadata": null,
        })
    });
    columns.splice(position..position, new);
    Some(value)
}

/// Returns the pandas type of a column and the `numpy` type of its array; `numpy` integers and booleans have no null.
fn pandas_types(field: &Field) -> (String, String) {
    let name = arrow_name(field.data_type());
    match field.data_type() {
        DataType::Utf8 => ("unicode".into(), "object".into()),
        data_type if data_type.is_integer() && field.is_nullable() => (name, "float64".into()),
        data_type if data_type.is_numeric() => (name.clone(), name),
        DataType::Boolean if !field.is_nullable() => (name.clone(), name),
        _ => (name, "object".into()),
    }
}

/// Updates `{"type": "struct", "fields": [{"name": …, "type": …, "nullable": …, "metadata": {}}, …]}` of Spark.
fn spark(mut value: Value, new_columns: &[Field]) -> Option<Value> {
    let fields = value.get_mut("fields")?.as_array_mut()?;
    fields.retain(|field| {
        let name = field.get("name").and_then(Value::as_str);
        new_columns.iter().all(|new| Some(new.name().as_str()) != name)
    });
    for field in new_columns {
        fields.push(json!({
            "name": field.name(), "type": spark_type(field.data_type())?,
            "nullable": field.is_nullable(), "metadata": Map::new(),
        }));
    }
    Some(value)
}

/// Returns the name of a type in Spark's JSON; `None` if Spark has no such type.
fn spark_type(data_type: &DataType) -> Option<&'static str> {
    Some(match data_type {
        DataType::Boolean => "boolean",
        DataType::Int32 => "integer",
        DataType::Int64 => "long",
        DataType::Float64 => "double",
        DataType::Utf8 => "string",
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn columns() -> Vec<Field> {
        vec![
            Field::new("longsift_score", DataType::Float64, false),
            Field::new("longsift_window", DataType::Int32, true),
            Field::new("longsift_sample_id", DataType::Utf8, false),
        ]
    }

    fn extended(key: &str, value: &Value) -> Value {
        let output = output_metadata(&[(key.to_string(), value.to_string())], &columns());
        serde_json::from_str(&output[0].1).unwrap()
    }

    #[test]
    fn hugging_face_features_get_the_new_columns_and_lose_the_fingerprint() {
        let text = json!({"dtype": "string", "_type": "Value"});
        let input =
            json!({"info": {"features": {"text": text}, "dataset_size": 9}, "fingerprint": "abc"});
        let output = extended("huggingface", &input);
        let expected = json!({"info": {"features": {
            "text": text,
            "longsift_score": {"dtype": "float64", "_type": "Value"},
            "longsift_window": {"dtype": "int32", "_type": "Value"},
            "longsift_sample_id": {"dtype": "string", "_type": "Value"},
        }}});
        assert_eq!(output, expected);
    }

    #[test]
    fn a_list_feature_has_the_name_that_the_input_uses() {
        let item = std::sync::Arc::new(Field::new("element", DataType::Int32, true));
        let ids = [Field::new("ids", DataType::List(item), true)];
        for name in ["List", "Sequence"] {
            let old = json!({"feature": {"dtype": "string", "_type": "Value"}, "_type": name});
            let input = json!({"info": {"features": {"tags": old}}}).to_string();
            let output = output_metadata(&[("huggingface".into(), input)], &ids);
            let output: Value = serde_json::from_str(&output[0].1).unwrap();
            let expected = json!({"feature": {"dtype": "int32", "_type": "Value"}, "_type": name});
            assert_eq!(output["info"]["features"]["ids"], expected);
        }
    }

    #[test]
    fn pandas_columns_come_before_the_index_and_a_range_index_goes() {
        let column =
            |name: &str| json!({"name": name, "field_name": name, "pandas_type": "unicode"});
        let input = json!({"index_columns": ["__index_level_0__"], "columns": [column("text"), column("__index_level_0__")]});
        let output = extended("pandas", &input);
        let names: Vec<_> = output["columns"]
            .as_array()
            .unwrap()
            .iter()
            .map(|column| &column["field_name"])
            .collect();
        assert_eq!(
            names,
            [
                "text",
                "longsift_score",
                "longsift_window",
                "longsift_sample_id",
                "__index_level_0__"
            ]
        );
        assert_eq!(output["columns"][2]["numpy_type"], "float64");
        let levels = json!({"name": "level", "metadata": {"num_categories": 3, "ordered": true}});
        let output = extended("pandas", &json!({"index_columns": [], "columns": [levels]}));
        let metadata = json!({"num_categories": 3, "ordered": false});
        assert_eq!(output["columns"][0]["metadata"], metadata);
        let range = json!({"index_columns": [{"kind": "range", "stop": 9}], "columns": []});
        assert_eq!(extended("pandas", &range)["index_columns"], json!([]));
    }

    #[test]
    fn the_schema_of_spark_gets_the_new_columns() {
        let input = json!({"type": "struct", "fields": [{"name": "text", "type": "string"}]});
        let output = extended(SPARK, &input);
        assert_eq!(
            output["fields"][1],
            json!({"name": "longsift_score", "type": "double", "nullable": false, "metadata": {}})
        );
        assert_eq!(output["fields"].as_array().unwrap().len(), 4);
    }

    #[test]
    fn other_keys_are_copied_and_other_schemas_are_not() {
        let pair = |key: &str, value: &str| (key.to_string(), value.to_string());
        let input = [
            pair("licence", "CC0"),
            pair("ARROW:schema", "AAAA"),
            pair("avro.schema", "{}"),
            pair("pandas", "not JSON"),
        ];
        assert_eq!(
            output_metadata(&input, &columns()),
            [pair("licence", "CC0"), pair("pandas", "not JSON")]
        );
    }
}
