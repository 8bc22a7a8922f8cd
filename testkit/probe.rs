//! Special requirements of tests, as cfgs. A test can only be ignored at compile time, so the build scripts of crates
//! with such tests include this file and name the requirements of their tests.
//!
//! Probes run on the machine that builds. After installing something, `touch` the build script.

use std::path::{Path, PathBuf};
use std::process::Command;

/// Name of a cfg, and the probe for its requirement.
type Probe = (&'static str, fn() -> bool);

/// Every cfg that a build script may request.
const PROBES: [Probe; 13] = [
    ("longsift_shared", shared),
    ("longsift_preload", preload),
    ("longsift_mounts", mounts),
    ("longsift_systemd", systemd),
    ("longsift_script", script),
    ("longsift_browser", browser),
    ("longsift_cxx", cxx),
    ("longsift_pyarrow", pyarrow),
    ("longsift_io_counts", io_counts),
    ("longsift_avx2", || processor_has(&["avx2", "fma"])),
    ("longsift_avx512", || processor_has(&["avx512f", "avx512dq"])),
    ("longsift_avx512_vnni", || processor_has(&["avx512f", "avx512dq", "avx512_vnni"])),
    ("longsift_amx", || processor_has(&["avx512f", "avx512dq", "amx_tile", "amx_bf16"])),
];

/// Sets those of the cfgs `names` whose probe succeeds.
pub(crate) fn set(names: &[&str]) {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed=../testkit/probe.rs");
    for name in names {
        let (_, has) = PROBES.iter().find(|(known, _)| known == name).expect("a cfg of the table");
        println!("cargo::rustc-check-cfg=cfg({name})");
        if has() {
            println!("cargo::rustc-cfg={name}");
        }
    }
}

/// Cases, models and corpora in `shared` next to the repository, or in `LONGSIFT_SHARED`.
fn shared() -> bool {
    println!("cargo::rerun-if-env-changed=LONGSIFT_SHARED");
    let named = std::env::var_os("LONGSIFT_SHARED").map(PathBuf::from);
    let folder = named.clone().unwrap_or_else(|| PathBuf::from("../../shared"));
    // A single file, since cargo would walk a folder at every build, and rerun the script while it is missing.
    let known = folder.join("conformance/ranking_cases.json");
    if known.exists() {
        println!("cargo::rerun-if-changed={}", known.display());
    } else if named.is_some() {
        println!("cargo::warning=LONGSIFT_SHARED: `{}` is not found", known.display());
    }
    known.exists()
}

/// Libraries preloaded before libc, such as the one that injects faults for `tests/faults`.
fn preload() -> bool {
    let target = |name: &str| std::env::var(name).unwrap_or_default();
    target("CARGO_CFG_TARGET_OS") == "linux" && target("CARGO_CFG_TARGET_ENV") == "gnu"
}

/// File systems that an unprivileged user may mount in a namespace.
fn mounts() -> bool {
    let script = "mount -t tmpfs none /mnt";
    succeeds("unshare", &["--user", "--map-root-user", "--mount", "sh", "-euc", script])
}

fn systemd() -> bool {
    succeeds("systemd-analyze", &["--version"])
}

/// The program of util-linux that runs a command on a terminal; that of BSD has other options.
fn script() -> bool {
    let done = Command::new("script").arg("--version").output();
    done.is_ok_and(|done| String::from_utf8_lossy(&done.stdout).contains("util-linux"))
}

/// Headless browser.
fn browser() -> bool {
    succeeds("chromium", &["--version"])
}

/// Python with Arrow, for the example programs.
fn pyarrow() -> bool {
    succeeds("python3", &["-c", "import pyarrow"])
}

/// C++ compiler, for the emulation of GPU code.
fn cxx() -> bool {
    println!("cargo::rerun-if-env-changed=CXX");
    let compiler = std::env::var("CXX").unwrap_or_else(|_| "c++".to_owned());
    succeeds(&compiler, &["--version"])
}

/// The system's count of bytes read by a process.
fn io_counts() -> bool {
    std::fs::read_to_string("/proc/self/io").is_ok_and(|text| text.contains("rchar: "))
}

/// Processor instructions, by their names in Linux; false if the target architecture differs.
fn processor_has(flags: &[&str]) -> bool {
    if std::env::var("CARGO_CFG_TARGET_ARCH").is_ok_and(|target| target != std::env::consts::ARCH) {
        return false;
    }
    let text = std::fs::read_to_string(Path::new("/proc/cpuinfo")).unwrap_or_default();
    let line = text.lines().find(|line| line.starts_with("flags")).unwrap_or_default();
    flags.iter().all(|flag| line.split_whitespace().any(|word| word == *flag))
}

fn succeeds(program: &str, arguments: &[&str]) -> bool {
    let done = Command::new(program).args(arguments).output();
    done.is_ok_and(|done| done.status.success())
}
