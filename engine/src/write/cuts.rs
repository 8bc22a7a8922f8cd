//! Division of the output into files. It is decided before writing, only from the selection and the input's footers, so that
//! all processes decide the same.

use std::ops::Range;

use crate::plan::output_names;

/// Consecutive units whose rows go to the same files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct UnitRange {
    pub(super) units: Range<usize>,
    /// Names of the parts of `data/` for their rows, without extension; empty if nothing is written.
    pub(super) files: Vec<String>,
}

/// Estimated size of a unit in the output.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct UnitSize {
    pub(super) rows: u64,
    /// Estimated compressed bytes.
    pub(super) bytes: u64,
}

/// Units whose rows go to files of one name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct FileSeries {
    /// Name of its files, without part number and extension.
    pub(super) stem: String,
    /// Whether its only file has a part number as well.
    pub(super) always_numbered: bool,
    /// Empty for an input file without rows.
    pub(super) units: Range<usize>,
}

/// Splits all units into ranges. A file has rows of one series only; every series has at least one, possibly empty file.
pub(super) fn ranges(series: &[FileSeries], sizes: &[UnitSize], part_bytes: u64) -> Vec<UnitRange> {
    let series_ranges = |FileSeries { stem, always_numbered, units }: &FileSeries| {
        let mut cuts = cuts(&sizes[units.clone()], part_bytes);
        if cuts.is_empty() {
            cuts.push((0..0, 0));
        }
        if cuts.iter().all(|(_, files)| *files == 0) {
            cuts[0].1 = 1;
        }
        let all: u64 = cuts.iter().map(|(_, files)| files).sum();
        let name = |number| match all {
            1 if !always_numbered => stem.clone(),
            _ => output_names::numbered(stem, number, all),
        };
        let mut next = 0;
        let named = cuts.into_iter().map(|(range, files)| {
            let names = (next..next + files).map(name).collect();
            next += files;
            UnitRange { units: units.start + range.start..units.start + range.end, files: names }
        });
        named.collect::<Vec<UnitRange>>()
    };
    series.iter().flat_map(series_ranges).collect()
}

/// Groups units and decides the number of files of each range. Each file has about `part_bytes`: smaller units are grouped
/// while they fit, and a larger one is split. With `part_bytes` 0 every unit has its own file.
fn cuts(sizes: &[UnitSize], part_bytes: u64) -> Vec<(Range<usize>, u64)> {
    let mut cuts: Vec<(Range<usize>, u64)> = Vec::new();
    let mut open = UnitSize::default();
    for (unit, size) in sizes.iter().enumerate() {
        let fits = part_bytes > 0 && open.bytes.saturating_add(size.bytes) <= part_bytes;
        match cuts.last_mut() {
            // A range or a unit without rows can always be merged.
            Some((units, _)) if part_bytes > 0 && (fits || open.rows == 0 || size.rows == 0) => {
                units.end = unit + 1;
                open.rows += size.rows;
                open.bytes = open.bytes.saturating_add(size.bytes);
            }
            _ => {
                cuts.push((unit..unit + 1, 0));
                open = *size;
            }
        }
        if let Some((_, files)) = cuts.last_mut() {
            let wanted = match part_bytes {
                0 => 1,
                part_bytes => (open.bytes.saturating_add(part_bytes / 2) / part_bytes).max(1),
            };
            *files = wanted.min(open.rows);
        }
    }
    cuts
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn sizes(bytes: &[u64]) -> Vec<UnitSize> {
        bytes.iter().map(|bytes| UnitSize { rows: *bytes, bytes: *bytes }).collect()
    }

    fn cuts(bytes: &[u64], part_bytes: u64) -> Vec<(Range<usize>, u64)> {
        super::cuts(&sizes(bytes), part_bytes)
    }

    fn all(units: usize) -> [FileSeries; 1] {
        [FileSeries { stem: "train".into(), always_numbered: true, units: 0..units }]
    }

    fn names(ranges: &[UnitRange]) -> Vec<&str> {
        ranges.iter().flat_map(|range| &range.files).map(String::as_str).collect()
    }

    #[test]
    fn small_units_share_a_file_and_large_ones_have_several() {
        assert_eq!(cuts(&[3, 3, 3, 3, 3], 10), [(0..3, 1), (3..5, 1)]);
        assert_eq!(cuts(&[3, 45, 3], 10), [(0..1, 1), (1..2, 5), (2..3, 1)]);
        assert_eq!(cuts(&[10, 10], 10), [(0..1, 1), (1..2, 1)]);
        assert_eq!(cuts(&[1, 1], u64::MAX), [(0..2, 1)]);
    }

    #[test]
    fn units_without_rows_are_in_a_range_without_files() {
        assert_eq!(cuts(&[0, 0, 9, 0, 9, 0], 10), [(0..4, 1), (4..6, 1)]);
        assert_eq!(cuts(&[0, 0], 10), [(0..2, 0)]);
        assert_eq!(cuts(&[], 10), []);
    }

    #[test]
    fn without_a_size_every_unit_has_its_own_file() {
        assert_eq!(cuts(&[3, 0, 3], 0), [(0..1, 1), (1..2, 0), (2..3, 1)]);
    }

    #[test]
    fn files_are_numbered_across_ranges() {
        let ranges = ranges(&all(3), &sizes(&[3, 20, 3]), 10);
        let expected = [0, 1, 2, 3].map(|number| format!("train-{number:05}-of-00004"));
        assert_eq!(names(&ranges), expected);
    }

    #[test]
    fn every_series_has_its_own_files() {
        let plain = |stem: &str, units| {
            let (stem, always_numbered) = (stem.to_owned(), false);
            FileSeries { stem, always_numbered, units }
        };
        let series = [plain("a", 0..2), plain("b/c", 2..3), plain("d", 3..3), plain("e", 3..5)];
        let ranges = ranges(&series, &sizes(&[1, 2, 30, 0, 0]), 10);
        let expected =
            ["a", "b/c-00000-of-00003", "b/c-00001-of-00003", "b/c-00002-of-00003", "d", "e"];
        assert_eq!(names(&ranges), expected);
        let units: Vec<Range<usize>> = ranges.into_iter().map(|one| one.units).collect();
        assert_eq!(units, [0..2, 2..3, 3..3, 3..5]);
        let nothing = super::ranges(&all(2), &sizes(&[0, 0]), 10);
        assert_eq!(names(&nothing), ["train-00000-of-00001"]);
    }

    proptest! {
        #[test]
        fn every_unit_is_in_one_range_and_every_file_has_rows(
            bytes in prop::collection::vec(0u64..50, 0..40), part_bytes in 0u64..60,
        ) {
            let sizes = sizes(&bytes);
            let ranges = ranges(&all(bytes.len()), &sizes, part_bytes);
            let units: Vec<usize> = ranges.iter().flat_map(|one| one.units.clone()).collect();
            let nothing = bytes.iter().all(|bytes| *bytes == 0);
            prop_assert_eq!(units, (0..bytes.len()).collect::<Vec<_>>());
            for UnitRange { units, files } in ranges {
                let rows: u64 = sizes[units.clone()].iter().map(|size| size.rows).sum();
                prop_assert!(nothing || files.len() as u64 <= rows);
                prop_assert!(nothing || (rows == 0) == files.is_empty());
                prop_assert!(part_bytes == 0 || files.len() < 2 || rows / files.len() as u64 <= 2 * part_bytes);
                let written = units.filter(|unit| sizes[*unit].rows > 0).count();
                prop_assert!(files.len() < 2 || written == 1, "only a unit that is too large is split");
            }
        }
    }
}
