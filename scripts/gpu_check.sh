#!/usr/bin/env bash
# Builds, checks and times the GPU kernels, in under 8 minutes on a machine of 16 cores; prints tables and writes JSON.
#
#   scripts/gpu_check.sh [FOLDER]          both steps; FOLDER (default target/gpu-check) gets programs and results
#   scripts/gpu_check.sh build [FOLDER]    needs cargo, and nvcc or a network (scripts/cuda-toolchain.sh); no GPU
#   scripts/gpu_check.sh run [FOLDER]      needs a GPU, this repository and what `build` put there: neither cargo nor nvcc
#   scripts/gpu_check.sh conformance       the conformance cases alone, on every GPU; needs what `build` needs, and a GPU
#
# Checks: every kernel against float64; every conformance case on the GPU with each of its kernels (those of LONGSIFT_SHARED
# where that is there); the device memory of windows within 5 % of what was announced. Times: every kernel, geometry and window
# beside the chip's limits, and PyTorch's published loop and scaled_dot_product_attention (where python3 has torch); a run
# fed from Parquet, of token ids and of texts, with the GPU's utilisation each second. Ends with 1 if a check failed.
set -uo pipefail
cd "$(dirname "$0")/.."
step=all
case ${1:-} in build | run | conformance) step=$1; shift ;; esac
folder=${1:-target/gpu-check}
mkdir -p "$folder"
folder=$(cd "$folder" && pwd)
failed=()

say() { printf '\n== %s (after %ss)\n' "$*" "$SECONDS"; }
check() { # NAME COMMAND...: goes on when it fails
  local name=$1 log=$folder/${1// /-}.log
  shift
  say "$name"
  "$@" 2>&1 | tee "$log" || failed+=("$name")
}

toolchain() {
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
}

tests() { # builds test programs and copies them to the folder
  local messages
  messages=$(cargo test --release --locked -p longsift-kernels -p longsift-stages --features cuda --no-run \
    --message-format json "$@") || return 1
  local name program
  for name in cuda device_conformance; do
    program=$(sed -n "s/.*\"executable\":\"\([^\"]*\/$name-[^\"]*\)\".*/\1/p" <<<"$messages" | tail -1)
    [ -z "$program" ] || { cp "$program" "$folder/test-$name" && strip "$folder/test-$name"; } || return 1
  done
}

build() {
  toolchain || return 1
  tests --test cuda --test device_conformance || return 1
  cargo build --release --locked -p longsift-kernels --features cuda --example gpu_windows || return 1
  cargo build --release --locked -p longsift-engine --features cuda --bin longsift --example gpu_feed || return 1
  cp target/release/longsift target/release/examples/gpu_windows target/release/examples/gpu_feed "$folder" || return 1
  strip "$folder/longsift" "$folder/gpu_windows" "$folder/gpu_feed"
}

conformance() {
  local cases=families_on_every_gpu
  if [ -d "${LONGSIFT_SHARED:-../shared}/conformance" ]; then cases=on_every_gpu; fi
  CARGO_MANIFEST_DIR=$PWD/stages "$folder/test-device_conformance" "$cases" --ignored --nocapture
}

# Runs one of the pipelines of `gpu_feed` with a look at the devices each second.
feed() { # NAME
  "$folder/longsift" devices --watch --seconds 1 --csv "$folder/feed-$1.csv" >/dev/null &
  local watcher=$!
  timeout 100 "$folder/longsift" run "$folder/feed/$1.yaml" --fresh >"$folder/feed-$1.json"
  local code=$?
  kill "$watcher"
  wait "$watcher" 2>/dev/null
  # The last columns have the windows in flight and the utilisation in per cent.
  awk -F, '$2 == "cuda:0" && $(NF - 1) > 0 { sum += $NF; looks++ }
    END { if (looks) printf "GPU busy %.1f %% (mean of %d looks while windows were in flight)\n", sum / looks, looks }' \
    "$folder/feed-$1.csv"
  return $code
}

feeds() {
  rm -rf "$folder/feed" "$folder"/feed-*.csv
  "$folder/gpu_feed" "$folder/feed" "${GPU_CHECK_WINDOWS:-1500}" datasets/demo || return 1
  "$folder/longsift" plan "$folder/feed/text.yaml" || return 1
  local worst=0
  for name in tokens text; do
    printf '\n-- %s\n' "$name"
    feed "$name" || worst=1
  done
  return $worst
}

run() {
  if ! command -v nvidia-smi >/dev/null; then
    echo "skipped: this machine has no NVIDIA driver"
    return 0
  fi
  nvidia-smi --query-gpu=name,driver_version,memory.total,memory.used --format=csv
  check "kernel tests" "$folder/test-cuda" device:: --ignored --nocapture --test-threads 1
  check "conformance" conformance
  check "windows" timeout 180 "$folder/gpu_windows" --json "$folder/windows.json" --seconds 20
  check "torch" timeout 100 python3 scripts/gpu_torch.py --json "$folder/torch.json" --beside "$folder/windows.json"
  check "feed" feeds
}

case $step in
  conformance)
    toolchain && tests --test device_conformance || exit 1
    check "conformance" conformance
    ;;
  build | all) say build; build || exit 1 ;;
esac
case $step in run | all) run ;; esac
say "done; results in $folder"
if [ ${#failed[@]} -gt 0 ]; then
  printf 'FAILED: %s\n' "${failed[@]}"
  exit 1
fi
