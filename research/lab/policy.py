"""A small transformer, one policy a seed, all seeds in one batch: generation and training forward in float32.

S seeds, M prompts each, G responses a prompt, P prompt positions (padded on the left), T response positions, V tokens.
The weights of a seed are one row of a matrix (S, weights), so that its gradient norm and its Adam step are those of a
row. The responses of a group share the keys and values of their prompt.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

PAD, END, FIRST_LETTER = 0, 1, 2
VOCABULARY = FIRST_LETTER + 26
NEVER = -60.0  # of a logit; below about -80 the exponential takes several times as long


@dataclass(frozen=True)
class Shape:
    """Positions of prompt and response, and the transformer's width, heads and layers.

    On a CPU, softmax is ten times as fast where prompt + response is a multiple of 16.
    """

    prompt: int
    response: int
    width: int = 32
    heads: int = 2
    layers: int = 1

    def weights(self) -> dict[str, tuple[int, ...]]:
        d = self.width
        layer = {"qkv": (d, 3 * d), "out": (d, d), "up": (d, 4 * d), "down": (4 * d, d)}
        shapes = {"token": (VOCABULARY, d), "position": (self.prompt + self.response, d)}
        return shapes | {f"{name}{i}": size for i in range(self.layers) for name, size in layer.items()}


class Prompts(NamedTuple):
    """Keys and values of the prompts, (S*M, H, P, d/H) in each layer, and which positions hold a letter, (S, M, P)."""

    layers: list[tuple[Tensor, Tensor]]
    present: Tensor


class Rollouts(NamedTuple):
    """tokens, log_probs, mask: (S, M, G, T); the mask is 1 up to the end token."""

    tokens: Tensor
    log_probs: Tensor
    mask: Tensor


def initial(shape: Shape, seeds: list[int]) -> Tensor:
    """Random weights, one row a seed, the same whatever other seeds are there."""
    rows = []
    for seed in seeds:
        random = torch.Generator().manual_seed(seed)
        sizes = shape.weights().values()
        rows.append(torch.cat([torch.randn(math.prod(size), generator=random) * size[-1] ** -0.5 for size in sizes]))
    return torch.stack(rows) * 0.5


def unpack(shape: Shape, weights: Tensor) -> dict[str, Tensor]:
    sizes = shape.weights()
    parts = weights.split([math.prod(size) for size in sizes.values()], dim=1)
    return {name: part.view(-1, *size) for (name, size), part in zip(sizes.items(), parts, strict=True)}


def read(shape: Shape, w: dict[str, Tensor], prompts: Tensor) -> Prompts:
    """Keys and values of prompts (S, M, P)."""
    seeds, count, length = prompts.shape
    present = prompts != PAD
    x = embed(w, prompts, 0)
    causal = torch.ones(length, length, dtype=torch.bool).tril()
    allowed = (causal & present.view(-1, 1, 1, length)) | torch.eye(length, dtype=torch.bool)
    layers = []
    for i in range(shape.layers):
        q, k, v = heads(shape, linear(norm(x), w[f"qkv{i}"]), seeds * count, length)
        layers.append((k, v))
        if i + 1 < shape.layers:
            attended = F.scaled_dot_product_attention(q, k, v, attn_mask=allowed)
            x = x + linear(merged(attended, seeds), w[f"out{i}"])
            x = x + feed_forward(w, i, x)
    return Prompts(layers, present)


def logits(shape: Shape, w: dict[str, Tensor], prompts: Prompts, tokens: Tensor, past: int = 0, cache=None) -> Tensor:
    """Logits (S, M, G, t, V) after response tokens (S, M, G, t).

    Args:
        past: how many response tokens came before these.
        cache: of each layer the keys and values (S*M*G, H, T, d/H) of those before; these tokens' are written into it.
    """
    seeds, count, group, length = tokens.shape
    x = embed(w, tokens.reshape(seeds, count * group, length), shape.prompt + past)
    absent = (1 - prompts.present.float()).view(seeds * count, 1, 1, 1, shape.prompt) * NEVER
    future = torch.full((length, shape.response if cache else length), NEVER).triu(past + 1)
    for i, (prompt_k, prompt_v) in enumerate(prompts.layers):
        q, k, v = heads(shape, linear(norm(x), w[f"qkv{i}"]), seeds * count * group, length)
        if cache:
            for kept, new in zip(cache[i], (k, v), strict=True):
                kept[:, :, past : past + length] = new
            k, v = cache[i]
        x = x + linear(merged(attend(q, k, v, prompt_k, prompt_v, absent, future), seeds), w[f"out{i}"])
        x = x + feed_forward(w, i, x)
    return linear(norm(x), w["token"].transpose(1, 2)).view(seeds, count, group, length, VOCABULARY)


def empty_cache(shape: Shape, rows: int) -> list[tuple[Tensor, Tensor]]:
    size = (rows, shape.heads, shape.response, shape.width // shape.heads)
    return [(torch.zeros(size), torch.zeros(size)) for _ in range(shape.layers)]


def attend(q, k, v, prompt_k, prompt_v, absent, future) -> Tensor:
    """Attention of responses (S*M*G, H, T, ·) to their prompts (S*M, H, P, ·) and to themselves."""
    rows, h, length, size = q.shape
    prompts, group = len(prompt_k), rows // len(prompt_k)
    q = q * size**-0.5
    shared = q.view(prompts, group, h, length, size).transpose(1, 2).reshape(prompts, h, group * length, size)
    to_prompt = (shared @ prompt_k.transpose(2, 3)).view(prompts, h, group, length, -1) + absent
    to_self = q @ k.transpose(2, 3) + future
    to_prompt = to_prompt.transpose(1, 2).reshape(rows, h, length, -1)
    weights = torch.cat([to_prompt, to_self], -1).softmax(-1)
    on_prompt, on_self = weights.split([prompt_k.shape[2], k.shape[2]], -1)
    on_prompt = on_prompt.view(prompts, group, h, length, -1).transpose(1, 2).reshape(prompts, h, group * length, -1)
    from_prompt = (on_prompt @ prompt_v).view(prompts, h, group, length, size).transpose(1, 2)
    return from_prompt.reshape(rows, h, length, size) + on_self @ v


def embed(w: dict[str, Tensor], tokens: Tensor, first: int) -> Tensor:
    """(S, N*length, d) of tokens (S, N, length) at positions from `first` on."""
    seeds, count, length = tokens.shape
    offset = torch.arange(seeds).view(-1, 1, 1) * VOCABULARY
    token = F.embedding(tokens + offset, w["token"].flatten(0, 1))
    return (token + w["position"][:, None, first : first + length]).view(seeds, count * length, -1)


def linear(x: Tensor, weight: Tensor) -> Tensor:
    return torch.bmm(x, weight)


def norm(x: Tensor) -> Tensor:
    return F.rms_norm(x, x.shape[-1:], eps=1e-5)


def feed_forward(w: dict[str, Tensor], i: int, x: Tensor) -> Tensor:
    return linear(F.relu(linear(norm(x), w[f"up{i}"])), w[f"down{i}"])


def heads(shape: Shape, qkv: Tensor, rows: int, length: int) -> list[Tensor]:
    """Queries, keys and values (rows, H, length, d/H) of (S, N*length, 3d)."""
    size = shape.width // shape.heads
    return [part.transpose(1, 2) for part in qkv.view(rows, length, 3, shape.heads, size).unbind(2)]


def merged(attended: Tensor, seeds: int) -> Tensor:
    """(S, N*length, d) of (rows, H, length, d/H)."""
    return attended.transpose(1, 2).reshape(seeds, -1, attended.shape[1] * attended.shape[3])


def log_probs(shape: Shape, weights: Tensor, prompts: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
    """Of each response token (S, M, G, T), and the distributions (S, M, G, T, V) they were drawn from."""
    w = unpack(shape, weights)
    distributions = logits(shape, w, read(shape, w, prompts), inputs(tokens)).log_softmax(-1)
    return distributions.gather(-1, tokens[..., None])[..., 0], distributions


def inputs(tokens: Tensor) -> Tensor:
    """The policy's inputs for the outputs `tokens`: the end of the prompt (END too), then all but the last."""
    return torch.cat([torch.full_like(tokens[..., :1], END), tokens[..., :-1]], -1)


