"""Training prompts in the order that was asked for (--data.order), each with its cluster, in batches that can be
trained on.

Upstream always shuffles, and drops every column but prompt, label and images on the way to the samples. A
curriculum needs the order. Clusters go to the run log and, as `batch.clusters`, to estimators.
"""

from __future__ import annotations

import argparse
import functools
import logging

import torch

from openrlhf_ebpo.chat_template import parse_kwargs
from openrlhf_ebpo.run.batches import BatchSettings
from openrlhf_ebpo.upstream.controller.in_flight import NumberedPrompts, PromptsInFlight
from openrlhf_ebpo.upstream.controller.rollouts import prompt_id
from openrlhf_ebpo.upstream.rendering import TokenizerByReference

logger = logging.getLogger(__name__)

CLUSTER_COLUMN = "cluster"
DEFAULT_SOURCE = "default"  # upstream's name for rows without a column `datasource`
INFO_KEY = "ebpo_cluster"  # in Experience.info: a list of one string or None


def add_flags(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("data order", "see `openrlhf-ebpo data order`")
    group.add_argument(
        "--data.order",
        default="shuffle",
        choices=["shuffle", "as_is"],
        help="shuffle: a random order from --train.seed; as_is: the rows of --data.prompt_dataset in their order, "
        "for a curriculum. A resumed run continues with the next prompt",
    )
    group.add_argument(
        "--data.cluster_key",
        metavar="COLUMN",
        help=f"column with the prompt's cluster (topic); recorded with every rollout. Default: '{CLUSTER_COLUMN}', if "
        "the data set has it",
    )


class PromptsWithClusters:
    """Mixin over PromptDataset.

    Attributes:
        clusters: a string or None for each prompt. datasources: a string for each.
    """

    def __init__(self, dataset, tokenizer, strategy, *args, **kwargs):
        super().__init__(dataset, tokenizer, strategy, *args, **kwargs)
        column = strategy.args.data.cluster_key or CLUSTER_COLUMN
        values = dataset[column] if column in dataset.column_names else [None] * len(self)
        self.clusters = [None if value is None else str(value) for value in values]
        # of several files, one without the column: datasets fills it with None
        self.datasources = [DEFAULT_SOURCE if source is None else str(source) for source in self.datasources]


class SamplesWithClusters:
    """Mixin over SamplesGenerator: each sample carries the cluster of its prompt."""

    def _process_response_into_experience(self, response, **kwargs):
        experience = super()._process_response_into_experience(response, **kwargs)
        experience.info[INFO_KEY] = [self._clusters.get(prompt_id(response["prompt"], response["label"]))]
        return experience

    @functools.cached_property
    def _clusters(self) -> dict[str, str | None]:
        prompts = self.prompts_dataloader.dataset
        ids = map(prompt_id, prompts.prompts, prompts.labels)
        return dict(zip(ids, prompts.clusters, strict=True))


class TrainableBatches:
    """Mixin over SamplesGenerator: a rollout batch holds as many responses as can be trained on."""

    def generate_samples(self, **kwargs):
        samples, pass_rate, consumed, exhausted = super().generate_samples(**kwargs)
        count = BatchSettings.from_args(self.args).trainable(len(samples))
        if count < len(samples):
            logger.warning(
                "%d of the %d responses of a rollout batch that is not full are left out: they fill no optimizer step "
                "of --train.batch_size %d",
                len(samples) - count,
                len(samples),
                self.args.train.batch_size,
            )
        return samples[:count], pass_rate, consumed, exhausted


def keep_requested_order(original):
    """Wraps DeepspeedStrategy.setup_dataloader, which train_ppo_ray calls for the prompts with shuffle=True."""

    @functools.wraps(original)
    def setup_dataloader(
        self, replay_buffer, batch_size, pin_memory=False, shuffle=True, collate_fn=None, *args, **kwargs
    ):
        order = getattr(self.args.data, "order", None)  # train_sft has no such flag
        if not shuffle or order is None:
            return original(self, replay_buffer, batch_size, pin_memory, shuffle, collate_fn, *args, **kwargs)
        prompts = NumberedPrompts(replay_buffer, collate_fn)
        if order == "shuffle":
            from torchdata.stateful_dataloader.sampler import RandomSampler

            # Upstream seeds the order only where torch.distributed runs, and the trainer's process has no process
            # group: two runs with one --train.seed would see different prompts. Its state is saved and restored as that
            # of upstream's own sampler.
            generator = torch.Generator().manual_seed(self.args.train.seed)
            kwargs["sampler"] = RandomSampler(prompts, generator=generator)
        return PromptsInFlight(original(self, prompts, batch_size, pin_memory, False, prompts.collate, *args, **kwargs))

    return setup_dataloader


class PromptsNameTheirTokenizer:
    """Mixin over SamplesGenerator: what goes to the rollout actors with each prompt is the tokenizer's name."""

    def _dispatch_prompts_to_vllm(self, *args, **kwargs):
        data = self.args.data
        self.tokenizer = TokenizerByReference(
            self.args.actor.model_name_or_path, not data.disable_fast_tokenizer, parse_kwargs(data.template_kwargs)
        )
        return super()._dispatch_prompts_to_vllm(*args, **kwargs)
