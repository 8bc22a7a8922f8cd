#!/usr/bin/env bash
# Which crates .ci/run compiles twice, since two of its builds want other features of them, and with each all that stands on it:
# tests of the workspace beside those of some packages with the features `cloud` and `cuda` (testkit/Cargo.toml switches on what
# they need in both), the README's demo beside the Python package. Exit 1 where there are any.
#
#   scripts/compiled_twice.sh [--package NAME...]     the packages with features; the workspace without an argument
set -euo pipefail
cd "$(dirname "$0")/.."
[ $# -gt 0 ] || set -- --workspace

features() { cargo tree --locked --prefix none --no-dedupe --format '{p}|{f}' "$@" | sed 's/ ([^|]*)//' | sort -u; }

twice=0
# What the second build wants otherwise than the first. Crates that only the second has are no second time; ours are always.
compare() {
  while IFS='|' read -r package wanted; do
    has=$(grep -F "$package|" <<< "$1" | cut -d '|' -f 2) || continue
    [[ $package != longsift-* ]] || continue
    echo "$package is compiled twice: with \`$wanted\` beside \`$(paste -sd ' ' <<< "$has")\`"
    twice=1
  done < <(comm -13 <(echo "$1") <(echo "$2"))
}

# Assigned first: a tree that cannot be made must end the script.
tests=(--edges 'normal,build,dev')
plain=$(features "${tests[@]}" --workspace)
all=$(features "${tests[@]}" "$@" --features longsift-engine/cuda,longsift-engine/cloud)
compare "$plain" "$all"
program=(--edges 'normal,build')
demo=$(features "${program[@]}")
wheel=$(features "${program[@]}" --manifest-path engine/Cargo.toml)
compare "$demo" "$wheel"
exit $twice
