#!/usr/bin/env python3
"""Reads documents before they are tokenized: drops those with few letters, and returns the share of letters of each.

    - stage: external
      name: prose
      command: [python3, prose.py, "0.5"]
      version: "1"
      reads: document
      statistics:
        - {name: letter_share, unit: share of the characters, doc: letters and spaces of the document}
"""

import sys

import pyarrow as pa

least = float(sys.argv[1])
ANSWER = pa.schema([("row", pa.int64()), ("drop", pa.bool_()), ("letter_share", pa.float64())])


def letters(text):
    return sum(character.isalpha() or character.isspace() for character in text) / len(text)


questions = pa.ipc.open_stream(sys.stdin.buffer)
with pa.ipc.new_stream(sys.stdout.buffer, ANSWER) as answers:
    for batch in questions:
        shares = [letters(text) for text in batch["text"].to_pylist()]
        # Return all rows of the batch in the same order, including those to drop.
        drops = [share < least for share in shares]
        answers.write_batch(pa.record_batch([
            batch["row"],
            pa.array(drops, pa.bool_()),
            pa.array(shares, pa.float64()),
        ], schema=ANSWER))
        sys.stdout.buffer.flush()
