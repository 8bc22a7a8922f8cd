//! The cache of tables: reuse, damage, and concurrent builders.

use std::cell::Cell;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use half::bf16;
use longsift_kernels::{Kernel, TableView};
use safetensors::Dtype;
use serde_json::json;

use super::conformance_tests::built;
use super::folder_tests::{Tiny, digest_of};
use super::*;
use crate::load_partial_model::Precision;

/// A tiny model and an empty cache.
struct CachedModel {
    folder: tempfile::TempDir,
    cache: tempfile::TempDir,
}

impl CachedModel {
    fn new(tiny: &Tiny) -> Self {
        let cached =
            Self { folder: tempfile::tempdir().unwrap(), cache: tempfile::tempdir().unwrap() };
        tiny.write(cached.folder.path());
        cached
    }

    fn model(&self) -> ModelFolder {
        ModelFolder::open(self.folder.path(), None).unwrap()
    }

    fn opened(&self) -> OpenedTable {
        built(&self.model(), Precision::F32, self.cache.path())
    }

    fn files(&self, kind: &str) -> Vec<PathBuf> {
        fs::read_dir(self.cache.path().join(kind))
            .unwrap()
            .map(|entry| entry.unwrap().path())
            .collect()
    }
}

fn numbers(opened: &OpenedTable) -> Vec<f32> {
    match opened.table.view() {
        TableView::F32(rows) => rows.to_vec(),
        TableView::Bf16(rows) => rows.iter().map(|number| number.to_f32()).collect(),
    }
}

fn digest(tiny: &Tiny) -> String {
    CachedModel::new(tiny).opened().model_digest
}

#[test]
fn a_table_is_built_once_and_reads_the_planned_bytes() {
    let cached = CachedModel::new(&Tiny::new());
    assert_eq!(known_digest(&cached.model(), cached.cache.path()), None);
    let reported = Cell::new((0, 0));
    let progress = |done, all| reported.set((done, all));
    let model = cached.model();
    let first = LayerZeroTable::open_or_build(
        &model,
        Kernel::PortableF32,
        Precision::F32,
        cached.cache.path(),
        &progress,
    )
    .unwrap();
    assert_eq!((first.from_cache, first.bytes_read), (false, model.bytes_to_read()));
    assert_eq!(reported.get(), (12, 12));
    let second = cached.opened();
    assert_eq!((second.from_cache, second.bytes_read, second.warnings.len()), (true, 0, 0));
    assert_eq!(numbers(&first), numbers(&second));
    assert_eq!(first.model_digest, second.model_digest);
    assert_eq!(known_digest(&model, cached.cache.path()), Some(first.model_digest));
    assert_eq!((first.table.rows(), first.table.row_width()), (12, 12));
}

#[test]
fn the_digest_depends_on_content_only() {
    let tiny = Tiny::new();
    let cached = CachedModel::new(&tiny);
    let (identity, first) = (cached.model().identity(), cached.opened());
    let file =
        File::options().write(true).open(cached.folder.path().join("model.safetensors")).unwrap();
    file.set_modified(SystemTime::now() - Duration::from_secs(1000)).unwrap();
    assert_ne!(cached.model().identity(), identity);
    assert_eq!(known_digest(&cached.model(), cached.cache.path()), None);
    let touched = cached.opened();
    assert!(!touched.from_cache);
    assert_eq!(touched.model_digest, first.model_digest);
    assert_eq!(cached.files("tables").len(), 1);
    assert_eq!(digest(&tiny), first.model_digest);
    let mut values = tiny;
    values.tensors.insert("model.layers.0.self_attn.v_proj.weight".to_owned(), vec![1, 8]);
    assert_eq!(digest(&values), first.model_digest);
}

#[test]
fn other_weights_or_another_first_layer_change_the_digest() {
    let tiny = Tiny::new();
    let other = Tiny { seed: 2, ..Tiny::new() };
    assert_ne!(digest(&tiny), digest(&other));
    let mut eps = Tiny::new();
    eps.config["rms_norm_eps"] = json!(1e-3);
    assert_ne!(digest(&tiny), digest(&eps));
    let mut layers = Tiny::new();
    layers.config["hidden_act"] = json!("gelu");
    assert_eq!(digest(&tiny), digest(&layers));
}

