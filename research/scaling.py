"""The controller's cost per step as it grows: time and memory of the advantage stage and of the run log.

Sizes double, first in responses, then in tokens. A line for each, in seconds of processor time and MiB of memory above what was
there (tensors: the padded ones that OpenRLHF makes of the responses; stage: advantages; collect and log: the run log, in
the step and in its thread; file: Parquet of random text, about twice what text takes); then a straight line through all of them, in tokens and in
responses, and what it says for a step of --responses x --tokens. With --measure that step itself is measured, if it fits.
"""

from __future__ import annotations

import argparse
import gc
import logging
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from string import printable

import numpy as np
import torch

import run_log
from openrlhf_ebpo.estimator.advantage import estimate
from openrlhf_ebpo.estimator.config import EstimatorConfig
from openrlhf_ebpo.estimator.contract import Batch
from openrlhf_ebpo.estimator.ebpo import EBPO
from openrlhf_ebpo.quickstart.tiny_model import build_tokenizer
from openrlhf_ebpo.record.run_writer import RunLog
from openrlhf_ebpo.training.rollouts import Rollouts

sys.path.append(str(Path(__file__).parents[1] / "benchmarks"))
import advantage

SAMPLES, MICRO_BATCH = 8, 8
SIZES = [(128, 4096), (256, 4096), (512, 4096), (1024, 4096), (256, 8192), (256, 16384), (256, 32768)]
COLUMNS = ("tensors MiB", "stage s", "stage MiB", "collect s", "collect MiB", "log s", "log MiB", "file MiB")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--responses", type=int, default=16384, help="of the step that is asked for (default 16384)")
    parser.add_argument("--tokens", type=int, default=32768, help="of a response of it (default 32768)")
    parser.add_argument(
        "--measure",
        action="store_true",
        help="measure that step too: takes about 60 bytes a token",
    )
    options = parser.parse_args()
    torch.set_num_threads(1)  # what Ray gives the trainer
    logging.disable(logging.WARNING)
    measure(64, 256)  # load what is loaded on first use
    print("  ".join(["responses x tokens", *COLUMNS]))
    found = np.array([line(*size) for size in SIZES])
    wanted = options.responses, options.tokens
    print("\nas a straight line in tokens and responses:")
    print(row(*wanted, predicted(found, *wanted)) + "   predicted")
    if options.measure:
        line(*wanted)


def line(responses: int, tokens: int) -> list[float]:
    values = measure(responses, tokens)
    print(row(responses, tokens, values), flush=True)
    return values


def row(responses: int, tokens: int, values) -> str:
    cells = (f"{value:>{len(name)}.2f}" for value, name in zip(values, COLUMNS, strict=True))
    return "  ".join([f"{responses:>9} x {tokens:<6}", *cells])


def predicted(found: np.ndarray, responses: int, tokens: int) -> np.ndarray:
    """Least squares of relative errors; no cost is below 0."""
    sizes = np.array([(r * t, r, 1) for r, t in SIZES], float)
    wanted = np.array([responses * tokens, responses, 1.0])
    fits = [_fit(sizes, column) for column in found.T]
    return np.array([wanted @ fit for fit in fits])


def _fit(sizes: np.ndarray, values: np.ndarray) -> np.ndarray:
    from scipy.optimize import nnls

    weights = 1 / np.maximum(values, 1e-3)
    scale = sizes.max(axis=0)
    return nnls(sizes / scale * weights[:, None], values * weights)[0] / scale


def measure(responses: int, tokens: int) -> list[float]:
    """As COLUMNS has it: seconds of processor time, and MiB above what was there before."""
    advantage.trim()
    before = advantage.resident_kib("VmRSS")
    experiences = advantage.make_experiences(responses // SAMPLES, SAMPLES, tokens, MICRO_BATCH, kl=False)
    tensors = (advantage.resident_kib("VmRSS") - before) / 1024
    stage = advantage.ready_stage("ebpo", {}, SAMPLES)
    (results, seconds), peak = highest(partial(advantage.timed, stage, experiences, time.process_time))
    del experiences, results
    return [tensors, seconds, peak, *log_costs(responses, tokens)]


def log_costs(responses: int, tokens: int) -> list[float]:
    """Of collecting a batch for the run log, and of its thread; every response is as long as it may be."""
    ebpo = EBPO(EstimatorConfig(SAMPLES))
    rewards = torch.rand(responses // SAMPLES, SAMPLES)
    result = estimate(ebpo, Batch.of(rewards, torch.ones_like(rewards).bool()), ebpo.initial())
    experiences = run_log.make_experiences(responses, tokens, MICRO_BATCH)
    nothing = [""] * responses, [None] * responses
    (rollouts, collected), collecting = highest(
        partial(clocked, partial(Rollouts.before_shaping, experiences, *nothing))
    )
    del experiences
    with tempfile.TemporaryDirectory() as directory:
        log = RunLog(directory, build_tokenizer([printable]))

        def write() -> None:
            log.write_rollouts(1, rollouts.with_result(result))
            log.flush()

        (_, written), writing = highest(partial(clocked, write))
        size = sum(path.stat().st_size for path in Path(directory).rglob("*.parquet")) / 2**20
    return [collected, collecting, written, writing, size]


def clocked(action):
    """The result, and seconds of processor time."""
    started = time.process_time()
    result = action()
    return result, time.process_time() - started


def highest(action):
    """The result, and MiB of resident memory at the highest point above the beginning."""
    gc.collect()
    advantage.trim()
    before = advantage.resident_kib("VmHWM")
    result = action()
    return result, (advantage.resident_kib("VmHWM") - before) / 1024


if __name__ == "__main__":
    main()
