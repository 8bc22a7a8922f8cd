#!/usr/bin/env python3
"""Checks a real model, SmolLM2-135M-Instruct (`scripts/real_model.sh`), against float64 references and on real text.

    python3 scripts/whole_model.py compare     # losses, attention of all layers, hidden states and last logits; .ci/nightly
    python3 scripts/whole_model.py perplexity  # of three shared documents, whole windows and short contexts
    python3 scripts/whole_model.py evaluate    # how well gains and layers separate windows, with and without the guard on copies

    [--longsift target/release/longsift] [--model FILE.gguf] [--folder target/whole-model]

Needs ../shared and pyarrow. `compare` takes minutes with a release build, `evaluate` an hour and a half of one core;
measurements are kept in the folder, so repeating the command is quick. The results are in docs/whole-models.md and docs/evidence.md.
"""

import argparse
import json
import subprocess
import sys
from collections.abc import Collection
from pathlib import Path

import pyarrow
import pyarrow.parquet

REPOSITORY = Path(__file__).resolve().parents[1]
SHARED = REPOSITORY / "../shared"
LAYERS = 30
CATEGORIES = ("books:en", "code", "papers")
# Windows in the table: the ladder, permuted far halves, and the kinds of junk in the pool of the top fifth.
KINDS = "pieces_2,pieces_8,far_permute,dup,rep,boil_far,header"
# A book, code and a paper of the shared corpora.
DOCUMENTS = {"books": "books-en-eng19190_benson", "code": "code-arrow-csv", "papers": "papers-stacks-artin"}


class Differences:
    """Largest difference of each kind, and whether it is within its tolerance."""

    def __init__(self) -> None:
        self.largest: dict[str, tuple[float, float]] = {}

    def add(self, kind: str, got: list, want: list, tolerance: float, relative: bool = False) -> None:
        if len(got) != len(want):
            sys.exit(f"{kind}: {len(got)} numbers, expected {len(want)}")
        for one, other in zip(got, want):
            off = abs(one - other) / (abs(other) if relative else 1.0)
            # A comparison with NaN is false: it must not pass.
            before = self.largest.get(kind, (0.0, tolerance))[0]
            self.largest[kind] = (before if off <= before else off, tolerance)

    def report(self) -> int:
        """Prints the table; returns the number of kinds that exceed their tolerance."""
        beyond = 0
        print("| values | largest difference | allowed | |\n|---|---|---|---|")
        for kind, (off, tolerance) in self.largest.items():
            fits = off <= tolerance
            beyond += not fits
            print(f"| {kind} | {off:.1e} | {tolerance:.0e} | {'within' if fits else 'BEYOND'} |")
        return beyond


def longsift(arguments: argparse.Namespace, *command: str) -> str:
    """Output of the program, run in the folder; its messages pass through."""
    command = (str(arguments.longsift.resolve()), *command)
    return subprocess.run(command, cwd=arguments.folder, check=True, stdout=subprocess.PIPE, text=True).stdout


def scores(folder: Path) -> pyarrow.Table:
    """All score tables of a run."""
    parts = sorted((folder / "scores").glob("*.parquet"))
    return pyarrow.concat_tables([pyarrow.parquet.read_table(part) for part in parts]).sort_by("id")


