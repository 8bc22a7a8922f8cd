"""A Ray cluster of three nodes on this machine: complete results with the same bytes after any kill."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import longsift
import pytest
from conftest import digests, write_pipeline

pytestmark = pytest.mark.ray
pytest.importorskip("ray")

FILES = 12
DOCUMENTS = 16


@contextlib.contextmanager
def nodes(count: int, gpus: int) -> Iterator[Any]:
    """A cluster of nodes on 127.0.0.1 whose GPUs are logical: no computation uses one."""
    # Ray reads this on import; without it a cluster also listens outside the loopback address.
    os.environ |= {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0", "RAY_USAGE_STATS_ENABLED": "0"}
    from ray.cluster_utils import Cluster

    node = {"node_ip_address": "127.0.0.1", "num_cpus": 1, "num_gpus": gpus}
    cluster: Any = Cluster(initialize_head=True, head_node_args={**node, "include_dashboard": False})
    for _ in range(1, count):
        cluster.add_node(**node)
    yield cluster
    cluster.shutdown()


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """Three nodes with a GPU each."""
    with nodes(3, gpus=1) as cluster:
        yield cluster


@pytest.fixture
def pair_of_gpus(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """One node with two GPUs, which longsift simulates."""
    monkeypatch.setenv("LONGSIFT_SIMULATED_DEVICES", "2x64MB")
    with nodes(1, gpus=2) as cluster:
        yield cluster


@pytest.fixture
def alone(tmp_path: Path) -> dict[str, str]:
    """Results of a run on this machine."""
    folder = tmp_path / "alone"
    folder.mkdir()
    longsift.run(write_pipeline(folder, FILES, documents=DOCUMENTS), arguments=["-q"])
    return digests(folder)


class Gate:
    """Replaces the command: the first two shards are scored at once, all others when it opens."""

    def __init__(self, folder: Path, first: str = "") -> None:
        """`first`: shell command before a shard is scored."""
        folder.mkdir()
        self._open = folder / "open"
        self.seen = folder / "seen"
        self.command = folder / "longsift"
        self.command.write_text(
            f"""\
#!/bin/sh
case " $* " in *" --phase=score "*)
    echo "$CUDA_VISIBLE_DEVICES $*" >>{self.seen}
    {first}
    if ! mkdir {folder}/1 2>/dev/null && ! mkdir {folder}/2 2>/dev/null; then
        # Ends if the worker that started it has died.
        while [ ! -e {self._open} ]; do kill -0 $PPID 2>/dev/null || exit 143; sleep 0.05; done
    fi
esac
exec {longsift.find_binary()} "$@"
"""
        )
        self.command.chmod(0o755)

    def open(self) -> None:
        """Releases all shards."""
        self._open.touch()


def start(cluster: Any, pipeline: Path, gate: Gate) -> subprocess.Popen[str]:
    command = [str(longsift.find_binary()), "run", str(pipeline), "--engine=ray", f"--address={cluster.address}"]
    # The command looks for Python next to itself, then on the path.
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "LONGSIFT_BINARY": str(gate.command)}
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def finish(driver: subprocess.Popen[str]) -> dict[str, Any]:
    """Waits for the driver; returns the summary, the only line of its standard output."""
    stdout, stderr = driver.communicate()
    assert driver.returncode == 0, stderr
    summary: dict[str, Any] = json.loads(stdout)
    return summary


def children(folder: Path, held_by: Gate | None = None) -> list[tuple[int, int]]:
    """Returns process and parent of every command that scores a shard in `folder`, or only of those that wait at a gate."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            arguments = (entry / "cmdline").read_text().split("\0")
            parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
        except (OSError, ValueError):
            continue
        scores = f"{folder}/pipeline.yaml" in arguments and "--phase=score" in arguments
        if scores and (held_by is None or str(held_by.command) in arguments):
            found.append((int(entry.name), parent))
    return found


def kill_child(cluster: Any, child: int, worker: int) -> None:
    os.kill(child, signal.SIGKILL)


def kill_worker(cluster: Any, child: int, worker: int) -> None:
    os.kill(worker, signal.SIGKILL)


def kill_node(cluster: Any, child: int, worker: int) -> None:
    cluster.remove_node(cluster.list_all_nodes()[-1], allow_graceful=False)


def kill_nothing(cluster: Any, child: int, worker: int) -> None:
    pass


@pytest.mark.parametrize("kill", [kill_nothing, kill_child, kill_worker, kill_node])
def test_a_run_on_a_cluster_has_the_results_of_one_machine(
    cluster: Any, alone: dict[str, str], tmp_path: Path, kill: Any
) -> None:
    folder = tmp_path / "cluster"
    folder.mkdir()
    gate = Gate(tmp_path / "gate")
    driver = start(cluster, write_pipeline(folder, FILES, documents=DOCUMENTS), gate)
    units = folder / "out.run/units"
    # Two shards are done; the others wait at the gate.
    while len(list(units.glob("[!.]*.json"))) < 2 or not (held := children(folder, gate)):
        assert driver.poll() is None, driver.communicate()
        time.sleep(0.02)
    kill(cluster, *held[0])
    gate.open()
    summary = finish(driver)
    assert (summary["status"], summary["rows_in"]) == ("done", FILES * DOCUMENTS)
    assert digests(folder) == alone
    assert not children(folder)
    # Footers are read once for all shards, and removed at the end.
    assert all(f" --footers={folder}/out.run/footers " in f"{line} " for line in gate.seen.read_text().splitlines())
    assert not (folder / "out.run/footers").exists()


