"""Two completions a prompt, and most groups fail: TRL's GRPOTrainer and EBPOTrainer on one small model, and a table.

    pip install -e '.[trl]'
    python examples/trl_small_groups.py                                           a tiny model, on a CPU
    python examples/trl_small_groups.py HuggingFaceTB/SmolLM2-135M-Instruct       on one consumer GPU

One seed is an example, not a measurement: docs/results.md has those.
"""

import random
import sys

import pandas
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

from openrlhf_ebpo.integrations.trl import EBPOTrainer
from openrlhf_ebpo.quickstart import tiny_model

STEPS, PROMPTS, LETTERS = 60, 64, "abcdefghijklmnop"
COLUMNS = ["reward", "frac_reward_zero_std", "ebpo/rescued_fraction"]  # of TRL's log


def reward(completions, last, **_):
    return [float(text.strip().startswith(letter)) for text, letter in zip(completions, last, strict=True)]


def train(trainer_class, model, rows):
    settings = {"max_steps": STEPS, "num_generations": 2, "per_device_train_batch_size": 2 * PROMPTS}
    settings |= {"learning_rate": 1e-3 if model.startswith("runs/") else 1e-5, "max_completion_length": 2}
    settings |= {"logging_steps": 1, "save_strategy": "no", "report_to": "none", "disable_tqdm": True}
    trainer = trainer_class(model, reward, GRPOConfig("runs/trl_small_groups", bf16=False, **settings), rows)
    trainer.train()
    log = pandas.DataFrame(trainer.state.log_history[:STEPS]).filter(COLUMNS)
    return log.groupby(lambda row: f"steps to {STEPS // 3 * (row // (STEPS // 3) + 1)}", sort=False).mean()


def main():
    model = sys.argv[1] if len(sys.argv) > 1 else "runs/trl_small_groups/model"
    if len(sys.argv) == 1:
        tiny_model.build(model, [f"{LETTERS}>"])
    chance = random.Random(0)
    words = ["".join(chance.choices(LETTERS, k=3)) for _ in range(PROMPTS * STEPS)]
    rows = Dataset.from_list([{"prompt": f"{word}>", "last": word[-1]} for word in words])
    tables = {"GRPO": train(GRPOTrainer, model, rows), "EBPO": train(EBPOTrainer, model, rows)}
    print(pandas.concat(tables).to_string(float_format="%.3f", na_rep=""))


if __name__ == "__main__":
    main()
