//! Cutting of a document of `n` tokens into windows, from token counts alone.

use super::settings::{ShortDocuments, Tokenize, Windows};

/// Version in the identity of all windows, raised when the same document and settings give other tokens or windows.
pub const WINDOWS_VERSION: u32 = 2;

/// Window of a document, in document tokens (BOS tokens added later are not counted).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct TokenWindow {
    /// Position among the document's windows, from 0, by ascending `token_start`.
    pub index: u32,
    pub token_start: u64,
    pub token_end: u64,
}

impl TokenWindow {
    pub fn tokens(&self) -> u64 {
        self.token_end - self.token_start
    }
}

/// Outcome of cutting a document.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Cut {
    /// At least one window, by ascending `token_start`.
    Windows(Vec<TokenWindow>),
    /// Too short for a window, or empty: dropped as `short_document`.
    ShortDocument,
    /// Longer than `window_tokens` with `whole-document`, or too many windows: quarantined as `document_too_long`.
    DocumentTooLong,
}

/// Maximum number of windows of a document: their index is an `int32` column.
const MAX_WINDOWS: u64 = i32::MAX as u64;

impl Tokenize {
    /// Returns the document tokens in a full window: `window_tokens - bos`, at least one.
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
        if tokens_total.div_ceil(window) > MAX_WINDOWS {
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

/// Returns consecutive windows; the tail after the last full one is a shorter window or is omitted.
fn disjoint(tokens: u64, window: u64, tail: ShortDocuments) -> Vec<(u64, u64)> {
    let covered = match tail {
        ShortDocuments::Drop => tokens - tokens % window,
        ShortDocuments::Score => tokens,
    };
    let windows = covered.div_ceil(window);
    (0..windows).map(|index| (index * window, ((index + 1) * window).min(covered))).collect()
}

/// Takes windows from the front and the back in turn while more than three fit, then one to three that cover the rest and
/// may overlap, in ascending order. As `SlideWindow.sliding_window_sample` of `LongAttn` (Wu et al. 2025, appendix A),
/// except that a document of exactly one window is that window; the published script drops it.
fn both_ends(tokens: u64, window: u64) -> Vec<(u64, u64)> {
    // Each step of the loop takes one window at each end, and continues while `left > 3 * window`.
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
    #[cfg_attr(not(longsift_shared), ignore = "needs ../shared, a sibling of the repository")]
    fn both_ends_equals_the_published_slicer_except_for_one_window() {
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
        let text = crate::tokenize::fixtures::shared_file("conformance/slice_window_cases.json");
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
    fn changed_windows_need_another_version() {
        let mut digest = 0xCBF2_9CE4_8422_2325_u64;
        for windows in [Windows::BothEnds, Windows::Disjoint, Windows::WholeDocument] {
            for short_documents in [ShortDocuments::Drop, ShortDocuments::Score] {
                let tokenize = tokenize(7, windows, short_documents);
                for (tokens, bos) in (0..80).flat_map(|tokens| [(tokens, 0), (tokens, 1)]) {
                    let spans = match tokenize.cut(tokens, bos) {
                        Cut::Windows(windows) => windows,
                        Cut::ShortDocument => Vec::new(),
                        Cut::DocumentTooLong => vec![TokenWindow {
                            index: 0,
                            token_start: u64::MAX,
                            token_end: u64::MAX,
                        }],
                    };
                    let ends = spans.iter().flat_map(|span| [span.token_start, span.token_end]);
                    for number in ends.chain([spans.len() as u64]) {
                        digest = (digest ^ number).wrapping_mul(0x0100_0000_01B3);
                    }
                }
            }
        }
        let hint = "raise WINDOWS_VERSION: windows differ from those of earlier versions";
        assert_eq!((WINDOWS_VERSION, digest), (2, 17_218_400_667_753_145_160), "{hint}");
    }

    #[test]
    fn the_tail_of_disjoint_windows_is_scored_or_dropped() {
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
    fn bos_tokens_count_in_the_window() {
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
    fn a_short_document_is_dropped_or_scored() {
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
    fn absurd_sizes_are_rejected_without_allocation() {
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