def test_a_task_has_as_many_gpus_as_the_pipeline_names(
    pair_of_gpus: Any, alone: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "cluster"
    folder.mkdir()
    gate = Gate(tmp_path / "gate")
    gate.open()
    pipeline = write_pipeline(folder, FILES, documents=DOCUMENTS, devices=2)
    summary = finish(start(pair_of_gpus, pipeline, gate))
    assert (summary["status"], summary["rows_in"]) == ("done", FILES * DOCUMENTS)
    assert digests(folder) == alone
    seen = gate.seen.read_text().splitlines()
    assert len(seen) == 4 and all(len(line.split()[0].split(",")) == 2 for line in seen), seen
    events = [json.loads(line) for line in (folder / "out.run/events.jsonl").read_text().splitlines()]
    ready = {event["device"] for event in events if event["event"] == "device_ready"}
    assert ready == {"cuda:0", "cuda:1"}

    # A shard that no node fits is reported, and waited for no longer than requested.
    monkeypatch.setenv("LONGSIFT_RAY_NODE_WAIT_SECONDS", "5")
    monkeypatch.setenv("LONGSIFT_SIMULATED_DEVICES", "3x64MB")
    other = tmp_path / "other"
    other.mkdir()
    driver = start(pair_of_gpus, write_pipeline(other, 1, documents=2, devices=3), gate)
    _, stderr = driver.communicate()
    assert driver.returncode == 4
    assert "no node of the cluster has 1 CPUs, 3 GPUs and" in stderr


def test_a_head_without_gpus_waits_for_a_node_with_gpus(
    alone: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "cluster"
    folder.mkdir()
    gate = Gate(tmp_path / "gate")
    gate.open()
    with nodes(1, gpus=0) as cluster:
        driver = start(cluster, write_pipeline(folder, FILES, documents=DOCUMENTS, devices=8), gate)
        lines = iter(driver.stderr or ())
        waits = next((line for line in lines if "waiting up to" in line), "")
        assert "no node of the cluster has 1 CPUs, 8 GPUs and" in waits
        # Only the joining node has devices.
        monkeypatch.setenv("LONGSIFT_SIMULATED_DEVICES", "8x64MB")
        cluster.add_node(node_ip_address="127.0.0.1", num_cpus=8, num_gpus=8)
        summary = finish(driver)
    assert (summary["status"], summary["rows_in"]) == ("done", FILES * DOCUMENTS)
    assert digests(folder) == alone
    seen = gate.seen.read_text().splitlines()
    assert len(seen) == min(16, FILES), "a cluster without a fitting node gets sixteen shards"
    assert all(len(line.split()[0].split(",")) == 8 and " --threads=" in line for line in seen), seen


def test_a_permanent_failure_of_a_shard_cancels_the_others(cluster: Any, tmp_path: Path) -> None:
    folder = tmp_path / "cluster"
    folder.mkdir()
    broken = 'case "$*" in *--shard=0/*) echo "error: the data is wrong" >&2; exit 3;; esac'
    gate = Gate(tmp_path / "gate", first=broken)
    for held in "12":
        (tmp_path / "gate" / held).mkdir()
    driver = start(cluster, write_pipeline(folder, FILES, documents=DOCUMENTS), gate)
    _, stderr = driver.communicate()
    assert driver.returncode == 3, stderr
    assert "error: shard 0 ended with exit code 3\nerror: the data is wrong" in stderr
    assert "shards are cancelled" in stderr
    assert len(gate.seen.read_text().splitlines()) <= 3, "one shard per node was started, and no waiting one"
    assert not (folder / "out").exists()


def test_all_nodes_run_the_kernel_of_the_driver_and_write_to_rays_logs(cluster: Any, tmp_path: Path) -> None:
    folder = tmp_path / "cluster"
    folder.mkdir()
    gate = Gate(tmp_path / "gate")
    gate.open()
    summary = finish(start(cluster, write_pipeline(folder, 3, documents=2, devices=0), gate))
    seen = gate.seen.read_text().splitlines()
    assert seen and all(f" --kernel={summary['kernel']} " in f"{line} " for line in seen), seen
    logs = Path(cluster.head_node.get_logs_dir_path()).glob("worker-*.err")
    assert any("measuring windows" in log.read_text(errors="replace") for log in logs)


def test_an_invalid_pipeline_never_reaches_the_cluster(tmp_path: Path) -> None:
    pipeline = write_pipeline(tmp_path, 1, documents=2)
    command = [longsift.find_binary(), "run", pipeline, "--engine=ray", "--set=stages.tokenize.bos=9"]
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "`bos` is 9" in done.stderr
