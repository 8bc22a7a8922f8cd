#!/usr/bin/env bash
# Prints lines of Rust by crate and room, and the largest functions.
#
#   scripts/count_lines.sh [COMMIT]
#
# Counts */src/**/*.rs of the working tree, or of COMMIT. A room is the first path component below src. Test lines: files below
# a folder `tests` or named test(s).rs or *_test(s).rs, and in any other file everything from its first line with
# `#[cfg(test)]`. All other lines are non-test lines: comments and blank lines count.
#
# A function extends, as formatted by rustfmt, from its `fn` line to the first closing brace at the same indentation.
# The 25 largest of the non-test lines are listed, with the median and the 99th percentile of all functions whose body has its own
# lines.
set -euo pipefail
cd "$(dirname "$0")/.."
commit=${1:-}
case $commit in -*) sed -n '2,12s/^# \{0,1\}//p' "$0" >&2; exit 2 ;; esac

files() {
  if [ -n "$commit" ]; then git ls-tree -r --name-only "$commit"; else git ls-files --cached --others --exclude-standard; fi |
    grep -E '(^|/)src/(.*/)?[^/]+\.rs$'
}

# Each line of each file, after the file's name and a tab.
lines() {
  while read -r file; do
    if [ -n "$commit" ]; then git show "$commit:$file"; elif [ -e "$file" ]; then cat "$file"; fi |
      awk -v file="$file" '{ print file "\t" $0 }'
  done
}

files | lines | awk '
  function indentation(text) { match(text, /^ */); return RLENGTH }
  {
    tab = index($0, "\t"); name = substr($0, 1, tab - 1); text = substr($0, tab + 1)
  }
  name != file {
    file = name; line = opened = 0
    crate = name; sub(/\/src\/.*/, "", crate)
    room = name; sub(/.*\/src\//, "", room); sub(/\/.*/, "", room); sub(/\.rs$/, "", room)
    test = name ~ /(^|\/)tests\// || name ~ /(^|\/|_)tests?\.rs$/
    crates[crate] = 1; rooms[crate "\t" room] = 1
  }
  { line++ }
  text ~ /#\[cfg\(test\)\]/ { test = 1; opened = 0 }
  test { tests[crate]++; tests[crate "\t" room]++; next }
  { counted[crate]++; counted[crate "\t" room]++ }
  opened && text == closing { print "function\t" line - first + 1 "\t" file ":" first "\t" called; opened = 0 }
  !opened && text ~ /^ *(pub(\([^)]*\))? )?((const|async|unsafe|default|extern "C") )*fn [a-z_A-Z0-9]+/ && text !~ /[;}]$/ {
    opened = 1; first = line; called = text; sub(/.*fn /, "", called); sub(/[^a-z_A-Z0-9].*/, "", called)
    closing = sprintf("%*s}", indentation(text), "")
  }
  opened && text ~ /;$/ && indentation(text) == length(closing) - 1 { opened = 0 } # a declaration over several lines
  END {
    for (key in crates) print "crate\t" key "\t" counted[key] + 0 "\t" tests[key] + 0
    for (key in rooms) print "room\t" key "\t" counted[key] + 0 "\t" tests[key] + 0
  }' >"${TMPDIR:-/tmp}/count_lines.$$"
trap 'rm -f "${TMPDIR:-/tmp}/count_lines.$$"' EXIT
table=${TMPDIR:-/tmp}/count_lines.$$

printf '%-42s %9s %9s\n' crate non-test test
grep '^crate' "$table" | sort -t $'\t' -k3,3nr | while IFS=$'\t' read -r _ crate counted tests; do
  printf '%-42s %9s %9s\n' "$crate" "$counted" "$tests"
  grep -P "^room\t$crate\t" "$table" | sort -t $'\t' -k4,4nr | while IFS=$'\t' read -r _ _ room counted tests; do
    printf '  %-40s %9s %9s\n' "$room" "$counted" "$tests"
  done
done
printf '\n%s\n' 'largest functions (lines)'
grep '^function' "$table" | sort -t $'\t' -k2,2n | cut -f 2 |
  awk '{ lines[NR] = $1 } END { print "  " NR " functions, median " lines[int((NR + 1) / 2)] ", 99th percentile " lines[int(NR * 0.99)] }'
grep '^function' "$table" | sort -t $'\t' -k2,2nr | head -25 | while IFS=$'\t' read -r _ lines place name; do
  printf '  %5s  %s %s\n' "$lines" "$place" "$name"
done
