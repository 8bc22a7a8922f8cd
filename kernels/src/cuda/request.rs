//! Request to a device: a window and the source of its queries and keys.

use std::ops::Range;

use super::plan::SourceSizes;
use crate::gather::HeadNorms;
use crate::rope::Rotation;
use crate::statistics::{AttentionShape, LogitRules, QueryKeySource, RowSample};

/// The window, the heads and the rows to measure.
#[derive(Clone)]
pub struct WindowRequest<'a> {
    pub shape: &'a AttentionShape,
    pub rules: &'a LogitRules,
    /// The far distance, as in [`attention_statistics`](crate::attention_statistics).
    pub distance: usize,
    pub operands: Operands<'a>,
    /// Rows to measure; `None` for every row.
    pub sample: Option<&'a RowSample>,
    /// Key heads whose query heads are measured.
    pub key_heads: Range<usize>,
}

/// Source of a window's queries and keys.
#[derive(Clone, Copy)]
pub enum Operands<'a> {
    Table {
        /// `[tokens]`: rows of the table.
        ids: &'a [u32],
        rotation: Option<&'a Rotation>,
        /// Applied after the rotation.
        norms: Option<&'a HeadNorms>,
    },
    /// Computed on the processor, head by head, and sent: for models whose table does not hold heads.
    Source {
        source: &'a dyn QueryKeySource,
        /// Numbers that the keys of all heads end with.
        shared: usize,
    },
}

impl Operands<'_> {
    /// Returns the sizes that determine the memory of a window.
    pub(crate) fn sizes(&self) -> SourceSizes {
        match self {
            Self::Table { rotation, norms, .. } => SourceSizes {
                table: true,
                rotary_pairs: rotation.map_or(0, |rotation| rotation.inverse_frequencies.len()),
                head_norms: norms.is_some(),
                ..SourceSizes::default()
            },
            Self::Source { shared, .. } => {
                SourceSizes { shared: *shared, ..SourceSizes::default() }
            }
        }
    }
}
