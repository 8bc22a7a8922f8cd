//! Documents of the corpus: quadruples of equal length, with one document of each kind.

use std::path::Path;

use anyhow::{Result, anyhow, ensure};
use tokenizers::Tokenizer;

use crate::{
    author::{Author, close},
    chronicle, manual,
    random::Random,
    register,
    text::{End, Unit, join, shuffled},
};

/// Number of quadruples of each source; not a multiple of 11 (see [`length`]).
const QUADRUPLES: usize = 28;
/// Tokens of the shortest and of the longest document.
const LENGTHS: (f64, f64) = (1_004.0, 5_980.0);
/// Tokens of a window in the demo pipeline. Except for the shortest, no document's target length is within [`MARGIN`]
/// tokens of a multiple of it.
pub(crate) const WINDOW: usize = 1_024;
const MARGIN: usize = 72;
/// Maximum difference between the lengths of a quadruple's documents, in tokens.
pub(crate) const TOLERANCE: usize = 36;
/// Number of documents in a mixture, and minimum tokens of a piece; fewer if the mixture is too short for such pieces.
const MIXED: usize = 8;
const PIECE: usize = 128;

/// A finished document.
pub(crate) struct Document {
    /// `<source>-<quadruple>-<kind>`.
    pub(crate) id: String,
    /// `chronicle`, `manual` or `register`.
    pub(crate) source: &'static str,
    /// `whole`, `mixture`, `repeated` or `shuffled`.
    pub(crate) kind: &'static str,
    pub(crate) text: String,
    /// Number of tokens.
    pub(crate) tokens: usize,
    /// Parts of which the document was made; `None` for a whole document.
    pub(crate) parts: Option<Vec<Part>>,
}

/// Text of another document, or of a repeated paragraph.
pub(crate) struct Part {
    /// The other document; `None` for a repeated paragraph.
    pub(crate) from: Option<String>,
    /// Number of tokens.
    pub(crate) tokens: usize,
}

/// Tokenizer of the demo model.
pub(crate) struct Tokens(Tokenizer);

impl Tokens {
    /// Reads a `tokenizer.json`.
    pub(crate) fn open(path: &Path) -> Result<Self> {
        Tokenizer::from_file(path).map(Self).map_err(|error| anyhow!("{}: {error}", path.display()))
    }

    fn count(&self, text: &str) -> Result<usize> {
        Ok(self.0.encode(text, false).map_err(|error| anyhow!("{error}"))?.len())
    }

    /// Counts the tokens of the text up to the end of each unit.
    fn ends(&self, units: &[Unit]) -> Result<Vec<usize>> {
        let encoding = self.0.encode(join(units), false).map_err(|error| anyhow!("{error}"))?;
        let (mut byte, mut token, mut ends) = (0, 0, Vec::with_capacity(units.len()));
        for unit in units {
            byte += unit.text.len();
            while encoding.get_offsets().get(token).is_some_and(|&(_, end)| end <= byte) {
                token += 1;
            }
            ends.push(token);
            byte += if unit.end == End::Paragraph { 2 } else { 1 };
        }
        Ok(ends)
    }

    /// Cuts the units at the end that is nearest to `target` tokens, among those with the same number of windows.
    /// Returns them with the number of tokens up to the end of each.
    fn fit(&self, mut units: Vec<Unit>, target: usize) -> Result<(Vec<Unit>, Vec<usize>)> {
        let mut ends = self.ends(&units)?;
        let same_windows = |&at: &usize| ends[at] / WINDOW == target / WINDOW;
        let last = (0..ends.len())
            .filter(same_windows)
            .min_by_key(|&at| ends[at].abs_diff(target))
            .unwrap_or(0);
        units.truncate(last + 1);
        ends.truncate(last + 1);
        Ok((units, ends))
    }
}

struct Source {
    name: &'static str,
    author: fn(&mut Random) -> Result<Author>,
    passage: fn(&mut Author, &mut Random) -> Result<Vec<Unit>>,
}

const SOURCES: [Source; 3] = [
    Source { name: "chronicle", author: chronicle::author, passage: chronicle::passage },
    Source { name: "manual", author: manual::author, passage: manual::passage },
    Source { name: "register", author: register::author, passage: register::passage },
];

/// Generates all documents, quadruple by quadruple, the sources in turn.
pub(crate) fn write(tokens: &Tokens, seed: u64) -> Result<Vec<Document>> {
    let mut random = Random::new(seed);
    let mut sources = Vec::new();
    for source in &SOURCES {
        let whole: Vec<Vec<Unit>> = (0..QUADRUPLES)
            .map(|number| whole(source, tokens, &mut random, length(number)))
            .collect::<Result<_>>()?;
        let mut documents = Vec::new();
        for number in 0..QUADRUPLES {
            documents.push(quadruple(source, tokens, &mut random, &whole, number)?);
        }
        sources.push(documents.into_iter());
    }
    let mut all = Vec::new();
    for _ in 0..QUADRUPLES {
        all.extend(sources.iter_mut().filter_map(Iterator::next).flatten());
    }
    Ok(all)
}

