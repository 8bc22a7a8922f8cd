"""A small decoder: rotary positions, normalised queries and keys, causal convolutions of width 3."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn import functional

from longsift.ablation.sizes import Size

HEAD_ROWS = 4096
"""Number of tokens whose logits are in memory at a time in evaluations."""
TRAINED_ROWS = 256
"""Number of tokens whose logits are in memory at a time in training; they fit in the cache of a processor."""


def norm(x: Tensor) -> Tensor:
    """Divides by the root of the mean square."""
    return functional.rms_norm(x, (x.shape[-1],))


class ShortConvolution(nn.Module):
    """Mixes each channel with those of the two previous tokens; initially the identity.

    Without it a model of this size does not learn to copy within 3 million tokens.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(3, width))
        nn.init.ones_(self.weight[2])

    def forward(self, x: Tensor) -> Tensor:
        padded = functional.pad(x, (0, 0, 2, 0))
        tokens = x.shape[-2]
        return sum(padded[..., k : k + tokens, :] * self.weight[k] for k in range(3))


class Attention(nn.Module):
    """Causal attention."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.heads = size.heads
        width = size.width
        self.projections = nn.ParameterList(nn.Parameter(torch.randn(width, width) * width**-0.5) for _ in range(3))
        self.convolutions = nn.ModuleList(ShortConvolution(width) for _ in range(3))
        self.scale = nn.Parameter(torch.full((size.heads, 1, 1), 1.0))
        self.output = nn.Parameter(torch.zeros(width, width))

    def forward(self, x: Tensor, rotation: tuple[Tensor, Tensor]) -> Tensor:
        windows, tokens, width = x.shape
        query, key, value = (
            convolve(functional.linear(x, weight)).view(windows, tokens, self.heads, -1).transpose(1, 2)
            for weight, convolve in zip(self.projections, self.convolutions, strict=True)
        )
        query, key = rotate(norm(query), rotation) * self.scale, rotate(norm(key), rotation)
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        return functional.linear(mixed.transpose(1, 2).reshape(windows, tokens, width), self.output)


def rotate(x: Tensor, rotation: tuple[Tensor, Tensor]) -> Tensor:
    """Rotates pairs of channels by angles that grow with the position."""
    cosine, sine = rotation
    first, second = x.chunk(2, dim=-1)
    return torch.cat([first * cosine - second * sine, second * cosine + first * sine], dim=-1)


class Layer(nn.Module):
    """Attention and a feed-forward network, each added to its input."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.attention = Attention(size)
        self.rise = nn.Parameter(torch.randn(4 * size.width, size.width) * size.width**-0.5)
        self.fall = nn.Parameter(torch.zeros(size.width, 4 * size.width))

    def forward(self, x: Tensor, rotation: tuple[Tensor, Tensor]) -> Tensor:
        x = x + self.attention(norm(x), rotation)
        return x + functional.linear(functional.relu(functional.linear(norm(x), self.rise)).square(), self.fall)


class HeadLoss(torch.autograd.Function):
    """Mean cross-entropy of a linear head, whose products have the given type; everything else is `float32`.

    Logits of only a few tokens are in memory at a time, and gradients are computed in the forward pass.
    """

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, bias: Tensor, targets: Tensor, type: torch.dtype) -> Tensor:  # noqa: A002
        """Loss and gradients, `TRAINED_ROWS` tokens at a time."""
        total = bias.new_zeros(())
        gradients = torch.empty_like(hidden), torch.zeros_like(weight), torch.zeros_like(bias)
        with torch.autocast(hidden.device.type, enabled=False):
            narrow = weight.to(type)
            for start in range(0, len(hidden), TRAINED_ROWS):
                part = slice(start, start + TRAINED_ROWS)
                rows, wanted = hidden[part].to(type), targets[part, None]
                logits = torch.mm(rows, narrow.T).float().add_(bias)
                totals = logits.logsumexp(1, keepdim=True)
                total += (totals - logits.gather(1, wanted)).sum()
                shares = logits.sub_(totals).exp_()
                shares.scatter_add_(1, wanted, torch.full_like(totals, -1.0))
                gradients[2].add_(shares.sum(0))
                slope = shares.to(type)
                gradients[0][part] = torch.mm(slope, narrow)
                gradients[1].add_(torch.mm(slope.T, rows))
        for gradient in gradients:
            gradient /= len(hidden)
        ctx.save_for_backward(*gradients)
        return total / len(hidden)

    @staticmethod
    def backward(ctx: Any, *above: Tensor) -> tuple[Tensor | None, ...]:
        """The gradients of states, weight and bias."""
        return *(gradient * above[0] for gradient in ctx.saved_tensors), None, None


