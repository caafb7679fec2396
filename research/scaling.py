"""The controller's cost of one step: time and memory of the advantage stage and of the run log.

A row for each size, RESPONSESxTOKENS, in seconds of processor time and MiB of memory above what was there (tensors: the
padded ones that OpenRLHF makes of the responses; stage: advantages; collect: what the run log takes from a step; log:
its thread, which decodes and writes meanwhile; file: Parquet of random text, about twice what text takes). It takes
about 60 bytes of memory a token.
"""

from __future__ import annotations

import argparse
import logging
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from string import printable
from types import SimpleNamespace

import torch

from lab.markdown_tables import head, line
from openrlhf_ebpo.command import command
from openrlhf_ebpo.estimator.advantage import estimate
from openrlhf_ebpo.estimator.config import EstimatorConfig
from openrlhf_ebpo.estimator.contract import Batch
from openrlhf_ebpo.estimator.ebpo import EBPO
from openrlhf_ebpo.quickstart.tiny_model import build_tokenizer
from openrlhf_ebpo.run.run_writer import RunWriter
from openrlhf_ebpo.upstream.controller.rollouts import Rollouts

sys.path.append(str(Path(__file__).parents[1] / "benchmarks"))
import advantage
from advantage import costs

SAMPLES, MICRO_BATCH = 8, 8
PROMPT_TOKENS = 12
SCALING_COLUMNS = ("tensors MiB", "stage s", "stage MiB", "collect s", "collect MiB", "log s", "log MiB", "file MiB")


def add_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("sizes", nargs="+", type=size, metavar="RESPONSESxTOKENS", help="such as 4096x8000")


def run(options: argparse.Namespace) -> None:
    torch.set_num_threads(1)  # what Ray gives the trainer
    logging.disable(logging.WARNING)
    measure(64, 256)  # load what is loaded on first use
    print(head(["responses x tokens", *SCALING_COLUMNS], numbers=len(SCALING_COLUMNS)))
    for responses, tokens in options.sizes:
        costs_of = (f"{value:.2f}" for value in measure(responses, tokens))
        print(line([f"{responses} x {tokens}", *costs_of]), flush=True)


def size(text: str) -> tuple[int, int]:
    responses, tokens = map(int, text.split("x"))
    return responses, tokens


def measure(responses: int, tokens: int) -> list[float]:
    """As SCALING_COLUMNS has it: seconds of processor time, and MiB above what was there before."""
    advantage.trim()
    before = advantage.resident_kib("VmRSS")
    experiences = advantage.make_experiences(responses // SAMPLES, SAMPLES, tokens, MICRO_BATCH, kl=False)
    tensors = (advantage.resident_kib("VmRSS") - before) / 1024
    stage = advantage.ready_stage("ebpo", {}, SAMPLES)
    _, seconds, peak = costs(partial(stage, experiences), time.process_time)
    del experiences
    return [tensors, seconds, peak, *log_costs(responses, tokens)]


def log_costs(responses: int, tokens: int) -> list[float]:
    """Of collecting a batch for the run log, and of its thread; every response is as long as it may be."""
    ebpo = EBPO(EstimatorConfig(SAMPLES))
    rewards = torch.rand(responses // SAMPLES, SAMPLES)
    result = estimate(ebpo, Batch.of(rewards, torch.ones_like(rewards).bool()), ebpo.initial())
    experiences = full_experiences(responses, tokens)
    rollouts, *collecting = costs(
        partial(Rollouts.before_shaping, experiences, [""] * responses, [None] * responses), time.process_time
    )
    del experiences
    with tempfile.TemporaryDirectory() as directory:
        log = RunWriter(directory, build_tokenizer([printable]))

        def write() -> None:
            log.write_rollouts(1, rollouts.with_result(result))
            log.flush()

        _, *writing = costs(write, time.process_time)
        size = sum(path.stat().st_size for path in Path(directory).rglob("*.parquet")) / 2**20
    return [*collecting, *writing, size]


def full_experiences(responses: int, tokens: int) -> list[SimpleNamespace]:
    """Micro-batches with what the run log reads of an Experience."""
    length = PROMPT_TOKENS + tokens
    action_mask = torch.zeros(MICRO_BATCH, length - 1, dtype=torch.long)
    action_mask[:, PROMPT_TOKENS - 1 :] = 1
    return [
        SimpleNamespace(
            index=list(range(i, i + MICRO_BATCH)),
            sequences=torch.randint(4, 100, (MICRO_BATCH, length)),
            attention_mask=torch.ones(MICRO_BATCH, length, dtype=torch.long),
            action_mask=action_mask.clone(),
            action_log_probs=-torch.rand(MICRO_BATCH, length - 1),
            rewards=torch.rand(MICRO_BATCH),
            response_length=torch.full((MICRO_BATCH,), tokens),
            truncated=torch.zeros(MICRO_BATCH, dtype=torch.bool),
            prompts=[f"prompt {(i + j) // SAMPLES}" for j in range(MICRO_BATCH)],
            labels=["42"] * MICRO_BATCH,
        )
        for i in range(0, responses, MICRO_BATCH)
    ]


main = command("python research/scaling.py", __doc__, add_flags, run)

if __name__ == "__main__":
    main()
