//! Hand-written scanners for the pre-tokenizers of published models: they find the end of a piece from the text after its
//! start. Each equals its regular expressions on every text. Time: each character is read at most three times.

use std::fmt;

use super::ascii_block::{AsciiBlock, BLOCK, WordRules};
use super::classes::{
    BLANK, CODER_SCRIPTS, Classes, LETTER, LINE_END, LOWER, MARK, NUMBER, NUMERIC, PUNCTUATION,
    SYMBOL, UPPER, V3_SCRIPTS,
};

/// Finds the parts of a text.
pub(super) trait Scan: fmt::Debug + Send + Sync {
    /// Returns the starts of parts among the first `length` bytes of a block, a bit for each byte, as far as no other
    /// byte can change them. The block begins with a part.
    fn starts(&self, bytes: &[u8; BLOCK], length: usize) -> u64;

    /// Returns the end of the part that begins at byte `at` of `text`, which is UTF-8.
    fn end(&self, classes: &Classes, text: &[u8], at: usize) -> usize;
}

#[derive(Debug)]
pub(super) struct Gpt2;
/// GPT-4, Llama 3, Qwen 2 and 3.
#[derive(Debug)]
pub(super) struct Cl100k {
    /// Maximum digits of a piece: 1 or 3.
    pub(super) digits: u8,
}
/// GPT-4o.
#[derive(Debug)]
pub(super) struct O200k;
/// `DeepSeek` LLM and Coder.
#[derive(Debug)]
pub(super) struct DeepSeekCoder;
/// `DeepSeek` V3 and R1.
#[derive(Debug)]
pub(super) struct DeepSeekV3;

/// Finds the ends of runs of characters.
struct Cursor<'a> {
    classes: &'a Classes,
    text: &'a [u8],
}

impl Cursor<'_> {
    /// Returns the classes of the character at `at`, none at the end of the text, and the start of the next one.
    #[inline]
    fn next(&self, at: usize) -> (u16, usize) {
        if at == self.text.len() {
            return (0, at);
        }
        let (class, length) = self.classes.class_at(self.text, at);
        (class, at + length)
    }

    /// Returns the end of the run of characters from `at` on for which `belongs` holds.
    #[inline]
    fn run(&self, mut at: usize, belongs: impl Fn(u16) -> bool) -> usize {
        while at < self.text.len() {
            let (class, next) = self.next(at);
            if !belongs(class) {
                break;
            }
            at = next;
        }
        at
    }

    /// Returns the end of the match of `\s*[\r\n]+|\s+(?!\S)|\s+` from a blank on, without the first alternative
    /// unless `line_ends`. The text ends before a character for which `belongs` does not hold.
    #[inline]
    fn blanks(&self, start: usize, line_ends: bool, belongs: impl Fn(u16) -> bool) -> usize {
        let (mut at, mut last, mut after_line_end) = (start, start, None);
        let mut is_before_word = false;
        while at < self.text.len() {
            let (class, next) = self.next(at);
            if class & BLANK == 0 || !belongs(class) {
                is_before_word = belongs(class);
                break;
            }
            (last, at) = (at, next);
            if class & LINE_END != 0 {
                after_line_end = Some(next);
            }
        }
        match after_line_end {
            Some(end) if line_ends => end,
            _ if is_before_word && last > start => last,
            _ => at,
        }
    }

    /// Returns the end of `'s|'t|'re|'ve|'m|'ll|'d` at an apostrophe; with `any_case`, of its letters in any case.
    #[inline]
    fn contraction(&self, at: usize, any_case: bool) -> Option<usize> {
        let letter = |behind: usize| {
            let byte = self.text.get(at + behind).copied().unwrap_or(0);
            if any_case { byte.to_ascii_lowercase() } else { byte }
        };
        match (letter(1), letter(2)) {
            (b's' | b't' | b'm' | b'd', _) => Some(at + 2),
            (b'r' | b'v', b'e') | (b'l', b'l') => Some(at + 3),
            // The long s is an s in any case.
            _ if any_case && self.text[at + 1..].starts_with("ſ".as_bytes()) => Some(at + 3),
            _ => None,
        }
    }

    /// Returns the end of `\p{N}{1,max}` from a number on.
    #[inline]
    fn digits(&self, at: usize, max: u8) -> usize {
        let mut end = self.next(at).1;
        for _ in 1..max {
            let (class, next) = self.next(end);
            if class & NUMBER == 0 {
                break;
            }
            end = next;
        }
        end
    }
}

