#!/usr/bin/env bash
# Fuzzes every target, or those named, for SECONDS_EACH seconds (60). Needs cargo-fuzz and a C++ compiler.
# What is found lies in fuzz/artifacts/: copy it to fuzz/seeds/TARGET/, which the tests replay, and fix the cause.
set -euo pipefail
cd "$(dirname "$0")/.."
# The flags of libFuzzer are unstable in rustc; for fuzzing, and nothing else, they are taken from the stable compiler.
export RUSTC_BOOTSTRAP=1
# cargo-fuzz has no `--locked`: versions that the lock does not name would be fuzzed without a word.
cargo metadata --locked --manifest-path fuzz/Cargo.toml --format-version 1 > /dev/null

targets=("$@")
[ ${#targets[@]} -gt 0 ] || targets=(pipeline config safetensors gguf windows scores table)
for target in "${targets[@]}"; do mkdir -p "fuzz/corpus/$target" "fuzz/seeds/$target"; done

# Seeds are files of the repository, and of a run of three documents of the demo.
copy() { # TARGET FILE…
  local target=$1 file
  shift
  [ -d "fuzz/corpus/$target" ] || return 0
  for file in "$@"; do cp "$file" "fuzz/corpus/$target/$(sha256sum "$file" | cut -c1-16)"; done
}
copy pipeline pipelines/*.yaml engine/templates/starter.yaml
copy config stages/tests/families/*/config.json stages/tests/forms/*/config.json
copy safetensors stages/tests/families/llama4_nope/model.safetensors stages/tests/families/granite/model.safetensors
copy gguf stages/tests/forms/*/model.gguf
folder=$(mktemp -d)
trap 'rm -r "$folder"' EXIT
cargo run --quiet --locked -- run pipelines/demo.yaml --limit 3 --quiet --set "output.path=$folder/out" \
  --set input.max_quarantined_fraction=1 --set stages.tokenize.short_documents=score > "$folder/summary"
# A run of the first rows has an output of its own.
copy scores "$folder"/out.limit-3.run/scores/*.parquet
copy table "$folder"/out.limit-3/data/*.parquet
head -c 64 "$folder"/out.limit-3/data/*.parquet > "$folder/bytes"
copy windows "$folder/bytes"

for target in "${targets[@]}"; do
  echo "== $target"
  cargo fuzz run --sanitizer none "$target" "fuzz/corpus/$target" "fuzz/seeds/$target" -- \
    -max_total_time="${SECONDS_EACH:-60}" -timeout=10 -rss_limit_mb=1024 -print_final_stats=1
done
