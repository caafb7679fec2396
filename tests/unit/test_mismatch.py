"""Rollouts from old weights are told from those that are as far from the trainer as ever."""

import numpy as np
import pytest
import torch

from openrlhf_ebpo.run.batches import BatchSettings
from openrlhf_ebpo.run.catalogue import KL_PER_STEP, find
from openrlhf_ebpo.upstream.controller.mismatch import (
    FIRST_STEP_LIMIT,
    K3,
    RECENT,
    StalenessMonitor,
    metrics,
)

RNG = np.random.default_rng(0)


def steps(kls, moves=None) -> list[dict]:
    moves = [1e-3] * len(kls) if moves is None else moves
    return [{K3: kl, KL_PER_STEP: moved} for kl, moved in zip(kls, moves, strict=True)]


def flags(rows, age=0, before=()) -> list:
    watch = StalenessMonitor(age, before)
    return [watch.is_stale(row) for row in rows]


def regular(count=200, usual=2e-3, spread=0.2) -> np.ndarray:
    return usual * np.exp(spread * RNG.standard_normal(count))


def squares(moves, age) -> np.ndarray:
    """KL between the weights of each step and those of `age` steps before, where the policy goes straight on."""
    distances = np.sqrt(moves)
    return np.array([distances[max(t - age, 0) : t].sum() ** 2 for t in range(len(moves))])


@pytest.mark.parametrize("usual", [1e-9, 5e-5, 2e-3, 2e-2])
def test_a_usual_mismatch_is_none_to_warn_of(usual):
    """From float32 against float32 to mixtures of experts in bf16, also while it grows tenfold in a training."""
    assert not any(flags(steps(regular(400, usual))))
    assert not any(flags(steps(regular(400, usual, 0.1) * np.linspace(1, 10, 400))))


TOKENS = 1 << 14  # of a step
ROUNDING = 0.04  # nats: standard deviation of log p_trainer − log p_rollout in bf16


def differences(kl: float = 0.0, outlier: float | None = None) -> torch.Tensor:
    """Of one step's tokens, between policies that are `kl` apart and computed in bf16; outlier: of one of the
    tokens."""
    moved = (2 * kl) ** 0.5 * RNG.standard_normal(TOKENS) - kl
    found = moved + ROUNDING * RNG.standard_normal(TOKENS)
    if outlier is not None:
        found[0] = outlier
    return torch.from_numpy(found)


def row(d: torch.Tensor, moved: float = 4e-3) -> dict:
    return {**metrics([d]), KL_PER_STEP: moved}


@pytest.mark.parametrize("outlier", [8.0, 20.0, 100.0, -20.0])
def test_one_outlier_in_a_million_tokens_is_not_stale(outlier):
    """Every 61st step has one, so one token in a million; also the first step, which nothing precedes."""
    tokens = [differences(outlier=outlier if step % 61 == 0 else None) for step in range(200)]
    assert not any(flags([row(d) for d in tokens]))
    if outlier > 0:
        raw = [(d.clamp(max=20).exp() - 1 - d.clamp(max=20)).mean().item() for d in tokens]
        assert raw[61] > 10 * raw[60] and raw[0] > FIRST_STEP_LIMIT, "without the clip it would be"


def test_one_low_step_does_not_make_the_others_stale():
    usual = regular(40)
    usual[20] = 1e-5
    assert not any(flags(steps(usual)))


@pytest.mark.parametrize("stops", [1, 30])
def test_weights_that_do_not_arrive_are_told_within_three_steps_of_bf16_with_outliers(stops):
    """stops: the first step whose weights do not arrive."""
    moves = np.full(40, 4e-3)
    drift = np.concatenate([np.zeros(stops - 1), squares(moves[stops - 1 :], age=40)])
    stale = flags([row(differences(kl, 8.0 if step % 5 == 0 else None)) for step, kl in enumerate(drift)])
    assert not any(stale[:stops]) and any(stale[stops : stops + 3]) and all(stale[stops + 3 :])


def test_weights_that_never_arrive_are_seen_though_the_policy_moves_little():
    usual, moves = regular(60, spread=0.05), np.full(60, 1e-4)
    stale = flags(steps(usual + squares(moves, age=60), moves))
    assert not any(stale[:5]) and all(stale[25:])


@pytest.mark.parametrize("age", [1, 2, 4])
def test_rollouts_that_are_old_by_design_are_not_stale(age):
    moves = 3e-3 * np.exp(0.5 * RNG.standard_normal(200))
    rows = steps(regular() + squares(moves, age), moves)
    assert not any(flags(rows, age))
    if age > 1:
        assert any(flags(rows, 0)), "of rollouts that should be new the same would be"


@pytest.mark.parametrize("age", [1, 2])
def test_where_old_is_regular_weights_that_never_arrive_are_told_later(age):
    moves = np.full(20, 4e-3)
    stale = flags(steps(regular(20) + squares(moves, age=20), moves), age)
    assert not any(stale[: age + 2]) and all(stale[10:])


def test_a_resumed_run_knows_what_was_usual():
    before = steps(regular(30))
    assert flags(steps([2e-2, 2e-3]), before=before) == [True, False]
    assert flags(steps([2e-2, 3e-2])) == [False, False], "a new run has nothing to compare with"
    assert flags(steps([0.2, 0.2])) == [True, True], "but what no precision explains"


def test_steps_that_were_not_measured():
    assert flags([{}, {K3: float("nan")}, *steps([1e-3, 1e-1])]) == [None, None, False, True]
    old = [{K3: kl} for kl in (1e-3, 1e-1)]
    assert flags(old) == [False, True]


def test_where_the_policys_movement_is_not_measured_no_old_rollout_is_called_fresh_or_stale():
    """`--logger.no_policy_metrics`, vision models, ring attention."""
    assert find(KL_PER_STEP)
    unmeasured = [{K3: kl} for kl in (1e-3, 1e-1, 1e-3)]
    assert flags(unmeasured, age=1) == [False, None, None], "the first rollouts have the weights of the start"
    assert flags([*unmeasured, *steps([1e-3, 1e-1])], age=2)[1:] == [None, None, None, None]
    assert flags([*unmeasured, *steps([1e-3, 1e-1])], age=1)[3:] == [None, True]


def test_a_stale_step_is_never_what_is_usual():
    assert flags(steps([1e-3] * 3 + [0.1] * (RECENT + 5)))[3:] == [True] * (RECENT + 5)


def test_the_warning_names_the_numbers():
    watch = StalenessMonitor(0)
    assert [watch.is_stale(row) for row in steps([4e-4, 1.2e-2])] == [False, True]
    assert watch.warning(2, 1.2e-2) == (
        "warning: step 2: the rollouts do not seem to come from the weights that are trained: mismatch/k3_kl is 0.012, "
        "0.0004 in the steps before. Do the engines get the weights (docs/train.md)?"
    )
    assert "steps before" not in StalenessMonitor(0).warning(1, 0.2)


@pytest.mark.parametrize(("queue", "generated", "age"), [(0, 8, 0), (1, 8, 1), (3, 8, 3), (1, 24, 3), (2, 20, 4)])
def test_how_old_rollouts_are_by_design(queue, generated, age):
    assert BatchSettings(8, 4, 32, queue=queue, generated=generated).age == age
