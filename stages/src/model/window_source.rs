//! Queries and keys of one window, from rows that hold heads, latent vectors or embeddings.

use longsift_kernels::{
    AttentionShape, HeadNorms, Kernel, PackedWeights, ProjectedHeads, ProjectedWindow,
    QueryKeySource, Rope, TableWindow, WindowRows,
};

use super::norms::RowNorm;
use super::spec::{AttentionSpec, Norm, RowContent};
use super::table::LayerZeroTable;
use super::tensors::{Roles, TensorRole};

/// Parts of a table that all windows share, in the kernel's layout.
#[derive(Debug, Default)]
pub(crate) struct PackedProjections {
    /// Projections that remain to be computed per window, one per head.
    query: Option<Vec<PackedWeights>>,
    key: Option<Vec<PackedWeights>>,
    /// Norms after the rotary embedding.
    pub(crate) head_norms: Option<HeadNorms>,
}

impl PackedProjections {
    /// Packs the projections. Memory: one more copy of the projection weights in the table's auxiliary tensors.
    pub(crate) fn new(spec: &AttentionSpec, table: &LayerZeroTable, kernel: Kernel) -> Self {
        let pack = |(weight, bias): Roles, inputs: u64, heads: u64| {
            let (inputs, heads) = (inputs as usize, heads as usize);
            let (weight, bias) = (table.aux(weight)?, table.aux(bias));
            let outputs = weight.len() / inputs / heads;
            let head = |head: usize| {
                let bias = bias.map(|bias| &bias[head * outputs..][..outputs]);
                let weight = &weight[head * outputs * inputs..][..outputs * inputs];
                PackedWeights::new(kernel, weight, bias, inputs)
            };
            // Packs on one thread: the caller holds a lock, which a task stolen by this thread could request.
            Some((0..heads).map(head).collect())
        };
        let hidden = spec.hidden_size;
        let latent = spec.latent.as_ref();
        let query = latent.and_then(|latent| latent.query_rank).unwrap_or(hidden);
        let key = latent.map_or(hidden, |latent| latent.key_rank);
        Self {
            query: pack(TensorRole::QUERY, query, spec.query_heads),
            key: pack(TensorRole::KEY, key, spec.key_heads),
            head_norms: head_norms(spec, table),
        }
    }
}

fn head_norms(spec: &AttentionSpec, table: &LayerZeroTable) -> Option<HeadNorms> {
    let norm = spec.head_norm.as_ref().filter(|norm| norm.after_rope)?;
    let Norm::Rms { eps, offset } = norm.norm else { return None };
    let weight = |array| {
        let weights = table.aux(array).unwrap_or_default().iter();
        weights.map(|weight| (f64::from(*weight) + offset) as f32).collect()
    };
    let (query_weight, key_weight) =
        (weight(TensorRole::QueryNormWeight), weight(TensorRole::KeyNormWeight));
    Some(HeadNorms { epsilon: eps, query_weight, key_weight })
}

/// A window of a model: inputs of its queries and keys.
pub(crate) struct WindowParts<'a> {
    pub(crate) spec: &'a AttentionSpec,
    pub(crate) table: &'a LayerZeroTable,
    pub(crate) projections: &'a PackedProjections,
    pub(crate) rope: Option<&'a Rope>,
    pub(crate) shape: &'a AttentionShape,
    /// `[tokens]`, each below the vocabulary size.
    pub(crate) ids: &'a [u32],
}

impl WindowParts<'_> {
    /// Passes the window's queries and keys to `measure`.
    pub(crate) fn with_source<T>(&self, measure: impl FnOnce(&dyn QueryKeySource) -> T) -> T {
        match self.spec.row_content() {
            RowContent::Heads => measure(&self.heads()),
            RowContent::Latents => measure(&self.latents()),
            RowContent::Embedding => {
                let rows = self.hidden_states();
                let rows = WindowRows::Window { rows: &rows, row_width: self.table.row_width() };
                measure(&self.projected(rows, 0, 0, 0))
            }
        }
    }

    fn heads(&self) -> TableWindow<'_> {
        let (view, row_width) = (self.table.view(), self.table.row_width());
        let norms = self.projections.head_norms.as_ref();
        TableWindow::new(view, row_width, self.ids, self.shape, self.rope, norms)
    }

    fn latents(&self) -> ProjectedWindow<'_> {
        let latent = self.spec.latent.as_ref().expect("these rows hold latent numbers");
        let query_width = self.spec.latent_query_width(latent) as usize;
        let (rank, rotary) = (latent.key_rank as usize, latent.rotary_dims as usize);
        let (table, row_width) = (self.table.view(), self.table.row_width());
        let rows = WindowRows::Table { table, row_width, ids: self.ids };
        self.projected(rows, query_width, rotary, query_width + rank)
    }

    /// Keys begin at `key_first` of a row. All heads share the `shared` numbers from `tail` on. The last dimensions rotate.
    fn projected<'a>(
        &'a self,
        rows: WindowRows<'a>,
        key_first: usize,
        shared: usize,
        tail: usize,
    ) -> ProjectedWindow<'a> {
        let clip = self.spec.clip.map(|clip| clip as f32);
        let part = |first, heads: &'a Option<Vec<PackedWeights>>, tail| ProjectedHeads {
            first,
            heads: heads.as_deref(),
            clip,
            tail,
        };
        let head_dim = self.shape.head_dim;
        ProjectedWindow {
            rows,
            head_dim,
            query: part(0, &self.projections.query, 0..0),
            key: part(key_first, &self.projections.key, tail..tail + shared),
            rope: self.rope.map(|rope| (rope, head_dim - rope.rotary_dims())),
        }
    }

    /// Computes embedding + position, normalised, `[tokens, hidden_size]`.
    fn hidden_states(&self) -> Vec<f32> {
        let hidden = self.table.row_width();
        let mut states = vec![0.0; self.ids.len() * hidden];
        for (id, row) in self.ids.iter().zip(states.chunks_exact_mut(hidden)) {
            self.table.view().copy(*id as usize * hidden, row);
        }
        let aux = |array| self.table.aux(array).unwrap_or_default();
        let positions = aux(TensorRole::Positions);
        assert!(
            positions.len() >= states.len(),
            "windows longer than the learned positions are refused when they are planned"
        );
        states.iter_mut().zip(positions).for_each(|(x, position)| *x += position);
        let [weight, bias] =
            [TensorRole::NormWeight, TensorRole::NormBias].map(|array| aux(array).to_vec());
        RowNorm { norm: self.spec.norm.clone(), weight, bias }.apply(hidden, &mut states);
        states
    }
}
