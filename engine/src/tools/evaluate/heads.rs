//! Evaluation of the attention heads of a whole model: the ladder and the pairs of `evaluate`, for one head at a time.

use std::collections::{BTreeMap, BTreeSet};

use longsift_stages::contract::{Kind, StatisticValues};
use longsift_stages::{LanguageModel, StageSettings};
use schemars::JsonSchema;
use serde::Serialize;

use super::estimates::IntervalEstimate;
use super::measure::MeasuredValues;
use super::report::ResultInput;
use super::statistics::HeadValues;
use crate::base::diagnostic::{Blame, Diagnostic};
use crate::base::error::Result;
use crate::plan::Plan;

/// Kinds of windows with results for heads, in the order of their display: name, description and result.
pub(crate) const KINDS_OF_HEADS: [HeadKind; 3] = [
    ("pieces_2", "AUROC of whole windows against windows of two pieces", |head| head.pieces_2),
    ("pieces_8", "AUROC of whole windows against windows of eight pieces", |head| head.pieces_8),
    (
        "far_permute",
        "share of pairs that the whole window wins against itself with a permuted first half",
        |head| head.far_permute,
    ),
];

type HeadKind = (&'static str, &'static str, fn(&HeadSeparation) -> IntervalEstimate);

const BY_HEAD: &str = "layer_dependency_strength_by_head";

#[derive(Clone, Debug)]
pub(crate) struct HeadColumn {
    pub(crate) measure: String,
    /// Index of the measure in the plan, and of the column of heads in the measure.
    index: (usize, usize),
    /// Layer and head, in the order of the column.
    heads: Vec<(u32, u32)>,
}

/// Results for the heads of one measure.
#[derive(Clone, Debug, Serialize, JsonSchema)]
#[schemars(rename = "HeadsOf")]
pub(crate) struct HeadResults {
    /// Name of the measure.
    pub(crate) measure: String,
    /// Results in the order of layers and heads.
    pub(crate) heads: Vec<HeadSeparation>,
}

/// Results for the dependency strength of one head.
#[derive(Clone, Copy, Debug, Serialize, JsonSchema)]
#[schemars(rename = "HeadFigures")]
pub(crate) struct HeadSeparation {
    pub(crate) layer: u32,
    pub(crate) head: u32,
    /// AUROC of whole windows against windows of two pieces.
    pub(crate) pieces_2: IntervalEstimate,
    /// AUROC of whole windows against windows of eight pieces.
    pub(crate) pieces_8: IntervalEstimate,
    /// Share of pairs that the whole window wins against itself with a permuted first half.
    pub(crate) far_permute: IntervalEstimate,
}

impl HeadResults {
    /// Returns the `max` heads that separate joined windows best, the best first.
    pub(crate) fn best(&self, max: usize) -> Vec<HeadSeparation> {
        let rank = |head: &HeadSeparation| {
            Some((f64::midpoint(head.pieces_2.value?, head.pieces_8.value?), *head))
        };
        let mut ranked: Vec<(f64, HeadSeparation)> = self.heads.iter().filter_map(rank).collect();
        ranked.sort_by(|(one, _), (other, _)| other.total_cmp(one));
        ranked.into_iter().take(max).map(|(_, head)| head).collect()
    }

    /// Returns the layers and heads with results, ascending, and a result by layer and head.
    pub(crate) fn cells(
        &self,
        result: fn(&HeadSeparation) -> IntervalEstimate,
    ) -> (Vec<u32>, Vec<u32>, Vec<Vec<Option<f64>>>) {
        let sorted = |number: fn(&HeadSeparation) -> u32| {
            self.heads.iter().map(number).collect::<BTreeSet<_>>().into_iter().collect::<Vec<_>>()
        };
        let (layers, heads) = (sorted(|of| of.layer), sorted(|of| of.head));
        let cell = |layer: u32, head: u32| {
            let found = self.heads.iter().find(|of| (of.layer, of.head) == (layer, head));
            found.and_then(|of| result(of).value)
        };
        let row = |layer: &u32| heads.iter().map(|head| cell(*layer, *head)).collect();
        let cells = layers.iter().map(row).collect();
        (layers, heads, cells)
    }
}

