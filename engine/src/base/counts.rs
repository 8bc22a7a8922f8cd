//! Row and window accounting: rows in = kept + dropped by reason + quarantined.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Accounting of the rows of a unit, or of all units, in the score phase.
#[derive(Clone, Debug, Default, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
pub struct Counts {
    /// Rows read.
    pub rows: u64,
    /// Rows with at least one measured window.
    pub rows_scored: u64,
    /// Rows without measured windows, by reason.
    pub rows_dropped: BTreeMap<String, u64>,
    /// Rows that could not be scored, by code.
    pub quarantined: BTreeMap<String, u64>,
    /// Windows measured.
    pub windows: u64,
    /// Windows cut but not measured, by reason.
    pub windows_dropped: BTreeMap<String, u64>,
    /// Tokens of all tokenized documents.
    pub tokens_total: u64,
    /// Tokens of all measured windows, including BOS.
    pub tokens_scored: u64,
}

impl Counts {
    pub fn add(&mut self, other: &Self) {
        self.rows = self.rows.saturating_add(other.rows);
        self.rows_scored = self.rows_scored.saturating_add(other.rows_scored);
        self.windows = self.windows.saturating_add(other.windows);
        self.tokens_total = self.tokens_total.saturating_add(other.tokens_total);
        self.tokens_scored = self.tokens_scored.saturating_add(other.tokens_scored);
        for (mine, theirs) in [
            (&mut self.rows_dropped, &other.rows_dropped),
            (&mut self.quarantined, &other.quarantined),
            (&mut self.windows_dropped, &other.windows_dropped),
        ] {
            for (reason, number) in theirs {
                count(mine, reason, *number);
            }
        }
    }

    pub fn quarantined_rows(&self) -> u64 {
        total(&self.quarantined)
    }

    /// Number of windows cut, measured or not.
    pub fn windows_total(&self) -> u64 {
        self.windows.saturating_add(total(&self.windows_dropped))
    }

    /// Checks that every row is accounted for. A violation is a bug; the error describes it.
    pub fn check(&self) -> Result<(), String> {
        let dropped = total(&self.rows_dropped);
        let sum = self.rows_scored.saturating_add(dropped).saturating_add(self.quarantined_rows());
        if sum == self.rows {
            return Ok(());
        }
        Err(format!(
            "{} rows were read, but {} were scored, {dropped} dropped and {} quarantined, {sum} in total",
            self.rows,
            self.rows_scored,
            self.quarantined_rows()
        ))
    }
}

/// Sums the counts of all reasons, saturating because a modified record may contain any numbers.
fn total(reasons: &BTreeMap<String, u64>) -> u64 {
    reasons.values().fold(0, |sum, count| sum.saturating_add(*count))
}

pub fn count(reasons: &mut BTreeMap<String, u64>, reason: &str, number: u64) {
    match reasons.get_mut(reason) {
        Some(count) => *count = count.saturating_add(number),
        None => drop(reasons.insert(reason.to_owned(), number)),
    }
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde calls it")]
pub(crate) fn is_zero(count: &u64) -> bool {
    *count == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unaccounted_row_is_detected() {
        let mut counts = Counts { rows: 3, rows_scored: 1, ..Counts::default() };
        count(&mut counts.rows_dropped, "short_document", 1);
        assert!(counts.check().unwrap_err().contains("3 rows were read"));
        count(&mut counts.quarantined, "null_text", 1);
        assert_eq!(counts.check(), Ok(()));
        let mut total = Counts::default();
        total.add(&counts);
        total.add(&counts);
        assert_eq!(
            (total.rows, total.rows_dropped["short_document"], total.check()),
            (6, 2, Ok(()))
        );
    }
}
