//! Computes statistics of windows in one pass: losses of whole and of short windows, attention of selected layers.

use super::embedding;
use super::gated_linear::Carried;
use super::head::HeadRequest;
use super::layer::Layer;
use super::located::WholeModel;
use super::memory::ForwardMemory;
use super::pieces::Run;
use super::query_keys::QueryKeys;
use super::ropes::Ropes;
use super::sequences::{short_stride, short_windows};
use crate::contract::{ForwardFigures, ForwardRequest, LayersRequest};
use crate::model::problem::ModelProblem;

/// A sequence that the model runs.
struct Sequence<'a> {
    ids: &'a [u32],
    /// Index of its window.
    window: usize,
    /// First token whose loss counts, for a short window; `None` for a whole window.
    first_scored: Option<usize>,
}

impl<'a> Sequence<'a> {
    /// Returns the losses that count.
    fn end(&self) -> HeadRequest<'a> {
        let from = self.first_scored.map_or(0, |token| token - 1);
        HeadRequest { ids: self.ids, rows: 0..self.ids.len(), from, last_logits: false }
    }
}

impl WholeModel {
    /// Computes the statistics in `request` for some windows; `None` if `should_continue` returns `false` meanwhile.
    ///
    /// Each layer's weights are read once for all windows. Runs in the current rayon pool. The result has the same bits
    /// for any number of threads and any combination of windows. A short window is a separate sequence: positions start
    /// at 0, no token is prepended. Tokens within the first short context have no short loss, since it would equal that
    /// of the whole window. Memory: [`Self::measuring_memory`].
    ///
    /// # Errors
    /// A window that does not fit the model; weights that cannot be read or are not finite, by tensor; results that are
    /// not finite, by layer.
    pub fn measure(
        &self,
        request: &ForwardRequest,
        windows: &[&[u32]],
        should_continue: &(dyn Fn() -> bool + Sync),
    ) -> Result<Option<Vec<ForwardFigures>>, ModelProblem> {
        for ids in windows {
            self.check(ids)?;
        }
        let sequences = sequences(request, windows);
        let mut figures = vec![ForwardFigures::default(); windows.len()];
        let asked = |index: usize| {
            let attention = request.attention.as_ref();
            attention.filter(|attention| attention.layers.contains(&(index as u32)))
        };
        if request.losses.is_none() {
            let ids: Vec<&[u32]> = sequences.iter().map(|sequence| sequence.ids).collect();
            let depth = request.depth(self.layers.len() as u64) as usize;
            let attention = |index: usize,
                             query_keys: &QueryKeys<'_>,
                             ropes: &Ropes<'_>,
                             states: &[_]| {
                let asked = asked(index);
                asked.is_none_or(|asked| {
                    add_attention(query_keys, ropes, asked, states, &mut figures, should_continue)
                })
            };
            return Ok(self
                .attention_only(&ids, depth, attention, should_continue)?
                .then_some(figures));
        }
        let ends: Vec<HeadRequest<'_>> = sequences.iter().map(Sequence::end).collect();
        let mut before_layer =
            |index: usize, layer: &Layer<'_>, ropes: &Ropes<'_>, states: &[Vec<f32>]| {
                asked(index).is_none_or(|asked| {
                    add_attention(
                        layer.query_keys(),
                        ropes,
                        asked,
                        states,
                        &mut figures,
                        should_continue,
                    )
                })
            };
        let Some(run) = self.run(&ends, &mut before_layer, should_continue)? else {
            return Ok(None);
        };
        for (sequence, Run { ended, .. }) in sequences.iter().zip(run) {
            let figures = &mut figures[sequence.window];
            match sequence.first_scored {
                None => figures.losses = ended.losses,
                Some(_) => figures.short_losses.extend(ended.losses),
            }
        }
        Ok(Some(figures))
    }

    /// Runs windows through the layers below the highest whose attention is requested, and reads only
    /// queries and keys of that layer. `false` if `attention` or `should_continue` returns `false` meanwhile.
    fn attention_only(
        &self,
        ids: &[&[u32]],
        depth: usize,
        mut attention: impl FnMut(usize, &QueryKeys<'_>, &Ropes<'_>, &[Vec<f32>]) -> bool,
        should_continue: &(dyn Fn() -> bool + Sync),
    ) -> Result<bool, ModelProblem> {
        let Some(last) = depth.checked_sub(1) else { return Ok(true) };
        let kernel = self.kernel;
        let ropes = Ropes::new(self, depth, ids.iter().map(|ids| ids.len()));
        let mut states = embedding::hidden_states(self, ids, kernel)?;
        let mut carried: Vec<Option<Carried>> = ids.iter().map(|_| None).collect();
        for index in 0..last {
            let layer = Layer::read(self, index, kernel)?;
            let states = (&mut *states, &mut *carried);
            if !attention(index, layer.query_keys(), &ropes, states.0)
                || self.pass(index, &layer, &ropes, states, should_continue)?.is_none()
            {
                return Ok(false);
            }
        }
        let query_keys = QueryKeys::read(self, last, kernel)?;
        Ok(attention(last, &query_keys, &ropes, &states))
    }

    /// Peak heap memory of [`Self::measure`] for `windows` windows of `tokens` tokens on `threads` threads. Independent
    /// of the number of layers.
    pub fn measuring_memory(
        &self,
        request: &ForwardRequest,
        tokens: u64,
        windows: u64,
        threads: u64,
    ) -> ForwardMemory {
        let ids = vec![0; tokens as usize];
        let lengths = |sequence: &Sequence<'_>| sequence.ids.len() as u64;
        let of_window: Vec<u64> = sequences(request, &[&ids]).iter().map(lengths).collect();
        let (long, short) = of_window.split_at(1);
        let times = |lengths: &[u64]| lengths.repeat(windows as usize);
        let lengths = [times(long), times(short)].concat();
        self.memory_for(&lengths, request.attention.as_ref(), request.losses.is_some(), threads)
    }
}

/// Adds a layer's attention sums to each window's statistics; `false` if `should_continue` returns `false` meanwhile.
fn add_attention(
    query_keys: &QueryKeys<'_>,
    ropes: &Ropes<'_>,
    request: &LayersRequest,
    states: &[Vec<f32>],
    figures: &mut [ForwardFigures],
    should_continue: &(dyn Fn() -> bool + Sync),
) -> bool {
    let hidden = query_keys.spec.hidden_size as usize;
    // Whole windows come first.
    for (figures, state) in figures.iter_mut().zip(states) {
        if !should_continue() {
            return false;
        }
        let rope = ropes.get(query_keys.spec.rope.as_ref(), state.len() / hidden);
        figures.layers.push(query_keys.attention(rope, state, request));
    }
    true
}

/// Returns the windows, then the short windows of each, in order.
fn sequences<'a>(request: &ForwardRequest, windows: &[&'a [u32]]) -> Vec<Sequence<'a>> {
    let whole = windows.iter().enumerate();
    let whole = whole.map(|(window, ids)| Sequence { ids, window, first_scored: None });
    let context = request.losses.and_then(|losses| losses.short_context);
    let short = windows.iter().enumerate().flat_map(|(window, ids)| {
        let of = context.map(|context| context as usize).filter(|context| *context < ids.len());
        let of = of.into_iter().flat_map(|context| {
            // The first short window scores tokens whose context is the same in the whole window.
            short_windows(ids.len(), context, short_stride(context)).skip(1)
        });
        of.map(move |short| Sequence {
            ids: &ids[short.start..short.end],
            window,
            first_scored: Some(short.first_scored - short.start),
        })
    });
    whole.chain(short).collect()
}
