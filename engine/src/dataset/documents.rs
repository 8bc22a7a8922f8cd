//! The documents of a unit: id and text, or id and token ids.

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

use arrow::array::RecordBatch;
use arrow::array::{
    Array, ArrayRef, ArrowPrimitiveType, AsArray, LargeListArray, PrimitiveArray, StringViewArray,
    downcast_integer,
};
use arrow::compute::cast;
use arrow::datatypes::DataType;

use super::labels::{Labels, label_type};
use super::problem::DataProblem;
use super::read::{Batches, Place, Request, batch_rows, position};
use super::units::WorkUnit;
use super::{Dataset, types};

/// The columns that make a document.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DocumentColumns {
    /// The column of ids, cast to string.
    pub id: Option<String>,
    /// The column of what is scored.
    pub content: Content,
}

/// The column that holds what is scored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Content {
    /// A column of text.
    Text(String),
    /// A column of token ids.
    Tokens(String),
}

/// One row of the input.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Document {
    /// Position in its file.
    pub row: u64,
    /// The id as a string; `None` where it is null or there is no such column.
    pub id: Option<String>,
    /// What is scored, or why it cannot be.
    pub content: Result<DocumentContent, RowProblem>,
}

/// What is scored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DocumentContent {
    /// Text, not empty.
    Text(Text),
    /// Token ids, at least one.
    Tokens(Vec<u32>),
}

/// The text of a document. Shares the memory of the page it was decoded from; dereferences to `str`.
#[derive(Clone)]
pub struct Text {
    array: Arc<StringViewArray>,
    row: usize,
}

impl Deref for Text {
    type Target = str;

    fn deref(&self) -> &str {
        self.array.value(self.row)
    }
}

impl fmt::Debug for Text {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&**self, formatter)
    }
}

impl PartialEq for Text {
    fn eq(&self, other: &Self) -> bool {
        **self == **other
    }
}

impl Eq for Text {}

impl From<&str> for Text {
    fn from(text: &str) -> Self {
        Self { array: Arc::new(StringViewArray::from_iter_values([text])), row: 0 }
    }
}

/// Why a row cannot be scored: what the quarantine table says of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RowProblem {
    /// `null_text`, `empty_text`, `null_tokens`, `empty_tokens` or `bad_token`.
    pub code: &'static str,
    /// The same for people, with the values involved.
    pub message: String,
}

/// Reads the documents of a unit in order, in vectors of about `batch_bytes` of content (at least one document).
///
/// # Errors
/// A column that does not exist or has another type; a file that changed since it was planned; and, from the
/// iterator, pages that do not decode. After an error the iterator ends.
pub fn read_documents(
    dataset: &Dataset,
    unit: &WorkUnit,
    columns: &DocumentColumns,
    batch_bytes: u64,
) -> Result<Documents, DataProblem> {
    let mut wanted = Vec::new();
    let text = match &columns.content {
        Content::Text(name) => {
            dataset.check_text_column(name)?;
            wanted.push((position(dataset, name)?, DataType::Utf8View));
            true
        }
        Content::Tokens(name) => {
            dataset.check_tokens_column(name)?;
            wanted.push((position(dataset, name)?, tokens_type(dataset, name)?));
            false
        }
    };
    if let Some(name) = &columns.id {
        dataset.check_label_column(name)?;
        let id = position(dataset, name)?;
        wanted.push((id, label_type(dataset.schema.field(id).data_type())));
    }
    let file = &dataset.files[unit.file];
    let row_groups: Vec<usize> = unit.row_groups.clone().collect();
    let request = Request {
        file: unit.file,
        columns: &wanted,
        selection: None,
        limit: Some(usize::try_from(unit.rows).unwrap_or(usize::MAX)),
        batch_rows: batch_rows(file, &wanted, &row_groups, batch_bytes),
        row_groups,
    };
    Ok(Documents {
        batches: Batches::open(dataset, &request)?,
        place: Place::of(dataset, unit),
        text,
        next_row: unit.first_row,
        end: unit.first_row + unit.rows,
        batch_bytes,
        done: false,
    })
}

/// The contents of rows that were read whole, one per row: what [`read_documents`] says of the same rows.
pub fn document_contents(
    dataset: &Dataset,
    batch: &RecordBatch,
    columns: &DocumentColumns,
) -> Result<Vec<Result<DocumentContent, RowProblem>>, DataProblem> {
    let (name, target) = match &columns.content {
        Content::Text(name) => (name, DataType::Utf8View),
        Content::Tokens(name) => (name, tokens_type(dataset, name)?),
    };
    let column = batch.column(position(dataset, name)?);
    let column = cast(column, &target)
        .map_err(|error| DataProblem::data(format!("column `{name}`: {error}")))?;
    Ok(match columns.content {
        Content::Text(_) => texts(&column),
        Content::Tokens(_) => token_lists(column.as_list::<i64>()),
    })
}

