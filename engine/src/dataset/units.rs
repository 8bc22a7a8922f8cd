//! Work units: rows that are scored, journalled and committed together.

use std::ops::Range;

use super::input::Dataset;
use crate::base::text;

/// Consecutive row groups (or ranges of lines) of one file, limited by their bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorkUnit {
    pub index: usize,
    /// Index of the file in [`Dataset::files`].
    pub file: usize,
    pub file_path: String,
    pub row_groups: Range<usize>,
    pub first_row: u64,
    /// Number of rows to read; fewer than in the row groups if a limit ends the work unit.
    pub rows: u64,
    /// Decoded bytes of the row groups.
    pub bytes: u64,
}

impl WorkUnit {
    /// Returns the row group that contains a row of the file; `None` for formats without row groups.
    pub fn row_group_of(&self, dataset: &Dataset, row: u64) -> Option<usize> {
        let file = &dataset.files[self.file];
        let groups = if file.has_row_groups() { &file.row_groups[..] } else { &[] };
        groups
            .iter()
            .position(|group| (group.first_row..group.first_row + group.rows).contains(&row))
    }

    /// Describes its rows for messages: `a.parquet, rows 64 to 127`.
    pub fn described_rows(&self) -> String {
        let (file, first) = (&self.file_path, self.first_row);
        match self.rows {
            0 | 1 => format!("{file}, row {first}"),
            rows => format!("{file}, rows {first} to {}", first + rows - 1),
        }
    }

    /// Returns 16 hexadecimal digits that depend only on the file's relative path, the row groups and the rows.
    pub fn name(&self) -> String {
        let Range { start, end } = self.row_groups;
        let identity =
            format!("{}\0{start}\0{end}\0{}\0{}", self.file_path, self.first_row, self.rows);
        let mut name = text::sha256_hex(identity.as_bytes());
        name.truncate(16);
        name
    }
}

impl Dataset {
    /// Splits the input into work units of whole row groups, in input order, with at most `unit_bytes` each unless a
    /// single row group is larger. With `limit_rows`, the units end after that many rows of the input.
    ///
    /// The boundaries of a unit depend only on its own file, so adding a file renames no other unit. (With a limit, the
    /// last unit depends on the rows before it.)
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

#[cfg(test)]
mod tests {
    use crate::dataset::tests::{batch, folder_of};
    use crate::storage::atomic;
    use crate::storage::files;
    use std::sync::Arc;

    use arrow_array::Int64Array;

    use super::*;

    fn dataset(files: &[i64]) -> (tempfile::TempDir, Dataset) {
        let rows =
            |&rows: &i64| batch(vec![("n", Arc::new((0..rows).collect::<Int64Array>()) as _)]);
        folder_of(&files.iter().map(rows).collect::<Vec<_>>(), 10)
    }

    fn shapes(units: &[WorkUnit]) -> Vec<(usize, Range<usize>, u64, u64)> {
        units
            .iter()
            .map(|unit| (unit.file, unit.row_groups.clone(), unit.first_row, unit.rows))
            .collect()
    }

    #[test]
    fn a_unit_has_whole_row_groups_of_one_file_within_its_bytes() {
        let (_folder, dataset) = dataset(&[35, 5]);
        let group = dataset.files[0].row_groups[0].uncompressed_bytes;
        let units = dataset.units(2 * group, None);
        assert_eq!(shapes(&units), [(0, 0..2, 0, 20), (0, 2..4, 20, 15), (1, 0..1, 0, 5)]);
        assert_eq!(units.iter().map(|unit| unit.index).collect::<Vec<_>>(), [0, 1, 2]);
        assert_eq!(units[0].bytes, 2 * group);
    }

    #[test]
    fn a_row_group_over_the_bytes_is_a_unit_of_its_own() {
        let (_folder, dataset) = dataset(&[25]);
        assert_eq!(
            shapes(&dataset.units(1, None)),
            [(0, 0..1, 0, 10), (0, 1..2, 10, 10), (0, 2..3, 20, 5)]
        );
    }

    #[test]
    fn a_limit_ends_the_last_unit_and_skips_later_row_groups() {
        let (_folder, dataset) = dataset(&[35, 25]);
        assert_eq!(shapes(&dataset.units(u64::MAX, Some(12))), [(0, 0..2, 0, 12)]);
        assert_eq!(
            shapes(&dataset.units(u64::MAX, Some(45))),
            [(0, 0..4, 0, 35), (1, 0..1, 0, 10)]
        );
        assert_eq!(shapes(&dataset.units(1, Some(0))), []);
    }

    #[test]
    fn a_file_without_rows_has_no_units() {
        let (_folder, dataset) = dataset(&[0, 3]);
        assert_eq!(shapes(&dataset.units(1, None)), [(1, 0..1, 0, 3)]);
    }

    #[test]
    fn the_name_of_a_unit_does_not_depend_on_other_files() {
        let (folder, single) = dataset(&[35]);
        let names = |dataset: &Dataset| {
            dataset.units(1, None).iter().map(WorkUnit::name).collect::<Vec<_>>()
        };
        let before = names(&single);
        let bytes = files::read_limited(&folder.path().join("0.parquet"), 1 << 20).unwrap();
        atomic::write_atomic(&folder.path().join("-.parquet"), &bytes).unwrap();
        let after = names(&Dataset::open(folder.path()).unwrap());
        assert_eq!(after.len(), 8);
        assert_eq!(after[4..], before);
        assert!(after[..4].iter().all(|name| !before.contains(name) && name.len() == 16));
    }
}
