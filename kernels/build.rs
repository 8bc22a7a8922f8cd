//! Compiles the device code if the feature `cuda` is enabled: one fat binary per file of `src/cuda/device`. Sets cfgs
//! for tests with special requirements.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Output};

#[path = "../testkit/probe.rs"]
mod probe;

/// Machine code for A100, A800 and A30 (80), for Hopper (90a), and PTX that later chips translate when they load it.
const ARCHITECTURES: &str = "80,90a,80-virtual";

/// Folder of the kernels, and of the loops that the example `gpu_windows` measures a GPU's limits with.
const KERNELS: &str = "src/cuda/device";
const EXAMPLE: &str = "examples/gpu_windows/device";

/// Folder and name of a source file, whether it needs Hopper's instructions, and additional options.
const FILES: [(&str, &str, bool, &[&str]); 7] = [
    (KERNELS, "attention_f32", false, &[]),
    (KERNELS, "attention_v1", false, &[]),
    (KERNELS, "attention_v2", true, &[]),
    (KERNELS, "attention_v3", true, &[]),
    // Without contraction, so that rotations have the same bits as on the CPU.
    (KERNELS, "gather_rope", false, &["-fmad=false"]),
    (EXAMPLE, "limits", false, &[]),
    (EXAMPLE, "limits_v2", true, &[]),
];

fn main() -> ExitCode {
    let processor = ["longsift_avx2", "longsift_avx512", "longsift_avx512_vnni", "longsift_amx"];
    probe::set(&[&processor[..], &["longsift_cxx"]].concat());
    println!("cargo::rerun-if-changed={KERNELS}");
    println!("cargo::rerun-if-changed={EXAMPLE}");
    for variable in ["LONGSIFT_CUDA_ARCHITECTURES", "NVCC", "CUDA_HOME", "CUDA_PATH"] {
        println!("cargo::rerun-if-env-changed={variable}");
    }
    if std::env::var_os("CARGO_FEATURE_CUDA").is_none() {
        return ExitCode::SUCCESS;
    }
    match compile_all() {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            for line in message.lines() {
                println!("cargo::error={line}");
            }
            ExitCode::FAILURE
        }
    }
}

fn compile_all() -> Result<(), String> {
    let compiler = compiler()?;
    let architectures =
        std::env::var("LONGSIFT_CUDA_ARCHITECTURES").unwrap_or_else(|_| ARCHITECTURES.to_owned());
    let targets = architectures
        .split(',')
        .map(|architecture| Target::parse(architecture.trim()))
        .collect::<Result<Vec<_>, _>>()?;
    let out = PathBuf::from(std::env::var_os("OUT_DIR").expect("cargo sets it"));
    std::thread::scope(|scope| {
        let started = FILES.map(|(folder, name, hopper, options)| {
            let targets: Vec<_> = targets.iter().filter(|t| !hopper || t.is_hopper()).collect();
            let (compiler, out) = (&compiler, &out);
            scope.spawn(move || compile(compiler, (folder, name), &targets, options, out))
        });
        started.into_iter().try_for_each(|thread| thread.join().expect("compiling does not panic"))
    })
}

/// `80` or `90a`: machine code; `80-virtual`: PTX.
struct Target {
    number: String,
    ptx: bool,
}

impl Target {
    fn parse(text: &str) -> Result<Self, String> {
        let (number, ptx) = match text.strip_suffix("-virtual") {
            Some(number) => (number, true),
            None => (text, false),
        };
        let digits = number.trim_end_matches(['a', 'f']);
        match digits.parse::<u32>() {
            Ok(80..) => Ok(Self { number: number.to_owned(), ptx }),
            _ => Err(format!(
                "LONGSIFT_CUDA_ARCHITECTURES has `{text}`: architectures are numbers from 80 on, like `80`, `90a` or \
                 `80-virtual` (PTX), separated by commas"
            )),
        }
    }

    fn is_hopper(&self) -> bool {
        self.number == "90a" && !self.ptx
    }

    fn option(&self) -> String {
        let (number, code) = (&self.number, if self.ptx { "compute" } else { "sm" });
        format!("-gencode=arch=compute_{number},code={code}_{number}")
    }
}

/// Returns nvcc's path: `NVCC`, the CUDA installation that `CUDA_HOME` or `CUDA_PATH` names, or the search path.
fn compiler() -> Result<PathBuf, String> {
    let installed =
        |variable| std::env::var_os(variable).map(|home| Path::new(&home).join("bin").join("nvcc"));
    let named = std::env::var_os("NVCC").map(PathBuf::from);
    let candidates = [named, installed("CUDA_HOME"), installed("CUDA_PATH"), Some("nvcc".into())];
    let runs = |path: &PathBuf| {
        Command::new(path).arg("--version").output().is_ok_and(|output| output.status.success())
    };
    candidates.into_iter().flatten().find(runs).ok_or_else(|| {
        "the feature `cuda` needs nvcc, which is neither in NVCC, CUDA_HOME, CUDA_PATH nor PATH\n\
         hint: `scripts/cuda-toolchain.sh target/cuda && . target/cuda/env.sh` installs it, without a GPU or a driver"
            .to_owned()
    })
}

fn compile(
    compiler: &Path,
    (folder, name): (&str, &str),
    targets: &[&Target],
    options: &[&str],
    out: &Path,
) -> Result<(), String> {
    let to = out.join(format!("{name}.fatbin"));
    if targets.is_empty() {
        // An empty image marks a kernel that was not built.
        return std::fs::write(&to, []).map_err(|error| format!("{}: {error}", to.display()));
    }
    let output = Command::new(compiler)
        .args(["-fatbin", "-O3", "-std=c++17", "-lineinfo"])
        .args(targets.iter().map(|target| target.option()))
        .args(options)
        .args(["-I", KERNELS])
        .arg(format!("{folder}/{name}.cu"))
        .arg("-o")
        .arg(&to)
        .output()
        .map_err(|error| format!("{}: {error}", compiler.display()))?;
    remarks(name, &output);
    if output.status.success() {
        return Ok(());
    }
    Err(format!("nvcc failed on {name}.cu\n{}", String::from_utf8_lossy(&output.stderr)))
}

/// Turns the compiler's remarks about lost performance, above all waits between products, into build warnings.
fn remarks(name: &str, output: &Output) {
    let text = [&output.stdout[..], &output.stderr[..]].concat();
    for line in String::from_utf8_lossy(&text).lines() {
        if line.contains("Performance") || line.contains("warning") {
            println!("cargo::warning={name}.cu: {line}");
        }
    }
}
