"""Calling the command."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sysconfig
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from longsift._summary import Summary

_NAME = "longsift.exe" if os.name == "nt" else "longsift"


class LongsiftError(Exception):
    """A command that ended without doing its job. Only exit code 4 and signals are worth a retry."""

    def __init__(self, message: str, exit_code: int, summary: Summary | None = None) -> None:
        super().__init__(message)
        self.exit_code = exit_code
        self.summary = summary


def find_binary() -> Path:
    """The command: `LONGSIFT_BINARY`, else the one installed with this package, else the one on the path."""
    override = os.environ.get("LONGSIFT_BINARY")
    folders = [sysconfig.get_path("scripts"), sysconfig.get_path("scripts", f"{os.name}_user")]
    # `pip install --target`: beside the package.
    folders.append(str(Path(__file__).parent.parent / "bin"))
    installed = [override] if override else [str(Path(folder) / _NAME) for folder in folders]
    for candidate in installed:
        if Path(candidate).is_file():
            return Path(candidate).absolute()
    if override is None and (on_path := shutil.which(_NAME)) is not None:
        return Path(on_path)
    raise LongsiftError(f"the command longsift is not in {', '.join(installed)}", exit_code=2)


def arguments_of(
    set: Mapping[str, object] | None,  # noqa: A002
    param: Mapping[str, str] | None,
    more: Sequence[str],
) -> list[str]:
    """Settings and parameters as arguments. JSON is YAML: a value means in a pipeline file what it means here."""
    settings = [f"--set={path}={json.dumps(value)}" for path, value in (set or {}).items()]
    return [*settings, *(f"--param={name}={value}" for name, value in (param or {}).items()), *more]


def run(
    pipeline: str | os.PathLike[str],
    *,
    set: Mapping[str, object] | None = None,  # noqa: A002
    param: Mapping[str, str] | None = None,
    arguments: Sequence[str] = (),
) -> Summary:
    """Runs a pipeline, as `longsift run` does: run again, it carries on where it stopped.

    `set` changes settings by their path, `param` sets declared parameters, `arguments` are further flags of
    `longsift run`. Logs go to standard error. Raises `LongsiftError` where the run fails.
    """
    command = [str(find_binary()), "run", os.fspath(pipeline), *arguments_of(set, param, arguments)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    summary = last_summary(done.stdout)
    if summary is None or summary.status in ("failed", "stopped"):
        raise LongsiftError((summary and summary.error) or "see standard error", done.returncode, summary)
    return summary


def last_summary(stdout: str) -> Summary | None:
    """The summary in the last line of what a run printed; none if it ended before it could print one."""
    lines = stdout.splitlines()
    return Summary.from_json(json.loads(lines[-1])) if lines and lines[-1].startswith("{") else None


def plan(
    pipeline: str | os.PathLike[str],
    *,
    set: Mapping[str, object] | None = None,  # noqa: A002
    param: Mapping[str, str] | None = None,
    arguments: Sequence[str] = (),
) -> dict[str, Any]:
    """What a run would do and take, as `longsift plan --format json` says. Raises `LongsiftError`."""
    flags = ["--format=json", *arguments_of(set, param, arguments)]
    command = [str(find_binary()), "plan", os.fspath(pipeline), *flags]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise LongsiftError(done.stderr.strip(), done.returncode)
    return dict(json.loads(done.stdout))
