//! Figures of windows for a measure: losses of whole and of short windows, attention of chosen layers, in one pass.

use super::head::End;
use super::layer::Layer;
use super::located::WholeModel;
use super::memory::Memory;
use super::query_keys::QueryKeys;
use super::ropes::Ropes;
use super::sequences::{short_stride, short_windows};
use super::{embedding, head};
use crate::contract::{ForwardFigures, ForwardRequest, LayersRequest};
use crate::model::problem::ModelProblem;

/// A sequence that the model runs.
struct Sequence<'a> {
    ids: &'a [u32],
    /// The window that it is of.
    window: usize,
    /// Of a short window, its first token whose loss counts; none of a whole one.
    first_scored: Option<usize>,
}

impl<'a> Sequence<'a> {
    /// The losses that count.
    fn end(&self) -> End<'a> {
        let from = self.first_scored.map_or(0, |token| token - 1);
        End { ids: self.ids, from, last_logits: false }
    }
}

impl WholeModel {
    /// What `request` asks of some windows; none where `go_on` says no meanwhile.
    ///
    /// Every layer's weights are read once for all windows. Runs in the current rayon pool and gives the same bits for any
    /// number of threads, and whatever windows stand beside one another. A short window is a sequence of its own:
    /// positions begin at 0, nothing is prepended. Tokens before the short context have no short losses: they would be
    /// those of the whole window. Memory: [`Self::measuring_memory`].
    ///
    /// # Errors
    /// A window that does not fit the model; weights that cannot be read or are not finite, by tensor; figures that are not
    /// finite, by layer.
    pub fn measure(
        &self,
        request: &ForwardRequest,
        windows: &[&[u32]],
        go_on: &(dyn Fn() -> bool + Sync),
    ) -> Result<Option<Vec<ForwardFigures>>, ModelProblem> {
        for ids in windows {
            self.check(ids)?;
        }
        let kernel = self.kernel;
        let sequences = sequences(request, windows);
        let ids: Vec<&[u32]> = sequences.iter().map(|sequence| sequence.ids).collect();
        let depth = request.depth(self.layers.len() as u64) as usize;
        let mut figures = vec![ForwardFigures::default(); windows.len()];
        let ropes = Ropes::of(self, depth, ids.iter().map(|ids| ids.len()));
        let mut states = embedding::hidden_states(self, &ids, kernel)?;
        for index in 0..depth {
            let asked = request.attention.as_ref();
            let asked = asked.filter(|attention| attention.layers.contains(&(index as u32)));
            if request.losses.is_none() && index + 1 == depth {
                let asks = QueryKeys::read(self, index, kernel)?;
                let asked = asked.expect("the highest layer is asked for");
                if !add_attention(&asks, &ropes, asked, &states, &mut figures, go_on) {
                    return Ok(None);
                }
                break;
            }
            let layer = Layer::read(self, index, kernel)?;
            if let Some(asked) = asked
                && !add_attention(&layer.asks, &ropes, asked, &states, &mut figures, go_on)
            {
                return Ok(None);
            }
            if self.pass(index, &layer, &ropes, &mut states, go_on)?.is_none() {
                return Ok(None);
            }
        }
        if request.losses.is_some() {
            let ends: Vec<End<'_>> = sequences.iter().map(Sequence::end).collect();
            let ended = head::finish(self, &ends, states, kernel)?;
            for (sequence, ended) in sequences.iter().zip(ended) {
                let figures = &mut figures[sequence.window];
                match sequence.first_scored {
                    None => figures.losses = ended.losses,
                    Some(_) => figures.short_losses.extend(ended.losses),
                }
            }
        }
        Ok(Some(figures))
    }

    /// The heap memory that [`Self::measure`] holds at most for `windows` windows of `tokens` tokens on `threads` threads.
    /// The number of layers does not enter.
    pub fn measuring_memory(
        &self,
        request: &ForwardRequest,
        tokens: u64,
        windows: u64,
        threads: u64,
    ) -> Memory {
        let ids = vec![0; tokens as usize];
        let lengths = |sequence: &Sequence<'_>| sequence.ids.len() as u64;
        let of_window: Vec<u64> = sequences(request, &[&ids]).iter().map(lengths).collect();
        let (long, short) = of_window.split_at(1);
        let times = |lengths: &[u64]| lengths.repeat(windows as usize);
        let lengths = [times(long), times(short)].concat();
        self.memory_of(&lengths, request.attention.as_ref(), request.losses.is_some(), threads)
    }
}

/// Adds the sums over a layer's attention matrices to the figures of each window; false where `go_on` says no meanwhile.
fn add_attention(
    asks: &QueryKeys<'_>,
    ropes: &Ropes<'_>,
    request: &LayersRequest,
    states: &[Vec<f32>],
    figures: &mut [ForwardFigures],
    go_on: &(dyn Fn() -> bool + Sync),
) -> bool {
    let hidden = asks.spec.hidden_size as usize;
    // The whole windows come first.
    for (figures, state) in figures.iter_mut().zip(states) {
        if !go_on() {
            return false;
        }
        let rope = ropes.get(asks.spec.rope.as_ref(), state.len() / hidden);
        figures.layers.push(asks.attention(rope, state, request));
    }
    true
}

/// The windows, then the short windows of each, in order.
fn sequences<'a>(request: &ForwardRequest, windows: &[&'a [u32]]) -> Vec<Sequence<'a>> {
    let whole = windows.iter().enumerate();
    let whole = whole.map(|(window, ids)| Sequence { ids, window, first_scored: None });
    let context = request.losses.and_then(|losses| losses.short_context);
    let short = windows.iter().enumerate().flat_map(|(window, ids)| {
        let of = context.map(|context| context as usize).filter(|context| *context < ids.len());
        let of = of.into_iter().flat_map(|context| {
            // The first scores tokens of which the whole window knows no more.
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
