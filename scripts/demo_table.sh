#!/usr/bin/env bash
# Prints the table of docs/evidence.md, in per cent: the share of real text among the kept windows of the demo, and the share kept of each kind.
#
#   scripts/demo_table.sh          LONGSIFT=/path/to/longsift runs that binary instead of building one
#
# Measures the demo once and selects seven times. Removes its files at the end.
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

good='books papers code docs'
junk='word_list csv log minified_js generated_code encoded json xml po package_index api_listing changelog licence shuffled'

# Prints one row: the share of good windows among those kept, then the share kept of each kind.
row() {
  local name=$1 setting settings=(--set "output.path=$folder/out")
  shift
  for setting in "$@"; do settings+=(--set "$setting"); done
  if ! "$longsift" run pipelines/demo.yaml "${settings[@]}" > "$folder/summary" 2> "$folder/log"; then
    cat "$folder/log" >&2
    exit 1
  fi
  awk -v name="$name" -v good="$good" -v junk="$junk" '
    BEGIN {
      goods = split(good, kinds)
      for (i = 1; i <= goods; i++) is_good[kinds[i]] = 1
      all = split(good " " junk, kinds)
      for (i = 1; i <= all; i++) is_kind[kinds[i]] = 1
    }
    $1 in is_kind && $5 == "%" {
      if (!($1 in share)) found++
      share[$1] = sprintf("%.0f", 100 * $3 / $2)
      kept += $3
      if ($1 in is_good) kept_good += $3
    }
    END {
      if (found != all || kept == 0) { print "expected the shares of " all " kinds in the log, got " found + 0 > "/dev/stderr"; exit 1 }
      printf "| %s | **%.0f** |", name, 100 * kept_good / kept
      for (i = 1; i <= all; i++) printf " %s |", share[kinds[i]]
      printf "\n"
    }' "$folder/log"
}

# The formula `balanced-recurrence` without its component of attention.
component() { echo "{statistic: $1, weight: $2, offset: $3, standardise: percentile}"; }
components="$(component far_recurrence 1 0), $(component link_coverage 1 0), $(component near_recurrence 1 0.3)"
components+=", $(component midrange_share 1 0.1), $(component periodic_share -1 1.05), $(component repeated_share -1 1.1)"
components+=", $(component digit_share -1 1.2)"

printf '| selection | real text |'
for kind in $good $junk; do printf ' `%s` |' "$kind"; done
printf '\n|---|---|'
for kind in $good $junk; do printf -- '---|'; done
printf '\n'
row 'random' stages.score.formula=random 'stages.filter.guards=[]'
row 'random, guards' stages.score.formula=random
row 'LongAttn' stages.score.formula=longattn 'stages.filter.guards=[]'
row 'LongAttn, guards' stages.score.formula=longattn
row 'far recurrence, guards' stages.score.formula=far-recurrence
row 'balanced recurrence, guards' stages.score.formula=null "stages.score.terms=[$components]" stages.score.combine=least
row 'balanced recurrence with attention, guards (the demo)'
