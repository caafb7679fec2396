"""One rollout batch as a table, one row per response: what the run log keeps so that a person can ask what an answer
got, and what GRPO would have given it."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import torch

from openrlhf_ebpo.estimator.advantage import Estimate
from openrlhf_ebpo.rewards.math.golds import label_answer

DECODE_BATCH_SIZE = 64  # responses

SCHEMA = pa.schema(
    [
        ("step", pa.int32()),
        ("prompt_id", pa.string()),
        ("group", pa.int32()),
        ("sample", pa.int32()),
        ("cluster", pa.string()),
        ("prompt", pa.string()),
        ("response", pa.string()),
        ("label", pa.string()),
        ("raw_reward", pa.float32()),
        ("reward", pa.float32()),
        ("valid", pa.bool_()),
        ("error", pa.string()),
        ("group_mean", pa.float64()),
        ("baseline", pa.float64()),
        ("shrinkage", pa.float64()),
        ("advantage", pa.float64()),
        ("grpo_advantage", pa.float64()),
        ("response_length", pa.int32()),
        ("truncated", pa.bool_()),
        ("action_tokens", pa.int32()),
        ("score_weight", pa.float64()),
    ]
)


@dataclass(frozen=True)
class Rollouts:
    """N responses in prompt order (groups contiguous). Their tokens are decoded later, in the run log's thread.

    order: (N,) where in the experiences' concatenation each row stands. raw_rewards, action_counts: (N,).
    responses: int32 tokens of each response, copied: a sixth, or less, of the padded tensors, which are then free.
    """

    order: torch.Tensor
    raw_rewards: torch.Tensor
    action_counts: torch.Tensor
    score_weights: Callable[[], torch.Tensor]
    response_lengths: torch.Tensor
    truncated: torch.Tensor
    responses: list[torch.Tensor]
    prompts: list[str]
    labels: list[str]
    errors: list[str]
    clusters: list[str | None]
    result: Estimate | None = None

    @classmethod
    def before_shaping(cls, experiences, errors: list[str], clusters: list[str | None]) -> Rollouts:
        """Snapshot of what the advantage stage will change. `errors` and `clusters` are in prompt order."""
        index = torch.tensor(list(itertools.chain.from_iterable(e.index for e in experiences)))
        order = index.argsort()

        def column(name: str) -> torch.Tensor:
            return torch.cat([getattr(e, name).reshape(-1) for e in experiences])[order]

        def in_order(values: Iterable[Iterable]) -> list:
            values = list(itertools.chain.from_iterable(values))
            return [values[i] for i in order.tolist()]

        return cls(
            order=order,
            raw_rewards=column("rewards").float(),
            action_counts=torch.cat([e.action_mask.sum(-1) for e in experiences])[order],
            score_weights=ScoreWeights([(e.action_log_probs, e.action_mask) for e in experiences], order),
            response_lengths=column("response_length"),
            truncated=column("truncated").bool(),
            responses=in_order(map(response_tokens, experiences)),
            prompts=in_order(e.prompts for e in experiences),
            labels=in_order(e.labels for e in experiences),
            errors=errors,
            clusters=clusters,
        )

    def with_result(self, result: Estimate) -> Rollouts:
        return replace(self, result=result)

    def prompt_ids(self, every: int = 1) -> list[str]:
        """One per response, or of every n-th response."""
        return [prompt_id(p, label) for p, label in zip(self.prompts[::every], self.labels[::every], strict=True)]

    def table(self, step: int, tokenizer) -> pa.Table:
        """The rows of `SCHEMA`. Decoding takes seconds for long responses."""
        groups, size = self.result.rewards.shape

        def per_response(values: np.ndarray) -> list:
            return [None if v != v else v for v in np.broadcast_to(values, (groups, size)).ravel().tolist()]

        return pa.table(
            {
                "step": [step] * groups * size,
                "prompt_id": self.prompt_ids(),
                "group": [g for g in range(groups) for _ in range(size)],
                "sample": list(range(size)) * groups,
                "cluster": self.clusters,
                "prompt": self.prompts,
                "response": list(self._texts(tokenizer)),
                "label": [label_answer(label) for label in self.labels],
                "raw_reward": per_response(self.raw_rewards.numpy().reshape(groups, size)),
                "reward": per_response(np.where(self.result.valid, self.result.rewards, np.nan)),
                "valid": self.result.valid.ravel().tolist(),
                "error": [error or None for error in self.errors],
                "group_mean": per_response(self.result.group_means),
                "baseline": per_response(self.result.baselines),
                "shrinkage": per_response(self.result.shrinkage),
                "advantage": per_response(self.result.advantages),
                "grpo_advantage": per_response(self.result.grpo_advantages),
                "response_length": self.response_lengths.tolist(),
                "truncated": self.truncated.tolist(),
                "action_tokens": self.action_counts.tolist(),
                "score_weight": self.score_weights().tolist(),
            },
            schema=SCHEMA,
        )

    def _texts(self, tokenizer) -> Iterator[str]:
        """Special tokens shown. A few responses at a time: as Python numbers all tokens of a step take gigabytes."""
        for start in range(0, len(self.responses), DECODE_BATCH_SIZE):
            chunk = self.responses[start : start + DECODE_BATCH_SIZE]
            yield from tokenizer.batch_decode([tokens.tolist() for tokens in chunk], skip_special_tokens=False)


class ScoreWeights:
    """Σ_t (1 − π_old(y_t))² over each response's action tokens, (N,) float64, computed at the first call: few
    estimators read them, and the run log's thread has time. Until then the padded tensors are kept.

    Args:
        micro_batches: log-probabilities and action mask, (B, A), of each. order: (N,) as in Rollouts.
    """

    def __init__(self, micro_batches: Sequence[tuple[torch.Tensor, torch.Tensor]], order: torch.Tensor):
        self._micro_batches, self._order = micro_batches, order

    def __call__(self) -> torch.Tensor:
        if self._micro_batches:
            self._found = torch.cat([_score_weights(*each) for each in self._micro_batches])[self._order]
            self._micro_batches = ()
        return self._found


def _score_weights(log_probs: torch.Tensor, action_mask: torch.Tensor) -> torch.Tensor:
    return torch.expm1(log_probs.float()).square_().mul_(action_mask).sum(-1, dtype=torch.float64)


def response_tokens(experience) -> list[torch.Tensor]:
    """Copies, int32, from the first action token to the end of the sequence; empty without an action token."""
    first = experience.action_mask.long().argmax(-1, keepdim=True)
    some = experience.action_mask.gather(
        -1, first
    ).bool()  # the first of equal values, so that of a row of zeros is one
    ends = experience.attention_mask.sum(-1) * some[:, 0]
    spans = zip(experience.sequences, first[:, 0].tolist(), ends.tolist(), strict=True)
    return [row[start + 1 : end].to(torch.int32, copy=True) for row, start, end in spans]


def prompt_id(prompt: str, label: str) -> str:
    """Stable over runs: the same prompt and label give the same id."""
    return hashlib.sha256(f"{prompt}\0{label}".encode()).hexdigest()[:16]
