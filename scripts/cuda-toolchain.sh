#!/usr/bin/env bash
# Installs nvcc 13.0 into a folder from PyPI wheels: enough to build `--features cuda` on a machine without a GPU, a driver
# or a CUDA installation. About 104 MB of download and 270 MB of disk; does nothing when the folder is complete.
#
#   scripts/cuda-toolchain.sh FOLDER && . FOLDER/env.sh && cargo build --release --features cuda
#
# All parts are pinned to release 13.0: a 13.0 driver cannot load the code of a newer assembler.
set -euo pipefail

[ $# -eq 1 ] || { echo "usage: $0 FOLDER" >&2; exit 2; }
mkdir -p "$1"
folder=$(cd "$1" && pwd)
parts=(
  nvidia-cuda-nvcc==13.0.88
  nvidia-nvvm==13.0.88
  nvidia-cuda-crt==13.0.88
  nvidia-cuda-runtime==13.0.96
  nvidia-cuda-cccl==13.0.85
)
cuda_home=$folder/packages/nvidia/cu13

if [ "$(cat "$folder/installed" 2>/dev/null || true)" != "${parts[*]}" ]; then
  rm -rf "$folder/packages" "$folder/installed"
  python3 -m venv "$folder/python"
  "$folder/python/bin/pip" install --quiet --disable-pip-version-check --no-deps --no-compile \
    --target "$folder/packages" "${parts[@]}"
  ln -sfn lib "$cuda_home/lib64" # nvcc looks for its libraries here
  echo "${parts[*]}" > "$folder/installed"
fi

cat > "$folder/env.sh" <<ENV
export CUDA_HOME=$cuda_home
export PATH=$cuda_home/bin:\$PATH
ENV
"$cuda_home/bin/nvcc" --version | sed -n 4p
