"""The raw statistics of a run as a dataset."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyarrow.dataset import Dataset


def scores(run_dir: str | os.PathLike[str]) -> Dataset:
    """The score tables of a run directory, a row per window in input order, as far as the run is.

    Only parts of committed work units are in it, so it can be read while a run works. Raises `FileNotFoundError` where
    no unit is scored.
    """
    import pyarrow.dataset

    root = Path(run_dir)
    records = [json.loads(path.read_bytes()) for path in root.glob("units/[!.]*.json")]
    if not records:
        raise FileNotFoundError(f"no work unit of {root} is scored; it is no run directory, or empty")
    records.sort(key=lambda record: (record["file"].encode(), record["first_row"]))
    parts = [str(root / record["scores"]["path"]) for record in records]
    return pyarrow.dataset.dataset(parts, format="parquet")
