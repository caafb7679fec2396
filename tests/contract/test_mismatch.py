"""Rollout engine and trainer compared: what is asked of vLLM, and what the experience maker makes of it."""

import asyncio
import math
from types import SimpleNamespace

import pytest
import torch

from openrlhf_ebpo.rewards.processes.reward_values import ERROR_KEY
from openrlhf_ebpo.upstream.controller import mismatch
from openrlhf_ebpo.upstream.rollout import engine as rollout_engine
from openrlhf_ebpo.upstream.rollout.engine import AT_TEMPERATURE, PROCESSED, MeasuredRolloutActor

REWARDS = [1.0, 0.0, 0.0, 1.0, 1.0, 0.0, 0.0, 1.0]
KEYS = {"k3_kl", "chi2_token", "ess", "ess_sequence", "largest_ratio", "tokens"}


@pytest.fixture
def step(rollout_args, to_samples, make_maker, patched_class):
    """Responses -> (experiences, mismatch metrics); `settings` are flat arguments."""

    def run(responses, estimator="ebpo", **settings):
        args = rollout_args(estimator, G=4, **settings)
        maker = make_maker(patched_class, args)
        experiences = maker.make_experience_batch(to_samples(responses, args))
        found = {k.removeprefix("mismatch/"): v for k, v in maker.metrics.items() if k.startswith("mismatch/")}
        return experiences, found

    return run


@pytest.fixture
def rolled_out(step, answers):
    """Responses as rollout actors send them, each token as likely as to the trainer, or less by `shift`."""

    def build(shift=0.0, **settings):
        responses = answers(REWARDS).responses()
        for experience in step(responses, **settings)[0]:
            for i, row in zip(experience.index, experience.action_log_probs, strict=True):
                count = len(responses[i]["observation_tokens"])
                responses[i]["rollout_log_probs"] = [0.0, *(row[: count - 1] - shift).tolist()]
        return responses

    return build


def tokens_of(responses) -> int:
    return sum(end - start for response in responses for start, end in response["action_ranges"])


def test_engine_and_trainer_that_agree(step, rolled_out):
    responses = rolled_out()
    _, found = step(responses)
    assert found.pop("tokens") == tokens_of(responses)
    assert found == pytest.approx(
        {"k3_kl": 0, "chi2_token": 0, "ess": 1, "ess_sequence": 1, "largest_ratio": 1}, abs=1e-6
    )


@pytest.mark.parametrize("settings", [{}, {"rollout.micro_batch_size": 5}, {"train.dynamic_batch_enable": True}])
@pytest.mark.parametrize("estimator", ["ebpo", "dr_grpo"])
def test_the_ratio_is_trainer_by_rollout_whatever_the_micro_batches(step, rolled_out, settings, estimator):
    """Turns of an agent and padding are in these responses."""
    responses = rolled_out(shift=0.5, **settings)
    experiences, found = step(responses, estimator, **settings)
    assert found["largest_ratio"] == pytest.approx(math.exp(0.5), rel=1e-5)
    assert found["k3_kl"] == pytest.approx(math.exp(0.5) - 1.5, rel=1e-5)
    assert all(e.rollout_log_probs is None for e in experiences), "OpenRLHF trains without them here"


def test_without_log_probabilities_nothing_is_measured(step, answers):
    assert step(answers(REWARDS).responses())[1] == {}


def test_a_few_responses_are_enough(step, rolled_out):
    responses = rolled_out(shift=0.5)
    for response in responses[3:]:
        response["rollout_log_probs"] = None
    _, found = step(responses)
    assert found["tokens"] == tokens_of(responses[:3])
    assert found["k3_kl"] == pytest.approx(math.exp(0.5) - 1.5, rel=1e-5)


def test_where_openrlhf_corrects_with_them_they_stay(step, rolled_out):
    experiences, found = step(rolled_out(), **{"algo.advantage.is_correction_level": "token"})
    assert all(e.rollout_log_probs.shape == e.action_mask.shape for e in experiences)
    assert set(found) == KEYS


def test_an_excluded_response_and_an_agents_wrong_count_are_left_out(step, rolled_out):
    responses = rolled_out()
    responses[0].update(
        reward=None, scores=None, extra_logs={}, rollout_log_probs=[-50.0] * len(responses[0]["observation_tokens"])
    )
    responses[0][ERROR_KEY] = "KeyError"
    responses[1]["rollout_log_probs"] = [-50.0]
    responses[2].update(action_ranges=[], rollout_log_probs=[0.0] * len(responses[2]["observation_tokens"]))
    _, found = step(responses)
    assert found["tokens"] == tokens_of(responses[3:])
    assert found["k3_kl"] == pytest.approx(0, abs=1e-6)


