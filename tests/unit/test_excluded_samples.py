"""A sample whose reward failed passes through upstream's batching and changes no mean."""

import math
from types import SimpleNamespace

import torch

from openrlhf_ebpo.upstream.controller.experience_maker import _raise_if_all_failed, complete_samples


def sample(info: dict, scores=None) -> SimpleNamespace:
    return SimpleNamespace(info=info, scores=scores)


def test_a_failed_sample_gets_the_mean_of_what_the_others_logged():
    infos = [{"reward": 1.0, "judge": 4.0}, {"reward": 0.0, "judge": 2.0}, {"reward": math.nan}]
    samples = [sample({k: torch.tensor([v]) for k, v in info.items()}) for info in infos]
    complete_samples(samples)
    assert [sample.info["reward"].item() for sample in samples] == [1.0, 0.0, 0.5]
    assert [sample.info["judge"].item() for sample in samples] == [4.0, 2.0, 3.0]


def test_all_samples_log_in_one_order():
    """Upstream adds up the ranks' metrics by their places."""
    samples = [sample({k: torch.tensor([1.0]) for k in keys}) for keys in ("ra", "rb", "bar")]
    complete_samples(samples)
    assert {tuple(sample.info) for sample in samples} == {("r", "a", "b")}


def test_metrics_absent_in_all_samples_are_zero():
    samples = [sample({"judge": torch.tensor([math.nan])}), sample({})]
    complete_samples(samples)
    assert [sample.info["judge"].item() for sample in samples] == [0.0, 0.0]


def test_a_step_with_one_good_reward_goes_on(caplog):
    _raise_if_all_failed(["", "ValueError: y"])
    assert "1 of 2 rewards failed" in caplog.text
    _raise_if_all_failed(["", ""])


def test_numbers_of_any_type_are_complete():
    infos = [{"reward": torch.tensor([1]), "clipped": torch.tensor([True])} for _ in range(3)]
    infos[1]["reward"] = torch.tensor([0.5])
    samples = [sample(dict(info)) for info in infos]
    complete_samples(samples)
    assert all(sample.info[key] is info[key] for sample, info in zip(samples, infos, strict=True) for key in info)


def test_a_sample_without_a_score_beside_whole_number_rewards_gets_none():
    samples = [SimpleNamespace(scores=torch.tensor([1]), rewards=torch.tensor([1]), info={})]
    samples += [SimpleNamespace(scores=None, rewards=torch.tensor([0]), info={})]
    complete_samples(samples)
    assert samples[0].scores.item() == 1 and math.isnan(samples[1].scores.item())
