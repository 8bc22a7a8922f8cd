#!/usr/bin/env bash
# Builds, checks and times the GPU kernels, in under 8 minutes on a machine of 16 cores; prints a table and writes JSON.
#
#   scripts/gpu_check.sh [FOLDER]          both steps; FOLDER (default target/gpu-check) gets programs and results
#   scripts/gpu_check.sh build [FOLDER]    needs cargo, and nvcc or a network (scripts/cuda-toolchain.sh); no GPU
#   scripts/gpu_check.sh run [FOLDER]      needs a GPU, and what `build` put there: neither cargo nor nvcc
#
# Checks: every kernel against float64 on the GPU; the conformance models through the real binary with `devices: auto` (where
# cargo and the folder of LONGSIFT_SHARED are). Times: every kernel, geometry and window beside the chip's limits, and
# PyTorch's published loop and scaled_dot_product_attention (where python3 has torch). Ends with 1 if a check failed.
set -uo pipefail
cd "$(dirname "$0")/.."
step=all
case ${1:-} in build | run) step=$1; shift ;; esac
folder=${1:-target/gpu-check}
mkdir -p "$folder"
failed=()

say() { printf '\n== %s (after %ss)\n' "$*" "$SECONDS"; }
check() { # NAME COMMAND...: goes on when it fails
  local name=$1
  shift
  say "$name"
  "$@" 2>&1 | tee "$folder/${name// /-}.log" || failed+=("$name")
}

build() {
  if ! command -v nvcc >/dev/null && [ ! -x "${CUDA_HOME:-}/bin/nvcc" ]; then
    scripts/cuda-toolchain.sh target/cuda || return 1
    . target/cuda/env.sh
  fi
  # The code of the GPU at hand alone, where there is one: a third of the time.
  local capability
  capability=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null | head -1 | tr -d .)
  case $capability in
    "") ;;
    90) export LONGSIFT_CUDA_ARCHITECTURES=${LONGSIFT_CUDA_ARCHITECTURES:-90a} ;;
    *) export LONGSIFT_CUDA_ARCHITECTURES=${LONGSIFT_CUDA_ARCHITECTURES:-$capability} ;;
  esac
  cargo build --release --locked -p longsift-kernels --features cuda --example gpu_windows || return 1
  local tests
  tests=$(cargo test --release --locked -p longsift-kernels --features cuda --test cuda --no-run --message-format json |
    sed -n 's/.*"executable":"\([^"]*cuda-[^"]*\)".*/\1/p' | tail -1) || return 1
  cp target/release/examples/gpu_windows "$folder/gpu_windows" && cp "$tests" "$folder/kernel-tests" || return 1
  strip "$folder/gpu_windows" "$folder/kernel-tests"
}

conformance() {
  if ! command -v cargo >/dev/null || [ ! -d "${LONGSIFT_SHARED:-../shared}/conformance" ]; then
    echo "skipped: needs cargo and the conformance models (LONGSIFT_SHARED)"
    return 0
  fi
  cargo test --locked -p longsift-engine --features cuda --test integration -- conformance
}

run() {
  if ! command -v nvidia-smi >/dev/null; then
    echo "skipped: this machine has no NVIDIA driver"
    return 0
  fi
  nvidia-smi --query-gpu=name,driver_version,memory.total,memory.used --format=csv
  check "kernel tests" "$folder/kernel-tests" device --nocapture --test-threads 1
  check "windows" timeout 200 "$folder/gpu_windows" --json "$folder/windows.json" --seconds 10
  check "torch" timeout 120 python3 scripts/gpu_torch.py --json "$folder/torch.json"
  check "conformance" conformance
}

[ "$step" = run ] || { say build; build || exit 1; }
[ "$step" = build ] || run
say "done; results in $folder"
if [ ${#failed[@]} -gt 0 ]; then
  printf 'FAILED: %s\n' "${failed[@]}"
  exit 1
fi
