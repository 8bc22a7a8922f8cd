//! Attention geometries to measure, with random queries and keys.

use std::ops::Range;

use half::bf16;
use longsift_kernels::cuda::{Operands, SourceSizes};
use longsift_kernels::{AttentionShape, Kernel, QueryKeySource, RopeStyle, Rotation, TableView};

/// Rows of the table: as many distinct tokens as a long window has.
const TABLE_ROWS: usize = 8192;

/// The attention of one model's first layer.
pub(super) struct Geometry {
    pub(super) name: &'static str,
    pub(super) query_heads: usize,
    pub(super) key_heads: usize,
    pub(super) head_dim: usize,
    /// Trailing numbers of a key that all heads share: sent instead of gathered from a table.
    pub(super) shared: usize,
}

pub(super) const GEOMETRIES: [Geometry; 5] = [
    Geometry { name: "LLaMA-3.1-8B", query_heads: 32, key_heads: 8, head_dim: 128, shared: 0 },
    Geometry { name: "Qwen2.5-7B", query_heads: 28, key_heads: 4, head_dim: 128, shared: 0 },
    Geometry { name: "LLaMA-3.1-70B", query_heads: 64, key_heads: 8, head_dim: 128, shared: 0 },
    Geometry { name: "DeepSeek-V3", query_heads: 128, key_heads: 128, head_dim: 192, shared: 64 },
    // Small enough for a memory or race checker to finish within a minute.
    Geometry { name: "tiny", query_heads: 2, key_heads: 1, head_dim: 128, shared: 0 },
];

impl Geometry {
    pub(super) fn row_width(&self) -> usize {
        (self.query_heads + self.key_heads) * self.head_dim
    }

    /// Counts the pairs of a query and a visible key, summed over heads.
    pub(super) fn pairs(&self, tokens: usize) -> f64 {
        tokens as f64 * (tokens as f64 + 1.0) / 2.0 * self.query_heads as f64
    }

    pub(super) fn shape(&self, tokens: usize) -> AttentionShape {
        let &Self { query_heads, key_heads, head_dim, .. } = self;
        AttentionShape { tokens, query_heads, key_heads, head_dim }
    }
}

/// A random table in a kernel's element type; for latent attention, the numbers to send.
pub(super) struct Table {
    floats: Vec<f32>,
    rounded: Vec<bf16>,
    head_dim: usize,
    shared: usize,
    rotation: Rotation,
}

impl Table {
    pub(super) fn new(geometry: &Geometry, kernel: Kernel) -> Self {
        let mut state = 1_u64;
        let mut next = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 40) as f32 / (1 << 23) as f32 - 1.0
        };
        let numbers = if geometry.shared > 0 { 1 << 20 } else { TABLE_ROWS * geometry.row_width() };
        let floats: Vec<f32> = (0..numbers).map(|_| 2.5 * next()).collect();
        let rounded = if kernel == Kernel::CudaF32 {
            Vec::new()
        } else {
            floats.iter().map(|&value| bf16::from_f32(value)).collect()
        };
        let pairs = geometry.head_dim / 2;
        let frequency = |pair: usize| 5e5_f32.powf(-(pair as f32) / pairs as f32);
        let rotation = Rotation {
            style: RopeStyle::Half,
            inverse_frequencies: (0..pairs).map(frequency).collect(),
            attention_factor: 1.0,
        };
        let &Geometry { head_dim, shared, .. } = geometry;
        Self { floats, rounded, head_dim, shared, rotation }
    }

    pub(super) fn view(&self) -> TableView<'_> {
        if self.rounded.is_empty() {
            TableView::F32(&self.floats)
        } else {
            TableView::Bf16(&self.rounded)
        }
    }

    /// Returns the rows of the table for a window.
    pub(super) fn ids(tokens: usize) -> Vec<u32> {
        (0..tokens).map(|token| (token * 389 % TABLE_ROWS) as u32).collect()
    }

    pub(super) fn operands<'a>(&'a self, ids: &'a [u32]) -> Operands<'a> {
        match self.shared {
            0 => Operands::Table { ids, rotation: Some(&self.rotation), norms: None },
            shared => Operands::Source { source: self, shared },
        }
    }

    pub(super) fn sizes(&self) -> SourceSizes {
        let rotary_pairs = self.rotation.inverse_frequencies.len();
        match self.shared {
            0 => SourceSizes { table: true, rotary_pairs, ..SourceSizes::default() },
            shared => SourceSizes { shared, ..SourceSizes::default() },
        }
    }

    fn fill(&self, head: usize, rows: Range<usize>, out: &mut [f32]) {
        for (row, out) in rows.zip(out.chunks_exact_mut(self.head_dim)) {
            let at =
                |head: usize| (head * 7919 + row * 104_729) % (self.floats.len() - self.head_dim);
            out.copy_from_slice(&self.floats[at(head)..][..self.head_dim]);
            // The tail is the same in every head.
            let own = self.head_dim - self.shared;
            out[own..].copy_from_slice(&self.floats[at(0)..][own..self.head_dim]);
        }
    }
}

impl QueryKeySource for Table {
    fn queries(&self, head: usize, rows: Range<usize>, out: &mut [f32]) {
        self.fill(head, rows, out);
    }
    fn keys(&self, head: usize, rows: Range<usize>, out: &mut [f32]) {
        self.fill(1000 + head, rows, out);
    }
}
