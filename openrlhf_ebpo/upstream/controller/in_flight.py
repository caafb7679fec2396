"""Prompts in flight: drawn from the data loader, and not yet given to the trainer. A resume draws them again.

With --rollout.vllm_generate_batch_size above --rollout.batch_size upstream generates for several steps at once, and
keeps what the step does not need in a buffer of samples. A checkpoint has the data loader's state, for which these
prompts are over, and not the buffer: upstream leaves them out of a run that is resumed. Where the data loader had come
to its end, upstream would even repeat the episode.

So the data loader's state says which rows are in flight. It is taken where upstream takes it: right after a batch was
generated, in both modes. Samples are not saved: a resumed run answers these prompts with the weights that it has.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator

import numpy as np
from torch.utils.data import Dataset

from openrlhf_ebpo.upstream.controller.rollouts import prompt_id

logger = logging.getLogger(__name__)

IN_FLIGHT = "openrlhf_ebpo_in_flight"  # next to torchdata's keys, so that OpenRLHF alone can read the state too
FINISHED = "_iterator_finished"  # torchdata's: the loader has seen its end


class NumberedPrompts(Dataset):
    """The data set whose items come with their row, and a collate function that keeps it."""

    def __init__(self, dataset, collate_fn):
        self.dataset, self.collate_fn = dataset, collate_fn

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, row: int):
        return row, self.dataset[row]

    def collate(self, items: list):
        rows, prompts = zip(*items, strict=True)
        return list(rows), self.collate_fn(list(prompts))


class PromptsInFlight:
    """Stands in for upstream's data loader of training prompts, whose batches have one prompt.

    Attributes:
        dataset: upstream's PromptDataset, with clusters.
    """

    def __init__(self, loader):
        self.loader = loader  # over NumberedPrompts
        self.dataset = loader.dataset.dataset
        self._drawn: list[int] = []  # rows in flight, as they were drawn
        self._rows_to_redraw: list[int] = []  # rows that a resume has to draw first
        self._ended = False  # the episode has nothing else; only after a resume

    def __len__(self) -> int:
        return len(self.loader)

    def __iter__(self) -> Iterator:
        while self._rows_to_redraw:
            yield self._draw([row := self._rows_to_redraw.pop(0)], self.loader.dataset.collate_fn([self.dataset[row]]))
        if self._ended:  # torchdata would begin the next episode
            self._ended = False
            return
        for rows, batch in self.loader:
            yield self._draw(rows, batch)

    def _draw(self, rows: list[int], batch):
        self._drawn += rows
        return batch

    def keep(self, waiting: Counter[str]) -> Counter[str]:
        """Keep only these drawn prompts in flight; returns those that were never drawn. waiting: how often each
        prompt_id waits."""
        waiting, kept = waiting.copy(), []
        for row in reversed(self._drawn):
            name = prompt_id(self.dataset.prompts[row], self.dataset.labels[row])
            if waiting[name] > 0:
                waiting[name] -= 1
                kept.append(row)
        self._drawn = kept[::-1]
        return +waiting

    def state_dict(self) -> dict:
        """torchdata's, and the rows as an array, since upstream prints the whole checkpoint's state."""
        return {**self.loader.state_dict(), IN_FLIGHT: np.array([*self._drawn, *self._rows_to_redraw], dtype=np.int64)}

    def load_state_dict(self, saved: dict) -> None:
        """Takes torchdata's own states too, as OpenRLHF alone saves them."""
        if not saved:
            return
        rows = [int(row) for row in saved.get(IN_FLIGHT, ())]
        self._drawn, self._rows_to_redraw, self._ended = [], rows, bool(saved.get(FINISHED))
        self.loader.load_state_dict({key: value for key, value in saved.items() if key != IN_FLIGHT})


class SamplesInFlight:
    """Mixin over SamplesGenerator: its data loader is told which prompts wait, their samples in the buffer."""

    def generate_samples(self, **kwargs):
        batch = super().generate_samples(**kwargs)
        if isinstance(self.prompts_dataloader, PromptsInFlight):
            waiting = prompts_of(self._sample_buffer, self.args.rollout.n_samples_per_prompt)
            if unknown := self.prompts_dataloader.keep(waiting):
                logger.warning(
                    "%d prompts came back that were not drawn (first id: %s): should the run be resumed from here, "
                    "they are left out. An agent must give back prompt and label as it got them",
                    unknown.total(),
                    min(unknown),
                )
        return batch


def prompts_of(samples: list, size: int) -> Counter[str]:
    """Count how often each prompt_id is among samples, with `size` of them to a prompt."""
    counts = Counter(prompt_id(sample.prompts[0], sample.labels[0]) for sample in samples)
    return Counter({name: -(-count // size) for name, count in counts.items()})
