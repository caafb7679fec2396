"""--data.order adaptive in training: the data loader that draws by curriculum.py, and what tells it the rewards.

Both stand where the samples are generated, in the trainer's process or, in async mode, in the generator's: rewards are
known there first. The state travels with upstream's data loader state, which upstream takes right after a batch was
generated, saves with the step that trained on it, and gives back at a resume, in both modes. So what was drawn after a
checkpoint counts as not drawn, and no prompt is lost.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from openrlhf_ebpo.training import curriculum
from openrlhf_ebpo.training.rollouts import prompt_id

INFO_KEY = "ebpo_importance"  # in Experience.info: a list of one number
FORMAT = "openrlhf_ebpo curriculum 1"


class AdaptivePrompts:
    """Stands in for upstream's data loader. Iterating gives one episode, as many batches as the data set fills.

    A prompt that is in the data set several times is one prompt here; whichever of its rows comes is random.

    Attributes:
        dataset: upstream's PromptDataset, with clusters.
        state: the curriculum.
    """

    def __init__(self, dataset, collate_fn, args):
        self.dataset, self.collate_fn, self.args = dataset, collate_fn, args
        self._rows: dict[str, list[int]] = {}
        for row, name in enumerate(map(prompt_id, dataset.prompts, dataset.labels)):
            self._rows.setdefault(name, []).append(row)
        self._ids = list(self._rows)
        self._place = {name: i for i, name in enumerate(self._ids)}
        names = [str(dataset.clusters[rows[0]]) for rows in self._rows.values()]
        self.state = curriculum.start(np.unique(names, return_inverse=True)[1], args.data.coverage)
        self._size = min(args.rollout.batch_size, len(self._ids))
        full = self._size == args.rollout.batch_size
        self._batches = len(dataset) // self._size if full else 1  # upstream fills a batch up, or ends the episode
        self._draws = 0  # of batches, in all; the random state too
        self._batch = 0  # in this episode
        self._ended = False
        self._importance: dict[str, float] = {}  # of the batch that was drawn last

    def __len__(self) -> int:
        return self._batches * self._size

    def __iter__(self) -> Iterator:
        if self._ended:
            self._batch, self._ended = 0, False
        while self._batch < self._batches:
            for row in self._draw():
                yield self.collate_fn([self.dataset[row]])
        self._ended = True

    def _draw(self) -> list[int]:
        rng = np.random.default_rng((self.args.train.seed, self._draws))
        indices, inclusion = curriculum.draw(self.state, self._size, rng)
        self._draws, self._batch = self._draws + 1, self._batch + 1
        drawn = [self._ids[i] for i in indices]
        counts = curriculum.importance(inclusion, self._size, len(self._ids))
        self._importance = dict(zip(drawn, counts.tolist(), strict=True))
        return [int(rng.choice(self._rows[name])) for name in drawn]

    def observe(self, samples: list) -> None:
        """Takes in the rewards of whole groups of the batch that was drawn last, and notes in every sample how much it
        counts for all prompts.

        Raises:
            RuntimeError: a sample's prompt was not drawn.
        """
        size = self.args.rollout.n_samples_per_prompt
        drawn = [prompt_id(sample.prompts[0], sample.labels[0]) for sample in samples]
        if unknown := sorted({*drawn} - {*self._importance}):
            raise RuntimeError(
                f"--data.order adaptive: {len(unknown)} prompts came back that were not drawn (first id: {unknown[0]}). An "
                "agent must give back prompt and label as it got them; or train with --data.order shuffle"
            )
        for sample, name in zip(samples, drawn, strict=True):
            sample.info[INFO_KEY] = [self._importance[name]]
        success = np.array([self._success(sample) for sample in samples]).reshape(-1, size)
        indices = np.array([self._place[name] for name in drawn[::size]], dtype=int)
        trials = np.isfinite(success).sum(1)
        self.state = curriculum.update(self.state, indices, np.nansum(success, 1), trials)

    def _success(self, sample) -> float:
        """The reward, before any penalty, as a number from 0 (fail) to 1 (pass); NaN where it failed."""
        settings = self.args.algo.advantage.ebpo
        reward = (float(sample.rewards) - settings.fail_reward) / (settings.pass_reward - settings.fail_reward)
        return min(max(reward, 0.0), 1.0) if np.isfinite(reward) else np.nan

    def state_dict(self) -> dict:
        """Arrays, since upstream prints the whole checkpoint's state, and NumPy shortens them."""
        state = self.state
        return {
            "format": FORMAT,
            "prompts": np.array(self._ids),
            "successes": state.successes,
            "failures": state.failures,
            "drawn": state.drawn,
            "left": state.left,
            "draws": self._draws,
            "batch": self._batch,
        }

    def load_state_dict(self, saved: dict) -> None:
        """By the prompts' content: those that are new start without history, those that are gone are forgotten."""
        if not saved:
            return
        found = dict(zip(saved["prompts"].tolist(), range(len(saved["prompts"])), strict=True))
        here = [i for i, name in enumerate(self._ids) if name in found]
        there = [found[self._ids[i]] for i in here]
        columns = {name: getattr(self.state, name).copy() for name in ("successes", "failures", "drawn")}
        for name, values in columns.items():
            values[here] = saved[name][there]
        self.state = replace(self.state, left=saved["left"], **columns)
        self._draws, self._batch = saved["draws"], saved["batch"]
        self._ended = False


class ObservedSamples:
    """Mixin over SamplesGenerator: a batch's rewards go to the data loader that drew its prompts."""

    def generate_samples(self, **kwargs):
        samples, *others = super().generate_samples(**kwargs)
        if samples and isinstance(self.prompts_dataloader, AdaptivePrompts):
            self.prompts_dataloader.observe(samples)
        return samples, *others


def uneven_draw(rewards: np.ndarray, valid: np.ndarray, importance: np.ndarray) -> dict[str, float]:
    """Metrics of a batch of rewards (M, G) whose prompts were not drawn evenly; none where they were.

    importance: of each response.
    """
    if (importance == 1).all():
        return {}
    weights = importance.reshape(rewards.shape) * valid
    groups = weights.mean(1)
    return {
        "curriculum/reward_mean": float((weights * rewards).sum() / weights.sum()),
        "curriculum/effective_prompts": float(groups.sum() ** 2 / (groups**2).sum()),
    }


def is_curriculum(data_loader_state: dict) -> bool:
    """Whether a checkpoint's data loader state is one of AdaptivePrompts."""
    return data_loader_state.get("format") == FORMAT
