"""EBPO against OpenRLHF's group_norm: seconds of a step and the GPU's memory, in turns, a pair of trainings at a time.

As research/overhead.py, whose arms these are, on one GPU and with the quickstart's model. The learning rate is 0, so that both
arms generate equally much.
"""

from __future__ import annotations

import itertools
import shutil
import statistics
from collections.abc import Sequence
from pathlib import Path

from gpu.memory import peak
from gpu.modes import command, flags_of
from gpu.trainings import WARM_UP
from gpu.work import PartFailed, Work
from lab.statistics import alternated, ratio
from openrlhf_ebpo.record.run_log import read_metrics

PROMPTS, SAMPLES = 64, 8  # of a step
STEPS = {"gpu": 40, "cpu": 12}
ARMS = {
    "group_norm": {
        "advantage_estimator": "group_norm",
        "logger.rollouts_every": 10**9,
        "logger.no_policy_metrics": True,
    },
    "ebpo": {"advantage_estimator": "ebpo"},
}


def arm_flags(work: Work, arm: str) -> dict:
    responses, steps = PROMPTS * SAMPLES, STEPS["cpu" if work.cpu else "gpu"]
    own = {
        "algo.advantage.is_correction_level": None,
        "rollout.batch_size": PROMPTS,
        "rollout.n_samples_per_prompt": SAMPLES,
        "rollout.micro_batch_size": responses,
        "train.batch_size": responses,
        "train.micro_batch_size": responses,
        "data.max_samples": steps * PROMPTS,
        "actor.adam.lr": 0,
        "ckpt.save_steps": -1,
        "ckpt.load_enable": None,
        "vllm.enable_sleep": None,
        "ds.enable_sleep": None,
        "ds.zero_stage": 2,
    }
    return flags_of("colocate", work.model, work.output / arm) | own | ARMS[arm]


def plan(work: Work, number: int) -> list[list[str]]:
    return [command(arm_flags(work, arm)) for arm in alternated(list(ARMS), number)]


def pair(work: Work, number: int) -> dict:
    """One pair: of each arm the median of its steps, and the largest use of the GPU's memory.

    Raises:
        PartFailed: a training failed.
    """
    shutil.rmtree(work.output, ignore_errors=True)
    arms = zip(alternated(list(ARMS), number), plan(work, number), strict=True)
    return {arm: measured(work, words, work.output / arm / "run") for arm, words in arms}


def measured(work: Work, words: Sequence[str], run_dir: Path) -> dict:
    with peak() as memory:
        work.run(words, RAY_ADDRESS="local", OMP_NUM_THREADS="1")
    times = [row["time"] for row in read_metrics(run_dir)]
    gaps = [after - before for before, after in itertools.pairwise(times)][WARM_UP:]
    if not gaps:
        raise PartFailed(f"{len(times)} steps were logged, too few to time")
    return {"seconds_a_step": statistics.median(gaps), "steps": len(times), **memory}


def compared(pairs: Sequence[dict]) -> dict:
    """Ratios EBPO / group_norm over the pairs, of what was measured in each."""
    found = {"pairs": len(pairs)}
    for name in ("seconds_a_step", "peak_mib"):
        ratios = [each["ebpo"][name] / each["group_norm"][name] for each in pairs if each["group_norm"][name]]
        if len(ratios) > 1:
            found[name] = ratio(ratios)._asdict()
    return found
