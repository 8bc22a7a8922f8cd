//! Cuts a document of `n` tokens into windows. Pure arithmetic: it sees token counts, never tokens.

use super::{ShortDocuments, Tokenize, Windows};

/// A window of a document, in document tokens (the BOS tokens that will stand before it are not counted).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct TokenWindow {
    /// Position among the document's windows, from 0, by ascending `token_start`.
    pub index: u32,
    /// The first token.
    pub token_start: u64,
    /// The token behind the last.
    pub token_end: u64,
}

impl TokenWindow {
    /// Tokens in the window, without BOS.
    pub fn tokens(&self) -> u64 {
        self.token_end - self.token_start
    }
}

/// What became of a document.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Cut {
    /// At least one window, by ascending `token_start`.
    Windows(Vec<TokenWindow>),
    /// Too short for a window, or empty: dropped as `short_document`.
    ShortDocument,
    /// Longer than `window_tokens` with `whole-document`, or more windows than a 32-bit index can number:
    /// quarantined as `document_too_long`.
    DocumentTooLong,
}

/// The most windows a document may have: their index is an `int32` column.
const MOST_WINDOWS: u64 = i32::MAX as u64;

impl Tokenize {
    /// Document tokens in a full window: `window_tokens - bos`, and never less than one.
    pub fn text_tokens(&self, bos: u8) -> u64 {
        u64::from(self.window_tokens).saturating_sub(u64::from(bos)).max(1)
    }

    /// Cuts a document of `tokens_total` tokens (without BOS). The scored sequence of a full window is exactly
    /// `window_tokens` long, so its text part is `window_tokens - bos`.
    pub fn cut(&self, tokens_total: u64, bos: u8) -> Cut {
        let window = self.text_tokens(bos);
        if tokens_total == 0 {
            return Cut::ShortDocument;
        }
        if tokens_total.div_ceil(window) > MOST_WINDOWS {
            return Cut::DocumentTooLong;
        }
        let spans = match self.windows {
            Windows::WholeDocument if tokens_total > window => return Cut::DocumentTooLong,
            Windows::WholeDocument => vec![(0, tokens_total)],
            _ if tokens_total < window => match self.short_documents {
                ShortDocuments::Drop => return Cut::ShortDocument,
                ShortDocuments::Score => vec![(0, tokens_total)],
            },
            Windows::BothEnds => both_ends(tokens_total, window),
            Windows::Disjoint => disjoint(tokens_total, window, self.short_documents),
        };
        let number =
            |(index, (token_start, token_end))| TokenWindow { index, token_start, token_end };
        Cut::Windows((0..).zip(spans).map(number).collect())
    }
}

/// Consecutive windows; the tail behind the last full one is one more, shorter window or is left out.
fn disjoint(tokens: u64, window: u64, tail: ShortDocuments) -> Vec<(u64, u64)> {
    let covered = match tail {
        ShortDocuments::Drop => tokens - tokens % window,
        ShortDocuments::Score => tokens,
    };
    let windows = covered.div_ceil(window);
    (0..windows).map(|index| (index * window, ((index + 1) * window).min(covered))).collect()
}

/// Windows from the front and the back in turn while more than three fit, then one, two or three that cover what is
/// left, overlapping where they must. The order is ascending, not the order of taking.
///
/// Source: `SlideWindow.sliding_window_sample` of `LongAttn` (Wu et al. 2025, appendix A), except that a document of
/// exactly one window is that window; the published script drops it.
fn both_ends(tokens: u64, window: u64) -> Vec<(u64, u64)> {
    // Each step of the loop takes one window at each end, and goes on while `left > 3 * window`.
    let pairs = tokens.saturating_sub(window.saturating_mul(3)).div_ceil(window.saturating_mul(2));
    let (front, back) = (pairs * window, tokens - pairs * window);
    let left = back - front;
    let last = back - window;

    let ends = |count: u64, from: u64| (0..count).map(move |index| from + index * window);
    let middle = if left > 2 * window {
        vec![front, front + (left - window) / 2, last]
    } else if left > window {
        vec![front, last]
    } else {
        vec![front]
    };
    ends(pairs, 0)
        .chain(middle)
        .chain(ends(pairs, back))
        .map(|start| (start, start + window))
        .collect()
}

/// How much of a document is in more than one of its windows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Overlap {
    /// Windows looked at.
    pub windows: u64,
    /// Windows that share at least one token with another window of their document.
    pub overlapping_windows: u64,
    /// Tokens of all windows, without BOS, each as often as it occurs.
    pub window_tokens: u64,
    /// How many of `window_tokens` are a second occurrence.
    pub repeated_tokens: u64,
}

