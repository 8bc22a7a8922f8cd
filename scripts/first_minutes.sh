#!/usr/bin/env bash
# Times a first build, from a clean clone with an empty target folder: the README's demo and its tests. Prints wall time and
# processor time, the latter by crate.
#
#   scripts/first_minutes.sh [--commit COMMIT] [--empty-registry] [demo] [tests]      both without an argument
#
# --commit measures another commit than HEAD; --empty-registry also downloads the crates. Measure on an idle machine: processor
# time grows by 10 to 20 % when other programs share the cores. GNU time is not needed; MEASURE_IN names another folder
# than the system's temporary one (about 3 GB).
set -euo pipefail
cd "$(dirname "$0")/.."

commit=HEAD
parts=()
empty_registry=
while [ $# -gt 0 ]; do
  case $1 in
    --commit) commit=$2; shift ;;
    --empty-registry) empty_registry=yes ;;
    demo | tests) parts+=("$1") ;;
    *) echo "usage: $0 [--commit COMMIT] [--empty-registry] [demo] [tests]" >&2; exit 2 ;;
  esac
  shift
done
[ ${#parts[@]} -gt 0 ] || parts=(demo tests)
commit=$(git rev-parse --verify "$commit^{commit}")
folder=$(mktemp -d "${MEASURE_IN:-${TMPDIR:-/tmp}}/first-minutes.XXXXXX")
trap 'rm -rf "$folder"' EXIT
unset CARGO_TARGET_DIR CARGO_INCREMENTAL RUSTFLAGS
export CARGO_TERM_COLOR=never XDG_CACHE_HOME=$folder/cache

# Wrapper around every compiler run that records the package and the seconds.
cat > "$folder/rustc" <<'WRAPPER'
#!/usr/bin/env bash
TIMEFORMAT="${CARGO_PKG_NAME:-?} %U %S"
{ time "$@" 2>&3; } 3>&2 2>> "$COMPILER_TIMES"
WRAPPER
chmod +x "$folder/rustc"
export RUSTC_WRAPPER=$folder/rustc

if [ -n "$empty_registry" ]; then
  settings=${CARGO_HOME:-$HOME/.cargo}
  mkdir "$folder/cargo"
  cp "$settings"/config* "$settings"/credentials* "$folder/cargo" 2> /dev/null || true
  export CARGO_HOME=$folder/cargo
fi

# Runs a command; adds its wall and processor seconds to `clock` and `processor`.
timed() {
  local TIMEFORMAT='%R %U %S'
  { time "$@" > "$folder/log" 2>&1 || { cat "$folder/log"; echo "failed: $*"; exit 1; } >&3; } 3>&2 2> "$folder/time"
  read -r real user system < "$folder/time"
  clock=$(awk "BEGIN { print $clock + $real }")
  processor=$(awk "BEGIN { print $processor + $user + $system }")
}

minutes() { awk "BEGIN { s = int($1 + 0.5); printf \"%d min %02d s\", s / 60, s % 60 }"; }

# The seconds of the compiler by package, those above a second one by one.
by_crate() {
  awk '
    { spent[$1] += $2 + $3 }
    END { for (crate in spent) printf "%8.1f  %s\n", spent[crate], crate }' "$COMPILER_TIMES" | sort -rn |
    awk -v all="$1" '
      { sum += $1; if ($1 >= 1) print; else rest += $1 }
      END { printf "%8.1f  crates below a second\n%8.1f  build scripts, and the C compiler they start\n", rest, all - sum }'
}

measure() { # NAME COMMAND...: a fresh clone for each
  local name=$1
  shift
  rm -rf "$folder/longsift"
  git clone --quiet --no-checkout . "$folder/longsift"
  git -C "$folder/longsift" checkout --quiet "$commit"
  cd "$folder/longsift"
  export COMPILER_TIMES=$folder/$name.times
  : > "$COMPILER_TIMES"
  clock=0 processor=0
  if [ "$name" = demo ]; then timed cargo build --release --locked --bin longsift; else timed cargo test --workspace --locked --no-run; fi
  local built_clock=$clock built_processor=$processor
  timed "$@"
  printf '\n%s: %s on the clock, %s of processors, of which building %s and %s\n' "$*" \
    "$(minutes "$clock")" "$(minutes "$processor")" "$(minutes "$built_clock")" "$(minutes "$built_processor")"
  by_crate "$built_processor"
  cd - > /dev/null
}

echo "commit ${commit:0:12}, $(nproc) processors, $(rustc --version)"
for part in "${parts[@]}"; do
  case $part in
    demo) measure demo cargo run --release --locked -- run pipelines/demo.yaml ;;
    tests) measure tests cargo test --workspace --locked ;;
  esac
done
