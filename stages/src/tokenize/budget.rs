//! Limit on the time that the patterns of a tokenizer may spend on a text: a pattern can be written so that a short text
//! takes days. Time depends on the machine, so a tokenizer that exceeds it ends the run
//! ([`EncodeProblem::is_tokenizer_fault`](super::EncodeProblem::is_tokenizer_fault)).

use std::cell::Cell;

use rustix::time::{ClockId, clock_gettime};

/// Nanoseconds of processor time for any text: a minute.
const MIN_NANOSECONDS: u64 = if cfg!(test) { 1_000_000_000 } else { 60_000_000_000 };
/// Additional nanoseconds per byte of the text: 200 seconds a mebibyte.
const NANOSECONDS_PER_BYTE: u64 = if cfg!(test) { 20_000 } else { 200_000 };
/// Matches between two readings of the clock.
const MATCHES_PER_READING: u32 = 32;

thread_local! {
    /// End of the current text's processor time, and matches since the last reading of the clock.
    static DEADLINE: Cell<Option<u64>> = const { Cell::new(None) };
    static MATCHED: Cell<u32> = const { Cell::new(0) };
}

/// Time limit of the text that this thread is processing; ends when dropped.
pub(super) struct PatternBudget {
    started: u64,
}

/// The time of a text is used up.
#[derive(Debug, thiserror::Error)]
#[error("its patterns exceed the time limit of a minute plus 200 seconds per MiB of text")]
pub(super) struct BudgetExceeded;

impl PatternBudget {
    /// Starts the time limit of a text of `bytes` bytes.
    pub(super) fn start(bytes: usize) -> Self {
        let budget = Self { started: now() };
        budget.reach(bytes);
        budget
    }

    /// Extends the limit to that of a text of `bytes` bytes, once its length is known.
    pub(super) fn reach(&self, bytes: usize) {
        let allowed = (bytes as u64).saturating_mul(NANOSECONDS_PER_BYTE);
        DEADLINE.set(Some(self.started.saturating_add(MIN_NANOSECONDS).saturating_add(allowed)));
    }
}

impl Drop for PatternBudget {
    fn drop(&mut self) {
        DEADLINE.set(None);
    }
}

/// Counts a match; fails if the time of this thread's text is used up.
pub(super) fn count_match() -> Result<(), BudgetExceeded> {
    let matched = MATCHED.get() + 1;
    MATCHED.set(matched % MATCHES_PER_READING);
    if matched == MATCHES_PER_READING && DEADLINE.get().is_some_and(|deadline| now() > deadline) {
        return Err(BudgetExceeded);
    }
    Ok(())
}

/// Returns the processor time of this thread, in nanoseconds: pauses and other load do not count.
fn now() -> u64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    (time.tv_sec as u64).saturating_mul(1_000_000_000).saturating_add(time.tv_nsec as u64)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use crate::tokenize::EncodeProblem;
    use crate::tokenize::fixtures::encoder_with;

    #[test]
    fn an_endless_pattern_is_stopped() {
        let text = "a".repeat(300_000);
        // At every letter, each pattern scans the rest of the text: one with the backtracking engine, the other as an
        // automaton.
        for pattern in ["a(?=a*b)|a", "a+b|a"] {
            let encoder = encoder_with(|form| {
                form["pre_tokenizer"] = json!({"type": "Split", "behavior": "Isolated", "invert": false,
                                               "pattern": {"Regex": pattern}});
            });
            let problem = encoder.encode(&text, usize::MAX).unwrap_err();
            assert_eq!(problem, EncodeProblem::TimedOut { text_bytes: 300_000 });
            assert!(problem.is_tokenizer_fault());
            assert!(encoder.encode("aab", usize::MAX).is_ok(), "a short text is fine");
        }
    }
}
