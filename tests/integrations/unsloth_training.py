"""trl_training.py with the GRPOTrainer that Unsloth generates from TRL's. Its kernels and models need a GPU: the model
is transformers', with the two methods that Unsloth adds."""

import os

os.environ["UNSLOTH_ALLOW_CPU"] = "1"  # it then imports, and leaves TRL as it is

from openrlhf_ebpo.integrations import trl as ours  # isort: skip  # before Unsloth, on purpose
import unsloth  # noqa: F401  # isort: skip
import trl  # isort: skip
from unsloth.models import rl  # isort: skip

rl.patch_trl_disable_gradient_checkpointing()
rl._patch_trl_rl_trainers("grpo_trainer")
import trl_training  # noqa: E402  # takes GRPOConfig, which Unsloth has replaced, too

made = trl_training.model


def model():
    built = made()
    built.for_training = lambda use_gradient_checkpointing=False: built.train()
    built.for_inference = built.eval
    return built


if __name__ == "__main__":
    trl_training.model = model
    assert trl.GRPOTrainer.__name__ == "UnslothGRPOTrainer" and ours.trl is trl
    trl_training.main()
