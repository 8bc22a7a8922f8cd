//! Arrow IPC files (`ARROW1`) and streams, read message by message. A record batch is a row group.
//!
//! Every length that a message claims is checked against the file, and the decompressed size of its buffers against a
//! limit, before the library allocates memory for it.

use std::ops::Range;
use std::sync::Arc;

use arrow_array::RecordBatch;
use arrow_buffer::Buffer;
use arrow_ipc::convert::try_fb_to_schema;
use arrow_ipc::reader::{FileDecoder, read_footer_length};
use arrow_ipc::{Block, MetadataVersion, root_as_footer, root_as_message};
use arrow_schema::{DataType, Schema, SchemaRef};
use longsift_stages::contract::hex;
use parquet::arrow::ArrowSchemaConverter;
use sha2::{Digest, Sha256};

use super::decode::{Decode, DecodeError, DecodeRequest, Decoded, RowGroupInfo};
use super::type_names;
use crate::base::stop::Stop;
use crate::dataset::footer::check_names;
use crate::dataset::problem::DataProblem;
use crate::dataset::source::{OpenFile, guarded};
use crate::dataset::{text, types};
use crate::storage::range_file::Stamp;

const MAGIC: &[u8; 6] = b"ARROW1";
/// Length of the footer and trailing magic number.
const TAIL_BYTES: u64 = 10;
const CONTINUATION: [u8; 4] = [0xff; 4];
const MAX_HEADER_BYTES: u64 = 32 << 20;

#[derive(Clone, Debug)]
pub(crate) struct ArrowFile {
    /// SHA-256 of the messages' offsets and headers and of the file's modification time, as values have no checksum.
    pub(crate) digest: String,
    pub(crate) schema: SchemaRef,
    pub(crate) row_groups: Vec<RowGroupInfo>,
    version: MetadataVersion,
    messages: Arc<Vec<MessagePosition>>,
    /// Largest message that is read, in decompressed bytes.
    largest: u64,
}

/// Position of a dictionary or a record batch.
#[derive(Clone, Copy, Debug)]
struct MessagePosition {
    start: u64,
    /// Bytes of the header, including its length prefix.
    header: u64,
    body: u64,
    /// Rows of a record batch; `None` for a dictionary.
    rows: Option<u64>,
}

impl MessagePosition {
    fn bytes(self) -> u64 {
        self.header + self.body
    }
}

impl ArrowFile {
    /// Reads the headers of all messages.
    pub(crate) fn read(file: &OpenFile, stamp: Stamp, largest: u64) -> Result<Self, DataProblem> {
        let digest = Sha256::new_with_prefix(stamp.modified_ns.to_le_bytes());
        let scan = ArrowScan { file, size: stamp.size, largest, digest };
        guarded(|| Ok::<_, String>(scan.all())).unwrap_or_else(|why| Err(damaged(why)))
    }

    pub(crate) fn open(&self, source: &OpenFile, wanted: &DecodeRequest) -> Box<dyn Decode> {
        let groups = wanted.by_row_group(&self.row_groups);
        let dictionaries = self.messages.iter().filter(|message| message.rows.is_none());
        let batches: Vec<&MessagePosition> =
            self.messages.iter().filter(|message| message.rows.is_some()).collect();
        let batches = groups.iter().map(|(group, _)| batches[*group]);
        source.file.hint_ranges(
            dictionaries.chain(batches).map(|message| (message.start, message.bytes())),
        );
        let fields = self.schema.fields().iter();
        let fields = fields.map(|field| types::map_field(field, text::bytes_of_same_layout));
        let schema = Arc::new(Schema::new(fields.collect::<Vec<_>>()));
        let decoder =
            FileDecoder::new(schema, self.version).with_projection(wanted.in_file_order());
        let (file, source) = (self.clone(), source.clone());
        let batch_rows = wanted.batch_rows.max(1);
        let rows = wanted.rows.iter().rev().cloned().collect();
        let (next, batches, batch) = (0, 0, None);
        Box::new(ArrowDecoder { file, source, decoder, rows, batch_rows, next, batches, batch })
    }
}