fn any(_: u16) -> bool {
    true
}

fn is_other(class: u16) -> bool {
    class & (BLANK | LETTER | NUMBER) == 0
}

impl Scan for Gpt2 {
    fn starts(&self, bytes: &[u8; BLOCK], length: usize) -> u64 {
        AsciiBlock::new(bytes, length).gpt2()
    }

    fn end(&self, classes: &Classes, text: &[u8], at: usize) -> usize {
        let cursor = Cursor { classes, text };
        if text[at] == b'\''
            && let Some(end) = cursor.contraction(at, false)
        {
            return end;
        }
        let (first, next) = cursor.next(at);
        let leads = text[at] == b' ' && next < text.len();
        let (class, from) = if leads { (cursor.next(next).0, next) } else { (first, at) };
        if class & LETTER != 0 {
            cursor.run(from, |class| class & LETTER != 0)
        } else if class & NUMBER != 0 {
            cursor.run(from, |class| class & NUMBER != 0)
        } else if class & BLANK == 0 {
            cursor.run(from, is_other)
        } else {
            cursor.blanks(at, false, any)
        }
    }
}

impl Scan for Cl100k {
    fn starts(&self, bytes: &[u8; BLOCK], length: usize) -> u64 {
        AsciiBlock::new(bytes, length).words(&WordRules {
            digits: self.digits,
            contractions: true,
            numbers_first: false,
        })
    }

    fn end(&self, classes: &Classes, text: &[u8], at: usize) -> usize {
        let cursor = Cursor { classes, text };
        if text[at] == b'\''
            && let Some(end) = cursor.contraction(at, true)
        {
            return end;
        }
        let (first, next) = cursor.next(at);
        let second = cursor.next(next).0;
        if first & LETTER != 0 || first & (NUMBER | LINE_END) == 0 && second & LETTER != 0 {
            return cursor.run(next, |class| class & LETTER != 0);
        }
        if first & NUMBER != 0 {
            return cursor.digits(at, self.digits);
        }
        others(&cursor, at, next, |class, _| class & LINE_END != 0)
    }
}

/// Returns the end of ` ?[^\s\p{L}\p{N}]+` with the characters that `trails` accepts, or of blanks.
#[inline]
fn others(cursor: &Cursor<'_>, at: usize, next: usize, trails: impl Fn(u16, u8) -> bool) -> usize {
    let from =
        if cursor.text[at] == b' ' && next < cursor.text.len() && is_other(cursor.next(next).0) {
            next
        } else if is_other(cursor.next(at).0) {
            at
        } else {
            return cursor.blanks(at, true, any);
        };
    let mut end = cursor.run(from, is_other);
    while end < cursor.text.len() && trails(cursor.next(end).0, cursor.text[end]) {
        end += 1;
    }
    end
}

impl Scan for O200k {
    fn starts(&self, bytes: &[u8; BLOCK], length: usize) -> u64 {
        AsciiBlock::new(bytes, length).o200k()
    }

    fn end(&self, classes: &Classes, text: &[u8], at: usize) -> usize {
        let cursor = Cursor { classes, text };
        let (first, next) = cursor.next(at);
        let leads = first & (LINE_END | LETTER | NUMBER) == 0;
        let with_lead = |end: fn(&Cursor<'_>, usize) -> Option<usize>| {
            leads.then(|| end(&cursor, next)).flatten().or_else(|| end(&cursor, at))
        };
        if let Some(end) = with_lead(word_with_lower_end).or_else(|| with_lead(upper_word)) {
            let contraction = text.get(end) == Some(&b'\'');
            return contraction.then(|| cursor.contraction(end, true)).flatten().unwrap_or(end);
        }
        if first & NUMBER != 0 {
            return cursor.digits(at, 3);
        }
        others(&cursor, at, next, |class, byte| class & LINE_END != 0 || byte == b'/')
    }
}

