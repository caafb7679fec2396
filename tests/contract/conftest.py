"""The installed OpenRLHF with the seams in place, and rollouts made by its own code."""

import dataclasses
import importlib
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from deepspeed_engine import Engine
from two_ranks import outcomes_of

from openrlhf_ebpo.upstream.install import all_seams, install


@pytest.fixture(scope="session", autouse=True)
def installed():
    """Apply every row, once, as a worker does: install, then import upstream."""
    install()
    for seam in all_seams():
        importlib.import_module(seam.module)


@pytest.fixture(scope="session")
def of_two_ranks(tmp_path_factory) -> list[dict]:
    """Return the results of each case of health_ranks.py, loss_mean_ranks.py and micro_batch_ranks.py, for
    each of the two ranks."""
    return outcomes_of(Path(__file__).with_name("health_ranks.py"), tmp_path_factory.mktemp("ranks"))


FLAGS = {
    "data.order": "shuffle",
    "data.cluster_key": None,
    "data.input_key": "q",
    "data.label_key": "a",
    "data.image_key": "images",
    "data.apply_chat_template": False,
    "train.seed": 3,
    "train.agent_func_path": None,
    "train.dynamic_batch_enable": False,
    "train.micro_batch_size": 1,
    "train.max_epochs": 1,
    "train.async_enable": False,
    "train.async_queue_size": 1,
    "train.partial_rollout_enable": False,
    "rollout.vllm_generate_batch_size": None,
    "rollout.micro_batch_size": 3,
    "rollout.max_new_tokens": 16,
    "rollout.max_tokens_per_gpu": 40,
    "reward.remote_url": None,
    "reward.timeout": 60.0,
    "reward.memory": 512,
    "reward.workers": None,
    "reward.clip_range": (-10, 10),
    "reward.overlong_buffer_len": None,
    "reward.overlong_penalty_factor": 1.0,
    "reward.stop_properly_penalty_coef": None,
    "actor.num_nodes": 1,
    "actor.num_gpus_per_node": 1,
    "ds.ring_attn_size": 1,
    "ds.tensor_parallel_size": 1,
    "vllm.enable_sleep": False,
    "algo.dynamic_filtering_enable": False,
    "algo.kl.use_loss": False,
    "algo.advantage.gamma": 1.0,
    "algo.advantage.lambd": 0.95,
    "algo.advantage.no_std_norm": False,
    "algo.advantage.is_correction_level": "off",
    "algo.advantage.ebpo.fail_reward": 0.0,
    "algo.advantage.ebpo.pass_reward": 1.0,
    "algo.advantage.ebpo.reward_clip_range": None,
}


@pytest.fixture
def sections():
    """Builds upstream's nested arguments from flat names."""
    from openrlhf.utils.config import hierarchize

    return lambda **flat: hierarchize(SimpleNamespace(**flat))


@pytest.fixture
def rollout_args(sections):
    """The arguments that upstream's rollouts read, with changes: rollout_args("rloo", G=4, **flat)."""

    def build(estimator: str, G: int, **changes):
        names = {"algo.advantage.estimator": estimator, "rollout.n_samples_per_prompt": G}
        return sections(**{**FLAGS, **names, **changes})

    return build


@pytest.fixture
def prompt_args(rollout_args):
    """The same for groups of a rollout batch that are one optimizer step: prompt_args(batch, group, **flat)."""

    def build(batch: int, group: int, **changes):
        sizes = {"rollout.batch_size": batch, "train.batch_size": batch * group}
        return rollout_args("ebpo", G=group, **{**sizes, **changes})

    return build


@dataclasses.dataclass
class Answers:
    """Responses as rollout actors send them."""

    rewards: list
    seed: int = 0
    gaps: bool = True

    def responses(self) -> list[dict]:
        generator = torch.Generator().manual_seed(self.seed)

        def draw(low: int, high: int) -> int:
            return int(torch.randint(low, high, (), generator=generator))

        found = []
        for i, reward in enumerate(self.rewards):
            start, length = draw(1, 4), draw(3, 9)
            ranges = [(start, start + length)]
            if self.gaps and draw(0, 2):  # two turns with the environment's words in between
                ranges = [(start, start + 1), (start + 2, start + length)]
            found.append(
                {
                    "prompt": f"prompt {i}",
                    "label": str(i),
                    "observation_tokens": [draw(1, 50) for _ in range(start + length)],
                    "action_ranges": ranges,
                    "rollout_log_probs": None,
                    "truncated": bool(draw(0, 2)),
                    "reward": reward,
                    "scores": reward,
                    "extra_logs": {"judge": float(i)},
                }
            )
        return found


