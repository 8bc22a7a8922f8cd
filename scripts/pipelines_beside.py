#!/usr/bin/env python3
"""Compares whole pipelines on one core, from Parquet to Parquet: longsift's recurrence pipeline, an older longsift,
seven lines of Python, datatrove, and polars, which only reads and writes.

    python scripts/pipelines_beside.py [--tokenizer FOLDER] [--corpus FILE.parquet]... [--times 1,4,16] [--rounds 3]

Prints processor seconds, milliseconds per MB of text, peak memory and the ratio to longsift's processor time for the same
corpus: medians over `--rounds` interleaved rounds. `--times` repeats the corpus, for longsift, the older longsift and the
seven lines; sizes above 1 are measured once. LONGSIFT_BEFORE names an older binary. Missing programs are skipped and
listed. Needs ../shared for the defaults, a release build, pyarrow, and the programs to compare: pip install gigatoken
datatrove polars.
"""

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
SHARED = Path(os.environ.get("LONGSIFT_SHARED", REPOSITORY / "../shared"))
CORPORA = ["books", "code", "papers", "mixed_short"]
PIPELINE = """version: 1
name: recurrence
input: {{path: {corpus}, text_column: text}}
stages:
  - {{stage: tokenize, tokenizer: {tokenizer}, window_tokens: 8192}}
  - {{stage: recurrence}}
{lexical}  - {{stage: score, formula: far-recurrence}}
  - {{stage: filter, keep_fraction: 0.25}}
output: {{path: {output}}}
"""
POLARS = """
import sys, polars
polars.read_parquet(sys.argv[1] + "/*.parquet").write_parquet(sys.argv[2] + "/out.parquet", compression="zstd")
"""
DATATROVE = """
import gzip, sys
from datatrove.executor import LocalPipelineExecutor
from datatrove.pipeline.filters import LambdaFilter
from datatrove.pipeline.readers import ParquetReader
from datatrove.pipeline.writers import ParquetWriter
def keep(document):
    text = document.text.encode()
    return .2 < len(gzip.compress(text, 6)) / max(1, len(text)) < .8
steps = [ParquetReader(sys.argv[1], text_key="text"), LambdaFilter(keep), ParquetWriter(sys.argv[2] + "/out")]
LocalPipelineExecutor(steps, tasks=1, logging_dir=sys.argv[2] + "/logs").run()
"""
# Starts a program, waits for it and prints its processor seconds and its peak memory in bytes.
MEASURED = """
import resource, subprocess, sys
done = subprocess.run(sys.argv[1:], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
if done.returncode:
    sys.exit((done.stderr.strip().splitlines() or ["it failed"])[-1])
used = resource.getrusage(resource.RUSAGE_CHILDREN)
print(used.ru_utime + used.ru_stime, used.ru_maxrss * 1024)
"""


class Program:
    """A compared program and its measurements."""

    def __init__(self, name: str, times: int) -> None:
        """Names a program on a corpus that is repeated `times` times."""
        self.name, self.times = name, times
        self.seconds: list[float] = []
        self.memory: list[float] = []
        self.problem: str | None = None

    def run(self, command: list[str]) -> None:
        """Runs it once on one core and records its resources."""
        one_core = {**os.environ, "RAYON_NUM_THREADS": "1", "POLARS_MAX_THREADS": "1", "OMP_NUM_THREADS": "1"}
        bound = ["taskset", "-c", "0", sys.executable, "-c", MEASURED, *command]
        done = subprocess.run(bound, capture_output=True, text=True, env=one_core, timeout=1800)
        if done.returncode:
            self.problem = (done.stderr.strip().splitlines() or ["it failed"])[-1][:120]
            return
        seconds, memory = map(float, done.stdout.split())
        self.seconds.append(seconds)
        self.memory.append(memory)


def command(name: str, binary: str, folder: Path, corpus: Path, tokenizer: Path) -> list[str]:
    """Command of a program that writes below `folder`."""
    output = folder / "out"
    if name.startswith("longsift"):
        pipeline = folder / "pipeline.yaml"
        lexical = "  - {stage: lexical}\n" if "lexical" in name else ""
        pipeline.write_text(PIPELINE.format(corpus=corpus, tokenizer=tokenizer, output=output, lexical=lexical))
        return [binary, "run", str(pipeline)]
    output.mkdir()
    if name == "seven lines":
        files = sorted(map(str, corpus.glob("*.parquet")))
        return [sys.executable, str(SHARED / "bench/seven_lines.py"), str(tokenizer), str(output), *files]
    code = {"polars": POLARS, "datatrove": DATATROVE}[name]
    return [sys.executable, "-c", code, str(corpus), str(output)]


def main() -> int:
    """Prints a table; returns 1 if longsift itself fails."""
    import pyarrow.parquet as parquet

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tokenizer", default=str(SHARED / "tokenizers/qwen2.5"))
    parser.add_argument("--corpus", action="append", help="a Parquet file with a column `text`; default: four of ../shared")
    parser.add_argument("--times", default="1,4,16", help="how often the corpus is repeated")
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    files = [Path(path).resolve() for path in arguments.corpus or [SHARED / f"corpora/{name}.parquet" for name in CORPORA]]
    texts = [text for path in files for text in parquet.read_table(path, columns=["text"])["text"].to_pylist()]
    megabytes = sum(len(text.encode()) for text in texts) / 1e6
    before = os.environ.get("LONGSIFT_BEFORE")
    own = str(REPOSITORY / "target/release/longsift")
    repeated = [int(times) for times in arguments.times.split(",")]
    compared = ["longsift", "longsift, before", "seven lines"] if before else ["longsift", "seven lines"]
    programs = [Program(name, 1) for name in (*compared, "longsift, lexical", "datatrove", "polars")]
    programs += [Program(name, times) for times in repeated if times > 1 for name in compared]
    with tempfile.TemporaryDirectory() as temporary:
        for times in {program.times for program in programs}:
            corpus = Path(temporary) / f"corpus-{times}"
            corpus.mkdir()
            for copy in range(times):
                for path in files:
                    # longsift reads a file with two names only once.
                    shutil.copyfile(path, corpus / f"{path.stem}-{copy}.parquet")
        for attempt in range(arguments.rounds):
            for program in programs:
                if program.problem or (program.times > 1 and attempt > 0):
                    continue
                corpus = Path(temporary) / f"corpus-{program.times}"
                binary = before if before and "before" in program.name else own
                with tempfile.TemporaryDirectory(dir=temporary) as folder:
                    program.run(command(program.name, binary, Path(folder), corpus, Path(arguments.tokenizer).resolve()))
    measured = [program for program in programs if program.name == "longsift" and program.seconds]
    own_seconds = {program.times: statistics.median(program.seconds) for program in measured}
    print(f"{megabytes:.1f} MB of text, {Path(arguments.tokenizer).name}, one core")
    print(f"{'':<20} {'times':>5} {'CPU s':>8} {'ms/MB':>8} {'peak MB':>8}   of longsift's")
    for program in programs:
        if program.problem or program.times not in own_seconds:
            print(f"{program.name:<20} skipped: {program.problem or 'longsift failed'}")
            continue
        seconds, amount = statistics.median(program.seconds), megabytes * program.times
        ratio = seconds / own_seconds[program.times]
        memory = max(program.memory) / 1e6
        print(f"{program.name:<20} {program.times:>5} {seconds:>8.2f} {1000 * seconds / amount:>8.1f} {memory:>8.0f} {ratio:>10.2f}")
    return int(1 not in own_seconds)


if __name__ == "__main__":
    sys.exit(main())