@torch.no_grad()
def generate(shape: Shape, weights: Tensor, prompts: Tensor, uniforms: Tensor, temperature: float = 1.0) -> Rollouts:
    """Responses to prompts (S, M, P), by inverse transform of `uniforms` (S, M, G, T)."""
    w = unpack(shape, weights)
    read_prompts, cache = read(shape, w, prompts), empty_cache(shape, uniforms[..., 0].numel())
    token = torch.full(uniforms.shape[:3], END)
    running = torch.ones(uniforms.shape[:3], dtype=torch.bool)
    steps = []
    for t in range(shape.response):
        found = logits(shape, w, read_prompts, token[..., None], t, cache)[..., 0, :].div(temperature).log_softmax(-1)
        token = (found.exp().cumsum(-1) < uniforms[..., t, None]).sum(-1).clamp(max=VOCABULARY - 1)
        steps.append((token, found.gather(-1, token[..., None])[..., 0], running))
        running = running & (token != END)
    tokens, chosen, mask = (torch.stack(part, -1) for part in zip(*steps, strict=True))
    return Rollouts(tokens.where(mask, torch.tensor(PAD)), chosen * mask, mask)


@torch.no_grad()
def graded(
    shape: Shape, weights: Tensor, prompts: Tensor, answers: Tensor, decisive: Tensor | None = None, at_once: int = 128
) -> tuple[Tensor, Tensor]:
    """Compare the policy with the answers (S, M, T), which end with END; both results are exact.

    Args:
        decisive: positions (S, M, T) that count; None: all of an answer.

    Returns:
        The probability (S, M) that a response drawn at temperature 1 is the answer, and whether greedy decoding gives
        it.
    """
    found = []
    decisive = answers != PAD if decisive is None else decisive
    for some, right, present in zip(*(x.split(at_once, 1) for x in (prompts, answers, decisive)), strict=True):
        chosen, distributions = log_probs(shape, weights, some, right[:, :, None])
        greedy = distributions[:, :, 0].argmax(-1) == right
        found.append(((chosen[:, :, 0] * present).sum(-1).exp(), (greedy | ~present).all(-1)))
    probabilities, greedy = (torch.cat(part, 1) for part in zip(*found, strict=True))
    return probabilities, greedy


def success(shape: Shape, weights: Tensor, prompts: Tensor, answers: Tensor) -> Tensor:
    """Return the probabilities of `graded`."""
    return graded(shape, weights, prompts, answers)[0]
