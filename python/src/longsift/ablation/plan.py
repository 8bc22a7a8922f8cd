"""Training and held-out windows of an experiment, checked before training."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from longsift._errors import PipelineError
from longsift.ablation.arms import Windows, read_run
from longsift.ablation.config import MAX_WINDOW_DIFFERENCE, MIN_WINDOWS_BETWEEN_EVALUATIONS, Settings
from longsift.ablation.hashing import permutation
from longsift.ablation.ngram import Trigram, with_cache
from longsift.ablation.overlap import GramSet, overlap_problems
from longsift.ablation.statistics import DocumentSums, Resampler

VERSION = 1
"""Version of the measures; results of different versions are not combined."""
PRECHECK_SAMPLES = 10
PRECHECK_WINDOWS = 500
VOCABULARY_STEP = 1024
"""The vocabulary is the largest id, rounded up to a multiple of this."""


@dataclass(frozen=True)
class Plan:
    """Checked arms of equal size, and the held-out windows."""

    settings: Settings
    arms: Mapping[str, Windows]
    heldout: Windows
    vocabulary: int

    @property
    def sequence_tokens(self) -> int:
        return int(self.heldout.ids.shape[1])

    @property
    def steps(self) -> int:
        """Training steps of a run."""
        return -(-self.settings.tokens // self.step_tokens)

    @property
    def step_tokens(self) -> int:
        return self.settings.batch_windows * self.sequence_tokens

    @property
    def evaluation_steps(self) -> list[int]:
        """Steps after which a model is evaluated, including the last."""
        every = self.settings.evaluate_tokens
        found = {round(tokens / self.step_tokens) for tokens in range(every, self.settings.tokens, every)}
        return sorted({step for step in found if 0 < step < self.steps} | {self.steps})

    def unigram(self) -> npt.NDArray[np.float64]:
        """Share of each token in all arms combined, above zero."""
        counts = np.ones(self.vocabulary)
        for arm in self.arms.values():
            counts += np.bincount(arm.ids.ravel(), minlength=self.vocabulary)
        return np.asarray(counts / counts.sum())

    def identity(self, arm: str, seed: int) -> dict[str, Any]:
        """Returns all values on which the results of a run depend."""
        settings = dataclasses.asdict(self.settings)
        kept = ("tokens", "size", "batch_windows", "warmup_steps", "decay_share", "matrix_rate", "other_rate", "precision", "compile",
                "near_tokens", "evaluate_tokens", "windows_per_document", "curve_windows_per_document")  # fmt: skip
        start = self.settings.start
        return {
            "version": VERSION,
            "arm": arm,
            "seed": seed,
            "windows": self.arms[arm].digest(),
            "heldout": self.heldout.digest(),
            "unigram": hashlib.sha256(self.unigram().tobytes()).hexdigest(),
            "vocabulary": self.vocabulary,
            "start": None if start is None else _fingerprint(start),
            **{name: settings[name] for name in kept},
        }


def _fingerprint(path: Path) -> str:
    """SHA-256 of a file, or of the files of a folder."""
    digest = hashlib.sha256()
    for file in sorted(path.rglob("*")) if path.is_dir() else [path]:
        if file.is_file():
            digest.update(file.name.encode() + b"\0" + hashlib.sha256(file.read_bytes()).digest())
    return digest.hexdigest()


def prepare(settings: Settings) -> Plan:
    """Reads and checks arms and held-out documents. Raises `PipelineError` with all problems."""
    problems: list[str] = []
    read: dict[str, Windows] = {}
    for name, folder in [*settings.arms.items(), ("heldout", settings.heldout)]:
        try:
            read[name] = read_run(name, folder, settings.sequence_tokens)
        except PipelineError as error:
            problems.append(str(error))
    if settings.start is not None and not settings.start.exists():
        problems.append(f"start: {settings.start} is not found; expected a model of a finished run, or the folder of a checkpoint")
    if problems:
        raise PipelineError("\n".join(problems), exit_code=2)
    heldout = read.pop("heldout")
    problems += _unequal("tokenizers", {name: one.tokenizer[:12] for name, one in [*read.items(), ("heldout", heldout)]})
    problems += _unequal("window lengths", {name: str(one.window_tokens) for name, one in [*read.items(), ("heldout", heldout)]})
    widths = {name: one.ids.shape[1] for name, one in [*read.items(), ("heldout", heldout)]}
    if not problems and len(set(widths.values())) > 1:
        listed = ", ".join(f"{name} {width}" for name, width in widths.items())
        problems.append(
            f"tokens of a window without its BOS differ: {listed}; set `sequence_tokens: {min(widths.values())}` in the experiment file"
        )
    if not problems:
        problems += _amount_problems(read)
        problems += _schedule_problems(settings, read, heldout)
        grams = GramSet(list(_documents(heldout)))
        for arm in read.values():
            problems += overlap_problems(arm, heldout, grams)
    if problems:
        raise PipelineError("\n".join(problems), exit_code=2)
    windows = min(len(arm.ids) for arm in read.values())
    arms = {name: arm.take(np.sort(permutation(len(arm.ids), 0)[:windows])) for name, arm in read.items()}
    largest = max(int(one.ids.max()) for one in [*arms.values(), heldout])
    vocabulary = -(-(largest + 1) // VOCABULARY_STEP) * VOCABULARY_STEP
    return Plan(settings, arms, heldout, vocabulary)


def _documents(heldout: Windows) -> list[npt.NDArray[np.int32]]:
    """Held-out documents. Their windows cover all but the end of each document."""
    names = np.array(heldout.documents)
    return [heldout.ids[names == name].ravel() for name in dict.fromkeys(heldout.documents)]


def _unequal(what: str, values: Mapping[str, str]) -> list[str]:
    if len(set(values.values())) == 1:
        return []
    listed = ", ".join(f"{name} {value}" for name, value in values.items())
    return [f"{what} differ: {listed}; run the pipelines again with the same `tokenize` stage"]


def _amount_problems(arms: Mapping[str, Windows]) -> list[str]:
    counts = {name: len(arm.ids) for name, arm in arms.items()}
    smallest, largest = min(counts.values()), max(counts.values())
    if largest - smallest <= max(1, MAX_WINDOW_DIFFERENCE * largest):
        return []
    listed = ", ".join(f"{name} {count}" for name, count in counts.items())
    tokens = smallest * next(iter(arms.values())).ids.shape[1]
    return [f"numbers of windows differ by more than {MAX_WINDOW_DIFFERENCE:.0%}: {listed}; set `keep_tokens: {tokens}` in every pipeline"]


def _schedule_problems(settings: Settings, arms: Mapping[str, Windows], heldout: Windows) -> list[str]:
    problems = []
    tokens = heldout.ids.shape[1]
    smallest = min(arms.values(), key=lambda arm: len(arm.ids))
    epoch = smallest.ids.size
    if settings.tokens < epoch:
        problems.append(
            f"`tokens` is {settings.tokens}, less than one epoch of the smallest arm ({smallest.name}, {epoch} tokens); "
            f"set `tokens: {epoch}` or more, or select less"
        )
    between = settings.evaluate_tokens // tokens
    if between < MIN_WINDOWS_BETWEEN_EVALUATIONS:
        problems.append(
            f"`evaluate_tokens` is {settings.evaluate_tokens}, only {between} training windows between two evaluations; "
            f"set `evaluate_tokens: {MIN_WINDOWS_BETWEEN_EVALUATIONS * tokens}` or more"
        )
    if settings.near_tokens >= tokens - tokens // 8:
        problems.append(f"`near_tokens` is {settings.near_tokens}; expected less than {tokens - tokens // 8}, seven eighths of a window")
    return problems


@dataclass(frozen=True)
class HeldOut:
    """Held-out windows by document."""

    ids: npt.NDArray[np.int32]
    document_of: npt.NDArray[np.intp]
    documents: tuple[str, ...]
    classes: tuple[str, ...]
    """Class of each document."""

    def sums(self, values: npt.NDArray[Any], mask: npt.NDArray[np.bool_]) -> DocumentSums:
        """Sum and number of the masked values by document, as one row (one seed)."""
        count = len(self.documents)
        by_window = (np.where(mask, values, 0).sum(axis=1, dtype=np.float64), mask.sum(axis=1, dtype=np.float64))
        sums, counts = (np.bincount(self.document_of, one, count).astype(np.float64) for one in by_window)
        return DocumentSums(sums[None], counts[None])


def choose(heldout: Windows, per_document: int) -> HeldOut:
    """Returns at most `per_document` windows of each document, spread evenly over it."""
    names = tuple(dict.fromkeys(heldout.documents))
    all_names = np.array(heldout.documents)
    rows, owner = [], []
    for number, name in enumerate(names):
        own = np.flatnonzero(all_names == name)
        taken = min(per_document, len(own))
        rows += [own[int((index + 0.5) * len(own) / taken)] for index in range(taken)]
        owner += [number] * taken
    classes = dict(zip(heldout.documents, heldout.classes, strict=True))
    return HeldOut(heldout.ids[rows], np.array(owner), names, tuple(classes[name] for name in names))


def counted(plan: Plan) -> dict[str, Any]:
    """Computes measures of the arms that need no training: the loss of a trigram, with a cache, and of trigrams of ten samples."""
    heldout = choose(plan.heldout, plan.settings.windows_per_document)
    everything = np.ones((len(heldout.ids), plan.sequence_tokens - 1), dtype=np.bool_)
    resampler = Resampler(heldout.classes, 1, resamples=1)

    def loss(probabilities: npt.NDArray[np.float64]) -> float:
        return resampler.estimate(heldout.sums(-np.log(probabilities), everything))

    found: dict[str, Any] = {}
    for name, arm in plan.arms.items():
        probabilities = Trigram(arm.ids, plan.vocabulary).probabilities(heldout.ids)
        taken = min(PRECHECK_WINDOWS, len(arm.ids))
        samples = [
            loss(Trigram(arm.ids[permutation(len(arm.ids), 1, sample)[:taken]], plan.vocabulary).probabilities(heldout.ids))
            for sample in range(PRECHECK_SAMPLES)
        ]
        found[name] = {
            "windows": len(arm.ids),
            "trigram_loss": loss(probabilities),
            "cache_loss": loss(with_cache(heldout.ids, probabilities)),
            "sample_windows": taken,
            "sample_losses": samples,
        }
    return found


def write_plan(plan: Plan) -> dict[str, Any]:
    """Writes `plan.json`: sizes and the measures without training, which are reused for the same windows."""
    path = plan.settings.output / "plan.json"
    content: dict[str, Any] = {
        "version": VERSION,
        "name": plan.settings.name,
        "sequence_tokens": plan.sequence_tokens,
        "vocabulary": plan.vocabulary,
        "heldout": plan.heldout.digest(),
        "windows_per_document": plan.settings.windows_per_document,
        "digests": {name: arm.digest() for name, arm in plan.arms.items()},
    }
    if path.is_file():
        before = json.loads(path.read_text(encoding="utf-8"))
        if {key: before.get(key) for key in content} == content:
            return dict(before)
    content["arms"] = counted(plan)
    write_text(path, json.dumps(content, indent=1) + "\n")
    return content


def write_text(path: Path, text: str) -> None:
    """Writes a file atomically."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    temporary.write_text(text, encoding="utf-8")
    temporary.replace(path)
