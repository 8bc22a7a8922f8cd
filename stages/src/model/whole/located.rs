//! Locates every tensor of a whole model.

use std::path::Path;

use longsift_kernels::{ElementType, Kernel};

#[cfg(feature = "candle")]
use super::candle::devices::CandleDevices;
use crate::model::checkpoint::locate_parts;
use crate::model::config::ModelConfig;
use crate::model::decoder::{Decoder, FeedForward, NamedNorm, at_layer};
use crate::model::families::{FirstLayerConfig, ModelScope};
use crate::model::formats::LocatedTensor;
use crate::model::problem::ModelProblem;
use crate::model::spec::{AttentionSpec, Norm};
use crate::model::tensors::{NeededTensor, Projection, Roles, TensorRole};
use crate::model::unread::ReadScope;
use crate::model::weights::TensorReader;

/// Maximum number of layers: more than any model has, as a hostile config.json may claim any number.
const MAX_LAYERS: u64 = 1 << 10;

/// A model with all requested tensors located, but no weights read.
#[derive(Debug)]
pub struct WholeModel {
    config: ModelConfig,
    /// Kernel of all matrix products.
    pub(super) kernel: Kernel,
    pub(super) backend: Chosen,
    pub(super) decoder: Decoder,
    pub(super) embedding: LocatedTensor,
    /// Positions and other tensors between the embedding and the first layer.
    pub(super) before: Vec<LocatedTensor>,
    /// All layers, or the requested ones.
    pub(super) layers: Vec<LocatedLayer>,
    /// The last norm and other tensors before the head.
    pub(super) after: Vec<LocatedTensor>,
    /// `None` if the head is the embedding.
    pub(super) head: Option<LocatedTensor>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BackendName {
    /// This project's own kernels, on processors.
    Own,
    /// candle, on processors and GPUs.
    Candle,
}

impl BackendName {
    /// Returns the backend with a recorded `backend_name`.
    pub fn recorded(name: &str) -> Self {
        if name.starts_with("candle-") { Self::Candle } else { Self::Own }
    }
}

#[derive(Clone, Debug)]
pub(super) enum Chosen {
    Own,
    #[cfg(feature = "candle")]
    Candle(CandleDevices),
}

#[derive(Debug)]
pub(super) struct LocatedLayer {
    /// Computation of the layer up to its logits.
    pub(super) spec: AttentionSpec,
    pub(super) parts: Vec<LocatedTensor>,
}

impl WholeModel {
    /// Returns the first layer, and properties that all layers share.
    pub fn spec(&self) -> &AttentionSpec {
        self.config.spec()
    }

    /// Returns the kernel that computes the model, by default the fastest on this machine.
    pub fn kernel(&self) -> Kernel {
        self.kernel
    }

    /// Selects another kernel.
    ///
    /// # Panics
    /// If this machine does not support the kernel, or it is not one for float32 numbers.
    #[must_use]
    pub fn with_kernel(self, kernel: Kernel) -> Self {
        assert!(kernel.is_supported() && kernel.is_for(ElementType::F32), "{kernel:?}");
        Self { kernel, ..self }
    }

    pub fn config(&self) -> &ModelConfig {
        &self.config
    }

    /// Returns the head, or the embedding if they are tied.
    pub(super) fn head(&self) -> &LocatedTensor {
        self.head.as_ref().unwrap_or(&self.embedding)
    }

