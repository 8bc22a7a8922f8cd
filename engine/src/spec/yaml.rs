//! Parses YAML text into a [`Node`] tree; the only file that uses the YAML library.
//!
//! A pipeline needs a small part of YAML. Features that hide meaning (aliases, anchors, tags, merge keys, several documents)
//! are refused by name, and resource use (depth, number of values, size) is bounded before the tree is built.

use std::borrow::Cow;
use std::collections::HashMap;
use std::fmt::Write as _;

use saphyr_parser::{Event, Parser, ScalarStyle, ScanError, Span as YamlSpan, StrInput};

use super::node::{Entry, Node, YamlValue};
use super::scalar;
use super::source::{Problems, Span};
use crate::base::text::{count, printable, quoted};

/// Maximum size of a pipeline file in bytes. Even a long pipeline has only about a hundred lines.
pub(crate) const MAX_FILE_BYTES: usize = 1 << 20;
const MAX_DEPTH: usize = 64;
const MAX_NODES: usize = 20_000;

/// Start of a text on the first line of its source, for positions: column, from 1.
#[derive(Clone, Copy)]
pub(crate) struct Origin {
    pub(crate) source: usize,
    pub(crate) column: usize,
}

/// Parses one document. Reports all mistakes; returns `None` after those that prevent building a tree (unlike a duplicate key).
pub(crate) fn read(text: &str, origin: Origin, problems: &mut Problems) -> Option<Node> {
    let (text, origin) = match text.strip_prefix('\u{feff}') {
        Some(rest) => (rest, Origin { column: origin.column + 1, ..origin }),
        None => (text, origin),
    };
    if let Some((message, span)) = forbidden_character(text, origin) {
        problems.error(span, message).hint("remove it, or write it as an escape in double quotes");
        return None;
    }
    let text = with_whole_characters(text);
    Reader { events: Parser::new_from_str(&text), origin, nodes: 0, problems }.document()
}

/// Replaces each surrogate pair of JSON escapes (`\\ud83d\\ude42`) in double quotes by the single escape of YAML.
fn with_whole_characters(text: &str) -> Cow<'_, str> {
    if !text.contains("\\ud") && !text.contains("\\uD") {
        return text.into();
    }
    let unit = |text: &str| {
        let digits = text.strip_prefix("\\u")?.get(..4)?;
        u16::from_str_radix(digits, 16).ok()
    };
    let (mut out, mut rest, mut is_quoted) = (String::with_capacity(text.len()), text, false);
    while let Some(character) = rest.chars().next() {
        let mut length = character.len_utf8();
        match character {
            '"' => is_quoted = !is_quoted,
            '\\' if is_quoted => {
                let pair = unit(rest).zip(rest.get(6..).and_then(unit));
                let whole = pair.map(|(high, low)| String::from_utf16(&[high, low]));
                if let Some(Ok(whole)) =
                    whole.filter(|_| pair.is_some_and(|(high, _)| high >= 0xd800))
                {
                    let _ = write!(out, "\\U{:08X}", whole.chars().next().map_or(0, u32::from));
                    rest = &rest[12..];
                    continue;
                }
                length += rest[1..].chars().next().map_or(0, char::len_utf8);
            }
            _ => {}
        }
        out.push_str(&rest[..length]);
        rest = &rest[length..];
    }
    out.into()
}

/// Returns the first character that YAML forbids (chapter 5.1), which includes those that could disturb a terminal.
fn forbidden_character(text: &str, origin: Origin) -> Option<(String, Span)> {
    let lines = text.split('\n').zip(1..);
    let mut characters = lines
        .flat_map(|(text, line)| text.chars().zip(1..).map(move |(of, column)| (of, line, column)));
    let is_forbidden =
        |character: char| character.is_control() && !matches!(character, '\t' | '\r' | '\u{85}');
    let (character, line, column) = characters.find(|(of, ..)| is_forbidden(*of))?;
    let message = format!("control character `{}` in a YAML text", printable(character));
    Some((message, origin.span(line, column, 1)))
}

impl Origin {
    fn span(self, line: usize, column: usize, length: usize) -> Span {
        let shift = if line == 1 { self.column - 1 } else { 0 };
        Span { source: self.source, line, column: column + shift, length }
    }

    /// Converts a span of the library, whose columns count from 0. A span over several lines is cut at the end of the first.
    fn convert(self, span: YamlSpan) -> Span {
        let length = if span.end.line() == span.start.line() {
            span.end.col().saturating_sub(span.start.col())
        } else {
            usize::MAX
        };
        self.span(span.start.line(), span.start.col() + 1, length)
    }
}

