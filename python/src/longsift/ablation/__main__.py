"""`python -m longsift.ablation`: the command."""

from __future__ import annotations

import argparse
import dataclasses
import importlib.util
import signal
import sys
import time
from pathlib import Path
from types import FrameType

from longsift._errors import LongsiftError, PipelineError

STOPPED = 4
"""Exit code when the time is over: the same command resumes."""
NEEDED = {"numpy": "numpy", "pyarrow": "pyarrow", "yaml": "pyyaml"}


def main(arguments: list[str] | None = None) -> int:
    """Runs the command; returns its exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m longsift.ablation", description="Train the same model on each of several selections and compare them"
    )
    commands = parser.add_subparsers(dest="command", required=True)
    for name, text in (
        ("plan", "Check arms and held-out documents and count trigrams; needs no torch"),
        ("run", "Train, evaluate and report; resumes an interrupted run"),
        ("report", "Write report.html and report.md from the results so far; needs no torch"),
    ):
        command = commands.add_parser(name, help=text, description=text)
        command.add_argument("experiment", type=Path, metavar="FILE", help="the experiment file, ablation.yaml")
        if name == "run":
            command.add_argument("--arms", type=lambda value: value.split(","), metavar="A,B", help="train only these arms")
            command.add_argument("--seeds", type=_numbers, metavar="1,2", help="train only with these seeds")
            command.add_argument("--minutes", type=float, help="stop after this many minutes with exit code 4; the same command resumes")
            command.add_argument("--start", type=Path, help="start every arm from this model")
    options = parser.parse_args(arguments)
    missing = [package for module, package in NEEDED.items() if importlib.util.find_spec(module) is None]
    if options.command == "run" and importlib.util.find_spec("torch") is None:
        missing.append("torch")
    if missing:
        print(f"error: {', '.join(missing)} not found: pip install 'longsift[ablation]'", file=sys.stderr)
        return 2
    try:
        return _dispatch(options)
    except LongsiftError as error:
        for line in str(error).splitlines():
            print(f"error: {line}", file=sys.stderr)
        return error.exit_code


def _numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


def _dispatch(options: argparse.Namespace) -> int:
    from longsift.ablation.config import read_settings
    from longsift.ablation.plan import prepare, write_plan

    settings = read_settings(options.experiment)
    if options.command == "report":
        return _report(options.experiment)
    if options.command == "run":
        if options.start is not None:
            settings = dataclasses.replace(settings, start=options.start.resolve())
        unknown = [name for name in options.arms or [] if name not in settings.arms]
        unknown += [f"seed {seed}" for seed in options.seeds or [] if seed not in settings.seeds]
        if unknown:
            raise PipelineError(f"{options.experiment} has no {', '.join(unknown)}", exit_code=2)
    clock = time.monotonic()
    plan = prepare(settings)
    counted = write_plan(plan)
    print(
        f"{len(plan.arms)} arms of {len(next(iter(plan.arms.values())).ids)} windows of {plan.sequence_tokens} tokens, "
        f"{len(plan.heldout.ids)} held-out windows; {plan.steps} steps a run",
        file=sys.stderr,
    )
    for name, counted_arm in counted["arms"].items():
        print(f"{name}: trigram {counted_arm['trigram_loss']:.3f}, with cache {counted_arm['cache_loss']:.3f}", file=sys.stderr)
    if options.command == "plan":
        return 0

    from longsift.ablation.results import claim
    from longsift.ablation.train import Stopped, train

    signals: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        signals.append(number)

    before = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}

    def stop() -> bool:
        return bool(signals) or (options.minutes is not None and time.monotonic() - clock > 60 * options.minutes)

    elsewhere = []
    try:
        for seed in options.seeds or settings.seeds:
            for arm in options.arms or settings.arms:
                with claim(settings.output, arm, seed) as claimed:
                    if not claimed:
                        elsewhere.append(f"{arm} with seed {seed}")
                        continue
                    train(plan, arm, seed, stop, _Progress())
                _report(options.experiment, quiet=True)
    except Stopped:
        print("\nstopped; run the same command to resume", file=sys.stderr)
        return 128 + signals[0] if signals else STOPPED
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    if elsewhere:
        print(f"another process trains {', '.join(elsewhere)}; run the same command to resume", file=sys.stderr)
        return STOPPED
    return _report(options.experiment)


class _Progress:
    """Progress on standard error: one line on a terminal, elsewhere a line every half minute."""

    def __init__(self) -> None:
        self._last = 0.0

    def __call__(self, text: str) -> None:
        terminal = sys.stderr.isatty()
        if time.monotonic() - self._last < (0.5 if terminal else 30):
            return
        self._last = time.monotonic()
        print(f"\r\033[K{text}" if terminal else text, end="" if terminal else "\n", file=sys.stderr, flush=True)


def _report(experiment: Path, quiet: bool = False) -> int:
    """Writes the report next to the results."""
    import json

    from longsift.ablation.config import read_settings
    from longsift.ablation.plan import write_text
    from longsift.ablation.report import Summary, markdown, page

    settings = read_settings(experiment)
    path = settings.output / "plan.json"
    if not path.is_file():
        raise PipelineError(f"{path} is not found: run `python -m longsift.ablation plan {experiment}` first", exit_code=2)
    summary = Summary(settings, json.loads(path.read_text(encoding="utf-8")))
    write_text(settings.output / "report.html", page(summary))
    write_text(settings.output / "report.md", markdown(summary))
    if not quiet:
        print("\n".join(summary.verdicts()))
        print(f"report: {settings.output / 'report.html'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
