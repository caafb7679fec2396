"""Clip-Cov and KL-Cov: policy losses that hold back the few tokens which cost most entropy.

Cui et al. 2025, The Entropy Mechanism of Reinforcement Learning for Reasoning Language Models (arXiv 2505.22617),
equations 10 to 14. Over the N response tokens of a batch, each token's share of the covariance is

    Cov(i) = (log π(i) − mean log π) · (A(i) − mean A)

Clip-Cov takes tokens of high covariance out of the policy gradient; KL-Cov puts a KL penalty on them.

The batch is the micro-batch of one rank, as in the released code (verl's clip_cov and kl_cov): the loss sees no
more than that. The ⌊ratio·N⌋ tokens are at least one, so with few tokens per micro-batch more are chosen than the
ratio says; the metric policy/cov_selected_fraction tells. docs/train.md has the formulas and what differs.

Both are written as upstream's own PPO loss with changed advantages: clipping, vLLM importance correction,
aggregation over ranks and micro-batches and the reported numbers stay upstream's.
"""

from __future__ import annotations

import argparse
import functools
import math
from collections.abc import Callable
from typing import NamedTuple

import torch

from openrlhf_ebpo.errors import UsageError
from openrlhf_ebpo.run.batches import BatchSettings

TYPE = "--actor.policy_loss_type"
TYPES = ("clip_cov", "kl_cov")
MAX_LOG_RATIO = 20.0  # upstream's bound on log(π/π_old) before exp


