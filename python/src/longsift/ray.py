"""Runs the shards of a pipeline on a Ray cluster. Started by `longsift run --engine ray`, which has made the plan.

A shard is a Ray task: it runs the command, which reads, scores and commits, and, when all is scored, writes what is kept. Only
shard numbers go through Ray, and one small answer per shard comes back. A worker, child or node that dies costs the windows it
had in flight; Ray starts the shard again elsewhere, and it resumes. What a dead worker's child still commits counts,
too: first commit wins.
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
# What another try does not help: a bug, the pipeline, the data.
_FINAL = (1, 2, 3)
_ATTEMPTS = 5
# How often Ray starts a shard again whose worker or node was lost.
_MAX_RETRIES = 10
# How long children of dead workers may take to notice that their shard is done.
_PATIENCE_SECONDS = 120.0
# How long no node may fit a shard before the run gives up: an autoscaler takes minutes to start one.
_NODE_WAIT_SECONDS = float(os.environ.get("LONGSIFT_RAY_NODE_WAIT_SECONDS", "900"))
# Shards of a cluster that has no node for them yet.
_SHARDS_OF_NO_NODE = 16
_ANSWER_CHARACTERS = 4000


@dataclass(frozen=True)
class Job:
    """What `longsift run --engine ray` hands over."""

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
    """Of `--kernel`."""
    processor_kernel: str | None
    """What the processor of the driver's machine would run; none where nothing is measured by attention."""
    memory_bytes: int
    version: str

    def command(self, *more: str) -> list[str]:
        """The command of this machine, with these flags behind those of the job."""
        return [str(find_binary()), "run", self.pipeline, *self.flags, *more]


@dataclass(frozen=True)
class Answer:
    """What came of a shard."""

    shard: int
    exit_code: int
    text: str
    """The summary's line, or the end of what was logged."""


