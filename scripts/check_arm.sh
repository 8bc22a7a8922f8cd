#!/usr/bin/env bash
# Cross-compiles the kernels' tests for 64-bit ARM and runs them in an emulator. On an ARM machine use
# `cargo test -p longsift-kernels`.
#
#   scripts/check_arm.sh [--all]
#
# Without `--all` it omits most random shapes and the measurements, which take half an hour in the emulator.
#
# Needs rustup, for the standard library of the target, and `qemu-aarch64` (Debian: qemu-user). Statically linked with the
# linker of Rust, so no C compiler for ARM is needed. An emulator checks results, not speed.
set -euo pipefail
cd "$(dirname "$0")/.."
target=aarch64-unknown-linux-musl

command -v qemu-aarch64 > /dev/null || { echo "$0: no qemu-aarch64: install qemu-user" >&2; exit 2; }
[ -d "$(rustc --print sysroot)/lib/rustlib/$target" ] || rustup target add "$target"
export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_MUSL_LINKER=rust-lld
export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_MUSL_RUNNER=qemu-aarch64
# libloading links libdl, which is part of musl's libc. Rust ships only that libc, so this creates the empty libdl archive that
# musl installs next to it.
mkdir -p target/musl
printf '!<arch>\n' > target/musl/libdl.a
unset RUSTFLAGS CARGO_ENCODED_RUSTFLAGS # these would override the target's flags
libdl="target.$target.rustflags = ['-L', 'native=$PWD/target/musl']"
skipped=(--skip bench:: --skip any_shape --skip any_combination --skip number_of_threads --skip heads_are_grouped --skip sampled_rows)
if [ "${1:-}" = --all ]; then skipped=(); fi
cargo test --config "$libdl" -p longsift-kernels --locked --target "$target" --lib --test agreement --test large_logits --test rounding -- "${skipped[@]}"
