"""The ablation with torch: learning, causality, resuming, statistics against slow references. `.ci/nightly` runs it."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from ablation_runs import VOCABULARY, WINDOW, random_windows, write_experiment

from longsift.ablation.__main__ import main
from longsift.ablation.config import read_settings
from longsift.ablation.evaluate import evaluate, full_losses, near_losses, task_windows
from longsift.ablation.model import Decoder, HeadLoss
from longsift.ablation.optimiser import Optimiser, orthogonalise, schedule
from longsift.ablation.plan import choose, prepare
from longsift.ablation.results import Results, claim, results_path
from longsift.ablation.sizes import SIZES
from longsift.ablation.train import Stopped, batch_rows, train

pytestmark = pytest.mark.torch
CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


def trained_looking(seed: int = 1) -> Decoder:
    """A model in which every parameter affects the output."""
    torch.manual_seed(seed)
    model = Decoder(SIZES["toy"], 64)
    for parameter in model.parameters():
        parameter.data.add_(torch.randn_like(parameter) * 0.1)
    return model


def copies(count: int, seed: int) -> npt.NDArray[Any]:
    """Windows whose second half repeats their random first half."""
    ids = random_windows(count, seed)
    ids[:, WINDOW // 2 :] = ids[:, : WINDOW // 2]
    return ids


def test_later_tokens_do_not_change_earlier_losses() -> None:
    model, ids = trained_looking(), random_windows(3, 1)
    before = full_losses(model, ids, CPU)
    changed = ids.copy()
    changed[:, 40:] = random_windows(3, 2)[:, 40:]
    after = full_losses(model, changed, CPU)
    assert (after[:, :39] == before[:, :39]).all() and (after[:, 39:] != before[:, 39:]).mean() > 0.9
    earlier = ids.copy()
    earlier[:, 5] = (earlier[:, 5] + 1) % VOCABULARY
    assert (full_losses(model, earlier, CPU)[:, 5:] != before[:, 5:]).mean() > 0.9, "all later tokens see an earlier one"


def test_losses_agree_with_a_slow_reference_in_numpy() -> None:
    model, ids = trained_looking(), random_windows(2, 3)
    weights = {name: value.double().numpy() for name, value in model.state_dict().items()}

    def norm(x: npt.NDArray[Any]) -> npt.NDArray[Any]:
        found: npt.NDArray[Any] = x / np.sqrt((x**2).mean(-1, keepdims=True) + np.finfo(np.float32).eps)
        return found

    def convolve(x: npt.NDArray[Any], weight: npt.NDArray[Any]) -> npt.NDArray[Any]:
        padded = np.concatenate([np.zeros((2, x.shape[1])), x])
        found: npt.NDArray[Any] = np.stack([sum(weight[k] * padded[t + k] for k in range(3)) for t in range(len(x))])
        return found

    def turn(x: npt.NDArray[Any]) -> npt.NDArray[Any]:
        half = x.shape[1] // 2
        found = np.empty_like(x)
        for position, row in enumerate(x):
            for channel in range(half):
                angle = position * 10000.0 ** (-channel / half)
                a, b = row[channel], row[channel + half]
                found[position, channel] = a * math.cos(angle) - b * math.sin(angle)
                found[position, channel + half] = b * math.cos(angle) + a * math.sin(angle)
        return found

    def losses(window: list[int]) -> list[float]:
        x = norm(convolve(weights["embedding.weight"][window[:-1]], weights["convolution.weight"]))
        for layer in range(2):
            own = {name.split(f"layers.{layer}.")[1]: value for name, value in weights.items() if f"layers.{layer}." in name}
            query, key, value = (
                convolve(norm(x) @ own[f"attention.projections.{k}"].T, own[f"attention.convolutions.{k}.weight"]) for k in range(3)
            )
            heads = []
            for head in range(2):
                part = slice(16 * head, 16 * head + 16)
                q, k = turn(norm(query[:, part])) * own["attention.scale"][head, 0, 0], turn(norm(key[:, part]))
                logits = q @ k.T / math.sqrt(16)
                logits[np.triu_indices(len(logits), 1)] = -np.inf
                shares = np.exp(logits - logits.max(1, keepdims=True))
                heads.append(shares / shares.sum(1, keepdims=True) @ value[:, part])
            x = x + np.concatenate(heads, 1) @ own["attention.output"].T
            x = x + np.maximum(norm(x) @ own["rise"].T, 0) ** 2 @ own["fall"].T
        logits = norm(x) @ weights["head.weight"].T + weights["head.bias"]
        peak = logits.max(1)
        total = peak + np.log(np.exp(logits - peak[:, None]).sum(1))
        return [float(total[t] - logits[t, target]) for t, target in enumerate(window[1:])]

    expected = [losses(window) for window in ids.tolist()]
    assert full_losses(model, ids, CPU) == pytest.approx(np.array(expected), abs=2e-4)
    near = near_losses(model, ids, 8, CPU)
    for row, window in enumerate(ids.tolist()):
        for index, target in enumerate(range(WINDOW - WINDOW // 8, WINDOW)):
            assert near[row, index] == pytest.approx(losses(window[target - 8 : target + 1])[-1], abs=2e-4)


def test_the_loss_of_the_head_and_its_gradients_are_those_of_a_cross_entropy() -> None:
    torch.manual_seed(1)
    hidden, weight, bias = (torch.randn(shape, requires_grad=True) for shape in ((600, 8), (50, 8), (50,)))
    targets = torch.randint(0, 50, (600,))
    expected = torch.nn.functional.cross_entropy(hidden @ weight.T + bias, targets)
    gradients = torch.autograd.grad(3 * expected, (hidden, weight, bias))
    for precision, error in ((torch.float32, 1e-5), (torch.bfloat16, 2e-2)):
        found = HeadLoss.apply(hidden, weight, bias, targets, precision)
        assert float(found.detach()) == pytest.approx(float(expected.detach()), rel=error)
        for one, other in zip(torch.autograd.grad(3 * found, (hidden, weight, bias)), gradients, strict=True):
            assert (one - other).norm() < error * other.norm(), precision


def test_an_evaluation_averages_the_losses(tmp_path: Path) -> None:
    arms = {"one": random_windows(80, 1), "two": random_windows(80, 2)}
    plan = prepare(read_settings(write_experiment(tmp_path, arms, copies(8, 3))))
    held = choose(plan.heldout, 2)
    torch.manual_seed(1)
    model = Decoder(SIZES["toy"], plan.vocabulary, plan.unigram())
    for parameter in model.parameters():
        parameter.data.add_(torch.randn_like(parameter) * 0.1)
    record = evaluate(model, held, 8, CPU)
    full, near = full_losses(model, held.ids, CPU), near_losses(model, held.ids, 8, CPU)
    a, b = ([row for row in range(len(held.ids)) if held.classes[held.document_of[row]] == name] for name in ("a", "b"))
    assert record["loss"] == pytest.approx((full[a].mean() + full[b].mean()) / 2, abs=1e-4)
    gain = near - full[:, -near.shape[1] :]
    assert record["long_gain"] == pytest.approx((gain[a].mean() + gain[b].mean()) / 2, abs=1e-4)
    # Every token of the second half of a copy last occurred half a window back, with its trigram.
    assert record["retrieval_gain"] == pytest.approx(record["long_gain"], abs=1e-4)
    assert record["octaves"][-1] == pytest.approx((full[a][:, 31:].mean() + full[b][:, 31:].mean()) / 2, abs=1e-4)
    assert sum(record["documents"]["loss"]["counts"]) == full.size


def test_the_unigram_is_what_an_untrained_model_predicts(tmp_path: Path) -> None:
    arms = {"one": random_windows(80, 1) // 2, "two": random_windows(80, 2)}
    plan = prepare(read_settings(write_experiment(tmp_path, arms, random_windows(8, 3))))
    model = Decoder(SIZES["toy"], plan.vocabulary, plan.unigram())
    losses = full_losses(model, plan.heldout.ids, CPU)
    assert losses == pytest.approx(-np.log(plan.unigram()[plan.heldout.ids[:, 1:]]), abs=1e-4)


def test_the_synthetic_task_has_one_answer(tmp_path: Path) -> None:
    arms = {"one": random_windows(80, 1), "two": random_windows(80, 2)}
    plan = prepare(read_settings(write_experiment(tmp_path, arms, random_windows(12, 3))))
    copy, recall, answers = task_windows(choose(plan.heldout, 4))
    assert (copy[:, :32] == copy[:, 32:]).all()
    assert answers == list(range(WINDOW - 15, WINDOW, 2))
    for pair, place in enumerate(answers):
        assert (recall[:, place - 1 : place + 1] == recall[:, 4 * pair : 4 * pair + 2]).all()


def test_orthogonalised_matrices_have_singular_values_near_one() -> None:
    torch.manual_seed(1)
    for shape in ((128, 32), (32, 128)):
        values = torch.linalg.svdvals(orthogonalise(torch.randn(shape)))
        assert 0.6 < values.min() and values.max() < 1.3, shape


def test_the_schedule_rises_stays_and_falls() -> None:
    factors = [schedule(step, 100, 9, 0.4) for step in range(100)]
    assert factors[0] == pytest.approx(0.1) and factors[9:60] == [1.0] * 51
    assert factors[60] == 1.0 and factors[80] == pytest.approx(0.5) and 0 < factors[99] < 0.03


def test_every_epoch_has_each_window_once() -> None:
    rows = np.concatenate([batch_rows(step, 4, 10, seed=1) for step in range(5)])
    assert sorted(rows[:10]) == sorted(rows[10:]) == list(range(10)) and rows[:10].tolist() != rows[10:].tolist()


@pytest.mark.parametrize("precision", ["f32", "bf16"])
def test_the_loop_learns_to_copy_and_random_tokens_lose(tmp_path: Path, precision: str) -> None:
    """The long gain comes from copying: fifteen words cannot be guessed, but were seen half a window back."""
    arms = {"copies": copies(600, 1), "random": random_windows(600, 2)}
    path = write_experiment(tmp_path, arms, copies(12, 3), tokens=600 * WINDOW * 8, batch_windows=8, evaluate_tokens=50_000, precision=precision)
    plan = prepare(read_settings(path))
    finals = {}
    for arm in arms:
        results = train(plan, arm, 1, lambda: False, lambda text: None)
        finals[arm] = results.evaluations[-1]
    assert finals["copies"]["retrieval_gain"] > 2 > 0.5 > finals["random"]["retrieval_gain"]
    assert finals["copies"]["loss"] < finals["random"]["loss"] - 0.8
    assert finals["copies"]["copy"] > 0.8 > 0.1 > finals["random"]["copy"]


def without_times(results: Results) -> list[dict[str, object]]:
    return [{key: value for key, value in one.items() if not key.endswith("seconds")} for one in results.evaluations]


def test_the_same_seed_gives_the_same_losses_and_a_stopped_run_resumes(tmp_path: Path) -> None:
    arms = {"one": random_windows(80, 1), "two": random_windows(80, 2)}
    settings = read_settings(write_experiment(tmp_path, arms, random_windows(8, 3), evaluate_tokens=1280))
    plan = prepare(settings)
    whole = train(plan, "one", 1, lambda: False, lambda text: None)
    assert [one["step"] for one in whole.evaluations] == [5, 10, 15, 20]
    again = prepare(dataclasses.replace(settings, output=tmp_path / "again"))
    calls = iter(range(1000))
    for _ in range(30):
        try:
            stopped = train(again, "one", 1, lambda: next(calls) % 3 == 2, lambda text: None)
            break
        except Stopped:
            pass
    assert without_times(stopped) == without_times(whole)
    other = train(prepare(dataclasses.replace(settings, output=tmp_path / "other")), "one", 2, lambda: False, lambda text: None)
    assert other.evaluations[-1]["loss"] != whole.evaluations[-1]["loss"]


def test_a_killed_run_resumes_to_the_same_curve(tmp_path: Path) -> None:
    arms = {"one": random_windows(160, 1), "two": random_windows(160, 2)}
    path = write_experiment(tmp_path, arms, random_windows(8, 3), tokens=160 * WINDOW * 4, evaluate_tokens=1280)
    settings = read_settings(path)
    plan = prepare(settings)
    whole = train(prepare(dataclasses.replace(settings, output=tmp_path / "whole")), "one", 1, lambda: False, lambda text: None)
    command = [sys.executable, "-m", "longsift.ablation", "run", str(path), "--arms", "one"]
    file = results_path(settings.output, "one", 1)
    for evaluations in (2, 9):
        with subprocess.Popen(command, stderr=subprocess.DEVNULL) as process:
            deadline = time.monotonic() + 120
            while len(Results.read(file).evaluations) < evaluations and process.poll() is None and time.monotonic() < deadline:
                time.sleep(0.02)
            process.send_signal(signal.SIGKILL)
        assert not Results.read(file).finished
    # A kill between a result and its checkpoint leaves a result of a step that training has not reached, and half a line.
    results = Results.read(file)
    results.evaluations.append({**results.evaluations[-1], "step": 10_000, "loss": 0})
    results.write()
    with file.open("a") as open_file:
        open_file.write('{"record": "eval')
    resumed = train(plan, "one", 1, lambda: False, lambda text: None)
    assert [one["step"] for one in resumed.evaluations] == [one["step"] for one in whole.evaluations]
    # Another process may place tensors at other addresses, for which libraries round differently.
    for name in ("loss", "long_gain", "copy", "octaves"):
        found, expected = ([one[name] for one in results.evaluations] for results in (resumed, whole))
        assert np.array(found) == pytest.approx(np.array(expected), abs=1e-3), name


def test_the_command_runs_stops_and_resumes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arms = {"one": random_windows(80, 1), "two": random_windows(80, 2)}
    path = write_experiment(tmp_path, arms, random_windows(8, 3), seeds=[1, 2, 3])
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    stopped = subprocess.run([sys.executable, "-m", "longsift.ablation", "run", path, "--minutes", "0"], env=environment, check=False)
    assert stopped.returncode == 4
    assert main(["run", str(path)]) == 0
    assert "one against two: without a verdict: too small to compare" in capsys.readouterr().out
    report = (tmp_path / "results/report.md").read_text()
    assert report.count("| 3 | 80 |") == 2 and "1 thread" in report
    assert main(["run", str(path), "--arms", "three"]) == 2


def test_finished_runs_need_no_models_and_two_processes_share_the_work(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arms = {"one": random_windows(80, 1), "two": random_windows(80, 2)}
    path = write_experiment(tmp_path, arms, random_windows(8, 3))
    results = tmp_path / "results"
    with claim(results, "two", 1):
        assert main(["run", str(path)]) == 4
    assert "another process trains two with seed 1" in capsys.readouterr().err
    before = (results / "one.1.jsonl").read_bytes()
    assert ["documents" in json.loads(line) for line in before.splitlines()] == [True, False, True]
    assert json.loads((results / "plan.json").read_text())["arms"].keys() == arms.keys()
    # What a clone has: results and counted values.
    shutil.rmtree(results / "models")
    assert main(["report", str(path)]) == 0
    assert "1 of 2 runs are finished" in capsys.readouterr().out
    assert main(["run", str(path)]) == 0
    assert (results / "one.1.jsonl").read_bytes() == before and not (results / "models/one.1.pt").exists()
    assert (results / "models/two.1.pt").exists()


def test_arms_continue_from_a_shared_start(tmp_path: Path) -> None:
    arms = {"one": copies(300, 1), "two": random_windows(300, 2)}
    path = write_experiment(tmp_path, arms, copies(12, 3), tokens=300 * WINDOW * 8, evaluate_tokens=100_000, batch_windows=8)
    assert main(["run", str(path), "--arms", "one"]) == 0
    start = tmp_path / "results/models/one.1.pt"
    copied = Results.read(results_path(tmp_path / "results", "one", 1)).evaluations[-1]["loss"]
    content = {**json.loads(path.read_text()), "output": "from-start", "start": str(start), "tokens": 300 * WINDOW}
    content |= {"matrix_rate": 1e-9, "other_rate": 1e-9}
    path.write_text(json.dumps(content))
    assert main(["run", str(path), "--arms", "two"]) == 0
    found = Results.read(results_path(tmp_path / "from-start", "two", 1))
    assert found.evaluations[-1]["loss"] == pytest.approx(copied, abs=1e-3), "no step was taken from it"
    assert found.run["identity"]["start"] is not None


def test_both_optimisers_move_every_parameter() -> None:
    model = trained_looking()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    optimiser = Optimiser(model, 0.01, 0.01)
    ids = torch.from_numpy(random_windows(4, 1).astype(np.int64))
    for _ in range(2):
        model(ids).backward()
        optimiser.step(1.0)
    for name, value in model.state_dict().items():
        assert not torch.equal(value, before[name]), name
