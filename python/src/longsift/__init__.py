"""Find the long documents whose parts belong together: one YAML file, one binary, no GPU or model required.

A thin layer over the command `longsift`.
"""

from longsift._command import Pipeline, diff, evaluate, find_binary, plan, run, status, validate, verify, whatif
from longsift._errors import CheckError, DataError, LongsiftError, MachineError, PipelineError
from longsift._scores import kept, scores
from longsift._summary import Check, Devices, DeviceWork, Drift, Guard, GuardedGroup, Shard, Summary, Table

__all__ = [
    "Check",
    "CheckError",
    "DataError",
    "DeviceWork",
    "Devices",
    "Drift",
    "Guard",
    "GuardedGroup",
    "LongsiftError",
    "MachineError",
    "Pipeline",
    "PipelineError",
    "Shard",
    "Summary",
    "Table",
    "diff",
    "evaluate",
    "find_binary",
    "kept",
    "plan",
    "run",
    "scores",
    "status",
    "validate",
    "verify",
    "whatif",
]
