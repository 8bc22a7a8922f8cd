"""Tables of a run as datasets."""

from __future__ import annotations

import hashlib
import json
import os
import re
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

if TYPE_CHECKING:
    from pyarrow.dataset import Dataset


def _opened(run_dir: str | os.PathLike[str]) -> tuple[Any, str, str]:
    """Returns the file system of a run directory, its path there, and its address for messages."""
    from pyarrow import fs

    address = os.fspath(run_dir).rstrip("/")
    if "://" not in address:
        return fs.LocalFileSystem(), os.path.abspath(address), address
    # pyarrow decodes addresses; those of longsift are literal.
    files, root = fs.FileSystem.from_uri(quote(address, safe="/:@"))
    return files, root, address


def _manifest(files: Any, root: str) -> dict[str, Any]:
    """Reads the manifest of a run directory; empty if the run is not finished."""
    from pyarrow import fs

    if files.get_file_info(f"{root}/intent.json").type != fs.FileType.NotFound:
        raise ValueError(f"a commit in {root} is unfinished: its files may belong to two selections; run the pipeline again")
    path = f"{root}/manifest.json"
    if files.get_file_info(path).type == fs.FileType.NotFound:
        return {}
    found = _read_intact(files, path)
    if not found:
        raise ValueError(f"the manifest {path} is damaged; `longsift verify` shows what to do")
    return found


def _read_intact(files: Any, path: str) -> dict[str, Any]:
    """Reads a record; empty if it does not match the digest of its content, its last key."""
    content = files.open_input_stream(path).read()
    compact = re.sub(rb'("(?:\\.|[^"\\])*")|\s+', lambda match: match[1] or b"", content)
    body, separator, seal = compact.rpartition(b',"sha256":"')
    is_intact = separator and seal == hashlib.sha256(body + b"}").hexdigest().encode() + b'"}'
    record: dict[str, Any] = json.loads(content) if is_intact else {}
    return record


def scores(run_dir: str | os.PathLike[str]) -> Dataset:
    """Opens the score tables of a run directory, one row per window in input order.

    The run directory may be in an object store. A finished run has the scores that its manifest lists; with
    `--scores-from` they are in the other run directory. Before the first selection, the dataset contains the work units
    that are committed, so it can be read during a run. Raises `FileNotFoundError` if no unit is scored, `ValueError` if
    the run directory of `--scores-from` has other scores now.
    """
    from pyarrow import dataset, fs, parquet, unify_schemas

    files, root, address = _opened(run_dir)
    scored = root
    if manifest := _manifest(files, root):
        records = manifest["units"]
        if other := (manifest["lock"].get("recorded") or {}).get("scores_from"):
            files, scored, address = _opened(other)
            now = _unit_records(files, scored) + (_manifest(files, scored) or {"units": []})["units"]
            tables = {(record["scores"]["path"], record["scores"]["sha256"]) for record in now}
            if changed := sum((record["scores"]["path"], record["scores"]["sha256"]) not in tables for record in records):
                raise ValueError(f"{changed} of {len(records)} work units of {address} were scored again, or their records are gone: run the pipeline again")
    else:
        if files.get_file_info(f"{root}/fresh/pipeline.lock").type != fs.FileType.NotFound:
            scored = f"{root}/fresh"
        records = _unit_records(files, scored)
        records = _planned(files, root, records) if records else []
    if not records and manifest:
        raise FileNotFoundError(f"the run in {address} has no scores: its input has no rows")
    if not records:
        raise FileNotFoundError(f"no work unit of {address} is scored; it is not a run directory, or no unit is finished yet")
    records = sorted(records, key=_position)
    paths = _checked(files, scored, [record["scores"] for record in records])
    # Units that were scored with other measures have other columns.
    by_measures = {frozenset(record["measures"]): path for record, path in zip(records, paths, strict=True)}
    schemas = [parquet.read_schema(path, filesystem=files) for path in by_measures.values()]
    return dataset.dataset(paths, schema=unify_schemas(schemas), format="parquet", filesystem=files)


def _checked(files: Any, folder: str, parts: list[dict[str, Any]]) -> list[str]:
    """Returns the paths of the files of a run. Raises `ValueError` if one is missing or has another size."""
    paths = [f"{folder}/{part['path']}" for part in parts]
    for part, info in zip(parts, files.get_file_info(paths), strict=True):
        if info.size != part["bytes"]:
            raise ValueError(f"{info.path} has changed since the run; `longsift verify` shows what to do")
    return paths


