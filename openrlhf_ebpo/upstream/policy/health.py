"""A training step whose loss, gradient or weights are not finite ends the run, before its weights reach the engines or
a checkpoint.

Left alone, upstream and DeepSpeed train on or stand still without a word: with ZeRO 1 and 2 every optimizer step with a
NaN in its gradient is left out, in bf16 too, and the norm that is logged is the one before; with ZeRO 3 the step is
taken, weights become NaN, and the logged norm is an ordinary number (made of -1, which stands for one that is not
finite).
"""

from __future__ import annotations

import math
import operator

import torch

from openrlhf_ebpo.errors import HealthError
from openrlhf_ebpo.redact import redacted
from openrlhf_ebpo.run.catalogue import KL_PER_STEP
from openrlhf_ebpo.upstream.phases import MicroBatches

LOSSES = ("policy_loss", "critic_loss", "gpt_loss", "loss_mean", "entropy_loss", "kl")
MAX_NAMED = 3  # parameters, and ranks, in a message


class HealthyUpdates:
    """Mixin over upstream's trainers of policy and critic.

    Raises:
        HealthError: in every rank alike, by the constructor where the loaded weights are not finite, by `ppo_train`
            where losses, gradients or weights were not. Its `report` is what each such rank has found.
    """

    role: str  # "policy" or "critic"

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self._first_fault: dict | None = None
        self._micro_batches = 0
        if self.strategy.is_rank_0():
            self._engine.register_forward_hook(MicroBatches())
        self._raise_if_any(
            "the model that was loaded, or the checkpoint, is not healthy", damaged_weights(self._engine.module)
        )

    def ppo_train(self, *args, **kwargs):
        self._first_fault, self._micro_batches = None, 0
        status = super().ppo_train(*args, **kwargs)
        if not math.isfinite(status.get(KL_PER_STEP, 0.0)) and self._first_fault is None:
            self._first_fault = {
                "problems": [f"{KL_PER_STEP} is {status[KL_PER_STEP]}: the new weights give no probabilities"]
            }
        self._raise_if_any("the step is not healthy", damaged_weights(self._engine.module))
        return status

    def training_step(self, experience, *args, **kwargs):
        skipped = self._engine.skipped_steps
        result = super().training_step(experience, *args, **kwargs)
        self._micro_batches += 1
        metrics = losses_and_norms(result, self.args.algo.kl.use_loss)
        left_out = self._engine.skipped_steps > skipped
        problems = problems_of(metrics, left_out, scaled=False)  # of bf16, which the engines hold
        if problems and self._first_fault is None:
            self._first_fault = {
                "problems": problems,
                "micro_batch": self._micro_batches,
                "responses": len(experience.sequences),
                "action_tokens": int(experience.action_mask.sum()),
                "measured": redacted(metrics),  # numbers that JSON does not know as text
            }
        return result

    def _raise_if_any(self, what: str, weights: list[str]) -> None:
        """Every rank's findings; the ranks agree by one number, and exchange more only if there is a
        fault."""
        if not self.strategy.all_reduce(float(bool(weights or self._first_fault)), op="max"):
            return
        own = {"role": self.role, "weights": weights, **(self._first_fault or {})}
        found: list = [None] * torch.distributed.get_world_size()
        torch.distributed.all_gather_object(found, own)
        report = [{"rank": rank, **f} for rank, f in enumerate(found) if f["weights"] or f.get("problems")]
        raise HealthError(f"{what}: {describe_findings(report)}", report)


class HealthyPolicy(HealthyUpdates):
    """Mixin over ActorPPOTrainer."""

    role, _engine = "policy", property(operator.attrgetter("actor.model"))


class HealthyCritic(HealthyUpdates):
    """Mixin over CriticPPOTrainer."""

    role, _engine = "critic", property(operator.attrgetter("critic"))