    /// Reads the head in pieces of `rows` rows, each passed to `callback` after the index of its first row.
    pub(super) fn read_head(
        &self,
        rows: u64,
        callback: &mut dyn FnMut(usize, Vec<f32>) -> Result<(), ModelProblem>,
    ) -> Result<(), ModelProblem> {
        let mut reader = TensorReader::new(self.head())?;
        let mut first = 0;
        for piece in reader.chunks(rows) {
            let piece = piece?;
            self.head().check_finite(&piece, "loss")?;
            let count = piece.len() / self.spec().embedding_width() as usize;
            callback(first, piece)?;
            first += count;
        }
        Ok(())
    }
}

pub(super) fn open(path: &Path, depth: Option<u64>) -> Result<WholeModel, Vec<ModelProblem>> {
    let config = ModelConfig::read_scope(path, None, ModelScope::WholeModel)?;
    let (first, decoder) = config.whole()?;
    if first.spec.layers > MAX_LAYERS {
        let message = format!(
            "config.json claims {} layers; at most {MAX_LAYERS} are read",
            first.spec.layers
        );
        return Err(vec![ModelProblem::checkpoint(message)]);
    }
    let layers = depth.map_or(first.spec.layers, |depth| depth.min(first.spec.layers));
    let mut needed: Vec<Vec<NeededTensor>> = Vec::new();
    let all = first.tensors.needed(&first.spec);
    let (embedding, before): (Vec<_>, Vec<_>) = all
        .into_iter()
        .filter(|needed| is_before_layers(needed.role))
        .partition(|needed| needed.role == TensorRole::Embedding);
    needed.push(embedding);
    needed.push(before);
    needed.extend((0..layers).map(|layer| layer_tensors(&first, &decoder, layer)));
    let above = depth.is_none();
    needed.push(if above { tensors_after_layers(&first, &decoder) } else { Vec::new() });
    needed.push(head(&first, &decoder).into_iter().filter(|_| above).collect());
    let reads = ReadScope::Layers { count: layers, above };
    let groups = locate_parts(&config, needed, decoder.head.weight.as_deref(), reads)?;
    let mut groups = groups.into_iter();
    let mut next = || groups.next().expect("as many groups as were requested");
    let embedding = next().remove(0);
    let before = next();
    let layers = (0..layers)
        .map(|layer| LocatedLayer { spec: layer_spec(&first, &decoder, layer), parts: next() })
        .collect();
    let after = next();
    let head = next().pop();
    let kernel = Kernel::detect(ElementType::F32);
    Ok(WholeModel {
        config,
        kernel,
        backend: Chosen::Own,
        decoder,
        embedding,
        before,
        layers,
        after,
        head,
    })
}

fn is_before_layers(role: TensorRole) -> bool {
    matches!(
        role,
        TensorRole::Embedding
            | TensorRole::EmbeddingNormWeight
            | TensorRole::EmbeddingNormBias
            | TensorRole::EmbeddingProjection
            | TensorRole::Positions
    )
}

fn layer_spec(first: &FirstLayerConfig, decoder: &Decoder, layer: u64) -> AttentionSpec {
    if let Some(softmax) = first.softmax(layer) {
        return softmax.spec.clone();
    }
    let mut spec = first.spec.clone();
    if let Some(sliding) = &first.sliding {
        spec.window = first.slides(layer).then_some(sliding.window);
    }
    if let Some(ropes) = &decoder.ropes {
        spec.rope.clone_from(&ropes[layer as usize]);
    }
    if decoder.scale_by_depth {
        spec.scale /= (layer + 1) as f64;
    }
    spec
}

fn layer_tensors(first: &FirstLayerConfig, decoder: &Decoder, layer: u64) -> Vec<NeededTensor> {
    let hidden = first.spec.hidden_size;
    let softmax = first
        .softmax(layer)
        .map(|group| (&group.spec, &group.tensors, &group.value, &group.output));
    let (spec, tensors, value, output) =
        softmax.unwrap_or((&first.spec, &first.tensors, &decoder.value, &decoder.output));
    let mut needed: Vec<NeededTensor> = tensors.needed(spec);
    needed.retain(|needed| !is_before_layers(needed.role));
    let mut add = |projection: &Projection, roles| needed.extend(projection.needed(hidden, roles));
    add(value, TensorRole::VALUE);
    add(output, TensorRole::OUTPUT);
    for part in decoder.feed_forward.perceptrons() {
        if let Some(gate) = &part.gate {
            add(gate, TensorRole::GATE);
        }
        add(&part.up, TensorRole::UP);
        add(&part.down, TensorRole::DOWN);
    }
    if let FeedForward::Experts { router, .. } = &decoder.feed_forward {
        add(router, TensorRole::ROUTER);
    }
    let norms = [
        (&decoder.after_attention, TensorRole::AFTER_ATTENTION),
        (&decoder.before_feed_forward, TensorRole::FEED_FORWARD_NORM),
        (&decoder.after_feed_forward, TensorRole::AFTER_FEED_FORWARD),
    ];
    for (norm, roles) in norms {
        needed.extend(norm_tensors(norm, hidden, roles));
    }
    for needed in &mut needed {
        needed.name = at_layer(&needed.name, layer);
    }
    needed
}

fn norm_tensors(named: &NamedNorm, hidden: u64, (weight, bias): Roles) -> Vec<NeededTensor> {
    let tensor = |(role, name): (TensorRole, &Option<String>)| {
        Some(NeededTensor::whole(role, name.clone()?, vec![hidden]))
    };
    let names = [(weight, &named.weight), (bias, &named.bias)].into_iter();
    if named.norm == Norm::None { Vec::new() } else { names.filter_map(tensor).collect() }
}

fn tensors_after_layers(first: &FirstLayerConfig, decoder: &Decoder) -> Vec<NeededTensor> {
    let (spec, head) = (&first.spec, &decoder.head);
    let hidden = spec.hidden_size;
    let last = &decoder.last_norm;
    let mut needed = norm_tensors(last, hidden, TensorRole::LAST_NORM);
    if let Some(projection) = &head.projection {
        needed.extend(projection.needed(hidden, TensorRole::HEAD_PROJECTION));
    }
    let bias = head.bias.clone();
    needed.extend(
        bias.map(|name| {
            NeededTensor::whole(TensorRole::HeadBias, name, vec![spec.vocabulary_size])
        }),
    );
    needed
}

fn head(first: &FirstLayerConfig, decoder: &Decoder) -> Option<NeededTensor> {
    let shape = vec![first.spec.vocabulary_size, first.spec.embedding_width()];
    Some(NeededTensor::whole(TensorRole::HeadWeight, decoder.head.weight.clone()?, shape))
}
