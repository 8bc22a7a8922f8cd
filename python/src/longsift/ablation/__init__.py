"""Trains the same small model on each of several selections and compares them on held-out documents.

`python -m longsift.ablation run ablation.yaml`; docs/ablation.md has the protocol.
"""
