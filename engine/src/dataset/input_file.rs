//! One file of the input, opened and checked: what is known of it before any row is read.

use std::io::Read;
use std::ops::Range;
use std::sync::Arc;

use arrow_schema::{Schema, SchemaRef};
use longsift_stages::contract::{SIGNATURE_BYTES, Signature};

use super::discover::Found;
use super::footer::Footer;
use super::formats::arrow_ipc::ArrowFile;
use super::formats::compression::Compression;
use super::formats::decode::{Decode, DecodeError, RowGroupInfo, Wanted};
use super::formats::form::Form;
use super::formats::format::Format;
use super::formats::kept::Kept;
use super::formats::lines::Lines;
use super::formats::parquet;
use super::formats::survey::Survey;
use super::partitions::{self, WithPartitions};
use super::problem::DataProblem;
use super::reading::Reading;
use super::source::OpenFile;
use super::walk::unreadable;
use crate::base::diagnostic::Blame;
use crate::storage::error::ErrorKind;
use crate::storage::range_file::Stamp;
use crate::storage::store::is_address;

/// A file of the input.
#[derive(Clone, Debug)]
pub struct InputFile {
    /// Path relative to the input root, '/'-separated.
    pub path: String,
    /// Length, in bytes.
    pub size: u64,
    /// Time of the last modification, in nanoseconds since 1970.
    pub modified_ns: i128,
    /// Time of the last change of its status, which nobody can set.
    pub(super) changed_ns: i128,
    /// Hash of the entity tag of a file that is elsewhere; 0 where there is none.
    pub version: u32,
    /// SHA-256 of the footer's bytes: it has the sizes and statistics of every column of every row group. Of lines,
    /// of all the file's bytes; of Arrow, of the headers of its messages and the time of modification.
    pub footer_hash: String,
    /// Rows in the file.
    pub rows: u64,
    /// Its row groups, in order.
    pub row_groups: Vec<RowGroupInfo>,
    /// The file's own columns.
    pub schema: SchemaRef,
    /// For each column of the data set, its position in this file.
    pub(super) positions: Vec<usize>,
    /// The values of the last columns of `schema`, which are those of the folders around the file.
    pub(super) partitions: Vec<Option<String>>,
    /// What its format knows of it.
    pub(super) contents: Contents,
}

/// What a format knows of a file.
#[derive(Clone, Debug)]
pub(super) enum Contents {
    /// A Parquet file, and how many bytes a page of it may decompress to.
    Parquet(Footer, u64),
    /// An Arrow file or stream.
    Arrow(ArrowFile),
    /// A file of lines.
    Lines(Lines),
}

impl InputFile {
    /// Reads and checks what `root/path` says of itself. Files of lines have no columns yet: all of them together say what
    /// these are.
    pub(super) fn open(found: &Found, path: &str, reading: &Reading) -> Result<Self, DataProblem> {
        Self::read(found, path, reading).map_err(|problem| problem.in_file(path))
    }

    fn read(found: &Found, path: &str, reading: &Reading) -> Result<Self, DataProblem> {
        let handed = reading.footers.as_ref().filter(|_| found.hub.is_none());
        if let Some((stamp, footer)) = handed.and_then(|handed| handed.of(&found.root, path)) {
            let (footer, row_groups) = Footer::parse(footer, stamp.size)?;
            return Ok(Self::parquet(path, stamp, (footer, row_groups), reading));
        }
        let file = match &found.hub {
            Some(hub) => OpenFile::of_hub(hub, path)?,
            None => OpenFile::open(&found.root.join(path)).map_err(|error| match error.kind {
                ErrorKind::Invalid => DataProblem::data(error.source.to_string()),
                _ => unreadable(&error),
            })?,
        };
        let format = Format::of(path, reading.format);
        Self::read_open(found, path, reading, format, &file).map_err(|problem| {
            if problem.blame == Blame::Data { recognised(&file, format, problem) } else { problem }
        })
    }

