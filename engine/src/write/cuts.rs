//! Where the output is cut into files: known before anything is written, from the selection and the footers of the input
//! alone, so that every process comes to the same cuts, however many there are.

use std::ops::Range;

/// Consecutive units whose rows go into files together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Stretch {
    /// The units.
    pub(super) units: Range<usize>,
    /// The names of the parts of `data/` that their rows go to, without what files end with; none where nothing of them is
    /// written.
    pub(super) files: Vec<String>,
}

/// What a unit will add to the output.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Share {
    /// Rows.
    pub(super) rows: u64,
    /// Compressed bytes, about.
    pub(super) bytes: u64,
}

/// The stretches of all units, in order. Each file gets about `part_bytes`: units that add less are put together while
/// they fit, one that adds more is split. With `part_bytes` 0 every unit has a file of its own.
pub(super) fn stretches(shares: &[Share], part_bytes: u64) -> Vec<Stretch> {
    let mut cuts: Vec<(Range<usize>, u64)> = Vec::new();
    let mut open = Share::default();
    for (unit, share) in shares.iter().enumerate() {
        let fits = part_bytes > 0 && open.bytes.saturating_add(share.bytes) <= part_bytes;
        match cuts.last_mut() {
            // Where nothing is written yet, or nothing of this unit, there is nothing to keep apart.
            Some((units, _)) if part_bytes > 0 && (fits || open.rows == 0 || share.rows == 0) => {
                units.end = unit + 1;
                open.rows += share.rows;
                open.bytes = open.bytes.saturating_add(share.bytes);
            }
            _ => {
                cuts.push((unit..unit + 1, 0));
                open = *share;
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
    let all: u64 = cuts.iter().map(|(_, files)| files).sum();
    let mut next = 0;
    let named = cuts.into_iter().map(|(units, files)| {
        let names = (next..next + files).map(|number| name(number, all)).collect();
        next += files;
        Stretch { units, files: names }
    });
    named.collect()
}

/// The name of one of `all` parts of the output.
pub(super) fn name(number: u64, all: u64) -> String {
    format!("train-{number:05}-of-{:05}", all.max(1))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn shares(bytes: &[u64]) -> Vec<Share> {
        bytes.iter().map(|bytes| Share { rows: *bytes, bytes: *bytes }).collect()
    }

    fn cuts(bytes: &[u64], part_bytes: u64) -> Vec<(Range<usize>, usize)> {
        let stretches = stretches(&shares(bytes), part_bytes).into_iter();
        stretches.map(|stretch| (stretch.units, stretch.files.len())).collect()
    }

    #[test]
    fn small_units_share_a_file_and_large_ones_have_several() {
        assert_eq!(cuts(&[3, 3, 3, 3, 3], 10), [(0..3, 1), (3..5, 1)]);
        assert_eq!(cuts(&[3, 45, 3], 10), [(0..1, 1), (1..2, 5), (2..3, 1)]);
        assert_eq!(cuts(&[10, 10], 10), [(0..1, 1), (1..2, 1)]);
        assert_eq!(cuts(&[1, 1], u64::MAX), [(0..2, 1)]);
    }

    #[test]
    fn units_that_add_nothing_are_in_some_stretch_and_have_no_file() {
        assert_eq!(cuts(&[0, 0, 9, 0, 9, 0], 10), [(0..4, 1), (4..6, 1)]);
        assert_eq!(cuts(&[0, 0], 10), [(0..2, 0)]);
        assert_eq!(cuts(&[], 10), []);
    }

    #[test]
    fn without_a_size_every_unit_has_its_own_file() {
        assert_eq!(cuts(&[3, 0, 3], 0), [(0..1, 1), (1..2, 0), (2..3, 1)]);
    }

    #[test]
    fn files_are_numbered_through() {
        let names: Vec<String> =
            stretches(&shares(&[3, 20, 3]), 10).into_iter().flat_map(|one| one.files).collect();
        let expected = [0, 1, 2, 3].map(|number| format!("train-{number:05}-of-00004"));
        assert_eq!(names, expected);
    }

    proptest! {
        #[test]
        fn every_unit_is_in_one_stretch_and_every_file_has_rows(
            bytes in prop::collection::vec(0u64..50, 0..40), part_bytes in 0u64..60,
        ) {
            let shares = shares(&bytes);
            let stretches = stretches(&shares, part_bytes);
            let units: Vec<usize> = stretches.iter().flat_map(|one| one.units.clone()).collect();
            prop_assert_eq!(units, (0..bytes.len()).collect::<Vec<_>>());
            for Stretch { units, files } in stretches {
                let rows: u64 = shares[units.clone()].iter().map(|share| share.rows).sum();
                prop_assert!(files.len() as u64 <= rows && (rows == 0) == files.is_empty());
                prop_assert!(part_bytes == 0 || files.len() < 2 || rows / files.len() as u64 <= 2 * part_bytes);
                let written = units.filter(|unit| shares[*unit].rows > 0).count();
                prop_assert!(files.len() < 2 || written == 1, "only a unit that is too large is split");
            }
        }
    }
}
