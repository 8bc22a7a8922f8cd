//! Files made to hurt: each costs seconds and a bounded amount of memory at most, and ends in a message that says what
//! is wrong and is safe to print.

mod checkpoints;
mod gguf_files;
mod mutations;
mod names;
mod pipelines;
mod tables;
mod tokenizers;

use crate::support::{Answer, Workspace};

/// Private memory that the command may have, in KiB: what does not fit ends it with a signal.
const MOST_MEMORY_KIB: u32 = 200 << 10;
/// Seconds of processor time that an unoptimised build may take; an optimised one takes one or two. Unlike time on the
/// clock they are the same on a busy machine.
const MOST_SECONDS: u64 = 60;
/// When a command that waits for something that never comes is given up.
const LONGEST_WAIT_SECONDS: u64 = 600;

/// Runs the command with little memory and little time, and expects this exit code. What it says is safe to print.
fn bounded(workspace: &Workspace, what: &str, arguments: &[&str], code: i32) -> Answer {
    within(workspace, what, arguments, code, MOST_MEMORY_KIB)
}

/// The same with another bound for memory.
fn within(
    workspace: &Workspace,
    what: &str,
    arguments: &[&str],
    code: i32,
    most_kib: u32,
) -> Answer {
    let limits = format!(
        "ulimit -d {most_kib} && ulimit -t {MOST_SECONDS} && exec timeout -s KILL {LONGEST_WAIT_SECONDS}"
    );
    let answer = Answer::of(workspace.behind(&limits, arguments).output().unwrap());
    let said: String = answer.stderr.chars().take(600).collect();
    eprintln!("{what}: exit {}\n{said}", answer.code);
    assert_eq!(answer.code, code, "{what}: {said}");
    assert!(answer.stderr.len() < 100_000, "{what}: {} bytes of messages", answer.stderr.len());
    safe_to_print(what, &answer.stdout);
    safe_to_print(what, &answer.stderr);
    if code != 0 && code != 5 {
        assert!(answer.stderr.contains("error: ") || !answer.stdout.is_empty(), "{what}: {said}");
    }
    answer
}

/// Nothing in it moves the cursor, changes colours, reorders a line or hides.
fn safe_to_print(what: &str, text: &str) {
    let obeyed = text.chars().find(|character| {
        (character.is_control() && *character != '\n')
            || matches!(character, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
    });
    assert_eq!(obeyed, None, "{what}: {text:?}");
}

/// The first line of what it says.
fn first_line(answer: &Answer) -> &str {
    answer.stderr.lines().next().unwrap_or_default()
}
