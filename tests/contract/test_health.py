"""Steps that are not finite, in upstream's own trainers and DeepSpeed, two ranks; and what happens without the
check."""

import json
import math
from types import SimpleNamespace

import pytest
import torch

from openrlhf_ebpo.errors import HealthError
from openrlhf_ebpo.upstream.controller.failures import save_failed_batch
from openrlhf_ebpo.upstream.policy import health

WEIGHT = "model.layers.1.mlp.up_proj.weight"


@pytest.fixture(scope="module")
def outcomes(of_two_ranks) -> list[dict]:
    """Return the result of each case, for each of the two ranks."""
    return [rank["health"] for rank in of_two_ranks]


def test_a_healthy_step_goes_on(outcomes):
    for outcome in outcomes:
        assert math.isfinite(outcome["healthy 0"]["status"]["policy_loss"])
        assert outcome["healthy 0"]["status"]["actor_grad_norm"] > 0


@pytest.mark.parametrize("case", ["advantage 0", "advantage 2", "advantage 3"])
def test_an_infinite_advantage_in_one_rank_stops_every_rank_with_the_same_words(outcomes, case):
    first, second = (outcome[case] for outcome in outcomes)
    assert first == second
    assert (
        "policy, rank 1: policy_loss is -inf" in first["error"]
        or "policy, rank 1: policy_loss is inf" in first["error"]
    )
    (finding,) = [found for found in first["report"] if found["rank"] == 1]
    assert finding["measured"]["policy_loss"] in ("inf", "-inf") and finding["responses"] == 2


@pytest.mark.parametrize("case", ["gradient 2", "gradient 3"])
def test_a_gradient_that_is_not_finite_stops_although_the_losses_and_the_logged_norm_are_ordinary(outcomes, case):
    """ZeRO 2 leaves the step out in silence; ZeRO 3 takes it, and its norm is an ordinary number."""
    assert all("error" in outcome[case] for outcome in outcomes)
    report = outcomes[0][case]["report"]
    assert {found["rank"] for found in report} == {0, 1}
    if case == "gradient 2":
        assert all(found["problems"] == ["the gradient is not finite"] and not found["weights"] for found in report)
        assert all(found["measured"]["actor_grad_norm"] >= 0 for found in report)
    else:
        assert all(found["weights"] == ["model.layers.0.mlp.up_proj.weight"] for found in report)


@pytest.mark.parametrize("case", ["weight 2", "weight 3"])
def test_a_poisoned_weight_of_one_rank_is_named_by_all(outcomes, case):
    for outcome in outcomes:
        assert outcome[case]["error"].endswith(f"weights are not finite: {WEIGHT}")
        assert [found["rank"] for found in outcome[case]["report"] if WEIGHT in found["weights"]] == [1]


def test_the_critic_is_watched_too(outcomes):
    for outcome in outcomes:
        assert "rank 1: critic_loss" in outcome["critic 2"]["error"]


def test_a_step_left_out_is_how_fp16_finds_its_scale_and_a_fault_in_bf16():
    assert health.problems_of({"policy_loss": 1.0, "actor_grad_norm": 0.5}, left_out=True, scaled=True) == []
    assert health.problems_of({"policy_loss": 1.0, "actor_grad_norm": 0.5}, left_out=True, scaled=False)
    assert health.problems_of({"policy_loss": math.nan}, left_out=True, scaled=True) == ["policy_loss is nan"]
    assert health.problems_of({"policy_loss": 1.0, "actor_grad_norm": -1.0}, left_out=False, scaled=False)


