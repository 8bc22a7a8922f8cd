//! HTML pages: single files without external resources that work offline, print, and are legible without style sheet
//! or scripts.
//!
//! Callers build sections and blocks; `templates/` defines the layout and escapes all text, which may be arbitrary
//! data.

pub(crate) mod drawing;
pub(crate) mod figures;
pub(crate) mod heat;
pub(crate) mod lines;

use askama::Template;

use crate::base::text::line_safe;
use drawing::Drawing;

#[derive(Debug, Template)]
#[template(path = "page.html")]
pub(crate) struct Page {
    pub(crate) title: String,
    /// Line above the title: the command, its subject and the time.
    pub(crate) kicker: String,
    /// Introduction.
    pub(crate) lead: String,
    /// Key numbers.
    pub(crate) tiles: Vec<Tile>,
    pub(crate) sections: Vec<Section>,
}

/// A number with its label.
#[derive(Debug)]
pub(crate) struct Tile {
    pub(crate) figure: String,
    pub(crate) label: String,
}

/// A section of a page, listed in the table of contents.
#[derive(Debug)]
pub(crate) struct Section {
    /// Anchor: lower-case letters and digits.
    pub(crate) id: String,
    pub(crate) title: String,
    /// Explanation of the section.
    pub(crate) lead: String,
    pub(crate) blocks: Vec<Block>,
}

impl Section {
    pub(crate) fn new(id: &str, title: &str, lead: &str, blocks: Vec<Block>) -> Self {
        Self { id: id.to_owned(), title: title.to_owned(), lead: lead.to_owned(), blocks }
    }
}

/// A block of a section.
#[derive(Debug, Template)]
#[template(path = "block.html")]
pub(crate) enum Block {
    Heading(String),
    /// A paragraph in small print.
    Note(String),
    List(Vec<String>),
    /// Text to copy.
    Code(String),
    Drawing(Drawing),
    /// Small charts in a grid.
    Figures(Vec<Figure>),
    /// A text of the corpus with its statistics.
    Text(Text),
    /// A text of the corpus with a background colour for each piece.
    Shaded(Vec<Piece>),
    /// JSON data of an interactive panel, escaped for a script element.
    Panel(String),
    /// A collapsible block.
    Details {
        summary: String,
        open: bool,
        blocks: Vec<Block>,
    },
    /// A table whose first column is text.
    Table {
        header: Vec<String>,
        rows: Vec<Vec<String>>,
    },
}

impl Block {
    /// Creates a table with this header.
    pub(crate) fn table<const COLUMNS: usize>(
        header: [&str; COLUMNS],
        rows: Vec<Vec<String>>,
    ) -> Self {
        Self::Table { header: header.map(str::to_owned).to_vec(), rows }
    }
}

/// A small chart.
#[derive(Debug)]
pub(crate) struct Figure {
    pub(crate) title: String,
    /// Explanation of the chart.
    pub(crate) caption: String,
    pub(crate) drawing: Drawing,
}

/// A text of the corpus: arbitrary data, rendered as plain text.
#[derive(Debug)]
pub(crate) struct Text {
    pub(crate) title: String,
    /// Location of the text.
    pub(crate) place: String,
    /// Reason to show it.
    pub(crate) why: String,
    /// Statistics: name and formatted value.
    pub(crate) figures: Vec<(String, String)>,
    /// Beginning, omission and end; `None` if the text is not shown.
    pub(crate) excerpt: Option<(String, String, String)>,
}

/// A piece of a text.
#[derive(Debug)]
pub(crate) struct Piece {
    pub(crate) text: String,
    /// Background colour; empty for none.
    pub(crate) fill: String,
    /// Tooltip.
    pub(crate) title: String,
    /// Anchor of the piece if another one links to it (letters and digits), otherwise empty.
    pub(crate) anchor: String,
    /// Anchor of the linked piece, otherwise empty.
    pub(crate) link: String,
}

impl Page {
    /// Renders the file. Control characters and those that change the direction of text are shown as escapes.
    pub(crate) fn html(&self) -> String {
        let html = self.render().expect("templates write to memory");
        html.split('\n').map(line_safe).collect::<Vec<_>>().join("\n")
    }
}
