//! What every reader of a unit shares: an unchanged file, projected columns, batches of a bounded size.

use std::ops::Range;

use arrow_array::ArrayRef;
use arrow_schema::DataType;
use parquet::arrow::arrow_reader::RowSelection;

use super::formats::decode::{Decode, Decoded, Wanted};
use super::input::Dataset;
use super::input_file::InputFile;
use super::problem::{DataProblem, RowProblem};
use super::source::OpenFile;
use super::text;
use super::units::WorkUnit;
use crate::storage::error::ErrorKind;
use crate::storage::range_file::Stamp;

/// Rows of a batch while rows are long. The size of a batch is chosen from an average; where long rows follow short
/// ones, this is what keeps it small all the same.
const LONG_ROWS: u64 = 64;
/// Rows of a batch at most.
const MOST_ROWS: u64 = 1024;
/// Which rows and columns of a file to read.
pub(super) struct Request<'a> {
    /// The file, by its position in the data set.
    pub(super) file: usize,
    /// The row groups.
    pub(super) row_groups: Vec<usize>,
    /// Columns by position in the data set, with the type each is wanted in.
    pub(super) columns: &'a [(usize, DataType)],
    /// Rows of the row groups to read; all where `None`.
    pub(super) selection: Option<RowSelection>,
    /// Rows in a batch.
    pub(super) batch_rows: usize,
    /// Whether a row is bad that has something the columns have no place for.
    pub(super) strict: bool,
}

/// Batches of the requested columns, in the requested order and types.
pub(super) struct Batches {
    /// The decoder, or why there is none.
    reader: Result<Box<dyn Decode>, Option<String>>,
    source: OpenFile,
    /// Size and time of modification as planned.
    planned: Stamp,
    ended: bool,
    /// For each requested column, its position in the reader's batches, and its type.
    columns: Vec<(usize, DataType)>,
}

/// Some rows of the requested columns.
pub(super) struct Batch {
    /// The columns.
    pub(super) columns: Vec<ArrayRef>,
    /// Rows.
    pub(super) rows: usize,
    /// Where a text is not UTF-8: row and column, by their position here. The value there is null.
    pub(super) not_utf8: Vec<(usize, usize)>,
    /// Rows, by their position here, that are not what the columns promise, and why. Their values are null.
    pub(super) bad: Vec<(usize, RowProblem)>,
}

impl Batches {
    /// Opens the file, if it is still the one that was planned.
    pub(super) fn open(dataset: &Dataset, request: &Request<'_>) -> Result<Self, DataProblem> {
        let file = &dataset.files[request.file];
        Self::open_file(dataset, file, request).map_err(|problem| problem.in_file(&file.path))
    }

    fn open_file(
        dataset: &Dataset,
        file: &InputFile,
        request: &Request<'_>,
    ) -> Result<Self, DataProblem> {
        let source = open_unchanged(dataset, file)?;
        let wanted = Wanted {
            row_groups: request.row_groups.clone(),
            selection: request.selection.clone(),
            positions: request.columns.iter().map(|(column, _)| file.positions[*column]).collect(),
            types: request.columns.iter().map(|(_, data_type)| data_type.clone()).collect(),
            batch_rows: request.batch_rows,
            strict: request.strict,
        };
        let reader = file.decode(&source, &wanted).map_err(Some);
        let planned = planned(file);
        let in_file_order = wanted.in_file_order();
        let place =
            |position: &usize| in_file_order.binary_search(position).expect("it is one of them");
        let columns = wanted.positions.iter().map(place).zip(wanted.types.clone()).collect();
        Ok(Self { reader, source, planned, ended: false, columns })
    }

    /// Why the decoder stopped: because the operating system refused a read, or because of the bytes.
    fn failure(&self, why: String) -> ReadFailure {
        match refusal(&self.source) {
            Some(failure) => failure,
            None => self.changed().err().unwrap_or(ReadFailure::Damaged(why)),
        }
    }

