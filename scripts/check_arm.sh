#!/usr/bin/env bash
# The kernels' tests for ARM processors of 64 bits, cross-compiled and run in an emulator: on a machine that is no ARM one. On
# an ARM machine, `cargo test -p longsift-kernels` does it.
#
#   scripts/check_arm.sh [--all]
#
# Without `--all` it leaves out most random shapes and the measurements, which take an emulator half an hour.
#
# Needs rustup, for the standard library of the target, and `qemu-aarch64` (Debian: qemu-user). Statically linked with the
# linker that comes with Rust, so no C compiler for ARM. An emulator shows bits, not times.
set -euo pipefail
cd "$(dirname "$0")/.."
target=aarch64-unknown-linux-musl

command -v qemu-aarch64 > /dev/null || { echo "$0: no qemu-aarch64: install qemu-user" >&2; exit 2; }
[ -d "$(rustc --print sysroot)/lib/rustlib/$target" ] || rustup target add "$target"
export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_MUSL_LINKER=rust-lld
export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_MUSL_RUNNER=qemu-aarch64
# libloading asks for libdl, which musl has in its libc; Rust brings that alone, so the empty archive that musl installs beside it
# is made here.
mkdir -p target/musl
printf '!<arch>\n' > target/musl/libdl.a
unset RUSTFLAGS CARGO_ENCODED_RUSTFLAGS # which cargo takes instead
libdl="target.$target.rustflags = ['-L', 'native=$PWD/target/musl']"
skipped=(--skip bench:: --skip any_shape --skip any_combination --skip number_of_threads --skip heads_are_grouped --skip sampled_rows)
if [ "${1:-}" = --all ]; then skipped=(); fi
cargo test --config "$libdl" -p longsift-kernels --locked --target "$target" --lib --test agreement --test large_logits --test rounding -- "${skipped[@]}"
