"""A small transformer trained on policy in one process, with any estimator of the registry.

The policy loss of the real command (PPO clip 0.2, mean over tokens) and its optimizer (Adam, betas 0.9 and 0.95,
gradient norm at most 1, constant learning rate after a warm-up), without Ray and vLLM. All seeds are one batch (S first
in every shape); each has its own weights, prompts and random numbers. Success on held-out words, and with it pass@k, is
exact where a word has one right response: the policy's probability of it. After a scratchpad it is measured with
SAMPLES responses.
"""

from __future__ import annotations

import argparse
import functools
import math
import random
from collections.abc import Iterator

import numpy as np
import torch

from lab import policy, tasks
from lab.cells import LR, Cell, parsed
from lab.sampling import Sampler
from openrlhf_ebpo.errors import UsageError
from openrlhf_ebpo.estimator import registry
from openrlhf_ebpo.estimator.config import EstimatorConfig
from openrlhf_ebpo.estimator.contract import Batch, Estimator

BETAS, MAX_NORM, CLIP, WARMUP = (0.9, 0.95), 1.0, 0.2, 0.03
EVALUATIONS = 15
SAMPLED_EVALUATIONS, SAMPLED_WORDS, SAMPLES = 3, 128, 16  # where success is not exact
GREEDY = 1e-3  # a temperature at which the likeliest token is drawn
PASS_AT = (1, 4, 16, 64)
TOKEN_BASELINE = "otb"  # has one advantage a token, and so is a row of this bench alone

Batches = Iterator[tuple[list[list[str]], torch.Tensor]]  # of a step: words (S, M), and what responses are drawn with


