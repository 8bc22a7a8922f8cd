"""The examples for Kubernetes and Airflow: their commands are run with their settings, without installing either."""

from __future__ import annotations

import json
import os
import re
import runpy
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import longsift
import pytest
import yaml
from conftest import REPOSITORY, digests, write_pipeline

EXAMPLES = REPOSITORY / "docs/examples"


@pytest.fixture
def daily(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Writes a pipeline with the date as a parameter to the current folder, and puts `longsift` on the path."""
    path = write_pipeline(tmp_path, files=3, documents=4).rename(tmp_path / "web.yaml")
    text = path.read_text().replace("output: {path: out}", 'output: {path: "out/${date}"}')
    path.write_text(f"params: {{date: {{description: the day}}}}\n{text}")
    on_path(monkeypatch)
    monkeypatch.chdir(tmp_path)
    return path


def on_path(monkeypatch: pytest.MonkeyPatch) -> None:
    """Puts the command on the path under its name."""
    folder = longsift.find_binary().parent
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")


# ---- Kubernetes


def jobs() -> list[dict[str, Any]]:
    documents = list(yaml.safe_load_all((EXAMPLES / "kubernetes-jobs.yaml").read_text()))
    assert [document["kind"] for document in documents] == ["Job", "Job"]
    return documents


def container(job: dict[str, Any]) -> dict[str, Any]:
    containers = job["spec"]["template"]["spec"]["containers"]
    assert len(containers) == 1
    return dict(containers[0])


def expanded(argument: str, variables: dict[str, str]) -> str:
    """Expands `$(NAME)` in a command to the variable of that name, as Kubernetes does."""
    return re.sub(r"\$\((\w+)\)", lambda name: variables[name[1]], argument)


def test_the_kubernetes_jobs_are_complete() -> None:
    score, select = jobs()
    for job, phase in ((score, "score"), (select, "select")):
        assert (job["apiVersion"], job["metadata"]["labels"]) == ("batch/v1", {"phase": phase})
        pod = job["spec"]["template"]["spec"]
        # Required by a failure policy.
        assert pod["restartPolicy"] == "Never"
        mounted = {mount["name"] for mount in container(job)["volumeMounts"]}
        assert mounted == {volume["name"] for volume in pod["volumes"]}
    spec = score["spec"]
    assert (spec["completionMode"], spec["parallelism"]) == ("Indexed", spec["completions"])
    stop, ignore = spec["podFailurePolicy"]["rules"]
    assert stop["action"] == "FailJob"
    codes = stop["onExitCodes"]
    assert (codes["containerName"], codes["operator"]) == (container(score)["name"], "In")
    # docs/clusters.md: the codes with which a scheduler should stop the job.
    assert codes["values"] == [1, 2, 3]
    assert ignore["action"] == "Ignore"
    assert ignore["onPodConditions"] == [{"type": "DisruptionTarget"}]


def test_the_kubernetes_commands_give_the_results_of_one_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    on_path(monkeypatch)
    alone, together = tmp_path / "alone", tmp_path / "together"
    for folder in (alone, together):
        folder.mkdir()
    longsift.run(write_pipeline(alone, files=5, documents=4), arguments=["-q"])
    pipeline = write_pipeline(together, files=5, documents=4)
    score, select = jobs()

    def run(job: dict[str, Any], variables: dict[str, str]) -> dict[str, Any]:
        command = [expanded(argument, variables) for argument in container(job)["command"]]
        assert command[2] == "/pipelines/web.yaml"
        done = subprocess.run([*command[:2], str(pipeline), *command[3:], "-q"], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return dict(json.loads(done.stdout.splitlines()[-1]))

    shards = [run(score, {"JOB_COMPLETION_INDEX": str(index)}) for index in range(score["spec"]["completions"])]
    assert sum(summary["shard"]["units_scored"] for summary in shards) == 5
    assert all(summary["shard"]["count"] == len(shards) for summary in shards)
    assert run(select, {})["status"] == "done"
    assert digests(together) == digests(alone)


# ---- Airflow


class Task:
    """Stand-in for an Airflow operator that records its arguments."""

    def __init__(self, **settings: Any) -> None:
        self.settings = settings
        self.then: list[Task] = []
        self.output = self

    @classmethod
    def partial(cls, **settings: Any) -> Task:
        return cls(**settings)

    def expand(self, env: list[dict[str, str]]) -> Task:
        self.settings["mapped"] = env
        return self

    def __rshift__(self, other: Task) -> Task:
        self.then.append(other)
        return other

    def run(self, env: dict[str, str]) -> tuple[int, str]:
        """Runs the command of a day; returns its exit code and output, standard error included."""
        command = self.settings["bash_command"].replace("{{ ds_nodash }}", "20261120").replace("{{ ds }}", "2026-11-20")
        assert "{{" not in command and self.settings["append_env"] is True
        done = subprocess.run(
            ["bash", "-c", command], env=os.environ | env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        return done.returncode, done.stdout


@pytest.fixture
def airflow(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Installs modules with Airflow's names that record the objects created with them."""
    made: dict[str, Any] = {"tasks": [], "calls": []}

    class BashOperator(Task):
        def __init__(self, **settings: Any) -> None:
            super().__init__(**settings)
            made["tasks"].append(self)

    def dag(**settings: Any) -> Callable[[Callable[[], None]], Callable[[], None]]:
        made["dag"] = settings
        return lambda function: function

    def task(function: Callable[..., Any] | None = None, **settings: Any) -> Any:
        if function is None:
            return lambda function: function
        made[function.__name__] = function
        return lambda *given: made["calls"].append((function.__name__, given))

    def module(name: str, **content: Any) -> None:
        stub = ModuleType(name)
        vars(stub).update(content)
        monkeypatch.setitem(sys.modules, name, stub)

    for name in ("airflow", "airflow.providers", "airflow.providers.standard", "airflow.providers.standard.operators"):
        module(name)
    module("airflow.providers.standard.operators.bash", BashOperator=BashOperator)
    module("airflow.sdk", dag=dag, task=task)
    failures = ("AirflowException", "AirflowFailException", "AirflowSkipException")
    module("airflow.exceptions", **{name: type(name, (Exception,), {}) for name in failures})
    return made


def test_the_dag_filters_a_day_and_skips_it_the_second_time(
    daily: Path, airflow: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LONGSIFT_PIPELINE", str(daily))
    runpy.run_path(str(EXAMPLES / "airflow_daily.py"))
    assert airflow["dag"]["dag_id"] == "longsift_daily"
    score, select = airflow["tasks"]
    assert score.then == [select]
    assert airflow["calls"] == [("report", (select,))]
    summaries = []
    for env in score.settings["mapped"]:
        code, output = score.run(env)
        assert code == 0, output
        # Airflow passes the last line of the output to the processor.
        summaries.append(score.settings["output_processor"](output.splitlines()[-1]))
    assert [summary["shard"]["index"] for summary in summaries] == [0, 1, 2]
    assert {summary["shard"]["count"] for summary in summaries} == {3}
    code, output = select.run({})
    assert code == 0, output
    summary = select.settings["output_processor"](output.splitlines()[-1])
    kept, folder = summary["kept"], daily.parent / "out/2026-11-20.run"
    assert airflow["report"](summary) == f"web-20261120: {kept} samples of 12 rows in {folder}"
    again, _ = select.run({})
    assert again == select.settings["skip_on_exit_code"] == 99


def test_the_documented_airflow_task_skips_and_fails_as_airflow_expects(daily: Path, airflow: dict[str, Any]) -> None:
    page = (REPOSITORY / "docs/scheduling.md").read_text()
    (snippet,) = (code for code in re.findall(r"```python\n(.*?)```", page, re.DOTALL) if "def sift" in code)
    names: dict[str, Any] = {}
    exec(compile(snippet, "docs/scheduling.md", "exec"), names)
    sift = names["sift"]
    summary = sift(ds="2026-11-20")
    assert (summary["status"], summary["rows_in"]) == ("done", 12)
    with pytest.raises(names["AirflowSkipException"]):
        sift(ds="2026-11-20")
    # A person must fix a file at the path of a folder, or a mistake in a pipeline.
    (daily.parent / "out/2026-11-21.run").write_text("in the way")
    with pytest.raises(names["AirflowFailException"], match="ended with 2"):
        sift(ds="2026-11-21")
    daily.write_text(daily.read_text().replace("bos: 0", "bos: 9"))
    with pytest.raises(names["AirflowFailException"], match="ended with 2"):
        sift(ds="2026-11-22")
