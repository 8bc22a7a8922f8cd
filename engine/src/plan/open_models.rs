//! Opens the whole models that measures need, locates every tensor, and compares vocabularies with the pipeline's.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use longsift_kernels::{ElementType, Kernel};
use longsift_stages::contract::ForwardRequest;
use longsift_stages::load_partial_model::Precision;
use longsift_stages::model::{AttentionSpec, WholeModel};
use longsift_stages::shard_across_devices::DeviceSettings;
use longsift_stages::tokenize::encoder::Encoder;
use longsift_stages::{LanguageModel, ShardAcrossDevices, StageSettings};

use super::checks::{self, MODEL};
use super::findings::Findings;
use super::measures::Measures;
use super::options::PlanOptions;
use super::whole_models::WholeModelPlan;
use crate::base::text::quoted;
use crate::devices::choose;
use crate::devices::device::{DeviceCriteria, Devices};

/// Tokens of whole windows per pass: reading and converting a weight takes as long as multiplying it with some tens of
/// tokens. A larger pass would not be faster, and a killed run would lose more.
const TOKENS_PER_PASS: u64 = 1 << 16;

/// Opens the whole models. `first_layer`: folder of the `load-partial-model` model; `of_windows`: devices of its windows.
pub(super) fn open(
    measures: &Measures,
    first_layer: Option<&Path>,
    of_windows: Option<&Devices>,
    options: &PlanOptions,
    found: &mut Findings<'_>,
) -> BTreeMap<u16, WholeModelPlan> {
    let spec = found.spec;
    let mut models = BTreeMap::new();
    let threads = options.threads.unwrap_or_else(rayon::current_num_threads);
    let default = ShardAcrossDevices::default();
    let criteria = DeviceCriteria {
        settings: spec.shard_across_devices().unwrap_or(&default),
        kernel: Kernel::detect(ElementType::F32),
        named: None,
        shape: None,
        precision: Precision::F32,
        threads,
        window_memory_bytes: spec.pipeline.input.memory_limit_bytes / 2,
    };
    let mut chosen = None;
    for (index, columns) in measures.indices().zip(&measures.columns) {
        let StageSettings::LanguageModel(settings) = &spec.pipeline.stages[measures.stage(index)]
        else {
            continue;
        };
        let name = &columns.measure;
        let stage = format!("stages.{name}");
        let at = |setting: &str| format!("{stage}.{setting}");
        let window = spec.tokenize().window_tokens;
        let broken = settings.broken_rules(window);
        let is_sound = broken.is_empty();
        found.broken_rules(&stage, broken);
        let request = settings.request();
        let setting = if request.model.is_some() { at("model") } else { MODEL.to_owned() };
        let Some(path) = path(&request, first_layer, &stage, found) else { continue };
        let depth = (!request.losses).then(|| request.depth(u64::MAX));
        let opened = WholeModel::open_to(&path, depth);
        let Some(model) = found.value(&setting, opened) else { continue };
        let model = model.with_kernel(checks::whole_model_kernel(name, options, found));
        let all = chosen.get_or_insert_with(|| devices(of_windows, criteria, options, found));
        let on_gpus = !all.is_cpu() && !choose::is_simulation();
        let model = model.with_backend(options.backend, settings.precision, on_gpus);
        let model = model.map_err(|problem| vec![problem]);
        let Some(model) = found.value(&stage, model) else { continue };
        let devices = if model.on_gpus() || !on_gpus {
            all.clone()
        } else {
            choose::processor(criteria, "the own backend is for processors").for_passes()
        };
        let tokens = u64::from(window);
        let is_suitable = check(settings, &request, model.spec(), tokens, &stage, found);
        if !is_sound || !is_suitable {
            continue;
        }
        let max = (TOKENS_PER_PASS / tokens.max(1)).max(1);
        let room = devices.most_available();
        let memory = |windows| model.measuring_memory(&request, tokens, windows, threads as u64);
        let fits = |windows: &u64| memory(*windows).peak_bytes <= room;
        let windows_at_once = (1..=max).rev().find(fits).unwrap_or(1);
        let memory = memory(windows_at_once);
        let whole = WholeModelPlan {
            measure: name.clone(),
            path,
            model: Arc::new(model),
            devices,
            memory_wait: Duration::from_secs(u64::from(criteria.settings.memory_wait_seconds)),
            request,
            window_tokens: tokens,
            windows_at_once,
            memory,
            threads: threads as u64,
        };
        if let Some((message, fits_one)) = whole.shortage() {
            let hint = whole.remedy();
            if fits_one {
                found.warning(&stage, message, hint);
            } else {
                found.error(&stage, message, hint);
            }
        }
        models.insert(index, whole);
    }
    models
}

