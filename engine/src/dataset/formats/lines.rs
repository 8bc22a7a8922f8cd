//! Files of lines: JSON Lines, and tables with JSON in their second column, plain or compressed as a whole.
//!
//! A line that does not fit the columns is a row all the same: it is null, and bad. Lines are looked through before they are
//! decoded; a line is decoded together with others and, where one of them is bad, alone.

use std::io::BufRead;
use std::ops::Range;
use std::sync::Arc;

use arrow_array::{RecordBatch, RecordBatchOptions, new_null_array};
use arrow_json::ReaderBuilder;
use arrow_json::reader::Decoder;
use arrow_schema::{ArrowError, SchemaRef};
use arrow_select::concat::concat_batches;

use super::compression::Compression;
use super::decode::{Decode, Decoded, Wanted, chosen_rows};
use super::form::{Fed, Form};
use super::line_reader::LineReader;
use super::survey::Survey;
use crate::dataset::problem::RowProblem;
use crate::dataset::source::{OpenFile, guarded};

/// Bytes of lines that are decoded together, at least.
const BATCH_BYTES: usize = 16 << 20;

/// What is known of a file of lines.
#[derive(Clone, Debug)]
pub(in crate::dataset) struct Lines {
    /// What a line holds.
    pub(in crate::dataset) form: Form,
    pub(in crate::dataset) compression: Compression,
    /// Where lines begin.
    pub(in crate::dataset) survey: Arc<Survey>,
    /// Whether the columns were found from the first lines of the input: then a field that they do not have makes a line bad,
    /// since nobody has decided to leave it out.
    pub(in crate::dataset) inferred: bool,
    /// Bytes of the longest line that is read.
    pub(in crate::dataset) longest_line: u64,
}

impl Lines {
    /// Begins to decode what is wanted. `schema`: the file's columns.
    pub(in crate::dataset) fn open(
        &self,
        source: &OpenFile,
        schema: &SchemaRef,
        wanted: &Wanted,
    ) -> Result<Box<dyn Decode>, String> {
        let groups = self.survey.row_groups(u64::MAX);
        let mut rows = chosen_rows(&groups, wanted);
        rows.reverse();
        if self.compression == Compression::None {
            let starts = wanted.row_groups.iter().map(|group| {
                (self.survey.stretches[*group].start, groups[*group].uncompressed_bytes)
            });
            source.want(starts);
        }
        let schema = Arc::new(schema.project(&wanted.in_file_order()).map_err(said)?);
        let strict = wanted.strict && self.inferred;
        let batch_rows = wanted.batch_rows.max(1);
        let lines = self.clone();
        let source = source.clone();
        Ok(Box::new(LinesDecoder { lines, source, schema, strict, batch_rows, rows, reader: None }))
    }
}

/// What is wrong, without the words that every error of the library begins with.
#[expect(clippy::needless_pass_by_value, reason = "it stands in `map_err`")]
fn said(error: ArrowError) -> String {
    error.to_string()
}

struct LinesDecoder {
    lines: Lines,
    source: OpenFile,
    schema: SchemaRef,
    strict: bool,
    batch_rows: usize,
    /// Rows still to read, the next ones last.
    rows: Vec<Range<u64>>,
    /// Where the file is being read, and the next row there.
    reader: Option<(LineReader<Box<dyn BufRead + Send>>, u64)>,
}

/// Lines that are decoded together.
#[derive(Default)]
struct Together {
    text: Vec<u8>,
    lines: Vec<One>,
}

/// A line of them: its number, where it stands in the text, and why it was not read, if it was not.
struct One {
    number: u64,
    text: Range<usize>,
    problem: Option<RowProblem>,
}

impl Decode for LinesDecoder {
    fn next(&mut self) -> Result<Option<Decoded>, String> {
        let some = self.read()?;
        if some.lines.is_empty() {
            return Ok(None);
        }
        guarded(|| self.decode(&some)).map(Some)
    }
}

impl LinesDecoder {
    /// Reads the next lines.
    fn read(&mut self) -> Result<Together, String> {
        let mut some = Together::default();
        let limit = self.lines.longest_line;
        while some.lines.len() < self.batch_rows && some.text.len() < BATCH_BYTES {
            let Some(rows) = self.rows.last_mut() else { break };
            let row = rows.start;
            rows.start += 1;
            if rows.is_empty() {
                self.rows.pop();
            }
            let reader = self.at(row)?;
            let before = some.text.len();
            let line =
                reader.next(Some(&mut some.text), limit).map_err(|error| error.to_string())?;
            let Some(line) = line else { return Err(self.ended(row)) };
            let number = line.number;
            let problem = if line.bytes > limit {
                let message = format!(
                    "line {number} has {} bytes; lines of at most {limit} are read (4 times `max_document_bytes`)",
                    line.bytes
                );
                Some(RowProblem { code: "line_too_long", message })
            } else {
                let columns = self.schema.fields();
                self.lines.form.problem(number, &some.text[before..], columns, self.strict)
            };
            some.lines.push(One { number, text: before..some.text.len(), problem });
        }
        Ok(some)
    }

