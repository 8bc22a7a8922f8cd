#!/usr/bin/env bash
# Checks and times the GPU kernels in three calls of less than 9 minutes each, on a machine with a driver, and for some
# steps nvcc and torch, but without Rust or a network. Collects all output, and JSON, in one folder.
#
#   scripts/gpu_check.sh build [FOLDER] [kernels]  needs cargo, and nvcc or a network (scripts/cuda-toolchain.sh); no GPU. Makes
#                                                  FOLDER (default target/gpu-check) and FOLDER.tar.gz; with `kernels` without the
#                                                  program itself, which `record` needs
#   FOLDER/gpu_check.sh truth                      the chip, every kernel against float64, windows, sanitizer, ncu, PyTorch
#   FOLDER/gpu_check.sh variants                   variants of the newest kernel: compiled by nvcc, compared with
#                                                  cuda-v1-bf16, timed
#   FOLDER/gpu_check.sh record                     conformance, all windows, runs fed from Parquet, with nvidia-smi dmon
#
# Each kernel runs in a separate process with a time limit, so a kernel that hangs delays the others only by its limit. Steps for
# which no time is left are skipped and listed. Results are in FOLDER/results: NAME.log, *.jsonl, steps.jsonl with exit status and seconds of each
# step. Exit code 1 if a step failed. GPU_CHECK_SECONDS (520) is a call's time, CUDA_VISIBLE_DEVICES its GPU.
set -uo pipefail
here=$(cd "$(dirname "$0")" && pwd)
step=${1:-}
limit=${GPU_CHECK_SECONDS:-520}
kernels=(cuda-v1-bf16 cuda-f32 cuda-v2-bf16 cuda-v3-bf16) # the most likely to hang comes last
failed=()
left_out=()

toolchain() {
  if ! command -v nvcc >/dev/null && [ ! -x "${CUDA_HOME:-}/bin/nvcc" ]; then
    scripts/cuda-toolchain.sh target/cuda || return 1
    . target/cuda/env.sh
  fi
  export LONGSIFT_CUDA_ARCHITECTURES=${LONGSIFT_CUDA_ARCHITECTURES:-90a}
}

# Copies the programs in cargo's messages to the folder, stripped.
keep() { # MESSAGES TARGET=NAME...
  local messages=$1 pair program
  shift
  for pair in "$@"; do
    program=$(sed -n "s/.*\"name\":\"${pair%=*}\".*\"executable\":\"\([^\"]*\)\".*/\1/p" <<<"$messages" | tail -1)
    [ -n "$program" ] || { echo "cargo built no ${pair%=*}" >&2; return 1; }
    cp "$program" "$folder/${pair#*=}" && strip "$folder/${pair#*=}" || return 1
  done
}

