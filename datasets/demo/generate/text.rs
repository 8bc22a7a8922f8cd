//! Documents as sequences of units (sentences and lines), and operations on them.

use crate::random::Random;

/// Separator after a unit.
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
    /// Text without the separator.
    pub(crate) text: String,
    pub(crate) end: End,
}

impl Unit {
    /// Creates a sentence inside a paragraph.
    pub(crate) fn sentence(text: String) -> Self {
        Self { text, end: End::Space }
    }
}

/// Joins the units to a text, without a separator after the last one.
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

/// Returns the texts of the units in random order. The separators keep their order, and with them the layout of lines
/// and paragraphs.
pub(crate) fn shuffled(random: &mut Random, units: &[Unit]) -> Vec<Unit> {
    let mut texts: Vec<&String> = units.iter().map(|unit| &unit.text).collect();
    random.shuffle(&mut texts);
    texts
        .into_iter()
        .zip(units)
        .map(|(text, unit)| Unit { text: text.clone(), end: unit.end })
        .collect()
}