    /// A file that is written to while it is read may give rows of two versions.
    fn changed(&self) -> Result<(), ReadFailure> {
        let now = self.source.stamp();
        let now = now.map_err(|error| ReadFailure::Refused(error.to_string()))?;
        match difference(self.planned, now) {
            Some(why) => Err(ReadFailure::Changed(why)),
            None => Ok(()),
        }
    }
}

impl Iterator for Batches {
    type Item = Result<Batch, ReadFailure>;

    /// The next batch. An error says why; the caller knows where.
    fn next(&mut self) -> Option<Self::Item> {
        let reader = match &mut self.reader {
            Ok(reader) => reader,
            Err(why) => return why.take().map(|why| Err(self.failure(why))),
        };
        let Decoded { batch, bad } = match reader.next() {
            Ok(Some(decoded)) => decoded,
            Ok(None) if self.ended => return None,
            Ok(None) => {
                self.ended = true;
                return self.changed().err().map(Err);
            }
            Err(why) => return Some(Err(self.failure(why))),
        };
        let mut not_utf8 = Vec::new();
        let mut columns = Vec::with_capacity(self.columns.len());
        for (column, (place, data_type)) in self.columns.iter().enumerate() {
            match text::to_text(batch.column(*place), data_type) {
                Ok((array, bad)) => {
                    columns.push(array);
                    not_utf8.extend(bad.into_iter().map(|row| (row, column)));
                }
                Err(error) => return Some(Err(ReadFailure::Damaged(error.to_string()))),
            }
        }
        Some(Ok(Batch { columns, rows: batch.num_rows(), not_utf8, bad }))
    }
}

/// Opens a planned file and checks that size and time of modification are those of the plan.
pub(super) fn open_unchanged(dataset: &Dataset, file: &InputFile) -> Result<OpenFile, DataProblem> {
    let opened = if let Some(hub) = &dataset.hub {
        OpenFile::of_hub(hub, &file.path)?
    } else {
        let path = dataset.root.join(&file.path);
        OpenFile::open(&path).map_err(|error| match error.kind {
            ErrorKind::NotFound => changed("it is gone"),
            _ => error.into(),
        })?
    };
    let now = opened
        .stamp()
        .map_err(|error| DataProblem::machine(format!("its size is not known: {error}")))?;
    match difference(planned(file), now) {
        Some(why) => Err(changed(&why)),
        None => Ok(opened),
    }
}

fn changed(why: &str) -> DataProblem {
    DataProblem::data(format!("the file changed since it was planned: {why}"))
        .with_hint("let whatever writes it finish, then run again")
}

/// What is no longer as planned: the size, the version, or the time of modification.
fn difference(planned: Stamp, now: Stamp) -> Option<String> {
    if now.size != planned.size {
        return Some(format!("it had {} bytes, now it has {}", planned.size, now.size));
    }
    if now.version != planned.version {
        return Some("the store has another version of it now".to_owned());
    }
    let (before, after) = (planned.modified_ns, now.modified_ns);
    if after != before {
        return Some(format!("it was modified at {before} ns, now at {after} ns"));
    }
    let (before, after) = (planned.changed_ns, now.changed_ns);
    (after != before).then(|| format!("its status changed at {before} ns, now at {after} ns"))
}

fn planned(file: &InputFile) -> Stamp {
    let InputFile { size, modified_ns, changed_ns, version, .. } = *file;
    Stamp { size, modified_ns, changed_ns, version }
}

/// What a read that was refused means, if one was.
pub(super) fn refusal(file: &OpenFile) -> Option<ReadFailure> {
    let error = file.refused()?;
    Some(match error.kind {
        ErrorKind::Changed => {
            ReadFailure::Changed("the store has another version of it now".to_owned())
        }
        _ => ReadFailure::Refused(error.to_string()),
    })
}

/// Why reading a file stopped.
#[derive(Clone, Debug)]
pub(super) enum ReadFailure {
    /// The operating system refused a read: the rows may be fine, and a retry may help.
    Refused(String),
    /// The file is not the one that was planned.
    Changed(String),
    /// The bytes are not what the format says.
    Damaged(String),
}

