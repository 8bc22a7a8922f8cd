//! The files of a model folder: their names, what these say of their format, and small ones read whole.

use std::fs;
use std::io::Read;
use std::path::Path;

use super::problem::ModelProblem;
use crate::contract::open_regular;

/// The names of all entries of a folder, sorted.
pub(crate) fn file_names(folder: &Path) -> Result<Vec<String>, ModelProblem> {
    let entries = fs::read_dir(folder).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    let entries = entries.map_err(|error| ModelProblem::reading(folder, &error))?;
    let mut names: Vec<String> =
        entries.iter().filter_map(|entry| entry.file_name().into_string().ok()).collect();
    names.sort_unstable();
    Ok(names)
}

/// Whether a file's name says that it is safetensors.
pub(crate) fn is_safetensors(name: &str) -> bool {
    Path::new(name).extension().is_some_and(|extension| extension == "safetensors")
}

/// Whether a file's name says that it is GGUF.
pub(crate) fn is_gguf(name: &str) -> bool {
    Path::new(name).extension().is_some_and(|extension| extension.eq_ignore_ascii_case("gguf"))
}

/// Whether a file's name says that `PyTorch` pickled it.
pub(crate) fn is_pickled(name: &str) -> bool {
    let extension = Path::new(name).extension().and_then(|extension| extension.to_str());
    matches!(extension, Some("bin" | "pt" | "pth" | "ckpt")) || name.ends_with(".bin.index.json")
}

/// Reads a whole file of at most `most` bytes.
pub(crate) fn read_small_file(path: &Path, most: u64) -> Result<Vec<u8>, ModelProblem> {
    let read = || {
        let mut bytes = Vec::new();
        open_regular(path)?.1.take(most + 1).read_to_end(&mut bytes)?;
        Ok(bytes)
    };
    let bytes = read().map_err(|error| ModelProblem::reading(path, &error))?;
    if bytes.len() as u64 > most {
        return Err(ModelProblem::checkpoint(format!(
            "`{}` has more than {most} bytes",
            path.display()
        )));
    }
    Ok(bytes)
}
