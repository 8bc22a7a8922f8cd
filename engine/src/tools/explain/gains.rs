//! Token losses of a whole model on the window, and the gain of each token from the long context.

use std::fmt::Write;
use std::ops::Range;

use longsift_stages::contract::ForwardStatistics;

use super::page::{shade, shades};
use super::{Explanation, mean};
use crate::report::page::{Section, TextPiece};

impl Explanation {
    /// Records the losses of the window's tokens, and the gains of those that also have a short context.
    pub(super) fn note_losses(&mut self, made: &ForwardStatistics) {
        let (long, short) = (&made.losses, &made.short_losses);
        let without = (long.len() + 1).saturating_sub(short.len());
        self.token_losses.clone_from(long);
        self.token_gains = vec![None; without];
        let late = long[long.len() - short.len()..].iter().zip(short);
        self.token_gains.extend(late.map(|(long, short)| Some(short - long)));
    }

    /// Returns the mean gain of a token range; `None` if no token has one.
    pub(super) fn mean_gain(&self, tokens: Range<usize>) -> Option<f64> {
        mean(self.token_gains.get(tokens)?.iter().flatten().copied())
    }

    pub(super) fn token_ranges(&self, tokens: usize) -> impl Iterator<Item = Range<usize>> + '_ {
        let all = self.pieces.len();
        (0..all).step_by(tokens).map(move |first| first..(first + tokens).min(all))
    }

    /// Renders the text shaded by the gain of its tokens; `None` without gains.
    pub(super) fn gain_section(&self) -> Option<Section> {
        let each = self.piece_tokens();
        let gains: Vec<Option<f64>> =
            self.token_ranges(each).map(|tokens| self.mean_gain(tokens)).collect();
        let max = gains.iter().flatten().copied().reduce(f64::max)?;
        let first = self.token_gains.iter().position(Option::is_some).unwrap_or(0);
        let why = "they lie inside the short context.";
        let pieces = self.shaded(first, why, |index, tokens, text, mut title| {
            let loss = tokens.start.checked_sub(1).and_then(|before| self.token_losses.get(before));
            if let Some(loss) = loss {
                let _ = write!(title, ", loss {loss:.3}");
            }
            if let Some(gain) = gains[index] {
                let _ = write!(title, ", gain {gain:+.3} nats");
            }
            let part = gains[index].map(|gain| gain / max.max(f64::MIN_POSITIVE));
            let fill = part.filter(|part| *part > 0.0).map_or_else(String::new, shade);
            TextPiece { text, fill, title, anchor: String::new(), link: String::new() }
        });
        let blocks = std::iter::once(shades(" nats gained", max)).chain(pieces).collect();
        let lead = "Darker: the model predicts the token better from the whole context than from the short context alone.";
        Some(Section::new("gains", "Gain from the long context", lead, blocks))
    }
}