struct ArrowDecoder {
    file: ArrowFile,
    source: OpenFile,
    decoder: FileDecoder,
    /// Row ranges still to read, the next one last.
    rows: Vec<Range<u64>>,
    batch_rows: usize,
    /// Index of the next unread message; `batches`: number of record batches before it.
    next: usize,
    batches: usize,
    /// Decoded batch and its rows in the file.
    batch: Option<(RecordBatch, Range<u64>)>,
}

impl Decode for ArrowDecoder {
    fn next(&mut self) -> Result<Option<Decoded>, DecodeError> {
        let Some(rows) = self.rows.last().cloned() else { return Ok(None) };
        while self.batch.as_ref().is_none_or(|(_, own)| own.end <= rows.start) {
            self.batch = Some(self.read(rows.start)?);
        }
        let (batch, own) = self.batch.as_ref().expect("it was just read");
        let end = rows.end.min(own.end).min(rows.start + self.batch_rows as u64);
        let batch = batch.slice((rows.start - own.start) as usize, (end - rows.start) as usize);
        let left = self.rows.last_mut().expect("it was just there");
        left.start = end;
        if left.is_empty() {
            self.rows.pop();
        }
        Ok(Some(Decoded { batch, bad: Vec::new() }))
    }
}

impl ArrowDecoder {
    /// Decodes the next record batch that ends after `row`, and the dictionaries before it.
    fn read(&mut self, row: u64) -> Result<(RecordBatch, Range<u64>), DecodeError> {
        loop {
            let message = *self.file.messages.get(self.next).ok_or("it has fewer rows")?;
            self.next += 1;
            let group_rows = message.rows.map(|_| {
                let info = self.file.row_groups[self.batches];
                self.batches += 1;
                info.first_row..info.first_row + info.rows
            });
            if group_rows.as_ref().is_some_and(|rows| rows.end <= row) {
                continue;
            }
            let bytes = self.bytes(message)?;
            let offset = i64::try_from(message.start)?;
            let header = i32::try_from(message.header)?;
            let block = Block::new(offset, header, message.body as i64);
            let Some(rows) = group_rows else {
                guarded(|| self.decoder.read_dictionary(&block, &bytes))?;
                continue;
            };
            let batch = guarded(|| self.decoder.read_record_batch(&block, &bytes))?;
            let batch = batch.filter(|batch| batch.num_rows() as u64 == rows.end - rows.start);
            return Ok((
                batch.ok_or("a record batch does not have the number of rows in its header")?,
                rows,
            ));
        }
    }

    /// Reads a message, after checking the decompressed size of its buffers.
    fn bytes(&self, message: MessagePosition) -> Result<Buffer, DecodeError> {
        let mut bytes = vec![0; usize::try_from(message.bytes())?];
        self.source.read_exact_at(&mut bytes, message.start)?;
        check_decompressed(&bytes, message.header as usize, self.file.largest)?;
        Ok(bytes.into())
    }
}

