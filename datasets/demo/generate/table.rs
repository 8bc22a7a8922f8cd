//! The corpus as Parquet: flat columns, a nested `meta`, and the metadata that Hugging Face's `datasets` writes.

use std::{collections::HashMap, sync::Arc};

use anyhow::Result;
use arrow_array::builder::{Int32Builder, ListBuilder, StringBuilder, StructBuilder};
use arrow_array::{Array, ArrayRef, Int32Array, Int64Array, RecordBatch, StringArray, StructArray};
use arrow_schema::{DataType, Field, Fields, Schema};
use parquet::{
    arrow::ArrowWriter,
    basic::{Compression, ZstdLevel},
    file::{metadata::KeyValue, properties::WriterProperties},
};

use crate::corpus::Document;

/// Rows of a row group: few enough that the small file has several.
const ROW_GROUP: usize = 84;

/// Metadata from which `datasets` restores the types of the columns.
const HUGGINGFACE: &str = concat!(
    r#"{"info": {"features": {"id": {"dtype": "string", "_type": "Value"}, "source": {"dtype": "string", "#,
    r#""_type": "Value"}, "kind": {"dtype": "string", "_type": "Value"}, "text": {"dtype": "string", "#,
    r#""_type": "Value"}, "meta": {"seed": {"dtype": "int64", "_type": "Value"}, "created": {"year": {"dtype": "#,
    r#""int32", "_type": "Value"}, "by": {"dtype": "string", "_type": "Value"}}, "tags": [{"dtype": "string", "#,
    r#""_type": "Value"}], "parts": [{"from": {"dtype": "string", "_type": "Value"}, "tokens": {"dtype": "int32", "#,
    r#""_type": "Value"}}]}}}}"#,
);

/// Encodes documents as a Parquet file.
pub(crate) fn encode(documents: &[Document], seed: u64) -> Result<Vec<u8>> {
    let text = |field: fn(&Document) -> &str| -> ArrayRef {
        Arc::new(documents.iter().map(|document| Some(field(document))).collect::<StringArray>())
    };
    let columns = [
        ("id", text(|document| &document.id)),
        ("source", text(|document| document.source)),
        ("kind", text(|document| document.kind)),
        ("text", text(|document| &document.text)),
        ("meta", meta(documents, seed)),
    ];
    let fields: Vec<Field> = columns
        .iter()
        .map(|(name, column)| Field::new(*name, column.data_type().clone(), *name == "meta"))
        .collect();
    let metadata = HashMap::from([("huggingface".to_owned(), HUGGINGFACE.to_owned())]);
    let schema = Arc::new(Schema::new_with_metadata(fields, metadata));
    let batch = RecordBatch::try_new(
        Arc::clone(&schema),
        columns.into_iter().map(|(_, column)| column).collect(),
    )?;

    let properties = WriterProperties::builder()
        .set_compression(Compression::ZSTD(ZstdLevel::try_new(19)?))
        .set_max_row_group_row_count(Some(ROW_GROUP))
        .set_key_value_metadata(Some(vec![KeyValue::new(
            "huggingface".to_owned(),
            HUGGINGFACE.to_owned(),
        )]))
        .build();
    let mut bytes = Vec::new();
    let mut writer = ArrowWriter::try_new(&mut bytes, schema, Some(properties))?;
    writer.write(&batch)?;
    writer.close()?;
    Ok(bytes)
}

/// Builds the column `meta`: `struct<seed: int64, created: struct<year: int32, by: string>, tags: list<string>, parts:
/// list<struct<from: string, tokens: int32>>>`. `parts` is null for a whole document.
fn meta(documents: &[Document], seed: u64) -> ArrayRef {
    let rows = documents.len();
    let created = StructArray::from(vec![
        (field("year", DataType::Int32), Arc::new(Int32Array::from(vec![2026; rows])) as ArrayRef),
        (
            field("by", DataType::Utf8),
            Arc::new(StringArray::from(vec!["generate-demo-corpus"; rows])),
        ),
    ]);
    let (tags, parts) = (tags(documents), parts(documents));
    Arc::new(StructArray::from(vec![
        (
            field("seed", DataType::Int64),
            Arc::new(Int64Array::from(vec![seed as i64; rows])) as ArrayRef,
        ),
        (field("created", created.data_type().clone()), Arc::new(created)),
        (field("tags", tags.data_type().clone()), tags),
        (field("parts", parts.data_type().clone()), parts),
    ]))
}

fn field(name: &str, kind: DataType) -> Arc<Field> {
    Arc::new(Field::new(name, kind, true))
}

fn tags(documents: &[Document]) -> ArrayRef {
    let mut tags = ListBuilder::new(StringBuilder::new());
    for document in documents {
        tags.values().append_value("invented");
        if document.kind != "whole" {
            tags.values().append_value("control");
        }
        tags.append(true);
    }
    Arc::new(tags.finish())
}

fn parts(documents: &[Document]) -> ArrayRef {
    let fields =
        Fields::from(vec![field("from", DataType::Utf8), field("tokens", DataType::Int32)]);
    let mut parts = ListBuilder::new(StructBuilder::from_fields(fields, documents.len()));
    for document in documents {
        for part in document.parts.iter().flatten() {
            let row = parts.values();
            row.field_builder::<StringBuilder>(0)
                .expect("the first field is text")
                .append_option(part.from.as_deref());
            row.field_builder::<Int32Builder>(1)
                .expect("the second is a number")
                .append_value(part.tokens as i32);
            row.append(true);
        }
        parts.append(document.parts.is_some());
    }
    Arc::new(parts.finish())
}
