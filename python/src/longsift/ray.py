"""Runs the shards of a pipeline on a Ray cluster. Started by `longsift run --engine ray` after planning.

A shard is a Ray task: it runs the command, which reads, scores and commits, and writes the kept samples once all
shards are scored. Ray transfers only shard numbers and one small result per shard. If a worker, child or node dies,
the windows in flight are lost; Ray restarts the shard elsewhere, and it resumes. Commits of a dead worker's child
remain valid: the first commit wins.
"""

from __future__ import annotations

import collections
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, TextIO

from longsift._command import find_binary, last_summary
from longsift._errors import LongsiftError, MachineError
from longsift._summary import Summary

_TEMPORARY = 4
# Exit codes for which a retry cannot help: a bug, the pipeline, the data.
_FINAL = (1, 2, 3)
_ATTEMPTS = 5
# Restarts by Ray of a shard whose worker or node was lost.
_MAX_RETRIES = 10
# Time that children of dead workers may take to detect that their shard is done.
_CHILD_EXIT_SECONDS = 120.0
# Time without a node that fits a shard before the run gives up: an autoscaler takes minutes to start one.
_NODE_WAIT_SECONDS = float(os.environ.get("LONGSIFT_RAY_NODE_WAIT_SECONDS", "900"))
# Number of shards before a fitting node has started.
_SHARDS_WITHOUT_NODE = 16
_ANSWER_CHARACTERS = 4000


@dataclass(frozen=True)
class Job:
    """Job passed by `longsift run --engine ray`."""

    pipeline: str
    flags: list[str]
    select_flags: list[str]
    folder: str
    nothing_to_do_exit: int
    address: str | None
    shards: int | None
    threads: int | None
    units: int
    rows: int
    gpus: int | None
    kernel: str | None
    """Kernel requested with `--kernel`."""
    processor_kernel: str | None
    """Kernel that the driver's machine would use; `None` if no measure needs attention."""
    memory_bytes: int
    version: str

    def command(self, *more: str) -> list[str]:
        """Command line on this machine: the flags of the job, then these flags."""
        return [str(find_binary()), "run", self.pipeline, *self.flags, *more]


@dataclass(frozen=True)
class Answer:
    """Result of a shard."""

    shard: int
    exit_code: int
    text: str
    """Summary line, or the end of the log."""