/// Returns the target length of a quadruple's documents, in tokens. Lengths are evenly spread on a logarithmic scale,
/// moved away from whole numbers of windows, and alternate between long and short.
fn length(number: usize) -> usize {
    let step = number * 11 % QUADRUPLES;
    let share = step as f64 / (QUADRUPLES - 1) as f64;
    let tokens = (LENGTHS.0 * (LENGTHS.1 / LENGTHS.0).powf(share)).round() as usize;
    match tokens % WINDOW {
        _ if step == 0 => tokens,
        after if after < MARGIN => tokens - after + MARGIN,
        after if after > WINDOW - MARGIN => tokens - after + WINDOW + MARGIN,
        _ => tokens,
    }
}

fn whole(
    source: &Source,
    tokens: &Tokens,
    random: &mut Random,
    target: usize,
) -> Result<Vec<Unit>> {
    let mut author = (source.author)(random)?;
    let (mut units, mut count) = (Vec::new(), 0);
    while count < target + 200 {
        let passage = (source.passage)(&mut author, random)?;
        count += tokens.count(&join(&passage))?;
        units.extend(passage);
    }
    Ok(tokens.fit(units, target)?.0)
}

fn quadruple(
    source: &Source,
    tokens: &Tokens,
    random: &mut Random,
    whole: &[Vec<Unit>],
    number: usize,
) -> Result<[Document; 4]> {
    let name = |number: usize, kind: &str| format!("{}-{number:02}-{kind}", source.name);
    let document =
        |kind: &'static str, units: &[Unit], parts: Option<Vec<Part>>| -> Result<Document> {
            let text = join(units);
            let tokens = tokens.count(&text)?;
            Ok(Document { id: name(number, kind), source: source.name, kind, text, tokens, parts })
        };
    let first = document("whole", &whole[number], None)?;
    let target = first.tokens;

    let others: Vec<usize> = (0..whole.len()).filter(|&other| other != number).collect();
    let others = random.sample(&others, MIXED);
    let (units, owners) = mixture(tokens, random, whole, &others, target)?;
    let (units, ends) = tokens.fit(units, target)?;
    let mut taken = [0; MIXED];
    for (unit, end) in ends.iter().enumerate() {
        taken[owners[unit]] += end - if unit == 0 { 0 } else { ends[unit - 1] };
    }
    let parts = others
        .iter()
        .zip(taken)
        .map(|(&other, tokens)| Part { from: Some(name(other, "whole")), tokens });
    let second = document("mixture", &units, Some(parts.collect()))?;

    let mut author = (source.author)(random)?;
    (source.passage)(&mut author, random)?;
    let sentences = random.between(3, 6);
    let paragraph = author.paragraph(random, sentences)?;
    let part = Part { from: None, tokens: tokens.count(&join(&paragraph))? };
    let units = std::iter::repeat_n(paragraph, target / part.tokens + 2).flatten().collect();
    let third = document("repeated", &tokens.fit(units, target)?.0, Some(vec![part]))?;

    let part = Part { from: Some(first.id.clone()), tokens: target };
    let fourth = document("shuffled", &shuffled(random, &whole[number]), Some(vec![part]))?;
    let quadruple = [first, second, third, fourth];
    for document in &quadruple {
        let (id, found) = (&document.id, document.tokens);
        ensure!(found.abs_diff(target) <= TOLERANCE, "{id} has {found} tokens instead of {target}");
        ensure!(
            found / WINDOW == target / WINDOW,
            "{id} has {found} tokens, a different number of windows than {target} tokens"
        );
    }
    Ok(quadruple)
}

/// Takes pieces of the other documents in turn, each from the end of the document's last piece, until there are more
/// than `target` tokens. Returns the units, and for each the index of its document in `others`.
fn mixture(
    tokens: &Tokens,
    random: &mut Random,
    whole: &[Vec<Unit>],
    others: &[usize],
    target: usize,
) -> Result<(Vec<Unit>, Vec<usize>)> {
    let mut next_units: Vec<usize> =
        others.iter().map(|&other| random.below(whole[other].len())).collect();
    let (mut units, mut owners, mut count) = (Vec::new(), Vec::new(), 0);
    let min_tokens = PIECE.min(target / (MIXED + 2));
    for turn in 0.. {
        let owner = turn % others.len();
        let document = &whole[others[owner]];
        let mut piece = 0;
        while piece < min_tokens {
            let unit = document[next_units[owner]].clone();
            next_units[owner] = (next_units[owner] + 1) % document.len();
            piece += tokens.count(&unit.text)?;
            units.push(unit);
            owners.push(owner);
        }
        close(&mut units, End::Paragraph);
        count += piece;
        if count > target + 200 {
            break;
        }
    }
    Ok((units, owners))
}
