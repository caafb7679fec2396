"""Speed, memory and values of the advantage stage: `ebpo` here against upstream's `group_norm`.

Both run their own `compute_advantages_and_returns` on fresh copies of the same experiences, in turns, in one process.
Every value of both is held against a slow reference that walks the tokens one by one; a wrong one ends the run with
an error. Columns:

  upstream s, ebpo s   median seconds of the stage
  write s              median seconds to allocate and fill the two output tensors of every experience, nothing else
  speedup              upstream s / ebpo s
  x write              ebpo s / write s
  upstream MiB, ebpo MiB       resident memory at the stage's highest point above what it began with: the kernel's
                               high-water mark, reset, with free heap given back, before the run whose values are
                               checked
  upstream error, ebpo error   largest |value - reference| / max(1, |reference|) over all tokens

A second table times the stage under every estimator computed here and every part of EBPO, in turns with preset `paper`,
no KL, micro-batch 8, the smaller size, from a state that has seen 1,000 groups in 1,000 clusters. `x paper` is the
median of the ratios of processor time in a turn; goal: 1.2 at most, 2 with clusters.

The last line is `speedup N.N`, for the largest size at micro-batch 8 without KL. Goal: 50 or more, x write at most 3,
and no more memory than upstream.
"""

from __future__ import annotations

import argparse
import copy
import ctypes
import gc
import itertools
import logging
import math
import statistics
import sys
import time
from functools import partial
from types import SimpleNamespace

import numpy as np
import torch

from openrlhf_ebpo.command import command
from openrlhf_ebpo.errors import UsageError
from openrlhf_ebpo.estimator.config import EstimatorConfig
from openrlhf_ebpo.estimator.contract import Batch
from openrlhf_ebpo.estimator.registry import ESTIMATORS, build, computed_here
from openrlhf_ebpo.upstream.install import install
from openrlhf_ebpo.upstream.rollout.engine import max_measured

install()

from openrlhf.trainer.ppo_utils import experience_maker  # noqa: E402  (after install: the class below is patched)
from openrlhf.trainer.ppo_utils.experience import Experience  # noqa: E402

PATCHED = experience_maker.RemoteExperienceMaker
ORIGINAL = PATCHED.__bases__[-1]  # upstream's own class, which the patched one extends

SIZES = ((64, 8, 2048), (128, 8, 8192))
QUICK_SIZES = ((8, 8, 256), (16, 8, 512))
MICRO_BATCHES = (1, 8)
KL_COEF = 0.01  # upstream's default
PROMPT_TOKENS = 12
TOLERANCE = {"upstream": 1e-4, "ebpo": 1e-6}  # upstream adds up to 8192 float32 numbers one after another
UPSTREAM_SECONDS = 10  # upstream is not run again once it has taken this long for a row
CLUSTERS = 1000
ADAPTIVE = {"preset": "corrected"}
SETTINGS = (  # of EBPO
    *({"preset": preset} for preset in ("release", "revision")),
    *(ADAPTIVE, {"history": "half_life", "half_life": 512}),
    *({"prior": "none"}, {"normalise": "scale"}, {"normalise": "none"}, {"saturated": "zero"}, {"weights": "score"}),
    *({"clusters": "cluster"}, {"clusters": "cluster", **ADAPTIVE}),
)
RESULT_COLUMNS = (
    *("prompts x samples x tokens", "micro-batch", "KL", "upstream s", "ebpo s", "write s", "speedup", "x write"),
    *("upstream MiB", "ebpo MiB", "upstream error", "ebpo error"),
)


