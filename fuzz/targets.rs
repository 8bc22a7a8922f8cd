//! Fuzzing targets. Each function accepts any bytes, and must return without violating its stated invariants.
//!
//! `fuzz_targets/` passes bytes from libFuzzer; `tests/hostile/mutations.rs` passes a fixed number of mutated seeds
//! in every test run.
#![allow(dead_code, reason = "each fuzz target is a program of its own and uses one of these")]

use std::cell::OnceCell;
use std::fs;
use std::path::Path;

use longsift_engine::base::render::render;
use longsift_engine::dataset::input::Dataset;
use longsift_engine::run_directory::scores::{self, MeasureColumns};
use longsift_engine::spec::{Overrides, Spec};
use longsift_stages::contract::Measure;
use longsift_stages::first_layer_attention::FirstLayerAttention;
use longsift_stages::load_partial_model::Precision;
use longsift_stages::model::{ModelConfig, ModelFolder};
use longsift_stages::tokenize::{
    Cut, EncodedText, ShortDocuments, SpecialTokensInText, Tokenize, Windows,
};
use tempfile::TempDir;

/// Configuration for weights without their own.
const CONFIG: &str = r#"{"model_type": "llama", "vocab_size": 97, "hidden_size": 16, "num_attention_heads": 2,
    "num_key_value_heads": 1, "num_hidden_layers": 2, "max_position_embeddings": 4096, "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0, "bos_token_id": 1, "torch_dtype": "float32"}"#;
/// Maximum windows cut from one document: more would take time without covering new cases.
const MAX_WINDOWS: u64 = 1 << 16;

thread_local! {
    static FOLDER: OnceCell<TempDir> = const { OnceCell::new() };
}

/// Runs `work` in a folder of this thread with one file of these bytes.
fn with_file(name: &str, bytes: &[u8], work: impl FnOnce(&Path)) {
    FOLDER.with(|folder| {
        let folder = folder.get_or_init(|| TempDir::new().expect("a temporary folder"));
        let folder = folder.path().join(name.replace('.', "-"));
        fs::create_dir_all(&folder).expect("a folder in a temporary folder");
        fs::write(folder.join(name), bytes).expect("a file in a temporary folder");
        work(&folder);
    });
}

/// A pipeline parses and round-trips, or is rejected with at least one message that is safe to print.
pub(crate) fn pipeline(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    let parse = |text: &str| Spec::parse("pipeline.yaml", text, &Overrides::default());
    let messages = match parse(&text) {
        Ok((spec, warnings)) => {
            let settings = spec.resolved_json();
            let (again, _) =
                parse(&settings.to_string()).expect("resolved settings are a pipeline");
            assert_eq!(again.resolved_json(), settings);
            render(&warnings, false)
        }
        Err(mistakes) => {
            let messages = render(&mistakes, false);
            assert!(!messages.is_empty());
            messages
        }
    };
    assert!(
        !messages.chars().any(|character| character.is_control() && character != '\n'),
        "{messages:?}"
    );
}

/// A `config.json` parses and its sizes can be computed, or it is rejected with a reason.
pub(crate) fn config(bytes: &[u8]) {
    with_file("config.json", bytes, |folder| match ModelConfig::read(folder, None) {
        Ok(config) => {
            let row = config.row_bytes(Precision::Bf16);
            assert!(row > 0 && config.table_bytes(Precision::F32) >= row);
            let _ = (config.bytes_to_read_at(4), config.packed_bytes(), config.bos_token_id());
        }
        Err(problems) => assert!(problems.iter().all(|problem| !problem.message.is_empty())),
    });
}

/// Tensors in safetensors headers lie inside the file.
pub(crate) fn safetensors(bytes: &[u8]) {
    with_file("model.safetensors", bytes, |folder| {
        fs::write(folder.join("config.json"), CONFIG).expect("a file in a temporary folder");
        check_folder(folder, bytes);
    });
}

