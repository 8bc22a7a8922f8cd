"""longsift: keeps the documents whose tokens depend on far-away tokens.

A thin layer over the command `longsift`, which does everything.
"""

from longsift._command import LongsiftError, find_binary, plan, run
from longsift._scores import scores
from longsift._summary import Shard, Summary

__all__ = ["LongsiftError", "Shard", "Summary", "find_binary", "plan", "run", "scores"]
