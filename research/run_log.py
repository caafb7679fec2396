"""How long writing the run log holds up a training step: 4,096 responses of 8,000 tokens.

The step hands the batch to the log's thread, which decodes and writes it. Measured: the seconds until the step has the
batch off its hands; how much slower the step's own Python then runs while the thread works (they share one
interpreter; the trainer mostly waits for its actors then); and how long the thread takes.
"""

from __future__ import annotations

import argparse
import string
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace

import torch

from openrlhf_ebpo.estimator.advantage import estimate
from openrlhf_ebpo.estimator.config import EstimatorConfig
from openrlhf_ebpo.estimator.contract import Batch
from openrlhf_ebpo.estimator.ebpo import EBPO
from openrlhf_ebpo.quickstart.tiny_model import build_tokenizer
from openrlhf_ebpo.record.run_writer import RunLog
from openrlhf_ebpo.training.rollouts import Rollouts

GROUP = 8
PROMPT_TOKENS = 12


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--responses", type=int, default=4096, help="responses per step (default 4096)")
    parser.add_argument("--tokens", type=int, default=8000, help="tokens per response (default 8000)")
    parser.add_argument("--micro_batch", type=int, default=8, help="responses per micro-batch (default 8)")
    options = parser.parse_args()
    torch.set_num_threads(1)  # what Ray gives the trainer
    rewards = torch.rand(options.responses // GROUP, GROUP)
    ebpo = EBPO(EstimatorConfig(GROUP))
    result = estimate(ebpo, Batch.of(rewards, torch.ones_like(rewards).bool()), ebpo.initial())
    experiences = make_experiences(options.responses, options.tokens, options.micro_batch)
    alone = spin(0.5)
    with tempfile.TemporaryDirectory() as directory:
        log = RunLog(directory, build_tokenizer([string.printable]))
        started = time.perf_counter()
        rollouts = Rollouts.before_shaping(experiences, [""] * options.responses, [None] * options.responses)
        handing_over = time.perf_counter()
        log.write_rollouts(1, rollouts.with_result(result))
        blocked = time.perf_counter() - handing_over
        prepared = handing_over - started
        beside = spin(0.5)
        log.flush()
        total = time.perf_counter() - handing_over
        size = sum(f.stat().st_size for f in Path(directory).rglob("*.parquet")) / 2**20
    print(f"{options.responses} responses x {options.tokens} tokens, micro-batches of {options.micro_batch}")
    print(f"collecting the batch's columns    {prepared:.3f} s")
    print(f"handing it to the thread          {blocked:.3f} s")
    print(f"the step's own Python meanwhile   {beside / alone:.2f} times as long")
    print(f"the thread is done after          {total:.1f} s ({size:.0f} MiB Parquet)")
    print(f"blocked {prepared + blocked:.3f}")


def make_experiences(responses: int, tokens: int, micro_batch: int) -> list:
    length = PROMPT_TOKENS + tokens
    action_mask = torch.zeros(micro_batch, length - 1, dtype=torch.long)
    action_mask[:, PROMPT_TOKENS - 1 :] = 1
    return [
        SimpleNamespace(
            index=list(range(i, i + micro_batch)),
            sequences=torch.randint(4, 100, (micro_batch, length)),
            attention_mask=torch.ones(micro_batch, length, dtype=torch.long),
            action_mask=action_mask.clone(),
            action_log_probs=-torch.rand(micro_batch, length - 1),
            rewards=torch.rand(micro_batch),
            response_length=torch.full((micro_batch,), tokens),
            truncated=torch.zeros(micro_batch, dtype=torch.bool),
            prompts=[f"prompt {(i + j) // GROUP}" for j in range(micro_batch)],
            labels=["42"] * micro_batch,
        )
        for i in range(0, responses, micro_batch)
    ]


def spin(seconds: float) -> float:
    """Seconds a million additions take, repeated for about `seconds`."""
    times = []
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        started = time.perf_counter()
        for _ in range(1_000_000):
            pass
        times.append(time.perf_counter() - started)
    return sum(times) / len(times)


if __name__ == "__main__":
    main()
