//! Reads the rotary embedding from `config.json`: `rope_theta` and `rope_scaling`, or `rope_parameters`.

use longsift_kernels::RopeStyle;

use super::fields::Fields;
use super::problem::ModelProblem;
use super::rope::{RopeScaling, RopeSpec, yarn_attention_factor};

const KNOWN_TYPES: &str = "default, linear, dynamic, yarn, llama3, longrope";
const MAX_POSITIONS: u64 = 1 << 32;
/// Model types with rope parameters for each layer type.
const WITH_LAYER_TYPES: [&str; 3] = ["gemma3", "gemma3_text", "olmo3"];

/// Properties of a family's rotary embedding.
pub(crate) struct RopeDefaults {
    pub(crate) pairing: RopeStyle,
    /// Default of the base frequency, from the family's configuration class.
    pub(crate) theta: f64,
    /// Number of dimensions of each head that rotate.
    pub(crate) rotary_dims: u64,
    /// `max_position_embeddings`, as stated or the family's default.
    pub(crate) max_positions: u64,
    /// Default of the original training length, if the family reads that next to the scaling.
    pub(crate) original_positions: Option<u64>,
    /// Whether `dynamic` scaling may be given by `alpha`, a factor of the base (Hunyuan).
    pub(crate) alpha: bool,
}

impl RopeDefaults {
    /// Creates the properties of a family without special scaling.
    pub(crate) fn new(
        pairing: RopeStyle,
        theta: f64,
        rotary_dims: u64,
        max_positions: u64,
    ) -> Self {
        Self { pairing, theta, rotary_dims, max_positions, original_positions: None, alpha: false }
    }
}

/// Returns how many of a head's `head_dim` dimensions rotate, from `partial_rotary_factor`.
pub(crate) fn rotary_dims(config: &Fields<'_>, head_dim: u64, default: f64) -> u64 {
    let types = config.optional_texts("layer_types");
    let first = types.and_then(|types| types.first().copied());
    let nested = nested(config, first);
    let factor = nested.and_then(|rope| rope.optional_positive("partial_rotary_factor"));
    let written = factor.or_else(|| config.optional_positive("partial_rotary_factor"));
    if written.is_none() && default < 1.0 && config.contains("partial_rotary_factor") {
        let message = "`partial_rotary_factor` in config.json is `null`, which versions of transformers read differently";
        config.note(
            ModelProblem::settings(message)
                .with_hint("write the number with which the model was trained into config.json"),
        );
    }
    let factor = written.unwrap_or(default);
    let dims = (head_dim as f64 * factor) as u64;
    if config.is_clean() && !(1..=head_dim).contains(&dims) {
        config.contradict(format!(
            "`partial_rotary_factor` {factor} makes {dims} of a head's {head_dim} dimensions rotate"
        ));
    }
    dims.clamp(1, head_dim.max(1))
}

/// Whether the model has rope parameters for each layer type.
fn has_layer_types(config: &Fields<'_>) -> bool {
    config.optional_text("model_type").is_some_and(|kind| WITH_LAYER_TYPES.contains(&kind))
}

/// Reads the rotary embedding. [`Fields::rope_theta`] replaces the checkpoint's base; the scaling is unchanged.
pub(crate) fn read(config: &Fields<'_>, defaults: &RopeDefaults) -> RopeSpec {
    let types = config.optional_texts("layer_types");
    let first = types.and_then(|types| types.first().copied());
    let objects = ["rope_scaling", "rope_parameters"].map(|name| config.optional_object(name));
    let has_types =
        objects.iter().flatten().any(|rope| first.is_some_and(|kind| rope.contains(kind)));
    let model_type = config.optional_text("model_type").unwrap_or_default();
    if has_types && !has_layer_types(config) {
        config.refuse(format!(
            "`{model_type}` models do not read an object of rope parameters for each layer type"
        ));
    }
    if has_layer_types(config) {
        let [scaling, parameters] = &objects;
        let is_flat = |rope: &Fields<'_>| {
            !rope.is_empty()
                && !["full_attention", "sliding_attention"].iter().any(|kind| rope.contains(kind))
        };
        if parameters.as_ref().is_some_and(is_flat) {
            let message = format!(
                "`{model_type}` models do not read `rope_parameters` without an object for each layer type"
            );
            config.note(
                ModelProblem::settings(message).with_hint(
                    "write the parameters into `full_attention` and `sliding_attention`",
                ),
            );
        }
        if scaling.as_ref().is_some_and(|rope| is_flat(rope) && !rope.contains("rope_type")) {
            let message = format!(
                "versions of transformers read `type` in `rope_scaling` of `{model_type}` models differently"
            );
            config.note(
                ModelProblem::settings(message).with_hint(
                    "rename it to `rope_type` if the model was trained with this scaling",
                ),
            );
        }
    }
    read_for_layer_type(config, defaults, first)
}

