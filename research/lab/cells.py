"""Regimes: what the policies know at the start, and how they are trained."""

from __future__ import annotations

from dataclasses import dataclass

LR = 8e-4  # of all regimes, unless a grid of learning rates is asked for
TASK_TITLES = {
    "sort": "sorting",
    "scratchpad": "30 to 40 tokens",
    "long-scratchpad": "77 to 102 tokens",
    "cut-scratchpad": "33 to 46 tokens, cut at 40",
}


@dataclass(frozen=True)
class Cell:
    """A regime. start: success rate of the warm start; rollouts: responses a step; examples: what the warm start showed
    (EXAMPLES in tasks.py); mini_batches: optimizer steps a rollout batch.

    Off-policy (sampling.py): steps_old: age of the weights that draw the rollouts; rounding: of these, "int4" or none;
    temperature: at which they draw, while the learner's is 1; old: whose log-probabilities the policy loss takes for
    the old ones, "trainer" or "sampler"; correction: by upstream's token ratio.

    loss: its mean is taken over tokens, or by "sequence": over those of a response, then over responses.
    """

    start: float
    group: int = 4
    steps: int = 150
    examples: str = "right"
    task: str = "backward"
    mini_batches: int = 1
    rollouts: int = 128
    steps_old: int = 0
    rounding: str = ""
    temperature: float = 1.0
    old: str = "trainer"
    correction: bool = False
    loss: str = "token"

    @property
    def off_policy(self) -> bool:
        return bool(self.steps_old or self.rounding or self.temperature != 1)

    @property
    def prompts(self) -> int:
        return self.rollouts // self.group

    @property
    def title(self) -> str:
        parts = [f"start {self.start:.0%}", f"G = {self.group}"]
        parts += ["confidently wrong"] * (self.examples == "confidently_wrong")
        parts += ["mixed difficulty"] * (self.examples == "mixed")
        parts += [title for task, title in TASK_TITLES.items() if task == self.task]
        parts += ["sequence mean"] * (self.loss == "sequence")
        parts += [f"{self.mini_batches} mini-batches a step"] * (self.mini_batches > 1)
        parts += [f"samples {self.steps_old} steps old"] * (self.steps_old > 0)
        parts += [f"sampler in {self.rounding}"] * bool(self.rounding)
        parts += [f"sampler at temperature {self.temperature:g}"] * (self.temperature != 1)
        parts += ["the sampler's log-probabilities as old ones"] * (self.old == "sampler")
        parts += ["token correction"] * self.correction
        return ", ".join([*parts, f"{self.steps} steps of {self.rollouts} rollouts"])


CELLS = {
    "g2-5": Cell(0.05, group=2),
    "g4-5": Cell(0.05),
    "g4-30": Cell(0.3),
    "long-5": Cell(0.05, steps=600),
    "g8-5": Cell(0.05, group=8),
    "g4-60": Cell(0.6),
    "wrong-g2": Cell(0.1, group=2, steps=30, examples="confidently_wrong"),
    "wrong": Cell(0.1, steps=30, examples="confidently_wrong"),
    "mixed": Cell(0.4, examples="mixed"),
    "mini-batches": Cell(0.3, mini_batches=4),
    "g4-1": Cell(0.01),
    "g4-10": Cell(0.1),
    "g16-5": Cell(0.05, group=16),
    "g2-30": Cell(0.3, group=2),
    "g8-30": Cell(0.3, group=8),
    "sort": Cell(0.1, task="sort"),
    "quickstart": Cell(0.05, group=2, rollouts=256, steps=80),
    "long-sort": Cell(0.1, task="sort", steps=600),
    "longest-sort": Cell(0.1, task="sort", steps=1800),
    "g2-5-int4": Cell(0.05, group=2, rounding="int4"),
    "g2-5-cooler": Cell(0.05, group=2, temperature=0.8),
    "g2-5-1-old": Cell(0.05, group=2, steps_old=1),
    "g2-5-4-old": Cell(0.05, group=2, steps_old=4),
    "g2-5-16-old": Cell(0.05, group=2, steps_old=16),
    "g2-5-16-old-sampler": Cell(0.05, group=2, steps_old=16, old="sampler"),
    "g2-5-16-old-corrected": Cell(0.05, group=2, steps_old=16, correction=True),
    "g2-5-mini-batches": Cell(0.05, group=2, mini_batches=4),
    "g4-30-16-old": Cell(0.3, steps_old=16),
    "g3-5": Cell(0.05, group=3, rollouts=129),
    "g4-95": Cell(0.95),
    "scratchpad-g2": Cell(0.05, group=2, task="scratchpad", steps=300),
    "scratchpad": Cell(0.05, task="scratchpad", steps=300),
    "scratchpad-sequence": Cell(0.05, task="scratchpad", loss="sequence", steps=300),
    "scratchpad-95": Cell(0.95, task="scratchpad", steps=300),
    "scratchpad-cut": Cell(0.05, task="cut-scratchpad", steps=300),
    "scratchpad-long": Cell(0.05, task="long-scratchpad"),
    "scratchpad-long-sequence": Cell(0.05, task="long-scratchpad", loss="sequence"),
    "tiny": Cell(0.05, steps=15, rollouts=8, group=2, examples="mixed"),  # does it all run?
}


def parsed(spec: str) -> tuple[str, dict[str, str]]:
    """Name and options of NAME[+PART=CHOICE …]."""
    name, *parts = spec.split("+")
    return name, dict(part.partition("=")[::2] for part in parts)
