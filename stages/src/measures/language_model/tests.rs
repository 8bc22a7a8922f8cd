use super::*;
use crate::contract::{ForwardStatistics, Kind, LayerAttention, Merge, Value};

fn settings(yaml: serde_json::Value) -> LanguageModel {
    serde_json::from_value(yaml).unwrap()
}

fn with_layers() -> LanguageModel {
    settings(json!({
        "short_context_tokens": 4,
        "attention_layers": [3, { "layer": 1, "heads": [2, 0] }],
        "ladm": { "span_tokens": 1, "d_afs": 1, "d_cds": 1 },
    }))
}

fn evidence() -> ForwardStatistics {
    let layer = |first: f64| LayerAttention {
        far_mass: vec![8.0 * first, 16.0 * first, 24.0 * first],
        far_square: vec![first, first, 4.0 * first],
        context_dependence: Some(first),
    };
    ForwardStatistics {
        losses: vec![1.0, 2.0, 3.0, 1.5, 0.5, 2.5, 1.0],
        short_losses: vec![2.0, 4.0, 2.0, 4.0],
        layers: vec![layer(0.25), layer(0.5)],
    }
}

fn values(settings: &LanguageModel, tokens: usize) -> Vec<(String, Value)> {
    let evidence = [Evidence::Forward(evidence())];
    let ids = vec![0; tokens];
    let (text, text_half, document) = (None, None, &[][..]);
    let window = Window { ids: &ids, text, text_half, document, evidence: &evidence };
    let values = settings.statistics(&window).unwrap().0;
    let names = settings.columns().into_iter().map(|column| column.name.into_owned());
    names.zip(values).collect()
}

fn value(values: &[(String, Value)], name: &str) -> Value {
    let found = values.iter().find(|(known, _)| known == name);
    found.unwrap_or_else(|| panic!("{name} in {values:?}")).1.clone()
}

fn number(values: &[(String, Value)], name: &str) -> f64 {
    value(values, name).finite().unwrap_or_else(|| panic!("{name}"))
}

fn near(got: f64, want: f64) {
    assert!((got - want).abs() < 1e-12, "{got} for {want}");
}

#[test]
fn gains_cover_the_tokens_after_the_short_context() {
    let values = values(&with_layers(), 8);
    near(number(&values, "mean_loss"), 11.5 / 7.0);
    near(number(&values, "perplexity"), (11.5_f64 / 7.0).exp());
    // Gains 0.5, 3.5, -0.5 and 3 of the losses 1.5, 0.5, 2.5 and 1: the second and the last are key tokens.
    near(number(&values, "long_gain"), 6.5 / 4.0);
    let weighed = 0.5 * (-1.5_f64).exp() + 3.5 * (-0.5_f64).exp() - 0.5 * (-2.5_f64).exp()
        + 3.0 * (-1.0_f64).exp();
    near(number(&values, "longfilter"), weighed / 4.0);
    near(number(&values, "key_share"), 0.5);
    near(number(&values, "longppl"), 0.75_f64.exp());
    assert_eq!(value(&values, "long_gain_by_position"), Value::Numbers(vec![6.5 / 4.0]));
}

#[test]
fn a_layer_has_the_requested_heads_in_order() {
    let values = values(&with_layers(), 8);
    assert_eq!(value(&values, "layer_dependency_strength"), Value::Numbers(vec![1.0, 0.5]));
    let by_head = Value::Numbers(vec![0.5, 1.0, 1.5, 0.75, 0.25]);
    assert_eq!(value(&values, "layer_dependency_strength_by_head"), by_head);
    near(number(&values, "dependency_strength_layer_3"), 1.0);
    near(number(&values, "dependency_strength_layer_1_heads_2_0"), 0.5);
    let variance = |mass: f64, square: f64| (square - mass * mass / 64.0) / 63.0;
    let mean = f64::midpoint(variance(6.0, 1.0), variance(2.0, 0.25));
    near(number(&values, "far_variance_layer_1_heads_2_0"), mean);
    assert_eq!(value(&values, "layer_cds"), Value::Numbers(vec![0.5, 0.25]));
    near(number(&values, "cds"), 0.375);
}