#[test]
fn another_rope_base_shares_the_table_and_changes_the_digest() {
    let cached = CachedModel::new(&Tiny::new());
    let first = cached.opened();
    let model = ModelFolder::open(cached.folder.path(), Some(2.5e6)).unwrap();
    let other = built(&model, Precision::F32, cached.cache.path());
    assert!(other.from_cache);
    assert_eq!(other.weights_digest, first.weights_digest);
    assert_eq!(known_weights_digest(&model, cached.cache.path()), Some(first.weights_digest));
    assert_ne!(model.spec().digest(), cached.model().spec().digest());
    assert_ne!(other.model_digest, first.model_digest);
}

#[test]
fn sharding_and_storage_type_do_not_change_the_table() {
    let plain = CachedModel::new(&Tiny::new());
    let plain = plain.opened();
    let (folder, cache) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    Tiny::new().write_sharded(folder.path());
    let sharded =
        built(&ModelFolder::open(folder.path(), None).unwrap(), Precision::F32, cache.path());
    assert_eq!(sharded.model_digest, plain.model_digest);
    assert_eq!(numbers(&sharded), numbers(&plain));
    for dtype in [Dtype::F16, Dtype::BF16] {
        let half = CachedModel::new(&Tiny { dtype, ..Tiny::new() });
        assert_eq!(half.model().bytes_to_read() * 2, plain.bytes_read);
        assert_eq!(numbers(&half.opened()), numbers(&plain));
    }
}

#[test]
fn changed_table_bits_require_a_new_version() {
    let opened = CachedModel::new(&Tiny::new()).opened();
    let bits = numbers(&opened).into_iter().map(f32::to_bits);
    let digest = digest_of(bits.map(u64::from));
    let hint = "raise TABLE_VERSION: tables differ from those of earlier versions";
    assert_eq!((TABLE_VERSION, digest), (1, 12_201_465_295_542_321_808), "{hint}");
}

#[test]
fn bf16_is_the_f32_table_rounded() {
    let cached = CachedModel::new(&Tiny::new());
    let exact = numbers(&cached.opened());
    let rounded = built(&cached.model(), Precision::Bf16, cached.cache.path());
    assert!(!rounded.from_cache);
    assert_eq!(rounded.table.precision(), Precision::Bf16);
    let expected: Vec<f32> = exact.iter().map(|number| bf16::from_f32(*number).to_f32()).collect();
    assert_eq!(numbers(&rounded), expected);
}

fn damaged(change: impl Fn(&Path)) -> OpenedTable {
    let cached = CachedModel::new(&Tiny::new());
    let first = cached.opened();
    let (expected, digest) = (numbers(&first), first.model_digest.clone());
    drop(first);
    change(cached.cache.path());
    let second = cached.opened();
    assert_eq!((numbers(&second), &second.model_digest), (expected, &digest));
    assert!(cached.opened().from_cache);
    second
}

fn rewrite(cache: &Path, kind: &str, change: &dyn Fn(Vec<u8>) -> Vec<u8>) {
    for entry in fs::read_dir(cache.join(kind)).unwrap() {
        let path = entry.unwrap().path();
        let changed = change(fs::read(&path).unwrap());
        fs::remove_file(&path).unwrap(); // opening a table made it read-only
        fs::write(path, changed).unwrap();
    }
}

type Change<'a> = (&'a str, &'a dyn Fn(Vec<u8>) -> Vec<u8>);

#[test]
fn a_damaged_cache_is_replaced_with_a_warning() {
    let flip = |mut bytes: Vec<u8>| {
        let middle = bytes.len() / 2 + 40;
        bytes[middle] ^= 4;
        bytes
    };
    let cut = |bytes: Vec<u8>| bytes[..bytes.len() - 9].to_vec();
    let foreign = |_: Vec<u8>| b"not a table".to_vec();
    let empty = |_: Vec<u8>| Vec::new();
    let changes: [Change<'_>; 8] = [
        ("tables", &flip),
        ("tables", &cut),
        ("tables", &foreign),
        ("tables", &empty),
        ("identities", &flip),
        ("identities", &cut),
        ("identities", &foreign),
        ("identities", &empty),
    ];
    for (kind, change) in changes {
        let opened = damaged(|cache| rewrite(cache, kind, change));
        assert!(!opened.from_cache);
        assert_eq!(opened.warnings.len(), 1, "{kind}: {:?}", opened.warnings);
    }
}

