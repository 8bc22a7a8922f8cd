//! Attention between the blocks of a window, in any layer.

use longsift_kernels::{BlockAttention, BlockShares};

use super::backend::HeadRequest;
use super::cpu::memory::estimate;
use super::cpu::{CpuBackend, QueryKeys};
use super::located::WholeModel;
use super::memory::Sequences;
use super::pass::Visit;
use super::ropes::Ropes;
use crate::model::problem::ModelProblem;
use crate::model::spec::AttentionSpec;

impl WholeModel {
    /// Returns the attention in layer `index` between the blocks of a window that end before the tokens `ends`: the
    /// mean over heads, or that of one query head. Memory: [`Self::layer_blocks_bytes`].
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
        let mut shares = None;
        let mut callback = |spec: &AttentionSpec,
                            query_keys: &QueryKeys<'_>,
                            ropes: &Ropes<'_>,
                            states: &[Vec<f32>]| {
            let rope = ropes.get(spec.rope.as_ref(), ids.len());
            shares = Some(query_keys.with_source(rope, &states[0], &mut |shape, rules, source| {
                let blocks = BlockAttention::new(ends, None);
                BlockShares::for_window(self.kernel, shape, rules, source, blocks, head)
            }));
            Ok(true)
        };
        let mut visit = Visit { layers: &[index as u32], callback: &mut callback };
        self.run(&CpuBackend(self), &[HeadRequest::losses(ids, 0)], false, &mut visit, &|| true)?;
        Ok(shares.expect("the layer is visited"))
    }

    /// Peak heap memory of [`Self::layer_blocks`] for a window of `tokens` tokens in `blocks` blocks.
    pub fn layer_blocks_bytes(&self, tokens: u64, blocks: usize, threads: usize) -> u64 {
        let (spec, kernel) = (self.spec(), self.kernel);
        let shape = spec.attention_shape(tokens as usize);
        let rows = 4 * tokens * (spec.query_heads + spec.key_heads) * spec.head_dim;
        let attending = BlockAttention::bytes(kernel, &shape, blocks, threads);
        let window = Sequences { lengths: vec![tokens], attention: None, losses: false };
        let passing = estimate(self, &window, threads as u64).peak_bytes;
        passing + rows + attending
    }
}
