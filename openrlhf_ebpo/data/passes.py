"""Count the steps of a pass over the training data: python -m openrlhf_ebpo.data.passes FILE PASSES BATCH G TRAIN_BATCH
[filtered]

OpenRLHF reads to the end of the data, where a batch may not be full. With several GPUs it is cut to complete optimizer
steps (upstream/controller/prompts.py): less than one is generated and left out, and does not count.
"""

from __future__ import annotations

import math
import sys

from openrlhf_ebpo.command import error_exit
from openrlhf_ebpo.data.training_tables import SUFFIXES, count_rows


def steps_a_pass(prompts: int, batch: int, group: int, train_batch: int) -> int:
    """Count steps. batch: prompts a rollout batch. group: responses a prompt. train_batch: responses an optimizer
    step."""
    full, rest = divmod(prompts, batch)
    return full + (rest * group >= math.lcm(train_batch, group))


def left_out(prompts: int, batch: int, group: int, train_batch: int) -> int:
    """Count prompts of a pass that fill no optimizer step."""
    rest = prompts % batch
    return rest - rest * group // math.lcm(train_batch, group) * math.lcm(train_batch, group) // group


def sentence(prompts: int, passes: int, batch: int, group: int, train_batch: int, filtered: bool = False) -> str:
    """Describe the passes. filtered: prompts may be used up without being trained on."""
    steps, left = steps_a_pass(prompts, batch, group, train_batch), left_out(prompts, batch, group, train_batch)
    rest = f", {left} of which fill no optimizer step" if left else ""
    fewer = ", less what is filtered out" if filtered else ""
    return f"{steps} steps a pass over {prompts:,} prompts{rest}; {passes * steps:,} in {passes} passes{fewer}"


@error_exit()
def main(argv: list[str] | None = None) -> None:
    file, *arguments = sys.argv[1:] if argv is None else argv
    numbers = [int(argument) for argument in arguments[:4] if argument.isdecimal()]
    if 0 in numbers or len(numbers) < 4:  # the training says which flag that is
        return
    if "," not in file and file.endswith(SUFFIXES):  # others, such as a .json list, are not known before the training
        print(sentence(count_rows(file, "--data.prompt_dataset"), *numbers, filtered="filtered" in arguments))


if __name__ == "__main__":
    main()
