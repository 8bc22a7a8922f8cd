//! Reads the documents of a work unit: id and text, or id and token ids.

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::{
    Array, ArrayRef, ArrowPrimitiveType, LargeListArray, RecordBatch, StringViewArray,
    downcast_integer,
};
use arrow_cast::cast;
use arrow_schema::DataType;
use longsift_stages::contract::{RowError, hex};
use sha2::{Digest, Sha256};

use super::input::Dataset;
use super::labels::{LabelColumn, label_type};
use super::lost_row_groups::LostRowGroups;
use super::problem::DataProblem;
use super::read::{self, Batch, Batches, ReadError, ReadRequest, remaining};
use super::types;
use super::units::WorkUnit;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DocumentColumns {
    /// Column of ids, cast to string.
    pub id: Option<String>,
    pub content: ContentColumn,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ContentColumn {
    Text(String),
    Tokens(String),
}

impl ContentColumn {
    pub fn name(&self) -> &str {
        let (Self::Text(name) | Self::Tokens(name)) = self;
        name
    }

    /// Returns the index of the column, and the type that it is read as: for token ids a large list of any items.
    fn locate(&self, dataset: &Dataset) -> Result<(usize, DataType), DataProblem> {
        match self {
            Self::Text(name) => Ok((dataset.check_text_column(name)?, DataType::Utf8View)),
            Self::Tokens(name) => {
                let index = dataset.check_tokens_column(name)?;
                let item = types::list_item(dataset.schema.field(index).data_type());
                let item = item.ok_or_else(|| dataset.no_column(name))?;
                Ok((index, DataType::LargeList(Arc::clone(item))))
            }
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Document {
    /// Row index in its file.
    pub row: u64,
    /// Id as a string; `None` if it is null or without an id column.
    pub id: Option<String>,
    /// Content to score, or the reason that it cannot be scored.
    pub content: Result<DocumentContent, RowError>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DocumentContent {
    /// Non-empty text.
    Text(DocumentText),
    /// Token ids, at least one.
    Tokens(Vec<u32>),
}

/// Text of a document. Shares memory with the decoded page; dereferences to `str`.
#[derive(Clone)]
pub struct DocumentText {
    array: Arc<StringViewArray>,
    row: usize,
}

impl Deref for DocumentText {
    type Target = str;

    fn deref(&self) -> &str {
        self.array.value(self.row)
    }
}

impl fmt::Debug for DocumentText {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&**self, formatter)
    }
}

impl PartialEq for DocumentText {
    fn eq(&self, other: &Self) -> bool {
        **self == **other
    }
}

impl Eq for DocumentText {}

impl From<&str> for DocumentText {
    fn from(text: &str) -> Self {
        Self { array: Arc::new(StringViewArray::from_iter_values([text])), row: 0 }
    }
}

/// Reads the documents of a work unit in order, in batches of about `batch_bytes` of content (at least one document).
///
/// All columns are decoded, including those that are only passed through: a row with an invalid value in any column has
/// an error as content. Rows of `lost` row groups are not read; their content is the reason.
pub fn read_documents(
    dataset: &Dataset,
    unit: &WorkUnit,
    columns: &DocumentColumns,
    batch_bytes: u64,
    lost: LostRowGroups,
) -> Result<Documents, ReadError> {
    let (content, content_type) = columns.content.locate(dataset)?;
    let id = columns.id.as_ref().map(|name| dataset.check_label_column(name)).transpose()?;
    let mut wanted: Vec<_> = read::columns(dataset).collect();
    if let Some(id) = id {
        wanted[id].1 = label_type(&wanted[id].1);
    }
    wanted[content].1 = content_type;
    let (first, end) = (unit.first_row, unit.first_row + unit.rows);
    let rows = remaining(first..end, &lost.rows());
    let request =
        ReadRequest { batch_bytes, strict: true, ..ReadRequest::new(unit.file, rows, &wanted) };
    Ok(Documents {
        batches: Batches::open(dataset, &request)?,
        content,
        id,
        next_row: first,
        end,
        lost,
        batch_bytes,
        pending: None,
        done: false,
    })
}

/// Returns the content of completely read rows, one per row, as [`read_documents`] would.
pub fn document_contents(
    dataset: &Dataset,
    batch: &RecordBatch,
    columns: &DocumentColumns,
) -> Result<Vec<Result<DocumentContent, RowError>>, DataProblem> {
    let (index, target) = columns.content.locate(dataset)?;
    let column = cast(batch.column(index), &target).map_err(|error| {
        DataProblem::data(format!("column `{}`: {error}", columns.content.name()))
    })?;
    Ok(contents(&column))
}

/// Returns the ids of completely read rows, as [`read_documents`] would; rows without an id get [`id_of_row`].
pub fn document_ids(
    dataset: &Dataset,
    unit: &WorkUnit,
    batch: &RecordBatch,
    rows: &[u64],
    columns: &DocumentColumns,
) -> Result<Vec<String>, DataProblem> {
    let column = columns.id.as_ref().map(|name| dataset.check_label_column(name)).transpose()?;
    let labels = column.map(|column| LabelColumn::new(batch.column(column)));
    let id = |(position, row): (usize, &u64)| {
        let own = labels.as_ref().and_then(|labels| labels.id(position));
        own.unwrap_or_else(|| id_of_row(&unit.file_path, *row))
    };
    Ok(rows.iter().enumerate().map(id).collect())
}

pub fn id_of_row(file: &str, row: u64) -> String {
    format!("{file}:{row}")
}

/// Whether `id` was derived from file and row because the document lacks an id. Other ids cost a comparison of prefixes.
pub fn is_id_of_row(id: &str, file: &str, row: u64) -> bool {
    let own_row = id.strip_prefix(file).and_then(|rest| rest.strip_prefix(':'));
    own_row.is_some_and(|own| own == row.to_string())
}

/// Bytes charged per row in addition to its content, so that batches of null rows are bounded.
const ROW_BYTES: u64 = 64;

/// Iterator over the documents of a work unit, in order. Created by [`read_documents`].
pub struct Documents {
    batches: Batches,
    /// Index of the content column in the data set; `id`: of the id column.
    content: usize,
    id: Option<usize>,
    next_row: u64,
    end: u64,
    lost: LostRowGroups,
    batch_bytes: u64,
    /// Batch after lost rows that are still to be returned.
    pending: Option<Batch>,
    done: bool,
}

impl Iterator for Documents {
    type Item = Result<Vec<Document>, ReadError>;

    fn next(&mut self) -> Option<Self::Item> {
        let mut documents = Vec::new();
        let mut bytes = 0_u64;
        while !self.done && bytes < self.batch_bytes.max(1) {
            match self.pending.take().map(Ok).or_else(|| self.batches.next()) {
                Some(Ok(batch)) => {
                    let first = batch.rows.first().copied().unwrap_or(self.next_row);
                    if self.push_lost(first, &mut documents, &mut bytes) {
                        self.push(&batch, &mut documents, &mut bytes);
                    } else {
                        self.pending = Some(batch);
                    }
                }
                Some(Err(error)) => {
                    self.done = true;
                    return Some(Err(error));
                }
                None => self.done = self.push_lost(self.end, &mut documents, &mut bytes),
            }
        }
        (!documents.is_empty()).then_some(Ok(documents))
    }
}

impl Documents {
    /// Appends the rows of a batch, which are of one row group, and adds their content bytes to `bytes`.
    fn push(&mut self, batch: &Batch, documents: &mut Vec<Document>, bytes: &mut u64) {
        let ids = self.id.map(|id| LabelColumn::new(&batch.columns[id]));
        let column = &batch.columns[self.content];
        for (position, mut content) in contents(column).into_iter().enumerate() {
            let row = batch.rows[position];
            self.next_row = row + 1;
            if let Some(problem) = batch.problem(position) {
                content = Err(problem.clone());
            }
            *bytes += ROW_BYTES
                + match &content {
                    Ok(DocumentContent::Text(text)) => text.len() as u64,
                    Ok(DocumentContent::Tokens(tokens)) => 4 * tokens.len() as u64,
                    Err(_) => 0,
                };
            let id = ids.as_ref().and_then(|ids| ids.id(position));
            documents.push(Document { row, id, content });
        }
    }

    /// Appends the lost rows up to `end`, which may be millions. Returns `false` if some are left for the next batch.
    fn push_lost(&mut self, end: u64, documents: &mut Vec<Document>, bytes: &mut u64) -> bool {
        while self.next_row < end {
            if *bytes >= self.batch_bytes.max(1) {
                return false;
            }
            let row = self.next_row;
            let problem = self.lost.problem(row).expect("only lost rows are not read");
            *bytes += ROW_BYTES + problem.message.len() as u64;
            let content = Err(problem.clone());
            documents.push(Document { row, id: None, content });
            self.next_row += 1;
        }
        true
    }
}

/// Converts a column of the type that [`ContentColumn::locate`] returns.
fn contents(column: &ArrayRef) -> Vec<Result<DocumentContent, RowError>> {
    match column.data_type() {
        DataType::Utf8View => texts(column),
        _ => token_lists(column.as_list::<i64>()),
    }
}

fn texts(column: &ArrayRef) -> Vec<Result<DocumentContent, RowError>> {
    let array = Arc::new(column.as_string_view().clone());
    let text = |row: usize| {
        if array.is_null(row) {
            Err(RowError::new("null_text", "the text is null"))
        } else if array.value(row).is_empty() {
            Err(RowError::new("empty_text", "the text is empty"))
        } else {
            Ok(DocumentContent::Text(DocumentText { array: Arc::clone(&array), row }))
        }
    };
    (0..array.len()).map(text).collect()
}

fn token_lists(lists: &LargeListArray) -> Vec<Result<DocumentContent, RowError>> {
    macro_rules! of_type {
        ($integer:ty, $lists:expr) => {
            integer_lists::<$integer>($lists)
        };
    }
    downcast_integer! {
        lists.value_type() => (of_type, lists),
        other => vec![Err(bad_token(format!("the list holds {other}"))); lists.len()],
    }
}

fn integer_lists<T>(lists: &LargeListArray) -> Vec<Result<DocumentContent, RowError>>
where
    T: ArrowPrimitiveType,
    T::Native: TryInto<u32> + fmt::Display,
{
    let token = |(position, value): (usize, Option<T::Native>)| -> Result<u32, RowError> {
        let value = value.ok_or_else(|| bad_token(format!("token {position} is null")))?;
        value
            .try_into()
            .map_err(|_| bad_token(format!("token {position} is {value}, which is not a token id")))
    };
    let list = |list: Option<ArrayRef>| {
        let list =
            list.ok_or_else(|| RowError::new("null_tokens", "the list of tokens is null"))?;
        if list.is_empty() {
            return Err(RowError::new("empty_tokens", "the list of tokens is empty"));
        }
        let tokens = list.as_primitive::<T>().iter().enumerate().map(token);
        tokens.collect::<Result<_, _>>().map(DocumentContent::Tokens)
    };
    lists.iter().map(list).collect()
}

fn bad_token(message: String) -> RowError {
    RowError::new("bad_token", message)
}

/// Returns the SHA-256 of a text in UTF-8, or of token ids as little-endian 32-bit integers.
pub fn content_digest(content: &DocumentContent) -> String {
    hex(&match content {
        DocumentContent::Text(text) => Sha256::digest(text.as_bytes()),
        DocumentContent::Tokens(ids) => {
            let mut hasher = Sha256::new();
            for id in ids {
                hasher.update(id.to_le_bytes());
            }
            hasher.finalize()
        }
    })
}

/// Returns the first 128 bits of [`content_digest`] in hexadecimal.
pub fn content_hash(content: &DocumentContent) -> String {
    let mut digest = content_digest(content);
    digest.truncate(32);
    digest
}

#[cfg(test)]
mod tests {
    use arrow_array::types::{Int16Type, Int32Type, Int64Type, UInt32Type, UInt64Type};
    use arrow_array::{
        DictionaryArray, FixedSizeListArray, Int64Array, LargeStringArray, ListArray, RecordBatch,
        StringArray,
    };
    use arrow_cast::cast;
    use arrow_schema::Field;

    use super::*;
    use crate::dataset::tests::{batch, folder_of, texts, write};

    fn read(batches: &[RecordBatch], content: ContentColumn, id: Option<&str>) -> Vec<Document> {
        let (_folder, dataset) = folder_of(batches, 3);
        let columns = DocumentColumns { id: id.map(str::to_string), content };
        let unit = |unit| {
            read_documents(&dataset, &unit, &columns, 1 << 20, LostRowGroups::default())
                .unwrap()
                .flat_map(Result::unwrap)
        };
        dataset.units(u64::MAX, None).into_iter().flat_map(unit).collect()
    }

    fn text_of(document: &Document) -> Result<&str, &'static str> {
        match &document.content {
            Ok(DocumentContent::Text(text)) => Ok(text),
            Ok(DocumentContent::Tokens(_)) => panic!("tokens instead of text"),
            Err(problem) => Err(problem.code),
        }
    }

    fn tokens_of(column: ArrayRef) -> Vec<Result<Vec<u32>, (&'static str, String)>> {
        let documents =
            read(&[batch(vec![("tokens", column)])], ContentColumn::Tokens("tokens".into()), None);
        let tokens = |document: Document| match document.content {
            Ok(DocumentContent::Tokens(tokens)) => Ok(tokens),
            Ok(DocumentContent::Text(_)) => panic!("text instead of tokens"),
            Err(problem) => Err((problem.code, problem.message)),
        };
        documents.into_iter().map(tokens).collect()
    }

    #[test]
    fn text_of_every_width_and_encoding_reads_the_same() {
        let plain = Arc::new(StringArray::from(vec![
            Some("grüße"),
            None,
            Some(""),
            Some("a much longer text here"),
        ]));
        let plain = plain as ArrayRef;
        let dictionary =
            DataType::Dictionary(Box::new(DataType::Int16), Box::new(DataType::LargeUtf8));
        for data_type in [DataType::Utf8, DataType::LargeUtf8, DataType::Utf8View, dictionary] {
            let column = cast(&plain, &data_type).unwrap();
            let documents =
                read(&[batch(vec![("text", column)])], ContentColumn::Text("text".into()), None);
            let texts: Vec<_> = documents.iter().map(text_of).collect();
            let expected =
                [Ok("grüße"), Err("null_text"), Err("empty_text"), Ok("a much longer text here")];
            assert_eq!(texts, expected, "{data_type}");
            assert_eq!(
                documents.iter().map(|document| document.row).collect::<Vec<_>>(),
                [0, 1, 2, 3]
            );
        }
    }

    #[test]
    fn ids_are_cast_to_string_and_a_null_id_is_none() {
        let text = Arc::new(StringArray::from(vec!["a", "b"])) as ArrayRef;
        let id = Arc::new(Int64Array::from(vec![Some(-7), None])) as ArrayRef;
        let label =
            Arc::new(vec![Some("x"), None].into_iter().collect::<DictionaryArray<Int32Type>>())
                as ArrayRef;
        // The id column follows the text in one file and precedes it in the other.
        let first =
            batch(vec![("text", text.clone()), ("id", id.clone()), ("label", label.clone())]);
        let second = batch(vec![("label", label), ("id", id), ("text", text)]);
        for (column, value) in [("id", "-7"), ("label", "x"), ("text", "a")] {
            let documents = read(
                &[first.clone(), second.clone()],
                ContentColumn::Text("text".into()),
                Some(column),
            );
            let ids: Vec<_> = documents.iter().map(|document| document.id.as_deref()).collect();
            let second = (column == "text").then_some("b");
            assert_eq!(ids, [Some(value), second, Some(value), second], "{column}");
            assert_eq!(text_of(&documents[3]), Ok("b"));
        }
    }

    #[test]
    fn tokens_of_every_kind_of_list_and_integer_read_the_same() {
        let lists = || [Some(vec![Some(1), Some(2)]), Some(vec![]), None, Some(vec![Some(30000)])];
        let expected = [
            Ok(vec![1, 2]),
            Err(("empty_tokens", "the list of tokens is empty".to_string())),
            Err(("null_tokens", "the list of tokens is null".to_string())),
            Ok(vec![30000]),
        ];
        let int16 = ListArray::from_iter_primitive::<Int16Type, _, _>(lists());
        let large = |item| DataType::LargeList(Arc::new(Field::new("item", item, true)));
        let list = |item| DataType::List(Arc::new(Field::new("item", item, true)));
        for item in
            [DataType::Int16, DataType::Int32, DataType::UInt32, DataType::Int64, DataType::UInt64]
        {
            for data_type in [large(item.clone()), list(item.clone())] {
                assert_eq!(tokens_of(cast(&int16, &data_type).unwrap()), expected, "{data_type}");
            }
        }
        let fixed = FixedSizeListArray::from_iter_primitive::<Int32Type, _, _>(
            [Some(vec![Some(7), Some(8)]), None],
            2,
        );
        assert_eq!(tokens_of(Arc::new(fixed)), [Ok(vec![7, 8]), expected[2].clone()]);
    }

    #[test]
    fn invalid_token_ids_are_reported_with_their_position() {
        let of = |list| {
            tokens_of(Arc::new(ListArray::from_iter_primitive::<Int64Type, _, _>([Some(list)])))
        };
        let bad = |message: &str| vec![Err(("bad_token", message.to_string()))];
        assert_eq!(of(vec![Some(1), Some(-1)]), bad("token 1 is -1, which is not a token id"));
        assert_eq!(of(vec![Some(1 << 32)]), bad("token 0 is 4294967296, which is not a token id"));
        assert_eq!(of(vec![Some(1), Some(2), None]), bad("token 2 is null"));
        assert_eq!(of(vec![Some(4_294_967_295)]), [Ok(vec![u32::MAX])]);
        let list = Some(vec![Some(u64::MAX)]);
        let unsigned = ListArray::from_iter_primitive::<UInt64Type, _, _>([list]);
        assert_eq!(tokens_of(Arc::new(unsigned))[0].as_ref().unwrap_err().0, "bad_token");
        let list = ListArray::from_iter_primitive::<UInt32Type, _, _>([Some(vec![Some(3)])]);
        assert_eq!(tokens_of(Arc::new(list)), [Ok(vec![3])]);
    }

    #[test]
    fn a_large_row_group_is_read_in_bounded_batches() {
        let long = "x".repeat(10_000);
        let rows: LargeStringArray =
            (0..700).map(|row| Some(if row < 500 { "short" } else { &long })).collect();
        let (_folder, dataset) = folder_of(&[batch(vec![("text", Arc::new(rows))])], 10_000);
        let columns = DocumentColumns { id: None, content: ContentColumn::Text("text".into()) };
        let units = dataset.units(u64::MAX, None);
        let batches: Vec<_> =
            read_documents(&dataset, &units[0], &columns, 100_000, LostRowGroups::default())
                .unwrap()
                .map(Result::unwrap)
                .collect();
        assert!(batches.len() > 5, "{}", batches.len());
        let rows: Vec<u64> = batches.iter().flatten().map(|document| document.row).collect();
        assert_eq!(rows, (0..700).collect::<Vec<_>>());
        let bytes = |documents: &Vec<Document>| {
            documents.iter().map(|document| text_of(document).unwrap().len()).sum::<usize>()
        };
        // A batch may exceed its limit by one batch of the reader.
        assert!(batches.iter().all(|documents| bytes(documents) < 100_000 + 64 * 10_000));
    }

    #[test]
    fn unreadable_rows_are_read_in_bounded_batches_without_gaps() {
        let rows: LargeStringArray = (0..5000).map(|_| Some("a text")).collect();
        let (_folder, dataset) = folder_of(&[batch(vec![("text", Arc::new(rows))])], 1000);
        let columns = DocumentColumns { id: None, content: ContentColumn::Text("text".into()) };
        let unit = &dataset.units(u64::MAX, None)[0];
        for lost in [0..5000, 1000..5000, 0..4000, 1000..4000, 2000..3000] {
            let row_groups = LostRowGroups::with_rows(lost.clone());
            let vectors: Vec<Vec<Document>> =
                read_documents(&dataset, unit, &columns, 10_000, row_groups)
                    .unwrap()
                    .map(Result::unwrap)
                    .collect();
            assert!(vectors.iter().all(|documents| documents.len() < 400), "{lost:?}");
            let documents: Vec<&Document> = vectors.iter().flatten().collect();
            assert!(documents.iter().map(|document| document.row).eq(0..5000), "{lost:?}");
            for document in documents {
                let expected =
                    if lost.contains(&document.row) { Err("unreadable") } else { Ok("a text") };
                assert_eq!(text_of(document), expected, "{lost:?}");
            }
        }
    }

    #[test]
    fn a_limited_unit_reads_its_first_rows() {
        let (_folder, dataset) =
            folder_of(&[texts(&[Some("a"), Some("b"), Some("c"), Some("d"), Some("e")])], 2);
        let columns = DocumentColumns { id: None, content: ContentColumn::Text("text".into()) };
        let units = dataset.units(1, Some(3));
        let read = |unit: &WorkUnit| {
            read_documents(&dataset, unit, &columns, 1, LostRowGroups::default())
                .unwrap()
                .flat_map(Result::unwrap)
        };
        let rows: Vec<_> = units
            .iter()
            .flat_map(read)
            .map(|document| (document.row, text_of(&document).map(str::to_string)))
            .collect();
        assert_eq!(rows, [(0, Ok("a".into())), (1, Ok("b".into())), (2, Ok("c".into()))]);
    }

    #[test]
    fn a_file_that_changed_since_it_was_planned_is_reported() {
        let (folder, dataset) = folder_of(&[texts(&[Some("a")])], 10);
        let columns = DocumentColumns { id: None, content: ContentColumn::Text("text".into()) };
        let problem = || {
            let unit = &dataset.units(1, None)[0];
            let read = read_documents(&dataset, unit, &columns, 1, LostRowGroups::default());
            DataProblem::from(read.err().unwrap())
        };
        let path = folder.path().join("0.parquet");
        write(&path, &texts(&[Some("b")]), 10);
        assert!(
            problem()
                .to_string()
                .starts_with("0.parquet: the file changed since it was planned: it was modified")
        );
        write(&path, &texts(&[Some("another text")]), 10);
        assert!(problem().message.contains("bytes, now it has"));
        crate::storage::files::remove_file(&path).unwrap();
        assert!(problem().message.ends_with("it no longer exists"));
    }

    #[test]
    fn a_column_of_another_type_is_rejected_before_reading() {
        let (_folder, dataset) = folder_of(&[texts(&[Some("a")])], 10);
        let columns = DocumentColumns { id: None, content: ContentColumn::Tokens("text".into()) };
        let unit = &dataset.units(1, None)[0];
        let read = read_documents(&dataset, unit, &columns, 1, LostRowGroups::default());
        let problem = DataProblem::from(read.err().unwrap());
        assert!(
            problem.message.starts_with("column `text` is string; accepted: a list of int32"),
            "{problem}"
        );
    }
}
