#!/usr/bin/env python3
"""Measures windows: the number of sentences, and the mean number of words per sentence.

    - stage: external
      name: sentences
      command: [python3, sentences.py]
      version: "1"
      statistics:
        - {name: sentences, kind: count, unit: sentences, doc: sentences of the window}
        - {name: words_per_sentence, unit: words, doc: words of an average sentence}
"""

import re
import sys

import pyarrow as pa

END = re.compile(r"[.!?]+(?:\s|$)")
ANSWER = pa.schema([
    ("row", pa.int64()),
    ("window", pa.int32()),
    ("sentences", pa.int64()),
    ("words_per_sentence", pa.float64()),
])


def measure(text):
    sentences = sum(1 for sentence in END.split(text) if sentence.strip())
    return sentences, len(text.split()) / sentences if sentences else None


questions = pa.ipc.open_stream(sys.stdin.buffer)
with pa.ipc.new_stream(sys.stdout.buffer, ANSWER) as answers:
    for batch in questions:
        measured = [measure(text) for text in batch["text"].to_pylist()]
        answers.write_batch(pa.record_batch([
            batch["row"],
            batch["window"],
            pa.array([sentences for sentences, _ in measured], pa.int64()),
            pa.array([words for _, words in measured], pa.float64()),
        ], schema=ANSWER))
        # longsift sends the next batch only after it has received this one.
        sys.stdout.buffer.flush()
