//! Layer of a map: the first, from its table, or any layer of a whole model.

use longsift_kernels::{BlockShares, Kernel};
use longsift_stages::contract::AttentionRequest;
use longsift_stages::first_layer_attention::{FirstLayer, SampledRows};
use longsift_stages::model::{AttentionSpec, ModelConfig, WholeModel};

use crate::base::diagnostic::{Blame, Diagnostic};
use crate::base::error::Result;
use crate::base::progress::Progress;
use crate::base::text::quoted;
use crate::plan::Plan;
use crate::plan::attention::Attention;

pub(crate) struct MappedLayer<'a> {
    pub(crate) number: u32,
    pub(super) kernel: Kernel,
    pub(super) strict_positions: bool,
    model: MappedModel<'a>,
}

enum MappedModel<'a> {
    /// The first layer, as a measure of the pipeline reads it.
    First(&'a Attention),
    /// A whole model of the pipeline, opened up to the layer.
    Whole(Box<WholeModel>),
}

impl<'a> MappedLayer<'a> {
    /// Opens the requested layer; the first one by default.
    pub(crate) fn open(plan: &'a Plan, layer: Option<u32>) -> Result<Self> {
        let Some(layer) = layer else {
            let attention = plan.needed_attention()?;
            return Ok(Self {
                number: 0,
                kernel: processor_kernel(attention),
                strict_positions: attention.reading.strict_positions,
                model: MappedModel::First(attention),
            });
        };
        let Some(whole) = plan.whole_models.values().next() else {
            let message = format!(
                "`--layer {layer}` requires a whole model, and no measure of {} uses one",
                quoted(&plan.spec.name)
            );
            let hint = "name a pipeline with the stage `language-model`, or leave `--layer` out";
            return Err(Diagnostic::error(Blame::Pipeline, message).hint(hint).into());
        };
        if let Some(problem) = whole.model.spec().attention_problem() {
            return Err(problem.into());
        }
        let layers = whole.model.spec().layers;
        if u64::from(layer) >= layers {
            let message = format!("layer {layer} does not exist: the model has {layers} layers");
            let hint = format!("give `--layer 0` to `--layer {}`", layers.saturating_sub(1));
            return Err(Diagnostic::error(Blame::Pipeline, message).hint(hint).into());
        }
        // A measure without losses opens only the layers it needs.
        let model = WholeModel::open_to(&whole.path, Some(u64::from(layer) + 1))?;
        Ok(Self {
            number: layer,
            kernel: model.kernel(),
            strict_positions: whole.request.strict_positions,
            model: MappedModel::Whole(Box::new(model)),
        })
    }

    pub(super) fn spec(&self) -> &AttentionSpec {
        self.config().spec()
    }

    pub(super) fn config(&self) -> &ModelConfig {
        match &self.model {
            MappedModel::First(attention) => attention.model.config(),
            MappedModel::Whole(model) => model.config(),
        }
    }

    /// Returns the request that selects rows; `None` if all are measured.
    pub(super) fn request(&self) -> Option<AttentionRequest> {
        match &self.model {
            MappedModel::First(attention) => Some(attention.measure.request()),
            MappedModel::Whole(_) => None,
        }
    }

    /// Returns the peak memory in bytes, in addition to a mapped table.
    pub(super) fn bytes(&self, tokens: usize, blocks: usize) -> u64 {
        let threads = rayon::current_num_threads();
        match &self.model {
            MappedModel::First(_) => {
                FirstLayer::block_attention_bytes(self.spec(), self.kernel, tokens, blocks, threads)
            }
            MappedModel::Whole(model) => model.layer_blocks_bytes(tokens as u64, blocks, threads),
        }
    }

    /// Computes the attention between the blocks of a window.
    pub(crate) fn shares(
        &self,
        plan: &Plan,
        ids: &[u32],
        ends: &[usize],
        head: Option<usize>,
        sampled: Option<&SampledRows>,
        progress: &Progress,
    ) -> Result<BlockShares> {
        match &self.model {
            MappedModel::First(attention) => {
                let opened = plan.open_table(attention, &|done, _| progress.reached(done))?;
                let layer = attention.first_layer(opened.table, ids.len());
                Ok(layer.block_attention(self.kernel, ids, ends, head, sampled))
            }
            MappedModel::Whole(model) => {
                Ok(model.layer_blocks(self.number as usize, ids, ends, head)?)
            }
        }
    }
}

pub(crate) fn processor_kernel(attention: &Attention) -> Kernel {
    let kernel = attention.kernel();
    if kernel.is_cuda() {
        Kernel::detect(attention.reading.precision.element_type())
    } else {
        kernel
    }
}
