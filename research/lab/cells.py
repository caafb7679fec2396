"""Regimes: what the policies know at the start, and how they are trained."""

from __future__ import annotations

from dataclasses import dataclass

LR = 8e-4  # of all regimes, unless a grid of learning rates is asked for


@dataclass(frozen=True)
class Cell:
    """A regime. start: success rate of the warm start; rollouts: responses a step; examples: what the warm start showed
    (EXAMPLES in tasks.py); mini_batches: optimizer steps a rollout batch."""

    start: float
    group: int = 4
    steps: int = 150
    examples: str = "right"
    task: str = "backward"
    mini_batches: int = 1
    rollouts: int = 128

    @property
    def prompts(self) -> int:
        return self.rollouts // self.group

    @property
    def title(self) -> str:
        parts = [f"start {self.start:.0%}", f"G = {self.group}"]
        parts += ["confidently wrong"] * (self.examples == "confidently_wrong")
        parts += ["mixed difficulty"] * (self.examples == "mixed")
        parts += ["sorting"] * (self.task == "sort")
        parts += [f"{self.mini_batches} mini-batches a step"] * (self.mini_batches > 1)
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
    "sort-g2": Cell(0.05, group=2, task="sort"),
    "quickstart": Cell(0.05, group=2, rollouts=256, steps=80),
    "long-sort": Cell(0.1, task="sort", steps=600),
    "longest-sort": Cell(0.1, task="sort", steps=1800),
}


def parsed(spec: str) -> tuple[str, str, dict[str, str]]:
    """Name, preset and options of NAME[.PRESET][+PART=CHOICE …]; an import path MODULE:NAME has no preset."""
    named, *parts = spec.split("+")
    name, _, preset = named.partition(".") if ":" not in named else (named, "", "")
    return name, preset, dict(part.partition("=")[::2] for part in parts)
