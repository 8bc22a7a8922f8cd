//! Malicious files: each is limited to seconds and bounded memory, and ends in a helpful message that is safe to
//! print.

mod checkpoints;
mod gguf_files;
mod mutations;
mod names;
mod pipelines;
mod tables;
mod tokenizers;

use crate::support::{Answer, Workspace};

/// Maximum private memory of the command, in KiB; exceeding it ends the command with a signal.
const MAX_MEMORY_KIB: u32 = 200 << 10;
/// Maximum processor seconds for an unoptimised build; an optimised one takes one or two. Unlike wall time, they do
/// not depend on other load.
const MAX_SECONDS: u64 = 60;
/// Maximum wall seconds of a command that waits forever.
const MAX_WALL_SECONDS: u64 = 600;

/// Runs the command with limited memory and time, expects this exit code, and checks that its output is safe to
/// print.
fn bounded(workspace: &Workspace, what: &str, arguments: &[&str], code: i32) -> Answer {
    within(workspace, what, arguments, code, MAX_MEMORY_KIB)
}

/// Like [`bounded`] with another memory limit.
fn within(
    workspace: &Workspace,
    what: &str,
    arguments: &[&str],
    code: i32,
    max_kib: u32,
) -> Answer {
    let limits = format!(
        "ulimit -d {max_kib} && ulimit -t {MAX_SECONDS} && exec timeout -s KILL {MAX_WALL_SECONDS}"
    );
    let answer = Answer::from_output(workspace.command_after(&limits, arguments).output().unwrap());
    let excerpt: String = answer.stderr.chars().take(600).collect();
    eprintln!("{what}: exit {}\n{excerpt}", answer.code);
    assert_eq!(answer.code, code, "{what}: {excerpt}");
    assert!(answer.stderr.len() < 100_000, "{what}: {} bytes of messages", answer.stderr.len());
    safe_to_print(what, &answer.stdout);
    safe_to_print(what, &answer.stderr);
    if code != 0 && code != 5 {
        assert!(
            answer.stderr.contains("error: ") || !answer.stdout.is_empty(),
            "{what}: {excerpt}"
        );
    }
    answer
}

/// Checks that a text contains no characters that move the cursor, change colours, reorder a line or hide text.
fn safe_to_print(what: &str, text: &str) {
    let obeyed = text.chars().find(|character| {
        (character.is_control() && *character != '\n')
            || matches!(character, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
    });
    assert_eq!(obeyed, None, "{what}: {text:?}");
}

/// The first line of the message.
fn first_line(answer: &Answer) -> &str {
    answer.stderr.lines().next().unwrap_or_default()
}