/// Builds the tree; its functions return `None` after they have reported why the text has none.
struct Reader<'t, 'p, 's> {
    events: Parser<'t, StrInput<'t>>,
    origin: Origin,
    nodes: usize,
    problems: &'p mut Problems<'s>,
}

impl<'t> Reader<'t, '_, '_> {
    fn document(&mut self) -> Option<Node> {
        let mut root = None;
        loop {
            let (event, span) = self.next()?;
            match event {
                Event::StreamEnd => return root,
                Event::DocumentStart(_) if root.is_some() => {
                    let hint = "put each pipeline into a separate file";
                    return self.refuse(span, "a second YAML document begins here", hint);
                }
                Event::DocumentStart(_) => {
                    let first = self.next()?;
                    root = Some(self.node(first, 0)?);
                }
                _ => {}
            }
        }
    }

    fn next(&mut self) -> Option<(Event<'t>, Span)> {
        match self.events.next_event() {
            Some(Ok((event, span))) => Some((event, self.origin.convert(span))),
            Some(Err(error)) => self.syntax(&error),
            None => Some((Event::StreamEnd, self.origin.span(1, 1, 0))),
        }
    }

    fn node(&mut self, (event, span): (Event<'t>, Span), depth: usize) -> Option<Node> {
        self.nodes += 1;
        if self.nodes > MAX_NODES {
            let message = format!("more than {} keys and values", count(MAX_NODES as u64));
            return self.refuse(span, &message, "a pipeline usually has a few dozen");
        }
        if depth > MAX_DEPTH {
            let message = format!("lists and mappings nested deeper than {MAX_DEPTH} levels");
            return self.refuse(span, &message, "a pipeline needs about four levels");
        }
        match event {
            Event::Scalar(text, style, anchor, tag) => {
                self.refuse_properties(span, anchor, tag.is_some())?;
                let plain = style == ScalarStyle::Plain;
                let value = if plain {
                    scalar::resolve(&text)
                } else {
                    YamlValue::String(text.to_string())
                };
                Some(Node { span, value, text: text.into_owned(), plain })
            }
            Event::SequenceStart(anchor, tag) => {
                self.refuse_properties(span, anchor, tag.is_some())?;
                let value = YamlValue::List(self.items(depth)?);
                Some(Node { value, ..Node::mapping(span) })
            }
            Event::MappingStart(anchor, tag) => {
                self.refuse_properties(span, anchor, tag.is_some())?;
                let value = YamlValue::Mapping(self.entries(depth)?);
                Some(Node { value, ..Node::mapping(span) })
            }
            Event::Alias(_) => self.refuse_alias(span),
            _ => self.refuse(span, "expected a value here", "complete the file"),
        }
    }

    fn items(&mut self, depth: usize) -> Option<Vec<Node>> {
        let mut items = Vec::new();
        loop {
            match self.next()? {
                (Event::SequenceEnd, _) => return Some(items),
                event => items.push(self.node(event, depth + 1)?),
            }
        }
    }

    /// Parses the entries of a mapping. Of a duplicate key the first value stays and the others are reported.
    fn entries(&mut self, depth: usize) -> Option<Vec<Entry>> {
        let mut entries: Vec<Entry> = Vec::new();
        let mut first: HashMap<String, Span> = HashMap::new();
        loop {
            let (event, span) = self.next()?;
            if matches!(event, Event::MappingEnd) {
                return Some(entries);
            }
            let key = self.node((event, span), depth + 1)?;
            if matches!(key.value, YamlValue::List(_) | YamlValue::Mapping(_)) {
                let hint = "a key is a name; text with braces needs quotes";
                return self.refuse(span, "a key is a list or a mapping", hint);
            }
            if matches!(key.value, YamlValue::Null) {
                let hint =
                    "write `\"null\"` for a name; a key cannot stand for rows without a value";
                return self.refuse(span, "a key is null", hint);
            }
            if key.plain && key.text == "<<" {
                let message = "merge keys (`<<`) are not part of a pipeline";
                return self.refuse(span, message, "write the settings out");
            }
            let next = self.next()?;
            let value = self.node(next, depth + 1)?;
            if let Some(earlier) = first.get(&key.text) {
                let location = self.problems.sources.in_words(*earlier);
                self.problems
                    .error(key.span, format!("{} is set twice", quoted(&key.text)))
                    .label(format!("first set {location}"))
                    .hint("remove one of the two");
                continue;
            }
            first.insert(key.text.clone(), key.span);
            entries.push(Entry { key: key.text, span: key.span, value });
        }
    }

    fn refuse_properties(&mut self, span: Span, anchor: usize, tagged: bool) -> Option<()> {
        if anchor > 0 {
            let hint = "remove it; text that begins with `&` needs quotes";
            return self.refuse(span, "anchors (`&name`) are not part of a pipeline", hint);
        }
        if tagged {
            let hint = "remove it; text that begins with `!` needs quotes";
            return self.refuse(span, "tags (`!name`) are not part of a pipeline", hint);
        }
        Some(())
    }

    fn refuse<T>(&mut self, span: Span, message: &str, hint: &str) -> Option<T> {
        self.problems.error(span, message).hint(hint);
        None
    }

    fn syntax<T>(&mut self, error: &ScanError) -> Option<T> {
        let mark = error.marker();
        let span = self.origin.span(mark.line(), mark.col() + 1, 1);
        if error.info().contains("unknown anchor") {
            return self.refuse_alias(span);
        }
        if let Some(tab) = self.tab_near(span) {
            let message = "not valid YAML: a tab in the indentation";
            let hint = "indent with spaces: YAML does not allow tabs there";
            return self.refuse(tab, message, hint);
        }
        let line = self.problems.sources.line(span.source, span.line);
        let message = format!("not valid YAML: {}", error.info().trim());
        self.refuse(span, &message, syntax_hint(error.info(), line))
    }

    /// Detects a tab in the indentation, which the library reports at the end of the previous line or by another name.
    fn tab_near(&self, span: Span) -> Option<Span> {
        let (line, column) = [span.line, span.line + 1].into_iter().find_map(|line| {
            Some((line, indenting_tab(self.problems.sources.line(span.source, line))?))
        })?;
        Some(Span { line, column, ..span })
    }

    fn refuse_alias<T>(&mut self, span: Span) -> Option<T> {
        let hint = if self.problems.sources.is_file(span) {
            "text that begins with `*` needs quotes; replace an alias by its value"
        } else {
            "text that begins with `*` needs quotes of its own: `--set 'PATH=\"*…\"'`"
        };
        self.refuse(span, "aliases (`*name`) are not part of a pipeline", hint)
    }
}

fn indenting_tab(line: &str) -> Option<usize> {
    let indentation = line.chars().take_while(|character| matches!(character, ' ' | '\t'));
    indentation.zip(1..).find(|(character, _)| *character == '\t').map(|(_, column)| column)
}

fn syntax_hint(info: &str, line: &str) -> &'static str {
    if info.contains("quoted scalar") {
        "close the quotes"
    } else if line.contains("${") {
        "put text with `${…}` in quotes inside `[ ]` or `{ }`"
    } else if info.contains("flow") || info.contains("recursion") || info.contains("bracket") {
        "check that every `[` and `{` is closed"
    } else if info.contains("unexpected character") || info.contains("anchor") {
        "text that begins with one of * & ! % @ ` { [ needs quotes"
    } else {
        "check the indentation of this line and of the one before it, and that each `key:` is followed by a space"
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use proptest::prelude::*;

    use super::*;
    use crate::base::diagnostic::Diagnostic;
    use crate::spec::source::Sources;

    fn parse(text: &str) -> (Option<Node>, Vec<Diagnostic>) {
        let mut sources = Sources::default();
        let source = sources.add(Some("p.yaml"), text);
        let mut problems = Problems::new(&sources);
        let node = read(text, Origin { source, column: 1 }, &mut problems);
        (node, problems.into_diagnostics())
    }

    #[test]
    fn a_pair_of_escapes_is_one_character_in_double_quotes() {
        let json = |text: &str| parse(text).0.unwrap().to_json();
        let text = r#"{"a": "x\ud83d\uDE42\u00e9", "b": "\\ud83d"}"#;
        assert_eq!(json(text)["a"], "x\u{1f642}\u{e9}");
        assert_eq!(json(text)["b"], r"\ud83d");
        assert_eq!(json(r"a: '\ud83d\ude42'")["a"], r"\ud83d\ude42");
        assert!(parse(r#"a: "\ud83d""#).0.is_none(), "half a pair is not a character");
    }

    fn refusal(text: &str) -> String {
        let (node, problems) = parse(text);
        assert!(node.is_none(), "{node:?}");
        assert_eq!(problems.len(), 1, "{problems:?}");
        problems[0].message.clone()
    }

    fn position(span: Span) -> (usize, usize, usize) {
        (span.line, span.column, span.length)
    }

    #[test]
    fn every_key_and_value_has_a_position() {
        let (node, problems) = parse(
            "\u{feff}name: été\nlist:\n  - a  # one\n  - 'b c'\nmap: {x: 1, y: [2.5]}\nempty:\n",
        );
        let node = node.expect("a tree");
        assert!(problems.is_empty());
        let positions: Vec<_> = node
            .entries()
            .iter()
            .map(|entry| (entry.key.as_str(), position(entry.span), position(entry.value.span)))
            .collect();
        assert_eq!(positions[0], ("name", (1, 2, 4), (1, 8, 3)));
        assert_eq!(positions[1].1, (2, 1, 4));
        let list = node.entries()[1].value.items();
        assert_eq!((position(list[0].span), position(list[1].span)), ((3, 5, 1), (4, 5, 5)));
        let map = &node.entries()[2].value;
        assert_eq!(position(map.entries()[0].value.span), (5, 10, 1));
        assert_eq!(position(map.entries()[1].value.items()[0].span), (5, 17, 3));
        assert!(node.entries()[3].value.is_null());
    }

    #[test]
    fn a_key_set_twice_keeps_its_first_value_and_reports_every_other() {
        let (node, problems) = parse("a: 1\nb: 2\na: 3\na: 4\n");
        let node = node.expect("a tree");
        assert_eq!(node.get("a").and_then(Node::as_integer), Some(1));
        assert_eq!(node.entries().len(), 2);
        assert_eq!(problems.len(), 2);
        assert!(
            problems.iter().all(|problem| problem.label.as_deref() == Some("first set on line 1"))
        );
    }

    #[test]
    fn yaml_features_that_hide_meaning_are_refused() {
        assert!(refusal("a: &x 1\nb: *x\n").starts_with("anchors"));
        assert!(refusal("a: !!str 1\n").starts_with("tags"));
        assert!(refusal("<<: {a: 1}\n").starts_with("merge keys"));
        assert!(refusal("a: {null: 1}\n").starts_with("a key is null"));
        assert!(refusal("a: {~: 1}\n").starts_with("a key is null"));
        assert!(refusal("a: 1\n---\nb: 2\n").starts_with("a second YAML document"));
        assert!(refusal("? [a]\n: 1\n").starts_with("a key is a list"));
        assert!(refusal("a: \u{1b}[31m\n").starts_with("control character `\\u{1b}`"));
    }

    #[test]
    fn hostile_texts_are_refused_at_once() {
        let lists = format!("a: {}", "[".repeat(100_000));
        let mappings = format!("a: {}", "{a: ".repeat(100_000));
        let dashes = "- ".repeat(100_000);
        let alias = |(before, letter): (char, char)| {
            format!("{letter}: &{letter} [*{before}, *{before}, *{before}]\n")
        };
        let aliases = format!(
            "a: &a [x, x]\n{}",
            ('a'..='y').zip('b'..='z').map(alias).collect::<Vec<_>>().concat()
        );
        let items = format!("[{}]", "1,".repeat(500_000));
        let questions = "? ".repeat(100_000);
        let pairs = format!("[{}", "a: b, ".repeat(150_000));
        for text in [lists, mappings, dashes, aliases, items, questions, pairs] {
            let start = Instant::now();
            let (node, problems) = parse(&text);
            assert!(node.is_none() && problems.len() == 1, "{}…: {problems:?}", &text[..20]);
            assert!(
                start.elapsed() < Duration::from_secs(20),
                "{}…: {:?}",
                &text[..20],
                start.elapsed()
            );
        }
    }

    #[test]
    fn a_huge_scalar_is_a_string_like_any_other() {
        let (node, _) = parse(&format!("a: {}", "x".repeat(1_000_000)));
        assert_eq!(
            node.expect("a tree").get("a").and_then(Node::as_str).map(str::len),
            Some(1_000_000)
        );
    }

    proptest! {
        #[test]
        fn no_text_panics(text in "[-\\[\\]{}:,#&*!|>'\"%@?~ \t\r\na0.$\u{feff}é]{0,60}") {
            parse(&text);
        }

        #[test]
        fn no_unicode_text_panics(text in any::<String>()) {
            parse(&text);
        }
    }
}
