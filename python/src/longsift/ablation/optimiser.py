"""Muon for the matrices of the layers, AdamW for everything else."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn


def orthogonalise(matrix: Tensor, steps: int = 5) -> Tensor:
    """Moves the singular values of a matrix close to 1 by a polynomial (Newton-Schulz)."""
    a, b, c = 3.4445, -4.7750, 2.0315
    tall = matrix.shape[0] > matrix.shape[1]
    x = matrix.T if tall else matrix
    x = x / (x.norm() + 1e-7)
    for _ in range(steps):
        square = x @ x.T
        x = a * x + (b * square + c * square @ square) @ x
    return x.T if tall else x


class Muon(torch.optim.Optimizer):
    """Updates each matrix by its orthogonalised momentum."""

    def __init__(self, parameters: list[nn.Parameter], rate: float, momentum: float = 0.95) -> None:
        super().__init__(parameters, {"lr": rate, "momentum": momentum})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        """Updates every matrix once."""
        for group in self.param_groups:
            for parameter in group["params"]:
                state = self.state[parameter]
                average = state.setdefault("average", torch.zeros_like(parameter))
                average.lerp_(parameter.grad, 1 - group["momentum"])
                ahead = parameter.grad.lerp(average, group["momentum"])
                shape = max(1.0, parameter.shape[0] / parameter.shape[1]) ** 0.5
                parameter.add_(orthogonalise(ahead), alpha=-group["lr"] * shape)


class Optimiser:
    """Both optimisers with a common schedule of learning rates."""

    def __init__(self, model: Any, matrix_rate: float, other_rate: float) -> None:
        matrices = model.matrices()
        chosen = {id(parameter) for parameter in matrices}
        others = [parameter for parameter in model.parameters() if id(parameter) not in chosen]
        self._all: list[torch.optim.Optimizer] = [
            torch.optim.AdamW(others, lr=other_rate, betas=(0.9, 0.95), eps=1e-10, weight_decay=0.0)
        ]
        if matrices:
            self._all.append(Muon(matrices, matrix_rate))
        self._rates = [group["lr"] for one in self._all for group in one.param_groups]

    def step(self, factor: float) -> None:
        """One step with the learning rates times `factor`; clears the gradients."""
        groups = [group for one in self._all for group in one.param_groups]
        for group, rate in zip(groups, self._rates, strict=True):
            group["lr"] = rate * factor
        for one in self._all:
            one.step()
            one.zero_grad(set_to_none=True)

    def state(self) -> list[dict[str, Any]]:
        """State that a resumed run needs."""
        return [one.state_dict() for one in self._all]

    def load(self, state: list[dict[str, Any]]) -> None:
        """Continues from a state."""
        for one, saved in zip(self._all, state, strict=True):
            one.load_state_dict(saved)


def schedule(step: int, steps: int, warmup_steps: int, decay_share: float) -> float:
    """Factor of the learning rates at a step: linear warm-up, constant, linear decay to zero."""
    rise = min(1.0, (step + 1) / (warmup_steps + 1))
    fall = min(1.0, (steps - step) / max(1.0, decay_share * steps))
    return min(rise, fall)
