//! Shards: assigns work units to processes that share a run directory. Depends only on the plan, not on the processes.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::fmt;
use std::str::FromStr;

use crate::dataset::units::WorkUnit;

/// One of `count` shards of a plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shard {
    pub index: u32,
    /// Number of shards, at least 1.
    pub count: u32,
}

impl Shard {
    pub const WHOLE: Self = Self { index: 0, count: 1 };

    /// Returns the work units of this shard, in input order. Every unit is in exactly one shard.
    pub fn cut(self, units: Vec<WorkUnit>) -> Vec<WorkUnit> {
        let shards = shards_of(&units, self.count);
        let own = units.into_iter().zip(shards).filter(|(_, shard)| *shard == self.index);
        own.enumerate().map(|(index, (unit, _))| WorkUnit { index, ..unit }).collect()
    }
}

impl FromStr for Shard {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let shard = text.split_once('/').and_then(|(index, count)| {
            Some(Self { index: index.parse().ok()?, count: count.parse().ok()? })
        });
        match shard {
            Some(shard) if shard.index < shard.count => Ok(shard),
            Some(Self { count: 0, .. }) => {
                Err("the number of shards must be at least 1".to_owned())
            }
            Some(Self { count, .. }) => Err(format!(
                "shards are numbered from 0: the last of {count} is {}/{count}",
                count - 1
            )),
            None => Err("write it as INDEX/COUNT, the first of four is `0/4`".to_owned()),
        }
    }
}

impl fmt::Display for Shard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.index, self.count)
    }
}

/// Returns the shard of every unit. The largest units are assigned first, each to the shard with the fewest bytes
/// (Graham 1969: no shard exceeds 4/3 of the optimal maximum). Units of equal size are assigned to shards in turn, so that
/// every shard gets a share of each part of the input.
pub fn shards_of(units: &[WorkUnit], count: u32) -> Vec<u32> {
    distribute(&units.iter().map(|unit| unit.bytes).collect::<Vec<u64>>(), count)
}

/// Distributes sizes like [`shards_of`].
pub fn distribute(sizes: &[u64], count: u32) -> Vec<u32> {
    let mut largest_first: Vec<usize> = (0..sizes.len()).collect();
    largest_first.sort_by_key(|&one| (Reverse(sizes[one]), one));
    // Further shards stay empty.
    let used = count.min(u32::try_from(sizes.len()).unwrap_or(u32::MAX)).max(1);
    let mut loads: BinaryHeap<Reverse<(u64, u32)>> =
        (0..used).map(|shard| Reverse((0, shard))).collect();
    let mut shards = vec![0; sizes.len()];
    for one in largest_first {
        let mut min = loads.peek_mut().expect("there is at least one shard");
        let Reverse((bytes, shard)) = *min;
        shards[one] = shard;
        // Items without bytes still have a cost.
        *min = Reverse((bytes.saturating_add(sizes[one].max(1)), shard));
    }
    shards
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn units(bytes: &[u64]) -> Vec<WorkUnit> {
        let unit = |(index, &bytes): (usize, &u64)| WorkUnit {
            index,
            file: 0,
            file_path: format!("{index}.parquet"),
            row_groups: 0..1,
            first_row: 0,
            rows: 1,
            bytes,
        };
        bytes.iter().enumerate().map(unit).collect()
    }

    #[test]
    fn a_shard_is_written_as_index_and_count_from_0() {
        assert_eq!("3/16".parse(), Ok(Shard { index: 3, count: 16 }));
        assert_eq!(Shard { index: 3, count: 16 }.to_string(), "3/16");
        for (wrong, why) in [
            ("4/4", "the last of 4 is 3/4"),
            ("0/0", "must be at least 1"),
            ("1", "INDEX/COUNT"),
            ("-1/2", "INDEX/COUNT"),
            ("a/b", "INDEX/COUNT"),
        ] {
            assert!(wrong.parse::<Shard>().unwrap_err().contains(why), "{wrong}");
        }
    }

    #[test]
    fn equal_units_take_turns() {
        assert_eq!(shards_of(&units(&[5; 7]), 3), [0, 1, 2, 0, 1, 2, 0]);
        assert_eq!(shards_of(&units(&[0; 4]), 2), [0, 1, 0, 1]);
        assert_eq!(shards_of(&units(&[5; 3]), u32::MAX), [0, 1, 2]);
        assert!(shards_of(&[], 2).is_empty());
    }

    proptest! {
        #[test]
        fn every_unit_is_in_one_shard_and_shards_are_even(
            bytes in prop::collection::vec(0u64..1000, 0..200), count in 1u32..20,
        ) {
            let all = units(&bytes);
            let mut seen = vec![0; all.len()];
            let mut loads = Vec::new();
            for index in 0..count {
                let own = Shard { index, count }.cut(all.clone());
                prop_assert!(own.iter().enumerate().all(|(position, unit)| unit.index == position));
                loads.push(own.iter().map(|unit| unit.bytes).sum::<u64>());
                for unit in own {
                    let position = unit.file_path.trim_end_matches(".parquet").parse::<usize>();
                    seen[position.unwrap()] += 1;
                }
            }
            prop_assert!(seen.iter().all(|&times| times == 1));
            let even = bytes.iter().sum::<u64>() / u64::from(count);
            let largest = bytes.iter().copied().max().unwrap_or(0);
            prop_assert!(loads.into_iter().max().unwrap() <= even + largest + bytes.len() as u64);
        }
    }
}
