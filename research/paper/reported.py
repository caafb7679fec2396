"""Numbers that the authors report, not measured here, and panels of them.

Tables of scores come from eval/reported.json. What is here stands in the text of the authors' later
revision (recipe/ebpo/neurips_2026_v2.tex in their repository). Of the curves only words are known here, not the
numbers.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from lab.plots import Panel, Series
from paper.catalogue import REPORTED

PAPER = "arXiv 2602.05165"
REVISION = "the authors' later revision of arXiv 2602.05165"
MODEL = "Qwen3-8B"
BATCH_NORMALISED, BETA_BINOMIAL = 57.71, 65.69  # averages of the five benchmarks at G = 4, Qwen3-8B
CURRICULUM_GAPS = {"AIME24": 3.95, "AIME25": 6.04}  # EBPO easy to hard minus GRPO easy to hard, Qwen3-8B
WORDS_ONLY = "The numbers of the paper's curve are not known here: only its words"


def average(method: str, group: int = 4) -> float:
    """pass@1 in percent, the mean of the five benchmarks."""
    from openrlhf_ebpo.eval.paper import REPORTED

    scores = REPORTED[MODEL, group][method].values()
    return round(sum(scores) / len(scores), 2)


def panel(title: str, x_label: str, y_label: str, values: Mapping, about: str = MODEL, **look) -> Panel:
    """Of x -> number. look: of Panel."""
    series = Series(f"{REPORTED}: {about}", "reported", [*values], np.array([[*values.values()]]), reported=True)
    return Panel(title, x_label, y_label, [series], **look)
