"""How far the rollout engine's probabilities are from the trainer's, for the same weights and the same tokens.

Two programs compute them: vLLM, which samples, and the trainer, whose log-probabilities make the loss. They differ by their
kernels and their rounding, and by far more where vLLM does not have the trainer's weights. Measured where both are there before
anything is trained on the batch, so what the updates of a step change is not in it. In asynchronous training the
rollouts are older than the trainer's weights, and that is.

With d = log p_trainer − log p_rollout of a sampled token and the importance weight w = exp(d), over tokens:

    k3_kl        mean of w − 1 − d, an estimate of KL(rollout ‖ trainer) that is never negative
    chi2_token   mean of w² − 1, an estimate of χ²(trainer ‖ rollout)
    ess          (Σw)² / (n Σw²): the share of n tokens that would tell as much, if they came from the trainer
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Mapping

import torch

K3, STALE = "mismatch/k3_kl", "mismatch/stale"
MOVED = "policy/kl_per_step"
LARGEST = 20.0  # nats: d is cut here, on both sides, before exp; a weight of 5e8 is as bad as any beyond
RECENT = 20  # steps that say what is usual
TIMES = 2  # times as far as usual, 4 times the KL
TOO_FAR = 0.05  # nats per token, where no step before says what is usual
NEAR_ENOUGH = 1e-4  # nats per token


def rollout_log_probs(samples: list, args) -> list[torch.Tensor | None]:
    """Of each sample (of one response), (A,), None where the engine has given none, or an agent as many as do not fit.

    Where OpenRLHF does not train with them they are taken out of the samples, for its batching takes no mixture.
    """
    found = [fitting(sample) for sample in samples]
    for sample in () if corrects(args.algo.advantage) else samples:
        sample.rollout_log_probs = None
    return found


def corrects(advantage) -> bool:
    """Up to OpenRLHF 0.11.1 the flag was is_correction_enable."""
    return getattr(advantage, "is_correction_level", "off") != "off" or getattr(
        advantage, "is_correction_enable", False
    )


def fitting(sample) -> torch.Tensor | None:
    given = sample.rollout_log_probs
    return given[0] if given is not None and given.shape == sample.action_mask.shape else None


def differences(experiences, rollout: list[torch.Tensor | None]) -> Iterable[torch.Tensor]:
    """log p_trainer − log p_rollout of the trained tokens of each response that has both.

    rollout: of the responses in the order of the experiences' `index`.
    """
    for experience in experiences:
        rows = zip(experience.index, experience.action_log_probs, experience.action_mask.bool(), strict=True)
        for i, trainer, mask in rows:
            if rollout[i] is not None:
                chosen = mask[: len(rollout[i])]
                yield trainer[: len(chosen)][chosen].double() - rollout[i][chosen].double()


def metrics(responses: Iterable[torch.Tensor]) -> dict[str, float]:
    """responses: their differences; none where nothing could be measured."""
    responses = [d.clamp(-LARGEST, LARGEST) for d in responses if len(d)]
    if not responses:
        return {}
    d = torch.cat(responses)
    w = d.exp()
    squares = w.square().mean().item()
    return {
        K3: (w - 1 - d).mean().item(),
        "mismatch/chi2_token": squares - 1,
        "mismatch/ess": w.mean().item() ** 2 / squares,
        "mismatch/ess_sequence": effective_share(torch.stack([response.sum() for response in responses])),
        "mismatch/largest_ratio": w.max().item(),
        "mismatch/tokens": float(len(d)),
    }


def effective_share(log_weights: torch.Tensor) -> float:
    """(Σw)² / (n Σw²) of n weights, in logarithms: a sequence's is the product of its tokens'."""
    log_share = 2 * log_weights.logsumexp(0) - (2 * log_weights).logsumexp(0) - math.log(len(log_weights))
    return log_share.exp().item()


class Watch:
    """Tells when rollouts come from older weights than they should.

    √KL grows about as the distance between two policies. That of engine and trainer should be what it was, plus, where rollouts
    are older than the trainer's weights by design, what the policy has moved in its latest `age` steps. It is compared with
    the least of the latest steps: what grows from step to step is then seen too.

    Args:
        age: as of `age_by_design`.
        rows: of metrics.jsonl, of the steps before.
    """

    def __init__(self, age: int, rows: Iterable[Mapping] = ()):
        self._least: deque[float] = deque(maxlen=RECENT)
        self._moves: deque[float] = deque(maxlen=age)
        self._said = 0
        for row in rows:
            self.is_stale(row)

    def is_stale(self, step: Mapping[str, float]) -> bool | None:
        """To be called for every step, in their order; None for one that was not measured."""
        limit = self._limit()
        self._moves.append(distance(step.get(MOVED), math.inf))
        found = distance(step.get(K3), math.nan)
        if math.isnan(found):
            return None
        if found <= limit:
            self._least.append(found)
        return found > limit

    def _limit(self) -> float:
        moved = sum(self._moves)
        if not self._least:
            return TOO_FAR**0.5 + moved
        return max(TIMES * (min(self._least) + moved), NEAR_ENOUGH**0.5)

    def line(self, step: int, metrics: Mapping[str, float]) -> str | None:
        """What to say of a step: of the first, second, fourth, eighth … that is stale."""
        if not metrics.get(STALE):
            return None
        self._said += 1
        if self._said & (self._said - 1):
            return None
        usual = f", {min(self._least) ** 2:.2g} at best in the steps before" if self._least else ""
        more = f" ({self._said} such steps so far)" if self._said > 1 else ""
        return (
            f"warning: step {step}: the rollouts do not seem to come from the weights that are trained: {K3} is "
            f"{metrics[K3]:.2g}{usual}. Do the engines get the weights (docs/health.md)?{more}"
        )


def summary(rows: Iterable[Mapping]) -> str | None:
    """A line for the end of a run; None where no step was stale. rows: of metrics.jsonl."""
    steps = [row[STALE] for row in rows if STALE in row]
    if not any(steps):
        return None
    return (
        f"{sum(map(bool, steps))} of {len(steps)} steps had rollouts that did not seem to come from the weights that were "
        "trained (docs/health.md)"
    )


def distance(kl: float | None, otherwise: float) -> float:
    return otherwise if kl is None or math.isnan(kl) else math.sqrt(max(kl, 0.0))


def age_by_design(args) -> int:
    """How many steps the weights of a rollout may be older than those that it is trained with."""
    batches = -(-(args.rollout.vllm_generate_batch_size or 0) // args.rollout.batch_size)
    return args.train.async_enable * args.train.async_queue_size + max(batches - 1, 0)