/// Reads the rotary embedding of one layer type, for a config.json with one object per type.
pub(crate) fn read_for_layer_type(
    config: &Fields<'_>,
    defaults: &RopeDefaults,
    layer_type: Option<&str>,
) -> RopeSpec {
    let nested = nested(config, layer_type);
    let written = nested.as_ref().and_then(|rope| rope.optional_positive("rope_theta"));
    let written =
        written.or_else(|| config.optional_positive("rope_theta")).unwrap_or(defaults.theta);
    let alpha = nested.as_ref().filter(|rope| defaults.alpha && kind(rope) == "dynamic");
    let alpha = alpha.and_then(|rope| rope.optional_positive("alpha"));
    let exponent = defaults.rotary_dims as f64 / (defaults.rotary_dims as f64 - 2.0);
    let base_factor = alpha.map_or(1.0, |alpha| libm::pow(alpha, exponent));
    let nested = nested.filter(|_| alpha.is_none());
    RopeSpec {
        pairing: defaults.pairing,
        rotary_dims: defaults.rotary_dims,
        theta: config.rope_theta.unwrap_or(written) * base_factor,
        scaling: nested.map_or(RopeScaling::Default, |rope| scaling(config, &rope, defaults)),
    }
}

/// Returns the object of `layer_type` if the old or the new location has one object per layer type, otherwise the nested object at
/// the old or the new location; `None` if it is absent, `null` or empty.
pub(crate) fn nested<'a>(config: &Fields<'a>, layer_type: Option<&str>) -> Option<Fields<'a>> {
    let objects = ["rope_scaling", "rope_parameters"].map(|name| config.optional_object(name));
    let of_type = |rope: &Fields<'a>| {
        layer_type.filter(|kind| rope.contains(kind)).map(|kind| rope.optional_object(kind))
    };
    match objects.iter().flatten().find_map(of_type) {
        Some(of_type) => of_type,
        None => objects.into_iter().flatten().find(|rope| !rope.is_empty()),
    }
}

fn kind<'a>(rope: &Fields<'a>) -> &'a str {
    rope.optional_text("rope_type").or_else(|| rope.optional_text("type")).unwrap_or("default")
}

fn scaling(config: &Fields<'_>, rope: &Fields<'_>, defaults: &RopeDefaults) -> RopeScaling {
    let kind = kind(rope);
    // An entry next to `rope_scaling` takes precedence over the one inside, except in models with layer types; the model's own
    // positions replace both.
    let original = || {
        let default = || defaults.original_positions.or_else(|| original_positions(rope));
        let next = original_positions(config).filter(|_| !has_layer_types(config));
        next.or_else(default).unwrap_or(defaults.max_positions)
    };
    match kind {
        "default" => RopeScaling::Default,
        "linear" => RopeScaling::Linear { factor: rope.positive("factor") },
        "dynamic" if rope.contains("alpha") => {
            rope.refuse("dynamic rope scaling by `alpha` is not supported for this model type");
            RopeScaling::Default
        }
        "dynamic" if defaults.rotary_dims <= 2 => {
            rope.contradict("dynamic rope scaling needs more than 2 rotating dimensions");
            RopeScaling::Default
        }
        "dynamic" => RopeScaling::Dynamic {
            factor: rope.positive("factor"),
            max_positions: defaults.max_positions,
        },
        "longrope" | "su" => long_rope(rope, original(), defaults),
        // Name in Phi-3's first releases.
        "yarn" if defaults.original_positions.is_some() && rope.contains("long_factor") => {
            long_rope(rope, original(), defaults)
        }
        "yarn" => yarn(rope, original(), defaults.max_positions),
        "llama3" => llama3(rope, original()),
        unknown => {
            let message = format!("rope scaling `{unknown}` is not supported");
            rope.note(
                ModelProblem::settings(message).with_hint(format!("supported are {KNOWN_TYPES}")),
            );
            RopeScaling::Default
        }
    }
}

