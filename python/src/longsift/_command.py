"""Functions that run the `longsift` command."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from longsift._errors import PipelineError, error_for
from longsift._summary import Summary

_NAME = "longsift.exe" if os.name == "nt" else "longsift"

Pipeline = str | os.PathLike[str] | Mapping[str, Any]
"""A pipeline file, or its content as a mapping, whose relative paths start at the current folder."""


def find_binary() -> Path:
    """Finds the command: `LONGSIFT_BINARY`, the one installed with this package, or the one on the path."""
    override = os.environ.get("LONGSIFT_BINARY")
    folders = [sysconfig.get_path("scripts"), sysconfig.get_path("scripts", f"{os.name}_user")]
    # `pip install --target` puts it next to the package.
    folders.append(str(Path(__file__).parent.parent / "bin"))
    installed = [override] if override else [str(Path(folder) / _NAME) for folder in folders]
    for candidate in installed:
        if Path(candidate).is_file():
            return Path(candidate).absolute()
    if override is None and (on_path := shutil.which(_NAME)) is not None:
        return Path(on_path)
    message = f"command longsift not found: {', '.join(installed)}; install the package, or set LONGSIFT_BINARY to its path"
    raise PipelineError(message, exit_code=2)


def to_arguments(
    set: Mapping[str, object] | None,  # noqa: A002
    param: Mapping[str, str] | None,
    more: Sequence[str],
) -> list[str]:
    """Converts settings and parameters to arguments. Values are written as JSON, which YAML parses to the same value."""
    if isinstance(more, str):
        message = f"arguments: expected a list of strings, got {more!r}; write {more.split()}"
        raise TypeError(message)
    settings = [f"--set={path}={json.dumps(value)}" for path, value in (set or {}).items()]
    return [*settings, *(f"--param={name}={value}" for name, value in (param or {}).items()), *more]


@contextlib.contextmanager
def pipeline_file(pipeline: Pipeline) -> Iterator[str]:
    """Yields the path of a pipeline file; a mapping is written to a temporary file in the current folder."""
    if not isinstance(pipeline, Mapping):
        yield os.fspath(pipeline)
        return
    with tempfile.TemporaryDirectory(prefix=".longsift-", dir=".") as folder:
        # Paths in a pipeline are relative to its folder, so the file is in the current folder, under a unique name.
        # Lineage and metrics name the pipeline by its file: by the part after the first full stop.
        name = re.sub(r"[/\x00-\x1f\x7f]", "-", str(pipeline.get("name", "")))
        name = name.encode(errors="ignore")[:100].decode(errors="ignore") or "pipeline"
        path = Path(f"{Path(folder).name}.{name}.json")
        try:
            # Readable for this user only: addresses may have passwords.
            with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
                json.dump(pipeline, file)
            yield str(path)
        finally:
            path.unlink(missing_ok=True)


def run(
    pipeline: Pipeline,
    *,
    set: Mapping[str, object] | None = None,  # noqa: A002
    param: Mapping[str, str] | None = None,
    arguments: Sequence[str] = (),
) -> Summary:
    """Runs a pipeline like `longsift run`; an interrupted run is resumed.

    `pipeline` is a file or its content as a mapping. `set` changes settings by their path, `param` sets declared
    parameters, `arguments` are further flags of `longsift run`. Logs and progress go to standard error, in a notebook
    to the cell. Raises `PipelineError`, `DataError`, `MachineError` or `CheckError` if the run fails.
    """
    with pipeline_file(pipeline) as path:
        command = [str(find_binary()), "run", path, *to_arguments(set, param, arguments)]
        code, stdout = _run_with_log(command)
    summary = last_summary(stdout)
    if summary is None or summary.status in ("failed", "stopped"):
        raise error_for((summary and summary.error) or "longsift failed; its message is on standard error", code, summary)
    return summary


def _run_with_log(command: Sequence[str]) -> tuple[int, str]:
    """Runs a command; returns its exit code and standard output. Standard error is copied to `sys.stderr`, since a notebook
    shows no other stream."""
    is_own = sys.stderr is sys.__stderr__
    pipe = None if is_own else subprocess.PIPE
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=pipe, text=True, encoding="utf-8", errors="replace") as process:
        listener = None
        if process.stderr is not None:
            listener = threading.Thread(target=_copy_lines, args=(process.stderr,), daemon=True)
            listener.start()
        try:
            stdout, _ = (process.stdout.read() if process.stdout else ""), process.wait()
        except KeyboardInterrupt:
            # In a terminal the command receives the signal itself; a notebook's kernel signals this process only.
            process.terminate()
            raise
        if listener is not None:
            listener.join()
    return process.returncode, stdout


def _copy_lines(lines: Iterator[str]) -> None:
    for line in lines:
        print(line, end="", file=sys.stderr, flush=True)


def last_summary(stdout: str) -> Summary | None:
    """Parses the summary in the last line of a run's output; `None` if the run ended without one."""
    lines = stdout.splitlines()
    return Summary.from_json(json.loads(lines[-1])) if lines and lines[-1].startswith("{") else None


