//! Reads and validates the footer of a Parquet file.

use std::cell::Cell;
use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;

use arrow_schema::{DataType, Schema, SchemaRef, TimeUnit};
use parquet::arrow::ARROW_SCHEMA_META_KEY;
use parquet::arrow::arrow_reader::{ArrowReaderMetadata, ArrowReaderOptions};
use parquet::basic::{ConvertedType, LogicalType, Type as PhysicalType};
use parquet::file::metadata::{
    FooterTail, ParquetMetaData, ParquetMetaDataReader, RowGroupMetaData,
};

use super::formats::decode::RowGroupInfo;
use super::problem::DataProblem;
use super::source::{OpenFile, guarded};
use super::thrift::{INT32, LIST, STRUCT, ThriftReader};
use super::{text, types};
use crate::base::text::sha256_hex;

/// A Parquet file is a magic number, data, footer, length of the footer, magic number.
const MAGIC_BYTES: u64 = 4;
const TAIL_BYTES: u64 = 8;
/// Largest footer that is read: a hundred columns and a thousand row groups take 10 MB, decoded five times as much.
const MAX_FOOTER_BYTES: u64 = 32 << 20;
const MAX_SCHEMA_DEPTH: usize = 64;

#[derive(Clone, Debug)]
pub(super) struct Footer {
    /// SHA-256 of the footer's bytes, which include the sizes and statistics of every column chunk.
    pub(super) hash: String,
    /// Columns of the file, from the footer's Arrow schema or else its Parquet schema.
    pub(super) schema: SchemaRef,
    /// Leaf columns (Parquet's column chunks) of each of the file's columns.
    leaves: Vec<Range<usize>>,
    /// Footer with text columns declared as bytes.
    pub(super) metadata: Arc<ParquetMetaData>,
}

impl Footer {
    pub(super) fn parse_file(file: &[u8]) -> Result<Self, DataProblem> {
        let end = file.len() - TAIL_BYTES as usize;
        let length = u32::from_le_bytes(file[end..end + 4].try_into().expect("four bytes"));
        Ok(Self::parse(&file[end - length as usize..end], file.len() as u64)?.0)
    }

    /// Validates the bytes of a footer of a file of `size` bytes.
    pub(super) fn parse(bytes: &[u8], size: u64) -> Result<(Self, Vec<RowGroupInfo>), DataProblem> {
        let undecodable = |why: String| damaged(format!("its footer does not decode: {why}"));
        if check_structure(bytes).map_err(undecodable)? {
            return Err(encrypted("it has encrypted columns"));
        }
        let footer =
            guarded(|| ParquetMetaDataReader::decode_metadata(bytes)).map_err(undecodable)?;
        let data_end = size.checked_sub(TAIL_BYTES + bytes.len() as u64);
        let too_short = || damaged("its footer is longer than the file");
        let row_groups = check(&footer, data_end.ok_or_else(too_short)?)?;
        let footer = Arc::new(footer);
        let schema = arrow_schema(&footer)?;
        check_names(&schema)?;
        check_types(&footer)?;
        let footer = guarded(|| text::declare_bytes(&footer)).map_err(undecodable)?;
        let leaves = leaves(&footer);
        let metadata = Arc::new(footer);
        Ok((Self { hash: sha256_hex(bytes), schema, leaves, metadata }, row_groups))
    }

    pub(super) fn leaves(&self, position: usize) -> Range<usize> {
        self.leaves.get(position).cloned().unwrap_or(0..0)
    }

    /// Returns offset and length of the chunks of the columns at `positions` in some row groups.
    pub(super) fn chunks(&self, row_groups: &[usize], positions: &[usize]) -> Vec<(u64, u64)> {
        let groups = row_groups.iter().map(|&group| self.metadata.row_group(group));
        let of_group = |group: &RowGroupMetaData| -> Vec<(u64, u64)> {
            let leaves = positions.iter().flat_map(|&position| self.leaves(position));
            leaves.map(|leaf| group.column(leaf).byte_range()).collect()
        };
        groups.flat_map(of_group).collect()
    }

