//! Short windows compared with the shared table, and `LongPPL` as published compared with the cases of whole models.

use std::fs;
use std::path::{Path, PathBuf};

use longsift_stages::model::{WholeModel, short_windows};
use serde_json::Value;

fn shared(path: &str) -> PathBuf {
    let default = || Path::new(env!("CARGO_MANIFEST_DIR")).join("../../shared");
    std::env::var_os("LONGSIFT_SHARED").map_or_else(default, PathBuf::from).join(path)
}

fn json(path: &Path) -> Value {
    let bytes = fs::read(path).expect("the file of a case");
    serde_json::from_slice(&bytes).expect("a case is JSON")
}

fn number(value: &Value) -> usize {
    value.as_u64().expect("a number of tokens") as usize
}

#[test]
#[cfg_attr(not(longsift_shared), ignore = "needs ../shared, a sibling of the repository")]
fn short_windows_match_the_shared_table() {
    for table in json(&shared("conformance-lm/short_windows.json"))["tables"].as_array().unwrap() {
        let windows = short_windows(number(&table["S"]), number(&table["C"]), number(&table["D"]));
        let windows: Vec<[usize; 3]> =
            windows.map(|window| [window.start, window.end, window.first_scored]).collect();
        assert_eq!(serde_json::to_value(&windows).unwrap(), table["windows"], "{table}");
    }
}

/// Key tokens as in the published code: a short context of `trunc_len` and `sliding_window` tokens together, a window
/// every `sliding_window`, counted from `trunc_len`.
#[test]
#[cfg_attr(not(longsift_shared), ignore = "needs ../shared, a sibling of the repository")]
fn key_tokens_match_the_published_scheme() {
    let names = ["conformance-lm", "conformance-gla"].map(|set| {
        let manifest = json(&shared(&format!("{set}/MANIFEST.json")));
        let names = manifest["cases"].as_array().unwrap().iter();
        names.map(|case| format!("{set}/{}", case["name"].as_str().unwrap())).collect::<Vec<_>>()
    });
    for name in names.concat() {
        let folder = shared(&name);
        let case = json(&folder.join("case.json"));
        let published = &case["expected"]["longppl_published"];
        let ids: Vec<u32> = serde_json::from_value(case["input_ids"].clone()).unwrap();
        let (from, step) = (number(&published["trunc_len"]), number(&published["sliding_window"]));
        let model = WholeModel::open(&folder).unwrap();
        let long = model.forward(&[&ids]).unwrap().swap_remove(0).losses;
        let windows: Vec<_> = short_windows(ids.len(), from + step, step).collect();
        let slices: Vec<&[u32]> =
            windows.iter().map(|window| &ids[window.start..window.end]).collect();
        let mut short = vec![0.0; ids.len()];
        for (window, output) in windows.iter().zip(model.forward(&slices).unwrap()) {
            let losses = &output.losses[window.first_scored - window.start - 1..];
            short[window.first_scored..window.end].copy_from_slice(losses);
        }
        let is_key = |token: &usize| {
            let loss = long[token - 1];
            short[*token] - loss > 2.0 && loss < 2.0
        };
        let key: Vec<usize> = (from..ids.len()).filter(is_key).collect();
        assert_eq!(serde_json::to_value(&key).unwrap(), published["key_positions"], "{name}");
        let loss = key.iter().map(|token| long[token - 1]).sum::<f64>() / key.len() as f64;
        match published["longppl"].as_f64() {
            None => assert!(key.is_empty(), "{name}"),
            Some(want) => {
                let tolerance = case["tolerances"]["mean_abs"].as_f64().unwrap();
                assert!(
                    (loss.exp() - want).abs() <= tolerance * want,
                    "{name}: {} {want}",
                    loss.exp()
                );
            }
        }
    }
}