def plan(
    pipeline: Pipeline,
    *,
    set: Mapping[str, object] | None = None,  # noqa: A002
    param: Mapping[str, str] | None = None,
    arguments: Sequence[str] = (),
) -> dict[str, Any]:
    """Returns the work and resources of a run, as in `longsift plan --format json`. Raises like `run`."""
    with pipeline_file(pipeline) as path:
        return _json("plan", [path, *to_arguments(set, param, arguments)])


def validate(
    pipeline: Pipeline,
    *,
    set: Mapping[str, object] | None = None,  # noqa: A002
    param: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """Checks a pipeline without opening the files it names. Returns `valid`, and `problems` with their locations."""
    with pipeline_file(pipeline) as path:
        return _json("validate", [path, *to_arguments(set, param, [])], answers=(2,))


def evaluate(
    pipeline: Pipeline,
    *,
    labels: str | None = None,
    good: Sequence[str] = (),
    set: Mapping[str, object] | None = None,  # noqa: A002
    param: Mapping[str, str] | None = None,
    arguments: Sequence[str] = (),
) -> dict[str, Any]:
    """Measures how well a pipeline's scores separate windows of its corpus, like `longsift evaluate --format json`.

    With `labels`, a column of classes, and `good`, the classes worth keeping, `labels` in the result has the shares
    of real text that each score keeps. `arguments` are further flags of `longsift evaluate`. Raises like `run`.
    """
    flags = [] if labels is None else [f"--labels={labels}"]
    flags += [f"--good={value}" for value in good]
    with pipeline_file(pipeline) as path:
        return _json("evaluate", ["--quiet", path, *flags, *to_arguments(set, param, arguments)])


def status(run_dir: str | os.PathLike[str]) -> dict[str, Any]:
    """Returns the progress of a run, in this or another process, as in `longsift status --format json`."""
    return _json("status", [os.fspath(run_dir)])


def verify(run_dir: str | os.PathLike[str]) -> dict[str, Any]:
    """Reads every file of a run again. Returns `findings`, the files that have changed; they raise no error."""
    return _json("verify", [os.fspath(run_dir)], answers=(1, 3))


def diff(first: str | os.PathLike[str], second: str | os.PathLike[str]) -> dict[str, Any]:
    """Returns the differences between two runs: settings, inputs, counts, and documents whose outcome or score differs."""
    return _json("diff", [os.fspath(first), os.fspath(second)], answers=(5,))


def whatif(run_dir: str | os.PathLike[str], set: Mapping[str, object]) -> dict[str, Any]:  # noqa: A002
    """Returns the exact effect of other `score` and `filter` settings on a finished run; writes nothing. `set` changes
    settings by their path."""
    return _json("whatif", [os.fspath(run_dir), *to_arguments(set, None, [])])


def _json(command: str, arguments: Sequence[str], answers: Sequence[int] = ()) -> dict[str, Any]:
    """Runs a command and parses its JSON output. `answers`: exit codes other than 0 that are not errors if JSON was printed."""
    call = [str(find_binary()), command, "--format=json", *arguments]
    done = subprocess.run(call, capture_output=True, text=True, encoding="utf-8", check=False)
    if done.returncode == 0 or (done.returncode in answers and done.stdout.startswith("{")):
        return dict(json.loads(done.stdout))
    raise error_for(done.stderr.strip(), done.returncode)