pub(super) fn original_positions(config: &Fields<'_>) -> Option<u64> {
    config.optional_size("original_max_position_embeddings", MAX_POSITIONS)
}

fn yarn(rope: &Fields<'_>, original_positions: u64, max_positions: u64) -> RopeScaling {
    // If `factor` is null, the library uses the ratio of the positions; if it is missing, the library refuses the
    // configuration.
    let ratio = max_positions as f64 / original_positions as f64;
    let null = rope.contains("factor") && rope.value("factor").is_none();
    let factor = if null { ratio } else { rope.positive("factor") };
    let number =
        |name, default| rope.optional_number(name).filter(|value| *value != 0.0).unwrap_or(default);
    let implied = || {
        yarn_attention_factor(
            factor,
            rope.optional_number("mscale"),
            rope.optional_number("mscale_all_dim"),
        )
    };
    RopeScaling::Yarn {
        factor,
        original_positions,
        beta_fast: number("beta_fast", 32.0),
        beta_slow: number("beta_slow", 1.0),
        truncate: rope.flag("truncate", true),
        attention_factor: rope.optional_number("attention_factor").unwrap_or_else(implied),
    }
}

fn long_rope(rope: &Fields<'_>, original_positions: u64, defaults: &RopeDefaults) -> RopeScaling {
    let factors = |name: &str| {
        let factors = rope.optional_numbers(name).unwrap_or_default();
        let (count, wanted) = (factors.len() as u64, defaults.rotary_dims / 2);
        if count != wanted || factors.iter().any(|factor| *factor <= 0.0) {
            let message = format!("`{name}` of longrope is not a list of {wanted} numbers above 0");
            rope.contradict(message);
        }
        factors
    };
    let ratio = defaults.max_positions as f64 / original_positions as f64;
    let factor = rope.optional_positive("factor").unwrap_or(ratio);
    let implied = || match factor {
        ..=1.0 => 1.0,
        _ => (1.0 + libm::log(factor) / libm::log(original_positions as f64)).sqrt(),
    };
    RopeScaling::LongRope {
        short_factors: factors("short_factor"),
        long_factors: factors("long_factor"),
        original_positions,
        attention_factor: rope.optional_number("attention_factor").unwrap_or_else(implied),
    }
}