#[test]
fn a_changed_row_is_found_on_opening() {
    let cached = CachedModel::new(&Tiny::new());
    cached.opened().table.verify().unwrap();
    let opened = damaged(|cache| {
        rewrite(cache, "tables", &|mut bytes| {
            let row = bytes.len() - 60;
            bytes[row] ^= 4;
            bytes
        });
    });
    assert!(!opened.from_cache);
    assert!(opened.warnings[0].contains("its hash is wrong"), "{:?}", opened.warnings);
}

#[test]
fn a_deleted_table_is_rebuilt_without_a_warning() {
    let opened = damaged(|cache| fs::remove_dir_all(cache.join("tables")).unwrap());
    assert!(!opened.from_cache && opened.warnings.is_empty());
}

#[test]
fn concurrent_builders_get_the_same_table_and_leave_no_files() {
    let cached = CachedModel::new(&Tiny::new());
    let tables: Vec<Vec<f32>> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..8).map(|_| scope.spawn(|| numbers(&cached.opened()))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    assert!(tables.iter().all(|table| *table == tables[0]));
    assert_eq!((cached.files("tables").len(), cached.files("identities").len()), (1, 1));
}

#[test]
fn partial_files_are_removed_unless_locked() {
    let cached = CachedModel::new(&Tiny::new());
    let tables = cached.cache.path().join("tables");
    fs::create_dir_all(&tables).unwrap();
    let ours = format!("{}-1-1", super::cache::machine());
    let names = [("other-1-0.partial", 3), ("other-2-0.partial", 0)];
    let names = names.map(|(name, age)| (name.to_owned(), age)).into_iter();
    for (name, age) in names.chain([(format!("{ours}-0.partial"), 0)]) {
        let file = File::create(tables.join(name)).unwrap();
        file.set_modified(SystemTime::now() - Duration::from_secs(age * 24 * 3600)).unwrap();
    }
    let held = File::create(tables.join(format!("{ours}-1.partial"))).unwrap();
    held.lock().unwrap();
    cached.opened();
    let left = ["other-2-0.partial".to_owned(), format!("{ours}-1.partial")];
    let partial = |path: &PathBuf| path.extension().is_some_and(|end| end == "partial");
    let mut found: Vec<String> = fs::read_dir(&tables)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(partial)
        .map(|path| path.file_name().unwrap().to_str().unwrap().to_owned())
        .collect();
    found.sort();
    let mut expected = left.to_vec();
    expected.sort();
    assert_eq!(found, expected);
}

#[test]
fn nan_weights_are_refused_and_leave_no_files() {
    let cached = CachedModel::new(&Tiny::new());
    let path = cached.folder.path().join("model.safetensors");
    let mut bytes = fs::read(&path).unwrap();
    let header = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize + 8;
    // The writer orders tensors of one type by name: the norm follows the embedding's 12 rows.
    bytes[header + 12 * 8 * 4..][..4].copy_from_slice(&f32::NAN.to_le_bytes());
    fs::write(&path, bytes).unwrap();
    let model = cached.model();
    let problem = LayerZeroTable::open_or_build(
        &model,
        Kernel::PortableF32,
        Precision::F32,
        cached.cache.path(),
        &|_, _| {},
    )
    .unwrap_err();
    assert_eq!(
        problem.message,
        "`model.layers.0.input_layernorm.weight` holds NaN: every score would be undefined"
    );
    assert!(cached.files("tables").is_empty());
}

#[test]
fn an_unwritable_cache_is_a_machine_problem() {
    let cached = CachedModel::new(&Tiny::new());
    let file = cached.cache.path().join("file");
    fs::write(&file, "").unwrap();
    let model = cached.model();
    let problem = LayerZeroTable::open_or_build(
        &model,
        Kernel::PortableF32,
        Precision::F32,
        &file,
        &|_, _| {},
    );
    assert_eq!(problem.unwrap_err().kind, ProblemKind::Machine);
}

#[test]
fn the_file_of_an_opened_table_is_read_only() {
    let cached = CachedModel::new(&Tiny::new());
    cached.opened();
    for entry in fs::read_dir(cached.cache.path().join("tables")).unwrap() {
        assert!(entry.unwrap().metadata().unwrap().permissions().readonly());
    }
}
