"""Report of an experiment: measures of all arms, differences and verdicts, as Markdown and as one HTML page."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from longsift.ablation.config import Settings
from longsift.ablation.measures import octaves
from longsift.ablation.results import Results, results_path
from longsift.ablation.statistics import (
    MEASURES,
    MIN_RETRIEVAL_GAIN,
    ArmResults,
    Difference,
    DocumentSums,
    Interval,
    Resampler,
    difference,
    entry_problems,
    restrict,
    verdict,
)

RETRIEVAL_MARK = 0.5
"""Retrieval gain above which a model counts as able to copy."""


class Summary:
    """Contents of the report, from the plan and the results so far."""

    def __init__(self, settings: Settings, plan: Mapping[str, Any]) -> None:
        self.settings, self.plan = settings, plan
        self.runs: dict[str, dict[int, Results]] = {name: {} for name in settings.arms}
        for name in settings.arms:
            for seed in settings.seeds:
                results = Results.read(results_path(settings.output, name, seed))
                if results.evaluations:
                    self.runs[name][seed] = results
        self.finished = {
            name: {seed: one for seed, one in runs.items() if one.finished} for name, runs in self.runs.items()
        }
        self.results = {name: self._results(name, sorted(runs)) for name, runs in self.finished.items() if runs}
        self.intervals = {
            name: {
                measure: _interval(one.measures[measure], self._classes(name), len(self.finished[name])) for measure in MEASURES
            }
            for name, one in self.results.items()
        }
        self.entry = {
            name: entry_problems(self.intervals[name], self.results[name].trigram_loss) if name in self.results else []
            for name in settings.arms
        }
        self.finished_runs = sum(map(len, self.finished.values()))
        self.planned_runs = len(settings.arms) * len(settings.seeds)
        self.comparisons = [self._compare(*pair) for pair in settings.compare]

    def _classes(self, name: str) -> list[str]:
        return list(next(iter(self.finished[name].values())).run["classes"])

    def _results(self, name: str, seeds: Sequence[int]) -> ArmResults:
        documents = [self.finished[name][seed].evaluations[-1]["documents"] for seed in seeds]
        measures = {
            measure: DocumentSums(
                np.array([one[measure]["sums"] for one in documents]),
                np.array([one[measure]["counts"] for one in documents], dtype=np.float64),
            )
            for measure in MEASURES
        }
        return ArmResults(measures, float(self.plan["arms"][name]["trigram_loss"]))

    def _compare(self, first: str, second: str) -> dict[str, Any]:
        """The comparison of two arms, over the seeds that both have finished.

        The verdict is withheld until all runs of the experiment are finished: stopping at a welcome result would bias it.
        """
        seeds = sorted(self.finished[first].keys() & self.finished[second].keys())
        unfinished = f"without a verdict: {self.finished_runs} of {self.planned_runs} runs are finished"
        if not seeds:
            return {"first": first, "second": second, "seeds": 0, "differences": [], "verdict": unfinished}
        one, other = self._results(first, seeds), self._results(second, seeds)
        classes = self._classes(first)
        resampler = Resampler(classes, len(seeds))
        differences = [difference(measure, one, other, resampler) for measure in MEASURES]
        by_class = {}
        for name in sorted(set(classes)):
            chosen = np.array(classes) == name
            own = Resampler([name] * int(chosen.sum()), len(seeds))
            by_class[name] = [difference(measure, restrict(one, chosen), restrict(other, chosen), own) for measure in MEASURES]
        return {
            "first": first,
            "second": second,
            "seeds": len(seeds),
            "differences": differences,
            "by_class": by_class,
            "verdict": verdict(differences, self.entry, len(seeds)) if self.finished_runs == self.planned_runs else unfinished,
        }

    def mark_tokens(self, name: str) -> str:
        """Millions of tokens after which each seed of an arm first reached a retrieval gain of `RETRIEVAL_MARK`."""
        found = []
        for results in self.runs[name].values():
            reached = [one["tokens"] for one in results.evaluations if (one["retrieval_gain"] or 0) >= RETRIEVAL_MARK]
            found.append(f"{reached[0] / 1e6:.0f}" if reached else f"> {results.evaluations[-1]['tokens'] / 1e6:.0f}")
        return ", ".join(found) or "–"

    def cost(self) -> list[str]:
        """Machine and cost, a line per kind of machine."""
        by_machine: dict[str, list[float]] = {}
        for runs in self.runs.values():
            for results in runs.values():
                machine = results.run["machine"]
                key = f"{machine['processor']}, {machine['threads']} thread, torch {machine['torch']}"
                last = results.evaluations[-1]
                total = by_machine.setdefault(key, [0, 0.0, 0.0, 0.0])
                for index, value in enumerate((1, last["seconds"], last["evaluation_seconds"], last["tokens"])):
                    total[index] += value
        return [
            f"{key}: {count:.0f} runs, {seconds / 3600:.2f} hours of training ({tokens / seconds:,.0f} tokens/s), "
            f"{evaluating / 3600:.2f} hours of evaluation"
            for key, (count, seconds, evaluating, tokens) in by_machine.items()
        ]

    def arm_rows(self) -> list[list[str]]:
        """The table of arms."""
        rows = []
        for name in self.settings.arms:
            counted = self.plan["arms"][name]
            samples = counted["sample_losses"]
            row = [name, str(len(self.finished[name])), f"{counted['windows']:,}"]
            if name in self.intervals:
                row += [_text(self.intervals[name][measure]) for measure in MEASURES]
                last = [one.evaluations[-1] for one in self.finished[name].values()]
                row += [f"{np.mean([one[task] for one in last]):.0%}" for task in ("copy", "recall")]
            else:
                row += ["–"] * (len(MEASURES) + 2)
            row += [f"{counted['trigram_loss']:.3f}", f"{counted['cache_loss']:.3f}"]
            row += [f"{np.mean(samples):.3f} ± {np.std(samples, ddof=1):.3f}", self.mark_tokens(name)]
            met = "met" if name in self.intervals else "not finished"
            rows.append([*row, "; ".join(self.entry[name]) or met])
        return rows

    ARM_COLUMNS = (
        "arm", "seeds", "windows", *MEASURES.values(), "copy", "recall", "trigram", "trigram and cache",
        "trigram of samples", f"million tokens to retrieval gain {RETRIEVAL_MARK}", "entry condition",
    )  # fmt: skip
    DIFFERENCE_COLUMNS = ("comparison", "measure", "documents", "difference", "detectable", "answer")

    def difference_rows(self) -> list[list[str]]:
        """The table of differences."""
        rows = []
        for one in self.comparisons:
            pair = f"{one['first']} − {one['second']}"
            for group, differences in [("all classes alike", one["differences"]), *one.get("by_class", {}).items()]:
                for found in differences:
                    rows.append(
                        [pair, MEASURES[found.measure], group, _text(found.interval), f"{found.interval.detectable:.3f}", self._answer(one, found)]
                    )
        return rows

    def _answer(self, comparison: Mapping[str, Any], found: Difference) -> str:
        """Answer for one measure; a dash without a verdict."""
        return "–" if comparison["verdict"].startswith("without") else found.answer

    def verdicts(self) -> list[str]:
        """A line per comparison."""
        return [f"{one['first']} against {one['second']}: {one['verdict']}" for one in self.comparisons]


def _interval(sums: DocumentSums, classes: Sequence[str], seeds: int) -> Interval:
    resampler = Resampler(classes, seeds)
    return resampler.interval(sums)


def _text(interval: Interval) -> str:
    return f"{interval.value:.3f} [{interval.low:.3f}, {interval.high:.3f}]"


def markdown(summary: Summary) -> str:
    """The report as Markdown tables."""
    parts = [f"# {summary.settings.name}", "", f"{summary.finished_runs} of {summary.planned_runs} runs are finished.", ""]
    parts += [f"- {line}" for line in summary.verdicts()]
    for title, columns, rows in _tables(summary):
        parts += ["", f"## {title}", "", _row(columns), _row(["---"] * len(columns)), *(_row(row) for row in rows)]
    return "\n".join([*parts, "", "## Cost", "", *(f"- {line}" for line in summary.cost())]) + "\n"


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _tables(summary: Summary) -> list[tuple[str, Sequence[str], list[list[str]]]]:
    return [
        ("Arms", Summary.ARM_COLUMNS, summary.arm_rows()),
        ("Differences", Summary.DIFFERENCE_COLUMNS, summary.difference_rows()),
    ]


_STYLE = """
:root{color-scheme:light dark;--ink:#1b1b1f;--paper:#fff;--line:#c9c9d1;--faint:#62626c;
--c0:#1d6fb8;--c1:#c2571a;--c2:#2c8a4b;--c3:#8a4bb0;--c4:#b3315f;--c5:#6b6b00;--c6:#00797a;--c7:#555}
@media(prefers-color-scheme:dark){:root{--ink:#e6e6ea;--paper:#17171b;--line:#44444e;--faint:#a3a3ae;
--c0:#6cb2f2;--c1:#f0945c;--c2:#70cc8e;--c3:#c79be6;--c4:#f082a8;--c5:#cfcf5a;--c6:#5fcfcf;--c7:#bbb}}
body{margin:0 auto;max-width:72rem;padding:1rem;background:var(--paper);color:var(--ink);font:1rem/1.5 system-ui,sans-serif}
h1{font-size:1.5rem}h2{font-size:1.15rem;margin-top:2rem}
.scroll{overflow-x:auto}table{border-collapse:collapse;font-size:.85rem}
th,td{border-bottom:1px solid var(--line);padding:.3rem .6rem;text-align:left;vertical-align:top}
td:not(:first-child){white-space:nowrap;font-variant-numeric:tabular-nums}td:last-child{white-space:normal;min-width:9rem}
.charts{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,22rem),1fr));gap:1rem}
figure{margin:0}figcaption{font-weight:600}svg{width:100%;height:auto;display:block}
svg text{fill:var(--faint);font-size:11px}svg .grid{stroke:var(--line);stroke-width:.5}
svg path{fill:none;stroke-width:1.8}.key span{display:inline-block;margin-right:1rem}
.key i{display:inline-block;width:1.2rem;height:.2rem;vertical-align:middle;margin-right:.3rem}
"""


def page(summary: Summary) -> str:
    """The report as one HTML page without scripts or other files."""
    names = list(summary.settings.arms)
    key = "".join(f'<span><i style="background:var(--c{index % 8})"></i>{html.escape(name)}</span>' for index, name in enumerate(names))
    charts = [
        _chart(title, "million tokens", {name: _curve(summary, name, measure) for name in names}, marks)
        for measure, title, marks in (
            ("loss", "Mean loss on held-out documents", {}),
            ("long_gain", "Long gain: last eighth, short context minus all", {"0": 0.0}),
            ("retrieval_gain", "Retrieval gain", {"entry condition": MIN_RETRIEVAL_GAIN}),
        )
    ]
    charts.append(
        _chart("Loss by position at the end", "log₂ of the position", {name: _octave_curve(summary, name) for name in names}, {})
    )
    tables = "".join(
        f"<h2>{title}</h2><div class=scroll><table><thead><tr>{''.join(f'<th>{html.escape(cell)}' for cell in columns)}</tr></thead><tbody>"
        + "".join("<tr>" + "".join(f"<td>{html.escape(cell)}" for cell in row) + "</tr>" for row in rows)
        + "</tbody></table></div>"
        for title, columns, rows in _tables(summary)
    )
    verdicts = "".join(f"<li>{html.escape(line)}" for line in summary.verdicts())
    cost = "".join(f"<li>{html.escape(line)}" for line in summary.cost())
    name = html.escape(summary.settings.name)
    size = f"size {summary.settings.size}, {summary.settings.tokens / 1e6:g} million tokens, windows of {summary.plan['sequence_tokens']}"
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>Ablation: {name}</title><style>{_STYLE}</style></head><body><h1>Ablation: {name}</h1>"
        f"<p>{html.escape(size)}; {summary.finished_runs} of {summary.planned_runs} runs are finished. Losses are in nats. Brackets are 95 % intervals over seeds and documents; with one seed, over documents "
        f"alone. The last point of a curve uses more windows of the same documents. Detectable: the smallest difference that this number of seeds and documents can show.</p>"
        f"<h2>Verdicts</h2><ul>{verdicts}</ul><h2>Curves</h2><p class=key>{key}</p>"
        f'<div class="charts">{"".join(charts)}</div>{tables}<h2>Cost</h2><ul>{cost}</ul></body></html>\n'
    )


def _curve(summary: Summary, name: str, measure: str) -> list[list[tuple[float, float]]]:
    """Points of each seed. The last one uses more windows of the same documents."""
    return [
        [(one["tokens"] / 1e6, one[measure]) for one in results.evaluations if one[measure] is not None]
        for results in summary.runs[name].values()
    ]


def _octave_curve(summary: Summary, name: str) -> list[list[tuple[float, float]]]:
    """Loss by octave of position, a curve per finished seed."""
    centres = [float(np.log2((start + end) / 2)) for start, end in octaves(int(summary.plan["sequence_tokens"]))]
    return [list(zip(centres, one.evaluations[-1]["octaves"], strict=True)) for one in summary.finished[name].values()]


def _chart(title: str, below: str, curves: Mapping[str, list[list[tuple[float, float]]]], marks: Mapping[str, float]) -> str:
    """A line chart: a colour per arm, a line per seed."""
    points = [point for lines in curves.values() for line in lines for point in line]
    if not points:
        return f"<figure><figcaption>{html.escape(title)}</figcaption><p>No evaluation yet.</p></figure>"
    left, top, width, height = 42, 10, 360, 200
    low_x, high_x = _range([point[0] for point in points])
    low_y, high_y = _range([*(point[1] for point in points), *marks.values()])

    def x(value: float) -> float:
        return left + (value - low_x) / (high_x - low_x) * (width - left - 8)

    def y(value: float) -> float:
        return top + (high_y - value) / (high_y - low_y) * (height - top - 34)

    parts = []
    for tick in _ticks(low_y, high_y):
        parts.append(f'<path class="grid" d="M{left} {y(tick):.1f}H{width - 8}"/><text x="{left - 5}" y="{y(tick) + 4:.1f}" text-anchor="end">{tick:g}</text>')
    for tick in _ticks(low_x, high_x):
        parts.append(f'<text x="{x(tick):.1f}" y="{height - 18}" text-anchor="middle">{tick:g}</text>')
    parts.append(f'<text x="{(left + width) / 2}" y="{height - 3}" text-anchor="middle">{html.escape(below)}</text>')
    for label, value in marks.items():
        parts.append(
            f'<path d="M{left} {y(value):.1f}H{width - 8}" stroke="var(--faint)" stroke-dasharray="4 3"/>'
            f'<text x="{width - 10}" y="{y(value) - 4:.1f}" text-anchor="end">{html.escape(label)}</text>'
        )
    for index, lines in enumerate(curves.values()):
        for line in filter(None, lines):
            path = "L".join(f"{x(a):.1f} {y(b):.1f}" for a, b in line)
            parts.append(f'<path d="M{path}" stroke="var(--c{index % 8})" stroke-linecap="round"/>')
    return (
        f"<figure><figcaption>{html.escape(title)}</figcaption>"
        f'<svg viewBox="0 0 {width} {height}" role="img" aria-label="{html.escape(title)}">{"".join(parts)}</svg></figure>'
    )


def _range(values: Sequence[float]) -> tuple[float, float]:
    low, high = min(values), max(values)
    margin = (high - low) * 0.05 or 0.5
    return low - margin, high + margin


def _ticks(low: float, high: float) -> list[float]:
    """About five round numbers in a range."""
    raw = (high - low) / 5
    unit = 10 ** float(np.floor(np.log10(raw)))
    step = next(unit * factor for factor in (1, 2, 5, 10) if unit * factor >= raw)
    first = int(np.ceil(low / step))
    return [round(index * step, 10) for index in range(first, int(np.floor(high / step)) + 1)]
