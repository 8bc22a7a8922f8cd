"""Tables of a run as datasets."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyarrow.dataset import Dataset


def _opened(run_dir: str | os.PathLike[str]) -> tuple[Any, str, str]:
    """Returns the file system of a run directory, its path there, and its address for messages."""
    from pyarrow import fs

    address = os.fspath(run_dir).rstrip("/")
    files, root = fs.FileSystem.from_uri(address if "://" in address else os.path.abspath(address))
    return files, root, address


def scores(run_dir: str | os.PathLike[str]) -> Dataset:
    """Opens the score tables of a run directory, one row per window in input order.

    The dataset contains committed work units only, so it can be read during a run; the run directory may be in an
    object store. Raises `FileNotFoundError` if no unit is scored.
    """
    from pyarrow import dataset, fs

    files, root, address = _opened(run_dir)
    found = files.get_file_info(fs.FileSelector(f"{root}/units", allow_not_found=True))
    records = [json.loads(files.open_input_stream(unit.path).read()) for unit in found if unit.base_name[0] != "."]
    if not records:
        raise FileNotFoundError(f"no work unit of {address} is scored; it is not a run directory, or no unit is finished yet")
    records.sort(key=lambda record: (record["file"].encode(), record["first_row"]))
    parts = [f"{root}/{record['scores']['path']}" for record in records]
    return dataset.dataset(parts, format="parquet", filesystem=files)


def kept(run_dir: str | os.PathLike[str]) -> Dataset:
    """Opens the samples that a finished run kept, in order: exactly the files in its manifest.

    The run directory may be in an object store. Raises `FileNotFoundError` if the run is not finished, `ValueError`
    if the output is not Parquet.
    """
    from pyarrow import dataset, fs

    files, root, address = _opened(run_dir)
    manifest = f"{root}/manifest.json"
    if files.get_file_info(manifest).type == fs.FileType.NotFound:
        raise FileNotFoundError(f"{address} has no manifest: it is not a run directory, or its run is not finished")
    names = [part["path"] for part in json.loads(files.open_input_stream(manifest).read())["data"]]
    if others := [name for name in names if not name.endswith(".parquet")]:
        raise ValueError(f"the output of {address} is not Parquet but for example {others[0]}")
    output = root.removesuffix(".run")
    return dataset.dataset([f"{output}/data/{name}" for name in names], format="parquet", filesystem=files)
