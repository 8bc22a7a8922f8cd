#!/usr/bin/env bash
# Which crates .ci/run compiles twice, since two of its builds want other features of them, and with each all that stands on it:
# tests of the workspace beside those with the features `cloud` and `cuda` (testkit/Cargo.toml switches on what these need in both),
# the README's demo beside the Python package. Exit 1 where there are any.
#
#   scripts/compiled_twice.sh WHEEL_FEATURES CARGO_OPTION...     the features of the Python package, as maturin is told them; packages
#                                                                and features of the second build of tests, as cargo is
set -euo pipefail
cd "$(dirname "$0")/.."
wheel_features=${1:?"usage: $0 WHEEL_FEATURES CARGO_OPTION..., as in .ci/run"}
shift

features() { cargo tree --locked --prefix none --no-dedupe --format '{p}|{f}' "$@" | sed 's/ ([^|]*)//' | sort -u; }

twice=0
# What the second build wants otherwise than the first. Crates that only the second has are compiled once, ours again in any case.
compare() {
  while IFS='|' read -r package wanted; do
    [[ $package != longsift-* ]] || continue
    has=$(awk -F '|' -v package="$package" '$1 == package { print $2; found = 1 } END { exit !found }' <<< "$1") || continue
    echo "$package is compiled twice: with \`$wanted\` beside \`$(paste -sd ' ' <<< "$has")\`"
    twice=1
  done < <(comm -13 <(echo "$1") <(echo "$2"))
}

# Assigned first: a tree that cannot be made must end the script.
tests=(--edges 'normal,build,dev')
plain=$(features "${tests[@]}" --workspace)
all=$(features "${tests[@]}" "$@")
compare "$plain" "$all"
program=(--edges 'normal,build')
demo=$(features "${program[@]}")
wheel=$(features "${program[@]}" --manifest-path engine/Cargo.toml --features "$wheel_features")
compare "$demo" "$wheel"
exit $twice
