//! First-layer attention measure: its evidence request, and statistics from the resulting sums.

use longsift_kernels::STATISTICS_VERSION;
use serde_json::json;

use crate::contract::{
    AttentionRequest, Column, Evidence, FarDistance, Kind, Measure, Merge, Needs, Orientation,
    Request, RowError, StatisticValues, Value, Window,
};
use crate::first_layer_attention::{FirstLayerAttention, WindowStatistics};

impl FirstLayerAttention {
    /// Returns the minimum distance of a far key.
    pub fn far_distance(&self) -> FarDistance {
        FarDistance::from_settings(self.min_distance_tokens, self.min_distance_fraction)
    }

    pub fn request(&self) -> AttentionRequest {
        AttentionRequest { distance: self.far_distance(), mask: self.mask, rows: self.rows }
    }
}

impl Measure for FirstLayerAttention {
    fn columns(&self) -> Vec<Column> {
        let number = |name: &'static str, doc: &'static str| {
            Column::number(name, "share of the attention", doc)
        };
        let unmerged = |column| Column { merge: Merge::Never, ..column };
        let list = |column| Column { kind: Kind::Numbers, ..unmerged(column) };
        let variance = |column| Column {
            unit: "squared share".into(),
            orientation: Orientation::Lower,
            ..column
        };
        vec![
            Column {
                kind: Kind::Count,
                unit: "tokens".into(),
                merge: Merge::Max,
                ..number("distance", "k, the minimum distance of a far key")
            },
            Column {
                error: Some("dependency_strength_se"),
                ..number(
                    "dependency_strength",
                    "attention of a row to keys at least k tokens earlier, mean over rows and heads",
                )
            },
            Column {
                error: Some("far_variance_se"),
                ..variance(number(
                    "far_variance",
                    "variance of the far-masked attention matrix over all its entries, mean over heads",
                ))
            },
            unmerged(number(
                "dependency_strength_se",
                "standard error of the dependency strength; null if all rows were measured",
            )),
            unmerged(variance(number(
                "far_variance_se",
                "standard error of the far variance; null if all rows were measured",
            ))),
            list(number("dependency_strength_by_head", "dependency strength of each query head")),
            list(variance(number("far_variance_by_head", "far variance of each query head"))),
            list(number(
                "distance_histogram",
                "attention by distance: bin 0 is distance 0, bin b is [2^(b-1), 2^b); null if rows were sampled",
            )),
        ]
    }

    fn needs(&self) -> Needs {
        Needs { evidence: vec![Request::Attention(self.request())], ..Needs::default() }
    }

    fn version(&self) -> u32 {
        STATISTICS_VERSION
    }

    fn facts(&self) -> serde_json::Value {
        let Self { min_distance_fraction: _, min_distance_tokens: _, mask, rows } = self;
        json!({ "min_distance": self.far_distance(), "mask": mask, "rows": rows })
    }

    fn min_tokens(&self) -> u64 {
        self.far_distance().min_tokens()
    }

    fn statistics(&self, window: &Window<'_>) -> Result<StatisticValues, RowError> {
        let [Evidence::Attention(sums)] = window.evidence else {
            unreachable!("the measure requests only attention")
        };
        let tokens = self.request().window_tokens(window.ids.to_vec());
        let statistics = WindowStatistics::new(sums.clone(), &tokens);
        all_finite("dependency strength", &statistics.dependency_strength_by_head)?;
        all_finite("far variance", &statistics.far_variance_by_head)?;
        let errors = statistics.standard_errors;
        let list = |numbers: &[f64]| match numbers {
            [] => Value::Null,
            numbers => Value::Numbers(numbers.to_vec()),
        };
        Ok(StatisticValues(vec![
            Value::Count(tokens.distance),
            Value::Number(statistics.dependency_strength()),
            Value::Number(statistics.far_variance()),
            Value::number(errors.map(|errors| errors.dependency_strength)),
            Value::number(errors.map(|errors| errors.far_variance)),
            list(&statistics.dependency_strength_by_head),
            list(&statistics.far_variance_by_head),
            list(&statistics.distance_histogram),
        ]))
    }
}

/// Rejects values that are not finite, which come from a corrupt checkpoint.
fn all_finite(what: &str, by_head: &[f64]) -> Result<(), RowError> {
    let damaged = by_head.iter().enumerate().find(|(_, value)| !value.is_finite());
    damaged.map_or(Ok(()), |(head, value)| {
        let message = format!("the {what} of head {head} is {value}, not a finite number");
        Err(RowError { code: "score_not_finite", message })
    })
}

#[cfg(test)]
mod tests {
    use longsift_kernels::HeadSums;

