"""Shapes as annotations. M: prompts (groups) in a rollout batch; G: responses per prompt; B: responses in a micro-batch;
A: positions of its action mask. numpy or torch, float64 where nothing else is said."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    import numpy as np
    import torch

    Array: TypeAlias = np.ndarray | torch.Tensor
    PerResponse: TypeAlias = Array  # (M, G)
    PerGroup: TypeAlias = Array  # (M, 1)
    Values: TypeAlias = torch.Tensor  # (B,) float32
    PerToken: TypeAlias = torch.Tensor  # (B, A) float32
    ActionMask: TypeAlias = torch.Tensor  # (B, A) bool or integer, 1 for action tokens
