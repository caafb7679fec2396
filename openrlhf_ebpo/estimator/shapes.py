"""Shapes as annotations. M: prompts (groups) in a rollout batch; G: responses per prompt. numpy, float64 where nothing
else is said."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    import numpy as np

    PerResponse: TypeAlias = np.ndarray  # (M, G)
    PerGroup: TypeAlias = np.ndarray  # (M, 1)
