"""The typed layer over the command, and that its tables go where people need them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import bucket
import longsift
import pytest


def test_a_run_gives_its_summary(pipeline: Path) -> None:
    summary = longsift.run(pipeline, set={"stages.filter.keep_fraction": 0.25}, arguments=["-q"])
    assert (summary.status, summary.exit_code, summary.error) == ("done", 0, None)
    assert summary.rows_in == 24
    assert summary.rows_in == summary.rows_kept + sum(summary.rows_dropped.values()) + summary.quarantined
    assert summary.windows_total == summary.windows_kept + sum(summary.windows_dropped.values())
    assert Path(summary.run_dir, "_SUCCESS").exists()
    again = longsift.run(pipeline, set={"stages.filter.keep_fraction": 0.25}, arguments=["-q"])
    assert (again.status, again.windows_scored) == ("nothing_to_do", 0)


def test_a_shard_gives_its_part(pipeline: Path) -> None:
    summary = longsift.run(pipeline, arguments=["-q", "--phase=score", "--shard=1/2"])
    assert summary.shard is not None
    assert (summary.shard.index, summary.shard.count, summary.shard.units_scored) == (1, 2, 2)


def test_settings_of_every_type_reach_the_pipeline(pipeline: Path) -> None:
    plan = longsift.plan(
        pipeline,
        set={"stages.tokenize.bos": 1, "stages.score.within": None, "output.path": "a b: c", "name": "7"},
        arguments=["--limit=5"],
    )
    settings = plan["settings"]
    assert settings["name"] == "7"
    assert settings["output"]["path"].endswith("a b: c")
    assert plan["bos"] == 1
    assert plan["input"]["rows"] == 5


def test_a_failure_is_an_exception_with_the_exit_code(pipeline: Path) -> None:
    with pytest.raises(longsift.LongsiftError, match="keep_fraction") as caught:
        longsift.run(pipeline, set={"stages.filter.keep_fraction": 7}, arguments=["-q"])
    assert caught.value.exit_code == 2
    assert caught.value.summary is not None and caught.value.summary.status == "failed"
    with pytest.raises(longsift.LongsiftError, match="does not exist"):
        longsift.plan(pipeline.with_name("absent.yaml"))


def test_the_module_is_the_command(pipeline: Path) -> None:
    answer = subprocess.check_output([sys.executable, "-m", "longsift", "validate", pipeline], text=True)
    assert "is a valid pipeline" in answer


def test_scores_are_a_dataset_of_committed_units_in_input_order(pipeline: Path) -> None:
    summary = longsift.run(pipeline, arguments=["-q"])
    scores = longsift.scores(summary.run_dir)
    table = scores.to_table()
    assert table.num_rows == summary.windows_total
    order = list(zip(*(table[name].to_pylist() for name in ("input_file", "input_row", "window")), strict=True))
    assert order == sorted(order)
    records = {path: json.loads(path.read_text()) for path in Path(summary.run_dir, "units").iterdir()}
    uncommitted, record = max(records.items(), key=lambda item: item[1]["scores"]["rows"])
    uncommitted.unlink()
    rest = summary.windows_total - record["scores"]["rows"]
    assert longsift.scores(summary.run_dir).count_rows() == rest < summary.windows_total
    with pytest.raises(FileNotFoundError, match="no work unit"):
        longsift.scores(pipeline.parent)


def test_scores_are_read_from_a_bucket(pipeline: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    summary = longsift.run(pipeline, arguments=["-q"])
    here = longsift.scores(summary.run_dir).to_table()
    for name, value in {
        "AWS_ACCESS_KEY_ID": "someone",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "AWS_REGION": "us-east-1",
        "AWS_EC2_METADATA_DISABLED": "true",
    }.items():
        monkeypatch.setenv(name, value)
    with bucket.serve(pipeline.parent) as (url, asked):
        monkeypatch.setenv("AWS_ENDPOINT_URL", url)
        stored = longsift.scores("s3://bucket/out.run/")
        assert stored.to_table().equals(here)
        with pytest.raises(FileNotFoundError, match="no work unit of s3://bucket/input"):
            longsift.scores("s3://bucket/input")
    assert sum(line.startswith("GET /bucket/out.run/units/") for line in asked) == 4, asked
    assert not any("/out.run/lock" in line for line in asked)


def test_scores_and_output_go_to_pandas_polars_and_duckdb(pipeline: Path) -> None:
    duckdb = pytest.importorskip("duckdb")
    pandas = pytest.importorskip("pandas")
    polars = pytest.importorskip("polars")
    summary = longsift.run(pipeline, arguments=["-q"])
    scores = longsift.scores(summary.run_dir)
    mean = scores.to_table()["dependency_strength"].to_pandas().mean()
    assert 0 < mean < 1
    lazy = polars.scan_pyarrow_dataset(scores).select(polars.col("dependency_strength").mean())
    assert lazy.collect().item() == pytest.approx(mean)
    sql = duckdb.sql("select avg(dependency_strength), count(*) from scores").fetchall()
    assert sql == [(pytest.approx(mean), summary.windows_total)]
    data = pipeline.parent / "out/data"
    assert len(pandas.read_parquet(data)) == summary.kept
    assert polars.read_parquet(data / "*.parquet").height == summary.kept
    assert duckdb.sql(f"select count(*) from '{data}/*.parquet'").fetchall() == [(summary.kept,)]
