"""What a run says at its end, typed."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Shard:
    """What a process did with the work units of its shard."""

    index: int
    count: int
    units: int
    units_scored: int
    units_reused: int
    units_by_others: int
    units_written: int
    rows_scored: int


@dataclass(frozen=True)
class Summary:
    """The summary of a run; `longsift schema summary` describes every field."""

    status: str
    run_dir: str
    """A path from the root, or an address."""
    rows_in: int
    rows_kept: int
    rows_dropped: Mapping[str, int]
    quarantined: int
    windows_total: int
    windows_scored: int
    windows_reused: int
    windows_kept: int
    windows_dropped: Mapping[str, int]
    kept: int
    tokens_total: int
    tokens_scored: int
    seconds: float
    peak_memory_bytes: int | None
    exit_code: int
    error: str | None
    shard: Shard | None
    raw: Mapping[str, Any]
    """Everything, as the command printed it."""

    @classmethod
    def from_json(cls, raw: Mapping[str, Any]) -> Summary:
        """The summary from the command's last line; fields of a newer command are in `raw` only."""
        known: dict[str, Any] = {field.name: raw.get(field.name) for field in dataclasses.fields(cls)}
        if (shard := raw.get("shard")) is not None:
            known["shard"] = Shard(**{field.name: shard[field.name] for field in dataclasses.fields(Shard)})
        return cls(**{**known, "raw": raw})
