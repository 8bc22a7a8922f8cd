//! What the three sources have in common: a document's vocabulary, its facts, and the order in which it is told.

use anyhow::Result;

use crate::{
    grammar::World,
    random::Random,
    text::{End, Unit},
};

/// Templates of a source. A document keeps to a part of them, as an author does.
pub(crate) struct Style {
    /// Sentences that any passage may hold.
    pub(crate) sentences: &'static [&'static str],
    /// Clauses about the document's own people and things. A document fixes a dozen of them in the beginning.
    pub(crate) facts: &'static [&'static str],
    /// Sentences that bring back a fact, as `{fact}`.
    pub(crate) recalls: &'static [&'static str],
}

/// Facts of a document.
const FACTS: usize = 14;

/// Strands that a document follows in turn, a passage each.
const STRANDS: usize = 3;

/// Slots of a scene, each with the slot of the world that its word comes from.
pub(crate) type Cast = &'static [(&'static str, &'static str)];

/// The state of a document that is being written.
pub(crate) struct Author {
    /// The vocabulary of the whole document.
    whole: World,
    /// The vocabulary of each strand, a part of the whole.
    strands: Vec<World>,
    /// The vocabulary at hand: the strand's, with the scene.
    pub(crate) world: World,
    cast: Cast,
    style: &'static Style,
    sentences: Vec<&'static str>,
    facts: Vec<String>,
    /// Passages written so far.
    pub(crate) passages: usize,
}

impl Author {
    /// Starts a document with the vocabulary that `world` holds, and fixes `FACTS` facts.
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

    /// Takes up the strand whose turn it is. The facts belong to all strands.
    pub(crate) fn begin_passage(&mut self, random: &mut Random) -> Result<()> {
        self.world = if self.passages < 2 {
            self.whole.clone()
        } else {
            self.strands[self.passages % STRANDS].clone()
        };
        self.world.set("fact", self.facts.clone());
        self.set_scene(random)
    }

    /// Casts the scene anew; no word plays two parts.
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

    /// Half of the facts, told for the first time: `half` is 0 or 1.
    pub(crate) fn tell_facts(&self, half: usize) -> Vec<Unit> {
        self.facts[half * FACTS / 2..(half + 1) * FACTS / 2]
            .iter()
            .map(|fact| Unit::sentence(format!("{}.", crate::names::capital(fact))))
            .collect()
    }

    /// A paragraph of `count` sentences, now and then with a fact that comes back.
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

    /// One line of its own, ended as `end` says.
    pub(crate) fn line(&self, random: &mut Random, template: &str, end: End) -> Result<Unit> {
        Ok(Unit { text: self.world.phrase(random, template)?, end })
    }

    /// One of several lines.
    pub(crate) fn pick(&self, random: &mut Random, templates: &[&str], end: End) -> Result<Unit> {
        let template = *random.pick(templates);
        self.line(random, template, end)
    }
}

/// Ends the last unit as `end` says.
pub(crate) fn close(units: &mut [Unit], end: End) {
    if let Some(last) = units.last_mut() {
        last.end = end;
    }
}