    use super::*;
    use crate::first_layer_attention::{Rows, RowsSampled};

    const TOKENS: usize = 400;

    /// Sums of two heads that share a key head.
    fn sums(rows: usize) -> HeadSums {
        HeadSums {
            far_mass: vec![40.0, 120.0],
            far_square: vec![4.0, 9.0],
            histograms: vec![20.0; 10],
            row_far_mass: (0..rows).map(|row| row as f64 / 500.0).collect(),
            row_far_square: (0..rows).map(|row| row as f64 / 5000.0).collect(),
        }
    }

    fn values(settings: &FirstLayerAttention, sums: HeadSums) -> Result<StatisticValues, RowError> {
        let ids: Vec<u32> = (0..TOKENS as u32).collect();
        let evidence = [Evidence::Attention(sums)];
        let window =
            Window { ids: &ids, text: None, text_half: None, document: &[], evidence: &evidence };
        settings.statistics(&window)
    }

    /// Checks that each column of a score table has the bits of [`WindowStatistics`].
    fn check(settings: &FirstLayerAttention, sums: &HeadSums) -> Vec<Value> {
        let window = settings.request().window_tokens((0..TOKENS as u32).collect());
        let expected = WindowStatistics::new(sums.clone(), &window);
        let values = values(settings, sums.clone()).unwrap().0;
        let columns = settings.columns();
        assert_eq!(columns.len(), values.len());
        let value = |name: &str| {
            let index = columns.iter().position(|column| column.name == name).unwrap();
            values[index].clone()
        };
        let errors = expected.standard_errors;
        assert_eq!(value("distance"), Value::Count(window.distance));
        assert_eq!(value("dependency_strength"), Value::Number(expected.dependency_strength()));
        assert_eq!(value("far_variance"), Value::Number(expected.far_variance()));
        assert_eq!(
            value("dependency_strength_se"),
            Value::number(errors.map(|errors| errors.dependency_strength))
        );
        assert_eq!(
            value("far_variance_se"),
            Value::number(errors.map(|errors| errors.far_variance))
        );
        assert_eq!(
            value("dependency_strength_by_head"),
            Value::Numbers(expected.dependency_strength_by_head)
        );
        assert_eq!(value("far_variance_by_head"), Value::Numbers(expected.far_variance_by_head));
        let histogram = expected.distance_histogram;
        let histogram = if histogram.is_empty() { Value::Null } else { Value::Numbers(histogram) };
        assert_eq!(value("distance_histogram"), histogram);
        values
    }

    #[test]
    fn values_equal_the_window_statistics() {
        let all = check(&FirstLayerAttention::default(), &sums(0));
        assert_eq!(all[0], Value::Count(100));
        let rows = Rows::Sampled(RowsSampled { per_window: 64, seed: 1 });
        let sampled =
            check(&FirstLayerAttention { rows, ..FirstLayerAttention::default() }, &sums(64));
        assert_eq!((&all[3], &sampled[7]), (&Value::Null, &Value::Null));
        assert!(matches!(sampled[3], Value::Number(error) if error > 0.0));
    }

    #[test]
    fn a_head_without_a_finite_statistic_is_named() {
        let mut damaged = sums(0);
        damaged.far_mass[1] = f64::NAN;
        let problem = values(&FirstLayerAttention::default(), damaged).unwrap_err();
        assert_eq!(problem.code, "score_not_finite");
        assert_eq!(
            problem.message,
            "the dependency strength of head 1 is NaN, not a finite number"
        );
    }

    #[test]
    fn standard_errors_have_their_own_columns() {
        let columns = FirstLayerAttention::default().columns();
        let known = |name: &str| columns.iter().any(|column| column.name == name);
        assert_eq!(columns.iter().filter_map(|column| column.error).count(), 2);
        assert!(columns.iter().filter_map(|column| column.error).all(known));
    }

    #[test]
    fn the_distance_is_that_of_the_settings() {
        let settings = |text| serde_json::from_str::<FirstLayerAttention>(text).unwrap();
        let in_window = |text, tokens| settings(text).far_distance().in_window(tokens);
        assert_eq!((in_window("{}", 10), in_window("{}", 257)), (4, 65));
        assert_eq!(in_window(r#"{"min_distance_fraction": 0.3}"#, 11), 4);
        assert_eq!(in_window(r#"{"min_distance_tokens": 7}"#, 10), 7);
        assert_eq!(settings("{}").facts(), settings(r#"{"min_distance_fraction": 0.25}"#).facts());
        assert_eq!(settings("{}").min_tokens(), 4);
    }
}
