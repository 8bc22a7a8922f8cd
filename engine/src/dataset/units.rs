//! Work units: what is scored, journalled and committed as one.

use std::ops::Range;

use super::Dataset;
use crate::files;

/// Consecutive row groups of one file, bounded by their bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorkUnit {
    /// Position among the units of the plan.
    pub index: usize,
    /// Position of the file in [`Dataset::files`].
    pub file: usize,
    /// The file's path relative to the input root.
    pub file_path: String,
    /// The row groups.
    pub row_groups: Range<usize>,
    /// Position in the file of the first row.
    pub first_row: u64,
    /// Rows to read; fewer than the row groups have where a limit cuts the unit.
    pub rows: u64,
    /// Decoded bytes of the row groups.
    pub bytes: u64,
}

impl WorkUnit {
    /// A stable name, 16 hexadecimal digits: it depends on the file's relative path, the row groups and the rows, and
    /// on nothing else in the input.
    pub fn name(&self) -> String {
        let Range { start, end } = self.row_groups;
        let identity =
            format!("{}\0{start}\0{end}\0{}\0{}", self.file_path, self.first_row, self.rows);
        let mut name = files::sha256_hex(identity.as_bytes());
        name.truncate(16);
        name
    }
}

impl Dataset {
    /// Cuts the input into work units of whole row groups, at most `unit_bytes` each unless a single row group has
    /// more, in input order. With `limit_rows`, units end after that many rows of the input.
    ///
    /// Where a unit begins and ends depends on its own file alone, so that a file added elsewhere renames none. (A
    /// limit makes the unit in which it falls depend on the rows before it.)
    pub fn units(&self, unit_bytes: u64, limit_rows: Option<u64>) -> Vec<WorkUnit> {
        let mut units = Vec::new();
        let mut left = limit_rows.unwrap_or(u64::MAX);
        for (index, file) in self.files.iter().enumerate() {
            let mut next = 0;
            while next < file.row_groups.len() && left > 0 {
                let start = next;
                let (mut rows, mut bytes) = (0_u64, 0_u64);
                while let Some(group) = file.row_groups.get(next) {
                    let sum = bytes.saturating_add(group.uncompressed_bytes);
                    if rows > 0 && (sum > unit_bytes || rows >= left) {
                        break;
                    }
                    rows += group.rows;
                    bytes = sum;
                    next += 1;
                }
                if rows == 0 {
                    continue;
                }
                let rows = rows.min(left);
                left -= rows;
                units.push(WorkUnit {
                    index: units.len(),
                    file: index,
                    file_path: file.path.clone(),
                    row_groups: start..next,
                    first_row: file.row_groups[start].first_row,
                    rows,
                    bytes,
                });
            }
        }
        units
    }
}