fn llama3(rope: &Fields<'_>, original_positions: u64) -> RopeScaling {
    let (low, high) = (rope.positive("low_freq_factor"), rope.positive("high_freq_factor"));
    if low >= high {
        rope.contradict(format!("`low_freq_factor` {low} is not below `high_freq_factor` {high}"));
    }
    RopeScaling::Llama3 {
        factor: rope.positive("factor"),
        low_freq_factor: low,
        high_freq_factor: high,
        original_positions,
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use serde_json::{Value, json};

    use super::*;

    fn parsed(config: &Value, theta: Option<f64>) -> (RopeSpec, Vec<String>) {
        let problems = RefCell::new(Vec::new());
        let fields = Fields::new(config.as_object().unwrap(), "config.json", &problems);
        let fields = fields.with_rope_theta(theta);
        let defaults = RopeDefaults {
            pairing: RopeStyle::Half,
            theta: 1e4,
            rotary_dims: 64,
            max_positions: 4096,
            original_positions: None,
            alpha: false,
        };
        let spec = read(&fields, &defaults);
        drop(fields);
        (spec, problems.into_inner().iter().map(ToString::to_string).collect())
    }

    #[test]
    fn both_styles_are_equivalent() {
        let scaling = json!({"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
            "original_max_position_embeddings": 64});
        let mut parameters = scaling.clone();
        parameters["rope_theta"] = json!(5e5);
        let old = parsed(&json!({"rope_theta": 5e5, "rope_scaling": scaling}), None);
        let new = parsed(&json!({"rope_parameters": parameters}), None);
        assert_eq!(old, new);
        assert!(old.1.is_empty(), "{:?}", old.1);
    }

    #[test]
    fn parameters_of_the_first_layers_type_are_read() {
        let (spec, problems) = parsed(
            &json!({"model_type": "olmo3", "layer_types": ["sliding_attention", "full_attention"], "rope_parameters": {
                "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
                "sliding_attention": {"rope_type": "default", "rope_theta": 2e4}}}),
            None,
        );
        assert!(problems.is_empty(), "{problems:?}");
        assert_eq!((spec.theta as u64, spec.scaling), (20_000, RopeScaling::Default));
    }

    #[test]
    fn a_flag_that_is_null_is_false() {
        let truncates = |value: Value| {
            let scaling = json!({"rope_type": "yarn", "factor": 4.0, "truncate": value});
            match parsed(&json!({"rope_scaling": scaling}), None).0.scaling {
                RopeScaling::Yarn { truncate, .. } => truncate,
                other => panic!("{other:?}"),
            }
        };
        assert!(truncates(json!(true)) && !truncates(json!(false)) && !truncates(Value::Null));
    }

    #[test]
    fn parameters_of_a_layer_type_take_precedence_over_older_keys() {
        let (spec, problems) = parsed(
            &json!({"model_type": "olmo3", "layer_types": ["sliding_attention"], "rope_scaling": {"rope_type": "linear", "factor": 8.0},
                "rope_parameters": {"sliding_attention": {"rope_type": "default", "rope_theta": 55.0}}}),
            None,
        );
        assert!(problems.is_empty(), "{problems:?}");
        assert_eq!((spec.theta as u64, spec.scaling), (55, RopeScaling::Default));
    }

    #[test]
    fn an_override_replaces_the_base_and_keeps_the_scaling() {
        let config = json!({"rope_theta": 5e5, "rope_scaling": {"type": "linear", "factor": 4}});
        let (spec, _) = parsed(&config, Some(2.5e6));
        assert_eq!(spec.theta.to_bits(), 2.5e6f64.to_bits());
        assert_eq!(spec.scaling, RopeScaling::Linear { factor: 4.0 });
    }

    #[test]
    fn positions_next_to_the_scaling_take_precedence() {
        let original = |config: &Value| match parsed(config, None).0.scaling {
            RopeScaling::Yarn { original_positions, .. } => original_positions,
            other => panic!("{other:?}"),
        };
        let inside = json!({"type": "yarn", "factor": 4, "original_max_position_embeddings": 1024});
        assert_eq!(
            original(&json!({"rope_scaling": inside, "original_max_position_embeddings": 512})),
            512
        );
        assert_eq!(original(&json!({"rope_scaling": inside})), 1024);
        assert_eq!(original(&json!({"rope_scaling": {"type": "yarn", "factor": 4}})), 4096);
        for scaling in [
            json!({"rope_parameters": {"full_attention": inside}}),
            json!({"rope_scaling": {"rope_type": "yarn", "factor": 4, "original_max_position_embeddings": 1024}}),
        ] {
            let mut config = scaling;
            config["model_type"] = json!("olmo3");
            config["layer_types"] = json!(["full_attention"]);
            config["original_max_position_embeddings"] = json!(512);
            assert_eq!(original(&config), 1024);
        }
    }

    #[test]
    fn unknown_types_and_missing_factors_are_problems() {
        let (_, problems) =
            parsed(&json!({"rope_scaling": {"rope_type": "spiral", "factor": 2}}), None);
        assert_eq!(problems, ["rope scaling `spiral` is not supported"]);
        let (_, problems) = parsed(&json!({"rope_scaling": {"type": "linear"}}), None);
        assert_eq!(problems, ["`rope_scaling` of config.json has no `factor`"]);
    }
}
