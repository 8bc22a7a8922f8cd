//! Rules that a schema cannot express: required stages, their order, and settings that exclude each other.
//!
//! Rules inspect the tree instead of the settings, so that they can report together with schema mistakes. They skip values that
//! the checker refuses, and open no files.

use std::collections::{BTreeMap, BTreeSet};

use longsift_stages::{Reads, Role, StageSettings};
use serde_json::json;

use super::check;
use super::node::{Node, YamlValue};
use super::schema::stage_names;
use super::schema::words::grouped;
use super::source::{Problems, Span};
use crate::base::text::{quoted, suggest};

pub(crate) fn check(root: &Node, problems: &mut Problems) {
    if root.get("stages").is_some_and(|stages| matches!(stages.value, YamlValue::List(_))) {
        check_duplicate_stages(root, problems);
        check_missing_stages(root, problems);
        check_stage_order(root, problems);
    }
    if let Some(input) = root.get("input") {
        let columns = ["text_column", "tokens_column"];
        check_exclusive(input, &columns, "keep the one that holds the documents", problems);
    }
    check_tokenizer_has_text(root, problems);
    check_settings_without_model(root, problems);
    check_window_tokens(root, problems);
    let distances = ["min_distance_fraction", "min_distance_tokens"];
    let hint = "keep one: the fraction follows the length of each window, the tokens do not";
    for stage in stages(root) {
        check_exclusive(stage, &distances, hint, problems);
    }
    check_measure_names(root, problems);
    check_filter_amount(root, problems);
    check_document_score(root, problems);
    check_format_settings(root, problems);
    check_devices(root, problems);
}

/// Returns the first stage of that kind, otherwise the one with that `name`.
pub(crate) fn stage<'n>(stages: &'n Node, name: &str) -> Option<&'n Node> {
    let items = stages.items();
    items.iter().find(|item| stage_name(item) == Some(name)).or_else(|| {
        let named = |item: &&Node| item.get("name").and_then(Node::as_str) == Some(name);
        items.iter().find(named)
    })
}

fn stage_name(item: &Node) -> Option<&str> {
    item.get("stage").and_then(Node::as_str)
}

fn stages(root: &Node) -> &[Node] {
    root.get("stages").map_or(&[], Node::items)
}

fn find_stage<'n>(root: &'n Node, name: &str) -> Option<&'n Node> {
    stage(root.get("stages")?, name)
}

fn setting<'n>(root: &'n Node, stage_name: &str, key: &str) -> Option<&'n Node> {
    find_stage(root, stage_name)?.get(key)
}

/// Reports every setting of `keys` after the first that is given, because they exclude each other.
fn check_exclusive(mapping: &Node, keys: &[&str], hint: &str, problems: &mut Problems) {
    let mut given = keys.iter().filter(|key| mapping.get(key).is_some());
    let Some(first) = given.next() else { return };
    for extra in given {
        let place = problems.sources.in_words(key_span(mapping, first));
        let message = format!("`{first}` and `{extra}` exclude each other");
        let problem = problems.error(key_span(mapping, extra), message);
        problem.label(format!("`{first}` is {place}")).hint(hint);
    }
}

fn key_span(mapping: &Node, key: &str) -> Span {
    mapping.entry(key).map_or(check::head(mapping), |entry| entry.span)
}

/// Names of the listed stages with their positions, including unknown names.
fn listed(root: &Node) -> Vec<(&str, Span)> {
    let named = |item| Some((stage_name(item)?, item.get("stage")?.span));
    stages(root).iter().filter_map(named).collect()
}

pub(crate) const AMOUNTS: [&str; 4] = ["keep_fraction", "keep_tokens", "budgets", "min_score"];
/// Stages that every pipeline has, in addition to a measure.
const REQUIRED: [&str; 3] = ["tokenize", "score", "filter"];
/// Stages that a pipeline has only if a measure needs them; the first must then be listed.
const ATTENTION_STAGES: [&str; 2] = ["load-partial-model", "shard-across-devices"];