class Decoder(nn.Module):
    """The model. The bias of the head is initialised with the logarithms of the unigram shares of all arms combined."""

    def __init__(self, size: Size, vocabulary: int, unigram: npt.NDArray[np.float64] | None = None) -> None:
        super().__init__()
        self.head_width = size.width // size.heads
        self.embedding = nn.Embedding(vocabulary, size.width)
        nn.init.normal_(self.embedding.weight, std=1.0)
        self.convolution = ShortConvolution(size.width)
        self.layers = nn.ModuleList(Layer(size) for _ in range(size.layers))
        self.head = nn.Linear(size.width, vocabulary)
        nn.init.zeros_(self.head.weight)
        bias = np.zeros(vocabulary) if unigram is None else np.log(unigram)
        self.head.bias.data.copy_(torch.from_numpy(bias))

    def matrices(self) -> list[nn.Parameter]:
        """Matrices of the layers, which Muon trains."""
        return [parameter for parameter in self.layers.parameters() if parameter.ndim == 2 and min(parameter.shape) > 3]

    def hidden(self, ids: Tensor) -> Tensor:
        """Normalised states after the last layer."""
        x = norm(self.convolution(self.embedding(ids)))
        rotation = angles(ids.shape[1], self.head_width, x)
        for layer in self.layers:
            x = layer(x, rotation)
        return norm(x)

    def logits(self, hidden: Tensor) -> Tensor:
        """Logits of the next token."""
        return cast(Tensor, self.head(hidden))

    def forward(self, ids: Tensor) -> Tensor:
        """Mean loss of the tokens after the first."""
        hidden = self.hidden(ids[:, :-1]).flatten(0, 1)
        kind = hidden.device.type
        product = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else torch.float32
        return cast(Tensor, HeadLoss.apply(hidden, self.head.weight, self.head.bias, ids[:, 1:].flatten(), product))


def angles(tokens: int, head_width: int, like: Tensor) -> tuple[Tensor, Tensor]:
    """Cosines and sines of the rotary angles of positions and channels."""
    rates = 10000.0 ** -(torch.arange(0, head_width, 2, device=like.device, dtype=like.dtype) / head_width)
    angle = torch.arange(tokens, device=like.device, dtype=like.dtype)[:, None] * rates
    return angle.cos(), angle.sin()


class Checkpointed(nn.Module):
    """A causal language model of the library transformers with the interface of `Decoder`."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        from transformers import AutoModelForCausalLM

        self.model: Any = AutoModelForCausalLM.from_pretrained(folder, torch_dtype=torch.float32)

    def matrices(self) -> list[nn.Parameter]:
        """Empty: a checkpoint is trained only with AdamW."""
        return []

    def hidden(self, ids: Tensor) -> Tensor:
        """States before the head."""
        return cast(Tensor, self.model.base_model(ids).last_hidden_state)

    def logits(self, hidden: Tensor) -> Tensor:
        """Logits of the next token."""
        return cast(Tensor, self.model.get_output_embeddings()(hidden))

    def forward(self, ids: Tensor) -> Tensor:
        """Mean loss of the tokens after the first."""
        return functional.cross_entropy(self.logits(self.hidden(ids[:, :-1])).flatten(0, 1), ids[:, 1:].flatten())


@torch.no_grad()
def token_losses(model: Any, hidden: Tensor, targets: Tensor) -> Tensor:
    """Loss of each target, computed for `HEAD_ROWS` tokens at a time."""
    flat, wanted = hidden.flatten(0, -2), targets.flatten()
    parts = [
        functional.cross_entropy(model.logits(flat[start : start + HEAD_ROWS]), wanted[start : start + HEAD_ROWS], reduction="none")
        for start in range(0, len(wanted), HEAD_ROWS)
    ]
    return torch.cat(parts).view(targets.shape)
