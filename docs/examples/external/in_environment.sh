#!/bin/sh
# Starts a Python program in its own environment. longsift runs this file directly, and `exec` replaces it by the program, which gets
# the same arguments. In the pipeline:
#
#     command: [./in_environment.sh, sentences.py]
#     files: [sentences.py]
#     environment: {PYTHON: /opt/venvs/measures/bin/python3}
#
# Messages go to standard error: standard output is for results only.
set -eu

ulimit -c 0
export OMP_NUM_THREADS=1
export PYTHONUNBUFFERED=1
echo "starting $*" >&2
exec "${PYTHON:-python3}" "$@"