def compare(arguments: argparse.Namespace) -> int:
    """Compares the shared float64 references with the program."""
    expected = json.loads((SHARED / "conformance-real/smollm2-135m.json").read_text())
    tolerance, cases, found = expected["tolerance"], expected["cases"], Differences()
    logits = tolerance["last_logits"]
    for case in cases:
        (arguments.folder / "ids.json").write_text(json.dumps(case["ids"]))
        model = str(arguments.model.resolve())
        got = json.loads(longsift(arguments, "inspect", model, "--forward", "ids.json", "--format", "json"))
        found.add("losses, nats", got["losses"], [-x for x in case["log_p"]], tolerance["log_p"])
        found.add("mean loss, nats", [got["mean_loss"]], [case["mean_loss"]], tolerance["mean_loss"])
        found.add("hidden states, relative", got["hidden_rms"][1:-1], case["residual_rms"], 1e-4, relative=True)
        last, want = got["last_logits"], case["last_logits"]
        found.add("last logits", [last[id] for id, _ in want["top"]], [logit for _, logit in want["top"]], logits)
        sums = [sum(last), sum(x * x for x in last)]
        found.add("sums of logits, relative", sums, [want["sum"], want["sum_of_squares"]], 1e-4, relative=True)
    ids = [f"case-{index}" for index in range(len(cases))]
    tokens = pyarrow.table({"id": ids, "tokens": [case["ids"] for case in cases]})
    pyarrow.parquet.write_table(tokens, arguments.folder / "tokens.parquet")
    window, distance = len(cases[0]["ids"]), cases[0]["min_distance"]
    stage = (
        f"stage: language-model, model: {json.dumps(str(arguments.model.resolve()))}, losses: false, "
        f"min_distance_tokens: {distance}, attention_layers: {list(range(LAYERS))}"
    )
    (arguments.folder / "compare.yaml").write_text(
        "version: 1\nname: compare\ninput: {path: tokens.parquet, id_column: id, tokens_column: tokens}\nstages:\n"
        f"  - {{stage: tokenize, window_tokens: {window}, bos: 0}}\n  - {{{stage}, name: whole, sink_tokens: 0}}\n"
        f"  - {{{stage}, name: after_sink, sink_tokens: 16}}\n"
        "  - {stage: score, terms: [{statistic: whole_dependency_strength_layer_0}]}\n"
        "  - {stage: filter, keep_fraction: 1}\noutput: {path: compare}\n"
    )
    longsift(arguments, "run", "compare.yaml", "--quiet", "--fresh")
    measured = scores(arguments.folder / "compare.run")
    columns = {
        "far_mass": "whole_layer_dependency_strength_by_head",
        "far_variance": "whole_layer_far_variance_by_head",
        "far_mass_after_sink": "after_sink_layer_dependency_strength_by_head",
    }
    for name, column in columns.items():
        for case, got in zip(cases, measured.column(column).to_pylist()):
            want = [head for layer in case[name] for head in layer]
            relative = name == "far_variance"
            allowed = 1e-4 if relative else tolerance[name]
            kind = f"{name.replace('_', ' ')} of {LAYERS} layers{', relative' if relative else ''}"
            found.add(kind, got, want, allowed, relative)
    return found.report()


def perplexity(arguments: argparse.Namespace) -> int:
    """Perplexity of the beginnings of three documents, in disjoint windows and with short contexts."""
    rows = []
    for corpus, document in DOCUMENTS.items():
        table = pyarrow.parquet.read_table(SHARED / f"corpora/{corpus}.parquet", columns=["data_id", "text"])
        rows += [row for row in table.to_pylist() if row["data_id"] == document]
    texts = [row["text"][: arguments.characters] for row in rows]
    table = pyarrow.table({"id": [row["data_id"] for row in rows], "text": texts})
    pyarrow.parquet.write_table(table, arguments.folder / "documents.parquet")
    (arguments.folder / "perplexity.yaml").write_text(
        "version: 1\nname: perplexity\ninput: {path: documents.parquet, id_column: id, text_column: text}\nstages:\n"
        f"  - {{stage: tokenize, window_tokens: {arguments.window}, short_documents: score}}\n"
        f"  - {{stage: language-model, model: {json.dumps(str(arguments.model.resolve()))}, short_context_tokens: 512}}\n"
        "  - {stage: score, terms: [{statistic: perplexity, weight: -1}]}\n"
        "  - {stage: filter, keep_fraction: 1}\noutput: {path: perplexity, samples: documents}\n"
    )
    longsift(arguments, "run", "perplexity.yaml", "--quiet", "--fresh")
    parts = sorted((arguments.folder / "perplexity/data").glob("*.parquet"))
    columns = ["perplexity", "mean_loss", "long_gain", "longppl"]
    print(f"| document | tokens | {' | '.join(columns)} |\n|{'---|' * (len(columns) + 2)}")
    for part in parts:
        for row in pyarrow.parquet.read_table(part).to_pylist():
            values = " | ".join("–" if row[f"longsift_{name}"] is None else f"{row[f'longsift_{name}']:.3f}" for name in columns)
            print(f"| {row['id']} | {row['longsift_tokens_total']:,} | {values} |")
    return 0


