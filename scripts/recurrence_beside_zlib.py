"""Recurrence beside zlib level 6 on the same text in one go, on one core, in processor time.

    cargo build --release
    python scripts/recurrence_beside_zlib.py --tokenizer FOLDER CORPUS.parquet…
        [--longsift target/release/longsift] [--windows 8192,32768]

`longsift bench` compares recurrence with the zlib that longsift links, zlib-rs, which is two to three times as fast as the zlib
that a system has. So this prints both: the ratio that `bench` gives, and that to Python's zlib over pieces of the same text that
are as long as the windows. Needs pyarrow.
"""

import argparse
import json
import pathlib
import subprocess
import tempfile
import time
import zlib

import pyarrow.parquet

PIPELINE = """version: 1
name: beside-zlib
input: {{path: {corpus}, text_column: {column}}}
stages:
  - {{stage: tokenize, tokenizer: {tokenizer}, window_tokens: 4096, short_documents: drop}}
  - {{stage: recurrence}}
  - {{stage: score, formula: far-recurrence}}
  - {{stage: filter, keep_fraction: 0.25}}
output: {{path: out}}
"""
# What `longsift bench` reads of a corpus.
TEXT_BYTES = 16 << 20


def bench(longsift, folder, windows):
    """Figures of recurrence as {(series, tokens): value}."""
    figures = folder / "figures.json"
    command = [longsift, "bench", str(folder / "pipeline.yaml"), "--windows", windows, "--json", str(figures)]
    done = subprocess.run([*command, "--head-dims", "64", "--repeats", "1"], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(done.stderr)
    figures = json.loads(figures.read_text())["figures"]
    return {(of["series"], int(of["at"])): of["value"] for of in figures if of["group"] == "recurrence"}


def zlib_rate(text, piece_bytes):
    """Bytes a second of processor time, the best of three rounds."""
    rounds = []
    for _ in range(3):
        start = time.process_time()
        for first in range(0, len(text) - piece_bytes + 1, piece_bytes):
            zlib.compress(text[first : first + piece_bytes], 6)
        rounds.append(time.process_time() - start)
    return len(text) // piece_bytes * piece_bytes / min(rounds)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpora", nargs="+", type=pathlib.Path)
    parser.add_argument("--tokenizer", type=pathlib.Path, required=True)
    parser.add_argument("--column", default="text")
    parser.add_argument("--longsift", default="target/release/longsift")
    parser.add_argument("--windows", default="8192,32768")
    arguments = parser.parse_args()
    print(f"zlib {zlib.ZLIB_RUNTIME_VERSION} of Python; rates of one core's processor time")
    print(f"{'corpus':<12}{'window':>8}{'M tokens/s':>12}{'text MB/s':>11}{'× zlib-rs':>11}{'× zlib':>9}")
    for corpus in arguments.corpora:
        documents = pyarrow.parquet.read_table(corpus)[arguments.column].to_pylist()
        text = "".join(document or "" for document in documents).encode()[:TEXT_BYTES]
        with tempfile.TemporaryDirectory() as folder:
            folder = pathlib.Path(folder)
            paths = {"corpus": corpus.resolve(), "tokenizer": arguments.tokenizer.resolve()}
            (folder / "pipeline.yaml").write_text(PIPELINE.format(column=arguments.column, **paths))
            figures = bench(arguments.longsift, folder, arguments.windows)
        for tokens in map(int, arguments.windows.split(",")):
            if ("as fast as zlib", tokens) not in figures:
                print(f"{corpus.stem:<12}{tokens:>8}  the text is shorter")
                continue
            of_tokens, of_text = (figures[series, tokens] for series in ("tokens, 1 core", "their text, 1 core"))
            stock = of_text / zlib_rate(text, round(tokens * of_text / of_tokens))
            ratio = figures["as fast as zlib", tokens]
            print(f"{corpus.stem:<12}{tokens:>8}{of_tokens / 1e6:>12.0f}{of_text / 1e6:>11.0f}{ratio:>11.1f}{stock:>9.1f}")


if __name__ == "__main__":
    main()
