"""N-gram models: an interpolated Kneser-Ney trigram, alone and with a cache of the window."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from longsift.ablation.measures import Numbers, earlier_count, grams

Probabilities = npt.NDArray[np.float64]

CACHE_STRENGTHS = (300.0, 12.0, 2.0)
"""Weights of the estimate of the shorter context relative to one occurrence in the window, for unigram, bigram and trigram."""


class _Counts:
    """Counts of n-grams by number, with the totals of their contexts; one absolute discount."""

    def __init__(self, keys: Numbers, counts: Numbers, vocabulary: int) -> None:
        self.keys, self.counts, self._vocabulary = keys, counts, vocabulary
        ones, twos = int((counts == 1).sum()), int((counts == 2).sum())
        self.discount = ones / (ones + 2 * twos) if ones else 0.5
        self.contexts, starts = np.unique(keys // vocabulary, return_index=True)
        self._totals = np.add.reduceat(counts, starts) if keys.size else counts
        self._kinds = np.diff(np.append(starts, keys.size))

    def probabilities(self, keys: Numbers, shorter: Probabilities) -> Probabilities:
        """Interpolates the discounted counts with the probabilities of the shorter context."""
        if not self.keys.size:
            return shorter
        counts = _lookup(self.keys, self.counts, keys)
        contexts = keys // self._vocabulary
        totals = _lookup(self.contexts, self._totals, contexts)
        kinds = _lookup(self.contexts, self._kinds, contexts)
        seen = totals > 0
        divisor = np.where(seen, totals, 1)
        mixed = (np.maximum(counts - self.discount, 0) + self.discount * kinds * shorter) / divisor
        return np.where(seen, mixed, shorter)


def _lookup(keys: Numbers, values: Numbers, wanted: Numbers) -> Numbers:
    """Value of each wanted key; 0 if it is not found."""
    indices = np.searchsorted(keys, wanted).clip(max=keys.size - 1)
    return np.where(keys[indices] == wanted, values[indices], 0)


class Trigram:
    """An interpolated Kneser-Ney trigram. N-grams do not cross the borders of windows."""

    def __init__(self, ids: npt.NDArray[np.int32], vocabulary: int) -> None:
        if vocabulary >= 1 << 21:
            raise ValueError(f"expected a vocabulary below {1 << 21}, got {vocabulary}")
        self._vocabulary = vocabulary
        wide = ids.astype(np.int64)
        bigrams = np.unique(wide[:, :-1] * vocabulary + wide[:, 1:])
        threes, counts = np.unique(
            (wide[:, :-2] * vocabulary + wide[:, 1:-1]) * vocabulary + wide[:, 2:], return_counts=True
        )
        self._three = _Counts(threes, counts, vocabulary)
        # Lower orders count different continuations, not occurrences.
        self._two = _Counts(*np.unique(threes % vocabulary**2, return_counts=True), vocabulary)
        self._one = _Counts(*np.unique(bigrams % vocabulary, return_counts=True), vocabulary)

    def probabilities(self, ids: npt.NDArray[np.int32]) -> Probabilities:
        """Probability of each token but the first of its window."""
        wide, vocabulary = ids.astype(np.int64), self._vocabulary
        found = self._one.probabilities(wide[:, 1:], np.full(wide[:, 1:].shape, 1 / vocabulary))
        found = self._two.probabilities(wide[:, :-1] * vocabulary + wide[:, 1:], found)
        three = (wide[:, :-2] * vocabulary + wide[:, 1:-1]) * vocabulary + wide[:, 2:]
        found[:, 1:] = self._three.probabilities(three, found[:, 1:])
        return found


def with_cache(ids: npt.NDArray[np.int32], base: Probabilities, strengths: tuple[float, float, float] = CACHE_STRENGTHS) -> Probabilities:
    """Mixes the probabilities of tokens with frequencies in the window before each token."""
    found = base
    for order, strength in enumerate(strengths, 1):
        occurrences = earlier_count(grams(ids, order))[:, 1:]
        if order == 1:
            contexts = np.broadcast_to(np.arange(1, ids.shape[1]), occurrences.shape)
            known = np.ones_like(contexts, dtype=np.bool_)
        else:
            contexts = earlier_count(grams(ids, order - 1))[:, :-1]
            known = np.broadcast_to(np.arange(1, ids.shape[1]) >= order - 1, contexts.shape)
        found = np.where(known, (occurrences + strength * found) / (contexts + strength), found)
    return found
