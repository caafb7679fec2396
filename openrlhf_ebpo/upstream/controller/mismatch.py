"""Measure how far the rollout engine's probabilities are from the trainer's, for the same weights and the same tokens.

Two programs compute them: vLLM, which samples, and the trainer, whose log-probabilities make the loss. They differ by
their kernels and their rounding, and by far more where vLLM does not have the trainer's weights. Measured where both
are there before anything is trained on the batch, so what the updates of a step change is not in it. In asynchronous
training the rollouts are older than the trainer's weights, and that is.

With d = log p_trainer − log p_rollout of a sampled token and the importance weight w = exp(d), over tokens:

    k3_kl        mean of w − 1 − log w with w clipped to 1/10 … 10, an estimate of KL(rollout ‖ trainer) that is
    never negative
    chi2_token   mean of w² − 1, an estimate of χ²(trainer ‖ rollout)
    ess          (Σw)² / (n Σw²): the share of n tokens that would tell as much, if they came from the trainer
"""

from __future__ import annotations

import math
import statistics
from collections import deque
from collections.abc import Iterable, Mapping

import torch

from openrlhf_ebpo.estimator.advantage_settings import AdvantageSettings
from openrlhf_ebpo.hub_models import local_folder
from openrlhf_ebpo.model_folder import read_json
from openrlhf_ebpo.run.batches import BatchSettings
from openrlhf_ebpo.run.catalogue import KL_PER_STEP

K3, STALE = "mismatch/k3_kl", "mismatch/stale"
SUMMARY = "steps had rollouts that did not seem to come from the weights that were trained (docs/train.md)"
MAX_LOG_RATIO = 20.0  # nats: d is cut here, on both sides, before exp; a weight of 5e8 is as bad as any beyond
MAX_K3_WEIGHT = 10.0  # in bf16 one token in a million can have a weight of e^8, and would be the mean of all others
RECENT = 20  # steps that define the usual value
MEDIAN_OF = 5  # consecutive steps
STALE_FACTOR = 2  # times as far as usual, 4 times the KL
FIRST_STEP_LIMIT = 0.05  # nats per token, where no step before says what is usual
ALWAYS_CLOSE = 1e-4  # nats per token
CENTRED_REMEDIES = (
    "--advantage_estimator ebpo.robust, or --algo.advantage.is_correction_level token "
    "--algo.advantage.is_correction_mode clip (docs/estimator.md#which-to-choose)"
)


def rollout_log_probs(samples: list, keep: bool) -> list[torch.Tensor | None]:
    """Return the engine's log-probabilities of each sample, (A,); None if it gave none, or an agent gave the wrong
    number.

    Args:
        keep: OpenRLHF trains with them. Else they are taken out of the samples, for its batching takes no mixture.
    """
    found = []
    for sample in samples:
        given = sample.rollout_log_probs
        found.append(given[0] if given is not None and given.shape == sample.action_mask.shape else None)
        if not keep:
            sample.rollout_log_probs = None
    return found


def differences(experiences, rollout: list[torch.Tensor | None]) -> Iterable[torch.Tensor]:
    """log p_trainer − log p_rollout of the trained tokens of each response that has both.

    rollout: of the responses in the order of the experiences' `index`.
    """
    for experience in experiences:
        for row, i in enumerate(experience.index):
            if (engine := rollout[i]) is not None:
                chosen = experience.action_mask[row, : len(engine)].bool()
                trainer = experience.action_log_probs[row, : len(chosen)]
                yield trainer[chosen].double() - engine[chosen].double()


def metrics(responses: Iterable[torch.Tensor]) -> dict[str, float]:
    """responses: their differences; none where nothing could be measured."""
    responses = [d.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO) for d in responses if len(d)]
    if not responses:
        return {}
    d = torch.cat(responses)
    w = d.exp()
    clipped = w.clamp(1 / MAX_K3_WEIGHT, MAX_K3_WEIGHT)
    squares = w.square().mean().item()
    # the weight of a sequence is the product of its tokens': its ess is computed in logarithms
    sequences = torch.stack([response.sum() for response in responses])
    ess_sequence = 2 * sequences.logsumexp(0) - (2 * sequences).logsumexp(0) - math.log(len(sequences))
    return {
        K3: (clipped - 1 - clipped.log()).mean().item(),
        "mismatch/chi2_token": squares - 1,
        "mismatch/ess": w.mean().item() ** 2 / squares,
        "mismatch/ess_sequence": ess_sequence.exp().item(),
        "mismatch/largest_ratio": w.max().item(),
        "mismatch/tokens": float(len(d)),
    }


