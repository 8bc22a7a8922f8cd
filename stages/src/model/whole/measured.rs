//! Computes statistics of windows in one pass: losses of whole and of short windows, attention of selected layers.

use super::backend::{Backend, HeadRequest};
use super::candle_memory::estimate;
use super::dispatch::on_backend;
use super::located::WholeModel;
use super::memory::{ForwardMemory, Sequences};
use super::pass::{SequenceResults, Visit};
use super::ropes::Ropes;
use super::sequences::short_windows;
use crate::contract::{ForwardRequest, ForwardStatistics};
use crate::model::problem::ModelProblem;
use crate::model::spec::AttentionSpec;

pub(super) struct Sequence<'a> {
    pub(super) ids: &'a [u32],
    window: usize,
    /// First token whose loss counts, for a short window; `None` for a whole window.
    first_scored: Option<usize>,
}

impl<'a> Sequence<'a> {
    fn end(&self) -> HeadRequest<'a> {
        HeadRequest::losses(self.ids, self.first_scored.map_or(0, |token| token - 1))
    }

    pub(super) fn is_short(&self) -> bool {
        self.first_scored.is_some()
    }

    pub(super) fn losses(&self) -> u64 {
        (self.ids.len() - self.first_scored.unwrap_or(1)) as u64
    }
}

impl WholeModel {
    /// Computes the statistics in `request` for some windows; `None` if `should_continue` returns `false` meanwhile. Each
    /// layer's weights are read once for all windows. Bits and failures: as [`Self::forward`]. A short window is a separate
    /// sequence; tokens within the first one have no short loss, since it would equal that of the whole window. Memory:
    /// [`Self::measuring_memory`]. `gpu`: runs the model if GPUs do; all GPUs of a type compute the same bits.
    pub fn measure(
        &self,
        gpu: u32,
        request: &ForwardRequest,
        windows: &[&[u32]],
        should_continue: &(dyn Fn() -> bool + Sync),
    ) -> Result<Option<Vec<ForwardStatistics>>, ModelProblem> {
        for ids in windows {
            self.check(ids)?;
        }
        on_backend!(self, gpu, backend => {
            self.measure_on(&backend, request, windows, should_continue)
        })
    }

    fn measure_on<B: Backend>(
        &self,
        backend: &B,
        request: &ForwardRequest,
        windows: &[&[u32]],
        should_continue: &(dyn Fn() -> bool + Sync),
    ) -> Result<Option<Vec<ForwardStatistics>>, ModelProblem> {
        let sequences = sequences(request, windows);
        let mut output = vec![ForwardStatistics::default(); windows.len()];
        let ends: Vec<HeadRequest<'_>> = sequences.iter().map(Sequence::end).collect();
        let layers = request.attention.as_ref().map_or(&[][..], |attention| &attention.layers);
        let mut callback =
            |spec: &AttentionSpec, query_keys: &_, ropes: &Ropes<'_>, states: &[_]| {
                let attention = request.attention.as_ref().expect("only its layers are visited");
                // Whole windows come first.
                for ((output, ids), state) in output.iter_mut().zip(windows).zip(states) {
                    if !should_continue() {
                        return Ok(false);
                    }
                    let rope = ropes.get(spec.rope.as_ref(), ids.len());
                    output.layers.push(backend.attention(query_keys, rope, state, attention)?);
                }
                Ok(true)
            };
        let mut visit = Visit { layers, callback: &mut callback };
        let losses = request.losses;
        let Some(run) = self.run(backend, &ends, losses, &mut visit, should_continue)? else {
            return Ok(None);
        };
        for (sequence, SequenceResults { ended, .. }) in sequences.iter().zip(run) {
            let output = &mut output[sequence.window];
            match sequence.first_scored {
                None => output.losses = ended.losses,
                Some(_) => output.short_losses.extend(ended.losses),
            }
        }
        Ok(Some(output))
    }

    /// Peak heap memory of [`Self::measure`] for some windows, independent of the number of layers.
    pub fn measuring_memory(
        &self,
        request: &ForwardRequest,
        tokens: u64,
        windows: u64,
        threads: u64,
    ) -> ForwardMemory {
        self.memory_for(&Sequences::new(request, tokens, windows), threads)
    }

    /// Peak memory of a GPU that runs this model on `windows` windows of `tokens` tokens; `None` if GPUs do not.
    pub fn gpu_memory(
        &self,
        request: &ForwardRequest,
        tokens: u64,
        windows: u64,
    ) -> Option<ForwardMemory> {
        let linear = self.layers.iter().any(|layer| layer.spec.gated_linear.is_some());
        (!linear).then(|| estimate(self, true, &Sequences::new(request, tokens, windows)))
    }
}

impl<'a> Sequences<'a> {
    /// Returns the sequences of `windows` windows.
    fn new(request: &'a ForwardRequest, tokens: u64, windows: u64) -> Self {
        let ids = vec![0; tokens as usize];
        let lengths = |sequence: &Sequence<'_>| sequence.ids.len() as u64;
        let of_window: Vec<u64> = sequences(request, &[&ids]).iter().map(lengths).collect();
        let (long, short) = of_window.split_at(1);
        let lengths = [long.repeat(windows as usize), short.repeat(windows as usize)].concat();
        let (attention, losses) = (request.attention.as_ref(), request.losses);
        Self { lengths, attention, losses }
    }
}

/// Returns the windows, then the short windows of each, in order.
pub(super) fn sequences<'a>(request: &ForwardRequest, windows: &[&'a [u32]]) -> Vec<Sequence<'a>> {
    let whole = windows.iter().enumerate();
    let whole = whole.map(|(window, ids)| Sequence { ids, window, first_scored: None });
    let context = request.short_context.map(|context| context as usize);
    let short = windows.iter().enumerate().flat_map(move |(window, ids)| {
        let context = context.filter(|context| *context < ids.len());
        let short = context.into_iter().flat_map(|context| {
            // The first short window scores tokens whose context is the same in the whole window. Windows overlap by half.
            short_windows(ids.len(), context, (context / 2).max(1)).skip(1)
        });
        short.map(move |short| Sequence {
            ids: &ids[short.start..short.end],
            window,
            first_scored: Some(short.first_scored - short.start),
        })
    });
    whole.chain(short).collect()
}
