"""Hashes of numbers, equal on all machines and with all versions of numpy."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Hashes = npt.NDArray[np.uint64]

_STEP = 0x9E3779B97F4A7C15


def mix(values: npt.ArrayLike) -> Hashes:
    """SplitMix64 of each value."""
    with np.errstate(over="ignore"):
        mixed = np.asarray(values).astype(np.uint64) + np.uint64(_STEP)
        mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return np.asarray(mixed ^ (mixed >> np.uint64(31)), dtype=np.uint64)


def permutation(count: int, *keys: int) -> npt.NDArray[np.intp]:
    """Random permutation of `count` items that depends only on the keys."""
    state = np.zeros(1, dtype=np.uint64)
    for key in keys:
        state = mix(state ^ mix([key]))
    return np.argsort(mix(state ^ mix(np.arange(count))), kind="stable")
