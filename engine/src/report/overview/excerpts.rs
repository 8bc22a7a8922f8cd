//! Excerpts of sample texts: the beginning and the end of each, read from the input.

use std::collections::BTreeMap;

use serde::Serialize;

use super::picks::Pick;
use crate::base::error::Result;
use crate::base::text::printable;
use crate::dataset::documents::{DocumentContent, document_contents};
use crate::dataset::rows;
use crate::plan::Plan;

/// Maximum number of characters shown of each end.
const MAX_CHARACTERS: usize = 320;
/// Maximum number of bytes of each end on a page, where control characters are written as escapes.
const MAX_BYTES: usize = 4 * MAX_CHARACTERS;
/// Maximum number of tokens shown of each end if documents are token ids.
const MAX_TOKENS: usize = 24;

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Excerpt {
    pub(crate) head: String,
    /// Characters or tokens between the two; 0 if the head is the whole text.
    pub(crate) left_out: u64,
    pub(crate) tail: String,
}

impl Excerpt {
    pub(super) fn from_text(text: &str) -> Self {
        let letters = text.chars().count();
        let is_short = || text.chars().map(written).sum::<usize>() <= 2 * MAX_BYTES;
        if letters <= 2 * MAX_CHARACTERS && is_short() {
            return Self { head: text.to_owned(), left_out: 0, tail: String::new() };
        }
        let head = fitting(text.chars());
        let tail = fitting(text.chars().rev()).min(letters - head);
        Self {
            head: text.chars().take(head).collect(),
            left_out: (letters - head - tail) as u64,
            tail: text.chars().skip(letters - tail).collect(),
        }
    }

    fn from_tokens(tokens: &[u32]) -> Self {
        let list = |tokens: &[u32]| tokens.iter().map(u32::to_string).collect::<Vec<_>>().join(" ");
        if tokens.len() <= 2 * MAX_TOKENS {
            return Self { head: list(tokens), left_out: 0, tail: String::new() };
        }
        Self {
            head: list(&tokens[..MAX_TOKENS]),
            left_out: (tokens.len() - 2 * MAX_TOKENS) as u64,
            tail: list(&tokens[tokens.len() - MAX_TOKENS..]),
        }
    }
}

/// Returns the length of an escaped character on a page.
fn written(letter: char) -> usize {
    if "<>&\"'".contains(letter) { "&#60;".len() } else { printable(letter).len() }
}

fn fitting(letters: impl Iterator<Item = char>) -> usize {
    let bytes = letters.take(MAX_CHARACTERS).scan(0, |bytes, letter| {
        *bytes += written(letter);
        Some(*bytes)
    });
    bytes.take_while(|bytes| *bytes <= MAX_BYTES).count()
}

pub(super) struct Texts<'a> {
    /// Plan of the input; `None` if no texts are shown.
    pub(super) plan: Option<&'a Plan>,
    /// Position in the plan of a unit of the manifest.
    pub(super) unit: &'a dyn Fn(usize) -> Option<usize>,
}

impl Texts<'_> {
    /// Calls `each` with the plan, and the index and the document of each sample whose document is still readable.
    pub(super) fn read(
        &self,
        picks: &[&Pick],
        mut each: impl FnMut(&Plan, usize, &DocumentContent),
    ) -> Result<()> {
        let Some(plan) = self.plan else { return Ok(()) };
        let mut by_unit: BTreeMap<usize, BTreeMap<u64, Vec<usize>>> = BTreeMap::new();
        for (index, pick) in picks.iter().enumerate() {
            if let Some(unit) = (self.unit)(pick.unit()) {
                let rows = by_unit.entry(unit).or_default();
                rows.entry(pick.location.input_row).or_default().push(index);
            }
        }
        for (unit, by_row) in by_unit {
            plan.options.stop.check()?;
            let wanted: Vec<u64> = by_row.keys().copied().collect();
            // Rows are read one at a time, because documents may be large.
            for batch in rows::read_rows(&plan.dataset, &plan.units[unit], &wanted, 1)? {
                let (numbers, batch) = batch?;
                let contents = document_contents(&plan.dataset, &batch, &plan.columns)?;
                for (row, content) in numbers.iter().zip(contents) {
                    let Ok(content) = content else { continue };
                    by_row[row].iter().for_each(|index| each(plan, *index, &content));
                }
            }
        }
        Ok(())
    }
}

/// Returns the excerpt of a sample; `None` if its window is no longer in the document.
pub(super) fn sample_excerpt(pick: &Pick, content: &DocumentContent) -> Option<Excerpt> {
    let (location, window) = (pick.location, pick.window().is_some());
    match content {
        DocumentContent::Text(text) if window => {
            let (start, end) = location.bytes?;
            text.get(start as usize..end as usize).map(Excerpt::from_text)
        }
        DocumentContent::Text(text) => Some(Excerpt::from_text(text)),
        DocumentContent::Tokens(tokens) if window => {
            let (start, end) = location.tokens;
            tokens.get(start as usize..end as usize).map(Excerpt::from_tokens)
        }
        DocumentContent::Tokens(tokens) => Some(Excerpt::from_tokens(tokens)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_texts_are_cut_to_both_ends() {
        let short = Excerpt::from_text("a\r\n\tb\n\nc");
        assert_eq!((short.head.as_str(), short.left_out), ("a\r\n\tb\n\nc", 0));
        let long = Excerpt::from_text(&format!("{}{}", "ä".repeat(1000), "z".repeat(1000)));
        assert_eq!(long.head, "ä".repeat(MAX_CHARACTERS));
        assert_eq!((long.left_out, long.tail), (2000 - 640, "z".repeat(MAX_CHARACTERS)));
        let escaped = Excerpt::from_text(&"\u{e0001}".repeat(1000));
        let bytes = |text: &str| text.chars().map(written).sum::<usize>();
        assert!((1200..=MAX_BYTES).contains(&bytes(&escaped.head)));
        let shown = escaped.head.chars().count() + escaped.tail.chars().count();
        assert_eq!(escaped.left_out as usize, 1000 - shown);
        let tokens: Vec<u32> = (0..100).collect();
        let excerpt = Excerpt::from_tokens(&tokens);
        assert!(excerpt.head.starts_with("0 1 2 ") && excerpt.tail.ends_with(" 98 99"));
        assert_eq!(excerpt.left_out, 100 - 48);
    }
}
