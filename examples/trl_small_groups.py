"""Two completions a prompt, and most groups fail: TRL's GRPOTrainer and EBPOTrainer on one small model, and a table.

    pip install -e '.[trl]'
    python examples/trl_small_groups.py                                           a tiny model, on a CPU
    python examples/trl_small_groups.py HuggingFaceTB/SmolLM2-135M-Instruct       on one consumer GPU

One seed is an example, not a measurement: docs/results.md has those.
"""

import random
import sys
from statistics import mean

from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

from openrlhf_ebpo.integrations.trl import EBPOTrainer
from openrlhf_ebpo.quickstart import tiny_model

STEPS, PROMPTS, LETTERS = 60, 64, "abcdefghijklmnop"
COLUMNS = {  # of TRL's log
    "reward": "reward",
    "groups of equal rewards": "frac_reward_zero_std",
    "responses that EBPO alone trains on": "ebpo/rescued_fraction",
}


def reward(completions, last, **_):
    return [float(text.strip().startswith(letter)) for text, letter in zip(completions, last, strict=True)]


def train(trainer_class, model, rows):
    config = GRPOConfig(
        "runs/trl_small_groups",
        num_generations=2,
        per_device_train_batch_size=2 * PROMPTS,
        max_steps=STEPS,
        max_completion_length=2,
        learning_rate=1e-3 if model.startswith("runs/") else 1e-5,
        bf16=False,
        logging_steps=1,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
    )
    trainer = trainer_class(model, reward, config, rows)
    trainer.train()
    return [row for row in trainer.state.log_history if "reward" in row]


def main():
    model = sys.argv[1] if len(sys.argv) > 1 else "runs/trl_small_groups/model"
    if len(sys.argv) == 1:
        tiny_model.build(model, [f"{LETTERS}>"])
    chance = random.Random(0)
    words = ["".join(chance.choices(LETTERS, k=3)) for _ in range(PROMPTS * STEPS)]
    rows = Dataset.from_list([{"prompt": f"{word}>", "last": word[-1]} for word in words])
    logs = {"GRPO": train(GRPOTrainer, model, rows), "EBPO": train(EBPOTrainer, model, rows)}
    print("| steps | trainer |", " | ".join(COLUMNS), "|\n| --- " + "| --- " * (len(COLUMNS) + 1) + "|")
    for first in range(0, STEPS, STEPS // 3):
        for name, log in logs.items():
            means = [mean(row.get(key, 0) for row in log[first : first + STEPS // 3]) for key in COLUMNS.values()]
            print(f"| {first + 1} to {first + STEPS // 3} | {name} |", " | ".join(f"{each:.3f}" for each in means), "|")


if __name__ == "__main__":
    main()
