"""Trains one arm with one seed, evaluates at intervals and resumes from the last checkpoint."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from longsift._errors import PipelineError
from longsift.ablation.evaluate import evaluate
from longsift.ablation.hashing import permutation
from longsift.ablation.model import Checkpointed, Decoder
from longsift.ablation.optimiser import Optimiser, schedule
from longsift.ablation.plan import Plan, choose
from longsift.ablation.results import Results, results_path
from longsift.ablation.sizes import SIZES

CHECKPOINT_SECONDS = 60.0
"""Maximum work that is lost when a run is killed."""


class Stopped(Exception):
    """Training stopped with a checkpoint before its end."""


def batch_rows(step: int, batch_windows: int, windows: int, seed: int) -> npt.NDArray[np.intp]:
    """Indices of the windows of a step. Each epoch is a random permutation of all windows that depends only on the seed."""
    places = np.arange(step * batch_windows, (step + 1) * batch_windows)
    orders = {epoch: permutation(windows, seed, epoch) for epoch in {int(place) // windows for place in places}}
    return np.array([orders[int(place) // windows][int(place) % windows] for place in places])


def build(plan: Plan, seed: int) -> Any:
    """Returns the model before the first step, equal for all arms."""
    torch.manual_seed(seed)
    start = plan.settings.start
    if start is not None and start.is_dir():
        return Checkpointed(start)
    model = Decoder(SIZES[plan.settings.size], plan.vocabulary, plan.unigram())
    if start is not None:
        saved = torch.load(start, map_location="cpu", weights_only=True)
        if (saved["size"], saved["vocabulary"]) != (plan.settings.size, plan.vocabulary):
            raise PipelineError(
                f"{start} is a model of size {saved['size']} with {saved['vocabulary']} tokens; "
                f"expected {plan.settings.size} with {plan.vocabulary}",
                exit_code=2,
            )
        model.load_state_dict(saved["model"])
    return model


def machine(plan: Plan) -> dict[str, Any]:
    """The machine, for the report."""
    name = platform.processor() or platform.machine()
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                name = line.partition(":")[2].strip()
                break
    except OSError:
        pass
    if plan.settings.device != "cpu":
        name = torch.cuda.get_device_name(plan.settings.device)
    return {"processor": name, "cores": os.cpu_count(), "threads": plan.settings.threads, "torch": torch.__version__}


def train(plan: Plan, arm: str, seed: int, stop: Callable[[], bool], progress: Callable[[str], None]) -> Results:
    """Trains to the end. Raises `Stopped` if `stop` returns true."""
    settings = plan.settings
    torch.set_num_threads(settings.threads)
    device = torch.device(settings.device)
    results = Results.read(results_path(settings.output, arm, seed))
    identity = plan.identity(arm, seed)
    results.check(identity)
    if results.finished:
        return results
    windows = torch.from_numpy(plan.arms[arm].ids)
    final = choose(plan.heldout, settings.windows_per_document)
    on_the_way = choose(plan.heldout, settings.curve_windows_per_document)
    model = build(plan, seed).to(device)
    optimiser = Optimiser(model, settings.matrix_rate, settings.other_rate)
    checkpoint = settings.output / "models" / f"{arm}.{seed}.pt"
    step, seconds, evaluation_seconds = 0, 0.0, 0.0
    if results.run and checkpoint.is_file():
        saved = torch.load(checkpoint, map_location=device, weights_only=True)
        model.load_state_dict(saved["model"])
        optimiser.load(saved["optimiser"])
        step, seconds, evaluation_seconds = saved["step"], saved["seconds"], saved["evaluation_seconds"]
    else:
        results.run = {
            "record": "run",
            "identity": identity,
            "documents": list(final.documents),
            "classes": list(final.classes),
            "parameters": sum(parameter.numel() for parameter in model.parameters()),
            "machine": machine(plan),
        }
    results.truncate(step)

    def save(training: bool) -> None:
        state = {"model": model.state_dict(), "size": settings.size, "vocabulary": plan.vocabulary, "step": step}
        if training:
            state |= {"optimiser": optimiser.state(), "seconds": seconds, "evaluation_seconds": evaluation_seconds}
        checkpoint.parent.mkdir(parents=True, exist_ok=True)
        temporary = checkpoint.with_suffix(".tmp")
        torch.save(state, temporary)
        temporary.replace(checkpoint)

    loss_of_step = torch.compile(model) if settings.compile else model
    evaluation_steps = set(plan.evaluation_steps)
    begun, seconds_before = step, seconds
    clock = saved_at = time.monotonic()
    while True:
        if step in evaluation_steps and step not in {one["step"] for one in results.evaluations}:
            save(training=True)
            last = step == plan.steps
            record = evaluate(model, final if last else on_the_way, settings.near_tokens, device)
            if not last:
                del record["documents"]  # only the last evaluation has intervals
            saved_at = time.monotonic()
            evaluation_seconds += saved_at - clock
            clock = saved_at
            results.evaluations.append(
                {
                    "record": "evaluation",
                    "step": step,
                    "tokens": step * plan.step_tokens,
                    "final": last,
                    "seconds": round(seconds, 1),
                    "evaluation_seconds": round(evaluation_seconds, 1),
                    **record,
                }
            )
            results.write()
        if step == plan.steps:
            break
        if stop():
            save(training=True)
            raise Stopped
        rows = batch_rows(step, settings.batch_windows, len(windows), seed)
        with torch.autocast(device.type, torch.bfloat16, enabled=settings.precision == "bf16"):
            loss = loss_of_step(windows[rows].to(device).long())
        loss.backward()
        optimiser.step(schedule(step, plan.steps, settings.warmup_steps, settings.decay_share))
        step += 1
        now = time.monotonic()
        seconds += now - clock
        clock = now
        if clock - saved_at > CHECKPOINT_SECONDS:
            save(training=True)
            saved_at = clock
        if step % 10 == 0:
            rate = (step - begun) / max(seconds - seconds_before, 1e-9)
            progress(
                f"{arm}, seed {seed}: {step * plan.step_tokens / 1e6:.2f} of {plan.steps * plan.step_tokens / 1e6:.2f} million tokens, "
                f"training loss {float(loss.detach()):.3f}, {rate * plan.step_tokens:,.0f} tokens/s, "
                f"{(plan.steps - step) / rate / 60:.0f} min of training left"
            )
    # Without the state of the optimisers, as the start of a later experiment.
    save(training=False)
    return results
