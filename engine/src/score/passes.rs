//! Runs many windows at a time through a whole model, so that they share each read of a layer's weights.

use longsift_stages::contract::{Evidence, Figures, ForwardFigures, Measure, RowError, Window};

use crate::base::diagnostic::Diagnostic;
use crate::base::error::{Failure, Result};
use crate::base::stop::Stop;
use crate::plan::whole_models::WholeModelPlan;

/// Groups consecutive windows: each group has at most as many tokens as the windows of `window_tokens` that the plan has room
/// for.
pub(crate) fn passes<'w, K, I: AsRef<[u32]>>(
    whole: &WholeModelPlan,
    window_tokens: u64,
    windows: &'w [(K, I)],
) -> Vec<&'w [(K, I)]> {
    let most = whole.windows_at_once * window_tokens;
    let mut passes = Vec::new();
    let (mut first, mut tokens) = (0, 0);
    for (index, (_, ids)) in windows.iter().enumerate() {
        let own = ids.as_ref().len() as u64;
        if index > first && tokens + own > most {
            passes.push(&windows[first..index]);
            (first, tokens) = (index, 0);
        }
        tokens += own;
    }
    if first < windows.len() {
        passes.push(&windows[first..]);
    }
    passes
}

type Measured = std::result::Result<Figures, RowError>;

/// Output of a model for a window.
type Made = std::result::Result<ForwardFigures, RowError>;

/// Computes the statistics of the windows of one group, in order.
///
/// # Errors
/// A tensor of weights cannot be used, or a signal stopped the run.
pub(crate) fn run(
    whole: &WholeModelPlan,
    measure: &dyn Measure,
    windows: &[&[u32]],
    stop: &Stop,
) -> Result<Vec<Measured>> {
    let made = forward(whole, windows, stop)?;
    let figures = |(ids, made): (&&[u32], Made)| made.and_then(|made| figures(measure, ids, made));
    Ok(windows.iter().zip(made).map(figures).collect())
}

/// Computes the statistics of a measure from the output of a whole model.
pub(crate) fn figures(measure: &dyn Measure, ids: &[u32], made: ForwardFigures) -> Measured {
    let evidence = [Evidence::Forward(made)];
    let (text, text_half, document) = (None, None, &[][..]);
    measure.figures(&Window { ids, text, text_half, document, evidence: &evidence })
}

/// Runs windows through a whole model and returns its output for each, in order.
///
/// # Errors
/// As [`run`].
pub(crate) fn forward(
    whole: &WholeModelPlan,
    windows: &[&[u32]],
    stop: &Stop,
) -> Result<Vec<Made>> {
    let vocabulary = whole.model.spec().vocabulary_size;
    let beyond = |ids: &[u32]| ids.iter().position(|id| u64::from(*id) >= vocabulary);
    let known: Vec<&[u32]> = windows.iter().copied().filter(|ids| beyond(ids).is_none()).collect();
    let made = whole.model.measure(&whole.request, &known, &|| stop.check().is_ok());
    let made = made.map_err(|problem| Failure::from(Diagnostic::from(problem)))?;
    if made.is_none() {
        stop.check()?;
    }
    let mut made = made.expect("nobody has stopped it").into_iter();
    let of_window = |ids: &&[u32]| {
        if let Some(position) = beyond(ids) {
            let id = ids[position];
            let message = format!(
                "token {position} of the window is {id}, but the model's vocabulary has {vocabulary} entries"
            );
            return Err(RowError { code: "token_out_of_range", message });
        }
        Ok(made.next().expect("a window gave one"))
    };
    Ok(windows.iter().map(of_window).collect())
}
