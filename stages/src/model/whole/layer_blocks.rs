//! Attention between the blocks of a window, in any layer.

use longsift_kernels::{BlockAttention, BlockShares};

use super::embedding;
use super::layer::Layer;
use super::located::WholeModel;
use super::query_keys::QueryKeys;
use super::ropes::Ropes;
use crate::model::problem::ModelProblem;

impl WholeModel {
    /// Returns the attention in layer `index` between the blocks of a window that end before the tokens `ends`: the
    /// mean over heads, or that of one query head.
    ///
    /// Lower layers are computed completely, this one's queries and keys only. Runs in the current rayon pool; the
    /// result has the same bits for any number of threads. Memory: [`Self::layer_blocks_bytes`].
    ///
    /// # Errors
    /// As [`Self::measure`].
    ///
    /// # Panics
    /// If the model has no such layer or head, or no softmax attention in it, or the blocks exceed the window.
    pub fn layer_blocks(
        &self,
        index: usize,
        ids: &[u32],
        ends: &[usize],
        head: Option<usize>,
    ) -> Result<BlockShares, ModelProblem> {
        self.check(ids)?;
        let kernel = self.kernel;
        let mut states = embedding::hidden_states(self, &[ids], kernel)?;
        let ropes = Ropes::new(self, index + 1, [ids.len()].into_iter());
        for below in 0..index {
            let layer = Layer::read(self, below, kernel)?;
            let passed = self.pass(below, &layer, &ropes, (&mut states, &mut [None]), &|| true)?;
            passed.expect("the callback never stops");
        }
        let query_keys = QueryKeys::read(self, index, kernel)?;
        let rope = ropes.get(query_keys.spec.rope.as_ref(), ids.len());
        Ok(query_keys.with_source(rope, &states[0], &mut |shape, rules, source| {
            let blocks = BlockAttention::new(ends, None);
            BlockShares::for_window(kernel, shape, rules, source, blocks, head)
        }))
    }

    /// Peak heap memory of [`Self::layer_blocks`] for a window of `tokens` tokens in `blocks` blocks.
    pub fn layer_blocks_bytes(&self, tokens: u64, blocks: usize, threads: usize) -> u64 {
        let (spec, kernel) = (self.spec(), self.kernel);
        let shape = spec.attention_shape(tokens as usize);
        let rows = 4 * tokens * (spec.query_heads + spec.key_heads) * spec.head_dim;
        let attending = BlockAttention::bytes(kernel, &shape, blocks, threads);
        let passing = self.memory_for(&[tokens], None, false, threads as u64).peak_bytes;
        passing + rows + attending
    }
}
