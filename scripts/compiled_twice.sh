#!/usr/bin/env bash
# Which crates a build for tests with the features `cloud` and `cuda` compiles again, since it switches on more of their own
# features than a build without does: each is compiled twice in .ci/run, and so is all that stands on it. Exit 1 where there
# are any; testkit/Cargo.toml switches these features on in both.
set -euo pipefail
cd "$(dirname "$0")/.."

features() { cargo tree --workspace --locked --edges normal,build,dev --prefix none --no-dedupe --format '{p}|{f}' "$@" | sed 's/ ([^|]*)//' | sort -u; }

plain=$(features)
all=$(features --features longsift-engine/cuda,longsift-engine/cloud)
twice=0
while IFS='|' read -r package wanted; do
  # Crates that only the features bring are no second time; neither are our own.
  has=$(grep -F "$package|" <<< "$plain" | cut -d '|' -f 2) || continue
  [[ $package != longsift-* ]] || continue
  echo "$package is compiled twice: with \`$wanted\` beside \`$(paste -sd ' ' <<< "$has")\`"
  twice=1
done < <(comm -13 <(echo "$plain") <(echo "$all"))
exit $twice