def write_corpus(path: Path, categories: Collection[str] = (), cut: int = 0) -> None:
    """The shared corpora as one table; books by their language. `categories` and `cut` restrict it to some categories
    and to the first characters of each document."""
    rows = []
    for corpus in ("books", "code", "papers"):
        for row in pyarrow.parquet.read_table(SHARED / f"corpora/{corpus}.parquet").to_pylist():
            language = [tag[5:] for tag in row["tags"] if tag.startswith("lang:")]
            category = f"books:{language[0]}" if corpus == "books" else row["source"]
            if not categories or category in categories:
                rows.append({"id": row["data_id"], "text": row["text"][: cut or None], "category": category})
    path.parent.mkdir(parents=True, exist_ok=True)
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path, row_group_size=16)


def evaluate(arguments: argparse.Namespace) -> int:
    """Evaluates gains and layers on the shared corpora, with and without the guard on copies."""
    corpus = arguments.folder / "corpus.parquet"
    # The model was trained on English and code; a cut document gives one window instead of four.
    write_corpus(corpus, CATEGORIES, arguments.cut)
    layers = list(range(LAYERS))
    (arguments.folder / "evaluate.yaml").write_text(
        "version: 1\nname: whole-model\ninput: {path: corpus.parquet, id_column: id, text_column: text}\nstages:\n"
        f"  - {{stage: tokenize, window_tokens: {arguments.window}}}\n  - {{stage: recurrence}}\n"
        f"  - {{stage: language-model, model: {json.dumps(str(arguments.model.resolve()))}, short_context_tokens: 512, "
        f"attention_layers: {layers}}}\n"
        "  - {stage: score, within: category, terms: [{statistic: long_gain}]}\n"
        "  - {stage: filter, keep_fraction: 0.2, guards: [{statistic: copy_share, max: 0.4, before: language-model}]}\n"
        "output: {path: evaluate}\n"
    )
    command = ["evaluate", "evaluate.yaml", "--windows", str(arguments.window), "--heads", "--quiet", "--format", "json"]
    command += ["--documents-per-category", str(arguments.documents), "--only", KINDS, "--html", "evaluate.html"]
    answer = json.loads(longsift(arguments, *command))[f"S{arguments.window}"]
    print("| statistic | pieces 2 / 8 | far permute | dup | real share of top fifth | after the guard |\n|---|---|---|---|---|---|")
    names = ["long_gain", "longfilter", *(f"dependency_strength_layer_{layer}" for layer in layers)]
    for name in names:
        report = answer["reports"][name]
        ladder = " / ".join(f"{report['ladder'][kind][0]:.2f}" for kind in ("pieces_2", "pieces_8"))
        pairs = " | ".join(f"{report['paired'][kind][0]:.2f}" for kind in ("far_permute", "dup"))
        shares = report["top_fifth_real_share"]
        print(f"| {name} | {ladder} | {pairs} | {shares['plain'][0]:.2f} | {shares['guarded'][0]:.2f} |")
    return 0


def main() -> int:
    """Runs one of the three checks."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("what", choices=["compare", "perplexity", "evaluate"])
    parser.add_argument("--longsift", type=Path, default=REPOSITORY / "target/release/longsift")
    parser.add_argument("--model", type=Path)
    parser.add_argument("--folder", type=Path, default=REPOSITORY / "target/whole-model")
    parser.add_argument("--window", type=int, default=2048, help="tokens of a window")
    parser.add_argument("--characters", type=int, default=8000, help="characters of each document, for `perplexity`")
    parser.add_argument("--documents", type=int, default=8, help="documents per category, for `evaluate`")
    parser.add_argument("--cut", type=int, default=9000, help="characters of each document, for `evaluate`; 0: all, in four windows per document")
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    if arguments.model is None:
        script = [str(REPOSITORY / "scripts/real_model.sh")]
        arguments.model = Path(subprocess.run(script, check=True, stdout=subprocess.PIPE, text=True).stdout.strip())
    steps = {"compare": compare, "perplexity": perplexity, "evaluate": evaluate}
    return 1 if steps[arguments.what](arguments) else 0


if __name__ == "__main__":
    sys.exit(main())
