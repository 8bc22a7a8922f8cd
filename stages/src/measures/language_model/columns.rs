//! Columns of the measure, and values of its attention columns.

use longsift_kernels::WindowSums;

use super::settings::{AttentionLayer, LanguageModel};
use crate::contract::{
    Column, ForwardStatistics, Kind, LayerAttention, Merge, Orientation, RowError, Value,
};

/// Returns the columns that the measure writes, in the order of its values.
pub(super) fn declare(settings: &LanguageModel) -> Vec<Column> {
    let mut columns = Vec::new();
    if settings.losses {
        columns.extend(losses());
        if settings.short_context().is_some() {
            columns.extend(gains());
            columns.push(gain_by_position());
        }
    }
    if !settings.attention_layers.is_empty() {
        columns.extend(attention_columns(settings));
    }
    columns
}

fn ratio(numerator: &'static str, denominator: &'static str, exponential: bool) -> Merge {
    Merge::Ratio { numerator: numerator.into(), denominator: denominator.into(), exponential }
}

fn sum(column: Column) -> Column {
    Column { merge: Merge::Sum, ..column }
}

fn lower(column: Column) -> Column {
    Column { orientation: Orientation::Lower, ..column }
}

fn losses() -> [Column; 4] {
    [
        lower(Column {
            merge: ratio("loss_sum", "loss_tokens", false),
            ..Column::number("mean_loss", "nats per token", "mean loss of all tokens but the first")
        }),
        lower(Column {
            merge: ratio("loss_sum", "loss_tokens", true),
            ..Column::number("perplexity", "tokens", "e to the power of the mean loss")
        }),
        sum(lower(Column::number(
            "loss_sum",
            "nats",
            "sum of the losses of all tokens but the first",
        ))),
        sum(Column {
            kind: Kind::Count,
            ..Column::number("loss_tokens", "tokens", "tokens that have a loss: all but the first")
        }),
    ]
}

fn gains() -> [Column; 9] {
    let count = |name: &'static str, doc: &'static str| {
        sum(Column { kind: Kind::Count, ..Column::number(name, "tokens", doc) })
    };
    [
        Column {
            merge: ratio("gain_sum", "counted_tokens", false),
            ..Column::number(
                "long_gain",
                "nats per token",
                "loss with a short context minus loss with the whole window, mean over tokens beyond the short context",
            )
        },
        Column {
            merge: ratio("longfilter_sum", "counted_tokens", false),
            ..Column::number(
                "longfilter",
                "nats per token",
                "LongFilter: gain of each token times its probability with the whole window, mean over the same tokens",
            )
        },
        Column {
            merge: ratio("key_tokens", "counted_tokens", false),
            ..Column::number(
                "key_share",
                "share of the tokens",
                "tokens beyond the short context that gain more than 2 nats and have a loss below 2",
            )
        },
        lower(Column {
            merge: ratio("key_loss_sum", "key_tokens", true),
            ..Column::number(
                "longppl",
                "tokens",
                "LongPPL: perplexity of these key tokens; null without key tokens",
            )
        }),
        sum(Column::number("gain_sum", "nats", "numerator of long_gain")),
        sum(Column::number("longfilter_sum", "nats", "numerator of longfilter")),
        sum(Column::number(
            "key_loss_sum",
            "nats",
            "sum of the losses of key tokens with the whole window",
        )),
        count("counted_tokens", "tokens beyond the short context"),
        count("key_tokens", "key tokens among them"),
    ]
}

fn gain_by_position() -> Column {
    Column {
        kind: Kind::Numbers,
        merge: Merge::Never,
        ..Column::number(
            "long_gain_by_position",
            "nats per token",
            "mean gain of the tokens at 1 to 2, 2 to 4, 4 to 8, … times the short context; falls beyond the trained length",
        )
    }
}

