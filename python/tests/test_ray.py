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


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """Three nodes on 127.0.0.1 with a GPU each, which are logical: nothing here computes on one."""
    # Read by Ray when it is imported: without it a cluster does not stay on the loopback address.
    os.environ |= {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0", "RAY_USAGE_STATS_ENABLED": "0"}
    from ray.cluster_utils import Cluster

    head = {"node_ip_address": "127.0.0.1", "num_cpus": 1, "num_gpus": 1, "include_dashboard": False}
    cluster: Any = Cluster(initialize_head=True, head_node_args=head)
    for _ in range(2):
        cluster.add_node(node_ip_address="127.0.0.1", num_cpus=1, num_gpus=1)
    yield cluster
    cluster.shutdown()


@pytest.fixture
def alone(tmp_path: Path) -> dict[str, str]:
    """What a run on this machine writes."""
    folder = tmp_path / "alone"
    folder.mkdir()
    longsift.run(write_pipeline(folder, FILES, documents=DOCUMENTS), arguments=["-q"])
    return digests(folder)


def start(cluster: Any, folder: Path) -> subprocess.Popen[str]:
    folder.mkdir()
    pipeline = write_pipeline(folder, FILES, documents=DOCUMENTS)
    command = [str(longsift.find_binary()), "run", str(pipeline), "--engine=ray", f"--address={cluster.address}"]
    # The command looks for Python beside itself, then on the path.
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return subprocess.Popen(
        command, env={**os.environ, "PATH": path}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def children(folder: Path) -> list[tuple[int, int]]:
    """Process and parent of every command that scores a shard in `folder`."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            arguments = (entry / "cmdline").read_text().split("\0")
            parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
        except (OSError, ValueError):
            continue
        if f"{folder}/pipeline.yaml" in arguments and "--phase=score" in arguments:
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
    driver = start(cluster, folder)
    units = folder / "out.run/units"
    disturbed = False
    while not disturbed:
        assert driver.poll() is None, driver.communicate()
        for child, worker in children(folder)[:1] if len(list(units.glob("[!.]*"))) >= 2 else []:
            # A child that has just ended is none to disturb.
            with contextlib.suppress(ProcessLookupError):
                kill(cluster, child, worker)
                disturbed = True
        time.sleep(0.02)
    assert len(list(units.glob("[!.]*"))) < FILES, "too late to disturb anything"
    stdout, stderr = driver.communicate(timeout=600)
    assert driver.returncode == 0, stderr
    summary = json.loads(stdout.splitlines()[-1])
    assert (summary["status"], summary["rows_in"]) == ("done", FILES * DOCUMENTS)
    assert digests(folder) == alone
    assert not children(folder)


def test_a_pipeline_that_is_wrong_never_reaches_the_cluster(tmp_path: Path) -> None:
    pipeline = write_pipeline(tmp_path, 1, documents=2)
    command = [longsift.find_binary(), "run", pipeline, "--engine=ray", "--set=stages.tokenize.bos=9"]
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "`bos` is 9" in done.stderr