def actor(executor=None, **kwargs):
    from openrlhf.utils.agent import SingleTurnAgentExecutor

    class Actor:
        def __init__(self):
            self.kwargs, self.seen = kwargs, []
            self.executor = executor or SingleTurnAgentExecutor.__new__(SingleTurnAgentExecutor)

        async def generate_responses(self, prompt, label, sampling_params, max_length, num_samples=1):
            self.seen.append(sampling_params.logprobs)
            await self.go.wait()
            if prompt == "fails":
                raise RuntimeError

    engine = object.__new__(type("Measured", (MeasuredRolloutActor, Actor), {}))
    Actor.__init__(engine)
    return engine


def params(temperature=1.0, logprobs=None):
    return SimpleNamespace(temperature=temperature, logprobs=logprobs)


def ask(engine, count=1, prompt="p", measured=True, **settings):
    async def all_at_once():
        engine.go = asyncio.Event()
        calls = [
            engine.generate_responses(
                prompt=prompt,
                label="",
                sampling_params=params(**settings),
                max_length=9,
                num_samples=16,
                measured=measured,
            )
            for _ in range(count)
        ]
        done = asyncio.gather(*calls, return_exceptions=True)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        engine.go.set()
        await done

    asyncio.run(all_at_once())
    engine.seen, seen = [], engine.seen
    return seen


def test_of_a_batch_the_first_responses_are_asked_for_log_probabilities():
    engine = actor()
    assert ask(engine, 6) == [0, 0, 0, 0, None, None] and rollout_engine.MAX_RESPONSES == 64
    assert ask(engine, 6, prompt="fails") == [0, 0, 0, 0, None, None], "and again of the next, also after errors"
    assert ask(engine, 2) == [0, 0]


@pytest.mark.parametrize(("max_length", "responses"), [(24, 64), (1024, 64), (4096, 16), (8192, 8), (32768, 8)])
def test_of_long_responses_fewer(max_length, responses):
    assert rollout_engine.max_measured(max_length) == responses


def test_what_openrlhf_asks_for_stays():
    assert ask(actor(), 5, logprobs=1) == [1] * 5


def test_a_temperature_other_than_one_needs_processed_logprobs():
    assert ask(actor(), temperature=0.7) == [None]
    assert ask(actor(logprobs_mode=PROCESSED), temperature=0.7) == [0]


def test_a_custom_executor_is_skipped():
    assert ask(actor(executor=object())) == [None]


def test_engines_without_a_trainer_are_not_asked():
    assert ask(actor(), measured=False) == [None]


def test_engines_are_made_for_the_temperature_of_the_rollouts(monkeypatch):
    class Actor:
        async def __init__(self, *args, **kwargs):
            self.given = kwargs

    def given(at_temperature, **kwargs):
        monkeypatch.setenv(AT_TEMPERATURE, at_temperature)
        engine = object.__new__(type("Measured", (MeasuredRolloutActor, Actor), {}))
        asyncio.run(engine.__init__(model="m", **kwargs))
        return engine.given

    assert given("") == {"model": "m"}
    assert given("1") == {"model": "m", "logprobs_mode": PROCESSED}
    assert given("1", logprobs_mode="own") == {"model": "m", "logprobs_mode": "own"}


@pytest.mark.parametrize("seed", range(3))
def test_metrics_are_those_of_their_formulas(seed):
    generator = torch.Generator().manual_seed(seed)
    responses = [1.5 * torch.randn(n, generator=generator, dtype=torch.float64) for n in (1, 7, 30)]
    d = torch.cat(responses).tolist()
    w = [math.exp(x) for x in d]
    s = [math.exp(x.sum()) for x in responses]
    n = len(d)
    clipped = [min(max(x, 1 / mismatch.MAX_K3_WEIGHT), mismatch.MAX_K3_WEIGHT) for x in w]
    assert mismatch.metrics(responses) == pytest.approx(
        {
            "mismatch/k3_kl": sum(a - 1 - math.log(a) for a in clipped) / n,
            "mismatch/chi2_token": sum(a * a - 1 for a in w) / n,
            "mismatch/ess": sum(w) ** 2 / (n * sum(a * a for a in w)),
            "mismatch/ess_sequence": sum(s) ** 2 / (3 * sum(a * a for a in s)),
            "mismatch/largest_ratio": max(w),
            "mismatch/tokens": n,
        }
    )


@pytest.mark.parametrize("extreme", [500.0, -500.0, math.inf, -math.inf])
def test_what_is_extreme_is_cut_and_finite(extreme):
    found = mismatch.metrics([torch.full((5000,), extreme, dtype=torch.float64), torch.zeros(3, dtype=torch.float64)])
    assert (
        all(map(math.isfinite, found.values()))
        and found["mismatch/largest_ratio"] <= math.exp(mismatch.MAX_LOG_RATIO) * 1.001
    )
    assert 0 < found["mismatch/ess_sequence"] <= 1


def test_rounding_of_equal_programs_is_no_mismatch():
    found = mismatch.metrics([torch.full((1000,), 1e-7, dtype=torch.float64)])
    assert 0 <= found["mismatch/k3_kl"] < 1e-13 and found["mismatch/ess"] == pytest.approx(1)
    assert mismatch.metrics([]) == mismatch.metrics([torch.zeros(0)]) == {}
