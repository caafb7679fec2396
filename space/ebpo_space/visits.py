"""A group of a prompt in a run, and the same prompt at other steps and in other runs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from .errors import attempt
from .groups import Groups
from .picture import implied_prior_mean, picture
from .search import answers, history
from .text import HTML
from .workspace import LoadedRun, Workspace

MAX_OTHER_RUNS = 6  # in which the same prompt is looked for


@dataclass(frozen=True)
class Visit:
    """position: of the group in the run's index."""

    opened: LoadedRun
    groups: Groups
    position: int

    @property
    def step(self) -> int:
        return int(self.groups.step[self.position])

    @property
    def group(self) -> int:
        return int(self.groups.group[self.position])

    @property
    def at(self) -> str:
        return f"{self.step}.{self.group}"

    @property
    def source(self) -> dict:
        """Values with which `server.chunk` finds a text of the group."""
        return {"run": self.opened.run.key, "step": self.step, "group": self.group}

    def answers(self) -> list[dict]:
        """Read the rows of the group.

        Raises:
            RunError: the file is gone or damaged.
        """
        return answers(self.opened.run, self.groups, self.position)

    @property
    def picture(self) -> HTML:
        """Draw the baseline; of other estimators, which have none of this kind, nothing."""
        groups, p = self.groups, self.position
        mean, baseline, shrinkage = float(groups.mean[p]), float(groups.baseline[p]), float(groups.shrinkage[p])
        if not all(map(math.isfinite, (mean, baseline, shrinkage))):
            other = HTML("<small>A prior, and a baseline between it and the group’s mean, are EBPO’s.</small>")
            return HTML() if self.opened.estimator == "ebpo" else other
        at = lambda name: self.opened.metrics.at(self.step, f"ebpo/{name}")  # noqa: E731
        prior_mean = at("prior_mean")
        prior_mean = implied_prior_mean(mean, baseline, shrinkage) if prior_mean is None else prior_mean
        known = at("within_variance"), at("between_variance"), int(groups.valid[p]), self.opened.rewards
        return picture(mean, baseline, shrinkage, prior_mean, *known)


def find_others(here: Visit, keys: Sequence[str], workspace: Workspace) -> list[Visit]:
    """Find the prompt at its first and last other step, and in other runs, of these keys, at the step nearest to this
    one."""
    prompt = here.groups.prompt_id[here.position]
    visits = [int(p) for p in history(here.groups, prompt) if p != here.position]
    found = [Visit(here.opened, here.groups, p) for p in dict.fromkeys((*visits[:1], *visits[-1:]))]
    for key in [key for key in keys if key != here.opened.run.key][:MAX_OTHER_RUNS]:
        opened = attempt(lambda key=key: workspace.open(key), None, [])
        if opened is None:
            continue
        there, _ = workspace.index(opened).read()
        visits = history(there, prompt)
        if len(visits):
            found.append(Visit(opened, there, int(visits[np.abs(there.step[visits] - here.step).argmin()])))
    return found