build() {
  local messages release=(--release --locked --features cuda --message-format json)
  cd "$here/.." || return 1
  rm -rf "$folder" && mkdir -p "$folder/device" || return 1
  folder=$(cd "$folder" && pwd)
  toolchain || return 1
  messages=$(cargo test "${release[@]}" -p longsift-kernels --no-run --test cuda) || return 1
  keep "$messages" cuda=test-cuda || return 1
  messages=$(cargo build "${release[@]}" -p longsift-kernels --example gpu_windows) || return 1
  keep "$messages" gpu_windows=gpu_windows || return 1
  if [ "$1" != kernels ]; then
    messages=$(cargo test "${release[@]}" -p longsift-stages --no-run --test device_conformance) || return 1
    keep "$messages" device_conformance=test-device_conformance || return 1
    messages=$(cargo build "${release[@]}" -p longsift-engine --bin longsift --example gpu_feed) || return 1
    keep "$messages" longsift=longsift gpu_feed=gpu_feed || return 1
    mkdir -p "$folder/stages/tests" "$folder/datasets"
    cp -r stages/tests/families "$folder/stages/tests" && cp -r datasets/demo "$folder/datasets" || return 1
    if [ -d "${LONGSIFT_SHARED:-../shared}/conformance" ]; then
      mkdir -p "$folder/shared" && cp -r "${LONGSIFT_SHARED:-../shared}/conformance" "$folder/shared" || return 1
    fi
  fi
  cp kernels/src/cuda/device/* "$folder/device" && cp scripts/gpu_check.sh scripts/gpu_torch.py "$folder" || return 1
  tar -C "$(dirname "$folder")" -czf "$folder.tar.gz" "$(basename "$folder")" || return 1
  local bytes
  bytes=$(stat -c %s "$folder.tar.gz")
  echo "$folder.tar.gz: $bytes bytes"
  [ "$bytes" -lt 60000000 ] || { echo "expected at most 60 MB" >&2; return 1; }
}

# Runs a step: its output goes to the terminal and to a log, its result to steps.jsonl.
check() { # NAME SECONDS COMMAND...
  local name=$1 seconds=$2 started=$SECONDS code
  shift 2
  [ $((limit - SECONDS)) -ge "$seconds" ] || seconds=$((limit - SECONDS))
  if [ "$seconds" -lt 5 ]; then
    left_out+=("$name")
    printf '{"step":"%s","rc":null,"seconds":0}\n' "$name" >>"$results/steps.jsonl"
    return
  fi
  printf '\n== %s (after %ss, at most %ss)\n' "$name" "$SECONDS" "$seconds"
  timeout --kill-after 5 "$seconds" "$@" 2>&1 | tee "$results/$name.log"
  code=${PIPESTATUS[0]}
  [ "$code" -eq 0 ] || failed+=("$name (exit $code)")
  printf '{"step":"%s","rc":%s,"seconds":%s}\n' "$name" "$code" $((SECONDS - started)) >>"$results/steps.jsonl"
}

missing() { # PROGRAM STEP...: reports steps that are skipped because a program is missing
  command -v "$1" >/dev/null && return 1
  printf '\n== skipped because %s is missing: %s\n' "$1" "${*:2}"
  left_out+=("${@:2}")
}

chip() {
  nvidia-smi --query-gpu=name,uuid,driver_version,memory.total,memory.used,mig.mode.current --format=csv
  nvidia-smi -q -d CLOCK,POWER,PERFORMANCE,TEMPERATURE
  ldd "$here/test-cuda" "$here/gpu_windows"
  command -v nvcc ncu compute-sanitizer python3
}

windows() { # NAME SECONDS ARGUMENT...
  check "$1" "$2" "$here/gpu_windows" --json "$results/windows.jsonl" "${@:3}"
}

truth() {
  local kernel tiny=(--geometry tiny --tokens 300 --repeat 1 --no-limits)
  check chip 20 bash -c "$(declare -f chip); here='$here' chip"
  for kernel in "${kernels[@]}"; do
    check "tests-$kernel" 60 env LONGSIFT_CUDA_KERNEL="$kernel" "$here/test-cuda" device:: --ignored --nocapture --test-threads 1
  done
  windows limits 20 --kernel cuda-v1-bf16 --geometry LLaMA-3.1-8B --tokens 4096
  for kernel in cuda-v1-bf16 cuda-v2-bf16 cuda-v3-bf16 cuda-f32; do
    windows "windows-$kernel" 25 --kernel "$kernel" --geometry LLaMA-3.1-8B --tokens 4096,8192,32768 --repeat 5 --no-limits
  done
  missing python3 torch || check torch 60 python3 "$here/gpu_torch.py" --json "$results/torch.json" --beside "$results/windows.jsonl"
  for kernel in cuda-v2-bf16 cuda-v3-bf16; do
    missing ncu "ncu-$kernel" || check "ncu-$kernel" 40 ncu --clock-control none --set full --kernel-name regex:attention_v \
      --launch-count 1 --force-overwrite --export "$results/ncu-$kernel" \
      "$here/gpu_windows" --kernel "$kernel" --geometry LLaMA-3.1-8B --tokens 8192 --repeat 1 --no-limits
    missing compute-sanitizer "memcheck-$kernel" "racecheck-$kernel" && continue
    check "memcheck-$kernel" 40 compute-sanitizer --tool memcheck --error-exitcode 1 "$here/gpu_windows" --kernel "$kernel" "${tiny[@]}"
    check "racecheck-$kernel" 40 compute-sanitizer --tool racecheck --error-exitcode 1 "$here/gpu_windows" --kernel "$kernel" "${tiny[@]}"
  done
}

# File name, then options of nvcc: the variants selected by LONGSIFT_V3_* in attention_v3.cu.
kernel_variants() {
  cat <<VARIANTS
plain
two-stages -DLONGSIFT_V3_STAGES=2
running-maximum -DLONGSIFT_V3_BOUNDED=0
running-maximum-two-chains -DLONGSIFT_V3_BOUNDED=0 -DLONGSIFT_V3_CHAINS=2
running-maximum-eight-chains -DLONGSIFT_V3_BOUNDED=0 -DLONGSIFT_V3_CHAINS=8
two-stages-running-maximum -DLONGSIFT_V3_STAGES=2 -DLONGSIFT_V3_BOUNDED=0
VARIANTS
}

compile() { # NAME OPTION...: writes NAME/attention_v3.fatbin
  mkdir -p "$results/variants/$1"
  nvcc -cubin -arch=sm_90a -O3 -std=c++17 -Xptxas -v "${@:2}" "$here/device/attention_v3.cu" \
    -o "$results/variants/$1/attention_v3.fatbin" >"$results/variants/$1/nvcc.log" 2>&1
}

variants() {
  missing nvcc variants && return
  local name options best
  while read -r name options; do
    # shellcheck disable=SC2086 # options are words
    compile "$name" $options &
  done < <(kernel_variants)
  wait
  while read -r name _; do
    if [ ! -s "$results/variants/$name/attention_v3.fatbin" ]; then
      cat "$results/variants/$name/nvcc.log"
      failed+=("nvcc $name")
      continue
    fi
    check "variant-$name" 45 env LONGSIFT_CUDA_IMAGES="$results/variants/$name" "$here/gpu_windows" \
      --kernel cuda-v3-bf16 --beside cuda-v1-bf16 --geometry LLaMA-3.1-8B --tokens 4096,32768 --repeat 20 --no-limits \
      --json "$results/variant-$name.jsonl"
  done < <(kernel_variants)
  best=$(sed -n 's/.*"tokens":32768.*"attention_ms":\([0-9.]*\).*/\1/p;t;d' "$results"/variant-*.jsonl | sort -n | head -1)
  [ -n "$best" ] || return
  name=$(basename "$(grep -l "\"attention_ms\":$best," "$results"/variant-*.jsonl | head -1)" .jsonl)
  printf '\nthe fastest at 32,768 tokens: %s, %s ms\n' "${name#variant-}" "$best" | tee "$results/best.txt"
  missing ncu ncu-best || check ncu-best 60 env LONGSIFT_CUDA_IMAGES="$results/variants/${name#variant-}" \
    ncu --clock-control none --set full --kernel-name regex:attention_v3 --launch-count 1 --force-overwrite \
    --export "$results/ncu-best" "$here/gpu_windows" --kernel cuda-v3-bf16 --geometry LLaMA-3.1-8B --tokens 32768 --repeat 1 --no-limits
}