impl Overlap {
    /// The overlap inside one document's windows, given by ascending `token_start`.
    pub fn of(windows: &[TokenWindow]) -> Self {
        let shared = |pair: &[TokenWindow]| pair[0].token_end.saturating_sub(pair[1].token_start);
        let (mut overlapping_windows, mut before_overlaps) = (0, false);
        for position in 0..windows.len() {
            let after_overlaps =
                windows.get(position..position + 2).is_some_and(|pair| shared(pair) > 0);
            overlapping_windows += u64::from(before_overlaps || after_overlaps);
            before_overlaps = after_overlaps;
        }
        Self {
            windows: windows.len() as u64,
            overlapping_windows,
            window_tokens: windows.iter().map(TokenWindow::tokens).sum(),
            repeated_tokens: windows.windows(2).map(shared).sum(),
        }
    }

    /// Adds another document's figures.
    pub fn add(&mut self, other: Self) {
        self.windows += other.windows;
        self.overlapping_windows += other.overlapping_windows;
        self.window_tokens += other.window_tokens;
        self.repeated_tokens += other.repeated_tokens;
    }

    /// The share of windows that overlap another one, 0 to 1; 0 without windows.
    pub fn share_of_windows(&self) -> f64 {
        share(self.overlapping_windows, self.windows)
    }

    /// The share of window tokens that are a second occurrence, 0 to 1/2; 0 without windows.
    pub fn share_of_tokens(&self) -> f64 {
        share(self.repeated_tokens, self.window_tokens)
    }
}

