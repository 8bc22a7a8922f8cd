"""Measures of runs with intervals, the entry condition and the verdict."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

MEASURES = {
    "loss": "mean loss",
    "long_gain": "long gain",
    "retrieval_gain": "retrieval gain",
    "fresh_loss": "loss on tokens that do not recur",
}
"""Measures of a document. Each is a sum over some of its tokens, and the number of these tokens."""
LOWER_IS_BETTER = {"loss", "fresh_loss"}
VERDICT_MEASURES = ("long_gain", "loss")
MIN_RETRIEVAL_GAIN = 1.0
"""In nats. With a lower gain a model has not learned to copy, so arms differ for other reasons."""
MIN_SEEDS = 3
"""With fewer seeds the variance between seeds cannot be estimated reliably."""
RESAMPLES = 2000
NORMAL_QUANTILE = 1.96
T_QUANTILES = {
    1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776, 5: 2.571, 6: 2.447, 8: 2.306, 10: 2.228, 15: 2.131, 20: 2.086, 40: 2.021,
}  # fmt: skip
"""97.5 % quantiles of Student's t by degrees of freedom."""
POWER_QUANTILE = 0.84
"""Standard errors beyond the quantile at which a difference is found with a probability of 80 %."""

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Interval:
    """An estimate with its 95 % interval."""

    value: float
    low: float
    high: float
    error: float
    """Standard error."""
    quantile: float = NORMAL_QUANTILE
    """Distance from the estimate to either end, in standard errors."""

    @property
    def detectable(self) -> float:
        """Smallest value that this number of seeds and documents detects with a probability of 80 %."""
        return (self.quantile + POWER_QUANTILE) * self.error


@dataclass(frozen=True)
class DocumentSums:
    """Sums and token counts of one measure: a row per seed, a column per document."""

    sums: Floats
    counts: Floats


def t_quantile(freedom: int) -> float:
    """The 97.5 % quantile of Student's t, interpolated in the inverse of the degrees of freedom."""
    known = {0.0: NORMAL_QUANTILE} | {1 / key: T_QUANTILES[key] for key in sorted(T_QUANTILES, reverse=True)}
    return float(np.interp(1 / max(freedom, 1), list(known), list(known.values())))


class Resampler:
    """Bootstrap over seeds and documents, with equal draws for all arms and measures. Documents are drawn within their class."""

    def __init__(self, classes: Sequence[str], seeds: int, resamples: int = RESAMPLES, seed: int = 1) -> None:
        random = np.random.default_rng(seed)
        self._seeds = seeds
        self._members = [np.flatnonzero(np.array(classes) == name) for name in sorted(set(classes))]
        self._seed_weights = random.multinomial(seeds, np.full(seeds, 1 / seeds), size=resamples) / seeds
        self._document_weights = [
            random.multinomial(len(rows), np.full(len(rows), 1 / len(rows)), size=resamples) for rows in self._members
        ]

    def estimate(self, one: DocumentSums) -> float:
        """Unweighted mean over classes of the mean over the tokens and seeds of a class."""
        even = np.full((1, self._seeds), 1 / self._seeds)
        return float(self._means(one, even, [np.ones((1, len(rows))) for rows in self._members])[0])

    def draws(self, one: DocumentSums) -> Floats:
        """The estimate in every resample."""
        return self._means(one, self._seed_weights, self._document_weights)

    def interval(self, one: DocumentSums, other: DocumentSums | None = None) -> Interval:
        """Interval of the estimate of an arm, or of its difference from another arm.

        The variance is that of the bootstrap. Draws of n seeds underestimate the variance between seeds by a share of 1/n, which is added. The
        quantile of Student's t combines those for seeds and for documents by their shares of the variance: with three seeds, one quantile
        with the combined degrees of freedom (Welch and Satterthwaite) would miss the true value twice as often as stated.
        """
        value, draws, by_seed = self.estimate(one), self.draws(one), self._by_seed(one)
        if other is not None:
            value, draws, by_seed = value - self.estimate(other), draws - self.draws(other), by_seed - self._by_seed(other)
        if np.isnan(value):
            return Interval(value, value, value, value)
        of_seeds = float(np.nanvar(by_seed, ddof=1)) / self._seeds if self._seeds > 1 else 0.0
        variance = float(np.nanvar(draws)) + of_seeds / self._seeds
        share = min(1.0, of_seeds / variance) if variance > 0 else 0.0
        documents = t_quantile(sum(len(rows) - 1 for rows in self._members))
        quantile = float(np.sqrt(share * t_quantile(self._seeds - 1) ** 2 + (1 - share) * documents**2))
        error = float(np.sqrt(variance))
        return Interval(value, value - quantile * error, value + quantile * error, error, quantile)

    def _by_seed(self, one: DocumentSums) -> Floats:
        """The estimate of each seed alone."""
        return self._means(one, np.eye(self._seeds), [np.ones((self._seeds, len(rows))) for rows in self._members])

    def _means(self, one: DocumentSums, seeds: Floats, documents: Sequence[npt.NDArray[np.float64] | npt.NDArray[np.int64]]) -> Floats:
        by_class = []
        for rows, weights in zip(self._members, documents, strict=True):
            with np.errstate(invalid="ignore", divide="ignore"):
                sums = np.einsum("bs,sd,bd->b", seeds, one.sums[:, rows], weights)
                counts = np.einsum("bs,sd,bd->b", seeds, one.counts[:, rows], weights)
                by_class.append(sums / counts)
        # A class without measured tokens in a resample is excluded from the mean of that resample.
        means = np.stack(by_class)
        found = ~np.isnan(means)
        with np.errstate(invalid="ignore"):
            return np.asarray(np.where(found, means, 0).sum(axis=0) / found.sum(axis=0))