@pytest.fixture
def answers():
    return Answers


@pytest.fixture
def to_samples():
    """Responses -> Experiences, through the patched generator's own method."""
    from openrlhf.trainer.ppo_utils.samples_generator import SamplesGenerator

    def build(responses: list[dict], args) -> list:
        data = SimpleNamespace(dataset=SimpleNamespace(prompts=["prompt 1"], labels=["1"], clusters=["algebra"]))
        generator = SamplesGenerator(SimpleNamespace(args=args), data, None, None, [])
        return [generator._process_response_into_experience(response, max_len=64) for response in responses]

    return build


@pytest.fixture
def make_maker():
    """An experience maker of a class, whose forward passes (Ray actors elsewhere) give seeded numbers."""

    def build(maker_class, args, kl_coef: float = 0.0, reference=True):
        from openrlhf.models.utils import masked_mean

        def forward(samples_list):
            generator = torch.Generator().manual_seed(5)
            for samples in samples_list:
                shape = samples.action_mask.shape
                samples.values = torch.randn(shape, generator=generator)
                samples.kl = torch.randn(shape, generator=generator)
                samples.action_log_probs = -torch.rand(shape, generator=generator)
                samples.info["kl"] = masked_mean(samples.kl, samples.action_mask, dim=-1)
                samples.info["logprobs_diff"] = samples.info["kl"].clone()
            return samples_list

        maker = maker_class(
            None,
            None,
            None,
            "a reference model" if reference else None,
            SimpleNamespace(value=kl_coef),
            SimpleNamespace(args=args),
            SimpleNamespace(pad_token_id=0),
        )
        maker.make_experience = forward
        return maker

    return build


@pytest.fixture
def upstreams_advantages(rollout_args, make_maker, original_class):
    """Upstream's own experiences for rewards (M, G), masks and KL (M·G, A): one micro-batch for each part of the
    indices."""
    from openrlhf.trainer.ppo_utils.experience import Experience

    def run(name, rewards, mask, kl, parts, kl_coef=0.0, clip_range=None):
        args = rollout_args(name, G=rewards.shape[1], **{"reward.clip_range": clip_range})
        experiences = [
            Experience(
                index=part.tolist(),
                rewards=rewards.reshape(-1)[part],
                action_mask=mask[part],
                kl=kl[part],
                response_length=mask[part].sum(-1),
                truncated=torch.zeros(len(part)),
            )
            for part in parts
        ]
        return make_maker(original_class, args, kl_coef).compute_advantages_and_returns(experiences)

    return run


@pytest.fixture
def patched_class():
    from openrlhf.trainer.ppo_utils import experience_maker

    return experience_maker.RemoteExperienceMaker


@pytest.fixture
def original_class(patched_class):
    from openrlhf_ebpo.upstream.controller.experience_maker import EBPOExperienceMaker

    mixin, original = patched_class.__bases__
    assert mixin is EBPOExperienceMaker
    assert original.__module__ == "openrlhf.trainer.ppo_utils.experience_maker"
    return original


@pytest.fixture
def strategy(monkeypatch):
    from openrlhf.utils import distributed_util
    from openrlhf.utils.deepspeed import deepspeed

    monkeypatch.setattr(distributed_util, "torch_dist_barrier_and_cuda_sync", lambda: None)
    monkeypatch.setattr(deepspeed, "torch_dist_barrier_and_cuda_sync", lambda: None)
    monkeypatch.setattr(deepspeed.deepspeed, "DeepSpeedEngine", Engine)
    monkeypatch.setattr("gc.collect", lambda: 0)  # half a second each time, with all of vLLM and torch in memory
    strategy = object.__new__(deepspeed.DeepspeedStrategy)
    strategy.is_rank_0 = lambda: True
    strategy.print = lambda *_: None
    strategy.args = SimpleNamespace(algo=SimpleNamespace(advantage=SimpleNamespace(estimator="ebpo")))
    return strategy
