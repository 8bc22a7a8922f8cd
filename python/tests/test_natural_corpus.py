"""The corpus of natural documents equals its sources and the output of its generator."""

from __future__ import annotations

import csv
import hashlib
from collections import Counter
from pathlib import Path
from types import ModuleType

import pyarrow.parquet as pq
import pytest
from conftest import load_program

FOLDER = Path(__file__).parents[2] / "datasets/natural"
GOOD = {"books", "papers", "code", "docs"}


@pytest.fixture(scope="module")
def documents() -> list[dict[str, object]]:
    rows: list[dict[str, object]] = pq.read_table(FOLDER / "corpus.parquet").to_pylist()
    return rows


@pytest.fixture(scope="module")
def sources() -> list[dict[str, str]]:
    with (FOLDER / "sources.csv").open(newline="") as file:
        return list(csv.DictReader(file))


@pytest.fixture(scope="module")
def generate() -> ModuleType:
    return load_program(FOLDER / "generate.py")


def test_every_document_has_its_source_and_licence(documents: list[dict[str, object]], sources: list[dict[str, str]]) -> None:
    assert [row["id"] for row in sources] == [document["id"] for document in documents]
    for row, document in zip(sources, documents, strict=True):
        text = str(document["text"])
        assert hashlib.sha256(text.encode()).hexdigest() == row["sha256"], row["id"]
        assert row["licence"] and row["title"] and row["origin"], row["id"]
        assert (row["kind"], row["source"]) == (document["kind"], document["source"])
        assert document["good"] == (document["kind"] in GOOD)
    kinds = Counter(str(document["kind"]) for document in documents)
    assert len(documents) >= 100 and len(kinds) >= 8 and min(kinds.values()) >= 8, kinds
    assert (FOLDER / "corpus.parquet").stat().st_size <= 2_000_000
    readme = (FOLDER / "README.md").read_text()
    for kind, count in kinds.items():
        assert any(line.startswith(f"| `{kind}` ") and f" | {count} | " in line for line in readme.splitlines()), kind


def test_the_generator_reproduces_the_committed_texts(
    documents: list[dict[str, object]], sources: list[dict[str, str]], generate: ModuleType
) -> None:
    texts = {str(document["id"]): str(document["text"]) for document in documents}
    logs = [row for row in sources if row["origin"] == "generated"]
    assert {row["files"] for row in logs} == set(generate.LOGS)
    for row in logs:
        assert generate.log(row["files"], int(row["to"])) == texts[row["id"]], row["id"]


def test_shuffling_moves_parts_and_loses_none(generate: ModuleType) -> None:
    text = "One is here. Two follows!\nThree asks?\n\nFour ends.\n"
    for order in ("sentences", "paragraphs", "lines", "words"):
        moved = generate.shuffle(order, text * 9)
        assert sorted(moved.split()) == sorted((text * 9).split()), order
        assert moved != text * 9 and moved == generate.shuffle(order, text * 9), order
    assert generate.shuffle("sorted lines", "b\na\nb\n") == "a\nb\n"
