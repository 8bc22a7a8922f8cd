"""Masks that select the tokens of a window that a measure uses. They depend only on token ids."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Numbers = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]


def grams(ids: npt.NDArray[np.int32], order: int) -> Numbers:
    """Number of the `order`-gram that ends at each token: equal n-grams have equal numbers; -1 if it would begin before the window."""
    keys = ids.astype(np.int64)
    for _ in range(order - 1):
        # Numbers stay below the number of tokens, so that products do not overflow.
        ranks = np.unique(keys, return_inverse=True)[1].reshape(keys.shape)
        joined = np.full_like(keys, -1)
        joined[:, 1:] = ranks[:, :-1] * (int(ids.max()) + 1) + ids[:, 1:]
        keys = joined
    keys[:, : order - 1] = -1
    return keys


def earlier_count(keys: Numbers) -> Numbers:
    """Number of earlier occurrences of each token's key in its window."""
    order, starts = _grouped(keys)
    positions = np.arange(keys.size)
    counts = np.empty(keys.size, dtype=np.int64)
    counts[order] = positions - np.maximum.accumulate(np.where(starts, positions, 0))
    return counts.reshape(keys.shape)


def earlier_distance(keys: Numbers) -> Numbers:
    """Distance in tokens to the last equal key in the window; 0 if no earlier key is equal or the key is -1."""
    order, starts = _grouped(keys)
    distances = np.zeros(keys.size, dtype=np.int64)
    distances[order[1:]] = np.where(starts[1:], 0, order[1:] - order[:-1])
    return np.where(keys == -1, 0, distances.reshape(keys.shape))


def _grouped(keys: Numbers) -> tuple[npt.NDArray[np.intp], Mask]:
    """Token indices sorted by window, key and position, and whether each is the first with its window and key."""
    ranks = np.unique(keys, return_inverse=True)[1].reshape(keys.shape)
    flat = (np.arange(keys.shape[0])[:, None] * (int(ranks.max()) + 1) + ranks).ravel()
    order = np.argsort(flat, kind="stable")
    ordered = flat[order]
    return order, np.concatenate([[True], ordered[1:] != ordered[:-1]])


@dataclass(frozen=True)
class Targets:
    """Masks over the predicted tokens of windows: all but the first token."""

    last: Mask
    """The last eighth of the window."""
    retrieval: Mask
    """Tokens of the last eighth whose trigram last occurred more than `near_tokens` back."""
    fresh: Mask
    """Tokens whose trigram does not occur earlier in the window."""


def targets(ids: npt.NDArray[np.int32], near_tokens: int) -> Targets:
    """Computes the masks of windows."""
    distance = earlier_distance(grams(ids, 3))[:, 1:]
    positions = np.arange(1, ids.shape[1])
    last = np.broadcast_to(positions >= ids.shape[1] - ids.shape[1] // 8, distance.shape)
    return Targets(last=last, retrieval=last & (distance > near_tokens), fresh=(distance == 0) & (positions >= 2))


def octaves(sequence_tokens: int) -> list[tuple[int, int]]:
    """Ranges of positions from 2^k up to 2^(k+1), the last one cut."""
    found = []
    start = 1
    while start < sequence_tokens:
        found.append((start, min(2 * start, sequence_tokens)))
        start *= 2
    return found
