//! Selects the windows of a measure with a `sample_fraction`.

use longsift_stages::contract::WindowSample;

use crate::base::random::{key, mix, unit};

/// Whether a sample contains a window of a document, given its number; without a sample, all windows are contained.
/// Depends only on the document and the window, not on the order of documents, files, work units or processes.
pub fn contains(sample: Option<WindowSample>, document: &str, window: u32) -> bool {
    let Some(sample) = sample else { return true };
    let hash = mix(key(sample.seed, &["window", document, &window.to_string()]));
    unit(hash) < sample.fraction.0
}

#[cfg(test)]
mod tests {
    use longsift_stages::contract::Decimal;

    use super::*;

    fn sampled(fraction: f64, seed: u64) -> Vec<bool> {
        let sample = Some(WindowSample { fraction: Decimal(fraction), seed });
        let windows = (0..500).flat_map(|document| (0..4).map(move |window| (document, window)));
        windows
            .map(|(document, window)| contains(sample, &format!("d{document}"), window))
            .collect()
    }

    #[test]
    fn samples_have_their_share_and_are_nested() {
        let shares = [0.05, 0.3, 0.8];
        for (at, share) in shares.into_iter().enumerate() {
            let sample = sampled(share, 7);
            let own = sample.iter().filter(|sampled| **sampled).count() as f64 / 2000.0;
            assert!((own - share).abs() < 0.03, "{own} of {share}");
            for larger in &shares[at..] {
                assert!(sample.iter().zip(sampled(*larger, 7)).all(|(one, other)| other || !one));
            }
        }
    }

    #[test]
    fn another_seed_chooses_other_windows_of_any_document() {
        let both =
            sampled(0.5, 0).into_iter().zip(sampled(0.5, 1)).filter(|(one, other)| *one && *other);
        let both = both.count();
        assert!((400..600).contains(&both), "{both} of 2,000 are in both halves");
        let of_first: Vec<bool> = sampled(0.5, 0).into_iter().step_by(4).collect();
        assert!(of_first.contains(&true) && of_first.contains(&false));
    }

    #[test]
    fn samples_match_the_known_answers() {
        let sample = Some(WindowSample { fraction: Decimal(0.5), seed: 3 });
        let sampled: Vec<bool> = (0..8).map(|window| contains(sample, "a", window)).collect();
        let known = [true, true, false, false, false, true, false, true];
        assert_eq!(sampled, known, "another version must choose the same windows");
    }
}
