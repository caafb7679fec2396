"""Molt's own controller and training actor on Ray, with what needs a GPU replaced: rollouts are made up, the policy is
a file.

Run by test_molt.py, also to be killed. Every trained batch is one line of batches.jsonl, every checkpoint Molt's client
states.
"""

import json
import os
import signal
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import molt
import numpy as np
import ray
import torch
from molt.trainer import rl_trainer
from molt.trainer.algorithm.experience import Experience
from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast

from openrlhf_ebpo.integrations import molt as integration

GROUP, PROMPTS, TOKENS, STEPS = 4, 3, 5, 6


class Parsed(BaseException):
    """Molt's arguments, where it would begin to use GPUs."""


def parsed(*argv: str) -> SimpleNamespace:
    """Parse these flags with Molt's command, run by integrations/molt.py."""

    def stop(args):
        raise Parsed(args)

    base = ["--actor.model_name_or_path", "m", "--vllm.num_engines", "1", "--train.agent_path", "a"]
    sizes = ["--rollout.n_samples_per_prompt", str(GROUP), "--train.async_queue_size", "1"]
    before = sys.argv, molt.utils.get_strategy, ray.is_initialized
    sys.argv, molt.utils.get_strategy, ray.is_initialized = ["molt", *base, *sizes, *argv], stop, lambda: True
    try:
        integration.main()
    except Parsed as done:
        return done.args[0]
    finally:
        sys.argv, molt.utils.get_strategy, ray.is_initialized = before


def rollouts(rewards, step: int = 0, group: int = GROUP) -> list[Experience]:
    """One response a reward, groups one after the other, of 1 to TOKENS tokens."""
    random, found = np.random.default_rng(step), []
    for row, reward in enumerate(rewards):
        mask = torch.zeros(1, TOKENS, dtype=torch.bool)
        mask[0, : random.integers(1, TOKENS + 1)] = True
        found.append(
            Experience(
                sequences=torch.zeros(1, TOKENS + 1, dtype=torch.long),
                action_mask=mask,
                action_log_probs=torch.as_tensor(-random.random((1, TOKENS)), dtype=torch.float32),
                kl=torch.zeros(1, TOKENS),
                rewards=torch.tensor([float(reward)]),
                response_length=mask.sum(1),
                total_length=mask.sum(1) + 1,
                truncated=torch.tensor([False]),
                index=[row],
                prompts=[f"prompt {row // group}"],
                group_ids=[f"{step}-{row // group}"],
                rollout_ids=[f"{step}-{row}"],
                info={"reward": torch.tensor([float(reward)])},
            )
        )
    return found


@ray.remote
class Generator:
    """In place of Molt's GenerateSamplesActor: the same queue, rewards that depend on the step alone."""

    def __init__(self, *, rollout_queue, rollout_slots, **_):
        self.queue, self.slots, self.start = rollout_queue, rollout_slots, 0

    def load_dataloader_state_dict(self, state, _):
        self.start = state["step"]

    def fit(self, episode: int, total_consumed_prompts: int) -> None:
        for step in range(self.start, STEPS):
            self.slots.get(block=True)
            rewards = np.random.default_rng(step).random(PROMPTS * GROUP) < 0.4
            states = {"episode": 0, "total_consumed_prompts": step, "data_loader_state_dict": {"step": step + 1}}
            self.queue.put((rollouts(rewards, step), states, {}, 0.0, 0.0), block=True)
        self.queue.put("done", block=True)


class Policy:
    """In place of the group of policy actors: it keeps what it is sent."""

    duplicate_actors = 1

    def __init__(self, output: Path, die_at: int, driver: int):
        self.output, self.die_at, self.driver, self.step = output, die_at, driver, 0

    def async_run_method_batch(self, method_name: str, experience):
        if method_name == "forward":
            return [ray.put([each.action_log_probs for each in experience])]
        rows = [int(each.rollout_ids[0].partition("-")[2]) for each in experience]  # Molt's order is by length
        rewards, advantages = (
            [getattr(each, name).tolist() for each in experience] for name in ("rewards", "advantages")
        )
        batch = sorted(zip(rows, rewards, advantages, strict=True))
        with (self.output / "batches.jsonl").open("a") as lines:
            lines.write(json.dumps(batch) + "\n")
        return [ray.put(None)]

    def async_run_method(self, method_name: str, tag="", client_states=None, **_):
        answer = None
        if method_name == "save_checkpoint":
            (self.output / "_actor").mkdir(exist_ok=True)
            torch.save(client_states, self.output / "_actor" / tag)
            (self.output / "_actor" / "latest").write_text(tag)
        elif method_name == "get_checkpoint_states":
            latest = (self.output / "_actor" / "latest").read_text()
            answer = torch.load(self.output / "_actor" / latest, weights_only=False)
        elif method_name == "fit":
            answer, self.step = {"loss": 0.0}, self.step + 1
            if self.step == self.die_at:
                os.kill(self.driver, signal.SIGKILL)
                time.sleep(60)  # Ray ends this process a moment later: until then it must not save this step
        return [ray.put(answer)]


def main() -> None:
    output, die_at, *argv = sys.argv[1:]
    output = Path(output)
    args = parsed(*argv, "--ckpt.path", str(output), "--ckpt.save_steps", "2", "--ckpt.load_enable")
    args.logger.tensorboard_dir = str(output / "logs")
    words = Tokenizer(models.WordLevel({"<pad>": 0}, unk_token="<pad>"))
    PreTrainedTokenizerFast(tokenizer_object=words, pad_token="<pad>", eos_token="<pad>").save_pretrained(
        output / "words"
    )
    rl_trainer.GenerateSamplesActor = Generator
    ray.init(os.environ["RAY_ADDRESS"], log_to_driver=False)
    policy = Policy(output, int(die_at), os.getpid())
    trainer = rl_trainer.RLTrainer.remote(str(output / "words"), SimpleNamespace(args=args), policy, None, [])
    ray.get(trainer.fit.remote())


if __name__ == "__main__":
    main()
