"""Shared fixtures: a small corpus from the demo, and a pipeline over it."""

from __future__ import annotations

import hashlib
import importlib.util
from pathlib import Path
from types import ModuleType

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

REPOSITORY = Path(__file__).parents[2]

# Torch takes 3 GB, and its tests are too slow for .ci/run: .ci/nightly installs it and runs them.
collect_ignore = [] if importlib.util.find_spec("torch") else ["test_ablation_torch.py"]


def load_program(path: Path) -> ModuleType:
    """Loads a program of the repository that is not part of a package as a module."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sets a cache folder that all tests share, so that tables are built once."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.getbasetemp() / "cache"))


@pytest.fixture
def pipeline(tmp_path: Path) -> Path:
    """A pipeline over four files of six documents each."""
    return write_pipeline(tmp_path, files=4, documents=6)


def write_pipeline(folder: Path, files: int, documents: int, devices: int | None = None) -> Path:
    """Writes a pipeline over `files` files of the demo corpus, a work unit each. `devices`: number of GPUs, 0 for the CPU, or
    `None` for the available devices."""
    corpus = pq.read_table(REPOSITORY / "datasets/demo/corpus.parquet")
    (folder / "input").mkdir()
    for file in range(files):
        rows = corpus.slice(file * documents, documents)
        pq.write_table(rows, folder / f"input/{file:02}.parquet")
    path = folder / "pipeline.yaml"
    kind = "cpu" if devices == 0 else devices
    shared = "" if devices is None else f"\n  - {{stage: shard-across-devices, devices: {kind}}}"
    path.write_text(
        f"""\
version: 1
name: test
input: {{path: input, id_column: id, text_column: text}}
stages:
  - {{stage: load-partial-model, model: {REPOSITORY / "datasets/demo/model"}}}
  - {{stage: tokenize, window_tokens: 1024, windows: disjoint, bos: 0}}{shared}
  - {{stage: first-layer-attention}}
  - {{stage: score, within: source}}
  - {{stage: filter, keep_fraction: 0.5}}
output: {{path: out}}
"""
    )
    return path


def digests(folder: Path) -> dict[str, str]:
    """SHA-256 of the data, score, dropped and selection files of the output in `folder`."""
    found = [
        path
        for part in ("out/data", "out.run/scores", "out.run/dropped", "out.run/selection", "out.run/quarantine")
        for path in sorted((folder / part).rglob("*.parquet"))
    ]
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in found}


def rows_of(path: Path) -> pa.Table:
    """All rows of a folder of Parquet files."""
    return pq.read_table(path)