def train(
    cell: Cell, spec: str, weights: torch.Tensor, batches: Batches, shape: policy.Shape, lr: float = LR
) -> list[dict]:
    """Train, and return the metrics at the start and after each of EVALUATIONS parts: success now, the rest as means
    since the part before.

    Args:
        spec: the estimator, as `build` reads it.
    """
    estimator, entropy = build(spec, cell.group)
    states = [] if estimator is TOKEN_BASELINE else [estimator.initial() for _ in weights]
    weights, sampler, task = weights.clone().requires_grad_(), Sampler(cell, shape), tasks.TASKS[cell.task]
    adam = torch.optim.AdamW([weights], lr=lr, betas=BETAS, weight_decay=0.0)
    success = functools.partial(sampled_success if task.scratchpad else exact_success, cell.task, shape)
    every = max(cell.steps // (SAMPLED_EVALUATIONS if task.scratchpad else EVALUATIONS), 1)
    rows = [{"step": 0, "rollouts": 0, **success(weights)}]
    since: list[dict] = []
    for step, (words, uniforms) in enumerate(batches, 1):
        adam.param_groups[0]["lr"] = lr * min(1.0, step / max(1, round(WARMUP * cell.steps)))
        prompts, answers = examples(cell.task, words)
        rollouts, corrections = sampler.draw(weights, prompts, uniforms)
        rewards = task.rewards(rollouts.tokens, answers)
        if estimator is TOKEN_BASELINE:
            advantages = token_advantages(shape, weights, prompts, rollouts, rewards.float())
        else:
            advantages, states = estimated(estimator, states, words, rollouts, rewards)
        since.append(of_batch(rewards, advantages, rollouts.mask))
        for part in range(cell.mini_batches):
            chosen = slice(part * cell.prompts // cell.mini_batches, (part + 1) * cell.prompts // cell.mini_batches)
            mini_batch = policy.Rollouts(*(each[:, chosen] for each in rollouts))
            given = prompts[:, chosen], mini_batch, advantages[:, chosen]
            correction = 1.0 if corrections is None else corrections[:, chosen]
            since[-1] |= update(shape, weights, adam, *given, entropy, correction, cell.loss)
        if step % every == 0:
            means = {name: torch.stack([each[name] for each in since]).mean(0) for name in since[0]}
            rows.append({"step": step, "rollouts": step * cell.rollouts, **success(weights), **means})
            since = []
    return rows


def of_batch(rewards: torch.Tensor, advantages: torch.Tensor, mask: torch.Tensor) -> dict[str, torch.Tensor]:
    """Of each seed: the share of groups that fail entirely, the reward, the advantages' root mean square, the tokens of
    a response."""
    return {
        "all_fail": (rewards == 0).all(-1).double().mean(-1),
        "reward": rewards.mean((1, 2)),
        "advantage_rms": advantages.square().flatten(1).mean(1).sqrt(),
        "length": mask.sum(-1).double().mean((1, 2)),
    }


def build(spec: str, group: int) -> tuple[Estimator | str, float]:
    """The estimator, and the weight of the entropy in the loss, of NAME[+PART=CHOICE …][+entropy=WEIGHT]; or
    TOKEN_BASELINE.

    Raises:
        UsageError: the estimator or part is unknown, or only training itself computes it.
    """
    name, options = parsed(spec)
    if name == TOKEN_BASELINE:
        return TOKEN_BASELINE, 0.0
    try:
        entropy = float(options.pop("entropy", 0))
        config = EstimatorConfig(n_samples_per_prompt=group, **options)
        estimator = registry.build_offline(registry.parse_name(name), config)
    except (argparse.ArgumentTypeError, TypeError, UsageError, ValueError) as error:
        raise UsageError(f"--estimators {spec}: {error}") from None
    if estimator is None:
        raise UsageError(f"--estimators {spec}: it cannot be computed from a batch's rewards")
    return estimator, entropy


def draws(cell: Cell, seeds: list[int], replicate: int) -> Batches:
    """Each step's words of each seed, (S, M), and the random numbers its responses are drawn with, (S, M, G, T)."""
    chosen = [random.Random(f"prompts {seed} {replicate}") for seed in seeds]
    uniforms = random_numbers(cell, seeds, replicate)
    for _ in range(cell.steps):
        yield [draw.sample(tasks.words()[1], cell.prompts) for draw in chosen], next(uniforms)


def random_numbers(cell: Cell, seeds: list[int], replicate: int = 0) -> Iterator[torch.Tensor]:
    generators = [torch.Generator().manual_seed(1000 * replicate + seed) for seed in seeds]
    size = (cell.prompts, cell.group, tasks.TASKS[cell.task].response)
    while True:
        yield torch.stack([torch.rand(size, generator=each) for each in generators])


def examples(task: str, words: list[list[str]]) -> tuple[torch.Tensor, torch.Tensor]:
    """Prompts (S, M, P) and answers (S, M, T)."""
    kind = tasks.TASKS[task]
    spelled = [[kind.answer(word) for word in each] for each in words]
    answers = [tasks.answers(each, kind.response) for each in spelled]
    return torch.stack([*map(tasks.prompts, words)]), torch.stack(answers)


def estimated(estimator, states: list, words, rollouts: policy.Rollouts, rewards) -> tuple[torch.Tensor, list]:
    """Advantages (S, M, G), each seed's from its own state, and the states after them."""
    lengths = rollouts.mask.sum(-1).numpy()
    weights = ((1 - rollouts.log_probs.double().exp()) ** 2 * rollouts.mask).sum(-1).numpy()
    valid = np.ones(rewards[0].shape, bool)
    batches = [Batch.of(rewards[s], valid, words[s], (), lengths[s], weights[s]) for s in range(len(states))]
    steps = [estimator.step(batch, state) for batch, state in zip(batches, states, strict=True)]
    return torch.tensor(np.stack([step.advantages for step in steps]), dtype=torch.float32), [s.state for s in steps]


@torch.no_grad()
def token_advantages(shape, weights, prompts, rollouts: policy.Rollouts, rewards) -> torch.Tensor:
    """OTB's advantages (S, M, G, T): each token's baseline is the group's mean reward, weighted by the squared norm of
    the score of each response up to this token, 1 − 2π + Σπ² a token (arXiv 2602.07078; verl's optimal_token_baseline).
    Divided by their root mean square, which OTB leaves to the optimizer.
    """
    log_probs, distributions = policy.log_probs(shape, weights, prompts, rollouts.tokens)
    norms = (1 - 2 * log_probs.exp() + distributions.exp().square().sum(-1)) * rollouts.mask
    norms = norms.cumsum(-1) * rollouts.mask
    baselines = (norms * rewards[..., None]).sum(2, keepdim=True) / norms.sum(2, keepdim=True).clamp(min=1e-8)
    advantages = (rewards[..., None] - baselines) * rollouts.mask
    scale = (advantages.square().sum((1, 2, 3)) / rollouts.mask.sum((1, 2, 3))).sqrt()
    return advantages / (scale + 1e-6)[:, None, None, None]


def update(shape, weights, adam, prompts, rollouts, advantages, entropy_weight, correction=1.0, mean="token") -> dict:
    """Take an optimizer step with the loss's mean over tokens, or over those of a response and then over responses
    ("sequence"); of each seed (S,) the gradient's norm before it is cut to MAX_NORM, the entropy, and the KL of
    the policy before to that after, exact over the vocabulary at the tokens that were drawn."""
    log_probs, distributions = policy.log_probs(shape, weights, prompts, rollouts.tokens)
    count = rollouts.mask.sum((1, 2, 3))
    ratio = (log_probs - rollouts.log_probs).exp()
    if advantages.ndim < rollouts.mask.ndim:
        advantages = advantages[..., None]
    surrogate = torch.min(ratio * advantages, ratio.clamp(1 - CLIP, 1 + CLIP) * advantages)
    losses = -(correction * surrogate * rollouts.mask).sum(-1)
    by_sequence = (losses / rollouts.mask.sum(-1)).mean((1, 2))
    loss = by_sequence if mean == "sequence" else losses.sum((1, 2)) / count
    with torch.set_grad_enabled(entropy_weight > 0):
        entropy = (-(distributions.exp() * distributions).sum(-1) * rollouts.mask).sum((1, 2, 3)) / count
    adam.zero_grad()
    (loss - entropy_weight * entropy).sum().backward()
    norm = weights.grad.norm(dim=1, keepdim=True)
    weights.grad *= (MAX_NORM / (norm + 1e-6)).clamp(max=1.0)
    adam.step()
    with torch.no_grad():
        before = distributions.detach()
        after = policy.log_probs(shape, weights, prompts, rollouts.tokens)[1]
        kl = ((before.exp() * (before - after)).sum(-1) * rollouts.mask).sum((1, 2, 3)) / count
    return {"grad_norm": norm[:, 0], "entropy": entropy.detach(), "kl": kl}


def exact_success(task: str, shape: policy.Shape, weights: torch.Tensor) -> dict[str, torch.Tensor]:
    """Return pass@k of each seed on the held-out words, (S,): the chance that one of k responses is right; and the
    share of words that greedy decoding gets right."""
    rates, greedy = policy.graded(shape, weights, *examples(task, [tasks.words()[0]] * len(weights)))
    rates = rates.double()
    pass_at = {f"pass@{k}": (1 - (1 - rates) ** k).mean(-1) for k in PASS_AT}
    return pass_at | {"greedy": greedy.double().mean(-1)}


def sampled_success(task: str, shape: policy.Shape, weights: torch.Tensor) -> dict[str, torch.Tensor]:
    """Estimate `exact_success` from SAMPLES responses to each of SAMPLED_WORDS words, as far as these give pass@k."""
    prompts, answers = examples(task, [tasks.words()[0][:SAMPLED_WORDS]] * len(weights))
    size = (*answers.shape[:2], SAMPLES, shape.response)
    uniforms = torch.rand(size, generator=torch.Generator().manual_seed(0))
    weights = weights.detach()
    right = tasks.TASKS[task].rewards(policy.generate(shape, weights, prompts, uniforms).tokens, answers)
    greedy = policy.generate(shape, weights, prompts, uniforms[:, :, :1], GREEDY)
    found = {f"pass@{k}": pass_at(right.sum(-1).numpy(), SAMPLES, k).mean(-1) for k in PASS_AT if k <= SAMPLES}
    return found | {"greedy": tasks.TASKS[task].rewards(greedy.tokens, answers).mean((1, 2))}


def pass_at(passes: np.ndarray, samples: int, k: int) -> torch.Tensor:
    """Return the unbiased 1 − C(n − c, k) / C(n, k) for c passes of n samples."""
    failing = [math.comb(samples - c, k) / math.comb(samples, k) for c in range(samples + 1)]
    return 1 - torch.tensor(failing, dtype=torch.float64)[torch.as_tensor(passes, dtype=torch.long)]
