"""Tables of a run as datasets."""

from __future__ import annotations

import bisect
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

    if files.get_file_info(f"{root}/intent.json").type != fs.FileType.NotFound:
        raise ValueError(f"a commit in {root} is unfinished: its files belong to two selections; run the pipeline again")
    path = f"{root}/manifest.json"
    found: dict[str, Any] = {}
    if files.get_file_info(path).type != fs.FileType.NotFound:
        try:
            found = json.loads(files.open_input_stream(path).read())
        except ValueError as error:
            raise ValueError(f"the manifest {path} is damaged; `longsift verify` shows what to do") from error
    return found


def scores(run_dir: str | os.PathLike[str]) -> Dataset:
    """Opens the score tables of a run directory, one row per window in input order.

    The run directory may be in an object store. A finished run has the scores that its manifest lists; with
    `--scores-from` they are in the other run directory. Before the first selection, the dataset contains the work units
    that are committed, so it can be read during a run. Raises `FileNotFoundError` if no unit is scored, `ValueError` if
    the run directory of `--scores-from` has other scores now.
    """
    from pyarrow import dataset

    files, root, address = _opened(run_dir)
    if manifest := _manifest(files, root):
        records = manifest["units"]
        if other := (manifest["lock"].get("recorded") or {}).get("scores_from"):
            files, root, address = _opened(other)
            now = _unit_records(files, root) + (_manifest(files, root) or {"units": []})["units"]
            tables = {(record["scores"]["path"], record["scores"]["sha256"]) for record in now}
            if changed := sum((record["scores"]["path"], record["scores"]["sha256"]) not in tables for record in records):
                raise ValueError(f"{changed} of {len(records)} work units of {address} were scored again, or their records are gone: run the pipeline again")
    else:
        records = _without_overlaps(_unit_records(files, root))
    if not records:
        raise FileNotFoundError(f"no work unit of {address} is scored; it is not a run directory, or no unit is finished yet")
    parts = [record["scores"] for record in sorted(records, key=_position)]
    return dataset.dataset(_checked(files, root, parts), format="parquet", filesystem=files)


def _checked(files: Any, folder: str, parts: list[dict[str, Any]]) -> list[str]:
    """Returns the paths of the files of a run. Raises `ValueError` if one is missing or has another size."""
    paths = [f"{folder}/{part['path']}" for part in parts]
    for part, info in zip(parts, files.get_file_info(paths), strict=True):
        if info.size != part["bytes"]:
            raise ValueError(f"{info.path} has changed since the run; `longsift verify` shows what to do")
    return paths


def _unit_records(files: Any, root: str) -> list[dict[str, Any]]:
    """Reads the records of the committed work units, in the order in which they were written."""
    from pyarrow import fs

    found = files.get_file_info(fs.FileSelector(f"{root}/units", allow_not_found=True))
    names = [unit for unit in found if unit.base_name[0] != "." and unit.base_name.endswith(".json")]
    names.sort(key=lambda unit: unit.mtime_ns or 0)
    records = [(unit.base_name, json.loads(files.open_input_stream(unit.path).read())) for unit in names]
    return [record for name, record in records if name == f"{record['unit']}.json"]


def _without_overlaps(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Returns records of different rows, of the version of each input file that was scored last. Files and the size of units
    may have changed during an unfinished run; `records` is in the order in which they were written."""
    versions: dict[str, dict[str, Any]] = {}
    kept: dict[str, list[tuple[int, dict[str, Any]]]] = {}
    for record in reversed(records):
        units = kept.setdefault(record["file"], [])
        after = bisect.bisect_left(units, record["first_row"] + record["counts"]["rows"], key=lambda unit: unit[0])
        before = units[after - 1][1] if after else None
        overlaps = before and record["first_row"] < before["first_row"] + before["counts"]["rows"]
        if versions.setdefault(record["file"], record["input"]) == record["input"] and not overlaps:
            units.insert(after, (record["first_row"], record))
    return [record for units in kept.values() for _, record in units]


def _position(record: dict[str, Any]) -> tuple[bytes, int]:
    return record["file"].encode(), record["first_row"]


def kept(run_dir: str | os.PathLike[str]) -> Dataset:
    """Opens the samples that a finished run kept, in order: the files in its manifest, without the samples that
    `filter.mark_only` only marks.

    The run directory may be in an object store. Raises `FileNotFoundError` if the run is not finished, `ValueError`
    if the output is not Parquet, a file has another size than the run wrote, or a commit is unfinished.
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
    data = dataset.dataset(_checked(files, f"{output}/data", manifest["data"]), format="parquet", filesystem=files)
    is_marked = any(stage.get("mark_only") for stage in manifest["lock"]["settings"]["stages"])
    return data.filter(dataset.field("longsift_kept")) if is_marked else data
