//! Arrow streams to and from a program. Every message is checked against the questions before the library reads it.

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::Arc;

use arrow_array::builder::{ListBuilder, UInt32Builder};
use arrow_array::cast::AsArray;
use arrow_array::types::{Float64Type, Int32Type, Int64Type};
use arrow_array::{Array, ArrayRef, Int32Array, Int64Array, RecordBatch, StringArray};
use arrow_buffer::Buffer;
use arrow_ipc::convert::try_fb_to_schema;
use arrow_ipc::reader::read_record_batch;
use arrow_ipc::writer::StreamWriter;
use arrow_ipc::{MessageHeader, root_as_message};
use arrow_schema::{DataType, Field, Schema, SchemaRef};
use longsift_stages::Reads;
use longsift_stages::contract::{Column, Kind, Measure, Value};

use crate::base::secrets;
use crate::base::text::quoted;
use crate::dataset::source::guarded;
use crate::plan::programs::Program;

#[derive(Clone, Debug)]
pub(crate) struct Question<'q> {
    pub(crate) row: u64,
    /// Index of the window; 0 and not sent if the program reads documents.
    pub(crate) window: u32,
    pub(crate) content: QuestionContent<'q>,
}

#[derive(Clone, Debug)]
pub(crate) enum QuestionContent<'q> {
    Text(Cow<'q, str>),
    Ids(Cow<'q, [u32]>),
}

impl Question<'_> {
    pub(super) fn bytes(&self) -> usize {
        match &self.content {
            QuestionContent::Text(text) => text.len(),
            QuestionContent::Ids(ids) => ids.len() * size_of::<u32>(),
        }
    }
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Reply {
    /// Whether the document is dropped; always `false` for windows.
    pub(crate) drop: bool,
    /// In the order of the statistics.
    pub(crate) values: Vec<Value>,
}

/// Columns that identify a row, in questions and answers.
fn keys(program: &Program) -> Vec<Field> {
    let window = (program.settings.reads != Reads::Document)
        .then(|| Field::new("window", DataType::Int32, false));
    std::iter::once(Field::new("row", DataType::Int64, false)).chain(window).collect()
}

pub(super) fn answer_fields(program: &Program) -> Vec<Field> {
    let drop = (program.settings.reads == Reads::Document)
        .then(|| Field::new("drop", DataType::Boolean, false));
    let statistic = |column: Column| {
        let kind = match column.kind {
            Kind::Number => DataType::Float64,
            Kind::Count => DataType::Int64,
            Kind::Numbers => unreachable!("a program declares single numbers"),
        };
        Field::new(column.name.into_owned(), kind, true)
    };
    let statistics = program.settings.columns().into_iter().map(statistic);
    keys(program).into_iter().chain(drop).chain(statistics).collect()
}

/// Columns of an answer before its statistics: the row, and its window or whether it is dropped.
const BEFORE_STATISTICS: usize = 2;

pub(super) struct Questions {
    schema: SchemaRef,
    stream: StreamWriter<Vec<u8>>,
}

const IN_MEMORY: &str = "a batch of these columns is written to memory";

impl Questions {
    pub(super) fn new(program: &Program) -> Self {
        let mut fields = keys(program);
        fields.push(if program.reads_text {
            Field::new("text", DataType::Utf8, false)
        } else {
            Field::new("ids", DataType::new_list(DataType::UInt32, false), false)
        });
        let schema = Arc::new(Schema::new(fields));
        let stream = StreamWriter::try_new(Vec::new(), &schema).expect(IN_MEMORY);
        Self { schema, stream }
    }

    /// Encodes one batch, to be sent after the earlier ones.
    pub(super) fn batch(&mut self, questions: &[Question<'_>]) -> Vec<u8> {
        let rows = questions.iter().map(|question| question.row as i64);
        let mut columns: Vec<ArrayRef> = vec![Arc::new(Int64Array::from_iter_values(rows))];
        if self.schema.field_with_name("window").is_ok() {
            let windows = questions.iter().map(|question| question.window as i32);
            columns.push(Arc::new(Int32Array::from_iter_values(windows)));
        }
        let of_text = self.schema.field_with_name("text").is_ok();
        columns.push(if of_text { texts(questions) } else { ids(questions) });
        let batch = RecordBatch::try_new(Arc::clone(&self.schema), columns).expect(IN_MEMORY);
        self.stream.write(&batch).expect(IN_MEMORY);
        std::mem::take(self.stream.get_mut())
    }

    pub(super) fn end(&mut self) -> Vec<u8> {
        self.stream.finish().expect(IN_MEMORY);
        std::mem::take(self.stream.get_mut())
    }
}

fn texts(questions: &[Question<'_>]) -> ArrayRef {
    let text = |question: &Question<'_>| match &question.content {
        QuestionContent::Text(text) => text.to_string(),
        QuestionContent::Ids(_) => unreachable!("a program that reads text receives text"),
    };
    Arc::new(StringArray::from_iter_values(questions.iter().map(text)))
}

fn ids(questions: &[Question<'_>]) -> ArrayRef {
    let item = Field::new("item", DataType::UInt32, false);
    let mut lists = ListBuilder::new(UInt32Builder::new()).with_field(item);
    for question in questions {
        let QuestionContent::Ids(ids) = &question.content else {
            unreachable!("a program that reads token ids receives token ids");
        };
        lists.values().append_slice(ids);
        lists.append(true);
    }
    Arc::new(lists.finish())
}

/// Maximum bytes of the body of an answer: 65,536 rows of a hundred statistics take a quarter.
const MAX_MESSAGE_BYTES: usize = 256 << 20;
const MAX_HEADER_BYTES: usize = 16 << 20;
/// Maximum bytes of invalid output that are searched for secrets.
const MAX_SEARCHED_BYTES: usize = 1 << 16;
const CONTINUATION: [u8; 4] = [0xff; 4];

/// Decodes answers incrementally from the output of a program.
pub(super) struct Answers {
    expected: Vec<Field>,
    bytes: Vec<u8>,
    /// Schema of the stream, after it was received and checked.
    schema: Option<SchemaRef>,
}

impl Answers {
    pub(super) fn new(program: &Program) -> Self {
        Self { expected: answer_fields(program), bytes: Vec::new(), schema: None }
    }

    pub(super) fn push(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// Returns the next record batch, or `None` if it is not complete yet.
    pub(super) fn next(&mut self) -> Result<Option<RecordBatch>, String> {
        while let Some((header, body)) = self.message()? {
            if let Some(schema) = &self.schema {
                return guarded(|| decode(&header, &body, schema)).map(Some);
            }
            let schema = guarded(|| schema(&header))?;
            self.check(&schema)?;
            self.schema = Some(Arc::new(schema));
        }
        Ok(None)
    }

    /// Whether the program wrote output after its last answer. A partial end-of-stream marker does not count.
    pub(super) fn has_more(&self) -> bool {
        let end = [CONTINUATION, [0; 4]].concat();
        !end.starts_with(&self.bytes)
    }

    /// Returns header and body of the next complete message: a schema first, then record batches.
    fn message(&mut self) -> Result<Option<(Vec<u8>, Buffer)>, String> {
        let marked = self.bytes.iter().zip(CONTINUATION).all(|(byte, marker)| *byte == marker);
        if !marked {
            let start = &self.bytes[..self.bytes.len().min(MAX_SEARCHED_BYTES)];
            let start = secrets::without_credentials(&String::from_utf8_lossy(start));
            let line = start.lines().next().unwrap_or_default();
            let line = &line[..line.floor_char_boundary(60)];
            return Err(format!("expected an Arrow message, got {}", quoted(line)));
        }
        let Some(length) = self.bytes.get(4..8) else { return Ok(None) };
        let length = i32::from_le_bytes(length.try_into().expect("four bytes"));
        let length = usize::try_from(length).ok().filter(|length| *length <= MAX_HEADER_BYTES);
        let length = length.ok_or("it wrote a message with a damaged length")?;
        if length == 0 {
            // End of the stream; later output is checked when the program exits.
            return Ok(None);
        }
        let Some(header) = self.bytes.get(8..8 + length) else { return Ok(None) };
        let body = guarded(|| body_bytes(header, self.schema.is_some()))?;
        let all = 8 + length + body;
        if self.bytes.len() < all {
            return Ok(None);
        }
        let message = (header.to_vec(), Buffer::from(&self.bytes[8 + length..all]));
        self.bytes.drain(..all);
        Ok(Some(message))
    }

    fn check(&self, schema: &Schema) -> Result<(), String> {
        let same = |(found, expected): (&Arc<Field>, &Field)| {
            found.name() == expected.name() && found.data_type() == expected.data_type()
        };
        let fields = schema.fields();
        if fields.len() == self.expected.len() && fields.iter().zip(&self.expected).all(same) {
            return Ok(());
        }
        let found: Vec<Field> = fields.iter().map(|field| field.as_ref().clone()).collect();
        Err(format!("expected the columns {}, got {}", in_words(&self.expected), in_words(&found)))
    }
}

fn schema(header: &[u8]) -> Result<Schema, String> {
    let message = root_as_message(header).map_err(|error| error.to_string())?;
    let schema = message.header_as_schema().ok_or("its first message is not a schema")?;
    try_fb_to_schema(schema).map_err(|error| error.to_string())
}

fn decode(header: &[u8], body: &Buffer, schema: &SchemaRef) -> Result<RecordBatch, String> {
    let message = root_as_message(header).map_err(|error| error.to_string())?;
    let batch = message.header_as_record_batch().ok_or("its message is not a record batch")?;
    let (schema, none) = (Arc::clone(schema), HashMap::new());
    read_record_batch(body, batch, schema, &none, None, &message.version())
        .map_err(|error| format!("it wrote a damaged record batch: {error}"))
}

pub(super) fn in_words(fields: &[Field]) -> String {
    let one = |field: &Field| format!("{} {}", quoted(field.name()), field.data_type());
    let words: Vec<String> = fields.iter().map(one).collect();
    if words.is_empty() { "none".to_owned() } else { words.join(", ") }
}

fn body_bytes(header: &[u8], has_schema: bool) -> Result<usize, String> {
    let message =
        root_as_message(header).map_err(|error| format!("it wrote a damaged message: {error}"))?;
    let wanted = if has_schema { MessageHeader::RecordBatch } else { MessageHeader::Schema };
    if message.header_type() != wanted {
        return Err(format!(
            "expected a message of the type {wanted:?}, got {:?}",
            message.header_type()
        ));
    }
    if message.header_as_record_batch().is_some_and(|batch| batch.compression().is_some()) {
        return Err("its record batches are compressed: write them uncompressed".to_owned());
    }
    let length = usize::try_from(message.bodyLength()).ok();
    let length = length.filter(|length| *length <= MAX_MESSAGE_BYTES);
    length.ok_or_else(|| {
        format!(
            "expected a message of at most {MAX_MESSAGE_BYTES} bytes, got {}",
            message.bodyLength()
        )
    })
}

/// Converts a batch to the answers of `questions`, row by row.
pub(super) fn replies(
    program: &Program,
    questions: &[Question<'_>],
    batch: &RecordBatch,
) -> Result<Vec<Reply>, String> {
    if batch.num_rows() != questions.len() {
        let (answered, expected) = (batch.num_rows(), questions.len());
        return Err(format!("expected {expected} rows, got {answered}"));
    }
    let documents = program.settings.reads == Reads::Document;
    let nulls = |column: usize| batch.column(column).null_count() > 0;
    if let Some(column) = (0..BEFORE_STATISTICS).find(|column| nulls(*column)) {
        let name = quoted(batch.schema_ref().field(column).name());
        return Err(format!("{name} of an answer is null"));
    }
    let rows = batch.column(0).as_primitive::<Int64Type>().values();
    for (index, question) in questions.iter().enumerate() {
        let window = (!documents).then(|| batch.column(1).as_primitive::<Int32Type>().value(index));
        if rows[index] != question.row as i64
            || window.is_some_and(|it| it != question.window as i32)
        {
            let of_window = |window| format!(", window {window}");
            let (expected, found) = match window {
                Some(found) => (of_window(i64::from(question.window)), of_window(i64::from(found))),
                None => Default::default(),
            };
            return Err(format!(
                "expected row {}{expected}, got row {}{found}: results must be in the order of the input rows",
                question.row, rows[index]
            ));
        }
    }
    let columns = program.settings.columns();
    let value = |index: usize, (position, column): (usize, &Column)| {
        let array = batch.column(BEFORE_STATISTICS + position);
        if array.is_null(index) {
            return Ok(Value::Null);
        }
        match column.kind {
            // NaN and infinity are missing values as well.
            Kind::Number => {
                let number = array.as_primitive::<Float64Type>().value(index);
                Ok(if number.is_finite() { Value::Number(number) } else { Value::Null })
            }
            Kind::Count | Kind::Numbers => {
                let count = array.as_primitive::<Int64Type>().value(index);
                let count = u64::try_from(count).map_err(|_| {
                    format!("{} of row {} is {count}, below 0", quoted(&column.name), rows[index])
                })?;
                Ok(Value::Count(count))
            }
        }
    };
    let reply = |index: usize| {
        let values = columns.iter().enumerate().map(|column| value(index, column));
        let values: Result<Vec<Value>, String> = values.collect();
        let drop = documents && batch.column(1).as_boolean().value(index);
        values.map(|values| Reply { drop, values })
    };
    (0..questions.len()).map(reply).collect()
}

#[cfg(test)]
mod tests {
    use arrow_array::{BooleanArray, Float64Array};
    use longsift_stages::measures::External;

    use super::*;
    use crate::base::diagnostic::DiagnosticLocation;

    fn program(reads: Reads) -> Program {
        let settings = serde_json::json!({
            "name": "own", "command": ["own"], "version": "1",
            "statistics": [{ "name": "bytes", "unit": "bytes", "doc": "length" }],
        });
        let settings: External = serde_json::from_value(settings).unwrap();
        Program::for_tests(
            External { reads, ..settings },
            DiagnosticLocation::Data("a test".to_owned()),
        )
    }

    /// A stream of two batches that answer one document each.
    fn stream() -> Vec<u8> {
        let batch = |row: i64| {
            let columns: [(&str, ArrayRef); 3] = [
                ("row", Arc::new(Int64Array::from_iter_values([row]))),
                ("drop", Arc::new(BooleanArray::from(vec![row == 2]))),
                ("bytes", Arc::new(Float64Array::from_iter_values([row as f64]))),
            ];
            RecordBatch::try_from_iter(columns).unwrap()
        };
        let mut writer = StreamWriter::try_new(Vec::new(), &batch(0).schema()).unwrap();
        writer.write(&batch(1)).unwrap();
        writer.write(&batch(2)).unwrap();
        writer.into_inner().unwrap()
    }

    fn question(row: u64) -> Question<'static> {
        Question { row, window: 0, content: QuestionContent::Text("a text".into()) }
    }

    #[test]
    fn answers_are_decoded_from_chunks_of_any_size() {
        let program = program(Reads::Document);
        for piece in [1, 7, 64, 1 << 20] {
            let (mut answers, mut found) = (Answers::new(&program), Vec::new());
            for bytes in stream().chunks(piece) {
                answers.push(bytes);
                while let Some(batch) = answers.next().unwrap() {
                    found.push(batch);
                }
            }
            assert!(!answers.has_more(), "nothing follows the end of the stream");
            let of =
                |row: u64| replies(&program, &[question(row)], &found[row as usize - 1]).unwrap();
            assert_eq!(of(1), [Reply { drop: false, values: vec![Value::Number(1.0)] }]);
            assert_eq!(of(2), [Reply { drop: true, values: vec![Value::Number(2.0)] }]);
            let why = replies(&program, &[question(2)], &found[0]).unwrap_err();
            assert!(why.starts_with("expected row 2, got row 1"), "{why}");
            let why = replies(&program, &[question(1), question(2)], &found[0]).unwrap_err();
            assert_eq!(why, "expected 2 rows, got 1");
        }
    }

    #[test]
    fn damaged_bytes_never_decode_to_wrong_columns() {
        let program = program(Reads::Document);
        let whole = stream();
        let expected =
            |batch: &RecordBatch| batch.num_rows() == 1 && batch.schema().fields().len() == 3;
        for offset in 0..whole.len() {
            for bit in [0x01, 0x80] {
                let mut bytes = whole.clone();
                bytes[offset] ^= bit;
                let mut answers = Answers::new(&program);
                answers.push(&bytes);
                while let Ok(Some(batch)) = answers.next() {
                    assert!(expected(&batch), "byte {offset}");
                }
            }
        }
    }

    #[test]
    fn printed_text_is_detected_immediately() {
        for printed in ["x", "Loading the model\n", "\u{ff}"] {
            let mut answers = Answers::new(&program(Reads::Text));
            answers.push(printed.as_bytes());
            let why = answers.next().unwrap_err();
            assert!(why.contains("expected an Arrow message"), "{why}");
        }
        let mut answers = Answers::new(&program(Reads::Text));
        answers.push(&[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f]);
        assert_eq!(answers.next().unwrap_err(), "it wrote a message with a damaged length");
        let mut answers = Answers::new(&program(Reads::Text));
        answers.push(&stream());
        let why = answers.next().unwrap_err();
        assert!(
            why.contains("`bytes` Float64, got `row` Int64, `drop` Boolean, `bytes` Float64"),
            "{why}"
        );
    }
}
