//! Perplexity of documents longer than the context of a model: in chunks, and by sliding windows.

use serde_json::Value;

use crate::support::tables::{
    document, floats, integers, read_parquet, read_scores, strings, table, token_lists,
    write_parquet,
};
use crate::support::{Pipeline, Workspace, demo_model, numbers};

const TOKENS: usize = 168;

/// One document of so many tokens, and the demo model.
fn workspace() -> (Workspace, Vec<u32>) {
    let workspace = Workspace::new();
    workspace.link("model", &demo_model());
    let ids = document(7, TOKENS);
    let input =
        table(&[("id", strings(["a"])), ("tokens", token_lists(std::slice::from_ref(&ids)))]);
    write_parquet(&workspace.path("input/a.parquet"), &input, 1);
    (workspace, ids)
}

/// Computes its perplexity in windows of so many tokens.
fn pipeline(window: usize, short_context: usize) -> Pipeline {
    let mut pipeline = Pipeline::tokens("", window)
        .without_model(None)
        .measure(&format!("language-model, model: model, short_context_tokens: {short_context}"))
        .score("terms: [{statistic: perplexity, weight: -1}]")
        .filter("keep_fraction: 1")
        .output("samples: documents");
    pipeline.tokenize =
        format!("window_tokens: {window}, windows: disjoint, short_documents: score, bos: 0");
    pipeline
}

/// The losses of a sequence of tokens alone.
fn losses(workspace: &Workspace, ids: &[u32]) -> Vec<f64> {
    workspace.write("ids.json", serde_json::to_string(ids).unwrap());
    let answer =
        workspace.longsift(&["inspect", "model", "--forward", "ids.json", "--format", "json"]);
    let answer: Value = serde_json::from_str(&answer.success().stdout).unwrap();
    numbers(&answer["losses"])
}

#[test]
fn perplexity_in_chunks_is_over_the_losses_of_all_chunks() {
    let (workspace, ids) = workspace();
    workspace.run(&pipeline(64, 0));
    let chunks: Vec<f64> = ids.chunks(64).flat_map(|chunk| losses(&workspace, chunk)).collect();
    assert_eq!(
        chunks.len(),
        TOKENS - 3,
        "the first token of a chunk has no loss, the short last chunk counts"
    );
    let mean = chunks.iter().sum::<f64>() / chunks.len() as f64;
    let data = read_parquet(&workspace.path("out/data"));
    let got = floats(&data, "longsift_perplexity");
    assert!(got.len() == 1 && (got[0] / mean.exp() - 1.0).abs() < 1e-12, "{got:?} {}", mean.exp());
}

#[test]
fn short_windows_equal_a_sliding_window_with_half_overlap() {
    let (workspace, ids) = workspace();
    workspace.run(&pipeline(TOKENS, 64));
    // The usual method: 64 tokens at a time, advancing by 32; only the new ones count.
    let mut sliding = losses(&workspace, &ids[..64]);
    for start in (32..TOKENS - 32).step_by(32) {
        let of_window = losses(&workspace, &ids[start..TOKENS.min(start + 64)]);
        sliding.extend(&of_window[31..]);
    }
    assert_eq!(sliding.len(), TOKENS - 1);
    let scores = read_scores(&workspace.path("out.run"));
    let (loss, gain) = (floats(&scores, "loss_sum")[0], floats(&scores, "gain_sum")[0]);
    let got = (loss + gain) / integers(&scores, "loss_tokens")[0] as f64;
    let mean = sliding.iter().sum::<f64>() / sliding.len() as f64;
    // A token before the short context has the same context either way, but is in another batch of a matrix product.
    assert!((got - mean).abs() < 1e-5, "{got} {mean}");
    assert!((loss / integers(&scores, "loss_tokens")[0] as f64 - mean).abs() > 1e-4, "they differ");
}
