"""The typed layer over the command, and its tables in other libraries."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import pickle
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import bucket
import longsift
import pyarrow.parquet as pq
import pytest
from conftest import REPOSITORY
from longsift._command import pipeline_file
from longsift._errors import error_for


def test_a_run_returns_its_summary(pipeline: Path) -> None:
    summary = longsift.run(pipeline, set={"stages.filter.keep_fraction": 0.25}, arguments=["-q"])
    assert (summary.status, summary.exit_code, summary.error) == ("done", 0, None)
    assert summary.rows_in == 24
    assert summary.rows_in == summary.rows_kept + sum(summary.rows_dropped.values()) + summary.quarantined
    assert summary.windows_total == summary.windows_kept + sum(summary.windows_dropped.values())
    assert Path(summary.run_dir, "_SUCCESS").exists()
    again = longsift.run(pipeline, set={"stages.filter.keep_fraction": 0.25}, arguments=["-q"])
    assert (again.status, again.windows_scored) == ("nothing_to_do", 0)


def test_arguments_in_one_string_are_refused(pipeline: Path) -> None:
    with pytest.raises(TypeError, match=r"write \['--threads', '8'\]"):
        longsift.run(pipeline, arguments="--threads 8")


def test_a_shard_returns_its_counts(pipeline: Path) -> None:
    summary = longsift.run(pipeline, arguments=["-q", "--phase=score", "--shard=1/2"])
    assert summary.shard is not None
    assert (summary.shard.index, summary.shard.count, summary.shard.units_scored) == (1, 2, 2)


def test_settings_of_every_type_reach_the_pipeline(pipeline: Path) -> None:
    plan = longsift.plan(
        pipeline,
        set={"stages.tokenize.bos": 1, "stages.score.within": None, "output.path": "a b: c 𠮷😀", "name": "7"},
        arguments=["--limit=5"],
    )
    settings = plan["settings"]
    assert settings["name"] == "7"
    assert settings["output"]["path"].endswith("a b: c 𠮷😀")
    assert plan["bos"] == 1
    assert plan["input"]["rows"] == 5


def test_an_evaluation_by_labels_returns_the_share_that_each_score_keeps(pipeline: Path) -> None:
    classes = sorted(set(pq.read_table(pipeline.parent / "input")["source"].to_pylist()))
    arguments = ["--windows=256", "--documents-per-category=4"]
    got = longsift.evaluate(pipeline, labels="source", good=classes[:1], arguments=arguments)
    result = got["labels"]["S256"]
    assert got["labels"]["good"] == classes[:1]
    assert set(result["classes"]) == set(classes)
    for score in ("score", "random"):
        quarter = result["reports"][score]["unguarded"][1]
        assert quarter["fraction"] == 0.25
        assert 0 <= quarter["real_share"][0] <= 1
    with pytest.raises(longsift.PipelineError, match="is not a value"):
        longsift.evaluate(pipeline, labels="source", good=["none of them"])
    assert longsift.evaluate(pipeline, arguments=arguments)["S256"]["documents"]


def test_a_failure_is_an_exception_with_the_exit_code(pipeline: Path) -> None:
    with pytest.raises(longsift.LongsiftError, match="keep_fraction") as caught:
        longsift.run(pipeline, set={"stages.filter.keep_fraction": 7}, arguments=["-q"])
    assert caught.value.exit_code == 2
    assert caught.value.summary is not None and caught.value.summary.status == "failed"
    with pytest.raises(longsift.PipelineError, match="does not exist"):
        longsift.plan(pipeline.with_name("absent.yaml"))


def test_errors_distinguish_causes_and_whether_a_retry_can_help(pipeline: Path) -> None:
    with pytest.raises(longsift.PipelineError) as caught:
        longsift.run(pipeline, set={"stages.filter.keep_fraction": 7}, arguments=["-q"])
    assert not caught.value.retryable
    with pytest.raises(longsift.DataError) as caught_data:
        path = pipeline.parent / "input/00.parquet"
        path.write_bytes(path.read_bytes()[:100])
        longsift.run(pipeline, arguments=["-q"])
    assert (caught_data.value.exit_code, caught_data.value.retryable) == (3, False)
    kinds = {4: longsift.MachineError, 6: longsift.CheckError, 143: longsift.MachineError, -9: longsift.MachineError}
    for code, kind in kinds.items():
        error = error_for("why", code)
        assert type(error) is kind and error.retryable == (kind is longsift.MachineError)
    assert type(error_for("a bug", 1)) is longsift.LongsiftError


def test_errors_can_be_pickled(pipeline: Path) -> None:
    with pytest.raises(longsift.PipelineError) as caught:
        longsift.run(pipeline, set={"stages.filter.keep_fraction": 7}, arguments=["-q"])
    again = pickle.loads(pickle.dumps(caught.value))
    assert (type(again), str(again), again.exit_code) == (type(caught.value), str(caught.value), 2)
    assert again.summary == caught.value.summary is not None


def test_a_pipeline_may_be_a_mapping(pipeline: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(pipeline.parent)
    content = longsift.plan(pipeline)["settings"]
    before = sorted(Path().iterdir())
    answer = longsift.validate(content)
    assert (answer["valid"], answer["name"], answer["problems"]) == (True, "test", [])
    assert sorted(Path().iterdir()) == before, "no temporary file is left"
    with pipeline_file(content) as path:
        assert Path(path).stat().st_mode & 0o777 == 0o600, "addresses may have passwords"
    summary = longsift.run(content, arguments=["-q", "--metrics-textfile", "test.prom"])
    assert summary.status == "done"
    assert 'longsift_exit_code{pipeline="test"} 0' in Path("test.prom").read_text(), "not named by the temporary file"
    assert longsift.run(pipeline, arguments=["-q"]).status == "nothing_to_do", "the file and the mapping are equivalent"
    content["output"]["path"] = "𠮷😀"
    assert longsift.plan(content)["settings"]["output"]["path"].endswith("𠮷😀")
    wrong = longsift.validate({**content, "version": 2})
    assert not wrong["valid"] and "version" in wrong["problems"][0]["message"]


def test_a_run_can_be_queried_and_verified(pipeline: Path) -> None:
    summary = longsift.run(pipeline, arguments=["-q"])
    assert longsift.status(summary.run_dir)["state"] == "finished"
    assert longsift.verify(summary.run_dir)["findings"] == []
    assert longsift.diff(summary.run_dir, summary.run_dir)["documents"]["other_fate"] == 0
    half = longsift.whatif(summary.run_dir, {"stages.filter.keep_fraction": 0.25})["total"]
    assert half["then"]["samples"] < half["now"]["samples"] == summary.kept
    kept = longsift.kept(summary.run_dir)
    assert kept.count_rows() == summary.kept and "longsift_score" in kept.schema.names
    data = Path(summary.run_dir.removesuffix(".run"), "data")
    part = next(data.iterdir())
    part.write_bytes(part.read_bytes()[:-1])
    assert part.name in str(longsift.verify(summary.run_dir)["findings"])
    with pytest.raises(longsift.LongsiftError):
        longsift.verify(data)
    with pytest.raises(FileNotFoundError):
        longsift.kept(data)


def test_kept_samples_of_a_mirrored_output_are_read_from_its_folders(pipeline: Path) -> None:
    folder = pipeline.parent
    (folder / "input/nested").mkdir()
    (folder / "input/03.parquet").rename(folder / "input/nested/03.parquet")
    summary = longsift.run(pipeline, set={"output.mirror": True}, arguments=["-q"])
    assert (folder / "out/data/nested/03.parquet").is_file()
    assert longsift.kept(summary.run_dir).count_rows() == summary.kept


def test_kept_samples_of_a_marked_output_are_those_that_the_filter_keeps(pipeline: Path) -> None:
    kept = longsift.kept(longsift.run(pipeline, arguments=["-q"]).run_dir).to_table()
    marked = longsift.run(pipeline, set={"stages.filter.mark_only": True}, arguments=["-q"])
    again = longsift.kept(marked.run_dir)
    assert again.to_table()["longsift_score"] == kept["longsift_score"] and again.count_rows() == marked.kept


def test_scores_of_another_run_are_opened(pipeline: Path) -> None:
    base = longsift.run(pipeline, arguments=["-q"])
    arguments = ["-q", "--scores-from", base.run_dir]
    other = longsift.run(pipeline, set={"output.path": str(pipeline.parent / "other")}, arguments=arguments)
    assert longsift.scores(other.run_dir).to_table() == longsift.scores(base.run_dir).to_table()


def test_scores_are_those_of_the_selection_even_if_others_exist(pipeline: Path) -> None:
    own = longsift.run(pipeline, arguments=["-q"])
    shorter = {"stages.tokenize.window_tokens": 32, "output.path": str(pipeline.parent / "other")}
    base = longsift.run(pipeline, set=shorter, arguments=["-q"])
    both = {**shorter, "output.path": str(Path(own.run_dir).with_suffix(""))}
    again = longsift.run(pipeline, set=both, arguments=["-q", "--scores-from", base.run_dir])
    assert again.run_dir == own.run_dir
    assert longsift.scores(again.run_dir).to_table() == longsift.scores(base.run_dir).to_table()


def test_scores_of_changed_files_are_not_read_twice(pipeline: Path) -> None:
    from pyarrow import parquet

    before = longsift.run(pipeline, arguments=["-q"])
    scores = longsift.scores(before.run_dir).to_table()
    for path in (pipeline.parent / "input").glob("*.parquet"):
        parquet.write_table(parquet.read_table(path), path, row_group_size=1)
    units = {"input.unit_bytes": 1024}
    longsift.run(pipeline, set=units, arguments=["-q", "--phase", "score"])
    assert longsift.scores(before.run_dir).to_table() == scores, "the selection is the old one"
    manifest = Path(before.run_dir, "manifest.json")
    content = manifest.read_bytes()
    manifest.unlink()
    assert longsift.scores(before.run_dir).count_rows() == scores.num_rows
    manifest.write_bytes(content)
    after = longsift.run(pipeline, set=units, arguments=["-q"])
    assert longsift.scores(after.run_dir).count_rows() == scores.num_rows


def test_scores_of_an_unfinished_run_are_those_of_its_last_plan(pipeline: Path) -> None:
    from pyarrow import parquet

    path = next((pipeline.parent / "input").glob("*.parquet"))
    table = parquet.read_table(path)
    parquet.write_table(table, path, row_group_size=1)
    small, score = {"input.unit_bytes": 1024}, ["-q", "--phase", "score"]
    run_dir = pipeline.parent / "out.run"
    longsift.run(pipeline, set=small, arguments=score)
    before = longsift.scores(run_dir).to_table()
    earlier = path.rename(path.with_name("earlier"))
    parquet.write_table(table.slice(0, 3), path, row_group_size=3)
    longsift.run(pipeline, set=small, arguments=score)
    assert longsift.scores(run_dir).count_rows() < before.num_rows
    earlier.rename(path)
    longsift.run(pipeline, set=small, arguments=score)
    assert longsift.scores(run_dir).to_table() == before
    longsift.run(pipeline, arguments=score)
    assert longsift.scores(run_dir).to_table() == before, "units of another size"
    planned = json.loads((run_dir / "plan.json").read_text())["planned"]["units"]
    units = [run_dir / f"units/{name}.json" for name in planned]
    unit = max(units, key=lambda path: json.loads(path.read_text())["scores"]["rows"])
    content = unit.read_bytes()
    record = json.loads(content)
    measures = {name: {**measure, "only": {"length": {"min": 9}}} for name, measure in record["measures"].items()}
    changes: list[dict[str, Any]] = [{"windows": "other"}, {"measures": {}}, {"measures": measures}]
    for change in changes:
        unit.write_bytes(sealed({**record, **change}))
        assert longsift.scores(run_dir).count_rows() < before.num_rows, f"a record with {change}"
    unit.write_bytes(sealed(record))
    assert longsift.scores(run_dir).to_table() == before
    unit.write_bytes(content.replace(b'"first_row"', b'"last_row"'))
    assert longsift.scores(run_dir).count_rows() < before.num_rows, "a damaged record"
    unit.write_bytes(content)
    shutil.copytree(run_dir / "units", run_dir / "fresh/units")
    shutil.copytree(run_dir / "scores", run_dir / "fresh/scores")
    shutil.copy(run_dir / "pipeline.lock", run_dir / "fresh")
    unit.unlink()
    assert longsift.scores(run_dir).to_table() == before, "those of the fresh start"
    (run_dir / "plan.json").unlink()
    with pytest.raises(ValueError, match="plan.json is missing"):
        longsift.scores(run_dir)


def sealed(record: dict[str, Any]) -> bytes:
    """Returns a record with a digest of its content."""
    content = json.dumps({key: value for key, value in record.items() if key != "sha256"}, separators=(",", ":"))
    return f'{content[:-1]},"sha256":"{hashlib.sha256(content.encode()).hexdigest()}"}}'.encode()


def test_the_summary_has_every_field_of_its_schema() -> None:
    schema = json.loads((REPOSITORY / "schemas/summary.schema.json").read_text())
    for kind, properties in (
        (longsift.Summary, schema["properties"]),
        (longsift.Table, schema["$defs"]["TableUse"]["properties"]),
        (longsift.Shard, schema["$defs"]["ShardSummary"]["properties"]),
        (longsift.Devices, schema["$defs"]["DeviceUse"]["properties"]),
        (longsift.DeviceWork, schema["$defs"]["DeviceWork"]["properties"]),
        (longsift.Drift, schema["$defs"]["GroupDrift"]["properties"]),
        (longsift.Guard, schema["$defs"]["GuardUse"]["properties"]),
        (longsift.GuardedGroup, schema["$defs"]["GuardedGroup"]["properties"]),
        (longsift.Check, schema["$defs"]["Checked"]["properties"]),
    ):
        fields = {field.name for field in dataclasses.fields(kind)} - {"raw"}
        assert fields == set(properties), kind


def test_nested_fields_of_a_summary_are_typed(pipeline: Path) -> None:
    summary = longsift.run(pipeline, arguments=["-q"])
    assert summary.table is not None and summary.table.bytes > 0
    assert summary.devices is not None and summary.devices.list[0].pieces > 0
    assert (summary.files_quarantined, summary.drift, summary.windows_not_measured) == (0, [], {})


def test_a_notebook_shows_the_log(pipeline: Path, capsys: pytest.CaptureFixture[str]) -> None:
    # pytest replaces `sys.stderr`, as a notebook does.
    longsift.run(pipeline)
    assert "kept" in capsys.readouterr().err


def test_the_module_runs_the_command(pipeline: Path) -> None:
    answer = subprocess.check_output([sys.executable, "-m", "longsift", "validate", pipeline], text=True)
    assert "is a valid pipeline" in answer


def test_scores_are_a_dataset_of_committed_units_in_input_order(pipeline: Path) -> None:
    summary = longsift.run(pipeline, arguments=["-q"])
    scores = longsift.scores(summary.run_dir)
    table = scores.to_table()
    assert table.num_rows == summary.windows_total
    order = list(zip(*(table[name].to_pylist() for name in ("input_file", "input_row", "window")), strict=True))
    assert order == sorted(order)
    Path(summary.run_dir, "manifest.json").unlink()
    records = {path: json.loads(path.read_text()) for path in Path(summary.run_dir, "units").iterdir()}
    uncommitted, record = max(records.items(), key=lambda item: item[1]["scores"]["rows"])
    uncommitted.unlink()
    rest = summary.windows_total - record["scores"]["rows"]
    assert longsift.scores(summary.run_dir).count_rows() == rest < summary.windows_total
    with pytest.raises(FileNotFoundError, match="no work unit"):
        longsift.scores(pipeline.parent)


def test_scores_have_the_columns_of_all_units(pipeline: Path) -> None:
    without = pipeline.read_text()
    pipeline.write_text(without.replace("  - {stage: score", "  - {stage: lexical}\n  - {stage: score"))
    longsift.run(pipeline, arguments=["-q"])
    # Files that come first and are scored without `lexical`.
    pipeline.write_text(without)
    for path in sorted((pipeline.parent / "input").iterdir()):
        shutil.copy(path, path.with_name(f"0-{path.name}"))
    summary = longsift.run(pipeline, arguments=["-q"])
    table = longsift.scores(summary.run_dir).to_table()
    assert table.num_rows == summary.windows_total
    assert 0 < table["unique_token_share"].null_count < table.num_rows


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
        # Characters that are escaped in addresses are literal.
        shutil.copytree(summary.run_dir, pipeline.parent / "ä [1]%20.run")
        assert longsift.scores("s3://bucket/ä [1]%20.run").to_table().equals(here)
    assert sum(line.startswith("GET /bucket/out.run/manifest.json") for line in asked) == 1, asked
    assert not any(line.startswith("GET /bucket/out.run/units/") for line in asked), asked
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


def test_files_that_changed_since_the_run_are_not_read(pipeline: Path) -> None:
    run = Path(longsift.run(pipeline, arguments=["-q"]).run_dir)
    parts = sorted((run.with_suffix("") / "data").iterdir()) + sorted((run / "scores").iterdir())
    for part, read in [(parts[0], longsift.kept), (parts[-1], longsift.scores)]:
        whole = part.read_bytes()
        part.write_bytes(whole + b"x")
        with pytest.raises(ValueError, match="has changed since the run"):
            read(run)
        part.write_bytes(whole)
    intent, manifest = run / "intent.json", run / "manifest.json"
    intent.write_text("{}")
    with pytest.raises(ValueError, match="commit .* is unfinished"):
        longsift.kept(run)
    intent.unlink()
    (run / "_SUCCESS").rename(run / "success")
    with pytest.raises(FileNotFoundError, match="not finished"):
        longsift.kept(run)
    (run / "success").rename(run / "_SUCCESS")
    whole = manifest.read_bytes()
    for damaged in (b"", whole.replace(b"windows", b"windowz", 1)):
        manifest.write_bytes(damaged)
        with pytest.raises(ValueError, match="is damaged"):
            longsift.scores(run)
    manifest.write_bytes(whole)
