"""Every estimator of the package in one training: each sees every batch, and they take turns in giving the
advantages."""

from dataclasses import replace

from openrlhf_ebpo.estimator import registry
from openrlhf_ebpo.estimator.config import PRESETS
from openrlhf_ebpo.estimator.contract import Batch, Estimator, Step

VARIANTS = {
    **{f"ebpo {preset}": {"preset": preset} for preset in PRESETS if preset != "paper"},
    "ebpo half_life": {"history": "half_life", "half_life": 16.0},
    "ebpo clusters": {"clusters": "cluster"},
    "ebpo score": {"weights": "score", "saturated": "zero", "normalise": "scale"},
}
NAMES = [*filter(registry.computed_here, registry.ESTIMATORS), *VARIANTS]


class InTurn(Estimator):
    """Step k trains on what the k-th estimator of NAMES gives."""

    def __init__(self, config, name=""):
        super().__init__(config, name)
        self.members = {
            each: registry.build(each.split()[0], replace(config, **VARIANTS.get(each, {}))) for each in NAMES
        }

    def initial(self) -> dict:
        return {"turn": 0, "states": {each: m.save(m.initial()) for each, m in self.members.items()}}

    def step(self, batch: Batch, state: dict) -> Step:
        steps = {each: m.step(batch, m.restore(state["states"][each])) for each, m in self.members.items()}
        mine = steps[NAMES[state["turn"] % len(NAMES)]]
        states = {each: self.members[each].save(step.state) for each, step in steps.items()}
        metrics = {f"in_turn/{each}": float(abs(step.advantages).max()) for each, step in steps.items()}
        return Step(mine.baselines, mine.advantages, {"turn": state["turn"] + 1, "states": states}, metrics=metrics)

    def identity(self) -> dict:
        return {**super().identity(), "members": {each: m.identity() for each, m in self.members.items()}}
