//! Runs many windows at a time through a whole model, so that they share each read of a layer's weights.

use longsift_stages::contract::{Evidence, Figures, ForwardFigures, Measure, RowError, Window};
use longsift_stages::model::{ModelProblem, ProblemKind};

use crate::base::diagnostic::Diagnostic;
use crate::base::error::{Failure, Result};
use crate::base::stop::Stop;
use crate::plan::whole_models::WholeModelPlan;

/// Groups consecutive windows. The tokens of a group do not exceed those of `whole.windows_at_once` windows of
/// `window_tokens`, unless a single window has more.
pub(crate) fn passes<'w, K, I: AsRef<[u32]>>(
    whole: &WholeModelPlan,
    window_tokens: u64,
    windows: &'w [(K, I)],
) -> Vec<&'w [(K, I)]> {
    let max = whole.windows_at_once * window_tokens;
    let mut passes = Vec::new();
    let (mut first, mut tokens) = (0, 0);
    for (index, (_, ids)) in windows.iter().enumerate() {
        let own = ids.as_ref().len() as u64;
        if index > first && tokens + own > max {
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

type PassResult = std::result::Result<Figures, RowError>;

/// Output of a model for a window.
type ForwardResult = std::result::Result<ForwardFigures, RowError>;

/// Computes the statistics of the windows of one group, in order.
///
/// # Errors
/// A tensor of weights cannot be used, or a signal stopped the run.
pub(crate) fn run(
    whole: &WholeModelPlan,
    measure: &dyn Measure,
    windows: &[&[u32]],
    stop: &Stop,
) -> Result<Vec<PassResult>> {
    let output = forward(whole, windows, stop)?;
    let figures = |(ids, output): (&&[u32], ForwardResult)| {
        output.and_then(|output| figures(measure, ids, output))
    };
    Ok(windows.iter().zip(output).map(figures).collect())
}

/// Computes the statistics of a measure from the output of a whole model.
pub(crate) fn figures(measure: &dyn Measure, ids: &[u32], output: ForwardFigures) -> PassResult {
    let evidence = [Evidence::Forward(output)];
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
) -> Result<Vec<ForwardResult>> {
    let vocabulary = whole.model.spec().vocabulary_size;
    let beyond = |ids: &[u32]| ids.iter().position(|id| u64::from(*id) >= vocabulary);
    let known: Vec<&[u32]> = windows.iter().copied().filter(|ids| beyond(ids).is_none()).collect();
    let output = halving(&known, &mut |windows| {
        whole.model.measure(&whole.request, windows, &|| stop.check().is_ok())
    });
    let output = output.map_err(|problem| Failure::from(Diagnostic::from(problem)))?;
    if output.is_none() {
        stop.check()?;
    }
    let mut output = output.expect("a signal would have returned an error").into_iter();
    let of_window = |ids: &&[u32]| {
        if let Some(position) = beyond(ids) {
            let id = ids[position];
            let message = format!(
                "token {position} of the window is {id}, but the model's vocabulary has {vocabulary} entries"
            );
            return Err(RowError { code: "token_out_of_range", message });
        }
        Ok(output.next().expect("one result per window"))
    };
    Ok(windows.iter().map(of_window).collect())
}

/// Results of windows; `None` if a signal stopped the run.
type Computed<T> = std::result::Result<Option<Vec<T>>, ModelProblem>;

/// Computes the results of windows with `compute`. Whenever a device lacks the memory, splits the windows in halves and
/// retries each. Returns `None` if `compute` does.
fn halving<W, T>(windows: &[W], compute: &mut dyn FnMut(&[W]) -> Computed<T>) -> Computed<T> {
    match compute(windows) {
        Err(problem) if problem.kind == ProblemKind::Memory && windows.len() > 1 => {
            tracing::warn!(
                windows = windows.len(),
                "{problem}; retrying with half as many windows at a time"
            );
            let (first, second) = windows.split_at(windows.len() / 2);
            let Some(mut output) = halving(first, compute)? else { return Ok(None) };
            let Some(more) = halving(second, compute)? else { return Ok(None) };
            output.extend(more);
            Ok(Some(output))
        }
        computed => computed,
    }
}

#[cfg(test)]
mod tests {
    use longsift_stages::model::{ModelProblem, ProblemKind};

    use super::halving;

    #[test]
    fn windows_are_halved_until_they_fit_and_a_single_one_that_does_not_fit_is_an_error() {
        let mut calls = Vec::new();
        let mut fits = |max: usize, windows: &[u32]| {
            halving(windows, &mut |windows: &[u32]| {
                calls.push(windows.len());
                if windows.len() > max {
                    let problem = ModelProblem::machine("out of memory");
                    return Err(ModelProblem { kind: ProblemKind::Memory, ..problem });
                }
                Ok(Some(windows.to_vec()))
            })
        };
        assert_eq!(fits(2, &[1, 2, 3, 4, 5]), Ok(Some(vec![1, 2, 3, 4, 5])));
        assert_eq!(fits(0, &[1, 2]).unwrap_err().kind, ProblemKind::Memory);
        assert_eq!(calls, [5, 2, 3, 1, 2, 2, 1]);
        let failing = |_: &[u32]| Err::<Option<Vec<u32>>, _>(ModelProblem::machine("broken"));
        assert_eq!(halving(&[1, 2], &mut { failing }).unwrap_err().kind, ProblemKind::Machine);
        assert_eq!(halving(&[1, 2], &mut |_| Ok(None::<Vec<u32>>)), Ok(None));
    }
}
