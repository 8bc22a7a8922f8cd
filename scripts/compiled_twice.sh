#!/usr/bin/env bash
# Lists crates that .ci/run compiles twice, with all their dependents, because two of its builds use other features of them: tests
# of the workspace and those with the features `cloud` and `cuda` (testkit/Cargo.toml enables their needs in both), the README's
# demo and the Python package. Exit 1 if there are any.
#
#   scripts/compiled_twice.sh WHEEL_FEATURES CARGO_OPTION...     features of the Python package, as given to maturin; packages
#                                                                and features of the second build of tests, as given to cargo
set -euo pipefail
cd "$(dirname "$0")/.."
wheel_features=${1:?"usage: $0 WHEEL_FEATURES CARGO_OPTION..., as in .ci/run"}
shift

features() { cargo tree --locked --prefix none --no-dedupe --format '{p}|{f}' "$@" | sed 's/ ([^|]*)//' | sort -u; }

twice=0
# Features of the second build that differ from the first. Crates that are only in the second are compiled once; ours are always
# compiled twice.
compare() {
  while IFS='|' read -r package wanted; do
    [[ $package != longsift-* ]] || continue
    has=$(awk -F '|' -v package="$package" '$1 == package { print $2; found = 1 } END { exit !found }' <<< "$1") || continue
    echo "$package is compiled twice: with \`$wanted\` and with \`$(paste -sd ' ' <<< "$has")\`"
    twice=1
  done < <(comm -13 <(echo "$1") <(echo "$2"))
}

# Assigned first, so that a failure of cargo ends the script.
tests=(--edges 'normal,build,dev')
plain=$(features "${tests[@]}" --workspace)
all=$(features "${tests[@]}" "$@")
compare "$plain" "$all"
program=(--edges 'normal,build')
demo=$(features "${program[@]}")
wheel=$(features "${program[@]}" --manifest-path engine/Cargo.toml --features "$wheel_features")
compare "$demo" "$wheel"
exit $twice
