"""Runs the shards of a pipeline on a Ray cluster. Started by `longsift run --engine ray`, which has made the plan.

Only shard numbers go through Ray, and one small row per shard comes back: the workers run the command, which reads,
scores and commits, and, when all is scored, writes what is kept. A worker, child or node that dies costs the windows it
had in flight; Ray starts the shard again elsewhere, and it carries on. What a dead worker's child still commits counts,
too: first commit wins.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, TextIO

from longsift._command import find_binary, last_summary
from longsift._errors import LongsiftError, MachineError, PipelineError
from longsift._summary import Summary

_TEMPORARY = 4
_ATTEMPTS = 5
# How long children of dead workers may take to notice that their shard is done.
_PATIENCE_SECONDS = 120.0


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
    version: str

    def command(self, *more: str) -> list[str]:
        """The command of this machine, with these flags behind those of the job."""
        return [str(find_binary()), "run", self.pipeline, *self.flags, *more]


class ShardWorker:
    """Scores or writes shards, one at a time, by a child process."""

    def __init__(self, job: str, phase: str, shards: int, threads: int | None) -> None:
        self.job = Job(**json.loads(job))
        self.phase = phase
        self.shards = shards
        self.threads = [] if threads is None else [f"--threads={threads}"]
        version = subprocess.check_output([find_binary(), "--version"], text=True).split()[-1]
        if version != self.job.version:
            raise PipelineError(f"this node has longsift {version}, the driver {self.job.version}", 2)

    def __call__(self, batch: Mapping[str, Any]) -> dict[str, list[Any]]:
        rows = [self.run(int(shard)) for shard in batch["shard"]]
        return {key: [row[key] for row in rows] for key in rows[0]}

    def run(self, shard: int) -> dict[str, Any]:
        """One shard: its number, the exit code, and the summary's line or the end of what was logged."""
        flags = [f"--phase={self.phase}", f"--shard={shard}/{self.shards}", "--stop-with-parent", *self.threads]
        for attempt in range(1, _ATTEMPTS + 1):
            command = self.job.command(*flags)
            child = subprocess.run(command, cwd=self.job.folder, capture_output=True, text=True, check=False)
            # A child that was killed (negative) or stopped (128 + signal) has lost nothing that was committed.
            if 0 <= child.returncode < 128 and child.returncode != _TEMPORARY:
                break
            time.sleep(min(2.0**attempt, 30.0))
        answer = child.stdout if child.returncode == 0 else child.stderr[-4000:]
        return {"shard": shard, "exit_code": child.returncode, "answer": answer}


def room(job: Job, phase: str) -> tuple[int, int, int]:
    """How many workers the cluster has room for, and the CPUs and GPUs of each: with a GPU, or what the pipeline says,
    each has one CPU, without one those of the smallest node."""
    import ray

    all_nodes: Callable[[], list[dict[str, Any]]] = ray.nodes
    nodes = [node["Resources"] for node in all_nodes() if node["Alive"]]
    gpus = int(any(node.get("GPU", 0) >= 1 for node in nodes)) if job.gpus is None else job.gpus
    gpus = gpus if phase == "score" else 0
    usable = [node for node in nodes if node.get("GPU", 0) >= gpus and node.get("CPU", 0) >= 1]
    if not usable:
        raise MachineError(f"no node of the cluster has a CPU and {gpus} GPUs", _TEMPORARY)
    cpus = job.threads or (1 if gpus else int(min(node["CPU"] for node in usable)))
    workers = sum(int(min(n["CPU"] // cpus, n["GPU"] // gpus if gpus else n["CPU"])) for n in usable)
    return max(workers, 1), cpus, gpus


def run_shards(job: Job, phase: str) -> Iterator[tuple[int, int, int, str]]:
    """Runs a phase of every shard on the cluster; yields number, shards, exit code and answer of each as it comes."""
    import ray.data

    workers, cpus, gpus = room(job, phase)
    # Every shard that writes selects for itself first: one each.
    shards = min(job.shards or workers * (4 if phase == "score" else 1), job.units)
    ray.data.DataContext.get_current().enable_progress_bars = False
    threads = cpus if job.threads or not gpus else None
    done = ray.data.from_items(
        [{"shard": shard} for shard in range(shards)], override_num_blocks=shards
    ).map_batches(
        ShardWorker,
        fn_constructor_args=(json.dumps(vars(job)), phase, shards, threads),
        batch_size=1,
        compute=ray.data.ActorPoolStrategy(min_size=1, max_size=workers),
        num_cpus=cpus,
        num_gpus=gpus,
        max_restarts=-1,
        max_task_retries=-1,
    )
    for row in done.iter_rows():
        yield row["shard"], shards, row["exit_code"], row["answer"]


def run_phase(job: Job, phase: str) -> int:
    """Runs a phase on the cluster and checks that every unit and row is accounted for. Returns the exit code."""
    done: dict[int, Summary] = {}
    failed: dict[int, tuple[int, str]] = {}
    for shard, shards, code, answer in run_shards(job, phase):
        summary = last_summary(answer) if code == 0 else None
        if summary is None:
            failed[shard] = (code, answer)
        else:
            done[shard] = summary
        windows = sum(summary.windows_scored for summary in done.values())
        what = f", {windows:,} windows scored now" if phase == "score" else ""
        log(job, f"{phase}: {len(done)} of {shards} shards{what}")
    for shard, (code, answer) in sorted(failed.items()):
        print(f"error: shard {shard} ended with exit code {code}\n{answer}", file=sys.stderr)
    if failed:
        # As everywhere: the failure that a retry helps least decides.
        return min(code if code in (1, 2, 3, 6) else _TEMPORARY for code, _ in failed.values())
    units = sum(summary.shard.units for summary in done.values() if summary.shard)
    rows = sum(summary.rows_in for summary in done.values())
    if (units, rows) != (job.units, job.rows):
        what = f"the shards had {units} work units and {rows} rows, the plan {job.units} and {job.rows}"
        raise MachineError(f"{what}: did the input change meanwhile? run again", _TEMPORARY)
    return 0


def drive(job: Job, summary_to: TextIO) -> int:
    """Scores and writes on the cluster, selects and commits here. Returns the exit code."""
    import ray

    environment = {k: v for k, v in os.environ.items() if k in ("LONGSIFT_BINARY", "XDG_CACHE_HOME")}
    if job.units:
        dashboard = False if job.address is None else None
        ray.init(job.address, log_to_driver=False, include_dashboard=dashboard, runtime_env={"env_vars": environment})
        for phase in ("score", "write"):
            if code := run_phase(job, phase):
                return code
    return select(job, summary_to)


def select(job: Job, summary_to: TextIO) -> int:
    """Selects, writes and commits on this machine; hands on the summary, the last line of the command's output."""
    threads = [f"--threads={job.threads}"] if job.threads else []
    flags = ["--phase=select", f"--nothing-to-do-exit={job.nothing_to_do_exit}", *job.select_flags, *threads]
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
        print(f"error: {error}\nhint: pip install 'longsift[ray]'", file=sys.stderr)
        return 2
    except Exception as error:
        if not is_of_cluster(error):
            raise
        print(f"error: the Ray cluster failed: {error}\nhint: run the same command to resume", file=sys.stderr)
        return _TEMPORARY


if __name__ == "__main__":
    sys.exit(main())
