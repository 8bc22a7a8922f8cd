#!/usr/bin/env bash
# Checks that a program built with `--features cuda` works without an NVIDIA driver: it starts, lists no GPU with the reason, and
# runs the demo on the CPU with the reason.
#
#   scripts/check_without_gpu.sh [PROGRAM]      target/debug/longsift by default
set -euo pipefail
cd "$(dirname "$0")/.."
program=$(realpath "${1:-target/debug/longsift}")
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
unset CUDA_VISIBLE_DEVICES LONGSIFT_SIMULATED_DEVICES
export XDG_CACHE_HOME=$folder/cache

expect_text() { # FILE TEXT
  grep -qF -- "$2" "$1" || { printf 'expected "%s" in:\n' "$2"; cat "$1"; exit 1; }
}

if ldconfig -p 2>/dev/null | grep -q libcuda.so.1; then
  echo "skipped: this machine has an NVIDIA driver"
  exit 0
fi
# The program loads the driver's library at run time and is not linked with it.
if ldd "$program" | grep -i cuda; then
  echo "error: the program is linked with CUDA"
  exit 1
fi
"$program" devices > "$folder/devices"
expect_text "$folder/devices" "no GPU: no NVIDIA driver was found"
cp -r pipelines datasets "$folder"
"$program" run "$folder/pipelines/demo.yaml" > "$folder/summary" 2> "$folder/log"
expect_text "$folder/log" 'devices="cpu" why="no NVIDIA driver was found: libcuda.so.1 is missing"'
expect_text "$folder/summary" '"status":"done"'
code=0
"$program" plan "$folder/pipelines/demo.yaml" --set stages.shard-across-devices.devices=2 > "$folder/refusal" 2>&1 || code=$?
expect_text "$folder/refusal" "2 GPUs cannot be used: no NVIDIA driver was found"
[ $code -eq 2 ] || { echo "expected exit code 2, got $code"; exit 1; }
cat "$folder/devices"
grep -F 'why=' "$folder/log"