/// Returns the end of `U*L+`; characters of both classes go to the first as long as one is left for the second.
fn word_with_lower_end(cursor: &Cursor<'_>, start: usize) -> Option<usize> {
    let (mut at, mut after_last_lower) = (start, None);
    loop {
        let (class, next) = cursor.next(at);
        if class & UPPER == 0 {
            let lower = class & LOWER != 0;
            return if lower {
                Some(cursor.run(at, |class| class & LOWER != 0))
            } else {
                after_last_lower
            };
        }
        at = next;
        if class & LOWER != 0 {
            after_last_lower = Some(at);
        }
    }
}

/// Returns the end of `U+L*` where [`word_with_lower_end`] found none.
fn upper_word(cursor: &Cursor<'_>, start: usize) -> Option<usize> {
    let end = cursor.run(start, |class| class & UPPER != 0);
    (end > start).then_some(end)
}

impl Scan for DeepSeekCoder {
    fn starts(&self, bytes: &[u8; BLOCK], length: usize) -> u64 {
        AsciiBlock::new(bytes, length).deepseek_coder()
    }

    /// Applies five steps that cut one after the other: line ends; letters, and punctuation, each with a blank
    /// before; scripts without blanks; single digits. Each limits the end of this piece.
    fn end(&self, classes: &Classes, text: &[u8], at: usize) -> usize {
        let cursor = Cursor { classes, text };
        let (first, next) = cursor.next(at);
        if first & (LINE_END | NUMERIC) != 0 {
            return next;
        }
        let blank = first & BLANK != 0;
        let begins = if blank { cursor.next(next).0 } else { first };
        let kind = [LETTER, PUNCTUATION].into_iter().find(|kind| begins & kind != 0);
        let mut end = next;
        while end < text.len() {
            let (class, after) = cursor.next(end);
            let belongs = if let Some(kind) = kind {
                class & kind != 0
            } else {
                let starts = LETTER | PUNCTUATION;
                let leads = class & BLANK != 0 && cursor.next(after).0 & starts != 0;
                class & (LINE_END | starts) == 0 && !leads
            };
            if !belongs || (class ^ first) & CODER_SCRIPTS != 0 || class & NUMERIC != 0 {
                break;
            }
            end = after;
        }
        end
    }
}

impl Scan for DeepSeekV3 {
    fn starts(&self, bytes: &[u8; BLOCK], length: usize) -> u64 {
        let rules = WordRules { digits: 3, contractions: false, numbers_first: true };
        AsciiBlock::new(bytes, length).cut_at_controls().words(&rules)
    }

    /// Cuts numbers of up to three digits and runs of scripts first; neither reaches into the other nor into the text
    /// between them, which `segment` classifies.
    fn end(&self, classes: &Classes, text: &[u8], at: usize) -> usize {
        let cursor = Cursor { classes, text };
        let (first, next) = cursor.next(at);
        if first & NUMBER != 0 {
            return cursor.digits(at, 3);
        }
        let segment = |class: u16| class & NUMBER == 0 && (class ^ first) & V3_SCRIPTS == 0;
        let in_segment = |class: u16| if segment(class) { class } else { 0 };
        let second = in_segment(cursor.next(next).0);
        if text[at].is_ascii_punctuation() && text.get(next).is_some_and(u8::is_ascii_alphabetic) {
            let letters = text[next..].iter().take_while(|byte| byte.is_ascii_alphabetic());
            return next + letters.count();
        }
        let word = |class: u16| segment(class) && class & (LETTER | MARK) != 0;
        let leads = first & (LINE_END | LETTER | PUNCTUATION | SYMBOL) == 0;
        if first & (LETTER | MARK) != 0 || leads && word(second) {
            return cursor.run(next, word);
        }
        let sign = |class: u16| segment(class) && class & (PUNCTUATION | SYMBOL) != 0;
        if sign(first) || text[at] == b' ' && sign(second) {
            let end = cursor.run(next, sign);
            return cursor.run(end, |class| segment(class) && class & LINE_END != 0);
        }
        if first & BLANK != 0 {
            return cursor.blanks(at, true, segment);
        }
        // Text that no pattern matches, up to the next match; its last character leads a word.
        let mut end = next;
        loop {
            let (class, after) = cursor.next(end);
            let matched = LETTER | MARK | PUNCTUATION | SYMBOL | BLANK;
            if end == text.len()
                || !segment(class)
                || class & matched != 0
                || word(cursor.next(after).0)
            {
                return end;
            }
            end = after;
        }
    }
}
