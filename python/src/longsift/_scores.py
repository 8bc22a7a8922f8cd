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


def _manifest(files: Any, root: str) -> dict[str, Any]:
    """Reads the manifest of a run directory; empty if the run is not finished."""
    from pyarrow import fs

    path = f"{root}/manifest.json"
    found: dict[str, Any] = {}
    if files.get_file_info(path).type != fs.FileType.NotFound:
        found = json.loads(files.open_input_stream(path).read())
    return found


def scores(run_dir: str | os.PathLike[str]) -> Dataset:
    """Opens the score tables of a run directory, one row per window in input order.

    The dataset contains committed work units only, so it can be read during a run; the run directory may be in an
    object store. The scores of a finished run with `--scores-from` are those of the other run. Raises
    `FileNotFoundError` if no unit is scored.
    """
    from pyarrow import dataset, fs

    files, root, address = _opened(run_dir)
    found = files.get_file_info(fs.FileSelector(f"{root}/units", allow_not_found=True))
    records = [json.loads(files.open_input_stream(unit.path).read()) for unit in found if unit.base_name[0] != "."]
    if not records and (other := _manifest(files, root).get("lock", {}).get("recorded", {}).get("scores_from")):
        return scores(other)
    if not records:
        raise FileNotFoundError(f"no work unit of {address} is scored; it is not a run directory, or no unit is finished yet")
    records.sort(key=lambda record: (record["file"].encode(), record["first_row"]))
    parts = [f"{root}/{record['scores']['path']}" for record in records]
    return dataset.dataset(parts, format="parquet", filesystem=files)


def kept(run_dir: str | os.PathLike[str]) -> Dataset:
    """Opens the samples that a finished run kept, in order: the files in its manifest, without the samples that
    `filter.mark_only` only marks.

    The run directory may be in an object store. Raises `FileNotFoundError` if the run is not finished, `ValueError`
    if the output is not Parquet.
    """
    from pyarrow import dataset

    files, root, address = _opened(run_dir)
    manifest = _manifest(files, root)
    if not manifest:
        raise FileNotFoundError(f"{address} has no manifest: it is not a run directory, or its run is not finished")
    names = [part["path"] for part in manifest["data"]]
    if others := [name for name in names if not name.endswith(".parquet")]:
        raise ValueError(f"the output of {address} is not Parquet but for example {others[0]}")
    output = root.removesuffix(".run")
    data = dataset.dataset([f"{output}/data/{name}" for name in names], format="parquet", filesystem=files)
    is_marked = any(stage.get("mark_only") for stage in manifest["lock"]["settings"]["stages"])
    return data.filter(dataset.field("longsift_kept")) if is_marked else data
