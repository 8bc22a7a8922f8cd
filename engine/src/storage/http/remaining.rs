//! Ranges of a file that have not been received yet.

use std::collections::VecDeque;
use std::ops::Range;

use crate::storage::error::StorageError;

pub(super) struct Remaining(VecDeque<Range<u64>>);

impl Remaining {
    pub(super) fn new(ranges: &[Range<u64>]) -> Self {
        Self(ranges.iter().filter(|range| !range.is_empty()).cloned().collect())
    }

    pub(super) fn first(&self) -> Option<Range<u64>> {
        self.0.front().cloned()
    }

    pub(super) fn bytes(&self) -> u64 {
        self.0.iter().map(|range| range.end - range.start).sum()
    }

    pub(super) fn end(&self) -> u64 {
        self.0.back().map_or(0, |range| range.end)
    }

    /// Passes the remaining bytes of a piece at `position` of the file to `sink`.
    pub(super) fn feed(
        &mut self,
        position: u64,
        piece: &[u8],
        sink: Sink<'_>,
    ) -> Result<(), StorageError> {
        let end = position + piece.len() as u64;
        while let Some(range) = self.0.front_mut() {
            if range.start < position || range.start >= end {
                break;
            }
            let upto = range.end.min(end);
            sink(&piece[(range.start - position) as usize..(upto - position) as usize])?;
            range.start = upto;
            if range.is_empty() {
                self.0.pop_front();
            }
        }
        Ok(())
    }
}

pub(crate) type Sink<'a> = &'a mut dyn FnMut(&[u8]) -> Result<(), StorageError>;