fn check_duplicate_stages(root: &Node, problems: &mut Problems) {
    let mut seen: BTreeMap<(&str, Option<&str>), Span> = BTreeMap::new();
    for item in stages(root) {
        let (Some(stage), Some(at)) = (stage_name(item), item.get("stage")) else { continue };
        if !stage_names().contains(&stage) {
            continue;
        }
        let name = item.get("name").and_then(Node::as_str);
        let first = *seen.entry((stage, name)).or_insert(at.span);
        if first != at.span {
            let place = problems.sources.in_words(first);
            let problem = problems.error(at.span, format!("stage `{stage}` is listed twice"));
            let hint = if takes_a_name(stage) {
                "remove one of the two, or give one a `name`, which its statistics begin with"
            } else {
                "a pipeline has each stage once: remove one of the two"
            };
            problem.label(format!("first listed {place}")).hint(hint);
        }
    }
}

fn takes_a_name(stage: &str) -> bool {
    let stages = super::schema::stages(super::schema::pipeline());
    stages.iter().any(|(name, schema)| *name == stage && schema["properties"]["name"].is_object())
}

fn check_missing_stages(root: &Node, problems: &mut Problems) {
    let listed = listed(root);
    let stages = stages(root);
    // A stage without a readable name could be any stage, and an empty list lacks all; both are already reported.
    if listed.len() < stages.len() || stages.is_empty() {
        return;
    }
    let unknown = listed.iter().map(|(name, _)| *name).filter(|name| !stage_names().contains(name));
    let meant: Vec<&str> =
        unknown.filter_map(|unknown| suggest(unknown, stage_names().iter().copied())).collect();
    let names: Vec<&str> = listed.iter().map(|(name, _)| *name).chain(meant).collect();
    let needs_a_model = names.iter().any(|name| needs_a_model(name));
    let uses_the_model = whole_models(root).any(|stage| stage.get("model").is_none());
    let is_whole = whole_models(root).next().is_some();
    if !names.iter().any(|name| is_measure(name)) {
        let measures: Vec<&str> =
            stage_names().iter().copied().filter(|name| is_measure(name)).collect();
        let problem = problems.error(key_span(root, "stages"), "no stage measures windows");
        problem
            .label(format!("one of: {}", measures.join(", ")))
            .hint("add for example `- stage: recurrence`, which needs no model");
    } else if !needs_a_model {
        let unused = |name: &str| {
            let is_used = if name == ATTENTION_STAGES[0] { uses_the_model } else { is_whole };
            ATTENTION_STAGES.contains(&name) && !is_used
        };
        for (name, span) in listed.iter().filter(|(name, _)| unused(name)) {
            let users: Vec<&str> =
                stage_names().iter().copied().filter(|name| self::needs_a_model(name)).collect();
            let message = format!("nothing uses stage `{name}`: no measure needs a model");
            let hint = format!("remove it, or add `- stage: {}`", users.join("` or `- stage: "));
            problems.error(*span, message).hint(hint);
        }
    }
    let model = (needs_a_model || uses_the_model).then_some(ATTENTION_STAGES[0]);
    for name in model.into_iter().chain(REQUIRED) {
        if names.contains(&name) {
            continue;
        }
        let writes = contract(name).map_or("", |stage| writes(stage.role()));
        let hint = match name {
            "load-partial-model" if uses_the_model => {
                "add `- stage: load-partial-model` with its `model: FOLDER`, or give `language-model` a `model` of its own"
            }
            "load-partial-model" => "add `- stage: load-partial-model` with its `model: FOLDER`",
            "tokenize" => "add `- stage: tokenize` with its `window_tokens: NUMBER`",
            "filter" => {
                "add `- stage: filter` with `keep_fraction`, `keep_tokens`, `budgets` or `min_score`"
            }
            _ => "add `- stage: score`",
        };
        let problem =
            problems.error(key_span(root, "stages"), format!("stage `{name}` is missing"));
        problem.label(format!("no other stage writes: {writes}")).hint(hint);
    }
}