#[test]
fn columns_match_the_settings() {
    let names = |settings: &LanguageModel| -> Vec<String> {
        settings.columns().into_iter().map(|column| column.name.into_owned()).collect()
    };
    let losses = names(&settings(json!({ "short_context_tokens": 0 })));
    assert_eq!(losses, ["mean_loss", "perplexity", "loss_sum", "loss_tokens"]);
    let layers = names(&settings(json!({ "losses": false, "attention_layers": [2] })));
    assert_eq!(layers[0], "dependency_strength_layer_2");
    assert_eq!(layers.len(), 6, "{layers:?}");
    assert_eq!(names(&LanguageModel::default()).len(), 14);
    // Both statistics of a document's ratio exist, under the name of the stage.
    let columns: Vec<Column> =
        with_layers().columns().into_iter().map(|column| column.prefixed("own")).collect();
    for column in &columns {
        if let Merge::Ratio { numerator, denominator, .. } = &column.merge {
            for name in [numerator, denominator] {
                let term = columns.iter().find(|column| column.name == *name);
                assert!(
                    term.is_some_and(|term| term.merge == Merge::Sum && term.kind != Kind::Numbers)
                );
            }
        }
    }
}

#[test]
fn a_window_without_far_keys_has_no_attention_statistics() {
    let near =
        settings(json!({ "losses": false, "attention_layers": [1, 3], "min_distance_tokens": 8 }));
    assert!(values(&near, 8).iter().all(|(_, value)| *value == Value::Null));
    assert!(values(&near, 9).iter().all(|(_, value)| *value != Value::Null));
}

#[test]
fn attention_that_is_not_finite_is_an_error() {
    let mut evidence = evidence();
    evidence.layers[1].far_square[0] = f64::NAN;
    let evidence = [Evidence::Forward(evidence)];
    let (ids, text, text_half, document) = (&[0; 8][..], None, None, &[][..]);
    let window = Window { ids, text, text_half, document, evidence: &evidence };
    let why = with_layers().statistics(&window).unwrap_err();
    assert_eq!(why.code, "score_not_finite");
    assert!(why.message.starts_with("the attention of layer 3 is not finite"), "{why}");
}

#[test]
fn contradictory_settings_are_rejected_with_a_fix() {
    let refused = |yaml: serde_json::Value, window: u32| -> Vec<(String, String)> {
        let broken = settings(yaml).broken_rules(window).into_iter();
        broken.map(|rule| (rule.setting, rule.message)).collect()
    };
    let one = |yaml: serde_json::Value, setting: &str, message: &str| {
        let broken = refused(yaml, 64);
        assert_eq!(broken.len(), 1, "{broken:?}");
        assert!(broken[0].0 == setting && broken[0].1.contains(message), "{broken:?}");
    };
    one(json!({}), "", "windows have at most 64 tokens, short windows 4096");
    one(json!({ "short_context_tokens": 64 }), "short_context_tokens", "short windows 64");
    one(json!({ "short_context_tokens": 1 }), "short_context_tokens", "a short window of 1 token");
    one(json!({ "losses": false }), "losses", "nothing to measure");
    let layers = |more: serde_json::Value| {
        let mut all = json!({ "losses": false, "attention_layers": [1] });
        all.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        all
    };
    one(layers(json!({ "short_context_tokens": 8 })), "short_context_tokens", "disabled");
    one(layers(json!({ "min_distance_tokens": 64 })), "attention_layers", "no token is that far");
    one(
        layers(json!({ "attention_layers": [1, 2, 1] })),
        "attention_layers.2",
        "`layer_1` is listed twice",
    );
    let heads = json!({ "attention_layers": [{ "layer": 1, "heads": [0, 0] }] });
    one(layers(heads), "attention_layers.0", "head 0 is listed twice");
    one(layers(json!({ "ladm": {} })), "ladm", "too short for spans of 128 tokens");
    one(
        json!({ "short_context_tokens": 0, "sink_tokens": 4 }),
        "sink_tokens",
        "needs `attention_layers`, which is empty",
    );
    assert!(refused(json!({ "short_context_tokens": 63 }), 64).is_empty());
    let unknown = with_layers().unknown_layers(3, 2);
    let messages: Vec<&str> = unknown.iter().map(|rule| &*rule.message).collect();
    assert_eq!(
        messages,
        [
            "layer 3 does not exist: the model has 3 layers",
            "head 2 does not exist: a layer of the model has 2 query heads"
        ]
    );
}