fn attention_columns(settings: &LanguageModel) -> Vec<Column> {
    const SHARE: &str = "share of the attention";
    const SQUARED: &str = "squared share";
    let unmerged = |column| Column { merge: Merge::Never, ..column };
    let listed = |column| Column { kind: Kind::Numbers, ..unmerged(column) };
    let mut columns = Vec::new();
    for layer in &settings.attention_layers {
        let label = layer.label();
        columns.push(Column::number(
            format!("dependency_strength_{label}"),
            SHARE,
            "attention of a row to keys at least k tokens earlier, sink excluded, mean over rows and these heads",
        ));
        columns.push(lower(Column::number(
            format!("far_variance_{label}"),
            SQUARED,
            "variance of the far-masked attention matrix over all its entries, mean over these heads",
        )));
    }
    if settings.ladm.is_some() {
        columns.push(Column::number(
            "cds",
            "LADM's score",
            "LADM's contextual dependency, mean over the requested layers",
        ));
    }
    columns.extend([
        listed(Column::number(
            "layer_dependency_strength",
            SHARE,
            "dependency strength of each requested layer, in order",
        )),
        listed(lower(Column::number(
            "layer_far_variance",
            SQUARED,
            "far variance of each requested layer, in order",
        ))),
        listed(Column::number(
            "layer_dependency_strength_by_head",
            SHARE,
            "dependency strength of each requested head, layer by layer, in order",
        )),
        listed(lower(Column::number(
            "layer_far_variance_by_head",
            SQUARED,
            "far variance of each requested head, layer by layer, in order",
        ))),
    ]);
    if settings.ladm.is_some() {
        columns.push(listed(Column::number(
            "layer_cds",
            "LADM's score",
            "LADM's contextual dependency of each requested layer, in order",
        )));
    }
    columns
}

/// Computes the values of the attention columns.
/// Fails if a value is not finite: queries and keys are too large for float32.
pub(super) fn attention(
    settings: &LanguageModel,
    evidence: &ForwardStatistics,
    tokens: usize,
    values: &mut Vec<Value>,
) -> Result<(), RowError> {
    let request = settings.request().attention;
    let computed = request.map_or_else(Vec::new, |request| request.layers);
    let of_layer = |layer: &AttentionLayer| {
        let at = computed.binary_search(&layer.layer()).expect("every layer was requested");
        &evidence.layers[at]
    };
    // A window without far pairs has no far statistics.
    let is_far = settings.distance().in_window(tokens as u64) < tokens as u64;
    let mut strengths: Vec<Vec<f64>> = Vec::new();
    let mut variances: Vec<Vec<f64>> = Vec::new();
    for layer in &settings.attention_layers {
        let LayerAttention { far_mass, far_square, .. } = of_layer(layer);
        let sums = WindowSums {
            far_mass: far_mass.clone(),
            far_square: far_square.clone(),
            histogram: Vec::new(),
            row_far_mass: Vec::new(),
        };
        strengths.push(chosen(layer, &sums.dependency_strength(tokens)));
        variances.push(chosen(layer, &sums.far_variance(tokens)));
        let finite = |values: &[f64]| values.iter().all(|value| value.is_finite());
        if !finite(far_mass) || !finite(far_square) {
            let message = format!(
                "the attention of layer {} is not finite: its queries and keys are too large for float32",
                layer.layer()
            );
            return Err(RowError { code: "score_not_finite", message });
        }
    }
    let (mean_strengths, mean_variances) = (means(&strengths), means(&variances));
    for (strength, variance) in mean_strengths.iter().zip(&mean_variances) {
        values.push(Value::number(is_far.then_some(*strength)));
        values.push(Value::number(is_far.then_some(*variance)));
    }
    let layers = settings.attention_layers.iter();
    let scores: Option<Vec<f64>> = layers.map(|layer| of_layer(layer).context_dependence).collect();
    if settings.ladm.is_some() {
        let unique: Option<Vec<f64>> =
            evidence.layers.iter().map(|layer| layer.context_dependence).collect();
        values.push(Value::number(unique.map(|scores| mean(&scores))));
    }
    values.push(list(is_far.then_some(mean_strengths)));
    values.push(list(is_far.then_some(mean_variances)));
    values.push(list(is_far.then(|| strengths.concat())));
    values.push(list(is_far.then(|| variances.concat())));
    if settings.ladm.is_some() {
        values.push(list(scores));
    }
    Ok(())
}

/// Selects the requested heads.
fn chosen(layer: &AttentionLayer, by_head: &[f64]) -> Vec<f64> {
    match layer.heads() {
        None => by_head.to_vec(),
        Some(heads) => heads.iter().map(|head| by_head[*head as usize]).collect(),
    }
}

fn means(by_layer: &[Vec<f64>]) -> Vec<f64> {
    by_layer.iter().map(|heads| mean(heads)).collect()
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

/// Converts a list; `None` becomes null.
pub(super) fn list(numbers: Option<Vec<f64>>) -> Value {
    numbers.map_or(Value::Null, Value::Numbers)
}
