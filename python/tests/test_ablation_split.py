"""The split of the ablation's example: families are held out as a whole, and overlapping documents are dropped."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from conftest import load_program

FOLDER = Path(__file__).parents[2] / "docs/examples/ablation"
# The command `longsift tokens` with a token per character.
TOKENS = """#!{python}
import json, sys
import pyarrow.parquet as pq
path = next(json.loads(argument.split("=", 2)[2]) for argument in sys.argv if argument.startswith("--set=input.path="))
for row in pq.read_table(path).to_pylist():
    ids = {{"ids": [ord(letter) for letter in row["text"]]}} if row["text"] else {{"quarantined": "empty_text"}}
    print(json.dumps({{"id": row["id"], **ids}}))
"""


@pytest.fixture
def split() -> ModuleType:
    return load_program(FOLDER / "split.py")


def letters(seed: int, count: int = 2000) -> str:
    return "".join(map(chr, np.random.default_rng(seed).integers(1000, 9000, count)))


def document(kind: str, name: str, text: str, real: bool = True, origin: str = "") -> dict[str, object]:
    return {"id": f"{kind}:{name}", "kind": kind, "name": name, "origin": origin or name, "real": real, "text": text}


def test_families_are_books_repositories_and_manuals(split: ModuleType) -> None:
    repositories = {"code-vue-reactivity": "vuejs/core", "code-vue-compiler-core": "vuejs/core"}
    names = {
        "books-en-a": "books-en-a",
        "sh-sentences-books-en-a": "books-en-a",
        "ocr-books-en-a": "books-en-a",
        "code-vue-reactivity": "vuejs/core",
        "papers-stacks-curves": "papers-stacks",
        "info-grep": "info-grep",
        "debian-handbook#16": "debian-handbook",
        "5.36.0/pod/perlsyn.pod": "perl-doc",
    }
    for name, family in names.items():
        assert split.family({"name": name, "origin": "perl-doc"}, repositories) == family, name


def test_at_most_half_of_a_pool_is_junk(split: ModuleType) -> None:
    pool = [document("books", "a", ""), *(document("log", f"junk-{index}", "", real=False) for index in range(9))]
    ids = {str(one["id"]): range(1000 if one["kind"] == "books" else 300) for one in pool}
    kept = split.without_surplus(pool, ids)
    assert kept[0] is pool[0] and len(kept) == 4
    assert kept == split.without_surplus(pool, ids) != pool[:4], "drawn, and the same ones each time"


def test_the_pool_shares_nothing_with_held_out_families(split: ModuleType, tmp_path: Path) -> None:
    corpora = tmp_path / "shared/corpora"
    corpora.mkdir(parents=True)
    books = {f"books-{index}": letters(index) for index in range(8)}
    documents = [document("books", name, text[:1500]) for name, text in books.items()]
    documents += [document("papers", f"papers-manual{index % 2}-{index}", letters(20 + index)) for index in range(4)]
    documents += [document("code", f"code-{index}", letters(30 + index)) for index in range(4)]
    documents += [document("docs", f"docs-{index}", letters(40 + index)) for index in range(4)]
    documents += [document("shuffled", f"sh-words-{name}", text[::-1], real=False) for name, text in books.items()]
    documents += [document("log", f"quotes-{name}", letters(90) + text[700:740], real=False) for name, text in books.items()]
    documents += [document("log", "short", letters(91, 500), real=False)]
    pq.write_table(pa.Table.from_pylist(documents), corpora / "natural.parquet")
    for name, texts in (("books", books), ("papers", {}), ("code", {f"code-{index}": letters(30 + index) for index in range(4)})):
        rows = [{"data_id": key, "text": text, "tags": ["lang:x", f"repo:{key}"] if name == "code" else []} for key, text in texts.items()]
        schema = pa.schema({"data_id": pa.string(), "text": pa.string(), "tags": pa.list_(pa.string())})
        pq.write_table(pa.Table.from_pylist(rows, schema), corpora / f"{name}.parquet")
    longsift = tmp_path / "longsift"
    longsift.write_text(TOKENS.format(python=sys.executable))
    longsift.chmod(0o755)
    split.main(tmp_path / "shared", str(longsift), tmp_path / "out")
    written = {name: pq.read_table(tmp_path / f"out/{name}.parquet").to_pylist() for name in ("pool", "pool-good", "heldout")}
    ids = {name: [row["id"] for row in found] for name, found in written.items()}
    by_kind = {kind: [one for one in ids["heldout"] if one.startswith(kind)] for kind in split.CLASSES}
    # Of papers a whole manual, of everything else a quarter.
    assert [len(found) for found in by_kind.values()] == [2, 2, 1, 1]
    assert len({one.split("-")[1] for one in by_kind["papers"]}) == 1
    held = [one.split(":")[1] for one in by_kind["books"]]
    assert all(len(row["text"]) == 2000 for row in written["heldout"]), "at full length"
    dropped = {one["name"]: one["why"] for one in json.loads((tmp_path / "out/split.json").read_text())["dropped"]}
    assert set(dropped) == {f"sh-words-{name}" for name in held} | {f"quotes-{name}" for name in held}
    assert dropped[f"quotes-{held[0]}"].startswith("a range of 1024 tokens shares 2.8% of its 13-grams")
    assert not {one.split(":")[1] for one in ids["pool"]} & ({*dropped, "short"} | {one.split(":")[1] for one in ids["heldout"]})
    assert len(ids["pool"]) == len(documents) - 6 - 4 - 1 and len(ids["pool-good"]) == 20 - 6
