#!/usr/bin/env python3
"""Compares tokenization on one core: longsift, `tokenizers`, fastokens and gigatoken, with equal ids.

    python scripts/tokenizers_beside.py [--tokenizer FOLDER]... [--corpus FILE.parquet]... [--before PROGRAM] [--peers NAME,...]

Prints MB/s of text of a first (cold) and a second (warm) pass in one process, and the ratio of each to longsift's
cold speed. Programs that are missing or reject a tokenizer are skipped and listed. `--before`: an older build of the
example `tokenize`. Needs cargo, pyarrow, and the programs to compare: pip install tokenizers fastokens gigatoken.
"""

import argparse
import hashlib
import json
import os
import subprocess
import sys
from array import array
from collections.abc import Callable
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[1]
SHARED = Path(os.environ.get("LONGSIFT_SHARED", REPOSITORY / "../shared"))
CORPORA = ["books", "code", "papers", "mixed_short"]
PEERS = ["tokenizers", "fastokens", "gigatoken"]


def texts(corpora: list[str]) -> list[str]:
    """The column `text` of all files."""
    import pyarrow.parquet as parquet

    return [text for path in corpora for text in parquet.read_table(path, columns=["text"])["text"].to_pylist()]


def encoder(peer: str, folder: str) -> tuple[Callable[[str], Any], Callable[[Any], list[int]]]:
    """Returns a peer's function that encodes a text without special tokens, and one that converts the result to ids, which is
    not timed."""
    path = str(Path(folder) / "tokenizer.json")
    if peer == "tokenizers":
        from tokenizers import Tokenizer

        crate = Tokenizer.from_file(path)
        return (lambda text: crate.encode(text, add_special_tokens=False)), (lambda answer: answer.ids)
    if peer == "fastokens":
        import fastokens

        fast = fastokens.Tokenizer.from_file(path)
        return fast.encode, (lambda answer: answer.ids)
    import gigatoken

    giga = gigatoken.Tokenizer(folder)
    return giga.encode, list


def measure(peer: str, folder: str, corpora: list[str]) -> dict[str, object]:
    """Times two passes of a peer over all texts, encoding only."""
    from time import perf_counter

    encode, to_ids = encoder(peer, folder)
    documents, seconds, digest = texts(corpora), [], ""
    for _ in range(2):
        ids, spent = hashlib.sha256(), 0.0
        for text in documents:
            started = perf_counter()
            answer = encode(text)
            spent += perf_counter() - started
            ids.update(array("I", to_ids(answer)).tobytes())
        seconds.append(spent)
        digest = ids.hexdigest()
    return {"cold_s": seconds[0], "warm_s": seconds[1], "ids": digest}


def run(command: list[str]) -> dict[str, object] | str:
    """Runs a command; returns its last line as JSON, or the last line of its error."""
    one_core = {**os.environ, "RAYON_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(["taskset", "-c", "0", *command], capture_output=True, text=True, env=one_core)
    if done.returncode:
        return (done.stderr.strip().splitlines() or ["it failed"])[-1][:100]
    found: dict[str, object] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


def main() -> int:
    """Prints a table for each tokenizer; returns 1 if ids differ."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tokenizer", action="append", help="a folder with a tokenizer.json; default: those of ../shared and the demo's")
    parser.add_argument("--corpus", action="append", help="a Parquet file with a column `text`; default: those of ../shared")
    parser.add_argument("--before", help="an older build of the example `tokenize`")
    parser.add_argument("--peers", default=",".join(PEERS), help="which programs to compare with, separated by commas")
    parser.add_argument("--peer", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    corpora = arguments.corpus or [str(SHARED / f"corpora/{name}.parquet") for name in CORPORA]
    folders = arguments.tokenizer or [*map(str, sorted((SHARED / "tokenizers").iterdir())), str(REPOSITORY / "datasets/demo/model")]
    if arguments.peer:
        print(json.dumps(measure(arguments.peer, folders[0], corpora)))
        return 0
    build = ["cargo", "build", "--release", "--locked", "--quiet", "--workspace", "--example", "tokenize"]
    subprocess.run(build, check=True, cwd=REPOSITORY)
    own = str(REPOSITORY / "target/release/examples/tokenize")
    differing = False
    for folder in folders:
        programs = {"longsift": [own, folder, *corpora]}
        if arguments.before:
            programs["longsift, before"] = [arguments.before, folder, *corpora]
        files = [word for corpus in corpora for word in ("--corpus", corpus)]
        for peer in arguments.peers.split(","):
            programs[peer] = [sys.executable, __file__, "--peer", peer, "--tokenizer", folder, *files]
        print(f"{Path(folder).name:<24} {'cold':>8} {'warm':>8}   longsift's cold speed is")
        ours: dict[str, object] = {}
        for name, command in programs.items():
            found = run(command)
            if isinstance(found, str):
                print(f"  {name:<22} skipped: {found}")
                continue
            ours = ours or found
            megabytes = float(str(ours["bytes"])) / 1e6
            cold, warm = float(str(found["cold_s"])), float(str(found["warm_s"]))
            same = found["ids"] == ours["ids"]
            differing |= not same
            ratio = cold / float(str(ours["cold_s"]))
            print(f"  {name:<22} {megabytes / cold:>8.1f} {megabytes / warm:>8.1f}   {ratio:6.2f} times{'' if same else ', OTHER IDS'}")
    return int(differing)


if __name__ == "__main__":
    sys.exit(main())
