//! The documents of the corpus: quadruples of one length, one document of each kind.

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

/// Quadruples of each source; not a multiple of 11 (see `length`).
const QUADRUPLES: usize = 28;
/// The shortest and the longest document, in tokens.
const LENGTHS: (f64, f64) = (1_004.0, 5_980.0);
/// Windows of the shipped demo pipeline. No document ends within `MARGIN` tokens of a multiple of it.
pub(crate) const WINDOW: usize = 1_024;
const MARGIN: usize = 72;
/// By how many tokens the documents of a quadruple may differ in length.
pub(crate) const TOLERANCE: usize = 36;
/// Documents that a mixture is made of, and tokens of one piece; fewer in a document too short for eight such pieces.
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
    /// The text.
    pub(crate) text: String,
    /// Its tokens.
    pub(crate) tokens: usize,
    /// The documents it was made of, with the tokens taken from each; none for one that was written as it stands.
    pub(crate) parts: Option<Vec<Part>>,
}

/// What a document took from another one.
pub(crate) struct Part {
    /// The other document; none where the text is in no other document.
    pub(crate) from: Option<String>,
    /// Tokens taken.
    pub(crate) tokens: usize,
}

/// The tokens of the demo model.
pub(crate) struct Tokens(Tokenizer);

impl Tokens {
    /// Reads a `tokenizer.json`.
    pub(crate) fn open(path: &Path) -> Result<Self> {
        Tokenizer::from_file(path).map(Self).map_err(|error| anyhow!("{}: {error}", path.display()))
    }

    fn count(&self, text: &str) -> Result<usize> {
        Ok(self.0.encode(text, false).map_err(|error| anyhow!("{error}"))?.len())
    }

    /// For each unit, the tokens of the text up to its end.
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

    /// Cuts the units at the end that is nearest to `target` tokens and has as many windows, and counts up to each end.
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

/// Writes all documents, quadruple by quadruple, the sources in turn.
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

/// Tokens of a quadruple's documents: evenly spread on a logarithmic scale, moved away from whole numbers of windows,
/// long and short ones in turn.
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
            "{id} has {found} tokens, more windows than its kin of {target}"
        );
    }
    Ok(quadruple)
}

/// Pieces of the other documents in turn, each going on where its document was left, until there are more than `target`
/// tokens; and for each unit which of the others it comes from.
fn mixture(
    tokens: &Tokens,
    random: &mut Random,
    whole: &[Vec<Unit>],
    others: &[usize],
    target: usize,
) -> Result<(Vec<Unit>, Vec<usize>)> {
    let mut places: Vec<usize> =
        others.iter().map(|&other| random.below(whole[other].len())).collect();
    let (mut units, mut owners, mut count) = (Vec::new(), Vec::new(), 0);
    let least = PIECE.min(target / (MIXED + 2));
    for turn in 0.. {
        let owner = turn % others.len();
        let document = &whole[others[owner]];
        let mut piece = 0;
        while piece < least {
            let unit = document[places[owner]].clone();
            places[owner] = (places[owner] + 1) % document.len();
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
