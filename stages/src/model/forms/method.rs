//! Which form `config.json` says the weights have.

use std::cell::RefCell;

use serde_json::{Map, Value};

use crate::model::fields::Fields;
use crate::model::problem::ModelProblem;

const MOST_GROUP: u64 = 1 << 20;

/// The form of the matrices that are not plain. Which matrices these are, the tensors themselves tell: lists of modules
/// that were left out are not needed.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Method {
    /// All matrices of layer 0 must be plain.
    Plain,
    Gptq(Gptq),
}

impl Method {
    /// What a matrix `{stem}.weight` is stored as in its place, as `{stem}.{marker}`.
    pub(super) fn marker(&self) -> Option<&'static str> {
        match self {
            Self::Gptq(_) => Some("qweight"),
            Self::Plain => None,
        }
    }
}

/// How GPTQ packs its codes.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Gptq {
    pub(crate) bits: u64,
    /// Inputs that share a scale; `None` for all.
    pub(crate) group_size: Option<u64>,
    /// Whether zero points are stored as they are, not less one.
    pub(crate) second_format: bool,
}

/// Methods whose attention weights are plain: they pack the experts alone.
const EXPERTS_ONLY: [&str; 1] = ["mxfp4"];

const SUPPORTED: &str = "supported are gptq";

/// The form that `quantization_config` or `quantization` of `config.json` describes.
pub(crate) fn read(config: &Map<String, Value>) -> Result<Method, Vec<ModelProblem>> {
    let problems = RefCell::new(Vec::new());
    let fields = Fields::new(config, "config.json", &problems);
    let method = of_config(&fields);
    match problems.into_inner() {
        problems if problems.is_empty() => Ok(method),
        problems => Err(problems),
    }
}

fn of_config(config: &Fields<'_>) -> Method {
    let nested = config.value("text_config").filter(|text| text.is_object());
    let nested = nested.and_then(|_| config.optional_object("text_config"));
    let written = |name| {
        let found = config.optional_object(name);
        found.or_else(|| nested.as_ref().and_then(|text| text.optional_object(name)))
    };
    let Some(settings) = written("quantization_config") else { return Method::Plain };
    match settings.optional_text("quant_method") {
        Some("gptq") => gptq(&settings),
        Some(name) if EXPERTS_ONLY.contains(&name) => Method::Plain,
        name => {
            let name = name.unwrap_or("no `quant_method`");
            settings.note(refused(&format!("`{name}`"), "is not supported"));
            Method::Plain
        }
    }
}

/// A quantisation that is not followed.
pub(crate) fn refused(what: &str, why: &str) -> ModelProblem {
    ModelProblem::settings(format!("the checkpoint is quantised: {what} {why}")).with_hint(format!(
        "use the checkpoint it was made from, or one in another form: {SUPPORTED}"
    ))
}

fn gptq(settings: &Fields<'_>) -> Method {
    let bits = settings.size("bits", 8);
    if settings.is_clean() && ![2, 3, 4, 8].contains(&bits) {
        settings.note(refused(
            &format!("`gptq` with {bits} bits"),
            "is not supported (2, 3, 4 and 8 are)",
        ));
    }
    let format = settings.optional_text("checkpoint_format").unwrap_or("gptq");
    if !["gptq", "gptq_v2"].contains(&format) {
        settings.note(refused(&format!("`gptq` in the format `{format}`"), "is not supported"));
    }
    Method::Gptq(Gptq {
        bits,
        group_size: group_size(settings, 128),
        second_format: format == "gptq_v2",
    })
}

/// `group_size`, where -1 stands for all inputs.
fn group_size(settings: &Fields<'_>, default: u64) -> Option<u64> {
    if settings.value("group_size").and_then(Value::as_i64) == Some(-1) {
        return None;
    }
    Some(settings.optional_size("group_size", MOST_GROUP).unwrap_or(default))
}
