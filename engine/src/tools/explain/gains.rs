//! Token losses of a whole model on the window, and the gain of each token from the long context.

use std::fmt::{self, Write};
use std::ops::Range;

use longsift_stages::contract::ForwardFigures;

use super::Explanation;
use super::page::shade;
use crate::report::page::{Piece, Section};

impl Explanation {
    /// Records the losses of the window's tokens, and the gains of those that also have a short context.
    pub(super) fn note_losses(&mut self, made: &ForwardFigures) {
        let (long, short) = (&made.losses, &made.short_losses);
        let without = (long.len() + 1).saturating_sub(short.len());
        self.token_losses.clone_from(long);
        self.token_gains = vec![None; without];
        let late = long[long.len() - short.len()..].iter().zip(short);
        self.token_gains.extend(late.map(|(long, short)| Some(short - long)));
    }

    /// Returns the mean gain of a token range; `None` if no token has one.
    fn mean_gain(&self, tokens: Range<usize>) -> Option<f64> {
        let gains: Vec<f64> =
            self.token_gains.get(tokens)?.iter().filter_map(|gain| *gain).collect();
        (!gains.is_empty()).then(|| gains.iter().sum::<f64>() / gains.len() as f64)
    }

    /// Splits the window into ranges of `tokens` tokens.
    pub(super) fn stretches(&self, tokens: usize) -> impl Iterator<Item = Range<usize>> + '_ {
        let all = self.pieces.len();
        (0..all).step_by(tokens).map(move |first| first..(first + tokens).min(all))
    }

    /// Renders the text shaded by the gain of its tokens; `None` without gains.
    pub(super) fn gain_section(&self) -> Option<Section> {
        let each = self.piece_tokens();
        let gains: Vec<Option<f64>> =
            self.stretches(each).map(|tokens| self.mean_gain(tokens)).collect();
        let most = gains.iter().flatten().copied().reduce(f64::max)?;
        let blocks = self.shaded(|place, tokens, text, mut title| {
            let loss = tokens.start.checked_sub(1).and_then(|before| self.token_losses.get(before));
            if let Some(loss) = loss {
                let _ = write!(title, ", loss {loss:.3}");
            }
            if let Some(gain) = gains[place] {
                let _ = write!(title, ", gain {gain:+.3} nats");
            }
            let part = gains[place].map(|gain| gain / most.max(f64::MIN_POSITIVE));
            let fill = part.filter(|part| *part > 0.0).map_or_else(String::new, shade);
            Piece { text, fill, title, anchor: String::new(), link: String::new() }
        });
        let lead = "The darker, the more the model gains at a token from all that stands before it, beside the short context \
                    alone. Tokens of the short context have no gain.";
        Some(Section::new("gains", "What the long context gives", lead, blocks))
    }

    /// Writes the passages with the highest gain.
    pub(super) fn write_gains(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let heading = "passages that gain most by the long context, in nats a token";
        self.write_passages(
            formatter,
            heading,
            |tokens| self.mean_gain(tokens),
            |gain| format!("{gain:>+6.3}"),
        )
    }
}
