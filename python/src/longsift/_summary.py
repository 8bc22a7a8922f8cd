"""Typed summary of a run."""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Shard:
    """Results of a process for the work units of its shard."""

    index: int
    count: int
    units: int
    units_scored: int
    units_reused: int
    units_by_others: int
    rows_scored: int
    units_written: int


@dataclass(frozen=True)
class Table:
    """Layer-zero table of a run that measured attention."""

    from_cache: bool
    checkpoint_bytes_read: int
    bytes: int
    row_bytes: int
    rows_used: int
    bytes_used: int


@dataclass(frozen=True)
class DeviceWork:
    """Work of a device."""

    name: str
    uuid: str | None
    pieces: int
    tokens: int
    busy_seconds: float
    most_reserved_bytes: int
    retired: str | None


@dataclass(frozen=True)
class Devices:
    """Devices of a run that measured attention, and event counts of the scheduler."""

    list: Sequence[DeviceWork]
    steps: Mapping[str, int]


@dataclass(frozen=True)
class Drift:
    """Drift of a group since the calibration that it was filtered with."""

    value: str | None
    count: int
    samples: int
    kept_fraction: float | None
    calibrated_kept_fraction: float | None
    shifts: Mapping[str, float]
    stability_index: float | None


@dataclass(frozen=True)
class GuardedGroup:
    """Samples of a group that a guard rejects."""

    value: str | None
    rejected: int
    missing: int
    samples: int


@dataclass(frozen=True)
class Guard:
    """Samples that a guard rejects, and the groups that lose more than half of their samples."""

    setting: str
    statistic: str
    bounds: str
    rejected: int
    missing: int
    samples: int
    groups: Sequence[GuardedGroup]
    groups_left_out: int


@dataclass(frozen=True)
class Check:
    """Result of a check of the pipeline."""

    check: Mapping[str, Any] | str
    value: float | None
    min: float | None
    max: float | None
    holds: bool


@dataclass(frozen=True)
class Summary:
    """Summary of a run; `longsift schema summary` describes every field."""

    status: str
    run_dir: str
    """A path from the root, or an address."""
    run_id: str | None
    rows_in: int
    rows_kept: int
    rows_dropped: Mapping[str, int]
    quarantined: int
    files_quarantined: int
    windows_total: int
    windows_scored: int
    windows_reused: int
    windows_not_measured: Mapping[str, int]
    windows_not_sampled: Mapping[str, int]
    windows_kept: int
    windows_kept_not_measured: int
    windows_dropped: Mapping[str, int]
    kept: int
    tokens_total: int
    tokens_scored: int
    kernel: str | None
    seconds: float
    peak_memory_bytes: int | None
    peak_memory_by_phase: Mapping[str, int]
    table: Table | None
    shard: Shard | None
    devices: Devices | None
    drift: Sequence[Drift]
    drift_left_out: int
    guards: Sequence[Guard]
    checks: Sequence[Check]
    exit_code: int
    error: str | None
    raw: Mapping[str, Any]
    """The summary as JSON, with all fields."""

    @classmethod
    def from_json(cls, raw: Mapping[str, Any]) -> Summary:
        """Creates the summary from JSON. Unknown fields of a newer command are only in `raw`."""
        known = _known(cls, raw)
        for name, kind in (("table", Table), ("shard", Shard), ("devices", Devices)):
            known[name] = None if raw.get(name) is None else _parse(kind, raw[name])
        known["drift"] = [_parse(Drift, drift) for drift in raw.get("drift") or []]
        known["guards"] = [_guard(guard) for guard in raw.get("guards") or []]
        known["checks"] = [_parse(Check, check) for check in raw.get("checks") or []]
        known["windows_not_measured"] = raw.get("windows_not_measured") or {}
        known["peak_memory_by_phase"] = raw.get("peak_memory_by_phase") or {}
        known["windows_not_sampled"] = raw.get("windows_not_sampled") or {}
        for name in ("windows_kept_not_measured", "drift_left_out"):
            known[name] = raw.get(name) or 0
        if known["devices"] is not None:
            work = [_parse(DeviceWork, device) for device in known["devices"].list or []]
            known["devices"] = dataclasses.replace(known["devices"], list=work)
        return cls(**{**known, "raw": raw})


_Type = typing.TypeVar("_Type")


def _known(kind: type[Any], raw: Mapping[str, Any]) -> dict[str, Any]:
    return {field.name: raw.get(field.name) for field in dataclasses.fields(kind)}


def _guard(raw: Mapping[str, Any]) -> Guard:
    groups = [_parse(GuardedGroup, {"missing": 0, **group}) for group in raw.get("groups") or []]
    left_out = raw.get("groups_left_out") or 0
    return dataclasses.replace(_parse(Guard, {"missing": 0, **raw}), groups=groups, groups_left_out=left_out)


def _parse(kind: type[_Type], raw: Mapping[str, Any]) -> _Type:
    return kind(**_known(kind, raw))
