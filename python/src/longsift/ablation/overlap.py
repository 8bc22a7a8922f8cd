"""Text that arms share with held-out documents, by 13-grams of token ids."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from longsift.ablation.arms import Windows
from longsift.ablation.hashing import Hashes, mix

GRAM_TOKENS = 13
MAX_SHARED = 0.01
"""Maximum share of the 13-grams of a range that may occur in held-out documents."""


def gram_hashes(ids: npt.NDArray[np.int32]) -> Hashes:
    """Hash of each 13-gram along the last axis."""
    mixed = mix(ids)
    count = ids.shape[-1] - GRAM_TOKENS + 1
    total = np.zeros((*ids.shape[:-1], max(count, 0)), dtype=np.uint64)
    if count <= 0:
        return total
    with np.errstate(over="ignore"):
        for offset in range(GRAM_TOKENS):
            total = total * np.uint64(0x100000001B3) + mixed[..., offset : offset + count]
    return total


class GramSet:
    """The 13-grams of the held-out documents."""

    def __init__(self, documents: list[npt.NDArray[np.int32]]) -> None:
        found = [gram_hashes(ids).ravel() for ids in documents]
        self._hashes = np.sort(np.concatenate(found)) if found else np.zeros(0, dtype=np.uint64)
        # One table lookup excludes most 13-grams; a binary search for all of them would take minutes.
        bits = max(self._hashes.size, 1).bit_length() + 4
        self._shift = np.uint64(64 - bits)
        self._possible = np.zeros(1 << bits, dtype=np.bool_)
        self._possible[self._hashes >> self._shift] = True

    def hits(self, ids: npt.NDArray[np.int32]) -> npt.NDArray[np.bool_]:
        """Whether each 13-gram along the last axis occurs in held-out documents."""
        wanted = gram_hashes(ids)
        found: npt.NDArray[np.bool_] = self._possible[wanted >> self._shift]
        candidates = wanted[found]
        if candidates.size:
            indices = np.searchsorted(self._hashes, candidates).clip(max=self._hashes.size - 1)
            found[found] = self._hashes[indices] == candidates
        return found


def largest_shared(hits: npt.NDArray[np.bool_], range_tokens: int) -> float:
    """Largest share of hits in any range of `range_tokens` tokens of a document."""
    grams = min(range_tokens - GRAM_TOKENS + 1, hits.size)
    if grams <= 0:
        return 0.0
    sums = np.concatenate([[0], np.cumsum(hits)])
    return float((sums[grams:] - sums[:-grams]).max() / grams)


def overlap_problems(arm: Windows, heldout: Windows, grams: GramSet) -> list[str]:
    """Messages about windows of an arm that overlap held-out documents."""
    problems = []
    same = sorted(arm.pool[content] for content in arm.pool.keys() & heldout.pool.keys())
    if same:
        problems.append(
            f"{arm.name}: {len(same)} held-out documents are in its pool, for example `{same[0]}`; "
            "remove them from the input of its pipeline and run it again"
        )
    shares = grams.hits(arm.ids).mean(axis=-1)
    over = np.flatnonzero(shares > MAX_SHARED)
    over = np.array([row for row in over if arm.documents[row] not in same], dtype=np.intp)
    if over.size:
        worst = over[np.argmax(shares[over])]
        documents = sorted({arm.documents[row] for row in over})
        problems.append(
            f"{arm.name}: {over.size} windows of {len(documents)} documents share more than {MAX_SHARED:.0%} of their 13-grams with "
            f"held-out documents, for example `{arm.documents[worst]}` with {shares[worst]:.0%}; "
            "remove these documents from the input of its pipeline and run it again: " + ", ".join(documents[:20])
        )
    return problems
