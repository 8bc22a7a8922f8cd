//! Recurrence measure: how much text of a window recurs far back, from token ids alone.

#[cfg(test)]
mod tests;

use std::cell::RefCell;
use std::ops::Range;

use longsift_kernels::recurrence::{RecurrenceCounts, RecurrenceScan, WindowCounts};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::passages;
use crate::contract::{
    Column, Decimal, FarDistance, Kind, Measure, Merge, Orientation, Passages, RowError,
    StatisticValues, Value, Window,
};

/// Measures the share of tokens in the second half of a window that recur: the three tokens that end with such a token
/// also occur far back, outside copied passages. It uses token ids alone, without a model or a device. It detects
/// verbatim repetition of three tokens, but neither paraphrase nor reasoning. Its other statistics separate text from
/// junk: how much is copied, repeated or periodic, how much recurs nearby, how widely the far links spread, and whether
/// rare tokens cluster as topics do.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Recurrence {
    /// Distinguishes this stage from another `recurrence` of the pipeline: its statistics become
    /// `NAME_far_recurrence` and so on. Lower case letters, digits and `_`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(regex(pattern = "^[a-z][a-z0-9_]{0,31}$"))]
    pub name: Option<String>,
    /// Distance from which a repetition counts as far, as a share f of the window, above 0 and below 1: `k = ⌈f·S⌉` in
    /// a window of S tokens. Default 0.125, a compromise: 0.25 separates whole documents better from two joined halves,
    /// 0.0625 better from eight joined pieces and from duplicates.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0.000_001, max = 0.999_999))]
    pub min_distance_fraction: Option<Decimal>,
    /// Distance `k` from which tokens count as far, in tokens, instead of `min_distance_fraction`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 16_777_215))]
    pub min_distance_tokens: Option<u32>,
}

impl Recurrence {
    /// Returns the minimum distance of a far recurrence.
    pub fn distance(&self) -> FarDistance {
        match (self.min_distance_tokens, self.min_distance_fraction) {
            (Some(tokens), _) => FarDistance::Tokens(tokens),
            (None, fraction) => FarDistance::Fraction(fraction.unwrap_or(Decimal(0.125))),
        }
    }

    /// Counts the second half of a window. Reuses the memory of `scan`.
    pub fn counts(&self, ids: &[u32], scan: &mut RecurrenceScan) -> RecurrenceCounts {
        RecurrenceCounts::new(ids, self.distance().in_window(ids.len() as u64), scan)
    }

    /// Counts the second half of a window, and the whole window.
    pub fn all_counts(
        &self,
        ids: &[u32],
        scan: &mut RecurrenceScan,
    ) -> (RecurrenceCounts, WindowCounts) {
        RecurrenceCounts::with_window(ids, self.distance().in_window(ids.len() as u64), scan)
    }
}

/// Token of the second half of a window whose trigram occurred earlier.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Link {
    /// Position in the window, BOS included.
    pub token: usize,
    /// Position of the last earlier occurrence.
    pub earlier: usize,
    /// Whether the token is part of a copied passage.
    pub copied: bool,
    /// Whether `far_recurrence` counts the token: far enough back, and not copied.
    pub far: bool,
}

impl Recurrence {
    /// Returns the tokens that the statistics of a window count, ascending. `far_recurrence` is the number of far
    /// links over the tokens of the second half.
    pub fn links(&self, ids: &[u32]) -> Vec<Link> {
        let mut scan = RecurrenceScan::default();
        let counts = self.counts(ids, &mut scan);
        let link = |token: usize| {
            let back = scan.distances()[token] as usize;
            let copied = scan.is_copied(token);
            let far = !copied && back as u64 >= counts.min_distance;
            (back > 0).then(|| Link { token, earlier: token - back, copied, far })
        };
        (ids.len() - ids.len() / 2..ids.len()).filter_map(link).collect()
    }

    /// Returns the copied tokens of the second half.
    fn copied(&self, ids: &[u32]) -> Vec<Range<usize>> {
        let mut scan = RecurrenceScan::default();
        self.counts(ids, &mut scan);
        let half = ids.len() - ids.len() / 2;
        passages::ranges((0..ids.len()).map(|token| token >= half && scan.is_copied(token)))
    }
}

impl Measure for Recurrence {
    fn name(&self) -> Option<&str> {
        self.name.as_deref()
    }