/// Checks that the buffers claim at most `largest` decompressed bytes: the library allocates the claimed size.
fn check_decompressed(bytes: &[u8], header: usize, largest: u64) -> Result<(), DecodeError> {
    let start = if bytes[..4] == CONTINUATION { 8 } else { 4 };
    let message = root_as_message(&bytes[start..header])?;
    let batch = message
        .header_as_record_batch()
        .or_else(|| message.header_as_dictionary_batch().and_then(|batch| batch.data()));
    let Some(batch) = batch.filter(|batch| batch.compression().is_some()) else { return Ok(()) };
    let mut sum = 0_u64;
    for buffer in batch.buffers().into_iter().flatten() {
        let at = usize::try_from(buffer.offset()).ok().and_then(|offset| {
            let start = header.checked_add(offset)?;
            bytes.get(start..start.checked_add(8)?)
        });
        // An empty buffer has no length prefix; the prefix -1 marks an uncompressed buffer.
        if let Some(length) = at.filter(|_| buffer.length() > 0) {
            let length = i64::from_le_bytes(length.try_into().expect("eight bytes"));
            sum = sum.saturating_add(u64::try_from(length).unwrap_or(0));
        }
    }
    if sum > largest {
        let message = format!(
            "a record batch decompresses to {sum} bytes; the limit is {largest} (4 times `max_document_bytes`)"
        );
        let hint = format!(
            "set `input.max_document_bytes` to at least {}, or write smaller record batches",
            sum.div_ceil(4)
        );
        return Err(DecodeError { code: "record_batch_too_large", message, hint: Some(hint) });
    }
    Ok(())
}

struct ArrowScan<'a> {
    file: &'a OpenFile,
    size: u64,
    largest: u64,
    digest: Sha256,
}

