#!/usr/bin/env python3
"""Draws the picture of the README: a kept and a rejected window of the demo with the links that `longsift explain` finds.

    longsift run pipelines/demo.yaml
    python3 scripts/readme_picture.py out/demo.run [LONGSIFT, by default the one on the path]
"""

import json
import re
import subprocess
import sys
from html import escape
from pathlib import Path

PICTURE = Path(__file__).resolve().parents[1] / "docs/images/windows.svg"
WIDTH, LEFT, RIGHT = 900, 24, 876
PANEL, AXIS, RISE = 226, 176, 112
# Window, verdict, colour, description of the document.
WINDOWS = [
    ("docs-06#4", "kept", "#1a7f4b", "manual of a curve-fitting library"),
    ("csv-10#3", "rejected", "#b3261e", "table of measurements"),
]
LABEL_PIXELS = 120


def explain(longsift: str, run: str, window: str, *more: str) -> str:
    """Output of `longsift explain` for one window."""
    return subprocess.run([longsift, "explain", run, window, *more], check=True, capture_output=True, text=True).stdout


def label_positions(text: str, x) -> list[tuple[float, float, str]]:
    """Both ends in pixels and the text of recurring tokens, the longest first, without overlaps."""
    found = re.findall(r"^ +token +([\d,]+) ← +([\d,]+)  (.*)$", text, re.MULTILINE)
    taken: list[float] = []
    labels = []
    for later, earlier, words in sorted(found, key=lambda link: -len(link[2])):
        ends = [x(int(number.replace(",", ""))) for number in (earlier, later)]
        words = " ".join(words.replace("⏎", " ").split())
        if len(words) > 3 and all(abs(end - other) >= LABEL_PIXELS for end in ends for other in taken):
            taken += ends
            labels.append((*ends, words))
    return labels


def panel(run: str, longsift: str, top: int, window: str, verdict: str, colour: str, what: str) -> list[str]:
    """One window: a line of its tokens, and an arc from each token that recurs far away to its earlier occurrence."""
    data = json.loads(explain(longsift, run, window, "--format", "json"))
    values = {one["statistic"]: one["now"] for one in data["figures"]}
    axis = top + AXIS

    def x(token: float) -> float:
        return LEFT + token / data["tokens"] * (RIGHT - LEFT)

    broken = next((guard for guard in data["guards"] if guard["rejects"]), None)
    reason = f"score {data['selected']['score']:.2f}, rank {data['selected']['rank']} of {data['selected']['of']:,}" if broken is None \
        else f"guard: {broken['statistic']} {broken['bounds']}"
    far = [link for link in data["links"] if link["far"] and not link["copied"]]
    facts = f"far_recurrence {values['far_recurrence']:.2f} · link_coverage {values['link_coverage']:.2f} · digit_share {values['digit_share']:.2f}"
    lines = [
        f'<text x="{LEFT}" y="{top + 26}" font-size="16" font-weight="bold" fill="{colour}">{verdict}</text>',
        f'<text x="{LEFT + 90}" y="{top + 26}" font-size="15" fill="#1f2328">{escape(window)}, {what}</text>',
        f'<text x="{RIGHT}" y="{top + 26}" font-size="13" fill="#1f2328" text-anchor="end">{escape(reason)}</text>',
        f'<text x="{RIGHT}" y="{top + 46}" font-size="12" fill="#59636e" text-anchor="end">{facts}</text>',
    ]
    for link in far:
        start, end = x(link["earlier"]), x(link["token"])
        height = RISE * ((end - start) / (RIGHT - LEFT)) ** 0.5
        lines.append(
            f'<path d="M{start:.1f} {axis}C{start:.1f} {axis - 4 * height / 3:.1f} {end:.1f} {axis - 4 * height / 3:.1f} {end:.1f} {axis}" '
            f'fill="none" stroke="{colour}" stroke-opacity="0.55"/>'
        )
    lines.append(f'<path d="M{LEFT} {axis}H{RIGHT}" stroke="#1f2328" stroke-width="2"/>')
    for number in range(0, data["tokens"] + 1, data["tokens"] // 4):
        anchor = "start" if number == 0 else "end" if number == data["tokens"] else "middle"
        lines.append(f'<text x="{x(number):.1f}" y="{axis + 36}" font-size="11" fill="#59636e" text-anchor="{anchor}">token {number:,}</text>')
    for start, end, words in label_positions(explain(longsift, run, window), x):
        for position in (start, end):
            lines.append(f'<circle cx="{position:.1f}" cy="{axis}" r="3" fill="{colour}"/>')
            position = min(max(position, LEFT + 40), RIGHT - 40)
            lines.append(f'<text x="{position:.1f}" y="{axis + 18}" font-size="12" font-style="italic" fill="#1f2328" text-anchor="middle">{escape(words)}</text>')
    return lines


def main() -> None:
    """Writes the picture."""
    run, longsift = sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else "longsift"
    height = PANEL * len(WINDOWS) + 8
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" font-family="system-ui, sans-serif">',
        f'<rect width="{WIDTH}" height="{height}" rx="8" fill="#ffffff" stroke="#d1d9e0"/>',
    ]
    for number, window in enumerate(WINDOWS):
        if number:
            lines.append(f'<path d="M0 {number * PANEL}H{WIDTH}" stroke="#d1d9e0"/>')
        lines += panel(run, longsift, number * PANEL, *window)
    PICTURE.write_text("\n".join([*lines, "</svg>"]) + "\n")


if __name__ == "__main__":
    main()
