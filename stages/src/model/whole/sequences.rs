//! A window as the sequences that a model runs: the whole, and the short windows that its tokens' losses are taken of again.

/// A window as a sequence of its own, and the first token of it whose loss counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShortWindow {
    /// Its first token in the long window.
    pub start: usize,
    /// One past its last.
    pub end: usize,
    /// The first token in the long window that it gives the loss of.
    pub first_scored: usize,
}

/// The short windows of a window of `tokens` tokens: `context` tokens each, one every `stride`.
///
/// The first scores all its tokens, each later one those that no earlier one has scored: token `t ≥ context` once, by
/// `(t - context) / stride + 1`, of between `context - stride` and `context - 1` tokens before it. The last ends with the
/// window and may be shorter.
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

/// The step between short windows of `context` tokens: half of them overlap.
pub fn short_stride(context: usize) -> usize {
    (context / 2).max(1)
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