def add_flags(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--quick", action="store_true", help="small sizes, seconds instead of minutes: does it all work?")
    add("--repeats", type=int, default=7, help="timed runs a row, of which the median counts (default 7)")
    add("--threads", type=int, default=1, help="torch threads (default 1, what Ray gives the trainer)")


def run(options: argparse.Namespace) -> None:
    if options.repeats < 1 or options.threads < 1:
        raise UsageError("--repeats and --threads must be at least 1")
    torch.set_num_threads(options.threads)
    logging.disable(logging.WARNING)
    gc.freeze()  # the imported libraries; else each gc.collect() walks them

    for kl in (False, True):  # load what is loaded on first use
        measure(QUICK_SIZES[0], 8, kl, repeats=1)
    print(f"torch {torch.__version__}, {options.threads} thread(s), medians of {options.repeats} runs")
    print_row(RESULT_COLUMNS)
    for size in QUICK_SIZES if options.quick else SIZES:
        for micro_batch, kl in itertools.product(MICRO_BATCHES, (True, False)):
            cells, speedup = measure(size, micro_batch, kl, options.repeats)
            print_row(cells)
    print_ratios((QUICK_SIZES if options.quick else SIZES)[0], options.repeats)
    print(f"\nall values agree with the reference: ebpo to {TOLERANCE['ebpo']}, upstream to {TOLERANCE['upstream']}")
    print(f"speedup {speedup:.1f}")


def measure(size: tuple[int, int, int], micro_batch: int, kl: bool, repeats: int) -> tuple[list[str], float]:
    """Check and time one row of the table: its cells and the speedup."""
    experiences = make_experiences(*size, micro_batch, kl)
    rewards = torch.cat([e.rewards for e in experiences]).reshape(size[:2]).tolist()
    stages = {
        "upstream": partial(advantage_stage, ORIGINAL, "group_norm", size[1], kl),
        "ebpo": partial(advantage_stage, PATCHED, "ebpo", size[1], kl),
        "write": write_outputs,
    }
    peaks, errors = [], []
    seconds = {name: [] for name in stages}
    for name, values in (("upstream", reference_group_norm(rewards)), ("ebpo", reference_ebpo(rewards))):
        results, elapsed, peak = costs(partial(stages[name], copy.deepcopy(experiences)))
        peaks.append(peak)
        errors.append(check_against_upstream(name, results, experiences, values, KL_COEF if kl else 0.0))
        del results
        if name == "upstream":
            seconds[name].append(elapsed)
    for _ in range(repeats):
        for name, stage in stages.items():
            if name != "upstream" or sum(seconds[name]) < UPSTREAM_SECONDS:
                seconds[name].append(timed(stage, copy.deepcopy(experiences)))

    upstream, ebpo, write = (statistics.median(values) for values in seconds.values())
    cells = [" x ".join(map(str, size)), str(micro_batch), "on" if kl else "off"]
    cells += [f"{upstream:.3f}", f"{ebpo:.4f}", f"{write:.4f}", f"{upstream / ebpo:.1f}", f"{ebpo / write:.1f}"]
    cells += [f"{peak:.1f}" for peak in peaks] + [f"{error:.0e}" for error in errors]
    return cells, upstream / ebpo


def print_ratios(size: tuple[int, int, int], repeats: int) -> None:
    """Every other estimator and setting against preset paper."""
    experiences = make_experiences(*size, 8, kl=False)
    others = [("ebpo", settings) for settings in SETTINGS]
    others += [(name, {}) for name in ESTIMATORS if computed_here(name) and name != "ebpo"]
    stages = [ready_stage("ebpo", {}, size[1]), *(ready_stage(*other, size[1]) for other in others)]
    turns = [[timed(stage, copy.deepcopy(experiences), time.process_time) for stage in stages] for _ in range(repeats)]
    print(f"\n{' x '.join(map(str, size))}: paper {statistics.median(turn[0] for turn in turns):.4f} s")
    for place, (name, settings) in enumerate(others, 1):
        ratio = statistics.median(turn[place] / turn[0] for turn in turns)
        shown = " ".join(f"{part}={choice}" for part, choice in settings.items())
        print(f"{ratio:6.2f} x paper  {name} {shown}", flush=True)


def ready_stage(name: str, settings: dict, samples: int):
    """The stage from a state that has seen as many groups as there are clusters."""
    estimator = build(name, EstimatorConfig(samples, **settings))
    rewards = np.random.default_rng(0).integers(2, size=(CLUSTERS, samples))
    names = tuple(f"cluster {i}" for i in range(CLUSTERS))
    state = estimator.step(Batch.of(rewards, rewards >= 0, names, names), estimator.initial()).state
    return partial(advantage_stage, PATCHED, name, samples, False, settings=settings, state=state)


def print_row(cells) -> None:
    print(
        "  ".join(cell.rjust(max(len(name), 7)) for cell, name in zip(cells, RESULT_COLUMNS, strict=True)), flush=True
    )


# What goes in: experiences as upstream makes them


def make_experiences(prompts: int, samples: int, tokens: int, micro_batch: int, kl: bool) -> list[Experience]:
    """Rollouts of varied length and pass rate, batched and padded by upstream's own code. The first response of every
    group is cut at the token limit, so that micro-batches of a complete group are as wide as they can be."""
    torch.manual_seed(0)
    pass_rates = torch.rand(prompts).repeat_interleave(samples).tolist()
    lengths = torch.randint(1, tokens + 1, (prompts, samples))
    lengths[:, 0] = tokens
    rollouts = [make_rollout(n, tokens, p) for n, p in zip(lengths.flatten().tolist(), pass_rates, strict=True)]
    args = SimpleNamespace(
        train=SimpleNamespace(dynamic_batch_enable=False), rollout=SimpleNamespace(micro_batch_size=micro_batch)
    )
    splitter = SimpleNamespace(args=args, tokenizer=SimpleNamespace(pad_token_id=0))
    experiences = ORIGINAL.split_rollout_samples(splitter, rollouts)
    for e in experiences:
        e.kl = torch.randn(e.action_mask.shape).mul_(0.1) if kl else torch.zeros(e.action_mask.shape)
        e.action_log_probs = -torch.rand(e.action_mask.shape)
        e.info |= {"kl": e.kl.mean(-1), "logprobs_diff": e.kl.mean(-1)}
    return experiences


def make_rollout(length: int, limit: int, pass_rate: float) -> Experience:
    """One response, in the form that upstream's SamplesGenerator gives it."""
    total = PROMPT_TOKENS + length
    action_mask = torch.zeros(1, total, dtype=torch.long)
    action_mask[:, PROMPT_TOKENS:] = 1
    reward = torch.bernoulli(torch.tensor([pass_rate]))
    return Experience(
        sequences=torch.randint(1, 1000, (1, total)),
        attention_mask=torch.ones(1, total, dtype=torch.long),
        action_mask=action_mask[:, 1:],
        prompts=["prompt"],
        labels=["label"],
        images=[None],
        mm_train_inputs=[None],
        rewards=reward,
        scores=reward,
        response_length=torch.tensor([length]),
        truncated=torch.tensor([length == limit]),
        total_length=torch.tensor([float(total)]),
        info={"response_clip_ratio": torch.tensor([length == limit]), "reward": reward},
    )


# What is measured


def advantage_stage(maker_class, estimator: str, samples: int, kl: bool, experiences, settings=None, state=None):
    advantage = SimpleNamespace(estimator=estimator, gamma=1.0, ebpo=SimpleNamespace(**(settings or {})))
    args = SimpleNamespace(
        algo=SimpleNamespace(advantage=advantage, kl=SimpleNamespace(use_loss=False)),
        reward=SimpleNamespace(clip_range=(-10, 10)),
        rollout=SimpleNamespace(n_samples_per_prompt=samples),
    )
    maker = maker_class(
        actor_model_group=None,
        critic_model_group=None,
        reward_model_group=None,
        initial_model_group=object() if kl else None,
        kl_controller=SimpleNamespace(value=KL_COEF if kl else 0.0),
        strategy=SimpleNamespace(args=args),
        tokenizer=None,
    )
    if state is not None:
        maker.state = state
    count = sum(len(e.index) for e in experiences)
    # as make_experience_batch leaves them
    maker._errors, maker._clusters = [""] * count, [f"cluster {7 * (i // samples) % CLUSTERS}" for i in range(count)]
    maker.unread = []
    measured = [row for e in experiences for row in e.action_log_probs][
        : max_measured(int(experiences[0].total_length.max()))
    ]
    maker._rollout_log_probs = [*measured, *[None] * (count - len(measured))]
    return maker.compute_advantages_and_returns(experiences)


def write_outputs(experiences: list[Experience]):
    return [[torch.empty(e.action_mask.shape).fill_(1.0) for _ in range(2)] for e in experiences]


def costs(action, clock=time.perf_counter):
    """Return the result, seconds, and MiB of resident memory at the highest point above the beginning."""
    gc.collect()
    trim()
    before, started = resident_kib("VmHWM"), clock()
    result = action()
    return result, clock() - started, (resident_kib("VmHWM") - before) / 1024


def timed(stage, experiences: list[Experience], clock=time.perf_counter) -> float:
    gc.collect()
    started = clock()
    stage(experiences)
    return clock() - started


def trim() -> None:
    """Give free memory back, and let VmHWM begin at VmRSS."""
    ctypes.CDLL(None).malloc_trim(0)
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")


def resident_kib(field: str) -> int:
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) for line in file if line.startswith(field))