fn is_measure(name: &str) -> bool {
    contract(name).is_some_and(|stage| matches!(stage.role(), Role::Measure(_)))
}

/// Whether a stage is a measure that needs a model's first layer and devices.
fn needs_a_model(name: &str) -> bool {
    contract(name).is_some_and(|stage| match stage.role() {
        Role::Measure(measure) => measure.needs().attention().is_some(),
        _ => false,
    })
}

fn whole_models(root: &Node) -> impl Iterator<Item = &Node> {
    stages(root).iter().filter(|stage| stage_name(stage) == Some("language-model"))
}

/// Returns the settings of a stage by name, for its inputs and outputs, which no setting changes.
pub(crate) fn contract(name: &str) -> Option<StageSettings> {
    let settings = match name {
        "load-partial-model" => json!({ "stage": name, "model": "model" }),
        "tokenize" => json!({ "stage": name, "window_tokens": 2 }),
        "external" => {
            json!({ "stage": name, "name": name, "command": [name], "version": "1" })
        }
        // With a layer, so that the reference page shows the statistics of layers.
        "language-model" => json!({ "stage": name, "attention_layers": [16], "ladm": {} }),
        _ => json!({ "stage": name }),
    };
    serde_json::from_value(settings).ok()
}

/// Like [`contract`], for a listed stage, with the setting that determines its purpose.
fn listed_contract(item: &Node) -> Option<StageSettings> {
    let mut settings = contract(stage_name(item)?)?;
    if let StageSettings::External(external) = &mut settings
        && item.get("reads").and_then(Node::as_str) == Some("document")
    {
        external.reads = Reads::Document;
    }
    Some(settings)
}