impl ArrowScan<'_> {
    fn all(mut self) -> Result<ArrowFile, DataProblem> {
        let is_file = self.take(0, self.size.min(MAGIC.len() as u64))?.starts_with(MAGIC);
        let found = if is_file { self.scan_file()? } else { self.scan_stream()? };
        let (schema, version, messages) = found;
        check_names(&schema)?;
        check_columns(&schema)?;
        let (mut first_row, mut row_groups) = (0_u64, Vec::new());
        for message in &messages {
            let bytes = message.bytes();
            if bytes > self.largest {
                let largest = self.largest;
                return Err(DataProblem::data(format!("a record batch has {bytes} bytes; at most {largest} are read"))
                    .with_hint("write smaller record batches, or raise `max_document_bytes`, a quarter of this limit"));
            }
            let Some(rows) = message.rows else { continue };
            let (uncompressed_bytes, compressed_bytes) = (bytes, bytes);
            row_groups.push(RowGroupInfo { first_row, rows, uncompressed_bytes, compressed_bytes });
            first_row =
                first_row.checked_add(rows).ok_or_else(|| damaged("its rows overflow 64 bits"))?;
        }
        let digest = hex(&self.digest.finalize());
        let (messages, largest) = (Arc::new(messages), self.largest);
        Ok(ArrowFile { digest, schema: Arc::new(schema), row_groups, version, messages, largest })
    }

    /// Reads the messages listed in the footer of a file. Dictionaries precede the record batches that use them.
    fn scan_file(&mut self) -> Result<ArrowMessages, DataProblem> {
        let tail_start = self.size.checked_sub(TAIL_BYTES).ok_or_else(cut_off)?;
        let tail: [u8; TAIL_BYTES as usize] =
            self.take(tail_start, TAIL_BYTES)?.try_into().expect("as many bytes as requested");
        let length = read_footer_length(tail).map_err(|_| cut_off())? as u64;
        if length > MAX_HEADER_BYTES {
            return Err(damaged(format!("its footer claims {length} bytes")));
        }
        let start = tail_start.checked_sub(length).ok_or_else(cut_off)?;
        let bytes = self.take(start, length)?;
        let footer = root_as_footer(&bytes).map_err(damaged)?;
        let schema = footer.schema().ok_or_else(|| damaged("it has no schema"))?;
        let schema = try_fb_to_schema(schema).map_err(damaged)?;
        let dictionaries = footer.dictionaries().into_iter().flatten();
        let batches = footer.recordBatches().into_iter().flatten();
        let mut messages = Vec::new();
        for block in dictionaries.chain(batches) {
            let start = u64::try_from(block.offset())
                .map_err(|_| damaged("a block has a negative offset"))?;
            let (_, read) = self.message(start)?.ok_or_else(|| damaged("a block is empty"))?;
            messages.push(read);
        }
        Ok((schema, footer.version(), messages))
    }

    fn scan_stream(&mut self) -> Result<ArrowMessages, DataProblem> {
        let (mut schema, mut messages, mut offset) = (None, Vec::new(), 0);
        while let Some((header, message)) = self.message(offset)? {
            offset = message.start + message.bytes();
            let read = root_as_message(&header).map_err(damaged)?;
            match read.header_as_schema() {
                Some(columns) if schema.is_none() => {
                    schema = Some((try_fb_to_schema(columns).map_err(damaged)?, read.version()));
                }
                _ if schema.is_some() => messages.push(message),
                _ => return Err(damaged("it does not begin with a schema")),
            }
        }
        let (schema, version) = schema.ok_or_else(|| damaged("it has no schema"))?;
        Ok((schema, version, messages))
    }

    /// Reads the header of the message at `start`; `None` at the end of the file.
    fn message(&mut self, start: u64) -> Result<Option<(Vec<u8>, MessagePosition)>, DataProblem> {
        if Stop::global().check().is_err() {
            return Err(DataProblem::machine("interrupted while it was opened"));
        }
        if start == self.size {
            return Ok(None);
        }
        let mut offset = start;
        let mut length = self.take(offset, 4)?;
        offset += 4;
        if length == CONTINUATION {
            length = self.take(offset, 4)?;
            offset += 4;
        }
        let length = u64::from(u32::from_le_bytes(length.try_into().expect("four bytes")));
        if length == 0 {
            return Ok(None);
        }
        if length > MAX_HEADER_BYTES {
            return Err(damaged(format!("a header claims {length} bytes")));
        }
        let header = self.take(offset, length)?;
        offset += length;
        let message = root_as_message(&header).map_err(damaged)?;
        let body =
            u64::try_from(message.bodyLength()).ok().filter(|body| *body <= self.size - offset);
        let body = body.ok_or_else(|| damaged("a message claims more bytes than the file has"))?;
        let rows = match message.header_as_record_batch().map(|batch| u64::try_from(batch.length()))
        {
            None => None,
            Some(Ok(rows)) => Some(rows),
            Some(Err(_)) => return Err(damaged("a record batch claims negative rows")),
        };
        Ok(Some((header, MessagePosition { start, header: offset - start, body, rows })))
    }

    fn take(&mut self, offset: u64, bytes: u64) -> Result<Vec<u8>, DataProblem> {
        if offset.checked_add(bytes).is_none_or(|end| end > self.size) {
            return Err(cut_off());
        }
        let mut buffer = vec![0; bytes as usize];
        self.file.read_exact_at(&mut buffer, offset).map_err(|error| {
            let machine = || DataProblem::machine(format!("it cannot be read: {error}"));
            self.file.refused().map_or_else(machine, DataProblem::unread)
        })?;
        self.digest.update(offset.to_le_bytes());
        self.digest.update(&buffer);
        Ok(buffer)
    }
}

type ArrowMessages = (Schema, MetadataVersion, Vec<MessagePosition>);

fn cut_off() -> DataProblem {
    damaged("it is truncated or still being written")
}

/// Checks that Parquet, the output format, can hold the columns.
fn check_columns(schema: &Schema) -> Result<(), DataProblem> {
    for field in schema.fields() {
        let stored = field.as_ref().clone().with_data_type(types::storage_type(field.data_type()));
        let one = Schema::new(vec![stored]);
        let known = !matches!(field.data_type(), DataType::RunEndEncoded(..))
            && guarded(|| ArrowSchemaConverter::new().convert(&one)).is_ok();
        if !known {
            return Err(DataProblem::settings(format!(
                "column `{}` has type {}, which Parquet does not support",
                field.name(),
                type_names::name(field.data_type())
            ))
            .with_hint("remove the column, or write it as another type"));
        }
    }
    Ok(())
}

fn damaged(why: impl std::fmt::Display) -> DataProblem {
    DataProblem::data(format!("not a readable Arrow file: {why}"))
        .with_hint("rewrite the file, or exclude it from the input")
}
