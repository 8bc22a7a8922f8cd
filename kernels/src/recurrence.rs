//! Recurrence of token ids in a window, and its distances: whole numbers, the same on every machine.

mod bits;
mod count;
mod scan;
mod tallies;
mod window_counts;

pub use count::RecurrenceCounts;
pub use scan::RecurrenceScan;
pub use window_counts::WindowCounts;

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a random text with frequent and rare words, and some repeated passages.
    fn ids(seed: u64, tokens: usize) -> Vec<u32> {
        let mut state = seed;
        let mut next = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 33) as usize
        };
        let mut ids: Vec<u32> = Vec::new();
        while ids.len() < tokens {
            if next() % 20 == 0 && !ids.is_empty() {
                let from = next() % ids.len();
                let passage = ids[from..ids.len().min(from + next() % 40)].to_vec();
                ids.extend(passage);
            } else {
                ids.push((next() % 11 * (next() % 7)) as u32);
            }
        }
        ids.truncate(tokens);
        ids
    }

    #[test]
    #[cfg_attr(not(longsift_avx2), ignore = "needs a processor with AVX2")]
    fn vectors_do_not_change_results() {
        for (seed, tokens) in [(1, 0), (2, 2), (3, 63), (4, 64), (5, 1000), (6, 5000)] {
            let ids = ids(seed, tokens);
            let (mut scan, mut plain) = (RecurrenceScan::default(), RecurrenceScan::default());
            let got = RecurrenceCounts::with_window(&ids, tokens as u64 / 8, &mut scan);
            let expected =
                RecurrenceCounts::with_window_portable(&ids, tokens as u64 / 8, &mut plain);
            assert_eq!(got, expected, "seed {seed}");
            let (counts, window) = got;
            assert!(tokens < 1000 || (counts.far > 0 && counts.copied > 0), "seed {seed}");
            assert!(tokens < 1000 || (window.periodic > 1 && window.repeated > 0), "seed {seed}");
            assert_eq!(scan.distances(), plain.distances());
            assert_eq!(scan.copied(), plain.copied());
            assert_eq!(
                counts,
                RecurrenceCounts::new(&ids, tokens as u64 / 8, &mut RecurrenceScan::default())
            );
        }
    }

    #[test]
    fn counts_over_the_window_take_at_most_16_bytes_a_token() {
        for tokens in [1, 100, 2048, 5000, 32_768, 70_000] {
            for ids in [ids(7, tokens), (0..tokens as u32).collect()] {
                let (mut scored_only, mut with_window) =
                    (RecurrenceScan::default(), RecurrenceScan::default());
                RecurrenceCounts::new(&ids, 1, &mut scored_only);
                RecurrenceCounts::with_window(&ids, 1, &mut with_window);
                assert!(with_window.bytes() <= scored_only.bytes() + 16 * tokens, "{tokens}");
            }
        }
    }
}
