//! Formats diagnostics as text: message, location, the line with a caret, notes and a hint.

use std::fmt::Write as _;

use unicode_width::UnicodeWidthStr;

use super::diagnostic::{Diagnostic, DiagnosticLocation, Severity, TextLocation};
use super::text::{line_safe, printable};

/// Maximum width of the displayed part of a source line, in terminal columns.
const MAX_LINE_WIDTH: usize = 100;
/// Maximum characters of a line that are examined on either side of the caret.
const MAX_CHARACTERS: usize = 4 * MAX_LINE_WIDTH;
/// Width of a long line that stays visible before the caret, in terminal columns.
const BEFORE_CARET: usize = 40;

/// Formats all diagnostics as text that ends with a line break; without diagnostics it is empty. `color` adds ANSI colours, the
/// only terminal control sequences in the text.
pub fn render(diagnostics: &[Diagnostic], color: bool) -> String {
    let texts = diagnostics.iter().map(|diagnostic| render_one(diagnostic, color));
    texts.collect::<Vec<_>>().join("\n")
}

fn render_one(diagnostic: &Diagnostic, color: bool) -> String {
    let (word, style) = match diagnostic.severity {
        Severity::Error => ("error", RED),
        Severity::Warning => ("warning", YELLOW),
    };
    let message = styled(color, STRONG, &line_safe(&diagnostic.message));
    let mut out = format!("{}: {message}\n", styled(color, style, word));
    let label = diagnostic.label.as_deref();
    match &diagnostic.location {
        Some(DiagnosticLocation::Text(location)) => {
            out.push_str(&source(location, label, style, color));
        }
        Some(DiagnosticLocation::Data(location)) => {
            let _ = writeln!(out, " {} {}", styled(color, BLUE, "-->"), line_safe(location));
            out.extend(label.map(|label| format!("     {}\n", line_safe(label))));
        }
        None => out.extend(label.map(|label| format!("  {}\n", line_safe(label)))),
    }
    if diagnostic.location.is_some() && (diagnostic.hint.is_some() || !diagnostic.notes.is_empty())
    {
        out.push('\n');
    }
    for note in &diagnostic.notes {
        let _ = writeln!(out, "{}: {}", styled(color, STRONG, "note"), line_safe(note));
    }
    if let Some(hint) = &diagnostic.hint {
        let _ = writeln!(out, "{}: {}", styled(color, CYAN, "hint"), line_safe(hint));
    }
    out
}

/// Formats the frame with the source line and the caret.
fn source(location: &TextLocation, label: Option<&str>, style: &str, color: bool) -> String {
    let number = location.line.map_or(String::new(), |line| line.to_string());
    let margin = " ".repeat(number.len().max(1));
    let position =
        location.line.map_or(String::new(), |line| format!(":{line}:{}", location.column));
    let bar = styled(color, BLUE, "|");
    let (text, gap, carets) = shown_line(location);
    let carets = styled(color, style, &"^".repeat(carets));
    let label = label
        .map_or(String::new(), |label| format!(" {}", styled(color, style, &line_safe(label))));
    let number = styled(color, BLUE, &format!("{number:>width$}", width = margin.len()));
    let text = if text.is_empty() { text } else { format!(" {text}") };
    format!(
        "{margin}{arrow} {name}{position}\n{margin} {bar}\n{number} {bar}{text}\n{margin} {bar} {gap}{carets}{label}\n",
        arrow = styled(color, BLUE, "-->"),
        name = line_safe(&location.name),
        gap = " ".repeat(gap),
    )
}

/// Returns the source line cut to the displayed width, the gap before its carets, and their number, in terminal columns.
fn shown_line(location: &TextLocation) -> (String, usize, usize) {
    // Examines only the part of a very long line around the caret.
    let skipped = location.column.saturating_sub(1 + MAX_CHARACTERS);
    let characters = location.text.chars().skip(skipped).take(2 * MAX_CHARACTERS);
    let cells: Vec<String> = characters.map(cell).collect();
    let widths: Vec<usize> = cells.iter().map(|cell| cell.width()).collect();
    let first = (location.column.saturating_sub(1) - skipped).min(cells.len());
    let last = first.saturating_add(location.length).min(cells.len());
    let mut start = 0;
    if skipped > 0 || widths.iter().sum::<usize>() > MAX_LINE_WIDTH {
        let mut before = widths[..first].iter().sum::<usize>();
        while before > BEFORE_CARET {
            before -= widths[start];
            start += 1;
        }
    }
    let mut text = String::from(if start + skipped > 0 { "…" } else { "" });
    let gap = text.width() + widths[start..first].iter().sum::<usize>();
    let mut width = text.width();
    let mut end = start;
    while end < cells.len() && width + widths[end] <= MAX_LINE_WIDTH {
        width += widths[end];
        text.push_str(&cells[end]);
        end += 1;
    }
    if end < cells.len() {
        text.push('…');
    }
    let carets = widths[first..last.clamp(first, end.max(first))].iter().sum::<usize>().max(1);
    (text.trim_end().to_string(), gap, carets)
}