class StalenessMonitor:
    """Detects rollouts that come from older weights than they should.

    √KL grows about as the distance between two policies. That of engine and trainer should be what it was, plus, where
    rollouts are older than the trainer's weights by design, what the policy has moved in its latest `age` steps. What
    it was is a median of recent steps, so that no single step decides: the least median of 5 consecutive ones. Engines
    that are never updated drift by a little in every step, and the median of all recent steps would drift along.

    Args:
        age: as of BatchSettings.
        rows: of metrics.jsonl, of the steps before.
        centred: the estimator is (estimator/contract.py); the warning then names what suffers less from stale samples.
    """

    def __init__(self, age: int, rows: Iterable[Mapping] = (), centred: bool = False):
        self._advice = f" A centred estimator suffers most from stale samples: {CENTRED_REMEDIES}." * centred
        self._recent: deque[float] = deque(maxlen=RECENT)
        self._moves: deque[float] = deque(maxlen=age)
        for row in rows:
            self.is_stale(row)

    def is_stale(self, step: Mapping[str, float]) -> bool | None:
        """Return True for a stale step; None where the mismatch, or how far the policy has moved since the rollouts'
        weights, was not measured. Call it for every step, in order."""
        limit = FIRST_STEP_LIMIT**0.5 + sum(self._moves)
        if self._recent:
            limit = max(STALE_FACTOR * (self._usual() + sum(self._moves)), ALWAYS_CLOSE**0.5)
        self._moves.append(distance(step.get(KL_PER_STEP), math.nan))
        found = distance(step.get(K3), math.nan)
        if math.isnan(found) or math.isnan(limit):
            return None
        if found <= limit:
            self._recent.append(found)
        return found > limit

    def _usual(self) -> float:
        steps = list(self._recent)
        starts = range(max(len(steps) - MEDIAN_OF + 1, 1))
        return min(statistics.median_low(steps[start : start + MEDIAN_OF]) for start in starts)

    def warning(self, step: int, k3: float) -> str:
        """Warn of a stale step."""
        usual = f", {self._usual() ** 2:.2g} in the steps before" if self._recent else ""
        return (
            f"warning: step {step}: the rollouts do not seem to come from the weights that are trained: {K3} is "
            f"{k3:.2g}{usual}. Do the engines get the weights (docs/train.md)?{self._advice}"
        )


def distance(kl: float | None, otherwise: float) -> float:
    return otherwise if kl is None or math.isnan(kl) else math.sqrt(max(kl, 0.0))


def notices(args, batches: BatchSettings, advantage: AdvantageSettings) -> list[str]:
    """Warn of weights whose age cannot be checked, and of a centred estimator that learns from samples of another
    policy. args: upstream's, nested.

    In our measurements samples one step old cost EBPO nothing on a small network and 0.012 of 0.096 in OpenRLHF: an
    async queue of one is not warned of.
    """
    found, model, ring = [], args.actor.model_name_or_path, args.ds.ring_attn_size
    unmeasured = {
        "--logger.no_policy_metrics": args.logger.no_policy_metrics,
        f"--ds.ring_attn_size {ring}": ring > 1,
        "a vision model": bool(_config(model).get("vision_config")),
    }
    if batches.age and any(unmeasured.values()):
        causes = " and ".join(cause for cause, holds in unmeasured.items() if holds)
        found.append(
            f"note: stale weights are not reported ({STALE} is absent): rollouts are up to {batches.age} steps old, "
            f"and with {causes} {KL_PER_STEP} is not measured. Watch {K3}"
        )
    if (causes := off_policy_causes(batches, model)) and advantage.is_centred():
        found.append(
            f"warning: {' and '.join(causes)}, and {advantage.name} is centred, which suffers most from stale samples "
            f"(docs/estimator.md has measurements). Consider {CENTRED_REMEDIES}, and watch mismatch/*"
        )
    return found


def off_policy_causes(batches: BatchSettings, model: str) -> list[str]:
    """The settings that make rollouts differ from the policy that is trained, beyond one step and bf16's rounding.

    OpenRLHF 0.11.2 has no flag that quantises rollouts; vLLM does so by itself for a model with a quantization_config.
    """
    causes = []
    if batches.age > 1:
        sizes = f"--train.async_queue_size {batches.queue}"
        if batches.generated > batches.prompts:
            sizes += f" with --rollout.vllm_generate_batch_size {batches.generated}"
        causes.append(f"{sizes} trains on samples up to {batches.age} steps old")
    if batches.partial_rollouts:
        causes.append("--train.partial_rollout_enable mixes tokens of older weights into a response")
    if _config(model).get("quantization_config"):
        causes.append(f"vLLM samples from quantised weights (quantization_config in {local_folder(model)}/config.json)")
    return causes


def _config(model: str) -> dict:
    """Read config.json of a model that is on this machine; else empty."""
    folder = local_folder(model)
    return read_json(folder / "config.json") if folder else {}