/// Returns the heads that the measures of a plan report; fails without any.
pub(crate) fn head_columns(plan: &Plan) -> Result<Vec<HeadColumn>> {
    let mut all = Vec::new();
    for (measure_index, whole) in &plan.whole_models {
        let index = usize::from(*measure_index);
        let stage = &plan.spec.pipeline.stages[plan.measures.stage(*measure_index)];
        let StageSettings::LanguageModel(settings) = stage else { continue };
        let heads = heads_of(settings, whole.model.spec().query_heads as u32);
        let columns = &plan.measures.columns[index].columns;
        let column =
            columns.iter().position(|of| of.kind == Kind::Numbers && of.name.ends_with(BY_HEAD));
        if let Some(column) = column {
            all.push(HeadColumn { measure: whole.measure.clone(), index: (index, column), heads });
        }
    }
    if all.is_empty() {
        let message = "no measure of the pipeline reports heads of a whole model";
        return Err(Diagnostic::error(Blame::Pipeline, message)
            .hint("add `attention_layers: [0, 1, …]` to a stage `language-model`, or leave `--heads` out")
            .into());
    }
    Ok(all)
}

/// Returns layer and head in the order in which the measure lists them.
fn heads_of(settings: &LanguageModel, all: u32) -> Vec<(u32, u32)> {
    let of_layer = |layer: &longsift_stages::measures::language_model::AttentionLayer| {
        let heads = layer.heads().map_or_else(|| (0..all).collect(), <[u32]>::to_vec);
        let layer = layer.layer();
        heads.into_iter().map(move |head| (layer, head)).collect::<Vec<_>>()
    };
    settings.attention_layers.iter().flat_map(of_layer).collect()
}

impl HeadColumn {
    pub(crate) fn values(&self) -> HeadValues {
        vec![Vec::new(); self.heads.len()]
    }

    pub(crate) fn push(&self, values: &mut [Vec<Option<f64>>], measured: &MeasuredValues) {
        let (measure, column) = self.index;
        let numbers = match &measured[measure] {
            Some(StatisticValues(of)) => of[column].numbers(),
            None => &[],
        };
        for (head, values) in values.iter_mut().enumerate() {
            values.push(numbers.get(head).copied().filter(|number| number.is_finite()));
        }
    }

    /// Evaluates all heads; a head that is listed twice is reported once.
    pub(crate) fn results(
        &self,
        values: &[Vec<Option<f64>>],
        windows: &ResultInput<'_>,
    ) -> HeadResults {
        let columns: BTreeMap<_, _> = self.heads.iter().zip(values).collect();
        let heads = columns.into_iter().map(|((layer, head), values)| {
            let [pieces_2, pieces_8, far_permute] =
                KINDS_OF_HEADS.map(|(kind, ..)| windows.for_kind(values, kind));
            HeadSeparation { layer: *layer, head: *head, pieces_2, pieces_8, far_permute }
        });
        HeadResults { measure: self.measure.clone(), heads: heads.collect() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heads_are_in_the_order_of_the_column() {
        let settings: LanguageModel = serde_json::from_str(
            r#"{"attention_layers": [3, {"layer": 1, "heads": [2, 0]}, {"layer": 3, "heads": [1]}]}"#,
        )
        .unwrap();
        let heads = [(3, 0), (3, 1), (3, 2), (1, 2), (1, 0), (3, 1)];
        assert_eq!(heads_of(&settings, 3), heads);
    }

    #[test]
    fn heads_are_ranked_and_those_without_results_left_out() {
        let estimate = |value| IntervalEstimate { value, interval: None };
        let head = |layer, head, two, eight| HeadSeparation {
            layer,
            head,
            pieces_2: estimate(two),
            pieces_8: estimate(eight),
            far_permute: estimate(None),
        };
        let heads = vec![
            head(0, 0, Some(0.5), Some(0.6)),
            head(0, 1, Some(0.9), None),
            head(2, 1, Some(0.8), Some(0.9)),
        ];
        let of = HeadResults { measure: "m".to_owned(), heads };
        let best: Vec<_> = of.best(5).iter().map(|head| (head.layer, head.head)).collect();
        assert_eq!(best, [(2, 1), (0, 0)]);
        let (layers, heads, cells) = of.cells(|head| head.pieces_2);
        assert_eq!((layers, heads), (vec![0, 2], vec![0, 1]));
        assert_eq!(cells, [[Some(0.5), Some(0.9)], [None, Some(0.8)]]);
    }
}