    /// Returns the decoded bytes of the column at `position` in some row groups.
    pub(super) fn column_bytes(&self, position: usize, row_groups: Range<usize>) -> u64 {
        let groups = self.metadata.row_groups()[row_groups].iter();
        let chunks =
            groups.flat_map(|group| self.leaves(position).map(move |leaf| group.column(leaf)));
        // Dictionary-encoded values are larger in memory than in the file.
        let decoded = chunks.map(|chunk| {
            let values = chunk.unencoded_byte_array_data_bytes().unwrap_or(0);
            unsigned(values.max(chunk.uncompressed_size()))
        });
        decoded.fold(0, u64::saturating_add)
    }
}

/// Reads the bytes of the footer, without its length and magic number.
pub(super) fn footer_bytes(file: &OpenFile, size: u64) -> Result<Vec<u8>, DataProblem> {
    if size < MAGIC_BYTES + TAIL_BYTES {
        return Err(damaged(format!("it has {size} bytes, but a Parquet file has at least 12")));
    }
    let mut tail = [0_u8; TAIL_BYTES as usize];
    read_at(file, size - TAIL_BYTES, &mut tail)?;
    if tail[4..] != *b"PAR1" && tail[4..] != *b"PARE" {
        let mut start = [0_u8; MAGIC_BYTES as usize];
        read_at(file, 0, &mut start)?;
        let why = if start == *b"PAR1" {
            "the magic number at its end is missing: it is truncated or still being written"
        } else {
            "it neither begins nor ends with `PAR1`"
        };
        return Err(damaged(why));
    }
    let tail = FooterTail::try_new(&tail).map_err(|why| damaged(why.to_string()))?;
    if tail.is_encrypted_footer() {
        return Err(encrypted("the file is encrypted (magic number `PARE`)"));
    }
    let length = tail.metadata_length() as u64;
    let Some(start) = size.checked_sub(TAIL_BYTES + length).filter(|&start| start >= MAGIC_BYTES)
    else {
        return Err(damaged(format!("its footer claims {length} bytes, but the file has {size}")));
    };
    if length > MAX_FOOTER_BYTES {
        return Err(damaged(format!(
            "its footer claims {length} bytes; longsift reads footers of at most {MAX_FOOTER_BYTES}"
        )));
    }
    let mut bytes = vec![0; tail.metadata_length()];
    read_at(file, start, &mut bytes)?;
    Ok(bytes)
}

fn read_at(file: &OpenFile, offset: u64, bytes: &mut [u8]) -> Result<(), DataProblem> {
    file.read_exact_at(bytes, offset).map_err(|error| {
        file.refused().map_or_else(
            || DataProblem::machine(format!("{} bytes at {offset}: {error}", bytes.len())),
            DataProblem::unread,
        )
    })
}

/// Validates every number that later code computes with: counts, sizes and offsets, against the file and each other.
/// `data_end`: offset of the footer.
fn check(footer: &ParquetMetaData, data_end: u64) -> Result<Vec<RowGroupInfo>, DataProblem> {
    let mut row_groups = Vec::with_capacity(footer.num_row_groups());
    let mut first_row = 0_u64;
    for (index, group) in footer.row_groups().iter().enumerate() {
        let in_group = |why: String| damaged(why).in_row_group(index);
        let rows = u64::try_from(group.num_rows())
            .map_err(|_| in_group(format!("it claims {} rows", group.num_rows())))?;
        if group.num_columns() != footer.file_metadata().schema_descr().num_columns() {
            return Err(in_group(format!(
                "it has {} columns, but its schema has a different number",
                group.num_columns()
            )));
        }
        let (mut encoded, mut compressed_bytes) = (0_u64, 0_u64);
        for column in group.columns() {
            let start = column.dictionary_page_offset().unwrap_or(column.data_page_offset());
            let length = column.compressed_size();
            let end = u64::try_from(start)
                .ok()
                .zip(u64::try_from(length).ok())
                .map(|(a, b)| a.saturating_add(b));
            let nested = column.column_descr().max_rep_level() > 0;
            if !nested && column.num_values() != group.num_rows() {
                return Err(in_group(format!(
                    "column `{}` claims {} values for {rows} rows",
                    column.column_path().string(),
                    column.num_values()
                )));
            }
            if end.is_none_or(|end| end > data_end) || column.num_values() < 0 {
                return Err(in_group(format!(
                    "column `{}` claims {length} bytes at {start}, but the data ends at {data_end}",
                    column.column_path().string()
                )));
            }
            encoded = encoded.saturating_add(unsigned(column.uncompressed_size()));
            compressed_bytes = compressed_bytes.saturating_add(unsigned(length));
        }
        let uncompressed_bytes = encoded.max(unsigned(group.total_byte_size()));
        row_groups.push(RowGroupInfo { first_row, rows, uncompressed_bytes, compressed_bytes });
        first_row = first_row
            .checked_add(rows)
            .ok_or_else(|| in_group("its rows overflow 64 bits".into()))?;
    }
    let claimed = footer.file_metadata().num_rows();
    if u64::try_from(claimed) != Ok(first_row) {
        return Err(damaged(format!(
            "its footer claims {claimed} rows, but its row groups have {first_row}"
        )));
    }
    Ok(row_groups)
}

