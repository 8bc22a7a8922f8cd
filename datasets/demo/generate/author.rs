//! Shared parts of the three sources: a document's vocabulary, its facts, and the order of its passages.

use anyhow::Result;

use crate::{
    grammar::World,
    random::Random,
    text::{End, Unit},
};

/// Templates of a source. Each document uses only some of the sentences, so that documents differ in style.
pub(crate) struct Style {
    /// Sentences of any passage.
    pub(crate) sentences: &'static [&'static str],
    /// Clauses about the document's people and things. A document chooses [`FACTS`] of them at its start.
    pub(crate) facts: &'static [&'static str],
    /// Sentences that repeat a fact, as `{fact}`.
    pub(crate) recalls: &'static [&'static str],
}

/// Number of facts of a document.
const FACTS: usize = 14;

/// Number of strands of a document. Passages belong to the strands in turn.
const STRANDS: usize = 3;

/// Slots of a scene, each with the slot of the world from which its word is drawn.
pub(crate) type Cast = &'static [(&'static str, &'static str)];

/// State of a document that is being written.
pub(crate) struct Author {
    /// Vocabulary of the whole document.
    whole: World,
    /// Vocabulary of each strand, a part of the whole.
    strands: Vec<World>,
    /// Current vocabulary: that of the strand, with the scene.
    pub(crate) world: World,
    cast: Cast,
    style: &'static Style,
    sentences: Vec<&'static str>,
    facts: Vec<String>,
    /// Number of passages written so far.
    pub(crate) passages: usize,
}

impl Author {
    /// Starts a document with the vocabulary `world`, and chooses its facts.
    pub(crate) fn new(
        random: &mut Random,
        style: &'static Style,
        cast: Cast,
        world: World,
    ) -> Result<Self> {
        let sentences = random.sample(style.sentences, style.sentences.len() * 6 / 10);
        let strands = (0..STRANDS).map(|_| world.strand(random)).collect();
        let whole = world.clone();
        let mut author =
            Self { whole, strands, world, cast, style, sentences, facts: Vec::new(), passages: 0 };
        for _ in 0..FACTS {
            author.set_scene(random)?;
            let template = *random.pick(style.facts);
            author.facts.push(author.world.phrase(random, template)?);
        }
        Ok(author)
    }

    /// Switches to the next strand and sets a scene. All strands share the facts.
    pub(crate) fn begin_passage(&mut self, random: &mut Random) -> Result<()> {
        self.world = if self.passages < 2 {
            self.whole.clone()
        } else {
            self.strands[self.passages % STRANDS].clone()
        };
        self.world.set("fact", self.facts.clone());
        self.set_scene(random)
    }

    /// Draws the words of the scene, if possible a different one for each slot.
    pub(crate) fn set_scene(&mut self, random: &mut Random) -> Result<()> {
        let mut taken: Vec<String> = Vec::new();
        for &(slot, from) in self.cast {
            let mut word = self.world.word(random, from)?;
            for _ in 0..8 {
                if !taken.contains(&word) {
                    break;
                }
                word = self.world.word(random, from)?;
            }
            self.world.set(slot, vec![word.clone()]);
            taken.push(word);
        }
        Ok(())
    }

    /// Returns half of the facts as sentences. `half`: 0 or 1.
    pub(crate) fn tell_facts(&self, half: usize) -> Vec<Unit> {
        self.facts[half * FACTS / 2..(half + 1) * FACTS / 2]
            .iter()
            .map(|fact| Unit::sentence(format!("{}.", crate::names::capital(fact))))
            .collect()
    }

    /// Writes a paragraph of `count` sentences; about one in seven repeats a fact.
    pub(crate) fn paragraph(&self, random: &mut Random, count: usize) -> Result<Vec<Unit>> {
        let mut units = Vec::new();
        for _ in 0..count {
            let template = if random.chance(14) {
                *random.pick(self.style.recalls)
            } else {
                *random.pick(&self.sentences)
            };
            units.push(Unit::sentence(self.world.sentence(random, template)?));
        }
        close(&mut units, End::Paragraph);
        Ok(units)
    }

    /// Expands a template to a line that ends with `end`.
    pub(crate) fn line(&self, random: &mut Random, template: &str, end: End) -> Result<Unit> {
        Ok(Unit { text: self.world.phrase(random, template)?, end })
    }

    /// Expands one of several templates to a line that ends with `end`.
    pub(crate) fn pick(&self, random: &mut Random, templates: &[&str], end: End) -> Result<Unit> {
        let template = *random.pick(templates);
        self.line(random, template, end)
    }
}

/// Sets the end of the last unit.
pub(crate) fn close(units: &mut [Unit], end: End) {
    if let Some(last) = units.last_mut() {
        last.end = end;
    }
}
