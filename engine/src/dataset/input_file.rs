//! Opens an input file and reads its metadata, before any row is read; the settings for reading.

use std::io::Read;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;

use arrow_array::ArrayRef;
use arrow_schema::{Fields, Schema, SchemaRef};
use longsift_stages::contract::{SIGNATURE_BYTES, Signature};

use super::discover::DiscoveredFiles;
use super::footer::{Footer, footer_bytes};
use super::footer_cache::FooterCache;
use super::formats::arrow_ipc::ArrowFile;
use super::formats::compression::FileCompression;
use super::formats::decode::{Decode, DecodeError, DecodeRequest, RowGroupInfo};
use super::formats::format::FileFormat;
use super::formats::line_format::LineFormat;
use super::formats::lines::Lines;
use super::formats::parquet;
use super::formats::survey::LineSurvey;
use super::formats::survey_cache::SurveyCacheEntry;
use super::problem::DataProblem;
use super::source::OpenFile;
use super::walk::unreadable;
use crate::base::diagnostic::Blame;
use crate::spec::pipeline::{InputFormat, OnBadFile};
use crate::storage::error::ErrorKind;
use crate::storage::range_file::Stamp;
use crate::storage::store::is_address;

/// Settings for reading an input, except its path.
#[derive(Clone, Debug)]
pub struct ReadSettings {
    pub on_bad_file: OnBadFile,
    pub format: InputFormat,
    /// Columns of JSON lines; `None` to infer them from the first lines.
    pub columns: Option<Fields>,
    /// Maximum bytes of a line, a record batch or a decompressed page.
    pub max_part_bytes: u64,
    pub cache_folder: Option<PathBuf>,
    /// Footers cached by another process of the same job.
    pub footers: Option<Arc<FooterCache>>,
    /// Folders that the pipeline itself writes. Files in them are refused as input, also through a link.
    pub results: Vec<PathBuf>,
}

impl Default for ReadSettings {
    fn default() -> Self {
        Self {
            on_bad_file: OnBadFile::Fail,
            format: InputFormat::Auto,
            columns: None,
            max_part_bytes: 1 << 30,
            cache_folder: None,
            footers: None,
            results: Vec::new(),
        }
    }
}

#[derive(Clone, Debug)]
pub struct InputFile {
    /// Path relative to the input root, '/'-separated.
    pub path: String,
    /// Size, times and version when the file was opened.
    pub(crate) stamp: Stamp,
    /// SHA-256 of the footer's bytes, which include the sizes and statistics of every column chunk. For line files, of
    /// all bytes; for Arrow, of the message headers and the modification time.
    pub footer_hash: String,
    pub rows: u64,
    pub row_groups: Vec<RowGroupInfo>,
    pub schema: SchemaRef,
    /// Index in this file of each column of the data set.
    pub(super) positions: Vec<usize>,
    /// Values of the last columns of `schema`, which come from the names of the folders around the file.
    pub(super) partitions: Vec<Option<String>>,
    /// Values that replace nulls, one row each, by position of their column.
    pub(super) folder_values: Vec<(usize, ArrayRef)>,
    pub(super) contents: Contents,
}

#[derive(Clone, Debug)]
pub(super) enum Contents {
    /// Parquet footer, and the maximum decompressed bytes of a page.
    Parquet(Footer, u64),
    Arrow(ArrowFile),
    Lines(Lines),
}

impl InputFile {
    /// Opens a file and reads its metadata. Line files have no columns yet: they are inferred from all files together.
    pub(super) fn open(
        found: &DiscoveredFiles,
        path: &str,
        reading: &ReadSettings,
    ) -> Result<Self, DataProblem> {
        let cache = reading.footers.as_ref().filter(|_| found.hub.is_none());
        if let Some((stamp, footer)) = cache.and_then(|cache| cache.get(&found.root, path)) {
            let (footer, row_groups) = Footer::parse(footer, stamp.size)?;
            let contents = Contents::Parquet(footer, reading.max_part_bytes);
            return Ok(Self::new(path, stamp, row_groups, contents));
        }
        let file = match &found.hub {
            Some(hub) => OpenFile::open_in_hub(hub, path)?,
            None => OpenFile::open(&found.root.join(path)).map_err(|error| match error.kind {
                ErrorKind::Invalid => DataProblem::data(error.source.to_string()),
                _ => unreadable(&error),
            })?,
        };
        let format = FileFormat::for_file(path, reading.format);
        Self::read_open(found, path, reading, format, &file).map_err(|problem| {
            if problem.blame == Blame::Data {
                explain_wrong_format(&file, format, problem)
            } else {
                problem
            }
        })
    }

    fn read_open(
        found: &DiscoveredFiles,
        path: &str,
        reading: &ReadSettings,
        format: FileFormat,
        file: &OpenFile,
    ) -> Result<Self, DataProblem> {
        let stamp = file.file.stamp().map_err(|error| unreadable(&error))?;
        let (row_groups, contents) = match format {
            FileFormat::Parquet => {
                let bytes = footer_bytes(file, stamp.size)?;
                let (footer, row_groups) = Footer::parse(&bytes, stamp.size)?;
                (row_groups, Contents::Parquet(footer, reading.max_part_bytes))
            }
            FileFormat::Arrow => {
                let file = ArrowFile::read(file, stamp, reading.max_part_bytes)?;
                (file.row_groups.clone(), Contents::Arrow(file))
            }
            FileFormat::Lines(line_format, compression) => {
                let (survey, cache_entry) =
                    cached_survey(found, path, (file, stamp), reading, (line_format, compression))?;
                let lines = Lines {
                    line_format,
                    compression,
                    survey: Arc::new(survey),
                    cache_entry,
                    inferred: reading.columns.is_none(),
                    max_line_bytes: reading.max_part_bytes,
                };
                (lines.survey.row_groups(stamp.size), Contents::Lines(lines))
            }
        };
        Ok(Self::new(path, stamp, row_groups, contents))
    }

