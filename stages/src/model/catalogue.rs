//! Lists the weight files of a model folder and the tensors in each.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Component, Path};

use serde::Deserialize;
use serde_json::Number;

use super::folder_files::{file_names, is_pickled, is_safetensors, read_small_file};
use super::problem::ModelProblem;
use super::shard::WeightShard;

pub(crate) const SINGLE: &str = "model.safetensors";
pub(crate) const INDEX: &str = "model.safetensors.index.json";
/// Index key of a checkpoint that was cut down to layer 0: size of the full checkpoint in bytes.
pub(crate) const WHOLE_BYTES: &str = "longsift_whole_bytes";
/// Maximum size of an index; DeepSeek-V3's 91,991 tensors take 9 MB.
const MAX_INDEX_BYTES: u64 = 64 << 20;
const MAX_TENSORS: usize = 500_000;

/// The tensors of a checkpoint and the files that hold them.
#[derive(Debug, Default)]
pub(crate) struct Catalogue {
    pub(crate) files_by_tensor: BTreeMap<String, String>,
    /// Files whose headers had to be read to list their tensors.
    pub(crate) opened: Vec<WeightShard>,
    /// Bytes of the whole checkpoint: the sum of its files, or the index's total if files are missing.
    pub(crate) checkpoint_bytes: u64,
}

#[derive(Deserialize)]
struct IndexFile {
    weight_map: BTreeMap<String, String>,
    metadata: Option<IndexMetadata>,
}

/// The index's `metadata`; other keys are ignored.
#[derive(Deserialize)]
struct IndexMetadata {
    total_size: Option<Number>,
    longsift_whole_bytes: Option<u64>,
}

impl Catalogue {
    /// Reads `model.safetensors`, otherwise `model.safetensors.index.json`, otherwise all `.safetensors` files.
    pub(crate) fn read(folder: &Path) -> Result<Self, Vec<ModelProblem>> {
        if folder.join(SINGLE).exists() {
            return Self::from_files(folder, &[SINGLE.to_owned()]);
        }
        if folder.join(INDEX).exists() {
            return Self::from_index(folder);
        }
        let names = file_names(folder).map_err(|problem| vec![problem])?;
        let files: Vec<String> =
            names.iter().filter(|name| is_safetensors(name)).cloned().collect();
        if files.is_empty() {
            return Err(vec![without_safetensors(folder, &names)]);
        }
        Self::from_files(folder, &files)
    }

    pub(crate) fn from_files(folder: &Path, names: &[String]) -> Result<Self, Vec<ModelProblem>> {
        let (mut opened, mut problems) = (Vec::new(), Vec::new());
        for name in names {
            match WeightShard::open(folder, name) {
                Ok(shard) => opened.push(shard),
                Err(problem) => problems.push(problem),
            }
        }
        match Self::from_shards(opened) {
            Ok(catalogue) if problems.is_empty() => Ok(catalogue),
            Ok(_) => Err(problems),
            Err(more) => Err(problems.into_iter().chain(more).collect()),
        }
    }

    pub(crate) fn from_shards(opened: Vec<WeightShard>) -> Result<Self, Vec<ModelProblem>> {
        let mut catalogue = Self { opened, ..Self::default() };
        let mut problems = Vec::new();
        for shard in &catalogue.opened {
            catalogue.checkpoint_bytes += shard.stamp.bytes();
            for tensor in shard.tensors.keys() {
                if let Some(other) =
                    catalogue.files_by_tensor.insert(tensor.clone(), shard.name.clone())
                {
                    problems.push(ModelProblem::checkpoint(format!(
                        "tensor `{tensor}` is in `{other}` and in `{}`",
                        shard.name
                    )));
                }
            }
        }
        if problems.is_empty() { Ok(catalogue) } else { Err(problems) }
    }

    fn from_index(folder: &Path) -> Result<Self, Vec<ModelProblem>> {
        let path = folder.join(INDEX);
        let bytes = read_small_file(&path, MAX_INDEX_BYTES).map_err(|problem| vec![problem])?;
        // Each tensor has a colon; counted first, so that an index cannot fill the memory.
        let tensors = bytes.split(|byte| *byte == b':').count();
        let index = if tensors > MAX_TENSORS {
            Err(format!("more than {MAX_TENSORS} tensors"))
        } else {
            serde_json::from_slice(&bytes).map_err(|error| error.to_string())
        };
        let index: IndexFile = index.map_err(|why| {
            let (path, what) = (path.display().to_string(), format!("a valid index: {why}"));
            vec![ModelProblem::invalid(&path, "an index", &bytes, &what)]
        })?;
        let files: BTreeSet<&String> = index.weight_map.values().collect();
        let problems: Vec<_> =
            files.iter().filter(|name| !is_plain_name(name)).map(|name| outside(name)).collect();
        if !problems.is_empty() {
            return Err(problems);
        }
        let sizes: Vec<_> = files
            .iter()
            .map(|name| fs::metadata(folder.join(name)).map(|file| file.len()))
            .collect();
        let present = sizes.iter().flatten().sum();
        let sliced = index.metadata.as_ref().and_then(|metadata| metadata.longsift_whole_bytes);
        let stated = index.metadata.and_then(|metadata| whole_number(&metadata.total_size?));
        let complete = sizes.iter().all(Result::is_ok);
        let checkpoint_bytes = match sliced {
            Some(whole) => whole,
            None if complete => present,
            None => stated.unwrap_or(0).max(present),
        };
        Ok(Self { files_by_tensor: index.weight_map, opened: Vec::new(), checkpoint_bytes })
    }
}

