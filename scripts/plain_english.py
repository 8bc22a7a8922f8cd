#!/usr/bin/env python3
"""Counts wording that CONTRIBUTING.md asks to avoid, by rule: `scripts/plain_english.py [--list RULE] [--lower]`.

Fails where a rule has more matches than `.ci/plain_english` allows. `--list` prints the matches of one rule, `--lower`
writes today's counts as the new limits and refuses to raise one.
"""

import argparse
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
LIMITS = REPOSITORY / ".ci/plain_english"
SUFFIXES = {".rs", ".md", ".py", ".sh", ".yaml", ".html", ".template", ".toml"}
# Files by other authors, and files that quote the forbidden wording.
LEFT_OUT = {
    "scripts/plain_english.py": "holds the patterns",
    "LICENSE-APACHE": "a licence",
    "LICENSE-MIT": "a licence",
}
LEFT_OUT_FOLDERS = {
    "datasets/": "texts by others",
    "docs/examples/": "texts by others next to pipelines",
    "tests/hostile/": "deliberately invalid files",
    "fuzz/seeds/": "deliberately invalid files",
}

DOC = re.compile(r"^\s*//[/!] ?(.*)")
WORD = r"[\w`'-]+"

# Rule, what it counts, pattern. "A" reads the first line of a doc comment, "B" and "M" code, the others prose.
RULES = {
    "A": (
        "doc comments that begin with a clause",
        re.compile(r"^(What|Who|Whose|Whom|Which|How|Where|Those|That|The same|As|Of|Its)\b"),
    ),
    "B": (
        "functions named by a preposition or a bare verb",
        re.compile(r"\bfn (of|at|by|is|to|on|for|with|of_\w+|let_\w+|lets_\w+|be|has|lie|meet|hear|tell|ask|look|settle)\b[<(]"),
    ),
    "E": (
        "absence as a clause",
        re.compile(r"\b(there (is|are) (none|not)|has none|have none|none where|that there (is|are)|if there (is|are) one)\b"),
    ),
    "F": ("behind, beside, besides", re.compile(r"\b(behind|besides?)\b", re.IGNORECASE)),
    "G": ("anew, again and again, whatever, whoever", re.compile(r"\b(anew|again and again|whatever|whoever)\b", re.IGNORECASE)),
    "H": (
        "trailing `, too`, `as it is`, `of it`",
        re.compile(r"(, too\b(?! \w)|(?<!soon )(?<!long )\bas (it|they) (is|are|stands?|lies?)\b|\bthat (is|are) there\b|\bof (it|which)\b)"),
    ),
    "I": ("is no, are no", re.compile(r"\b(is|are|was|were|be) (no|nobody|nothing)\b(?! (longer|more|less|later|earlier|larger|smaller|worse|better)\b)")),
    "M": ("MOST_, LEAST_ constants", re.compile(r"\b(MOST|LEAST)_[A-Z]\w*\b|\b(?:const|static) (NAMED|PATIENCE|ENOUGH|NONE_YET)\b")),
}
PROSE = {"E", "F", "G", "H", "I"}


def files() -> list[Path]:
    """Tracked text files, sorted."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=REPOSITORY, check=True, capture_output=True).stdout
    names = [name.decode() for name in listed.split(b"\0") if name]
    kept = [
        name
        for name in names
        if Path(name).suffix in SUFFIXES and name not in LEFT_OUT and not name.startswith(tuple(LEFT_OUT_FOLDERS))
    ]
    return [REPOSITORY / name for name in sorted(kept) if (REPOSITORY / name).is_file()]


def prose(path: Path, line: str) -> str:
    """Returns the comments and strings of a line of code, or the whole line of a text."""
    if path.suffix not in {".rs", ".py", ".sh", ".toml"}:
        return line
    comment = re.search(r"(//[/!]?|#)\s(.*)$", line)
    strings = re.findall(r'"((?:[^"\\]|\\.)*)"', line)
    # A line inside a multi-line string has neither quotes nor code.
    words = re.fullmatch(rf"\s*{WORD}(,? {WORD}){{3,}}.*", line)
    return " ".join([*([comment[2]] if comment else []), *strings, *([line] if words else [])])


def matches(path: Path) -> Iterator[tuple[str, int, str]]:
    """Every match of a file: rule, line from 1, the line."""
    in_doc = False
    for number, line in enumerate(path.read_text(errors="replace").splitlines(), 1):
        if path.suffix == ".rs":
            doc = DOC.match(line)
            if doc and not in_doc and RULES["A"][1].search(doc[1]):
                yield "A", number, line
            in_doc = doc is not None
            for rule in ("B", "M"):
                if RULES[rule][1].search(line):
                    yield rule, number, line
        text = prose(path, line)
        for rule in sorted(PROSE):
            for _ in RULES[rule][1].finditer(text):
                yield rule, number, line


def limits() -> dict[str, int]:
    """Allowed matches by rule."""
    if not LIMITS.exists():
        return {}
    words = [line.split() for line in LIMITS.read_text().splitlines() if line.strip() and not line.startswith("#")]
    return {rule: int(count) for rule, count in words}


def main() -> int:
    """Prints the counts; returns 1 where a limit is exceeded."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--list", metavar="RULE", choices=sorted(RULES), help="print every match of a rule")
    parser.add_argument("--lower", action="store_true", help="write today's counts as the new limits")
    arguments = parser.parse_args()
    counts = dict.fromkeys(RULES, 0)
    for path in files():
        for rule, number, line in matches(path):
            counts[rule] += 1
            if arguments.list == rule:
                print(f"{path.relative_to(REPOSITORY)}:{number}: {line.strip()}")
    allowed = limits()
    over = [rule for rule in RULES if counts[rule] > allowed.get(rule, counts[rule] if arguments.lower else 0)]
    for rule, (description, _) in RULES.items():
        print(f"{rule}  {counts[rule]:>5} of {allowed.get(rule, 0):>5} allowed  {description}", file=sys.stderr)
    if over:
        for rule in over:
            print(f"error: rule {rule} has {counts[rule]} matches, {allowed.get(rule, 0)} are allowed: "
                  f"`scripts/plain_english.py --list {rule}` names them", file=sys.stderr)
        return 1
    if arguments.lower:
        header = "# Allowed matches by rule of scripts/plain_english.py. They only go down: `scripts/plain_english.py --lower`.\n"
        LIMITS.write_text(header + "".join(f"{rule} {count}\n" for rule, count in counts.items()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