class HealthyWarmStart:
    """Mixin over SFTTrainer, whose `save_logs_and_checkpoints` follows every optimizer step."""

    def save_logs_and_checkpoints(self, args, global_step, step_bar, logs_dict=None, client_states=None):
        engine = self.model.model
        left_out = engine.skipped_steps > getattr(self, "_left_out", 0)
        self._left_out = engine.skipped_steps
        problems = problems_of(logs_dict or {}, left_out, scaled=self.args.ds.param_dtype == "fp16")
        weights = damaged_weights(engine.module)
        if self.strategy.all_reduce(float(bool(problems or weights)), op="max"):
            own = {"rank": self.strategy.get_rank(), "role": "model", "problems": problems, "weights": weights}
            found = describe_findings([own] if problems or weights else []) or "another rank says what is wrong"
            raise HealthError(
                f"optimizer step {global_step} is not healthy: {found}. Nothing of it was saved; the "
                f"checkpoints before are "
                "as they were. What mostly helps: a lower --adam.lr, a smaller --max_norm, bf16 in place of fp16"
            )
        super().save_logs_and_checkpoints(args, global_step, step_bar, logs_dict, client_states)


def losses_and_norms(result: dict, kl_is_loss: bool) -> dict[str, float]:
    """Losses and gradient norms of one micro-batch, as policy and critic give them. Where the KL is not in the loss, it
    may be NaN: a response without a token has none."""
    metrics = result.get("metrics", result)
    names = {name for name in metrics if name in LOSSES or name.endswith("grad_norm")} - (
        set() if kl_is_loss else {"kl"}
    )
    return {name: float(torch.as_tensor(metrics[name]).float().mean()) for name in sorted(names)}


def problems_of(metrics: dict, left_out: bool, scaled: bool) -> list[str]:
    """Findings about one optimizer step or one of its micro-batches.

    Args:
        left_out: DeepSpeed has left the optimizer step out, as it found a gradient that is not finite.
        scaled: in fp16, where that is how the loss scale is found.
    """
    problems = [f"{name} is {metrics[name]}" for name in LOSSES if not math.isfinite(metrics.get(name, 0.0))]
    norms = [value for name, value in metrics.items() if name.endswith("grad_norm")]
    if (left_out and not scaled) or any(not math.isfinite(norm) or norm < 0 for norm in norms):
        problems.append("the gradient is not finite")
    return problems


@torch.no_grad()
def damaged_weights(module: torch.nn.Module) -> list[str]:
    """Names of the parameters that are not finite in this rank: of all that it holds, under ZeRO 3 of its shards.

    The smallest and the largest element tell it exactly (NaN goes through both), without a tensor of the parameter's
    size, and one transfer from the device does for all.
    """
    held = [
        (name, getattr(parameter, "ds_tensor", parameter).detach()) for name, parameter in module.named_parameters()
    ]
    held = [(name, tensor) for name, tensor in held if tensor.numel() and tensor.is_floating_point()]
    if not held:
        return []
    ends = torch.stack([torch.stack(tensor.aminmax()).float() for _, tensor in held])
    good = ends.isfinite().all(-1).tolist()
    return [name for (name, _), ok in zip(held, good, strict=True) if not ok]


def describe_findings(report: list[dict]) -> str:
    """Describe the findings of the ranks; those with a loss that is not finite first, for the others got theirs from
    it."""
    ordered = sorted(report, key=lambda found: not any(p.startswith(LOSSES) for p in found.get("problems", ())))
    lines = []
    for finding in ordered[:MAX_NAMED]:
        parts = list(finding.get("problems", ()))
        if "micro_batch" in finding:
            parts[-1] += f" in micro-batch {finding['micro_batch']}"
            parts[-1] += f" ({finding['responses']} responses, {finding['action_tokens']} tokens)"
        if names := finding["weights"]:
            more = f" and {len(names) - MAX_NAMED} more" if len(names) > MAX_NAMED else ""
            parts.append(f"weights are not finite: {', '.join(names[:MAX_NAMED])}{more}")
        lines.append(f"{finding['role']}, rank {finding['rank']}: {', '.join(parts)}")
    return "; ".join(lines + [f"and {len(report) - MAX_NAMED} more ranks"] * (len(report) > MAX_NAMED))
