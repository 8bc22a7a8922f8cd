"""Errors of commands."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from longsift._summary import Summary


class LongsiftError(Exception):
    """Failure of a command. Its subclasses distinguish the causes.

    It can be pickled, so that a worker of a cluster can raise it to its caller.
    """

    def __init__(self, message: str, exit_code: int, summary: Summary | None = None) -> None:
        super().__init__(message)
        self.exit_code = exit_code
        self.summary = summary

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (str(self), self.exit_code, self.summary)

    @property
    def retryable(self) -> bool:
        """Whether the same command may succeed later: after faults of the machine and signals."""
        return False


class PipelineError(LongsiftError):
    """The command line or the pipeline file is wrong (exit code 2)."""


class DataError(LongsiftError):
    """The input or a checkpoint cannot be used, or too many rows are bad (exit code 3)."""


class MachineError(LongsiftError):
    """Fault of the machine (exit code 4), or a signal that stopped the run (129, 130, 143).

    A fault concerns space, memory, a device, a lock or the network.
    """

    @property
    def retryable(self) -> bool:
        return True


class CheckError(LongsiftError):
    """A check of the pipeline failed; the previous output stays (exit code 6)."""


def error_for(message: str, exit_code: int, summary: Summary | None = None) -> LongsiftError:
    """Returns the error for an exit code. A command that was killed (negative exit code) can be retried."""
    kinds = {2: PipelineError, 3: DataError, 4: MachineError, 6: CheckError}
    kind = MachineError if exit_code < 0 or exit_code > 128 else kinds.get(exit_code, LongsiftError)
    return kind(message, exit_code, summary)
