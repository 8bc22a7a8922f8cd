#!/usr/bin/env bash
# The table of the README: which share of each kind of document of the demo corpus a selection keeps.
#
#   scripts/demo_table.sh          LONGSIFT=/path/to/longsift runs another binary than the one it builds
#
# Measures the demo once and selects from the same statistics six times. Everything it writes goes away with it.
set -euo pipefail
cd "$(dirname "$0")/.."

if [ -n "${LONGSIFT:-}" ]; then
  longsift=$LONGSIFT
else
  cargo build --release --quiet -p longsift-engine
  longsift=${CARGO_TARGET_DIR:-target}/release/longsift
fi
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

# Of the four kinds, in the order of the table, the share that is kept with these settings.
row() {
  local name=$1 setting settings=(--set "output.path=$folder/out")
  shift
  for setting in "$@"; do settings+=(--set "$setting"); done
  if ! "$longsift" run pipelines/demo.yaml "${settings[@]}" > "$folder/summary" 2> "$folder/log"; then
    cat "$folder/log" >&2
    exit 1
  fi
  awk -v name="$name" '
    $1 ~ /^(whole|shuffled|mixture|repeated)$/ && $5 == "%" { share[$1] = sprintf("%.0f %%", 100 * $3 / $2) }
    END {
      if (length(share) != 4) { print "no shares in the log" > "/dev/stderr"; exit 1 }
      printf "| %s | %s | %s | %s | %s |\n", name, share["whole"], share["shuffled"], share["mixture"], share["repeated"]
    }' "$folder/log"
}

guard='stages.filter.guards=[{statistic: copy_share, max: 0.4}]'
both='stages.score.terms=[{statistic: dependency_strength}, {statistic: far_variance, weight: -0.5}, {statistic: far_recurrence}]'
side() { echo "{statistic: $1, weight: $2, offset: $3, standardise: percentile}"; }
sides="$(side far_recurrence 1 0), $(side link_coverage 1 0), $(side near_recurrence 1 0.2), $(side copy_share -1 1.2)"

echo '| selection | `whole` | `shuffled` | `mixture` | `repeated` |'
echo '|---|---|---|---|---|'
row 'LongAttn' stages.score.formula=longattn
row 'LongAttn, copy guard' stages.score.formula=longattn "$guard"
row 'far recurrence, copy guard' stages.score.formula=far-recurrence "$guard"
row 'LongAttn + far recurrence, copy guard' stages.score.formula=null "$both" "$guard"
row 'balanced recurrence' stages.score.formula=null "stages.score.terms=[$sides]" stages.score.combine=least
row 'balanced recurrence with attention: the demo' stages.score.formula=balanced-recurrence