fn share(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { part as f64 / whole as f64 }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    fn tokenize(window_tokens: u32, windows: Windows, short_documents: ShortDocuments) -> Tokenize {
        Tokenize {
            window_tokens,
            windows,
            short_documents,
            bos: None,
            tokenizer: None,
            special_tokens_in_text: super::super::SpecialTokensInText::Parse,
        }
    }

    fn spans(cut: Cut) -> Vec<(u64, u64)> {
        let Cut::Windows(windows) = cut else { panic!("no windows: {cut:?}") };
        for (position, window) in windows.iter().enumerate() {
            assert_eq!(window.index as usize, position, "windows are numbered in their order");
        }
        windows.iter().map(|window| (window.token_start, window.token_end)).collect()
    }

    #[test]
    fn both_ends_is_the_published_slicer_except_for_exactly_one_window() {
        #[derive(serde::Deserialize)]
        struct Cases {
            cases: Vec<Case>,
        }
        #[derive(serde::Deserialize)]
        struct Case {
            n: u64,
            window: u32,
            segments: BTreeSet<(u64, u64)>,
        }
        let Some(text) =
            crate::tokenize::fixtures::shared_file("conformance/slice_window_cases.json")
        else {
            return;
        };
        let cases: Cases = serde_json::from_slice(&text).unwrap();
        assert!(cases.cases.len() > 200);
        for Case { n, window, segments } in cases.cases {
            let cut = tokenize(window, Windows::BothEnds, ShortDocuments::Drop).cut(n, 0);
            if n == u64::from(window) {
                assert_eq!(spans(cut), [(0, n)]);
            } else if segments.is_empty() {
                assert_eq!(cut, Cut::ShortDocument, "n {n}, window {window}");
            } else {
                let got = spans(cut);
                assert_eq!(
                    got.iter().copied().collect::<BTreeSet<_>>(),
                    segments,
                    "n {n}, window {window}"
                );
                assert_eq!(got.len(), segments.len(), "no window twice");
            }
        }
    }

    #[test]
    fn the_tail_of_disjoint_windows_is_a_shorter_window_or_left_out() {
        assert_eq!(
            spans(tokenize(4, Windows::Disjoint, ShortDocuments::Drop).cut(11, 0)),
            [(0, 4), (4, 8)]
        );
        assert_eq!(
            spans(tokenize(4, Windows::Disjoint, ShortDocuments::Score).cut(11, 0)),
            [(0, 4), (4, 8), (8, 11)]
        );
        assert_eq!(
            spans(tokenize(4, Windows::Disjoint, ShortDocuments::Score).cut(8, 0)),
            [(0, 4), (4, 8)]
        );
    }

    #[test]
    fn bos_tokens_take_their_place_in_the_window() {
        assert_eq!(
            spans(tokenize(6, Windows::Disjoint, ShortDocuments::Drop).cut(11, 2)),
            [(0, 4), (4, 8)]
        );
        assert_eq!(spans(tokenize(6, Windows::BothEnds, ShortDocuments::Drop).cut(5, 1)), [(0, 5)]);
        let whole = tokenize(6, Windows::WholeDocument, ShortDocuments::Drop);
        assert_eq!(spans(whole.cut(5, 1)), [(0, 5)]);
        assert_eq!(whole.cut(6, 1), Cut::DocumentTooLong);
    }

    #[test]
    fn a_short_document_is_dropped_or_one_window_of_its_own_length() {
        for windows in [Windows::BothEnds, Windows::Disjoint] {
            assert_eq!(tokenize(9, windows, ShortDocuments::Drop).cut(8, 0), Cut::ShortDocument);
            assert_eq!(spans(tokenize(9, windows, ShortDocuments::Score).cut(8, 0)), [(0, 8)]);
        }
        assert_eq!(
            spans(tokenize(9, Windows::WholeDocument, ShortDocuments::Drop).cut(8, 0)),
            [(0, 8)]
        );
    }

    #[test]
    fn absurd_sizes_are_refused_not_allocated() {
        for windows in [Windows::BothEnds, Windows::Disjoint, Windows::WholeDocument] {
            let smallest = tokenize(2, windows, ShortDocuments::Score);
            assert_eq!(smallest.cut(u64::MAX, 1), Cut::DocumentTooLong);
            assert_eq!(smallest.cut(0, 0), Cut::ShortDocument);
            assert_eq!(
                spans(smallest.cut(1, 2)),
                [(0, 1)],
                "bos fills the window: still one token of text"
            );
        }
    }

    #[test]
    fn overlap_counts_windows_and_repeated_tokens() {
        let overlap = |n| match tokenize(4, Windows::BothEnds, ShortDocuments::Drop).cut(n, 0) {
            Cut::Windows(windows) => Overlap::of(&windows),
            other => panic!("{other:?}"),
        };
        assert_eq!(overlap(8).overlapping_windows, 0);
        let three =
            Overlap { windows: 3, overlapping_windows: 3, window_tokens: 12, repeated_tokens: 3 };
        assert_eq!(overlap(9), three);
        // [0,4) [4,8) [5,9) [9,13): the middle two overlap.
        let mut both = overlap(13);
        assert_eq!((both.overlapping_windows, both.repeated_tokens), (2, 3));
        both.add(three);
        assert_eq!((both.windows, both.overlapping_windows), (7, 5));
        assert!((both.share_of_windows() - 5.0 / 7.0).abs() < 1e-12);
        assert!((both.share_of_tokens() - 6.0 / 28.0).abs() < 1e-12);
        assert!(Overlap::default().share_of_windows() == 0.0);
    }

    proptest! {
        #[test]
        fn disjoint_windows_tile_the_document(n in 1u64..5000, window in 2u32..300, bos in 0u8..2) {
            let text = u64::from(window) - u64::from(bos);
            let got = spans(tokenize(window, Windows::Disjoint, ShortDocuments::Score).cut(n, bos));
            prop_assert_eq!(got[0].0, 0);
            prop_assert_eq!(got[got.len() - 1].1, n);
            prop_assert!(got.windows(2).all(|pair| pair[0].1 == pair[1].0));
            prop_assert!(got.iter().rev().skip(1).all(|(start, end)| end - start == text));

            if n >= text {
                let full = spans(tokenize(window, Windows::Disjoint, ShortDocuments::Drop).cut(n, bos));
                let whole: Vec<_> = got.into_iter().filter(|(start, end)| end - start == text).collect();
                prop_assert_eq!(full, whole, "only the tail is left out");
            }
        }

        #[test]
        fn both_ends_windows_are_full_and_cover_every_token(n in 1u64..5000, window in 1u32..300) {
            prop_assume!(n >= u64::from(window));
            let got = spans(tokenize(window, Windows::BothEnds, ShortDocuments::Drop).cut(n, 0));
            prop_assert_eq!(got[0].0, 0);
            prop_assert_eq!(got[got.len() - 1].1, n);
            prop_assert!(got.iter().all(|(start, end)| end - start == u64::from(window)));
            prop_assert!(got.windows(2).all(|pair| pair[0].0 < pair[1].0 && pair[1].0 <= pair[0].1));
            prop_assert!(got.windows(3).all(|three| three[0].1 <= three[2].0), "no token is in three windows");
        }
    }
}