    fn columns(&self) -> Vec<Column> {
        let share = |name: &'static str, doc: &'static str| {
            Column::number(name, "share of the second half", doc)
        };
        let of_window = |name: &'static str, doc: &'static str| Column {
            unit: "share of the tokens".into(),
            orientation: Orientation::Lower,
            ..share(name, doc)
        };
        vec![
            share(
                "far_recurrence",
                "tokens whose last earlier occurrence, after the same two tokens, is at least k tokens back; copied passages excluded",
            ),
            share(
                "near_recurrence",
                "tokens whose last earlier occurrence, after the same two tokens, is less than a sixteenth of the window back; copied passages excluded; lower if sentences are shuffled",
            ),
            Column {
                unit: "share of the possible pairs".into(),
                ..share(
                    "link_coverage",
                    "distinct pairs of 32 parts of the window that tokens of far_recurrence link: how widely, not how often",
                )
            },
            share(
                "copy_share",
                "tokens in sequences of eight that last occurred at least a sixteenth of the window earlier: a guard",
            ),
            share(
                "far_first4_share",
                "as far_with_copies_share, with only the first four tokens of each match",
            ),
            share("far_with_copies_share", "as far_recurrence, copied passages included"),
            Column {
                kind: Kind::Numbers,
                unit: "tokens by distance".into(),
                merge: Merge::Never,
                ..share(
                    "recurrence_histogram",
                    "tokens of the second half by distance to the last earlier occurrence, copied or not: bin 0 is no occurrence, bin b is [2^(b-1), 2^b)",
                )
            },
            Column {
                kind: Kind::Count,
                unit: "tokens".into(),
                merge: Merge::Max,
                ..share("recurrence_distance", "k, the minimum distance of a far recurrence")
            },
            of_window(
                "periodic_share",
                "trigrams whose last earlier occurrence is p tokens back, for the most frequent p of at least 2: tables, logs and boilerplate with a fixed period",
            ),
            of_window(
                "repeated_share",
                "tokens in runs of 16 or more of which every 8 consecutive tokens occur earlier in the window, at any distance",
            ),
            Column {
                unit: "share of pairs".into(),
                orientation: Orientation::Higher,
                ..of_window(
                    "midrange_share",
                    "pairs of occurrences of a token that are at least 1/32 and less than 1/8 of the window apart, for tokens that occur 2 to 6 times: 0.173 by chance, higher where topics come and go; null with fewer than 30 pairs",
                )
            },
            of_window(
                "frequent_token_share",
                "tokens whose id occurs at least twice, and at least S/128 times, rounded down",
            ),
        ]
    }

    fn version(&self) -> u32 {
        2
    }

    fn facts(&self) -> serde_json::Value {
        // The name only changes the names of statistics, so it is not part of the identity. The two distance settings
        // are represented by the resulting distance.
        let Self { name: _, min_distance_fraction: _, min_distance_tokens: _ } = self;
        json!({ "min_distance": self.distance() })
    }

    fn min_tokens(&self) -> u64 {
        self.distance().min_tokens()
    }

    fn passages(&self, column: &str, window: &Window<'_>) -> Option<Passages> {
        let find = match column {
            "copy_share" => return Some(Passages::Tokens(self.copied(window.ids))),
            "periodic_share" => passages::periodic,
            "repeated_share" => passages::repeated,
            "frequent_token_share" => passages::frequent,
            _ => return None,
        };
        Some(Passages::Tokens(find(window.ids)))
    }

    fn statistics(&self, window: &Window<'_>) -> Result<StatisticValues, RowError> {
        thread_local!(static SCAN: RefCell<RecurrenceScan> = RefCell::default());
        let (counts, of_window) = SCAN.with_borrow_mut(|scan| self.all_counts(window.ids, scan));
        let share = |count| Value::number(counts.share(count));
        Ok(StatisticValues(vec![
            share(counts.far),
            share(counts.near),
            Value::number(counts.link_coverage()),
            share(counts.copied),
            share(counts.far_first4),
            share(counts.far_with_copies),
            Value::Numbers(counts.bins.iter().map(|&tokens| tokens as f64).collect()),
            Value::Count(counts.min_distance),
            Value::number(of_window.share(of_window.periodic)),
            Value::number(of_window.share(of_window.repeated)),
            Value::number(of_window.midrange_share()),
            Value::number(of_window.share(of_window.frequent)),
        ]))
    }
}
