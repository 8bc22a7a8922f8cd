"""Results of runs as JSON lines: a record of the run, then one of each evaluation."""

from __future__ import annotations

import contextlib
import fcntl
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from longsift._errors import PipelineError
from longsift.ablation.plan import write_text


@dataclass
class Results:
    """The results file of one arm and seed."""

    path: Path
    run: dict[str, Any] = field(default_factory=dict)
    evaluations: list[dict[str, Any]] = field(default_factory=list)

    @property
    def finished(self) -> bool:
        """Whether training has ended and its last evaluation is recorded."""
        return bool(self.evaluations) and bool(self.evaluations[-1].get("final"))

    @classmethod
    def read(cls, path: Path) -> Results:
        """Reads a file; an unfinished last line is left out."""
        found = cls(path)
        if not path.is_file():
            return found
        for line in path.read_text(encoding="utf-8").splitlines():
            try:
                record = json.loads(line)
            except ValueError:
                break
            if record["record"] == "run":
                found.run = record
            else:
                found.evaluations.append(record)
        return found

    def check(self, identity: dict[str, Any]) -> None:
        """Raises an error if the results are of other settings."""
        if not self.run:
            return
        before = self.run["identity"]
        differing = [
            f"{key}: {before.get(key)} → {identity.get(key)}"
            for key in sorted({*before, *identity})
            if before.get(key) != identity.get(key)
        ]
        if differing:
            raise PipelineError(
                f"{self.path} has results of other settings ({'; '.join(differing)}); set another `output`, or remove the file",
                exit_code=2,
            )

    def truncate(self, step: int) -> None:
        """Removes the evaluations after a step, from which training resumes."""
        self.evaluations = [one for one in self.evaluations if one["step"] <= step]
        self.write()

    def write(self) -> None:
        """Writes the file atomically."""
        records = [self.run, *self.evaluations]
        write_text(self.path, "".join(json.dumps(record) + "\n" for record in records))


@contextlib.contextmanager
def claim(output: Path, arm: str, seed: int) -> Iterator[bool]:
    """Yields whether this process has exclusive access to an arm and seed until the block ends."""
    path = output / "models" / f"{arm}.{seed}.lock"
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
            return
        yield True


def results_path(output: Path, arm: str, seed: int) -> Path:
    """The results file of an arm and a seed."""
    return output / f"{arm}.{seed}.jsonl"
