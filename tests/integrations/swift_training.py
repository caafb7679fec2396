"""Trains a tiny Qwen3 with ms-swift's own command and the plug-in on a CPU; run by test_swift.py, also to be killed."""

import argparse
import json
import os
import signal
from pathlib import Path

os.environ["USE_HF"] = "1"

import torch
from swift import rlhf_main
from swift.rewards import ORM, orms
from transformers import Qwen3ForCausalLM

from openrlhf_ebpo.integrations import swift as ours
from openrlhf_ebpo.quickstart import tiny_model

PLUGIN = 'from openrlhf_ebpo.integrations import swift\n\nswift.use("ebpo.robust")\n'


class HasAnA(ORM):
    def __call__(self, completions, **kwargs):
        return [1.0 if "a" in text else 0.0 for text in completions]


class Recorded(ours.EBPOTrainer):
    """Keeps rewards and advantages of every training batch, and may die."""

    batches, die_at = [], 0

    def _compute_advantages(self, samples, rewards_per_func, batch_encoded_inputs):
        found = super()._compute_advantages(samples, rewards_per_func, batch_encoded_inputs)
        self.batches.append({"rewards": rewards_per_func[:, 0].tolist(), "advantages": found.tolist()})
        return found

    def training_step(self, *args, **kwargs):
        if self.die_at and self.state.global_step == self.die_at:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().training_step(*args, **kwargs)


def make_inputs(folder: Path) -> None:
    tokenizer = tiny_model.build_tokenizer(["abcdefghijklmnop"])
    tokenizer.chat_template = "{% for message in messages %}{{ message['content'] }}{% endfor %}"
    torch.manual_seed(0)
    model = Qwen3ForCausalLM(tiny_model.small_config(len(tokenizer), tokenizer))
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    rows = [{"messages": [{"role": "user", "content": a + b}]} for a in "bcdefgh" for b in "bcdefgh"]
    (folder / "data.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "plugin.py").write_text(PLUGIN)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--die_at", type=int, default=0)
    parser.add_argument("--resume", action="store_true")
    args = parser.parse_args()
    torch.set_num_threads(1)
    inputs = args.output.parent / "inputs"
    if not inputs.exists():
        make_inputs(inputs)
    orms["has_an_a"], ours.EBPOTrainer, Recorded.die_at = HasAnA, Recorded, args.die_at
    settings = {
        "rlhf_type": "grpo",
        "model": inputs,
        "model_type": "qwen3",
        "template": "dummy",
        "dataset": inputs / "data.jsonl",
        "external_plugins": inputs / "plugin.py",
        "reward_funcs": "has_an_a",
        "torch_dtype": "float32",
        "tuner_type": "full",
        "num_generations": 2,
        "per_device_train_batch_size": 8,
        "gradient_accumulation_steps": 1,
        "gradient_checkpointing": "false",
        "max_steps": 6,
        "save_steps": 2,
        "max_completion_length": 5,
        "learning_rate": 1e-2,
        "beta": 0,
        "seed": 1,
        "logging_steps": 1,
        "report_to": "none",
        "split_dataset_ratio": 0,
        "dataset_num_proc": 1,
        "dataloader_num_workers": 0,
        "output_dir": args.output,
        "add_version": "false",
    }
    if args.resume:
        settings["resume_from_checkpoint"] = args.output / "checkpoint-4"
    rlhf_main([word for name, value in settings.items() for word in (f"--{name}", str(value))])
    weights = Qwen3ForCausalLM.from_pretrained(args.output / "checkpoint-6").parameters()
    torch.save(torch.cat([weight.detach().flatten() for weight in weights]), args.output / "weights-0.pt")
    (args.output / "batches-0.json").write_text(json.dumps(Recorded.batches))


if __name__ == "__main__":
    main()
