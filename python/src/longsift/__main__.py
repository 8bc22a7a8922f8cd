"""`python -m longsift`: runs the `longsift` command."""

import os
import sys

from longsift._command import find_binary

if __name__ == "__main__":
    binary = str(find_binary())
    os.execv(binary, [binary, *sys.argv[1:]])
