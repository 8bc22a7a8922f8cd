//! Order in which a block processes its keys.

use std::ops::Range;

use crate::masks::visible_keys;
use crate::online_softmax::STRIP_ROWS;
use crate::tile::TILE_KEYS;
use crate::window::{WindowInput, strip_heads};

/// A strip of rows against a chunk of keys.
#[derive(Clone)]
pub(crate) struct BlockStep {
    /// `u32` halves the bytes that are copied with each step: with `usize`, windows of 2,048 tokens take 3 % more time.
    heads: Range<u32>,
    /// Index of the strip among those of the same heads.
    pub(crate) strip: usize,
    /// Number of rows of the strip, of all heads.
    pub(crate) rows: usize,
    /// First key of the tile.
    pub(crate) tile: usize,
    /// First key of the chunk.
    pub(crate) first: usize,
    /// Keys of the tile from the first to the last that a row of the strip sees.
    seen: Range<usize>,
    /// Keys of a chunk.
    chunk: usize,
}

impl BlockStep {
    /// Returns the heads of the group in the strip.
    pub(crate) fn heads(&self) -> Range<usize> {
        self.heads.start as usize..self.heads.end as usize
    }

    /// Keys of the chunk from the first to the last that a row of the strip sees; not empty.
    pub(crate) fn keys(&self) -> Range<usize> {
        self.seen.start.max(self.first)..self.seen.end.min(self.first + self.chunk)
    }

    /// Whether this is the strip's first step in the tile.
    pub(crate) fn is_first(&self) -> bool {
        self.first <= self.seen.start
    }

    /// Whether this is the strip's last step in the tile.
    pub(crate) fn is_last(&self) -> bool {
        self.first + self.chunk >= self.seen.end
    }

    /// Returns the panels of `width` keys that hold the step's keys.
    pub(crate) fn panels(&self, width: usize) -> Range<usize> {
        let keys = self.keys();
        keys.start / width..keys.end.div_ceil(width)
    }

    /// Returns the next step in the same tile.
    fn next(&self) -> Option<Self> {
        (!self.is_last()).then(|| Self { first: self.first + self.chunk, ..self.clone() })
    }
}

/// Steps of a block in their order: keys from far to near, so that each row processes its keys in ascending order; within a tile of
/// keys, strip after strip.
pub(crate) struct BlockSteps<'a> {
    window: &'a WindowInput<'a>,
    rows: Range<usize>,
    chunk: usize,
    /// Heads of the next strip.
    heads: Range<usize>,
    strip: usize,
    tile: usize,
    end: usize,
    last: Option<BlockStep>,
}

impl<'a> BlockSteps<'a> {
    /// Processes `chunk` keys at a time, which divide a tile.
    pub(crate) fn new(window: &'a WindowInput<'a>, rows: &Range<usize>, chunk: usize) -> Self {
        let visible = visible_rows(window, rows);
        Self {
            window,
            rows: rows.clone(),
            chunk,
            heads: strip_heads(0, window.shape.group()),
            strip: 0,
            tile: visible.start / TILE_KEYS * TILE_KEYS,
            end: visible.end,
            last: None,
        }
    }

    /// Returns the first step of the next strip and tile.
    fn next_strip(&mut self) -> Option<BlockStep> {
        let group = self.window.shape.group();
        while self.tile < self.end {
            let (heads, strip, tile) = (self.heads.clone(), self.strip, self.tile);
            let height = STRIP_ROWS / heads.len();
            let first = self.rows.start + strip * height;
            let rows = first..self.rows.end.min(first + height);
            self.strip += 1;
            if rows.end == self.rows.end {
                (self.strip, self.heads) = (0, strip_heads(heads.end, group));
            }
            if self.heads.is_empty() {
                (self.heads, self.tile) = (strip_heads(0, group), self.tile + TILE_KEYS);
            }
            let seen = visible_rows(self.window, &rows);
            let seen = seen.start.max(tile)..seen.end.min(tile + TILE_KEYS);
            if !seen.is_empty() {
                let first = seen.start / self.chunk * self.chunk;
                let rows = rows.len() * heads.len();
                let heads = heads.start as u32..heads.end as u32;
                return Some(BlockStep {
                    heads,
                    strip,
                    rows,
                    tile,
                    first,
                    seen,
                    chunk: self.chunk,
                });
            }
        }
        None
    }
}

impl Iterator for BlockSteps<'_> {
    type Item = BlockStep;

    fn next(&mut self) -> Option<BlockStep> {
        let next = self.last.as_ref().and_then(BlockStep::next);
        self.last = next.or_else(|| self.next_strip());
        self.last.clone()
    }
}

/// Keys from the first to the last that a row of `rows` (not empty) sees.
fn visible_rows(window: &WindowInput<'_>, rows: &Range<usize>) -> Range<usize> {
    let first = visible_keys(window.rules, window.shape.tokens, window.position(rows.start));
    let last = visible_keys(window.rules, window.shape.tokens, window.position(rows.end - 1));
    first.start..last.end.min(window.shape.tokens)
}