@dataclass(frozen=True)
class ArmResults:
    """Measures of one arm: `measures` by seed and document, and the loss of the trigram of its windows."""

    measures: Mapping[str, DocumentSums]
    trigram_loss: float


def entry_problems(intervals: Mapping[str, Interval], trigram_loss: float) -> list[str]:
    """Returns the reasons why an arm does not meet the entry condition; empty if it does."""
    loss, gain, retrieval = intervals["loss"], intervals["long_gain"], intervals["retrieval_gain"]
    problems = []
    if not loss.value < trigram_loss:
        problems.append(f"its loss {loss.value:.3f} is not below the trigram's {trigram_loss:.3f}")
    if not gain.low > 0:
        problems.append(f"its long gain {gain.value:.3f} [{gain.low:.3f}, {gain.high:.3f}] does not lie above zero")
    if not retrieval.value > MIN_RETRIEVAL_GAIN:
        problems.append(f"its retrieval gain {retrieval.value:.2f} is not above {MIN_RETRIEVAL_GAIN:.0f} nat")
    return problems


@dataclass(frozen=True)
class Difference:
    """The first arm minus the second in one measure."""

    measure: str
    interval: Interval

    @property
    def answer(self) -> str:
        """`better`, `worse` or `not distinguishable`, of the first arm."""
        interval = self.interval
        if interval.low <= 0 <= interval.high or np.isnan(interval.value):
            return "not distinguishable"
        return "better" if (interval.value < 0) == (self.measure in LOWER_IS_BETTER) else "worse"


def difference(measure: str, first: ArmResults, second: ArmResults, resampler: Resampler) -> Difference:
    """Compares two arms by the same resamples."""
    return Difference(measure, resampler.interval(first.measures[measure], second.measures[measure]))


def verdict(differences: Sequence[Difference], entry: Mapping[str, Sequence[str]], seeds: int) -> str:
    """Returns the verdict on a pair of arms after all runs are finished. `entry`: by arm, the reasons why it does not meet the entry condition."""
    missing = [name for name, problems in entry.items() if problems]
    if missing:
        return f"without a verdict: too small to compare ({', '.join(missing)})"
    if seeds < MIN_SEEDS:
        return f"without a verdict: {seeds} of {MIN_SEEDS} seeds"
    answers = [one.answer for one in differences if one.measure in VERDICT_MEASURES]
    if "better" in answers:
        return "better" if "worse" not in answers else "mixed: better in one measure and worse in the other"
    return "worse" if "worse" in answers else "not distinguishable at this size"


def restrict(results: ArmResults, documents: npt.NDArray[np.bool_]) -> ArmResults:
    """Returns the measures of some of the documents."""
    chosen = {
        name: DocumentSums(one.sums[:, documents], one.counts[:, documents]) for name, one in results.measures.items()
    }
    return dataclasses.replace(results, measures=chosen)
