#!/usr/bin/env python3
"""Measures how well sampled rows rank windows: against exact scores, within each source.

    python3 scripts/sampled_rows.py PIPELINE [--column source] [--rows 128 256 512 1024] [--seeds 2]
                                    [--longsift target/release/longsift] [--set PATH=VALUE ...]

Runs the pipeline once exactly and once per number of rows and seed, into a temporary folder, and prints a Markdown
table. Selection happens within a source, so statistics are computed there and averaged over sources, weighted by
windows: pooled statistics would look better than they are, because sources differ more than windows of one source. Needs pyarrow and
numpy.
"""

import argparse
import json
import pathlib
import subprocess
import tempfile

import numpy
import pyarrow.dataset


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pipeline")
    parser.add_argument("--column", default="source", help="the pipeline's `score.within`, read from the output")
    parser.add_argument("--rows", type=int, nargs="+", default=[128, 256, 512, 1024])
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--longsift", default="target/release/longsift")
    parser.add_argument("--set", action="append", default=[])
    return parser.parse_args()


def run(options, rows, folder):
    """Scores all windows; returns the score table in order, the source of each window, and the seconds of the kernel."""
    output = pathlib.Path(folder) / f"out-{rows}".replace(" ", "")
    settings = [*options.set, f"output.path={output}", f"stages.first-layer-attention.rows={rows}",
                "stages.filter.keep_fraction=1", "stages.score.max_relative_error=100"]
    command = [options.longsift, "run", options.pipeline]
    for setting in settings:
        command += ["--set", setting]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(done.stderr)
    summary = json.loads(done.stdout.splitlines()[-1])
    scores = pyarrow.dataset.dataset(f"{output}.run/scores").to_table(columns=[
        "input_file", "input_row", "id", "window", "dependency_strength", "far_variance",
        "dependency_strength_se", "far_variance_se"])
    scores = scores.sort_by([(name, "ascending") for name in ("input_file", "input_row", "window")])
    kept = pyarrow.dataset.dataset(f"{output}/data").to_table(columns=["longsift_sample_id", options.column])
    source = dict(zip(kept["longsift_sample_id"].to_pylist(), kept[options.column].to_pylist()))
    names = zip(scores["id"].to_pylist(), scores["window"].to_pylist())
    source = numpy.array([str(source[f"{name}#{window}"]) for name, window in names])
    return scores, source, summary["seconds"]


def ranks(values):
    order = numpy.argsort(values, kind="stable")
    rank = numpy.empty(len(values))
    rank[order] = numpy.arange(len(values))
    return rank


def spearman(a, b):
    return float(numpy.corrcoef(ranks(a), ranks(b))[0, 1])


def overlap(exact, sampled, share):
    """Share of the best windows by exact scores that are among the best by sampled scores."""
    count = max(1, round(share * len(exact)))
    best = lambda values: set(numpy.argsort(-values, kind="stable")[:count].tolist())
    return len(best(exact) & best(sampled)) / count


def standardised(values):
    spread = values.std(ddof=1)
    return (values - values.mean()) / spread if spread > 0 else values * 0


def column(table, name):
    return table[name].to_numpy()


def main():
    options = arguments()
    with tempfile.TemporaryDirectory() as folder:
        exact, source, seconds = run(options, "all", folder)
        print(f"{len(source)} windows of {len(set(source))} sources; exact: {seconds:.1f} s\n")
        print("| rows | time | Spearman | reliability | top half | top eighth | variance off by | "
              "top half, alpha 0.5 | top eighth, alpha 0.5 |")
        print("|---|---|---|---|---|---|---|---|---|")
        for rows in options.rows:
            results = []
            times = []
            for seed in range(1, options.seeds + 1):
                sampled, same, sampled_seconds = run(options, f"{{per_window: {rows}, seed: {seed}}}", folder)
                assert (same == source).all()
                times.append(sampled_seconds)
                for name in sorted(set(source)):
                    here = source == name
                    if here.sum() < 16:
                        continue
                    want, got = (column(table, "dependency_strength")[here] for table in (exact, sampled))
                    error = column(sampled, "dependency_strength_se")[here]
                    wide, noisy = (column(table, "far_variance")[here] for table in (exact, sampled))
                    off = column(sampled, "far_variance_se")[here] / noisy
                    score = lambda strength, variance: standardised(strength) - 0.5 * standardised(variance)
                    both = score(want, wide), score(got, noisy)
                    reliability = 1 - numpy.mean(error**2) / got.var(ddof=1)
                    results.append((here.sum(), spearman(want, got), reliability, overlap(want, got, 0.5),
                                    overlap(want, got, 0.125), numpy.sqrt(numpy.mean(off**2)),
                                    overlap(*both, 0.5), overlap(*both, 0.125)))
            table = numpy.array(results)
            mean = numpy.average(table[:, 1:], axis=0, weights=table[:, 0])
            print(f"| {rows} | {min(times) / seconds:.2f} of exact | " + " | ".join(
                f"{value:.3f}" for value in mean[:2]) + " | " + " | ".join(f"{value:.2f}" for value in mean[2:]) + " |",
                flush=True)


if __name__ == "__main__":
    main()