/// Items that earlier stages must have written.
fn reads(role: Role<'_>) -> &'static [&'static str] {
    match role {
        Role::Model(_) | Role::Rows(_) | Role::Windows(_) => &[],
        Role::Measure(measure) if measure.needs().attention().is_none() => &["windows"],
        Role::Devices(_) | Role::Measure(_) => &["layer-zero table", "windows"],
        Role::Score(_) => &["statistics"],
        Role::Filter(_) => &["score"],
    }
}

/// Item that a stage writes for later ones.
fn writes(role: Role<'_>) -> &'static str {
    match role {
        Role::Model(_) => "layer-zero table",
        Role::Rows(_) => "documents",
        Role::Windows(_) => "windows",
        Role::Devices(_) => "devices",
        Role::Measure(_) => "statistics",
        Role::Score(_) => "score",
        Role::Filter(_) => "samples",
    }
}

fn check_stage_order(root: &Node, problems: &mut Problems) {
    let mut listed: Vec<(&str, Span)> = listed(root);
    // In a longer list most stages are duplicates, which are reported as such.
    listed.truncate(4 * stage_names().len());
    let items = stages(root).iter().filter(|item| stage_name(item).is_some()).take(listed.len());
    let stages: Vec<Option<StageSettings>> = items.map(listed_contract).collect();
    let roles: Vec<Option<Role<'_>>> =
        stages.iter().map(|stage| stage.as_ref().map(StageSettings::role)).collect();
    let windows = roles.iter().position(|role| matches!(role, Some(Role::Windows(_))));
    for (role, (name, span)) in roles.iter().zip(&listed).skip(windows.unwrap_or(usize::MAX)) {
        if matches!(role, Some(Role::Rows(_))) {
            let message = format!(
                "stage `{name}` comes too late: it reads documents, and `tokenize` cuts them into windows"
            );
            let problem = problems.error(*span, message);
            problem.hint("move it before `tokenize`, or measure windows with `reads: text`");
        }
    }
    for (index, role) in roles.iter().enumerate() {
        let (name, span) = listed[index];
        for read in role.map_or(&[][..], reads) {
            let writes = |other: &usize| roles[*other].is_some_and(|other| writes(other) == *read);
            if (0..index).any(|earlier| writes(&earlier)) {
                continue;
            }
            // If no stage writes it, the missing stage is reported elsewhere.
            if let Some(later) = (index + 1..roles.len()).find(writes) {
                let (writer, place) = listed[later];
                let place = problems.sources.in_words(place);
                let message =
                    format!("stage `{name}` reads `{read}`, which no earlier stage writes");
                let problem =
                    problems.error(span, message).label(format!("`{writer}` {place} writes it"));
                problem.hint(format!("move `{name}` after `{writer}`"));
            }
        }
    }
    let position = |wanted: &str| listed.iter().position(|(name, _)| *name == wanted);
    let score = position("score");
    let measures = |role: &Option<Role<'_>>| matches!(role, Some(Role::Measure(_)));
    for (role, (name, span)) in roles.iter().zip(&listed).skip(score.unwrap_or(usize::MAX)) {
        if measures(role) && roles[..score.unwrap_or(0)].iter().any(measures) {
            let message = format!("stage `{name}` comes too late: it must come before `score`");
            problems.error(*span, message).hint(format!("move `{name}` before `score`"));
        }
    }
    let users = ["first-layer-attention", "language-model"].into_iter();
    let user = users.filter_map(|name| Some((position(name)?, name))).min();
    if let (Some(shard), Some((index, user))) = (position("shard-across-devices"), user)
        && shard > index
    {
        let place = problems.sources.in_words(listed[index].1);
        let message =
            "stage `shard-across-devices` comes too late: an earlier stage uses the devices";
        let problem =
            problems.error(listed[shard].1, message).label(format!("`{user}` is {place}"));
        problem.hint(format!("move `shard-across-devices` before `{user}`"));
    }
}

fn check_tokenizer_has_text(root: &Node, problems: &mut Problems) {
    if root.get("input").and_then(|input| input.get("tokens_column")).is_none() {
        return;
    }
    let Some(tokenize) = find_stage(root, "tokenize") else { return };
    for key in ["tokenizer", "special_tokens_in_text"] {
        if tokenize.get(key).is_some() {
            let message = format!("`{key}` does not apply to documents of token ids");
            let problem = problems.error(key_span(tokenize, key), message);
            problem
                .label("no tokenizer is opened with `input.tokens_column`")
                .hint(format!("remove `{key}`"));
        }
    }
}

/// Reports settings that need a model in a pipeline without one: texts then need their own tokenizer, and no token is BOS.
fn check_settings_without_model(root: &Node, problems: &mut Problems) {
    let Some(tokenize) = find_stage(root, "tokenize") else { return };
    let listed = listed(root);
    let known = |(name, _): &(&str, Span)| stage_names().contains(name);
    let measures = listed.iter().any(|(name, _)| is_measure(name));
    // A missing or unused model is reported elsewhere.
    let may_have_a_model = whole_models(root).next().is_some()
        || listed.iter().any(|(name, _)| needs_a_model(name) || *name == ATTENTION_STAGES[0]);
    if may_have_a_model || !measures || !listed.iter().all(known) {
        return;
    }
    let input = root.get("input");
    let tokens = input.and_then(|input| input.get("tokens_column")).is_some();
    if !tokens && tokenize.get("tokenizer").is_none() {
        let span = tokenize.get("stage").map_or(tokenize.span, |name| name.span);
        let problem = problems.error(span, "stage `tokenize` has no tokenizer");
        problem
            .label("no model provides one")
            .hint("add `tokenizer: FOLDER`, or read token ids with `input.tokens_column`");
    }
    if let Some((bos, count)) = integer(tokenize.get("bos"))
        && count > 0
    {
        let message = format!("`bos` is {count}, but without a model no token is a BOS token");
        problems.error(bos.span, message).hint("remove it: windows then contain only text");
    }
}

fn check_window_tokens(root: &Node, problems: &mut Problems) {
    let window = setting(root, "tokenize", "window_tokens");
    let Some((window, tokens)) =
        window.and_then(|node| Some((node, node.as_integer().filter(|tokens| *tokens > 1)?)))
    else {
        return;
    };
    let place = problems.sources.in_words(window.span);
    let label = format!("`window_tokens` {place} is {}, BOS included", grouped(tokens));
    if let Some((bos, count)) = integer(setting(root, "tokenize", "bos"))
        && count >= tokens
    {
        let problem = problems
            .error(bos.span, format!("{count} BOS tokens leave no room for text in a window"));
        problem
            .label(label.clone())
            .hint(format!("raise `window_tokens` above {count}, or lower `bos`"));
    }
    if let Some((distance, far)) =
        integer(setting(root, "first-layer-attention", "min_distance_tokens"))
        && far >= tokens
    {
        let message = format!("no two tokens of a window are {} tokens apart", grouped(far));
        let problem = problems.error(distance.span, message).label(label);
        problem.hint(format!(
            "lower `min_distance_tokens` below {}, or use `min_distance_fraction`",
            grouped(tokens)
        ));
    }
}

fn integer(node: Option<&Node>) -> Option<(&Node, i128)> {
    node.and_then(|node| Some((node, node.as_integer()?)))
}

fn check_measure_names(root: &Node, problems: &mut Problems) {
    let letter =
        |letter: char| letter.is_ascii_lowercase() || letter.is_ascii_digit() || letter == '_';
    let word = |name: &str| {
        let first = name.starts_with(|first: char| first.is_ascii_lowercase());
        first && name.chars().all(letter) && name.len() <= 32
    };
    for item in stages(root) {
        let Some(at) = item.get("name").filter(|_| stage_name(item).is_some_and(takes_a_name))
        else {
            continue;
        };
        if let Some(name) = at.as_str().filter(|name| !word(name)) {
            let message = format!(
                "{} is not a valid name: it becomes the prefix of column names",
                quoted(name)
            );
            let hint =
                "use at most 32 characters from a to z, 0 to 9 and `_`, beginning with a letter";
            problems.error(at.span, message).hint(hint);
        }
    }
}

fn check_format_settings(root: &Node, problems: &mut Problems) {
    let Some(output) = root.get("output") else { return };
    let format = output.get("format").and_then(Node::as_str).unwrap_or("parquet");
    for (key, of) in
        [("compression", "parquet"), ("sequence_tokens", "megatron"), ("end_token", "megatron")]
    {
        // An omitted setting is recorded as `zstd`.
        let is_given = output.get(key).is_some_and(|value| value.as_str() != Some("zstd"));
        if is_given && format != of && ["parquet", "jsonl-zst", "megatron"].contains(&format) {
            let message = format!("`{key}` does not apply to `format: {format}`");
            let problem = problems.error(key_span(output, key), message);
            problem.hint(format!("remove it, or set `format: {of}`"));
        }
    }
    let marks = setting(root, "filter", "mark_only")
        .is_some_and(|node| matches!(node.value, YamlValue::Boolean(true)));
    if marks && format == "megatron" {
        let message = "`format: megatron` has no column for the marks of `mark_only`";
        let problem = problems.error(key_span(output, "format"), message);
        problem.hint("write `format: parquet`, or remove `mark_only`");
    }
}

fn check_filter_amount(root: &Node, problems: &mut Problems) {
    let Some(filter) = find_stage(root, "filter") else { return };
    let is_mistyped = |key: &str| suggest(key, AMOUNTS).is_some() && !AMOUNTS.contains(&key);
    let mistyped = filter.entries().iter().any(|entry| is_mistyped(&entry.key));
    let calibrated = setting(root, "score", "calibration").is_some();
    if !AMOUNTS.iter().any(|amount| filter.get(amount).is_some()) && !calibrated && !mistyped {
        let name = filter.get("stage").map_or(check::head(filter), |name| name.span);
        let problem = problems.error(name, "stage `filter` has no setting for the amount to keep");
        problem
            .label(format!("one of: {}", AMOUNTS.join(", ")))
            .hint("add for example `keep_fraction: 0.5`");
    }
    let hint = "keep one; on the command line, `=null` removes a setting";
    check_exclusive(filter, &AMOUNTS, hint, problems);
    if let Some(budgets) = filter.get("keep_tokens")
        && matches!(budgets.value, YamlValue::Mapping(_))
        && setting(root, "score", "within").is_none()
    {
        let message = "`keep_tokens` is given per group, but the score has no groups";
        let problem = problems.error(key_span(filter, "keep_tokens"), message);
        problem.hint(
            "name the column of the groups with `within:` in stage `score`, or give one number",
        );
    }
}

fn check_document_score(root: &Node, problems: &mut Problems) {
    let Some(score) = find_stage(root, "score") else { return };
    let samples = root.get("output").and_then(|output| output.get("samples"));
    let windows = samples.is_none_or(|samples| samples.as_str() == Some("windows"));
    if windows && score.get("document_score").is_some() {
        let label = match samples {
            Some(samples) => {
                format!("`samples: windows` {}", problems.sources.in_words(samples.span))
            }
            None => "`output.samples` is `windows` by default".to_string(),
        };
        let message = "`document_score` does not apply if samples are windows";
        let problem = problems.error(key_span(score, "document_score"), message).label(label);
        problem.hint("remove it, or set `samples: documents` in `output`");
    }
}

fn check_devices(root: &Node, problems: &mut Problems) {
    let devices = setting(root, "shard-across-devices", "devices");
    let names = devices.map_or(&[][..], Node::items);
    let mut seen = BTreeSet::new();
    for node in names {
        let Some(name) = node.as_str().filter(|name| !name.trim().is_empty()) else { continue };
        if !is_device(name) {
            let problem =
                problems.error(node.span, format!("{} is not the name of a device", quoted(name)));
            problem.label("devices are named `cpu`, `cuda:0`, `cuda:1`, …");
        } else if !seen.insert(name) {
            let problem = problems.error(node.span, format!("device `{name}` is listed twice"));
            problem.hint("to keep it busier, raise `workers_per_device`");
        }
    }
    let Some(shard) = find_stage(root, "shard-across-devices") else { return };
    let Some(workers) = shard.get("workers_per_device") else { return };
    for node in workers.items() {
        if let Some(count) =
            node.as_integer().filter(|count| !(1..=64).contains(count) && *count >= 0)
        {
            let message = format!("a device cannot have {} workers", grouped(count));
            problems.error(node.span, message).label("an integer from 1 to 64");
        }
    }
    let known = match devices.map(|devices| &devices.value) {
        Some(YamlValue::List(names)) => Some(names.len() as i128),
        Some(YamlValue::Integer(count)) => Some(*count),
        _ => None,
    };
    if let (YamlValue::List(each), Some(known)) = (&workers.value, known)
        && each.len() as i128 != known
        && !each.is_empty()
    {
        let message =
            format!("`workers_per_device` has {} numbers for {known} devices", each.len());
        let problem = problems.error(key_span(shard, "workers_per_device"), message);
        problem.hint("give one number for all devices, or one per device");
    }
}

fn is_device(name: &str) -> bool {
    let index = name.strip_prefix("cuda:");
    name == "cpu"
        || index.is_some_and(|index| {
            index.bytes().all(|b| b.is_ascii_digit()) && index.parse::<u16>().is_ok()
        })
}
