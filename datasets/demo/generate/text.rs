//! Documents as sequences of units (sentences and lines), and what is done to them: cut, mixed, repeated, shuffled.

use crate::random::Random;

/// What stands behind a unit.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    /// A space.
    Space,
    /// A line feed.
    Line,
    /// An empty line.
    Paragraph,
}

/// A sentence or a line.
#[derive(Clone)]
pub(crate) struct Unit {
    /// Its text, without what stands behind it.
    pub(crate) text: String,
    /// What stands behind it.
    pub(crate) end: End,
}

impl Unit {
    /// A sentence inside a paragraph.
    pub(crate) fn sentence(text: String) -> Self {
        Self { text, end: End::Space }
    }
}

/// The text of the units; nothing stands behind the last one.
pub(crate) fn join(units: &[Unit]) -> String {
    let mut text = String::new();
    for unit in units {
        text.push_str(&unit.text);
        text.push_str(match unit.end {
            End::Space => " ",
            End::Line => "\n",
            End::Paragraph => "\n\n",
        });
    }
    text.truncate(text.trim_end().len());
    text
}

/// The same units in random order; the layout (where lines and paragraphs end) stays where it was.
pub(crate) fn shuffled(random: &mut Random, units: &[Unit]) -> Vec<Unit> {
    let mut texts: Vec<&String> = units.iter().map(|unit| &unit.text).collect();
    random.shuffle(&mut texts);
    texts
        .into_iter()
        .zip(units)
        .map(|(text, place)| Unit { text: text.clone(), end: place.end })
        .collect()
}
