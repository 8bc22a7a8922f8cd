#!/usr/bin/env bash
# Builds the documentation as a site into target/site/book and checks all its links.
#
#     scripts/site.sh [LONGSIFT, by default target/debug/longsift]
#
# Needs mdbook; if missing, it is built into target/mdbook (a minute of processor time). The program generates the reference.
set -euo pipefail
cd "$(dirname "$0")/.."
longsift=${1:-target/debug/longsift}
version=0.5.4
PATH=$PWD/target/mdbook/bin:$PATH
if ! command -v mdbook > /dev/null; then
    cargo install "mdbook@$version" --locked --no-default-features --features search --profile dev --root target/mdbook
fi
site=target/site
rm -rf "$site"
mkdir -p "$site/src"
cp book.toml "$site/"
cp -r docs/. "$site/src/"
"$longsift" manual "$site/src/reference" --format markdown
# Links to pages outside the documentation lead to the repository.
sed -i 's|](\.\./\([^)]*\))|](https://github.com/longsift/longsift/blob/main/\1)|g' "$site"/src/*.md
mdbook build "$site"
python3 scripts/site_links.py "$site/book"
