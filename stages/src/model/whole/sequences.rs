//! Sequences of a window: the whole one, and short windows that repeat its losses with less context.

/// A short window as a separate sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShortWindow {
    /// First token, as an index in the long window.
    pub start: usize,
    /// One past the last token.
    pub end: usize,
    /// First token whose loss counts, as an index in the long window.
    pub first_scored: usize,
}

/// Returns the short windows of a window of `tokens` tokens: `context` tokens each, one every `stride`; the last may be
/// shorter. Token `t ≥ context` is scored once, by short window `(t - context) / stride + 1`, after between
/// `context - stride` and `context - 1` tokens.
pub fn short_windows(
    tokens: usize,
    context: usize,
    stride: usize,
) -> impl Iterator<Item = ShortWindow> {
    let later = tokens.saturating_sub(context).div_ceil(stride.max(1));
    (0..=later).map(move |index| {
        let start = index * stride;
        let first_scored = if index == 0 { 1 } else { start + context - stride };
        ShortWindow { start, end: tokens.min(start + context), first_scored }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_token_from_the_context_on_is_scored_once() {
        for (context, stride) in [(32, 16), (33, 11), (8, 8), (2, 1), (40, 8)] {
            for tokens in 1..300 {
                let mut scored = vec![0; tokens];
                let windows: Vec<ShortWindow> = short_windows(tokens, context, stride).collect();
                for (index, window) in windows.iter().enumerate() {
                    assert!(window.end - window.start <= context);
                    let own = window.first_scored..window.end;
                    scored[own.clone()].iter_mut().for_each(|times| *times += 1);
                    let before = own.start - window.start;
                    assert!(own.is_empty() || index == 0 || before >= context - stride);
                }
                assert!(scored.iter().skip(1).all(|times| *times == 1), "{tokens} {context}");
                assert_eq!(windows.last().map(|window| window.end), Some(tokens));
            }
        }
    }
}
