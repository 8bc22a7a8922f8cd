//! Invented names. Each document draws a few syllables, so that its names resemble each other and differ from those of
//! other documents.

use crate::random::Random;

const ONSETS: &[&str] = &[
    "b", "br", "c", "ch", "d", "dr", "f", "fl", "g", "gr", "h", "j", "k", "kr", "l", "m", "n", "p",
    "pr", "qu", "r", "s", "sh", "sk", "st", "str", "t", "th", "tr", "v", "w", "y", "z",
];
const VOWELS: &[&str] = &["a", "a", "e", "e", "i", "o", "o", "u", "ai", "ea", "ia", "ou"];
const CODAS: &[&str] = &[
    "", "", "l", "m", "n", "r", "s", "t", "k", "d", "nd", "rn", "st", "ck", "ll", "rt", "x", "sh",
    "lm", "v",
];
const PERSON_ENDINGS: [&[&str]; 2] = [
    &["a", "ine", "eth", "ira", "wen", "elle", "is"],
    &["or", "an", "ric", "us", "mund", "o", "bert"],
];
const PLACE_ENDINGS: &[&str] = &[
    "ford", "mouth", "wick", "holm", "dale", "stead", "bury", "haven", "moor", "gate", "ness",
    "combe",
];

/// Syllables of one document, and the words used so far.
pub(crate) struct Names {
    syllables: Vec<String>,
    given: Vec<String>,
}

impl Names {
    /// Draws the syllables of a document.
    pub(crate) fn draw(random: &mut Random) -> Self {
        let onsets = random.sample(ONSETS, 7);
        let vowels = random.sample(VOWELS, 5);
        let codas = random.sample(CODAS, 5);
        let syllables = (0..14)
            .map(|_| {
                format!("{}{}{}", random.pick(&onsets), random.pick(&vowels), random.pick(&codas))
            })
            .collect();
        Self { syllables, given: Vec::new() }
    }

    /// Invents a lower-case word that this document has not used yet.
    pub(crate) fn word(&mut self, random: &mut Random, ending: &str) -> String {
        loop {
            let mut word = random.pick(&self.syllables).clone();
            if ending.is_empty() || word.len() < 3 {
                let second: &String = random.pick(&self.syllables);
                word.push_str(second);
            }
            word.push_str(ending);
            if !self.given.contains(&word) {
                self.given.push(word.clone());
                return word;
            }
        }
    }

    /// Invents a first name. `gender`: 0 (she) or 1 (he).
    pub(crate) fn person(&mut self, random: &mut Random, gender: usize) -> String {
        let ending = *random.pick(PERSON_ENDINGS[gender]);
        capital(&self.word(random, ending))
    }

    /// Invents a family name.
    pub(crate) fn family(&mut self, random: &mut Random) -> String {
        capital(&self.word(random, ""))
    }

    /// Invents the name of a place.
    pub(crate) fn place(&mut self, random: &mut Random) -> String {
        let ending = *random.pick(PLACE_ENDINGS);
        capital(&self.word(random, ending))
    }
}

/// Returns the text with its first letter in upper case.
pub(crate) fn capital(text: &str) -> String {
    let mut letters = text.chars();
    letters.next().map_or_else(String::new, |first| first.to_uppercase().chain(letters).collect())
}
