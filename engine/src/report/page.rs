//! HTML pages: single files without external resources or scripts that work offline, print, and are legible without
//! style sheet.
//!
//! A page is a list of sections, a section a list of blocks. Callers build them; `templates/` defines the layout and
//! escapes all text, which may be arbitrary data.

pub(crate) mod chart;
pub(crate) mod drawing;
pub(crate) mod heat;
pub(crate) mod numbers;
pub(crate) mod text;

use std::iter;

use askama::Template;

use crate::base::text::printable;
use chart::Chart;
use drawing::{Drawing, Swatch};
use heat::HeatMap;

#[derive(Debug, Template)]
#[template(path = "page.html")]
pub(crate) struct Page {
    pub(crate) title: String,
    /// Line above the title: the command, its subject and the time.
    pub(crate) kicker: String,
    pub(crate) lead: String,
    pub(crate) tiles: Vec<KeyNumber>,
    pub(crate) sections: Vec<Section>,
}

#[derive(Debug)]
pub(crate) struct KeyNumber {
    pub(crate) value: String,
    pub(crate) label: String,
}

impl KeyNumber {
    pub(crate) fn new(value: impl Into<String>, label: impl Into<String>) -> Self {
        Self { value: value.into(), label: label.into() }
    }
}

/// A section of a page, listed in the table of contents.
#[derive(Debug)]
pub(crate) struct Section {
    /// Anchor: lower-case letters and digits.
    pub(crate) id: String,
    pub(crate) title: String,
    /// Explanation of the section; parts in backticks are code.
    pub(crate) lead: String,
    pub(crate) blocks: Vec<Block>,
    /// Whether text output shows it only on request.
    pub(crate) on_request: bool,
}

impl Section {
    pub(crate) fn new(id: &str, title: &str, lead: &str, blocks: Vec<Block>) -> Self {
        let [id, title, lead] = [id, title, lead].map(str::to_owned);
        Self { id, title, lead, blocks, on_request: false }
    }

    pub(crate) fn on_request(self) -> Self {
        Self { on_request: true, ..self }
    }
}

#[derive(Debug, Template)]
#[template(path = "block.html")]
pub(crate) enum Block {
    Heading(String),
    /// A paragraph in small print; parts in backticks are code.
    Note(String),
    List(Vec<String>),
    Code(String),
    Legend(Vec<Swatch>),
    Chart(Chart),
    Bars(Bars),
    Heat(HeatMap),
    /// Charts and bars side by side.
    Charts(Vec<CaptionedChart>),
    /// A text of the corpus with its statistics.
    Sample(SampleText),
    /// A text of the corpus with a background colour for each piece; `class` is that of the whole text.
    Shaded {
        class: &'static str,
        pieces: Vec<TextPiece>,
    },
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
    pub(crate) fn table<const COLUMNS: usize>(
        header: [&str; COLUMNS],
        rows: Vec<Vec<String>>,
    ) -> Self {
        Self::Table { header: header.map(str::to_owned).to_vec(), rows }
    }

    pub(crate) fn details(summary: impl Into<String>, open: bool, blocks: Vec<Self>) -> Self {
        Self::Details { summary: summary.into(), open, blocks }
    }
}

/// A chart with its title and its explanation; both may be empty.
#[derive(Debug)]
pub(crate) struct CaptionedChart {
    pub(crate) title: String,
    pub(crate) caption: String,
    pub(crate) block: Block,
}

impl CaptionedChart {
    pub(crate) fn new(title: impl Into<String>, caption: impl Into<String>, block: Block) -> Self {
        Self { title: title.into(), caption: caption.into(), block }
    }
}

#[derive(Debug, Default)]
pub(crate) struct Bars {
    pub(crate) legend: Vec<Swatch>,
    pub(crate) rows: Vec<Bar>,
    /// Evenly spaced labels below the bars.
    pub(crate) scale: Vec<&'static str>,
    /// Whether a table of the same section has the values as well; text output leaves the bars out.
    pub(crate) in_table: bool,
}

impl Bars {
    /// Returns the values as header and rows of a table, with a column for each solid colour of the legend.
    pub(crate) fn table(&self) -> (Vec<String>, Vec<Vec<String>>) {
        let names = self.legend.iter().filter(|swatch| !swatch.dashed);
        let names = names.map(|swatch| swatch.name.clone());
        let row = |bar: &Bar| iter::once(&bar.name).chain(&bar.values).cloned().collect();
        (iter::once(String::new()).chain(names).collect(), self.rows.iter().map(row).collect())
    }
}

/// A row of [`Bars`]: its name, its values as text, and the drawing of the values.
#[derive(Debug)]
pub(crate) struct Bar {
    pub(crate) name: String,
    pub(crate) values: Vec<String>,
    pub(crate) layer: Drawing,
}

impl Bar {
    /// Creates a bar from its colour and the fractions of the width at which it begins and ends.
    pub(crate) fn new(
        name: impl Into<String>,
        value: impl Into<String>,
        fill: &str,
        from_to: (f64, f64),
    ) -> Self {
        let mut layer = Drawing::new(12);
        layer.bar(from_to, (0.0, 12.0), fill, "");
        Self { name: name.into(), values: vec![value.into()], layer }
    }
}

