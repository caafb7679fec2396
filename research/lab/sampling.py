"""The policy that draws the rollouts, where it is not the one that learns: older, rounded, at another temperature.

The learner then does as OpenRLHF does: it recomputes the log-probabilities of the drawn tokens with its own weights and
takes these for the old ones of the policy loss. Two of a cell's settings change that: the sampler's log-probabilities
as old ones, and upstream's importance-sampling correction by token (`is_correction_level token`, `is_correction_mode
clip`, ratio in [0.5, 5]).
"""

from __future__ import annotations

from collections import deque

import torch
from torch import Tensor

from lab import policy
from lab.cells import Cell

CORRECTED = (0.5, 5.0)  # OpenRLHF's default threshold of the token ratio
LEVELS = {"int4": 7}  # of an integer


class Sampler:
    """Draws each step's responses with the weights of `cell.steps_old` steps ago (those of the start, until there are
    so many)."""

    def __init__(self, cell: Cell, shape: policy.Shape):
        self.cell, self.shape = cell, shape
        self.kept: deque[Tensor] = deque(maxlen=cell.steps_old + 1)

    def draw(self, weights: Tensor, prompts: Tensor, uniforms: Tensor) -> tuple[policy.Rollouts, Tensor | None]:
        """Rollouts with the old log-probabilities of the policy loss, and the weight of each token's loss (S, M, G, T),
        if any.

        Args:
            weights: the learner's, (S, weights).
        """
        self.kept.append(weights.detach().clone())
        if not self.cell.off_policy:
            return policy.generate(self.shape, weights, prompts, uniforms), None
        sampler = rounded(self.shape, self.kept[0], self.cell.rounding)
        rollouts = policy.generate(self.shape, sampler, prompts, uniforms, self.cell.temperature)
        if self.cell.old == "sampler":
            return rollouts, None
        with torch.no_grad():
            old = policy.log_probs(self.shape, weights, prompts, rollouts.tokens)[0] * rollouts.mask
        ratio = (old - rollouts.log_probs).exp().clamp(*CORRECTED)
        return rollouts._replace(log_probs=old), ratio if self.cell.correction else None


def rounded(shape: policy.Shape, weights: Tensor, rounding: str) -> Tensor:
    """The weights as integers with one scale for each input of a matrix (the largest of them is exact)."""
    if not rounding:
        return weights
    found = []
    for matrix in policy.unpack(shape, weights).values():
        scale = matrix.abs().amax(-1, keepdim=True).clamp(min=1e-12) / LEVELS[rounding]
        found.append(((matrix / scale).round() * scale).flatten(1))
    return torch.cat(found, 1)
