"""OpenRLHF's advantages for the rewards of tests/data/golden_advantages.json: every other trainer must get the same.

A new estimator needs an entry with the value []; the failing test then prints its numbers.
"""

import json
from pathlib import Path

import pytest

GOLDEN = json.loads((Path(__file__).parents[1] / "data" / "golden_advantages.json").read_text())


@pytest.mark.parametrize("name", GOLDEN["advantages"])
def test_openrlhf_gets_the_golden_advantages(name, rollout_args, answers, to_samples, make_maker, patched_class):
    args = rollout_args(name, G=GOLDEN["group"])
    maker, found = make_maker(patched_class, args), []
    for seed, rewards in enumerate(GOLDEN["rewards"]):
        experiences = maker.make_experience_batch(to_samples(answers(rewards, seed).responses(), args))
        trained = {i: a[0].item() for e in experiences for i, a in zip(e.index, e.advantages, strict=True)}
        found.append([round(trained[i], 7) for i in range(len(rewards))])
    print(json.dumps({name: found}))
    for mine, golden in zip(found, GOLDEN["advantages"][name] or [[]] * len(found), strict=True):
        assert mine == pytest.approx(golden, rel=1e-6, abs=1e-6)