@torch.no_grad()
def token_covariance(log_probs: torch.Tensor, advantages: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Cov(i), equation 10. All (B, T); the means run over the mask's tokens, elsewhere it is 0. Returns float32."""
    chosen = mask.bool()
    x, y = log_probs[chosen].float(), advantages[chosen].float()
    covariance = torch.zeros_like(log_probs, dtype=torch.float32)
    covariance[chosen] = (x - x.mean()) * (y - y.mean())
    return covariance


def selection_size(ratio: float, tokens: int) -> int:
    """⌊ratio · tokens⌋, at least one token unless the ratio or `tokens` is 0."""
    return min(max(int(ratio * tokens), 1), tokens) if ratio > 0 else 0


class Tokens(NamedTuple):
    """A micro-batch, each (B, T). log_ratio: log π − log π_old. covariance: as of `token_covariance`."""

    log_ratio: torch.Tensor
    advantages: torch.Tensor
    covariance: torch.Tensor
    mask: torch.Tensor


def clip_cov(
    tokens: Tokens,
    *,
    ratio: float,
    bounds: tuple[float, float],
    eps_clip: tuple[float, float],
    generator: torch.Generator,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Advantages with which PPO's loss is Clip-Cov's (equations 11 and 12), and the tokens taken out.

    Drawn at random among tokens with low < Cov < high that PPO does not clip anyway. A token without advantage has
    neither loss nor gradient, and still counts as a token where the loss is averaged.

    Args:
        ratio: how many to take out, of all the mask's tokens.
        bounds: of the covariance of the tokens that may be taken out. eps_clip: PPO's low and high ε.
    """
    log_ratio, advantages, covariance, mask = tokens
    policy_ratio = log_ratio.detach().clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()
    clipped = policy_ratio.clamp(1 - eps_clip[0], 1 + eps_clip[1]) * advantages < policy_ratio * advantages
    eligible = mask.bool() & ~clipped & (covariance > bounds[0]) & (covariance < bounds[1])
    places = eligible.flatten().nonzero().flatten()
    order = torch.randperm(len(places), generator=generator)  # on the CPU, where the generator lives
    chosen = places[order[: selection_size(ratio, int(mask.sum()))].to(places.device)]
    selected = _selection(chosen, mask)
    return advantages.masked_fill(selected, 0), selected


def kl_cov(tokens: Tokens, *, ratio: float, coef: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Advantages with which the unclipped loss −A·π/π_old is KL-Cov's (equations 13 and 14), and the tokens chosen.

    Those with the highest covariance pay coef · |log π − log π_old|, the release's estimate of the KL. A penalty p in
    the loss is an advantage that is lower by p·π_old/π, since −π/π_old·(A − p·π_old/π) = −π/π_old·A + p; the
    gradient passes through both factors.

    Args:
        tokens: log_ratio with gradient. ratio: how many to choose, of all the mask's tokens.
    """
    log_ratio, advantages, covariance, mask = tokens
    ranked = covariance.masked_fill(~mask.bool(), -math.inf).flatten()
    selected = _selection(ranked.topk(selection_size(ratio, int(mask.sum()))).indices, mask)
    inverse_ratio = (-log_ratio.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)).exp()
    return advantages - coef * log_ratio.abs() * inverse_ratio * selected, selected


def _selection(places: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Boolean (B, T), true at these places of the flattened tensor."""
    selected = torch.zeros(mask.shape, dtype=torch.bool, device=mask.device)
    selected.view(-1)[places] = True
    return selected


def check_flags(actor) -> None:
    """Raises UsageError: a value is out of range; names its flag. actor: the section of upstream's nested arguments,
    which holds our flags too."""
    for name, ratio in (("clip_cov", actor.clip_cov.ratio), ("kl_cov", actor.kl_cov.ratio)):
        if not 0 <= ratio <= 1:
            raise UsageError(f"--actor.{name}.ratio is {ratio:g}; give a share of the tokens, 0 to 1")
    low, high = actor.clip_cov.bounds
    if not low < high:
        raise UsageError(f"--actor.clip_cov.bounds {low:g} {high:g}: give LOW HIGH with LOW < HIGH")
    if not 0 <= actor.kl_cov.coef < math.inf:
        raise UsageError(f"--actor.kl_cov.coef is {actor.kl_cov.coef:g}; give 0 or more")
    if actor.policy_loss_type == "kl_cov" and actor.dual_clip is not None:
        raise UsageError(f"--actor.dual_clip does not go with {TYPE} kl_cov, which does not clip: leave it out")


def notices(loss_type: str, batches: BatchSettings) -> list[str]:
    """Warn of settings that are allowed and have little effect."""
    found = []
    if loss_type in TYPES and batches.micro == 1 and not batches.dynamic:
        found.append(
            f"warning: {TYPE} {loss_type} compares the tokens of a micro-batch, and --train.micro_batch_size is "
            "1: where all tokens of a response have the same advantage, its covariance is 0. Raise "
            "--train.micro_batch_size, or use --train.dynamic_batch_enable"
        )
    if loss_type == "kl_cov" and batches.batch >= batches.responses and batches.epochs == 1:
        found.append(
            f"warning: {TYPE} kl_cov does next to nothing with one optimizer step a rollout batch: its penalty is "
            "on the change since the rollout, and there is none yet. The paper makes 8 steps: lower "
            f"--train.batch_size ({batches.batch}) to a part of the {batches.responses} responses, or raise "
            "--train.max_epochs"
        )
    return found


class CovarianceLoss:
    """Called as upstream's PolicyLoss: its PPO loss, on advantages changed by covariance.

    Args:
        ppo_loss: upstream's loss, which does everything else.
        change: Tokens -> (changed advantages, selected tokens).

    Attributes:
        measured: metrics of the last call, 0-D tensors. policy/cov_selected_fraction: chosen tokens of all tokens;
            policy/cov_mean: mean of Cov(i), the covariance of log-probability and advantage.
    """

    def __init__(self, ppo_loss: Callable, change: Callable):
        self.ppo_loss, self.change = ppo_loss, change
        self.measured: dict[str, torch.Tensor] = {}

    def __call__(self, log_probs, old_log_probs, advantages, action_mask, **kwargs):
        covariance = token_covariance(log_probs, advantages, action_mask)
        changed, selected = self.change(Tokens(log_probs - old_log_probs, advantages, covariance, action_mask))
        tokens = action_mask.sum().clamp(min=1)
        self.measured = {
            "policy/cov_selected_fraction": selected.sum() / tokens,
            "policy/cov_mean": covariance.sum() / tokens,
        }
        return self.ppo_loss(log_probs, old_log_probs, changed, action_mask=action_mask, **kwargs)


def with_covariance(loss, actor, seed: int):
    """Return the loss of the actor: upstream's own, untouched, unless `actor`, as of `check_flags`, asks for TYPES.

    The random choice of Clip-Cov has its own generator, seeded with --train.seed: it leaves the order of the
    data alone, and ranks that see the same tokens (ring attention, tensor parallelism) choose the same ones. It is
    not part of a checkpoint; a resumed run begins the sequence again.
    """
    if actor.policy_loss_type not in TYPES:
        return loss
    loss.policy_loss_type = "ppo"
    if actor.policy_loss_type == "clip_cov":
        change = functools.partial(
            clip_cov,
            ratio=actor.clip_cov.ratio,
            bounds=tuple(actor.clip_cov.bounds),
            eps_clip=(loss.clip_eps_low, loss.clip_eps_high),
            generator=torch.Generator().manual_seed(seed),
        )
    else:
        loss.clip_eps_low = loss.clip_eps_high = math.inf
        change = functools.partial(kl_cov, ratio=actor.kl_cov.ratio, coef=actor.kl_cov.coef)
    return CovarianceLoss(loss, change)


class CovarianceLosses:
    """Mixin over ActorPPOTrainer: trains with the policy loss that the arguments ask for, and reports its metrics."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.actor_loss_fn = with_covariance(self.actor_loss_fn, self.args.actor, self.args.train.seed)

    def training_step(self, experience, *args, **kwargs):
        result = super().training_step(experience, *args, **kwargs)
        if isinstance(self.actor_loss_fn, CovarianceLoss):  # means over the tokens of all micro-batches and ranks
            result["metrics"] |= self.actor_loss_fn.measured
            result["weights"] |= dict.fromkeys(self.actor_loss_fn.measured, "token")
        return result


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Two more choices of --actor.policy_loss_type, and their settings; the defaults are the paper's."""
    loss_type = parser._option_string_actions[TYPE]
    loss_type.choices = [*loss_type.choices, *TYPES]
    loss_type.help = "ppo and gspo are OpenRLHF's; clip_cov and kl_cov keep entropy from collapsing, see below"
    group = parser.add_argument_group(
        "Clip-Cov and KL-Cov",
        f"arXiv 2505.22617; used with {TYPE} clip_cov or kl_cov. Tokens are chosen inside each micro-batch, at least "
        "one; a greater ratio or coefficient keeps more entropy (docs/train.md).",
    )
    group.add_argument(
        "--actor.clip_cov.ratio",
        type=float,
        default=2e-4,
        metavar="R",
        help="share of all tokens that get no policy gradient",
    )
    group.add_argument(
        "--actor.clip_cov.bounds",
        type=float,
        nargs=2,
        default=(1.0, 5.0),
        metavar=("LOW", "HIGH"),
        help="these tokens are drawn from those with a covariance between LOW and HIGH",
    )
    group.add_argument(
        "--actor.kl_cov.ratio",
        type=float,
        default=2e-3,
        metavar="K",
        help="share of all tokens, those of highest covariance, that get a KL penalty; the paper has 2e-3 for a 7B "
        "model and 2e-4 for 32B. kl_cov does not clip: --actor.eps_clip has no effect",
    )
    group.add_argument(
        "--actor.kl_cov.coef", type=float, default=1.0, metavar="BETA", help="coefficient of that KL penalty"
    )