def _unit_records(files: Any, root: str) -> list[dict[str, Any]]:
    """Reads the records of the committed work units; skips damaged ones, which the next run scores again."""
    from pyarrow import fs

    found = files.get_file_info(fs.FileSelector(f"{root}/units", allow_not_found=True))
    names = [unit for unit in found if unit.base_name[0] != "." and unit.base_name.endswith(".json")]
    records = [(unit.base_name, _read_intact(files, unit.path)) for unit in names]
    return [record for name, record in records if record and name == f"{record['unit']}.json"]


def _planned(files: Any, root: str, records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Returns the records with the input and the settings of the last run; an unfinished run may have left others."""
    from pyarrow import fs

    path = f"{root}/plan.json"
    exists = files.get_file_info(path).type != fs.FileType.NotFound
    planned = (_read_intact(files, path) if exists else {}).get("planned")
    if not planned:
        raise ValueError(f"the plan {path} is missing or damaged; run the pipeline again")
    windows, wanted = planned["scores"]["windows"], planned["scores"]["measures"]

    def is_planned(record: dict[str, Any]) -> bool:
        measures = record["measures"]
        has_statistics = all(
            name in measures and _has_statistics(measures[name], measure) for name, measure in wanted.items()
        )
        others = [measure for name, measure in measures.items() if name not in wanted]
        is_current = planned["units"].get(record["unit"]) == record["input"] and record["windows"] == windows
        return is_current and has_statistics and not any(measure["quarantined"] for measure in others)

    return [record for record in records if is_planned(record)]


def _has_statistics(own: dict[str, Any], wanted: dict[str, Any]) -> bool:
    """Whether a measure has all wanted statistics of a work unit, possibly for more windows than wanted."""
    is_same = own["fingerprint"] == wanted["fingerprint"] and not own.get("incomplete")
    return is_same and _no_stricter(own.get("only", {}), wanted.get("only", {}))


def _no_stricter(bounds: dict[str, Any], others: dict[str, Any]) -> bool:
    """Whether all windows that pass the bounds `others` pass `bounds`, each `{min, max, of, only, merge}` by statistic."""

    def is_no_stricter(own: dict[str, Any], other: dict[str, Any]) -> bool:
        low, high = own.get("min"), own.get("max")
        reaches = low is None or (other.get("min") is not None and low <= other["min"])
        reaches = reaches and (high is None or (other.get("max") is not None and high >= other["max"]))
        same = all(own.get(key) == other.get(key) for key in ("of", "merge"))
        return reaches and same and _no_stricter(own.get("only") or {}, other.get("only") or {})

    return all(name in others and is_no_stricter(own, others[name]) for name, own in bounds.items())


def _position(record: dict[str, Any]) -> tuple[bytes, int]:
    return record["file"].encode(), record["first_row"]


def kept(run_dir: str | os.PathLike[str]) -> Dataset:
    """Opens the samples that a finished run kept, in order: the files in its manifest, without the samples that
    `filter.mark_only` only marks.

    The run directory may be in an object store. Raises `FileNotFoundError` if the run is not finished, `ValueError`
    if the output is not Parquet, a file has another size than the run wrote, or a commit is unfinished.
    """
    from pyarrow import dataset, fs

    files, root, address = _opened(run_dir)
    manifest = _manifest(files, root)
    if not manifest or files.get_file_info(f"{root}/_SUCCESS").type == fs.FileType.NotFound:
        raise FileNotFoundError(f"{address} has no manifest or no _SUCCESS: it is not a run directory, or its run is not finished")
    names = [part["path"] for part in manifest["data"]]
    if others := [name for name in names if not name.endswith(".parquet")]:
        raise ValueError(f"the output of {address} is not Parquet but for example {others[0]}")
    output = root.removesuffix(".run")
    data = dataset.dataset(_checked(files, f"{output}/data", manifest["data"]), format="parquet", filesystem=files)
    is_marked = any(stage.get("mark_only") for stage in manifest["lock"]["settings"]["stages"])
    return data.filter(dataset.field("longsift_kept")) if is_marked else data
