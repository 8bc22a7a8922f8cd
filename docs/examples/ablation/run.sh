#!/usr/bin/env bash
# Runs the experiment of docs/ablation.md, in a clone with the folder ../shared:
#
#     docs/examples/ablation/run.sh half-junk      # or no-junk
#
# Splits the corpus, makes the arms, then trains for at most 40 minutes (`MINUTES`) in two processes (`JOBS`). Exits with 4 until
# everything is done; the same command continues. LONGSIFT is the command (default: the release build of this clone), PYTHON a Python with
# longsift[ablation] (default: python3 with this clone's package). IDLE=1 trains only when the processors are idle.
set -euo pipefail
table=${1:?usage: run.sh half-junk or run.sh no-junk}
here=$(cd "$(dirname "$0")" && pwd)
repository=$(cd "$here/../../.." && pwd)
longsift=${LONGSIFT:-$repository/target/release/longsift}
python=${PYTHON:-python3}
work=$repository/target/ablation
export PYTHONPATH=$repository/python/src${PYTHONPATH:+:$PYTHONPATH}

if [ ! -e "$work/split.json" ]; then
  "$python" "$here/split.py" "$repository/../shared" "$longsift" "$work"
fi
run() { "$longsift" run "$@" > "$work/last-run.json"; }
run "$here/heldout.yaml"
# Arms keep a quarter of the pool with junk, or a third of the pool without.
case $table in
  half-junk) pool=() folder=$work/arms names=(random balanced-recurrence balanced-before longattn real-alone) ;;
  no-junk)
    pool=(--set input.path="\"$work/pool-good.parquet\"" --set stages.filter.keep_tokens=2500000)
    folder=$work/no-junk names=(random balanced-recurrence balanced-before longattn)
    ;;
  *) echo "error: expected half-junk or no-junk, got $table" >&2 && exit 2 ;;
esac
for name in "${names[@]}"; do
  run "$here/$name.yaml" "${pool[@]}" --set output.path="\"$folder/$name\""
done
run "$here/same-kinds.yaml" "${pool[@]}" --set output.path="\"$folder/same-kinds\"" \
  --set stages.filter.keep_tokens="$("$python" "$here/kinds.py" "$folder/balanced-recurrence.run")"
ablation=("$python" -m longsift.ablation)
"${ablation[@]}" plan "$here/$table.yaml"
if [ -n "${IDLE:-}" ]; then ablation=(chrt -i 0 nice -n 19 "${ablation[@]}"); fi
jobs=() code=0
for _ in $(seq "${JOBS:-2}"); do
  "${ablation[@]}" run "$here/$table.yaml" --minutes "${MINUTES:-40}" &
  jobs+=($!)
done
trap 'kill "${jobs[@]}" 2> /dev/null' INT TERM
for job in "${jobs[@]}"; do wait "$job" || code=$?; done
exit "$code"