@dataclass(frozen=True)
class Need:
    """What a shard takes of a node."""

    cpus: int
    gpus: int
    memory_bytes: int

    def times_in(self, node: Mapping[str, float]) -> int:
        """How many shards a node has room for at a time."""
        fits = [node.get("CPU", 0) // self.cpus, node.get("memory", 0) // max(self.memory_bytes, 1)]
        fits += [node.get("GPU", 0) // self.gpus] if self.gpus else []
        return int(min(fits))

    def __str__(self) -> str:
        gpus = f", {self.gpus} GPUs" if self.gpus else ""
        return f"{self.cpus} CPUs{gpus} and {self.memory_bytes / 1e9:.1f} GB of memory"


def run_shard(job: Job, flags: Sequence[str], shard: int) -> Answer:
    """Runs one shard by a child process, on a worker. What the child logs goes to the worker's log as well, where Ray shows it."""
    version = subprocess.check_output([find_binary(), "--version"], text=True).split()[-1]
    if version != job.version:
        return Answer(shard, 2, f"this node has longsift {version}, the driver {job.version}")
    for attempt in range(1, _ATTEMPTS + 1):
        code, answer = _child(job, [*flags, "--stop-with-parent"])
        # A child that was killed (negative) or stopped (128 + signal) has lost nothing that was committed.
        if 0 <= code < 128 and code != _TEMPORARY:
            break
        time.sleep(min(2.0**attempt, 30.0))
    return Answer(shard, code, answer)


def _child(job: Job, flags: Sequence[str]) -> tuple[int, str]:
    """The exit code of a command, and its summary or the end of what it logged."""
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
    """What each node of the cluster has."""
    import ray

    nodes: list[dict[str, Any]] = ray.nodes()  # type: ignore[no-untyped-call]
    return [node["Resources"] for node in nodes if node["Alive"]]


def need_of(job: Job, phase: str, nodes: Sequence[Mapping[str, float]]) -> Need:
    """What a shard takes: the GPUs that the pipeline names, with `auto` one if a node has any, and with them their share of the
    node's CPUs; without GPUs the CPUs of the smallest node; one where there is no such node yet. `--threads` decides otherwise."""
    gpus = int(any(node.get("GPU", 0) >= 1 for node in nodes)) if job.gpus is None else job.gpus
    gpus = gpus if phase == "score" else 0
    if gpus:
        shares = [int(node.get("CPU", 0) * gpus // node["GPU"]) for node in nodes if node.get("GPU", 0) >= gpus]
    else:
        shares = [int(node["CPU"]) for node in nodes if node.get("CPU", 0) >= 1]
    return Need(job.threads or max(min(shares, default=1), 1), gpus, job.memory_bytes)


def flags_of(job: Job, phase: str, need: Need, kernel: str | None) -> list[str]:
    """The flags of every shard of a phase. All nodes run one kernel: the one that was asked for, without GPUs that of this
    machine's processor; `kernel`: that of the scores, where there are any."""
    if phase == "write":
        more = scored_elsewhere(kernel)
    else:
        more = pin(job.kernel or (None if need.gpus else job.processor_kernel))
    return [f"--phase={phase}", f"--threads={need.cpus}", *more]


def scored_elsewhere(kernel: str | None) -> list[str]:
    """The flags of a machine that need not have what measured, and the kernel that did."""
    return ["--devices-elsewhere", *pin(kernel)]


def pin(kernel: str | None) -> list[str]:
    """The flag that decides the kernel, where there is one."""
    return [] if kernel is None else [f"--kernel={kernel}"]


def run_shards(job: Job, phase: str, kernel: str | None) -> Iterator[tuple[int, Answer]]:
    """Runs a phase of every shard on the cluster; yields the number of shards and each answer as it comes. A shard that fails
    for good cancels all others: they would fail as well."""
    import ray

    members = alive()
    need = need_of(job, phase, members)
    slots = sum(need.times_in(node) for node in members)
    # Every shard that writes selects for itself first: one each.
    count = slots * (4 if phase == "score" else 1) or _SHARDS_OF_NO_NODE
    shards = min(job.shards or count, job.units)
    task: Any = ray.remote(run_shard).options(
        name=f"longsift {phase}",
        num_cpus=need.cpus,
        num_gpus=need.gpus,
        memory=need.memory_bytes,
        max_retries=_MAX_RETRIES,
        scheduling_strategy="SPREAD",
    )
    flags = flags_of(job, phase, need, kernel)
    waiting = [task.remote(job, [*flags, f"--shard={shard}/{shards}"], shard) for shard in range(shards)]
    nodes = NodeWait(job, need)
    try:
        while waiting:
            done, waiting = ray.wait(waiting, num_returns=1, timeout=5.0)
            nodes.look()
            for answer in ray.get(done):
                yield shards, answer
                if answer.exit_code in _FINAL:
                    log(job, f"{phase}: {len(waiting)} shards are cancelled")
                    return
    finally:
        for reference in waiting:
            ray.cancel(reference, force=True)


class NodeWait:
    """Says what is waited for while no node fits a shard, and gives up after a while."""

    def __init__(self, job: Job, need: Need) -> None:
        self.job, self.need = job, need
        self.since = time.monotonic()
        self.said = False

    def look(self) -> None:
        """Raises where no node has fitted for too long; at once on a cluster of our own, which does not grow."""
        if any(self.need.times_in(node) for node in alive()):
            self.since, self.said = time.monotonic(), False
            return
        limit = 0.0 if self.job.address is None else _NODE_WAIT_SECONDS
        if time.monotonic() - self.since >= limit:
            raise MachineError(f"no node of the cluster has {self.need}", _TEMPORARY)
        if not self.said:
            log(self.job, f"no node of the cluster has {self.need} yet: waiting up to {limit:.0f} s for one")
            self.said = True


def run_phase(job: Job, phase: str, kernel: str | None = None) -> tuple[int, str | None]:
    """Runs a phase on the cluster and checks that every unit and row is accounted for. Returns the exit code, and the kernel
    that measured."""
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
        # As everywhere: the failure that a retry helps least decides.
        codes = [answer.exit_code for answer in failed.values()]
        return min(code if code in (*_FINAL, 6) else _TEMPORARY for code in codes), None
    units = sum(summary.shard.units for summary in done.values() if summary.shard)
    rows = sum(summary.rows_in for summary in done.values())
    if (units, rows) != (job.units, job.rows):
        what = f"the shards had {units} work units and {rows} rows, the plan {job.units} and {job.rows}"
        raise MachineError(f"{what}: did the input change meanwhile? run again", _TEMPORARY)
    return 0, next((summary.kernel for summary in done.values() if summary.kernel), None)


def drive(job: Job, summary_to: TextIO) -> int:
    """Scores and writes on the cluster, selects and commits here. Returns the exit code."""
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
    """Selects, writes and commits on this machine; hands on the summary, the last line of the command's output."""
    threads = [f"--threads={job.threads}"] if job.threads else []
    flags = ["--phase=select", f"--nothing-to-do-exit={job.nothing_to_do_exit}", *job.select_flags, *threads]
    flags += scored_elsewhere(kernel)
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while True:
        child = subprocess.run(job.command(*flags), cwd=job.folder, stdout=subprocess.PIPE, text=True, check=False)
        if child.returncode != _TEMPORARY or time.monotonic() > deadline:
            print(child.stdout, end="", file=summary_to, flush=True)
            return child.returncode
        log(job, "the selection cannot start yet; trying again")
        time.sleep(5)


def log(job: Job, message: str) -> None:
    """A line like those of the command."""
    line = {"timestamp": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), "level": "INFO", "message": message}
    text = json.dumps(line) if "--log-format=json" in job.flags else "{timestamp}  {level} {message}".format(**line)
    if "--quiet" not in job.flags:
        print(text, file=sys.stderr)


def is_of_cluster(error: Exception) -> bool:
    """Whether the cluster failed, and not this program: Ray cannot be reached, or lost what it cannot restart."""
    from ray.exceptions import RayError, RayTaskError

    if isinstance(error, RayTaskError):
        return False
    return isinstance(error, (RayError, OSError)) or "ray" in {
        frame.tb_frame.f_globals.get("__name__", "").partition(".")[0] for frame in frames(error)[-1:]
    }


def frames(error: Exception) -> list[TracebackType]:
    """Where an error came through, the place that raised it last."""
    found, frame = [], error.__traceback__
    while frame is not None:
        found.append(frame)
        frame = frame.tb_next
    return found


def main() -> int:
    """Runs the job that is the only argument."""
    # Ray, too, writes to standard output, whenever it likes; ours is for the summary.
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
        if not is_of_cluster(error):
            raise
        print(f"error: the Ray cluster failed: {error}\nhint: run the same command to resume", file=sys.stderr)
        return _TEMPORARY


if __name__ == "__main__":
    sys.exit(main())
