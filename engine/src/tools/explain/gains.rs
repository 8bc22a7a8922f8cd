//! What a whole model of the pipeline makes of the window, token by token: the loss of each, and what the long context gives it.

use std::fmt::{self, Write};
use std::ops::Range;

use longsift_stages::contract::ForwardFigures;

use super::page::{MOST_TEXT_BYTES, PIECES, shade};
use super::{Explanation, PASSAGE, SHOWN};
use crate::base::text::{count, line_safe};
use crate::report::page::{Block, Piece, Section};

impl Explanation {
    /// Notes the losses of the tokens of the window, and what those gain that have a short window of their own.
    pub(super) fn note_losses(&mut self, made: &ForwardFigures) {
        let (long, short) = (&made.losses, &made.short_losses);
        let without = (long.len() + 1).saturating_sub(short.len());
        self.token_losses.clone_from(long);
        self.token_gains = vec![None; without];
        let late = long[long.len() - short.len()..].iter().zip(short);
        self.token_gains.extend(late.map(|(long, short)| Some(short - long)));
    }

    /// The mean gain of some tokens, where any has one.
    fn mean_gain(&self, tokens: Range<usize>) -> Option<f64> {
        let gains: Vec<f64> =
            self.token_gains.get(tokens)?.iter().filter_map(|gain| *gain).collect();
        (!gains.is_empty()).then(|| gains.iter().sum::<f64>() / gains.len() as f64)
    }

    /// The ranges of so many tokens that the window is cut into.
    fn stretches(&self, tokens: usize) -> impl Iterator<Item = Range<usize>> + '_ {
        let all = self.pieces.len();
        (0..all).step_by(tokens).map(move |first| first..(first + tokens).min(all))
    }

    /// The text, shaded by what the long context gives its tokens; none without gains.
    pub(super) fn gain_section(&self) -> Option<Section> {
        let each = self.pieces.len().div_ceil(PIECES).max(1);
        let gains: Vec<Option<f64>> =
            self.stretches(each).map(|tokens| self.mean_gain(tokens)).collect();
        let most = gains.iter().flatten().copied().reduce(f64::max)?;
        let (mut pieces, mut written) = (Vec::new(), 0);
        for (tokens, gain) in self.stretches(each).zip(gains) {
            let text = self.pieces[tokens.clone()].concat();
            written += line_safe(&text).len();
            if written > MOST_TEXT_BYTES {
                break;
            }
            let mut title = format!("token {}", count(tokens.start as u64));
            let loss = tokens.start.checked_sub(1).and_then(|before| self.token_losses.get(before));
            if let Some(loss) = loss {
                let _ = write!(title, ", loss {loss:.3}");
            }
            if let Some(gain) = gain {
                let _ = write!(title, ", gain {gain:+.3} nats");
            }
            let part = gain.map(|gain| gain / most.max(f64::MIN_POSITIVE));
            let fill = part.filter(|part| *part > 0.0).map_or_else(String::new, shade);
            pieces.push(Piece { text, fill, title, anchor: String::new(), link: String::new() });
        }
        let lead = "The darker, the more the model gains at a token from all that stands before it, beside the short context \
                    alone. Tokens of the short context have no gain.";
        let blocks = vec![Block::Shaded(pieces)];
        Some(Section::new("gains", "What the long context gives", lead, blocks))
    }

    /// The passages that gain most, for a terminal.
    pub(super) fn write_gains(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mean = |tokens: Range<usize>| Some((tokens.start, self.mean_gain(tokens)?));
        let mut all: Vec<(usize, f64)> = self.stretches(PASSAGE).filter_map(mean).collect();
        if all.is_empty() {
            return Ok(());
        }
        all.sort_by(|one, other| other.1.total_cmp(&one.1).then(one.0.cmp(&other.0)));
        writeln!(formatter, "\npassages that gain most by the long context, in nats a token")?;
        for (token, gain) in all.into_iter().take(SHOWN) {
            let text = self.text(token..token + PASSAGE);
            writeln!(formatter, "  {gain:>+6.3}  token {:>6}  {text}", count(token as u64))?;
        }
        Ok(())
    }
}
