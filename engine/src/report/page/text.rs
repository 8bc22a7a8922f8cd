//! Sections of a page as text for a terminal: tables, lists and notes. Charts are left out.

use std::iter;

use super::{Block, SampleText, Section};
use crate::base::text::{line_safe, one_line, table};

/// Maximum width of a line in columns of a terminal.
const WIDTH: usize = 118;

/// Renders sections, with `details` also those that are shown on request. Each has its explanation below its tables.
pub(crate) fn text(sections: &[Section], details: bool) -> String {
    let mut text = String::new();
    for section in sections.iter().filter(|section| details || !section.on_request) {
        let body = blocks(&section.blocks, details);
        if !body.is_empty() {
            let title = line_safe(&section.title);
            text.extend(["\n", &title, "\n", &body, &wrapped(&section.lead)]);
        }
    }
    text
}

/// Renders blocks. A heading without a text below it is left out.
fn blocks(blocks: &[Block], details: bool) -> String {
    let (mut text, mut heading) = (String::new(), None);
    for block in blocks {
        let body = match block {
            Block::Heading(title) => {
                heading = Some(title);
                continue;
            }
            Block::Note(note) => wrapped(note),
            Block::Code(text) => text.clone() + "\n",
            Block::List(lines) => lines.iter().map(|line| line_safe(line) + "\n").collect(),
            Block::Table { header, rows } => grid(header, rows),
            Block::Heat(map) => {
                let (header, rows) = map.table();
                grid(&header, &rows)
            }
            Block::Bars(bars) if !bars.in_table => {
                let (header, rows) = bars.table();
                grid(&header, &rows)
            }
            Block::Sample(SampleText { title, excerpt: Some((start, _, end)), .. }) => {
                format!("{}: {}\n", line_safe(title), one_line(format!("{start} {end}").trim()))
            }
            Block::Details { blocks, .. } if details => self::blocks(blocks, details),
            _ => String::new(),
        };
        if !body.is_empty() {
            if let Some(title) = heading.take() {
                text.extend(["\n", &line_safe(title), "\n"]);
            }
            text += &body;
        }
    }
    text
}

/// Renders a table. Columns that do not fit into a line are continued in another table.
fn grid(header: &[String], rows: &[Vec<String>]) -> String {
    if rows.is_empty() {
        return String::new();
    }
    let safe = |row: &[String]| row.iter().map(|cell| line_safe(cell)).collect();
    let rows: Vec<Vec<String>> =
        iter::once(safe(header)).chain(rows.iter().map(|row| safe(row))).collect();
    let width = |column: usize| {
        let cells = rows.iter().filter_map(|row| row.get(column));
        cells.map(|cell| cell.chars().count()).max().unwrap_or_default()
    };
    let (mut text, mut next) = (String::new(), 1);
    while next < header.len() {
        let mut used = 2 + width(0);
        let fits = (next..header.len()).take_while(|column| {
            used += 2 + width(*column);
            used <= WIDTH
        });
        let end = next + fits.count().max(1);
        let part = |row: &Vec<String>| {
            row.iter().take(1).chain(row.iter().take(end).skip(next)).cloned().collect()
        };
        let part: Vec<Vec<String>> = rows.iter().map(part).collect();
        text.extend(table(&part).iter().map(|line| format!("  {line}\n")));
        next = end;
    }
    text
}

fn wrapped(paragraph: &str) -> String {
    let text = textwrap::fill(&line_safe(paragraph), WIDTH);
    if text.is_empty() { text } else { text + "\n" }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_precede_the_explanation_of_a_section() {
        let words = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect();
        let table =
            Block::Table { header: words(&["a", "b"]), rows: vec![words(&["1\u{1b}", "2"])] };
        let heading = |title: &str| Block::Heading(title.to_owned());
        let shown =
            Section::new("a", "One", "Why.", vec![heading("Inner"), table, heading("None")]);
        let sections =
            [shown, Section::new("b", "Two", "", vec![Block::Note("n".to_owned())]).on_request()];
        let one = "\nOne\n\nInner\n  a        b\n  1\\u{1b}  2\nWhy.\n";
        assert_eq!(text(&sections, false), one);
        assert_eq!(text(&sections, true), format!("{one}\nTwo\nn\n"));
    }

    #[test]
    fn wide_tables_are_continued_and_long_paragraphs_wrapped() {
        let row: Vec<String> = (0..5).map(|cell| cell.to_string().repeat(50)).collect();
        let text = grid(&row, std::slice::from_ref(&row));
        assert!(text.lines().all(|line| line.chars().count() <= WIDTH), "{text}");
        assert_eq!(text.matches(&row[0]).count(), 8, "the first column is repeated: {text}");
        let lines = wrapped(&"word ".repeat(100));
        assert!(lines.lines().all(|line| line.len() <= WIDTH) && lines.lines().count() == 5);
    }
}
