"""The driver of `--engine ray`, with a cluster that fails."""

from __future__ import annotations

import json
import sys
import types
from typing import Any

import pytest
from longsift import ray as driver


class RayError(Exception):
    """Stand-in for `ray.exceptions.RayError`."""


class RayTaskError(RayError):
    """Stand-in for `ray.exceptions.RayTaskError`: an error of the code that a worker ran."""


@pytest.fixture
def ray(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A `ray` module with exceptions only."""
    module: Any = types.ModuleType("ray")
    module.exceptions = types.ModuleType("ray.exceptions")
    module.exceptions.RayError, module.exceptions.RayTaskError = RayError, RayTaskError
    monkeypatch.setitem(sys.modules, "ray", module)
    monkeypatch.setitem(sys.modules, "ray.exceptions", module.exceptions)
    return module


def run(monkeypatch: pytest.MonkeyPatch, error: Exception) -> int:
    """Exit code of a driver in which `error` is raised."""

    def drive(job: driver.Job, summary_to: object) -> int:
        raise error

    job = {name: None for name in driver.Job.__annotations__}
    monkeypatch.setattr(driver, "drive", drive)
    monkeypatch.setattr("os.dup2", lambda *_: None)
    monkeypatch.setattr(sys, "argv", ["ray", json.dumps(job)])
    return driver.main()


@pytest.mark.parametrize("error", [RayError("a node died"), ConnectionError("no cluster there")])
def test_a_failed_cluster_has_the_exit_code_for_a_retry(
    ray: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], error: Exception
) -> None:
    assert run(monkeypatch, error) == 4
    assert f"the Ray cluster failed: {error}" in capsys.readouterr().err


@pytest.mark.parametrize("error", [RayTaskError("in a worker"), KeyError("in the driver")])
def test_a_bug_is_not_reported_as_a_failure_of_the_cluster(ray: Any, monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    with pytest.raises(type(error)):
        run(monkeypatch, error)


def test_an_error_raised_inside_ray_is_a_failure_of_the_cluster(ray: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    exec("def init():\n    raise RuntimeError('no address')", ray.__dict__)
    try:
        ray.init()
    except RuntimeError as error:
        assert driver.is_cluster_failure(error)


@pytest.mark.parametrize(("address", "joined"), [(None, "local"), ("10.0.0.1:6379", "10.0.0.1:6379")])
def test_a_run_joins_only_the_cluster_that_it_names(
    ray: Any, monkeypatch: pytest.MonkeyPatch, address: str | None, joined: str
) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")
    addresses: list[str | None] = []
    ray.init = lambda address=None, **_: addresses.append(address)
    monkeypatch.setattr(driver, "run_phase", lambda job, phase, kernel=None: (3, None))
    job: dict[str, Any] = {name: None for name in driver.Job.__annotations__}
    assert driver.drive(driver.Job(**{**job, "units": 1, "address": address}), sys.stdout) == 3
    assert addresses == [joined]