/// Token ids are read as a large list, whatever kind of list the file has.
fn tokens_type(dataset: &Dataset, name: &str) -> Result<DataType, DataProblem> {
    let field = dataset.schema.field(position(dataset, name)?);
    let item = types::list_item(field.data_type()).ok_or_else(|| dataset.no_column(name))?;
    Ok(DataType::LargeList(Arc::clone(item)))
}

/// The documents of a unit, in order. Made by [`read_documents`].
pub struct Documents {
    batches: Batches,
    place: Place,
    text: bool,
    next_row: u64,
    end: u64,
    batch_bytes: u64,
    done: bool,
}

impl Iterator for Documents {
    type Item = Result<Vec<Document>, DataProblem>;

    fn next(&mut self) -> Option<Self::Item> {
        let mut documents = Vec::new();
        let mut bytes = 0_u64;
        while !self.done && bytes < self.batch_bytes.max(1) {
            match self.batches.next() {
                Some(Ok((columns, rows))) => bytes += self.take(&columns, rows, &mut documents),
                Some(Err(why)) => {
                    self.done = true;
                    return Some(Err(self.place.unreadable(self.next_row, &why)));
                }
                None => {
                    self.done = true;
                    if self.next_row != self.end {
                        let why = format!("the unit should end at row {}", self.end);
                        return Some(Err(self.place.unreadable(self.next_row, &why)));
                    }
                }
            }
        }
        (!documents.is_empty()).then_some(Ok(documents))
    }
}

impl Documents {
    /// Appends the rows of one batch; returns the bytes of their content.
    fn take(&mut self, columns: &[ArrayRef], rows: usize, documents: &mut Vec<Document>) -> u64 {
        let ids = columns.get(1).map(Labels::new);
        let contents =
            if self.text { texts(&columns[0]) } else { token_lists(columns[0].as_list::<i64>()) };
        let first = self.next_row;
        self.next_row += rows as u64;
        let mut bytes = 0;
        for (row, content) in contents.into_iter().enumerate() {
            // A row without content still costs a little, so that a file of nulls comes in bounded vectors too.
            bytes += 64
                + match &content {
                    Ok(DocumentContent::Text(text)) => text.len() as u64,
                    Ok(DocumentContent::Tokens(tokens)) => 4 * tokens.len() as u64,
                    Err(_) => 0,
                };
            let id = ids.as_ref().and_then(|ids| ids.get(row));
            documents.push(Document { row: first + row as u64, id, content });
        }
        bytes
    }
}

/// The texts of a batch.
fn texts(column: &ArrayRef) -> Vec<Result<DocumentContent, RowProblem>> {
    let array = Arc::new(column.as_string_view().clone());
    let text = |row: usize| {
        if array.is_null(row) {
            Err(RowProblem { code: "null_text", message: "the text is null".into() })
        } else if array.value(row).is_empty() {
            Err(RowProblem { code: "empty_text", message: "the text is empty".into() })
        } else {
            Ok(DocumentContent::Text(Text { array: Arc::clone(&array), row }))
        }
    };
    (0..array.len()).map(text).collect()
}

/// The token lists of a batch.
fn token_lists(lists: &LargeListArray) -> Vec<Result<DocumentContent, RowProblem>> {
    macro_rules! of_type {
        ($integer:ty, $lists:expr) => {
            integer_lists::<$integer>($lists)
        };
    }
    downcast_integer! {
        lists.value_type() => (of_type, lists),
        other => vec![Err(bad_token(&format!("the list holds {other}"))); lists.len()],
    }
}

fn integer_lists<T>(lists: &LargeListArray) -> Vec<Result<DocumentContent, RowProblem>>
where
    T: ArrowPrimitiveType,
    T::Native: TryInto<u32> + fmt::Display,
{
    let values = lists.values().as_primitive::<T>();
    let list = |row: usize| {
        if lists.is_null(row) {
            return Err(RowProblem {
                code: "null_tokens",
                message: "the list of tokens is null".into(),
            });
        }
        let (start, end) = (lists.value_offsets()[row], lists.value_offsets()[row + 1]);
        let (start, end) = (start as usize, end as usize);
        if start == end {
            return Err(RowProblem {
                code: "empty_tokens",
                message: "the list of tokens is empty".into(),
            });
        }
        (start..end)
            .map(|index| token(values, index, index - start))
            .collect::<Result<_, _>>()
            .map(DocumentContent::Tokens)
    };
    (0..lists.len()).map(list).collect()
}

/// One token id. `place`: its position in the list.
fn token<T>(values: &PrimitiveArray<T>, index: usize, place: usize) -> Result<u32, RowProblem>
where
    T: ArrowPrimitiveType,
    T::Native: TryInto<u32> + fmt::Display,
{
    if values.is_null(index) {
        return Err(bad_token(&format!("token {place} is null")));
    }
    let value = values.value(index);
    value
        .try_into()
        .map_err(|_| bad_token(&format!("token {place} is {value}, which is not a token id")))
}

fn bad_token(message: &str) -> RowProblem {
    RowProblem { code: "bad_token", message: message.into() }
}