record() {
  local kernel name cases=families_on_every_gpu
  if [ -d "$here/shared/conformance" ]; then cases=on_every_gpu; fi
  nvidia-smi dmon -s pucm -d 1 >"$results/dmon.log" 2>&1 &
  watcher=$!
  trap 'kill "$watcher" 2>/dev/null' EXIT
  for kernel in "${kernels[@]}"; do
    check "conformance-$kernel" 40 env CARGO_MANIFEST_DIR="$here/stages" LONGSIFT_SHARED="$here/shared" LONGSIFT_CUDA_KERNEL="$kernel" \
      "$here/test-device_conformance" "$cases" --ignored --nocapture
  done
  for kernel in cuda-v1-bf16 cuda-v2-bf16 cuda-v3-bf16; do
    windows "all-windows-$kernel" 60 --kernel "$kernel" --seconds 3 --no-limits \
      --geometry LLaMA-3.1-8B,Qwen2.5-7B,LLaMA-3.1-70B,DeepSeek-V3 --tokens 4096,8192,32768,131072
  done
  check feed-files 60 "$here/gpu_feed" "$results/feed" "${GPU_CHECK_WINDOWS:-1500}" "$here/datasets/demo"
  check plan 20 "$here/longsift" plan "$results/feed/text.yaml"
  for name in tokens text; do
    check "feed-$name" 90 "$here/longsift" run "$results/feed/$name.yaml" --fresh
  done
}

case $step in
  build)
    folder=${2:-$here/../target/gpu-check}
    build "${3:-all}"
    exit
    ;;
  truth | variants | record) ;;
  *) sed -n '2,18s/^# \{0,1\}//p' "$0" >&2; exit 2 ;;
esac
if ! command -v nvidia-smi >/dev/null; then
  echo "skipped: this machine has no NVIDIA driver"
  exit 0
fi
results=$here/results
mkdir -p "$results"
"$step"
printf '\n== %s done after %ss; results in %s\n' "$step" "$SECONDS" "$results"
[ ${#left_out[@]} -eq 0 ] || printf 'SKIPPED: %s\n' "${left_out[@]}"
if [ ${#failed[@]} -gt 0 ]; then
  printf 'FAILED: %s\n' "${failed[@]}"
  exit 1
fi