/// Formats a character of a source line; a tab becomes four spaces.
fn cell(character: char) -> String {
    if character == '\t' { "    ".to_string() } else { printable(character) }
}

/// Parameters of the ANSI sequences that begin a style.
const RED: &str = "1;31";
const YELLOW: &str = "1;33";
const CYAN: &str = "1;36";
const BLUE: &str = "1;34";
const STRONG: &str = "1";

fn styled(color: bool, style: &str, text: &str) -> String {
    if !color || text.is_empty() {
        return text.to_string();
    }
    format!("\u{1b}[{style}m{text}\u{1b}[0m")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::diagnostic::Blame;

    fn diagnostic_at(text: &str, column: usize, length: usize) -> Diagnostic {
        let location = TextLocation {
            name: "p.yaml".into(),
            line: Some(21),
            column,
            length,
            text: text.into(),
        };
        Diagnostic::error(Blame::Pipeline, "no").at(DiagnosticLocation::Text(location))
    }

    #[test]
    fn a_diagnostic_shows_message_place_line_caret_and_hint() {
        let diagnostic = diagnostic_at("    column: attention", 13, 9)
            .label("the input of this stage has: doc_id, tokens, attn")
            .hint("did you mean `attn`?");
        insta::assert_snapshot!(render(&[diagnostic], false), @r"
        error: no
          --> p.yaml:21:13
           |
        21 |     column: attention
           |             ^^^^^^^^^ the input of this stage has: doc_id, tokens, attn

        hint: did you mean `attn`?
        ");
    }

    #[test]
    fn several_diagnostics_are_separated_by_an_empty_line() {
        let data = Diagnostic::error(Blame::Data, "column `text` is null")
            .at(DiagnosticLocation::Data("part-00017.parquet, row group 3, row 1204".into()));
        let plain =
            Diagnostic::warning(Blame::Machine, "slow disk").note("2 MB/s").hint("buy another");
        insta::assert_snapshot!(render(&[data, plain], false), @r"
        error: column `text` is null
         --> part-00017.parquet, row group 3, row 1204

        warning: slow disk
        note: 2 MB/s
        hint: buy another
        ");
    }

    #[test]
    fn the_caret_is_below_its_text_after_tabs_and_wide_characters() {
        insta::assert_snapshot!(render(&[diagnostic_at("\t名前: 値段", 6, 2)], false), @r"
        error: no
          --> p.yaml:21:6
           |
        21 |     名前: 値段
           |           ^^^^
        ");
    }

    #[test]
    fn terminal_escapes_in_a_line_are_shown_and_not_sent() {
        let text = render(&[diagnostic_at("a: \u{1b}[2J\u{202e}", 4, 1)], false);
        assert!(!text.contains('\u{1b}') && !text.contains('\u{202e}'), "{text}");
        assert!(text.contains("^^^^^^") && text.contains("\\u{1b}"), "{text}");
    }

    #[test]
    fn a_long_line_is_cut_around_the_caret() {
        let text = format!("{}needle{}", "a".repeat(100_000), "b".repeat(100_000));
        let shown = render(&[diagnostic_at(&text, 100_001, 6)], false);
        let lines: Vec<&str> = shown.lines().collect();
        assert!(lines[3].chars().count() < 120, "{}", lines[3]);
        let needle = lines[3].find("needle").map(|at| lines[3][..at].chars().count());
        assert_eq!(needle, lines[4].find('^'), "{shown}");
    }

    #[test]
    fn a_place_outside_its_line_still_gets_a_caret() {
        for (column, length) in [(0, 0), (7, 3), (1, usize::MAX), (usize::MAX, usize::MAX)] {
            assert!(render(&[diagnostic_at("abc", column, length)], false).contains('^'));
        }
    }

    #[test]
    fn colour_adds_escapes_and_changes_no_text() {
        let diagnostic = diagnostic_at("a: b", 4, 1).label("c").hint("d");
        let colored = render(std::slice::from_ref(&diagnostic), true);
        assert!(colored.starts_with("\u{1b}[1;31merror\u{1b}[0m: "));
        let mut plain = colored;
        for code in ["1;31", "1;33", "1;36", "1;34", "1", "0"] {
            plain = plain.replace(&format!("\u{1b}[{code}m"), "");
        }
        assert_eq!(plain, render(&[diagnostic], false));
    }
}
