#!/usr/bin/env python3
"""Compares the example program of losses by the transformers library, in a pipeline, with longsift's own forward pass.

    cargo build --release
    python3 scripts/check_transformers.py [--longsift target/release/longsift] [--python PYTHON]

The demo's model measures windows of the demo's corpus twice: `docs/examples/external/transformer_losses.py` as an
`external` stage, and `longsift inspect --forward`. Without `--python`, torch and transformers are installed into
target/transformers (6 GB including torch's GPU libraries).
"""

import argparse
import json
import shlex
import subprocess
import sys
import venv
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
MODEL = REPOSITORY / "datasets/demo/model"
EXAMPLE = REPOSITORY / "docs/examples/external/transformer_losses.py"
WINDOW, WINDOWS, SHORT = 2048, 4, 1024
# Both compute in float32, in another order.
ALLOWED = 1e-4
PACKAGES = ["torch", "transformers", "pyarrow"]


def installed(folder: Path) -> Path:
    """A Python with the imports of the example."""
    python = folder / "bin/python"
    if not python.exists():
        venv.create(folder, with_pip=False)
    command = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet", *PACKAGES]
    subprocess.run(command, check=True)
    return python


def write_tokens(python: Path, folder: Path) -> None:
    """Windows of the demo's corpus as token ids, by the transformers library's own tokenizer."""
    program = f"""
import json, pyarrow, pyarrow.parquet, transformers
tokenizer = transformers.AutoTokenizer.from_pretrained({str(MODEL)!r})
texts = pyarrow.parquet.read_table({str(REPOSITORY / "datasets/demo/corpus.parquet")!r})["text"].to_pylist()
ids, windows = [], []
for text in texts:
    ids += tokenizer.encode(text, add_special_tokens=False)
    while len(ids) >= {WINDOW} and len(windows) < {WINDOWS}:
        windows.append(ids[:{WINDOW}])
        ids = ids[{WINDOW}:]
rows = pyarrow.table({{"id": [f"w{{n}}" for n in range(len(windows))], "tokens": windows}})
pyarrow.parquet.write_table(rows, {str(folder / "tokens.parquet")!r})
json.dump(windows, open({str(folder / "windows.json")!r}, "w"))
"""
    subprocess.run([python, "-c", program], check=True)


def measured(python: Path, longsift: Path, folder: Path) -> list[tuple[float, float]]:
    """`long_loss` and `long_gain` of each window, by the example in a pipeline."""
    command = json.dumps([str(python), str(EXAMPLE), str(MODEL)])
    (folder / "pipeline.yaml").write_text(
        "version: 1\nname: losses\ninput: {path: tokens.parquet, id_column: id, tokens_column: tokens}\nstages:\n"
        f"  - {{stage: tokenize, window_tokens: {WINDOW}, bos: 0}}\n"
        f"  - {{stage: external, name: losses, command: {command}, version: '1', reads: ids, batch_windows: 2,\n"
        "     timeout_seconds: 600, statistics: [\n"
        "       {name: long_loss, unit: nats, doc: loss of the second half, orientation: lower},\n"
        "       {name: long_gain, unit: nats, doc: loss that the whole window saves}]}\n"
        "  - {stage: score, terms: [{statistic: long_gain}]}\n"
        "  - {stage: filter, keep_fraction: 1}\noutput: {path: out}\n"
    )
    subprocess.run([longsift, "run", "pipeline.yaml", "--quiet", "--fresh"], cwd=folder, check=True, stdout=subprocess.DEVNULL)
    program = f"""
import glob, json, pyarrow.parquet
rows = [row for part in glob.glob({str(folder / "out/data/*.parquet")!r}) for row in pyarrow.parquet.read_table(part).to_pylist()]
rows.sort(key=lambda row: row["id"])
print(json.dumps([[row["longsift_long_loss"], row["longsift_long_gain"]] for row in rows]))
"""
    return json.loads(subprocess.run([python, "-c", program], check=True, stdout=subprocess.PIPE, text=True).stdout)


def losses(longsift: Path, folder: Path, ids: list[int], first: int) -> list[float]:
    """Losses of the tokens of `ids` from `first` on, given all earlier tokens."""
    (folder / "ids.json").write_text(json.dumps(ids))
    command = [longsift, "inspect", MODEL, "--forward", "ids.json", "--format", "json"]
    answer = subprocess.run(command, cwd=folder, check=True, stdout=subprocess.PIPE, text=True).stdout
    return json.loads(answer)["losses"][first - 1 :]


def expected(longsift: Path, folder: Path, ids: list[int]) -> tuple[float, float]:
    """The statistics of the example, by longsift's forward pass."""
    half, step = len(ids) // 2, SHORT // 2
    whole = losses(longsift, folder, ids, half)
    short: list[float] = []
    for start in range(half, len(ids), step):
        begin = max(0, start - (SHORT - step))
        short += losses(longsift, folder, ids[begin : start + step], start - begin)
    long = sum(whole) / len(whole)
    return long, sum(short) / len(short) - long


def main() -> int:
    """Prints the statistics of each window; returns 1 if any two differ by more than allowed."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--longsift", type=Path, default=REPOSITORY / "target/release/longsift")
    parser.add_argument("--python", type=Path)
    arguments = parser.parse_args()
    folder = REPOSITORY / "target/check-transformers"
    folder.mkdir(parents=True, exist_ok=True)
    longsift = arguments.longsift.resolve()
    # Not resolved, because Python finds its environment by the path of the link.
    python = (arguments.python or installed(REPOSITORY / "target/transformers")).absolute()
    write_tokens(python, folder)
    windows = json.loads((folder / "windows.json").read_text())
    found = measured(python, longsift, folder)
    if not len(windows) == len(found) == WINDOWS:
        sys.exit(f"{len(windows)} windows were given and {len(found)} measured, expected {WINDOWS}: {shlex.quote(str(folder))}")
    largest = 0.0
    for number, (ids, got) in enumerate(zip(windows, found)):
        want = expected(longsift, folder, ids)
        off = max(abs(one - other) for one, other in zip(got, want))
        print(f"window {number}: loss {got[0]:.6f}, gain {got[1]:+.6f}; longsift {want[0]:.6f}, {want[1]:+.6f}; off by {off:.1e}")
        # A comparison with NaN is false: it must not pass.
        largest = largest if off <= largest else off
    print(f"{len(windows)} windows, largest difference {largest:.1e}, allowed {ALLOWED:.0e}")
    return 0 if largest <= ALLOWED else 1


if __name__ == "__main__":
    sys.exit(main())