def test_the_kl_counts_where_it_is_a_loss():
    result = {"metrics": {"kl": torch.tensor([1.0, math.nan]), "policy_loss": torch.tensor(0.5), "reward": math.nan}}
    assert health.losses_and_norms(result, kl_is_loss=False) == {"policy_loss": 0.5}
    assert health.problems_of(health.losses_and_norms(result, kl_is_loss=True), False, False) == ["kl is nan"]


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_one_element_of_many_is_found(value, dtype):
    model = torch.nn.Sequential(torch.nn.Linear(40, 30), torch.nn.Linear(30, 7)).to(dtype)
    assert health.damaged_weights(model) == []
    with torch.no_grad():
        model[1].weight.fill_(torch.finfo(dtype).max)  # large, and finite: a sum would overflow
    assert health.damaged_weights(model) == []
    with torch.no_grad():
        model[1].weight[3, 4] = value
    assert health.damaged_weights(model) == ["1.weight"]


def test_many_ranks_make_a_short_message():
    report = [{"rank": rank, "role": "policy", "weights": list("abcdefg")} for rank in range(64)]
    report[40]["problems"] = ["kl is nan"]
    words = health.describe_findings(report)
    assert words.startswith("policy, rank 40: kl is nan") and words.endswith("and 61 more ranks")
    assert words.count("a, b, c and 4 more") == 3


class Saves:
    def __init__(self, model, skipped_steps=0):
        engine = SimpleNamespace(module=model, skipped_steps=skipped_steps)
        self.model, self.saved = SimpleNamespace(model=engine), []
        self.args = SimpleNamespace(ds=SimpleNamespace(param_dtype="bf16"))
        self.strategy = SimpleNamespace(all_reduce=lambda value, op: value, get_rank=lambda: 0)

    def save_logs_and_checkpoints(self, args, global_step, step_bar, logs_dict=None, client_states=None):
        self.saved.append(global_step)


class WarmStart(health.HealthyWarmStart, Saves):
    pass


def test_a_warm_start_stops_before_it_saves():
    model = torch.nn.Linear(3, 3)
    trainer = WarmStart(model)
    trainer.save_logs_and_checkpoints(None, 1, None, {"gpt_loss": 2.0, "grad_norm": 1.0})
    with pytest.raises(HealthError, match=r"optimizer step 2 .*gpt_loss is nan"):
        trainer.save_logs_and_checkpoints(None, 2, None, {"gpt_loss": math.nan, "grad_norm": 1.0})
    trainer.model.model.skipped_steps = 1
    with pytest.raises(HealthError, match="the gradient is not finite"):
        trainer.save_logs_and_checkpoints(None, 3, None, {"gpt_loss": 2.0, "grad_norm": 1.0})
    trainer.save_logs_and_checkpoints(None, 4, None, {"gpt_loss": 2.0, "grad_norm": 1.0})
    torch.nn.init.constant_(model.bias, math.inf)
    with pytest.raises(HealthError, match="weights are not finite: bias"):
        trainer.save_logs_and_checkpoints(None, 5, None, {"gpt_loss": 2.0, "grad_norm": 1.0})
    assert trainer.saved == [1, 4]


class Rollouts:
    def table(self, step, tokenizer):
        import pyarrow as pa

        return pa.table({"step": [step]})


def test_the_batch_of_a_step_that_failed_is_kept_also_when_it_fails_again(tmp_path):
    trainer = SimpleNamespace(
        run_log=SimpleNamespace(run_dir=tmp_path), experience_maker=SimpleNamespace(rollouts=Rollouts()), tokenizer=None
    )
    for folder in ("failed_step-000012", "failed_step-000012.2"):
        with (
            pytest.raises(HealthError, match=f"step 12: the policy.*\n.*{folder} ") as stopped,
            save_failed_batch(trainer, 12),
        ):
            raise HealthError("the policy is not healthy", [{"rank": 0, "weights": ["w"]}])
        assert "--actor.adam.lr" in str(stopped.value)
        report = json.loads((tmp_path / folder / "report.json").read_text())
        assert report["step"] == 12 and report["ranks"] == [{"rank": 0, "weights": ["w"]}]
        assert (tmp_path / folder / "rollouts.parquet").is_file()