# What must come out: slow, plain, one token at a time


def reference_group_norm(rewards: list[list[float]]) -> list[float]:
    return [
        (reward - statistics.fmean(group)) / (statistics.stdev(group) + 1e-9) for group in rewards for reward in group
    ]


def reference_ebpo(rewards: list[list[float]]) -> list[float]:
    """arXiv 2602.05165, Algorithm 1, first batch of a run."""
    means = [statistics.fmean(group) for group in rewards]
    everything = [reward for group in rewards for reward in group]
    noise = statistics.pvariance(everything) / len(rewards[0])
    shrinkage = noise / (noise + statistics.pvariance(means))
    baselines = [(1 - shrinkage) * mean + shrinkage * statistics.fmean(everything) for mean in means]
    raw = [reward - baseline for group, baseline in zip(rewards, baselines, strict=True) for reward in group]
    centre, std = statistics.fmean(raw), statistics.stdev(raw)
    return [(advantage - centre) / (std + 1e-6) for advantage in raw]


def reference_returns(value: float, mask: list[int], kl: list[float], kl_coef: float) -> list[float]:
    """Undiscounted return: what is still to come at each token, the value arriving at the last action token."""
    returns, still_to_come, arrived = [0.0] * len(mask), 0.0, False
    for t in range(len(mask) - 1, -1, -1):
        if mask[t]:
            if not arrived:
                still_to_come, arrived = value, True
            still_to_come -= kl_coef * kl[t]
        returns[t] = still_to_come
    return returns


