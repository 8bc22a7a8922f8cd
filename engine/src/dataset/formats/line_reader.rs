//! Reads the lines of a file with their offsets and numbers. Blank lines are numbered and skipped.

use std::io::{self, BufRead};

/// UTF-8 byte order mark, which some editors write.
const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

/// Position of a line that is not blank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LinePosition {
    /// Line number from 1, including blank lines.
    pub(super) number: u64,
    pub(super) start: u64,
    /// Length in bytes, without the line feed.
    pub(super) bytes: u64,
}

/// Line reader that can start in the middle of a file.
pub(super) struct LineReader<R> {
    reader: R,
    pub(super) offset: u64,
    lines: u64,
}

impl<R: BufRead> LineReader<R> {
    /// Creates a reader. `offset`: file offset of its first byte, where a line begins; `lines`: number of lines before it.
    pub(super) fn new(reader: R, offset: u64, lines: u64) -> Self {
        Self { reader, offset, lines }
    }

    /// Returns the next line that is not blank; `None` at the end. Appends its bytes to `into`, unless they exceed
    /// `limit`. A byte order mark at the beginning of the file is skipped.
    pub(super) fn next(
        &mut self,
        mut into: Option<&mut Vec<u8>>,
        limit: u64,
    ) -> io::Result<Option<LinePosition>> {
        let before = into.as_ref().map_or(0, |into| into.len());
        loop {
            let (start, is_first) = (self.offset, self.offset == 0);
            let (mut blank, mut bytes, mut ended) = (true, 0_u64, false);
            while !ended {
                let buffer = self.reader.fill_buf()?;
                if buffer.is_empty() {
                    break;
                }
                let end = memchr::memchr(b'\n', buffer);
                let whole = &buffer[..end.unwrap_or(buffer.len())];
                let part = match whole.strip_prefix(BYTE_ORDER_MARK) {
                    Some(rest) if is_first && bytes == 0 => rest,
                    _ => whole,
                };
                blank = blank && part.iter().all(u8::is_ascii_whitespace);
                bytes += whole.len() as u64;
                if let Some(into) = into.as_mut().filter(|_| bytes <= limit) {
                    into.extend_from_slice(part);
                }
                ended = end.is_some();
                let read = whole.len() + usize::from(ended);
                self.reader.consume(read);
                self.offset += read as u64;
            }
            let at_end = !ended && bytes == 0;
            self.lines += u64::from(!at_end);
            if let Some(into) = into.as_mut().filter(|_| blank || bytes > limit) {
                into.truncate(before);
            }
            if !blank {
                return Ok(Some(LinePosition { number: self.lines, start, bytes }));
            }
            if !ended {
                return Ok(None);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::BufReader;

    use super::*;

    fn lines(bytes: &[u8], capacity: usize, limit: u64) -> Vec<(u64, u64, u64, String)> {
        let mut reader = LineReader::new(BufReader::with_capacity(capacity, bytes), 0, 0);
        let (mut text, mut found) = (Vec::new(), Vec::new());
        while let Some(line) = reader.next(Some(&mut text), limit).unwrap() {
            let LinePosition { number, start, bytes } = line;
            found.push((
                number,
                start,
                bytes,
                String::from_utf8(std::mem::take(&mut text)).unwrap(),
            ));
        }
        assert_eq!(reader.offset, bytes.len() as u64);
        found
    }

    #[test]
    fn lines_end_with_a_line_feed_or_the_file_and_blank_ones_only_count() {
        for capacity in [3, 4, 7, 100] {
            let found = lines(b"\xef\xbb\xbfa\r\n\n \t\r\nbc\n\nd", capacity, 100);
            let expected = [(1, 0, 5, "a\r"), (4, 11, 2, "bc"), (6, 15, 1, "d")];
            assert_eq!(found, expected.map(|(a, b, c, d)| (a, b, c, d.to_owned())));
        }
        for nothing in [&b""[..], b"\n", b"\xef\xbb\xbf", b"\xef\xbb\xbf\r\n \n"] {
            assert_eq!(lines(nothing, 100, 100), []);
        }
    }

    #[test]
    fn a_line_over_the_limit_is_not_kept() {
        let found = lines(b"abcd\nabc\nabcde", 2, 3);
        let texts: Vec<_> = found.iter().map(|line| (line.2, line.3.as_str())).collect();
        assert_eq!(texts, [(4, ""), (3, "abc"), (5, "")]);
    }
}
