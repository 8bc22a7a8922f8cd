//! What decides whether earlier work may be reused: everything a score depends on, and everything a selection
//! depends on, as plain JSON objects whose differences can be named.

use longsift_kernels::STATISTICS_VERSION;
use serde_json::{Map, Value, json};

use super::Plan;
use crate::dataset::Content;
use crate::error::Result;
use crate::files;

/// Everything a score depends on besides the input itself.
pub fn score_settings(plan: &Plan, model_digest: &str) -> Map<String, Value> {
    let tokenize = plan.spec.tokenize();
    let attention = plan.spec.first_layer_attention();
    let (content, special_tokens) = match &plan.columns.content {
        Content::Text(column) => {
            (format!("text `{column}`"), json!(tokenize.special_tokens_in_text))
        }
        Content::Tokens(column) => (format!("tokens `{column}`"), Value::Null),
    };
    let distance = match attention.min_distance_tokens {
        Some(tokens) => json!({ "tokens": tokens }),
        None => {
            json!({ "fraction": attention.min_distance_fraction.map_or(0.25, |fraction| fraction.0) })
        }
    };
    let bos_id = (plan.bos.count > 0).then_some(plan.bos.id);
    let settings = json!({
        "statistics_version": STATISTICS_VERSION,
        "kernel": plan.kernel().name(),
        "precision": plan.spec.load_partial_model().precision.name(),
        "model": model_digest,
        "tokenizer": plan.encoder.as_ref().map(longsift_stages::tokenize::encoder::Encoder::digest),
        "special_tokens_in_text": special_tokens,
        "content": content,
        "id_column": plan.columns.id,
        "window_tokens": tokenize.window_tokens,
        "windows": tokenize.windows,
        "short_documents": tokenize.short_documents,
        "bos": plan.bos.count,
        "bos_id": bos_id,
        "min_distance": distance,
        "mask": attention.mask,
        "rows": attention.rows,
    });
    object(settings)
}

/// Everything a selection depends on besides the scores.
pub fn select_settings(plan: &Plan, calibration_digest: Option<&str>) -> Map<String, Value> {
    let output = &plan.spec.pipeline.output;
    object(json!({
        "score": plan.spec.score(),
        "filter": plan.spec.filter(),
        "samples": output.samples,
        "compression": output.compression,
        "report_by": output.report_by,
        "calibration": calibration_digest,
    }))
}

/// The digest of the calibration file, if the pipeline uses one.
pub fn calibration_digest(plan: &Plan) -> Result<Option<String>> {
    let Some(path) = &plan.spec.score().calibration else { return Ok(None) };
    let bytes = files::read_limited(&plan.spec.resolve(path), 256 << 20)?;
    Ok(Some(files::sha256_hex(&bytes)))
}

/// The fingerprint of settings: SHA-256 of their JSON.
pub fn fingerprint(settings: &Map<String, Value>) -> String {
    files::sha256_hex(Value::Object(settings.clone()).to_string().as_bytes())
}

/// What differs between two sets of settings, a line each: `window_tokens: 4096, was 2048`.
pub fn differences(now: &Map<String, Value>, before: &Map<String, Value>) -> Vec<String> {
    let gone = before.keys().filter(|key| !now.contains_key(*key));
    now.keys()
        .chain(gone)
        .filter(|key| now.get(*key) != before.get(*key))
        .map(|key| {
            let show = |settings: &Map<String, Value>| {
                settings.get(key).map_or("not set".to_owned(), short)
            };
            format!("{key}: {}, was {}", show(now), show(before))
        })
        .collect()
}

/// A value on one line; a digest by its first characters.
fn short(value: &Value) -> String {
    match value {
        Value::String(text)
            if text.len() == 64 && text.bytes().all(|byte| byte.is_ascii_hexdigit()) =>
        {
            format!("{}…", &text[..12])
        }
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

fn object(value: Value) -> Map<String, Value> {
    match value {
        Value::Object(map) => map,
        _ => unreachable!("built as an object"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn differences_name_the_setting_and_both_values() {
        let before =
            object(json!({ "window_tokens": 2048, "mask": "causal", "model": "a".repeat(64) }));
        let now =
            object(json!({ "window_tokens": 4096, "mask": "causal", "model": "b".repeat(64) }));
        assert_eq!(
            differences(&now, &before),
            ["window_tokens: 4096, was 2048", "model: bbbbbbbbbbbb…, was aaaaaaaaaaaa…"]
        );
        assert!(differences(&now, &now).is_empty());
        assert_ne!(fingerprint(&now), fingerprint(&before));
    }
}
