//! Compiles the libraries of `preloaded/`, and sets cfgs for tests with special requirements.

use std::path::Path;
use std::process::Command;

mod probe;

fn main() {
    probe::set(&["longsift_preload"]);
    println!("cargo::rerun-if-changed=preloaded");
    println!("cargo::rerun-if-env-changed=CC");
    let out = std::env::var_os("OUT_DIR").expect("cargo sets `OUT_DIR`");
    // Tests that need these two libraries are ignored on systems without `LD_PRELOAD`.
    if std::env::var("CARGO_CFG_TARGET_ENV").is_ok_and(|env| env == "gnu") {
        compile("interposer.c", &Path::new(&out).join("interposer.so"));
        compile("no_network.c", &Path::new(&out).join("no_network.so"));
    }
    // Programs look this library up by name in a folder.
    let folder = Path::new(&out).join("nvml");
    std::fs::create_dir_all(&folder).expect("cargo's folder is writable");
    compile("fake_nvml.c", &folder.join("libnvidia-ml.so.1"));
}

fn compile(source: &str, library: &Path) {
    let compiler = std::env::var("CC").unwrap_or_else(|_| "cc".to_owned());
    let done = Command::new(&compiler)
        .args(["-shared", "-fPIC", "-O1", "-o"])
        .arg(library)
        .arg(Path::new("preloaded").join(source))
        .arg("-ldl")
        .status();
    match done {
        Ok(status) if status.success() => {}
        Ok(_) => println!("cargo::error=`{compiler}` does not compile preloaded/{source}"),
        Err(error) => println!(
            "cargo::error=the tests need a C compiler, and `{compiler}` does not start: {error}"
        ),
    }
}
