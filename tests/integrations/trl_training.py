"""Trains a tiny Qwen3 with EBPOTrainer on a CPU, and writes what the tests compare; run by test_trl.py, also with
torchrun and to be killed."""

import argparse
import json
import os
import signal
from pathlib import Path

import torch
from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM, set_seed
from trl import GRPOConfig

from openrlhf_ebpo.integrations.trl import EBPOTrainer

LETTERS = "abcdefghijklmnop"


def tokenizer() -> PreTrainedTokenizerFast:
    vocabulary = {token: number for number, token in enumerate(["<pad>", "<end>", *LETTERS])}
    bare = Tokenizer(models.WordLevel(vocabulary, unk_token="<pad>"))
    bare.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    return PreTrainedTokenizerFast(tokenizer_object=bare, pad_token="<pad>", eos_token="<end>")


def model() -> Qwen3ForCausalLM:
    set_seed(0)
    shape = {
        "hidden_size": 16,
        "intermediate_size": 32,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
    }
    return Qwen3ForCausalLM(
        Qwen3Config(vocab_size=len(LETTERS) + 2, head_dim=8, eos_token_id=1, pad_token_id=0, **shape)
    )


def has_an_a(prompts, completions, **_) -> list[float | None]:
    """None for a completion that cannot be scored: one with a p and no a."""
    return [1.0 if "a" in text else None if "p" in text else 0.0 for text in completions]


def golden(batches: list[list[float]]):
    """A reward function that gives these, a batch a call."""
    left = iter(batches)
    return lambda prompts, completions, **_: next(left)


class Recorded(EBPOTrainer):
    """Keeps the rewards and advantages of every training batch of this process."""

    batches: list[dict]
    die_at: int = 0
    best_at: int = 0

    def evaluate(self, *args, **kwargs):
        return {**super().evaluate(*args, **kwargs), "eval_best": float(self.state.global_step == self.best_at)}

    def _generate_and_score_completions(self, inputs):
        output = super()._generate_and_score_completions(inputs)
        if self.model.training:
            logged = list(self._logs["advantages"])[-len(self._gathered) :]
            self.batches.append(
                {
                    "rewards": [None if value != value else value for value in self._gathered[:, 0].tolist()],
                    "advantages": output["advantages"].tolist(),
                    "logged": logged,
                    "prior": self.running.estimator.save(self.running.state),
                }
            )
        return output

    def training_step(self, *args, **kwargs):
        if self.die_at and self.state.global_step == self.die_at:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().training_step(*args, **kwargs)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--estimator", default="ebpo")
    parser.add_argument("--estimator_settings", type=json.loads, default={})
    parser.add_argument("--trl", type=json.loads, default={}, help="settings of GRPOConfig")
    parser.add_argument("--golden", type=Path, help="rewards of this table in place of the task's")
    parser.add_argument("--die_at", type=int, default=0)
    parser.add_argument("--best_at", type=int, default=0, help="the best step; its model is exported")
    parser.add_argument("--resume", action="store_true")
    args = parser.parse_args()
    torch.set_num_threads(1)
    settings = {"max_steps": 6, "save_steps": 2, "num_generations": 2, "per_device_train_batch_size": 8} | args.trl
    config = GRPOConfig(
        output_dir=str(args.output),
        report_to="none",
        use_cpu=True,
        bf16=False,
        logging_steps=1,
        max_completion_length=5,
        learning_rate=1e-2,
        seed=1,
        temperature=1.0,
        disable_tqdm=True,
        beta=0.0,
        **settings,
    )
    prompts = [{"prompt": a + b} for a in "bcdefgh" for b in "bcdefgh"]
    reward = golden(json.loads(args.golden.read_text())["rewards"]) if args.golden else has_an_a
    trainer = Recorded(
        model(),
        reward,
        config,
        Dataset.from_list(prompts),
        Dataset.from_list(prompts[:4]),
        tokenizer(),
        estimator=args.estimator,
        estimator_settings=args.estimator_settings,
    )
    trainer.batches, trainer.die_at, trainer.best_at = [], args.die_at, args.best_at
    trainer.train(resume_from_checkpoint=args.resume)
    if args.best_at:
        trainer.save_model(str(args.output / "export"))
    rank = trainer.accelerator.process_index
    weights = torch.cat(
        [weight.detach().flatten() for weight in trainer.accelerator.unwrap_model(trainer.model).parameters()]
    )
    torch.save(weights, args.output / f"weights-{rank}.pt")
    (args.output / f"batches-{rank}.json").write_text(json.dumps(trainer.batches))
    (args.output / "log.json").write_text(json.dumps(trainer.state.log_history))
    trainer.accelerator.end_training()  # gloo's threads, which abort a process that ends before them


if __name__ == "__main__":
    main()
