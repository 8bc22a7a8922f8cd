//! The device code as a library of this processor, compiled by the tests themselves.

use std::collections::hash_map::DefaultHasher;
use std::fs::{self, File};
use std::hash::{Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::OnceLock;

use libloading::Library;

/// The compiled device code. Tests that use it are ignored unless the cfg `longsift_cxx` is set.
pub(crate) fn library() -> &'static Library {
    static LIBRARY: OnceLock<Library> = OnceLock::new();
    LIBRARY.get_or_init(load)
}

fn load() -> Library {
    let compiler = std::env::var("CXX").unwrap_or_else(|_| "c++".to_owned());
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("cuda_emulation");
    fs::create_dir_all(&folder).expect("the target folder is writable");
    // Tests may run in several processes: one compiles, the others wait.
    let lock = File::create(folder.join("lock")).expect("the target folder is writable");
    lock.lock().expect("files can be locked");
    let path = folder.join(format!("emulated-{:016x}.so", fingerprint(&compiler)));
    if !path.exists() {
        compile(&compiler, &folder, &path);
    }
    // SAFETY: the library is built from this repository's sources and runs no code when it is loaded.
    unsafe { Library::new(&path) }.expect("the library was just linked")
}

fn device_code() -> PathBuf {
    kernels().join("src/cuda/device")
}

fn machine() -> PathBuf {
    kernels().join("tests/cuda/emulation")
}

/// The folder of this crate, even if another crate's tests include this file.
fn kernels() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../kernels")
}

fn files(folder: &Path, extension: &str) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).expect("the folder is part of the repository");
    let mut files: Vec<PathBuf> =
        entries.map(|entry| entry.expect("a folder can be read").path()).collect();
    files.retain(|file| file.extension().is_some_and(|other| other == extension));
    files.sort();
    files
}

fn fingerprint(compiler: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    compiler.hash(&mut hasher);
    for (folder, extension) in
        [(device_code(), "cu"), (device_code(), "cuh"), (machine(), "h"), (machine(), "cpp")]
    {
        for file in files(&folder, extension) {
            fs::read(&file).expect("a source file can be read").hash(&mut hasher);
        }
    }
    hasher.finish()
}

fn compile(compiler: &str, folder: &Path, library: &Path) {
    let sources = files(&device_code(), "cu").into_iter().chain(files(&machine(), "cpp"));
    let start = |source: PathBuf| -> (PathBuf, Child) {
        let object =
            folder.join(source.file_name().expect("a file has a name")).with_extension("o");
        let child = Command::new(compiler)
            .args([
                "-x",
                "c++",
                "-std=c++17",
                "-O2",
                "-fPIC",
                "-ffp-contract=off",
                "-fno-strict-aliasing",
            ])
            // Fibers leave functions by longjmp, which fortified builds refuse.
            .args(["-U_FORTIFY_SOURCE", "-DLONGSIFT_EMULATION", "-Wno-unknown-pragmas"])
            .arg("-I")
            .arg(machine())
            .arg("-I")
            .arg(device_code())
            .arg("-c")
            .arg(source)
            .arg("-o")
            .arg(&object)
            .spawn()
            .expect("the compiler has just printed its version");
        (object, child)
    };
    let children: Vec<(PathBuf, Child)> = sources.map(start).collect();
    let objects: Vec<PathBuf> = children
        .into_iter()
        .map(|(object, mut child)| {
            let status = child.wait().expect("a child can be waited for");
            assert!(
                status.success(),
                "the device code does not compile for the processor: {}",
                object.display()
            );
            object
        })
        .collect();
    let unfinished = library.with_extension("unfinished");
    let status =
        Command::new(compiler).arg("-shared").args(&objects).arg("-o").arg(&unfinished).status();
    assert!(status.expect("the compiler runs").success(), "the device code does not link");
    fs::rename(unfinished, library).expect("a file can be renamed");
}