/// Checks that the structures of a footer have the lengths they claim and that its columns nest to a bounded depth,
/// because the decoder trusts both. Returns whether columns are encrypted.
fn check_structure(footer: &[u8]) -> Result<bool, String> {
    let mut thrift = ThriftReader::new(footer);
    let mut last = 0;
    let mut names_a_cipher = false;
    while let Some((field, kind)) = thrift.field(&mut last)? {
        names_a_cipher |= field == 8;
        if (field, kind) == (2, LIST) {
            check_depth(&mut thrift)?;
        } else {
            thrift.skip(kind)?;
        }
    }
    Ok(names_a_cipher)
}

fn encrypted(what: &str) -> DataProblem {
    DataProblem::data(format!("{what}, which is not supported")).with_hint("write a decrypted copy")
}

/// Checks the list of columns, in which each column precedes its children.
fn check_depth(thrift: &mut ThriftReader<&[u8]>) -> Result<(), String> {
    let (length, kind) = thrift.list()?;
    if kind != STRUCT {
        return Err("its columns are not structures".into());
    }
    // Remaining children per level.
    let mut open: Vec<i64> = Vec::new();
    for _ in 0..length {
        let (mut children, mut last) = (0, 0);
        while let Some((field, kind)) = thrift.field(&mut last)? {
            match (field, kind) {
                (5, INT32) => children = thrift.integer()?,
                _ => thrift.skip(kind)?,
            }
        }
        if let Some(left) = open.last_mut() {
            *left -= 1;
        }
        if children > 0 {
            open.push(children);
        }
        while open.last().is_some_and(|left| *left <= 0) {
            open.pop();
        }
        if open.len() > MAX_SCHEMA_DEPTH {
            return Err(format!("its columns nest deeper than {MAX_SCHEMA_DEPTH} levels"));
        }
    }
    Ok(())
}

pub(super) fn check_names(schema: &Schema) -> Result<(), DataProblem> {
    let mut seen = BTreeSet::new();
    let names = schema.fields().iter().map(|field| field.name());
    let mut twice: Vec<_> = names.filter(|name| !seen.insert(*name)).collect();
    twice.dedup();
    if twice.is_empty() {
        return Ok(());
    }
    let names: Vec<_> = twice.iter().map(|name| format!("`{name}`")).collect();
    Err(DataProblem::data(format!("two columns have the same name: {}", names.join(", "))))
}

/// Rejects Parquet types that Arrow does not have: intervals of months, days and milliseconds, whose months would be lost, and
/// times of day in UTC inside other columns. Files with an Arrow schema declare what they hold.
fn check_types(footer: &ParquetMetaData) -> Result<(), DataProblem> {
    if has_arrow_schema(footer) {
        return Ok(());
    }
    for leaf in footer.file_metadata().schema_descr().columns() {
        let path = leaf.path().string();
        let why = if leaf.converted_type() == ConvertedType::INTERVAL {
            "INTERVAL, whose months cannot be kept"
        } else if leaf.path().parts().len() > 1 && is_utc_time(leaf.logical_type_ref()) {
            "TIME WITH TIME ZONE, whose zone cannot be kept inside another column"
        } else {
            continue;
        };
        return Err(DataProblem::settings(format!("column `{path}` has the type {why}"))
            .with_hint("remove the column, or write it as text"));
    }
    Ok(())
}