    fn read_open(
        found: &Found,
        path: &str,
        reading: &Reading,
        format: Format,
        file: &OpenFile,
    ) -> Result<Self, DataProblem> {
        let stamp = file.stamp().map_err(|error| unreadable(&error))?;
        let (hash, schema, row_groups, contents) = match format {
            Format::Parquet => {
                let (footer, row_groups) = Footer::read(file, stamp.size)?;
                return Ok(Self::parquet(path, stamp, (footer, row_groups), reading));
            }
            Format::Arrow => {
                let file = ArrowFile::read(file, stamp, reading.max_part_bytes)?;
                let (digest, schema) = (file.digest.clone(), Arc::clone(&file.schema));
                (digest, schema, file.row_groups.clone(), Contents::Arrow(file))
            }
            Format::Lines(form, compression) => {
                // An empty file holds nothing, whatever its name.
                let compression = if stamp.size == 0 { Compression::None } else { compression };
                let (survey, kept) =
                    survey(found, path, (file, stamp), reading, (form, compression))?;
                let lines = Lines {
                    form,
                    compression,
                    survey: Arc::new(survey),
                    kept,
                    inferred: reading.columns.is_none(),
                    longest_line: reading.max_part_bytes,
                };
                let row_groups = lines.survey.row_groups(stamp.size);
                let hash = lines.survey.sha256.clone();
                (hash, Arc::new(Schema::empty()), row_groups, Contents::Lines(lines))
            }
        };
        Ok(Self::of(path, stamp, (hash, schema), row_groups, contents))
    }

    fn parquet(
        path: &str,
        stamp: Stamp,
        (footer, row_groups): (Footer, Vec<RowGroupInfo>),
        reading: &Reading,
    ) -> Self {
        let known = (footer.hash.clone(), Arc::clone(&footer.schema));
        Self::of(path, stamp, known, row_groups, Contents::Parquet(footer, reading.max_part_bytes))
    }

    fn of(
        path: &str,
        stamp: Stamp,
        (footer_hash, schema): (String, SchemaRef),
        row_groups: Vec<RowGroupInfo>,
        contents: Contents,
    ) -> Self {
        Self {
            path: path.to_string(),
            size: stamp.size,
            modified_ns: stamp.modified_ns,
            changed_ns: stamp.changed_ns,
            version: stamp.version,
            footer_hash,
            rows: row_groups.iter().map(|group| group.rows).sum(),
            row_groups,
            positions: (0..schema.fields().len()).collect(),
            partitions: Vec::new(),
            schema,
            contents,
        }
    }

    /// The path without the endings that say how the file is read.
    pub fn stem(&self) -> &str {
        Format::stem(&self.path)
    }

    /// Gives a file of lines its columns.
    pub(super) fn settle(&mut self, columns: &SchemaRef) {
        if let Contents::Lines(_) = self.contents {
            self.positions = (0..columns.fields().len()).collect();
            self.schema = Arc::clone(columns);
        }
    }

    /// What is known of a file of lines.
    pub(super) fn lines(&self) -> Option<&Lines> {
        match &self.contents {
            Contents::Lines(lines) => Some(lines),
            Contents::Parquet(..) | Contents::Arrow(_) => None,
        }
    }

    /// Begins to decode what is wanted of the file that `source` has open.
    pub(super) fn decode(
        &self,
        source: &OpenFile,
        wanted: &Wanted,
    ) -> Result<Box<dyn Decode>, DecodeError> {
        let own = self.schema.fields().len() - self.partitions.len();
        let all = wanted.in_file_order();
        let is_own = all.iter().filter(|position| **position < own).count();
        if is_own == all.len() {
            return self.decode_own(source, wanted);
        }
        let file = self.decode_own(source, &partitions::own_columns(wanted, own))?;
        let partition = |position: &usize| {
            let name = self.schema.field(*position).name().clone();
            (name, self.partitions[*position - own].clone())
        };
        let partitions = all[is_own..].iter().map(partition).collect();
        Ok(Box::new(WithPartitions { file, own: is_own, partitions }))
    }

    /// Decodes columns that the file itself has.
    fn decode_own(
        &self,
        source: &OpenFile,
        wanted: &Wanted,
    ) -> Result<Box<dyn Decode>, DecodeError> {
        match &self.contents {
            Contents::Parquet(footer, page_bytes) => {
                parquet::open(footer, &self.row_groups, source, wanted, *page_bytes)
            }
            Contents::Arrow(file) => Ok(file.open(source, wanted)),
            Contents::Lines(lines) => lines.open(source, &self.schema, wanted),
        }
    }