impl<S: Into<String>> From<S> for ReadFailure {
    fn from(why: S) -> Self {
        Self::Damaged(why.into())
    }
}

/// The position of a column in the data set.
pub(super) fn position(dataset: &Dataset, name: &str) -> Result<usize, DataProblem> {
    dataset.schema.index_of(name).map_err(|_| dataset.no_column(name))
}

/// Names the place of an error within a unit.
#[derive(Clone, Debug)]
pub(super) struct Place {
    file: String,
    /// First rows of the file's row groups.
    groups: Vec<u64>,
}

impl Place {
    pub(super) fn of(dataset: &Dataset, unit: &WorkUnit) -> Self {
        let file = &dataset.files[unit.file];
        Self {
            file: file.path.clone(),
            groups: file.row_groups.iter().map(|group| group.first_row).collect(),
        }
    }

    /// A batch that begins at `row` does not decode.
    pub(super) fn unreadable(&self, row: u64, why: impl Into<ReadFailure>) -> DataProblem {
        let problem = match why.into() {
            ReadFailure::Refused(why) => {
                return DataProblem::machine(format!("cannot be read: {why}")).in_file(&self.file);
            }
            ReadFailure::Changed(why) => return changed(&why).in_file(&self.file),
            ReadFailure::Damaged(why) => {
                DataProblem::data(format!("the rows from here on do not decode: {why}"))
            }
        };
        self.in_group(
            row,
            problem,
            "write the file again from its source, or set `input.on_bad_file: quarantine` to do without these rows",
        )
    }

    /// The problem with its place: file, row group and row.
    pub(super) fn in_group(
        &self,
        row: u64,
        problem: DataProblem,
        hint: impl Into<String>,
    ) -> DataProblem {
        let group = self.groups.partition_point(|&first| first <= row).saturating_sub(1);
        problem.in_file(&self.file).in_row_group(group).at_row(row).with_hint(hint)
    }
}

/// The row groups among `groups` that hold rows of `ranges` (ascending, disjoint), and the selection of these rows in
/// them. Other row groups are not touched: they may be damaged.
pub(super) fn selection(
    file: &InputFile,
    groups: Range<usize>,
    ranges: &[Range<u64>],
) -> (Vec<usize>, RowSelection) {
    let (mut chosen, mut selected) = (Vec::new(), Vec::new());
    let mut before = 0;
    for group in groups {
        let info = file.row_groups[group];
        let rows = info.first_row..info.first_row + info.rows;
        let here = ranges.iter().filter_map(|range| {
            let (start, end) = (range.start.max(rows.start), range.end.min(rows.end));
            let place = |row: u64| before + (row - rows.start) as usize;
            (start < end).then(|| place(start)..place(end))
        });
        let here: Vec<_> = here.collect();
        if !here.is_empty() {
            chosen.push(group);
            selected.extend(here);
            before += info.rows as usize;
        }
    }
    (chosen, RowSelection::from_consecutive_ranges(selected.into_iter(), before))
}

/// Rows a batch should have to decode to about `batch_bytes`.
///
/// `columns`: positions in the data set. The answer depends on the file alone.
pub(super) fn batch_rows(
    file: &InputFile,
    columns: &[(usize, DataType)],
    groups: &[usize],
    batch_bytes: u64,
) -> usize {
    let rows: u64 = groups.iter().map(|&group| file.row_groups[group].rows).sum();
    let positions: Vec<usize> = columns.iter().map(|(column, _)| file.positions[*column]).collect();
    let bytes_of = |group: usize| file.decoded_bytes(&positions, group);
    let bytes = groups.iter().map(|&group| bytes_of(group)).fold(0, u64::saturating_add);
    let fitting = batch_bytes / (bytes / rows.max(1)).max(1);
    let rows = fitting.clamp(1, LONG_ROWS).max((fitting / LONG_ROWS).min(MOST_ROWS));
    usize::try_from(rows).expect("at most MOST_ROWS")
}
