"""Measures of a model on held-out windows and on a synthetic task."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from longsift.ablation.hashing import mix
from longsift.ablation.measures import octaves, targets
from longsift.ablation.model import token_losses
from longsift.ablation.plan import HeldOut
from longsift.ablation.statistics import DocumentSums, Resampler

BATCH_WINDOWS = 4
TASK_WINDOWS = 16
TASK_IDS = 1024
"""Number of the most frequent tokens of the held-out documents that the synthetic task uses."""
TASK_PAIRS = 16


def _tensor(ids: npt.NDArray[np.int32], device: torch.device) -> torch.Tensor:
    return torch.from_numpy(ids.astype(np.int64)).to(device)


@torch.no_grad()
def full_losses(model: Any, ids: npt.NDArray[np.int32], device: torch.device) -> npt.NDArray[np.float64]:
    """Loss of each token but the first, given all tokens before it."""
    parts = []
    for start in range(0, len(ids), BATCH_WINDOWS):
        batch = _tensor(ids[start : start + BATCH_WINDOWS], device)
        parts.append(token_losses(model, model.hidden(batch[:, :-1]), batch[:, 1:]).cpu().double().numpy())
    return np.concatenate(parts)


@torch.no_grad()
def near_losses(model: Any, ids: npt.NDArray[np.int32], near_tokens: int, device: torch.device) -> npt.NDArray[np.float64]:
    """Loss of each token in the last eighth of each window, given only the `near_tokens` tokens before it."""
    last = ids.shape[1] // 8
    parts = []
    for window in _tensor(ids, device):
        contexts = window[-last - near_tokens : -1].unfold(0, near_tokens, 1)
        hidden = model.hidden(contexts)[:, -1]
        parts.append(token_losses(model, hidden, window[-last:]).cpu().double().numpy())
    return np.stack(parts)


def document_sums(
    heldout: HeldOut, near_tokens: int, full: npt.NDArray[np.float64], near: npt.NDArray[np.float64]
) -> dict[str, DocumentSums]:
    """Computes the measures of each held-out document from the losses of its windows."""
    masks = targets(heldout.ids, near_tokens)
    gain = np.zeros_like(full)
    gain[:, -near.shape[1] :] = near - full[:, -near.shape[1] :]
    return {
        "loss": heldout.sums(full, np.ones_like(masks.last)),
        "long_gain": heldout.sums(gain, masks.last),
        "retrieval_gain": heldout.sums(gain, masks.retrieval),
        "fresh_loss": heldout.sums(full, masks.fresh),
    }


def task_windows(heldout: HeldOut, seed: int = 1) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int32], list[int]]:
    """Builds windows whose second half copies the first, windows of key-value pairs whose keys are repeated at the end, and the positions of the
    answers.

    The rest are random tokens, so that only a model that attends to earlier tokens can answer.
    """
    tokens = heldout.ids.shape[1]
    counts = np.bincount(heldout.ids.ravel())
    frequent = np.argsort(-counts, kind="stable")[: min(TASK_IDS, int((counts > 0).sum()))]
    drawn = mix(np.arange(TASK_WINDOWS * tokens) + (seed << 32)) % np.uint64(len(frequent))
    copy = frequent[drawn.astype(np.int64)].reshape(TASK_WINDOWS, tokens).astype(np.int32)
    recall = copy.copy()
    half = tokens // 2
    copy[:, half : 2 * half] = copy[:, :half]
    pairs = min(TASK_PAIRS, tokens // 8)
    apart = half // pairs
    answers = []
    for pair in range(pairs):
        asked = tokens - 2 * (pairs - pair)
        recall[:, asked : asked + 2] = recall[:, pair * apart : pair * apart + 2]
        answers.append(asked + 1)
    return copy, recall, answers


@torch.no_grad()
def task_accuracy(model: Any, heldout: HeldOut, device: torch.device) -> dict[str, float]:
    """Share of correct predictions: of copied tokens after the first two, and of values of repeated keys."""
    copy, recall, answers = task_windows(heldout)
    half = copy.shape[1] // 2
    found = {}
    for name, ids, positions in (("copy", copy, list(range(half + 2, 2 * half))), ("recall", recall, answers)):
        batch = _tensor(ids, device)
        index = torch.tensor(positions, device=device)
        right = 0
        for window in batch.split(BATCH_WINDOWS):
            logits = model.logits(model.hidden(window[:, :-1])[:, index - 1])
            right += int((logits.argmax(-1) == window[:, index]).sum())
        found[name] = right / (len(ids) * len(positions))
    return found


def _rounded(value: float) -> float | None:
    """Rounds to five decimals; `None` if no token was measured."""
    return None if np.isnan(value) else round(value, 5)


def evaluate(model: Any, heldout: HeldOut, near_tokens: int, device: torch.device) -> dict[str, Any]:
    """Evaluates a model; returns the record of the evaluation."""
    was_training = model.training
    model.eval()
    full = full_losses(model, heldout.ids, device)
    near = near_losses(model, heldout.ids, near_tokens, device)
    sums = document_sums(heldout, near_tokens, full, near)
    resampler = Resampler(heldout.classes, 1, resamples=1)
    by_octave = []
    for start, end in octaves(heldout.ids.shape[1]):
        mask = np.zeros(full.shape, dtype=np.bool_)
        mask[:, start - 1 : end - 1] = True
        by_octave.append(round(resampler.estimate(heldout.sums(full, mask)), 5))
    record = {
        **{name: _rounded(resampler.estimate(one)) for name, one in sums.items()},
        **{name: round(share, 4) for name, share in task_accuracy(model, heldout, device).items()},
        "octaves": by_octave,
        "documents": {
            name: {"sums": [round(float(value), 4) for value in one.sums[0]], "counts": [int(value) for value in one.counts[0]]}
            for name, one in sums.items()
        },
    }
    model.train(was_training)
    return record
