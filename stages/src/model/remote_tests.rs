//! A reduced checkpoint equals the whole one with respect to layer 0.

use std::cell::RefCell;
use std::fs::{self, File};
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use longsift_kernels::Kernel;
use tempfile::TempDir;

use super::*;
use crate::load_partial_model::Precision;

/// A local folder in place of a remote one, counting the bytes read.
struct RemoteFolder {
    folder: PathBuf,
    read: RefCell<u64>,
}

impl RemoteWeights for RemoteFolder {
    fn length(&self, file: &str) -> Result<u64, ModelProblem> {
        let metadata = fs::metadata(self.folder.join(file));
        metadata
            .map(|metadata| metadata.len())
            .map_err(|error| ModelProblem::checkpoint(error.to_string()))
    }

    fn read(&self, file: &str, bytes: Range<u64>) -> Result<Vec<u8>, ModelProblem> {
        let mut buffer = vec![0; (bytes.end - bytes.start) as usize];
        let file = File::open(self.folder.join(file)).unwrap();
        file.read_exact_at(&mut buffer, bytes.start).unwrap();
        *self.read.borrow_mut() += buffer.len() as u64;
        Ok(buffer)
    }
}

/// Writes the reduced checkpoint of a folder; returns it with its instructions.
fn sliced(folder: &Path) -> Result<(TempDir, SlicePlan), Vec<ModelProblem>> {
    let small = tempfile::tempdir().unwrap();
    for name in ["config.json", "model.safetensors.index.json"] {
        if folder.join(name).exists() {
            fs::copy(folder.join(name), small.path().join(name)).unwrap();
        }
    }
    let far = Rc::new(RemoteFolder { folder: folder.to_owned(), read: RefCell::new(0) });
    let weights: Rc<dyn RemoteWeights> = far.clone();
    let recipe = slice(ModelConfig::read(small.path(), None)?, &weights)?;
    for file in &recipe.files {
        let mut bytes = file.header.clone();
        for range in &file.ranges {
            bytes.extend(far.read(&file.source, range.clone()).unwrap());
        }
        assert_eq!(bytes.len() as u64, file.bytes());
        fs::write(small.path().join(&file.name), bytes).unwrap();
    }
    fs::write(small.path().join("model.safetensors.index.json"), &recipe.index).unwrap();
    Ok((small, recipe))
}

fn digest(model: &ModelFolder) -> String {
    let cache = tempfile::tempdir().unwrap();
    let kernel = Kernel::PortableF32;
    let opened =
        LayerZeroTable::open_or_build(model, kernel, Precision::F32, cache.path(), &|_, _| {});
    opened.unwrap().model_digest
}

fn same(folder: &Path) {
    let whole = ModelFolder::open(folder, None).unwrap();
    let (small, recipe) = sliced(folder).unwrap();
    let slice = ModelFolder::open(small.path(), None).unwrap();
    assert_eq!(digest(&slice), digest(&whole), "{}", folder.display());
    assert_eq!(slice.checkpoint_bytes(), recipe.checkpoint_bytes);
    assert_eq!(slice.bytes_to_read(), whole.bytes_to_read());
    assert_eq!(slice.warnings(), whole.warnings());
}

#[test]
fn a_slice_of_every_format_has_the_digest_of_the_whole() {
    for entry in fs::read_dir(format_tests::folder()).unwrap() {
        let folder = entry.unwrap().path();
        let names = folder_files::file_names(&folder).unwrap_or_default();
        if names.iter().any(|name| name.starts_with("model") && name.ends_with(".safetensors")) {
            same(&folder);
        }
    }
}

#[test]
fn a_slice_leaves_the_other_layers_out() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../datasets/demo/model");
    same(&folder);
    let (small, recipe) = sliced(&folder).unwrap();
    assert!(recipe.tensors.iter().all(|name| !name.contains("layers.1.")), "{recipe:?}");
    assert!(recipe.tensors.iter().all(|name| !name.contains("mlp")), "{recipe:?}");
    let file = small.path().join("model-00001-of-00001.safetensors");
    let bytes = fs::metadata(file).unwrap().len();
    assert_eq!(bytes, recipe.files[0].bytes());
    assert!(bytes < recipe.checkpoint_bytes, "{bytes} of {}", recipe.checkpoint_bytes);
}

#[test]
fn problems_of_a_checkpoint_are_reported_for_its_slice() {
    let folder = tempfile::tempdir().unwrap();
    let demo = Path::new(env!("CARGO_MANIFEST_DIR")).join("../datasets/demo/model");
    fs::copy(demo.join("config.json"), folder.path().join("config.json")).unwrap();
    let absent = sliced(folder.path()).unwrap_err();
    assert_eq!(absent.len(), 1, "{absent:?}");
    let bytes = fs::read(demo.join("model.safetensors")).unwrap();
    fs::write(folder.path().join("model.safetensors"), &bytes[..bytes.len() - 1]).unwrap();
    let cut = sliced(folder.path()).unwrap_err().remove(0);
    assert!(cut.message.contains("is not a valid safetensors file: its tensors have"), "{cut}");
}

#[test]
fn a_git_lfs_pointer_is_named_with_the_command_that_replaces_it() {
    let pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 9\n";
    let demo = Path::new(env!("CARGO_MANIFEST_DIR")).join("../datasets/demo/model");
    let index = "model.safetensors.index.json";
    for name in ["model.safetensors", "config.json", index] {
        let folder = tempfile::tempdir().unwrap();
        for file in ["config.json", "model.safetensors"] {
            fs::copy(demo.join(file), folder.path().join(file)).unwrap();
        }
        if name == index {
            fs::remove_file(folder.path().join("model.safetensors")).unwrap();
        }
        fs::write(folder.path().join(name), pointer).unwrap();
        let local = ModelFolder::open(folder.path(), None).map(drop).unwrap_err();
        let remote = sliced(folder.path()).map(drop).unwrap_err();
        for problem in [&local[0], &remote[0]] {
            assert!(
                problem.message.contains(&format!("{name}` is a Git LFS pointer")),
                "{problem}"
            );
            assert!(problem.hint.as_ref().unwrap().contains("git lfs pull"), "{problem:?}");
        }
    }
}