/// Some writers state the total size as a float.
fn whole_number(value: &Number) -> Option<u64> {
    value.as_u64().or_else(|| value.as_f64().filter(|size| *size >= 0.0).map(|size| size as u64))
}

fn outside(name: &str) -> ModelProblem {
    let name: String = name.chars().take(120).collect();
    ModelProblem::checkpoint(format!(
        "`{INDEX}` names the file `{}`, which is not the plain name of a safetensors file in its folder",
        name.escape_debug()
    ))
}

/// Whether a name is one ordinary path component, so that it stays in its folder. The file itself may be a link: the
/// Hugging Face cache consists of links.
fn is_plain_name(name: &str) -> bool {
    let mut components = Path::new(name).components();
    let one = matches!(components.next(), Some(Component::Normal(part)) if part == name);
    one && components.next().is_none() && !name.contains(['\\', '\0', ':']) && is_safetensors(name)
}

fn without_safetensors(folder: &Path, names: &[String]) -> ModelProblem {
    let shown = folder.display();
    match names.iter().find(|name| is_pickled(name)) {
        Some(pickled) => {
            ModelProblem::settings(format!("`{shown}` has no .safetensors file, only pickled weights (`{pickled}`)"))
                .with_hint(format!(
                    "such files can run code and are never opened; convert them once: python -c \"from transformers \
                     import AutoModelForCausalLM as M; M.from_pretrained('{shown}').save_pretrained('{shown}')\""
                ))
        }
        None => ModelProblem::checkpoint(format!("`{shown}` has no .safetensors file"))
            .with_hint("download the checkpoint's .safetensors files into the folder"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_outside_the_folder_are_not_plain() {
        for name in ["a.safetensors", "model-00001-of-00002.safetensors", "..a.safetensors"] {
            assert!(is_plain_name(name), "{name}");
        }
        for name in [
            "",
            ".",
            "..",
            "/a.safetensors",
            "../a.safetensors",
            "a/b.safetensors",
            "./a.safetensors",
            "a.safetensors/",
            "a\\b.safetensors",
            "a\0.safetensors",
            "c:a.safetensors",
            "a.bin",
            "../../etc/passwd",
        ] {
            assert!(!is_plain_name(name), "{name}");
        }
    }

    #[test]
    fn an_index_that_points_outside_its_folder_is_refused_for_any_tensor() {
        let folder = tempfile::tempdir().unwrap();
        let index = r#"{"weight_map": {"unused": "../secret.safetensors", "a": "a.safetensors"}}"#;
        fs::write(folder.path().join(INDEX), index).unwrap();
        let problems = Catalogue::read(folder.path()).unwrap_err();
        assert_eq!(problems.len(), 1);
        assert!(
            problems[0].message.contains("`../secret.safetensors`, which is not the plain name"),
            "{problems:?}"
        );
    }

    #[test]
    fn pickled_weights_are_refused_with_the_command_that_converts_them() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("pytorch_model.bin"), "").unwrap();
        let problem = Catalogue::read(folder.path()).unwrap_err().remove(0);
        assert!(
            problem.message.ends_with("only pickled weights (`pytorch_model.bin`)"),
            "{problem}"
        );
        assert!(problem.hint.unwrap().contains("save_pretrained("));
    }

    #[test]
    fn the_stated_total_is_used_if_files_are_missing() {
        let folder = tempfile::tempdir().unwrap();
        let index = r#"{"metadata": {"total_size": 1e9}, "weight_map": {"a": "a.safetensors"}}"#;
        fs::write(folder.path().join(INDEX), index).unwrap();
        assert_eq!(Catalogue::read(folder.path()).unwrap().checkpoint_bytes, 1_000_000_000);
        fs::write(folder.path().join("a.safetensors"), "12345").unwrap();
        assert_eq!(Catalogue::read(folder.path()).unwrap().checkpoint_bytes, 5);
    }
}