/// A text of the corpus: arbitrary data, rendered as plain text.
#[derive(Debug)]
pub(crate) struct SampleText {
    pub(crate) title: String,
    pub(crate) location: String,
    pub(crate) why: String,
    pub(crate) statistics: Vec<(String, String)>,
    /// Beginning, omission and end; `None` if the text is not shown.
    pub(crate) excerpt: Option<(String, String, String)>,
}

#[derive(Debug)]
pub(crate) struct TextPiece {
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

impl SampleText {
    pub(crate) fn passage(title: String, text: &str) -> Self {
        let (location, why, statistics) = (String::new(), String::new(), Vec::new());
        let excerpt = Some((text.to_owned(), String::new(), String::new()));
        Self { title, location, why, statistics, excerpt }
    }

    fn class(&self) -> &'static str {
        let excerpt = self.excerpt.iter();
        text_class(&excerpt.flat_map(|(head, _, tail)| [head.as_str(), tail]).collect::<String>())
    }
}

/// Returns the class of a text: `code` if at least half of its lines look like code or tables, otherwise `prose`.
pub(crate) fn text_class(text: &str) -> &'static str {
    let lines: Vec<&str> = text.lines().filter(|line| !line.trim().is_empty()).collect();
    let is_code = |line: &&&str| {
        let is_table =
            line.contains('\t') || line.matches(',').count() > line.matches(", ").count() + 2;
        let ends = ['{', '}', '[', ']', '(', ')', ';'];
        line.starts_with(' ') || line.contains(" = ") || line.trim_end().ends_with(ends) || is_table
    };
    let code = lines.iter().filter(is_code).count();
    if lines.len() > 1 && 2 * code >= lines.len() { "code" } else { "prose" }
}

mod filters {
    use std::fmt::Display;

    use askama::filters::{Html, escape};

    /// Escapes a text and renders its parts in backticks as code.
    pub(super) fn prose(text: impl Display, _: &dyn askama::Values) -> askama::Result<String> {
        let text = escape(text, Html)?.to_string();
        let (mut html, mut rest) = (String::with_capacity(text.len()), text.as_str());
        while let Some((before, after)) = rest.split_once('`')
            && let Some((code, after)) = after.split_once('`')
        {
            html.extend([before, "<code>", code, "</code>"]);
            rest = after;
        }
        Ok(html + rest)
    }
}

impl Page {
    /// Renders the file. Control characters, also those of text direction, are escaped, except tabs and line breaks.
    pub(crate) fn html(&self) -> String {
        let html = self.render().expect("templates write to memory").replace("\r\n", "\n");
        let safe = |character| match character {
            '\n' | '\t' => String::from(character),
            _ => printable(character),
        };
        html.chars().map(safe).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(blocks: Vec<Block>) -> String {
        let sections = vec![Section::new("one", "One", "Run `longsift <x>`, not `y.", blocks)];
        let text = || "a".to_owned();
        Page { title: text(), kicker: text(), lead: text(), tiles: Vec::new(), sections }.html()
    }

    fn sample(text: &str) -> Block {
        Block::Sample(SampleText::passage("a".to_owned(), text))
    }

    #[test]
    fn code_keeps_its_tabs_and_line_breaks_and_is_monospaced() {
        let html = page(vec![sample("def f(x):\r\n\treturn {\n\t\t1,\n\n\t}\u{1b}\n")]);
        assert!(html.contains("<blockquote class=\"code\""), "{html}");
        assert!(html.contains("def f(x):\n\treturn {\n\t\t1,\n\n\t}\\u{1b}\n"), "{html}");
        assert!(!html.contains('⏎') && !html.contains("\\u{9}"), "{html}");
        assert!(html.contains(".code{font:13px/1.5 ui-monospace"), "{html}");
        let prose = page(vec![sample("She said (once), and\nthat was all.\nThen, later; no.")]);
        assert!(prose.contains("<blockquote class=\"prose\""), "{prose}");
        let classes =
            ["a\tb\nc\td", "x,1,2,3\ny,4,5,6", "a = [\n \"b\",\n]", "one, two, three, four\nfive"];
        assert_eq!(classes.map(text_class), ["code", "code", "code", "prose"]);
    }

    #[test]
    fn text_in_backticks_is_code() {
        let html = page(Vec::new());
        assert!(html.contains("Run <code>longsift &#60;x&#62;</code>, not `y."), "{html}");
    }

    #[test]
    fn pages_have_sticky_contents_a_dark_mode_and_no_scripts() {
        let html = page(vec![Block::Heading("a".to_owned())]);
        assert!(html.contains("<a href=\"#one\">One</a>") && html.contains("<h2 id=\"one\">"));
        let (_, nav) = html.split_once("\nnav{").unwrap();
        assert!(nav.split('}').next().unwrap().contains("position:sticky"), "{nav}");
        assert!(html.contains("prefers-color-scheme:dark") && html.contains("max-width:999px"));
        assert!(!html.contains("<script") && !html.contains("script-src"));
    }
}
