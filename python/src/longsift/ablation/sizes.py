"""Sizes of the model."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Size:
    """Shape of a decoder."""

    layers: int
    width: int
    heads: int


SIZES = {
    "toy": Size(layers=2, width=32, heads=2),  # for tests
    "tiny": Size(layers=3, width=128, heads=2),  # 0.6 million parameters in the layers
    "small": Size(layers=6, width=256, heads=4),  # 4.7 million
    "medium": Size(layers=8, width=512, heads=8),  # 25 million
    "base": Size(layers=12, width=768, heads=12),  # 85 million
}
