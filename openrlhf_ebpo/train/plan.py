"""Predict a training, for the end of a dry run: steps, responses, checkpoints, evaluations, disk.

python -m openrlhf_ebpo.train.plan FILE PASSES BATCH G TRAIN_BATCH [filtered] counts the steps of passes over a file,
for scripts/launch/run.sh.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from dataclasses import dataclass

from openrlhf_ebpo.command import error_exit
from openrlhf_ebpo.data.data_files import is_local, load
from openrlhf_ebpo.data.training_tables import SUFFIXES
from openrlhf_ebpo.hub_models import local_folder
from openrlhf_ebpo.model_folder import tensor_shapes
from openrlhf_ebpo.run.batches import BatchSettings
from openrlhf_ebpo.train.prompt_sets import PromptSettings

GB = 1e9
EXPORT_BYTES = 2  # of a weight, in bfloat16
CHECKPOINT_BYTES = 14  # its copy in float32 and Adam's two moments besides


@dataclass(frozen=True)
class Plan:
    """prompts: rows of the data set; None if it is not on this machine. save_steps, eval_steps: 0 for never. kept:
    checkpoints that stay. weights: of the model; None for LoRA, or if it is not on this machine."""

    prompts: int | None
    episodes: int
    batches: BatchSettings
    filtered: bool
    save_steps: int
    kept: int
    exports: bool
    eval_steps: int
    eval_prompts: int | None
    eval_responses: int
    weights: int | None

    @classmethod
    def from_args(cls, args, prompts: PromptSettings) -> Plan:
        """Count rows and weights of what is on this machine. args: upstream's, nested, validated or not."""
        folder = local_folder(prompts.model) if not args.ds.lora.rank else None
        shapes = tensor_shapes(folder) if folder else None
        mixed = args.data.prompt_probs is not None
        return cls(
            prompts=None if mixed else count_rows(prompts, prompts.names, prompts.split),
            episodes=args.train.num_episodes,
            batches=BatchSettings.from_args(args),
            filtered=args.algo.dynamic_filtering_enable,
            save_steps=_every(args.ckpt.save_steps),
            kept=0 if args.ckpt.disable_ds else args.ckpt.max_num,
            exports=args.ckpt.save_hf,
            eval_steps=_every(args.eval.steps) if prompts.eval_names else 0,
            eval_prompts=count_rows(prompts, prompts.eval_names, prompts.eval_split),
            eval_responses=args.eval.n_samples_per_prompt,
            weights=sum(map(math.prod, shapes.values())) if shapes is not None else None,
        )

    @property
    def steps(self) -> int:
        """Steps of all episodes; an episode's last one may have fewer prompts."""
        return -(-(self.prompts or 0) // self.batches.prompts) * self.episodes

    def lines(self) -> Iterator[str]:
        """Yield one line for each kind of thing that will happen."""
        batches = self.batches
        if self.prompts is None:
            yield "plan: the number of steps is not known before the data set is loaded"
            yield f"  a step        {batches.prompts:,} prompts x {batches.group} responses"
            return
        most = "at most " if self.filtered else ""
        yield "plan:"
        yield f"  prompts       {self.prompts:,} in the data set, {batches.prompts:,} a step"
        yield f"  steps         {most}{self.steps:,} in {self.episodes:,} episode{'s' if self.episodes > 1 else ''}"
        responses = self.prompts * self.episodes * batches.group
        yield f"  responses     {responses:,}, {batches.group} a prompt"
        optimizer = self.prompts * batches.group // batches.batch * self.episodes * batches.epochs
        yield f"  optimizer     about {optimizer:,} steps of --train.batch_size {batches.batch:,} responses"
        saved = self.steps // self.save_steps if self.save_steps else 0
        kept = f"{saved:,}, the newest {self.kept} are kept" if saved and self.kept else "none before the end"
        each = "each exports a model, and " if saved and self.exports else ""
        yield f"  checkpoints   {kept}; {each}the end exports one"
        evaluations = self.steps // self.eval_steps if self.eval_steps else 0
        size = f" of {self.eval_prompts:,} prompts x {self.eval_responses}" if evaluations and self.eval_prompts else ""
        yield f"  evaluations   {evaluations or 'none'}{size}"
        if self.weights:
            exports = 1 + (saved if self.exports else 0)
            checkpoints = min(saved, self.kept)
            size = self.weights * (exports * EXPORT_BYTES + checkpoints * CHECKPOINT_BYTES) / GB
            yield f"  disk          about {size:.3g} GB for {checkpoints} checkpoints and {exports} models"

    def notices(self) -> list[str]:
        """Warn of a rollout batch that the data set does not fill."""
        if self.prompts is None or self.prompts >= self.batches.prompts:
            return []
        return [
            f"warning: --rollout.batch_size {self.batches.prompts} is larger than the data set of {self.prompts} rows: "
            f"an episode is one step of {self.prompts} prompts. Give --rollout.batch_size {self.prompts} or less"
        ]


def count_rows(prompts: PromptSettings, names: tuple[str, ...], split: str) -> int | None:
    """Count the rows of data sets, None if one of them is not on this machine."""
    if not all(map(is_local, names)):
        return None
    return min(sum(len(prompts.open_rows(name, split)) for name in names), prompts.max_samples)


def _every(steps: float) -> int:
    """Return a number of steps; upstream has -1, and after its validation infinity, for never."""
    return int(steps) if 0 < steps < 2**31 else 0


# The steps of passes over a file, before a training


def steps_a_pass(prompts: int, batch: int, group: int, train_batch: int) -> int:
    """Count the steps of a pass. batch: prompts a rollout batch. group: responses a prompt. train_batch: responses an
    optimizer step.

    OpenRLHF reads to the end of the data, where a batch may not be full. With several GPUs it is cut to complete
    optimizer steps (upstream/controller/prompts.py): less than one is generated and left out, and does not count.
    """
    full, rest = divmod(prompts, batch)
    return full + (rest * group >= math.lcm(train_batch, group))


def left_out(prompts: int, batch: int, group: int, train_batch: int) -> int:
    """Count prompts of a pass that fill no optimizer step."""
    rest = prompts % batch
    return rest - rest * group // math.lcm(train_batch, group) * math.lcm(train_batch, group) // group


@error_exit()
def main(argv: list[str] | None = None) -> None:
    """Describe the passes in a sentence. filtered: prompts may be used up without being trained on."""
    file, *arguments = sys.argv[1:] if argv is None else argv
    numbers = [int(argument) for argument in arguments[:4] if argument.isdecimal()]
    if 0 in numbers or len(numbers) < 4:  # the training says which flag that is
        return
    if "," in file or not file.endswith(SUFFIXES):  # such as a .json list: not known before the training
        return
    passes, *sizes = numbers
    prompts = len(load(file, flag="--data.prompt_dataset"))
    steps, left = steps_a_pass(prompts, *sizes), left_out(prompts, *sizes)
    rest = f", {left} of which fill no optimizer step" if left else ""
    fewer = ", less what is filtered out" if "filtered" in arguments else ""
    print(f"{steps} steps a pass over {prompts:,} prompts{rest}; {passes * steps:,} in {passes} passes{fewer}")


if __name__ == "__main__":
    main()