    fn new(path: &str, stamp: Stamp, row_groups: Vec<RowGroupInfo>, contents: Contents) -> Self {
        let (hash, schema) = match &contents {
            Contents::Parquet(footer, _) => (&footer.hash, Arc::clone(&footer.schema)),
            Contents::Arrow(file) => (&file.digest, Arc::clone(&file.schema)),
            Contents::Lines(lines) => (&lines.survey.sha256, Arc::new(Schema::empty())),
        };
        Self {
            path: path.to_string(),
            stamp,
            footer_hash: hash.clone(),
            rows: row_groups.iter().map(|group| group.rows).sum(),
            row_groups,
            positions: (0..schema.fields().len()).collect(),
            partitions: Vec::new(),
            folder_values: Vec::new(),
            schema,
            contents,
        }
    }

    /// Returns the path without the extensions of format and compression.
    pub fn stem(&self) -> &str {
        FileFormat::stem(&self.path)
    }

    pub(super) fn lines(&self) -> Option<&Lines> {
        match &self.contents {
            Contents::Lines(lines) => Some(lines),
            Contents::Parquet(..) | Contents::Arrow(_) => None,
        }
    }

    /// Creates a decoder of columns stored in the file itself that reads from `source`.
    pub(super) fn decode(
        &self,
        source: &OpenFile,
        wanted: &DecodeRequest,
    ) -> Result<Box<dyn Decode>, DecodeError> {
        match &self.contents {
            Contents::Parquet(footer, page_bytes) => {
                parquet::open(footer, &self.row_groups, source, wanted, *page_bytes)
            }
            Contents::Arrow(file) => Ok(file.open(source, wanted)),
            Contents::Lines(lines) => lines.open(source, &self.schema, wanted),
        }
    }

    /// Returns the decoded bytes of a column of the data set; see [`Self::decoded_bytes`].
    pub(super) fn column_bytes(&self, column: usize) -> u64 {
        self.decoded_bytes(&[self.positions[column]], 0..self.row_groups.len())
    }

    /// Returns the decoded bytes of the columns at `positions` in some row groups; those of all columns if the format
    /// does not record them per column.
    pub(super) fn decoded_bytes(&self, positions: &[usize], row_groups: Range<usize>) -> u64 {
        match &self.contents {
            Contents::Parquet(footer, _) => {
                let bytes = |&position| footer.column_bytes(position, row_groups.clone());
                positions.iter().map(bytes).fold(0, u64::saturating_add)
            }
            Contents::Arrow(_) | Contents::Lines(_) => {
                self.row_groups[row_groups].iter().map(|group| group.uncompressed_bytes).sum()
            }
        }
    }

    /// Whether row groups are read independently; line files are read sequentially.
    pub(super) fn has_row_groups(&self) -> bool {
        self.lines().is_none()
    }
}

/// Explains a file whose first bytes belong to another format than its name; otherwise returns `problem`.
fn explain_wrong_format(file: &OpenFile, format: FileFormat, problem: DataProblem) -> DataProblem {
    let mut start = Vec::new();
    if file.reader(0).take(SIGNATURE_BYTES as u64).read_to_end(&mut start).is_err() {
        return problem;
    }
    let compression = match format {
        FileFormat::Lines(_, compression) => compression,
        FileFormat::Parquet | FileFormat::Arrow => FileCompression::None,
    };
    let (message, remedy) = match Signature::detect(&start) {
        Some(found) if found.name != format.name() => {
            (format!("it is {}, not {}", found.name, format.name()), found.remedy)
        }
        None if compression != FileCompression::None
            && start.first().is_some_and(u8::is_ascii_graphic) =>
        {
            (
                format!("it is plain text, not {}", format.name()),
                "remove the compression extension from its name",
            )
        }
        _ => return problem,
    };
    DataProblem::data(message).with_hint(remedy)
}

fn cached_survey(
    found: &DiscoveredFiles,
    path: &str,
    (file, stamp): (&OpenFile, Stamp),
    reading: &ReadSettings,
    (line_format, compression): (LineFormat, FileCompression),
) -> Result<(LineSurvey, SurveyCacheEntry), DataProblem> {
    let path_key = found.root.join(path);
    let path_key = if is_address(&path_key) {
        path_key
    } else {
        std::path::absolute(&path_key).unwrap_or(path_key)
    };
    let version = file.file.version();
    let read_as = format!("{line_format:?} {compression:?}");
    let cache_entry = SurveyCacheEntry::new(
        reading.cache_folder.as_deref(),
        &path_key,
        stamp,
        version.as_deref(),
        &read_as,
    );
    if let Some(survey) = cache_entry.read() {
        return Ok((survey, cache_entry));
    }
    let survey = LineSurvey::scan(file, stamp.size, line_format, compression)?;
    let now = file.file.stamp().map_err(|error| unreadable(&error))?;
    if now != stamp {
        return Err(DataProblem::data("it changed while its lines were counted")
            .with_hint("wait until it is completely written, then run again"));
    }
    cache_entry.write(&survey);
    Ok((survey, cache_entry))
}
