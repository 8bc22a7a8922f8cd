//! Templates and the vocabulary of a document.
//!
//! A template is English text with `{slot}` (a word of the document's list of that name, or of the current scene),
//! `{3-40}` (a number in that range) and `[this|that|]` (one of the alternatives, which may contain slots and further
//! brackets). `a(n)` becomes the article that fits.

use std::collections::BTreeMap;

use anyhow::{Context, Result, bail};

use crate::{names::capital, random::Random};

/// Vocabulary of a document: the words of each slot.
#[derive(Clone, Default)]
pub(crate) struct World {
    slots: BTreeMap<String, Vec<String>>,
}

impl World {
    /// Sets the words of a slot. Earlier words are drawn more often.
    pub(crate) fn set(&mut self, slot: &str, words: Vec<String>) {
        self.slots.insert(slot.to_owned(), words);
    }

    /// Sets the words of a slot to a random choice of `count` of `words`.
    pub(crate) fn choose(&mut self, random: &mut Random, slot: &str, words: &[&str], count: usize) {
        let chosen = random.sample(words, count).iter().map(ToString::to_string).collect();
        self.set(slot, chosen);
    }

    /// Returns a part of this vocabulary: half of the words of each slot with four or more, all words of the others.
    pub(crate) fn strand(&self, random: &mut Random) -> Self {
        let part = |words: &Vec<String>, random: &mut Random| match words.len() {
            0..4 => words.clone(),
            many => random.sample(words, many.div_ceil(2)),
        };
        Self {
            slots: self
                .slots
                .iter()
                .map(|(slot, words)| (slot.clone(), part(words, random)))
                .collect(),
        }
    }

    /// Draws a word of a slot.
    pub(crate) fn word(&self, random: &mut Random, slot: &str) -> Result<String> {
        let words = self.slots.get(slot).with_context(|| format!("no slot `{slot}`"))?;
        Ok(random.pick_early(words).clone())
    }

    /// Expands a template into a sentence that begins with a capital letter.
    pub(crate) fn sentence(&self, random: &mut Random, template: &str) -> Result<String> {
        Ok(capital(&self.phrase(random, template)?))
    }

    /// Expands a template without changing the case of its first letter.
    pub(crate) fn phrase(&self, random: &mut Random, template: &str) -> Result<String> {
        let mut text = String::new();
        self.expand(random, template, &mut text)?;
        Ok(articles(&text))
    }

    fn expand(&self, random: &mut Random, template: &str, text: &mut String) -> Result<()> {
        let mut rest = template;
        while let Some(at) = rest.find(['{', '[']) {
            text.push_str(&rest[..at]);
            if rest.as_bytes()[at] == b'{' {
                let end = at + rest[at..].find('}').context("unclosed slot")?;
                text.push_str(&self.slot(random, &rest[at + 1..end])?);
                rest = &rest[end + 1..];
            } else {
                let (alternatives, end) = alternatives(&rest[at..])?;
                let chosen = *random.pick(&alternatives);
                self.expand(random, chosen, text)?;
                rest = &rest[at + end..];
            }
        }
        text.push_str(rest);
        Ok(())
    }

    fn slot(&self, random: &mut Random, slot: &str) -> Result<String> {
        match slot.split_once('-') {
            Some((low, high)) => {
                let number = random.between(
                    low.parse().context("a range's start")?,
                    high.parse().context("its end")?,
                );
                Ok(number.to_string())
            }
            None => self.word(random, slot),
        }
    }
}

/// Returns the alternatives of a text that begins with `[`, and the length of the bracket expression.
fn alternatives(text: &str) -> Result<(Vec<&str>, usize)> {
    let (mut depth, mut start, mut found) = (0_usize, 1, Vec::new());
    for (at, byte) in text.bytes().enumerate() {
        match byte {
            b'[' => depth += 1,
            b'|' if depth == 1 => {
                found.push(&text[start..at]);
                start = at + 1;
            }
            b']' if depth == 1 => {
                found.push(&text[start..at]);
                return Ok((found, at + 1));
            }
            b']' => depth -= 1,
            _ => {}
        }
    }
    bail!("unclosed bracket in `{text}`")
}

/// Replaces each `a(n)` by the article that fits the next letter.
fn articles(text: &str) -> String {
    let mut pieces = text.split("a(n) ");
    let mut result = pieces.next().unwrap_or_default().to_owned();
    for piece in pieces {
        let vowel = piece.starts_with(['a', 'e', 'i', 'o', 'u', 'A', 'E', 'I', 'O', 'U']);
        result.push_str(if vowel { "an " } else { "a " });
        result.push_str(piece);
    }
    result
}
