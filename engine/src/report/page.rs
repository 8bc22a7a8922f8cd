//! The pages that people look at: one HTML file each, that asks for nothing, runs offline, prints, and is legible without a
//! style sheet or a script.
//!
//! Whoever makes a page names its sections and blocks; how they look stands in `templates/`, which escapes all text: what
//! is shown may be anybody's.

pub(crate) mod drawing;
pub(crate) mod figures;
pub(crate) mod heat;
pub(crate) mod lines;

use askama::Template;

use crate::base::text::line_safe;
use drawing::Drawing;

/// A page.
#[derive(Debug, Template)]
#[template(path = "page.html")]
pub(crate) struct Page {
    pub(crate) title: String,
    /// One line above the title: what made it, of what, when.
    pub(crate) kicker: String,
    /// What a reader should know first.
    pub(crate) lead: String,
    /// The few figures that say most.
    pub(crate) tiles: Vec<Tile>,
    pub(crate) sections: Vec<Section>,
}

/// A figure with what it is.
#[derive(Debug)]
pub(crate) struct Tile {
    pub(crate) figure: String,
    pub(crate) label: String,
}

/// A part of a page, with its place in the list at the top.
#[derive(Debug)]
pub(crate) struct Section {
    /// The name of its anchor: lower-case letters and digits.
    pub(crate) id: String,
    pub(crate) title: String,
    /// How to read it.
    pub(crate) lead: String,
    pub(crate) blocks: Vec<Block>,
}

impl Section {
    pub(crate) fn new(id: &str, title: &str, lead: &str, blocks: Vec<Block>) -> Self {
        Self { id: id.to_owned(), title: title.to_owned(), lead: lead.to_owned(), blocks }
    }
}

/// Something in a section.
#[derive(Debug, Template)]
#[template(path = "block.html")]
pub(crate) enum Block {
    /// A heading.
    Heading(String),
    /// A paragraph in small letters.
    Note(String),
    /// A list.
    List(Vec<String>),
    /// Text to copy.
    Code(String),
    /// A picture.
    Drawing(Drawing),
    /// Small pictures beside each other, as many as fit.
    Figures(Vec<Figure>),
    /// A text of a corpus, and what is said of it.
    Text(Text),
    /// A text of a corpus, piece by piece, each on its own ground.
    Shaded(Vec<Piece>),
    /// What the script of the page makes a panel of, as JSON that ends no script.
    Panel(String),
    /// What can be opened and closed.
    Details { summary: String, open: bool, blocks: Vec<Block> },
    /// A table; the first column is text.
    Table { header: Vec<String>, rows: Vec<Vec<String>> },
}

impl Block {
    /// A table under these names.
    pub(crate) fn table<const COLUMNS: usize>(
        header: [&str; COLUMNS],
        rows: Vec<Vec<String>>,
    ) -> Self {
        Self::Table { header: header.map(str::to_owned).to_vec(), rows }
    }
}

/// A small picture.
#[derive(Debug)]
pub(crate) struct Figure {
    pub(crate) title: String,
    /// How to read it.
    pub(crate) caption: String,
    pub(crate) drawing: Drawing,
}

/// A text of a corpus: anybody's, and shown as nothing but text.
#[derive(Debug)]
pub(crate) struct Text {
    pub(crate) title: String,
    /// Where it is from.
    pub(crate) place: String,
    /// Why it is shown.
    pub(crate) why: String,
    /// Figures: the name and what is said of it.
    pub(crate) figures: Vec<(String, String)>,
    /// Its beginning, what is left out, and its end; none where the text is not shown.
    pub(crate) excerpt: Option<(String, String, String)>,
}

/// A piece of a text.
#[derive(Debug)]
pub(crate) struct Piece {
    pub(crate) text: String,
    /// The colour of its ground, light; none where it is empty.
    pub(crate) fill: String,
    /// What a pointer shows.
    pub(crate) title: String,
    /// The name of the piece, where another one leads to it: letters and digits; else empty.
    pub(crate) anchor: String,
    /// The name of the piece that it leads to; else empty.
    pub(crate) link: String,
}

impl Page {
    /// The file. Control characters and those that change the direction of text are shown as escapes.
    pub(crate) fn html(&self) -> String {
        let html = self.render().expect("templates write to memory");
        html.split('\n').map(line_safe).collect::<Vec<_>>().join("\n")
    }
}
