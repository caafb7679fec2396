"""What the paper reports beside its figures: reported by the authors, not measured here.

Tables of scores come from the benchmarks' own files (eval/paper.py). What is here stands in the text of the authors' later
revision (recipe/ebpo/neurips_2026_v2.tex in their repository). Of the curves only words are known here, not the numbers.
"""

from __future__ import annotations

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
