#!/bin/sh
# Starts a program in an environment of its own: longsift starts this file itself, without a shell in between, and this file
# becomes the program. Its arguments are the program's. In the pipeline:
#
#     command: [./in_environment.sh, sentences.py]
#     files: [sentences.py]
#     environment: {PYTHON: /opt/venvs/measures/bin/python3}
#
# What it prints goes to stderr: stdout belongs to the answers.
set -eu

ulimit -c 0
export OMP_NUM_THREADS=1
export PYTHONUNBUFFERED=1
echo "starting $*" >&2
exec "${PYTHON:-python3}" "$@"