/// Tensors in GGUF headers lie inside the file.
pub(crate) fn gguf(bytes: &[u8]) {
    with_file("model.gguf", bytes, |folder| check_folder(folder, bytes));
}

fn check_folder(folder: &Path, bytes: &[u8]) {
    if let Ok(model) = ModelFolder::open(folder, None) {
        assert!(model.checkpoint_bytes() <= bytes.len() as u64);
        // A tensor may have several roles.
        assert!(model.bytes_to_read() <= 4 * bytes.len() as u64, "{}", model.bytes_to_read());
    }
}

/// Windows lie inside the document in ascending order, cover it except for a dropped tail, and their bytes
/// tile the text.
pub(crate) fn windows(bytes: &[u8]) {
    let Some((&[mode, short, bos], bytes)) = bytes.split_first_chunk() else { return };
    let Some((window_tokens, bytes)) = bytes.split_first_chunk() else { return };
    let Some((tokens, text)) = bytes.split_first_chunk() else { return };
    let window_tokens = u32::from_le_bytes(*window_tokens).max(1);
    let stage = Tokenize {
        window_tokens,
        windows: [Windows::BothEnds, Windows::Disjoint, Windows::WholeDocument]
            [usize::from(mode % 3)],
        short_documents: [ShortDocuments::Drop, ShortDocuments::Score][usize::from(short % 2)],
        bos: None,
        tokenizer: None,
        special_tokens_in_text: SpecialTokensInText::Parse,
    };
    let bos = bos % 3;
    let width = stage.text_tokens(bos);
    let tokens = u64::from(u32::from_le_bytes(*tokens)).min(width.saturating_mul(MAX_WINDOWS));
    let Cut::Windows(cut) = stage.cut(tokens, bos) else { return };
    assert!(!cut.is_empty());
    let mut covered = 0;
    for (index, window) in (0..).zip(&cut) {
        assert_eq!(window.index, index);
        assert!(window.token_start <= covered && window.token_end > covered, "{cut:?}");
        assert!(window.tokens() <= width);
        covered = window.token_end;
    }
    let tail_is_dropped =
        stage.windows == Windows::Disjoint && stage.short_documents == ShortDocuments::Drop;
    assert!(covered == tokens || tail_is_dropped && tokens - covered < width);
    let text = String::from_utf8_lossy(text);
    let mut encoded = EncodedText::default();
    for (end, _) in text.char_indices().skip(1) {
        encoded.ids.push(0);
        encoded.ends.push(end as u32);
    }
    let ranges = cut.iter().map(|window| {
        encoded.byte_range(window.token_start as usize, window.token_end as usize, text.len())
    });
    let mut end = 0;
    for range in ranges {
        assert!(range.start <= end, "bytes between two windows belong to neither");
        let _ = &text[range.clone()];
        end = end.max(range.end);
    }
}

/// A score table is read or rejected.
pub(crate) fn scores(bytes: &[u8]) {
    with_file("part.parquet", bytes, |folder| {
        let path = folder.join("part.parquet");
        let _ = scores::read(&path, &["dependency_strength"], |_| Ok(()));
        let columns = FirstLayerAttention::default().columns();
        let measure = MeasureColumns { measure: String::new(), columns };
        let _ = scores::read_statistics(&path, &[measure], |_, _, _, _| Ok(()));
    });
}

/// The footer of an input file parses and its columns can be read, or it is rejected.
pub(crate) fn table(bytes: &[u8]) {
    with_file("input.parquet", bytes, |folder| {
        let path = folder.join("input.parquet");
        if let Ok(dataset) = Dataset::open(&path) {
            let rows = dataset.files[0].row_groups.iter().map(|group| group.rows).sum::<u64>();
            assert_eq!(dataset.rows(), rows);
            for name in dataset.column_names() {
                let _ = dataset.check_text_column(name);
                let _ = dataset.check_tokens_column(name);
                let _ = dataset.check_label_column(name);
                let _ = dataset.column_bytes(name);
            }
        }
    });
}