fn has_arrow_schema(footer: &ParquetMetaData) -> bool {
    let mut keys = footer.file_metadata().key_value_metadata().into_iter().flatten();
    keys.any(|pair| pair.key == ARROW_SCHEMA_META_KEY)
}

fn is_utc_time(logical: Option<&LogicalType>) -> bool {
    matches!(logical, Some(LogicalType::Time(time)) if time.is_adjusted_to_u_t_c)
}

/// Returns a column's type with INT96 in microseconds: 64-bit nanoseconds would not hold the years before 1677 and after 2262.
/// `next`: the column's next leaf.
fn int96_in_microseconds(
    data_type: &DataType,
    footer: &ParquetMetaData,
    next: &Cell<usize>,
) -> DataType {
    let inside = types::zip_children(data_type, data_type, |field, _| {
        let data_type = int96_in_microseconds(field.data_type(), footer, next);
        Some(Arc::new(field.as_ref().clone().with_data_type(data_type)))
    });
    inside.unwrap_or_else(|| {
        let leaf = footer.file_metadata().schema_descr().column(next.replace(next.get() + 1));
        match (leaf.physical_type(), data_type) {
            (PhysicalType::INT96, DataType::Timestamp(TimeUnit::Nanosecond, zone)) => {
                DataType::Timestamp(TimeUnit::Microsecond, zone.clone())
            }
            _ => data_type.clone(),
        }
    })
}

fn leaves(footer: &ParquetMetaData) -> Vec<Range<usize>> {
    let schema = footer.file_metadata().schema_descr();
    let mut leaves: Vec<Range<usize>> = vec![0..0; schema.root_schema().get_fields().len()];
    for leaf in 0..schema.num_columns() {
        let of_root = &mut leaves[schema.get_column_root_idx(leaf)];
        *of_root = if of_root.end == 0 { leaf..leaf + 1 } else { of_root.start..leaf + 1 };
    }
    leaves
}

/// Returns the Arrow schema: the declared types where they agree with the Parquet types, otherwise derived ones.
fn arrow_schema(footer: &Arc<ParquetMetaData>) -> Result<SchemaRef, DataProblem> {
    let load = |options: ArrowReaderOptions| {
        guarded(|| ArrowReaderMetadata::try_new(Arc::clone(footer), options))
    };
    let parquet = load(ArrowReaderOptions::new().with_skip_arrow_metadata(true))
        .map_err(|why| damaged(format!("its schema cannot be read: {why}")))?;
    let declared = load(ArrowReaderOptions::new()).unwrap_or_else(|_| parquet.clone());
    let pairs = declared.schema().fields().iter().zip(parquet.schema().fields());
    let columns = footer.file_metadata().schema_descr().root_schema().get_fields();
    let declares_types = has_arrow_schema(footer);
    let leaves = leaves(footer);
    let fields = pairs.zip(columns).zip(&leaves).map(|(((declared, parquet), column), leaves)| {
        let mut data_type = types::reconcile(declared.data_type(), parquet.data_type());
        if !declares_types {
            let next = Cell::new(leaves.start);
            data_type = int96_in_microseconds(&data_type, footer, &next);
        }
        let field = declared.as_ref().clone().with_data_type(data_type);
        let is_utc = !declares_types && is_utc_time(column.get_basic_info().logical_type_ref());
        if is_utc { types::utc_time_field(field) } else { field }
    });
    Ok(Arc::new(Schema::new_with_metadata(
        fields.collect::<Vec<_>>(),
        declared.schema().metadata().clone(),
    )))
}

/// Converts a size of the footer; a negative one counts as unknown.
fn unsigned(bytes: i64) -> u64 {
    u64::try_from(bytes).unwrap_or(0)
}

fn damaged(why: impl std::fmt::Display) -> DataProblem {
    DataProblem::data(format!("not a readable Parquet file: {why}")).with_hint(
        "rewrite the file, exclude it from the input, or set `input.format` if it is JSON Lines or Arrow",
    )
}
