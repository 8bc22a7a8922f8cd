//! Samples that a report shows as text: the best of each group, those next to the threshold, and random ones.

use std::cmp::Ordering;

use serde::Serialize;

use crate::base::random::mix;
use crate::run_directory::dropped::NOT_SELECTED;
use crate::run_directory::scores::WindowLocation;
use crate::run_directory::selected::SelectedRow;

const SAMPLES_PER_KIND: usize = 2;

pub(crate) const SEED: u64 = 1;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum PickKind {
    /// One of the highest scores.
    Best,
    /// One of the lowest kept scores.
    JustAbove,
    /// One of the highest scores that were not kept.
    JustBelow,
    /// Random sample that was rejected by a guard or has no score.
    Refused,
    /// Random sample that was not kept because of its rank.
    LeftOut,
}

/// All kinds and their titles, in the order of the page.
pub(crate) const KINDS: [(PickKind, &str); 5] = [
    (PickKind::Best, "Highest scores"),
    (PickKind::JustAbove, "Just above the threshold"),
    (PickKind::JustBelow, "Just below the threshold"),
    (PickKind::Refused, "Rejected by a guard or without a score"),
    (PickKind::LeftOut, "Below the threshold, at random"),
];

/// Sort key: a number, of which the lowest are shown, then the index of the unit, row and window.
type SortKey = (f64, (usize, u64, Option<u32>));

#[derive(Clone, Debug, PartialEq)]
pub(super) struct Pick {
    key: SortKey,
    pub(super) id: String,
    pub(super) group: Option<String>,
    pub(super) location: WindowLocation,
    pub(super) tokens: u64,
    pub(super) statistics: Vec<f64>,
    pub(super) score: f64,
    pub(super) percentile: Option<f64>,
    pub(super) reason: Option<String>,
}

impl Pick {
    pub(super) fn unit(&self) -> usize {
        self.key.1.0
    }

    pub(super) fn window(&self) -> Option<u32> {
        self.key.1.2
    }
}

#[derive(Clone, Copy)]
pub(super) struct Candidate<'r> {
    pub(super) unit: usize,
    pub(super) row: &'r SelectedRow<'r>,
    pub(super) location: WindowLocation,
    pub(super) tokens: u64,
}

/// Current candidates of a group, by kind.
#[derive(Clone, Debug, Default)]
pub(super) struct Picks([Vec<Pick>; KINDS.len()]);

impl Picks {
    pub(super) fn add_rejected(&mut self, sample: Candidate<'_>) {
        self.put(PickKind::Refused, random(sample.row), sample);
    }

    pub(super) fn add(&mut self, sample: Candidate<'_>) {
        let row = sample.row;
        match row.reason {
            // Kept without a score: neither a best nor a marginal sample.
            None if row.score.is_nan() => {}
            None => {
                self.put(PickKind::Best, -row.score, sample);
                self.put(PickKind::JustAbove, row.score, sample);
            }
            Some(NOT_SELECTED) => {
                self.put(PickKind::JustBelow, -row.score, sample);
                self.put(PickKind::LeftOut, random(row), sample);
            }
            Some(_) => self.add_rejected(sample),
        }
    }

    fn put(&mut self, kind: PickKind, order: f64, sample: Candidate<'_>) {
        let Candidate { unit, row, location, tokens } = sample;
        let (picks, key) = (&mut self.0[kind as usize], (order, (unit, row.input_row, row.window)));
        if picks.get(SAMPLES_PER_KIND - 1).is_some_and(|last| before(&last.key, &key)) {
            return;
        }
        let pick = Pick {
            key,
            id: row.id.to_owned(),
            group: row.group.map(str::to_owned),
            location,
            tokens,
            statistics: row.statistics.to_vec(),
            score: row.score,
            percentile: row.percentile,
            reason: row.reason.map(str::to_owned),
        };
        insert(picks, pick);
    }

    /// Adds the candidates of another part of the same group.
    pub(super) fn append(&mut self, other: Self) {
        for (picks, more) in self.0.iter_mut().zip(other.0) {
            for pick in more {
                insert(picks, pick);
            }
        }
    }

    /// Returns the samples to show, each once: in a small group one sample may be of several kinds.
    pub(super) fn shown(self) -> Vec<(PickKind, Pick)> {
        let mut shown: Vec<(PickKind, Pick)> = Vec::new();
        for ((kind, _), picks) in KINDS.into_iter().zip(self.0) {
            for pick in picks {
                if shown.iter().all(|(_, other)| other.key.1 != pick.key.1) {
                    shown.push((kind, pick));
                }
            }
        }
        shown
    }
}

fn before(one: &SortKey, other: &SortKey) -> bool {
    one.0.total_cmp(&other.0).then(one.1.cmp(&other.1)) == Ordering::Less
}

fn insert(picks: &mut Vec<Pick>, pick: Pick) {
    let index = picks.partition_point(|other| before(&other.key, &pick.key));
    picks.insert(index, pick);
    picks.truncate(SAMPLES_PER_KIND);
}

fn random(row: &SelectedRow<'_>) -> f64 {
    draw(row.id, row.input_row, row.window.map_or(u64::MAX, u64::from)) as f64
}

/// Returns a number that depends only on the seed and the sample: FNV-1a, mixed as in `SplitMix64`.
fn draw(id: &str, row: u64, window: u64) -> u64 {
    let numbers = [SEED.to_le_bytes(), row.to_le_bytes(), window.to_le_bytes()];
    let bytes = numbers.iter().flatten().chain(id.as_bytes());
    let hash = bytes.fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    });
    mix(hash)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn picks(samples: &[(u64, f64, Option<&'static str>)]) -> Picks {
        let mut picks = Picks::default();
        for (row, score, reason) in samples {
            let location = WindowLocation {
                input_row: *row,
                window: 0,
                tokens: (0, 1),
                bytes: None,
                tokens_total: 1,
            };
            let row = SelectedRow {
                input_row: *row,
                id: "a",
                window: Some(0),
                group: None,
                statistics: &[],
                score: *score,
                percentile: None,
                reason: *reason,
            };
            picks.add(Candidate { unit: 0, row: &row, location, tokens: 1 });
        }
        picks
    }

    fn rows(picks: Picks) -> Vec<(PickKind, u64)> {
        picks.shown().into_iter().map(|(kind, pick)| (kind, pick.location.input_row)).collect()
    }

    #[test]
    fn samples_around_the_threshold_are_shown_once() {
        let samples: Vec<(u64, f64, Option<&'static str>)> = (0..20)
            .map(|row| (row, row as f64, (row < 12).then_some("not_selected")))
            .chain([(20, 30.0, Some("guard_copy_share"))])
            .collect();
        let found = rows(picks(&samples));
        assert_eq!(
            found[..6],
            [
                (PickKind::Best, 19),
                (PickKind::Best, 18),
                (PickKind::JustAbove, 12),
                (PickKind::JustAbove, 13),
                (PickKind::JustBelow, 11),
                (PickKind::JustBelow, 10),
            ]
        );
        assert_eq!(found[6], (PickKind::Refused, 20));
        assert!(found[7..].iter().all(|(kind, row)| *kind == PickKind::LeftOut && *row < 10));
        // Splitting the samples does not change the result.
        let (one, other) = samples.split_at(13);
        let mut joined = picks(other);
        joined.append(picks(one));
        assert_eq!(rows(joined), found);
        assert_eq!(rows(picks(&samples[19..20])), [(PickKind::Best, 19)]);
    }
}
