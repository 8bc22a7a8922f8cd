//! The order in which a block meets its keys.

use std::ops::Range;

use crate::masks::visible_keys;
use crate::tile::TILE_KEYS;
use crate::window::Window;

/// A strip of rows of one head against one tile of keys.
pub(crate) struct Step {
    /// The query head within the group.
    pub(crate) head: usize,
    /// The strip within the block.
    pub(crate) strip: usize,
    /// Its rows in the window.
    pub(crate) rows: Range<usize>,
    /// The tile's first key.
    pub(crate) tile: usize,
    /// Keys of the tile that some row of the strip sees, or that lie between such keys; not empty.
    pub(crate) keys: Range<usize>,
}

impl Step {
    /// Panels of `width` keys that hold the step's keys.
    pub(crate) fn panels(&self, width: usize) -> Range<usize> {
        self.keys.start / width..self.keys.end.div_ceil(width)
    }
}

/// The steps of a block, in the order they are taken: keys from far to near, so that each row meets its keys ascending.
pub(crate) struct Steps<'a> {
    window: &'a Window<'a>,
    /// Rows of the block.
    rows: Range<usize>,
    strip_rows: usize,
    strips: usize,
    head: usize,
    strip: usize,
    tile: usize,
    end: usize,
}

impl<'a> Steps<'a> {
    pub(crate) fn new(window: &'a Window<'a>, rows: &Range<usize>, strip_rows: usize) -> Self {
        let visible = visible_rows(window, rows);
        Self {
            window,
            rows: rows.clone(),
            strip_rows,
            strips: rows.len().div_ceil(strip_rows),
            head: 0,
            strip: 0,
            tile: visible.start / TILE_KEYS * TILE_KEYS,
            end: visible.end,
        }
    }
}

impl Iterator for Steps<'_> {
    type Item = Step;

    fn next(&mut self) -> Option<Step> {
        while self.tile < self.end {
            let (head, strip, tile) = (self.head, self.strip, self.tile);
            self.strip += 1;
            if self.strip == self.strips {
                (self.strip, self.head) = (0, self.head + 1);
            }
            if self.head == self.window.shape.group() {
                (self.head, self.tile) = (0, self.tile + TILE_KEYS);
            }
            let first = self.rows.start + strip * self.strip_rows;
            let rows = first..self.rows.end.min(first + self.strip_rows);
            let seen = visible_rows(self.window, &rows);
            let keys = seen.start.max(tile)..seen.end.min(tile + TILE_KEYS);
            if !keys.is_empty() {
                return Some(Step { head, strip, rows, tile, keys });
            }
        }
        None
    }
}

/// The keys that some row of `rows` (not empty) sees, or that lie between such keys.
fn visible_rows(window: &Window<'_>, rows: &Range<usize>) -> Range<usize> {
    let first = visible_keys(window.rules, window.shape.tokens, window.position(rows.start));
    let last = visible_keys(window.rules, window.shape.tokens, window.position(rows.end - 1));
    first.start..last.end.min(window.shape.tokens)
}
