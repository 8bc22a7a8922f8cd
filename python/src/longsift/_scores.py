"""The raw statistics of a run as a dataset."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyarrow.dataset import Dataset


def scores(run_dir: str | os.PathLike[str]) -> Dataset:
    """The score tables of a run directory, a row per window in input order, as far as the run is.

    Only parts of committed work units are in it, so it can be read while a run works; it may be in an object store. Raises
    `FileNotFoundError` where no unit is scored.
    """
    from pyarrow import dataset, fs

    address = os.fspath(run_dir).rstrip("/")
    files, root = fs.FileSystem.from_uri(address if "://" in address else os.path.abspath(address))
    found = files.get_file_info(fs.FileSelector(f"{root}/units", allow_not_found=True))
    records = [json.loads(files.open_input_stream(unit.path).read()) for unit in found if unit.base_name[0] != "."]
    if not records:
        raise FileNotFoundError(f"no work unit of {address} is scored; it is no run directory, or empty")
    records.sort(key=lambda record: (record["file"].encode(), record["first_row"]))
    parts = [f"{root}/{record['scores']['path']}" for record in records]
    return dataset.dataset(parts, format="parquet", filesystem=files)