    /// The file's reader, at the beginning of a row.
    fn at(&mut self, row: u64) -> Result<&mut LineReader<Box<dyn BufRead + Send>>, String> {
        let stretches = &self.lines.survey.stretches;
        let stretch =
            stretches.partition_point(|stretch| stretch.first_row <= row).saturating_sub(1);
        let stretch = *stretches.get(stretch).ok_or_else(|| self.ended(row))?;
        let is_behind = self.reader.as_ref().is_none_or(|(_, next)| *next < stretch.first_row);
        if is_behind {
            // What is compressed is read from its beginning.
            let (start, before) = match self.lines.compression {
                Compression::None => (stretch.start, stretch.lines_before),
                _ => (0, 0),
            };
            let bytes = self.source.reader(start);
            let reader = self.lines.compression.reader(bytes).map_err(|error| error.to_string())?;
            let reader = LineReader::new(reader, start, before);
            self.reader = Some((reader, stretch.first_row));
        }
        let ended = self.ended(row);
        let (reader, next) = self.reader.as_mut().expect("it was just put there");
        while *next < row {
            reader
                .next(None, 0)
                .map_err(|error| error.to_string())?
                .ok_or_else(|| ended.clone())?;
            *next += 1;
        }
        *next += 1;
        Ok(reader)
    }

    fn ended(&self, row: u64) -> String {
        format!("the file ends before row {row}; it had {} rows", self.lines.survey.rows)
    }

    fn decode(&self, some: &Together) -> Result<Decoded, String> {
        if let Some(batch) = self.together(some) {
            return Ok(Decoded { batch, bad: Vec::new() });
        }
        let (mut batches, mut bad) = (Vec::with_capacity(some.lines.len()), Vec::new());
        for (position, line) in some.lines.iter().enumerate() {
            match self.alone(line, &some.text[line.text.clone()]) {
                Ok(batch) => batches.push(batch),
                Err(problem) => {
                    batches.push(self.null()?);
                    bad.push((position, problem));
                }
            }
        }
        let batch = concat_batches(&self.schema, &batches).map_err(said)?;
        Ok(Decoded { batch, bad })
    }

    /// All lines at once; none where one of them is bad.
    fn together(&self, some: &Together) -> Option<RecordBatch> {
        if some.lines.iter().any(|line| line.problem.is_some()) {
            return None;
        }
        let mut decoder = self.decoder(some.lines.len()).ok()?;
        for line in &some.lines {
            self.feed(&mut decoder, &some.text[line.text.clone()]).ok()?;
        }
        decoder.flush().ok()?
    }

    /// One line by itself.
    fn alone(&self, line: &One, text: &[u8]) -> Result<RecordBatch, RowProblem> {
        if let Some(problem) = &line.problem {
            return Err(problem.clone());
        }
        let decoded = guarded(|| {
            let mut decoder = self.decoder(1).map_err(said)?;
            self.feed(&mut decoder, text)?;
            decoder.flush().map_err(said)?.ok_or_else(|| "the line is empty".to_owned())
        });
        let problem =
            |why| RowProblem { code: "bad_line", message: format!("line {}: {why}", line.number) };
        decoded.map_err(problem)
    }

    fn decoder(&self, rows: usize) -> Result<Decoder, ArrowError> {
        // With room for one more a decoder never stops before the end of a line.
        ReaderBuilder::new(Arc::clone(&self.schema)).with_batch_size(rows + 1).build_decoder()
    }

    /// Gives a line to a decoder.
    ///
    /// # Errors
    /// The line is not exactly one row.
    fn feed(&self, decoder: &mut Decoder, line: &[u8]) -> Result<(), String> {
        let before = decoder.len();
        let mut left_over = false;
        let mut decode = |bytes: &[u8]| {
            let read = decoder.decode(bytes)?;
            left_over |= !bytes[read..].trim_ascii().is_empty();
            Ok(())
        };
        let fed = self
            .lines
            .form
            .feed(line, &mut decode)
            .and_then(|()| decode(b"\n").map_err(Fed::Refused));
        match fed {
            Err(Fed::Refused(error)) => return Err(said(error)),
            Err(Fed::NotOfTheForm) => {
                return Err(format!("{} is expected", self.lines.form.line()));
            }
            Ok(()) => {}
        }
        if left_over || decoder.has_partial_record() || decoder.len() != before + 1 {
            return Err("the line is not one JSON object".to_owned());
        }
        Ok(())
    }

    /// A row of nulls.
    fn null(&self) -> Result<RecordBatch, String> {
        let columns = self.schema.fields().iter().map(|field| new_null_array(field.data_type(), 1));
        let options = RecordBatchOptions::new().with_row_count(Some(1));
        RecordBatch::try_new_with_options(Arc::clone(&self.schema), columns.collect(), &options)
            .map_err(said)
    }
}
