"""A Ray cluster of three nodes on this machine: complete and the same bytes, whatever is killed."""

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
    """A cluster of nodes on 127.0.0.1 whose GPUs are logical: nothing here computes on one."""
    # Read by Ray when it is imported: without it a cluster does not stay on the loopback address.
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
    """What a run on this machine writes."""
    folder = tmp_path / "alone"
    folder.mkdir()
    longsift.run(write_pipeline(folder, FILES, documents=DOCUMENTS), arguments=["-q"])
    return digests(folder)


class Gate:
    """Stands before the command: the first two shards are scored at once, all others when it opens."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self._open = folder / "open"
        self.seen = folder / "seen"
        self.command = folder / "longsift"
        self.command.write_text(
            f"""\
#!/bin/sh
case " $* " in *" --phase=score "*)
    echo "$CUDA_VISIBLE_DEVICES" >>{self.seen}
    if ! mkdir {folder}/1 2>/dev/null && ! mkdir {folder}/2 2>/dev/null; then
        # Who waits for nobody is of no use.
        while [ ! -e {self._open} ]; do kill -0 $PPID 2>/dev/null || exit 143; sleep 0.05; done
    fi
esac
exec {longsift.find_binary()} "$@"
"""
        )
        self.command.chmod(0o755)

    def open(self) -> None:
        """Nothing is held any more."""
        self._open.touch()


def start(cluster: Any, pipeline: Path, gate: Gate) -> subprocess.Popen[str]:
    command = [str(longsift.find_binary()), "run", str(pipeline), "--engine=ray", f"--address={cluster.address}"]
    # The command looks for Python beside itself, then on the path.
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "LONGSIFT_BINARY": str(gate.command)}
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def finish(driver: subprocess.Popen[str]) -> dict[str, Any]:
    """The summary, which is the only line of standard output."""
    stdout, stderr = driver.communicate()
    assert driver.returncode == 0, stderr
    summary: dict[str, Any] = json.loads(stdout)
    return summary


def children(folder: Path, held_by: Gate | None = None) -> list[tuple[int, int]]:
    """Process and parent of every command that scores a shard in `folder`, or of those that a gate holds."""
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
def test_a_run_on_a_cluster_is_the_run_of_one_machine(
    cluster: Any, alone: dict[str, str], tmp_path: Path, kill: Any
) -> None:
    folder = tmp_path / "cluster"
    folder.mkdir()
    gate = Gate(tmp_path / "gate")
    driver = start(cluster, write_pipeline(folder, FILES, documents=DOCUMENTS), gate)
    units = folder / "out.run/units"
    # Two shards are done, and the others do not end before they are disturbed.
    while len(list(units.glob("[!.]*.json"))) < 2 or not (held := children(folder, gate)):
        assert driver.poll() is None, driver.communicate()
        time.sleep(0.02)
    kill(cluster, *held[0])
    gate.open()
    summary = finish(driver)
    assert (summary["status"], summary["rows_in"]) == ("done", FILES * DOCUMENTS)
    assert digests(folder) == alone
    assert not children(folder)


def test_an_actor_has_as_many_gpus_as_the_pipeline_names(
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
    seen = gate.seen.read_text().split()
    assert len(seen) == 4 and all(len(gpus.split(",")) == 2 for gpus in seen), seen
    events = [json.loads(line) for line in (folder / "out.run/events.jsonl").read_text().splitlines()]
    ready = {event["device"] for event in events if event["event"] == "device_ready"}
    assert ready == {"cuda:0", "cuda:1"}

    # More than a node has are named.
    monkeypatch.setenv("LONGSIFT_SIMULATED_DEVICES", "3x64MB")
    other = tmp_path / "other"
    other.mkdir()
    driver = start(pair_of_gpus, write_pipeline(other, 1, documents=2, devices=3), gate)
    _, stderr = driver.communicate()
    assert driver.returncode == 4
    assert "no node of the cluster has a CPU and 3 GPUs" in stderr


def test_a_pipeline_that_is_wrong_never_reaches_the_cluster(tmp_path: Path) -> None:
    pipeline = write_pipeline(tmp_path, 1, documents=2)
    command = [longsift.find_binary(), "run", pipeline, "--engine=ray", "--set=stages.tokenize.bos=9"]
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "`bos` is 9" in done.stderr
