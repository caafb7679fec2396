"""Predict a training, at its start: steps, responses, checkpoints, evaluations, disk."""

from __future__ import annotations

import math
from collections.abc import Iterator

from openrlhf_ebpo.data.data_files import is_local
from openrlhf_ebpo.data.preflight import split_names
from openrlhf_ebpo.hub_models import local_folder
from openrlhf_ebpo.model_folder import tensor_shapes
from openrlhf_ebpo.run.batches import BatchSettings
from openrlhf_ebpo.train.prompt_sets import open_prompts

MB, GB = 1e6, 1e9
EXPORT_BYTES = 2  # of a weight, in bfloat16
CHECKPOINT_BYTES = 14  # its copy in float32 and Adam's two moments besides
RESPONSE_BYTES, TOKEN_BYTES = 150, 1.5  # of a response in the rollouts, compressed, and of a token (docs/gpus.md)


def plan_lines(args, batches: BatchSettings, rows: int | None) -> Iterator[str]:
    """Yield a line for each kind of thing that will happen, and a warning if the data set does not fill a batch.

    Args:
        args: upstream's, nested, validated or not. rows: of the data set; None: not known.
    """
    if rows is None:
        yield "plan: the number of steps is not known before the data set is loaded"
        yield f"  a step        {batches.prompts:,} prompts x {batches.group} responses"
        return
    episodes = args.train.num_episodes
    steps = batches.steps_a_pass(rows) * episodes
    rest = rows % batches.prompts * batches.group
    left = (rest - batches.trainable(rest)) // batches.group
    most = "at most " if args.algo.dynamic_filtering_enable else ""
    yield "plan:"
    yield f"  prompts       {rows:,} in the data set, {batches.prompts:,} a step" + (
        f"; the last {left} of a pass fill no optimizer step" if left else ""
    )
    yield f"  steps         {most}{steps:,} in {episodes:,} episode{'s' if episodes > 1 else ''}"
    yield f"  responses     {rows * episodes * batches.group:,}, {batches.group} a prompt"
    optimizer = rows * batches.group // batches.batch * episodes * batches.epochs
    yield f"  optimizer     about {optimizer:,} steps of --train.batch_size {batches.batch:,} responses"
    yield from _saving_lines(args, batches, steps)
    if rows < batches.prompts:
        yield (
            f"warning: --rollout.batch_size {batches.prompts} is larger than the data set of {rows} rows: an episode "
            f"is one batch of {rows} prompts. Give --rollout.batch_size {rows} or less"
        )


def _saving_lines(args, batches: BatchSettings, steps: int) -> Iterator[str]:
    """Yield what is written, and the disk that it takes. Upstream has -1, and after its validation infinity, for
    never."""
    ckpt = args.ckpt
    logged = steps // args.logger.rollouts_every
    size = batches.responses * (RESPONSE_BYTES + TOKEN_BYTES * (args.rollout.max_new_tokens or args.data.max_len)) / MB
    yield f"  rollouts      up to about {logged * size:,.2f} MB, {size:,.2f} MB a logged step"
    saved = int(steps // ckpt.save_steps) if ckpt.save_steps > 0 else 0
    kept = 0 if ckpt.disable_ds else min(saved, ckpt.max_num)
    each = "each exports a model, and " if saved and ckpt.save_hf else ""
    yield (
        f"  checkpoints   {f'{saved:,}, the newest {ckpt.max_num} are kept' if kept else 'none before the end'}; "
        f"{each}the end exports one"
    )
    evaluations = int(steps // args.eval.steps) if args.eval.steps > 0 and args.eval.dataset else 0
    rows = count_rows(args, args.eval.dataset, args.eval.split) if evaluations else None
    size = f" of {rows:,} prompts x {args.eval.n_samples_per_prompt}" if rows else ""
    yield f"  evaluations   {evaluations or 'none'}{size}"
    folder = None if args.ds.lora.rank else local_folder(args.actor.model_name_or_path)
    if folder and (shapes := tensor_shapes(folder)) is not None:
        exports = 1 + (saved if ckpt.save_hf else 0)
        bytes_a_weight = exports * EXPORT_BYTES + kept * CHECKPOINT_BYTES
        size = sum(map(math.prod, shapes.values())) * bytes_a_weight / GB
        yield f"  disk          about {size:.3g} GB for {kept} checkpoints and {exports} models"


def count_rows(args, names: str, split: str) -> int | None:
    """Count the rows of data sets, None if one of them is not on this machine."""
    if not all(map(is_local, split_names(names))):
        return None
    return min(sum(len(open_prompts(args, name, split)) for name in split_names(names)), args.data.max_samples)
