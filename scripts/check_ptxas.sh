#!/usr/bin/env bash
# Fails if the assembler slows down the fastest kernel for Hopper: registers spilled to memory, arrays in local memory, or waits
# inserted between products (C75xx).
#
#   scripts/check_ptxas.sh [NVCC_OPTION...]     needs nvcc 13.0 (scripts/cuda-toolchain.sh), no GPU
set -euo pipefail
cd "$(dirname "$0")/../kernels/src/cuda/device"
command -v nvcc >/dev/null || { echo "$0: no nvcc: scripts/cuda-toolchain.sh target/cuda && . target/cuda/env.sh" >&2; exit 2; }
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
nvcc -cubin -arch=sm_90a -O3 -std=c++17 -Xptxas -v "$@" attention_v3.cu -o "$folder/cubin" >"$folder/log" 2>&1 || { cat "$folder/log"; exit 1; }
awk '
  /Compiling entry function/ { split($0, part, "\047"); name = part[2] }
  /bytes stack frame/ { memory = $0; sub(/^ */, "", memory); bad = !/ 0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads/ && !/^ *0 bytes stack frame, 0 bytes spill/ }
  /Used [0-9]+ registers/ {
    match($0, /Used [0-9]+ registers/)
    printf "%-40s %s%s\n", name, substr($0, RSTART, RLENGTH), bad ? ", " memory : ""
    failed += bad; kernels++
  }
  /C75[0-9][0-9]|serializ/ { print; failed++ }
  END {
    if (kernels == 0) { print "error: no kernel in the output of ptxas"; exit 1 }
    printf "%d kernels, %d faults\n", kernels, failed
    exit failed > 0
  }' "$folder/log"
