//! Conversations: a column of lists of messages, each a struct of role and content.
//!
//! Two forms are common: `{role, content}`, where content is a text or a list of parts `{type, text}`, and `{from,
//! value}`.

use std::ops::Range;

use arrow_array::cast::AsArray;
use arrow_array::{Array, RecordBatch, StructArray};
use arrow_schema::DataType;
use longsift_stages::tokenize::chat_template::Message;

use super::input::Dataset;
use super::labels::values;
use super::problem::DataProblem;
use super::types;

const FORMS: [(&str, &str); 2] = [("role", "content"), ("from", "value")];
/// Field of a content part that holds its text.
const PART: &str = "text";

impl Dataset {
    pub(crate) fn check_messages_column(&self, name: &str) -> Result<usize, DataProblem> {
        let accepted =
            "a list of structs with the texts `role` and `content`, or `from` and `value`";
        self.check_column(name, accepted, |data_type| field_names(data_type).is_some())
    }
}

/// Returns the messages of a single-row batch with all columns. Null messages, roles and contents become empty texts.
pub(crate) fn messages_of_row(
    dataset: &Dataset,
    batch: &RecordBatch,
    column: &str,
) -> Result<Vec<Message>, DataProblem> {
    let list = batch.column(dataset.check_messages_column(column)?);
    let (role, content) = field_names(list.data_type()).ok_or_else(|| dataset.no_column(column))?;
    let none = |why: &str| DataProblem::data(format!("column `{column}`: {why}"));
    if list.is_null(0) {
        return Err(none("the row has null instead of messages"));
    }
    let (items, ranges) = types::items(list).ok_or_else(|| dataset.no_column(column))?;
    let messages = items.slice(ranges[0].start, ranges[0].len());
    let messages = messages.as_struct();
    let (roles, contents) = (texts(messages, role), texts(messages, content));
    let value = |texts: &[Option<String>], row: usize| texts[row].clone().unwrap_or_default();
    let message = |row: usize| {
        if messages.is_null(row) {
            return Message { role: String::new(), content: String::new() };
        }
        Message { role: value(&roles, row), content: value(&contents, row) }
    };
    let messages: Vec<Message> = (0..messages.len()).map(message).collect();
    if messages.is_empty() { Err(none("the conversation has no messages")) } else { Ok(messages) }
}

/// Returns the names of the fields of messages, and of parts of their content, that [`messages_of_row`] does not read.
pub(crate) fn unread_fields(dataset: &Dataset, column: &str) -> Result<Vec<String>, DataProblem> {
    let field = dataset.schema.field(dataset.check_messages_column(column)?);
    let (role, content) =
        field_names(field.data_type()).ok_or_else(|| dataset.no_column(column))?;
    let fields =
        types::list_item(field.data_type()).map(|item| types::child_fields(item.data_type()));
    let fields: Vec<_> = fields.into_iter().flatten().collect();
    let names = fields.iter().map(|field| field.name().clone());
    let mut names: Vec<String> = names.filter(|name| name != role && name != content).collect();
    let parts = fields.iter().find(|field| field.name() == content);
    if let Some(part) = parts.and_then(|content| types::list_item(content.data_type())) {
        let fields = types::child_fields(part.data_type()).iter().map(|field| field.name());
        let fields = fields.filter(|name| *name != PART);
        names.extend(fields.map(|name| format!("{name} of parts of {content}")));
    }
    Ok(names)
}

fn field_names(data_type: &DataType) -> Option<(&'static str, &'static str)> {
    let DataType::Struct(fields) = types::list_item(data_type)?.data_type() else { return None };
    FORMS.into_iter().find(|(role, content)| {
        let is_role = fields.find(role).is_some_and(|(_, field)| is_text(field.data_type()));
        let content = fields.find(content).map(|(_, field)| field.data_type());
        is_role && content.is_some_and(|content| is_text(content) || is_parts(content))
    })
}

/// Whether values are texts, or always null.
fn is_text(data_type: &DataType) -> bool {
    match data_type {
        DataType::Dictionary(_, value) => is_text(value),
        other => *other == DataType::Null || types::is_text(other),
    }
}

fn is_parts(data_type: &DataType) -> bool {
    let Some(item) = types::list_item(data_type) else { return false };
    let DataType::Struct(fields) = item.data_type() else { return false };
    fields.find(PART).is_some_and(|(_, field)| is_text(field.data_type()))
}

/// Returns the texts of a field, one per message; the texts of parts are concatenated.
fn texts(messages: &StructArray, name: &str) -> Vec<Option<String>> {
    let none = || vec![None; messages.len()];
    let Some(column) = messages.column_by_name(name) else { return none() };
    let Some((items, ranges)) = types::items(column) else { return values(column) };
    let Some(parts) = items.as_struct().column_by_name(PART).map(values) else { return none() };
    let joined = |(row, range): (usize, Range<usize>)| {
        column.is_valid(row).then(|| parts[range].iter().flatten().map(String::as_str).collect())
    };
    ranges.into_iter().enumerate().map(joined).collect()
}
