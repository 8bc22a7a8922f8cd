"""The experiment file: arms, held-out documents, amounts, model and comparisons."""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from longsift._errors import PipelineError
from longsift.ablation.sizes import SIZES

MIN_WINDOWS_BETWEEN_EVALUATIONS = 20
"""With fewer windows, successive evaluations measure almost the same model."""
MAX_WINDOW_DIFFERENCE = 0.01
"""Maximum relative difference between the numbers of windows of arms, which are cut to the smallest. With `keep_tokens` they differ by at most
one window."""


@dataclass(frozen=True)
class Settings:
    """The settings of an experiment, with every path resolved."""

    path: Path
    name: str
    output: Path
    """Folder of results and checkpoints."""
    arms: Mapping[str, Path]
    """Run directory of each arm."""
    heldout: Path
    """Run directory with all windows of the held-out documents; its `within` is the class."""
    tokens: int
    """Training tokens of every arm and seed."""
    seeds: tuple[int, ...]
    size: str = "tiny"
    batch_windows: int = 4
    warmup_steps: int = 30
    decay_share: float = 0.4
    """Share of the steps over which the learning rate falls to zero."""
    matrix_rate: float = 0.0135
    """Learning rate of Muon."""
    other_rate: float = 0.008
    """Learning rate of AdamW, for all parameters other than matrices of layers."""
    sequence_tokens: int | None = None
    """Tokens used of each window; by default all of `window_tokens`."""
    near_tokens: int = 128
    """Tokens of the short context of `long_gain`."""
    evaluate_tokens: int = 1_000_000
    """Training tokens between two evaluations."""
    windows_per_document: int = 4
    """Held-out windows per document in the last evaluation."""
    curve_windows_per_document: int = 1
    """Held-out windows per document in the other evaluations."""
    compare: tuple[tuple[str, str], ...] = ()
    """Pairs of arms: the first against the second. The first pair is the main comparison."""
    start: Path | None = None
    """Checkpoint with which every arm starts."""
    precision: str = "f32"
    """Precision of matrix products in training, f32 or bf16. Weights, losses and evaluations are in f32."""
    device: str = "cpu"
    threads: int = 1
    compile: bool = False
    """Whether torch.compile is used."""


_PATHS = {"output", "heldout", "start"}
_RATES = {"matrix_rate", "other_rate"}
_POSITIVE = {
    "tokens", "batch_windows", "sequence_tokens", "near_tokens", "evaluate_tokens", "windows_per_document",
    "curve_windows_per_document", "threads",
}  # fmt: skip
_REQUIRED = ("name", "output", "arms", "heldout", "tokens", "seeds")


def read_settings(path: Path) -> Settings:
    """Reads an experiment file. Raises `PipelineError` with all mistakes in it."""
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, yaml.YAMLError) as error:
        raise PipelineError(f"{path}: {error}", exit_code=2) from error
    if not isinstance(content, dict):
        raise PipelineError(f"{path}: expected a mapping, got {type(content).__name__}", exit_code=2)
    known = {field.name for field in dataclasses.fields(Settings)} - {"path"}
    problems = []
    for key in content:
        if key not in known:
            near = difflib.get_close_matches(str(key), known, n=1)
            problems.append(f"unknown setting `{key}`" + (f"; did you mean `{near[0]}`?" if near else ""))
    problems += [f"`{key}` is missing" for key in _REQUIRED if key not in content]
    values = {key: _number(value) if key in _RATES else value for key, value in content.items() if key in known}
    problems += [problem for key, value in values.items() if (problem := _problem_of(key, value)) is not None]
    if not problems:
        arms = values["arms"]
        for pair in values.get("compare", []):
            for name in pair:
                if name not in arms:
                    problems.append(f"`compare` names the unknown arm `{name}`; `arms` has {', '.join(arms)}")
    if problems:
        raise PipelineError("\n".join(f"{path}: {problem}" for problem in problems), exit_code=2)
    folder = path.resolve().parent
    for key in _PATHS & values.keys():
        values[key] = None if values[key] is None else folder / values[key]
    values["arms"] = {name: folder / run for name, run in values["arms"].items()}
    values["seeds"] = tuple(values["seeds"])
    values["compare"] = tuple((first, second) for first, second in values.get("compare", []))
    return Settings(path=path.resolve(), **values)


def _number(value: Any) -> Any:
    """Parses a number like `8e-3`, which YAML 1.1 reads as text."""
    try:
        return float(value) if isinstance(value, str) else value
    except ValueError:
        return value


def _problem_of(key: str, value: Any) -> str | None:
    """Returns the mistake in one value; `None` if it is valid."""
    if key == "arms":
        right = isinstance(value, dict) and len(value) >= 2 and all(isinstance(run, str) for run in value.values())
        return None if right else f"expected `arms` to map at least two names to run directories, got {value!r}"
    if key == "seeds":
        right = isinstance(value, list) and bool(value) and all(type(seed) is int and seed >= 0 for seed in value)
        if right and len(set(value)) == len(value):
            return None
        return f"expected `seeds` to be a list of distinct whole numbers, got {value!r}"
    if key == "compare":
        right = isinstance(value, list) and all(
            isinstance(pair, list) and len(pair) == 2 and pair[0] != pair[1] for pair in value
        )
        return None if right else f"expected `compare` to be a list of pairs of arms, got {value!r}"
    if key == "precision":
        return None if value in ("f32", "bf16") else f"expected `precision` to be f32 or bf16, got {value!r}"
    if key == "size":
        return None if value in SIZES else f"expected `size` to be one of {', '.join(SIZES)}, got {value!r}"
    if key in _PATHS:
        return None if isinstance(value, str) or key == "start" else f"expected `{key}` to be a path, got {value!r}"
    if key in _POSITIVE:
        right = (key == "sequence_tokens" and value is None) or (type(value) is int and value > 0)
        return None if right else f"expected `{key}` to be a positive whole number, got {value!r}"
    if key == "decay_share":
        right = isinstance(value, int | float) and 0 <= value <= 1
        return None if right else f"expected `decay_share` to be from 0 to 1, got {value!r}"
    if key in _RATES:
        right = isinstance(value, int | float) and value > 0
        return None if right else f"expected `{key}` to be above 0, got {value!r}"
    if key == "compile":
        return None if isinstance(value, bool) else f"expected `compile` to be true or false, got {value!r}"
    if key == "warmup_steps":
        return None if type(value) is int and value >= 0 else f"expected `warmup_steps` to be 0 or more, got {value!r}"
    return None if isinstance(value, str) else f"expected `{key}` to be text, got {value!r}"
