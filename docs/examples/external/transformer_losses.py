#!/usr/bin/env python3
"""Gain of a causal language model of the transformers library from a long context: over the second half of a window's tokens,
the mean loss with a context of at most 1,024 tokens minus the mean loss with the whole window.

    - stage: external
      name: losses
      command: [python3, transformer_losses.py, /models/SmolLM2-135M]
      version: "transformers 4.57"
      reads: ids
      batch_windows: 4
      timeout_seconds: 3600
      pass_environment: [CUDA_VISIBLE_DEVICES]
      statistics:
        - {name: long_loss, unit: nats per token, doc: loss of the second half with the whole window, orientation: lower}
        - {name: long_gain, unit: nats per token, doc: loss with at most 1024 tokens minus loss with the whole window}

The token ids are those of the pipeline's tokenizer, so the model must be the one that the tokenizer belongs to.
"""

import sys

import pyarrow as pa
import torch
from transformers import AutoModelForCausalLM

SHORT = 1024
device = "cuda" if torch.cuda.is_available() else "cpu"
model = AutoModelForCausalLM.from_pretrained(sys.argv[1], dtype=torch.float32).to(device).eval()
ANSWER = pa.schema([
    ("row", pa.int64()),
    ("window", pa.int32()),
    ("long_loss", pa.float64()),
    ("long_gain", pa.float64()),
])


@torch.inference_mode()
def losses(ids, first):
    """Losses of the tokens of `ids` from `first` on, given the tokens before them, in float64."""
    logits = model(ids[None, :-1]).logits[0, first - 1:].double()
    return torch.nn.functional.cross_entropy(logits, ids[first:], reduction="none")


def measure(ids, short=SHORT):
    ids = torch.tensor(ids, device=device)
    half = len(ids) // 2
    if half < 1 or len(ids) < 2:
        return None, None
    long = losses(ids, half).mean().item()
    # Blocks of half the short context, so that each token has between half and all of it as context.
    step, saw, total = max(short // 2, 1), 0, 0.0
    for start in range(half, len(ids), step):
        begin = max(0, start - (short - step))
        block = ids[begin:start + step]
        found = losses(block, start - begin)
        total, saw = total + found.sum().item(), saw + len(found)
    return long, total / saw - long


def main():
    questions = pa.ipc.open_stream(sys.stdin.buffer)
    with pa.ipc.new_stream(sys.stdout.buffer, ANSWER) as answers:
        for batch in questions:
            measured = [measure(ids) for ids in batch["ids"].to_pylist()]
            answers.write_batch(pa.record_batch([
                batch["row"],
                batch["window"],
                pa.array([long for long, _ in measured], pa.float64()),
                pa.array([gain for _, gain in measured], pa.float64()),
            ], schema=ANSWER))
            sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
