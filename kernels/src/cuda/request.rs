//! What is asked of a device: a window, and where its queries and keys come from.

use std::ops::Range;

use super::plan::SourceSizes;
use crate::gather::HeadNorms;
use crate::rope::Rotation;
use crate::statistics::{AttentionShape, LogitRules, Measure, QueryKeySource, RowSample};

/// The window, the heads and the rows to measure.
#[derive(Clone)]
pub struct WindowRequest<'a> {
    /// The window's sizes.
    pub shape: &'a AttentionShape,
    /// How products become logits.
    pub rules: &'a LogitRules,
    /// What to measure.
    pub measure: &'a Measure,
    /// Where queries and keys come from.
    pub operands: Operands<'a>,
    /// The rows to measure; `None`: every row.
    pub sample: Option<&'a RowSample>,
    /// Key heads whose query heads are measured.
    pub key_heads: Range<usize>,
}

/// Where a window's queries and keys come from.
#[derive(Clone, Copy)]
pub enum Operands<'a> {
    /// From the table that the device holds.
    Table {
        /// `[tokens]`: rows of the table.
        ids: &'a [u32],
        /// How they turn with their position.
        rotation: Option<&'a Rotation>,
        /// Norms after the rotation.
        norms: Option<&'a HeadNorms>,
    },
    /// Computed on the processor, head by head, and sent: for models whose table does not hold heads.
    Source {
        /// The queries and keys.
        source: &'a dyn QueryKeySource,
        /// Numbers that the keys of all heads end with.
        shared: usize,
    },
}

impl Operands<'_> {
    /// What of them the memory depends on.
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
