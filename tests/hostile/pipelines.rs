//! Malicious YAML.

use std::fmt::Write as _;
use std::fs::File;
use std::os::unix::fs::FileExt;

use super::{bounded, first_line};
use crate::support::{Pipeline, Workspace};

/// A text of about a mebibyte.
fn repeated(piece: &str) -> String {
    piece.repeat((1_000_000 / piece.len()).max(1))
}

/// Checks that a pipeline of this text is rejected with a message that contains these words.
fn refused(what: &str, text: impl AsRef<[u8]>, words: &str) {
    let workspace = Workspace::new();
    workspace.write("p.yaml", text);
    for command in ["validate", "plan", "run"] {
        let answer = bounded(&workspace, what, &[command, "p.yaml"], 2);
        assert!(answer.stderr.contains(words), "{what}: {}", answer.stderr);
    }
}

#[test]
fn aliases_that_multiply_are_refused() {
    let mut bomb = "a0: &a0 [lol, lol, lol, lol, lol, lol, lol, lol, lol]\n".to_owned();
    for level in 1..12 {
        let before = format!("*a{}", level - 1);
        let nine = vec![before; 9].join(", ");
        writeln!(bomb, "a{level}: &a{level} [{nine}]").unwrap();
    }
    refused("anchors", &bomb, "anchors (`&name`) are not part of a pipeline");
    refused("an alias of itself", "a: &a\n  b: *a\n", "are not part of a pipeline");
    refused("a merge key", "a: {<<: {b: 1}}\n", "merge keys");
    refused("a tag", "a: !!python/object/apply:os.system [id]\n", "tags (`!name`)");
    refused("many documents", repeated("--- a\n"), "a second YAML document");
}

#[test]
fn nesting_and_numbers_of_values_are_bounded() {
    for (what, text) in [
        ("open brackets", "[".repeat(100_000)),
        ("brackets", "[".repeat(100_000) + &"]".repeat(100_000)),
        ("open braces", "{a: ".repeat(100_000)),
        ("dashes", "- ".repeat(100_000) + "a"),
        ("questions", "? ".repeat(100_000) + "a"),
        ("indentation", (0..1400).map(|depth| " ".repeat(depth) + "a:\n").collect()),
    ] {
        refused(what, text, "-->");
    }
    refused("many values", format!("a: [{}]", "1,".repeat(400_000)), "more than 20,000 keys");
    refused("one key many times", repeated("a: 1\n"), "");
}

#[test]
fn many_mistakes_are_reported_in_part() {
    let right = Pipeline::tokens("model", 64).to_string();
    for (what, text) in [
        ("unknown keys", (0..9_000).map(|key| format!("k{key}: 1")).collect::<Vec<_>>().join("\n")),
        ("a long key", format!("{}: 1\n", "k".repeat(900_000))),
        ("a long value", format!("version: {}\n", "v".repeat(900_000))),
        ("unknown stages", format!("stages: [{}]", "{stage: x},".repeat(6_000))),
        (
            "unknown parameters",
            right.replace("name: test", &format!("name: '{}'", repeated("${a}"))),
        ),
        (
            "unclosed parameters",
            right.replace("name: test", &format!("name: '{}'", repeated("${"))),
        ),
    ] {
        refused(what, text, "error: ");
    }
}

#[test]
fn parameters_cannot_multiply_a_pipeline() {
    let long = "x".repeat(400_000);
    let uses = "${a}".repeat(100_000);
    let text = Pipeline::tokens("model", 64)
        .to_string()
        .replace("name: test", &format!("name: '{uses}'\nparams: {{a: {{default: {long}}}}}"));
    refused("parameters", text, "parameters add more than 1,048,576 bytes to the pipeline");
}

#[test]
fn a_file_of_a_gigabyte_is_not_read() {
    let workspace = Workspace::new();
    let file = File::create(workspace.path("p.yaml")).unwrap();
    file.write_all_at(b"name: ", 0).unwrap();
    file.set_len(1 << 30).unwrap();
    let answer = bounded(&workspace, "a scalar of a gigabyte", &["validate", "p.yaml"], 2);
    assert!(first_line(&answer).contains("is larger than 1048576 bytes"), "{}", answer.stderr);
    // Endless input is not read beyond the limit.
    let answer = bounded(&workspace, "zeros", &["validate", "/dev/zero"], 2);
    assert!(first_line(&answer).contains("is larger than"), "{}", answer.stderr);
}

#[test]
fn control_characters_and_other_bytes_are_refused_and_shown_escaped() {
    for (what, text) in [
        ("an escape", &b"name: \x1b]0;owned\x07\n"[..]),
        ("a null", b"na\0me: 1\n"),
        ("a bell in a key", b"\x07: 1\n"),
        ("a control sequence introducer", "name: \u{9b}31m\n".as_bytes()),
        ("latin 1", b"name: caf\xe9 \x1b[31m\n"),
        ("no text at all", b"\x7fELF\x02\x01\x01\x00"),
    ] {
        refused(what, text, "error: ");
    }
    // YAML allows marks that reorder a line, and escapes in quotes; messages show them escaped.
    refused("right to left", "\u{202e}eman: 1\nversion: 1\n", "\\u{202e}eman");
    refused("an escaped escape", "version: \"\\e[31m\"\n", "\\u{1b}[31m");
    let hidden = "version: 1\nname: \"a\\e[2J\\nforged: line\"\n";
    refused("a name", hidden, "error: ");
}
