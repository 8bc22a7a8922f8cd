"""Calling the command."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from longsift._errors import PipelineError, error_of
from longsift._summary import Summary

_NAME = "longsift.exe" if os.name == "nt" else "longsift"

Pipeline = str | os.PathLike[str] | Mapping[str, Any]
"""A pipeline file, or its content; relative paths of a content are relative to the current folder."""


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
    raise PipelineError(f"the command longsift is not in {', '.join(installed)}", exit_code=2)


def arguments_of(
    set: Mapping[str, object] | None,  # noqa: A002
    param: Mapping[str, str] | None,
    more: Sequence[str],
) -> list[str]:
    """Settings and parameters as arguments. JSON is YAML: a value means in a pipeline file what it means here."""
    settings = [f"--set={path}={json.dumps(value)}" for path, value in (set or {}).items()]
    return [*settings, *(f"--param={name}={value}" for name, value in (param or {}).items()), *more]


@contextlib.contextmanager
def file_of(pipeline: Pipeline) -> Iterator[str]:
    """The path of a pipeline file; the content of one is a file of the current folder for as long as it is needed."""
    if not isinstance(pipeline, Mapping):
        yield os.fspath(pipeline)
        return
    with tempfile.TemporaryDirectory(prefix=".longsift-", dir=".") as folder:
        # Paths are relative to the folder of the file, so the file is in the current one, under a name that no other has.
        path = Path(f"{Path(folder).name}.json")
        try:
            path.write_text(json.dumps(pipeline), encoding="utf-8")
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
    """Runs a pipeline, as `longsift run` does: run again, it resumes where it stopped.

    `pipeline` is a file or its content as a mapping. `set` changes settings by their path, `param` sets declared parameters,
    `arguments` are further flags of `longsift run`. Logs and progress go to standard error, in a notebook to the cell. Raises
    `PipelineError`, `DataError`, `MachineError` or `CheckError` where the run fails.
    """
    with file_of(pipeline) as path:
        command = [str(find_binary()), "run", path, *arguments_of(set, param, arguments)]
        code, stdout = _call_aloud(command)
    summary = last_summary(stdout)
    if summary is None or summary.status in ("failed", "stopped"):
        raise error_of((summary and summary.error) or "see standard error", code, summary)
    return summary


def _call_aloud(command: Sequence[str]) -> tuple[int, str]:
    """Exit code and standard output of a command. Its standard error is that of this process, or what stands for it: a
    notebook shows only what is written to `sys.stderr`."""
    is_own = sys.stderr is sys.__stderr__
    pipe = None if is_own else subprocess.PIPE
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=pipe, text=True, encoding="utf-8", errors="replace") as process:
        listener = None
        if process.stderr is not None:
            listener = threading.Thread(target=_pass_on, args=(process.stderr,), daemon=True)
            listener.start()
        try:
            stdout, _ = (process.stdout.read() if process.stdout else ""), process.wait()
        except KeyboardInterrupt:
            # The command has the signal, too, where a terminal sent it; a notebook's kernel sends it to nobody else.
            process.terminate()
            raise
        if listener is not None:
            listener.join()
    return process.returncode, stdout


def _pass_on(lines: Iterator[str]) -> None:
    for line in lines:
        print(line, end="", file=sys.stderr, flush=True)


def last_summary(stdout: str) -> Summary | None:
    """The summary in the last line of what a run printed; none if it ended before it could print one."""
    lines = stdout.splitlines()
    return Summary.from_json(json.loads(lines[-1])) if lines and lines[-1].startswith("{") else None


def plan(
    pipeline: Pipeline,
    *,
    set: Mapping[str, object] | None = None,  # noqa: A002
    param: Mapping[str, str] | None = None,
    arguments: Sequence[str] = (),
) -> dict[str, Any]:
    """What a run would do and take, as `longsift plan --format json` says. Raises as `run` does."""
    with file_of(pipeline) as path:
        return _json("plan", [path, *arguments_of(set, param, arguments)])


def validate(
    pipeline: Pipeline,
    *,
    set: Mapping[str, object] | None = None,  # noqa: A002
    param: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """Whether a pipeline is right as written, without opening what it names: `valid`, and `problems` with their places."""
    with file_of(pipeline) as path:
        return _json("validate", [path, *arguments_of(set, param, [])], answers=(2,))


def evaluate(
    pipeline: Pipeline,
    *,
    labels: str | None = None,
    good: Sequence[str] = (),
    set: Mapping[str, object] | None = None,  # noqa: A002
    param: Mapping[str, str] | None = None,
    arguments: Sequence[str] = (),
) -> dict[str, Any]:
    """What the statistics of a pipeline separate in its own corpus, as `longsift evaluate --format json` says.

    With `labels`, a column of classes, and `good`, those of its values that are worth keeping, the shares of real text that each
    score keeps stand under `labels`. `arguments` are further flags of `longsift evaluate`. Raises as `run` does.
    """
    flags = [] if labels is None else [f"--labels={labels}"]
    flags += [f"--good={value}" for value in good]
    with file_of(pipeline) as path:
        return _json("evaluate", ["--quiet", path, *flags, *arguments_of(set, param, arguments)])


def status(run_dir: str | os.PathLike[str]) -> dict[str, Any]:
    """How far a run is, whoever works on it, as `longsift status --format json` says."""
    return _json("status", [os.fspath(run_dir)])


def verify(run_dir: str | os.PathLike[str]) -> dict[str, Any]:
    """Reads every file of a run again: `findings` has what is not as it was written. They raise nothing."""
    return _json("verify", [os.fspath(run_dir)], answers=(1, 3))


def diff(first: str | os.PathLike[str], second: str | os.PathLike[str]) -> dict[str, Any]:
    """What differs between two runs: settings, inputs, counts, and documents with another fate or score."""
    return _json("diff", [os.fspath(first), os.fspath(second)], answers=(5,))


def whatif(run_dir: str | os.PathLike[str], set: Mapping[str, object]) -> dict[str, Any]:  # noqa: A002
    """What another selection of a finished run would keep, exactly and without writing: `set` changes settings of `score`
    and `filter` by their path."""
    return _json("whatif", [os.fspath(run_dir), *arguments_of(set, None, [])])


def _json(command: str, arguments: Sequence[str], answers: Sequence[int] = ()) -> dict[str, Any]:
    """What a command prints as JSON. `answers`: exit codes besides 0 that are no failure where there is an answer."""
    call = [str(find_binary()), command, "--format=json", *arguments]
    done = subprocess.run(call, capture_output=True, text=True, encoding="utf-8", check=False)
    if done.returncode == 0 or (done.returncode in answers and done.stdout.startswith("{")):
        return dict(json.loads(done.stdout))
    raise error_of(done.stderr.strip(), done.returncode)
