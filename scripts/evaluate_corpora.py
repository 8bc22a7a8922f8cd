#!/usr/bin/env python3
"""Evaluates the named scores on the shared corpora and prints which one is the default of `longsift init`, by a fixed rule.

    python3 scripts/evaluate_corpora.py [--model FOLDER] [--windows 2048,8192] [--longsift target/release/longsift]

Needs ../shared and pyarrow. Attention at 8,192 tokens takes a quarter of an hour on two cores; what was measured is kept in
`target/evaluation`, so the command again is quick. The table is in docs/evaluation.md.
"""

import argparse
import json
import subprocess
from collections.abc import Collection
from pathlib import Path

import pyarrow
import pyarrow.parquet

REPOSITORY = Path(__file__).resolve().parents[1]
SHARED = REPOSITORY / "../shared"

# A sum's terms are standardised by z-score, as LongAttn's are.
SUM = "terms: [{statistic: dependency_strength}, {statistic: far_variance, weight: -0.5}, {statistic: far_recurrence}]"
BALANCED = (
    "combine: least, standardise: percentile, terms: [{statistic: far_recurrence}, {statistic: link_coverage}, "
    "{statistic: near_recurrence, offset: 0.2}, {statistic: copy_share, weight: -1, offset: 1.2}]"
)
# Name, setting, and whether it needs a model.
SCORES = [
    ("balanced-recurrence", BALANCED, False),
    ("balanced-recurrence with attention", "formula: balanced-recurrence", True),
    ("far-recurrence", "formula: far-recurrence", False),
    ("longattn", "formula: longattn", True),
    ("longattn + far_recurrence", SUM, True),
]


def write_corpus(path: Path, categories: Collection[str] = (), cut: int = 0) -> None:
    """The shared corpora as one table; books by their language. Of some categories alone, and the first `cut` characters of each
    document, where that is asked for."""
    rows = []
    for corpus in ("books", "code", "papers"):
        for row in pyarrow.parquet.read_table(SHARED / f"corpora/{corpus}.parquet").to_pylist():
            language = [tag[5:] for tag in row["tags"] if tag.startswith("lang:")]
            category = f"books:{language[0]}" if corpus == "books" else row["source"]
            if not categories or category in categories:
                rows.append({"id": row["data_id"], "text": row["text"][: cut or None], "category": category})
    path.parent.mkdir(parents=True, exist_ok=True)
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path, row_group_size=16)


def evaluated(arguments: argparse.Namespace, folder: Path, score: str) -> dict:
    """The answer of `longsift evaluate` for one score; figures of windows are measured once for all scores."""
    pipeline = folder / "pipeline.yaml"
    pipeline.write_text(
        "version: 1\nname: corpora\ninput: {path: corpus.parquet, id_column: id, text_column: text}\nstages:\n"
        f"  - {{stage: load-partial-model, model: {json.dumps(str(arguments.model.resolve()))}}}\n"
        "  - {stage: tokenize, window_tokens: 8192}\n  - {stage: recurrence}\n  - {stage: first-layer-attention}\n"
        f"  - {{stage: score, within: category, {score}}}\n"
        "  - {stage: filter, keep_fraction: 0.2, guards: [{statistic: copy_share, max: 0.4}]}\noutput: {path: out}\n"
    )
    command = [str(arguments.longsift.resolve()), "evaluate", "pipeline.yaml", "--windows", arguments.windows]
    command += ["--format", "json", "--quiet"]
    return json.loads(subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True).stdout)


def main() -> None:
    """Prints the table and the choice."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model", type=Path, default=SHARED / "models/mini")
    parser.add_argument("--windows", default="2048,8192")
    parser.add_argument("--longsift", type=Path, default=REPOSITORY / "target/release/longsift")
    parser.add_argument("--folder", type=Path, default=REPOSITORY / "target/evaluation")
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    write_corpus(arguments.folder / "corpus.parquet")
    lengths = [f"S{tokens}" for tokens in arguments.windows.split(",")]
    rows = []
    print("| score | guard | length | pieces 2 / 4 / 8 | far permute | dup | real share of top fifth |")
    print("|---|---|---|---|---|---|---|")
    for name, setting, model in SCORES:
        answer = evaluated(arguments, arguments.folder, setting)
        for guarded in (False, True):
            ladders, shares = [], []
            for length in lengths:
                report = answer[length]["reports"]["score"]
                ladder = [report["ladder"][f"pieces_{pieces}"][0] for pieces in (2, 4, 8)]
                share = report["top_fifth_real_share"]["guarded" if guarded else "plain"]
                pairs = report["paired"]
                ladders.append(ladder[2])
                shares.append(share[0])
                figures = " / ".join(f"{figure:.3f}" for figure in ladder)
                interval = f"{share[0]:.3f} ({share[1]:.3f} to {share[2]:.3f})"
                pair = f"{pairs['far_permute'][0]:.2f} | {pairs['dup'][0]:.2f}"
                guard = "copy_share ≤ 0.4" if guarded else "none"
                print(f"| {name} | {guard} | {int(length[1:]):,} | {figures} | {pair} | {interval} |")
            rows.append((name, guarded, ladders, min(shares), model))
    best = [max(row[2][place] for row in rows) for place in range(len(lengths))]
    # Of those whose ladder is as good as the best, the one that keeps the most real text; below a difference of 0.01
    # the one without a model: a guard costs nothing.
    near = [row for row in rows if all(best[place] - row[2][place] <= 0.02 for place in range(len(lengths)))]
    most = max(row[3] for row in near)
    name, guarded, _, share, _ = min((row for row in near if most - row[3] < 0.01), key=lambda row: (row[4], -row[3]))
    print(f"\nthe default: {name}{', guarded' if guarded else ''} ({share:.3f} at its weaker length, the most is {most:.3f})")


if __name__ == "__main__":
    main()