    /// The bytes of one column (by its position in the file) over some row groups: (decoded, in the file); those of
    /// all columns where nobody has told them apart.
    pub(super) fn column_bytes(&self, position: usize, row_groups: Range<usize>) -> (u64, u64) {
        match &self.contents {
            Contents::Parquet(footer, _) => footer.column_bytes(position, row_groups),
            Contents::Arrow(_) | Contents::Lines(_) => {
                let groups = &self.row_groups[row_groups];
                let sum = |bytes: fn(&RowGroupInfo) -> u64| groups.iter().map(bytes).sum();
                (sum(|group| group.uncompressed_bytes), sum(|group| group.compressed_bytes))
            }
        }
    }

    /// The decoded bytes of a column of the data set; `None` where the format does not say those of one column.
    pub(super) fn own_bytes(&self, column: usize) -> Option<u64> {
        let groups = 0..self.row_groups.len();
        match &self.contents {
            Contents::Parquet(footer, _) => {
                Some(footer.column_bytes(self.positions[column], groups).0)
            }
            Contents::Arrow(_) | Contents::Lines(_) => None,
        }
    }

    /// The decoded bytes of some columns (by their positions in the file) in a row group.
    pub(super) fn decoded_bytes(&self, positions: &[usize], row_group: usize) -> u64 {
        match &self.contents {
            Contents::Parquet(footer, _) => {
                let bytes = |&position| footer.column_bytes(position, row_group..row_group + 1).0;
                positions.iter().map(bytes).fold(0, u64::saturating_add)
            }
            Contents::Arrow(_) | Contents::Lines(_) => {
                self.row_groups[row_group].uncompressed_bytes
            }
        }
    }

    /// Whether a row group is read by itself; lines are read on.
    pub(super) fn has_row_groups(&self) -> bool {
        match &self.contents {
            Contents::Parquet(..) | Contents::Arrow(_) => true,
            Contents::Lines(_) => false,
        }
    }
}

/// What is wrong with a file whose first bytes say that it is of another kind than its name; else `problem`.
fn recognised(file: &OpenFile, format: Format, problem: DataProblem) -> DataProblem {
    let mut start = Vec::new();
    if file.reader(0).take(SIGNATURE_BYTES as u64).read_to_end(&mut start).is_err() {
        return problem;
    }
    let compression = match format {
        Format::Lines(_, compression) => compression,
        Format::Parquet | Format::Arrow => Compression::None,
    };
    let (message, remedy) = match Signature::of(&start) {
        Some(found) if !format.begins_like(found) => {
            (format!("it is {}, not {}", found.name, format.name()), found.remedy)
        }
        None if compression != Compression::None
            && start.first().is_some_and(u8::is_ascii_graphic) =>
        {
            (
                format!("it is plain text, not {}", format.name()),
                "take the ending of compressed files off its name",
            )
        }
        _ => return problem,
    };
    DataProblem::data(message).with_hint(remedy)
}

/// The look through a file of lines: taken now, or before.
fn survey(
    found: &Found,
    path: &str,
    (file, stamp): (&OpenFile, Stamp),
    reading: &Reading,
    (form, compression): (Form, Compression),
) -> Result<(Survey, Kept), DataProblem> {
    let place = found.root.join(path);
    let place =
        if is_address(&place) { place } else { std::path::absolute(&place).unwrap_or(place) };
    let version = file.version();
    let read_as = format!("{form:?} {compression:?}");
    let kept =
        Kept::of(reading.cache_folder.as_deref(), &place, stamp, version.as_deref(), &read_as);
    if let Some(survey) = kept.read() {
        return Ok((survey, kept));
    }
    let survey = Survey::of(file, stamp.size, form, compression)?;
    let now = file.stamp().map_err(|error| unreadable(&error))?;
    if now != stamp {
        return Err(DataProblem::data("it changed while its lines were counted")
            .with_hint("let whatever writes it finish, then run again"));
    }
    kept.write(&survey);
    Ok((survey, kept))
}
