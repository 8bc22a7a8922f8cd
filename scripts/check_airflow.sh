#!/usr/bin/env bash
# Runs the example DAG with a real Airflow: `scripts/check_airflow.sh [VENV]`. Creates a virtual
# environment with Airflow if none is given (some 300 MB from PyPI, minutes). Uses target/debug/longsift.
set -euo pipefail
cd "$(dirname "$0")/.."
repository=$PWD
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
venv=${1:-}
if [ -z "$venv" ]; then
    venv=$work/venv
    python3 -m venv "$venv"
    "$venv/bin/pip" install -q 'apache-airflow==3.3.*'
fi
cargo build -q --locked --bin longsift
export PATH="$repository/target/debug:$venv/bin:$PATH"
export AIRFLOW_HOME=$work/airflow AIRFLOW__CORE__LOAD_EXAMPLES=false AIRFLOW__CORE__DAGS_FOLDER="$repository/docs/examples"
export AIRFLOW__CORE__UNIT_TEST_MODE=false AIRFLOW__LOGGING__LOGGING_LEVEL=WARNING XDG_CACHE_HOME="$work/cache"
export LONGSIFT_PIPELINE="$work/web.yaml"
cat >"$LONGSIFT_PIPELINE" <<YAML
version: 1
name: web
params:
  date: {description: the day whose documents are filtered}
input: {path: $repository/datasets/demo/corpus.parquet, id_column: id, text_column: text, unit_bytes: 1000000}
stages:
  - {stage: load-partial-model, model: $repository/datasets/demo/model}
  - {stage: tokenize, window_tokens: 1024, windows: disjoint, bos: 0}
  - {stage: first-layer-attention}
  - {stage: score, within: source}
  - {stage: filter, keep_fraction: 0.25}
output: {path: "out/\${date}"}
YAML
airflow db migrate >"$work/migrate.log" 2>&1 || { cat "$work/migrate.log"; exit 1; }

day() { airflow dags test longsift_daily "$1" >"$work/$1.log" 2>&1 || { cat "$work/$1.log"; exit 1; }; }

day 2026-11-20
grep -o 'web-20261120: [0-9]* samples of [0-9]* rows' "$work/2026-11-20.log" | sort -u
grep -q 'web-20261120: 192 samples of 336 rows' "$work/2026-11-20.log"
test -e "$work/out/2026-11-20.run/_SUCCESS"
# The same date repeats the same run: no task has work to do, and the selection is skipped (code 99).
day 2026-11-20
airflow tasks states-for-dag-run longsift_daily 2026-11-20 --output plain >"$work/states" 2>>"$work/2026-11-20.log"
cat "$work/states"
grep -Eq '[[:space:]]select[[:space:]]+skipped' "$work/states" || { cat "$work/2026-11-20.log"; exit 1; }
echo "OK: the DAG ran, and was skipped when repeated for the same date"