@dataclass(frozen=True)
class Need:
    """Resources of a shard on a node."""

    cpus: int
    gpus: int
    memory_bytes: int

    def times_in(self, node: Mapping[str, float]) -> int:
        """Number of shards that a node can run at a time."""
        fits = [node.get("CPU", 0) // self.cpus, node.get("memory", 0) // max(self.memory_bytes, 1)]
        fits += [node.get("GPU", 0) // self.gpus] if self.gpus else []
        return int(min(fits))

    def __str__(self) -> str:
        gpus = f", {self.gpus} GPUs" if self.gpus else ""
        return f"{self.cpus} CPUs{gpus} and {self.memory_bytes / 1e9:.1f} GB of memory"


def run_shard(job: Job, flags: Sequence[str], shard: int) -> Answer:
    """Runs one shard in a child process on a worker. The child's log is copied to the worker's log, which Ray shows."""
    version = subprocess.check_output([find_binary(), "--version"], text=True).split()[-1]
    if version != job.version:
        return Answer(shard, 2, f"this node has longsift {version}, the driver {job.version}")
    for attempt in range(1, _ATTEMPTS + 1):
        code, answer = _child(job, [*flags, "--stop-with-parent"])
        # A child that was killed (negative exit code) or stopped (128 + signal) has lost no commit.
        if 0 <= code < 128 and code != _TEMPORARY:
            break
        time.sleep(min(2.0**attempt, 30.0))
    return Answer(shard, code, answer)


def _child(job: Job, flags: Sequence[str]) -> tuple[int, str]:
    """Runs a command; returns its exit code, and its summary or the end of its log."""
    logged: collections.deque[str] = collections.deque(maxlen=200)
    with tempfile.TemporaryFile("w+") as printed:
        with subprocess.Popen(
            job.command(*flags), cwd=job.folder, stdout=printed, stderr=subprocess.PIPE, text=True, errors="replace"
        ) as child:
            for line in child.stderr or ():
                logged.append(line)
                print(line, end="", file=sys.stderr, flush=True)
        printed.seek(0)
        answer = printed.read() if child.returncode == 0 else "".join(logged)[-_ANSWER_CHARACTERS:]
    return child.returncode, answer


def alive() -> list[dict[str, float]]:
    """Returns the resources of each node of the cluster."""
    import ray

    nodes: list[dict[str, Any]] = ray.nodes()  # type: ignore[no-untyped-call]
    return [node["Resources"] for node in nodes if node["Alive"]]


def shard_need(job: Job, phase: str, nodes: Sequence[Mapping[str, float]]) -> Need:
    """Returns the resources of a shard: the GPUs that the pipeline names, or one with `auto` if a node has any, and their share of
    the node's CPUs; without GPUs the CPUs of the smallest node, or one CPU before a node has started. `--threads`
    overrides the CPUs."""
    gpus = int(any(node.get("GPU", 0) >= 1 for node in nodes)) if job.gpus is None else job.gpus
    gpus = gpus if phase == "score" else 0
    if gpus:
        shares = [int(node.get("CPU", 0) * gpus // node["GPU"]) for node in nodes if node.get("GPU", 0) >= gpus]
    else:
        shares = [int(node["CPU"]) for node in nodes if node.get("CPU", 0) >= 1]
    return Need(job.threads or max(min(shares, default=1), 1), gpus, job.memory_bytes)


def shard_flags(job: Job, phase: str, need: Need, kernel: str | None) -> list[str]:
    """Returns the flags of every shard of a phase. All nodes run one kernel: the requested one, or without GPUs that of this
    machine's processor. `kernel`: that of the scores, if any."""
    if phase == "write":
        more = flags_without_devices(kernel)
    else:
        more = pin(job.kernel or (None if need.gpus else job.processor_kernel))
    return [f"--phase={phase}", f"--threads={need.cpus}", *more]


def flags_without_devices(kernel: str | None) -> list[str]:
    """Returns the flags for a machine that does not measure: no devices, and the kernel of the scores."""
    return ["--devices-elsewhere", *pin(kernel)]


def pin(kernel: str | None) -> list[str]:
    """Returns the flag that selects the kernel, if any."""
    return [] if kernel is None else [f"--kernel={kernel}"]


def run_shards(job: Job, phase: str, kernel: str | None) -> Iterator[tuple[int, Answer]]:
    """Runs a phase of every shard on the cluster; yields the number and the result of each shard as it ends. A
    permanent failure cancels all others, which would fail as well."""
    import ray

    members = alive()
    need = shard_need(job, phase, members)
    slots = sum(need.times_in(node) for node in members)
    # In the writing phase, every shard first selects for itself: one at a time.
    count = slots * (4 if phase == "score" else 1) or _SHARDS_WITHOUT_NODE
    shards = min(job.shards or count, job.units)
    task: Any = ray.remote(run_shard).options(
        name=f"longsift {phase}",
        num_cpus=need.cpus,
        num_gpus=need.gpus,
        memory=need.memory_bytes,
        max_retries=_MAX_RETRIES,
        scheduling_strategy="SPREAD",
    )
    flags = shard_flags(job, phase, need, kernel)
    waiting = [task.remote(job, [*flags, f"--shard={shard}/{shards}"], shard) for shard in range(shards)]
    nodes = NodeWait(job, need)
    try:
        while waiting:
            done, waiting = ray.wait(waiting, num_returns=1, timeout=5.0)
            nodes.check()
            for answer in ray.get(done):
                yield shards, answer
                if answer.exit_code in _FINAL:
                    log(job, f"{phase}: {len(waiting)} shards are cancelled")
                    return
    finally:
        for reference in waiting:
            ray.cancel(reference, force=True)


class NodeWait:
    """Reports that a shard fits no node, and gives up after `_NODE_WAIT_SECONDS`."""

    def __init__(self, job: Job, need: Need) -> None:
        self.job, self.need = job, need
        self.since = time.monotonic()
        self.reported = False

    def check(self) -> None:
        """Raises an error if no node has been large enough for too long, or immediately on a local cluster, which does not grow."""
        if any(self.need.times_in(node) for node in alive()):
            self.since, self.reported = time.monotonic(), False
            return
        limit = 0.0 if self.job.address is None else _NODE_WAIT_SECONDS
        if time.monotonic() - self.since >= limit:
            raise MachineError(f"no node of the cluster has {self.need}", _TEMPORARY)
        if not self.reported:
            log(self.job, f"no node of the cluster has {self.need} yet: waiting up to {limit:.0f} s for one")
            self.reported = True


def run_phase(job: Job, phase: str, kernel: str | None = None) -> tuple[int, str | None]:
    """Runs a phase on the cluster and checks that every unit and row is accounted for. Returns the exit code, and the
    kernel that measured."""
    done: dict[int, Summary] = {}
    failed: dict[int, Answer] = {}
    for shards, answer in run_shards(job, phase, kernel):
        summary = last_summary(answer.text) if answer.exit_code == 0 else None
        if summary is None:
            failed[answer.shard] = answer
        else:
            done[answer.shard] = summary
        windows = sum(summary.windows_scored for summary in done.values())
        what = f", {windows:,} windows scored now" if phase == "score" else ""
        log(job, f"{phase}: {len(done)} of {shards} shards{what}")
    for shard, answer in sorted(failed.items()):
        print(f"error: shard {shard} ended with exit code {answer.exit_code}\n{answer.text}", file=sys.stderr)
    if failed:
        # As in the command, the failure that a retry is least likely to fix decides the exit code.
        codes = [answer.exit_code for answer in failed.values()]
        return min(code if code in (*_FINAL, 6) else _TEMPORARY for code in codes), None
    units = sum(summary.shard.units for summary in done.values() if summary.shard)
    rows = sum(summary.rows_in for summary in done.values())
    if (units, rows) != (job.units, job.rows):
        what = f"the shards had {units} work units and {rows} rows, the plan {job.units} and {job.rows}"
        raise MachineError(f"{what}: the input may have changed during the run; run again", _TEMPORARY)
    return 0, next((summary.kernel for summary in done.values() if summary.kernel), None)


def drive(job: Job, summary_to: TextIO) -> int:
    """Scores and writes on the cluster, selects and commits on this machine. Returns the exit code."""
    import ray

    environment = {k: v for k, v in os.environ.items() if k in ("LONGSIFT_BINARY", "XDG_CACHE_HOME")}
    if job.units:
        dashboard = False if job.address is None else None
        # Without an address Ray would join a cluster of the environment or of this machine.
        address, variables = job.address or "local", {"env_vars": environment}
        ray.init(address, log_to_driver=False, include_dashboard=dashboard, runtime_env=variables)
        code, kernel = run_phase(job, "score")
        if code == 0:
            code, _ = run_phase(job, "write", kernel)
        if code:
            return code
        return select(job, summary_to, kernel)
    return select(job, summary_to, job.kernel)


def select(job: Job, summary_to: TextIO, kernel: str | None) -> int:
    """Selects, writes and commits on this machine; prints the command's summary line."""
    threads = [f"--threads={job.threads}"] if job.threads else []
    flags = ["--phase=select", f"--nothing-to-do-exit={job.nothing_to_do_exit}", *job.select_flags, *threads]
    flags += flags_without_devices(kernel)
    deadline = time.monotonic() + _CHILD_EXIT_SECONDS
    while True:
        child = subprocess.run(job.command(*flags), cwd=job.folder, stdout=subprocess.PIPE, text=True, check=False)
        if child.returncode != _TEMPORARY or time.monotonic() > deadline:
            print(child.stdout, end="", file=summary_to, flush=True)
            return child.returncode
        log(job, "the selection cannot start yet; trying again")
        time.sleep(5)


def log(job: Job, message: str) -> None:
    """Prints a line in the format of the command."""
    line = {"timestamp": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), "level": "INFO", "message": message}
    text = json.dumps(line) if "--log-format=json" in job.flags else "{timestamp}  {level} {message}".format(**line)
    if "--quiet" not in job.flags:
        print(text, file=sys.stderr)


def is_cluster_failure(error: Exception) -> bool:
    """Whether the cluster failed and not this program: Ray is unreachable, or lost a task that it cannot restart."""
    from ray.exceptions import RayError, RayTaskError

    if isinstance(error, RayTaskError):
        return False
    return isinstance(error, (RayError, OSError)) or "ray" in {
        frame.tb_frame.f_globals.get("__name__", "").partition(".")[0] for frame in frames(error)[-1:]
    }


def frames(error: Exception) -> list[TracebackType]:
    """Returns the stack of an error, outermost frame first."""
    found, frame = [], error.__traceback__
    while frame is not None:
        found.append(frame)
        frame = frame.tb_next
    return found


def main() -> int:
    """Runs the job in the only argument."""
    # Ray may write to standard output at any time, which is reserved for the summary.
    summary_to = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    try:
        return drive(Job(**json.loads(sys.argv[1])), summary_to)
    except LongsiftError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    except ImportError as error:
        print(f"error: {error}\nhint: run `pip install '.[ray]'` in a clone of longsift", file=sys.stderr)
        return 2
    except Exception as error:
        if not is_cluster_failure(error):
            raise
        print(f"error: the Ray cluster failed: {error}\nhint: run the same command to resume", file=sys.stderr)
        return _TEMPORARY


if __name__ == "__main__":
    sys.exit(main())