/// Checks that a model has the attention, the layers and the positions that a measure asks for.
fn check(
    settings: &LanguageModel,
    request: &ForwardRequest,
    layers: &AttentionSpec,
    window_tokens: u64,
    stage: &str,
    found: &mut Findings<'_>,
) -> bool {
    if request.attention.is_some()
        && let Some(problem) = layers.attention_problem()
    {
        found.problem(&format!("{stage}.attention_layers"), problem);
        return false;
    }
    let unknown = settings.unknown_layers(layers.layers, layers.query_heads);
    let are_known = unknown.is_empty();
    found.broken_rules(stage, unknown);
    let of_pipeline = found.spec.load_partial_model().filter(|_| request.model.is_none());
    let strict =
        request.strict_positions || of_pipeline.is_some_and(|first| first.strict_positions);
    checks::positions(layers, window_tokens, strict, "losses", found) && are_known
}

/// Returns the devices for whole models: those that measure windows of the first layer, or those that the pipeline
/// selects. GPUs run whole models in builds with `candle-cuda`, and if they are simulated.
fn devices(
    of_windows: Option<&Devices>,
    criteria: DeviceCriteria<'_>,
    options: &PlanOptions,
    found: &mut Findings<'_>,
) -> Devices {
    let processor = |why| choose::processor(criteria, why).for_passes();
    if options.devices_absent {
        return processor("the devices are not on this machine");
    }
    let for_gpus = cfg!(feature = "candle-cuda") || choose::is_simulation();
    let chosen = match of_windows {
        // Missing devices of the first layer have been reported.
        None if found.spec.first_layer_attention().is_some() => {
            return processor("the first layer has no devices");
        }
        _ if !for_gpus => {
            use DeviceSettings::{Kind, Names};
            match &criteria.settings.devices {
                _ if of_windows.is_some() => {}
                Kind(_) => {}
                Names(names) if names.iter().all(|name| name == "cpu") => {}
                _ => found.error(
                    "stages.shard-across-devices.devices",
                    "this build runs whole models on processors only",
                    "write `devices: auto`, or use a build with `--features candle-cuda`",
                ),
            }
            return processor("this build runs whole models on processors");
        }
        Some(devices) => devices.clone(),
        None => match choose::choose(criteria) {
            Ok(devices) => devices,
            Err(none) => {
                found.broken_rules("stages.shard-across-devices", vec![none]);
                return processor("no other device was found");
            }
        },
    };
    if chosen.is_cpu() { processor(&chosen.why) } else { chosen.for_passes() }
}

fn path(
    request: &ForwardRequest,
    first_layer: Option<&Path>,
    stage: &str,
    found: &mut Findings<'_>,
) -> Option<PathBuf> {
    if let Some(own) = &request.model {
        return Some(found.spec.resolve(own).to_path_buf());
    }
    let of_pipeline = &found.spec.load_partial_model()?.model;
    if of_pipeline.is_address() {
        let name = quoted(&of_pipeline.to_string());
        let message = format!("{name} is remote, and only its first layer is fetched");
        let hint = "download the whole model, and set `model` here to its folder";
        found.error(stage, message, hint);
        return None;
    }
    first_layer.map(Path::to_owned)
}

/// Rejects models whose vocabulary differs from the pipeline's. `tokenizer`: folder of the pipeline's tokenizer.
pub(super) fn check_vocabularies(
    models: &BTreeMap<u16, WholeModelPlan>,
    encoder: Option<&Encoder>,
    tokenizer: Option<&Path>,
    vocabulary_size: Option<u64>,
    found: &mut Findings<'_>,
) {
    let spec = found.spec;
    let special = spec.tokenize().special_tokens_in_text;
    for whole in models.values() {
        let own = whole.model.spec().vocabulary_size;
        let setting = match whole.request.model {
            Some(_) => format!("stages.{}.model", whole.measure),
            None => MODEL.to_owned(),
        };
        let mut refuse = |message: String| {
            let hint = "token ids must have the same meaning: use a model with the pipeline's vocabulary, or this model's tokenizer";
            found.error(&setting, message, hint);
        };
        if let Some(largest) = encoder.map(|encoder| u64::from(encoder.largest_id()))
            && largest >= own
        {
            refuse(format!(
                "the pipeline's tokenizer has ids up to {largest}, but this model's embedding has only {own} rows"
            ));
            continue;
        }
        let Some(tokenizer) = tokenizer.filter(|tokenizer| **tokenizer != *whole.path) else {
            continue;
        };
        let opened = Encoder::open(tokenizer, special).ok();
        let theirs = encoder.or(opened.as_ref());
        let named = spec.tokenize().tokenizer.is_some();
        match (theirs, Encoder::open(&whole.path, special)) {
            (Some(theirs), Ok(ours)) => {
                if let Some(message) = theirs.difference(&ours) {
                    refuse(format!(
                        "the vocabulary of this model differs from the pipeline's: {message}"
                    ));
                }
            }
            (Some(_), Err(problem)) if encoder.is_some() && !named => refuse(format!(
                "the vocabulary of this model cannot be compared with the pipeline's: {problem}"
            )),
            (None, _) | (Some(_), Err(_)) => {
                if let Some(size) = vocabulary_size.filter(|size| *size != own) {
                    refuse(format!(
                        "this model's vocabulary has {own} entries, and that of `load-partial-model` {size}"
                    ));
                }
            }
        }
    }
}
