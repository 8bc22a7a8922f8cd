#!/usr/bin/env python3
"""Prints how many tokens of each kind a finished run kept, as the budgets of the arm same-kinds: `kinds.py RUN_DIR`."""

import json
import sys
from collections import Counter
from pathlib import Path

from longsift.ablation.arms import read_run

windows = read_run("arm", Path(sys.argv[1]))
# The ids of the natural corpus begin with the kind.
kinds = Counter(document.split(":")[0] for document in windows.documents)
print(json.dumps({kind: count * windows.ids.shape[1] for kind, count in sorted(kinds.items())}))
