//! Resolves a pipeline's `model`: a folder, or a GGUF file.

use std::fs;
use std::path::{Path, PathBuf};

use super::folder_files::{file_names, is_gguf, is_gguf_file, is_safetensors};
use super::problem::{ModelProblem, ProblemKind};

/// Maximum number of parts of a split GGUF file.
const MAX_PARTS: u32 = 1000;

/// The folder with `config.json` and the tokenizer, and the GGUF files if they hold the weights.
#[derive(Debug)]
pub(crate) struct ModelFiles {
    pub(crate) folder: PathBuf,
    /// One name, or the names of all parts of a split file, in order.
    pub(crate) gguf: Vec<String>,
}

impl ModelFiles {
    /// Inspects the path and, for a folder, the names in it. GGUF files are used in a folder without safetensors.
    pub(crate) fn find(path: &Path) -> Result<Self, ModelProblem> {
        let shown = path.display();
        let metadata = fs::metadata(path).map_err(|error| {
            let problem = ModelProblem::reading(path, &error);
            match problem.kind {
                ProblemKind::Machine => problem,
                _ => not_a_model(format!("cannot open model folder `{shown}`: {error}")),
            }
        })?;
        let name = path.file_name().and_then(|name| name.to_str());
        if let Some(name) = name.filter(|_| metadata.is_file() && is_gguf_file(path)) {
            let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
            let folder = folder.unwrap_or(Path::new("."));
            return Ok(Self { folder: folder.to_owned(), gguf: parts(name) });
        }
        if !metadata.is_dir() {
            return Err(not_a_model(format!("model folder `{shown}` is a file")));
        }
        let names = file_names(path)?;
        let folder = path.to_owned();
        if names
            .iter()
            .any(|name| is_safetensors(name) || name.ends_with(".safetensors.index.json"))
        {
            return Ok(Self { folder, gguf: Vec::new() });
        }
        // Image projectors are stored next to their models.
        let files = names.iter().filter(|name| is_gguf(name) && !name.starts_with("mmproj"));
        let models: Vec<&String> =
            files.filter(|name| part(name).is_none_or(|(_, part, _)| part == 1)).collect();
        match *models {
            [] => Ok(Self { folder, gguf: Vec::new() }),
            [one] => Ok(Self { folder, gguf: parts(one) }),
            _ => {
                let names: Vec<String> = models.iter().map(|name| format!("`{name}`")).collect();
                let message = format!("`{shown}` has several GGUF files: {}", names.join(", "));
                Err(ModelProblem::settings(message).with_hint(format!(
                    "set `model` to one of them, for example `{}`",
                    path.join(models[0]).display()
                )))
            }
        }
    }
}

fn not_a_model(message: String) -> ModelProblem {
    ModelProblem::settings(message).with_hint(
        "set `model` to a folder with `config.json` and `.safetensors` files, to a `.gguf` file, or to a folder with one",
    )
}

/// Returns whether a file name says that the model has `count` parts.
pub(crate) fn is_part_of(name: &str, count: u64) -> bool {
    part(name).is_some_and(|(_, _, parts)| u64::from(parts) == count)
}

/// Splits `{stem}-00001-of-00003.gguf` into stem, part number and number of parts.
fn part(name: &str) -> Option<(&str, u32, u32)> {
    let (stem, count) = name.get(..name.len().checked_sub(5)?)?.rsplit_once("-of-")?;
    let (stem, part) = stem.rsplit_once('-')?;
    let number = |text: &str| {
        text.parse().ok().filter(|number| text.len() == 5 && (1..=MAX_PARTS).contains(number))
    };
    Some((stem, number(part)?, number(count)?))
}

fn parts(name: &str) -> Vec<String> {
    match part(name) {
        Some((stem, _, count)) => {
            (1..=count).map(|part| format!("{stem}-{part:05}-of-{count:05}.gguf")).collect()
        }
        None => vec![name.to_owned()],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(names: &[&str]) -> Result<Vec<String>, String> {
        let folder = tempfile::tempdir().unwrap();
        for name in names {
            fs::write(folder.path().join(name), "").unwrap();
        }
        ModelFiles::find(folder.path()).map(|files| files.gguf).map_err(|problem| problem.message)
    }

    #[test]
    fn a_folder_may_hold_one_gguf_model_in_parts_and_a_projector() {
        assert_eq!(found(&["a.gguf", "mmproj-a.gguf", "tokenizer.json"]).unwrap(), ["a.gguf"]);
        let parts = ["a-00001-of-00002.gguf", "a-00002-of-00002.gguf"];
        assert_eq!(found(&parts).unwrap(), parts);
        assert!(found(&["a.gguf", "model.safetensors"]).unwrap().is_empty());
        assert!(found(&["config.json"]).unwrap().is_empty());
        let several = found(&["a.gguf", "b.GGUF"]).unwrap_err();
        assert!(several.ends_with("has several GGUF files: `a.gguf`, `b.GGUF`"), "{several}");
    }

    #[test]
    fn a_path_to_a_gguf_file_is_that_file_with_its_other_parts() {
        let folder = tempfile::tempdir().unwrap();
        for name in ["a.gguf", "b-00002-of-00003.gguf", "c.bin"] {
            fs::write(folder.path().join(name), "").unwrap();
        }
        let find = |name: &str| ModelFiles::find(&folder.path().join(name));
        let one = find("a.gguf").unwrap();
        assert_eq!(
            (one.folder.as_path(), one.gguf.as_slice()),
            (folder.path(), ["a.gguf".to_owned()].as_slice())
        );
        assert_eq!(find("b-00002-of-00003.gguf").unwrap().gguf[0], "b-00001-of-00003.gguf");
        assert!(find("c.bin").unwrap_err().message.ends_with("is a file"));
        assert!(find("none").unwrap_err().message.starts_with("cannot open model folder"));
    }
}