def check_against_upstream(name: str, results, inputs, values: list[float], kl_coef: float) -> float:
    """Hold every token of a stage's results against the reference; the largest error."""
    worst, values = 0.0, iter(values)
    for result, given in zip(results, inputs, strict=True):
        returns, advantages = result.returns, result.advantages
        if not (returns.is_contiguous() and advantages.is_contiguous()):
            sys.exit(f"{name}: returns and advantages must be contiguous")
        if returns.untyped_storage().data_ptr() == advantages.untyped_storage().data_ptr():
            sys.exit(f"{name}: returns and advantages must be separate tensors")
        rows = zip(given.action_mask.tolist(), given.kl.tolist(), strict=True)
        expected = torch.tensor(
            [reference_returns(next(values), mask, kl, kl_coef) for mask, kl in rows], dtype=torch.float64
        )
        for tensor in (returns, advantages):
            error = ((tensor.double() - expected).abs() / expected.abs().clamp(min=1)).max().item()
            worst = max(worst, error if error == error else math.inf)
    if worst > TOLERANCE[name]:
        sys.exit(f"{name}: off the reference by {worst:.1e}, more than {TOLERANCE[name]}")
    return worst


main = command("python benchmarks/advantage.py", __doc__, add_flags, run)

if __name__ == "__main__":
    main()
