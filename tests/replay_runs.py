"""Small runs that the project's own trainer mixin and run log have written, with a stand-in for OpenRLHF's trainer.

Rewards are drawn by step, so that a resumed run sees what the first one saw.
"""

from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pyarrow.parquet as pq
import torch
from recorded_runs import Tokenizer

from openrlhf_ebpo.estimator import registry
from openrlhf_ebpo.estimator.advantage import estimate
from openrlhf_ebpo.estimator.config import EstimatorConfig
from openrlhf_ebpo.estimator.contract import Batch
from openrlhf_ebpo.run.rollout_columns import read_prior_start
from openrlhf_ebpo.run.run_log import PRIOR_START, close_run, step_files
from openrlhf_ebpo.run.run_settings import RunSettings
from openrlhf_ebpo.run.run_start import open_run
from openrlhf_ebpo.upstream.controller.rollouts import Rollouts
from openrlhf_ebpo.upstream.controller.trainer import PPOTrainerWithPrior
from openrlhf_ebpo.upstream.saving import STATE_KEY

M, G = 6, 4


def rollouts_of(step: int) -> Rollouts:
    """M groups of G responses, one of them without a reward; prompts come back, weights and lengths are uneven."""
    rng = np.random.default_rng(step)
    drawn = rng.choice((0.0, 1.0), (M, G)) * (rng.random((M, 1)) > 0.3)
    drawn = torch.tensor(drawn.astype(np.float32)).reshape(-1)
    drawn[int(rng.integers(M * G))] = torch.nan
    names = [f"prompt {number}" for number in rng.choice(3 * M, M, replace=False) for _ in range(G)]
    count = M * G
    return Rollouts(
        order=torch.arange(count),
        raw_rewards=drawn,
        action_counts=torch.tensor(rng.integers(1, 30, count)),
        score_weights=partial(torch.tensor, rng.random(count)),
        response_lengths=torch.tensor(rng.integers(1, 40, count)),
        truncated=torch.zeros(count, dtype=torch.bool),
        responses=[torch.tensor([1])] * count,
        prompts=names,
        labels=["1"] * count,
        errors=["" if ok else "ValueError: no number" for ok in drawn.isfinite()],
        clusters=[f"topic {name[-1]}" if name[-1] < "5" else None for name in names],
    )


def batch_of(rollouts: Rollouts) -> Batch:
    rewards = rollouts.raw_rewards.double().reshape(M, G).numpy()
    return Batch.of(
        rewards,
        np.isfinite(rewards),
        rollouts.prompt_ids(every=G),
        rollouts.clusters[::G],
        rollouts.action_counts.reshape(M, G).numpy(),
        rollouts.score_weights().reshape(M, G).numpy(),
    )


class Upstream:
    """Stand in for OpenRLHF's trainer, as far as it concerns the run log."""

    def __init__(self, args, estimator, states):
        self.args, self.tokenizer, self.states, self.vllm_engines = args, Tokenizer(), states, []
        self.experience_maker = SimpleNamespace(
            estimator=estimator,
            state=estimator.initial(),
            rollouts=None,
            metrics={"ebpo/zero_advantage": 0.0},
            config=EstimatorConfig(G),
        )

    def init_checkpoint_states(self):
        return self.states

    def train_step(self, rollout_samples, global_step):
        maker, rollouts = self.experience_maker, rollouts_of(global_step + 1)
        result = estimate(maker.estimator, batch_of(rollouts), maker.state)
        maker.state, maker.rollouts = result.state, rollouts.with_result(result)
        return {}, global_step + 1


class Trainer(PPOTrainerWithPrior, Upstream):
    """Gives what a checkpoint after its last step holds."""

    def run(self, to: int) -> dict:
        step = self.init_checkpoint_states()["global_step"]
        while step < to:
            status, step = self.train_step([], step)
            self.run_log.write_metrics(step, status)
        self.run_log.flush()
        return {"global_step": step, STATE_KEY: self._prior_state()}


CKPT = {"path": "c", "load_step": None}
STEPS = {
    **{"micro_batch_size": 1, "max_epochs": 1, "dynamic_batch_enable": False},
    **{"async_enable": False, "async_queue_size": 1, "partial_rollout_enable": False},
}


def arguments(run_dir: Path, estimator: str, to: int, every: int = 1, ckpt: dict = CKPT, **ebpo) -> dict:
    return {
        "actor": {"model_name_or_path": "m", "num_nodes": 1, "num_gpus_per_node": 1},
        "ds": {"ring_attn_size": 1, "tensor_parallel_size": 1},
        "data": {"prompt_dataset": "d", "order": "shuffle"},
        "train": {**STEPS, "seed": 7, "batch_size": M * G, "num_episodes": to},
        "rollout": {"n_samples_per_prompt": G, "batch_size": M, "vllm_generate_batch_size": None},
        "ckpt": dict(ckpt),
        "algo": {
            "advantage": {"estimator": estimator, "ebpo": {"preset": "paper", **ebpo}},
            "kl": {"init_coef": 0.0, "target": None},
        },
        "logger": {"run_dir": str(run_dir), "rollouts_every": every},
        "hub": {"repo": None},
        "eval": {"steps": -1},
    }


def trainer(args: dict, states: dict) -> Trainer:
    advantage = args["algo"]["advantage"]
    return Trainer(
        _namespace(args), registry.build(advantage["estimator"], EstimatorConfig(G, **advantage["ebpo"])), states
    )


def train(
    run_dir: Path,
    estimator: str = "ebpo",
    to: int = 5,
    states: dict | None = None,
    every: int = 1,
    resumed: dict | None = None,
    **ebpo,
) -> dict:
    """Begin a run, or resume from `states`; closed as complete."""
    args = arguments(run_dir, estimator, to, every, **ebpo)
    settings = RunSettings(run_dir, run_dir.parent / "ckpt", name="r", resume=bool(states))
    open_run(settings, argv=[str(to)], args=args, resumed=resumed or {})
    states = trainer(args, states or {"global_step": 0}).run(to)
    close_run(run_dir, "complete")
    return states


def set_prior_start(path: Path, text: str | bytes | None) -> None:
    """Write a state before the step into its rollouts; None: leave it out."""
    table = pq.read_table(path)
    pq.write_table(table.replace_schema_metadata({} if text is None else {PRIOR_START: text}), path)


def steps_with_a_start(run_dir: Path) -> list[int]:
    return [step for step, path in step_files(run_dir).items() if read_prior_start(path) is not None]


def _namespace(values):
    return SimpleNamespace(**{k: _namespace(v) for k, v in values.items()}) if isinstance(values, dict) else values
