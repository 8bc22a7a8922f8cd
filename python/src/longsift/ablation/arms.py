"""Windows of token ids, read from finished runs."""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from longsift._errors import PipelineError

Ids = npt.NDArray[np.int32]

_MAGIC = b"MMIDIDX\0\0"
_ID_TYPES = {4: "<i4", 8: "<u2"}


@dataclass(frozen=True)
class Windows:
    """The kept windows of a run, in the order of its output."""

    name: str
    ids: Ids
    """A row per window."""
    documents: tuple[str, ...]
    """Document of each window."""
    classes: tuple[str, ...]
    """Value of `within` of each window; `all` without it."""
    pool: Mapping[str, str]
    """All documents that the run measured, whether kept or not: id by hash of the content."""
    tokenizer: str
    """Fingerprint of the tokenizer."""
    window_tokens: int

    def digest(self) -> str:
        """SHA-256 of the token ids."""
        return hashlib.sha256(np.ascontiguousarray(self.ids, dtype="<i4").tobytes()).hexdigest()

    def take(self, rows: npt.NDArray[np.intp]) -> Windows:
        """Returns a subset of the windows."""
        return replace(
            self,
            ids=self.ids[rows],
            documents=tuple(self.documents[row] for row in rows),
            classes=tuple(self.classes[row] for row in rows),
        )


def read_run(name: str, folder: Path, sequence_tokens: int | None = None) -> Windows:
    """Reads the kept windows of a finished run. Raises `PipelineError`, with the fix, if they cannot be used."""
    if not (folder / "manifest.json").is_file() or not (folder / "_SUCCESS").is_file():
        raise _refusal(name, folder, "is not the directory of a finished run; run its pipeline to the end")
    manifest = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
    lock = manifest["lock"]
    settings, identity = lock["settings"], lock["identity"]
    output, selection = settings["output"], identity["selection"]
    if output.get("samples") != "windows":
        raise _refusal(name, folder, "keeps documents; set `output.samples: windows`")
    if any(stage.get("mark_only") for stage in settings["stages"]):
        raise _refusal(name, folder, "marks samples and drops none; remove `filter.mark_only`")
    if selection.get("output.sequence_tokens") or selection.get("output.end_token") is not None:
        raise _refusal(name, folder, "packs its windows; remove `output.sequence_tokens` and `output.end_token`")
    window_tokens = int(identity["windows"]["window_tokens"])
    data = folder.with_name(folder.name.removesuffix(".run")) / "data"
    parts = [data / part["path"] for part in manifest["data"]]
    format_name = output.get("format", "parquet")
    if format_name == "megatron":
        rows = list(_megatron_rows(sorted(part for part in parts if part.suffix == ".bin")))
    elif format_name == "parquet":
        rows = list(_parquet_rows(name, folder, parts, settings))
    else:
        raise _refusal(name, folder, f"has the format {format_name}; set `output.format: megatron` or `parquet`")
    kept, pool = _selection(folder)
    if len(kept) != len(rows):
        raise _refusal(name, folder, f"selected {len(kept):,} windows, but its output has {len(rows):,}; run it again with --fresh")
    if not rows:
        raise _refusal(name, folder, "kept no window")
    # A window includes its BOS, a row of the output does not.
    length = sequence_tokens or window_tokens - int(identity["windows"].get("bos") or 0)
    short = next((index for index, row in enumerate(rows) if len(row) < length), None)
    if short is not None:
        shortest = min(len(row) for row in rows)
        raise _refusal(
            name,
            folder,
            f"has a window of {len(rows[short])} tokens (`{kept[short]['id']}`), expected {length}; "
            f"set `short_documents: drop` in its pipeline, or `sequence_tokens: {shortest}` in the experiment file",
        )
    return Windows(
        name=name,
        ids=np.stack([row[:length] for row in rows]).astype(np.int32),
        documents=tuple(str(row["id"]) for row in kept),
        classes=tuple("all" if row["group"] is None else str(row["group"]) for row in kept),
        pool=pool,
        tokenizer=str(identity["windows"]["tokenizer"]),
        window_tokens=window_tokens,
    )


def _refusal(name: str, folder: Path, problem: str) -> PipelineError:
    return PipelineError(f"{name}: {folder} {problem}", exit_code=2)


def _selection(folder: Path) -> tuple[list[Mapping[str, Any]], Mapping[str, str]]:
    """Selected windows in the order of the output, and all measured documents by the hash of their content."""
    from pyarrow import dataset

    columns = ["input_file", "input_row", "window", "id", "group"]
    selection = dataset.dataset(folder / "selection", format="parquet").to_table(columns=columns, filter=dataset.field("kept"))
    scores = dataset.dataset(folder / "scores", format="parquet").to_table(columns=["id", "content_hash"])
    pool = dict(zip(scores["content_hash"].to_pylist(), scores["id"].to_pylist(), strict=True))
    rows = sorted(selection.to_pylist(), key=lambda row: (row["input_file"].encode(), row["input_row"], row["window"]))
    return rows, pool


def _megatron_rows(parts: list[Path]) -> Iterator[Ids]:
    """Sequences of Megatron files."""
    for part in parts:
        index = part.with_suffix(".idx").read_bytes()
        version, kind, sequences = struct.unpack_from("<QBQ", index, len(_MAGIC))
        if not index.startswith(_MAGIC) or version != 1 or kind not in _ID_TYPES:
            raise PipelineError(f"{part.with_suffix('.idx')}: expected a Megatron index of version 1", exit_code=2)
        start = len(_MAGIC) + struct.calcsize("<QBQ") + 8
        lengths = np.frombuffer(index, dtype="<i4", count=sequences, offset=start)
        ids = np.fromfile(part, dtype=_ID_TYPES[kind])
        ends = np.cumsum(lengths)
        for end, length in zip(ends, lengths, strict=True):
            yield ids[end - length : end].astype(np.int32)


def _parquet_rows(name: str, folder: Path, parts: list[Path], settings: Mapping[str, Any]) -> Iterator[Ids]:
    """Windows of Parquet files: their token ids, or their text, encoded."""
    from pyarrow import parquet

    tokens_column = settings["input"].get("tokens_column")
    if tokens_column is not None:
        for part in parts:
            for ids in parquet.read_table(part, columns=[tokens_column])[tokens_column].to_pylist():
                yield np.asarray(ids, dtype=np.int32)
        return
    try:
        from tokenizers import Tokenizer
    except ImportError as error:
        raise _refusal(
            name, folder, "has windows of text: set `output.format: megatron`, or `pip install tokenizers`"
        ) from error
    source = next(stage["tokenizer"] for stage in settings["stages"] if stage["stage"] == "tokenize")
    file = Path(source) if source.endswith(".json") else Path(source) / "tokenizer.json"
    if not file.is_absolute():
        file = Path(json.loads((folder / "pipeline.lock").read_text())["recorded"]["pipeline"]).parent / file
    if not file.is_file():
        raise _refusal(name, folder, f"has windows of text and {file} is not found: set `output.format: megatron`")
    tokenizer = Tokenizer.from_file(str(file))
    text_column = settings["input"]["text_column"]
    for part in parts:
        texts = parquet.read_table(part, columns=[text_column])[text_column].to_pylist()
        for encoding in tokenizer.encode_batch(texts, add_special_tokens=False):
            yield np.asarray(encoding.ids, dtype=np.int32)
