"""Finished run directories of made-up windows, for tests of the ablation."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

WINDOW = 64
VOCABULARY = 50


def random_windows(count: int, seed: int, window: int = WINDOW, vocabulary: int = VOCABULARY) -> npt.NDArray[np.int32]:
    """Windows of random tokens."""
    return np.random.default_rng(seed).integers(0, vocabulary, (count, window), dtype=np.int32)


def write_run(
    folder: Path,
    name: str,
    ids: npt.NDArray[np.int32],
    *,
    windows_per_document: int = 2,
    classes: tuple[str, ...] = ("a", "b"),
    format: str = "megatron",  # noqa: A002
    document_prefix: str | None = None,
    tokenizer: str = "tokenizer",
    bos: int = 0,
    selection: dict[str, Any] | None = None,
) -> Path:
    """A run directory with these windows kept, one more dropped, and only the files that the ablation reads."""
    run = folder / f"{name}.run"
    data = folder / name / "data"
    for path in (run / "selection", run / "scores", data):
        path.mkdir(parents=True)
    prefix = document_prefix or name
    rows = [
        {
            "input_file": "x.parquet",
            "input_row": index // windows_per_document,
            "id": f"{prefix}-{index // windows_per_document}",
            "window": index % windows_per_document,
            "group": classes[(index // windows_per_document) % len(classes)],
            "kept": True,
        }
        for index in range(len(ids))
    ]
    dropped = {**rows[-1], "input_row": len(ids), "id": f"{prefix}-dropped", "kept": False}
    table = [*rows, dropped]
    pq.write_table(pa.Table.from_pylist(table[::-1]), run / "selection/part-0.parquet")
    scores = [{"id": row["id"], "content_hash": f"hash of {row['id']}"} for row in table]
    pq.write_table(pa.Table.from_pylist(scores), run / "scores/part-0.parquet")
    if format == "megatron":
        parts = ["train-00000-of-00001.bin", "train-00000-of-00001.idx"]
        (data / parts[0]).write_bytes(ids.astype("<u2").tobytes())
        lengths = np.full(len(ids), ids.shape[1], dtype="<i4")
        starts = (np.cumsum(lengths) - lengths).astype("<i8") * 2
        index = b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, 8, len(ids), len(ids) + 1) + lengths.tobytes() + starts.tobytes()
        (data / parts[1]).write_bytes(index + np.arange(len(ids) + 1, dtype="<i8").tobytes())
    else:
        parts = ["train-00000-of-00001.parquet"]
        pq.write_table(pa.table({"tokens": [row.tolist() for row in ids]}), data / parts[0])
    lock = {
        "settings": {
            "input": {"tokens_column": "tokens"},
            "stages": [{"stage": "tokenize"}],
            "output": {"samples": "windows", "format": format},
        },
        "identity": {
            "windows": {"tokenizer": tokenizer, "window_tokens": ids.shape[1] + bos, "bos": bos},
            "selection": selection or {},
        },
    }
    (run / "manifest.json").write_text(json.dumps({"lock": lock, "data": [{"path": part} for part in parts]}))
    (run / "pipeline.lock").write_text(json.dumps(lock))
    (run / "_SUCCESS").touch()
    return run


def write_experiment(folder: Path, arms: dict[str, npt.NDArray[np.int32]], heldout: npt.NDArray[np.int32], **settings: Any) -> Path:
    """An experiment over arms of these windows."""
    for name, ids in arms.items():
        if not (folder / f"{name}.run").exists():
            write_run(folder, name, ids)
    if not (folder / "heldout.run").exists():
        write_run(folder, "heldout", heldout)
    names = list(arms)
    epoch = max(ids.size for ids in arms.values())
    content = {
        "name": "test",
        "output": "results",
        "arms": {name: f"{name}.run" for name in names},
        "heldout": "heldout.run",
        "tokens": epoch,
        "seeds": [1],
        "size": "toy",
        "near_tokens": 8,
        "evaluate_tokens": max(20 * heldout.shape[1], epoch // 2),
        "compare": [names[:2]],
        **settings,
    }
    path = folder / "ablation.yaml"
    path.write_text(json.dumps(content))
    return path
